# The driver and the tools that make, check and grow its filesystems. It is one image for all roles: a node's container
# is privileged and root, a controller's runs as any user (the chart takes 65532), so no USER is set here.
#
#   docker build -t hostloop .                              compiles it
#   docker build -t hostloop --target prebuilt .            takes target/release/hostloop (or --build-arg BINARY=…)
#   docker build -t hostloop --build-arg PROFILE=dist .     compiles it as for publication: smaller, and takes longer
#   docker buildx build --platform linux/amd64,linux/arm64 .   compiles for both here; arm64 is untried. Installing its
#                                                              tools needs an emulator (binfmt)
#
# Both bases are arguments, so that a mirror or a local root filesystem can stand in for them. A base that has the tools
# already is taken as it is. A binary needs the C library of Debian 12 or newer.
ARG BASE_IMAGE=docker.io/library/debian:12-slim
ARG BUILD_IMAGE=docker.io/library/rust:1.95-bookworm
# Given by the builder; a builder that does not know it compiles on the platform that it builds for.
ARG BUILDPLATFORM

FROM ${BASE_IMAGE} AS runtime
# Python and ICU come with xfsprogs for xfs_scrub, which nothing here calls: 80 MB, and most of what a scanner would find.
# The last lines make sure that every program the driver starts still starts.
RUN set -e; \
    if ! { mkfs.ext4 -V && mkfs.xfs -V && mkfs.btrfs --version; } >/dev/null 2>&1; then \
      apt-get update; \
      apt-get install -y --no-install-recommends btrfs-progs e2fsprogs xfsprogs; \
      dpkg --purge --force-depends $(dpkg-query -W -f '${Package}\n' 'libicu*' '*python3*' media-types); \
      rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*; \
    fi; \
    for tool in mkfs.ext4 resize2fs mkfs.xfs xfs_repair xfs_growfs mkfs.btrfs btrfs btrfstune e2fsck; do \
      ! ldd "$(command -v "$tool")" | grep 'not found'; \
    done
ARG VERSION=0.3.0-dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="hostloop" \
      org.opencontainers.image.description="A CSI driver that turns a directory on a node's disk into Kubernetes volumes with an enforced size" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["/usr/local/bin/hostloop"]
CMD ["serve"]

# Before the stage that compiles, so that builders which go through the stages in order need no compiler for it.
FROM runtime AS prebuilt
ARG BINARY=target/release/hostloop
COPY --chmod=0755 ${BINARY} /usr/local/bin/hostloop

FROM --platform=${BUILDPLATFORM} ${BUILD_IMAGE} AS build
ARG TARGETARCH
ARG PROFILE=release
WORKDIR /src
# The linkers, and the C compilers (the TLS library has C in it), by the names that they have on every Debian.
ENV CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=x86_64-linux-gnu-gcc \
    CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
    CC_x86_64_unknown_linux_gnu=x86_64-linux-gnu-gcc
RUN set -e; here=$(dpkg --print-architecture); arch=${TARGETARCH:-$here}; \
    case "$arch" in \
      amd64) rust=x86_64 gcc=x86-64 ;; \
      arm64) rust=aarch64 gcc=aarch64 ;; \
      *) echo "no build for $arch" >&2; exit 1 ;; \
    esac; \
    echo "$rust-unknown-linux-gnu" >/target; \
    if [ "$arch" != "$here" ]; then \
      rustup target add "$(cat /target)"; \
      apt-get update; \
      apt-get install -y --no-install-recommends "gcc-$gcc-linux-gnu" "libc6-dev-$arch-cross"; \
    fi
COPY . .
# The image is built without the repository.
ARG REVISION=unknown
RUN HOSTLOOP_COMMIT="$REVISION" cargo build --package hostloop --profile "$PROFILE" --locked --target "$(cat /target)" \
 && cp "target/$(cat /target)/$PROFILE/hostloop" /hostloop

FROM runtime
COPY --from=build /hostloop /usr/local/bin/hostloop
# A binary does not tell which crates are in it. Scanners, and the bill of materials of a release, read this.
COPY --from=build /src/Cargo.lock /usr/share/doc/hostloop/Cargo.lock
