//! How far a copy is, in words for people.

use crate::model::format_bytes;

/// Returns how far a copy is, for people. Until a pass has been made, this is the percentage in `message`, if it has one.
pub fn progress(passes: u64, sent_bytes: u64, message: &str) -> String {
    match passes {
        0 => percent(message).map_or_else(String::new, |percent| format!("{percent}%")),
        1 => format!("1 pass, {}", format_bytes(sent_bytes)),
        passes => format!("{passes} passes, {}", format_bytes(sent_bytes)),
    }
}

/// Returns the first percentage that a message has, such as `37%`.
pub fn percent(message: &str) -> Option<u8> {
    let (before, _) = message.split_once('%')?;
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|percent| *percent <= 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_percentage_until_a_pass_was_made() {
        let message = "another operation on volume v (3 GiB of 8 GiB copied, 37%) is running; try again";
        assert_eq!(progress(0, 0, message), "37%");
        assert_eq!(
            (progress(1, 3 << 20, message), progress(2, 4 << 20, "")),
            ("1 pass, 3 MiB".to_owned(), "2 passes, 4 MiB".to_owned())
        );
        let percentages = ["the first copy is being made", "%", "300%", "100%"].map(percent);
        assert_eq!(percentages, [None, None, None, Some(100)]);
    }
}
