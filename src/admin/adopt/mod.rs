//! `hostloop adopt`: a volume is made of an image file or a directory of a node, or of the claim of another driver. The node makes it
//! (`driver/adopt`); this command asks for it until it is there, and makes the objects. It keeps nothing beside a ConfigMap while a claim
//! is adopted, and can be ended and started again.

pub(super) mod objects;

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use self::objects::Wish;
use super::Outcome;
use super::api::Cluster;
use super::api::adopt::failed;
use super::api::adopt::others::Sought;
use super::api::adopt::record::Records;
use super::inspect::{cluster_of, connect, harmless};
use super::screen::Screen;
use super::seen::Name;
use crate::cli::AdoptArgs;
use crate::cluster::details::{NotAdopted, Source};
use crate::model::{Adoption, AdoptionOrder, format_exactly};
use crate::shutdown::Shutdown;

/// How long the command waits before it asks a node again.
const PAUSE: Duration = Duration::from_secs(2);
/// How long a node may refuse an order that it may accept later.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest name of an object.
const LONGEST_NAME: usize = 253;

/// Who makes volumes.
pub(super) trait Nodes {
    /// Asks the node that the order names.
    fn adopt(&self, order: &AdoptionOrder) -> impl Future<Output = Result<Adoption, NotAdopted>> + Send;
}

impl Nodes for Source {
    async fn adopt(&self, order: &AdoptionOrder) -> Result<Adoption, NotAdopted> {
        Source::adopt(self, order).await
    }
}

/// Runs the command until its end, or until Ctrl-C.
pub(super) async fn run(args: AdoptArgs, shutdown: Shutdown) -> Outcome {
    // Standard output has nothing but what is for kubectl.
    let mut screen = Screen::new(true);
    let Ok(cluster) = cluster_of(&args.source, &mut screen).await else { return Outcome::Failed };
    let nodes = match connect(&args.source, cluster.as_ref()).await {
        Ok(nodes) => nodes,
        Err(error) => {
            screen.problem(&error);
            return Outcome::Failed;
        }
    };
    let mut session = Session { cluster, nodes, screen, args };
    tokio::select! {
        outcome = session.run() => outcome,
        () = shutdown.requested() => Outcome::Failed,
    }
}

/// One run of the command.
pub(super) struct Session<N> {
    /// `None` with `--endpoint`.
    pub(super) cluster: Option<Cluster>,
    pub(super) nodes: N,
    pub(super) screen: Screen,
    pub(super) args: AdoptArgs,
}

/// What the new volume gets of its StorageClass.
#[derive(Debug, Default)]
pub(super) struct Class {
    pub(super) name: String,
    pub(super) parameters: HashMap<String, String>,
    pub(super) fs_type: String,
    pub(super) mount_options: Vec<String>,
    /// `Delete` or `Retain`.
    pub(super) policy: String,
}

impl<N: Nodes> Session<N> {
    pub(super) async fn run(&mut self) -> Outcome {
        let done = match self.args.claim.clone() {
            Some(claim) => self.adopt_claim(self.name(claim)).await,
            None => self.adopt_path().await,
        };
        match done {
            Ok(()) => Outcome::Done,
            Err(why) => {
                self.screen.problem(&harmless(&why));
                Outcome::Failed
            }
        }
    }

    fn name(&self, (namespace, name): (Option<String>, String)) -> Name {
        let own = || self.cluster.as_ref().map_or("default", |cluster| cluster.namespace.as_str()).to_owned();
        Name { namespace: namespace.unwrap_or_else(own), name }
    }

    /// Adopts an image or a directory, and prints or creates the objects.
    async fn adopt_path(&mut self) -> Result<(), String> {
        let claim = self.name(self.args.new_claim.clone().unwrap_or_default());
        let class = self.class().await?;
        let wish =
            Wish { claim, class: class.name, mount_options: class.mount_options, policy: class.policy };
        let (path, is_directory) = match (&self.args.image, &self.args.directory) {
            (Some(image), _) => (image.display().to_string(), false),
            (None, Some(directory)) => (directory.display().to_string(), true),
            (None, None) => return Err("use --image or --directory".to_owned()),
        };
        if self.cluster.is_some() && self.args.node.is_none() {
            return Err(format!("name the node with {path} (--node), or ask it (--endpoint)"));
        }
        let volume_name = wish.volume_name();
        if volume_name.len() > LONGEST_NAME {
            return Err(format!(
                "the name {volume_name} of the PersistentVolume is longer than {LONGEST_NAME} characters; choose a shorter one (--new-claim)"
            ));
        }
        if let (Some(cluster), true) = (&self.cluster, self.args.yes) {
            cluster.expect_free_claim(&wish.claim, &wish.volume_name()).await?;
            cluster.expect_free_volume(&wish.claim, &wish.volume_name()).await?;
        }
        let mut order = AdoptionOrder {
            node_id: self.args.node.clone().unwrap_or_default(),
            path,
            is_directory,
            parameters: class.parameters,
            block: self.args.block,
            fs_type: class.fs_type,
            mount_flags: wish.mount_options.clone(),
            size_bytes: self.args.size.unwrap_or_default(),
            remove_source: self.args.remove_source,
            dry_run: self.args.dry_run,
            look: false,
        };
        if order.block || order.is_directory {
            order.fs_type.clear();
        }
        name_claim(&mut order.parameters, &wish.claim, &wish.volume_name());
        self.expect_sole(&wish.volume_name(), &order).await?;
        let adoption = self.adopt(&order).await?;
        self.tell(&order, &adoption);
        if self.args.dry_run {
            return Ok(());
        }
        let made = [objects::volume(&adoption, &wish), objects::claim(&adoption, &wish)];
        match (&self.cluster, self.args.yes) {
            (Some(cluster), true) => cluster.create_adopted(&made, &wish.claim).await?,
            _ => self.print(&made)?,
        }
        if self.args.yes {
            self.screen.say(&format!("claim {} has the volume", wish.claim));
        }
        Ok(())
    }

    /// Makes sure that the API server knows of no other user of the path.
    pub(super) async fn expect_sole(&mut self, volume: &str, order: &AdoptionOrder) -> Result<(), String> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let (root, driver) = (self.args.source_root.as_deref(), self.args.source.driver_name.as_str());
        cluster.expect_sole(Sought { volume, node: &order.node_id, path: &order.path, root, driver }).await
    }

    fn print(&mut self, objects: &[Value]) -> Result<(), String> {
        for object in objects {
            let text = serde_saphyr::to_string(object).map_err(|error| error.to_string())?;
            self.screen.line(&format!("---\n{}", text.trim_end()));
        }
        Ok(())
    }

    /// Reads the StorageClass; with `--endpoint`, what the flags say of it.
    pub(super) async fn class(&mut self) -> Result<Class, String> {
        let name = self.args.class.clone();
        let Some(cluster) = &self.cluster else {
            let parameters = self.args.parameter.iter().cloned().collect();
            let (name, policy) = (name.unwrap_or_default(), "Delete".to_owned());
            return Ok(Class { name, parameters, policy, ..Class::default() });
        };
        let name = name.ok_or("name the StorageClass of the volume with --class")?;
        let class = cluster.class(&name).await.map_err(failed)?;
        let (provisioner, class) = class.ok_or_else(|| format!("there is no StorageClass {name}"))?;
        if provisioner != self.args.source.driver_name {
            return Err(format!(
                "StorageClass {name} is one of {provisioner}; name one of {} (--class), or another driver (--driver-name)",
                self.args.source.driver_name
            ));
        }
        Ok(class)
    }

    /// Asks the node until the volume is there.
    pub(super) async fn adopt(&mut self, order: &AdoptionOrder) -> Result<Adoption, String> {
        self.adopt_while(order, None).await
    }

    /// Asks the node until the volume is there, as long as the adoption of the claim with this uid is not given up.
    pub(super) async fn adopt_while(
        &mut self,
        order: &AdoptionOrder,
        adoption: Option<(&Records, &str)>,
    ) -> Result<Adoption, String> {
        let (mut said, mut refused_since) = (String::new(), None);
        loop {
            if let Some((records, uid)) = adoption {
                records.expect_under_way(uid).await?;
            }
            let why = match self.nodes.adopt(order).await {
                Ok(adoption) => return Ok(adoption),
                Err(NotAdopted::Refused(why)) => return Err(why),
                Err(NotAdopted::Working(why)) => {
                    refused_since = None;
                    why
                }
                Err(NotAdopted::Later(why)) => {
                    if refused_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        return Err(why);
                    }
                    why
                }
            };
            if why != said {
                self.screen.say(&harmless(&format!("{}: {why}", order.path)));
                said = why;
            }
            sleep(PAUSE).await;
        }
    }

    pub(super) fn tell(&mut self, order: &AdoptionOrder, adoption: &Adoption) {
        let (path, node, way) = (&order.path, &adoption.node_id, &adoption.way);
        let kind = match (adoption.block, adoption.fs_type.as_str()) {
            (true, _) => "a raw block volume",
            (false, "") => "a directory",
            (false, fs_type) => fs_type,
        };
        let size = format_exactly(adoption.capacity_bytes);
        let (verb, id) = match adoption.made {
            true => ("is", format!(" {}", adoption.volume_id)),
            false => ("would become", String::new()),
        };
        self.screen
            .say(&harmless(&format!("{path} of node {node} {verb} volume{id}: {kind}, {size}, by {way}")));
        if let Some(left) = &adoption.left {
            self.screen
                .say(&harmless(&format!("what it was made of is at {left}: remove it when all is well")));
        }
    }
}

/// Adds what external-provisioner says of the claim.
pub(super) fn name_claim(parameters: &mut HashMap<String, String>, claim: &Name, volume: &str) {
    for (key, value) in
        [("pvc/namespace", claim.namespace.as_str()), ("pvc/name", &claim.name), ("pv/name", volume)]
    {
        parameters.insert(format!("csi.storage.k8s.io/{key}"), value.to_owned());
    }
}
