//! The protocol: generated types, and the way from them to the model and back. All validation of requests is
//! in [`decode`]; nothing in here does I/O.

pub mod csi;
pub mod decode;
pub mod encode;
pub mod redact;
