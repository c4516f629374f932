//! hostloop: a CSI driver that turns a directory on a node's disk into Kubernetes volumes.
//!
//! # Where to start reading
//!
//! `main.rs` parses the command line and hands a [`config::Config`] to [`app::run`], which constructs everything
//! and tells the life of the process in order. To follow one call, take CreateVolume:
//! `server/rpc.rs` (span, log line, panic) → `service/controller.rs` (what the RPC is) → `wire/decode/` (the request as
//! plain types, or INVALID_ARGUMENT) → `driver/create_volume.rs` (the use case) → `backend/` and `store/` →
//! `crates/kernel` (system calls) → `wire/encode.rs`. No layer calls back up.
//!
//! # Modules
//!
//! | Module | What it is |
//! |---|---|
//! | [`cli`], [`config`] | Every flag and how its value is read; what the flags mean together |
//! | [`app`] | The composition root and the life of the process |
//! | [`telemetry`], [`shutdown`], [`version`] | Logging; SIGTERM and SIGINT; which build this is |
//! | `metrics` | `/metrics` and `/healthz` over HTTP |
//! | [`register`] | Registration with kubelet |
//! | [`server`] | Transport: the listener, what happens around every call, the graceful stop |
//! | [`service`] | What each RPC is, declared once; the only place that turns an error into a gRPC status |
//! | [`wire`] | Protocol messages to plain types and back, with all validation of requests and no I/O |
//! | [`cluster`] | The roles in a cluster: who is who, and how calls get to the node that owns a volume |
//! | [`driver`] | The use cases, one file for each call; the cut (copies of volumes in use); pulls from other nodes; capacity; managed pools; locks; recovery |
//! | [`backend`] | What holds data on a pool (images, trees), and how a pod sees them (filesystems, raw devices, directories) |
//! | [`store`] | The state file, and the text of the records beside data |
//! | [`inventory`] | What lies in a pool, with the records beside its data |
//! | [`kernel`] | A crate of its own: the kernel boundary, narrow traits and the real kernel; `crates/fake-kernel` is for tests |
//! | [`model`] | A crate of its own: plain types, no I/O, no protocol |
//! | [`hostloop_proto`] | A crate of its own: what is generated from `proto/`; [`wire`] re-exports it |
//! | [`error`] | The driver's error: its variants are meanings, not sources |
//! | [`state`] | `hostloop state`: makes a lost or damaged state file anew from what lies in the pools |
//! | [`selftest`] | A client of the driver that checks a machine |
//! | [`admin`] | The commands for administrators: clients of the API server that ask for moves and follow them, and show what is on the nodes |
//! | [`mod@bench`] | A client of drivers that measures them, and what volumes give of a disk's speed |
//!
//! Only the edge is async: a handler makes one hop to the blocking pool, and everything below is plain synchronous Rust.
//! Work that has begun continues when its caller gives up.
//!
//! One thing happens in a second process: `hostloop freeze-guard` (`crates/kernel/src/linux/freeze/`) freezes a filesystem
//! that is copied while it is in use, so that it thaws whatever happens to the driver.
//!
//! # Rules, and what enforces them
//!
//! `docs/architecture.md` has a table of who may import whom, the way of a call, and the files to touch for the most
//! common additions. TLS is in `cluster/tls/`, the making of certificates in `cluster/certs/`. System calls are in
//! `crates/kernel`, `unsafe` is in its `linux/ioctl.rs`, child processes start in its `linux/exec.rs`, JSON is in
//! `store/`, `bench/`, `admin/` and `cluster/moves/`, gRPC is above `driver`. `tests/layers/` reads the sources and fails if they break this; `clippy.toml` refuses the functions of std
//! and nix that bypass [`kernel`]; `Cargo.toml` denies `unsafe`, `unwrap`, `expect`, `panic!` and indexing (tests may use
//! them). An exception is an `allow` with its reason, in the file that needs it.

pub mod admin;
pub mod app;
pub mod backend;
pub mod bench;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod driver;
pub mod error;
pub mod inventory;
mod metrics;
pub mod register;
pub mod selftest;
pub mod server;
pub mod service;
pub mod shutdown;
pub mod state;
pub mod store;
pub mod telemetry;
pub mod version;
pub mod wire;

pub use hostloop_kernel as kernel;
pub use hostloop_model as model;
