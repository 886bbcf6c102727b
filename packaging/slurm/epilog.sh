#!/bin/bash
# Slurm Epilog: takes away what a job's processes may have left in memory and in /tmp when they were killed: rings that no agent
# has found, and sockets. Install as one of the Epilog scripts of slurm.conf. Runs as root on each node when a job ends there; what
# is removed is removed as the job's user, so that nothing she has put there leads elsewhere.
job=${SLURM_JOB_ID:-} user=${SLURM_JOB_USER:-} uid=${SLURM_JOB_UID:-}
case $job$uid in '' | *[!0-9]*) exit 0 ;; esac
[ -n "$user" ] || exit 0
runuser -u "$user" -- sh -c '
  rm -rf "/dev/shm/rankmesh-$1-$2" "/dev/shm/rankmesh-$1-$2".r*
  for run in "/tmp/rankmesh-$1/$2@"* "/tmp/rankmesh-$1/$2.r"*@*; do
    case $run in *"@${3:-none}") rm -rf "$run" ;; esac
  done
  rmdir "/tmp/rankmesh-$1" 2>/dev/null' sh "$uid" "$job" "${SLURMD_NODENAME:-$(hostname -s)}" 2>/dev/null
exit 0
