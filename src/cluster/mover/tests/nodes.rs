//! The nodes: copies of numbers.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::server::Shared;
use super::world::{Place, Volume, World};
use crate::cluster::mover::copies::{Copies, CopyError, NewCopy, Round, Updated};
use crate::model::{NodeKey, VolumeId};

pub(crate) struct Nodes {
    pub(crate) world: Shared,
    pub(crate) who: usize,
}

type Result<T> = std::result::Result<T, CopyError>;

impl Nodes {
    async fn call<T>(&self, name: &str, act: impl FnOnce(&mut World) -> Result<T> + Send) -> Result<T> {
        let place = Place::wait(&self.world, self.who, name).await;
        let mut world = self.world.lock().unwrap();
        let lost = || Err(CopyError::Unavailable("no answer".to_owned()));
        if let Some((failing, left)) = world.failing.take() {
            let fails = failing == name;
            let left = if fails { left - 1 } else { left };
            world.failing = (left > 0).then_some((failing, left));
            if fails {
                return lost();
            }
        }
        match place {
            Place::Fine => act(&mut world),
            Place::FailsBefore => lost(),
            Place::FailsAfter => {
                let _ = act(&mut world);
                lost()
            }
        }
    }
}

/// Whether the node of a volume answers.
fn answers(world: &World, volume: &str) -> Result<()> {
    let node = world.volumes.get(volume).map(|volume| volume.node.clone());
    match node.is_some() && node == world.down {
        true => Err(CopyError::Unavailable("the node does not answer".to_owned())),
        false => Ok(()),
    }
}

fn gone<T>() -> Result<T> {
    Err(CopyError::NotFound("it is gone".to_owned()))
}

#[tonic::async_trait]
impl Copies for Nodes {
    fn nodes(&self) -> Option<Vec<String>> {
        Some(["node-1", "node-2", "node-3"].map(str::to_owned).to_vec())
    }

    async fn room(&self, copy: &NewCopy) -> Result<u64> {
        Ok(if copy.target == "node-3" { 3 << 30 } else { 2 << 30 })
    }

    async fn create(&self, copy: &NewCopy) -> Result<()> {
        let also = self.world.lock().unwrap().also_in_class;
        assert!(also || copy.parameters.keys().eq(["backend"]), "{:?}", copy.parameters);
        assert_eq!((copy.access.fs_type.as_str(), copy.bytes), ("xfs", 1 << 30));
        self.call("create", |world| {
            if world.full {
                return Err(CopyError::NoRoom("the pool is full".to_owned()));
            }
            answers(world, &copy.source)?;
            if world.down.as_ref() == Some(&copy.target) {
                return Err(CopyError::Unavailable("the target does not answer".to_owned()));
            }
            let id = VolumeId::of_name(&NodeKey::of(&copy.target), &copy.name).to_string();
            let Some(source) = world.volumes.get(&copy.source) else { return gone() };
            let made = Volume {
                node: copy.target.clone(),
                data: source.data,
                copy_of: Some(copy.source.clone()),
                ..Volume::default()
            };
            if world.slow > 0 {
                world.slow -= 1;
                world.volumes.entry(id).or_insert(made);
                return Err(CopyError::Running("the first copy is being made: 50 %".to_owned()));
            }
            world.volumes.entry(id).or_insert(made);
            Ok(())
        })
        .await
    }

    async fn update(&self, round: &Round) -> Result<Updated> {
        self.call("update", |world| {
            answers(world, &round.source)?;
            answers(world, &round.copy)?;
            assert!(round.most_bytes > 1 << 30, "the source has as many: {}", round.most_bytes);
            let Some(Volume { data, staged, .. }) = world.volumes.get(&round.source).cloned() else {
                return gone();
            };
            let Some(copy) = world.volumes.get_mut(&round.copy) else { return gone() };
            if copy.copy_of.is_none() {
                return Err(CopyError::InUse("it is complete".to_owned()));
            }
            let changed_bytes = (data - copy.data) << 20;
            copy.data = data;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let cut_ns = (now.as_nanos() as i64 - world.behind * 1_000_000_000) as u64;
            Ok(Updated { sent_bytes: changed_bytes, changed_bytes, cut_ns, source_in_use: staged })
        })
        .await
    }

    async fn complete(&self, copy: &str, source: &str, stale: bool) -> Result<()> {
        self.call("complete", |world| {
            answers(world, copy)?;
            let exact = world.volumes.get(source).is_some_and(|volume| volume.sealed);
            let half = "seal the source first";
            if !exact && !stale && world.volumes.get(copy).is_some_and(|copy| copy.copy_of.is_some()) {
                return Err(CopyError::InUse(half.to_owned()));
            }
            let Some(copy) = world.volumes.get_mut(copy) else { return gone() };
            copy.copy_of = None;
            Ok(())
        })
        .await
    }

    async fn expand(&self, _volume: &str, _bytes: u64) -> Result<()> {
        self.call("expand", |_| Ok(())).await
    }

    async fn release(&self, source: &str, copy: &str) -> Result<()> {
        self.call("release", |world| {
            answers(world, source)?;
            world.released.push(copy.to_owned());
            Ok(())
        })
        .await
    }

    async fn seal(&self, volume: &str, moved_to: Option<&str>) -> Result<()> {
        let name = if moved_to.is_some() { "seal" } else { "unseal" };
        self.call(name, |world| {
            answers(world, volume)?;
            let Some(volume) = world.volumes.get_mut(volume) else { return gone() };
            if volume.staged && moved_to.is_some() {
                return Err(CopyError::InUse("a pod uses it".to_owned()));
            }
            volume.sealed = moved_to.is_some();
            Ok(())
        })
        .await
    }

    async fn delete(&self, volume: &str, _source: &str) -> Result<()> {
        self.call("delete", |world| {
            answers(world, volume)?;
            if let Some(there) = world.volumes.remove(volume)
                && (there.staged || there.copy_of.is_none())
            {
                let of_claim =
                    world.all("persistentvolumes").any(|v| v["spec"]["csi"]["volumeHandle"] == *volume);
                if there.staged || of_claim {
                    world.wrong.push(format!("{volume} was deleted although it is in use"));
                }
            }
            Ok(())
        })
        .await
    }
}

impl Nodes {
    pub(crate) fn new(world: &Shared, who: usize) -> Arc<Self> {
        Arc::new(Nodes { world: Arc::clone(world), who })
    }
}
