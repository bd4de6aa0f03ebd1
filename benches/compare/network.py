"""The rows over connections: the `tcp` transport beside Open MPI's and iperf3, what a sum of every chunk costs, how long
many ranks take to start, and two hosts with a slow link between them.
"""

from commands import bench, iperf3, mpi, start, two_hosts, write_bw
from rows import KIB, MIB, Row, describe_size

OVER_LOOPBACK = ("-mca", "btl", "self,tcp", "-mca", "btl_tcp_if_include", "lo")
# Least ratios to Open MPI by size.
TO_MPI = {8: 1.0, 64 * KIB: None, MIB: 1.0, 16 * MIB: 1.5}
TO_IPERF3 = 0.95
# Many ranks that share whatever cores there are.
CROWDS = (32, 64, 128)
# What sums may cost.
CRC_MAX = 1.15
HIERARCHICAL_MIN = 1.3
HOSTS_SIZE = 8 * MIB
# Seconds until all ranks have come and passed a barrier.
PROCESSES, PROCESSES_S_MAX = 64, 5.0
SIMULATED, SIMULATED_S_MAX = 1024, 1.0


def all_reduce(ranks, size, least):
    return Row(
        name=f"tcp {ranks} ranks {describe_size(size)}",
        ours=bench("allreduce", ranks, size, transport="tcp"),
        peer=mpi(ranks, size, OVER_LOOPBACK),
        peer_ratio_min=least,
        size=size,
        bus_factor=2 * (ranks - 1) / ranks,
    )


def puts(streams):
    return Row(
        name=f"tcp write_bw 1 MiB, {streams} stream{'s' if streams > 1 else ''}; peer: iperf3",
        ours=write_bw(MIB, streams),
        peer=iperf3(MIB, streams),
        peer_ratio_min=TO_IPERF3,
        size=MIB,
        bus_factor=1.0,
    )


def protections(protection, title, least):
    """What a protection costs, beside the same without."""
    puts = Row(
        name=f"tcp write_bw 1 MiB with {title}; peer: without",
        ours=write_bw(MIB, 1, protection),
        peer=write_bw(MIB, 1),
        peer_ratio_min=least,
        size=MIB,
        bus_factor=1.0,
    )
    sums = Row(
        name=f"tcp 2 ranks 16 MiB with {title}; peer: without",
        ours=bench("allreduce", 2, 16 * MIB, transport="tcp", protection=protection),
        peer=bench("allreduce", 2, 16 * MIB, transport="tcp"),
        peer_ratio_min=least,
        size=16 * MIB,
        bus_factor=1.0,
    )
    return puts, sums


def starting(name, ranks, transport, seconds_max):
    return Row(name=name, ours=start(ranks, transport), limit=seconds_max * 1e6, limit_ratio_min=1.0)


ROWS = [
    *(all_reduce(2, size, least) for size, least in TO_MPI.items()),
    *(all_reduce(ranks, size, 1.0) for ranks in CROWDS for size in (8, 32 * KIB)),
    *(puts(streams) for streams in (1, 2)),
    *protections("crc", "CRC32C", 1 / CRC_MAX),
    *protections("tls", "TLS 1.3", None),
    *(
        starting(f"start of {PROCESSES} processes {transport}: barrier done, command over", PROCESSES, transport, PROCESSES_S_MAX)
        for transport in ("shm", "tcp")
    ),
    starting(f"start of {SIMULATED} simulated ranks: barrier done, command over", SIMULATED, "sim", SIMULATED_S_MAX),
    Row(
        name=f"2 hosts x 2 ranks, 1 Gbit/s, {describe_size(HOSTS_SIZE)} hierarchical; peer: ring",
        ours=two_hosts("hierarchical", HOSTS_SIZE),
        peer=two_hosts("ring", HOSTS_SIZE),
        peer_ratio_min=HIERARCHICAL_MIN,
        size=HOSTS_SIZE,
        bus_factor=1.5,
    ),
]
