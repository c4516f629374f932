# The driver with the tools that make, check and grow its filesystems. Both bases are arguments, so that a mirror or a
# local root filesystem can stand in for them.
ARG BUILD_IMAGE=docker.io/library/rust:1.95-bookworm
ARG BASE_IMAGE=docker.io/library/debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked

FROM ${BASE_IMAGE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends btrfs-progs e2fsprogs xfsprogs \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/hostloop /usr/local/bin/hostloop
ENTRYPOINT ["/usr/local/bin/hostloop"]
CMD ["serve"]
