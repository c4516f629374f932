//! An API server with one Secret, as far as the making of a CA sees it.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

use super::*;

const DRIVER: &str = "hostloop.csi.dev";

/// What the server has, and what it was asked for.
#[derive(Default)]
struct State {
    secret: Option<Value>,
    /// Somebody else makes it between the look and the making.
    raced_by: Option<Value>,
    calls: Vec<String>,
}

type Server = Arc<Mutex<State>>;

fn status(code: u16, reason: &str) -> (StatusCode, Value) {
    let body =
        json!({"kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code});
    (StatusCode::from_u16(code).unwrap(), body)
}

fn answer(state: &mut State, method: &Method, path: &str, body: &Value) -> (StatusCode, Value) {
    state.calls.push(format!("{method} {path}"));
    match (method, &state.secret) {
        (&Method::GET, Some(secret)) => (StatusCode::OK, secret.clone()),
        (&Method::GET, None) => {
            state.secret = state.raced_by.take();
            status(404, "NotFound")
        }
        (&Method::POST, Some(_)) => status(409, "AlreadyExists"),
        (&Method::POST, None) => {
            state.secret = Some(body.clone());
            (StatusCode::CREATED, body.clone())
        }
        _ => status(405, "MethodNotAllowed"),
    }
}

fn client(server: &Server) -> Client {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            let (code, answer) = answer(&mut server.lock().unwrap(), &parts.method, parts.uri.path(), &body);
            let text = serde_json::to_vec(&answer).unwrap();
            Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(text)).unwrap())
        }
    });
    Client::new(service, "default")
}

fn made(server: &Server) -> Result<String, CertsError> {
    let now = OffsetDateTime::now_utc();
    let validity = Validity { from: now, until: now + Duration::days(10) };
    let place = SecretName { namespace: "storage".to_owned(), name: "hostloop-ca".to_owned() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { init(client(server), &place, DRIVER, validity).await })
}

/// A CA as another process, or an administrator, made it.
fn ca() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "hostloop-ca"},
        "data": {"ca.crt": "b2xk", "ca.key": "b2xk"}
    })
}

fn with(secret: Option<Value>) -> Server {
    Arc::new(Mutex::new(State { secret, ..State::default() }))
}

#[test]
fn a_ca_is_made_once_and_signs() {
    let server = with(None);
    assert!(made(&server).unwrap().contains("made a CA"));
    let secret = server.lock().unwrap().secret.clone().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for name in [CA, CA_KEY] {
        let text = secret["stringData"][name].as_str().unwrap();
        #[allow(clippy::disallowed_methods, reason = "certificates are no volume's files")]
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    assert_eq!(Authority::open(dir.path()).unwrap().driver(), Some(DRIVER));
}

#[test]
fn one_that_is_there_stays() {
    let server = with(Some(ca()));
    assert!(made(&server).unwrap().contains("already exists"));
    let state = server.lock().unwrap();
    assert_eq!(state.secret, Some(ca()));
    assert_eq!(state.calls, ["GET /api/v1/namespaces/storage/secrets/hostloop-ca"]);
}

#[test]
fn the_first_one_wins() {
    let server = with(None);
    server.lock().unwrap().raced_by = Some(ca());
    assert!(made(&server).unwrap().contains("already exists"));
    assert_eq!(server.lock().unwrap().secret.as_ref().unwrap()["data"], ca()["data"]);
}

#[test]
fn a_secret_without_a_ca_is_left_alone() {
    let mut other = ca();
    other["data"] = json!({"password": "b2xk"});
    let server = with(Some(other.clone()));
    assert!(made(&server).unwrap_err().to_string().contains("storage/hostloop-ca exists and holds no CA"));
    assert_eq!(server.lock().unwrap().secret, Some(other));
}
