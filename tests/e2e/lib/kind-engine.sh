# What runs kind's nodes, and where images come from. Docker is used where it answers. Else podman runs them, with a
# storage of its own in the cache, so that nothing of the user's podman is touched.
# shellcheck shell=bash disable=SC2034,SC2154 # names for, and of, the scripts that source this

# Whether root may set what systemd and Kubernetes want to: without CAP_SYS_RESOURCE no limit may be raised and no process
# made less killable.
may_set_limits() {
  local capabilities
  capabilities=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
  ((0x$capabilities >> 24 & 1))
}

# What kind's configuration needs where its machine has less than usual: version 1 of control groups, which kubelet takes no
# longer by itself, and no right to make processes less killable.
machine_patches() {
  [[ -e /sys/fs/cgroup/cgroup.controllers ]] ||
    printf 'kubeadmConfigPatches:\n  - |\n    kind: KubeletConfiguration\n    failCgroupV1: false\n'
  may_set_limits ||
    printf 'containerdConfigPatches:\n  - |\n    [plugins."io.containerd.grpc.v1.cri"]\n      restrict_oom_score_adj = true\n'
}

# Sets engine. It does not need to be installed yet.
find_engine() {
  engine=${HOSTLOOP_E2E_ENGINE:-}
  if [[ -z $engine ]]; then
    engine=podman
    ! docker info >/dev/null 2>&1 || engine=docker
  fi
  # Those that are started here find the `docker` below.
  export HOSTLOOP_E2E_ENGINE=$engine
  case $engine in
    docker) ;;
    podman) podman_settings ;;
    *) die "HOSTLOOP_E2E_ENGINE is docker or podman, not '$engine'" ;;
  esac
}

# An engine that answers.
prepare_engine() {
  find_engine
  if [[ $engine == podman ]]; then
    ((EUID == 0)) || die 'docker does not answer: is it started, and may you use it? In its place podman is used, as root'
    ./install-deps kind
    # kind mounts it into its nodes; Docker would make it. A kernel without modules has none.
    mkdir -p /lib/modules
  fi
  "$engine" info >/dev/null || die "$engine does not answer: is it started, and may you use it?"
}

podman_settings() {
  local directory=$cache/podman
  export KIND_EXPERIMENTAL_PROVIDER=podman CONTAINERS_STORAGE_CONF=$directory/storage.conf CONTAINERS_CONF=$directory/containers.conf
  mkdir -p "$directory/bin" "$directory/networks"
  printf '[storage]\ndriver = "overlay"\ngraphroot = "%s/storage"\nrunroot = "/run/hostloop-podman"\n' "$directory" >"$CONTAINERS_STORAGE_CONF"
  {
    printf '[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "%s/networks"\n' "$directory"
    printf '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    may_set_limits ||
      printf 'runtime = "without-limits"\n[engine.runtimes]\nwithout-limits = ["%s/lib/runc-without-limits"]\n' "$PWD"
  } >"$CONTAINERS_CONF"
  printf 'unqualified-search-registries = ["docker.io"]\n' >"$directory/registries.conf"
  export CONTAINERS_REGISTRIES_CONF=$directory/registries.conf
  # kind and those who write commands for it call it docker.
  printf '#!/bin/sh\nexec podman "$@"\n' >"$directory/bin/docker"
  chmod 755 "$directory/bin/docker"
  PATH=$PATH:$directory/bin
}

# Says where images come from until the next `build`: asking a registry takes its time.
origin_file=$cache/$cluster.origin

# Sets origin: where images come from, published or made.
find_origin() {
  origin=${HOSTLOOP_E2E_IMAGES:-}
  [[ -n $origin || ${command:-} == build ]] || origin=$(cat "$origin_file" 2>/dev/null || true)
  if [[ -z $origin ]]; then
    origin=made
    ! "$engine" pull --quiet "$shell_base" >/dev/null 2>&1 || origin=published
  fi
  [[ $origin == published || $origin == made ]] || die "HOSTLOOP_E2E_IMAGES is published or made, not '$origin'"
}

# Sets needed, the modules that ./build has to have, and finds their programs. What is installed comes first: that is what
# users of this machine have.
find_modules() {
  local module
  needed=(helm)
  if [[ $origin == made ]]; then
    needed+=(kind kubernetes csi-provisioner csi-resizer csi-snapshotter helpers)
  else
    command -v kind >/dev/null || needed+=(kind)
    command -v kubectl >/dev/null || needed+=(kubernetes)
  fi
  for module in "${needed[@]}"; do PATH=$PATH:$(module_directory "$module"); done
}

# Runs a command that finds all programs.
with_programs() { env "PATH=$PATH" "$@"; }

# The names of kind's clusters on one line, each between spaces.
kind_clusters() {
  local names
  names=$(kind get clusters 2>/dev/null) || die 'kind does not say which clusters there are: kind get clusters'
  printf ' %s ' "${names//$'\n'/ }"
}

# Prints the name of the node image that was made here, which the engine has then.
node_image() {
  local archive name
  archive=$(node_root)
  name=localhost/$(basename "${archive%.tar}"):e2e
  if ! "$engine" image inspect "$name" >/dev/null 2>&1; then
    # Those of other days.
    "$engine" images --quiet --filter reference='localhost/kind-node-*' | sort -u | xargs --no-run-if-empty "$engine" rmi --force >/dev/null || true
    "$engine" import --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' --change 'STOPSIGNAL SIGRTMIN+3' \
      --change 'ENV container=docker' "$archive" "$name" >/dev/null
  fi
  printf '%s' "$name"
}

# kind leaves its network for the next cluster. What podman has here is nobody else's.
remove_network() {
  [[ $engine == podman ]] || return 0
  [[ -n $("$engine" ps --all --quiet) ]] || "$engine" network rm kind >/dev/null 2>&1 || true
}
