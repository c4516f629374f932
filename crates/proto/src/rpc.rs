//! RPCs as types. build.rs implements these traits for the requests in `proto/`, so that nothing else has to name a message
//! together with its method.

use prost::Message;

pub trait Rpc: Message + Default + Clone + 'static {
    /// What answers it; where the answer is a stream, each message of it.
    type Reply: Message + Default + 'static;
    /// The path of its calls, such as `/csi.v1.Controller/CreateVolume`.
    const PATH: &'static str;
    /// The full name of the request, such as `csi.v1.CreateVolumeRequest`.
    const MESSAGE: &'static str;
}

/// An RPC that one message answers.
pub trait Unary: Rpc {}

/// An RPC that a stream of messages answers.
pub trait Streaming: Rpc {}
