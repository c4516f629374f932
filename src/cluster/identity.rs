//! Who is at the other end: what a certificate says about its bearer.

use std::fmt;
use std::str::FromStr;

/// What a process of hostloop may do on the port of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PeerRole {
    /// Routes RPCs to nodes.
    Controller,
    /// Serves its own volumes to controllers, and pulls data from other nodes.
    Node,
}

impl PeerRole {
    /// Its name in an identity.
    pub const fn as_str(self) -> &'static str {
        match self {
            PeerRole::Controller => "controller",
            PeerRole::Node => "node",
        }
    }
}

/// The bearer of a certificate, as a URI among its subject alternative names (RFC 5280, 4.2.1.6):
/// `spiffe://DRIVER/controller`, `spiffe://DRIVER/node` for a certificate that all nodes share, or
/// `spiffe://DRIVER/node/NODE_ID` for that of one node. DRIVER is the CSI plugin name, so that two drivers in one
/// cluster cannot give each other orders, also where they share a CA.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerIdentity {
    /// CSI plugin name.
    pub driver: String,
    pub role: PeerRole,
    /// Of a node's own certificate: its CSI node id.
    pub node_id: Option<String>,
}

/// Text that is not an identity of hostloop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an identity of hostloop, such as spiffe://hostloop.csi.dev/node")]
pub struct InvalidIdentity(String);

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/{}", self.driver, self.role.as_str())?;
        self.node_id.as_ref().map_or(Ok(()), |id| write!(f, "/{id}"))
    }
}

impl FromStr for PeerIdentity {
    type Err = InvalidIdentity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<&str> = text.strip_prefix("spiffe://").unwrap_or_default().split('/').collect();
        let (driver, role, node_id) = match parts.as_slice() {
            [driver, "controller"] => (driver, PeerRole::Controller, None),
            [driver, "node"] => (driver, PeerRole::Node, None),
            [driver, "node", id] if !id.is_empty() => (driver, PeerRole::Node, Some((*id).to_owned())),
            _ => return Err(InvalidIdentity(text.to_owned())),
        };
        match driver.is_empty() {
            true => Err(InvalidIdentity(text.to_owned())),
            false => Ok(PeerIdentity { driver: (*driver).to_owned(), role, node_id }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_from_its_text() {
        for text in [
            "spiffe://hostloop.csi.dev/controller",
            "spiffe://hostloop.csi.dev/node",
            "spiffe://d/node/node-1.example",
        ] {
            assert_eq!(text.parse::<PeerIdentity>().expect("an identity").to_string(), text);
        }
    }

    #[test]
    fn anything_else_is_nobody() {
        for text in [
            "",
            "spiffe://",
            "spiffe:///node",
            "spiffe://d",
            "spiffe://d/",
            "spiffe://d/node/",
            "spiffe://d/node/a/b",
            "spiffe://d/controller/a",
            "spiffe://d/admin",
            "https://d/node",
            "SPIFFE://d/node",
        ] {
            assert_eq!(text.parse::<PeerIdentity>(), Err(InvalidIdentity(text.to_owned())));
        }
    }
}
