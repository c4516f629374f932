//! Generated from `proto/hostloop/v1/peer.proto`: the protocol between processes of hostloop in one cluster.
#![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/hostloop.v1.rs"));
include!(concat!(env!("OUT_DIR"), "/peer_rpcs.rs"));
