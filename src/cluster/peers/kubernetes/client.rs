//! The client of the API server.

use kube::{Client, Config};

/// Returns a client with the service account of this pod, or with a kubeconfig.
///
/// # Errors
/// If there is neither.
pub async fn api_client() -> Result<Client, kube::Error> {
    api_client_of(Config::infer().await.map_err(kube::Error::InferConfig)?)
}

/// Returns a client that makes each request once. kube would repeat one that is answered 429 for as long as an hour: an eviction
/// that a PodDisruptionBudget refuses held up its move, and could have been carried out after the move was cancelled. Callers
/// decide anew, by what is true then.
///
/// # Errors
/// If the configuration cannot be used.
pub fn api_client_of(mut config: Config) -> Result<Client, kube::Error> {
    config.default_retry = false;
    Client::try_from(config)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// An API server refuses with 429 what it may let pass later, such as an eviction.
    #[tokio::test]
    async fn a_refused_request_is_made_once() {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", server.local_addr().expect("an address"));
        tokio::spawn(async move {
            let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}"#;
            let head = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 10\r\nConnection: close";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            while let Ok((mut caller, _)) = server.accept().await {
                let _ = caller.read(&mut [0; 4096]).await;
                let _ = caller.write_all(answer.as_bytes()).await;
            }
        });
        let client = api_client_of(Config::new(address.parse().expect("an address"))).expect("a client");
        let answer = timeout(Duration::from_secs(5), Api::<Node>::all(client).get("n1")).await;
        let answer = answer.expect("it does not wait to try again");
        assert!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 429), "{answer:?}");
    }
}
