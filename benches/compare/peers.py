"""Builds the peers, and says why one is not there."""

import os
import pathlib
import shutil
import subprocess
from dataclasses import replace

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "peers"
SPEED = SOURCES.parent.parent / "ffi" / "capi" / "benches" / "speed.c"
# Debian's own interpreter is the one that sees python3-torch.
TORCH_PYTHON = "/usr/bin/python3"
# The compiler and its flags.
ROOFLINE = ("cc", ["-O3", "-march=native", "-pthread"])


def build(folder):
    """Compiles into `folder`. Gives the paths by name, and texts on what is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    tools, missing = {}, []
    compilers = {
        "roofline": ("roofline", *ROOFLINE, "gcc"),
        "cacheline": ("cacheline", "cc", ["-O2"], "gcc"),
        "allreduce_mpi": ("allreduce_mpi", first_found("mpicc.openmpi"), ["-O3"], "openmpi-bin libopenmpi-dev"),
        "allreduce_mpich": ("allreduce_mpi", first_found("mpicc.mpich"), ["-O3"], "mpich libmpich-dev"),
    }
    for name, (source, compiler, flags, packages) in compilers.items():
        if compiler is None or shutil.which(compiler) is None:
            missing.append(f"{name}: no compiler for it (Debian: apt-get install {packages})")
            continue
        why_not = compile_to(folder / name, source, compiler, flags)
        if why_not:
            missing.append(f"{name}: {why_not}")
        else:
            tools[name] = str(folder / name)
    # The C interface, which tools/speed has installed there, and the example that has the same loops.
    c, example = folder / "c", folder.parent / "release" / "examples" / "speed"
    target = folder / "capi_speed"
    argv = ["cc", "-O2", f"-I{c}/include", str(SPEED), f"-L{c}/lib", f"-Wl,-rpath,{c.resolve()}/lib", "-llinerate_c", "-o", str(target)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode == 0 and example.exists():
        tools.update(capi_speed=str(target), rust_speed=str(example))
    else:
        missing.append(f"the C interface: {' '.join(argv)}: {done.stderr.strip()}")
    for name, launcher, program, package in (
        ("mpirun", "mpirun.openmpi", "allreduce_mpi", "openmpi-bin"),
        ("mpiexec_mpich", "mpiexec.mpich", "allreduce_mpich", "mpich"),
    ):
        path = first_found(launcher)
        if path:
            tools[name] = path
        elif program in tools:
            missing.append(f"{launcher}: not there (Debian: apt-get install {package})")
    program = first_found("iperf3")
    if program:
        tools.update(iperf3=program, iperf3_loopback=str(SOURCES / "iperf3.py"))
    else:
        missing.append("iperf3: not there (Debian: apt-get install iperf3)")
    program = first_found("fi_pingpong")
    if program:
        tools.update(fi_pingpong=program, pingpong_local=str(SOURCES / "fi_pingpong.py"))
    else:
        missing.append("fi_pingpong: not there (Debian: apt-get install libfabric-bin)")
    lack = what_hosts_lack()
    if lack:
        missing.append(f"two hosts: {lack}")
    else:
        tools["two_hosts"] = str(SOURCES / "two_hosts.py")
    if has_torch():
        tools.update(torch_python=TORCH_PYTHON, allreduce_gloo=str(SOURCES / "allreduce_gloo.py"))
    else:
        missing.append("Gloo: /usr/bin/python3 has no torch (Debian: apt-get install python3-torch)")
    # The backend of torch, with the newest torch that is there: tools/test --torch current fetches one.
    newest = folder.parent / "python" / "current" / "bin" / "python"
    python = str(newest) if newest.exists() else TORCH_PYTHON
    if newest.exists() or has_torch():
        program = folder / "torch_speed"
        script = f"#!/bin/sh\nPYTHONPATH={(folder / 'python').resolve()} exec {python} -W ignore {SOURCES / 'torch_speed.py'} \"$@\"\n"
        program.write_text(script, encoding="utf-8")
        program.chmod(0o755)
        tools["torch_speed"] = str(program)
    else:
        missing.append("the backend of torch: no torch (Debian: apt-get install python3-torch; or tools/test --torch current)")
    return tools, missing


def compile_to(target, source, compiler, flags):
    """Why a program of this folder cannot be compiled; empty where it was."""
    argv = [compiler, *flags, str(SOURCES / f"{source}.c"), "-o", str(target)]
    done = subprocess.run(argv, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"{' '.join(argv)}: {done.stderr.strip()}"


def first_found(*names):
    return next((path for path in map(shutil.which, names) if path), None)


def what_hosts_lack():
    """Why network namespaces with slow links cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not (shutil.which("ip") and shutil.which("tc")):
        return "no ip or tc (Debian: apt-get install iproute2)"
    name = f"lr-speed-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip()
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return ""


def has_torch():
    try:
        done = subprocess.run([TORCH_PYTHON, "-c", "import torch.distributed"], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def is_there(side, tools, names):
    """Whether one side of a row has its programs. `names` are the programs that can be missing."""
    argv = getattr(side, "argv", ())
    return all(word not in names or word in tools for word in argv)


def without_missing(row, tools, names):
    """The row without the sides whose programs are not there."""
    sides = {side: getattr(row, side) for side in ("peer", "limit")}
    kept = {name: side if is_there(side, tools, names) else None for name, side in sides.items()}
    return replace(row, **kept)
