//! The way to the API server in memory (crates/fake-kubernetes), on which calls fail.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

use super::kubernetes::server::{answer, parse, status};
use super::world::{Place, World};

pub(crate) type Shared = Arc<Mutex<World>>;

/// A client of this server. Process `who` makes its calls.
pub(crate) fn client(world: &Shared, who: usize) -> Client {
    let world = Arc::clone(world);
    let service = tower::service_fn(move |request: Request<Body>| {
        let world = Arc::clone(&world);
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await.unwrap();
            let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            let (path, query) =
                (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().to_owned());
            // Events are no step of a move.
            let quiet = parse(&path).0.0 == "events";
            let (code, answer) = if quiet {
                answer(&mut world.lock().unwrap(), &parts.method, &path, &query, &body)
            } else {
                let name = format!("{} {path}", parts.method);
                let place = Place::wait(&world, who, &name).await;
                let (answer, late) = {
                    let mut world = world.lock().unwrap();
                    let answer = match place {
                        Place::Fine => answer(&mut world, &parts.method, &path, &query, &body),
                        Place::FailsBefore => status(500, "InternalError"),
                        Place::FailsAfter => {
                            answer(&mut world, &parts.method, &path, &query, &body);
                            status(500, "InternalError")
                        }
                    };
                    (answer, world.late)
                };
                if !late.is_zero() {
                    tokio::time::sleep(late).await;
                }
                answer
            };
            let text = serde_json::to_vec(&answer).unwrap();
            Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(text)).unwrap())
        }
    });
    Client::new(service, "default")
}
