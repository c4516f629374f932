# The cluster's network: a namespace for the control plane with a bridge, and one for each node, joined to the bridge.
# Nothing of it is in the host's own namespace, and no packet leaves the machine.
# shellcheck shell=bash

control_plane_ip=10.98.0.1
service_cidr=10.96.0.0/16
# The first address of the services is the API server's.
service_ip=10.96.0.1
pod_cidr=10.244.0.0/16

# node1 is the first node, with 10.98.0.11 and the pods of 10.244.1.0/24.
node_number() { printf '%s' "${1#node}"; }
node_ip() { printf '10.98.0.%s' "$((10 + $(node_number "$1")))"; }
node_pods() { printf '10.244.%s.0/24' "$(node_number "$1")"; }

namespace_of() { printf '%s-%s' "$cluster" "$1"; }

# Runs a command in a namespace of the network. nsenter and not `ip netns exec`: that one mounts another /sys, which
# hides the control groups.
in_network() {
  local name=$1
  shift
  nsenter --net="/run/netns/$(namespace_of "$name")" "$@"
}

make_namespace() {
  ip netns add "$(namespace_of "$1")"
  in_network "$1" ip link set lo up
  in_network "$1" sysctl -qw net.ipv4.ip_forward=1
}

make_network() {
  local node
  make_namespace control-plane
  in_network control-plane ip link add nodes type bridge
  in_network control-plane ip address add "$control_plane_ip/24" dev nodes
  in_network control-plane ip link set nodes up

  for node in "${nodes[@]}"; do
    make_namespace "$node"
    in_network "$node" ip link add eth0 type veth peer name "$node" netns "$(namespace_of control-plane)"
    in_network control-plane ip link set "$node" master nodes up
    in_network "$node" ip address add "$(node_ip "$node")/24" dev eth0
    in_network "$node" ip link set eth0 up
    in_network "$node" ip route add default via "$control_plane_ip"
  done
  route_pods
}

# Everybody knows where the pods of each node are; the node itself has them on links of its own.
route_pods() {
  local node other
  for node in "${nodes[@]}"; do
    for other in control-plane "${nodes[@]}"; do
      [[ $other == "$node" ]] || in_network "$other" ip route add "$(node_pods "$node")" via "$(node_ip "$node")"
    done
  done
}

# The namespaces that there are, one a line; also those of a cluster with another number of nodes.
namespaces() {
  local file
  for file in "/run/netns/$cluster-control-plane" "/run/netns/$cluster"-node[0-9]; do
    [[ ! -e $file ]] || basename "$file"
  done
}

remove_network() {
  local name
  for name in $(namespaces); do ip netns delete "$name"; done
  # `ip netns` makes this directory a mount, and leaves it.
  if mountpoint --quiet /run/netns && [[ -z $(ls -A /run/netns) ]]; then
    umount /run/netns && rmdir /run/netns || true
  fi
}
