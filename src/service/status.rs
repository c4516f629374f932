//! The one place where an error becomes a gRPC status. The code decides what the caller does next: it retries ABORTED and
//! UNAVAILABLE unchanged, reschedules after RESOURCE_EXHAUSTED, and ends the attempt after most others.

use nix::errno::Errno;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::{Code, Status};

use crate::error::{Error, shorten};

/// Metadata of an answer about a volume that has moved to another node, or about a snapshot that another node may have as well: the CSI
/// node id of that node.
pub const MOVED_TO: &str = "hostloop-moved-to-bin";

/// Longest message in bytes: it travels in a header, and a tool's output may be part of it.
const MESSAGE_LIMIT: usize = 2048;

/// The code of an error (spec.md, Error Scheme, and the RPCs' own tables).
pub fn code(error: &Error) -> Code {
    match error {
        Error::Invalid(_) => Code::InvalidArgument,
        Error::NotFound(_) => Code::NotFound,
        Error::AlreadyExists(_) => Code::AlreadyExists,
        Error::Busy(_) | Error::Crowded(_) | Error::BadToken(_) => Code::Aborted,
        Error::InUse(_) | Error::Moved { .. } | Error::AlsoOn { .. } => Code::FailedPrecondition,
        Error::OutOfRange(_) => Code::OutOfRange,
        Error::Exhausted(_) => Code::ResourceExhausted,
        Error::Unsupported(_) => Code::Unimplemented,
        Error::Denied(_) => Code::PermissionDenied,
        Error::Unavailable(_) => Code::Unavailable,
        Error::Os { .. } | Error::Store(_) => by_errno(error.errno()),
        Error::Undo { cause, .. } => code(cause),
    }
}

fn by_errno(errno: Option<Errno>) -> Code {
    match errno {
        Some(Errno::ENOSPC | Errno::EDQUOT) => Code::ResourceExhausted,
        Some(Errno::EBUSY) => Code::FailedPrecondition,
        // A file that the filesystem of the pool cannot have.
        Some(Errno::EFBIG) => Code::OutOfRange,
        _ => Code::Internal,
    }
}

/// The message must be there and the details must not (spec.md, Error Scheme).
impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = code(&error);
        let message = error.to_string();
        let message = if message.trim().is_empty() {
            code.description().to_owned()
        } else {
            shorten(message, MESSAGE_LIMIT)
        };
        let mut metadata = MetadataMap::new();
        if let Error::Moved { node_id, .. } | Error::AlsoOn { node_id, .. } = &error {
            metadata.insert_bin(MOVED_TO, BinaryMetadataValue::from_bytes(node_id.as_bytes()));
        }
        Status::with_metadata(code, message, metadata)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::error::{Busy, Subject};
    use crate::kernel::errno_error;
    use crate::store::StoreError;

    fn os(errno: Errno) -> Error {
        Error::Os { context: "attach volume".to_owned(), source: errno_error(errno, "open /x") }
    }

    fn undo(cause: Error) -> Error {
        Error::Undo { cause: Box::new(cause), undo: Box::new(os(Errno::EIO)) }
    }

    #[test]
    fn every_error_has_its_code() {
        let text = || "text".to_owned();
        let plain = || io::Error::other("no errno");
        let table = [
            (Error::Invalid(text()), Code::InvalidArgument),
            (Error::NotFound(text()), Code::NotFound),
            (Error::AlreadyExists(text()), Code::AlreadyExists),
            (Busy { what: Subject::Source, why: None }.into(), Code::Aborted),
            (Error::Crowded(text()), Code::Aborted),
            (Error::BadToken(text()), Code::Aborted),
            (Error::InUse(text()), Code::FailedPrecondition),
            (Error::OutOfRange(text()), Code::OutOfRange),
            (Error::Exhausted(text()), Code::ResourceExhausted),
            (Error::Unsupported(text()), Code::Unimplemented),
            (Error::Denied(text()), Code::PermissionDenied),
            (Error::Unavailable(text()), Code::Unavailable),
            (os(Errno::ENOSPC), Code::ResourceExhausted),
            (os(Errno::EDQUOT), Code::ResourceExhausted),
            (os(Errno::EBUSY), Code::FailedPrecondition),
            (os(Errno::EIO), Code::Internal),
            (os(Errno::ENOENT), Code::Internal),
            (Error::Os { context: text(), source: plain() }, Code::Internal),
            (Error::Store(StoreError::Io(io::Error::from_raw_os_error(28))), Code::ResourceExhausted),
            (Error::Store(StoreError::Io(plain())), Code::Internal),
            (undo(Error::Exhausted(text())), Code::ResourceExhausted),
            (undo(os(Errno::ENOSPC)), Code::ResourceExhausted),
            (undo(undo(Error::InUse(text()))), Code::FailedPrecondition),
        ];
        for (error, want) in table {
            let debug = format!("{error:?}");
            let status = Status::from(error);
            assert_eq!(status.code(), want, "{debug}");
            assert!(!status.message().is_empty() && status.details().is_empty(), "{debug}");
        }
    }

    #[test]
    fn a_message_is_there_and_not_too_long() {
        assert!(!Status::from(Error::Invalid(" ".to_owned())).message().trim().is_empty());
        let long = Status::from(Error::Invalid("é".repeat(5000)));
        assert!(long.message().len() <= MESSAGE_LIMIT + 3 && long.message().ends_with('…'));
    }
}
