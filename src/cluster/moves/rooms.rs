//! Which of several nodes gets a copy: the one with the most room.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::PersistentVolume;

use super::act::{Moves, Result};
use super::begin::{Request, handle};
use super::claims::{access, access_with, bytes_of, class_of, is_converted, node_of, parameters};
use super::copies::NewCopy;
use super::resources::VolumeReplica;

/// How many bytes a copy may have on each node, or why the node does not say that.
pub(super) type Rooms = HashMap<String, std::result::Result<u64, String>>;

impl Moves {
    /// Returns how many bytes a copy may have on each of these nodes. All are asked at once, so that the whole takes no longer than one
    /// call.
    pub(super) async fn rooms(
        &self,
        request: &Request<'_>,
        volume: &PersistentVolume,
        copy_name: &str,
        targets: &[String],
    ) -> Result<Rooms> {
        let class_name = request.target.storage_class.clone().unwrap_or_else(|| class_of(volume));
        let class = self.class(&class_name).await?;
        let mut parameters = class.as_deref().map(parameters).unwrap_or_default();
        if let Some(pool) = &request.target.pool {
            parameters.insert("pool".to_owned(), pool.clone());
        }
        let ask = async |target: &String| {
            let copy = NewCopy {
                name: copy_name.to_owned(),
                source: handle(volume),
                // The room for a copy does not depend on them.
                source_node: String::new(),
                generation: 0,
                target: target.clone(),
                bytes: bytes_of(volume),
                convert: is_converted(volume, &class_name),
                access: class.as_deref().map_or_else(|| access(volume), |class| access_with(volume, class)),
                parameters: parameters.clone(),
                mutable_parameters: Default::default(),
            };
            let room = self.nodes.room(&copy).await;
            (target.clone(), room.map_err(|error| format!("node {target}: {error}")))
        };
        Ok(join_all(targets.iter().map(ask)).await.into_iter().collect())
    }

    /// Returns the node with the most room for a copy, within the limits, or why there is none.
    pub(super) fn roomiest(
        &self,
        volume: &PersistentVolume,
        targets: Vec<String>,
        rooms: &Rooms,
        created: &[Arc<VolumeReplica>],
    ) -> std::result::Result<String, String> {
        let (all, bytes) = (self.all_replicas(created), bytes_of(volume));
        let (mut best, mut is_limited): (Option<(u64, String)>, bool) = (None, false);
        for target in targets {
            let there = all.iter().filter(|replica| replica.node_of_data() == target);
            let (count, taken) = there.fold((0, 0_u64), |(count, taken), replica| {
                (count + 1, taken.saturating_add(self.size_of(replica)))
            });
            let most_bytes = self.limits.node_size.unwrap_or(u64::MAX);
            if count >= self.limits.node || taken.saturating_add(bytes) > most_bytes {
                is_limited = true;
                continue;
            }
            let Some(Ok(room)) = rooms.get(&target).cloned() else { continue };
            if room >= bytes && best.as_ref().is_none_or(|(most, _)| room > *most) {
                best = Some((room, target));
            }
        }
        match best {
            Some((_, target)) => Ok(target),
            None if is_limited => Err("no other node has room for it within --move-limits".to_owned()),
            None => Err(why_none(volume, rooms)),
        }
    }
}

/// Returns why none of these nodes can have a copy.
fn why_none(volume: &PersistentVolume, rooms: &Rooms) -> String {
    let failed = rooms.values().find_map(|room| room.as_ref().err());
    match (failed, rooms.len()) {
        // Such as that it has no pool of this name.
        (Some(why), 1) => why.clone(),
        _ if node_of(volume).is_some_and(|node| rooms.contains_key(&node)) => {
            "that pool has no room for it".to_owned()
        }
        _ => "no other node has room for it".to_owned(),
    }
}
