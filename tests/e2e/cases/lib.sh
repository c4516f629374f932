# What the cases share. A case is a script of its own: it is given its name and an empty namespace, and fails by
# returning something else than 0.
# shellcheck shell=bash disable=SC2034 # the names are for the cases

: "${case:?}" "${namespace:?}"
driver=${HOSTLOOP_E2E_DRIVER:-hostloop.csi.dev}
image=${HOSTLOOP_E2E_IMAGE:-localhost/shell:e2e}
# shellcheck disable=SC2054 # one selector
# The driver's pods on the nodes.
node_pods=(--all-namespaces --selector app.kubernetes.io/name=hostloop,app.kubernetes.io/component=node)
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

# What the case is at, for those who watch: the log of a case is shown only when it fails.
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

# storage_class NAME [BINDING [FILESYSTEM]]: one of the case's own, for the whole cluster, so with the case in its name.
storage_class() {
  kubectl apply --filename - >/dev/null <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $1, labels: {hostloop-e2e: $case}}
provisioner: $driver
volumeBindingMode: ${2:-WaitForFirstConsumer}
allowVolumeExpansion: true
parameters: {csi.storage.k8s.io/fstype: ${3:-ext4}}
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

# claim NAME SIZE CLASS [MODE [SOURCE]]: MODE is Filesystem or Block; SOURCE is KIND/NAME of what it is a copy of.
claim() {
  local source='' of=${5:-}
  case ${of%%/*} in
    VolumeSnapshot) source="dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: ${of#*/}}" ;;
    PersistentVolumeClaim) source="dataSource: {kind: PersistentVolumeClaim, name: ${of#*/}}" ;;
  esac
  k apply --filename - >/dev/null <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec:
  accessModes: [ReadWriteOnce]
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
# volume's source; NODE is where it has to run.
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
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 0
  ${4:+nodeSelector: {kubernetes.io/hostname: $4\}}
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
remove_pod() { k delete pod "$1" --wait --timeout "${limit}s" >/dev/null; }
bound() { k wait --for jsonpath='{.status.phase}'=Bound --timeout "${limit}s" "pvc/$1" >/dev/null; }
snapshot_ready() { k wait --for jsonpath='{.status.readyToUse}'=true --timeout "${limit}s" "volumesnapshot/$1" >/dev/null; }

# has_event OBJECT TEXT: an event of the object has the text in its reason or message.
has_event() {
  k get events --field-selector "involvedObject.name=$1" --output json |
    jq -e --arg text "$2" '[.items[] | .reason + ": " + .message] | any(contains($text))' >/dev/null
}

# The name and namespace of the driver's pod on the node of a pod.
driver_pod_of() {
  local node
  node=$(k get pod "$1" --output jsonpath='{.spec.nodeName}')
  kubectl get pods "${node_pods[@]}" --field-selector "spec.nodeName=$node" \
    --output jsonpath='{.items[0].metadata.namespace} {.items[0].metadata.name}{"\n"}'
}
