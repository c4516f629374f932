//! The calls that are measured, as the sidecars make them. Any refusal ends the measurement.

use std::path::{Path, PathBuf};

use hostloop::config::Check;
use hostloop::selftest::client::Client;
use hostloop::selftest::requests::{self, MadeFrom};
use hostloop::wire::csi;
use tonic::Request;

/// Speaks to one driver about volumes of one kind.
#[derive(Clone)]
pub struct Caller {
    client: Client,
    pool: Option<String>,
    check: Check,
}

impl Caller {
    pub fn new(client: Client, pool: Option<&str>) -> Self {
        Caller { client, pool: pool.map(str::to_owned), check: Check::Ext4 }
    }

    pub fn for_block(self) -> Self {
        Caller { check: Check::Block, ..self }
    }

    pub async fn create(&self, name: &str, bytes: u64, origin: Option<MadeFrom>) -> String {
        let mut request = requests::create_kind(name, bytes, self.check);
        request.parameters.extend(self.pool.iter().map(|pool| ("pool".to_owned(), pool.clone())));
        request.parameters.insert("freezeTimeout".to_owned(), "5m".to_owned());
        if let Some(origin) = origin {
            request = origin.source_of(request);
        }
        self.client.call(request).await.unwrap().volume.unwrap().volume_id
    }

    pub async fn delete(&self, id: &str) {
        self.client.call(requests::delete(id)).await.unwrap();
    }

    pub async fn snapshot(&self, name: &str, volume: &str, freeze: &str) -> String {
        let parameters = requests::parameters(&[("freezeTimeout", "5m"), ("freeze", freeze)]);
        let request = csi::CreateSnapshotRequest { parameters, ..requests::snapshot(name, volume) };
        self.client.call(request).await.unwrap().snapshot.unwrap().snapshot_id
    }

    pub async fn delete_snapshot(&self, id: &str) {
        self.client.call(requests::delete_snapshot(id)).await.unwrap();
    }

    /// Stages a volume and publishes a raw one; gives the path of its data.
    pub async fn stage(&self, id: &str, place: &Path) -> PathBuf {
        let (staging, target) = (place.join("staging"), place.join("target"));
        let capability = requests::writer(self.check);
        self.client.call(requests::stage(id, &staging, capability.clone())).await.unwrap();
        if self.check != Check::Block {
            return staging;
        }
        self.client.call(requests::publish(id, &staging, &target, capability)).await.unwrap();
        target
    }

    pub async fn unstage(&self, id: &str, place: &Path) {
        if self.check == Check::Block {
            self.client.call(requests::unpublish(id, place.join("target"))).await.unwrap();
        }
        self.client.call(requests::unstage(id, place.join("staging"))).await.unwrap();
    }

    /// The ranges in which two snapshots differ: how many, and how many bytes.
    pub async fn delta(&self, base: &str, target: &str) -> (usize, u64) {
        let request = csi::GetMetadataDeltaRequest {
            base_snapshot_id: base.to_owned(),
            target_snapshot_id: target.to_owned(),
            ..Default::default()
        };
        let mut stream = self.client.open(Request::new(request)).await.unwrap();
        let (mut count, mut bytes) = (0, 0);
        while let Some(message) = stream.message().await.unwrap() {
            count += message.block_metadata.len();
            bytes += message.block_metadata.iter().map(|range| range.size_bytes as u64).sum::<u64>();
        }
        (count, bytes)
    }
}
