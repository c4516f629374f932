//! What the status of another node means to a pull.

use std::error::Error as _;

use tonic::{Code, Status};

use crate::cluster::answers::line;
use crate::driver::Broken;
use crate::error::{Busy, Error, Subject, with_causes};
use crate::wire::pull::Malformed;

/// Returns the error of a pull that was ended on this node.
pub(super) fn stopped() -> Broken {
    let why = "the pull was ended, since the volume is to be completed or deleted";
    Broken::Ended(Error::Unavailable(why.to_owned()))
}

pub(super) fn malformed(Malformed(why): Malformed) -> Broken {
    Broken::Damaged(line(&why))
}

/// Returns why a stream broke.
pub(super) fn broken(status: Status) -> Broken {
    match answered(&status) {
        // tonic reports a message that is too long with this code.
        None if status.code() == Code::OutOfRange => Broken::Damaged(describe(&status)),
        // A stream of the same source that has not noticed its end, or a node that starts.
        Some(Error::Busy(_)) | None => Broken::Connection(describe(&status)),
        // What was opened was permitted. The caller's next try brings a newer permit.
        Some(_) if status.code() == Code::PermissionDenied => Broken::Connection(describe(&status)),
        Some(error) => Broken::Ended(error),
    }
}

/// What it means here that the node of a source has no room for its cut, or serves as many streams as it may. As
/// RESOURCE_EXHAUSTED it would be the lack of room of this node, and the scheduler would send the pod away from it, to
/// nodes that have to ask the same source.
pub(super) fn no_room(node_id: &str, status: &Status) -> Error {
    Error::Unavailable(format!(
        "node {node_id:?}, which has the source, has no room to open it: {}; free some space there",
        line(status.message())
    ))
}

/// What the other node has answered; `None` for everything that may be the connection's doing or pass by itself, an
/// error of its disk and its lack of room among it.
pub(super) fn answered(status: &Status) -> Option<Error> {
    if status.source().is_some() {
        return None; // it was made here
    }
    let said = line(status.message());
    let message = format!("on the node of the source: {said}");
    match status.code() {
        Code::NotFound => Some(Error::NotFound(message)),
        Code::InvalidArgument => Some(Error::Invalid(message)),
        Code::FailedPrecondition => Some(Error::InUse(message)),
        Code::PermissionDenied | Code::Unauthenticated | Code::Unimplemented => Some(Error::InUse(message)),
        Code::Aborted => Some(Error::Busy(Busy { what: Subject::Source, why: Some(said) })),
        _ => None,
    }
}

/// A status in one line, with what is behind a transport's.
pub(super) fn describe(status: &Status) -> String {
    line(&with_causes(format!("{:?}: {}", status.code(), status.message()), status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_a_node_is_told_from_a_broken_way() {
        let final_codes = [
            Code::NotFound,
            Code::InvalidArgument,
            Code::FailedPrecondition,
            Code::Unauthenticated,
            Code::Unimplemented,
        ];
        for code in final_codes {
            assert!(matches!(broken(Status::new(code, "why")), Broken::Ended(_)), "{code:?}");
        }
        let passing = [
            Code::Unavailable,
            Code::Unknown,
            Code::Internal,
            Code::Cancelled,
            Code::Aborted,
            Code::DataLoss,
            Code::ResourceExhausted,
            Code::PermissionDenied,
        ];
        let long = broken(Status::out_of_range("decoded message length too large"));
        assert!(matches!(long, Broken::Damaged(_)), "{long:?}");
        for code in passing {
            let Broken::Connection(why) = broken(Status::new(code, "why")) else {
                unreachable!("{code:?}");
            };
            assert!(why.contains("why"), "{why}");
        }
        let busy = answered(&Status::aborted("it is read"));
        assert!(matches!(busy, Some(Error::Busy(Busy { why: Some(why), .. })) if why == "it is read"));
        let local = Status::from_error(Box::new(std::io::Error::other("reset")));
        let Broken::Connection(why) = broken(local) else { unreachable!("a local error") };
        assert!(why.contains("reset"), "{why}");
    }
}
