//! What kubelet, or whoever opens the socket in its directory, tells the driver of its registration. The tag of a message
//! is the number of its method.

use std::path::PathBuf;

use hostloop::register::{Introduction, service};
use tonic::Code;
use tonic::service::Routes;

use crate::{grpc, messages};

const METHODS: [&str; 2] =
    ["pluginregistration.Registration/GetInfo", "pluginregistration.Registration/NotifyRegistrationStatus"];

thread_local! {
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let introduction = Introduction {
        directory: PathBuf::from("/registration"),
        driver_name: "hostloop.csi.dev".to_owned(),
        endpoint: "/csi/csi.sock".to_owned(),
    };
    let (service, mut refused) = service(introduction);
    let routes = Routes::new(service);
    for (tag, request) in messages::read(input) {
        let method = METHODS[usize::from(tag) % METHODS.len()];
        if let Err(status) = RUNTIME.with(|runtime| runtime.block_on(grpc::call(&routes, method, request, 1)))
        {
            // What is not a message at all is tonic's to refuse.
            assert_eq!(status.code(), Code::Internal, "{status:?}");
            assert!(status.message().contains("decode"), "{status:?}");
        }
        if let Ok(reason) = refused.try_recv() {
            assert!(
                reason.chars().count() <= 1100,
                "{} characters of a reason are passed on",
                reason.chars().count()
            );
        }
    }
}
