//! The splitter returns the same however a stream is split, and frees what it has returned.

use proptest::prelude::*;

use super::*;

const LIMIT: usize = 60;
const HEAD: usize = 8;

/// A stream of frames, some of them with wrong lengths.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let limit = LIMIT as i32;
    let length = prop_oneof![
        6 => 8i32..40,
        2 => prop::sample::select(vec![limit - 1, limit, limit + 1, 500, 0, 7, -1]),
        1 => prop::sample::select(vec![i32::MIN, i32::MAX]),
    ];
    // A `whole` frame has as many bytes as its length says, if that is a sensible length.
    let frame =
        (length, any::<u8>(), prop::bool::weighted(0.9)).prop_map(|(length, byte, whole)| {
            let follow = if whole { length.clamp(0, 600) as usize } else { usize::from(byte) };
            [&length.to_be_bytes()[..], &vec![byte; follow]].concat()
        });
    prop::collection::vec(frame, 0..12).prop_map(|frames| frames.concat())
}

#[derive(Debug, PartialEq, Eq)]
enum Split {
    Whole(Vec<u8>),
    Oversized(Vec<u8>, usize),
    Malformed(Malformed),
}

fn split(stream: &[u8], cuts: &[usize]) -> Vec<Split> {
    let mut splitter = Splitter::new(LIMIT, HEAD);
    let (mut said, mut rest) = (Vec::new(), stream);
    for cut in cuts.iter().cycle() {
        let (piece, later) = rest.split_at((*cut).min(rest.len()));
        rest = later;
        splitter.push(piece);
        loop {
            said.push(match splitter.next() {
                Ok(None) => break,
                Ok(Some(Piece { bytes, oversized: None })) => Split::Whole(bytes.to_vec()),
                Ok(Some(Piece { bytes, oversized: Some(length) })) => {
                    Split::Oversized(bytes.to_vec(), length)
                }
                Err(malformed) => {
                    said.push(Split::Malformed(malformed));
                    return said;
                }
            });
        }
        if rest.is_empty() {
            break;
        }
    }
    said
}

/// The same, read from the whole stream at once.
fn reading(stream: &[u8]) -> Vec<Split> {
    let (mut said, mut rest) = (Vec::new(), stream);
    while let Some((prefix, after)) = rest.split_first_chunk::<4>() {
        let Ok(length) = usize::try_from(i32::from_be_bytes(*prefix)) else {
            said.push(Split::Malformed(Malformed("a frame of negative length")));
            return said;
        };
        if length < HEAD {
            said.push(Split::Malformed(Malformed("a frame shorter than its header")));
            return said;
        }
        let needed = if length > LIMIT { HEAD } else { length };
        if after.len() < needed {
            break;
        }
        let head = after[..needed].to_vec();
        said.push(if length > LIMIT { Split::Oversized(head, length) } else { Split::Whole(head) });
        rest = &after[length.min(after.len())..];
    }
    said
}

proptest! {
    #[test]
    fn the_splitter_says_the_same_however_a_stream_is_split(
        stream in streams(),
        cuts in prop::collection::vec(1usize..90, 1..20),
    ) {
        let whole = reading(&stream);
        for cuts in [&cuts[..], &[1], &[stream.len().max(1)]] {
            prop_assert_eq!(&split(&stream, cuts), &whole);
        }
    }

    #[test]
    fn handshakes_survive_the_way(
        zxid in any::<i64>(),
        timeout in any::<i32>(),
        session in any::<i64>(),
        password in prop::collection::vec(any::<u8>(), 0..40),
        read_only in any::<bool>(),
        version in any::<i32>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let request =
            ConnectRequest { last_zxid: zxid, timeout, session, password: &password }.encode();
        let read = ConnectRequest::read(&request[4..]).unwrap();
        prop_assert_eq!(
            (read.last_zxid, read.timeout, read.session, read.password),
            (zxid, timeout, session, &password[..])
        );
        let response = ConnectResponse { version, timeout, session, password, read_only };
        let encoded = response.encode();
        prop_assert_eq!(ConnectResponse::read(&encoded[4..]), Ok(response));
        // Old servers do not say whether they are read-only; all else must be there.
        let cut = 4 + cut.index(encoded.len() - 4);
        let shorter = ConnectResponse::read(&encoded[4..cut]);
        prop_assert_eq!(shorter.is_ok(), cut == encoded.len() - 1);
    }
}

/// Memory is freed even in a stream that never pauses at the end of a frame.
#[test]
fn what_has_been_said_is_let_go() {
    let frame = Frame::new().raw(&[1; 44]).finish();
    let mut stream = frame.iter().copied().cycle();
    let mut splitter = Splitter::new(LIMIT, HEAD);
    for _ in 0..10_000 {
        let piece: Vec<u8> = stream.by_ref().take(1_001).collect();
        splitter.push(&piece);
        while let Ok(Some(_)) = splitter.next() {}
        assert!(splitter.held() < 200 * 1024, "{} bytes", splitter.held());
    }
}
