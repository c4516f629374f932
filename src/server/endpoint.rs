//! Where the driver listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Component, PathBuf};
use std::str::FromStr;

/// The longest path that a Unix socket can have in bytes: `sun_path` less its closing zero (unix(7)).
const MAX_PATH: usize = 107;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket at this absolute path of at most 107 bytes.
    Unix(PathBuf),
    /// TCP on a loopback address: for tests, as there everybody on the machine can give orders.
    Tcp(SocketAddr),
}

/// Text that is not an endpoint; says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {problem}")]
pub struct InvalidEndpoint {
    text: String,
    problem: &'static str,
}

impl Endpoint {
    /// What CSI would have otherwise, though it works: a socket's name ends in `.sock`.
    pub fn has_unusual_name(&self) -> bool {
        matches!(self, Endpoint::Unix(path) if path.extension().is_none_or(|extension| extension != "sock"))
    }
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = match text.split_once("://") {
            Some(("unix", path)) => unix(path),
            Some(("tcp", address)) => tcp(address),
            Some(_) => Err("is not an endpoint; use unix:///PATH.sock"),
            None => unix(text.strip_prefix("unix:").unwrap_or(text)),
        };
        parsed.map_err(|problem| InvalidEndpoint { text: text.to_owned(), problem })
    }
}

fn unix(text: &str) -> Result<Endpoint, &'static str> {
    let path = PathBuf::from(text);
    if !path.is_absolute() {
        return Err("has no absolute path; use unix:///PATH.sock");
    }
    if text.contains('\0') || path.components().any(|c| c == Component::ParentDir) {
        return Err("contains ..; write the path without it");
    }
    if text.ends_with('/') {
        return Err("is a directory; add a name such as csi.sock");
    }
    if text.len() > MAX_PATH {
        return Err("is too long: the path of a Unix socket has at most 107 bytes");
    }
    Ok(Endpoint::Unix(path))
}

fn tcp(text: &str) -> Result<Endpoint, &'static str> {
    let address: SocketAddr =
        text.parse().map_err(|_| "is not an address; use tcp://127.0.0.1:PORT or tcp://[::1]:PORT")?;
    if !address.ip().is_loopback() {
        return Err(
            "can be reached from elsewhere: TCP is for tests, on the loopback addresses 127.0.0.1 and [::1] only",
        );
    }
    Ok(Endpoint::Tcp(address))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix://{}", path.display()),
            Endpoint::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_three_spellings() {
        for text in ["unix:///run/a.sock", "unix:/run/a.sock", "/run/a.sock"] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), "unix:///run/a.sock");
            assert!(!endpoint.has_unusual_name());
        }
        assert!("/run/a".parse::<Endpoint>().unwrap().has_unusual_name());
        assert_eq!("tcp://[::1]:80".parse::<Endpoint>().unwrap().to_string(), "tcp://[::1]:80");
        assert!("tcp://127.0.0.1:0".parse::<Endpoint>().is_ok());
    }
}
