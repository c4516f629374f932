//! `--role`, and the flags that belong to some roles only.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::settings;
use crate::cli::{ConfigError, RoleName, ServeArgs, StaticPeer};
use crate::model::{MoveLimits, NodeKey, Settings};

type Result<T> = std::result::Result<T, ConfigError>;

/// Which part of the driver a process is.
#[derive(Debug, Clone, PartialEq)]
pub enum Role {
    /// Everything in one process.
    All(Settings),
    /// The volumes of one node, for a controller.
    Node(Settings, PeerPort),
    /// No volumes: it finds the node for each call.
    Controller(ControllerSettings),
}

impl Role {
    /// The settings of the volumes, where it has some.
    pub const fn settings(&self) -> Option<&Settings> {
        match self {
            Role::All(settings) | Role::Node(settings, _) => Some(settings),
            Role::Controller(_) => None,
        }
    }
}

/// Where a node serves controllers and other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerPort {
    pub listen: SocketAddr,
    /// The directory with the certificates.
    pub tls_dir: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerSettings {
    /// CSI plugin name.
    pub driver_name: String,
    /// Whether attaching is served; the nodes must have the same.
    pub attach: bool,
    /// The directory with the certificates.
    pub tls_dir: PathBuf,
    pub discovery: Discovery,
    /// Where people ask what is on the nodes: an address of the loopback interface.
    pub inspect_listen: Option<SocketAddr>,
    /// Whether nodes put right there what people name.
    pub inspect_fix: bool,
    /// Node ids whose volumes and snapshots are given up once the node is gone.
    pub forget_nodes: BTreeSet<String>,
    /// The namespace of the Lease by which one of several controllers moves volumes; `None` where none does.
    pub moves: Option<String>,
    pub move_limits: MoveLimits,
    /// The namespace of the Lease by which one of several controllers writes Events of claims; `None` where none does.
    pub events: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discovery {
    /// They are known; each once, at least one.
    Static(Vec<StaticPeer>),
    /// The pods behind a headless Service.
    Service { namespace: String, name: String },
}

/// The roles with volumes.
const VOLUMES: &[RoleName] = &[RoleName::All, RoleName::Node];
/// The roles of a process in a cluster.
const CLUSTER: &[RoleName] = &[RoleName::Node, RoleName::Controller];
const NODE: &[RoleName] = &[RoleName::Node];
const CONTROLLER: &[RoleName] = &[RoleName::Controller];

/// Every flag that belongs to some roles only: its field in [`ServeArgs`], whether it was given, and those roles.
fn given(args: &ServeArgs) -> [(&'static str, bool, &'static [RoleName]); 29] {
    let operation = &args.operation;
    [
        ("peer_listen", args.peer_listen.is_some(), NODE),
        ("tls_dir", args.tls_dir.is_some(), CLUSTER),
        ("peer", args.peer.iter().flatten().next().is_some(), CONTROLLER),
        ("peer_service", args.peer_service.is_some(), CONTROLLER),
        ("forget_node", args.forget_node.iter().flatten().next().is_some(), CONTROLLER),
        ("inspect_listen", matches!(args.inspect_listen, Some(Some(_))), CONTROLLER),
        ("inspect_fix", args.inspect_fix, CONTROLLER),
        ("moves", args.moves, CONTROLLER),
        ("events", args.events, CONTROLLER),
        ("move_limits", matches!(args.move_limits, Some(Some(_))), CONTROLLER),
        ("node_id", args.node_id.is_some(), VOLUMES),
        ("data_dir", args.data_dir.is_some(), VOLUMES),
        ("anchor_dir", matches!(args.anchor_dir, Some(Some(_))), VOLUMES),
        ("pool", args.pool.iter().flatten().next().is_some(), VOLUMES),
        ("reserve", args.reserve.is_some(), VOLUMES),
        ("overcommit", args.overcommit.is_some(), VOLUMES),
        ("max_volumes_per_node", args.max_volumes_per_node.is_some(), VOLUMES),
        ("max_volume_size", args.max_volume_size.is_some(), VOLUMES),
        ("directories", args.directories, VOLUMES),
        ("inline_max_size", matches!(args.inline_max_size, Some(Some(_))), VOLUMES),
        ("inline_pools", args.inline_pools.iter().flatten().next().is_some(), VOLUMES),
        ("inline_backends", args.inline_backends.iter().flatten().next().is_some(), VOLUMES),
        ("kubelet_dir", matches!(args.kubelet_dir, Some(Some(_))), VOLUMES),
        ("quota_ids", matches!(args.quota_ids, Some(Some(_))), VOLUMES),
        ("adopt_from", args.adopt_from.iter().flatten().next().is_some(), VOLUMES),
        ("register", operation.register, VOLUMES),
        ("max_copies", matches!(operation.max_copies, Some(Some(_))), VOLUMES),
        ("max_streams", matches!(operation.max_streams, Some(Some(_))), VOLUMES),
        ("stream_rate", matches!(operation.stream_rate, Some(Some(_))), VOLUMES),
    ]
}

/// The role, with the flags that belong to it. One that belongs to other roles stops the start: it would be
/// without effect, and somebody wanted one.
pub(super) fn role(args: &ServeArgs, host_name: Option<String>) -> Result<Role> {
    let role = args.role;
    if let Some((flag, _, roles)) =
        given(args).iter().find(|(_, given, roles)| *given && !roles.contains(&role))
    {
        let (role, roles) = (role.as_str(), roles.iter().map(|role| role.as_str()).collect::<Vec<_>>());
        let roles = roles.join(" and ");
        return Err(wrong(
            flag,
            format_args!("it works with --role {roles} only, not with {role}; leave it out"),
        ));
    }
    let tls_dir = || args.tls_dir.clone().unwrap_or_else(|| PathBuf::from("/etc/hostloop/tls"));
    Ok(match role {
        RoleName::All => Role::All(settings(args, host_name)?),
        RoleName::Node => {
            let listen = args.peer_listen.unwrap_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 9443)));
            Role::Node(settings(args, host_name)?, PeerPort { listen, tls_dir: tls_dir() })
        }
        RoleName::Controller => Role::Controller(ControllerSettings {
            driver_name: args.driver_name.clone(),
            attach: args.attach,
            tls_dir: tls_dir(),
            discovery: discovery(args)?,
            inspect_listen: args.inspect_listen.flatten(),
            inspect_fix: inspect_fix(args)?,
            forget_nodes: args.forget_node.iter().flatten().cloned().collect(),
            moves: lease(args, "moves", args.moves)?,
            events: lease(args, "events", args.events)?,
            move_limits: move_limits(args)?,
        }),
    })
}

fn wrong(field: &str, problem: impl std::fmt::Display) -> ConfigError {
    ConfigError::of::<ServeArgs>(field, problem)
}

/// Whether what people have put right goes over `--inspect-listen`.
fn inspect_fix(args: &ServeArgs) -> Result<bool> {
    match (args.inspect_fix, args.inspect_listen.flatten()) {
        (true, None) => Err(wrong("inspect_fix", "it works with --inspect-listen only; set that, too")),
        (fix, _) => Ok(fix),
    }
}

/// Where the Lease is of the controller that does what this flag asks for: beside the Service of the nodes.
fn lease(args: &ServeArgs, flag: &str, is_given: bool) -> Result<Option<String>> {
    match (&args.peer_service, is_given) {
        (_, false) => Ok(None),
        (Some((namespace, _)), true) => Ok(Some(namespace.clone())),
        (None, true) => Err(wrong(flag, "it works in Kubernetes only; name the nodes with --peer-service")),
    }
}

fn move_limits(args: &ServeArgs) -> Result<MoveLimits> {
    match args.move_limits.flatten() {
        Some(_) if !args.moves => Err(wrong("move_limits", "it works with --move only; leave it out")),
        limits => Ok(limits.unwrap_or_default()),
    }
}

fn discovery(args: &ServeArgs) -> Result<Discovery> {
    let mut peers: Vec<StaticPeer> = Vec::new();
    for StaticPeer { node_id, address } in args.peer.iter().flatten() {
        if let Some(same) = peers.iter().find(|peer| NodeKey::of(&peer.node_id) == NodeKey::of(node_id)) {
            let entry = format!("{node_id}={address}");
            return Err(wrong("peer", format_args!("{entry:?}: the node {:?} is named twice", same.node_id)));
        }
        peers.push(StaticPeer { node_id: node_id.clone(), address: address.clone() });
    }
    match (&args.peer_service, peers.is_empty()) {
        (Some(_), false) => Err(wrong(
            "peer_service",
            "it does not work with --peer; name the nodes, or the Service that knows them",
        )),
        (None, true) => Err(wrong("peer", "a controller needs nodes: name them, or give --peer-service")),
        (Some((namespace, name)), true) => {
            Ok(Discovery::Service { namespace: namespace.clone(), name: name.clone() })
        }
        (None, false) => Ok(Discovery::Static(peers)),
    }
}
