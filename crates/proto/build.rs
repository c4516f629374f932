//! Compiles `proto/csi/v1/csi.proto`, `proto/hostloop/v1/peer.proto` and
//! `proto/pluginregistration/v1/registration.proto` without protoc.
//!
//! Leaves in `OUT_DIR`:
//! - `csi.v1.rs`, `hostloop.v1.rs` and `pluginregistration.rs`: messages, clients and servers;
//! - `methods.rs`: the names of all methods that can be called from outside;
//! - `csi_rpcs.rs`, `peer_rpcs.rs`: `rpc::Rpc` for the requests of these methods;
//! - `csi_redacted.rs`: `Debug` for the messages that must not be printed;
//! - `csi_descriptor.bin`: the encoded `FileDescriptorSet`, imports and custom
//!   options included, for reading options such as `csi_secret` at run time.

#![allow(
    clippy::disallowed_methods,
    reason = "the rules on files and environment are for the driver, not for its build"
)]

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use protox::Compiler;
use protox::prost_reflect::{DescriptorPool, MessageDescriptor, Value};

/// Relative to this package, in which Cargo runs this program.
const PROTO_ROOT: &str = "../../proto";
const PROTO_FILE: &str = "csi/v1/csi.proto";
const PACKAGE: &str = "csi.v1";
/// The protocol between processes of hostloop; nothing in it is secret.
const PEER_FILE: &str = "hostloop/v1/peer.proto";
const PEER_PACKAGE: &str = "hostloop.v1";
/// How kubelet gets to know a plugin; nothing in it is secret.
const REGISTRATION_FILE: &str = "pluginregistration/v1/registration.proto";

/// Messages without a `csi_secret` field that are kept out of logs all the
/// same: mount flags may hold credentials, but the protocol does not mark them.
const ALSO_SECRET: [&str; 1] = ["csi.v1.VolumeCapability.MountVolume"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={PROTO_ROOT}/{PROTO_FILE}");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);

    let mut compiler = Compiler::new([PROTO_ROOT])?;
    compiler.include_imports(true).open_file(PROTO_FILE)?;

    // The compiler encodes the set itself: the types of prost-types would drop
    // the custom options. Comments are of no use at run time.
    compiler.include_source_info(false);
    fs::write(out_dir.join("csi_descriptor.bin"), compiler.encode_file_descriptor_set())?;

    let secret = secret_messages(&compiler.descriptor_pool())?;
    fs::write(out_dir.join("csi_redacted.rs"), redacted_debug(&secret)?)?;

    // Here the comments are wanted: they become the documentation.
    compiler.include_source_info(true);
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        .generate_default_stubs(true)
        .skip_debug(secret.iter().map(|m| format!(".{}", m.full_name())))
        .compile_fds(compiler.file_descriptor_set())?;

    let peer = compile_plain(PEER_FILE)?;
    compile_plain(REGISTRATION_FILE)?;
    let csi = compiler.descriptor_pool();
    fs::write(out_dir.join("csi_rpcs.rs"), rpcs(&csi, PACKAGE)?)?;
    fs::write(out_dir.join("peer_rpcs.rs"), rpcs(&peer, PEER_PACKAGE)?)?;
    fs::write(out_dir.join("methods.rs"), method_names(&[csi, peer])?)?;
    Ok(())
}

/// Compiles a file in which nothing is secret.
fn compile_plain(file: &str) -> Result<DescriptorPool, Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO_ROOT}/{file}");
    let mut compiler = Compiler::new([PROTO_ROOT])?;
    compiler.include_imports(true).include_source_info(true).open_file(file)?;
    tonic_prost_build::configure()
        .generate_default_stubs(true)
        // An entry can have 1 MiB of attributes. So it stays in the buffer that it arrived in.
        .bytes(".hostloop.v1.CheckedEntry")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(compiler.descriptor_pool())
}

/// Rust source of a slice with `SERVICE/METHOD` for every method.
fn method_names(pools: &[DescriptorPool]) -> Result<String, std::fmt::Error> {
    let mut source = String::from("&[\n");
    for service in pools.iter().flat_map(DescriptorPool::services) {
        for method in service.methods() {
            writeln!(source, "    \"{}/{}\",", service.full_name(), method.name())?;
        }
    }
    source.push(']');
    Ok(source)
}

/// Rust source that says of each request of a package what answers it, and at which path it is served.
fn rpcs(pool: &DescriptorPool, package: &str) -> Result<String, Box<dyn Error>> {
    let mut source = String::new();
    for service in pool.services().filter(|service| service.package_name() == package) {
        for method in service.methods() {
            if method.is_client_streaming() {
                return Err(
                    format!("{} takes a stream: teach build.rs and rpc.rs", method.full_name()).into()
                );
            }
            let (request, reply) = (method.input(), method.output());
            write!(
                source,
                "impl crate::rpc::Rpc for {path} {{
    type Reply = {reply};
    const PATH: &'static str = \"/{service}/{method}\";
    const MESSAGE: &'static str = \"{message}\";
}}
impl crate::rpc::{kind} for {path} {{}}
",
                path = rust_path(&request, package)?,
                reply = rust_path(&reply, package)?,
                service = service.full_name(),
                method = method.name(),
                message = request.full_name(),
                kind = if method.is_server_streaming() { "Streaming" } else { "Unary" },
            )?;
        }
    }
    Ok(source)
}

/// The messages that must not be printed: those with a field marked
/// `csi_secret`, and [`ALSO_SECRET`].
fn secret_messages(pool: &DescriptorPool) -> Result<Vec<MessageDescriptor>, Box<dyn Error>> {
    let option =
        pool.get_extension_by_name("csi.v1.csi_secret").ok_or("csi.proto does not define csi_secret")?;
    let mut secret: Vec<_> = pool
        .all_messages()
        .filter(|message| {
            message.fields().any(|field| *field.options().get_extension(&option) == Value::Bool(true))
        })
        .collect();
    if secret.is_empty() {
        return Err("no field of csi.proto is marked csi_secret".into());
    }
    for name in ALSO_SECRET {
        let message =
            pool.get_message_by_name(name).ok_or_else(|| format!("csi.proto does not define {name}"))?;
        if !secret.contains(&message) {
            secret.push(message);
        }
    }
    Ok(secret)
}

/// Rust source that implements `Debug` for `secret` without showing a field.
fn redacted_debug(secret: &[MessageDescriptor]) -> Result<String, Box<dyn Error>> {
    let mut source = String::new();
    for message in secret {
        check_plain(message)?;
        write!(
            source,
            "impl ::core::fmt::Debug for {path} {{
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{
        f.debug_struct(\"{name}\").finish_non_exhaustive()
    }}
}}
",
            path = rust_path(message, PACKAGE)?,
            name = message.name(),
        )?;
    }
    Ok(source)
}

/// Refuses a secret message that defines other types. prost-build would take
/// `Debug` away from those too, and nothing here would give it back.
fn check_plain(message: &MessageDescriptor) -> Result<(), String> {
    let own_types = message.child_messages().any(|m| !m.is_map_entry())
        || message.child_enums().len() > 0
        || message.oneofs().len() > 0;
    if own_types {
        let name = message.full_name();
        return Err(format!("{name} is secret and defines types of its own: teach build.rs to redact them"));
    }
    Ok(())
}

/// Path of the type that prost-build makes of `message`, seen from the module
/// that includes the types of its package.
///
/// Covers plain CamelCase names only. Another spelling would name a type that
/// does not exist, so that a mistake here stops the build.
fn rust_path(message: &MessageDescriptor, package: &str) -> Result<String, String> {
    let full_name = message.full_name();
    let local = full_name
        .strip_prefix(package)
        .and_then(|rest| rest.strip_prefix('.'))
        .ok_or_else(|| format!("{full_name} is not in package {package}"))?;
    Ok(match local.rsplit_once('.') {
        None => local.to_owned(),
        Some((parents, name)) => {
            let modules: Vec<_> = parents.split('.').map(snake_case).collect();
            format!("{}::{name}", modules.join("::"))
        }
    })
}

/// `VolumeCapability` to `volume_capability`.
fn snake_case(camel: &str) -> String {
    let mut snake = String::with_capacity(camel.len() + 4);
    for (i, c) in camel.chars().enumerate() {
        if c.is_ascii_uppercase() && i > 0 {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}
