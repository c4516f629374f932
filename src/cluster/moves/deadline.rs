//! A deadline for each call of the API server. A connection that is cut off, or a server that accepts and never answers, would hold
//! a step for as long as the process lives, and its object is not looked at meanwhile.

use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use kube::{Client, Error};
use tokio::time::timeout;

use super::lease::DEADLINE;

/// For a page of a list, which the watches begin with. No step waits for it.
const LIST: Duration = Duration::from_secs(60);

/// Returns a client whose calls end within a shorter time than a Lease lasts. A watch has no such end.
pub fn limited(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    Client::new(tower::service_fn(move |request| call(client.clone(), request)), namespace)
}

async fn call(client: Client, request: Request<Body>) -> Result<Response<Body>, Error> {
    let Some(most) = longest(request.uri().query().unwrap_or_default()) else {
        return client.send(request).await;
    };
    let whole = async {
        let (parts, body) = client.send(request).await?.into_parts();
        Ok(Response::from_parts(parts, Body::from(body.collect_bytes().await?)))
    };
    let late = || format!("the API server has not answered within {} seconds", most.as_secs());
    timeout(most, whole).await.unwrap_or_else(|_| Err(Error::Service(late().into())))
}

/// Returns how long a call with this query may take; `None` for a watch.
fn longest(query: &str) -> Option<Duration> {
    let has = |parameter: &str| query.split('&').any(|part| part.starts_with(parameter));
    match (has("watch="), has("limit=")) {
        (true, _) => None,
        (false, true) => Some(LIST),
        (false, false) => Some(DEADLINE),
    }
}
