//! The protocol: the generated types of [`hostloop_proto`], and their conversion to the model and back. All validation
//! of requests is in [`decode`]; nothing in here does I/O.

pub(crate) mod adopt;
pub mod decode;
pub mod details;
pub(crate) mod encode;
pub(crate) mod fields;
pub mod findings;
pub(crate) mod handover;
pub mod permit;
pub mod pull;
pub(crate) mod redact;
pub(crate) mod reserve;

pub use hostloop_proto::{METHODS, csi, peer, registration, rpc};
