//! The protocols, generated from the files in `proto/`: messages, clients, servers, and which request belongs to which RPC.
//!
//! A crate of its own, so that the generated code compiles beside the other dependencies of hostloop, and never again when
//! hostloop changes.

pub mod csi;
pub mod peer;
pub mod registration;
pub mod rpc;

/// Every method that callers may call, such as `csi.v1.Controller/CreateVolume`.
pub const METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));
