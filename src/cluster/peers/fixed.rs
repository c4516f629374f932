//! A list that the administrator wrote: for tests and for clusters without Kubernetes.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use super::{Known, Member, Members, Peers};

/// Nodes that are known from the start. Their host names are looked up anew for each connection.
pub struct Fixed(watch::Sender<Option<Arc<Members>>>);

impl Fixed {
    /// Nodes as pairs of CSI node id and HOST:PORT. One that is not listed is gone.
    pub fn new(nodes: impl IntoIterator<Item = (String, String)>) -> Self {
        let member = |(node_id, address)| Member { node_id, address: Some(address) };
        let members = Members::new(nodes.into_iter().map(member), BTreeSet::new());
        Fixed(watch::Sender::new(Some(Arc::new(members))))
    }
}

impl Peers for Fixed {
    fn known(&self) -> Known {
        self.0.subscribe()
    }
}
