//! Reads what is to be known of a claim before the next step.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;

use super::act::{Mover, Result, parameters};
use super::status::Phase;
use super::view::{Class, View, claims_of, is_lost, node_of};
use crate::model::Standby;

impl Mover {
    /// Reads what the phase needs.
    pub(super) async fn look(
        &self,
        claim: PersistentVolumeClaim,
        phase: Option<Phase>,
        (class, standby): (Option<StorageClass>, std::result::Result<Option<Standby>, String>),
    ) -> Result<View> {
        let spec = claim.spec.clone().unwrap_or_default();
        let volume = match &spec.volume_name {
            Some(name) if !name.is_empty() => self.cluster.volume(name).await?,
            _ => None,
        };
        let mut view = View {
            driver: self.driver.clone(),
            claim,
            volume,
            pods: Vec::new(),
            others: Vec::new(),
            nodes: Vec::new(),
            members: None,
            class: class_of(class.as_ref()),
            standby,
            source_lost: false,
            target_lost: false,
        };
        if let Some(status) = view.status().filter(|status| !status.target.is_empty()) {
            view.source_lost = is_lost(self.cluster.node(&status.source).await?.as_ref());
            view.target_lost = is_lost(self.cluster.node(&status.target).await?.as_ref());
        }
        let wants = view.wanted().is_some() || !matches!(view.standby, Ok(None));
        let begins = match phase {
            None | Some(Phase::Refused | Phase::Done) => wants,
            // The copy that stands by is made anew on another node.
            Some(Phase::Copying | Phase::CatchingUp | Phase::Ready | Phase::Standby) => view.target_lost,
            Some(_) => false,
        };
        let stays = Some(Phase::Ready) == phase || Some(Phase::Standby) == phase;
        let leaves = Some(Phase::Switching) == phase || Some(Phase::Returning) == phase;
        if !begins && !stays && !leaves {
            return Ok(view);
        }
        let (namespace, name) = (view.claim.namespace().unwrap_or_default(), view.claim.name_any());
        if let Some(node) = view.volume.as_ref().and_then(node_of) {
            view.pods = self.cluster.pods(&namespace, &node).await?;
            if begins {
                view.pods.extend(self.cluster.pods(&namespace, "").await?);
            }
            view.pods.retain(|pod| claims_of(pod).any(|claim| claim == name));
        }
        if leaves {
            return Ok(view);
        }
        view.others = self.others(&view, &namespace, &name).await?;
        if !begins {
            // As long as pods run, this is looked at every second.
            if let Some(status) = view.status().filter(|_| !view.others.is_empty()) {
                view.nodes.extend(self.cluster.node(&status.target).await?);
            }
            return Ok(view);
        }
        view.nodes = self.cluster.nodes().await?;
        view.members = self.copies.nodes();
        Ok(view)
    }

    /// The other claims that the pods use, each with its PersistentVolume.
    async fn others(
        &self,
        view: &View,
        namespace: &str,
        name: &str,
    ) -> Result<Vec<(PersistentVolumeClaim, Option<PersistentVolume>)>> {
        let mut found = Vec::new();
        let mut others: Vec<String> = view.pods.iter().flat_map(claims_of).map(str::to_owned).collect();
        others.sort();
        others.dedup();
        for other in others.into_iter().filter(|other| other != name) {
            let Some(claim) = self.cluster.claim(namespace, &other).await? else { continue };
            let volume = match claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) {
                Some(name) if !name.is_empty() => self.cluster.volume(name).await?,
                _ => None,
            };
            found.push((claim, volume));
        }
        Ok(found)
    }

    pub(super) async fn class(&self, claim: &PersistentVolumeClaim) -> Result<Option<StorageClass>> {
        let name = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
        Ok(self.cluster.class(&name.unwrap_or_default()).await?)
    }
}

fn class_of(class: Option<&StorageClass>) -> Class {
    match class.map(parameters) {
        None => Class::Missing,
        Some(class) if class.get("crossNodeCopy").is_some_and(|value| value == "false") => Class::Stays,
        Some(_) => Class::Travels,
    }
}
