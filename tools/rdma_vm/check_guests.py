"""Real guests: exit codes, streams, two hosts and their faults. Started by tools/test where qemu is; seven boots.

python3 -m unittest discover --start-directory tools/rdma_vm --top-level-directory tools --pattern 'check_*.py'
"""

import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

TOOL = pathlib.Path(__file__).resolve().parent.parent / "rdma-vm"
PERFTEST = "ib_write_bw -d rxe0 -x 1 -F -s 65536 -n 50"
# The server takes one connection, so that only it can show that it listens; what ends a client that found none is not shown.
CLIENT = f"{{ i=0; until {PERFTEST} host0; do i=$((i + 1)); [ $i -lt 60 ] || break; sleep 0.3; done; [ $i -lt 60 ]; }}"


def run(*arguments, cwd=None):
    return subprocess.run([TOOL, *arguments], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def descendants(process):
    """Process ids below one, from /proc: children of children too."""
    parents = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = entry.read_text().split(" (", 1)
        except OSError:
            continue
        parents[int(number)] = int(rest.rsplit(") ", 1)[1].split()[1])
    found = {process}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found - {process}
        found |= more


def program_of(process):
    try:
        return pathlib.Path(f"/proc/{process}/comm").read_text()
    except OSError:
        return ""


class Guests(unittest.TestCase):
    def test_one_guest_has_devices_streams_and_the_caller_s_place(self):
        with tempfile.TemporaryDirectory() as folder:
            script = f"""
                cat /sys/class/infiniband/rxe[01]/ports/1/state
                cat /sys/class/infiniband/rxe1/ports/1/gids/1
                {PERFTEST} >/dev/null 2>&1 &
                {CLIENT} >/dev/null 2>&1; echo write_bw $?
                pwd; ulimit -l; echo "$MINE"
                echo kept >{folder}/kept; echo lost >{TOOL}.lost
                echo aside >&2; exec sh -c 'kill -9 $$'"""
            done = run("run", "--devices", "2", "--env", "MINE=a  'b", "--write", folder, "--", "sh", "-c", script, cwd="/usr")
            states = ["4: ACTIVE"] * 2
            gid = "0000:0000:0000:0000:0000:ffff:0a4d:0101"
            self.assertEqual(done.stdout.splitlines(), [*states, gid, "write_bw 0", "/usr", "unlimited", "a  'b"], done.stderr)
            self.assertEqual(done.stderr, "aside\n")
            self.assertEqual(done.returncode, 128 + signal.SIGKILL)
            self.assertEqual((pathlib.Path(folder) / "kept").read_text(), "kept\n")
            self.assertFalse(TOOL.with_name("rdma-vm.lost").exists())

    def test_two_hosts_write_to_each_other_although_packets_are_lost(self):
        server = f"{PERFTEST} >&2 || exit 1; tc -s qdisc show dev eth0; exit 0"
        client = f"{CLIENT} >&2 || exit 1; tc -s qdisc show dev eth0; exit 1"
        command = f"if [ $RDMA_VM_HOST = 0 ]; then {server}; else {client}; fi"
        done = run("pair", "--loss", "1%", "--label", "--", "sh", "-c", command)
        self.assertEqual(done.returncode, 1, done.stderr)
        for host in range(2):
            self.assertRegex(done.stderr, rf"host{host}:  65536 +50 ")
            self.assertRegex(done.stdout, rf"host{host}: qdisc netem .* loss 1%")

    def test_a_cut_link_is_down_and_comes_back(self):
        watch = """
            state=/sys/class/infiniband/rxe0/ports/1/state
            [ $RDMA_VM_HOST = 0 ] || exit 0
            touch /tmp/linerate-check-pull
            while grep -q ACTIVE $state; do sleep 0.1; done; cat $state
            ping -c 1 -W 1 host1 >/dev/null 2>&1 && echo reached
            touch /tmp/linerate-check-plug
            until grep -q ACTIVE $state; do sleep 0.1; done; cat $state
            ping -c 3 -W 2 host1 >/dev/null && echo reached"""
        done = run("pair", "--cut", "/tmp/linerate-check-pull,/tmp/linerate-check-plug", "--", "sh", "-c", watch)
        self.assertEqual(done.stdout.splitlines(), ["1: DOWN", "4: ACTIVE", "reached"], done.stderr)

    def test_two_at_once_do_not_meet_and_a_timeout_ends_everything(self):
        first = subprocess.Popen([TOOL, "pair", "--timeout", "1", "--", "sleep", "100"], stderr=subprocess.PIPE, text=True)
        second = run("run", "--", "no-such-program")
        said = first.communicate()[1]
        self.assertEqual((first.returncode, second.returncode), (124, 127))
        self.assertIn("host0 and host1 after 1 s", said)
        self.assertIn("no-such-program", second.stderr)

    def test_an_interrupt_ends_the_guest(self):
        process = subprocess.Popen(
            [TOOL, "run", "--", "sh", "-c", "echo up; sleep 100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.assertEqual(process.stdout.readline(), "up\n")
        below = descendants(process.pid)
        self.assertTrue(below)
        process.send_signal(signal.SIGINT)
        process.communicate()
        self.assertEqual(process.returncode, 128 + signal.SIGINT)
        self.assertFalse([child for child in below if os.path.exists(f"/proc/{child}")])

    def test_a_guest_that_breaks_down_before_its_command_is_started_again(self):
        process = subprocess.Popen([TOOL, "run", "--", "echo", "begun"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not (machines := [child for child in descendants(process.pid) if program_of(child).startswith("qemu")]):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        for machine in machines:
            os.kill(machine, signal.SIGKILL)
        out, errors = process.communicate(timeout=300)
        self.assertEqual((process.returncode, out), (0, "begun\n"), errors)
        self.assertEqual(errors.count("starting again"), 1, errors)
        self.assertIn("host0 ended before its command did", errors)


if __name__ == "__main__":
    unittest.main()
