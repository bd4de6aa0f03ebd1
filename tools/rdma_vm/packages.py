"""Debian packages: installs what is missing, and fetches those that are only unpacked."""

import glob
import os
import re
import shutil
import subprocess
import sys

from .errors import Refusal

# What has to be here, by a program or a file, and the package that brings it.
NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86",
    "ip": "iproute2",
    "rdma": "iproute2",
    "tc": "iproute2",
    "/usr/lib/*/libibverbs/librxe-rdmav*.so": "ibverbs-providers",
}
# What one wants to have in there.
USEFUL = {"ibv_devinfo": "ibverbs-utils", "ib_write_bw": "perftest", "rping": "rdmacm-utils", "ping": "iputils-ping"}
FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARCHITECTURES = ("x86_64",)
APT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}


def say(text):
    print(f"rdma-vm: {text}", file=sys.stderr, flush=True)


def is_present(name):
    if name.startswith("/"):
        return bool(glob.glob(name))
    return shutil.which(name) is not None or shutil.which(name, path=FOLDERS) is not None


def missing_of(wanted):
    return sorted({package for name, package in wanted.items() if not is_present(name)})


def apt(*arguments, cwd=None):
    """Runs apt-get; its last lines if it fails, else nothing."""
    done = subprocess.run(
        ["apt-get", *arguments], cwd=cwd, env=os.environ | APT, stdin=subprocess.DEVNULL, text=True, capture_output=True
    )
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-600:] or f"exit code {done.returncode}"


def install_missing():
    """As root with apt installs all that is missing; else refuses if something needed is."""
    if os.uname().machine not in ARCHITECTURES:
        raise Refusal(f"this is a {os.uname().machine} machine: only {', '.join(ARCHITECTURES)} can be emulated with its own files")
    needed, useful = missing_of(NEEDED), missing_of(USEFUL)
    is_able = os.geteuid() == 0 and shutil.which("apt-get")
    if is_able and (needed or useful):
        say(f"installing {' '.join(needed + useful)}")
        update()
        trouble = apt("install", "-y", "-q", "--no-install-recommends", *needed, *useful)
        if trouble:
            say(f"apt-get install: {trouble}")
        needed = missing_of(NEEDED)
    if needed:
        raise Refusal(f"packages are missing: as root, apt-get install {' '.join(needed + useful)} (names of Debian 12)")


def update():
    """As root refreshes the lists of packages, at most once."""
    if os.geteuid() != 0 or update.is_done:
        return
    update.is_done = True
    trouble = apt("update", "-q")
    if trouble:
        say(f"apt-get update: {trouble}")


update.is_done = False


def kernel_package():
    """The package that linux-image-amd64 depends on: its name carries a version."""
    for _ in range(2):
        done = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], env=os.environ | APT, text=True, capture_output=True)
        match = re.search(r"Depends: (linux-image-\S+)", done.stdout)
        if match:
            return match[1]
        update()
    raise Refusal("apt knows no linux-image-amd64: as root, apt-get update; its sources need Debian's main")


def fetch(package, folder):
    """Downloads a package's file into an empty folder, and gives its path."""
    say(f"fetching {package}")
    trouble = apt("download", "-q", package, cwd=folder)
    if trouble:
        # Lists that are older than the mirror's files.
        update()
        trouble = apt("download", "-q", package, cwd=folder)
    files = list(folder.glob("*.deb"))
    if trouble or not files:
        raise Refusal(f"apt-get download {package} failed; is there a network, and are the lists new (apt-get update)? {trouble}")
    return files[0]
