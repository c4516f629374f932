# A node: namespaces of its own on this machine, with containerd, kubelet and kube-proxy in them.
# shellcheck shell=bash

# The size of each of a node's two disks for volumes. They are sparse files, so they take what is written.
node_disk=${HOSTLOOP_E2E_DISK:-20G}

node_directory() { printf '%s/%s' "$state" "$1"; }

# Runs a command as if on the node.
in_node() {
  local pid
  pid=$(cat "$state/pid/$1")
  shift
  nsenter --target "$pid" --mount --uts --net -- "$@"
}

# The same in the background, as a process of the cluster.
start_in_node() {
  local node=$1 name=$2 pid
  pid=$(cat "$state/pid/$node")
  shift 2
  start "$node-$name" nsenter --target "$pid" --mount --uts --net -- "$@"
}

# What a node is made of while it is switched off.
make_node() {
  local node=$1 directory
  directory=$(node_directory "$node")
  mkdir -p "$directory"/{log/pods,log/containers,lib/kubelet,lib/hostloop,lib/limits,lib/cni,containerd,cni}
  truncate --size "$node_disk" "$directory"/{disk,limits}.img
  mkfs.xfs -q -m reflink=1 "$directory/disk.img"
  # It has notes for everybody, on its output.
  mkfs.btrfs -q "$directory/limits.img" >/dev/null
  containerd_configuration "$directory" >"$directory/containerd.toml"
  cni_configuration "$node" >"$directory/cni/10-pods.conflist"
  kubelet_configuration "$node" >"$directory/kubelet.yaml"
}

# Moves the disks of a stopped node to another node, unchanged. The first node keeps a copy with UUIDs of its own: a kernel
# does not mount two filesystems of one UUID, and the machines of this cluster share one.
give_disks() {
  local from to name mounted
  from=$(node_directory "$1") to=$(node_directory "$2")
  mounted=$(mktemp -d)
  for name in disk limits; do
    # Its UUID can be changed only if its log is empty.
    mount -o loop "$from/$name.img" "$mounted"
    umount "$mounted"
    cp --sparse=always "$from/$name.img" "$to/$name.img"
  done
  rmdir "$mounted"
  xfs_admin -U generate "$from/disk.img" >/dev/null
  btrfstune -f -u "$from/limits.img" >/dev/null
}

# Its namespaces, and containerd in them.
boot_node() {
  local node=$1 directory
  directory=$(node_directory "$node")
  rm -f "$directory/ready"
  start "$node" nsenter --net="/run/netns/$(namespace_of "$node")" unshare --mount --uts lib/node-init "$node" "$directory"
  wait_for 20 "$node has its mounts" test -e "$directory/ready"
  start_containerd "$node"
}

start_containerd() {
  start_in_node "$1" containerd containerd --config "$(node_directory "$1")/containerd.toml"
}

start_kubelet() {
  local node=$1 directory
  directory=$(node_directory "$node")
  start_in_node "$node" kubelet env "PATH=$kubernetes:$PATH" "$kubernetes/kubelet" --config "$directory/kubelet.yaml" \
    --kubeconfig "$pki/$node.kubeconfig" --node-ip "$(node_ip "$node")" --hostname-override "$node"
}

# The programs that make a node one, but containerd. With nftables, as Debian's iptables is a front end of that.
start_node() {
  local node=$1
  start_kubelet "$node"
  start_in_node "$node" proxy "$kubernetes/kube-proxy" --kubeconfig "$pki/proxy.kubeconfig" --hostname-override "$node" \
    --proxy-mode nftables --cluster-cidr "$pod_cidr" --conntrack-max-per-core 0 \
    --conntrack-tcp-timeout-established 0 --conntrack-tcp-timeout-close-wait 0
}

# kubelet ends when it comes before containerd is ready, and is started again then, as a machine's init does.
kubelet_answers() {
  process_is_gone "$(cat "$state/pid/$1-kubelet")" && start_kubelet "$1"
  in_network "$1" bash -c '
    exec 3<>/dev/tcp/127.0.0.1/10248 || exit 1
    printf "GET /healthz HTTP/1.0\r\n\r\n" >&3
    grep --quiet "200 OK" <&3'
}

# Kills kubelet or containerd and starts it again; pods go on meanwhile. `restart_in_node NODE NAME`.
restart_in_node() {
  local node=$1 name=$2 pid
  pid=$(cat "$state/pid/$node-$name")
  kill -KILL "$pid"
  wait_for 20 "$name of $node ends" process_is_gone "$pid"
  "start_$name" "$node"
  wait_for 60 "kubelet of $node answers" kubelet_answers "$node"
}

# Sends a signal to the processes of the node's pods whose command line has these words: `signal_in_pods NODE SIGNAL WORDS`.
signal_in_pods() {
  local pid found=false
  for pid in $(find "/sys/fs/cgroup/pids/$cluster/$1" -name cgroup.procs -exec cat {} + 2>/dev/null); do
    [[ " $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null) " == *" $3 "* ]] || continue
    ! kill "-$2" "$pid" 2>/dev/null || found=true
  done
  $found || die "no process in the pods of $1 has '$3' in its command line"
}

process_is_gone() { ! kill -0 "$1" 2>/dev/null; }

# Switches a node off, in the middle of whatever it does. Its disks stay, and so do its objects in the API.
stop_node() {
  local node=$1
  [[ -z $(node_processes "$node") ]] || cut_power "$node"
  end_processes node_processes "$node"
  # These a machine loses with its power. Here the kernel goes on, and would keep the disk in use.
  detach_disks "$node"
  in_network "$node" nft flush ruleset
  remove_cgroups_in "$cluster/$node" -mindepth 1
}

# The kernel goes on where a machine's would end, and writes all that is dirty when the disk is unmounted. So the disk is shut
# down first: from then on nothing is written to it, not even the log that is in memory. What was written without a flush
# stays, as on a disk that has no cache. The processes are stopped before that, as none may act on a disk that fails. btrfs knows
# no shutdown: the disk of the pool `limits` loses nothing.
cut_power() {
  local node=$1 pids device
  # Twice, for those that were started meanwhile.
  for _ in 1 2; do
    pids=$(node_processes "$node")
    # shellcheck disable=SC2086 # one word for each process
    kill -STOP $pids 2>/dev/null || true
  done
  # What is on the disk can be read now for the last time, also the inodes by which detach_disks finds loop devices. One that is in
  # use is detached at the end of what uses it.
  for device in $(cluster_loop_devices "$node"); do
    losetup --detach "$device" 2>/dev/null || true
  done
  in_node "$node" xfs_io -x -c shutdown /var/lib/hostloop
}

# Prints the arguments of helm for the pool on the second disk of each node, one a line.
pool_settings() { printf -- '--set\n%s\n' 'node.pools[0].name=limits' 'node.pools[0].path=/var/lib/limits/hostloop'; }

containerd_configuration() {
  cat <<TOML
version = 2
root = "$1/containerd"
# The directory is the node's own, as /run is.
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "$pause_image"
# Without CAP_SYS_RESOURCE nobody may be made less killable than this process is.
restrict_oom_score_adj = true
disable_apparmor = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "$1/cni"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
TOML
}

# A link for each pod and no bridge: with one, the answer of a service to a pod of the same node would bypass the
# translation of addresses.
cni_configuration() {
  cat <<JSON
{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [{
    "type": "ptp",
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "$(node_pods "$1")"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
JSON
}

kubelet_configuration() {
  cat <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $pki/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $pki/$1.crt
tlsPrivateKeyFile: $pki/$1.key
# Nobody answers there. Without an address every pod would have an event about it.
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: ""
cgroupDriver: cgroupfs
cgroupRoot: /$cluster/$1
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
volumePluginDir: $(node_directory "$1")/plugins
# The disk is the machine's, which others fill: images are not to vanish for it.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
# What a test waits for: also a container that was killed more than once.
nodeStatusUpdateFrequency: 5s
volumeStatsAggPeriod: 10s
syncFrequency: 10s
crashLoopBackOff: {maxContainerRestartPeriod: 5s}
YAML
}
