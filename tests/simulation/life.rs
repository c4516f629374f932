//! What becomes of one claim: a volume is made, used, cut, grown, copied to another node and deleted, each by the calls
//! of the sidecar or kubelet that does it. What was answered is remembered, and looked for at the end.
//!
//! Here a volume is known by its id alone, as the kubelet of a move finds it: each call is built from the shared requests,
//! and sent again until it is answered.

use std::collections::BTreeMap;
use std::time::Duration;

use hostloop::model::{NodeKey, Settings, VolumeId};
use hostloop::wire::csi;

use crate::calls::{Client, Failure};
use crate::harness::{DATA_DIR, NODES};
use crate::requests::{self, Kind, MIB, MadeFrom, Spec};

/// What one write of a pod writes.
const PIECE: usize = 4096;
/// Where pieces of a block volume lie.
const STRIDE: u64 = 256 << 10;

/// What pods have written: by the number of a piece, what it is filled with.
pub type Written = BTreeMap<u64, u64>;

/// A volume that was answered.
#[derive(Debug, Clone)]
pub struct Volume {
    pub name: String,
    pub id: String,
    pub node: usize,
    pub spec: Spec,
    pub written: Written,
}

/// A snapshot that was answered.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub id: String,
    pub written: Written,
}

/// What there has to be at the end.
#[derive(Debug, Default)]
pub struct Left {
    pub volumes: Vec<Volume>,
    pub snapshots: Vec<Snapshot>,
    /// Volumes and snapshots that were deleted.
    pub deleted: Vec<String>,
}

fn piece(of: u64) -> Vec<u8> {
    let mut random = crate::random::Random::new(of);
    let mut bytes = vec![0; PIECE];
    random.fill(&mut bytes);
    bytes
}

impl Client {
    fn random(&self, limit: usize) -> usize {
        self.cluster.below(limit)
    }

    async fn pause(&self) {
        let milliseconds = self.cluster.between(1, 6000);
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    }

    /// Lives a whole life.
    ///
    /// # Errors
    /// A promise that was broken.
    pub async fn live(&self) -> Result<Left, Failure> {
        let mut left = Left::default();
        self.pause().await;
        let kind = [Kind::Block, Kind::Ext4, Kind::Directory][self.random(3)];
        let spec = Spec { bytes: 320 * MIB, ..Spec::new(kind) };
        let mut volume = self.create(&self.name, spec, None).await?;
        let rounds = 1 + self.random(3);
        for round in 0..rounds {
            self.write(&mut volume, round as u64).await?;
            match self.random(5) {
                0 => volume = self.expand(volume).await?,
                1 => {
                    let snapshot = self.snapshot(&volume, round).await?;
                    left.snapshots.push(snapshot);
                }
                2 => {
                    let source = MadeFrom::Volume(volume.id.clone());
                    let copy = self.copy(&format!("{}-clone{round}", self.name), &volume, source).await?;
                    left.volumes.push(copy);
                }
                3 => {
                    let snapshot = self.snapshot(&volume, round).await?;
                    self.write(&mut volume, 100 + round as u64).await?;
                    let source = MadeFrom::Snapshot(snapshot.id.clone());
                    let of = Volume { written: snapshot.written.clone(), ..volume.clone() };
                    let copy = self.copy(&format!("{}-restore{round}", self.name), &of, source).await?;
                    left.volumes.push(copy);
                    if self.random(2) == 0 {
                        self.delete_snapshot(&snapshot.id).await?;
                        left.deleted.push(snapshot.id);
                    } else {
                        left.snapshots.push(snapshot);
                    }
                }
                _ => self.check(&volume).await?,
            }
            self.pause().await;
        }
        if self.random(3) == 0 {
            self.release(&volume).await?;
            self.delete(&volume).await?;
            left.deleted.push(volume.id);
        } else {
            left.volumes.push(volume);
        }
        Ok(left)
    }

    /// CreateVolume as external-provisioner calls it: with an order of nodes that the scheduler chose anew.
    ///
    /// # Errors
    /// As of all calls; or an answer that is wrong.
    pub async fn create(&self, name: &str, spec: Spec, source: Option<MadeFrom>) -> Result<Volume, Failure> {
        let (first, one) = (self.random(NODES), source.is_some() || self.random(3) > 0);
        self.create_at(name, spec, source, (first, one)).await
    }

    /// The same on this node.
    ///
    /// # Errors
    /// As of all calls.
    pub async fn create_on(&self, name: &str, spec: Spec, node: usize) -> Result<Volume, Failure> {
        self.create_at(name, spec, None, (node, true)).await
    }

    async fn create_at(
        &self,
        name: &str,
        spec: Spec,
        source: Option<MadeFrom>,
        (first, one): (usize, bool),
    ) -> Result<Volume, Failure> {
        // Mostly one node, where the scheduler has put a pod; or wherever there is room, in an order that external-provisioner
        // makes from the name of the claim: it is the same in each try (docs/decisions/0008 says what another one can do).
        let request = || {
            let mut nodes: Vec<usize> = (0..NODES).collect();
            nodes.rotate_left(first);
            let terms: Vec<csi::Topology> =
                nodes.into_iter().map(|node| topology(&self.cluster.machines[node].id)).collect();
            let terms = if one { terms[..1].to_vec() } else { terms };
            let accessibility_requirements =
                Some(csi::TopologyRequirement { requisite: terms.clone(), preferred: terms });
            let request = csi::CreateVolumeRequest { accessibility_requirements, ..spec.create(name) };
            source.as_ref().map_or(request.clone(), |source| source.source_of(request))
        };
        let what = format!("CreateVolume {name}");
        let call = || {
            let made = self.controller(&what, request);
            Box::pin(made)
        };
        // Sometimes two ask at once, as when a leader does not know yet that another one leads.
        let made = match one || self.random(2) == 0 {
            true => call().await?,
            false => {
                let (first, second) = tokio::join!(call(), call());
                let (first, second) = (first?, second?);
                if first != second {
                    return Err(format!("{name} is {first:?} and {second:?}"));
                }
                first
            }
        };
        let made = made.volume.ok_or("an answer without a volume")?;
        let place = &made.accessible_topology[0].segments[Settings::TOPOLOGY_KEY];
        let node =
            self.cluster.machines.iter().position(|machine| machine.id == *place).ok_or("no such node")?;
        let wanted = VolumeId::of_name(&NodeKey::of(place), name).to_string();
        if made.volume_id != wanted {
            return Err(format!("{name} has the id {} and not {wanted}", made.volume_id));
        }
        Ok(Volume { name: name.to_owned(), id: made.volume_id, node, spec, written: Written::new() })
    }

    /// The same from a source, and a look at what is in it.
    async fn copy(&self, name: &str, of: &Volume, source: MadeFrom) -> Result<Volume, Failure> {
        self.rest(of).await?;
        let image = match &source {
            MadeFrom::Snapshot(id) => format!("{DATA_DIR}/snapshots/{id}/disk.img"),
            MadeFrom::Volume(id) => format!("{DATA_DIR}/volumes/{id}/disk.img"),
        };
        let made = self.create(name, of.spec, Some(source)).await?;
        let made = Volume { written: of.written.clone(), ..made };
        if of.spec.kind == Kind::Ext4 && made.node != of.node {
            // The files of a filesystem are no bytes in fake kernels; this looks whether all bytes of the image are there.
            let [to, from] = [made.node, of.node].map(|node| &self.cluster.machines[node].kernel);
            let copy = format!("{DATA_DIR}/volumes/{}/disk.img", made.id);
            to.adopt_files(copy, from, &image)
                .map_err(|error| format!("{name} is not the same as {image}: {error}"))?;
        }
        self.check(&made).await?;
        Ok(made)
    }

    async fn delete(&self, volume: &Volume) -> Result<(), Failure> {
        self.delete_volume(&volume.id).await
    }

    /// DeleteVolume.
    pub async fn delete_volume(&self, id: &str) -> Result<(), Failure> {
        let what = format!("DeleteVolume {id}");
        let done = self.controller(&what, || requests::delete(id));
        done.await.map(drop)
    }

    /// A directory cannot be frozen alone: a cut is made of it while no pod has it.
    async fn rest(&self, volume: &Volume) -> Result<(), Failure> {
        match volume.spec.kind {
            Kind::Directory => self.release(volume).await,
            _ => Ok(()),
        }
    }

    async fn snapshot(&self, volume: &Volume, round: usize) -> Result<Snapshot, Failure> {
        self.rest(volume).await?;
        let name = format!("{}-s{round}", volume.name);
        let request = || requests::snapshot(&name, &volume.id);
        loop {
            let what = format!("CreateSnapshot {name}");
            let made = self.controller(&what, request);
            let made = made.await?.snapshot.ok_or("an answer without a snapshot")?;
            if made.ready_to_use {
                return Ok(Snapshot { id: made.snapshot_id, written: volume.written.clone() });
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// DeleteSnapshot.
    pub async fn delete_snapshot(&self, id: &str) -> Result<(), Failure> {
        let what = format!("DeleteSnapshot {id}");
        let request = || requests::delete_snapshot(id);
        let done = self.controller(&what, request);
        done.await.map(drop)
    }

    /// ControllerExpandVolume as external-resizer calls it, and NodeExpandVolume as kubelet does.
    async fn expand(&self, volume: Volume) -> Result<Volume, Failure> {
        let spec = volume.spec.grown();
        let (id, what) = (volume.id.clone(), format!("Expand {}", volume.id));
        let request = || requests::expand(&id, spec.bytes);
        let grown = self.controller(&what, request).await?;
        if grown.capacity_bytes < spec.bytes {
            return Err(format!("{id} has grown to {} and not to {}", grown.capacity_bytes, spec.bytes));
        }
        let volume = Volume { spec, ..volume };
        let path = requests::target_path(&volume.name);
        let request = requests::node_expand(&id, &path, Some(spec.bytes));
        let volume = Volume { spec, ..volume };
        for _ in 0..20 {
            self.publish(&volume).await?;
            let grown = self.node(&what, volume.node, &request);
            match grown.await {
                Ok(_) => return Ok(volume),
                // The machine lost its power in between, and kubelet begins anew.
                Err(failure) if failure.contains("is not at") => {}
                Err(failure) => return Err(failure),
            }
        }
        Err(format!("{id} cannot be expanded"))
    }

    /// NodeStageVolume.
    async fn stage(&self, volume: &Volume) -> Result<(), Failure> {
        let id = &volume.id;
        let staged = requests::stage(id, volume.spec.capability());
        let kernel = &self.cluster.machines[volume.node].kernel;
        kernel.create_directories(requests::staging_path(id));
        self.node(&format!("Stage {id}"), volume.node, &staged).await.map(drop)
    }

    /// NodeStageVolume and NodePublishVolume, which are the same each time.
    ///
    /// # Errors
    /// As of all calls.
    pub async fn publish(&self, volume: &Volume) -> Result<(), Failure> {
        self.stage(volume).await?;
        let (id, name) = (&volume.id, &volume.name);
        let published = requests::publish(id, volume.spec.capability(), name);
        let kernel = &self.cluster.machines[volume.node].kernel;
        kernel.create_directories(format!("{}/pods", crate::harness::KUBELET));
        let what = format!("Publish {id}");
        for _ in 0..20 {
            let done = self.node(&what, volume.node, &published);
            match done.await {
                Ok(_) => return Ok(()),
                // The machine lost its power in between, and kubelet begins anew.
                Err(failure) if failure.contains("call NodeStageVolume first") => self.stage(volume).await?,
                Err(failure) => return Err(failure),
            }
        }
        Err(format!("{id} cannot be published"))
    }

    /// NodeUnpublishVolume and NodeUnstageVolume.
    pub async fn release(&self, volume: &Volume) -> Result<(), Failure> {
        let id = &volume.id;
        let (unpublish, unstage) = (requests::unpublish(id, &volume.name), requests::unstage(id));
        self.node(&format!("Unpublish {id}"), volume.node, &unpublish).await?;
        self.node(&format!("Unstage {id}"), volume.node, &unstage).await?;
        Ok(())
    }

    /// Does something as a pod, with the volume mounted. What the pod does happens at once: no machine stops in between.
    async fn in_pod<T>(
        &self,
        volume: &Volume,
        mut work: impl FnMut(&str) -> std::io::Result<T>,
    ) -> Result<T, Failure> {
        let target = requests::target_path(&volume.name);
        let kernel = &self.cluster.machines[volume.node].kernel;
        let mut last = String::new();
        for _ in 0..200 {
            self.publish(volume).await?;
            if kernel.mounts().iter().any(|mount| mount.target.as_os_str() == target.as_str()) {
                match work(&target) {
                    Ok(done) => return Ok(done),
                    Err(error) => last = format!("{error}"),
                }
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        Err(format!("{}: a pod cannot use it on node {}: {last}", volume.id, volume.node))
    }

    /// Writes some pieces, synced.
    async fn write(&self, volume: &mut Volume, round: u64) -> Result<(), Failure> {
        let kernel = &self.cluster.machines[volume.node].kernel;
        let block = volume.spec.kind == Kind::Block;
        let pieces: Written =
            (0..4).map(|n| (n + 3 * (round % 50), self.cluster.between(1, u64::MAX))).collect();
        self.in_pod(volume, |target| {
            for (place, of) in &pieces {
                match block {
                    true => kernel.write(target, place * STRIDE, &piece(*of))?,
                    false => kernel.write_file(format!("{target}/f{place}"), &piece(*of))?,
                }
            }
            if !block {
                kernel.sync(target)?;
            }
            kernel.sync(DATA_DIR)
        })
        .await?;
        crate::log(|| format!("{} was written to", volume.id));
        volume.written.extend(pieces);
        Ok(())
    }

    /// Reads every piece.
    pub async fn check(&self, volume: &Volume) -> Result<(), Failure> {
        let kernel = &self.cluster.machines[volume.node].kernel;
        let block = volume.spec.kind == Kind::Block;
        let wrong = self
            .in_pod(volume, |target| {
                for (place, of) in &volume.written {
                    let found = match block {
                        true => kernel.read(target, place * STRIDE, PIECE)?,
                        false => kernel.read_file(format!("{target}/f{place}"))?,
                    };
                    if found != piece(*of) {
                        return Ok(Some(*place));
                    }
                }
                Ok(None)
            })
            .await?;
        match wrong {
            None => Ok(()),
            Some(place) => Err(format!("{}: piece {place} is not what was written", volume.id)),
        }
    }

    /// Ends a volume that was left.
    pub async fn end(&self, volume: &Volume) -> Result<(), Failure> {
        self.release(volume).await?;
        self.delete(volume).await
    }
}

fn topology(node_id: &str) -> csi::Topology {
    csi::Topology { segments: [(Settings::TOPOLOGY_KEY.to_owned(), node_id.to_owned())].into() }
}
