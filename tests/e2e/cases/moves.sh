# What the cases about moves share: a StatefulSet that writes numbered records, a witness of them, and one move from its
# VolumeMove to the end of everything that it leaves. A case of moves sources this.
# shellcheck shell=bash disable=SC2034,SC2154,SC2016 # lib.sh has the names; the pods' shells expand what is between quotes

# A record is a line `NUMBER TIME CHECKSUM`, the time in hundredths of a second since the machine was started, which all nodes of
# a cluster on one machine share. The checksum is of the pod's name too: the volume of another claim is noticed. A raw device has a
# record in each sector of its first 64 MiB.
record_words='
  seed=$((0x$(printf %s "$HOSTNAME" | sha256sum | cut -c1-8)))
  if [ -b /dev/volume ]; then
    stored() { dd if=/dev/volume bs=1M count=64 2>/dev/null | tr -d "\000" | sed "s/ *\$//"; }
    store() { printf "%-511s\n" "$2" | dd of=/dev/volume bs=512 count=1 seek=$(($1 - 1)) oflag=direct conv=notrunc,fsync 2>/dev/null; }
  else
    stored() { cat /data/log 2>/dev/null; }
    store() { echo "$2" >>/data/log && sync /data/log; }
  fi'

# The pod goes on where the volume ends, and tells the witness of each record that is on it: what only the volume knew of would
# not be missed. After a write that fails it stops for good.
record_writer=$record_words'
  last=$(stored | tail -n 1 | cut -d" " -f1)
  i=$((${last:-0} + 1))
  trap exit TERM
  trap "" PIPE
  exec 3>/dev/null
  if [ -n "$WITNESS" ]; then
    mkfifo /tmp/told
    nc "$WITNESS" 9000 </tmp/told >/dev/null &
    exec 3>/tmp/told
  fi
  while read -r now _ </proc/uptime; do
    now=${now%.*}${now#*.}
    record="$i $now $(((i * 2654435761 + now * 40503 + seed) & 0xffffffff))"
    store "$i" "$record" || break
    echo "$HOSTNAME $record ." >&3
    i=$((i + 1))
    [ -z "$EVERY" ] || sleep "$EVERY"
  done
  sleep 1000000'

# witness [NODE]: the pod that is told, with a file for each that tells. It comes before the writer.
# shellcheck disable=SC2120 # it may be anywhere
witness() {
  pod witness 'emptyDir: {}' "nc -ll -p 9000 -e sh -c 'cat >\$(mktemp /data/XXXXXX)'" "${1:-}"
  ready witness
  witnessed=true
}

# writers SIZE [MODE]: a StatefulSet `writer` of $replicas pods (1), whose claims have this size and mode. They wait $every seconds
# between two records, and end $linger seconds after they were told to.
writers() {
  local mount='volumeMounts: [{name: data, mountPath: /data}]' told
  [[ ${2:-} != Block ]] || mount='volumeDevices: [{name: data, devicePath: /dev/volume}]'
  told=$(k get pod witness --ignore-not-found --output jsonpath='{.status.podIP}')
  k apply --filename - >/dev/null <<YAML
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: writer}
spec:
  serviceName: writer
  replicas: ${replicas:-1}
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: writer}}
  template:
    metadata: {labels: {app: writer}}
    spec:
      terminationGracePeriodSeconds: $((${linger:-0} + 5))
      containers:
        - name: main
          image: $image
          command: [sh, -c, $(jq -n --arg text "$record_writer" '$text')]
          ${linger:+lifecycle: {preStop: {exec: {command: [sleep, \"$linger\"]\}\}\}}
          env: [{name: WITNESS, value: "$told"}, {name: EVERY, value: "${every:-}"}]
          $mount
  volumeClaimTemplates:
    - metadata: {name: data, labels: {kept: "yes"}}
      spec:
        accessModes: [ReadWriteOnce]
        volumeMode: ${2:-Filesystem}
        storageClassName: $class
        resources: {requests: {storage: $1}}
YAML
}

# The nodes of the writers that are ready, each with their number.
nodes_of_writers() {
  k get pods --selector app=writer --output json | jq -r '[.items[] |
    select(.metadata.deletionTimestamp == null) | select(any(.status.conditions[]?; .type == "Ready" and .status == "True")) |
    .spec.nodeName] | group_by(.)[] | "\(.[0]) \(length)"'
}
runs_on() { [[ $(nodes_of_writers) == "$1 ${replicas:-1}" ]]; }
run() { [[ $(nodes_of_writers) == *" ${replicas:-1}" ]]; }

# whole POD: every record is on its volume once, in order, with its checksum, and so are those that the witness knows. Prints the
# number of records, and the longest time between two in hundredths of a second.
whole() {
  local told='' found verdict lost
  # In this order: more may come meanwhile.
  [[ -z ${witnessed:-} ]] || told=$(run_in witness 'cat /data/*' | sed -n "s/^$1 \(.*\) \.\$/\1/p")
  found=$(run_in "$1" "$record_words; stored")
  verdict=$(awk -v seed="$((16#$(printf %s "$1" | sha256sum | cut -c1-8)))" '
    $1 != NR { print "record " NR " is " $1; wrong = 1; exit }
    (NR * 2654435761 + $2 * 40503 + seed) % 4294967296 != $3 { print "record " NR " has a wrong checksum"; wrong = 1; exit }
    NR > 1 && $2 - last > most { most = $2 - last }
    { last = $2 }
    END { if (!wrong) print NR, most + 0 }' <<<"$found")
  [[ $verdict != record* ]] || fail "$1: $verdict"
  if [[ -n ${witnessed:-} ]]; then
    lost=$(comm -23 <(sort <<<"$told") <(sort <<<"$found") | sed -n 1p)
    [[ -z $lost ]] || fail "$1: record '$lost' was on the volume, and is lost"
    # Or nothing was looked at.
    (($(wc -l <<<"$told") * 10 > ${verdict% *} * 9)) || fail "the witness knows $(wc -l <<<"$told") of ${verdict% *} records of $1"
  fi
  printf '%s\n' "$verdict"
}
records() { run_in "$1" "$record_words; stored | wc -l"; }
# goes_on_writing POD: it has written more than a moment ago.
goes_on_writing() {
  local before
  before=$(records "$1")
  # shellcheck disable=SC2317 # eventually calls it
  more() { (($(records "$1") > before)); }
  eventually "$1 goes on writing" more "$1"
}

# ask_to_move CLAIM NODE [WHEN]: creates a VolumeMove with the name of the claim, Now unless WHEN says PodsLeave; further fields may
# follow WHEN after a comma. It deletes an earlier one of that name, which has ended, and would say nothing of this one.
ask_to_move() {
  eventually 'the earlier VolumeMove is deleted' k delete volumemove "$1" --ignore-not-found
  eventually 'the move is asked for' apply_move "$@"
}
# shellcheck disable=SC2317 # eventually calls it
apply_move() {
  k apply --filename - <<YAML
apiVersion: hostloop.csi.dev/v1alpha1
kind: VolumeMove
metadata: {name: $1}
spec: {claimName: $1, target: {node: $2}, when: ${3:-Now}}
YAML
}
# is_in CLAIM PHASE: the VolumeMove of the claim is in the phase, or comes to it within a second.
is_in() { k wait --for jsonpath='{.status.phase}'="$2" --timeout 1s "volumemove/$1"; }

# The PersistentVolume of a claim, which has the name of the VolumeReplica of its copy.
name_of_volume() { k get pvc "$1" --output jsonpath='{.spec.volumeName}'; }
# replicas CLAIM: the names of its VolumeReplicas, the earliest first. There are two if an earlier node has data that nobody has
# deleted yet, and the volume has another copy by now.
replicas() {
  kubectl get volumereplicas --output json | jq -r --arg namespace "$namespace" --arg claim "$1" \
    '[.items[] | select(.spec.claim.namespace == $namespace and .spec.claim.name == $claim)]
      | sort_by(.spec.generation)[].metadata.name'
}
replica_of() { replicas "$1" | sed -n 1p; }
# copy CLAIM FIELD: of the first of them, such as .status.phase; nothing if there is none.
copy() {
  local replica
  replica=$(replica_of "$1")
  [[ -z $replica ]] || kubectl get volumereplica "$replica" --ignore-not-found --output json | jq -r "$2"' // ""'
}
copy_is_in() { kubectl wait --for jsonpath='{.status.phase}'="$2" --timeout 1s "volumereplica/$(replica_of "$1")"; }
# A kubectl that fails does not say that there is none.
has_no_copy() {
  local left
  left=$(replicas "$1") && [[ -z $left ]]
}
# What a move leaves as it is: the uid of the claim, its phase and label, its PersistentVolume with its policy, and the id of the
# volume.
identity() {
  k get pvc "$1" --output jsonpath='{.metadata.uid} {.status.phase} {.metadata.labels.kept} {.spec.volumeName} '
  kubectl get pv "$(name_of_volume "$1")" --output jsonpath='{.spec.persistentVolumeReclaimPolicy} {.spec.csi.volumeHandle}'
}
# The node of the volume of a claim.
node_of_volume() {
  kubectl get pv "$(name_of_volume "$1")" --output jsonpath='{.spec.nodeAffinity.required.nodeSelectorTerms[*].matchExpressions[*].values[*]}'
}

# The name of another node than this one.
another_node() {
  local name
  while read -r name; do
    [[ $name == "$1" ]] || break
  done < <(driver_nodes)
  printf '%s' "$name"
}

# Volumes and snapshots on the disks of all nodes; the cuts that are kept for copies are snapshots.
on_nodes() {
  local name
  for name in $(driver_nodes); do
    on_node "$name" 'find /var/lib/hostloop/volumes /var/lib/hostloop/snapshots -mindepth 1 -maxdepth 1' | sed "s/^/$name: /"
  done | sort
}

# What disturbs a case stops while it looks at things that have to be there: `calm`, and goes on: `disturbed`.
calm() { :; }
disturbed() { :; }

# moves_there NODE: the volume of writer-0 moves to the node, its pod goes on there, and nothing of the volume is left elsewhere.
# The claim, its PersistentVolume and the id of the volume stay.
moves_there() {
  local claim=data-writer-0 from identity before after pause found
  calm
  from=$(node_of writer-0) identity=$(identity "$claim") before=$(records writer-0)
  disturbed
  ask_to_move "$claim" "$1"
  limit=${patience:-300} eventually "the pod runs on $1" runs_on "$1"
  limit=120 eventually 'the move is done' is_in "$claim" Done
  limit=120 eventually 'nothing is left of the copy' has_no_copy "$claim"
  calm
  expect 'what stays of the claim and its volume' "$identity" "$(identity "$claim")"
  expect 'the node of the volume' "$1" "$(node_of_volume "$claim")"
  goes_on_writing writer-0
  found=$(whole writer-0)
  read -r after pause <<<"$found"
  progress "from $from to $1: $((after - before)) records more; the longest pause so far was $pause hundredths of a second"
  disturbed
}
