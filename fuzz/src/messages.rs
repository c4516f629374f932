//! An input that is a list of messages: for each a tag, its length as two bytes (little-endian), and its bytes.

/// What a message is for, and the message.
pub type Tagged = (u8, Vec<u8>);

/// Reads a list; the last message may be cut off. Every input is one.
pub fn read(mut input: &[u8]) -> Vec<Tagged> {
    let mut messages = Vec::new();
    while let [tag, low, high, rest @ ..] = input {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (message, behind) = rest.split_at(length);
        messages.push((*tag, message.to_vec()));
        input = behind;
    }
    messages
}

/// Writes a list. What no length can tell of a message is cut off.
pub fn write(messages: &[Tagged]) -> Vec<u8> {
    let mut output = Vec::new();
    for (tag, message) in messages {
        let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
        output.push(*tag);
        output.extend(length.to_le_bytes());
        output.extend(&message[..usize::from(length)]);
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let list = vec![(1, b"one".to_vec()), (0, Vec::new()), (255, vec![7; 300])];
        let bytes = write(&list);
        assert_eq!(read(&bytes), list);
        assert_eq!(read(&bytes[..bytes.len() - 299])[2], (255, vec![7]));
    }
}
