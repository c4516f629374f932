//! `hostloop support-bundle`: what is needed to look into a problem, in one archive without secrets.

mod archive;
mod redact;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use self::archive::Member;
use super::Outcome;
use super::api::Cluster;
use super::api::bundle::{KINDS, Kind};
use super::inspect::{cluster_of, connect, everything, harmless};
use super::screen::Screen;
use crate::cli::{BundleArgs, SourceArgs};
use crate::cluster::details::Source;
use crate::cluster::findings;
use crate::kernel::report;
use crate::model::Timestamp;
use crate::shutdown::Shutdown;
use crate::version;

/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the findings may take: a node that hangs costs its own answer only, and the API server is asked after it.
const LONG_LOOK: Duration = PATIENCE.saturating_add(findings::PATIENCE);
/// The most of an answer with metrics, in bytes.
const MOST_METRICS: u64 = 16 << 20;
/// The most bytes of what all kernels say.
const MOST_REPORTS: usize = 256 << 20;
/// The name of the state file in its directory.
const STATE: &str = "state.jsonl";

/// Runs the command until its end, or until Ctrl-C.
pub(super) async fn run(args: BundleArgs, shutdown: Shutdown) -> Outcome {
    let to_stdout = args.output == Path::new("-");
    // Standard output is the archive then.
    let mut screen = Screen::new(to_stdout);
    tokio::select! {
        outcome = collect(&args, &mut screen) => outcome,
        () = shutdown.requested() => Outcome::Failed,
    }
}

async fn collect(args: &BundleArgs, screen: &mut Screen) -> Outcome {
    let Ok(cluster) = cluster_of(&args.source, screen).await else { return Outcome::Failed };
    let members = match &cluster {
        Some(cluster) => of_cluster(args, cluster).await,
        None => of_node(args).await,
    };
    match write(&args.output, &members) {
        Ok(()) => {
            screen.say(&harmless(archive::contents(&members).trim_end()));
            screen.say(&format!("written to {}; look through it before you send it", args.output.display()));
            Outcome::Done
        }
        Err(error) => {
            screen.problem(&format!("{}: {error}", args.output.display()));
            Outcome::Failed
        }
    }
}

/// Writes the archive to a new file, or to standard output.
#[allow(clippy::disallowed_types, reason = "the file of the user is no volume's file")]
fn write(output: &Path, members: &[Member]) -> io::Result<()> {
    if output == Path::new("-") {
        return archive::write(io::stdout().lock(), members);
    }
    use std::os::unix::fs::OpenOptionsExt as _;
    // Others on the machine have no right to read it.
    let options = &mut std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(output)?;
    archive::write(&mut file, members)?;
    file.flush()
}

fn about_the_command(of: &str) -> Member {
    let text = format!(
        "hostloop support-bundle {}\ncollected {of}\nseconds since the epoch: {}\n",
        version::long(),
        Timestamp::now().seconds()
    );
    Member::new("version.txt", "the version of this command", Ok(text))
}

/// What nodes answer: one node with `--endpoint`, all of them over a controller.
async fn answers(source: &SourceArgs, cluster: Option<&Cluster>) -> Vec<Member> {
    let mut members = Vec::new();
    let whole = timeout(PATIENCE, everything(source, cluster.cloned())).await;
    match whole.unwrap_or_else(|_| Err(late())) {
        Ok(texts) => {
            for (name, text) in texts {
                members.push(Member::new(
                    format!("{name}.json"),
                    format!("what hostloop {name} shows"),
                    text,
                ));
            }
        }
        Err(why) => members.push(Member::new("nodes.json", "what the nodes say", Err(why))),
    }
    let findings =
        async { super::doctor::report(connect(source, cluster).await?, cluster.cloned(), source).await };
    let late = |_| Err(format!("no answer within {} s", LONG_LOOK.as_secs()));
    let findings = timeout(LONG_LOOK, findings).await.unwrap_or_else(late);
    members.push(Member::new("findings.json", "what hostloop doctor finds", findings));
    members
}

fn late() -> String {
    format!("no answer within {} s", PATIENCE.as_secs())
}

async fn of_node(args: &BundleArgs) -> Vec<Member> {
    let mut members = vec![about_the_command("on a node")];
    members.extend(answers(&args.source, None).await);
    let state = report::read(&args.data_dir.join(STATE)).map_err(|error| error.to_string());
    members.push(Member::new(
        STATE,
        "the state file: names, sizes and ids",
        state.map(|text| of_lines(&text)),
    ));
    if let Some(address) = args.metrics {
        members.push(Member::new("metrics.txt", "the metrics of the driver", metrics_at(address).await));
    }
    for part in report::all() {
        members.push(Member::new(part.name, part.about, part.text.map_err(|error| error.to_string())));
    }
    members
}

/// Returns lines of JSON without what may be secret. A line that is none is damaged, and kept.
fn of_lines(text: &str) -> String {
    let line = |line: &str| match serde_json::from_str::<Value>(line) {
        Ok(mut value) => {
            redact::object(&mut value);
            value.to_string()
        }
        Err(_) => line.to_owned(),
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

async fn of_cluster(args: &BundleArgs, cluster: &Cluster) -> Vec<Member> {
    let mut members = vec![about_the_command("over the API server")];
    members.extend(answers(&args.source, Some(cluster)).await);
    let driver = &args.source.driver_name;
    let namespace = match &args.source.driver_namespace {
        Some(namespace) => Ok(namespace.clone()),
        None => in_time(cluster.namespace_of(driver)).await,
    };
    let mut names = BTreeSet::new();
    for kind in &KINDS {
        let found = match (kind.of_driver, &namespace) {
            (true, Err(why)) => Err(why.clone()),
            (true, Ok(namespace)) => {
                let found = in_time(cluster.objects(kind, driver, Some(namespace))).await;
                found.map(|found| kind.of_the_driver(found, &mut names))
            }
            (false, _) => in_time(cluster.objects(kind, driver, None)).await,
        };
        members.push(of_objects(kind, found));
    }
    match &namespace {
        Ok(namespace) => members.extend(of_pods(cluster, namespace).await),
        Err(why) => members.push(Member::new("logs", "the logs of the driver", Err(why.clone()))),
    }
    members.extend(of_kernels(connect(&args.source, Some(cluster)).await).await);
    members
}

/// What the kernels of the nodes say. A node that does not answer is in the list, with the reason.
async fn of_kernels(source: Result<Source, String>) -> Vec<Member> {
    const ABOUT: &str = "mounts, loop devices and messages of the kernel";
    let asked = match source {
        Ok(source) => source.reports(MOST_REPORTS).await,
        Err(why) => Err(why),
    };
    let nodes = match asked {
        Ok(nodes) => nodes,
        Err(why) => return vec![Member::new("nodes", format!("{ABOUT} of each node"), Err(why))],
    };
    let mut members = Vec::new();
    for node in nodes {
        let (id, directory) = (&node.known.node_id, format!("nodes/{}", file_name(&node.known.node_id)));
        match node.answer {
            Ok(parts) => members.extend(parts.into_iter().map(|part| {
                let name = format!("{directory}/{}", file_name(&part.name));
                Member::new(name, format!("{} of node {id}", part.about), part.text)
            })),
            Err(why) => members.push(Member::new(directory, format!("{ABOUT} of node {id}"), Err(why))),
        }
    }
    members
}

/// Returns a name of a file for what another process has named: it leads nowhere else.
fn file_name(name: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let name: String = name.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect();
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None if name.is_empty() => "_".to_owned(),
        None => name,
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| Err(late()))
}

fn of_objects(kind: &Kind, found: Result<Vec<Value>, String>) -> Member {
    let text = found.and_then(|mut found| {
        found.iter_mut().for_each(redact::object);
        serde_json::to_string_pretty(&found).map_err(|error| error.to_string())
    });
    Member::new(format!("objects/{}.json", kind.plural), format!("{} of the driver", kind.kind), text)
}

/// The logs and the metrics of the pods of the driver.
async fn of_pods(cluster: &Cluster, namespace: &str) -> Vec<Member> {
    let pods = match in_time(cluster.driver_pods(namespace)).await {
        Ok(pods) => pods,
        Err(why) => return vec![Member::new("logs", "the logs of the driver", Err(why))],
    };
    let mut members = Vec::new();
    for pod in pods {
        for container in &pod.containers {
            for previous in [false, true] {
                let log = in_time(cluster.log(namespace, &pod.name, container, previous)).await;
                // Most containers have not been started again.
                if previous && log.is_err() {
                    continue;
                }
                let end = if previous { ".previous" } else { "" };
                let name = format!("logs/{}/{container}{end}.log", pod.name);
                members.push(Member::new(name, format!("the log of a container of {}", pod.name), log));
            }
        }
        if let Some(port) = pod.metrics {
            let metrics =
                in_time(async { metrics_of(cluster.port(namespace, &pod.name, port).await?).await }).await;
            members.push(Member::new(
                format!("metrics/{}.txt", pod.name),
                format!("the metrics of {}", pod.name),
                metrics,
            ));
        }
    }
    members
}

async fn metrics_at(address: SocketAddr) -> Result<String, String> {
    let asked = async {
        let stream =
            TcpStream::connect(address).await.map_err(|error| format!("connect to {address}: {error}"))?;
        metrics_of(stream).await
    };
    in_time(asked).await
}

/// Asks for /metrics over a connection.
async fn metrics_of(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<String, String> {
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut answer = Vec::new();
    let asked = async {
        stream.write_all(request.as_bytes()).await?;
        stream.take(MOST_METRICS).read_to_end(&mut answer).await
    };
    asked.await.map_err(|error: io::Error| error.to_string())?;
    let answer = String::from_utf8_lossy(&answer);
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        Some((head, _)) => Err(head.lines().next().unwrap_or_default().to_owned()),
        None => Err("it does not answer as a server of metrics".to_owned()),
    }
}
