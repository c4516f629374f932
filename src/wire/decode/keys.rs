//! Maps of settings that people write. Keys and values are exact, and an unknown key is an error, because people notice
//! too late that a setting has silently no effect.

use std::collections::{BTreeMap, HashMap};

use super::fields::KUBERNETES_PREFIX;

/// The values of a switch.
pub(super) const YES_NO: [(&str, bool); 2] = [("true", true), ("false", false)];

/// The keys of one map that are meant for the driver, in order. Kubernetes' own are not: external-provisioner
/// strips those of the StorageClass for CreateVolume but not for GetCapacity, and the sidecars add some with
/// `--extra-create-metadata`.
pub(super) struct Given<'a> {
    /// What a key is called in a message, such as `parameter`.
    pub kind: &'static str,
    entries: BTreeMap<&'a str, &'a str>,
}

impl<'a> Given<'a> {
    /// The driver's keys of `map`.
    pub(super) fn new(kind: &'static str, map: &'a HashMap<String, String>) -> Self {
        let own = map.iter().filter(|(key, _)| !key.starts_with(KUBERNETES_PREFIX));
        Given { kind, entries: own.map(|(key, value)| (key.as_str(), value.as_str())).collect() }
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.entries.get(key).copied()
    }

    /// Whether the key was given, whatever its value.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// The value of a key, which is left out of what [`Given::only`] looks at.
    pub(super) fn take(&mut self, key: &str) -> Option<&'a str> {
        self.entries.remove(key)
    }

    /// Every key, in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.entries.keys().copied()
    }

    /// Refuses every key but these; the error names them.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), String> {
        match self.keys().find(|key| !known.contains(key)) {
            Some(unknown) => {
                Err(format!("{} {unknown:?} is not known; there are {}", self.kind, known.join(", ")))
            }
            None => Ok(()),
        }
    }

    /// The value of a key that has a few; `None` if it was not given.
    pub(super) fn choose<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<Option<T>, String> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match choices.iter().find(|(name, _)| *name == value) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => {
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                Err(format!("{} {key} is {value:?}; write {}", self.kind, names.join(" or ")))
            }
        }
    }
}
