//! `--role`, and the flags that belong to some roles only.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::{ConfigError, Flag, fields, inline, pools, settings};
use crate::cli::ServeArgs;
use crate::model::{NodeKey, Settings, check_topology_value};

type Result<T> = std::result::Result<T, ConfigError>;

const ROLE: Flag = Flag("--role", "HOSTLOOP_ROLE");
const PEER_LISTEN: Flag = Flag("--peer-listen", "HOSTLOOP_PEER_LISTEN");
const TLS_DIR: Flag = Flag("--tls-dir", "HOSTLOOP_TLS_DIR");
const PEER: Flag = Flag("--peer", "HOSTLOOP_PEERS");
const PEER_SERVICE: Flag = Flag("--peer-service", "HOSTLOOP_PEER_SERVICE");
const FORGET_NODE: Flag = Flag("--forget-node", "HOSTLOOP_FORGET_NODES");

/// The longest name of a host in bytes (RFC 1035, 2.3.4).
const HOST_LIMIT: usize = 253;
/// The longest name of a Kubernetes namespace or Service in bytes (RFC 1035 label).
const LABEL_LIMIT: usize = 63;

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
    /// Its name in `--role`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Role::All(_) => "all",
            Role::Node(..) => "node",
            Role::Controller(_) => "controller",
        }
    }

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
    /// The address.
    pub listen: SocketAddr,
    /// The directory with the certificates.
    pub tls_dir: PathBuf,
}

/// What a controller needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerSettings {
    /// CSI plugin name.
    pub driver_name: String,
    /// Whether attaching is served; the nodes must have the same.
    pub attach: bool,
    /// The directory with the certificates.
    pub tls_dir: PathBuf,
    /// How the nodes are found.
    pub discovery: Discovery,
    /// Node ids whose volumes and snapshots are given up once the node is gone.
    pub forget_nodes: BTreeSet<String>,
}

/// How a controller finds the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discovery {
    /// They are known; each once, at least one.
    Static(Vec<StaticPeer>),
    /// The pods behind a headless Service.
    Service {
        /// The Service's namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// A node that `--peer` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticPeer {
    /// CSI node id.
    pub node_id: String,
    /// HOST:PORT.
    pub address: String,
}

/// The roles with volumes.
const VOLUMES: &[&str] = &["all", "node"];
/// The roles of a process in a cluster.
const CLUSTER: &[&str] = &["node", "controller"];
const NODE: &[&str] = &["node"];
const CONTROLLER: &[&str] = &["controller"];

/// Every flag that belongs to some roles only: whether it was given, and those roles.
fn given(args: &ServeArgs) -> [(Flag, bool, &'static [&'static str]); 18] {
    let max_volumes = Flag("--max-volumes-per-node", "HOSTLOOP_MAX_VOLUMES_PER_NODE");
    let max_volume = Flag("--max-volume-size", "HOSTLOOP_MAX_VOLUME_SIZE");
    let anchor_dir = args.anchor_dir.as_ref().is_some_and(|dir| !dir.is_empty());
    let kubelet_dir = args.kubelet_dir.as_ref().is_some_and(|dir| !dir.is_empty());
    [
        (PEER_LISTEN, args.peer_listen.is_some(), NODE),
        (TLS_DIR, args.tls_dir.is_some(), CLUSTER),
        (PEER, !entries(&args.peer).is_empty(), CONTROLLER),
        (PEER_SERVICE, args.peer_service.is_some(), CONTROLLER),
        (FORGET_NODE, !entries(&args.forget_node).is_empty(), CONTROLLER),
        (Flag("--node-id", "NODE_ID"), args.node_id.is_some(), VOLUMES),
        (Flag("--data-dir", "HOSTLOOP_DATA_DIR"), args.data_dir.is_some(), VOLUMES),
        (Flag("--anchor-dir", "HOSTLOOP_ANCHOR_DIR"), anchor_dir, VOLUMES),
        (Flag("--pool", "HOSTLOOP_POOLS"), !entries(&args.pool).is_empty(), VOLUMES),
        (Flag("--reserve", "HOSTLOOP_RESERVE"), args.reserve.is_some(), VOLUMES),
        (Flag("--overcommit", "HOSTLOOP_OVERCOMMIT"), args.overcommit.is_some(), VOLUMES),
        (max_volumes, args.max_volumes_per_node.is_some(), VOLUMES),
        (max_volume, args.max_volume_size.is_some(), VOLUMES),
        (pools::DIRECTORIES, !matches!(args.directories.as_str(), "" | "false"), VOLUMES),
        (inline::MAX_SIZE, args.inline_max_size.is_some(), VOLUMES),
        (inline::POOLS, args.inline_pools.is_some(), VOLUMES),
        (inline::BACKENDS, args.inline_backends.is_some(), VOLUMES),
        (Flag("--kubelet-dir", "HOSTLOOP_KUBELET_DIR"), kubelet_dir, VOLUMES),
    ]
}

/// The role, with the flags that belong to it. One that belongs to other roles stops the start: it would be
/// without effect, and somebody wanted one.
pub(super) fn role(args: &ServeArgs, host_name: Option<String>) -> Result<Role> {
    let role = args.role.as_str();
    let stray = given(args).into_iter().find(|(_, given, roles)| *given && !roles.contains(&role));
    let known = |make: Result<Role>| match stray {
        Some((flag, _, roles)) => Err(flag.wrong(format_args!(
            "it works with --role {} only, not with {role}; leave it out",
            roles.join(" and ")
        ))),
        None => make,
    };
    match role {
        "all" => known(settings(args, host_name).map(Role::All)),
        "node" => known(node(args, host_name)),
        "controller" => known(controller(args).map(Role::Controller)),
        other => Err(ROLE.wrong(format_args!("{other:?} is not a role; use all, node or controller"))),
    }
}

fn node(args: &ServeArgs, host_name: Option<String>) -> Result<Role> {
    let port = PeerPort { listen: peer_listen(args.peer_listen.as_deref())?, tls_dir: tls_dir(args)? };
    Ok(Role::Node(settings(args, host_name)?, port))
}

fn controller(args: &ServeArgs) -> Result<ControllerSettings> {
    let forget = |id: &&str| match check_topology_value(id) {
        Ok(()) => Ok((*id).to_owned()),
        Err(e) => Err(FORGET_NODE.wrong(e)),
    };
    Ok(ControllerSettings {
        driver_name: fields::driver_name(&args.driver_name)?,
        attach: fields::attach(&args.attach)?,
        tls_dir: tls_dir(args)?,
        discovery: discovery(args)?,
        forget_nodes: entries(&args.forget_node).iter().map(forget).collect::<Result<_>>()?,
    })
}

/// The values of a flag that can be repeated, or stand in one variable with `;` between them.
fn entries(values: &[String]) -> Vec<&str> {
    values.iter().flat_map(|value| value.split(';')).map(str::trim).filter(|text| !text.is_empty()).collect()
}

fn peer_listen(text: Option<&str>) -> Result<SocketAddr> {
    let text = text.unwrap_or("0.0.0.0:9443");
    text.parse().map_err(|_| {
        PEER_LISTEN.wrong(format_args!("{text:?} is not an address; write it as IP:PORT, such as [::]:9443"))
    })
}

fn tls_dir(args: &ServeArgs) -> Result<PathBuf> {
    fields::absolute(args.tls_dir.as_deref().unwrap_or("/etc/hostloop/tls")).map_err(|why| TLS_DIR.wrong(why))
}

fn discovery(args: &ServeArgs) -> Result<Discovery> {
    let peers = entries(&args.peer);
    match (&args.peer_service, peers.is_empty()) {
        (Some(_), false) => Err(PEER_SERVICE
            .wrong("it does not work with --peer; name the nodes, or the Service that knows them")),
        (None, true) => Err(PEER.wrong("a controller needs nodes: name them, or give --peer-service")),
        (Some(service), true) => self::service(service),
        (None, false) => static_peers(&peers).map(Discovery::Static),
    }
}

/// `NAMESPACE/NAME`.
fn service(text: &str) -> Result<Discovery> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let label = |part: &str| {
        (1..=LABEL_LIMIT).contains(&part.len())
            && part.chars().all(inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    match text.split_once('/').filter(|(namespace, name)| label(namespace) && label(name)) {
        Some((namespace, name)) => {
            Ok(Discovery::Service { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        None => {
            Err(PEER_SERVICE.wrong(format_args!("{text:?} is not a Service; write it as NAMESPACE/NAME")))
        }
    }
}

fn static_peers(entries: &[&str]) -> Result<Vec<StaticPeer>> {
    let mut peers: Vec<StaticPeer> = Vec::new();
    for text in entries {
        let wrong = |problem: String| PEER.wrong(format_args!("{text:?}: {problem}"));
        let (node_id, address) =
            text.split_once('=').ok_or_else(|| wrong("write it as NODE_ID=HOST:PORT".to_owned()))?;
        check_topology_value(node_id).map_err(|e| wrong(e.to_string()))?;
        if !is_address(address) {
            return Err(wrong(format!("{address:?} is not a HOST:PORT")));
        }
        if let Some(same) = peers.iter().find(|peer| NodeKey::of(&peer.node_id) == NodeKey::of(node_id)) {
            return Err(wrong(format!("the node {:?} is named twice", same.node_id)));
        }
        peers.push(StaticPeer { node_id: node_id.to_owned(), address: address.to_owned() });
    }
    Ok(peers)
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
