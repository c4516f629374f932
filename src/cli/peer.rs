//! `--peer` and `--peer-service`.

use std::net::SocketAddr;

use super::value::{List, list};
use crate::model::check_topology_value;

/// The longest name of a host in bytes (RFC 1035, 2.3.4).
const HOST_LIMIT: usize = 253;
/// The longest name of a Kubernetes namespace or Service in bytes (RFC 1035 label).
const LABEL_LIMIT: usize = 63;

/// A node that `--peer` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticPeer {
    /// CSI node id.
    pub node_id: String,
    /// HOST:PORT.
    pub address: String,
}

pub(super) fn peers(text: &str) -> Result<List<StaticPeer>, String> {
    list(text, ';', |entry| peer(entry).map_err(|problem| format!("{entry:?}: {problem}")))
}

fn peer(text: &str) -> Result<StaticPeer, String> {
    let (node_id, address) = text.split_once('=').ok_or("write it as NODE_ID=HOST:PORT")?;
    check_topology_value(node_id).map_err(|e| e.to_string())?;
    if !is_address(address) {
        return Err(format!("{address:?} is not a HOST:PORT"));
    }
    Ok(StaticPeer { node_id: node_id.to_owned(), address: address.to_owned() })
}

/// A host name or IP address (IPv6 in brackets) and a port. Whether the name is known shows when it is used.
fn is_address(text: &str) -> bool {
    if text.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0) {
        return true;
    }
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    text.rsplit_once(':').is_some_and(|(host, port)| {
        (1..=HOST_LIMIT).contains(&host.len())
            && host.chars().all(inner)
            && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

/// `NAMESPACE/NAME` of a Service.
pub(super) fn service(text: &str) -> Result<(String, String), String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let label = |part: &str| {
        (1..=LABEL_LIMIT).contains(&part.len())
            && part.chars().all(inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    match text.split_once('/') {
        Some((namespace, name)) if label(namespace) && label(name) => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err(format!("{text:?} is not a Service; write it as NAMESPACE/NAME")),
    }
}
