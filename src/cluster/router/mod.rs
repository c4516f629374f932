//! The router serves CSI's controller side for a whole cluster and has no volumes of its own. It checks each call as a
//! node would, sends it to the node that owns what the call is about, and returns that node's answer.
//!
//! Ids say where a call belongs: those of volumes, snapshots and groups carry the key of their node. A volume that has moved is
//! where its PersistentVolume says, if the controller moves volumes (`places.rs`). Only CreateVolume
//! has a choice (`placement.rs`), and only the lists and GetCapacity ask many nodes. A router holds no state except its
//! connections (`links.rs`), so any number of them can work side by side.
//!
//! An owner that cannot be reached is UNAVAILABLE, which callers retry; it never counts as an owner that does not have
//! the volume.

mod channel;
mod connect;
mod create_volume;
mod details;
mod forward;
mod get_capacity;
mod links;
mod lists;
mod locate;
mod moves;
mod owner;
mod placement;
mod reserve;
mod route;
mod snapshots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) use self::channel::{describe, open};
pub use self::connect::{Connect, Stream};

use self::links::Links;
use super::moves::places::Places;
use super::peers::{Known, Members, Peers};
use super::permit::Signer;
use crate::error::Error;
use crate::model::NodeKey;

/// What the administrator decides of a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterSettings {
    /// CSI plugin name.
    pub driver_name: String,
    /// Whether attaching is served.
    pub attach: bool,
    /// Node ids whose volumes and snapshots are given up once the node is gone.
    pub forget_nodes: BTreeSet<String>,
}

/// Routes the calls of one driver. Clones share everything.
#[derive(Clone)]
pub struct Router {
    settings: Arc<RouterSettings>,
    /// The ids of nodes that may be forgotten, by their keys.
    forget: Arc<BTreeMap<String, String>>,
    known: Known,
    links: Links,
    signer: Signer,
    places: Places,
}

impl Router {
    /// A router to these nodes, which are let read each other's data by what `signer` signs. Begins a task, so it has to be made within a runtime.
    pub fn new(
        settings: RouterSettings,
        peers: &dyn Peers,
        connect: Box<dyn Connect>,
        signer: Signer,
    ) -> Self {
        let known = peers.known();
        let links = Links::new(connect, settings.driver_name.clone(), known.clone());
        tokio::spawn(links.clone().tidy());
        let key = |node_id: &String| (NodeKey::of(node_id).to_string(), node_id.clone());
        let forget = settings.forget_nodes.iter().map(key).collect();
        Router {
            settings: Arc::new(settings),
            forget: Arc::new(forget),
            known,
            links,
            signer,
            places: Places::default(),
        }
    }

    /// Has calls for a volume go to the node that its PersistentVolume names, if that node has it.
    #[must_use]
    pub fn with_places(self, places: Places) -> Self {
        Router { places, ..self }
    }

    pub fn is_ready(&self) -> bool {
        self.known.borrow().is_some()
    }

    /// The nodes.
    ///
    /// # Errors
    /// UNAVAILABLE until all of them are known.
    fn members(&self) -> Result<Arc<Members>, Error> {
        let members = self.known.borrow().clone();
        members.ok_or_else(|| Error::Unavailable("the nodes are not known yet; try again".to_owned()))
    }
}
