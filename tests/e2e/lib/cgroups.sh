# All processes of the cluster are in control groups below one of its own, in each hierarchy: so they can be found,
# and ended, whatever became of the script that started them.
# shellcheck shell=bash

hierarchies() {
  local directory
  for directory in cpu cpuacct cpuset memory devices freezer blkio pids systemd; do
    # cpu and cpuacct are often one hierarchy with two names.
    [[ ! -d /sys/fs/cgroup/$directory ]] || realpath "/sys/fs/cgroup/$directory"
  done | sort -u
}

make_cgroups() {
  local hierarchy node
  [[ -d /sys/fs/cgroup/pids ]] || die 'there is no /sys/fs/cgroup/pids: this machine has no control groups of version 1'
  for hierarchy in $(hierarchies); do
    make_cgroup "$hierarchy" "$hierarchy/$cluster"
    # Where pods begin: `cgroupRoot` of each kubelet.
    for node in "${nodes[@]}"; do
      make_cgroup "$hierarchy/$cluster" "$hierarchy/$cluster/$node"
    done
  done
}

# A new group of cpuset has neither processors nor memory, and takes no process.
make_cgroup() {
  local parent=$1 group=$2 file
  mkdir -p "$group"
  for file in cpuset.cpus cpuset.mems; do
    [[ ! -e $parent/$file ]] || cat "$parent/$file" >"$group/$file"
  done
}

# The ids of all processes of the cluster.
cluster_processes() {
  [[ -d /sys/fs/cgroup/pids/$cluster ]] || return 0
  find "/sys/fs/cgroup/pids/$cluster" -name cgroup.procs -exec cat {} + 2>/dev/null || true
}

# The ids of the processes of a node: of its pods, which have namespaces of their own, and all that are in the node's.
node_processes() {
  local node=$1 network pid
  network=net:[$(stat -Lc %i "/run/netns/$(namespace_of "$node")")]
  find "/sys/fs/cgroup/pids/$cluster/$node" -name cgroup.procs -exec cat {} + 2>/dev/null || true
  for pid in $(cluster_processes); do
    [[ $(readlink "/proc/$pid/ns/net" 2>/dev/null) != "$network" ]] || printf '%s\n' "$pid"
  done
}

# Ends what a command lists: `end_processes COMMAND...`.
end_processes() {
  local pids deadline=$((SECONDS + 30))
  while pids=$("$@") && [[ -n $pids ]]; do
    ((SECONDS < deadline)) || die "these processes do not end: $(tr '\n' ' ' <<<"$pids")"
    # shellcheck disable=SC2086 # one word for each process
    kill -KILL $pids 2>/dev/null || true
    sleep 0.1
  done
}

# Removes the groups below a group of the cluster: `remove_cgroups_in GROUP [ARGUMENT-OF-FIND...]`. runc also makes groups in
# the hierarchy of version 2 that some machines have beside the others.
remove_cgroups_in() {
  local group=$1 hierarchy
  shift
  for hierarchy in $(hierarchies) /sys/fs/cgroup/unified; do
    [[ ! -d $hierarchy/$group ]] || find "$hierarchy/$group" "$@" -depth -type d -exec rmdir {} +
  done
}

remove_cgroups() { remove_cgroups_in "$cluster"; }

# Starts a process of the cluster in the background: `start NAME COMMAND...`, with its log in the state directory.
# It keeps none of the caller's files open, so that nobody waits for it.
start() {
  local name=$1 descriptor
  shift
  (
    # Those that a script opens by number: the lock of `local`, what a case of `run` says.
    for descriptor in {3..9}; do exec {descriptor}>&-; done
    echo "$BASHPID" >"/sys/fs/cgroup/pids/$cluster/cgroup.procs"
    exec setsid "$@" </dev/null >>"$state/log/$name.log" 2>&1
  ) &
  echo $! >"$state/pid/$name"
  # Or bash has something to say when it ends.
  disown $!
}
