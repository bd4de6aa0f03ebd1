#!/busybox sh
# First process of the guest, in its initramfs: loads the modules and puts the host's files under an overlay in memory.
# Commands are busybox's own, which its shell finds before all others, most without a start of a program; the others by way of /proc.
die() {
    echo "rdma-vm: $*"
    poweroff -f
}
mkdir -p /proc /sys /dev /host /memory /root
/busybox mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
    insmod "/modules/$module" || die "insmod $module failed"
done </modules/order
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=1048576,cache=loose host /host || die "no host files"
mount -t tmpfs -o mode=755 memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /root || die "no overlay"
mkdir -p /root/proc /root/sys /root/dev /root/run/rdma-vm
cp /busybox /start.sh /root/run/rdma-vm/
mount --move /dev /root/dev
mount --move /sys /root/sys
mount --move /proc /root/proc
exec /busybox switch_root /root /run/rdma-vm/busybox sh /run/rdma-vm/start.sh
