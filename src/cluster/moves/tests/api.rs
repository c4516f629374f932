//! The way to the API server in memory. One of its requests can fail, and the process can end there.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use hostloop_fake_kubernetes::Kubernetes;
use hostloop_fake_kubernetes::server::{answer, status};
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    /// It does not arrive.
    Lost,
    /// It is carried out, and its answer is lost.
    AnswerLost,
}

struct Inside {
    kubernetes: Kubernetes,
    calls: Vec<String>,
    fault: Option<(usize, Fault)>,
}

/// Kubernetes with clients.
#[derive(Clone)]
pub(super) struct Server(Arc<Mutex<Inside>>);

impl Server {
    pub(super) fn new(kubernetes: Kubernetes) -> Self {
        Server(Arc::new(Mutex::new(Inside { kubernetes, calls: Vec::new(), fault: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap()
    }

    /// Does something to the objects, or looks at them.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Kubernetes) -> T) -> T {
        work(&mut self.lock().kubernetes)
    }

    /// The request of this number, counted from 0, fails.
    pub(super) fn fail(&self, number: usize, fault: Fault) {
        self.lock().fault = Some((number, fault));
    }

    /// Methods and paths of all requests.
    pub(super) fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    pub(super) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect_bytes().await.unwrap();
                let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                let (code, answer) = server.answer(&parts, &body);
                let text = serde_json::to_vec(&answer).unwrap();
                Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(text)).unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, parts: &http::request::Parts, body: &Value) -> (u16, Value) {
        let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
        let mut inside = self.lock();
        let number = inside.calls.len();
        inside.calls.push(format!("{} {path}?{query}", parts.method));
        let fault = inside.fault.filter(|(at, _)| *at == number).map(|(_, fault)| fault);
        let mut request = || answer(&mut inside.kubernetes, &parts.method, path, query, body);
        match fault {
            None => request(),
            Some(Fault::Lost) => status(500, "InternalError"),
            Some(Fault::AnswerLost) => {
                request();
                status(500, "InternalError")
            }
        }
    }
}
