"""Real RDMA verbs without a NIC: Linux guests under qemu's software emulation, with Soft-RoCE devices.

Read in this order: options.py (what can be asked for), main.py (what happens), guest.py and the two shell scripts (what the
guest does), machine.py (qemu's command line), session.py (running and ending it), image.py and packages.py (kernel and
initramfs, where they come from).
"""
