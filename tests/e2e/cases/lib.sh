# What the cases share. A case is a script of its own: it is given its name and an empty namespace, and fails by
# returning something else than 0.
# shellcheck shell=bash disable=SC2034 # the names are for the cases

: "${case:?}" "${namespace:?}"
driver=${HOSTLOOP_E2E_DRIVER:-hostloop.csi.dev}
image=${HOSTLOOP_E2E_IMAGE:-localhost/shell:e2e}
# shellcheck disable=SC2054 # one selector
# The driver's pods on the nodes.
node_pods=(--all-namespaces --selector app.kubernetes.io/name=hostloop,app.kubernetes.io/component=node)
chart=${HOSTLOOP_E2E_CHART:-../../deploy/helm/hostloop}
# The names of objects that no namespace keeps apart.
class=e2e-$case
# How long anything may take: not what is expected, but when to stop waiting.
limit=${HOSTLOOP_E2E_LIMIT:-120}

k() { kubectl --namespace "$namespace" "$@"; }

# These run in subshells too, where only the status counts.
fail() {
  printf '%s: %s\n' "$case" "$*" >&2
  exit 1
}

# The case cannot run on this cluster: `skip REASON`. `run` knows the status.
skip() {
  printf '%s\n' "$*"
  exit 77
}

# What the case is at, for those who watch: the log of a case is shown when it is over.
progress() {
  printf '%s: %s\n' "$case" "$*" >&3
  printf '== %s\n' "$*"
}

expect() {
  local what=$1 wanted=$2 found=$3
  [[ $found == "$wanted" ]] || fail "$what: wanted '$wanted', found '$found'"
}

# eventually WHAT COMMAND...: repeats the command until it succeeds.
eventually() {
  local what=$1 deadline=$((SECONDS + limit))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || fail "$what: not within $limit s"
    sleep 0.3
  done
}

# storage_class NAME [BINDING [FILESYSTEM]]: one of the case's own, for the whole cluster, so with the case in its name. An empty
# FILESYSTEM is none, for directories. The variable parameters is more of its parameters.
storage_class() {
  local filesystem=${3-ext4}
  kubectl apply --filename - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $1, labels: {hostloop-e2e: $case}}
provisioner: $driver
volumeBindingMode: ${2:-WaitForFirstConsumer}
allowVolumeExpansion: true
parameters: {${filesystem:+csi.storage.k8s.io/fstype: $filesystem, }${parameters:-}}
YAML
}

snapshot_class() {
  kubectl apply --filename - >/dev/null <<YAML
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: $1, labels: {hostloop-e2e: $case}}
driver: $driver
deletionPolicy: Delete
YAML
}

group_snapshot_class() {
  kubectl apply --filename - >/dev/null <<YAML
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: $1, labels: {hostloop-e2e: $case}}
driver: $driver
deletionPolicy: Delete
YAML
}

# attributes_class NAME PARAMETERS
attributes_class() {
  kubectl apply --filename - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: $1, labels: {hostloop-e2e: $case}}
driverName: $driver
parameters: {$2}
YAML
}

# claim NAME SIZE CLASS [MODE [SOURCE]]: MODE is Filesystem or Block; SOURCE is KIND/NAME of what it is a copy of.
# The variable access is its access mode, labels its labels, attributes its VolumeAttributesClass.
claim() {
  local source='' of=${5:-}
  case ${of%%/*} in
    VolumeSnapshot) source="dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: ${of#*/}}" ;;
    PersistentVolumeClaim) source="dataSource: {kind: PersistentVolumeClaim, name: ${of#*/}}" ;;
  esac
  k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1, labels: {${labels:-}}}
spec:
  accessModes: [${access:-ReadWriteOnce}]
  ${attributes:+volumeAttributesClassName: $attributes}
  volumeMode: ${4:-Filesystem}
  storageClassName: $3
  resources: {requests: {storage: $2}}
  $source
YAML
}

snapshot() {
  k apply --filename - >/dev/null <<YAML
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: $1}
spec:
  volumeSnapshotClassName: $3
  source: {persistentVolumeClaimName: $2}
YAML
}

# pod NAME VOLUME [COMMAND [NODE]]: VOLUME is `claim/NAME` (at /data), `block/NAME` (at /dev/volume) or the YAML of a
# volume's source; NODE is where it has to run. The variable security is its security context; with apart set, no two such
# pods of the case are on one node.
pod() {
  local mount='volumeMounts: [{name: data, mountPath: /data}]' source=$2
  case $2 in
    claim/*) source="persistentVolumeClaim: {claimName: ${2#*/}}" ;;
    block/*)
      source="persistentVolumeClaim: {claimName: ${2#*/}}"
      mount='volumeDevices: [{name: data, devicePath: /dev/volume}]'
      ;;
  esac
  k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {apart: "${apart:-}"}}
spec:
  terminationGracePeriodSeconds: 0
  ${4:+nodeSelector: {kubernetes.io/hostname: $4\}}
  ${security:+securityContext: $security}
  ${apart:+affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {apart: \"$apart\"\}\}\}]\}\}}
  containers:
    - name: main
      image: $image
      command: [sh, -c, "${3:-sleep 1000000}"]
      $mount
  volumes: [{name: data, $source}]
YAML
}

ready() { k wait --for condition=Ready --timeout "${limit}s" "pod/$1" >/dev/null; }
run_in() {
  local name=$1
  shift
  k exec "$name" -- sh -c "$*"
}
# refused POD REASON COMMAND: the command fails in the pod, for the reason that its own message gives. A kubectl that fails is
# no refusal: the pod's shell says how the command ended, and ends well itself.
# shellcheck disable=SC2016 # the pod's shell expands it
refused() {
  local name=$1 reason=$2 output status
  shift 2
  output=$(k exec "$name" -- sh -c 'sh -c "$1" 2>&1; echo "its status is $?"' sh "$*") ||
    fail "kubectl does not run a command in $name: $output"
  [[ $output =~ 'its status is '([0-9]+)$ ]] || fail "kubectl lost what a command in $name came to: $output"
  status=${BASH_REMATCH[1]}
  ((status != 0)) || fail "$name is not refused: $*"
  [[ $output == *"$reason"* ]] || fail "$name: '$*' fails, but not with '$reason': $output"
}

remove_pod() { k delete pod "$1" --wait --timeout "${limit}s" >/dev/null; }
bound() { k wait --for jsonpath='{.status.phase}'=Bound --timeout "${limit}s" "pvc/$1" >/dev/null; }
snapshot_ready() { k wait --for jsonpath='{.status.readyToUse}'=true --timeout "${limit}s" "volumesnapshot/$1" >/dev/null; }

# has_event OBJECT TEXT: an event of the object has the text in its reason or message.
has_event() {
  k get events --field-selector "involvedObject.name=$1" --output json |
    jq -e --arg text "$2" '[.items[] | .reason + ": " + .message] | any(contains($text))' >/dev/null
}

# The same of a volume, which is in no namespace; its events are in `default`.
has_event_of_volume() {
  kubectl --namespace default get events --field-selector "involvedObject.name=$1" --output json |
    jq -e --arg text "$2" '[.items[] | .reason + ": " + .message] | any(contains($text))' >/dev/null
}

node_of() { k get pod "$1" --output jsonpath='{.spec.nodeName}'; }

# The namespace and name of the driver's pod on a node.
driver_pod_on() {
  kubectl get pods "${node_pods[@]}" --field-selector "spec.nodeName=$1" \
    --output jsonpath='{.items[0].metadata.namespace} {.items[0].metadata.name}{"\n"}'
}

driver_pod_of() { driver_pod_on "$(node_of "$1")"; }

# Runs a command in the driver's container of a node: `on_node NODE COMMAND`.
on_node() {
  local driver_namespace driver_pod
  read -r driver_namespace driver_pod < <(driver_pod_on "$1")
  kubectl --namespace "$driver_namespace" exec "$driver_pod" --container hostloop -- sh -c "$2"
}

# The nodes that the driver is registered on.
driver_nodes() {
  kubectl get csinodes --output json | jq -r --arg driver "$driver" \
    '.items[] | select(any(.spec.drivers[]?; .name == $driver)) | .metadata.name'
}

# The id of the volume of a claim.
volume_of() {
  kubectl get pv "$(k get pvc "$1" --output jsonpath='{.spec.volumeName}')" --output jsonpath='{.spec.csi.volumeHandle}'
}

# shellcheck disable=SC2016 # the pod's shell expands it
# A pod's command that writes a line to /data/log as often as it can and syncs it, and stops for good once one fails.
writer_command='i=0; while read -r now _ </proc/uptime && echo $i $now >>/data/log && sync /data/log; do i=$((i + 1)); sleep 0.02; done; touch /data/failed; sleep 1000000'
written() { run_in "$1" 'wc -l </data/log'; }

# goes_on POD: it has written more than a moment ago.
goes_on() {
  local before
  before=$(written "$1")
  more() { (($(written "$1") > before + 20)); }
  eventually "$1 goes on writing" more "$1"
}

# No write of the pod failed, and no line is missing or twice; the last one may be half written at this moment.
# shellcheck disable=SC2016 # the pod's shell expands it
wrote_all() {
  run_in "$1" 'test ! -e /data/failed' || fail "a write of $1 failed"
  run_in "$1" 'sed \$d /data/log | awk "\$1 != NR - 1 {exit 1}"' || fail "lines of the log of $1 are missing"
}

# What a pod that writes all the time noticed: the longest time between two of its lines, in seconds.
longest_pause() {
  # shellcheck disable=SC2016 # the pod's shell expands it
  run_in "$1" 'sed \$d /data/log | awk "NR > 1 && \$2 - last > longest {longest = \$2 - last} {last = \$2} END {print longest + 0}"'
}

# A command that acts on a node's machine: `machine stop NODE`. need_machines [COMMAND]: not everything takes each.
need_machines() {
  [[ -n ${HOSTLOOP_E2E_NODE:-} ]] || skip 'nothing here can stop a node or restart its parts (HOSTLOOP_E2E_NODE)'
  local help
  [[ -n ${1:-} ]] || return 0
  help=$(machine --help)
  [[ $'\n'$help == *$'\n'"  $1 "* ]] || skip "$(basename "$HOSTLOOP_E2E_NODE") has no command $1"
}
machine() { "$HOSTLOOP_E2E_NODE" "$@"; }

# The case needs controllers that move volumes.
need_mover() {
  local roles
  roles=$(kubectl get clusterroles --output name)
  [[ $'\n'$roles$'\n' == *-mover$'\n'* ]] || skip 'the chart was installed without move.enabled'
}

# The case needs a pool of this name on the nodes.
need_pool() {
  local has
  has=$(kubectl get daemonsets --all-namespaces --selector app.kubernetes.io/name=hostloop --output json |
    jq --arg flag "--pool=$1=" 'any(.items[].spec.template.spec.containers[].args[]?; startswith($flag))')
  [[ $has == true ]] || skip "the driver has no pool $1, for which tests/e2e/cluster gives its nodes a disk"
}

node_is_ready() { kubectl wait --for condition=Ready --timeout 1s "node/$1"; }

# The release of helm that installed the driver, and its namespace.
release() {
  kubectl get daemonsets --all-namespaces --selector app.kubernetes.io/name=hostloop --output jsonpath='{.items[0].metadata.labels.app\.kubernetes\.io/instance} {.items[0].metadata.namespace}{"\n"}'
}

# Changes values of the installed chart and waits until all pods are new: `upgrade ARGUMENT-OF-HELM...`.
upgrade() {
  local name driver_namespace
  read -r name driver_namespace < <(release)
  helm upgrade "$name" "$chart" --namespace "$driver_namespace" --reuse-values --wait --timeout 3m "$@" >/dev/null
}

# Uninstalls the chart, and remembers what `install_again` needs: it is called at the end of the case as well.
uninstall() {
  read -r release_name release_namespace < <(release)
  release_values=$(mktemp)
  helm get values "$release_name" --namespace "$release_namespace" --output yaml >"$release_values"
  trap install_again EXIT
  helm uninstall "$release_name" --namespace "$release_namespace" --wait --timeout 2m >/dev/null
}
install_again() {
  trap - EXIT
  helm upgrade --install "$release_name" "$chart" --namespace "$release_namespace" --wait --timeout 3m --values "$release_values" >/dev/null
  rm -f "$release_values"
}
