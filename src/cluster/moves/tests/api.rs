//! The way to the API server in memory. One of its requests can fail, and the process can end there.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hostloop_fake_kubernetes::Kubernetes;
use hostloop_fake_kubernetes::server::{answer, status};
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use kube::runtime::reflector::Lookup;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cluster::moves::seen::Writers;

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// It does not arrive.
    Lost,
    /// It is carried out, and its answer is lost.
    AnswerLost,
}

struct Inside {
    kubernetes: Kubernetes,
    calls: Vec<String>,
    fault: Option<(usize, Fault)>,
    /// No request is answered.
    stopped: bool,
    /// How long each answer is on its way.
    late: Duration,
}

/// Kubernetes with clients.
#[derive(Clone)]
pub(crate) struct Server(Arc<Mutex<Inside>>);

impl Server {
    pub(crate) fn new(kubernetes: Kubernetes) -> Self {
        Server(Arc::new(Mutex::new(Inside {
            kubernetes,
            calls: Vec::new(),
            fault: None,
            stopped: false,
            late: Duration::ZERO,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap()
    }

    fn with_inside<T>(&self, look: impl FnOnce(&Inside) -> T) -> T {
        look(&self.lock())
    }

    /// Does something to the objects, or looks at them.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Kubernetes) -> T) -> T {
        work(&mut self.lock().kubernetes)
    }

    /// The request of this number, counted from 0, fails.
    pub(crate) fn fail(&self, number: usize, fault: Fault) {
        self.lock().fault = Some((number, fault));
    }

    /// From here on, no request is answered.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
    }

    /// From here on, each answer is so long on its way.
    pub(super) fn delay(&self, late: Duration) {
        self.lock().late = late;
    }

    /// Methods and paths of all requests.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    /// Shows all objects to the watches of a controller.
    pub(crate) fn show(&self, writers: &mut Writers) {
        self.with(|kubernetes| {
            fill(kubernetes, "volumereplicas", &mut writers.replicas);
            fill(kubernetes, "volumemoves", &mut writers.moves);
            fill(kubernetes, "persistentvolumeclaims", &mut writers.claims);
            fill(kubernetes, "persistentvolumes", &mut writers.volumes);
            fill(kubernetes, "pods", &mut writers.pods);
            fill(kubernetes, "nodes", &mut writers.nodes);
            fill(kubernetes, "storageclasses", &mut writers.classes);
        });
    }

    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect_bytes().await.unwrap();
                let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                let (stopped, late) = server.with_inside(|inside| (inside.stopped, inside.late));
                if stopped {
                    return std::future::pending().await;
                }
                let (code, answer) = server.answer(&parts, &body);
                tokio::time::sleep(late).await;
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

fn fill<K>(kubernetes: &Kubernetes, kind: &str, writer: &mut Writer<K>)
where
    K: Lookup<DynamicType = ()> + DeserializeOwned + Clone + 'static,
{
    writer.apply_watcher_event(&Event::Init);
    for object in kubernetes.all(kind) {
        let object = serde_json::from_value(object.clone()).unwrap_or_else(|why| panic!("{why}: {object}"));
        writer.apply_watcher_event(&Event::InitApply(object));
    }
    writer.apply_watcher_event(&Event::InitDone);
}
