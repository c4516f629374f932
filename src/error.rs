//! The driver's error: each variant is a meaning that a CSI caller acts on, not a source. `service/status.rs`
//! turns it into a gRPC code, in one place.

use std::{fmt, io};

use nix::errno::Errno;

use crate::kernel::errno_of;
use crate::model::{ObjectId, SizeError, VolumeId};
use crate::store::StoreError;

/// Why a use case did not do what it was asked to. Messages say what to change; they never carry a secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense, or asks for what no volume can have: INVALID_ARGUMENT.
    #[error("{0}")]
    Invalid(String),
    /// The volume, node or path is not there: NOT_FOUND.
    #[error("{0}")]
    NotFound(String),
    /// It is there, but not as asked for: ALREADY_EXISTS.
    #[error("{0}")]
    AlreadyExists(String),
    /// Another operation on the same volume is running: ABORTED, try again.
    #[error("{0}; try again")]
    Busy(Busy),
    /// There is too much long work on the node already: ABORTED, try again. Nothing has begun.
    #[error("{0}")]
    Crowded(String),
    /// A paging token that was not given out by this driver: ABORTED, start over.
    #[error("starting_token {0:?} is not valid; list again from the start")]
    BadToken(String),
    /// The volume is in use, or not in the state that the call needs: FAILED_PRECONDITION.
    #[error("{0}")]
    InUse(String),
    /// The volume has moved to another node: FAILED_PRECONDITION, with that node in the metadata.
    #[error("volume {id} has moved to node {node_id:?}")]
    Moved {
        /// The volume.
        id: VolumeId,
        /// The CSI node id of the node that has it.
        node_id: String,
    },
    /// The snapshot or the group was deleted here, and another node may have it as well: FAILED_PRECONDITION, with that node in the metadata.
    #[error(
        "{id} is deleted here, and node {node_id:?} may have a copy of it, which has to be deleted as well"
    )]
    AlsoOn {
        /// The snapshot or the group.
        id: ObjectId,
        /// The CSI node id of the other node.
        node_id: String,
    },
    /// No size in the given range is possible: OUT_OF_RANGE.
    #[error("{0}")]
    OutOfRange(String),
    /// No room, or a limit is reached: RESOURCE_EXHAUSTED.
    #[error("{0}")]
    Exhausted(String),
    /// Not served in this configuration: UNIMPLEMENTED.
    #[error("{0}")]
    Unsupported(String),
    /// A permit of a controller is missing, or does not cover it: PERMISSION_DENIED.
    #[error("{0}")]
    Denied(String),
    /// Not now (start-up recovery runs): UNAVAILABLE, try again.
    #[error("{0}")]
    Unavailable(String),
    /// The kernel or a tool failed. ENOSPC and EDQUOT are RESOURCE_EXHAUSTED, EBUSY is FAILED_PRECONDITION,
    /// EFBIG is OUT_OF_RANGE, all else INTERNAL.
    #[error("{context}: {source}")]
    Os {
        /// What was being done.
        context: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The state file could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Undoing a failed operation failed as well; start-up finishes it. The code is the cause's.
    #[error("{cause}; undoing it failed too: {undo}")]
    Undo {
        /// Why the operation failed.
        cause: Box<Error>,
        /// Why it could not be undone.
        undo: Box<Error>,
    },
}

/// What an error comes from, the nearest first.
pub fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |cause| cause.source())
}

/// What is said of an error, with what it comes from behind it. What is said already is not said again.
pub fn with_causes(said: String, error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).map(ToString::to_string).fold(said, |said, cause| match said.contains(&cause) {
        true => said,
        false => format!("{said}: {cause}"),
    })
}

/// Returns a message with at most `limit` bytes, and an ellipsis if something was cut off.
pub fn shorten(mut message: String, limit: usize) -> String {
    if message.len() > limit {
        let end = (0..=limit).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    message
}

/// What is busy, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Busy {
    /// What.
    pub what: Subject,
    /// Why, or how far that is; where it is known.
    pub why: Option<String>,
}

/// What can be busy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// Something with an id.
    Object(ObjectId),
    /// The filesystem of a volume, which another copy of it holds frozen.
    Freeze(VolumeId),
    /// A volume that is to be made, by its name.
    Name(String),
    /// What a volume is made from, on another node.
    Source,
}

impl Busy {
    /// Another operation on this runs.
    pub fn on(object: impl Into<ObjectId>) -> Self {
        Busy { what: Subject::Object(object.into()), why: None }
    }

    /// The same with a reason.
    #[must_use]
    pub fn because(self, why: impl Into<String>) -> Self {
        Busy { why: Some(why.into()), ..self }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            Subject::Object(object) => write!(f, "another operation on {object}")?,
            Subject::Freeze(id) => {
                write!(f, "another copy of volume {id}, for which its filesystem is frozen,")?
            }
            Subject::Name(name) => write!(f, "another operation on volume {name:?}")?,
            Subject::Source => write!(f, "another operation on the source")?,
        }
        match &self.why {
            Some(why) => write!(f, " ({why}) is running"),
            None => write!(f, " is running"),
        }
    }
}

impl From<Busy> for Error {
    fn from(busy: Busy) -> Self {
        Error::Busy(busy)
    }
}

/// Result of a use case.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The errno behind the error, if it came from the kernel.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Os { source, .. } => errno_of(source),
            Error::Store(StoreError::Io(source)) => errno_of(source),
            Error::Undo { cause, .. } => cause.errno(),
            _ => None,
        }
    }

    /// Adds the outcome of undoing to the reason for it.
    #[must_use]
    pub fn after_undo(self, undo: Result<()>) -> Error {
        match undo {
            Ok(()) => self,
            Err(undo) => Error::Undo { cause: Box::new(self), undo: Box::new(undo) },
        }
    }
}

impl From<SizeError> for Error {
    fn from(error: SizeError) -> Self {
        Error::OutOfRange(error.to_string())
    }
}

/// Names what was being done when the kernel failed.
pub trait OsContext<T> {
    /// Adds `context` (lower case, no full stop: `"attach volume vol-…"`).
    fn doing(self, context: impl FnOnce() -> String) -> Result<T>;
}

impl<T> OsContext<T> for io::Result<T> {
    fn doing(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Os { context: context(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str, #[source] Option<Box<Said>>);

    #[test]
    fn each_cause_is_said_once() {
        let error =
            Said("the call failed", Some(Box::new(Said("reset", Some(Box::new(Said("by peer", None)))))));
        assert_eq!(with_causes("node a".to_owned(), &error), "node a: reset: by peer");
        assert_eq!(with_causes("a reset".to_owned(), &error), "a reset: by peer");
        assert_eq!(causes(&error).map(ToString::to_string).collect::<Vec<_>>(), ["reset", "by peer"]);
    }
}
