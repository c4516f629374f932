//! `hostloop volumes`, `volume`, `snapshots` and `nodes`: what is where, and what it takes. The nodes say what they have
//! (`cluster/details.rs`), and the API server what of it is whose. Nothing is changed. The nodes are asked
//! for each answer anew; with `--watch`, the lists of the API server are watched.

mod cells;
mod gather;
mod nodes;
mod one;
mod order;
mod snapshots;
#[cfg(test)]
mod tests;
mod volumes;

use serde::Serialize;

pub(super) use self::gather::connect;
use self::gather::{Asker, Found, Wanted};
use super::Outcome;
use super::api::Cluster;
use super::screen::Screen;
use crate::cli::{ClusterArgs, InspectCommand, Output, ScopeArgs, SourceArgs};
use crate::shutdown::Shutdown;

/// Runs a command until its end, or until Ctrl-C.
pub(super) async fn run(command: InspectCommand, shutdown: Shutdown) -> Outcome {
    let mut screen = Screen::new(false);
    let source = command.source();
    let Ok(cluster) = cluster_of(source, &mut screen).await else { return Outcome::Failed };
    let asker = Asker::new(source.clone(), cluster);
    let asker = if command.view().watch { asker.watching() } else { asker };
    // Ctrl-C is the only end of --watch.
    let interrupted = if command.view().watch { Outcome::Done } else { Outcome::Failed };
    let mut session = Session { asker, screen, command };
    tokio::select! {
        outcome = session.run() => outcome,
        () = shutdown.requested() => interrupted,
    }
}

/// Connects to the cluster of the arguments; `None` with `--endpoint`.
///
/// # Errors
/// If there is no connection; the screen says why.
pub(super) async fn cluster_of(source: &SourceArgs, screen: &mut Screen) -> Result<Option<Cluster>, ()> {
    if source.endpoint.is_some() {
        return Ok(None);
    }
    let connected = Cluster::connect(&cluster_args(source)).await;
    connected.map(Some).map_err(|error| screen.problem(&format!("{error}. On a node, use --endpoint")))
}

fn cluster_args(source: &SourceArgs) -> ClusterArgs {
    ClusterArgs {
        kubeconfig: source.kubeconfig.clone(),
        context: source.context.clone(),
        driver_name: source.driver_name.clone(),
        json: false,
    }
}

struct Session {
    asker: Asker,
    screen: Screen,
    command: InspectCommand,
}

/// A list for programs.
#[derive(Debug, Serialize)]
struct List<'a, T> {
    items: &'a [T],
    unanswered: Vec<Unanswered<'a>>,
}

/// A node that did not answer.
#[derive(Debug, Serialize)]
struct Unanswered<'a> {
    node: &'a str,
    problem: &'a str,
}

impl Session {
    async fn run(&mut self) -> Outcome {
        let (watch, every) = (self.command.view().watch, self.command.view().every);
        loop {
            let outcome = self.show().await;
            if !watch {
                return outcome;
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Asks once, and prints the answer.
    async fn show(&mut self) -> Outcome {
        let command = self.command.clone();
        let namespace = self.namespace(&command);
        let namespace = namespace.as_deref();
        let found = match self.asker.ask(wanted(&command, namespace)).await {
            Ok(found) => found,
            Err(error) => {
                self.screen.problem(&error);
                return Outcome::Failed;
            }
        };
        match printed(&command, &found, namespace) {
            Ok(text) => {
                let view = command.view();
                let again = view.watch && matches!(view.output, Output::Table | Output::Wide);
                self.screen.page(&harmless(&text), again);
                self.tell_problems(&found);
                match &command {
                    InspectCommand::Volume(args) if !one::is_known(&found, &args.name, namespace) => {
                        Outcome::Failed
                    }
                    _ => Outcome::Done,
                }
            }
            Err(error) => {
                self.tell_problems(&found);
                self.screen.problem(&error);
                Outcome::Failed
            }
        }
    }

    fn tell_problems(&mut self, found: &Found) {
        for problem in &found.problems {
            self.screen.problem(&harmless(problem));
        }
        for (node, why) in found.unanswered() {
            self.screen.problem(&harmless(&format!("node {node} did not answer: {why}")));
        }
    }

    /// Returns the namespace that is meant; `None` for all.
    fn namespace(&self, command: &InspectCommand) -> Option<String> {
        let own = || self.asker.cluster.as_ref().map(|cluster| cluster.namespace.clone());
        match command {
            InspectCommand::Volumes(args) => namespace_of(&args.scope, own),
            InspectCommand::Snapshots(args) => namespace_of(&args.scope, own),
            InspectCommand::Volume(args) => args.namespace.clone().or_else(own),
            InspectCommand::Nodes(_) => None,
        }
    }
}

/// Returns which objects a command shows.
fn wanted<'a>(command: &'a InspectCommand, namespace: Option<&'a str>) -> Wanted<'a> {
    match command {
        InspectCommand::Volumes(_) => Wanted { volumes: true, pods: Some(namespace), snapshots: false },
        // Without -n, a PersistentVolume or an id may be meant whose claim is in another namespace.
        InspectCommand::Volume(args) => {
            Wanted { volumes: true, pods: Some(args.namespace.as_deref()), snapshots: true }
        }
        InspectCommand::Snapshots(_) => Wanted { volumes: true, pods: None, snapshots: true },
        InspectCommand::Nodes(_) => Wanted::default(),
    }
}

/// Returns what `nodes`, `volumes` and `snapshots` show of everything, as JSON.
///
/// # Errors
/// If the nodes cannot be asked at all.
pub(super) async fn everything(
    source: &SourceArgs,
    cluster: Option<Cluster>,
) -> Result<[(&'static str, Result<String, String>); 3], String> {
    let mut asker = Asker::new(source.clone(), cluster);
    let found = asker.ask(Wanted { volumes: true, pods: Some(None), snapshots: true }).await?;
    let scope = ScopeArgs { all_namespaces: true, ..ScopeArgs::default() };
    let output = Output::Json;
    Ok([
        ("nodes", list(output, &nodes::rows(&found), &found, |_| String::new(), String::new)),
        (
            "volumes",
            list(output, &volumes::rows(&found, &scope, None), &found, |_| String::new(), String::new),
        ),
        (
            "snapshots",
            list(output, &snapshots::rows(&found, &scope, None), &found, |_| String::new(), String::new),
        ),
    ])
}

/// Returns a text that a terminal only shows: what a node or an object is named may hold escape sequences.
pub(super) fn harmless(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() && letter != '\n' { ' ' } else { letter }).collect()
}

fn namespace_of(scope: &ScopeArgs, own: impl FnOnce() -> Option<String>) -> Option<String> {
    if scope.all_namespaces { None } else { scope.namespace.clone().or_else(own) }
}

/// Returns what to print.
///
/// # Errors
/// If there is no such volume.
fn printed(command: &InspectCommand, found: &Found, namespace: Option<&str>) -> Result<String, String> {
    let output = command.view().output;
    let wide = output == Output::Wide;
    match command {
        InspectCommand::Volumes(args) => {
            let rows = volumes::rows(found, &args.scope, namespace);
            let name = |row: &volumes::VolumeRow| match (&row.claim, &row.persistent_volume) {
                (Some(claim), _) => format!("persistentvolumeclaim/{claim}"),
                (None, Some(volume)) => format!("persistentvolume/{volume}"),
                (None, None) => row.id.clone(),
            };
            list(output, &rows, found, name, || match rows.is_empty() {
                true => nothing("volume", namespace, found),
                false => cells::volumes(&rows, namespace.is_none(), wide),
            })
        }
        InspectCommand::Snapshots(args) => {
            let rows = snapshots::rows(found, &args.scope, namespace);
            let name = |row: &snapshots::SnapshotRow| match &row.snapshot {
                Some(snapshot) => format!("volumesnapshot/{snapshot}"),
                None => row.id.clone(),
            };
            list(output, &rows, found, name, || match rows.is_empty() {
                true => nothing("snapshot", namespace, found),
                false => cells::snapshots(&rows, namespace.is_none(), wide),
            })
        }
        InspectCommand::Nodes(_) => {
            let rows = nodes::rows(found);
            let name = |row: &nodes::NodeRow| format!("node/{}", row.node);
            list(output, &rows, found, name, || cells::nodes(&rows, wide))
        }
        InspectCommand::Volume(args) => one(output, found, &args.name, namespace),
    }
}

fn nothing(what: &str, namespace: Option<&str>, found: &Found) -> String {
    let place = namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
    match found.unanswered().next() {
        None => format!("no {what}{place}"),
        Some(_) => format!("no {what}{place} on the nodes that answered"),
    }
}

fn list<T: Serialize>(
    output: Output,
    rows: &[T],
    found: &Found,
    name: impl Fn(&T) -> String,
    table: impl FnOnce() -> String,
) -> Result<String, String> {
    let unanswered = || found.unanswered().map(|(node, problem)| Unanswered { node, problem }).collect();
    match output {
        Output::Table | Output::Wide => Ok(table()),
        Output::Json => json(&List { items: rows, unanswered: unanswered() }),
        Output::Yaml => yaml(&List { items: rows, unanswered: unanswered() }),
        Output::Name => Ok(rows.iter().map(name).collect::<Vec<_>>().join("\n")),
    }
}

fn one(output: Output, found: &Found, name: &str, namespace: Option<&str>) -> Result<String, String> {
    let meant = one::find(found, name, namespace);
    let Some(first) = meant.first() else {
        let silent: Vec<&str> = found.unanswered().map(|(node, _)| node).collect();
        return Err(match silent.as_slice() {
            [] if found.objects.volumes.is_none() => {
                format!("no node has a volume with the id {name:?}, and which claims there are is not known")
            }
            [] => format!(
                "there is no volume {name:?}: neither a claim{} nor a PersistentVolume nor an id",
                within(namespace)
            ),
            silent => format!(
                "there is no volume {name:?} on the nodes that answered; {} did not",
                silent.join(", ")
            ),
        });
    };
    match output {
        Output::Table | Output::Wide => Ok(meant.iter().map(one::describe).collect::<Vec<_>>().join("\n\n")),
        Output::Json if meant.len() == 1 => json(first),
        Output::Yaml if meant.len() == 1 => yaml(first),
        Output::Json => json(&meant),
        Output::Yaml => yaml(&meant),
        Output::Name => Ok(first
            .volume
            .persistent_volume
            .clone()
            .map_or_else(|| first.volume.id.clone(), |volume| format!("persistentvolume/{volume}"))),
    }
}

fn within(namespace: Option<&str>) -> String {
    namespace.map(|namespace| format!(" of namespace {namespace}")).unwrap_or_default()
}

fn json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(value).map_err(|error| error.to_string())
}

fn yaml(value: &impl Serialize) -> Result<String, String> {
    let text = serde_saphyr::to_string(value).map_err(|error| error.to_string())?;
    Ok(text.trim_end().to_owned())
}
