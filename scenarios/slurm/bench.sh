#!/bin/bash
# Figures of `rankmesh slurm`: how long `rankmesh slurm up` takes for 4 and for 32 nodes (lab.sh: every slurmd on this machine),
# and what the MPI shim costs a call, beside a call without it and one under the agent's uprobes, in the same run.
#   bench.sh RANKMESH     a release build
# Needs root, slurm-wlm, munge, cc; for the uprobes eBPF. Prints one line a figure and ends with 0 either way.
set -u
rankmesh=$(realpath "${1:?usage: bench.sh RANKMESH}")
here=$(dirname "$(realpath "$0")")
dir=$(mktemp -d) && chmod 755 "$dir"
cgroup=""
trap 'clean' EXIT
clean() {
  for pid in ${agent:-} ${held:-}; do kill "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; done
  [ -n "$cgroup" ] && rmdir "$cgroup" 2>/dev/null
  [ -d "$dir/cluster" ] && { SLURM_CONF=$dir/cluster/slurm.conf scancel --user=root 2>/dev/null; sleep 1; "$here/lab.sh" down "$dir/cluster"; }
  rm -rf "$dir"
}
figure() { echo "figure $1 $2 $3 aim <= $4"; }

# --- the mesh
up() { # nodes aim
  local nodes=$1 aim=$2 job said took
  "$here/lab.sh" up "$dir/cluster" "$nodes" >/dev/null || { echo "no figure for $nodes nodes: Slurm did not start" >&2; return; }
  export SLURM_CONF=$dir/cluster/slurm.conf
  printf '#!/bin/bash\n%s slurm up --timeout 120s --capture off 2>&1; echo "ended with $?"; sleep 600\n' "$rankmesh" > "$dir/up.sh"
  for _ in 1 2 3; do
    rm -f "$dir/up.out"
    job=$(cd "$dir" && sbatch --parsable -N "$nodes" --ntasks-per-node=1 -o "$dir/up.out" "$dir/up.sh") || break
    for _ in $(seq 1500); do grep -qs 'ended with' "$dir/up.out" && break; sleep 0.1; done
    said=$(cat "$dir/up.out" 2>/dev/null)
    took=$(sed -n "s/.*: $nodes of $nodes nodes know each other after \([0-9.]*\) s.*/\1/p" <<< "$said")
    [ -n "$took" ] && echo "$took" >> "$dir/took.$nodes" || echo "$nodes nodes: $said" >&2
    scancel "$job"
    for _ in $(seq 300); do [ -z "$(squeue -h -j "$job" 2>/dev/null)" ] && break; sleep 0.1; done
  done
  "$here/lab.sh" down "$dir/cluster"
  rm -rf "$dir/cluster"
  [ -s "$dir/took.$nodes" ] && figure "slurm_up_${nodes}_nodes" "$(sort -n "$dir/took.$nodes" | sed -n 2p)" s "$aim"
}

# --- a call: as many as a ring holds, so that none is lost and every one is written
calls=8000
per_call() { # command that runs the program; of several runs the one that was disturbed least
  for _ in $(seq 21); do "$@" "$dir/program" 1 $calls < /dev/null | awk -v n=$calls '/^called/ { print $2 / n }'; done | sort -n | head -1
}
shim() {
  local source=$here/../../node-bpf/tests/c/shim_mpi.c bare with probed
  cc -O1 -DLIBRARY -shared -fPIC -o "$dir/libmpi.so" "$source" &&
    cc -O1 -pthread -o "$dir/program" "$source" "$dir/libmpi.so" -Wl,-rpath,"$dir" || return
  bare=$(per_call env)
  "$rankmesh" env --dir "$dir/lib" > /dev/null || return
  with=$(RANKMESH_RING_DIR=$dir/rings per_call env LD_PRELOAD="$dir/lib/librankmesh_pmpi.so")
  rm -rf "$dir/rings"
  echo "a call: $bare ns, with the shim $with ns"
  # under the agent's uprobes, which are the file's: a process that is there first makes the agent attach to it
  root=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
  [ -n "$root" ] && cgroup=$root/rankmesh-bench-$$ && mkdir "$cgroup" || { cgroup=""; echo "no figure for uprobes: no cgroup v2" >&2; return; }
  "$rankmesh" up --name bench --listen 127.0.0.1:0 --identity "$dir/id" --store "$dir/bench.db" --socket "$dir/bench.sock" \
    --cgroup "$cgroup" > "$dir/agent.out" 2>&1 & agent=$!
  mkfifo "$dir/hold"
  sh -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$cgroup" "$dir/program" 1 10 < "$dir/hold" > /dev/null & held=$!
  exec 9> "$dir/hold"
  for _ in $(seq 200); do
    sh -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$cgroup" "$dir/program" 1 10 < /dev/null > /dev/null
    [ "$("$rankmesh" query --socket "$dir/bench.sock" --format csv 'SELECT count(*) > 0 FROM collectives' 2>/dev/null | tail -1)" = 1 ] && break
    sleep 0.1
  done
  probed=$(per_call sh -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$cgroup")
  exec 9>&-
  [ "$("$rankmesh" query --socket "$dir/bench.sock" --format csv 'SELECT count(*) > 8000 FROM collectives' 2>/dev/null | tail -1)" = 1 ] ||
    { echo "no figure for uprobes: they were not attached" >&2; cat "$dir/agent.out" >&2; return; }
  echo "with uprobes $probed ns"
  figure shim_call_over_bare "$(awk -v a="$with" -v b="$bare" 'BEGIN { printf "%.1f", a / b }')" ratio \
    "$(awk -v a="$probed" -v b="$bare" 'BEGIN { printf "%.1f", a / b }')"
  figure shim_call_over_uprobe_call "$(awk -v a="$with" -v b="$probed" 'BEGIN { printf "%.2f", a / b }')" ratio 1
}

echo "load $(cut -d' ' -f1-3 /proc/loadavg)"
shim
up 4 2
up 32 5
exit 0
