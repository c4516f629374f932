# The node image of kind, for machines that cannot pull it: a Debian with the files of kind's own base image, containerd,
# runc and CNI plug-ins of Debian, the Kubernetes of go/kubernetes, and the images of its control plane, loaded as kind's
# build of a node image does. Kept in the cache as the archive of a root directory.
# shellcheck shell=bash disable=SC2016,SC2154 # names of the scripts that source this

# What kind's base image installs, and containerd with what it runs, which kind compiles.
node_packages=systemd,systemd-sysv,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,libseccomp2,pigz
node_packages+=,e2fsprogs,bash,ca-certificates,curl,jq,procps,containerd,runc,containernetworking-plugins

# What kube-proxy and the network's pod need in their images.
network_packages=iptables,nftables,conntrack,iproute2,kmod

kind_source() { module_source kind sigs.k8s.io/kind; }

# The value of a string constant of kind's build of node images: kind_constant FILE NAME.
kind_constant() {
  local value
  value=$(sed -n "s/^const $2 = \"\(.*\)\"$/\1/p" "$(kind_source)/pkg/build/nodeimage/$1")
  [[ -n $value ]] || die "the source of kind has no constant $2 in $1"
  printf '%s' "$value"
}

# A manifest that kind's build writes into the image: kind_manifest FILE NAME. It is a raw string, in which names of
# images are constants of the same file.
kind_manifest() {
  local file=$1 constant images=() manifest
  manifest=$(awk -v "start=const $2 = \`" '
    index($0, start) == 1 { inside = 1; next }
    inside && $0 == "`" { exit }
    inside { print }' "$(kind_source)/pkg/build/nodeimage/$file")
  [[ -n $manifest ]] || die "the source of kind has no manifest $2 in $file"
  mapfile -t images < <(sed -n 's/.*` + \([a-zA-Z]*\) + `.*/\1/p' <<<"$manifest" | sort -u)
  for constant in "${images[@]}"; do
    manifest=${manifest//"\` + $constant + \`"/$(kind_constant "$file" "$constant")}
  done
  printf '%s\n' "$manifest"
}

# Prints the archive of an image with programs in /usr/local/bin, the first of which it starts:
# tools_image IMAGE DEBIAN PROGRAM...; DEBIAN is an archive of a root, or nothing. PROGRAM may be FILE=NAME.
tools_image() {
  local image=$1 debian=$2 archive root program first='' inputs=()
  shift 2
  for program in "$@"; do inputs+=("${program%%=*}"); done
  archive=$(archive_of "$image" ${debian:+"$debian"} "${inputs[@]}")
  if [[ ! -e $archive ]]; then
    say "making $image"
    root=$(mktemp -d "$cache/root.XXXXXX")
    [[ -z $debian ]] || tar --extract --numeric-owner --directory "$root" --exclude './dev/*' --file "$debian"
    mkdir -p "$root/usr/local/bin"
    for program in "$@"; do
      [[ $program == *=* ]] || program+="=$(basename "$program")"
      cp "${program%%=*}" "$root/usr/local/bin/${program#*=}"
      first=${first:-/usr/local/bin/${program#*=}}
    done
    chmod 755 "$root" "$root"/usr/local/bin/*
    image_of_root "$image" "$root" "$first" "$archive"
    rm -rf "$root" "$root.Dockerfile"
  fi
  printf '%s\n' "$archive"
}

# Prints the archives of all images that a node has before anything is pulled.
node_images() {
  local kubernetes programs network image version
  kubernetes=$(module_directory kubernetes)
  programs=$(module_directory kind)
  network=$(debian_root debian-for-network "$network_packages")
  version=$(module_version kubernetes k8s.io/kubernetes)
  while read -r image; do
    case $image in
      */kube-proxy:*) tools_image "$image" "$network" "$kubernetes/kube-proxy" ;;
      */kube-*) tools_image "$image" '' "$kubernetes/$(basename "${image%:*}")" ;;
      */coredns:*) tools_image "$image" '' "$programs/coredns" ;;
      */etcd:*) tools_image "$image" '' "$programs/server=etcd" ;;
      # containerd's configuration names another.
      */pause:*) ;;
      *) die "kubeadm wants $image, which nothing here makes" ;;
    esac
  done < <("$kubernetes/kubeadm" config images list --kubernetes-version "$version")
  program_image "$(node_pause_image)" "$(module_directory helpers)/pause"
  tools_image "$(kind_constant const_cni.go kindnetdImage)" "$network" lib/kind-network "$kubernetes/kubectl"
  tools_image "$(kind_constant const_storage.go storageProvisionerImage)" '' "$programs/local-path-provisioner"
  shell_image "$(kind_constant const_storage.go storageHelperImage)"
}

node_pause_image() {
  sed -n 's/^ *sandbox_image = "\(.*\)"$/\1/p' "$(kind_source)/images/base/files/etc/containerd/config.toml"
}

# What the image is made of, apart from the images in it: a change of any of these makes another one.
node_image_inputs() {
  local kubernetes source
  kubernetes=$(module_directory kubernetes)
  source=$(kind_source)
  printf '%s\n' lib/kind-image.sh lib/kind-network "$kubernetes"/{kubeadm,kubelet,kubectl} "$(module_directory kind)/crictl" \
    "$node_packages" "$source"
}

# Prints the archive of the root of a node.
node_root() {
  local archive images inputs root debian
  images=$(node_images)
  inputs=$(node_image_inputs)
  mapfile -t images <<<"$images"
  mapfile -t inputs <<<"$inputs"
  archive=$(archive_of kind-node "${inputs[@]}" "${images[@]}")
  if [[ ! -e $archive ]]; then
    debian=$(debian_root debian-for-node "$node_packages")
    say 'making the node image of kind'
    # The image of yesterday's programs is of no use.
    rm -f "$cache/images"/kind-node-*.tar
    root=$(mktemp -d "$cache/root.XXXXXX")
    tar --extract --numeric-owner --xattrs --directory "$root" --exclude './dev/*' --file "$debian"
    node_files "$root"
    load_into_node "$root" "${images[@]}"
    tar --create --numeric-owner --xattrs --directory "$root" --file "$archive.part" .
    rm -rf --one-file-system "$root"
    mv "$archive.part" "$archive"
  fi
  printf '%s\n' "$archive"
}

# The steps of kind's base image and of its build of a node image.
node_files() {
  local root=$1 source kubernetes program
  source=$(kind_source)
  kubernetes=$(module_directory kubernetes)
  cp -r --no-preserve=mode,ownership "$source/images/base/files/." "$root/"
  chmod 755 "$root"/usr/local/bin/* "$root/kind" "$root/kind/bin" "$root"/kind/bin/*
  rm -f "$root"/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service \
    "$root"/lib/systemd/system/{multi-user,local-fs,basic}.target.wants/* "$root"/etc/systemd/system/*.wants/* \
    "$root"/lib/systemd/system/sockets.target.wants/*{udev,initctl}*
  echo 'ReadKMsg=no' >>"$root/etc/systemd/journald.conf"
  # Debian's package brings a unit and a configuration of its own; kind's have been laid over them, and name /usr/local/bin.
  for program in containerd ctr containerd-shim-runc-v2; do ln -s "/usr/bin/$program" "$root/usr/local/bin/$program"; done
  ln -s /usr/sbin/runc "$root/usr/local/sbin/runc"
  mkdir -p "$root"/{opt/cni/bin,etc/kubernetes/manifests,kind/manifests}
  for program in host-local loopback ptp portmap; do cp "$root/usr/lib/cni/$program" "$root/opt/cni/bin/"; done
  chroot "$root" systemctl enable --quiet kubelet.service containerd.service undo-mount-hacks.service
  chroot "$root" systemctl mask --quiet systemd-binfmt.service
  chroot "$root" ctr oci spec |
    jq '.hooks.createContainer += [{path: "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
      >"$root/etc/containerd/cri-base.json"
  cp "$kubernetes"/{kubeadm,kubelet,kubectl} "$root/usr/bin/"
  cp "$(module_directory kind)/crictl" "$root/usr/local/bin/"
  module_version kubernetes k8s.io/kubernetes >"$root/kind/version"
  kind_manifest const_cni.go defaultCNIManifest >"$root/kind/manifests/default-cni.yaml"
  kind_manifest const_storage.go defaultStorageManifest >"$root/kind/manifests/default-storage.yaml"
}

# Loads images with the node's own containerd, which unpacks nothing: that is for the node to do.
load_into_node() {
  local root=$1 archive
  shift
  mkdir "$root/images"
  cat >"$root/run-in-node" <<'SH'
#!/bin/bash
set -euo pipefail
containerd >/run/containerd.log 2>&1 &
for try in {1..100}; do
  ! ctr version >/dev/null 2>&1 || break
  sleep 0.1
done
for archive in /images/*; do
  ctr --namespace k8s.io images import --all-platforms --no-unpack --digests "$archive" >/dev/null || {
    tail -n 20 /run/containerd.log >&2
    exit 1
  }
done
kill %1
wait || true
SH
  chmod 755 "$root/run-in-node"
  for archive in "$@"; do ln "$archive" "$root/images/" 2>/dev/null || cp "$archive" "$root/images/"; done
  # shellcheck disable=SC2016 # the inner shell expands it
  unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
    mount -t proc proc "$1/proc"
    mount -t tmpfs tmpfs "$1/run"
    mount --bind /dev "$1/dev"
    exec chroot "$1" /run-in-node' - "$root"
  rm "$root/run-in-node"
  rm -r "$root/images"
}
