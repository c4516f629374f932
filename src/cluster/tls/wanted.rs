//! Who may be at the other end.

use super::error::Refusal;
use crate::cluster::identity::{PeerIdentity, PeerRole};

/// Who is wanted at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// CSI plugin name.
    pub driver: String,
    /// Any where it is `None`.
    pub role: Option<PeerRole>,
    /// Any where it is `None`. A certificate without a node id is good for every node.
    pub node_id: Option<String>,
}

impl Wanted {
    /// The identity among the URIs of a certificate, if it is the one that is wanted.
    ///
    /// # Errors
    /// [`Refusal`] with what is there instead.
    pub fn find(&self, uris: &[String]) -> Result<PeerIdentity, Refusal> {
        let identities: Vec<PeerIdentity> = uris.iter().filter_map(|uri| uri.parse().ok()).collect();
        let mut ours = identities.iter().filter(|identity| identity.driver == self.driver);
        let identity = match (ours.next(), ours.next(), identities.first()) {
            (Some(one), None, _) => one.clone(),
            (Some(_), Some(_), _) => {
                return Err(Refusal::SeveralIdentities { driver: self.driver.clone() });
            }
            (None, _, Some(other)) => {
                let (wanted, found) = (self.driver.clone(), other.driver.clone());
                return Err(Refusal::OtherDriver { wanted, found });
            }
            (None, _, None) => return Err(Refusal::NoIdentity),
        };
        if let Some(wanted) = self.role
            && wanted != identity.role
        {
            return Err(Refusal::OtherRole { wanted, found: identity.role });
        }
        match (&self.node_id, &identity.node_id) {
            (Some(wanted), Some(found)) if wanted != found => {
                Err(Refusal::OtherNode { wanted: wanted.clone(), found: found.clone() })
            }
            _ => Ok(identity),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(role: Option<PeerRole>, node_id: Option<&str>, uris: &[&str]) -> Result<String, Refusal> {
        let wanted = Wanted { driver: "d".to_owned(), role, node_id: node_id.map(str::to_owned) };
        let uris: Vec<String> = uris.iter().map(|uri| (*uri).to_owned()).collect();
        wanted.find(&uris).map(|identity| identity.to_string())
    }

    #[test]
    fn the_one_identity_of_our_driver() {
        let node = Some(PeerRole::Node);
        for (role, node_id, uris, found) in [
            (None, None, &["spiffe://d/controller"][..], "spiffe://d/controller"),
            (node, None, &["spiffe://d/node/a"], "spiffe://d/node/a"),
            (node, Some("a"), &["spiffe://d/node/a"], "spiffe://d/node/a"),
            (node, Some("a"), &["spiffe://d/node"], "spiffe://d/node"),
            (None, None, &["https://x/", "spiffe://other/node", "spiffe://d/node"], "spiffe://d/node"),
        ] {
            assert_eq!(find(role, node_id, uris), Ok(found.to_owned()), "{uris:?}");
        }
    }

    #[test]
    fn a_certificate_of_another_is_refused() {
        let (node, controller) = (Some(PeerRole::Node), Some(PeerRole::Controller));
        let several = Refusal::SeveralIdentities { driver: "d".to_owned() };
        let other = Refusal::OtherDriver { wanted: "d".to_owned(), found: "e".to_owned() };
        let role = |wanted, found| Refusal::OtherRole { wanted, found };
        let not_a = Refusal::OtherNode { wanted: "a".to_owned(), found: "b".to_owned() };
        for (wanted, node_id, uris, refusal) in [
            (None, None, &[][..], Refusal::NoIdentity),
            (None, None, &["spiffe://d", "https://d/node"], Refusal::NoIdentity),
            (None, None, &["spiffe://e/node"], other),
            (None, None, &["spiffe://d/node", "spiffe://d/controller"], several.clone()),
            (node, Some("a"), &["spiffe://d/node/a", "spiffe://d/node/b"], several),
            (controller, None, &["spiffe://d/node"], role(PeerRole::Controller, PeerRole::Node)),
            (node, Some("a"), &["spiffe://d/controller"], role(PeerRole::Node, PeerRole::Controller)),
            (node, Some("a"), &["spiffe://d/node/b"], not_a),
        ] {
            assert_eq!(find(wanted, node_id, uris), Err(refusal), "{uris:?}");
        }
    }
}
