"""What guests are told and how they are started; the command's script is run by this machine's own shell."""

import base64
import os
import pathlib
import subprocess
import tempfile
import unittest

from rdma_vm import guest, machine, options

SURPRISES = "a b", "it's", '"$HOME"', "`id`", "new\nline", "", "*", "\\n", "ü"


def asked(line):
    return options.parse(line.split())


class Network(unittest.TestCase):
    def test_one_guest_has_a_link_per_device_and_nothing_to_lose_packets_on(self):
        lines = guest.build_network(asked("run --devices 2 --mtu 1500 -- true"), 0)
        self.assertIn("ip address add 10.77.1.1/24 dev eth1", lines)
        self.assertIn("rdma link add rxe1 type rxe netdev eth1", lines)
        self.assertEqual(sum("type veth" in line and "mtu 1500" in line for line in lines), 2)
        self.assertFalse([line for line in lines if line.startswith("tc")])

    def test_a_link_is_up_before_its_device_is_added(self):
        for line in ("run -- true", "pair -- true"):
            lines = guest.build_network(asked(line), 0)
            self.assertLess(lines.index("ip link set eth0 up"), lines.index("rdma link add rxe0 type rxe netdev eth0"))

    def test_programs_are_started_once_for_commands_that_follow_each_other(self):
        lines = guest.build_batches(["ip link set lo up", "ip link set a up", "rdma link add b", "ip link set c up"])
        first = ["ip -batch - <<'END'", "link set lo up", "link set a up", "END"]
        self.assertEqual(lines, [*first, "rdma link add b", "ip -batch - <<'END'", "link set c up", "END"])

    def test_two_hosts_know_each_other_and_nobody_twice(self):
        pair = asked("pair --devices 2 -- true")
        for host, other in ((0, 1), (1, 0)):
            lines = guest.build_network(pair, host)
            for device in range(2):
                known = f"ip neighbour replace {guest.address(other, device)} lladdr {guest.mac(other, device)} dev eth{device}"
                self.assertIn(known, lines)
        self.assertEqual(len({guest.mac(host, device) for host in range(2) for device in range(8)}), 16)

    def test_faults_are_on_every_device_and_the_delay_comes_first(self):
        lines = guest.build_network(asked("pair --devices 2 --reorder 10% --loss 1% -- true"), 1)
        faults = [line for line in lines if line.startswith("tc")]
        self.assertEqual(len(faults), 2)
        self.assertTrue(faults[1].startswith("tc qdisc add dev eth1 root netem"))
        self.assertLess(faults[1].index("delay 1ms"), faults[1].index("reorder 10%"))
        self.assertIn("loss 1%", faults[1])

    def test_names_of_all_links(self):
        text = guest.build_hosts_file(asked("pair --devices 2 -- true"))
        self.assertIn("10.77.0.2 host1 host1-eth0\n", text)
        self.assertIn("10.77.1.1 host0-eth1\n", text)

    def test_cuts_are_of_host_0_and_for_ever_ends_nowhere(self):
        cuts = asked("pair --devices 2 --cut 2,3 --cut 9,forever --cut-device 1 -- true")
        self.assertEqual(guest.build_cuts(cuts, 1), [])
        short, ever = guest.build_cuts(cuts, 0)
        self.assertRegex(short, r"sleep 2 .*eth1 down.*sleep 3 .*eth1 up")
        self.assertNotIn("up", ever)

    def test_a_cut_that_waits_for_files_looks_for_each_in_its_turn(self):
        with tempfile.TemporaryDirectory(prefix="with space and 'quote") as folder:
            cut = options.parse(["pair", "--cut", f"{folder}/pull,{folder}/plug", "--", "true"])
            (line,) = guest.build_cuts(cut, 0)
            script = "\n".join(["ip() { echo $4 >&4; }", "exec 3>/dev/null", line, "wait"])
            heard, said = os.pipe()
            process = subprocess.Popen(["/bin/sh", "-c", f"exec 4>&{said}\n{script}"], pass_fds=[said])
            os.close(said)
            with open(heard, encoding="ascii") as lines:
                pathlib.Path(folder, "pull").touch()
                self.assertEqual(lines.readline(), "down\n")
                self.assertIsNone(process.poll())
                pathlib.Path(folder, "plug").touch()
                self.assertEqual(lines.read(), "up\n")
            self.assertEqual(process.wait(), 0)


class Command(unittest.TestCase):
    def run_script(self, line, command, environment, directory="/"):
        text = guest.build_command(options.parse([*line.split(), "--", *command]), environment, directory)
        # Not everybody may lift the limit here.
        text = text.replace("ulimit -l unlimited\n", "")
        return subprocess.run(["env", "-i", "/bin/sh", "-c", text], capture_output=True, text=True)

    def test_arguments_arrive_as_they_were_given(self):
        done = self.run_script("run", ["printf", "<%s>", *SURPRISES], {"PATH": os.environ["PATH"]})
        self.assertEqual(done.stdout, "".join(f"<{text}>" for text in SURPRISES))

    def test_variables_arrive_as_they_were_given_and_no_other(self):
        inside = {f"LINERATE_{index}": text for index, text in enumerate(SURPRISES)} | {"PATH": os.environ["PATH"]}
        done = self.run_script("run", ["env", "-0"], inside)
        found = dict(item.split("=", 1) for item in done.stdout.split("\0") if item)
        self.assertEqual({name: found[name] for name in inside}, inside)
        self.assertLessEqual(set(found) - set(inside), {"PWD", "_", "SHLVL", "OLDPWD"})

    def test_the_directory_is_the_caller_s(self):
        with tempfile.TemporaryDirectory(prefix="with space and 'quote") as folder:
            done = self.run_script("run", ["pwd"], {"PATH": os.environ["PATH"]}, folder)
            self.assertEqual(done.stdout.rstrip("\n"), folder)

    def test_a_missing_program_is_named_and_has_the_shell_s_exit_code(self):
        done = self.run_script("run", ["no such program"], {"PATH": "/bin"})
        self.assertEqual(done.returncode, 127)
        self.assertIn("no such program: neither in PATH", done.stderr)

    def test_of_the_environment_only_what_is_documented_comes_in(self):
        outside = {"PATH": "/bin", "LINERATE_DEBUG": "info", "RUST_LOG": "x", "CARGO_TARGET_DIR": "/t", "MY_SECRET": "s", "LD_PRELOAD": "l"}
        inside = guest.build_environment(outside, asked("pair --devices 2 --env MY=1 -- true"), 1)
        self.assertEqual(inside["RDMA_VM_HOST"], "1")
        self.assertEqual(inside["RDMA_VM_ADDRESSES_0"], "10.77.0.1,10.77.1.1")
        self.assertEqual((inside["MY"], inside["CARGO_TARGET_DIR"], inside["LINERATE_DEBUG"]), ("1", "/t", "info"))
        self.assertFalse({"MY_SECRET", "LD_PRELOAD"} & set(inside))

    def test_the_user_s_word_is_the_last(self):
        inside = guest.build_environment({"PATH": "/bin"}, asked("run --env PATH=/mine -- true"), 0)
        self.assertEqual(inside["PATH"], "/mine")

    def test_a_job_is_one_line_that_a_shell_can_read(self):
        line = guest.build_job(options.parse(["run", "--", *SURPRISES]), 0, {"A": "x\ny"}, "/", "\x01token")
        self.assertEqual(line.count(b"\n"), 1)
        text = base64.b64decode(line)
        self.assertEqual(subprocess.run(["/bin/sh", "-n"], input=text, capture_output=True).returncode, 0)


class Machine(unittest.TestCase):
    def build(self, line, cables=()):
        return machine.build_arguments(asked(line), 1, pathlib.Path("/image"), {"console": 5, "control": 6}, list(cables))

    def test_the_host_s_files_are_read_only_and_emulation_is_asked_for(self):
        text = " ".join(self.build("run -- true"))
        self.assertRegex(text, r"-virtfs local,path=/,\S*readonly=on")
        self.assertIn("-accel tcg", text)
        self.assertNotIn("kvm", text)

    def test_each_cable_is_a_card_of_the_mtu(self):
        text = " ".join(self.build("pair --devices 2 --mtu 4200 -- true", cables=[7, 8]))
        self.assertIn("socket,id=net1,fd=8", text)
        self.assertIn(f"netdev=net1,mac={guest.mac(1, 1)},host_mtu=4200", text)

    def test_a_writable_directory_is_a_share_of_its_own(self):
        text = " ".join(self.build("run --write / -- true"))
        self.assertRegex(text, r"path=/,mount_tag=write0,\S+(?<!readonly=on)( |$)")


if __name__ == "__main__":
    unittest.main()
