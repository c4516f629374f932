//! Inline ephemeral volumes: kubelet calls NodePublishVolume with the attributes that the pod's author wrote.

use std::collections::HashMap;

use super::fields::KUBERNETES_PREFIX;
use super::keys::Given;
use super::parameters;
use crate::error::{Error, Result};
use crate::model::request::InlineVolume;
use crate::model::{SizeRange, parse_quantity};

const SIZE: &str = "size";

/// The inline volume that `volume_context` describes; `None` if it belongs to a volume that CreateVolume made.
/// Without an attribute `size` it has no wish, which [`SizeRange::choose`] makes the driver's default size of.
pub(super) fn decode(context: &HashMap<String, String>) -> Result<Option<InlineVolume>> {
    let ephemeral = context.get(&format!("{KUBERNETES_PREFIX}ephemeral"));
    if ephemeral.is_none_or(|value| value != "true") {
        return Ok(None);
    }
    let mut attributes = Given::new("volume attribute", context);
    let required = attributes.take(SIZE).map_or(Ok(0), size).map_err(Error::Invalid)?;
    let parameters = parameters::inline(&attributes).map_err(Error::Invalid)?;
    Ok(Some(InlineVolume { size: SizeRange { required, limit: 0 }, parameters }))
}

fn size(text: &str) -> Result<u64, String> {
    match parse_quantity(text) {
        Ok(0) => Err(format!("volume attribute {SIZE} is 0; write a size such as 1Gi, or leave it out")),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(format!("volume attribute {SIZE}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::map;
    use super::*;
    use crate::model::BackendKind;

    fn with(entries: &[(&str, &str)]) -> Result<Option<InlineVolume>> {
        let mut context = map(entries);
        context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned());
        context.insert("csi.storage.k8s.io/pod.name".to_owned(), "pod".to_owned());
        decode(&context)
    }

    #[test]
    fn a_volume_is_inline_if_the_context_says_true() {
        for value in ["false", "True", "", "1"] {
            assert_eq!(
                decode(&map(&[("csi.storage.k8s.io/ephemeral", value), ("foo", "bar")])).expect("none"),
                None
            );
        }
        assert_eq!(decode(&map(&[("ephemeral", "true")])).expect("none"), None);
    }

    #[test]
    fn attributes_make_an_inline_volume() {
        let plain = with(&[]).expect("inline").expect("some");
        assert_eq!(plain.size.choose(1, 1 << 40), Ok(1 << 30));
        assert!(plain.parameters.direct_io);
        let full = with(&[("size", "64Mi"), ("backend", "directory"), ("pool", "fast")])
            .expect("inline")
            .expect("some");
        assert_eq!((full.size.required, full.parameters.backend), (64 << 20, BackendKind::Directory));
    }

    #[test]
    fn attributes_not_for_pods_are_refused() {
        for entry in [
            ("size", "0"),
            ("size", ""),
            ("size", "-1"),
            ("size", "1GB"),
            ("mkfsOptions", "-q"),
            ("sharedOnNode", "true"),
            ("sharedOnNode", "false"),
            ("freeze", "true"),
            ("freezeTimeout", "30s"),
            ("unknown", "x"),
            ("directIO", "yes"),
            ("discard", "yes"),
        ] {
            let error = with(&[entry]).expect_err("refused");
            assert!(matches!(&error, Error::Invalid(m) if m.contains(entry.0)), "{error}");
        }
    }
}
