//! What comes of connecting to something that answers with arbitrary bytes.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::thread;

use proptest::prelude::*;

use super::super::access::Auth;
use super::super::granted::tests::granted_at;
use super::*;
use crate::rt::bounded;

pub(in crate::link) const SESSION: i64 = 0x77;
const SECRET: &[u8] = b"user:secret";

pub(in crate::link) fn wanted(known: bool) -> Wanted {
    let timeout = Duration::from_secs(4);
    let granted = Granted {
        session: SESSION,
        password: vec![7; 16],
        timeout,
        by_server: timeout,
        ..granted_at(Moment::ZERO)
    };
    Wanted {
        access: Access {
            auth: vec![Auth { scheme: "digest".to_owned(), credentials: SECRET.to_vec() }],
            ..Access::default()
        },
        timeout,
        tick: None,
        session: known.then_some(granted),
        last_zxid: 0,
        attempts: Arc::new(Attempts::new(drop)),
    }
}

/// Connects to a server that sends only `bytes`, in pieces, and then closes the connection;
/// returns what came of it and all that the server received.
fn dialled(known: bool, bytes: &[u8], piece: usize) -> (Result<Dialed, Failure>, Vec<u8>) {
    dialled_for(&wanted(known), bytes, piece)
}

fn dialled_for(wanted: &Wanted, bytes: &[u8], piece: usize) -> (Result<Dialed, Failure>, Vec<u8>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (_stop, stopped) = bounded(0);
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            for piece in bytes.chunks(piece) {
                if stream.write_all(piece).is_err() {
                    break;
                }
            }
            let _ = stream.shutdown(Shutdown::Write);
            let mut told = Vec::new();
            let _ = stream.read_to_end(&mut told);
            told
        });
        let found = try_address(wanted, address, "", Duration::from_secs(10), &stopped);
        // The server reads until the connection is shut down.
        if let Ok(Dialed::Server { stream, .. }) = &found {
            stream.tcp().shutdown(Shutdown::Both).unwrap();
        }
        (found, server.join().unwrap())
    })
}

pub(in crate::link) fn response(timeout: i32, session: i64, read_only: bool) -> Vec<u8> {
    of_version(0, timeout, session, read_only)
}

fn of_version(version: i32, timeout: i32, session: i64, read_only: bool) -> Vec<u8> {
    ConnectResponse { version, timeout, session, password: vec![3; 16], read_only }.encode()
}

pub(in crate::link) fn auth_reply(number: i32, error: i32) -> Vec<u8> {
    Frame::reply(number, 0, error).finish()
}

/// What the protocol makes of these bytes: a session, its end, a refusal, or nothing.
fn reading(known: bool, bytes: &[u8]) -> &'static str {
    let frame = |bytes: &[u8]| -> Option<(Vec<u8>, Vec<u8>)> {
        let (prefix, rest) = bytes.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_be_bytes(*prefix)).ok()?;
        ((16..=4096).contains(&length) && rest.len() >= length)
            .then(|| (rest[..length].to_vec(), rest[length..].to_vec()))
    };
    let Some((first, rest)) = frame(bytes) else { return "nothing" };
    let Ok(response) = ConnectResponse::read(&first) else { return "nothing" };
    if response.version != 0 {
        return "nothing";
    }
    if response.timeout <= 0 {
        return if known { "expired" } else { "nothing" };
    }
    if response.read_only || known && response.session != SESSION {
        return "nothing";
    }
    let Some((second, _)) = frame(&rest) else { return "no auth" };
    let int = |at: usize| i32::from_be_bytes(second[at..at + 4].try_into().unwrap());
    match (int(0), int(12)) {
        (-4, 0) if response.session != 0 => "session",
        (-4, -115) => "refused",
        _ => "no auth",
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let session = prop_oneof![4 => Just(SESSION), 1 => Just(0), 1 => any::<i64>()];
    let timeout = prop_oneof![6 => Just(4000), 1 => -1i32..2, 1 => any::<i32>()];
    let version = prop_oneof![9 => Just(0), 1 => any::<i32>()];
    let handshake = (version, timeout, session, prop::bool::weighted(0.1)).prop_map(
        |(version, timeout, session, read_only)| of_version(version, timeout, session, read_only),
    );
    let number = prop_oneof![6 => Just(-4), 1 => -5i32..5];
    let error = prop_oneof![4 => Just(0), 2 => Just(code::AUTH_FAILED), 1 => -120i32..5];
    let reply = (number, error).prop_map(|(number, error)| auth_reply(number, error));
    let damage = (any::<prop::sample::Index>(), any::<u8>(), prop::bool::weighted(0.3));
    let cut = prop::option::weighted(0.3, any::<prop::sample::Index>());
    (handshake, reply, damage, cut).prop_map(|(handshake, reply, (at, byte, harm), cut)| {
        let mut bytes = [handshake, reply].concat();
        if harm {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Also, no credentials are sent to a server that has not granted a session.
    #[test]
    fn no_answer_to_a_handshake_is_taken_for_more_than_it_is(
        bytes in prop_oneof![9 => bytes(), 1 => prop::collection::vec(any::<u8>(), 0..200)],
        known in any::<bool>(),
        piece in 1usize..100,
    ) {
        let (found, told) = dialled(known, &bytes, piece);
        let due = reading(known, &bytes);
        let matches = match &found {
            Ok(Dialed::Server { granted, .. }) => due == "session" && (!known || granted.session == SESSION),
            Ok(Dialed::Expired) => due == "expired",
            Ok(Dialed::AuthFailed(_)) => due == "refused",
            Err(_) => matches!(due, "nothing" | "no auth"),
        };
        prop_assert!(matches, "{due} was taken for {found:?}");
        let shown = told.windows(SECRET.len()).any(|part| part == SECRET);
        // Bytes may get lost when the server has closed the connection, so not all have to arrive.
        prop_assert!(!shown || matches!(due, "session" | "refused" | "no auth"));
        prop_assert!(found.is_err() || due == "expired" || shown);
    }
}

#[test]
fn a_session_of_number_zero_is_none() {
    for known in [false, true] {
        let bytes = [response(4000, 0, false), auth_reply(xid::AUTH, 0)].concat();
        let (found, _) = dialled(known, &bytes, 100);
        assert!(found.is_err(), "{found:?}");
    }
}

/// ClickHouse Keeper and RaftKeeper answer so while they have no leader.
#[test]
fn an_answer_of_another_protocol_version_serves_nobody_and_ends_nothing() {
    for known in [false, true] {
        for (timeout, session) in [(4000, -1), (4000, SESSION), (-1, 0)] {
            let bytes =
                [of_version(42, timeout, session, false), auth_reply(xid::AUTH, 0)].concat();
            let (found, _) = dialled(known, &bytes, 100);
            assert!(matches!(found, Err(Failure::Other(_))), "{found:?}");
        }
    }
}

/// Whether the session is lost depends on where it was opened. The other one is closed in any case.
#[test]
fn another_session_is_closed_and_is_the_end_where_sessions_end_with_their_connections() {
    let zeros = [0; 16];
    for (password, is_lost) in [(&zeros[..], true), (&[7; 14], true), (&[7; 16], false)] {
        let mut wanted = wanted(true);
        if let Some(session) = &mut wanted.session {
            session.password = password.to_vec();
        }
        let (found, told) = dialled_for(&wanted, &response(4000, SESSION + 1, false), 100);
        match is_lost {
            true => assert!(matches!(found, Ok(Dialed::Expired)), "{found:?}"),
            false => assert!(matches!(found, Err(Failure::AnotherSession)), "{found:?}"),
        }
        assert!(told.ends_with(&Frame::request(1, op::CLOSE_SESSION).finish()), "{told:?}");
    }
}

/// The client asks for 4 s.
#[test]
fn a_granted_session_timeout_is_believed_up_to_what_servers_grant_by_default() {
    let hour = 3_600_000;
    for (granted, believed) in [(2, 2), (4000, 4000), (30_000, 30_000), (hour, 40_000)] {
        let bytes = [response(granted, SESSION, false), auth_reply(xid::AUTH, 0)].concat();
        let (Ok(Dialed::Server { granted: found, .. }), _) = dialled(false, &bytes, 100) else {
            panic!("no session of {granted} ms")
        };
        assert_eq!(found.timeout, Duration::from_millis(believed));
        assert_eq!(found.by_server.as_millis(), granted as u128, "the reported timeout");
    }
    let days = Duration::from_millis(i32::MAX as u64);
    assert_eq!(believable(days, days), days, "as it was asked for");
}

/// Servers count in milliseconds: what is granted is what was asked for.
#[test]
fn a_fraction_of_a_millisecond_shows_no_maximum() {
    let mut wanted = wanted(false);
    wanted.timeout = Duration::from_micros(4_000_500);
    let bytes = [response(4000, SESSION, false), auth_reply(xid::AUTH, 0)].concat();
    let (Ok(Dialed::Server { granted, .. }), _) = dialled_for(&wanted, &bytes, 100) else {
        panic!("no session")
    };
    assert_eq!(granted.shown, Duration::ZERO);
}

#[test]
fn a_new_session_that_is_of_no_use_is_closed() {
    let close = Frame::request(1, op::CLOSE_SESSION).finish();
    let garbage = Frame::reply(7, 0, 0).finish();
    for known in [true, false] {
        for reply in [auth_reply(xid::AUTH, code::AUTH_FAILED), garbage.clone()] {
            let (_, told) = dialled(known, &[response(4000, SESSION, false), reply].concat(), 100);
            assert_eq!(told.ends_with(&close), !known);
        }
    }
}

/// The session timeout that the client asked for, if the server sends nothing.
fn asked(wanted: &Wanted) -> Duration {
    let (found, told) = dialled_for(wanted, &[], 1);
    assert!(found.is_err(), "{found:?}");
    let timeout = ConnectRequest::read(&told[4..]).unwrap().timeout;
    Duration::from_millis(timeout.unsigned_abs().into())
}

#[test]
fn a_session_is_continued_with_the_timeout_that_it_has() {
    assert_eq!(asked(&wanted(false)), Duration::from_secs(4));
    let mut known = wanted(true);
    known.timeout = Duration::from_secs(10);
    assert_eq!(asked(&known), Duration::from_secs(4));
}

#[test]
fn an_attempt_to_continue_a_session_that_has_no_answer_is_noted() {
    for known in [true, false] {
        let wanted = wanted(known);
        asked(&wanted);
        let later = Moment::now();
        let earliest = wanted.attempts.earliest(later, Duration::from_secs(60));
        assert_eq!(earliest < later, known);
    }
}
