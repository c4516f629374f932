//! Pods, as kubelet names them in the paths of volumes.

/// The longest UID: that of a static pod has 32 digits, any other 36.
const LONGEST_UID: usize = 64;

/// Returns the UID of the pod in a path as kubelet makes it: `…/pods/UID/volumes/kubernetes.io~csi/PV/mount`, and for a raw
/// block device `…/volumeDevices/publish/PV/UID`.
pub fn pod_uid_in(path: &str) -> Option<&str> {
    let parts: Vec<&str> = path.split('/').collect();
    let mounted = parts.windows(4).find_map(|part| match part {
        ["pods", uid, "volumes", "kubernetes.io~csi"] => Some(*uid),
        _ => None,
    });
    let device = || match parts.as_slice() {
        [.., "volumeDevices", "publish", _, uid] => Some(*uid),
        _ => None,
    };
    let is_uid = |uid: &&str| {
        (1..=LONGEST_UID).contains(&uid.len()) && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    mounted.or_else(device).filter(is_uid)
}
