"""qemu's command line. Pure."""

from .guest import mac

PROGRAM = "qemu-system-x86_64"
# mitigations=off: nobody is to be kept apart in there, and emulated they cost much.
# tsc=reliable: the processors' counters are one counter of qemu's, which the kernel does not believe; without them each look at the
# clock is a system call and an access to an emulated timer (7 us), which no machine with an RDMA device has.
# maxcpus=1: the other processors come when all is loaded (start.sh). Each change of the kernel's own code, of which a boot is full, would
# interrupt them and wait for them: a third of a boot. No self-tests of ciphers: they are this machine's, and nobody ciphers.
KERNEL = "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on tsc=reliable maxcpus=1 cryptomgr.notests"
SHARE = "security_model=none,multidevs=remap"


def build_arguments(options, host, image, channels, cables):
    """`channels` gives the descriptor of each port's socket, `cables` one socket's descriptor per device."""
    arguments = [PROGRAM, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]
    # Always emulated: hardware virtualisation is missing on most machines where this is used, or hangs.
    # No fifth level of page tables, no guard around each copy from and to users: either costs an emulator more than a processor.
    arguments += ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off,smap=off"]
    arguments += ["-smp", str(options.cpus), "-m", f"{options.memory_mib}M"]
    arguments += ["-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initramfs"), "-append", KERNEL]
    arguments += ["-virtfs", f"local,path=/,mount_tag=host,{SHARE},readonly=on"]
    for index, folder in enumerate(options.write):
        arguments += ["-virtfs", f"local,path={folder},mount_tag=write{index},{SHARE}"]
    arguments += ["-device", "virtio-serial-pci"]
    for name, descriptor in channels.items():
        arguments += ["-chardev", f"socket,id={name},fd={descriptor}"]
        if name == "console":
            arguments += ["-serial", "chardev:console"]
        elif name == "terminal":
            # The first port: hvc0.
            arguments += ["-device", "virtconsole,chardev=terminal,nr=0"]
        else:
            arguments += ["-device", f"virtserialport,chardev={name},name={name}"]
    for device, descriptor in enumerate(cables):
        arguments += ["-netdev", f"socket,id=net{device},fd={descriptor}"]
        # Without a ROM there is no wait for a boot from the network.
        card = f"virtio-net-pci,netdev=net{device},mac={mac(host, device)},host_mtu={options.mtu},romfile="
        arguments += ["-device", card]
    return arguments
