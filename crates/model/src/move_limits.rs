//! How many copies for moves and standby copies a controller makes.

use crate::size::parse_quantity;

/// How many VolumeReplicas there may be. Each counts until it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveLimits {
    pub all: usize,
    /// Those of the claims of one namespace.
    pub namespace: usize,
    /// Those with their copy on one node.
    pub node: usize,
    /// The sizes of the volumes with their copy on one node, in bytes; `None` for no limit.
    pub node_size: Option<u64>,
}

impl MoveLimits {
    /// Reads `all=1000,namespace=100,node=200,node-size=2Ti`. What is left out keeps its default.
    ///
    /// # Errors
    /// What is wrong, and what it has to be.
    pub fn parse(text: &str) -> Result<MoveLimits, String> {
        let mut limits = MoveLimits::default();
        let mut given: Vec<&str> = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
            let count = || value.parse().map_err(|_| format!("{entry:?}: {value:?} is not a number"));
            match name {
                "all" => limits.all = count()?,
                "namespace" => limits.namespace = count()?,
                "node" => limits.node = count()?,
                "node-size" => {
                    let size = parse_quantity(value).map_err(|error| format!("{entry:?}: {error}"))?;
                    limits.node_size = Some(size);
                }
                _ => {
                    return Err(format!(
                        "{entry:?} is not a limit; use all=NUMBER, namespace=NUMBER, node=NUMBER or node-size=SIZE"
                    ));
                }
            }
            if given.contains(&name) {
                return Err(format!("{name} is set twice"));
            }
            given.push(name);
        }
        Ok(limits)
    }
}

impl Default for MoveLimits {
    fn default() -> Self {
        MoveLimits { all: 1000, namespace: 100, node: 200, node_size: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_left_out_keep_their_defaults() {
        let default = MoveLimits::default();
        assert_eq!(MoveLimits::parse(""), Ok(default));
        assert_eq!(MoveLimits::parse("namespace=5"), Ok(MoveLimits { namespace: 5, ..default }));
        assert_eq!(
            MoveLimits::parse("all=1, namespace=2,node=3,node-size=1Gi,"),
            Ok(MoveLimits { all: 1, namespace: 2, node: 3, node_size: Some(1 << 30) })
        );
        assert_eq!(MoveLimits::parse("all=0").map(|limits| limits.all), Ok(0), "no copies at all");
    }

    #[test]
    fn limits_that_cannot_be_read_are_refused() {
        for (text, why) in [
            ("all", "\"\" is not a number"),
            ("all=-1", "\"-1\" is not a number"),
            ("node-size=much", "node-size=much"),
            ("all=1,all=2", "all is set twice"),
            ("nodes=1", "use all=NUMBER, namespace=NUMBER, node=NUMBER or node-size=SIZE"),
        ] {
            let error = MoveLimits::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
