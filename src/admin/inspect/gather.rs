//! What is asked for one answer: the nodes, and what the API server knows of their volumes. All of it is asked at the same time.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::admin::api::inspect::{Cut, Known, User, untold};
use crate::admin::api::watched::Watches;
use crate::admin::api::{Cluster, Failure};
use crate::cli::SourceArgs;
use crate::cluster::details::{AskedNode, PATIENCE, Source};
use crate::server::Endpoint;

/// How long the API server may take for a list.
const LISTS_WITHIN: Duration = Duration::from_secs(30);

/// What the API server knows; `None` for what was not asked or may not be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Objects {
    pub(super) volumes: Option<Vec<Known>>,
    pub(super) pods: Option<Vec<User>>,
    /// The namespace that these pods are of; `None` for all.
    pub(super) pods_of: Option<String>,
    pub(super) snapshots: Option<Vec<Cut>>,
}

/// All that was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Found {
    pub(super) nodes: Vec<AskedNode>,
    pub(super) objects: Objects,
    /// What could not be read, for people.
    pub(super) problems: BTreeSet<String>,
}

impl Found {
    /// Returns the nodes that did not answer, and why.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = (&str, &str)> {
        self.nodes.iter().filter(|node| node.answer.is_err()).map(|node| {
            let why = node.answer.as_ref().err().map_or("", String::as_str);
            (node.known.node_id.as_str(), why)
        })
    }
}

/// Which objects of the API server are of use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wanted<'a> {
    pub(super) volumes: bool,
    /// With the namespace, if it is one only.
    pub(super) pods: Option<Option<&'a str>>,
    pub(super) snapshots: bool,
}

/// Who is asked. A connection is kept from one answer to the next.
pub(super) struct Asker {
    args: SourceArgs,
    /// `None` with `--endpoint`.
    pub(super) cluster: Option<Cluster>,
    source: Option<Source>,
    /// With `--watch`, from the first answer on.
    watches: Option<Watches>,
    is_watching: bool,
}

impl Asker {
    pub(super) fn new(args: SourceArgs, cluster: Option<Cluster>) -> Self {
        Asker { args, cluster, source: None, watches: None, is_watching: false }
    }

    /// Asks over this connection as long as it lives.
    #[cfg(test)]
    pub(super) fn over(args: SourceArgs, cluster: Cluster, source: Source) -> Self {
        Asker { source: Some(source), ..Asker::new(args, Some(cluster)) }
    }

    /// Reads each list of the API server once, and watches it from then on: it is asked for again and again.
    pub(super) fn watching(self) -> Self {
        Asker { is_watching: true, ..self }
    }

    /// Asks the nodes and the API server.
    ///
    /// # Errors
    /// If the nodes cannot be asked at all.
    pub(super) async fn ask(&mut self, wanted: Wanted<'_>) -> Result<Found, String> {
        let (kept, driver) = (self.source.take(), self.args.driver_name.clone());
        if let Some(cluster) = self.cluster.as_ref().filter(|_| self.is_watching && self.watches.is_none()) {
            self.watches = Some(Watches::new(cluster, wanted.volumes, wanted.pods, wanted.snapshots));
        }
        let (asked, lists) = tokio::join!(self.nodes(kept), self.lists(wanted, &driver));
        let (source, nodes) = asked?;
        self.source = Some(source);
        let (objects, problems) = lists;
        Ok(Found { nodes, objects, problems })
    }

    async fn nodes(&self, kept: Option<Source>) -> Result<(Source, Vec<AskedNode>), String> {
        if let Some(source) = kept
            && let Ok(nodes) = source.ask_all().await
        {
            return Ok((source, nodes));
        }
        let source = connect(&self.args, self.cluster.as_ref()).await?;
        let nodes = source.ask_all().await?;
        Ok((source, nodes))
    }

    async fn lists(&self, wanted: Wanted<'_>, driver: &str) -> (Objects, BTreeSet<String>) {
        let (mut objects, mut problems) = (Objects::default(), BTreeSet::new());
        let Some(cluster) = &self.cluster else { return (objects, problems) };
        let watches = self.watches.as_ref();
        let volumes = wanted.volumes.then_some(async {
            let watched = match watches {
                Some(watches) => watches.known_volumes(driver).await,
                None => None,
            };
            match watched {
                Some(known) => Ok(known),
                None => cluster.known_volumes(driver).await,
            }
        });
        let pods = wanted.pods.map(|namespace| async move {
            let watched = match watches {
                Some(watches) => watches.users().await,
                None => None,
            };
            match watched {
                Some(users) => Ok(users),
                None => cluster.users(namespace).await,
            }
        });
        let snapshots = wanted.snapshots.then_some(async {
            let watched = match watches {
                Some(watches) => watches.cuts(driver).await,
                None => None,
            };
            match watched {
                Some(cuts) => Ok(cuts),
                None => cluster.cuts(driver).await,
            }
        });
        let (volumes, pods, snapshots) = tokio::join!(in_time(volumes), in_time(pods), in_time(snapshots));
        objects.volumes = kept(volumes, "list PersistentVolumes", &mut problems);
        objects.pods = kept(pods, "list pods", &mut problems);
        objects.pods_of = wanted.pods.flatten().map(str::to_owned);
        objects.snapshots = kept(snapshots, "list VolumeSnapshotContents", &mut problems);
        (objects, problems)
    }
}

/// Connects to a controller, or to the process at the socket that is named.
///
/// # Errors
/// Why there is no connection.
pub(in crate::admin) async fn connect(
    args: &SourceArgs,
    cluster: Option<&Cluster>,
) -> Result<Source, String> {
    match (cluster, &args.endpoint) {
        (Some(cluster), _) => cluster.controller(&args.driver_name, args.driver_namespace.as_deref()).await,
        (None, Some(Endpoint::Unix(path))) => Source::at(path).await,
        (None, Some(Endpoint::Tcp(address))) => {
            let stream = timeout(PATIENCE, TcpStream::connect(address)).await;
            let stream = stream.map_err(|_| format!("connect to {address}: no answer"))?;
            Source::over(stream.map_err(|error| format!("connect to {address}: {error}"))?).await
        }
        (None, None) => Err("use --endpoint, or a kubeconfig".to_owned()),
    }
}

async fn in_time<T>(list: Option<impl Future<Output = Result<T, Failure>>>) -> Option<Result<T, Failure>> {
    let late = || Failure::Later(format!("no answer within {} s", LISTS_WITHIN.as_secs()));
    Some(timeout(LISTS_WITHIN, list?).await.unwrap_or_else(|_| Err(late())))
}

fn kept<T>(list: Option<Result<T, Failure>>, right: &str, problems: &mut BTreeSet<String>) -> Option<T> {
    match list? {
        Ok(list) => Some(list),
        Err(error) => {
            problems.insert(untold(&error, right));
            None
        }
    }
}
