# What helps to understand a failure when its output is all that there is. Sourced; talks to the cluster of KUBECONFIG.
# shellcheck shell=bash

driver_objects=(--all-namespaces --selector app.kubernetes.io/name=hostloop)

# Prints a heading, then what the command prints; that it fails is part of the answer.
show() {
  printf -- '--- %s\n' "$1"
  shift
  "$@" 2>&1 || true
}

driver_pods_not_ready() {
  kubectl get pods "${driver_objects[@]}" --output json 2>/dev/null | jq -r '.items[] |
    select(any(.status.conditions[]?; .type == "Ready" and .status == "True") | not) | "\(.metadata.namespace) \(.metadata.name)"'
}

# The driver and its sidecars: their pods, what happened to them, and the end of what each container has said.
explain_driver() {
  local pods namespace pod containers container
  show 'nodes' kubectl get nodes,csinodes --output wide
  show 'the driver' kubectl get pods "${driver_objects[@]}" --output wide
  while read -r namespace pod; do
    [[ -z $pod ]] || show "$pod, which is not ready" kubectl --namespace "$namespace" describe pod "$pod"
  done < <(driver_pods_not_ready)
  namespace=$(kubectl get pods "${driver_objects[@]}" --output jsonpath='{.items[0].metadata.namespace}' 2>/dev/null) || true
  show 'events of the driver' kubectl --namespace "${namespace:-hostloop}" get events --sort-by .lastTimestamp
  pods=$(kubectl get pods "${driver_objects[@]}" --output \
    jsonpath='{range .items[*]}{.metadata.namespace} {.metadata.name} {.spec.initContainers[*].name} {.spec.containers[*].name}{"\n"}{end}' 2>/dev/null) || true
  while read -r namespace pod containers; do
    for container in $containers; do
      show "log of $pod $container" kubectl --namespace "$namespace" logs --tail 40 "$pod" --container "$container"
      # Of a container that ended and was started again, the end is what counts.
      kubectl --namespace "$namespace" logs --previous --tail 20 "$pod" --container "$container" 2>/dev/null |
        sed '1i --- the same, before it was restarted' || true
    done
  done <<<"$pods"
}
