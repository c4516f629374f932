# What every script of tests/e2e needs: where things are, and how to talk. Sourced, from tests/e2e as the directory.
# shellcheck shell=bash disable=SC2034 # the names are for the scripts that source this

# A failure in the middle of $(…) is a failure.
shopt -s inherit_errexit

# Programs and images that were built, kept between runs. It is a few hundred megabytes and may be removed at any time.
cache=${HOSTLOOP_E2E_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hostloop/e2e}

# Every name of the cluster begins with this one: network namespaces, control groups, its directory. With another name
# a second cluster runs beside the first.
cluster=${HOSTLOOP_E2E_NAME:-hostloop-e2e}

# What the cluster writes: certificates, logs, etcd, the disks of the nodes. Gone after `cluster down`.
state=${HOSTLOOP_E2E_STATE:-/var/tmp/$cluster}

# What makes the cluster: `cluster`, of namespaces on this machine, or `kind`. They are programs with the same commands.
provider=${HOSTLOOP_E2E_PROVIDER:-cluster}

jobs=${HOSTLOOP_E2E_JOBS:-$(nproc)}

# The tools of root are not on every user's PATH, but they are there all the same.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# Where cargo builds: CARGO_TARGET_DIR counts from the root of the repository, where cargo is called.
target_directory() {
  local directory=${CARGO_TARGET_DIR:-target}
  [[ $directory == /* ]] || directory=$(realpath ../..)/$directory
  printf '%s' "$directory"
}

say() { printf 'e2e: %s\n' "$*" >&2; }

die() {
  printf 'e2e: %s\n' "$*" >&2
  exit 1
}

# The nodes that a new cluster gets: HOSTLOOP_E2E_NODES says how many.
[[ ${HOSTLOOP_E2E_NODES:=3} == [1-9] ]] || die "HOSTLOOP_E2E_NODES is a number from 1 to 9, not '$HOSTLOOP_E2E_NODES'"
nodes=()
for ((number = 1; number <= HOSTLOOP_E2E_NODES; number++)); do nodes+=("node$number"); done
unset number

need_root() {
  ((EUID == 0)) || die "$0 makes namespaces, control groups and mounts: run it as root"
}

# Waits until the command succeeds: `wait_for SECONDS WHAT COMMAND...`.
wait_for() {
  local seconds=$1 what=$2 deadline=$((SECONDS + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || die "$what: not within $seconds s"
    sleep 0.2
  done
}

# Whether a module of go/ is built with the versions of go/go.work.
in_workspace() {
  grep -qx "[[:space:]]*\./$1" go/go.work
}

# The directory of the cache for a module of go/: its name carries a checksum of what it is made of.
module_directory() {
  local sum from=("./$1")
  # Each module of the workspace has a say in the versions.
  ! in_workspace "$1" || mapfile -t from < <(printf './go.work\n./go.work.sum\n'; sed -n 's/^[[:space:]]*\.\//.\//p' go/go.work)
  sum=$(cd go && find "${from[@]}" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)
  printf '%s/modules/%s-%s' "$cache" "$1" "$sum"
}

# Runs go where it sees a module of go/ as that is built: go_in MODULE ARGUMENT...
go_in() {
  local module=$1
  shift
  in_workspace "$module" || local -x GOWORK=off
  (cd "go/$module" && go "$@")
}

# The directory with the files of a module that a module of go/ needs: module_source MODULE PATH. It is downloaded first, as
# go says nothing of a directory that has been cleaned away.
module_source() { go_in "$1" mod download "$2" && go_in "$1" list -m -f '{{.Dir}}' "$2"; }
# Its version.
module_version() { go_in "$1" list -m -f '{{.Version}}' "$2"; }

# The names of the modules of go/, one a line.
modules() {
  local file
  for file in go/*/go.mod; do
    basename "${file%/go.mod}"
  done
}
