//! Generated from `proto/pluginregistration/v1/registration.proto`: how kubelet learns of a plugin.
#![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
