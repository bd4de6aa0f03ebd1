"""The `ofi` transport over `verbs;ofi_rxm` of libfabric, in guests whose device is Soft-RoCE, and between two of them that lose
packets, where `udp;ofi_rxd` sends again what was lost. Started by tools/test. LINERATE_TEST_FABRIC names a further libfabric.
"""

import os
import unittest

from rdma_vm import check_verbs
from rdma_vm.check_verbs import BUILT, RANK, run, said


def setUpModule():
    if not BUILT:
        check_verbs.setUpModule()


def libraries():
    """The one of this system, and the one that is named."""
    named = os.environ.get("LINERATE_TEST_FABRIC")
    return [""] + [f"LINERATE_FABRIC_LIB={named} "] * bool(named)


class Libfabric(unittest.TestCase):
    def test_one_host(self):
        steps = [
            f"{library}{BUILT['linerate']} {command}"
            for library in libraries()
            for command in (
                "perf write_bw --local --transport 'ofi:verbs;ofi_rxm' -s 64K -n 100",
                # Three ranks of 1.17, which is this system's, reject each other's connections.
                f"bench allreduce --ranks {3 if library else 2} --transport 'ofi:verbs;ofi_rxm' -b 8 -e 64K -f 64 -c 1 -n 5",
            )
        ]
        done = run("run", "--timeout", "300", "--", "bash", "-c", " && ".join(steps))
        self.assertEqual(done.returncode, 0, said(done))
        self.assertEqual(done.stdout.count("Out of bounds values : 0 OK"), len(libraries()), said(done))
        self.assertRegex(done.stdout, r"\n *65536 +100 +[0-9]+\.[0-9]+ ", said(done))

    def test_two_hosts_that_lose_packets(self):
        providers = ("udp;ofi_rxd", "verbs;ofi_rxm")
        steps = [
            f"{RANK.replace('29500', str(29500 + at))} LINERATE_TIMEOUT=60 {BUILT['linerate']} bench allreduce --transport 'ofi:{name}' "
            "-b 64K -e 64K -c 1 -w 1 -n 10"
            for at, name in enumerate(providers)
        ]
        done = run("pair", "--timeout", "200", "--label", "--loss", "1%", "--", "bash", "-c", " && ".join(steps))
        self.assertEqual(done.returncode, 0, said(done))
        self.assertEqual(done.stdout.count("Out of bounds values : 0 OK"), len(providers), said(done))
