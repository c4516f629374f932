# What the cases about moves share: a StatefulSet that writes numbered records, a witness of them, and one move from its wish to
# the end of everything that it leaves. A case of moves sources this.
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

# move_status CLAIM FIELD: such as .phase.
move_status() {
  k get pvc "$1" --output json | jq -r '.metadata.annotations["hostloop.csi.dev/move-status"] // "{}" | fromjson | '"$2"' // ""'
}
is_in() { [[ $(move_status "$1" .phase) == "$2" ]]; }
move_to() { k annotate pvc "$1" --overwrite "hostloop.csi.dev/move-to=$2" hostloop.csi.dev/move-now=true >/dev/null; }
uid_of() { k get pvc "$1" --output jsonpath='{.metadata.uid}'; }
volumes_of_case() {
  kubectl get pv --output json | jq -r --arg namespace "$namespace" \
    '[.items[] | select(.spec.claimRef.namespace == $namespace)] | length'
}
one_volume() { [[ $(volumes_of_case) == 1 ]]; }

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

# moves_there NODE: the volume of writer-0 moves to the node, its pod goes on there, and nothing of the old volume is left.
moves_there() {
  local claim=data-writer-0 from uid before after pause volume found
  calm
  from=$(node_of writer-0) uid=$(uid_of "$claim") volume=$(volume_of "$claim") before=$(records writer-0)
  disturbed
  eventually 'the move is asked for' move_to "$claim" "$1"
  limit=${patience:-300} eventually "the pod runs on $1" runs_on "$1"
  limit=120 eventually 'the move is done' is_in "$claim" Done
  limit=120 eventually 'the old volume is deleted' one_volume
  calm
  [[ $(uid_of "$claim") != "$uid" ]] || fail 'the claim was not made again'
  [[ $(volume_of "$claim") != "$volume" ]] || fail 'the claim has the volume that it had'
  expect 'a label of the claim' yes "$(k get pvc "$claim" --output jsonpath='{.metadata.labels.kept}')"
  goes_on_writing writer-0
  found=$(whole writer-0)
  read -r after pause <<<"$found"
  progress "from $from to $1: $((after - before)) records more; the longest pause so far was $pause hundredths of a second"
  disturbed
}
