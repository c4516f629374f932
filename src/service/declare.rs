//! How an RPC is declared: once, in the file of its service. A declaration says what is logged of the request, the object
//! to whose node a controller sends it, how it is checked, and what the driver does for it. The code that serves the
//! driver (`serve.rs`) and the code that routes for a cluster (`cluster/router`) read it, and name no RPC that has a
//! declaration.

use std::borrow::Cow;
use std::sync::Arc;

use tonic::Status;
use tonic::metadata::MetadataMap;

use super::stream::Emit;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::model::{Grant, Settings, SnapshotId};
use crate::wire::rpc::{Rpc, Streaming, Unary};
use crate::wire::{csi, peer};

/// What the driver has to do for a call whose request was checked. It can be tried again.
pub(crate) type Work<T> = Arc<dyn Fn(&Arc<Driver>) -> Result<T> + Send + Sync>;
/// The same for an answer of many messages.
pub(crate) type StreamWork<T> = Box<dyn FnOnce(&Driver, Emit<'_, T>) -> Result<()> + Send>;
/// Returns what a permit grants to the caller.
pub(crate) type Open<'a> = &'a dyn Fn(&[u8]) -> Result<Grant>;

/// An object by the id that a caller sent, whatever that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named<'a> {
    /// A volume.
    Volume(&'a str),
    /// A snapshot.
    Snapshot(&'a str),
    /// A group of snapshots.
    Group(&'a str),
}

/// Where a controller of a cluster has a call done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// On the node of this object.
    Owner(Named<'a>),
    /// The same for a call that ends it: where there is nothing to end, that is an end as well.
    LastOwner(Named<'a>),
    /// The same for a volume, of which no node remembers anything afterwards.
    Deletion(&'a str),
    /// On the one node of all of these volumes.
    CommonOwner(&'a [String]),
    /// On several nodes, or on one that the controller chooses: it has a function for that.
    Controller,
    /// Only kubelet calls it, on the node's own socket.
    Node,
    /// On the node that these ask by themselves.
    Peers(Callers),
}

/// Which processes of a cluster may call an RPC of `hostloop.v1.Peer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    Controllers,
    Nodes,
    All,
}

/// A field of the server's span (`server/trace.rs`), and its value.
pub(crate) type Field<'a> = (&'static str, Cow<'a, str>);

/// A request that is about an object, or makes one.
pub(crate) trait Request: Rpc {
    /// Whether it is UNIMPLEMENTED where attaching is switched off, whatever the request (spec.md, Error Scheme).
    const ATTACH: bool = false;

    /// Values for the fields of the span.
    fn ids(&self) -> Vec<Field<'_>>;

    /// Returns the id of what the call makes on a node, which follows from its name, and the field of the span.
    fn makes(&self, _node_id: &str) -> Option<(&'static str, String)> {
        None
    }

    /// Where a controller has it done.
    fn route(&self) -> Route<'_>;

    /// Reports whether the caller may have it done. `open` reads a permit.
    ///
    /// # Errors
    /// `Denied`.
    fn permitted(&self, _open: Open<'_>) -> Result<()> {
        Ok(())
    }
}

/// A request with one answer.
pub(crate) trait Call: Request + Unary {
    /// Whether it waits for a turn among the copies, without a thread.
    const IN_TURN: bool = false;

    /// Checks the request and what came with it.
    ///
    /// # Errors
    /// `Invalid`.
    fn check(self, metadata: &MetadataMap) -> Result<Work<Self::Reply>>;
}

/// A request with a stream of answers.
pub(crate) trait StreamCall: Request + Streaming {
    /// Returns the source that another node reads with it.
    fn reads(&self) -> Option<SnapshotId> {
        None
    }

    /// Checks the request.
    ///
    /// # Errors
    /// `Invalid`.
    fn check(self) -> Result<StreamWork<Self::Reply>>;
}

/// What a process knows of itself without asking anything.
pub(crate) struct Facts<'a> {
    /// CSI plugin name.
    pub(crate) driver_name: &'a str,
    /// Whether attaching is served.
    pub(crate) attach: bool,
    /// Whether calls are served.
    pub(crate) ready: bool,
    /// Of the node, where the process serves one.
    pub(crate) node: Option<&'a Settings>,
}

/// A request that is answered at once, also before there is a driver.
pub(crate) trait Question: Unary {
    /// Whether the driver then logs what its pools can limit, for which the answer has no field.
    const TELLS_LIMITS: bool = false;
    /// The answer.
    fn answer(facts: &Facts<'_>) -> Self::Reply;
}

/// Takes the declarations of a service.
pub(crate) trait Declarations {
    /// One that is answered at once.
    fn question<Q: Question>(&mut self);
    /// One with one answer.
    fn call<Q: Call>(&mut self);
    /// One with a stream of answers.
    fn stream<Q: StreamCall>(&mut self);
}

/// Refuses a request that is switched off.
///
/// # Errors
/// UNIMPLEMENTED.
pub(crate) fn require<Q: Request>(attach: bool) -> Result<(), Status> {
    match attach || !Q::ATTACH {
        true => Ok(()),
        false => Err(Error::Unsupported("attaching is switched off (--attach)".to_owned()).into()),
    }
}

/// A field of a request as one value on the span.
pub(super) trait Identifies {
    fn text(&self) -> Cow<'_, str>;
}

impl Identifies for String {
    fn text(&self) -> Cow<'_, str> {
        self.as_str().into()
    }
}

impl Identifies for Vec<String> {
    fn text(&self) -> Cow<'_, str> {
        self.join(",").into()
    }
}

impl Identifies for Option<csi::VolumeContentSource> {
    fn text(&self) -> Cow<'_, str> {
        use csi::volume_content_source::Type;
        match self.as_ref().and_then(|source| source.r#type.as_ref()) {
            Some(Type::Snapshot(snapshot)) => snapshot.snapshot_id.as_str().into(),
            Some(Type::Volume(volume)) => volume.volume_id.as_str().into(),
            None => "".into(),
        }
    }
}

impl Identifies for Option<peer::open_source_request::Source> {
    fn text(&self) -> Cow<'_, str> {
        use peer::open_source_request::Source;
        match self {
            Some(Source::SnapshotId(id) | Source::VolumeId(id)) => id.as_str().into(),
            None => "".into(),
        }
    }
}

impl Identifies for Option<peer::Cut> {
    fn text(&self) -> Cow<'_, str> {
        self.as_ref().map_or("", |cut| cut.handle.as_str()).into()
    }
}

/// Declares the RPCs of one service, and a function that hands them all to [`Declarations`].
///
/// ```text
/// declare! { each_of_the_service of csi;                // the module of its messages
///     question ProbeRequest = |facts| …;                   // what it answers
///     question NodeGetInfoRequest = |facts| …, tells_limits: true; // Question::TELLS_LIMITS, false if it is left out
///     call DeleteVolumeRequest {
///         logs: "volume.id" = volume_id;                   // fields of the span, fields of the request
///         also: |request| …;                               // further fields, such as of the pod that it is for
///         makes: "volume.id" = |request, node_id| …;       // Request::makes, None if it is left out
///         route: |request| Route::LastOwner(…);
///         permit: |request, grant| …;                      // Request::permitted, nothing if it is left out
///         attach: true;                                    // Request::ATTACH, false if it is left out
///         in_turn: true;                                   // Call::IN_TURN, false if it is left out
///         check: |request| decode::create_snapshot(request); // |request, metadata| where it looks at those, too
///         work: |driver, id| …;                            // with what the check gave; may run more than once
///     }
///     stream GetMetadataDeltaRequest {
///         …;
///         reads: |request| …;                              // StreamCall::reads, None if it is left out
///         work: |driver, wanted, emit| …;
///     }
/// }
/// ```
macro_rules! declare {
    ($each:ident of $package:ident; $($declarations:tt)*) => {
        declare! { @ $each $package [] $($declarations)* }
    };
    (@ $each:ident $package:ident [$($kind:ident $message:ident)*]) => {
        /// Hands over each RPC of the service.
        pub(crate) fn $each(declarations: &mut impl Declarations) {
            $(declarations.$kind::<$package::$message>();)*
        }
    };
    (@ $each:ident $package:ident [$($done:tt)*] question $message:ident = |$facts:pat_param| $answer:expr
        $(, tells_limits: $tells:literal)?; $($rest:tt)*) => {
        impl Question for $package::$message {
            $(const TELLS_LIMITS: bool = $tells;)?

            fn answer($facts: &Facts<'_>) -> Self::Reply {
                $answer
            }
        }
        declare! { @ $each $package [$($done)* question $message] $($rest)* }
    };
    (@ $each:ident $package:ident [$($done:tt)*] call $message:ident {
        logs: $($span:literal = $field:ident),*;
        $(also: |$of:ident| $also:expr;)?
        $(makes: $made:literal = |$named:ident, $node:ident| $id:expr;)?
        route: |$routed:pat_param| $route:expr;
        $(permit: |$asks:ident, $grant:ident| $permitted:expr;)?
        $(attach: $attach:literal;)?
        $(in_turn: $in_turn:literal;)?
        check: |$request:ident $(, $metadata:ident)?| $check:expr;
        work: |$driver:ident, $wanted:pat_param| $work:expr;
    } $($rest:tt)*) => {
        declare! {
            @request $package $message [$($span = $field),*] [$(|$of| $also)?] [$($made = |$named, $node| $id)?]
            [$(|$asks, $grant| $permitted)?] |$routed| $route; $($attach)?
        }
        impl Call for $package::$message {
            $(const IN_TURN: bool = $in_turn;)?

            fn check(self, metadata: &tonic::metadata::MetadataMap) -> Result<Work<Self::Reply>> {
                let ($request, _metadata) = (self, metadata);
                $(let $metadata = _metadata;)?
                let checked: Result<_> = $check;
                let wanted = checked?;
                Ok(std::sync::Arc::new(move |$driver: &std::sync::Arc<Driver>| {
                    let $wanted = wanted.clone();
                    $work
                }))
            }
        }
        declare! { @ $each $package [$($done)* call $message] $($rest)* }
    };
    (@ $each:ident $package:ident [$($done:tt)*] stream $message:ident {
        logs: $($span:literal = $field:ident),*;
        route: |$routed:pat_param| $route:expr;
        $(permit: |$asks:ident, $grant:ident| $permitted:expr;)?
        $(reads: |$reading:ident| $source:expr;)?
        check: |$request:ident| $check:expr;
        work: |$driver:ident, $wanted:pat_param, $emit:ident| $work:expr;
    } $($rest:tt)*) => {
        declare! {
            @request $package $message [$($span = $field),*] [] [] [$(|$asks, $grant| $permitted)?] |$routed| $route;
        }
        impl StreamCall for $package::$message {
            $(
                fn reads(&self) -> Option<crate::model::SnapshotId> {
                    let $reading = self;
                    $source
                }
            )?

            fn check(self) -> Result<StreamWork<Self::Reply>> {
                let $request = self;
                let checked: Result<_> = $check;
                let $wanted = checked?;
                Ok(Box::new(move |$driver: &Driver, $emit: Emit<'_, Self::Reply>| $work))
            }
        }
        declare! { @ $each $package [$($done)* stream $message] $($rest)* }
    };
    (@request $package:ident $message:ident [$($span:literal = $field:ident),*] [$(|$of:ident| $also:expr)?]
        [$($made:literal = |$named:ident, $node:ident| $id:expr)?]
        [$(|$asks:ident, $grant:ident| $permitted:expr)?] |$routed:pat_param| $route:expr; $($attach:literal)?) => {
        impl Request for $package::$message {
            $(const ATTACH: bool = $attach;)?

            fn ids(&self) -> Vec<$crate::service::declare::Field<'_>> {
                #[allow(unused_mut, reason = "only some calls have further fields")]
                let mut ids = vec![$(($span, $crate::service::declare::Identifies::text(&self.$field))),*];
                $(
                    let $of = self;
                    ids.extend($also);
                )?
                ids
            }

            $(
                fn makes(&self, $node: &str) -> Option<(&'static str, String)> {
                    let $named = self;
                    Some(($made, $id.to_string()))
                }
            )?

            fn route(&self) -> Route<'_> {
                let $routed = self;
                $route
            }

            $(
                fn permitted(&self, open: $crate::service::declare::Open<'_>) -> Result<()> {
                    let ($asks, $grant) = (self, open(&self.permit)?);
                    $permitted
                }
            )?
        }
    };
}

pub(super) use declare;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::service::{each_of_controller, each_of_node, each_of_peer};
    use crate::wire::METHODS;

    /// The paths of what is declared.
    #[derive(Default)]
    struct Paths(BTreeSet<&'static str>);

    impl Declarations for Paths {
        fn question<Q: Question>(&mut self) {
            self.0.insert(Q::PATH);
        }

        fn call<Q: Call>(&mut self) {
            self.0.insert(Q::PATH);
        }

        fn stream<Q: StreamCall>(&mut self) {
            self.0.insert(Q::PATH);
        }
    }

    #[test]
    fn every_rpc_of_the_protocol_is_declared() {
        let mut declared = Paths::default();
        each_of_controller(&mut declared);
        each_of_node(&mut declared);
        each_of_peer(&mut declared);
        let declared: BTreeSet<_> = declared.0.iter().map(|path| path.trim_start_matches('/')).collect();
        assert_eq!(declared, METHODS.iter().copied().collect());
    }
}
