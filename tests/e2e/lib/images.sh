# Images: made here with buildah, kept in the cache as archives, and imported by each node's containerd.
# shellcheck shell=bash

pause_image=registry.k8s.io/pause:3.10.1
driver_image=localhost/hostloop:e2e
# A shell with the usual tools, for the pods of the tests.
shell_image=localhost/shell:e2e

# What the driver's image is made on: it stands in for the public base of the Dockerfile.
base_image=localhost/base:e2e
base_packages=btrfs-progs,e2fsprogs,mount,util-linux,xfsprogs

buildah_here() { buildah --storage-driver vfs --root "$cache/buildah" --runroot "$cache/buildah-run" "$@"; }

registrar_image=localhost/registrar:e2e
livenessprobe_image=localhost/livenessprobe:e2e

# The name that a sidecar's image has in the world, with the version of its go.mod.
sidecar_image() {
  local version
  version=$(sed -n 's|.*github.com/kubernetes-csi/external-[a-z]*/v[0-9]* \(v[0-9.]*\).*|\1|p' "go/$1/go.mod")
  [[ -n $version ]] || die "go/$1/go.mod does not say the version"
  printf 'registry.k8s.io/sig-storage/%s:%s' "$1" "$version"
}

# archive_of IMAGE INPUT...: where the archive of an image that is made of these files or words is, or belongs.
archive_of() {
  local image=$1 input sum
  shift
  sum=$(for input in "$image" "$@"; do
    if [[ -f $input ]]; then sha256sum <"$input"; else printf '%s\n' "$input"; fi
  done | sha256sum | cut -c1-16)
  printf '%s/images/%s-%s.tar' "$cache" "$(basename "${image%:*}")" "$sum"
}

# Makes an image of a directory with its files, and an archive of that: image_of_root IMAGE DIRECTORY ENTRYPOINT ARCHIVE.
image_of_root() {
  local image=$1 root=$2 entrypoint=$3 archive=$4
  {
    printf 'FROM scratch\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nCOPY . /\n'
    [[ -z $entrypoint ]] || printf 'ENTRYPOINT ["%s"]\n' "$entrypoint"
  } >"$root.Dockerfile"
  buildah_here bud --quiet --isolation chroot --file "$root.Dockerfile" --tag "$image" "$root" >/dev/null
  save_image "$image" "$archive"
}

save_image() {
  rm -f "$2.part"
  buildah_here push --quiet "$1" "docker-archive:$2.part:$1"
  buildah_here rmi --force "$1" >/dev/null
  mv "$2.part" "$2"
}

# Prints the archive of an image with nothing but one static program.
program_image() {
  local image=$1 program=$2 archive root
  archive=$(archive_of "$image" "$program")
  if [[ ! -e $archive ]]; then
    say "making $image"
    root=$(mktemp -d "$cache/root.XXXXXX")
    cp "$program" "$root/"
    chmod 755 "$root"
    image_of_root "$image" "$root" "/$(basename "$program")" "$archive"
    rm -rf "$root" "$root.Dockerfile"
  fi
  printf '%s\n' "$archive"
}

# A busybox with a link for each of its tools: shell_root DIRECTORY.
shell_root() {
  local root=$1 applet
  chmod 755 "$root"
  mkdir "$root"/{bin,etc,tmp}
  cp /usr/bin/busybox "$root/bin/"
  for applet in $(/usr/bin/busybox --list); do
    [[ $applet == busybox ]] || ln -s busybox "$root/bin/$applet"
  done
  printf 'root:x:0:0:root:/:/bin/sh\n' >"$root/etc/passwd"
  printf 'root:x:0:\n' >"$root/etc/group"
}

# Prints the archive of the shell: shell_image [IMAGE].
shell_image() {
  local image=${1:-$shell_image} archive root
  archive=$(archive_of "$image" /usr/bin/busybox)
  if [[ ! -e $archive ]]; then
    say "making $image"
    root=$(mktemp -d "$cache/root.XXXXXX")
    shell_root "$root"
    image_of_root "$image" "$root" '' "$archive"
    rm -rf "$root" "$root.Dockerfile"
  fi
  printf '%s\n' "$archive"
}

# Prints the archive of the root of a Debian with packages: debian_root NAME PACKAGES [VARIANT-OF-MMDEBSTRAP].
debian_root() {
  local name=$1 packages=$2 variant=${3:-minbase} archive
  archive=$(archive_of "$name" "$packages")
  if [[ ! -e $archive ]]; then
    say "making a Debian: $name"
    mmdebstrap --quiet --variant="$variant" --include="$packages" \
      --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
      --dpkgopt='path-exclude=/usr/share/doc/*' --aptopt='Apt::Install-Recommends "false"' \
      --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/log/*' \
      --format=tar bookworm "$archive.part"
    mv "$archive.part" "$archive"
  fi
  printf '%s\n' "$archive"
}

# Prints the archive of the base of the driver's image, which has the filesystems' tools.
base_root() { debian_root base "$base_packages" essential; }

# Makes the base an image that a Dockerfile can name, unless it is one already.
tag_base() {
  local archive=$1 context
  ! buildah_here inspect --type image "$base_image" >/dev/null 2>&1 || return 0
  context=$(mktemp -d "$cache/root.XXXXXX")
  cp "$archive" "$context/base.tar"
  printf 'FROM scratch\nADD base.tar /\n' >"$context/Dockerfile"
  buildah_here bud --quiet --isolation chroot --tag "$base_image" "$context" >/dev/null
  rm -rf "$context"
}

# Prints the archive of a driver's image, made of this checkout's Dockerfile and a binary: driver_image BINARY [IMAGE].
driver_image() {
  local binary=$1 image=${2:-$driver_image} archive base context
  base=$(base_root)
  archive=$(archive_of "$image" "$binary" "$base" ../../Dockerfile)
  if [[ ! -e $archive ]]; then
    say "making $image"
    # The image of yesterday's binary is of no use.
    rm -f "$cache/images/$(basename "${image%:*}")"-*.tar
    tag_base "$base"
    context=$(mktemp -d "$cache/root.XXXXXX")
    cp "$binary" "$context/hostloop"
    # The stage of the Dockerfile that takes a binary as it is, or the same in short where it has none.
    if grep -q ' AS prebuilt$' ../../Dockerfile; then
      cp ../../Dockerfile "$context.Dockerfile"
    else
      printf 'ARG BASE_IMAGE\nFROM ${BASE_IMAGE} AS prebuilt\nARG BINARY\n' >"$context.Dockerfile"
      printf 'COPY ${BINARY} /usr/local/bin/hostloop\nENTRYPOINT ["/usr/local/bin/hostloop"]\n' >>"$context.Dockerfile"
    fi
    buildah_here bud --quiet --isolation chroot --file "$context.Dockerfile" --target prebuilt \
      --build-arg BASE_IMAGE="$base_image" --build-arg BINARY=hostloop --tag "$image" "$context" >/dev/null
    save_image "$image" "$archive"
    rm -rf "$context" "$context.Dockerfile"
  fi
  printf '%s\n' "$archive"
}

# The program of the registrar or of the livenessprobe: given (SIDECAR_BIN), or what plays it here.
beside_driver() {
  local published=$1 played=$2
  if [[ -n ${SIDECAR_BIN:-} ]]; then
    printf '%s/%s' "$SIDECAR_BIN" "$published"
  else
    printf '%s/%s' "$(module_directory helpers)" "$played"
  fi
}
registrar_program() { beside_driver csi-node-driver-registrar registrar; }
livenessprobe_program() { beside_driver livenessprobe livenessprobe; }

# Early: an image with a program that cannot start is found out late.
check_sidecar_bin() {
  local program libraries
  [[ -n ${SIDECAR_BIN:-} ]] || return 0
  [[ $SIDECAR_BIN == /* ]] || die "SIDECAR_BIN is an absolute path, not $SIDECAR_BIN"
  for program in "$(registrar_program)" "$(livenessprobe_program)"; do
    [[ -f $program && -x $program ]] || die "SIDECAR_BIN has no program $program"
    # It fails for a program that needs none.
    libraries=$(ldd "$program" 2>/dev/null || true)
    [[ $libraries != *' => '* ]] || die "$program needs libraries, and its image has none: build it with CGO_ENABLED=0"
  done
}

# Prints the archives of what runs beside the driver.
sidecar_images() {
  local name
  for name in csi-provisioner csi-resizer csi-snapshotter; do
    program_image "$(sidecar_image "$name")" "$(module_directory "$name")/$name"
  done
  program_image "$registrar_image" "$(registrar_program)"
  program_image "$livenessprobe_image" "$(livenessprobe_program)"
}

# Prints the arguments of helm that name an image, one a line: image_settings VALUE IMAGE.
image_settings() { printf -- '--set\n%s.repository=%s\n--set\n%s.tag=%s\n' "$1" "${2%:*}" "$1" "${2##*:}"; }

# Prints the arguments of helm for the images that are made here.
chart_settings() {
  image_settings image "$driver_image"
  image_settings sidecars.provisioner.image "$(sidecar_image csi-provisioner)"
  image_settings sidecars.resizer.image "$(sidecar_image csi-resizer)"
  image_settings sidecars.snapshotter.image "$(sidecar_image csi-snapshotter)"
  image_settings sidecars.nodeDriverRegistrar.image "$registrar_image"
  image_settings sidecars.livenessProbe.image "$livenessprobe_image"
  # The layout that users get, where the programs for it are given.
  printf -- '--set\nnode.register=%s\n' "$([[ -n ${SIDECAR_BIN:-} ]] && echo false || echo true)"
}

# Brings archives to a node: import_images NODE ARCHIVE...
import_images() {
  local node=$1 archive
  shift
  for archive in "$@"; do
    in_node "$node" ctr --namespace k8s.io images import "$archive" >/dev/null
  done
}
