//! What is wrong with a volume, or with what holds volumes.

/// How bad it is (csi.proto, `VolumeHealthErrorType` and `StorageHealthErrorType`); the worst one last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It works, and not as it should.
    Degraded,
    /// It cannot be reached at present.
    Inaccessible,
    /// Data are lost, or very likely so.
    DataLoss,
}

impl Severity {
    pub const ALL: [Severity; 3] = [Severity::Degraded, Severity::Inaccessible, Severity::DataLoss];

    /// Its name in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Degraded => "degraded",
            Severity::Inaccessible => "inaccessible",
            Severity::DataLoss => "data_loss",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub severity: Severity,
    /// For programs: CamelCase, one for each kind of trouble.
    pub reason: &'static str,
    /// For people: what it is, and what to do about it.
    pub message: String,
}

impl Trouble {
    /// It works, and not as it should.
    pub fn degraded(reason: &'static str, message: String) -> Self {
        Trouble { severity: Severity::Degraded, reason, message }
    }

    /// It cannot be reached at present.
    pub fn inaccessible(reason: &'static str, message: String) -> Self {
        Trouble { severity: Severity::Inaccessible, reason, message }
    }

    /// Data are lost.
    pub fn data_loss(reason: &'static str, message: String) -> Self {
        Trouble { severity: Severity::DataLoss, reason, message }
    }
}

/// Makes one of those with the same severity and reason: an answer may have each pair once (csi.proto,
/// `VolumeHealthEntry.reason` and `StorageBackendHealth.reason`).
pub fn merged(troubles: Vec<Trouble>) -> Vec<Trouble> {
    let mut merged: Vec<Trouble> = Vec::new();
    for trouble in troubles {
        let same =
            |known: &&mut Trouble| (known.severity, known.reason) == (trouble.severity, trouble.reason);
        match merged.iter_mut().find(same) {
            Some(known) => known.message = format!("{}; {}", known.message, trouble.message),
            None => merged.push(trouble),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_given_once_with_all_that_is_known() {
        let troubles = vec![
            Trouble::degraded("Slow", "a".to_owned()),
            Trouble::inaccessible("Slow", "b".to_owned()),
            Trouble::degraded("Slow", "c".to_owned()),
            Trouble::degraded("Old", "d".to_owned()),
        ];
        let seen: Vec<_> = merged(troubles).into_iter().map(|t| (t.severity, t.reason, t.message)).collect();
        assert_eq!(
            seen,
            [
                (Severity::Degraded, "Slow", "a; c".to_owned()),
                (Severity::Inaccessible, "Slow", "b".to_owned()),
                (Severity::Degraded, "Old", "d".to_owned()),
            ]
        );
        assert!(Severity::ALL.is_sorted());
    }
}
