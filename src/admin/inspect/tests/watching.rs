//! What `--watch` asks of the API server.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostloop_fake_kubernetes::server::{answer, changes, parse, status};
use hostloop_fake_kubernetes::{Kubernetes, key};
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::Notify;

use crate::admin::api::Cluster;
use crate::admin::doctor::tests::world::{DRIVER, World, volume_object};
use crate::admin::inspect::gather::{Asker, Found, Wanted};
use crate::cli::SourceArgs;

const VOLUMES: &str = "/api/v1/persistentvolumes";

#[derive(Default)]
struct State {
    kubernetes: Kubernetes,
    /// LIST or WATCH, and the path.
    asked: Vec<String>,
    /// The code of the answer to each watch; 0 if it is allowed.
    refusal: u16,
}

/// An API server that counts what it is asked for.
#[derive(Clone, Default)]
struct Api(Arc<(Mutex<State>, Notify)>);

impl Api {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.0.lock().unwrap())
    }

    fn add(&self, name: &str) {
        let object = volume_object(name, DRIVER, &format!("vol-{name}"), "node-1");
        self.with(|state| state.kubernetes.create(key("persistentvolumes", "", name), object));
        self.0.1.notify_waiters();
    }

    /// How often it was asked for this.
    fn asked(&self, what: &str) -> usize {
        self.with(|state| state.asked.iter().filter(|asked| *asked == what).count())
    }

    async fn serve(self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let (path, query) =
            (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
        let watches = query.contains("watch=true");
        let refusal = self.with(|state| {
            state.asked.push(format!("{} {path}", if watches { "WATCH" } else { "LIST" }));
            state.refusal
        });
        let (code, bytes) = match watches {
            false => {
                let list = |state: &mut State| {
                    answer(&mut state.kubernetes, &Method::GET, &path, &query, &Value::Null)
                };
                let (code, list) = self.with(list);
                (code, list.to_string().into_bytes())
            }
            true if refusal > 0 => (refusal, status(refusal, "Forbidden").1.to_string().into_bytes()),
            true => (200, self.changes(&path, &query).await),
        };
        Ok(Response::builder().status(code).body(Body::from(bytes)).unwrap())
    }

    /// Waits for a change after the version of a watch.
    async fn changes(&self, path: &str, query: &str) -> Vec<u8> {
        let since = query.split('&').find_map(|part| part.strip_prefix("resourceVersion=")).unwrap();
        let (kind, since) = (parse(path).0.0, since.parse().unwrap());
        loop {
            let changed = self.0.1.notified();
            let lines = self.with(|state| changes(&state.kubernetes, &kind, query, since));
            if !lines.is_empty() {
                return lines;
            }
            changed.await;
        }
    }

    async fn asker(&self) -> Asker {
        self.with(|state| state.kubernetes.watched = true);
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| api.clone().serve(request));
        let cluster = Cluster::new(Client::new(service, "default"));
        let args = SourceArgs { driver_name: DRIVER.to_owned(), ..SourceArgs::default() };
        Asker::over(args, cluster, World::new().source().await)
    }
}

fn names(found: &Found) -> Vec<&str> {
    let mut names: Vec<&str> =
        found.objects.volumes.as_ref().unwrap().iter().map(|volume| volume.name.as_str()).collect();
    names.sort_unstable();
    names
}

const WANTED: Wanted<'static> = Wanted { volumes: true, pods: Some(None), snapshots: false };

#[tokio::test]
async fn watching_reads_each_list_once() {
    let api = Api::default();
    api.add("pv-1");
    let mut asker = api.asker().await;
    for _ in 0..10 {
        assert_eq!(names(&asker.ask(WANTED).await.unwrap()), ["pv-1"]);
    }
    assert_eq!(api.asked(&format!("LIST {VOLUMES}")), 10, "without --watch");
    let mut asker = asker.watching();
    for _ in 0..10 {
        let found = asker.ask(WANTED).await.unwrap();
        assert_eq!((names(&found), found.problems.len()), (vec!["pv-1"], 0));
    }
    assert_eq!((api.asked(&format!("LIST {VOLUMES}")), api.asked("LIST /api/v1/pods")), (11, 11));
    api.add("pv-2");
    let shown = async {
        while names(&asker.ask(WANTED).await.unwrap()) != ["pv-1", "pv-2"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), shown).await.expect("what is new is shown");
    assert_eq!(api.asked(&format!("LIST {VOLUMES}")), 11);
    assert!(api.asked(&format!("WATCH {VOLUMES}")) >= 1);
}

/// Nothing that may be old is shown: each answer lists.
#[tokio::test]
async fn watch_that_is_refused_costs_a_list_each() {
    for refusal in [403, 500] {
        let api = Api::default();
        api.add("pv-1");
        api.with(|state| state.refusal = refusal);
        let mut asker = api.asker().await.watching();
        let watch = format!("WATCH {VOLUMES}");
        asker.ask(WANTED).await.unwrap();
        let asked = async {
            while api.asked(&watch) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), asked).await.expect("it watches");
        tokio::time::sleep(Duration::from_millis(200)).await;
        api.add("pv-2");
        let before = api.asked(&format!("LIST {VOLUMES}"));
        for _ in 0..3 {
            assert_eq!(names(&asker.ask(WANTED).await.unwrap()), ["pv-1", "pv-2"]);
        }
        assert_eq!(api.asked(&format!("LIST {VOLUMES}")), before + 3, "{refusal}");
    }
}

#[tokio::test]
async fn object_that_is_deleted_is_shown_no_more() {
    let api = Api::default();
    api.add("pv-1");
    api.add("pv-2");
    let mut asker = api.asker().await.watching();
    assert_eq!(names(&asker.ask(WANTED).await.unwrap()), ["pv-1", "pv-2"]);
    api.with(|state| state.kubernetes.remove(&key("persistentvolumes", "", "pv-1")));
    api.0.1.notify_waiters();
    let shown = async {
        while names(&asker.ask(WANTED).await.unwrap()) != ["pv-2"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), shown).await.expect("it is gone");
}
