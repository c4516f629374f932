//! The driver's error: each variant is a meaning that a CSI caller acts on, not a source. `service/status.rs`
//! turns it into a gRPC code, in one place.

use std::io;

use nix::errno::Errno;

use crate::model::SizeError;
use crate::os::errno_of;
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
    #[error("another operation on {0} is running, try again")]
    Busy(String),
    /// There is too much long work on the node already: ABORTED, try again. Nothing has begun.
    #[error("{0}")]
    Crowded(String),
    /// A paging token that was not given out by this driver: ABORTED, start over.
    #[error("starting_token {0:?} is not valid, list again from the start")]
    BadToken(String),
    /// The volume is in use, or not in the state that the call needs: FAILED_PRECONDITION.
    #[error("{0}")]
    InUse(String),
    /// No size in the given range is possible: OUT_OF_RANGE.
    #[error("{0}")]
    OutOfRange(String),
    /// No room, or a limit is reached: RESOURCE_EXHAUSTED.
    #[error("{0}")]
    Exhausted(String),
    /// Not served in this configuration: UNIMPLEMENTED.
    #[error("{0}")]
    Unsupported(String),
    /// Not now (start-up recovery runs): UNAVAILABLE, try again.
    #[error("{0}")]
    Unavailable(String),
    /// The kernel or a tool failed. ENOSPC and EDQUOT are RESOURCE_EXHAUSTED, EBUSY is FAILED_PRECONDITION,
    /// all else INTERNAL.
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
