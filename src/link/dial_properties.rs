//! What comes of connecting to something that answers with arbitrary bytes.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::sync::atomic::Ordering;
use std::thread;

use proptest::prelude::*;

use super::*;

const SESSION: i64 = 0x77;
const SECRET: &[u8] = b"user:secret";

fn wanted(known: bool) -> Wanted {
    let timeout = Duration::from_secs(4);
    let password = vec![7; 16];
    let sent = Moment::ZERO;
    let granted = Granted { session: SESSION, password, timeout, by_server: timeout, sent };
    Wanted {
        resolver: Resolver::new(Vec::new()),
        access: Access {
            auth: vec![Auth { scheme: "digest".to_owned(), credentials: SECRET.to_vec() }],
            ..Access::default()
        },
        timeout,
        session: known.then_some(granted),
        last_zxid: 0,
        avoid: None,
        round_trip: Duration::ZERO,
        patience: timeout,
        futile: 0,
    }
}

/// Connects to a server that sends only `bytes`, in pieces, and then closes the connection;
/// returns what came of it and all that the server received.
fn dialled(known: bool, bytes: &[u8], piece: usize) -> (Result<Dialed, Failure>, Vec<u8>) {
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
        let found = try_address(&wanted(known), address, "", Duration::from_secs(10), &stopped);
        // The server reads until the connection is shut down.
        if let Ok(Dialed::Server { stream, .. }) = &found {
            stream.tcp().shutdown(Shutdown::Both).unwrap();
        }
        (found, server.join().unwrap())
    })
}

fn response(timeout: i32, session: i64, read_only: bool) -> Vec<u8> {
    ConnectResponse { timeout, session, password: vec![3; 16], read_only }.encode()
}

fn auth_reply(number: i32, error: i32) -> Vec<u8> {
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
    let handshake = (timeout, session, prop::bool::weighted(0.1))
        .prop_map(|(timeout, session, read_only)| response(timeout, session, read_only));
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

/// A server that sends the same bytes on every connection.
fn server(bytes: Vec<u8>) -> Host {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(&bytes);
            thread::spawn(move || io::copy(&mut stream, &mut io::sink()));
        }
    });
    Host { name: "127.0.0.1".to_owned(), port }
}

fn accepting() -> Host {
    server([response(4000, SESSION, false), auth_reply(xid::AUTH, 0)].concat())
}

fn rejecting() -> Host {
    server([response(4000, SESSION, false), auth_reply(xid::AUTH, code::AUTH_FAILED)].concat())
}

#[test]
fn a_panic_while_dialling_does_not_end_the_search() {
    let (tell, told) = bounded(1);
    let panicked = std::sync::atomic::AtomicBool::new(false);
    let wanted = Wanted { resolver: Resolver::new(vec![accepting()]), ..wanted(true) };
    let _dial = Dial::start(
        wanted,
        move |found| tell.send(found).unwrap(),
        move |_| assert!(panicked.swap(true, Ordering::Relaxed), "the search must survive this"),
    );
    let found = told.recv_timeout(Duration::from_secs(30));
    assert!(matches!(found, Ok(Dialed::Server { .. })), "{found:?}");
}

#[test]
fn one_server_that_rejects_the_credentials_does_not_speak_for_the_others() {
    let (_stop, stopped) = bounded(0);
    let (good, bad) = (accepting(), rejecting());
    for known in [true, false] {
        let search = |hosts: &[&Host]| {
            let hosts = hosts.iter().map(|host| (*host).clone()).collect();
            // So that the others are tried first.
            let avoid = good.literal();
            let resolver = Resolver::new(hosts);
            search(&Wanted { resolver, avoid, ..wanted(known) }, &stopped, &|_| ())
        };
        assert!(matches!(search(&[&good, &bad]), Some(Dialed::Server { .. })));
        assert!(matches!(search(&[&bad, &rejecting()]), Some(Dialed::AuthFailed(_))));
    }
}

/// A port at which nothing listens.
fn absent() -> Host {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    Host { name: "127.0.0.1".to_owned(), port }
}

/// A name that no name server is asked for.
fn unknown() -> Host {
    Host { name: "no..name".to_owned(), port: 1 }
}

/// What becomes of a search if this server is there from its second round on, too.
fn searched(known: bool, hosts: [Host; 2], late: Host) -> Option<Dialed> {
    let (_stop, stopped) = bounded(0);
    let resolver = Resolver::new(hosts.to_vec());
    let add = |why: &str| {
        // The reasons of a whole round.
        if why.contains("rejected") {
            resolver.set_hosts(vec![hosts[0].clone(), late.clone()]);
        }
    };
    let patience = Duration::from_secs(600);
    let wanted = Wanted { resolver: Arc::clone(&resolver), patience, ..wanted(known) };
    search(&wanted, &stopped, &add)
}

#[test]
fn servers_that_do_not_answer_yet_may_accept_what_another_rejects() {
    for known in [true, false] {
        for other in [absent(), unknown()] {
            let found = searched(known, [rejecting(), other], accepting());
            assert!(matches!(found, Some(Dialed::Server { .. })), "{known}: {found:?}");
        }
    }
}

#[test]
fn a_new_session_is_not_asked_for_for_ever_where_one_server_rejects_the_client() {
    let (_stop, stopped) = bounded(0);
    let resolver = Resolver::new(vec![absent(), rejecting()]);
    let patience = Duration::from_millis(300);
    let found = search(&Wanted { resolver, patience, ..wanted(false) }, &stopped, &|_| ());
    let Some(Dialed::AuthFailed(why)) = found else { panic!("{found:?}") };
    assert!(why.contains("rejected the credentials"), "{why}");
}

/// As servers before 3.5 do.
#[cfg(feature = "sasl")]
#[test]
fn a_server_that_closes_the_connection_instead_of_an_answer_to_sasl_rejects_the_client() {
    let (_stop, stopped) = bounded(0);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.write_all(&response(4000, SESSION, false)).unwrap();
            let _ = stream.shutdown(Shutdown::Write);
            thread::spawn(move || io::copy(&mut stream, &mut io::sink()));
        }
    });
    let host = Host { name: "127.0.0.1".to_owned(), port };
    let access = Access { sasl: Some(Sasl::digest_md5("ann", "secret")), ..Access::default() };
    let resolver = Resolver::new(vec![host]);
    let patience = Duration::from_millis(300);
    let found = search(&Wanted { resolver, access, patience, ..wanted(false) }, &stopped, &|_| ());
    let Some(Dialed::AuthFailed(why)) = found else { panic!("{found:?}") };
    assert!(why.contains("rejected the user \"ann\""), "{why}");
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

#[test]
fn a_late_answer_about_a_former_host_is_not_kept() {
    let host = unknown();
    let resolver = Resolver::new(vec![host.clone()]);
    resolver.known.lock().entry(host.clone()).or_default().asking = true;
    resolver.set_hosts(vec![absent()]);
    resolver.learn(&host, Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 1))]));
    assert!(resolver.known.lock().is_empty());
}
