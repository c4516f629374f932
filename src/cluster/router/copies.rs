//! What a move needs of the nodes (`cluster/mover/copies.rs`), by the calls that they serve.

use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};

use super::Router;
use super::forward::Envelope;
use super::owner::{Last, Named};
use super::route::Asked;
use crate::cluster::mover::copies::{Access, Copies, CopyError, NewCopy, Round, Updated, most_bytes};
use crate::cluster::peers::Member;
use crate::cluster::permit;
use crate::model::{self, Grant, Settings};
use crate::service::table::encode;
use crate::wire::csi::volume_capability::access_mode::Mode;
use crate::wire::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::wire::csi::volume_content_source::{Type, VolumeSource};
use crate::wire::{csi, decode, peer};

/// How long a call may take before the mover looks again at what is wanted. What it has begun goes on.
const LIMIT: Duration = Duration::from_secs(10);

type Result<T> = std::result::Result<T, CopyError>;

#[tonic::async_trait]
impl Copies for Router {
    fn nodes(&self) -> Option<Vec<String>> {
        let members = self.members().ok()?;
        Some(members.iter().map(|(_, member)| member.node_id.clone()).collect())
    }

    async fn room(&self, copy: &NewCopy) -> Result<u64> {
        let members = self.members().map_err(|error| failed(&error.into()))?;
        let gone = || CopyError::Unavailable(format!("the driver does not run on node {:?}", copy.target));
        let member = members.with_id(&copy.target).ok_or_else(gone)?;
        let question = csi::GetCapacityRequest {
            volume_capabilities: capabilities(&copy.access),
            parameters: copy.parameters.clone().into_iter().collect(),
            accessible_topology: None,
        };
        let answer = self.call(member, &Envelope::default().within(LIMIT), question).await;
        let answer = answer.map_err(|status| failed(&status))?;
        Ok(u64::try_from(answer.available_capacity).unwrap_or(0))
    }

    async fn create(&self, copy: &NewCopy) -> Result<()> {
        let request = request(copy);
        let (bytes, envelope) = (encode(&request), Envelope::default().within(LIMIT).of_copy());
        let asked = Asked { bytes, request, wrong: None, envelope };
        let made = self.clone().create_volume(asked).await;
        made.map(|_| ()).map_err(|status| failed(&status))
    }

    async fn update(&self, round: &Round) -> Result<Updated> {
        let (target, from) = (self.node_of(&round.copy)?, self.node_of(&round.source)?);
        let address = from.address.clone().ok_or_else(|| {
            CopyError::Unavailable(format!("no process of the driver runs on node {:?}", from.node_id))
        })?;
        let not_an_id = |id: &str| CopyError::NotFound(format!("volume {id:?} does not exist"));
        let grant = Grant {
            source_node: from.node_id.clone(),
            target_node: target.node_id.clone(),
            source: model::VolumeSource::Volume(round.source.parse().map_err(|_| not_an_id(&round.source))?),
            target: round.copy.parse().map_err(|_| not_an_id(&round.copy))?,
            expires: permit::expiry(),
        };
        let wrong = |why| {
            CopyError::Unavailable(format!("no permit to read volume {} can be made: {why}", round.source))
        };
        let permit = (self.signer)(&grant).map_err(wrong)?;
        let parameters = round.parameters.clone().into_iter().collect();
        let consistency = decode::consistency(&parameters).map_err(|error| failed(&error.into()))?;
        let request = peer::UpdateCopyRequest {
            volume_id: round.copy.clone(),
            source_node_id: from.node_id.clone(),
            source_address: address,
            permit: permit.as_bytes().to_vec(),
            no_freeze: !consistency.freeze,
            freeze_timeout_ms: consistency.freeze_timeout_ms,
            whole: round.whole,
            most_bytes: round.most_bytes,
        };
        let answer = self.call(&target, &Envelope::default().within(LIMIT), request).await;
        let answer = answer.map_err(|status| failed(&status))?;
        Ok(Updated {
            sent_bytes: answer.sent_bytes,
            changed_bytes: answer.changed_bytes,
            cut_ns: answer.cut_ns,
            source_in_use: !answer.sealed,
        })
    }

    async fn complete(&self, copy: &str, source: &str, stale: bool) -> Result<()> {
        let target = self.node_of(copy)?;
        let request = peer::CompleteCopyRequest {
            volume_id: copy.to_owned(),
            stale,
            source_volume_id: String::new(),
            generation: 0,
        };
        let completed = self.call(&target, &Envelope::default().within(LIMIT), request).await;
        completed.map_err(|status| failed(&status))?;
        self.release_later(source, copy).await;
        Ok(())
    }

    async fn expand(&self, volume: &str, bytes: u64) -> Result<()> {
        let member = self.node_of(volume)?;
        let required_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: volume.to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        let expanded = self.call(&member, &Envelope::default().within(LIMIT), request).await;
        expanded.map(|_| ()).map_err(|status| failed(&status))
    }

    async fn release(&self, source: &str, copy: &str) -> Result<()> {
        let found = self.find(Named::volume(source)).map_err(|error| failed(&error.into()))?;
        let Some(member) = found else { return Ok(()) };
        let (volume_id, target_volume_id) = (source.to_owned(), copy.to_owned());
        let request = peer::ReleaseCutsRequest { volume_id, target_volume_id };
        let released = self.call(&member, &Envelope::default().within(LIMIT), request).await;
        released.map(|_| ()).map_err(|status| failed(&status))
    }

    async fn seal(&self, volume: &str, moved_to: Option<&str>) -> Result<()> {
        let member = self.node_of(volume)?;
        let moved_to = match moved_to {
            None => String::new(),
            // "Not found" would be said of the volume that is to be sealed.
            Some(copy) => {
                let target = self.find(Named::volume(copy)).map_err(|error| failed(&error.into()))?;
                let away = || CopyError::Unavailable(format!("the node of copy {copy} is not there"));
                target.ok_or_else(away)?.node_id.clone()
            }
        };
        let request = peer::SealVolumeRequest { volume_id: volume.to_owned(), moved_to, generation: 0 };
        let sealed = self.call(&member, &Envelope::default().within(LIMIT), request).await;
        sealed.map(|_| ()).map_err(|status| failed(&status))
    }

    async fn delete(&self, copy: &str, source: &str) -> Result<()> {
        let last = self.last_owner(Named::volume(copy)).map_err(|error| failed(&error.into()))?;
        if let Last::Member(member) = last {
            let request = csi::DeleteVolumeRequest { volume_id: copy.to_owned(), ..Default::default() };
            let deleted = self.call(&member, &Envelope::default().within(LIMIT), request).await;
            deleted.map_err(|status| failed(&status))?;
        }
        self.release_later(source, copy).await;
        Ok(())
    }
}

impl Router {
    /// The node of a volume or a copy. One that is not there at this moment, since its driver is started again, is not a volume
    /// that does not exist: whoever is told that would leave it sealed, or give up a move.
    fn node_of(&self, volume: &str) -> Result<Arc<Member>> {
        match self.last_owner(Named::volume(volume)).map_err(|error| failed(&error.into()))? {
            Last::Member(member) => Ok(member),
            Last::Nobody => Err(CopyError::NotFound(format!("volume {volume:?} does not exist"))),
        }
    }

    /// Has the cuts removed that the node of a source keeps for a copy. Where it cannot be told now, they go after a day.
    async fn release_later(&self, source: &str, copy: &str) {
        if let Err(why) = Copies::release(self, source, copy).await {
            tracing::warn!(source, copy, %why, "the cuts for a copy are still there; their node removes them after a day");
        }
    }
}

/// What the answer of a node means for a move.
fn failed(status: &Status) -> CopyError {
    let message = status.message().to_owned();
    match status.code() {
        Code::Aborted => CopyError::Running(message),
        Code::DeadlineExceeded | Code::Cancelled => CopyError::Silent(message),
        Code::NotFound => CopyError::NotFound(message),
        Code::ResourceExhausted => CopyError::NoRoom(message),
        Code::FailedPrecondition => CopyError::InUse(message),
        Code::InvalidArgument | Code::OutOfRange | Code::Unimplemented | Code::AlreadyExists => {
            CopyError::Refused(message)
        }
        _ => CopyError::Unavailable(message),
    }
}

pub(super) fn request(copy: &NewCopy) -> csi::CreateVolumeRequest {
    let segments = [(Settings::TOPOLOGY_KEY.to_owned(), copy.target.clone())].into();
    let there = vec![csi::Topology { segments }];
    csi::CreateVolumeRequest {
        name: copy.name.clone(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: i64::try_from(copy.bytes).unwrap_or(i64::MAX),
            // The node of the source says how large it is, and the copy has at least that size.
            limit_bytes: i64::try_from(most_bytes(copy.bytes)).unwrap_or(i64::MAX),
        }),
        volume_capabilities: capabilities(&copy.access),
        parameters: copy.parameters.clone().into_iter().collect(),
        volume_content_source: Some(csi::VolumeContentSource {
            r#type: Some(Type::Volume(VolumeSource { volume_id: copy.source.clone() })),
        }),
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: there.clone(),
            preferred: there,
        }),
        mutable_parameters: copy.mutable_parameters.clone().into_iter().collect(),
        ..Default::default()
    }
}

/// As csi-provisioner asks for it: one capability for each access mode.
pub(super) fn capabilities(access: &Access) -> Vec<csi::VolumeCapability> {
    let mode = |mode: &String| match mode.as_str() {
        "ReadWriteOncePod" => Mode::SingleNodeSingleWriter,
        "ReadOnlyMany" => Mode::MultiNodeReaderOnly,
        "ReadWriteMany" => Mode::MultiNodeMultiWriter,
        _ => Mode::SingleNodeMultiWriter,
    };
    let kind = || match access.block {
        true => AccessType::Block(BlockVolume {}),
        false => AccessType::Mount(MountVolume {
            fs_type: access.fs_type.clone(),
            mount_flags: access.mount_options.clone(),
            ..Default::default()
        }),
    };
    let capability = |name: &String| csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode(name).into() }),
        access_type: Some(kind()),
    };
    access.modes.iter().map(capability).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io;

    use super::*;
    use crate::cluster::peers::{Known, Members, Peers};
    use crate::cluster::router::{Connect, RouterSettings, Stream};
    use crate::model::{NodeKey, VolumeId};

    #[test]
    fn a_copy_is_asked_for_as_by_csi_provisioner() {
        let copy = NewCopy {
            name: "pvc-1-moved-2".to_owned(),
            source: "vol-1".to_owned(),
            target: "node-2".to_owned(),
            bytes: 1 << 30,
            access: Access {
                block: false,
                fs_type: "xfs".to_owned(),
                mount_options: vec!["noatime".to_owned()],
                modes: vec!["ReadWriteOnce".to_owned(), "ReadWriteOncePod".to_owned()],
            },
            parameters: [("pool".to_owned(), "fast".to_owned())].into(),
            mutable_parameters: [("discard".to_owned(), "false".to_owned())].into(),
        };
        let asked = request(&copy);
        let [first, second] = asked.volume_capabilities.as_slice() else { panic!("{asked:?}") };
        assert_eq!(first.access_mode.as_ref().map(AccessMode::mode), Some(Mode::SingleNodeMultiWriter));
        assert_eq!(second.access_mode.as_ref().map(AccessMode::mode), Some(Mode::SingleNodeSingleWriter));
        let Some(AccessType::Mount(mount)) = &first.access_type else { panic!("{first:?}") };
        assert_eq!(
            (mount.fs_type.as_str(), mount.mount_flags.as_slice()),
            ("xfs", ["noatime".to_owned()].as_slice())
        );
        let topology = asked.accessibility_requirements.unwrap_or_default();
        assert_eq!(topology.requisite[0].segments["topology.hostloop.csi.dev/node"], "node-2");
        assert_eq!(
            (asked.parameters["pool"].as_str(), asked.mutable_parameters["discard"].as_str()),
            ("fast", "false")
        );
        let range = asked.capacity_range.unwrap_or_default();
        assert_eq!(range.required_bytes, 1 << 30);
        assert!((1 << 30..(1 << 30) + (80 << 20)).contains(&range.limit_bytes), "{range:?}");
    }

    #[test]
    fn a_call_that_runs_is_told_from_one_that_never_will() {
        let told = |code: Code| failed(&Status::new(code, "why"));
        let why = || "why".to_owned();
        assert_eq!(told(Code::Aborted), CopyError::Running(why()));
        assert_eq!(told(Code::DeadlineExceeded), CopyError::Silent(why()));
        assert_eq!(told(Code::ResourceExhausted), CopyError::NoRoom(why()));
        assert_eq!(told(Code::InvalidArgument), CopyError::Refused(why()));
        assert_eq!(told(Code::FailedPrecondition), CopyError::InUse(why()));
        assert_eq!(told(Code::Unavailable), CopyError::Unavailable(why()));
    }

    /// A cluster with node "here" alone.
    struct Here(tokio::sync::watch::Sender<Option<Arc<Members>>>);

    impl Peers for Here {
        fn known(&self) -> Known {
            self.0.subscribe()
        }
    }

    struct Nowhere;

    #[tonic::async_trait]
    impl Connect for Nowhere {
        async fn connect(&self, _: &str, _: &str) -> io::Result<Box<dyn Stream>> {
            Err(io::ErrorKind::ConnectionRefused.into())
        }
    }

    fn router(forgotten: &[&str]) -> (Router, Here) {
        let here = Member { node_id: "here".to_owned(), address: None };
        let here =
            Here(tokio::sync::watch::Sender::new(Some(Arc::new(Members::new([here], BTreeSet::new())))));
        let settings = RouterSettings {
            driver_name: "hostloop.csi.dev".to_owned(),
            attach: false,
            forget_nodes: forgotten.iter().map(|node| (*node).to_owned()).collect(),
        };
        let signer: permit::Signer = Arc::new(|_| Err("nothing is signed".to_owned()));
        (Router::new(settings, &here, Box::new(Nowhere), signer), here)
    }

    /// While the driver of a node is started again, the node is no part of the cluster.
    #[tokio::test]
    async fn a_node_that_is_away_is_unavailable() {
        let volume = |node: &str| VolumeId::of_name(&NodeKey::of(node), "v").to_string();
        let (here, away) = (volume("here"), volume("away"));
        let (router, _here) = router(&[]);
        let answers = [
            router.seal(&away, None).await,
            router.seal(&away, Some(&here)).await,
            router.seal(&here, Some(&away)).await,
            router.complete(&away, &here, true).await,
            router.expand(&away, 1).await,
            router.delete(&away, &here).await,
        ];
        for (n, answer) in answers.into_iter().enumerate() {
            assert!(matches!(answer, Err(CopyError::Unavailable(_))), "call {n}: {answer:?}");
        }
    }

    #[tokio::test]
    async fn a_volume_given_up_with_its_node_is_not_found() {
        let away = VolumeId::of_name(&NodeKey::of("away"), "v").to_string();
        let (router, _here) = router(&["away"]);
        assert!(matches!(router.seal(&away, None).await, Err(CopyError::NotFound(_))));
        assert!(matches!(router.complete(&away, &away, true).await, Err(CopyError::NotFound(_))));
    }
}
