# The cluster's certificate authority, one certificate for each part, and a kubeconfig for each client.
# shellcheck shell=bash

pki=$state/pki

make_authority() {
  mkdir -p "$pki"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$cluster" \
    -keyout "$pki/ca.key" -out "$pki/ca.crt" 2>/dev/null
  # In the one form of such a key that the API server takes.
  openssl ecparam -genkey -name prime256v1 -noout -out "$pki/service-accounts.key"
}

# make_certificate FILE SUBJECT [ALTERNATIVE NAMES]
make_certificate() {
  local file=$pki/$1 subject=$2 names=${3:-}
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$subject" \
    -keyout "$file.key" -out "$file.csr" 2>/dev/null
  {
    printf 'extendedKeyUsage = clientAuth, serverAuth\n'
    [[ -z $names ]] || printf 'subjectAltName = %s\n' "$names"
  } >"$file.ext"
  openssl x509 -req -in "$file.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 30 \
    -extfile "$file.ext" -out "$file.crt" 2>/dev/null
  rm "$file.csr" "$file.ext"
}

# make_kubeconfig FILE: for the certificate of the same name. What it needs is inside, so that it can be copied.
make_kubeconfig() {
  cat >"$pki/$1.kubeconfig" <<YAML
apiVersion: v1
kind: Config
current-context: $cluster
contexts: [{name: $cluster, context: {cluster: $cluster, user: $1}}]
clusters:
  - name: $cluster
    cluster:
      server: https://$control_plane_ip:6443
      certificate-authority-data: $(base64 -w0 "$pki/ca.crt")
users:
  - name: $1
    user:
      client-certificate-data: $(base64 -w0 "$pki/$1.crt")
      client-key-data: $(base64 -w0 "$pki/$1.key")
YAML
}

make_client() {
  make_certificate "$1" "$2" "${3:-}"
  make_kubeconfig "$1"
}

make_certificates() {
  local node
  make_authority
  make_certificate apiserver /CN=kube-apiserver \
    "IP:$service_ip,IP:$control_plane_ip,IP:127.0.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
  make_client admin /O=system:masters/CN=admin
  make_client controller-manager /CN=system:kube-controller-manager
  make_client scheduler /CN=system:kube-scheduler
  make_client proxy /CN=system:kube-proxy
  for node in "${nodes[@]}"; do
    make_client "$node" "/O=system:nodes/CN=system:node:$node" "IP:$(node_ip "$node"),DNS:$node"
  done
}
