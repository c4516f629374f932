//! Discovery: which nodes the cluster has, and at which addresses.

mod fixed;
mod kubernetes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;

pub use self::fixed::Fixed;
pub use self::kubernetes::{Service, api_client, api_client_of};

use crate::model::NodeKey;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// CSI node id.
    pub node_id: String,
    /// HOST:PORT of its port for controllers. `None` while no process of the driver runs there: what is on the node
    /// is there nevertheless.
    pub address: Option<String>,
}

/// The nodes that a cluster has at one time, in the order of their keys, which is also that of the ids of their
/// volumes and snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    by_key: BTreeMap<String, Arc<Member>>,
    /// Ids of machines that the cluster still has, with the driver on them or not.
    machines: BTreeSet<String>,
}

impl Members {
    /// These nodes, each once; `machines` are the ids of those that the cluster has without being sure that the
    /// driver is on them.
    pub fn new(members: impl IntoIterator<Item = Member>, machines: BTreeSet<String>) -> Self {
        let mut by_key: BTreeMap<String, Arc<Member>> = BTreeMap::new();
        for member in members {
            let key = NodeKey::of(&member.node_id).to_string();
            if let Some(other) = by_key.get(&key).filter(|other| other.node_id != member.node_id) {
                tracing::error!(
                    node = member.node_id,
                    other = other.node_id,
                    "two node ids have the same key, so the ids of their volumes cannot be told apart: give one of the nodes another id"
                );
                continue;
            }
            by_key.insert(key, Arc::new(member));
        }
        Members { by_key, machines }
    }

    /// The node with this key, which is part of the ids of its volumes and snapshots.
    pub fn with_key(&self, key: &str) -> Option<&Arc<Member>> {
        self.by_key.get(key)
    }

    pub fn with_id(&self, node_id: &str) -> Option<&Arc<Member>> {
        let key = NodeKey::of(node_id).to_string();
        self.by_key.get(&key).filter(|member| member.node_id == node_id)
    }

    /// Every node with its key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<Member>)> {
        self.by_key.iter().map(|(key, member)| (key.as_str(), member))
    }

    /// Whether the cluster has neither this node nor a machine of its name.
    pub fn is_gone(&self, node_id: &str) -> bool {
        self.with_id(node_id).is_none() && !self.machines.contains(node_id)
    }
}

/// What discovery knows now, and the signal that it has changed. `None` until it knows all nodes.
pub type Known = watch::Receiver<Option<Arc<Members>>>;

pub trait Peers: Send + Sync {
    /// The nodes, now and from now on.
    fn known(&self) -> Known;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node_id: &str) -> Member {
        Member { node_id: node_id.to_owned(), address: None }
    }

    #[test]
    fn members_are_found_and_ordered_by_key() {
        let members = Members::new(["b", "a", "c"].map(member), BTreeSet::from(["d".to_owned()]));
        let keys: Vec<&str> = members.iter().map(|(key, _)| key).collect();
        assert!(keys.len() == 3 && keys.is_sorted(), "{keys:?}");
        for (key, member) in members.iter() {
            assert_eq!(NodeKey::of(&member.node_id).to_string(), key);
            assert_eq!(members.with_key(key), Some(member));
            assert_eq!(members.with_id(&member.node_id), Some(member));
        }
        assert!(members.with_key("").is_none() && members.with_id("d").is_none());
        assert!(!members.is_gone("a") && !members.is_gone("d") && members.is_gone("e"));
    }
}
