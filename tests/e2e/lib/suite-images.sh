# The images that Kubernetes' storage suite asks for by name, made of what is here.
# shellcheck shell=bash

agnhost_image=localhost/agnhost:e2e

# Prints the archive of agnhost: the program of the suite's servers and checks, beside the tools of the shell.
agnhost_archive() {
  local program archive root
  program=$(module_directory conformance)/agnhost
  archive=$(archive_of "$agnhost_image" "$program" /usr/bin/busybox)
  if [[ ! -e $archive ]]; then
    say "making $agnhost_image"
    root=$(mktemp -d "$cache/root.XXXXXX")
    shell_root "$root"
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
