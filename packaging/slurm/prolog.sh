#!/bin/bash
# Slurm Prolog: every job gets its own mesh, without a word in its script. Install as one of the Prolog scripts of slurm.conf:
#   Prolog=/etc/slurm/prolog.d/*        with this file in it, executable, owned by root
# It runs as root on each node when a job begins there, and returns at once. On the job's first node it leaves a process behind
# that runs `rankmesh slurm attach JOBID` as the job's user once the job runs. So the agents are a step of the job, have the user's
# rights and no more, see that user's job and no other, and end with it. With eBPF where the site has granted it to the program:
#   setcap cap_bpf,cap_perfmon=ep /usr/local/bin/rankmesh     (docs/slurm.md says what that grants)
# A job says no with: sbatch --comment=rankmesh=off. Settings, when there are any, in /etc/rankmesh/slurm.sh:
#   RANKMESH=/usr/local/bin/rankmesh   RANKMESH_FLAGS="--store-max-mib 1024"   RANKMESH_LOG_FILE=/var/log/rankmesh-prolog.log
# What goes wrong is told to that file; without one to syslog, where there is a logger.
[ -r /etc/rankmesh/slurm.sh ] && . /etc/rankmesh/slurm.sh
rankmesh=${RANKMESH:-/usr/local/bin/rankmesh}
job=${SLURM_JOB_ID:-} user=${SLURM_JOB_USER:-} uid=${SLURM_JOB_UID:-} nodes=${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-}}
# whatever is wrong here: a job is not held up, and its node not drained, for want of a mesh
[ -n "$job" ] && [ -n "$user" ] && [ -n "$uid" ] && [ -x "$rankmesh" ] || exit 0
gid=${SLURM_JOB_GID:-$(id -g "$user")} || exit 0
first=$(scontrol show hostnames "$nodes" 2>/dev/null | head -n 1)
[ "${SLURMD_NODENAME:-$(hostname -s)}" = "$first" ] || exit 0

attach() {
  local shown home directory
  for _ in $(seq 600); do
    shown=$(scontrol --oneliner show job "$job") || { echo "no mesh for job $job: Slurm does not show it" >&2; return; }
    case $shown in
    *Comment=*rankmesh=off*) return ;;
    *JobState=RUNNING*) break ;;
    *JobState=PENDING* | *JobState=CONFIGURING*) sleep 0.5 ;;
    *) return ;;
    esac
  done
  home=$(getent passwd "$user" | cut -d: -f6)
  directory=$(sed -n 's/.* WorkDir=\([^ ]*\).*/\1/p' <<< "$shown")
  # in the user's place: what she may not enter or write, this may not either
  # (Slurm takes steps from the job's user and group only, and a job's group need not be its user's first one)
  exec setpriv --reuid "$uid" --regid "$gid" --init-groups env HOME="${home:-/}" sh -c 'cd "$1" 2>/dev/null || cd /; shift; exec "$@"' sh "$directory" \
    "$rankmesh" slurm attach "$job" ${RANKMESH_FLAGS:-}
}
export -f attach
export job user uid gid rankmesh RANKMESH_FLAGS
told=${RANKMESH_LOG_FILE:-}
begin() {
  # The user's process gets a pipe, not root's file, and may not fill that.
  if [ -n "$told" ]; then exec > >(exec head -c 65536 >> "$told" 2> /dev/null) 2>&1
  elif command -v logger > /dev/null; then exec > >(head -c 65536 | logger -t "rankmesh[job $job]" > /dev/null 2>&1) 2>&1
  else exec > /dev/null 2>&1; fi
  attach
}
export -f begin
export told
# When this returns slurmd kills what is left of its process group. So it waits until the other has a session of its own, which it
# has when it turns its output away from here.
: "$(setsid --fork bash -c begin < /dev/null 2> /dev/null)"
exit 0
