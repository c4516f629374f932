//! `mutable_parameters`: what a VolumeAttributesClass sets when a volume is created, and changes later.

use std::collections::HashMap;

use super::keys::{Given, YES_NO};
use super::parameters;
use crate::model::{Enforcement, Modification, Provisioning};

pub(super) const PROVISIONING: &str = "provisioning";
pub(super) const DIRECT_IO: &str = "directIO";
pub(super) const DISCARD: &str = "discard";
pub(super) const ENFORCEMENT: &str = "enforcement";

/// What a key is called in a message.
pub(super) const KIND: &str = "mutable parameter";
/// What can change while a volume lives.
const KEYS: [&str; 4] = [PROVISIONING, DIRECT_IO, DISCARD, ENFORCEMENT];

/// `mutable_parameters`; empty ones change nothing. The error says what to change.
pub(super) fn decode(mutable: &HashMap<String, String>) -> Result<Modification, String> {
    let given = Given::new(KIND, mutable);
    if let Some(key) = given.keys().find(|key| !KEYS.contains(key)) {
        let reason = if parameters::is_known(key) { "cannot change" } else { "is not known" };
        return Err(format!("{KIND} {key:?} {reason}; those that can change are {}", KEYS.join(", ")));
    }
    let modification = changeable(&given)?;
    check(modification)?;
    Ok(modification)
}

/// `mutable_parameters` of ControllerModifyVolume, where they are required.
pub(super) fn required(mutable: &HashMap<String, String>) -> Result<Modification, String> {
    if mutable.is_empty() {
        return Err(format!(
            "mutable_parameters is missing; it is required, and can set {}",
            KEYS.join(", ")
        ));
    }
    decode(mutable)
}

/// Those of the given keys that can change.
pub(super) fn changeable(given: &Given<'_>) -> Result<Modification, String> {
    Ok(Modification {
        provisioning: given
            .choose(PROVISIONING, &[("thin", Provisioning::Thin), ("thick", Provisioning::Thick)])?,
        direct_io: given.choose(DIRECT_IO, &YES_NO)?,
        discard: given.choose(DISCARD, &YES_NO)?,
        enforcement: given.choose(
            ENFORCEMENT,
            &[Enforcement::Required, Enforcement::None].map(|kind| (kind.as_str(), kind)),
        )?,
    })
}

/// Both together: `upper` wins.
pub(super) fn over(upper: Modification, lower: Modification) -> Modification {
    Modification {
        provisioning: upper.provisioning.or(lower.provisioning),
        direct_io: upper.direct_io.or(lower.direct_io),
        discard: upper.discard.or(lower.discard),
        enforcement: upper.enforcement.or(lower.enforcement),
    }
}

/// Refuses what was asked for and cannot be had together.
pub(super) fn check(asked: Modification) -> Result<(), String> {
    match asked {
        Modification { provisioning: Some(Provisioning::Thick), discard: Some(true), .. } => Err(format!(
            "{DISCARD}=true does not work with {PROVISIONING}=thick: a thick volume never gives blocks back; leave \
             {DISCARD} out or use {PROVISIONING}=thin"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::map;
    use super::*;

    #[test]
    fn every_mutable_key_is_read() {
        let all = map(&[
            ("provisioning", "thin"),
            ("directIO", "false"),
            ("discard", "true"),
            ("enforcement", "required"),
        ]);
        let want = Modification {
            provisioning: Some(Provisioning::Thin),
            direct_io: Some(false),
            discard: Some(true),
            enforcement: Some(Enforcement::Required),
        };
        assert_eq!(decode(&all), Ok(want));
        assert_eq!(
            decode(&map(&[("provisioning", "thick"), ("discard", "false")])).map(|m| m.provisioning),
            Ok(Some(Provisioning::Thick))
        );
        assert_eq!(decode(&map(&[("csi.storage.k8s.io/pvc/name", "x")])), Ok(Modification::default()));
    }

    #[test]
    fn a_fixed_key_is_told_from_an_unknown_one() {
        for key in ["backend", "pool", "mkfsOptions", "sharedOnNode", "freeze", "freezeTimeout"] {
            let reason = decode(&map(&[(key, "x"), ("discard", "true")])).expect_err("refused");
            assert!(reason.contains(&format!("{key:?} cannot change")), "{reason}");
            assert!(reason.contains("provisioning, directIO, discard"), "{reason}");
        }
        for key in ["Discard", "iops", "", "kubernetes.io/x"] {
            let reason = decode(&map(&[(key, "true")])).expect_err("refused");
            assert!(reason.contains(&format!("{key:?} is not known")), "{reason}");
            assert!(reason.contains("provisioning, directIO, discard"), "{reason}");
        }
    }

    #[test]
    fn values_are_exact_and_fit_each_other() {
        for (key, value) in
            [("discard", "yes"), ("directIO", "True"), ("provisioning", ""), ("enforcement", "Required")]
        {
            let reason = decode(&map(&[(key, value)])).expect_err("refused");
            assert!(reason.contains(key) && reason.contains(&format!("{value:?}")), "{reason}");
        }
        let reason = decode(&map(&[("provisioning", "thick"), ("discard", "true")])).expect_err("refused");
        assert!(reason.contains("discard=true does not work with provisioning=thick"), "{reason}");
    }

    #[test]
    fn nothing_is_a_change_only_where_it_may_be() {
        assert_eq!(decode(&map(&[])), Ok(Modification::default()));
        assert!(required(&map(&[])).expect_err("refused").contains("mutable_parameters is missing"));
        assert_eq!(required(&map(&[("directIO", "true")])).map(|m| m.direct_io), Ok(Some(true)));
    }
}
