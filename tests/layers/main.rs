//! Who may import whom, and what may be used where: read from the sources, so that a shortcut fails the build's
//! tests with its file and line. Test modules are left out: they may use what they need. And what docs say of files and
//! tests, and how tests are named.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test, which reads the sources"
)]

mod architecture;
mod code;
mod guarantees;
mod image;
mod imports;
mod names;

use std::fs;
use std::path::Path;

use code::{code_only, without_tests};
use imports::{crate_is_used, imports, words};

/// May import everything: the root of the composition, and what has no layer.
const FREE: [&str; 3] = ["main", "lib", "app"];

/// A module, and the modules that it may import beside itself.
const LAYERS: [(&str, &[&str]); 22] = [
    ("model", &[]),
    ("kernel", &["model"]),
    ("store", &["model", "kernel"]),
    ("error", &["model", "kernel", "store"]),
    ("backend", &["kernel", "model", "error"]),
    ("inventory", &["store", "backend", "kernel", "model", "error"]),
    ("state", &["inventory", "store", "kernel", "model", "error"]),
    ("driver", &["inventory", "store", "backend", "kernel", "model", "error"]),
    ("wire", &["model", "error"]),
    ("service", &["wire", "driver", "model", "error"]),
    ("cluster", &["wire", "service", "driver", "model", "error", "shutdown"]),
    ("server", &["service", "cluster", "error", "model"]),
    ("metrics", &["server", "driver", "kernel", "model", "error", "version"]),
    ("register", &["server", "wire"]),
    ("selftest", &["wire", "model", "kernel", "config", "shutdown", "version"]),
    ("bench", &["selftest", "wire", "model", "kernel", "config", "shutdown"]),
    ("admin", &["cli", "cluster", "kernel", "model", "server", "shutdown", "version"]),
    ("telemetry", &[]),
    ("version", &[]),
    ("shutdown", &[]),
    ("cli", &["cluster", "model", "server", "telemetry", "version"]),
    ("config", &["cli", "cluster", "model", "server", "register", "state", "store", "telemetry"]),
];

/// Something that is used in some places only.
struct Only {
    what: &'static str,
    /// Beginnings of paths below `src/`, or of a crate and a path in it.
    places: &'static [&'static str],
    found: fn(&str) -> bool,
}

const ONLY: [Only; 13] = [
    Only {
        what: "tonic",
        places: &[
            "server/",
            "service/",
            "wire/",
            "cluster/",
            "register/",
            "selftest",
            "bench/",
            "app.rs",
            "app/",
            "main.rs",
        ],
        found: |line| ["tonic", "tonic_prost"].iter().any(|name| crate_is_used(line, name)),
    },
    Only {
        what: "nix (but for nix::errno::Errno)",
        places: &["kernel/"],
        found: |line| {
            words(line, "nix").any(|rest| rest.starts_with("::") && !rest.starts_with("::errno::Errno"))
        },
    },
    Only {
        what: "libc (server/socket.rs has flags of it)",
        places: &["kernel/", "server/socket.rs"],
        found: |line| crate_is_used(line, "libc"),
    },
    Only {
        what: "the API of Kubernetes",
        places: &[
            "cluster/peers/kubernetes",
            "cluster/certs/secret",
            "cluster/moves/",
            "cluster/notices/",
            "admin/api",
        ],
        found: |line| ["kube", "k8s_openapi"].iter().any(|name| crate_is_used(line, name)),
    },
    Only { what: "rustix", places: &["kernel/"], found: |line| crate_is_used(line, "rustix") },
    Only {
        what: "unsafe",
        places: &["kernel/linux/ioctl.rs", "kernel/linux/ioctl/"],
        found: |line| words(line, "unsafe").next().is_some(),
    },
    Only {
        what: "child processes",
        places: &["kernel/linux/exec.rs", "selftest"],
        found: |line| {
            words(line, "process").any(|rest| {
                rest.starts_with("::Command")
                    || rest.strip_prefix("::{").is_some_and(|g| g.contains("Command"))
            })
        },
    },
    Only {
        what: "prometheus_client",
        places: &["metrics/"],
        found: |line| crate_is_used(line, "prometheus_client"),
    },
    Only {
        what: "hyper (server/ has it through tonic)",
        places: &["metrics/http.rs"],
        found: |line| crate_is_used(line, "hyper"),
    },
    Only {
        what: "serde_json",
        places: &["store/", "wire/redact.rs", "bench/", "cluster/moves/", "cluster/notices/tests", "admin/"],
        found: |line| crate_is_used(line, "serde_json"),
    },
    Only {
        what: "TLS and the keys for it",
        places: &["cluster/tls/", "cluster/certs/"],
        found: |line| ["rustls", "webpki", "ring"].iter().any(|name| crate_is_used(line, name)),
    },
    Only {
        what: "tokio_rustls and x509_parser",
        places: &["cluster/tls/"],
        found: |line| ["tokio_rustls", "x509_parser"].iter().any(|name| crate_is_used(line, name)),
    },
    Only {
        what: "making certificates",
        places: &["cluster/certs/"],
        found: |line| crate_is_used(line, "rcgen"),
    },
];

#[test]
fn every_file_keeps_to_its_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for (place, module) in [("src", ""), ("crates/model/src", "model"), ("crates/kernel/src", "kernel")] {
        let mut files = Vec::new();
        collect(&root.join(place), &["rs"], &mut files);
        assert!(files.len() > 10, "only {} files: is {place} the right directory?", files.len());
        for file in files {
            let name = Path::new(module).join(file.strip_prefix(root.join(place)).expect("a file of it"));
            let source = fs::read_to_string(&file).expect("a source file");
            found.extend(violations(name.to_str().expect("a plain name"), &source));
        }
    }
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// Adds the files below a directory with one of these extensions.
fn collect(directory: &Path, extensions: &[&str], files: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, extensions, files);
        } else if path
            .extension()
            .is_some_and(|extension| extensions.iter().any(|wanted| extension == *wanted))
        {
            files.push(path);
        }
    }
    files.sort();
}

/// The path of a file from the root of the repository: `kernel` and `model` are crates of their own.
fn path_of(file: &str) -> String {
    match file.split_once('/') {
        Some((module @ ("kernel" | "model"), rest)) => format!("crates/{module}/src/{rest}"),
        _ => format!("src/{file}"),
    }
}

/// What is wrong with a file, as `PATH:LINE: RULE`.
fn violations(file: &str, source: &str) -> Vec<String> {
    if file.ends_with("/tests.rs") || file.contains("/tests/") {
        return Vec::new();
    }
    let layer = file.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    let allowed = LAYERS.iter().find(|(name, _)| *name == layer).map(|(_, allowed)| *allowed);
    let path = path_of(file);
    let mut found = Vec::new();
    if allowed.is_none() && !FREE.contains(&layer) {
        found.push(format!("{path}:1: {layer} has no layer yet, give it one in tests/layers/main.rs"));
    }
    let code = without_tests(&code_only(source));
    for (line, module) in imports(file, &code) {
        let known = LAYERS.iter().any(|(name, _)| *name == module)
            || FREE.contains(&module.as_str())
            || module == "fake_kernel";
        if let Some(allowed) = allowed
            && known
            && module != layer
            && !allowed.contains(&module.as_str())
        {
            let list = if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") };
            found.push(format!("{path}:{line}: {layer} imports {module}, but may import {list} only"));
        }
    }
    for (number, line) in code.lines().enumerate() {
        for Only { what, places, found: uses } in &ONLY {
            if uses(line) && !places.iter().any(|place| file.starts_with(place)) {
                found.push(format!("{path}:{}: {what}: only in {}", number + 1, places.join(", ")));
            }
        }
    }
    found
}

/// A file as [`path_of`] takes it, a line that must not be in it, and a part of the finding.
const BAD: &[(&str, &str, &str)] = &[
    ("model/size.rs", "use hostloop_kernel::Os;", "model imports kernel, but may import nothing only"),
    ("driver/x.rs", "use hostloop_fake_kernel::FakeKernel;", "driver imports fake_kernel"),
    ("store/log.rs", "use crate::driver::Driver;", "store imports driver"),
    ("driver/x.rs", "use crate::{model::Volume, wire::decode};", "driver imports wire"),
    ("driver/x.rs", "use crate::{\n\n    wire,\n};", "src/driver/x.rs:4: driver imports wire"),
    ("driver/x.rs", "fn f() { crate::service::g() }", "driver imports service"),
    ("driver/x.rs", "use super::super::service::X;", "driver imports service"),
    ("driver/mod.rs", "use super::service::X;", "driver imports service"),
    ("error.rs", "use super::wire::X;", "error imports wire"),
    ("kernel/linux/mod.rs", "use hostloop::error::Error;", "kernel imports error"),
    ("wire/encode.rs", "use crate::kernel::Space;", "wire imports kernel"),
    ("service/node.rs", "use crate::app;", "service imports app"),
    ("driver/x.rs", "fn f(s: tonic::Status) {}", "tonic: only in"),
    ("config/x.rs", "use tonic;", "tonic: only in"),
    ("driver/x.rs", "use nix::unistd::getpid;", "nix (but"),
    ("driver/x.rs", "use nix::{errno::Errno, unistd};", "nix (but"),
    ("server/x.rs", "use libc::O_PATH;", "libc"),
    ("driver/x.rs", "use rustix::fs::openat;", "rustix: only in kernel/"),
    (
        "kernel/linux/mounts.rs",
        "unsafe { x() }",
        "unsafe: only in kernel/linux/ioctl.rs, kernel/linux/ioctl/",
    ),
    ("kernel/linux/mounts.rs", "use std::process::Command;", "child processes"),
    ("driver/x.rs", "use tokio::process::{Child, Command};", "child processes"),
    (
        "telemetry.rs",
        "serde_json::to_string(&x)",
        "serde_json: only in store/, wire/redact.rs, bench/, cluster/moves/, cluster/notices/tests, admin/",
    ),
    ("driver/x.rs", "use prometheus_client::registry::Registry;", "prometheus_client: only in metrics/"),
    ("server/x.rs", "hyper::body::Incoming", "hyper (server/ has it through tonic): only in metrics/http.rs"),
    ("driver/x.rs", "use crate::metrics::Metrics;", "driver imports metrics"),
    ("metrics/x.rs", "use crate::service::X;", "metrics imports service"),
    (
        "server/peer.rs",
        "use tokio_rustls::TlsAcceptor;",
        "tokio_rustls and x509_parser: only in cluster/tls/",
    ),
    ("driver/x.rs", "use rustls::ServerConfig;", "TLS and the keys for it"),
    ("cluster/router.rs", "use webpki::EndEntityCert;", "TLS and the keys for it"),
    ("cluster/tls/files.rs", "use rcgen::KeyPair;", "making certificates: only in cluster/certs/"),
    ("driver/x.rs", "use crate::cluster::tls::Tls;", "driver imports cluster"),
    ("cluster/tls/mod.rs", "use crate::kernel::Os;", "cluster imports kernel"),
    (
        "cluster/router/x.rs",
        "use kube::Client;",
        "Kubernetes: only in cluster/peers/kubernetes, cluster/certs/secret, cluster/moves/, cluster/notices/, admin/api",
    ),
    ("cluster/router/x.rs", "use crate::server::Stop;", "cluster imports server"),
    ("selftest/x.rs", "use crate::bench::life::Caller;", "selftest imports bench"),
    ("admin/follow.rs", "use kube::Client;", "Kubernetes: only in"),
    ("cluster/moves/x.rs", "use crate::admin::Outcome;", "cluster imports admin"),
    ("service/x.rs", "use crate::cluster::router::Router;", "service imports cluster"),
    ("helpers.rs", "", "helpers has no layer yet"),
];

/// A file as [`path_of`] takes it, and what may be in it.
const GOOD: &[(&str, &str)] = &[
    ("driver/x.rs", "use crate::{backend::Backend, driver::lock, model::{Volume, wire}};"),
    ("driver/x.rs", "use nix::errno::Errno;"),
    ("driver/x.rs", "use std::os::unix::fs::MetadataExt;"),
    ("driver/x.rs", "// crate::service::x, tonic::Status, unsafe"),
    ("driver/x.rs", "/* /* unsafe */ tonic::Status */"),
    ("driver/x.rs", "let x = \"tonic::\\\" unsafe\"; let y = r#\"crate::wire \" unsafe\"#; let z = '\"';"),
    ("driver/x.rs", "fn f<'a>(x: &'a str) -> &'a str { x }"),
    ("driver/x.rs", "#[cfg(test)]\nmod tests {\n    use crate::wire::X;\n}"),
    ("driver/x.rs", "use super::service::X;"),
    ("driver/tests.rs", "use crate::wire::X;"),
    ("cli.rs", "pub enum Command { A }"),
    ("kernel/linux/ioctl.rs", "unsafe { x() }"),
    ("kernel/linux/ioctl/x.rs", "unsafe { x() }"),
    ("main.rs", "use hostloop::driver::Driver;"),
    ("app/checks.rs", "use crate::service::X;"),
    ("cluster/tls/x.rs", "use rustls::pki_types::pem::PemObject;"),
];

/// The check can fail: each bad line gives exactly one finding, with its line.
#[test]
fn forbidden_imports_are_found() {
    for (file, line, hint) in BAD {
        let source = format!("// A comment.\n{line}\n");
        let found = violations(file, &source);
        assert_eq!(found.len(), 1, "{file}: {line}: {found:?}");
        assert!(found[0].contains(hint) && found[0].starts_with(&format!("{}:", path_of(file))), "{found:?}");
        if !line.is_empty() && !line.contains('\n') {
            assert!(found[0].starts_with(&format!("{}:2: ", path_of(file))), "{found:?}");
        }
    }
}

#[test]
fn allowed_imports_are_not_found() {
    for (file, line) in GOOD {
        assert_eq!(violations(file, line), Vec::<String>::new(), "{file}: {line}");
    }
    let after = violations("driver/x.rs", "#[cfg(test)]\nmod tests {\n}\nuse crate::wire::X;\n");
    assert!(after[0].starts_with("src/driver/x.rs:4: "), "{after:?}");
}
