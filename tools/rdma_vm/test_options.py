"""The command line: what is taken, and that a refusal names what to change."""

import contextlib
import io
import math
import pathlib
import tempfile
import unittest

from rdma_vm import options
from rdma_vm.options import Cut


class Taken(unittest.TestCase):
    def test_a_run_has_the_documented_defaults(self):
        asked = options.parse(["run", "--", "ibv_devinfo", "-v"])
        self.assertEqual((asked.mode, asked.hosts, asked.command), ("run", 1, ("ibv_devinfo", "-v")))
        self.assertEqual((asked.devices, asked.cpus, asked.memory_mib, asked.mtu), (1, 2, 2048, 9000))
        self.assertEqual((asked.timeout_s, asked.netem, asked.cuts, asked.write), (600, (), (), ()))

    def test_a_pair_has_two_hosts_of_one_processor(self):
        asked = options.parse(["pair", "--", "true"])
        self.assertEqual((asked.hosts, asked.cpus), (2, 1))

    def test_only_the_first_dashes_end_the_options(self):
        asked = options.parse(["run", "--devices", "2", "--", "cargo", "test", "--", "--devices", "9"])
        self.assertEqual(asked.command, ("cargo", "test", "--", "--devices", "9"))
        self.assertEqual(asked.devices, 2)

    def test_faults_of_the_network(self):
        asked = options.parse("pair --loss 1% --delay 5ms --corrupt 0.1% --rate 100mbit -- true".split())
        self.assertEqual(dict(asked.netem), {"loss": "1%", "delay": "5ms", "corrupt": "0.1%", "rate": "100mbit"})

    def test_reordering_brings_the_delay_that_it_takes(self):
        self.assertEqual(dict(options.parse("pair --reorder 10% -- true".split()).netem)["delay"], options.REORDER_DELAY)
        self.assertEqual(dict(options.parse("pair --reorder 10% --delay 9ms -- true".split()).netem)["delay"], "9ms")

    def test_cuts_add_up_and_may_last_for_ever(self):
        asked = options.parse("run --devices 2 --cut 2,3 --cut 7.5,forever --cut-device 1 -- true".split())
        self.assertEqual((asked.cuts, asked.cut_device), ((Cut(2, 3), Cut(7.5, None)), 1))

    def test_a_cut_may_wait_for_files(self):
        asked = options.parse("pair --cut /tmp/pull,/tmp/plug --cut /tmp/again,2 --cut 1,/tmp/end -- true".split())
        self.assertEqual(asked.cuts, (Cut("/tmp/pull", "/tmp/plug"), Cut("/tmp/again", 2), Cut(1, "/tmp/end")))

    def test_no_timeout_is_zero(self):
        self.assertEqual(options.parse("run --timeout 0 -- true".split()).timeout_s, math.inf)
        self.assertEqual(options.parse(["shell"]).timeout_s, math.inf)

    def test_values_keep_their_equals_signs(self):
        self.assertEqual(options.parse(["run", "--env", "A=b=c d", "--", "true"]).environment, (("A", "b=c d"),))

    def test_a_writable_directory_becomes_absolute(self):
        with tempfile.TemporaryDirectory() as folder:
            asked = options.parse(["run", "--write", f"{folder}/.", "--", "true"])
            self.assertEqual(asked.write, (pathlib.Path(folder).resolve(),))

    def test_sizes(self):
        self.assertEqual([options.memory_mib(text) for text in ("256M", "3G")], [256, 3072])


class Refused(unittest.TestCase):
    def refuse(self, line, *words):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as caught:
            options.parse(line.split())
        self.assertEqual(caught.exception.code, 2, line)
        for word in words:
            self.assertIn(word, said.getvalue().replace("\n", " "), line)

    def test_no_mode_or_an_unknown_one(self):
        self.refuse("", "run, pair, shell or setup")
        self.refuse("start -- true", "start", "pair")

    def test_a_command_where_there_is_none_and_none_where_one_is_needed(self):
        self.refuse("run", "needs a command", "-- CMD")
        self.refuse("pair --", "needs a command")
        self.refuse("run true", "'true'", "after '--'")
        self.refuse("shell -- true", "run -- true")

    def test_options_that_do_not_exist_or_are_shortened(self):
        self.refuse("run --frob -- true", "'--frob' is no option")
        self.refuse("run --dev 2 -- true", "'--dev' is no option")

    def test_values_one_beyond_the_allowed(self):
        self.refuse("run --devices 0 -- true", "--devices", "'0'", f"1 to {options.DEVICES_MAX}")
        self.refuse(f"run --devices {options.DEVICES_MAX + 1} -- true", "--devices")
        self.refuse(f"run --mtu {options.MTU_MIN - 1} -- true", "--mtu", str(options.MTU_MAX))
        self.refuse(f"run --memory {options.MEMORY_MIB_MIN - 1}M -- true", "--memory", "2G")
        self.refuse("run --memory 2048 -- true", "M or G")

    def test_values_without_their_unit(self):
        self.refuse("pair --loss 1 -- true", "--loss", "1%")
        self.refuse("pair --loss 0% -- true", "--loss")
        self.refuse("pair --loss 101% -- true", "--loss")
        self.refuse("pair --delay 5 -- true", "--delay", "5ms")
        self.refuse("pair --rate 10 -- true", "--rate", "100mbit")
        self.refuse("run --env A -- true", "--env", "NAME=VALUE")
        self.refuse("run --timeout soon -- true", "--timeout", "seconds")
        self.refuse("run --timeout -- true", "--timeout")

    def test_faults_of_a_network_that_one_guest_does_not_have(self):
        for name, value in {"loss": "1%", "delay": "1ms", "reorder": "1%", "corrupt": "1%", "duplicate": "1%", "rate": "1gbit"}.items():
            self.refuse(f"run --{name} {value} -- true", f"--{name}", "only with pair")

    def test_cuts_that_cannot_be(self):
        self.refuse("pair --cut 2 -- true", "--cut", "2,forever")
        self.refuse("pair --cut -1,2 -- true", "--cut")
        self.refuse("pair --cut pull,2 -- true", "--cut", "'pull'")
        self.refuse("pair --cut-device 0 -- true", "no --cut")
        self.refuse("pair --cut 1,1 --cut-device 1 -- true", "--cut-device 1", "the last is 0")

    def test_directories_that_cannot_be_written(self):
        self.refuse("run --write /no/such/folder -- true", "--write /no/such/folder", "create it first")


if __name__ == "__main__":
    unittest.main()
