//! Changes lists of protobuf messages without breaking their lengths: libFuzzer's own mutations change a byte here and
//! there, which seldom leaves a message that can be read, and never two calls that name the same volume.

use crate::messages::{self, Tagged};

/// libFuzzer's own mutation of the first bytes of a buffer (`libfuzzer_sys::fuzzer_mutate`), which only a target can call.
pub type Basic = fn(&mut [u8], usize, usize) -> usize;

/// Numbers at which something may begin or end.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    3,
    511,
    4096,
    (1 << 20) + 1,
    64 << 20,
    1 << 30,
    1 << 40,
    u32::MAX as u64,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// One field of a message as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    key: u64,
    value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
    Fixed(Vec<u8>),
}

/// Numbers that a seed gives (splitmix64).
struct Dice {
    state: u64,
    basic: Basic,
}

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides.max(1) as u64) as usize
    }
}

/// Changes the first `size` bytes of `data` and returns how many there are then; for `fuzz_mutator!`.
pub fn list(data: &mut [u8], size: usize, max_size: usize, seed: u32, basic: Basic) -> usize {
    let mut dice = Dice { state: seed.into(), basic };
    let mut messages = messages::read(&data[..size]);
    if messages.is_empty() || dice.roll(16) == 0 {
        return basic(data, size, max_size);
    }
    for _ in 0..=dice.roll(3) {
        change_list(&mut messages, &mut dice);
    }
    let output = messages::write(&messages);
    if output.len() > max_size {
        return basic(data, size, max_size);
    }
    data[..output.len()].copy_from_slice(&output);
    output.len()
}

fn change_list(messages: &mut Vec<Tagged>, dice: &mut Dice) {
    let at = dice.roll(messages.len());
    let Some(chosen) = messages.get(at).cloned() else { return };
    match dice.roll(12) {
        0 => drop(messages.remove(at)),
        1 => messages.insert(dice.roll(messages.len() + 1), chosen),
        2 => {
            let other = dice.roll(messages.len());
            messages.swap(at, other);
        }
        3 => messages[at].0 = dice.roll(256) as u8,
        4 => messages.push((dice.roll(64) as u8, Vec::new())),
        _ => {
            let mut found = Vec::new();
            messages.iter().for_each(|(_, message)| leaves(message, &mut found));
            let mut message = chosen.1;
            change(&mut message, &found, dice);
            messages[at].1 = message;
        }
    }
}

/// The strings and byte strings of a message, for use in another place.
fn leaves(message: &[u8], found: &mut Vec<Vec<u8>>) {
    for field in parse(message).unwrap_or_default() {
        if let Value::Bytes(bytes) = field.value {
            leaves(&bytes, found);
            found.push(bytes);
        }
    }
}

fn change(message: &mut Vec<u8>, found: &[Vec<u8>], dice: &mut Dice) {
    let Some(mut fields) = parse(message).filter(|fields| !fields.is_empty() && dice.roll(16) != 0) else {
        return change_bytes(message, found, dice);
    };
    let at = dice.roll(fields.len());
    match dice.roll(10) {
        0 => drop(fields.remove(at)),
        1 => {
            let field = fields[at].clone();
            fields.push(field);
        }
        2 => fields[at].key = (dice.roll(18) as u64) << 3 | fields[at].key & 7,
        3 => {
            let bytes = found.get(dice.roll(found.len())).cloned().unwrap_or_default();
            fields.push(Field { key: (dice.roll(18) as u64) << 3 | 2, value: Value::Bytes(bytes) });
        }
        4 => {
            let number = NUMBERS[dice.roll(NUMBERS.len())];
            fields.push(Field { key: (dice.roll(18) as u64) << 3, value: Value::Number(number) });
        }
        _ => match &mut fields[at].value {
            Value::Number(number) => *number = change_number(*number, dice),
            Value::Bytes(bytes) => change(bytes, found, dice),
            Value::Fixed(bytes) => {
                let at = dice.roll(bytes.len());
                bytes[at] = dice.roll(256) as u8;
            }
        },
    }
    *message = encode(&fields);
}

fn change_bytes(bytes: &mut Vec<u8>, found: &[Vec<u8>], dice: &mut Dice) {
    if !found.is_empty() && dice.roll(2) == 0 {
        bytes.clone_from(&found[dice.roll(found.len())]);
        return;
    }
    let size = bytes.len();
    let most = size + 16;
    bytes.resize(most, 0);
    let size = (dice.basic)(bytes, size, most);
    bytes.truncate(size);
}

fn change_number(number: u64, dice: &mut Dice) -> u64 {
    match dice.roll(4) {
        0 => number.wrapping_add(1),
        1 => number.wrapping_sub(1),
        2 => number ^ 1 << dice.roll(64),
        _ => NUMBERS[dice.roll(NUMBERS.len())],
    }
}

/// The fields of a message, if it is one from end to end (protobuf.dev, Encoding).
fn parse(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            _ if key >> 3 == 0 => return None,
            0 => Value::Number(varint(&mut bytes)?),
            1 => Value::Fixed(take(&mut bytes, 8)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                Value::Bytes(take(&mut bytes, length)?)
            }
            5 => Value::Fixed(take(&mut bytes, 4)?),
            _ => return None,
        };
        fields.push(Field { key, value });
    }
    Some(fields)
}

fn take(bytes: &mut &[u8], length: usize) -> Option<Vec<u8>> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken.to_vec())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f).checked_shl(shift)?;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn encode(fields: &[Field]) -> Vec<u8> {
    let mut output = Vec::new();
    for Field { key, value } in fields {
        match value {
            Value::Number(number) => {
                put(&mut output, key & !7);
                put(&mut output, *number);
            }
            Value::Bytes(bytes) => {
                put(&mut output, key & !7 | 2);
                put(&mut output, bytes.len() as u64);
                output.extend(bytes);
            }
            Value::Fixed(bytes) => {
                put(&mut output, key & !7 | if bytes.len() == 8 { 1 } else { 5 });
                output.extend(bytes);
            }
        }
    }
    output
}

fn put(output: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        output.push(number as u8 | 0x80);
        number >>= 7;
    }
    output.push(number as u8);
}

#[cfg(test)]
mod tests {
    use hostloop::wire::csi;
    use prost::Message as _;

    use super::*;

    #[test]
    fn a_message_is_written_as_it_was_read() {
        let range = csi::CapacityRange { required_bytes: -1, limit_bytes: 1 << 40 };
        let request = csi::CreateVolumeRequest {
            name: "pvc-1".to_owned(),
            capacity_range: Some(range),
            parameters: [("backend".to_owned(), "directory".to_owned())].into(),
            ..Default::default()
        };
        let bytes = request.encode_to_vec();
        assert_eq!(encode(&parse(&bytes).expect("a message")), bytes);
        let mut found = Vec::new();
        leaves(&bytes, &mut found);
        assert!([&b"pvc-1"[..], b"backend", b"directory"].iter().all(|leaf| found.iter().any(|f| f == leaf)));
        assert_eq!(parse(b"\x0a\x05pvc"), None);
    }
}
