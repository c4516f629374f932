//! Bounds for what another node answers. A node with a valid certificate may be broken, or in wrong hands: what it sends
//! must take as little memory, time and room in a log as a right answer.

use crate::error::shorten;

/// The limit for an answer that is neither data nor a list, in bytes. All of them are far below it.
pub const LARGEST_ANSWER: usize = 64 << 10;

/// The limit for a text of another node within an error, a log or a status, in bytes. A node's own messages are shorter.
const LONGEST_TEXT: usize = 4 << 10;

/// Returns a text of another node in one line, with at most 4 KiB.
pub fn line(text: &str) -> String {
    // A letter that is shown escaped (`{:?}`) is longer, so only the text itself is cut.
    let printable = text.chars().take(LONGEST_TEXT + 1);
    shorten(printable.map(|letter| if letter.is_control() { ' ' } else { letter }).collect(), LONGEST_TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_a_node_is_one_line() {
        assert_eq!(line("one\nand\r\nthe other\u{1b}[31m"), "one and  the other [31m");
        assert_eq!(line(&"ä".repeat(1 << 20)), format!("{}…", "ä".repeat(2 << 10)));
        assert_eq!(line(&"n".repeat(4 << 10)).len(), 4 << 10);
    }
}
