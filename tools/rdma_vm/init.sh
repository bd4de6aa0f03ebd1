#!/busybox sh
# First process of the guest, in its initramfs: loads the modules and puts the host's files under an overlay in memory.
B=/busybox
die() {
    echo "rdma-vm: $*"
    $B poweroff -f
}
$B mkdir -p /proc /sys /dev /host /memory /root
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
while read -r module; do
    $B insmod "/modules/$module" || die "insmod $module failed"
done </modules/order
$B mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=1048576,cache=loose host /host || die "no host files"
$B mount -t tmpfs -o mode=755 memory /memory
$B mkdir /memory/upper /memory/work
$B mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /root || die "no overlay"
$B mkdir -p /root/proc /root/sys /root/dev /root/run/rdma-vm
$B cp /busybox /start.sh /root/run/rdma-vm/
$B mount --move /dev /root/dev
$B mount --move /sys /root/sys
$B mount --move /proc /root/proc
exec $B switch_root /root /run/rdma-vm/busybox sh /run/rdma-vm/start.sh
