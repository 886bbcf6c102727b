#!/bin/bash
# A Slurm cluster on this machine: one slurmctld and N slurmd, each a node of its own (n1 … nN), on loopback and on ports of
# its own, with its own munged and key. Everything lies in DIR; nothing outside it is changed.
#   lab.sh up DIR [N]    start; prints what to export
#   lab.sh down DIR      end all of it
# RANKMESH_LAB_PROLOG and RANKMESH_LAB_EPILOG: programs that run as root when a job begins and ends on a node.
# RANKMESH_LAB_ACCOUNTING=1: with accounting, slurmdbd over a MariaDB of its own (slurmdbd, mariadb-server-core), an account
# "physics" for root, and two GPUs a node to be counted.
# Needs root (slurmd runs jobs as their users), slurm-wlm and munge.
set -u
[ $# -ge 2 ] || { echo "usage: $0 up|down DIR [NODES]" >&2; exit 2; }
command=$1 dir=$2 nodes=${3:-4}
cpus=${RANKMESH_LAB_CPUS:-8}

free_ports() { # as many free TCP ports, one a line
  python3 - "$1" <<'PY' 2>/dev/null || { base=$((20000 + RANDOM % 20000)); seq "$base" $((base + $1 - 1)); }
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in held: s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])
PY
}

configure() {
  mapfile -t ports < <(free_ports $((nodes + 2)))
  {
    cat <<CONF
ClusterName=rankmeshlab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000,defer_batch=0,bf_interval=1
ReturnToService=2
KillWait=60
FirstJobId=$((1000 + RANDOM * 60))
JobRequeue=1
SlurmctldTimeout=60
SlurmdTimeout=60
MinJobAge=300
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmdSpoolDir=$dir/spool.%n
StateSaveLocation=$dir/state
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
TmpFS=$dir/tmp.%n
CommunicationParameters=NoAddrCache,NoInAddrAny,NoCtldInAddrAny
SlurmdParameters=config_overrides
CONF
    if [ -n "${RANKMESH_LAB_ACCOUNTING:-}" ]; then
      echo "AccountingStorageType=accounting_storage/slurmdbd"
      echo "AccountingStorageHost=127.0.0.1"
      echo "AccountingStoragePort=${ports[$((nodes + 1))]}"
      echo "AccountingStoragePass=$dir/munge.socket"
      echo "AccountingStorageTRES=gres/gpu"
      echo "GresTypes=gpu"
      gres="Gres=gpu:2"
    else
      echo "AccountingStorageType=accounting_storage/none"
    fi
    [ -n "${RANKMESH_LAB_PROLOG:-}" ] && echo "Prolog=$RANKMESH_LAB_PROLOG"
    [ -n "${RANKMESH_LAB_EPILOG:-}" ] && echo "Epilog=$RANKMESH_LAB_EPILOG"
    [ -n "${RANKMESH_LAB_JOB_SUBMIT:-}" ] && cp "$RANKMESH_LAB_JOB_SUBMIT" "$dir/job_submit.lua" && echo "JobSubmitPlugins=lua"
    for n in $(seq "$nodes"); do
      echo "NodeName=n$n NodeHostname=localhost NodeAddr=127.0.0.1 Port=${ports[$n]} CPUs=$cpus RealMemory=4000 ${gres:-} State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=n[1-$nodes] Default=YES MaxTime=60 State=UP OverSubscribe=YES:4"
  } > "$dir/slurm.conf"
}

wait_until() { # what, then a command
  local what=$1
  shift
  for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done
  echo "$what does not answer" >&2
  return 1
}

account() { # MariaDB and slurmdbd, and what jobs are charged to
  local sql=$dir/mysql
  mkdir -p "$sql/data" || return 1
  mariadb-install-db --no-defaults --user=root --datadir="$sql/data" --auth-root-authentication-method=normal \
    --skip-test-db >"$dir/log/mariadb-install.log" 2>&1 || return 1
  # (In the background by its own: it has no flag to become a daemon.)
  setsid mariadbd --no-defaults --user=root --datadir="$sql/data" --socket="$sql/socket" --pid-file="$dir/mariadbd.pid" \
    --skip-networking --innodb-buffer-pool-size=64M >"$dir/log/mariadbd.log" 2>&1 </dev/null &
  wait_until MariaDB test -S "$sql/socket" || return 1
  cat > "$dir/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=${ports[$((nodes + 1))]}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
LogFile=$dir/log/slurmdbd.log
PidFile=$dir/slurmdbd.pid
CONF
  chmod 600 "$dir/slurmdbd.conf"
  # Devices that are there, to be counted and nothing else.
  touch "$dir/gpu0" "$dir/gpu1"
  echo "Name=gpu File=$dir/gpu[0-1]" > "$dir/gres.conf"
  # libmariadb looks for the socket there
  SLURM_CONF=$dir/slurmdbd.conf MYSQL_UNIX_PORT=$sql/socket slurmdbd || return 1
  export SLURM_CONF=$dir/slurm.conf
  wait_until slurmdbd sacctmgr -n list cluster || return 1
  sacctmgr -i -Q add cluster rankmeshlab && sacctmgr -i -Q add account physics Cluster=rankmeshlab &&
    sacctmgr -i -Q add user root Account=physics
}

case $command in
up)
  mkdir -p "$dir/state" "$dir/log" && chmod 755 "$dir" || exit 1
  configure
  head -c 1024 /dev/urandom > "$dir/munge.key" && chmod 400 "$dir/munge.key"
  munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
    --log-file="$dir/log/munged.log" --seed-file="$dir/munge.seed" || exit 1
  if [ -n "${RANKMESH_LAB_ACCOUNTING:-}" ]; then
    account || { echo "accounting did not start:" >&2; for log in "$dir"/log/slurmdbd.log "$dir"/log/maria*.log; do tail -n 5 "$log" >&2; done; exit 1; }
  fi
  slurmctld -c -f "$dir/slurm.conf" || exit 1
  for n in $(seq "$nodes"); do
    mkdir -p "$dir/spool.n$n" "$dir/tmp.n$n"
    slurmd -c -N "n$n" -f "$dir/slurm.conf" || { echo "slurmd n$n did not start" >&2; exit 1; }
  done
  for _ in $(seq 300); do
    [ "$(SLURM_CONF=$dir/slurm.conf sinfo -h -o '%T %D' 2>/dev/null)" = "idle $nodes" ] && { echo "export SLURM_CONF=$dir/slurm.conf"; exit 0; }
    sleep 0.1
  done
  echo "the nodes did not come up:" >&2
  SLURM_CONF=$dir/slurm.conf sinfo -N -l >&2
  exit 1
  ;;
down)
  pids=""
  for file in "$dir"/slurmd.*.pid "$dir/slurmctld.pid" "$dir/slurmdbd.pid" "$dir/mariadbd.pid" "$dir/munged.pid"; do
    [ -s "$file" ] && pids="$pids $(cat "$file")"
  done
  # shellcheck disable=SC2086
  [ -n "$pids" ] && kill $pids 2>/dev/null
  for _ in $(seq 100); do
    left=""
    for pid in $pids; do kill -0 "$pid" 2>/dev/null && left="$left $pid"; done
    [ -z "$left" ] && exit 0
    sleep 0.1
  done
  # shellcheck disable=SC2086
  kill -9 $left
  ;;
*) echo "usage: $0 up|down DIR [NODES]" >&2; exit 2 ;;
esac
