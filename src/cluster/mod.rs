//! The driver in a cluster. A controller holds no data and routes every call to the node that owns what the call is
//! about. Nodes do what their controllers order, and copy data from each other.
//!
//! A controller has two questions. Which nodes are there, and at which addresses? [`peers`] knows. Which of them has to
//! do this call? [`router`] decides.

pub mod answers;
pub mod certs;
pub mod details;
pub mod findings;
pub mod handover;
pub mod identity;
pub mod moves;
pub mod notices;
pub mod peers;
pub mod permit;
pub mod pull;
pub mod reports;
pub mod router;
pub mod tls;
