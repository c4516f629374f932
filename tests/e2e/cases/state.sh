# What the cases about state files share: `hostloop state` runs on a node without its driver, as docs/troubleshooting.md says.
# shellcheck shell=bash disable=SC2154 # lib.sh has the names

# driver_away NODE: the driver leaves the node until driver_back. Its pod may be one that does not start.
driver_away() {
  away=$1
  local driver_pod
  read -r driver_namespace driver_pod < <(driver_pod_on "$away")
  spec=$(kubectl --namespace "$driver_namespace" get pod "$driver_pod" --output json)
  daemonset=$(jq -r '.metadata.ownerReferences[0].name' <<<"$spec")
  local affinity="{\"nodeAffinity\": {\"requiredDuringSchedulingIgnoredDuringExecution\": {\"nodeSelectorTerms\": [{\"matchExpressions\": [{\"key\": \"kubernetes.io/hostname\", \"operator\": \"NotIn\", \"values\": [\"$away\"]}]}]}}}"
  kubectl --namespace "$driver_namespace" patch daemonset "$daemonset" --patch "{\"spec\": {\"template\": {\"spec\": {\"affinity\": $affinity}}}}" >/dev/null
  # shellcheck disable=SC2317 # eventually calls it
  has_gone() { [[ -z $(kubectl get pods "${node_pods[@]}" --field-selector "spec.nodeName=$away" --output name) ]]; }
  eventually "the driver leaves $away" has_gone
}

driver_back() {
  kubectl --namespace "$driver_namespace" patch daemonset "$daemonset" --type json --patch '[{"op": "remove", "path": "/spec/template/spec/affinity"}]' >/dev/null
}

driver_is_ready() {
  local namespace_ pod_
  read -r namespace_ pod_ < <(driver_pod_on "$1")
  kubectl --namespace "$namespace_" wait --for condition=Ready --timeout 1s "pod/$pod_"
}

# driver_says NODE WORDS: the log of the driver has them.
driver_says() {
  local namespace_ pod_ text
  read -r namespace_ pod_ < <(driver_pod_on "$1")
  text=$(kubectl --namespace "$namespace_" logs "$pod_" --container hostloop --tail 50)
  [[ $text == *"$2"* ]]
}

# state_command ARGUMENT...: runs `hostloop state` with the driver's flags on the node that it is away from, and prints what the
# command says. `state_ended` says how it ended.
state_command() {
  local arguments
  arguments=$(jq --null-input --compact-output '$ARGS.positional' --args -- "$@")
  k delete pod state --ignore-not-found --wait >/dev/null
  jq --arg node "$away" --argjson arguments "$arguments" '
    (.spec.containers[] | select(.name == "hostloop")) as $driver |
    [$driver.args[] | select(test("^--(data-dir|pool|driver-name)="))] as $flags |
    {apiVersion: "v1", kind: "Pod", metadata: {name: "state"}, spec: {
      nodeName: $node, restartPolicy: "Never", tolerations: [{operator: "Exists"}],
      volumes: [.spec.volumes[] | select(.hostPath)],
      containers: [{name: "main", image: $driver.image, imagePullPolicy: $driver.imagePullPolicy, securityContext: {privileged: true},
        args: (["state"] + $arguments + ["--node-id=" + $node] + $flags),
        volumeMounts: [.spec.volumes as $volumes | $driver.volumeMounts[] | select(.name as $name | any($volumes[]; .name == $name and .hostPath))]}]}}
  ' <<<"$spec" | k apply --filename - >/dev/null
  # shellcheck disable=SC2317 # eventually calls it
  ended() { [[ $(state_ended) == @(Succeeded|Failed) ]]; }
  eventually 'the command ends' ended
  k logs state
}
state_ended() { k get pod state --output jsonpath='{.status.phase}'; }
