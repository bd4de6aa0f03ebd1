"""What a guest is told: the scripts it runs, as text. Pure.

A job is one line of base64 that the guest's init gets through its control port: shell functions, which `start.sh` calls.
"""

import base64
import itertools
import re
import shlex

# Variables that come in from outside.
PASSED = re.compile(r"PATH|HOME|TERM|LANG|LC_.*|LINERATE_.*|RUST_.*|CARGO.*")
# Packets that netem holds back. Its own default of 1000 would lose packets at a few milliseconds.
NETEM_LIMIT = 100_000

# Between two looks for a file that a cut waits for.
LOOK_S = 0.05

# The guest's end of the user's terminal.
TERMINAL = "/dev/hvc0"


def address(host, device):
    return f"10.77.{device}.{host + 1}"


def mac(host, device):
    """Two runs never share a network: the same in each."""
    return f"52:54:00:77:{host:02x}:{device:02x}"


def build_environment(outside, options, host):
    """Variables of the command: those of `outside` that come in, ours, and the user's last."""
    inside = {name: value for name, value in outside.items() if PASSED.fullmatch(name)}
    inside["RDMA_VM_HOST"] = str(host)
    inside["RDMA_VM_HOSTS"] = str(options.hosts)
    inside["RDMA_VM_DEVICES"] = str(options.devices)
    for other in range(options.hosts):
        inside[f"RDMA_VM_ADDRESSES_{other}"] = ",".join(address(other, device) for device in range(options.devices))
    if options.mode == "shell":
        inside.update({name: outside[name] for name in ("LINES", "COLUMNS")})
    inside.update(options.environment)
    return inside


def build_hosts_file(options):
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for host in range(options.hosts):
        for device in range(options.devices):
            names = f"host{host} host{host}-eth0" if device == 0 else f"host{host}-eth{device}"
            lines.append(f"{address(host, device)} {names}")
    return "\n".join(lines) + "\n"


def build_network(options, host):
    """Commands that give the guest its links and addresses, then its devices."""
    lines = ["ip link set lo up"]
    devices = []
    for device in range(options.devices):
        link = f"eth{device}"
        if options.hosts == 1:
            # The far end only keeps the carrier up: Soft-RoCE answers itself.
            lines.append(f"ip link add {link} address {mac(host, device)} mtu {options.mtu} type veth peer name far{device} mtu {options.mtu}")
            lines.append(f"ip link set far{device} up")
        else:
            lines.append(f"ip link set {link} mtu {options.mtu}")
        lines.append(f"ip address add {address(host, device)}/24 dev {link}")
        lines.append(f"ip link set {link} up")
        devices.append(f"rdma link add rxe{device} type rxe netdev {link}")
        if options.hosts == 2:
            # Known neighbours: a lost ARP packet is a second of waiting that no RDMA network has.
            lines.append(f"ip neighbour replace {address(1 - host, device)} lladdr {mac(1 - host, device)} dev {link}")
        if options.netem:
            faults = " ".join(f"{name} {value}" for name, value in ordered(options.netem))
            devices.append(f"tc qdisc add dev {link} root netem limit {NETEM_LIMIT} {faults}")
    return lines + devices


def ordered(netem):
    """tc wants a delay before what it reorders."""
    return sorted(netem, key=lambda item: item[0] != "delay")


def build_cuts(options, host):
    """Commands in the background that take the link down and up again, and say so on descriptor 3."""
    if host != 0:
        return []
    link = f"eth{options.cut_device}"
    lines = []
    for cut in options.cuts:
        steps = [build_wait(cut.begin), f"ip link set {link} down", f"echo cut {link} down >&3"]
        if cut.end is not None:
            steps += [build_wait(cut.end), f"ip link set {link} up", f"echo cut {link} up >&3"]
        lines.append("(" + " && ".join(steps) + ") &")
    return lines


def build_wait(moment):
    """Waits so many seconds, or until the command makes a file."""
    if isinstance(moment, str):
        return f"until [ -e {shlex.quote(moment)} ]; do sleep {LOOK_S}; done"
    return f"sleep {moment:g}"


def build_command(options, environment, directory):
    """The script that becomes the command."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
    enter = f"cd {shlex.quote(directory)} || exit 126"
    program = shlex.quote(options.command[0])
    absent = "neither in PATH nor a file that exists in the guest, whose files are those of this machine"
    check = f"command -v {program} >/dev/null || {{ printf 'rdma-vm: %s: no such program: %s\\n' {program} '{absent}' >&2; exit 127; }}"
    if options.mode == "shell":
        enter = f"stty rows $LINES cols $COLUMNS; unset LINES COLUMNS; {enter}"
    return "\n".join(["ulimit -l unlimited", *exports, enter, check, "exec " + shlex.join(options.command)]) + "\n"


def build_job(options, host, environment, directory, token):
    """The line that init reads. `token` ends the command's output."""
    shares = [
        f"mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=mmap write{index} {shlex.quote(str(folder))}"
        for index, folder in enumerate(options.write)
    ]
    leave = [f"umount {shlex.quote(str(folder))}" for folder in reversed(options.write)]
    files = {
        "/etc/hosts": build_hosts_file(options),
        "prepare": build_script([*build_batches(build_network(options, host)), *shares]),
        "cuts": build_script(build_cuts(options, host)),
        "finish": build_script(leave),
        "command": build_command(options, environment, directory),
    }
    lines = [f"token={shlex.quote(token)}", f"terminal={TERMINAL if options.mode == 'shell' else ''}", f"hostname host{host}"]
    lines += [f"printf %s {shlex.quote(text)} >{path}" for path, text in files.items()]
    return base64.b64encode("\n".join(lines).encode(errors="surrogateescape")) + b"\n"


def build_script(commands):
    """Stops at the first command that fails. Empty if there is none."""
    return "\n".join(["set -e", *commands]) + "\n" if commands else ""


def build_batches(commands):
    """The same commands, with one start of `ip` for those of its that follow each other: a start takes a tenth of a second."""
    script = []
    for is_ip, group in itertools.groupby(commands, lambda command: command.startswith("ip ")):
        if is_ip:
            script += ["ip -batch - <<'END'", *(command.removeprefix("ip ") for command in group), "END"]
        else:
            script += group
    return script
