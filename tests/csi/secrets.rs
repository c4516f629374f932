//! No secret gets out: not into the log at any level, not into an error, not into a file.

use std::io::Write;
use std::sync::{Arc, Mutex};

use hostloop::telemetry::{LogFormat, LogLevel, Logging, subscriber};
use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::life::*;
use crate::support::*;

const CANARY: &str = "CANARY-hunter2";

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("lock").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn secrets() -> std::collections::HashMap<String, String> {
    map(&[("user", CANARY), ("CANARY-hunter2", "x")])
}

/// A capability with a canary among its flags that the kernel takes, or one that it refuses.
fn flagged(valid: bool) -> csi::VolumeCapability {
    let known = format!("context=\"{CANARY}\"");
    let unknown = format!("password={CANARY}");
    mount_with("", &["noatime", if valid { &known } else { &unknown }], Mode::SingleNodeWriter)
}

#[derive(Default)]
struct Seen {
    answers: Vec<String>,
    failures: Vec<Code>,
}

impl Seen {
    fn call<C: Call>(&mut self, rig: &Rig, request: C) -> Option<C::Reply>
    where
        C::Reply: std::fmt::Debug,
    {
        let answer = rig.call(request);
        self.answers.push(match &answer {
            Ok(reply) => format!("{reply:?}"),
            Err(status) => {
                self.failures.push(status.code());
                format!("{status:?} {}", status.message())
            }
        });
        answer.ok()
    }

    /// Every RPC that has a secret, for a volume that is there or is not.
    fn whole_life(&mut self, rig: &Rig, vol: &Vol) {
        let (secrets, capability) = (secrets(), || Some(vol.capability.clone()));
        self.call(
            rig,
            csi::CreateVolumeRequest { secrets: secrets.clone(), ..create("canary", vol.capability.clone()) },
        );
        let attach = vol.attach_request(NODE, false);
        self.call(rig, csi::ControllerPublishVolumeRequest { secrets: secrets.clone(), ..attach });
        let validate = vol.validate_request(vec![vol.capability.clone()]);
        self.call(rig, csi::ValidateVolumeCapabilitiesRequest { secrets: secrets.clone(), ..validate });
        let mut stage = csi::NodeStageVolumeRequest { secrets: secrets.clone(), ..rig.stage_request(vol) };
        let token = "csi.storage.k8s.io/serviceAccount.tokens".to_owned();
        stage.volume_context.insert(token.clone(), CANARY.to_owned());
        self.call(rig, stage);
        let mut publish =
            csi::NodePublishVolumeRequest { secrets: secrets.clone(), ..rig.publish_request(vol, "pod-1") };
        publish.volume_context.insert(token.clone(), CANARY.to_owned());
        self.call(rig, publish.clone());
        publish.volume_context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned());
        publish.volume_id = format!("inline-{}", vol.id);
        publish.target_path.push_str("-inline");
        publish.volume_context.retain(|key, _| key.starts_with("csi."));
        self.call(rig, publish);
        let expand = vol.expand_request(2 * SIZE, 0);
        self.call(
            rig,
            csi::ControllerExpandVolumeRequest {
                secrets: secrets.clone(),
                volume_capability: capability(),
                ..expand
            },
        );
        let expand = vol.node_expand_request(&vol.target("pod-1"));
        self.call(
            rig,
            csi::NodeExpandVolumeRequest {
                secrets: secrets.clone(),
                volume_capability: capability(),
                ..expand
            },
        );
        self.call(rig, vol.unpublish_request("pod-1"));
        self.call(rig, vol.unstage_request());
        self.call(
            rig,
            csi::ControllerUnpublishVolumeRequest { secrets: secrets.clone(), ..vol.detach_request(NODE) },
        );
        self.snapshots(rig, vol);
        let mutable_parameters = map(&[("discard", "false")]);
        let (volume_id, modify_secrets) = (vol.id.clone(), secrets.clone());
        self.call(
            rig,
            csi::ControllerModifyVolumeRequest { volume_id, secrets: modify_secrets, mutable_parameters },
        );
        self.call(rig, csi::DeleteVolumeRequest { secrets, volume_id: vol.id.clone() });
    }

    /// Snapshots of the volume, alone and in a group, and a volume made from one.
    fn snapshots(&mut self, rig: &Rig, vol: &Vol) {
        let secrets = secrets();
        let cut = |seen: &mut Seen, name: &str| {
            let (name, source_volume_id, secrets) = (name.to_owned(), vol.id.clone(), secrets.clone());
            let request =
                csi::CreateSnapshotRequest { name, source_volume_id, secrets, ..Default::default() };
            let made = seen.call(rig, request).and_then(|reply| reply.snapshot);
            made.map_or("no-such-snapshot".to_owned(), |snapshot| snapshot.snapshot_id)
        };
        let (base, snapshot_id) = (cut(self, "canary-1"), cut(self, "canary-2"));
        self.call(rig, csi::ListSnapshotsRequest { secrets: secrets.clone(), ..Default::default() });
        let get = csi::GetSnapshotRequest { snapshot_id: snapshot_id.clone(), secrets: secrets.clone() };
        self.call(rig, get);
        let (of, with) = (snapshot_id.clone(), secrets.clone());
        let allocated =
            csi::GetMetadataAllocatedRequest { snapshot_id: of, secrets: with, ..Default::default() };
        self.call(rig, All(allocated));
        let delta = csi::GetMetadataDeltaRequest {
            base_snapshot_id: base.clone(),
            target_snapshot_id: snapshot_id.clone(),
            secrets: secrets.clone(),
            ..Default::default()
        };
        self.call(rig, All(delta));
        let source = csi::volume_content_source::SnapshotSource { snapshot_id: snapshot_id.clone() };
        let restore = csi::CreateVolumeRequest {
            secrets: secrets.clone(),
            volume_content_source: Some(csi::VolumeContentSource {
                r#type: Some(csi::volume_content_source::Type::Snapshot(source)),
            }),
            capacity_range: None,
            ..create("canary-restored", vol.capability.clone())
        };
        if let Some(volume) = self.call(rig, restore).and_then(|reply| reply.volume) {
            let (volume_id, secrets) = (volume.volume_id, secrets.clone());
            self.call(rig, csi::DeleteVolumeRequest { volume_id, secrets });
        }
        for snapshot_id in [base, snapshot_id] {
            self.call(rig, csi::DeleteSnapshotRequest { snapshot_id, secrets: secrets.clone() });
        }
        let group = csi::CreateVolumeGroupSnapshotRequest {
            name: "canary".to_owned(),
            source_volume_ids: vec![vol.id.clone()],
            secrets: secrets.clone(),
            ..Default::default()
        };
        let made = self.call(rig, group).and_then(|reply| reply.group_snapshot);
        let group_snapshot_id = made.map_or("no-such-group".to_owned(), |group| group.group_snapshot_id);
        let get = csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: group_snapshot_id.clone(),
            secrets: secrets.clone(),
            ..Default::default()
        };
        self.call(rig, get);
        let delete =
            csi::DeleteVolumeGroupSnapshotRequest { group_snapshot_id, secrets, ..Default::default() };
        self.call(rig, delete);
    }
}

/// Every way in which a secret comes in, in calls that succeed and in calls that fail.
fn all_calls() {
    let mut seen = Seen::default();
    let rig = Rig::with(&["--attach"]);
    let vol = rig.volume("canary", mount());
    seen.whole_life(&rig, &vol.used(flagged(true)));
    assert_eq!(seen.failures, [], "{:?}", seen.answers);
    let again = rig.volume("canary", mount());
    seen.whole_life(&rig, &again.used(flagged(false)));
    let unknown = again.with_id("no-such-volume");
    seen.whole_life(&rig, &unknown.used(flagged(false)));
    let other = mount_with("", &[&format!("loop={CANARY}")], Mode::SingleNodeWriter);
    seen.whole_life(&rig, &again.used(other));
    for secrets in [map(&[("a b", CANARY), ("/", CANARY)]), map(&[("a", &CANARY.repeat(400))])] {
        seen.call(&rig, csi::DeleteVolumeRequest { volume_id: "x".to_owned(), secrets });
    }
    assert!(seen.failures.len() > 20, "calls fail, too");
    for answer in &seen.answers {
        assert!(!answer.contains(CANARY), "{answer}");
    }
    let is_image = |path: &String| path.ends_with("/disk.img");
    for path in rig.kernel.tree(DATA).into_iter().filter(|path| !is_image(path)) {
        let Ok(bytes) = rig.kernel.read_file(&path) else { continue };
        assert!(!String::from_utf8_lossy(&bytes).contains(CANARY), "{path}");
    }
}

#[test]
fn the_canary_is_nowhere() {
    let capture = |format| {
        let lines = Lines::default();
        let writer = lines.clone();
        let logging = Logging { level: LogLevel::Trace, format };
        (lines, tracing::Dispatch::new(subscriber(logging, move || writer.clone())))
    };
    // The driver works on threads of its own, which only a global subscriber hears; it hears the other tests, too.
    let (text, global) = capture(LogFormat::Text);
    tracing::dispatcher::set_global_default(global).expect("no other test sets one");
    tracing::callsite::rebuild_interest_cache();
    all_calls();
    let (json, scoped) = capture(LogFormat::Json);
    tracing::dispatcher::with_default(&scoped, all_calls);
    for lines in [text, json] {
        let log = String::from_utf8(lines.0.lock().expect("lock").clone()).expect("text");
        for part in ["NodePublishVolume", "GetMetadataDelta", "CreateVolumeGroupSnapshot", "***stripped***"] {
            assert!(log.contains(part), "the log is at work: {part}");
        }
        for line in log.lines() {
            assert!(!line.contains(CANARY), "{line}");
        }
    }
}
