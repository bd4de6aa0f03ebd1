"""Kernel and initramfs of the guest: fetched, built and cached.

In the cache: the packages' files, `lock`, and one folder per image, named after a hash of all that went into it. A folder
appears at once and complete, by a rename, so that readers need no lock; builders hold it.
"""

import fcntl
import hashlib
import io
import lzma
import pathlib
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
import time

from . import packages
from .errors import Refusal

# crc32_generic: without it rxe fails to add a device. af_packet and veth are for tcpdump and links within a guest. No
# dummy: it makes a device that is easily taken for the NIC.
MODULES = (
    "crc32_generic virtio_pci virtio_console virtio_net 9p 9pnet_virtio overlay veth af_packet sch_netem rdma_rxe ib_uverbs rdma_ucm ib_umad"
).split()
SCRIPTS = pathlib.Path(__file__).resolve().parent
BUSYBOX = "busybox-static"
# Their files in the cache.
KERNEL_PATTERN, BUSYBOX_PATTERN = "linux-image-*.deb", "busybox-static_*.deb"

OLD_S = 7 * 24 * 3600
XZ_MAGIC = b"\xfd7zXZ\0"
# An ELF note (length of the name, length of the value, type 18, name) that lets qemu start such a file directly:
# Documentation/virt, "PVH"; XEN_ELFNOTE_PHYS32_ENTRY in the kernel's include/xen/interface/elfnote.h.
PVH_NOTES = [struct.pack("<III4s", 4, length, 18, b"Xen") for length in (4, 8)]


def default_cache(environment):
    root = environment.get("CARGO_TARGET_DIR") or SCRIPTS.parent.parent / "target"
    return pathlib.Path(root).absolute() / "rdma-vm"


def find_image(cache):
    """The folder with vmlinuz and initramfs; fetches and builds what is missing."""
    found = newest(cache, KERNEL_PATTERN), newest(cache, BUSYBOX_PATTERN)
    # Also where the cache is somebody else's.
    if all(found) and image_of(cache, *found).is_dir():
        return image_of(cache, *found)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = open(cache / "lock", "a")
    except OSError as error:
        raise Refusal(f"the cache {cache} cannot be written: {error.strerror}; --cache DIR names another") from error
    with lock:
        # Let go when it is closed.
        fcntl.flock(lock, fcntl.LOCK_EX)
        # What a killed builder left: none other works now.
        for rest in [*cache.glob("build-*"), *cache.glob("fetch-*")]:
            shutil.rmtree(rest, ignore_errors=True)
        kernel = find_package(cache, KERNEL_PATTERN, packages.kernel_package)
        busybox = find_package(cache, BUSYBOX_PATTERN, lambda: BUSYBOX)
        image = image_of(cache, kernel, busybox)
        if not image.is_dir():
            drop_old(cache)
            packages.say(f"building the initramfs from {kernel.name}")
            build_image(cache, image, kernel, busybox)
    return image


def drop_old(cache):
    """Images of other versions of this tool, which nobody built anew for a week."""
    for image in cache.glob("image-*"):
        if time.time() - image.stat().st_mtime > OLD_S:
            shutil.rmtree(image, ignore_errors=True)


def find_package(cache, pattern, name):
    """The newest of the package's files in the cache, fetched if there is none."""
    found = newest(cache, pattern)
    if found:
        return found
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as folder:
        file = packages.fetch(name(), pathlib.Path(folder))
        return file.rename(cache / file.name)


def newest(cache, pattern):
    return max(cache.glob(pattern), key=lambda file: file.stat().st_mtime_ns, default=None)


def image_of(cache, kernel, busybox):
    return cache / f"image-{key_of([kernel.name, busybox.name])}"


def key_of(names):
    """A hash of all that an image is made of: packages, scripts, the list of modules, and how they are put together."""
    parts = [*names, *MODULES]
    parts += [(SCRIPTS / script).read_text() for script in ("init.sh", "start.sh", "image.py")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def build_image(cache, image, kernel, busybox):
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as folder:
        folder = pathlib.Path(folder)
        files = unpack(kernel, r"boot/vmlinuz-.*|lib/modules/.*/modules.builtin|lib/modules/.*\.ko(\.xz)?")
        program = unpack(busybox, r"(usr/)?bin/busybox")
        vmlinuz = next(data for path, data in files.items() if path.startswith("boot/"))
        done = folder / "image"
        done.mkdir()
        (done / "vmlinuz").write_bytes(unpack_kernel(vmlinuz))
        (done / "initramfs").write_bytes(build_initramfs(files, next(iter(program.values()))))
        done.rename(image)


def unpack(package, pattern):
    """Contents of those files of a package whose paths fit."""
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            path = member.name.removeprefix("./")
            if member.isfile() and re.fullmatch(pattern, path):
                found[path] = archive.extractfile(member).read()
    return found


def unpack_kernel(data):
    """The kernel without its wrapper that unpacks itself, which takes seconds under emulation; as it is if it has no such core."""
    at = data.find(XZ_MAGIC)
    while at >= 0:
        try:
            core = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(data[at:])
        except lzma.LZMAError:
            core = b""
        if core.startswith(b"\x7fELF") and any(note in core for note in PVH_NOTES):
            return core
        at = data.find(XZ_MAGIC, at + 1)
    return data


def build_initramfs(files, busybox):
    modules = {module_name(path): path for path in files if re.search(r"\.ko(\.xz)?$", path)}
    builtin = {module_name(path) for name, data in files.items() if name.endswith("builtin") for path in data.decode().split()}
    contents = {name: read_module(path, files[path]) for name, path in modules.items() if name not in builtin}
    order = order_modules(MODULES, contents, builtin)
    entries = [("busybox", 0o755, busybox), ("init", 0o755, (SCRIPTS / "init.sh").read_bytes())]
    entries.append(("start.sh", 0o644, (SCRIPTS / "start.sh").read_bytes()))
    entries += [(f"modules/{name}", 0o644, contents[name]) for name in order]
    entries.append(("modules/order", 0o644, "".join(f"{name}\n" for name in order).encode()))
    return write_archive(entries)


def module_name(path):
    """Kernel modules are named with - or _ alike."""
    return re.sub(r"\.ko(\.xz)?$", "", path.rsplit("/", 1)[-1]).replace("-", "_")


def read_module(path, data):
    return lzma.decompress(data) if path.endswith(".xz") else data


def depends_of(data):
    """The modules that a module says it needs."""
    match = re.search(rb"\0depends=([^\0]*)\0", data)
    return [name.replace("-", "_") for name in match[1].decode().split(",") if name] if match else []


def order_modules(wanted, contents, builtin):
    """The wanted modules and all that they need, each after what it needs."""
    order = []

    def add(name):
        if name in builtin or name in order:
            return
        if name not in contents:
            raise Refusal(f"the kernel package has no module '{name}': its file is damaged, or the kernel is one that never ran here")
        for other in depends_of(contents[name]):
            add(other)
        order.append(name)

    for name in wanted:
        add(name)
    return order


def write_archive(entries):
    """A cpio archive ("newc", as the kernel's Documentation/driver-api/early-userspace/buffer-format.rst has it)."""
    output = io.BytesIO()

    def put(number, path, mode, data):
        name = path.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        output.write(b"070701" + b"".join(b"%08X" % field for field in fields) + name)
        output.write(bytes(-output.tell() % 4))
        output.write(data)
        output.write(bytes(-output.tell() % 4))

    folders = sorted({str(folder) for path, _, _ in entries for folder in pathlib.PurePath(path).parents if str(folder) != "."})
    listed = [(folder, 0o040755, b"") for folder in folders]
    listed += [(path, 0o100000 | mode, data) for path, mode, data in entries]
    for number, entry in enumerate(listed, start=1):
        put(number, *entry)
    put(0, "TRAILER!!!", 0, b"")
    return output.getvalue()
