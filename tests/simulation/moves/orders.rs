//! What comes to the nodes, checked when it comes: a call that changes something for a move names a copy that a VolumeReplica names,
//! and comes only in a phase for it. What is asked of the API server is checked as well.

use std::time::Duration;

use hostloop::wire::csi::volume_content_source::Type;
use hostloop::wire::{csi, peer};
use http::Method;
use prost::Message as _;
use serde_json::Value;
use tokio::time::Instant;

use super::rules::{Rules, Seen, text};
use super::{Moves, nodes};
use crate::kubernetes::{Kubernetes, server};

/// For how long a call may still come of what is not known any longer.
const LATE: Duration = Duration::from_secs(40);

/// Whether a call has to do with a move.
pub fn is_checked(rpc: &str) -> bool {
    [
        "CreateVolume",
        "UpdateCopy",
        "CompleteCopy",
        "SealVolume",
        "RetireVolume",
        "ReclaimVolume",
        "DeleteCopy",
        "FindVolume",
    ]
    .contains(&rpc)
}

impl Moves {
    /// A call comes to a node.
    pub fn comes(&self, node: &str, rpc: &str, message: &[u8]) {
        self.with(|kubernetes| {
            let wrong = self.rules.lock().unwrap().order(kubernetes, (node, rpc), message);
            if let Err(why) = wrong {
                kubernetes.wrong.push(format!("{why}: {rpc} at {node}"));
            }
        });
    }

    /// A node answers.
    pub fn goes(&self, node: &str, rpc: &str, asked: &[u8], answer: &[u8]) {
        if rpc != "FindVolume" || answer.is_empty() {
            return;
        }
        let asked = peer::FindVolumeRequest::decode(asked).unwrap_or_default();
        let answer = peer::FindVolumeResponse::decode(answer).unwrap_or_default();
        let says = if answer.deleted { Some(u64::MAX) } else { answer.generation };
        if let Some(says) = says {
            let said = (node.to_owned(), asked.volume_id, says);
            self.rules.lock().unwrap().said.insert(said, Instant::now());
        }
    }

    /// A controller asks something of the API server.
    pub(super) fn asks(&self, (method, path, query): (&Method, &str, &str), body: &Value) {
        if *method == Method::GET || !self.standby {
            return;
        }
        let (key, subresource) = server::parse(path);
        let is_dry = query.contains("dryRun=All") || body["dryRun"] == serde_json::json!(["All"]);
        if is_dry && key.0 == "persistentvolumes" {
            let name = if key.2.is_empty() { text(body, "/metadata/name") } else { &key.2 };
            let name = name.trim_end_matches("-check").to_owned();
            self.rules.lock().unwrap().trials.insert(name, Instant::now());
        }
        if key.0 == "volumereplicas" && !key.2.is_empty() {
            self.with(|kubernetes| {
                let stored = kubernetes.objects.get(&key).cloned().unwrap_or_default();
                let is_last = stored["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"];
                if is_last && stored["status"]["phase"] == super::tenants::LATER {
                    kubernetes.wrong.push(format!("rule 6: the phase is unknown: {method} {path} {body}"));
                }
            });
        }
        let allowed: &[Method] = match (key.0.as_str(), subresource.as_str()) {
            ("volumemoves", "status") | ("volumereplicas", "status") => &[Method::PATCH],
            ("volumereplicas", "") => &[Method::POST, Method::PATCH, Method::DELETE],
            ("persistentvolumes", "") => &[Method::POST, Method::PATCH, Method::DELETE],
            ("persistentvolumeclaims", "") => &[Method::PATCH],
            ("pods", "eviction") | ("events", "") => &[Method::POST, Method::PATCH],
            ("leases", "") => &[Method::POST, Method::PUT, Method::PATCH],
            _ => &[],
        };
        let touches = key.0 != "persistentvolumeclaims"
            || body["spec"].is_null() && body["metadata"]["finalizers"].is_null() && body["status"].is_null();
        if !allowed.contains(method) || !touches {
            self.with(|kubernetes| kubernetes.wrong.push(format!("rule 3: {method} {path} {body}")));
        }
    }
}

type Checked = Result<(), String>;

fn holds(is: bool, rule: &str) -> Checked {
    if is { Ok(()) } else { Err(rule.to_owned()) }
}

impl Seen {
    fn spec(&self, field: &str) -> &str {
        self.object["spec"][field].as_str().unwrap_or_default()
    }

    fn generation(&self) -> u64 {
        self.object["spec"]["generation"].as_u64().unwrap_or_default()
    }

    fn is_deleted(&self) -> bool {
        !self.object["metadata"]["deletionTimestamp"].is_null()
    }

    /// Whether it was ever in this phase, and since when it is, or was for the last time.
    fn since(&self, phase: &str) -> Option<Instant> {
        self.entered.get(phase).copied()
    }
}

impl Rules {
    /// The VolumeReplica that there is, or was, of which this is true.
    fn find(&self, is: impl Fn(&Seen) -> bool) -> Result<&Seen, String> {
        let none = "rules 1 and 5: no VolumeReplica names it";
        self.copies.values().find(|seen| is(seen)).ok_or_else(|| none.to_owned())
    }

    /// Whether a node has said since then that it has this generation of a volume, or that the volume was deleted.
    fn has_said(&self, node: &str, volume: &str, generation: u64, since: Option<Instant>) -> bool {
        let said = |says: u64| self.said.get(&(node.to_owned(), volume.to_owned(), says)).copied();
        let is_after = |at: Option<Instant>| at.zip(since).is_some_and(|(at, since)| at >= since);
        is_after(said(generation)) || is_after(said(u64::MAX))
    }

    fn order(&self, kubernetes: &Kubernetes, (node, rpc): (&str, &str), message: &[u8]) -> Checked {
        match rpc {
            "CreateVolume" => {
                let order = csi::CreateVolumeRequest::decode(message).unwrap_or_default();
                let source = order.volume_content_source.and_then(|source| source.r#type);
                let Some(Type::Volume(source)) = source else { return Ok(()) };
                let seen = self.find(|seen| {
                    seen.spec("copyName") == order.name
                        && seen.spec("targetNode") == node
                        && seen.spec("volumeId") == source.volume_id
                })?;
                self.is_known(seen)
            }
            "UpdateCopy" => {
                let order = peer::UpdateCopyRequest::decode(message).unwrap_or_default();
                let seen = self
                    .find(|seen| seen.spec("copyId") == order.volume_id && seen.spec("targetNode") == node)?;
                holds(order.source_node_id == seen.spec("sourceNode"), "rule 5: of another node")?;
                self.is_known(seen)
            }
            "CompleteCopy" => self.a_completion(node, message),
            "SealVolume" => {
                let order = peer::SealVolumeRequest::decode(message).unwrap_or_default();
                // An earlier one of the same volume may have been given up before that.
                let is_it = |seen: &Seen| {
                    seen.spec("volumeId") == order.volume_id
                        && seen.generation() == order.generation
                        && seen.spec("sourceNode") == node
                        && (order.moved_to.is_empty() || seen.spec("targetNode") == order.moved_to)
                };
                self.find(is_it)?;
                // A status that was lost says nothing of a fence, which is lifted then.
                // A volume that is taken back is fenced first.
                let taken_back = |seen: &Seen| {
                    seen.phase == "Abandoning" && seen.object["status"]["maybeCompleted"] == true
                };
                let was_tried = |seen: &Seen| seen.since("CuttingOver").is_some() || taken_back(seen);
                let tried = self.find(|seen| is_it(seen) && was_tried(seen));
                holds(tried.is_ok() || order.moved_to.is_empty(), "rule 8: nothing was tried before")
            }
            "RetireVolume" => self.a_retirement(node, message),
            "ReclaimVolume" => self.a_return(kubernetes, node, message),
            "DeleteCopy" => self.a_deletion(node, message),
            _ => Ok(()),
        }
    }

    fn a_completion(&self, node: &str, message: &[u8]) -> Checked {
        let order = peer::CompleteCopyRequest::decode(message).unwrap_or_default();
        let seen = self.find(|seen| {
            seen.spec("copyId") == order.volume_id
                && seen.spec("volumeId") == order.source_volume_id
                && seen.generation() + 1 == order.generation
                && seen.spec("targetNode") == node
        })?;
        holds(seen.since("Completing").is_some(), "rule 8: the phase was never Completing")?;
        holds(!order.stale || seen.was_stale, "rule 4: nobody gave the node up")
    }

    fn a_retirement(&self, node: &str, message: &[u8]) -> Checked {
        let order = peer::RetireVolumeRequest::decode(message).unwrap_or_default();
        let of_source = |seen: &Seen| {
            seen.generation() + 1 == order.generation
                && seen.spec("sourceNode") == node
                && seen.since("Retiring").is_some()
        };
        let of_copy = |seen: &Seen| {
            seen.generation() + 2 == order.generation && seen.spec("targetNode") == node && seen.reclaimed
        };
        let is_it = |seen: &Seen| seen.spec("volumeId") == order.volume_id;
        self.find(|seen| is_it(seen) && (of_source(seen) || of_copy(seen))).map(drop)
    }

    fn a_return(&self, kubernetes: &Kubernetes, node: &str, message: &[u8]) -> Checked {
        let order = peer::ReclaimVolumeRequest::decode(message).unwrap_or_default();
        let seen = self.find(|seen| {
            seen.spec("volumeId") == order.volume_id
                && seen.generation() + 2 == order.generation
                && seen.spec("sourceNode") == node
        })?;
        let target = kubernetes.get("nodes", seen.spec("targetNode"));
        let is_lost = target.is_none_or(|target| nodes::is_out_of_service(&target));
        holds(seen.target_is_lost || is_lost || seen.is_deleted(), "rule 4: nobody gave the copy up")
    }

    /// Rule 6: a phase that this release does not know is left alone.
    fn is_known(&self, seen: &Seen) -> Checked {
        let is_unknown = |since: Instant| seen.phase == super::tenants::LATER && since.elapsed() > LATE;
        holds(!seen.since(super::tenants::LATER).is_some_and(is_unknown), "rule 6: the phase is unknown")
    }

    /// Rule 2.
    fn a_deletion(&self, node: &str, message: &[u8]) -> Checked {
        let order = peer::DeleteCopyRequest::decode(message).unwrap_or_default();
        let id = order.volume_id.as_str();
        let is_it = |seen: &Seen| seen.spec("volumeId") == order.source_volume_id;
        let is_left = |seen: &Seen| seen.object["status"]["leftId"] == id;
        if let Ok(seen) =
            self.find(|seen| is_it(seen) && seen.spec("copyId") == id && seen.spec("targetNode") == node)
        {
            let generation = seen.generation() + if seen.reclaimed { 2 } else { 0 };
            let source = seen.spec("sourceNode");
            let said = self.has_said(source, seen.spec("volumeId"), generation, seen.since("Abandoning"));
            return holds(said || seen.is_deleted(), "rule 2: its source has not said that it has the data");
        }
        let seen = self.find(|seen| is_it(seen) && is_left(seen))?;
        let since = seen.since("Retiring");
        let said =
            self.has_said(seen.spec("targetNode"), seen.spec("volumeId"), seen.generation() + 1, since);
        let may = said && !seen.was_stale && !seen.reclaimed;
        holds(may || seen.is_deleted(), "rule 2: what is left may be all that there is")
    }
}
