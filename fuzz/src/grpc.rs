//! Calls of services in this process, with requests and answers as bytes, so that what no client would send arrives too.

use http::uri::PathAndQuery;
use prost::bytes::{Buf, BufMut, Bytes};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::service::Routes;
use tonic::{Request, Status};

/// Bytes as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Calls `SERVICE/METHOD` and reads its answer, a stream or one message, up to `most` messages.
///
/// # Errors
/// The status of the call.
pub async fn call(
    routes: &Routes,
    method: &str,
    request: Vec<u8>,
    most: usize,
) -> Result<Vec<Bytes>, Status> {
    let path = PathAndQuery::try_from(format!("/{method}")).expect("a path");
    let mut client = tonic::client::Grpc::new(routes.clone());
    client.ready().await.expect("services are always ready");
    let answer = client.server_streaming(Request::new(Bytes::from(request)), path, Raw).await?;
    let (mut stream, mut messages) = (answer.into_inner(), Vec::new());
    while messages.len() < most
        && let Some(message) = stream.message().await?
    {
        messages.push(message);
    }
    Ok(messages)
}
