"""The command line: what can be asked for, and which values are allowed. Pure."""

import argparse
import dataclasses
import math
import pathlib
import re
import textwrap

from .errors import Refusal

DEVICES_MAX = 8
CPUS_MAX = 64
# Less, and the kernel and its initramfs do not fit.
MEMORY_MIB_MIN = 256
# IPv6 takes 1280. Soft-RoCE's largest packets, 4096 bytes of payload, fit from 4200 on.
MTU_MIN, MTU_MAX = 1280, 9216
# netem reorders by sending some packets before those it delays.
REORDER_DELAY = "1ms"
SHELL = ("bash", "-i")
NETEM = ("loss", "delay", "reorder", "corrupt", "duplicate", "rate")

EXAMPLES = """\
examples:
  what the guest has:
    tools/rdma-vm run -- ibv_devinfo -v
  bandwidth, both ends in one guest:
    tools/rdma-vm run -- sh -c 'ib_write_bw -d rxe0 -x 1 -n 200 >/dev/null & sleep 1; ib_write_bw -d rxe0 -x 1 -n 200 localhost'
  the same between two hosts that lose one packet in a hundred:
    tools/rdma-vm pair --loss 1% -- sh -c \\
      '[ $RDMA_VM_HOST = 0 ] || { sleep 1; set -- host0; }; exec ib_write_bw -d rxe0 -x 1 -n 200 "$@"' sh
  a program of yours, whose results come back:
    tools/rdma-vm run --devices 2 --write results -- target/release/mine --json results/mine.json
  a cable that is pulled after two seconds, for three:
    tools/rdma-vm pair --cut 2,3 -- my-test
  one that is pulled when the command on host0 says so, by making a file, until it makes another one:
    tools/rdma-vm pair --cut /tmp/pull,/tmp/plug -- sh -c '[ $RDMA_VM_HOST = 0 ] && touch /tmp/pull; ...'
  look around:
    tools/rdma-vm shell

in the guest:
  the host's files are there, at the same places: read-only below, and what the command writes is gone at the end, except
  in directories named with --write. The current directory is the same. Of the environment come in PATH, HOME, TERM, LANG,
  LC_*, LINERATE_*, RUST_*, CARGO* and what --env says. Standard input is empty.
  Device i is rxe<i> on eth<i>; its GID index 1 is the IPv4-mapped one, of 10.77.<i>.1 on host0 and 10.77.<i>.2 on host1.
  RDMA_VM_HOST is 0 or 1, RDMA_VM_HOSTS their number, RDMA_VM_DEVICES that of the devices; RDMA_VM_ADDRESSES_0 and _1 are
  the addresses of the hosts, with commas. The names host0 and host1 mean eth0's, host0-eth1 eth1's. Memory locks have no limit.

exit codes:
  that of the command, 128+n if signal n ended it (pair: of the host that first ended with another than 0), or
  2 bad usage or a missing package, 3 the guest did not start or broke down, 124 --timeout, 130 Ctrl-C
"""


@dataclasses.dataclass(frozen=True)
class Cut:
    """When a link goes down, and when up again: after seconds, or when there is a file of this path in host0."""

    begin: float | str
    # None: never.
    end: float | str | None


@dataclasses.dataclass(frozen=True)
class Options:
    mode: str
    command: tuple[str, ...]
    devices: int
    cpus: int
    memory_mib: int
    mtu: int
    timeout_s: float
    netem: tuple[tuple[str, str], ...]
    cuts: tuple[Cut, ...]
    cut_device: int
    environment: tuple[tuple[str, str], ...]
    write: tuple[pathlib.Path, ...]
    cache: pathlib.Path | None
    console: pathlib.Path | None
    label: bool
    verbose: bool

    @property
    def hosts(self):
        return 2 if self.mode == "pair" else 1


def number_in(low, high):
    """A whole number from low to high."""

    def convert(text):
        if not re.fullmatch(r"\d+", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from {low} to {high}")
        return int(text)

    return convert


def memory_mib(text):
    match = re.fullmatch(r"(\d+)([MG])", text)
    mib = int(match[1]) * {"M": 1, "G": 1024}[match[2]] if match else 0
    if mib < MEMORY_MIB_MIN:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size with M or G, at least {MEMORY_MIB_MIN}M: say 2G")
    return mib


def percent(text):
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if not match or not 0 < float(match[1]) <= 100:
        raise argparse.ArgumentTypeError(f"'{text}' is not a share above 0% and up to 100%: say 1% or 0.1%")
    return text


def duration(text):
    if not re.fullmatch(r"\d+(?:\.\d+)?(us|ms|s)", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a time with its unit, us, ms or s: say 5ms")
    return text


def rate(text):
    if not re.fullmatch(r"[1-9]\d*[kmg]bit", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a rate in kbit, mbit or gbit: say 100mbit")
    return text


def seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return value


def cut(text):
    begin, comma, end = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(f"'{text}' is not AFTER,FOR: say 2,3 or 2,forever or /tmp/pull,/tmp/plug")
    return Cut(moment(begin), None if end == "forever" else moment(end))


def moment(text):
    """Seconds, or the path of a file to wait for."""
    return text if text.startswith("/") else seconds(text)


def assignment(text):
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name, value


def build_parser():
    parser = argparse.ArgumentParser(
        prog="tools/rdma-vm",
        usage="tools/rdma-vm {run,pair} [OPTION...] -- CMD [ARG...]\n       tools/rdma-vm {shell,setup} [OPTION...]",
        description=textwrap.fill(
            "Runs a command on a machine that has RDMA devices, where this one has none: a Linux guest with Soft-RoCE (rdma_rxe), "
            "under qemu's software emulation, that boots in seconds and sees this machine's files. run: one guest. pair: two guests, "
            "joined by a cable per device; the command runs in both. shell: one guest and you. setup: installs and fetches what "
            "is missing, and starts nothing.",
            120,
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("mode", choices=("run", "pair", "shell", "setup"), help=argparse.SUPPRESS)
    add("--devices", type=number_in(1, DEVICES_MAX), default=1, metavar="N", help="RDMA devices of each host; default 1")
    add("--cpus", type=number_in(1, CPUS_MAX), metavar="N", help="processors of each guest; default 2 in run, 1 in pair")
    add("--memory", type=memory_mib, default=2048, metavar="SIZE", help="memory of each guest, with M or G; default 2G")
    mtu = "bytes of an Ethernet frame's payload; default 9000: RDMA packets of 4096. 1500 gives 1024"
    add("--mtu", type=number_in(MTU_MIN, MTU_MAX), default=9000, metavar="N", help=mtu)
    timeout = "kill all when the command has run for so long, and exit with 124; 0: never; default 600, shell 0"
    add("--timeout", type=seconds, metavar="SECONDS", help=timeout)
    add("--env", type=assignment, action="append", default=[], metavar="NAME=VALUE", help="set in the guest; may be repeated")
    write = "a directory that the guest may write, at the same place; may be repeated"
    add("--write", type=pathlib.Path, action="append", default=[], metavar="DIR", help=write)
    faults = parser.add_argument_group("faults (of what each host sends, on every device; pair only, except --cut)")
    add = faults.add_argument
    add("--loss", type=percent, metavar="P%", help="packets lost")
    add("--delay", type=duration, metavar="TIME", help="each packet later: 5ms, 200us")
    add("--reorder", type=percent, metavar="P%", help=f"packets that overtake the delayed ones; sets --delay {REORDER_DELAY} if there is none")
    add("--corrupt", type=percent, metavar="P%", help="packets with one wrong bit")
    add("--duplicate", type=percent, metavar="P%", help="packets sent twice")
    add("--rate", type=rate, metavar="RATE", help="a slower link: 100mbit")
    down = (
        "host0's link goes down AFTER seconds from the command's start, FOR seconds or 'forever'; instead of seconds, the path of a file "
        "that the command makes on host0 when it is time, so that nothing depends on how fast the guest is; may be repeated"
    )
    add("--cut", type=cut, action="append", default=[], metavar="AFTER,FOR", help=down)
    add("--cut-device", type=number_in(0, DEVICES_MAX - 1), metavar="I", help="which device's link; default 0")
    add = parser.add_argument_group("this tool").add_argument
    add("--label", action="store_true", help="begin each line of output with its host's name")
    add("--verbose", action="store_true", help="show the guests' consoles and what happens, on standard error")
    add("--keep", type=pathlib.Path, metavar="FILE", help="write the guests' consoles to FILE")
    add("--cache", type=pathlib.Path, metavar="DIR", help="kernel and initramfs; default target/rdma-vm (or CARGO_TARGET_DIR's)")
    return parser


def parse(argv):
    """Options of a command line; exits with 2 and says why if it is none."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = build_parser()
    if not argv:
        parser.error("say run, pair, shell or setup; --help shows examples")
    given, rest = parser.parse_known_args(argv[:split])
    if rest:
        hint = "" if rest[0].startswith("-") else ": a command comes after '--'"
        parser.error(f"'{rest[0]}' is no option{hint}")
    command = tuple(argv[split + 1 :])
    try:
        return check(given, command)
    except Refusal as refusal:
        parser.error(str(refusal))


def check(given, command):
    """What no single option can know of itself."""
    mode = given.mode
    if mode in ("run", "pair") and not command:
        raise Refusal(f"{mode} needs a command: tools/rdma-vm {mode} [OPTION...] -- CMD [ARG...]")
    if mode in ("shell", "setup") and command:
        raise Refusal(f"{mode} takes no command: use run -- {' '.join(command)}")
    netem = {name: getattr(given, name) for name in NETEM if getattr(given, name)}
    if netem and mode != "pair":
        names = ", ".join(f"--{name}" for name in netem)
        raise Refusal(f"{names}: only with pair: packets within one guest pass no link that could do it")
    if "reorder" in netem:
        netem.setdefault("delay", REORDER_DELAY)
    if given.cut_device is not None and not given.cut:
        raise Refusal("--cut-device says which link --cut takes down, and there is no --cut")
    if (given.cut_device or 0) >= given.devices:
        raise Refusal(f"--cut-device {given.cut_device}: with --devices {given.devices} the last is {given.devices - 1}")
    for folder in given.write:
        if not folder.is_dir():
            raise Refusal(f"--write {folder}: no such directory: create it first")
        if "," in str(folder.resolve()):
            raise Refusal(f"--write {folder}: qemu takes no path with a comma")
    timeout_s = given.timeout if given.timeout is not None else 0.0 if mode == "shell" else 600.0
    return Options(
        mode=mode,
        command=command if mode != "shell" else SHELL,
        devices=given.devices,
        cpus=given.cpus or (1 if mode == "pair" else 2),
        memory_mib=given.memory,
        mtu=given.mtu,
        timeout_s=timeout_s or math.inf,
        netem=tuple(netem.items()),
        cuts=tuple(given.cut),
        cut_device=given.cut_device or 0,
        environment=tuple(given.env),
        write=tuple(folder.resolve() for folder in given.write),
        cache=given.cache,
        console=given.keep,
        label=given.label,
        verbose=given.verbose,
    )
