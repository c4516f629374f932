//! CSI wants a message with every error; tonic sends none for a service or method that it does not know, and one
//! that promises too much for a method that a service leaves out.

use http::{HeaderValue, Response};
use tonic::{Code, Status};

/// What tonic's generated code says for an RPC that the driver does not serve.
const STUB: &str = "Not yet implemented";

/// Gives an error without a message one. Returns the response's status: for a unary call it is in the headers,
/// or it is OK. (A streaming call that fails half-way has its status in the trailers, which this does not see.)
pub fn fill<B>(response: &mut Response<B>, method: &str) -> Status {
    let Some(status) = Status::from_header_map(response.headers()) else {
        return Status::ok("");
    };
    if status.code() == Code::Ok || !["", STUB].contains(&status.message()) {
        return status;
    }
    let method: String =
        method.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_')).collect();
    let message = match status.code() {
        Code::Unimplemented => format!("{method} is not served by this driver"),
        _ => format!("{method} failed; the driver's log may say more"),
    };
    if let Ok(value) = HeaderValue::try_from(&message) {
        response.headers_mut().insert(Status::GRPC_MESSAGE, value);
    }
    Status::new(status.code(), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(status: Status) -> (String, String) {
        let mut response: Response<()> = status.into_http();
        let returned = fill(&mut response, "csi.v1.X/Get\u{7f}%41é");
        let sent = Status::from_header_map(response.headers()).unwrap();
        assert_eq!(sent.code(), returned.code());
        (sent.message().to_owned(), returned.message().to_owned())
    }

    #[test]
    fn only_an_error_without_a_message_gets_one() {
        let text = "csi.v1.X/Get41 is not served by this driver".to_owned();
        assert_eq!(filled(Status::unimplemented("")), (text.clone(), text));
        assert_eq!(filled(Status::unimplemented(STUB)), filled(Status::unimplemented("")));
        assert!(filled(Status::internal("")).0.contains("failed"));
        assert_eq!(filled(Status::not_found("no ä")), ("no ä".to_owned(), "no ä".to_owned()));
        let mut fine = Response::new(());
        assert_eq!(fill(&mut fine, "x").code(), Code::Ok);
        assert!(fine.headers().is_empty());
    }
}
