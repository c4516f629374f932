//! Generated from `proto/pluginregistration/v1/registration.proto`: how kubelet gets to know a plugin.
#![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
