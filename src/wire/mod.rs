//! The protocol: generated types, and their conversion to the model and back. All validation of requests is in
//! [`decode`]; nothing in here does I/O.

pub mod csi;
pub mod decode;
pub(crate) mod encode;
pub mod peer;
pub mod permit;
pub mod pull;
pub(crate) mod redact;
pub mod registration;
pub(crate) mod reserve;
pub mod rpc;

/// Every method that callers may call, such as `csi.v1.Controller/CreateVolume`.
pub const METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));
