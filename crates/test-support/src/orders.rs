//! Calls as a controller forwards them, with the certificates that it takes to permit a pull.

use std::sync::{Arc, LazyLock};

use hostloop::cluster::certs::Authority;
use hostloop::cluster::identity::{PeerIdentity, PeerRole};
use hostloop::cluster::permit::{Checked, expiry, sign};
use hostloop::cluster::tls::Tls;
use hostloop::cluster::tls::certificate::Validity;
use hostloop::model::{Grant, NodeKey, Permit, VolumeId, VolumeSource};
use hostloop::service::{PERMIT, Permits, SOURCE_ADDRESS, SOURCE_NODE};
use hostloop::wire::csi;
use time::{Duration, OffsetDateTime};
use tonic::metadata::BinaryMetadataValue;

const DRIVER: &str = "hostloop.csi.dev";

/// The certificates of one cluster.
pub struct Certificates {
    pub controller: Tls,
    pub node: Tls,
}

impl Certificates {
    pub fn new() -> Certificates {
        let dir = tempfile::tempdir().expect("a directory");
        let now = OffsetDateTime::now_utc();
        let validity = Validity { from: now - Duration::minutes(5), until: now + Duration::days(1) };
        let ca = Authority::create(&dir.path().join("ca"), DRIVER, validity).expect("a CA");
        let [controller, node] = [PeerRole::Controller, PeerRole::Node].map(|role| {
            let identity = PeerIdentity { driver: DRIVER.to_owned(), role, node_id: None };
            let out = dir.path().join(role.as_str());
            ca.issue(&identity, validity).and_then(|issued| issued.write(&out)).expect("a certificate");
            Tls::open(&out, DRIVER, role).expect("good certificates")
        });
        Certificates { controller, node }
    }
}

/// Those of the tests' nodes.
pub static CERTIFICATES: LazyLock<Certificates> = LazyLock::new(Certificates::new);

/// What their nodes take for a permit.
pub fn permits() -> Arc<dyn Permits> {
    Arc::new(Checked::new(CERTIFICATES.node.clone()))
}

/// What is permitted for this request.
pub fn grant(request: &csi::CreateVolumeRequest, source_node: &str, target_node: &str) -> Grant {
    use csi::volume_content_source::Type;
    let content = request.volume_content_source.as_ref().and_then(|content| content.r#type.clone());
    let source = match content.expect("a source") {
        Type::Snapshot(source) => VolumeSource::Snapshot(source.snapshot_id.parse().expect("an id")),
        Type::Volume(source) => VolumeSource::Volume(source.volume_id.parse().expect("an id")),
    };
    Grant {
        source_node: source_node.to_owned(),
        target_node: target_node.to_owned(),
        source,
        target: VolumeId::of_name(&NodeKey::of(target_node), &request.name),
        expires: expiry(),
    }
}

pub fn permit(grant: &Grant) -> Permit {
    sign(&CERTIFICATES.controller, grant).expect("a permit")
}

/// The request with the way to its source: the node that has it, and its address.
pub fn order(
    request: csi::CreateVolumeRequest,
    (node, address): (&str, &str),
    permit: Option<&Permit>,
) -> tonic::Request<csi::CreateVolumeRequest> {
    let mut request = tonic::Request::new(request);
    request.metadata_mut().insert(SOURCE_NODE, node.parse().expect("a node id"));
    request.metadata_mut().insert(SOURCE_ADDRESS, address.parse().expect("an address"));
    if let Some(permit) = permit {
        request.metadata_mut().insert_bin(PERMIT, BinaryMetadataValue::from_bytes(permit.as_bytes()));
    }
    request
}
