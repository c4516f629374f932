//! The body of an answer. A call ends when its last frame, which holds the status, was taken. Only an error without any
//! message has the status in the headers (gRPC over HTTP/2, Responses).

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use super::rpc::Entered;
use super::trace::Call;
use super::{message, panic};

/// A body that counts as a running call up to its end, and then logs how it went. Dropped before, the caller has
/// gone.
pub struct Answer {
    inner: Body,
    /// `None` after the end.
    running: Option<(Call, Entered)>,
}

impl Answer {
    /// The body of this call's answer.
    pub fn new(inner: Body, call: Call, entered: Entered) -> Self {
        Answer { inner, running: Some((call, entered)) }
    }
}

/// A frame of an answer.
type AnswerFrame = Option<Result<Frame<<Body as HttpBody>::Data>, Status>>;

impl HttpBody for Answer {
    type Data = <Body as HttpBody>::Data;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<AnswerFrame> {
        let Answer { inner, running } = &mut *self;
        let Some((call, _)) = running else {
            return Poll::Ready(None);
        };
        let polled = call.span().in_scope(|| panic::catch_now(|| Pin::new(&mut *inner).poll_frame(cx)));
        let frame = match polled {
            Ok(frame) => ready!(frame),
            Err(panic::Panicked) => {
                // What is left of it is never looked at again.
                *inner = Body::empty();
                Some(trailers(&panic::status(call.method())))
            }
        };
        let (frame, status) = match frame {
            Some(Ok(frame)) => match frame.into_trailers() {
                Ok(mut trailers) => {
                    let status = message::fill(&mut trailers, call.method());
                    (Some(Ok(Frame::trailers(trailers))), status)
                }
                Err(data) => return Poll::Ready(Some(Ok(data))),
            },
            Some(Err(status)) => (Some(Err(status.clone())), Some(status)),
            None => (None, None),
        };
        if let Some((call, _entered)) = running.take() {
            call.end(&status.unwrap_or_else(|| Status::unknown("the answer ended without a status")));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.running.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

fn trailers<D>(status: &Status) -> Result<Frame<D>, Status> {
    let mut trailers = HeaderMap::new();
    status.add_header(&mut trailers)?;
    Ok(Frame::trailers(trailers))
}
