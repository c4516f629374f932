//! A deadline for each call of the API server. A connection that is cut off, or a server that accepts and never answers, would hold
//! a step for as long as the process lives, and its object is not looked at meanwhile.

use std::time::Duration;

use http::{Method, Request, Response};
use kube::client::Body;
use kube::{Client, Error};
use tokio::time::timeout;

use super::lease::DEADLINE;

/// For a page of a list, which the watches begin with. No step waits for it.
const LIST: Duration = Duration::from_secs(60);
/// For what changes an object. Kubernetes waits up to 30 seconds for a webhook that may be ignored, and ends with the call: with a
/// shorter time, a PersistentVolume would not be created again as long as a webhook is down. A controller that loses its Lease ends
/// its calls.
const CHANGE: Duration = Duration::from_secs(35);

/// Returns a client whose calls have an end: questions within a shorter time than a Lease lasts. A watch has none.
pub fn limited(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    Client::new(tower::service_fn(move |request| call(client.clone(), request)), namespace)
}

async fn call(client: Client, request: Request<Body>) -> Result<Response<Body>, Error> {
    let Some(most) = longest(request.method(), request.uri().query().unwrap_or_default()) else {
        return client.send(request).await;
    };
    let whole = async {
        let (parts, body) = client.send(request).await?.into_parts();
        Ok(Response::from_parts(parts, Body::from(body.collect_bytes().await?)))
    };
    let late = || format!("the API server has not answered within {} seconds", most.as_secs());
    timeout(most, whole).await.unwrap_or_else(|_| Err(Error::Service(late().into())))
}

/// Returns how long a call may take; `None` for a watch.
fn longest(method: &Method, query: &str) -> Option<Duration> {
    let has = |parameter: &str| query.split('&').any(|part| part.starts_with(parameter));
    if method != Method::GET {
        return Some(CHANGE);
    }
    match (has("watch="), has("limit=")) {
        (true, _) => None,
        (false, true) => Some(LIST),
        (false, false) => Some(DEADLINE),
    }
}
