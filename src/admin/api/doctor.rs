//! What `hostloop doctor` reads of the API server. A list is whole or not known: the absence of an object in a part of a list says
//! nothing.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Cluster, Failure, Result, seconds_since};
use crate::admin::seen::Name;
use crate::cluster::moves::claims::{bytes_of, node_of};
use crate::cluster::moves::resources::VolumeReplica;

/// Objects in one page of a list.
const PAGE: u32 = 500;

/// A PersistentVolume with a CSI volume of any driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::admin) struct Pv {
    pub(in crate::admin) name: String,
    pub(in crate::admin) driver: String,
    /// The CSI id of its volume.
    pub(in crate::admin) handle: String,
    pub(in crate::admin) node: Option<String>,
    pub(in crate::admin) claim: Option<Name>,
    pub(in crate::admin) bytes: u64,
    /// Seconds since it was made.
    pub(in crate::admin) age: Option<i64>,
    pub(in crate::admin) being_deleted: bool,
}

/// A VolumeSnapshotContent of any driver.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::admin) struct Content {
    pub(in crate::admin) name: String,
    pub(in crate::admin) driver: String,
    /// The CSI id of its snapshot; `None` until the snapshot is made.
    pub(in crate::admin) handle: Option<String>,
    /// The uid of its VolumeSnapshot, which the CSI name of the snapshot has.
    pub(in crate::admin) snapshot_uid: String,
    pub(in crate::admin) snapshot: Name,
    pub(in crate::admin) age: Option<i64>,
    pub(in crate::admin) being_deleted: bool,
}

/// A claim, bound or not.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::admin) struct KnownClaim {
    pub(in crate::admin) uid: String,
    pub(in crate::admin) name: Name,
    /// The PersistentVolume that it is bound to or wants; empty for none.
    pub(in crate::admin) volume: String,
}

/// The objects of a cluster; `None` for what is not known.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::admin) struct Known {
    pub(in crate::admin) volumes: Option<Vec<Pv>>,
    pub(in crate::admin) contents: Option<Vec<Content>>,
    /// The uids of all pods, those that have ended too.
    pub(in crate::admin) pods: Option<BTreeSet<String>>,
    pub(in crate::admin) claims: Option<Vec<KnownClaim>>,
    /// The names of PersistentVolumes that a VolumeAttachment names.
    pub(in crate::admin) attached: Option<BTreeSet<String>>,
    /// The CSI ids that VolumeReplicas name: of volumes and of copies.
    pub(in crate::admin) replicas: Option<BTreeSet<String>>,
}

impl Cluster {
    /// Reads all lists. Also returns what could not be read, for people.
    pub(in crate::admin) async fn all_known(&self) -> (Known, BTreeSet<String>) {
        let (volumes, pods, claims, attached) =
            tokio::join!(self.pvs(), self.pod_uids(), self.claims_of_all(), self.attached());
        let (contents, replicas) = tokio::join!(self.contents(), self.replica_ids());
        let mut problems = BTreeSet::new();
        let known = Known {
            volumes: kept(volumes, "PersistentVolumes", &mut problems),
            pods: kept(pods, "pods", &mut problems),
            claims: kept(claims, "PersistentVolumeClaims", &mut problems),
            attached: kept(attached, "VolumeAttachments", &mut problems),
            // A cluster without the kind has no VolumeSnapshots.
            contents: kept(contents, "VolumeSnapshotContents", &mut problems).flatten(),
            replicas: kept(replicas, "VolumeReplicas", &mut problems).map(Option::unwrap_or_default),
        };
        (known, problems)
    }

    async fn pvs(&self) -> Result<Vec<Pv>> {
        let volumes: Vec<PersistentVolume> = whole(&Api::all(self.client.clone())).await?;
        Ok(volumes.iter().filter_map(pv).collect())
    }

    async fn pod_uids(&self) -> Result<BTreeSet<String>> {
        let pods: Vec<Pod> = whole(&Api::all(self.client.clone())).await?;
        Ok(pods.iter().filter_map(Pod::uid).collect())
    }

    async fn claims_of_all(&self) -> Result<Vec<KnownClaim>> {
        let claims: Vec<PersistentVolumeClaim> = whole(&Api::all(self.client.clone())).await?;
        let known = |claim: PersistentVolumeClaim| KnownClaim {
            uid: claim.uid().unwrap_or_default(),
            name: Name { namespace: claim.namespace().unwrap_or_default(), name: claim.name_any() },
            volume: claim.spec.and_then(|spec| spec.volume_name).unwrap_or_default(),
        };
        Ok(claims.into_iter().map(known).collect())
    }

    async fn attached(&self) -> Result<BTreeSet<String>> {
        let all: Vec<VolumeAttachment> = whole(&Api::all(self.client.clone())).await?;
        Ok(all.into_iter().filter_map(|it| it.spec.source.persistent_volume_name).collect())
    }

    /// `None` if the cluster has no such kind.
    async fn contents(&self) -> Result<Option<Vec<Content>>> {
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");
        let found = self.dynamic(&ApiResource::from_gvk(&kind)).await?;
        Ok(found.map(|found| found.iter().map(content).collect()))
    }

    async fn replica_ids(&self) -> Result<Option<BTreeSet<String>>> {
        let found = self.dynamic(&ApiResource::erase::<VolumeReplica>(&())).await?;
        let ids = |object: &DynamicObject| {
            ["/spec/volumeId", "/spec/copyId"].map(|path| text(object, path)).into_iter().collect::<Vec<_>>()
        };
        Ok(found.map(|found| found.iter().flat_map(ids).filter(|id| !id.is_empty()).collect()))
    }

    async fn dynamic(&self, kind: &ApiResource) -> Result<Option<Vec<DynamicObject>>> {
        whole_if_served(&Api::all_with(self.client.clone(), kind)).await
    }
}

/// Returns all objects of a list.
///
/// # Errors
/// If one page did not come: then nothing is known.
pub(in crate::admin) async fn whole<K>(api: &Api<K>) -> Result<Vec<K>>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let all = whole_if_served(api).await?;
    all.ok_or_else(|| Failure::Later("it does not serve objects of this kind".to_owned()))
}

/// Returns all objects of a list, page by page; `None` if the API server knows no such kind: it answers the first page with 404 then.
///
/// # Errors
/// If one page did not come.
async fn whole_if_served<K>(api: &Api<K>) -> Result<Option<Vec<K>>>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let (mut all, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = match api.list(&params).await {
            Err(kube::Error::Api(status)) if status.code == 404 && params.continue_token.is_none() => {
                return Ok(None);
            }
            page => page?,
        };
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = ListParams::default().limit(PAGE).continue_token(&token),
            None => return Ok(Some(all)),
        }
    }
}

fn kept<T>(list: Result<T>, what: &str, problems: &mut BTreeSet<String>) -> Option<T> {
    match list {
        Ok(list) => Some(list),
        Err(Failure::Forbidden(why)) => {
            problems.insert(format!(
                "{why}; you need the right to list {what} in all namespaces: docs/doctor.md"
            ));
            None
        }
        Err(error) => {
            problems.insert(format!("list {what}: {error}"));
            None
        }
    }
}

fn pv(volume: &PersistentVolume) -> Option<Pv> {
    let spec = volume.spec.as_ref()?;
    let csi = spec.csi.as_ref()?;
    let claim = spec.claim_ref.as_ref().map(|claim| Name {
        namespace: claim.namespace.clone().unwrap_or_default(),
        name: claim.name.clone().unwrap_or_default(),
    });
    Some(Pv {
        name: volume.name_any(),
        driver: csi.driver.clone(),
        handle: csi.volume_handle.clone(),
        node: node_of(volume),
        claim,
        bytes: bytes_of(volume),
        age: volume.creation_timestamp().map(|time| seconds_since(time.0)),
        being_deleted: volume.metadata.deletion_timestamp.is_some(),
    })
}

fn text(object: &DynamicObject, path: &str) -> String {
    object.data.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn content(content: &DynamicObject) -> Content {
    let handles = ["/status/snapshotHandle", "/spec/source/snapshotHandle"].map(|path| text(content, path));
    Content {
        name: content.name_any(),
        driver: text(content, "/spec/driver"),
        handle: handles.into_iter().find(|handle| !handle.is_empty()),
        snapshot_uid: text(content, "/spec/volumeSnapshotRef/uid"),
        snapshot: Name {
            namespace: text(content, "/spec/volumeSnapshotRef/namespace"),
            name: text(content, "/spec/volumeSnapshotRef/name"),
        },
        age: content.creation_timestamp().map(|time| seconds_since(time.0)),
        being_deleted: content.metadata.deletion_timestamp.is_some(),
    }
}
