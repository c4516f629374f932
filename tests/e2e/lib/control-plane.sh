# etcd, the API server and the controllers, as processes in the control plane's network namespace.
# shellcheck shell=bash

start_in_control_plane() {
  local name=$1
  shift
  start "$name" nsenter --net="/run/netns/$(namespace_of control-plane)" "$@"
}

# Starts a program again whenever it ends, as kubelet does with a static pod: the scheduler ends by itself if the API server was
# killed at a bad moment ("cache is corrupted").
keep_in_control_plane() {
  local name=$1
  shift
  # shellcheck disable=SC2016
  start_in_control_plane "$name" bash -c 'while true; do "$@"; echo "$0 ended with code $?" >&2; sleep 1; done' "$name" "$@"
}

start_etcd() {
  start_in_control_plane etcd etcd --name control-plane --data-dir "$state/etcd" --unsafe-no-fsync \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380
}

# The policies are for the storage suite of Kubernetes; see testdriver/policies.yaml.
start_apiserver() {
  start_in_control_plane apiserver "$kubernetes/kube-apiserver" \
    --etcd-servers http://127.0.0.1:2379 \
    --advertise-address "$control_plane_ip" --secure-port 6443 --service-cluster-ip-range "$service_cidr" \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged \
    --client-ca-file "$pki/ca.crt" --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" \
    --kubelet-certificate-authority "$pki/ca.crt" --kubelet-preferred-address-types InternalIP \
    --kubelet-client-certificate "$pki/admin.crt" --kubelet-client-key "$pki/admin.key" \
    --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$pki/service-accounts.key" \
    --service-account-signing-key-file "$pki/service-accounts.key" --profiling=false \
    --feature-gates "MutatingAdmissionPolicy=true${HOSTLOOP_E2E_GATES:+,$HOSTLOOP_E2E_GATES}" --runtime-config admissionregistration.k8s.io/v1beta1=true
}

# Nodes that are silent for 20 s are gone, so that a test of that need not wait long. With its usual 20 requests a second
# the controller manager takes seconds to bind twenty claims, in which a kubelet may find one that is bound only half: it
# tries again after 15 s.
start_controllers() {
  keep_in_control_plane controller-manager "$kubernetes/kube-controller-manager" \
    --kubeconfig "$pki/controller-manager.kubeconfig" --leader-elect=false --use-service-account-credentials \
    --service-account-private-key-file "$pki/service-accounts.key" --root-ca-file "$pki/ca.crt" \
    --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key" \
    --node-monitor-grace-period 20s --node-monitor-period 2s --profiling=false \
    --kube-api-qps 100 --kube-api-burst 200
  keep_in_control_plane scheduler "$kubernetes/kube-scheduler" \
    --kubeconfig "$pki/scheduler.kubeconfig" --leader-elect=false --profiling=false
}

# Kills the API server, and starts it again so many seconds later; what it knows is in etcd.
restart_apiserver() {
  local pid
  pid=$(cat "$state/pid/apiserver")
  kill -KILL "$pid"
  wait_for 20 'the API server ends' process_is_gone "$pid"
  sleep "$1"
  start_apiserver
  wait_for 60 'the API server is ready' apiserver_is_ready
}

apiserver_is_ready() {
  in_network control-plane "$kubernetes/kubectl" --kubeconfig "$pki/admin.kubeconfig" get --raw /readyz
}

# Lets kubelets read what they need by a role as well. The node authorizer hears of a pod a moment after the scheduler has
# placed it, on a machine that is busy after the pod's kubelet, which is refused and tries again after 15 s.
let_nodes_read() {
  in_network control-plane "$kubernetes/kubectl" --kubeconfig "$pki/admin.kubeconfig" \
    create clusterrolebinding nodes --clusterrole system:node --group system:nodes >/dev/null
}

# What a cluster with snapshots has, whatever drivers it has: the objects and the controller that binds them. The
# controller stops when it finds no objects, so they come first.
install_snapshots() {
  local kubectl=("$kubernetes/kubectl" --kubeconfig "$pki/admin.kubeconfig")
  in_network control-plane "${kubectl[@]}" apply --server-side --kustomize "$snapshotter/crd" >/dev/null
  in_network control-plane "${kubectl[@]}" wait --for condition=established --timeout 30s crd --all >/dev/null
  start_in_control_plane snapshot-controller "$snapshotter/snapshot-controller" \
    --kubeconfig "$pki/admin.kubeconfig" --leader-election=false --kube-api-qps 50 --kube-api-burst 100
}
