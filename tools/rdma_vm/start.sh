# Second part of the guest's first process, on the host's files: gets its job, runs the command, reports.
# A line is one word and its arguments. To the host: hello, ready, fail, cut, exit. From it: the job, go.
B=/run/rdma-vm/busybox
cd /run/rdma-vm || exit
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
$B mkdir -p /dev/shm /dev/pts /tmp
$B mount -t tmpfs -o mode=1777 shm /dev/shm
$B mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
$B ln -sf /proc/self/fd /dev/fd
$B ln -sf fd/0 /dev/stdin
$B ln -sf fd/1 /dev/stdout
$B ln -sf fd/2 /dev/stderr
$B mount -t cgroup2 cgroup /sys/fs/cgroup
$B mkdir /sys/fs/cgroup/command
# No waiting for other holders of an IPv6 address: GIDs are there at once.
for knob in all default; do
    echo 0 >/proc/sys/net/ipv6/conf/$knob/accept_dad
done

port() {
    for entry in /sys/class/virtio-ports/*; do
        [ "$(cat "$entry/name" 2>/dev/null)" = "$1" ] && echo "/dev/${entry##*/}"
    done
}
until [ -e "$(port errors)" ] && [ -e "$(port output)" ] && [ -e "$(port control)" ]; do
    $B sleep 0.02
done
exec 3<>"$(port control)" 4>"$(port output)" 5>"$(port errors)"
say() {
    echo "$*" >&3
}
# A read before the host is there ends at once.
hear() {
    until IFS= read -r line <&3; do
        $B sleep 0.02
    done
}

say hello
hear
echo "$line" | $B base64 -d >job
. ./job
# Scripts of the host's shell, not of ours: busybox would take its own ip for the host's.
if ! /bin/sh -x prepare; then
    say fail "setting up links, devices or directories failed"
    hear
fi
say ready
hear

if [ -z "$terminal" ]; then
    $B mkfifo output errors
    $B cat output >&4 &
    readers=$!
    $B cat errors >&5 &
    readers="$readers $!"
    set -- "" /dev/null output errors
else
    set -- -c "$terminal" "$terminal" "$terminal"
fi
/bin/sh cuts 4>&- 5>&-
# In the foreground, so that no signal is ignored; without our descriptors. Redirected inside: what this shell says of a
# signal is not the command's.
$B sh -c 'echo $$ >/sys/fs/cgroup/command/cgroup.procs
    exec /run/rdma-vm/busybox setsid $1 /bin/sh /run/rdma-vm/command <"$2" >"$3" 2>"$4" 3>&- 4>&- 5>&-' sh "$@"
status=$?
# What it left in the background would hold its output open.
echo 1 >/sys/fs/cgroup/command/cgroup.kill
wait $readers
$B printf %s "$token" >&4
$B printf %s "$token" >&5
/bin/sh finish || say fail "a directory of --write could not be left: is everything in it closed?"
$B sync
say exit $status
hear
