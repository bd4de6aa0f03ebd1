"""The `verbs` transport in real guests: one host, two hosts, and their faults. Started by tools/test where qemu is.

Programs are built on this machine and run in the guests, where all is fifty times slower: sizes are small and deadlines long.

python3 -m unittest discover --start-directory tools/rdma_vm --top-level-directory tools --pattern 'check_verbs.py'
"""

import json
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "rdma-vm"
COLLECTIVES = (
    "allreduce reduce-scatter all-gather all-gatherv broadcast reduce gather scatter all-to-all all-to-allv barrier sendrecv"
)
RANK = (
    "RANK=$RDMA_VM_HOST WORLD_SIZE=2 MASTER_ADDR=host0 MASTER_PORT=29500 LINERATE_DEBUG=info "
    "LINERATE_SECRET=0123456789abcdef0123456789abcdef"
)
BUILT = {}


def build(*arguments):
    """The programs that cargo makes of these arguments, by their targets' names."""
    command = ["cargo", *arguments, "--locked", "--message-format=json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    lines = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return {line["target"]["name"]: line["executable"] for line in lines if line.get("executable")}


def setUpModule():
    BUILT.update(build("build", "--package", "linerate-tools"))
    tests = build("test", "--no-run", "--lib", "--test", "verbs", "--test", "conformance")
    BUILT["unit"] = tests.pop("linerate")
    tests.update(build("test", "--no-run", "--package", "linerate-tools", "--test", "perf"))
    BUILT.update(tests)


def run(*arguments):
    return subprocess.run([TOOL, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)


def hosts(options, size, iterations, devices="", timeout=40):
    """An allreduce between two hosts."""
    command = (
        f"{RANK} LINERATE_TIMEOUT={timeout} exec {BUILT['linerate']} bench allreduce "
        f"--transport verbs{devices} -b {size} -e {size} -w 1 -n {iterations}"
    )
    return run("pair", "--timeout", "150", "--label", *options, "--", "sh", "-c", command)


class OneHost(unittest.TestCase):
    def check(self, script, *options):
        done = run("run", "--timeout", "400", *options, "--", "bash", "-c", script)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        return done.stdout

    def test_every_clause_of_the_contract(self):
        script = f"LINERATE_CONFORMANCE_ONLY=verbs LINERATE_TEST_SCALE=4 {BUILT['conformance']} --test-threads=1 clause_"
        self.assertNotIn("skipped", self.check(script))

    def test_faults_memory_and_what_is_left(self):
        script = f"{BUILT['verbs']} --test-threads=1 --nocapture"
        self.assertNotIn("skipped", self.check(script))

    def test_the_parent_s_memory_after_a_fork(self):
        out = self.check(f"{BUILT['unit']} --nocapture transport::verbs::tests")
        self.assertNotIn("skipped", out)
        self.assertIn("1 passed", out)

    def test_perf_and_its_letters(self):
        out = self.check(f"{BUILT['perf']} --nocapture everything_is_measured_over_verbs")
        self.assertNotIn("skipped", out)
        self.assertIn("1 passed", out)

    def test_every_collective_with_two_three_and_four_ranks(self):
        bench = f"{BUILT['linerate']} bench $c --transport verbs --ranks $n -b 8 -e 64K -f 64 -n 2 -w 1"
        script = f"for n in 2 3 4; do for c in {COLLECTIVES}; do {bench} >/tmp/out 2>&1 || {{ echo $c $n; cat /tmp/out; exit 1; }}; done; done"
        self.check(script)


class TwoHosts(unittest.TestCase):
    def test_perf_between_a_server_and_a_client(self):
        command = (
            "[ $RDMA_VM_HOST = 0 ] || { sleep 2; set -- host0; }; "
            f"exec {BUILT['linerate']} perf write_bw -d rxe0 --insecure -n 20 --no-rotate \"$@\""
        )
        done = run("pair", "--timeout", "150", "--label", "--", "sh", "-c", command, "sh")
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        for host in range(2):
            self.assertRegex(done.stdout, rf"host{host}: +65536 +20 ")

    def check(self, done):
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        self.assertIn("Out of bounds values : 0 OK", done.stdout)

    def test_clean(self):
        done = hosts([], "1M", 5)
        self.check(done)
        self.assertNotIn("generation", done.stderr)

    def test_one_packet_in_a_hundred_is_lost(self):
        self.check(hosts(["--loss", "1%"], "64K", 30))

    def test_packets_overtake_each_other(self):
        self.check(hosts(["--reorder", "25%"], "64K", 15))

    def test_a_cut_of_two_seconds_is_survived(self):
        done = hosts(["--cut", "6,2"], "64K", 250)
        self.check(done)
        self.assertIn("generation 2 begins", done.stderr)

    def test_a_cut_for_good_is_an_error_within_the_timeout(self):
        done = hosts(["--cut", "6,forever"], "64K", 100_000, timeout=10)
        self.assertEqual(done.returncode, 1, f"{done.stdout}\n{done.stderr}")
        for host in range(2):
            self.assertRegex(done.stderr, rf"host{host}: .*(no progress for 10s|cannot be reached)")

    def test_one_of_two_cables_is_pulled(self):
        # The second one: over the first the ranks find each other.
        done = hosts(["--devices", "2", "--cut", "7,forever", "--cut-device", "1"], "256K", 100, devices=":rxe0,rxe1")
        self.check(done)
        self.assertIn("generation 2 begins", done.stderr)


if __name__ == "__main__":
    unittest.main()
