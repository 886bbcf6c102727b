#!/bin/sh
# The first process of the machine that scripts/test-kernels.sh boots: runs `rankmesh check`, records a workload to which
# things happen a known number of times, and compares what was recorded with what the workload counted itself.
# Every result is a line "self-test: ok|FAILED WHAT: …" on the console; the last one is "self-test: end".
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir /dev/shm
mount -t tmpfs none /dev/shm
mount -t tmpfs none /tmp
mount -t cgroup2 none /sys/fs/cgroup
echo "self-test: begin"
ip link set lo up
ip route add 10.99.99.99 dev lo
uname -r
mkdir /sys/fs/cgroup/job /sys/fs/cgroup/job/ranks /sys/fs/cgroup/job/small
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
echo +memory >/sys/fs/cgroup/job/cgroup.subtree_control

ok() { echo "self-test: ok $*"; }
failed() { echo "self-test: FAILED $*"; }
in_job() { # CGROUP COMMAND…
    group=$1
    shift
    sh -c 'echo $$ > "/sys/fs/cgroup/job/$0/cgroup.procs" && exec "$@"' "$group" "$@"
}

# A disk for the rank to read, 5 ms a request (shorter ones make no rows): what comes back is nothing
disk=""
insmod /modules/configfs.ko 2>/dev/null
insmod /modules/null_blk.ko nr_devices=1 gb=1 irqmode=2 completion_nsec=5000000 2>/dev/null && [ -b /dev/nullb0 ] && disk=/dev/nullb0
[ -n "$disk" ] || echo "no null_blk module here: requests to disks and faults from them are not tested"

rankmesh check --format json >/tmp/check.json
[ $? = 0 ] && ok "check says that this kernel can record" || failed "check: $(cat /tmp/check.json)"
rankmesh check
off=$(tr '{' '\n' </tmp/check.json | sed -n 's/.*"name":"\([^"]*\)".*"state":"off".*/\1/p')

RANKMESH_LOG=info rankmesh trace --out /tmp/t.db --cgroup /sys/fs/cgroup/job >/tmp/trace.log 2>&1 &
tracer=$!
for _ in $(seq 300); do
    grep -q "recording into" /tmp/trace.log && break
    kill -0 $tracer 2>/dev/null || break
    usleep 100000
done
grep -q "recording into" /tmp/trace.log && ok "trace records" || failed "trace: $(cat /tmp/trace.log)"
effective=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/$tracer/status)
# CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYSLOG, CAP_PERFMON, CAP_BPF, CAP_CHECKPOINT_RESTORE; without uprobe.multi CAP_SYS_ADMIN, too
one_by_one() { grep -qE '"attach":"(single|stub)"' /tmp/check.json; }
one_by_one && wanted=000001c400280004 || wanted=000001c400080004
[ "$effective" = $wanted ] && ok "it keeps what it needs of root's capabilities: $effective" || failed "capabilities: $effective"

# Until the libraries are found: of the rank that counts no call may go by unprobed.
runs=1
while [ $runs -lt 7 ]; do
    grep -q "probing a library.*libnccl" /tmp/trace.log && grep -q "probing a library.*libcudart" /tmp/trace.log && break
    in_job ranks /job/host-events --cuda /job/libcudart.so.12 >/dev/null
    runs=$((runs + 1))
done
# At once: a library that nobody maps any more is let go of.
in_job ranks /job/host-events ${disk:+--disk $disk} --cuda /job/libcudart.so.12 >/tmp/truth || failed "the workload: $(cat /tmp/truth)"
in_job ranks /job/nccl-ranks --ranks 2 --iters 100 --work-ms 1 >/tmp/two || failed "two ranks: $(cat /tmp/two)"
cat /tmp/truth
of() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" /tmp/truth; }
echo 0 >/sys/fs/cgroup/job/small/memory.swap.max 2>/dev/null
echo 16M >/sys/fs/cgroup/job/small/memory.max
in_job small /job/host-events --fill 64 >/tmp/filled 2>&1
[ -s /tmp/filled ] && grep -q filled_mib /tmp/filled && failed "the limit on memory did not hold"
usleep 1500000
kill -TERM $tracer
wait $tracer || failed "trace ended with $?: $(cat /tmp/trace.log)"

sed -n 's/.*\(probing a library\)/\1/p; s/.*WARN/warning:/p' /tmp/trace.log
pid=$(of pid)
ask() { rankmesh query --db /tmp/t.db --timeout 60s --format csv "$1" 2>/tmp/query.log | tail -n 1; }
is_off() { echo "$off" | grep -qx "$1"; }
compare() { # CLASS WHAT RELATION NUMBER SQL
    if is_off "$1"; then
        ok "$1 is off, and check says so"
        return
    fi
    got=$(ask "$5")
    if [ -n "$got" ] && [ "$got" "$3" "$4" ] 2>/dev/null; then
        ok "$1: $2: $got ($3 $4)"
    else
        failed "$1: $2: '$got' is not $3 $4 $(cat /tmp/query.log)"
    fi
}
compare collectives "calls" -eq "$(of calls)" "SELECT count(*) FROM collectives WHERE pid = $pid AND func = 'all_reduce'"
compare collectives "numbered without a gap" -eq "$(of calls)" "SELECT max(seq) + 1 FROM collectives WHERE pid = $pid"
compare collectives "with the rank of the communicator" -eq "$(of calls)" "SELECT count(*) FROM collectives WHERE pid = $pid AND rank = 0 AND nranks = 1 AND comm_hash IS NOT NULL"
compare collectives "calls of two ranks that wait for each other" -eq 200 "SELECT count(*) FROM collectives WHERE nranks = 2"
compare collectives "with the place where they were made" -ge "$(of calls)" "SELECT count(*) FROM collectives WHERE pid = $pid AND func = 'all_reduce' AND (site LIKE '%(host-events)' OR site LIKE 'host-events@0x%')"
compare cuda "calls counted in the kernel" -eq "$(of cuda_calls)" "SELECT sum(count) FROM call_rollups WHERE pid = $pid AND func = 'cudaDeviceSynchronize'"
compare processes "the rank" -eq 1 "SELECT count(*) FROM processes WHERE pid = $pid AND rank = 0 AND cgroup_path = '/job/ranks'"
compare offcpu "sleeps of 5 ms" -ge "$(of sleeps)" "SELECT count(*) FROM offcpu WHERE pid = $pid AND voluntary AND duration_ns >= 5000000"
compare tcp "segments sent again" -eq "$(of retransmits)" "SELECT count(*) FROM net_events WHERE pid = $pid AND event = 'tcp_retransmit_skb' AND daddr = '10.99.99.99'"
# a socket that is closed at once has no owner any more when that is looked for
compare tcp-resets "connections refused, in all runs" -eq $(($(of refused) * runs)) "SELECT count(*) FROM net_events WHERE event = 'tcp_receive_reset'"
compare process-events "children that ended" -eq "$(of children)" "SELECT count(*) FROM process_events WHERE parent_pid = $pid AND event = 'exit' AND exit_code = 3"
if [ -n "$disk" ]; then
    compare block "reads past the cache and for faults" -eq $(($(of reads) + $(of faults))) "SELECT count(*) FROM block_io WHERE pid = $pid"
    # The kernel also counts a fault that it had to try twice.
    compare faults "pages read from the disk" -ge "$(of faults)" "SELECT sum(count) FROM memory_events WHERE pid = $pid AND event = 'major_fault'"
    compare faults "and no more than the kernel counted" -le "$(of all_faults)" "SELECT sum(count) FROM memory_events WHERE pid = $pid AND event = 'major_fault'"
fi
compare oom "killed for want of memory" -eq 1 "SELECT count(*) FROM memory_events WHERE event = 'oom_kill'"
compare cgroup-reclaim "memory freed at the limit" -ge 1 "SELECT sum(count) FROM memory_events WHERE event LIKE '%reclaim%'"
lost=$(ask "SELECT ifnull(group_concat(probe || ' ' || reason || ' ' || lost), '') FROM capture_loss WHERE reason NOT IN ('unmatched', 'in_flight')")
[ -z "$lost" ] || [ "$lost" = '""' ] && ok "nothing lost" || failed "lost: $lost"

# A user whose program has two capabilities, and another user: only on kernels with uprobe.multi.
alice=1001
bob=1002
as_user() { # USER COMMAND…
    user=$1
    shift
    exec /bin/setpriv --reuid $user --regid $user --clear-groups "$@"
}
in_job_as() { # USER COMMAND…
    (
        sh -c 'echo $PPID' >/sys/fs/cgroup/job/ranks/cgroup.procs
        as_user "$@"
    )
}
two_users() {
    mkdir /tmp/alice
    chown $alice:$alice /tmp/alice
    chmod 1777 /tmp /dev/shm
    cp /bin/rankmesh /tmp/rankmesh
    setcap cap_bpf,cap_perfmon=ep /tmp/rankmesh || failed "setcap"
    (RANKMESH_LOG=info as_user $alice /tmp/rankmesh trace --out /tmp/alice/t.db --cgroup /sys/fs/cgroup/job) >/tmp/alice.log 2>&1 &
    tracer=$!
    for _ in $(seq 300); do
        grep -q "recording into" /tmp/alice.log && break
        kill -0 $tracer 2>/dev/null || break
        usleep 100000
    done
    grep -q "recording into.*only processes of user $alice" /tmp/alice.log || {
        failed "as a user: $(cat /tmp/alice.log)"
        return
    }
    ok "a user with two capabilities records"
    effective=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/$tracer/status)
    [ "$effective" = 000000c000000000 ] && ok "with no other capability: $effective" || failed "capabilities: $effective"
    runs=1
    while [ $runs -lt 7 ]; do
        grep -q "probing a library.*libnccl" /tmp/alice.log && break
        in_job_as $alice /job/host-events >/dev/null
        runs=$((runs + 1))
    done
    in_job_as $bob /job/host-events >/tmp/bobs &
    other=$!
    in_job_as $alice /job/host-events >/tmp/truth || failed "alice's workload: $(cat /tmp/truth)"
    wait $other || failed "bob's workload: $(cat /tmp/bobs)"
    usleep 1500000
    kill -TERM $tracer
    wait $tracer || failed "alice's trace ended with $?: $(cat /tmp/alice.log)"
    pid=$(of pid)
    ask() { rankmesh query --db /tmp/alice/t.db --timeout 60s --format csv "$1" 2>/tmp/query.log | tail -n 1; }
    off=""
    compare user "calls" -eq "$(of calls)" "SELECT count(*) FROM collectives WHERE pid = $pid"
    compare user "sleeps of 5 ms" -ge "$(of sleeps)" "SELECT count(*) FROM offcpu WHERE pid = $pid AND voluntary AND duration_ns >= 5000000"
    compare user "connections refused, in all runs" -eq $(($(of refused) * runs)) "SELECT count(*) FROM net_events WHERE event = 'tcp_receive_reset'"
    compare user "children that ended" -eq "$(of children)" "SELECT count(*) FROM process_events WHERE parent_pid = $pid AND event = 'exit' AND exit_code = 3"
    compare user "other users' processes" -eq 0 "SELECT count(*) FROM processes WHERE uid IS NOT $alice"
    pid=$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' /tmp/bobs)
    compare user "rows of the other user" -eq 0 "SELECT (SELECT count(*) FROM collectives WHERE pid = $pid) + (SELECT count(*) FROM offcpu WHERE pid = $pid OR next_pid = $pid) + (SELECT count(*) FROM net_events WHERE pid = $pid) + (SELECT count(*) FROM process_events WHERE $pid IN (pid, parent_pid))"
}
if ! one_by_one && [ -x /bin/setcap ] && [ -x /bin/setpriv ]; then
    two_users
fi
# An agent, and a rank in Python that is always running: its thread walks its own frames.
python_rank() {
    ip addr add 127.0.0.1/8 dev lo 2>/dev/null
    rankmesh up --budget none --name k --listen 127.0.0.1:0 --identity /tmp/k.id --store /tmp/k.db --socket /tmp/k.sock --cgroup /sys/fs/cgroup/job >/tmp/up.log 2>&1 &
    agent=$!
    in_job ranks env RANK=0 LD_PRELOAD=/job/libnccl.so.2 python3 -I -S /job/busy.py &
    busy=$!
    for _ in $(seq 300); do
        rankmesh nodes --socket /tmp/k.sock --format json 2>/dev/null | grep -q '"ranks":\[0' && break
        usleep 100000
    done
    rankmesh stacks --socket /tmp/k.sock --format json --timeout 60s >/tmp/stacks.json 2>/tmp/stacks.log
    if grep -q '"function":"busy"' /tmp/stacks.json && ! grep -q 'from outside' /tmp/stacks.json /tmp/stacks.log; then
        ok "a running thread of Python walked its own frames"
    else
        failed "stacks: $(cat /tmp/stacks.json /tmp/stacks.log) $(cat /tmp/up.log)"
    fi
    kill $busy $agent
    wait $agent
}
[ ! -x /bin/python3 ] || python_rank
echo "self-test: end"
sync
echo o >/proc/sysrq-trigger
sleep 60
