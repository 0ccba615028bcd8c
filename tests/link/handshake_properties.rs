//! What comes of connecting to something that answers with arbitrary bytes.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::sync::Arc;
use std::thread;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use super::super::config::LinkConfig;
use super::super::reconnects_in_doubt::Attempts;
use super::super::resolver::Resolver;
use super::*;
use crate::link::protocol::granted_at;
use crate::rt::bounded;

pub(in crate::link) const SESSION: i64 = 0x77;
const SECRET: &[u8] = b"user:secret";

pub(in crate::link) fn wanted(known: bool) -> Search {
    let timeout = Duration::from_secs(4);
    let granted = Granted {
        session: SESSION,
        password: vec![7; 16],
        timeout,
        by_server: timeout,
        ..granted_at(Moment::ZERO)
    };
    let auth = vec![Auth { scheme: "digest".to_owned(), credentials: SECRET.to_vec() }];
    Search {
        config: LinkConfig {
            resolver: Resolver::new(Vec::new()),
            access: Access { auth, ..Access::default() },
            session_timeout: timeout,
            tick: None,
            connect_timeout: timeout,
        },
        session: known.then_some(granted),
        last_zxid: 0,
        attempts: Arc::new(Attempts::new(drop)),
        avoid: None,
        round_trip: Duration::ZERO,
        futile: 0,
    }
}

type Found = Result<(ServerStream, Granted), Failure>;

/// Connects to a server that sends only `bytes`, in pieces, and then closes the connection;
/// returns what came of it and all that the server received.
fn dialled(known: bool, bytes: &[u8], piece: usize) -> (Found, Vec<u8>) {
    dialled_for(&wanted(known), bytes, piece)
}

fn dialled_for(wanted: &Search, bytes: &[u8], piece: usize) -> (Found, Vec<u8>) {
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
        if let Ok((stream, _)) = &found {
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
    let header = |frame: &[u8]| {
        let int = |at: usize| i32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        (int(0), int(12))
    };
    let Some((second, mut rest)) = frame(&rest) else { return "no auth" };
    match header(&second) {
        (-4, 0) if known => {}
        (-4, 0) if response.session != 0 => return "session",
        (-4, -115) => return "refused",
        _ => return "no auth",
    }
    // A write has to fail as it must, at a server that is not overloaded.
    while let Some((next, after)) = frame(&rest) {
        rest = after;
        match header(&next) {
            (_, -112) => return "expired at a write",
            (0, -101 | -102 | -103 | -114) => return "session",
            (0, -127) => {}
            _ => break,
        }
    }
    "no write"
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
    let written = prop_oneof![
        6 => Just(code::NO_NODE), 1 => Just(code::THROTTLED), 1 => Just(code::SESSION_EXPIRED), 1 => -120i32..5
    ];
    let written = prop::collection::vec(written, 0..3).prop_map(|errors| {
        errors.into_iter().flat_map(|error| auth_reply(xid::HANDSHAKE, error)).collect::<Vec<u8>>()
    });
    let damage = (any::<prop::sample::Index>(), any::<u8>(), prop::bool::weighted(0.3));
    let cut = prop::option::weighted(0.3, any::<prop::sample::Index>());
    let answers = (handshake, reply, written);
    (answers, damage, cut).prop_map(|((handshake, reply, written), (at, byte, harm), cut)| {
        let mut bytes = [handshake, reply, written].concat();
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
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/link/saved/handshake_properties.txt",
        ))),
        ..ProptestConfig::with_cases(150)
    })]

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
            Ok((_, granted)) => due == "session" && (!known || granted.session == SESSION),
            Err(Failure::Expired) => matches!(due, "expired" | "expired at a write"),
            Err(Failure::Rejected(_)) => due == "refused",
            Err(_) => matches!(due, "nothing" | "no auth" | "no write"),
        };
        prop_assert!(matches, "{due} was taken for {found:?}");
        let shown = told.windows(SECRET.len()).any(|part| part == SECRET);
        // Bytes may get lost when the server has closed the connection, so not all have to arrive.
        prop_assert!(!shown || !matches!(due, "nothing" | "expired"));
        prop_assert!(!matches!(due, "session" | "refused" | "expired at a write") || shown);
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
            true => assert!(matches!(found, Err(Failure::Expired)), "{found:?}"),
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
        let (Ok((_, found)), _) = dialled(false, &bytes, 100) else {
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
    wanted.config.session_timeout = Duration::from_micros(4_000_500);
    let bytes = [response(4000, SESSION, false), auth_reply(xid::AUTH, 0)].concat();
    let (Ok((_, granted)), _) = dialled_for(&wanted, &bytes, 100) else { panic!("no session") };
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
fn asked(wanted: &Search) -> Duration {
    let (found, told) = dialled_for(wanted, &[], 1);
    assert!(found.is_err(), "{found:?}");
    let timeout = ConnectRequest::read(&told[4..]).unwrap().timeout;
    Duration::from_millis(timeout.unsigned_abs().into())
}

#[test]
fn a_session_is_continued_with_the_timeout_that_it_has() {
    assert_eq!(asked(&wanted(false)), Duration::from_secs(4));
    let mut known = wanted(true);
    known.config.session_timeout = Duration::from_secs(10);
    assert_eq!(asked(&known), Duration::from_secs(4));
}

#[test]
fn an_attempt_to_continue_a_session_that_has_no_answer_is_noted() {
    let granted = [response(4000, SESSION, false), auth_reply(xid::AUTH, 0)].concat();
    for (known, answers) in [(true, &[][..]), (false, &[]), (true, &granted)] {
        let wanted = wanted(known);
        let (found, _) = dialled_for(&wanted, answers, 100);
        assert!(found.is_err(), "{found:?}");
        let later = Moment::now();
        let earliest = wanted.attempts.earliest(later, Duration::from_secs(60));
        assert_eq!(earliest < later, known);
    }
}

/// A leader that is deposed, and does not know it yet, continues sessions. It confirms no write.
#[test]
fn a_session_goes_on_only_where_a_write_is_confirmed() {
    let granted = |timeout| [response(timeout, SESSION, false), auth_reply(xid::AUTH, 0)].concat();
    let write = |errors: &[i32]| {
        errors.iter().flat_map(|error| auth_reply(xid::HANDSHAKE, *error)).collect::<Vec<u8>>()
    };
    for (errors, goes_on) in [
        (&[][..], false),
        (&[code::NO_NODE], true),
        (&[code::THROTTLED], false),
        (&[code::THROTTLED, code::NO_NODE], true),
        (&[code::SESSION_MOVED], false),
    ] {
        let (found, _) = dialled(true, &[granted(4000), write(errors)].concat(), 100);
        assert_eq!(found.is_ok(), goes_on, "{errors:?}: {found:?}");
    }
    // The leader counts with less from then on, whether or not it is the leader still.
    let (tell, told) = bounded(10);
    let attempts = Attempts::new(move |news| tell.send(news).unwrap());
    let wanted = Search { attempts: Arc::new(attempts), ..wanted(true) };
    let (found, _) = dialled_for(&wanted, &granted(3000), 100);
    assert!(found.is_err(), "{found:?}");
    let news: Vec<News> = told.try_iter().collect();
    let [News::Sending(sent), News::Heard(heard, timeout)] = news[..] else { panic!("{news:?}") };
    assert_eq!((sent, timeout), (heard, Duration::from_secs(3)));
}

#[test]
fn a_server_that_demands_sasl_of_a_session_that_lives_is_said_to() {
    let granted = [response(4000, SESSION, false), auth_reply(xid::AUTH, 0)].concat();
    let demands = auth_reply(xid::HANDSHAKE, code::SASL_REQUIRED);
    let (found, _) = dialled(true, &[granted, demands].concat(), 100);
    let error = found.unwrap_err();
    assert!(
        format!("{error:?}").contains("demands that clients authenticate by SASL"),
        "{error:?}"
    );
}

#[test]
fn a_closed_connection_is_explained_whichever_error_tells_of_it() {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, UnexpectedEof};
    for (kind, is_explained) in [
        (UnexpectedEof, true),
        (ConnectionReset, true),
        (BrokenPipe, true),
        (ConnectionRefused, false),
    ] {
        let error = unanswered(&wanted(false), kind.into(), Moment::ZERO);
        assert_eq!(error.to_string().contains("(maxClientCnxns)"), is_explained, "{error}");
    }
}
