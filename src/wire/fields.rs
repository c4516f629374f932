//! Fields of an encoded message that is not decoded yet. A field without content has two bytes there, and can have a
//! hundred times as many in memory: a sender must not choose how many there are.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Returns how many fields there are at a path of field numbers; `None` for what is no message. Each number but the last
/// one is that of a message, which may be there more than once.
pub fn count(message: &[u8], path: &[u32]) -> Option<usize> {
    let (number, below) = path.split_first()?;
    let (mut rest, mut found) = (message, 0);
    while !rest.is_empty() {
        let (here, wire_type) = decode_key(&mut rest).ok()?;
        if here != *number || wire_type != WireType::LengthDelimited {
            skip_field(wire_type, here, &mut rest, DecodeContext::default()).ok()?;
            continue;
        }
        let len = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
        let (field, behind) = rest.split_at_checked(len)?;
        rest = behind;
        found += if below.is_empty() { 1 } else { count(field, below)? };
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::wire::peer::attributes::Extended;
    use crate::wire::peer::{Attributes, TreeEntry};

    fn entry(number: usize) -> Vec<u8> {
        let attributes = Attributes { extended: vec![Extended::default(); number], ..Attributes::default() };
        TreeEntry { number: 7, name: b"n".to_vec(), attributes: Some(attributes), ..TreeEntry::default() }
            .encode_to_vec()
    }

    #[test]
    fn fields_are_counted_before_a_message_is_decoded() {
        assert_eq!(count(&entry(0), &[9, 6]), Some(0));
        assert_eq!(count(&entry(3), &[9, 6]), Some(3));
        // A message that is there twice is merged.
        assert_eq!(count(&[entry(3), entry(4)].concat(), &[9, 6]), Some(7));
        assert_eq!(count(&entry(3), &[9]), Some(1));
        assert_eq!(count(&entry(3), &[8, 6]), Some(0));
        assert_eq!(count(&[], &[9, 6]), Some(0));
        let whole = entry(3);
        assert_eq!(count(&whole[..whole.len() - 1], &[9, 6]), None, "it is cut off");
    }
}
