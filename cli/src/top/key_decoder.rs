//! The keys of a terminal, from the bytes that it sends.

/// What was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Interrupt,
}

const ESCAPE: u8 = 0x1b;

/// No key sends more bytes than this.
const LONGEST: usize = 16;

/// Collects bytes until they are whole keys.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    rest: Vec<u8>,
}

impl Decoder {
    /// The keys that these bytes complete.
    pub(crate) fn keys(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.rest.extend(bytes);
        let mut keys = Vec::new();
        while let Some((length, key)) = first_key(&self.rest) {
            self.rest.drain(..length);
            keys.extend(key);
        }
        keys
    }

    /// Whether the bytes so far may be the begin of a key.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.rest.is_empty()
    }

    /// The key if nothing more comes.
    pub(crate) fn give_up(&mut self) -> Option<Key> {
        let rest = std::mem::take(&mut self.rest);
        (rest.first() == Some(&ESCAPE)).then_some(Key::Escape)
    }
}

/// How many bytes there are of the first key, and which it is if it is one of these; `None` if more bytes
/// have to come.
fn first_key(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    let key = match *bytes.first()? {
        ESCAPE => return escaped(bytes),
        3 => Some(Key::Interrupt),
        b'\r' | b'\n' => Some(Key::Enter),
        8 | 127 => Some(Key::Backspace),
        control if control < b' ' => None,
        first => return character(first, bytes),
    };
    Some((1, key))
}

fn character(first: u8, bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    let length = match first.leading_ones() {
        0 => 1,
        length @ 2..=4 => length as usize,
        _ => return Some((1, None)),
    };
    let text = std::str::from_utf8(bytes.get(..length)?);
    // What is not UTF-8 is no key.
    Some(text.map_or((1, None), |text| (length, text.chars().next().map(Key::Char))))
}

fn escaped(bytes: &[u8]) -> Option<(usize, Option<Key>)> {
    if !matches!(bytes.get(1)?, b'[' | b'O') {
        return Some((1, Some(Key::Escape)));
    }
    let Some(last) = bytes.iter().skip(2).position(|one| (b'@'..=b'~').contains(one)) else {
        return (bytes.len() >= LONGEST).then_some((bytes.len(), None));
    };
    let (number, last) = bytes[2..].split_at(last);
    let key = match (number, last[0]) {
        (_, b'A') => Some(Key::Up),
        (_, b'B') => Some(Key::Down),
        (_, b'H') | (b"1" | b"7", b'~') => Some(Key::Home),
        (_, b'F') | (b"4" | b"8", b'~') => Some(Key::End),
        (b"5", b'~') => Some(Key::PageUp),
        (b"6", b'~') => Some(Key::PageDown),
        _ => None,
    };
    Some((number.len() + 3, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_however_their_bytes_arrive() {
        let text = "qé\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1bOF\x1b[1;5P\x7f\r\x03\x1bx\u{1}";
        let all = [
            Key::Char('q'),
            Key::Char('é'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Backspace,
            Key::Enter,
            Key::Interrupt,
            Key::Escape,
            Key::Char('x'),
        ];
        assert_eq!(Decoder::default().keys(text.as_bytes()), all);
        let mut decoder = Decoder::default();
        let singly: Vec<Key> =
            text.bytes().flat_map(|byte| decoder.keys(std::slice::from_ref(&byte))).collect();
        assert_eq!(singly, all);
        assert!(!decoder.is_waiting());
    }

    #[test]
    fn an_escape_is_a_key_if_nothing_comes_after_it() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.keys(b"\x1b"), []);
        assert!(decoder.is_waiting());
        assert_eq!(decoder.give_up(), Some(Key::Escape));
        assert!(!decoder.is_waiting());
    }

    #[test]
    fn what_is_no_key_is_passed_over() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.keys(b"\xff\xc3(a\x80"), [Key::Char('('), Key::Char('a')]);
        let endless = [b"\x1b[".as_slice(), &[b'1'; LONGEST], b"q"].concat();
        assert_eq!(Decoder::default().keys(&endless).last(), None);
    }
}
