//! CSI requires a message with every error. tonic sends none for a service or method that it does not know, and one that
//! promises too much for a method that a service leaves out.

use http::{HeaderMap, HeaderValue};
use tonic::{Code, Status};

/// What tonic's generated code says for an RPC that the driver does not serve.
const STUB: &str = "Not yet implemented";

/// Gives an error without a message one. Returns the status, if these headers or trailers have it: the headers of
/// an answer have one only if it is an error before the first message.
pub fn fill(headers: &mut HeaderMap, method: &str) -> Option<Status> {
    let status = Status::from_header_map(headers)?;
    if status.code() == Code::Ok || !["", STUB].contains(&status.message()) {
        return Some(status);
    }
    let method: String =
        method.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_')).collect();
    let message = match status.code() {
        Code::Unimplemented => format!("{method} is not served by this driver"),
        _ => format!("{method} failed; the driver's log may say more"),
    };
    if let Ok(value) = HeaderValue::try_from(&message) {
        headers.insert(Status::GRPC_MESSAGE, value);
    }
    Some(Status::new(status.code(), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(status: Status) -> (String, String) {
        let mut headers = HeaderMap::new();
        status.add_header(&mut headers).unwrap();
        let returned = fill(&mut headers, "csi.v1.X/Get\u{7f}%41é").unwrap();
        let sent = Status::from_header_map(&headers).unwrap();
        assert_eq!(sent.code(), returned.code());
        (sent.message().to_owned(), returned.message().to_owned())
    }

    #[test]
    fn an_error_without_a_message_gets_one() {
        let text = "csi.v1.X/Get41 is not served by this driver".to_owned();
        assert_eq!(filled(Status::unimplemented("")), (text.clone(), text));
        assert_eq!(filled(Status::unimplemented(STUB)), filled(Status::unimplemented("")));
        assert!(filled(Status::internal("")).0.contains("failed"));
        assert_eq!(filled(Status::not_found("no ä")), ("no ä".to_owned(), "no ä".to_owned()));
        assert_eq!(filled(Status::ok("")), (String::new(), String::new()));
        let mut none = HeaderMap::new();
        assert!(fill(&mut none, "x").is_none() && none.is_empty());
    }
}
