//! Model to proto: health, as CSI 1.13 has it, and volume conditions for callers of 1.12.

use crate::model::answer::{HealthPage, VolumeHealth};
use crate::model::health::{Severity, Trouble};
use crate::wire::csi;

pub fn volume_health(health: &VolumeHealth) -> csi::VolumeHealth {
    use csi::VolumeHealthErrorType as Status;
    let entry = |trouble: &Trouble| csi::volume_health::VolumeHealthEntry {
        status: match trouble.severity {
            Severity::Degraded => Status::Degraded,
            Severity::Inaccessible => Status::Inaccessible,
            Severity::DataLoss => Status::DataLoss,
        }
        .into(),
        reason: trouble.reason.to_owned(),
        message: trouble.message.clone(),
    };
    csi::VolumeHealth {
        volume_id: health.volume_id.clone(),
        health_statuses: health.troubles.iter().map(entry).collect(),
    }
}

pub fn controller_list_volume_health(page: &HealthPage) -> csi::ControllerListVolumeHealthResponse {
    csi::ControllerListVolumeHealthResponse {
        entries: page.volumes.iter().map(volume_health).collect(),
        next_token: page.next_token.clone().unwrap_or_default(),
    }
}

/// CSI NodeGetStorageHealth's answer. It knows two severities only: what cannot be reached is lost to this node.
pub fn node_get_storage_health(troubles: &[Trouble]) -> csi::NodeGetStorageHealthResponse {
    use csi::StorageHealthErrorType as Status;
    let entry = |trouble: &Trouble| csi::node_get_storage_health_response::StorageBackendHealth {
        status: match trouble.severity {
            Severity::Degraded => Status::StorageDegraded,
            Severity::Inaccessible | Severity::DataLoss => Status::StorageUnreachable,
        }
        .into(),
        reason: trouble.reason.to_owned(),
        message: trouble.message.clone(),
        volume_capability: None,
    };
    csi::NodeGetStorageHealthResponse { backend_health: troubles.iter().map(entry).collect() }
}

/// CSI 1.12's `VolumeCondition`. There is one for a healthy volume too, as the capability promises.
#[allow(deprecated, reason = "CSI 1.12 has it")]
pub(super) fn condition(troubles: &[Trouble]) -> csi::VolumeCondition {
    let words: Vec<String> =
        troubles.iter().map(|trouble| format!("{}: {}", trouble.reason, trouble.message)).collect();
    let message = match words.is_empty() {
        true => "no trouble is known".to_owned(),
        false => words.join("; "),
    };
    csi::VolumeCondition { abnormal: !troubles.is_empty(), message }
}
