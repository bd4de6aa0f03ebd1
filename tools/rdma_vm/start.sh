# Second part of the guest's first process, on the host's files: gets its job, runs the command, reports.
# A line is one word and its arguments. To the host: hello, ready, fail, cut, exit. From it: the job, go.
# A start of a program costs tenths of a second in here, so commands are busybox's own, which its shell finds before all others.
cd /run/rdma-vm || exit
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p /dev/shm /dev/pts /tmp
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
ln -sf /proc/self/fd /dev/fd
ln -sf fd/0 /dev/stdin
ln -sf fd/1 /dev/stdout
ln -sf fd/2 /dev/stderr
mount -t cgroup2 cgroup /sys/fs/cgroup
mkdir /sys/fs/cgroup/command
# No waiting for other holders of an IPv6 address: GIDs are there at once.
for knob in all default; do
    echo 0 >/proc/sys/net/ipv6/conf/$knob/accept_dad
done

find_ports() {
    for entry in /sys/class/virtio-ports/*; do
        read -r name 2>/dev/null <"$entry/name" && [ -e "/dev/${entry##*/}" ] || continue
        # That of a terminal has no name.
        case $name in
        control | output | errors) eval "$name=/dev/${entry##*/}" ;;
        esac
    done
    [ "$control" ] && [ "$output" ] && [ "$errors" ]
}
until find_ports; do
    sleep 0.02
done
exec 3<>"$control" 4>"$output" 5>"$errors"
say() {
    echo "$*" >&3
}
# A read before the host is there ends at once.
hear() {
    until IFS= read -r line <&3; do
        sleep 0.02
    done
}

say hello
hear
echo "$line" | base64 -d >job
. ./job
# Scripts of the host's shell, not of ours: busybox would take its own ip for the host's.
if ! /bin/sh -vx prepare; then
    say fail "setting up links, devices or directories failed"
    hear
fi
# Only now, because the boot is shorter on one (machine.py). The first has no such file.
for processor in /sys/devices/system/cpu/cpu*/online; do
    [ ! -e "$processor" ] || echo 1 >"$processor" || say fail "$processor could not be set to 1"
done
say ready
hear

if [ -z "$terminal" ]; then
    mkfifo output errors
    cat output >&4 &
    readers=$!
    cat errors >&5 &
    readers="$readers $!"
    set -- "" /dev/null output errors
else
    set -- -c "$terminal" "$terminal" "$terminal"
fi
[ ! -s cuts ] || /bin/sh cuts 4>&- 5>&-
# In the foreground, so that no signal is ignored; without our descriptors. Redirected inside: what this shell says of a
# signal is not the command's.
sh -c 'echo $$ >/sys/fs/cgroup/command/cgroup.procs
    exec /run/rdma-vm/busybox setsid $1 /bin/sh /run/rdma-vm/command <"$2" >"$3" 2>"$4" 3>&- 4>&- 5>&-' sh "$@"
status=$?
# What it left in the background would hold its output open.
echo 1 >/sys/fs/cgroup/command/cgroup.kill
wait $readers
printf %s "$token" >&4
printf %s "$token" >&5
[ ! -s finish ] || /bin/sh finish || say fail "a directory of --write could not be left: is everything in it closed?"
sync
say exit $status
hear
