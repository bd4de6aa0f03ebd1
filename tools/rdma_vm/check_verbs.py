"""The `verbs` transport: what needs no kernel on soft-verbs, a device as a library (ffi/soft-verbs), and in real guests the rest,
on one host, on two, and with their faults. Started by tools/test; guests only where qemu is.

Programs are built on this machine and run in the guests, where all is fifty times slower: sizes are small and deadlines long.
Nothing is timed: links are cut when a job says that it runs, and it ends when it has said what is waited for.

python3 -m unittest discover --start-directory tools/rdma_vm --top-level-directory tools --pattern 'check_verbs.py'
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from rdma_vm.errors import GUEST

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "rdma-vm"
COLLECTIVES = (
    "allreduce reduce-scatter all-gather all-gatherv broadcast reduce gather scatter all-to-all all-to-allv barrier sendrecv "
    "gatherv scatterv reduce-scatterv"
)
RANK = (
    "RANK=$RDMA_VM_HOST WORLD_SIZE=2 MASTER_ADDR=host0 MASTER_PORT=29500 LINERATE_DEBUG=info "
    "LINERATE_SECRET=0123456789abcdef0123456789abcdef"
)
# Of the guest only; nobody has it outside, which the guest would see.
FOLDER = "/tmp/linerate-check-verbs"
BYTES = {"64K": 64 << 10, "256K": 256 << 10}
# On host0, when the job runs: the card under rxe1 leaves its driver. That ends when nobody has the device open any more.
TAKE_OUT = (
    "until [ -e running ]; do sleep 0.1; done; card=$(readlink /sys/class/net/eth1/device); "
    "echo ${card##*/} >/sys/bus/virtio/drivers/virtio_net/unbind"
)
MEETING = "LINERATE_RENDEZVOUS=tcp://127.0.0.1:29500 LINERATE_DEBUG=info LINERATE_TIMEOUT=60"
TESTS = ("api", "command", "conformance", "device", "faults", "verbs")
# Either host may begin to replace queue pairs; the other one follows.
REPLACED = "generation [0-9]+ (begins|goes over)"
BUILT = {}


def setUpModule():
    # Of the workspace, as tools/test has built them before: packages that are named make other features of what they depend on, and
    # with them cargo builds most of it again.
    command = ["cargo", "test", "--workspace", "--locked", "--no-run", "--message-format=json", "--lib"]
    command += [f"--test={name}" for name in TESTS]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    made = {}
    for line in (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")):
        if line.get("executable"):
            kind = line["target"]["kind"][0] if line["profile"]["test"] else "program"
            made[kind, line["target"]["name"]] = line["executable"]
    BUILT.update({name: made["test", name] for name in TESTS})
    BUILT.update(linerate=made["program", "linerate"], unit=made["lib", "linerate"])


def run(*arguments):
    """Once more where the guest itself failed, which is told with its console: faults of the emulator are not what is checked here."""
    for _ in range(2):
        done = subprocess.run([TOOL, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != GUEST:
            break
        print(said(done), file=sys.stderr)
    return done


def hosts(options, size, iterations, devices="", timeout=40):
    """An allreduce between two hosts."""
    command = (
        f"{RANK} LINERATE_TIMEOUT={timeout} {BUILT['linerate']} bench allreduce "
        f"--transport verbs{devices} -b {size} -e {size} -w 1 -n {iterations}; code=$?; cd /sys/class/infiniband; "
        "for rxe in *; do echo $rxe sent $(cat $rxe/ports/1/hw_counters/sent_pkts) packets; done; exit $code"
    )
    return run("pair", "--timeout", "150", "--label", *options, "--", "sh", "-c", command)


def until_told(faults, size, texts, devices="", timeout=60, meanwhile=":"):
    """Sums between two hosts until host0 has said all of the texts, one after the other. The job makes the file `running` on host0
    when it runs; `said-N` is made when the text with that number was said. `meanwhile` goes on beside it on host0."""
    watch = "".join(
        f"until grep -qE {shlex.quote(text)} said; do sleep 0.1; done; touch said-{number}; " for number, text in enumerate(texts)
    )
    command = (
        f"export {RANK} LINERATE_TRANSPORT=verbs{devices} LINERATE_TIMEOUT={timeout} LINERATE_TEST_ROLE=sums; "
        f"export LINERATE_TEST_FOLDER={FOLDER} LINERATE_TEST_BYTES={BYTES[size]}; mkdir {FOLDER} && cd {FOLDER} && touch said || exit 2; "
        f"[ $RDMA_VM_HOST != 0 ] || ({watch}touch end) & [ $RDMA_VM_HOST != 0 ] || ({meanwhile}) & "
        # tee ends before the command does: what is left of a command is killed.
        f"exec 3>&1; {BUILT['verbs']} --exact child_entry --nocapture 2>&1 >&3 3>&- | tee said >&2; exit ${{PIPESTATUS[0]}}"
    )
    return run("pair", "--timeout", "150", "--label", *faults, "--", "bash", "-c", command)


def said(done):
    """What both hosts said, for whoever has to find out why."""
    return f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


class Common:
    """On a device of one host, which `start` gives to a script."""

    def check(self, script, devices=1):
        done = self.start(script, devices)
        self.assertEqual(done.returncode, 0, said(done))
        return done.stdout

    def test_every_clause_of_the_contract(self):
        for provider in ("verbs", "verbs large", "router:verbs"):
            with self.subTest(provider):
                script = f"LINERATE_CONFORMANCE_ONLY='{provider}' LINERATE_TEST_SCALE=4 {BUILT['conformance']} --test-threads=1 clause_"
                self.assertNotIn("skipped", self.check(script))

    def test_perf_and_its_letters(self):
        out = self.check(f"{BUILT['command']} --nocapture everything_is_measured_over_verbs")
        self.assertNotIn("skipped", out)
        self.assertIn("1 passed", out)

    def test_every_collective_with_two_three_and_four_ranks(self):
        # Buffers that rotate over more than the caches hold are for measuring, and a third of the time of such a run.
        bench = f"{BUILT['linerate']} bench $c --transport verbs --ranks $n -b 8 -e 64K -f 64 -n 2 -w 1 --no-rotate"
        script = f"for n in 2 3 4; do for c in {COLLECTIVES}; do {bench} >/tmp/out 2>&1 || {{ echo $c $n; cat /tmp/out; exit 1; }}; done; done"
        self.check(script)

    def test_every_type_with_every_operator_that_it_has(self):
        # The bench compares with sums of its own. 64 elements of the largest type are a message of their own.
        bench = f"{BUILT['linerate']} bench $c --transport verbs --ranks 2 -b 1K -e 1K -n 1 -w 0 --no-rotate --datatype all"
        out = self.check(f"c=allreduce; {bench} --op all && for c in alltoall reduce-scatter; do {bench} || exit 1; done")
        for name in "bool i16 u16 f8e4m3 f8e5m2 c64 c128 bitor bitxor".split():
            self.assertIn(f" {name} ", out)

    def test_every_sparse_algorithm_applies_and_keeps_what_was_given(self):
        # The bench fails where a coordinate has lost or doubled anything, or ranks differ.
        bench = f"{BUILT['linerate']} bench sparse-allreduce --transport verbs --algo all --count 30000 -n 2 -w 1 --timeout 200"
        out = self.check(f"for n in 2 3; do {bench} --ranks $n --mode exact && {bench} --ranks $n --mode threshold || exit 1; done")
        rows = [line.split() for line in out.splitlines() if line and not line.startswith("#")]
        rows = [row for row in rows if row[-1] == "0"]
        self.assertEqual(len(rows), 4 * 11, out)

    def test_partial_sums_have_every_gradient_once_under_every_policy(self):
        # The experiment fails where a sum does not hold what its bits say. 4 KiB are summed by an operation of their own.
        skew = f"{BUILT['linerate']} experiment skew --transport verbs --sizes 64,4K --rounds 8 --skew-ms 20 --timeout 200"
        out = self.check(f"for n in 2 3; do {skew} --ranks $n --policies full,solo,majority,2,random || exit 1; done")
        rows = [line.split() for line in out.splitlines() if line and not line.startswith("#")]
        rows = [row for row in rows if row[-1] == "0"]
        self.assertEqual(len(rows), 2 * 2 * 5, out)

    def test_a_parameter_server_in_every_mode(self):
        # The bench fails where a weight is wrong.
        bench = f"{BUILT['linerate']} bench push-pull --transport verbs -b 1K -e 64K -f 8 -n 4 -w 1 --timeout 200"
        runs = [f"{bench} --ranks {ranks} --mode {mode}" for ranks, mode in ((2, "bsp"), (3, "ssp:1"), (2, "dssp:1:3 --replicas 1"), (3, "asp"))]
        out = self.check(" && ".join(runs))
        self.assertEqual(out.count("# rows: 3, wrong 0"), len(runs), out)

    def test_memory_after_a_fork_and_of_a_dmabuf_and_news(self):
        out = self.check(f"{BUILT['unit']} --nocapture transport::verbs::tests transport::rdma::news_tests")
        self.assertNotIn("skipped", out)
        self.assertIn("4 passed", out)

    def test_the_bindings_on_a_device(self):
        out = self.check(f"LINERATE_TEST_RDMA=1 {BUILT['device']} --test-threads=1")
        self.assertIn(" 0 failed", out)

    def ranks(self, *of_each, devices=1):
        """Ranks that say that they are on two hosts, each with settings of its own; what they print, and how they end."""
        common = f"WORLD_SIZE={len(of_each)} {MEETING} exec {BUILT['linerate']} bench allreduce -b 64K -e 64K -w 1 -n 3 --no-rotate"
        starts = (f"(RANK={rank} {own} {common} 2>&1) & p{rank}=$!;" for rank, own in enumerate(of_each))
        ends = (f"wait $p{rank} || bad=1;" for rank in range(len(of_each)))
        script = f"{' '.join(starts)} bad=0; {' '.join(ends)} exit $bad"
        return self.start(script, devices)

    def test_ranks_of_two_hosts_share_memory_within_and_use_verbs_between(self):
        for transport in ("auto", "router"):
            own = [f"LINERATE_HOSTID={host} LINERATE_TRANSPORT={transport}" for host in "aabb"]
            done = self.ranks(*own, devices=2)
            self.assertEqual(done.returncode, 0, said(done))
            self.assertIn("verbs between hosts, because every rank has a device that speaks RoCEv2", done.stdout)
            self.assertIn("transport router:verbs", done.stdout)
            self.assertIn("Out of bounds values : 0 OK", done.stdout)

    def test_one_rank_without_a_device_makes_all_use_tcp_and_is_named(self):
        own = [f"LINERATE_HOSTID={host}" for host in "aabb"]
        own[2] += " LINERATE_IBVERBS_LIB=/nowhere/libibverbs.so"
        done = self.ranks(*own)
        self.assertEqual(done.returncode, 0, said(done))
        self.assertRegex(done.stdout, "tcp between hosts, because rank 2 has no usable RDMA device: .*/nowhere/libibverbs.so")
        self.assertIn("transport router ", done.stdout)

    def test_tcp_that_was_asked_for_is_tcp(self):
        done = self.ranks(*[f"LINERATE_HOSTID={host} LINERATE_TRANSPORT=tcp" for host in "ab"])
        self.assertEqual(done.returncode, 0, said(done))
        self.assertIn("transport tcp ", done.stdout)


def is_listening(port):
    """Whether a process listens at a port of TCP, which a connection to find out would use up."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path("/proc/net", name).read_text().splitlines()]
    return any(line[1].endswith(f":{port:04X}") and line[3] == "0A" for line in lines)


class SoftVerbs(Common, unittest.TestCase):
    def library(self):
        return pathlib.Path(BUILT["linerate"]).parent / "libsoft_verbs.so"

    def start(self, script, devices=1):
        own = {"LINERATE_IBVERBS_LIB": str(self.library()), "SOFT_VERBS": f"devices={devices}"}
        command = ["timeout", "400", "bash", "-c", script]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=os.environ | own)

    def test_faults_memory_and_what_is_left(self):
        out = self.check(f"{BUILT['verbs']} --test-threads=1 --nocapture --skip removal:: --skip seeds::")
        # A port goes down in a guest only, and the kernel's objects are counted there.
        self.assertEqual(out.count("skipped"), 2, out)

    def test_messages_that_are_cut_on_two_paths(self):
        for name in ("a_message_that_is_cut", "the_pieces_of_all_paths"):
            self.assertIn("1 passed", self.check(f"{BUILT['verbs']} --nocapture faults::{name}", devices=2))

    def test_jobs_of_many_ranks(self):
        self.assertNotIn("skipped", self.check(f"{BUILT['faults']} --test-threads=1 --nocapture many::"))

    def test_servers_and_workers_that_are_killed_and_those_that_come_later(self):
        self.assertIn("8 passed", self.check(f"{BUILT['faults']} --test-threads=1 --nocapture servers::"))

    def test_perf_takes_the_library_that_is_named(self):
        out = self.check(f"{BUILT['linerate']} perf write_bw --local -s 64K -n 100 && {BUILT['linerate']} perf write_bw --local -n 10 --transport shm")
        self.assertEqual([out.count(f"Transport: {name} ") for name in ("verbs", "shm")], [1, 1], out)

    def test_programs_of_others(self):
        """perftest and the examples of libibverbs, with this library in its place."""
        programs = {
            "ib_write_bw --use_old_post_send -F -n 100": r"(?m)^ *65536 +100 ",
            "ib_send_lat --use_old_post_send -F -n 100": r"(?m)^ *2 +100 ",
            "ibv_rc_pingpong -g 1 -n 100": "100 iters in",
            "ibv_rc_pingpong -g 1 -n 100 -e": "100 iters in",
        }
        for name in ("ib_write_bw", "ibv_rc_pingpong"):
            if not shutil.which(name):
                self.skipTest(f"{name} is not installed (Debian: apt-get install perftest ibverbs-utils)")
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(self.library(), f"{folder}/libibverbs.so.1")
            own = os.environ | {"LD_LIBRARY_PATH": folder, "SOFT_VERBS": "rate=100gbit,latency=2us"}
            for program, row in programs.items():
                with self.subTest(program), socket.create_server(("127.0.0.1", 0)) as free:
                    port = free.getsockname()[1]
                    free.close()
                    command = ["timeout", "60", *program.split(), "-d", "soft0", "-p", str(port)]
                    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
                    with subprocess.Popen(command, env=own, **options) as server:
                        while server.poll() is None and not is_listening(port):
                            time.sleep(0.01)
                        client = subprocess.run([*command, "127.0.0.1"], env=own, **options)
                        told = server.communicate()[0]
                    self.assertEqual((server.returncode, client.returncode), (0, 0), told + client.stdout)
                    for text in (told, client.stdout):
                        self.assertRegex(text, row)

    def test_jobs_whose_devices_fail(self):
        self.assertIn("1 passed", self.check(f"{BUILT['verbs']} --nocapture seeds::"))

    def test_every_clause_on_devices_that_fail(self):
        # A clock that jumps (clause 2) may jump over the time that a port is down.
        for words in ("late=100us,purge=none", *(f"faults={seed}" for seed in range(1, 9))):
            with self.subTest(words):
                script = f"export SOFT_VERBS={words}; LINERATE_CONFORMANCE_ONLY=verbs {BUILT['conformance']} clause_ --skip clause_02"
                self.assertNotIn("skipped", self.check(script))

    def test_windows(self):
        for words in ("mtu=4096", "map=none,land=50us"):
            with self.subTest(words):
                out = self.check(f"SOFT_VERBS={words} {BUILT['api']} --nocapture windows::")
                self.assertIn("8 passed", out)

    def test_a_device_without_reliable_connections_is_passed_over(self):
        done = self.start(f"SOFT_VERBS=profile=efa-like {BUILT['linerate']} bench allreduce --transport verbs --ranks 2 -b 8 -e 8")
        self.assertNotEqual(done.returncode, 0, said(done))
        self.assertIn("it is no channel adapter", done.stderr, said(done))

    def test_profiles(self):
        """Conformance on every device."""
        for profile in ("mlx4", "irdma", "qedr", "bnxt", "small-cq", "no-srq"):
            with self.subTest(profile):
                script = f"export SOFT_VERBS=profile={profile}; LINERATE_CONFORMANCE_ONLY=verbs {BUILT['conformance']} clause_"
                self.assertNotIn("skipped", self.check(script))


class OneHost(Common, unittest.TestCase):
    """In a guest, on Soft-RoCE. tools/test runs what only a kernel shows, and with --long all."""

    def start(self, script, devices=1):
        return run("run", "--timeout", "400", "--devices", str(devices), "--", "bash", "-c", script)

    def test_faults_memory_and_what_is_left(self):
        script = f"{BUILT['verbs']} --test-threads=1 --nocapture --skip removal:: --skip seeds::"
        self.assertNotIn("skipped", self.check(script))

    def test_pieces_cut_on_two_paths_and_devices_that_are_taken_away(self):
        # In this order: the last takes what those before it need. The first takes nothing away, and cuts what goes over two paths.
        order = ("faults::a_message_that_is_cut", "removal::the_only_device", "removal::one_of_two", "removal::a_device_that_is_deleted")
        script = "; ".join(f"{BUILT['verbs']} --nocapture {name} || exit" for name in order)
        out = self.check(script, devices=3)
        self.assertNotIn("skipped", out)
        self.assertEqual(out.count("1 passed"), len(order), out)

    def test_two_devices_of_a_host_are_refused_with_the_reason(self):
        done = self.ranks(
            *[f"LINERATE_TRANSPORT=verbs:rxe{rank} LINERATE_VERBS_TIMEOUT=8 LINERATE_TIMEOUT=25" for rank in range(2)], devices=2
        )
        self.assertNotEqual(done.returncode, 0, said(done))
        self.assertRegex(done.stdout, "the peer's rxe[01] is on this host too")


class TwoHosts(unittest.TestCase):
    def test_perf_between_a_server_and_a_client(self):
        command = (
            "[ $RDMA_VM_HOST = 0 ] || { until (: </dev/tcp/host0/18515) 2>/dev/null; do sleep 0.1; done; set -- host0; }; "
            f"exec {BUILT['linerate']} perf write_bw -d rxe0 --insecure -n 20 --no-rotate \"$@\""
        )
        done = run("pair", "--timeout", "150", "--label", "--", "bash", "-c", command, "bash")
        self.assertEqual(done.returncode, 0, said(done))
        for host in range(2):
            self.assertRegex(done.stdout, rf"host{host}: +65536 +20 ", said(done))

    def check(self, done):
        self.assertEqual(done.returncode, 0, said(done))
        self.assertIn("Out of bounds values : 0 OK", done.stdout, said(done))

    def test_clean(self):
        done = hosts([], "1M", 5)
        self.check(done)
        self.assertNotIn("generation", done.stderr, said(done))

    def two_each(self, more=""):
        """An allreduce of two ranks on each host."""
        rank = (
            "RANK=$((2 * RDMA_VM_HOST + LOCAL)) WORLD_SIZE=4 LINERATE_RENDEZVOUS=tcp://host0:29500 LINERATE_DEBUG=info "
            f"LINERATE_SECRET=0123456789abcdef0123456789abcdef LINERATE_TIMEOUT=60 {more}"
        )
        bench = f"{BUILT['linerate']} bench allreduce -b 64K -e 64K -w 1 -n 5 --no-rotate"
        command = f"LOCAL=1; env {rank} {bench} & first=$!; LOCAL=0; env {rank} {bench} && wait $first"
        done = run("pair", "--timeout", "150", "--label", "--", "bash", "-c", command)
        self.check(done)
        return done

    def test_ranks_that_only_say_that_they_share_a_host_use_verbs(self):
        done = self.two_each("LINERATE_HOSTID=same LINERATE_TRANSPORT=router:verbs")
        self.assertEqual(done.stderr.count("they use verbs, as further such pairs"), 4)

    def test_auto_takes_verbs_between_hosts_and_memory_within(self):
        done = self.two_each()
        self.assertEqual(done.stderr.count("verbs between hosts, because every rank has a device that speaks RoCEv2"), 4)
        self.assertNotIn("shares no memory", done.stderr)

    def test_two_devices_share_messages_of_a_mebibyte(self):
        done = hosts(["--devices", "2"], "1M", 5, devices=":rxe0,rxe1")
        self.check(done)
        for host in range(2):
            sent = [int(count) for count in re.findall(rf"host{host}: rxe[01] sent (\d+) packets", done.stdout)]
            self.assertEqual(len(sent), 2, said(done))
            self.assertGreater(min(sent), 0.4 * sum(sent), said(done))

    def test_one_packet_in_a_hundred_is_lost(self):
        self.check(hosts(["--loss", "1%"], "64K", 30))

    def test_packets_overtake_each_other(self):
        self.check(hosts(["--reorder", "25%"], "64K", 15))

    def test_a_cut_of_two_seconds_is_survived(self):
        self.check_cut(until_told(["--cut", f"{FOLDER}/running,2"], "64K", [REPLACED]))

    def test_a_cut_for_good_is_an_error_within_the_timeout(self):
        done = until_told(["--cut", f"{FOLDER}/running,forever"], "64K", ["nobody says this"], timeout=10)
        # What a test of Rust that has failed ends with.
        self.assertEqual(done.returncode, 101, said(done))
        for host in range(2):
            # By the operation, whose timeout is the shorter one, or by a connection that has given up before.
            trouble = rf"(no progress for 10s.*rank {1 - host}.*verbs over rxe0|rank {1 - host} failed: .*rxe0)"
            self.assertRegex(done.stderr, rf"host{host}: .*{trouble}", said(done))

    def test_one_of_two_cables_is_pulled(self):
        # The second one: over the first the ranks find each other.
        faults = ["--devices", "2", "--cut", f"{FOLDER}/running,forever", "--cut-device", "1"]
        self.check_cut(until_told(faults, "256K", [REPLACED], devices=":rxe0,rxe1"))

    def test_a_cable_that_is_plugged_in_again_is_used_again(self):
        faults = ["--devices", "2", "--cut", f"{FOLDER}/running,{FOLDER}/said-0", "--cut-device", "1"]
        texts = [REPLACED, "goes over rxe0 and rxe1"]
        self.check_cut(until_told(faults, "256K", texts, devices=":rxe0,rxe1"))

    def test_a_loose_cable_is_used_again(self):
        # It is back while queue pairs without it are still being made.
        faults = ["--devices", "2", "--cut", f"{FOLDER}/running,0", "--cut-device", "1"]
        self.check_cut(until_told(faults, "256K", [REPLACED, "goes over rxe0 and rxe1"], devices=":rxe0,rxe1"))

    def test_a_card_that_is_taken_out_is_an_error_with_its_name(self):
        # The transport gives up before the operation does, which knows of no devices.
        options = {"devices": ":rxe1 LINERATE_VERBS_TIMEOUT=8", "timeout": 25, "meanwhile": TAKE_OUT}
        done = until_told(["--devices", "2"], "64K", ["nobody says this"], **options)
        self.assertEqual(done.returncode, 101, said(done))
        for host in range(2):
            self.assertRegex(done.stderr, rf"host{host}: .*rank {1 - host} failed: .*rxe1", said(done))

    def check_cut(self, done):
        self.assertEqual(done.returncode, 0, said(done))
        self.assertNotIn("--cut never came", done.stderr, said(done))
        for host in range(2):
            self.assertRegex(done.stdout, rf"host{host}: .*all [0-9]+ sums right", said(done))


if __name__ == "__main__":
    unittest.main()
