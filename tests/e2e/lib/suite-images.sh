# The images that Kubernetes' storage suite asks for by name, made of what is here.
# shellcheck shell=bash

agnhost_image=localhost/agnhost:e2e

# The suite looks at a node from a pod that has the node's root at /rootfs: with nsenter, in the mount namespace of process
# 1 of the machine. That is not the node's where nodes are namespaces, but the root is.
node_shell() {
  cat <<'SH'
#!/bin/sh
case $1 in
  --mount=/rootfs/proc/1/ns/mnt) shift 2 && exec chroot /rootfs "$@" ;;
  *) exec busybox nsenter "$@" ;;
esac
SH
}

# Prints the archive of agnhost: the program of the suite's servers and checks, beside the tools of the shell.
agnhost_archive() {
  local program archive root
  program=$(module_directory conformance)/agnhost
  archive=$(archive_of "$agnhost_image" "$program" /usr/bin/busybox lib/suite-images.sh)
  if [[ ! -e $archive ]]; then
    say "making $agnhost_image"
    root=$(mktemp -d "$cache/root.XXXXXX")
    shell_root "$root"
    rm "$root/bin/nsenter"
    node_shell >"$root/bin/nsenter"
    chmod 755 "$root/bin/nsenter"
    cp "$program" "$root/"
    image_of_root "$agnhost_image" "$root" /agnhost "$archive"
    rm -rf "$root" "$root.Dockerfile"
  fi
  printf '%s\n' "$archive"
}

# What plays an image that the suite knows, or nothing if no spec of its storage part needs it. Of two of them the
# specs want no more than a Debian, which the driver's image is.
stand_in() {
  case $1 in
    */e2e-test-images/busybox:*) printf '%s' "$shell_image" ;;
    */e2e-test-images/agnhost:*) printf '%s' "$agnhost_image" ;;
    */e2e-test-images/jessie-dnsutils:* | */e2e-test-images/nginx:*) printf '%s' "$driver_image" ;;
  esac
}

# Brings the images to all nodes.
bring_suite_images() {
  local archive names name image node
  archive=$(agnhost_archive)
  ./cluster import "$archive"
  names=$("$(module_directory conformance)/e2e.test" --list-images)
  for name in $names; do
    image=$(stand_in "$name")
    [[ -n $image ]] || continue
    for node in "${nodes[@]}"; do
      ./cluster node "$node" ctr --namespace k8s.io images tag --force "$image" "$name" >/dev/null
    done
  done
}
