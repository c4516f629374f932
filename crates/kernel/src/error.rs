//! Errors of the kernel: `std::io::Error` with an errno, and with a message that names the operation and the path.

use std::fmt::Display;
use std::io;

use nix::errno::Errno;

/// Whether the error carries this errno.
pub fn is_errno(error: &io::Error, errno: Errno) -> bool {
    errno_of(error) == Some(errno)
}

/// Whether a disk or a quota is full: there is no room for what was to be done.
pub fn is_full(error: &io::Error) -> bool {
    matches!(errno_of(error), Some(Errno::ENOSPC | Errno::EDQUOT))
}

/// The errno that an error carries, directly or wrapped by [`with_context`].
pub fn errno_of(error: &io::Error) -> Option<Errno> {
    if let Some(raw) = error.raw_os_error() {
        return Some(Errno::from_raw(raw));
    }
    error.get_ref()?.downcast_ref::<Contextual>().map(|c| c.errno)
}

/// An errno with the operation and path that met it.
#[derive(Debug, thiserror::Error)]
#[error("{context}: {errno}")]
struct Contextual {
    context: String,
    #[source]
    errno: Errno,
}

/// Wraps an error with what was being done (`"mkdir /x"`), keeping its errno for [`errno_of`].
pub fn with_context(error: io::Error, context: impl Display) -> io::Error {
    match errno_of(&error) {
        // A second wrapping keeps the innermost operation, which is the one that failed.
        Some(errno) if error.raw_os_error().is_some() => {
            let context = context.to_string();
            io::Error::new(error.kind(), Contextual { context, errno })
        }
        Some(_) => error,
        None => io::Error::new(error.kind(), format!("{context}: {error}")),
    }
}

/// An error with an errno of our choosing and the operation that met it.
pub fn errno_error(errno: Errno, context: impl Display) -> io::Error {
    with_context(io::Error::from_raw_os_error(errno as i32), context)
}
