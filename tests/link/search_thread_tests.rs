//! Searches among servers that accept the client, reject it, or are not there.

use std::io::{self, Read, Write};
#[cfg(feature = "sasl")]
use std::net::Shutdown;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use super::handshake::properties::{SESSION, auth_reply, response, wanted};
use super::reconnects_in_doubt::Attempts;
use super::resolver::Resolver;
use super::*;
use crate::connect_string::Host;
use crate::link::protocol::{ConnectResponse, Frame};
#[cfg(feature = "sasl")]
use crate::link::transport::{Access, Sasl};
use crate::wire_values::{code, op, xid};

fn among(known: bool, hosts: Vec<Host>) -> Search {
    let mut what = wanted(known);
    what.config.resolver = Resolver::new(hosts);
    what
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

/// The answers to the connect request, to the credentials, and to the write that a continued session needs.
fn accepts() -> Vec<u8> {
    let answers = [auth_reply(xid::AUTH, 0), auth_reply(xid::HANDSHAKE, code::NO_NODE)];
    [response(4000, SESSION, false), answers.concat()].concat()
}

fn accepting() -> Host {
    server(accepts())
}

/// Has another session for each client.
fn replacing() -> Host {
    server(response(4000, SESSION + 1, false))
}

fn rejecting() -> Host {
    server([response(4000, SESSION, false), auth_reply(xid::AUTH, code::AUTH_FAILED)].concat())
}

#[test]
fn a_panic_while_dialling_does_not_end_the_search() {
    let (tell, told) = bounded(1);
    let panicked = std::sync::atomic::AtomicBool::new(false);
    let what = among(true, vec![accepting()]);
    let _stop = start_search(
        what,
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
            search(&Search { avoid, ..among(known, hosts) }, &stopped, &|_| ())
        };
        assert!(matches!(search(&[&good, &bad]), Some(Dialed::Server { .. })));
        assert!(matches!(search(&[&bad, &rejecting()]), Some(Dialed::AuthFailed(_))));
    }
}

/// Otherwise each attempt would leave one behind until its timeout.
#[test]
fn a_new_session_whose_credentials_are_rejected_is_closed() {
    let (_stop, stopped) = bounded(0);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = bounded(1);
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&response(4000, SESSION, false)).unwrap();
        stream.write_all(&auth_reply(xid::AUTH, code::AUTH_FAILED)).unwrap();
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        let _ = tell.send(heard);
    });
    let host = Host { name: "127.0.0.1".to_owned(), port };
    let found = search(&among(false, vec![host]), &stopped, &|_| ());
    let Some(Dialed::AuthFailed(_)) = found else { panic!("{found:?}") };
    let heard = told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(heard.ends_with(&Frame::request(1, op::CLOSE_SESSION).finish()), "{heard:?}");
}

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
    let mut what = among(known, hosts.to_vec());
    what.config.connect_timeout = Duration::from_secs(600);
    let add = |why: &str| {
        // The reasons of a whole round.
        if why.contains("rejected") || why.contains("another session") {
            what.config.resolver.set_hosts(vec![hosts[0].clone(), late.clone()]);
        }
    };
    search(&what, &stopped, &add)
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
    let mut what = among(false, vec![absent(), rejecting()]);
    what.config.connect_timeout = Duration::from_millis(300);
    let found = search(&what, &stopped, &|_| ());
    let Some(Dialed::AuthFailed(why)) = found else { panic!("{found:?}") };
    assert!(why.contains("rejected the credentials"), "{why}");
}

/// As servers do that have no leader.
fn leaderless() -> Host {
    server(
        ConnectResponse {
            version: 42,
            timeout: -1,
            session: SESSION,
            password: vec![0; 16],
            read_only: false,
        }
        .encode(),
    )
}

#[test]
fn a_server_that_serves_nobody_now_is_passed_over() {
    let (_stop, stopped) = bounded(0);
    for known in [true, false] {
        let good = accepting();
        // So that the other one is tried first.
        let avoid = good.literal();
        let what = Search { avoid, ..among(known, vec![good, leaderless()]) };
        let found = search(&what, &stopped, &|_| ());
        assert!(matches!(found, Some(Dialed::Server { .. })), "{known}: {found:?}");
    }
}

#[test]
fn a_wrong_address_among_right_ones_costs_no_session() {
    let (_stop, stopped) = bounded(0);
    let good = accepting();
    let avoid = good.literal();
    let what = Search { avoid, ..among(true, vec![good, replacing(), replacing()]) };
    for _ in 0..3 {
        let found = search(&what, &stopped, &|_| ());
        assert!(matches!(found, Some(Dialed::Server { .. })), "{found:?}");
    }
    // Also while the right ones are away.
    let found = searched(true, [replacing(), absent()], accepting());
    assert!(matches!(found, Some(Dialed::Server { .. })), "{found:?}");
}

/// The second session in a row is lost at once; the first may just be searched for in the wrong place.
#[test]
fn where_no_session_ever_goes_on_another_one_is_the_end() {
    let (_stop, stopped) = bounded(0);
    let mut what = among(true, vec![replacing(), replacing()]);
    assert!(!what.config.resolver.replaced_sessions.replaced(SESSION - 1));
    let found = search(&what, &stopped, &|_| ());
    assert!(matches!(found, Some(Dialed::Expired)), "{found:?}");
    // One that does not answer may be the right one.
    what = among(true, vec![replacing(), absent()]);
    assert!(!what.config.resolver.replaced_sessions.replaced(SESSION - 1));
    let add = |why: &str| {
        if why.contains("another session") {
            what.config.resolver.set_hosts(vec![accepting()]);
        }
    };
    let found = search(&what, &stopped, &add);
    assert!(matches!(found, Some(Dialed::Server { .. })), "{found:?}");
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
    let sasl = Some(Sasl::digest_md5("ann", "secret"));
    let access = Access { sasl, ..Access::default() };
    let mut what = among(false, vec![host]);
    (what.config.access, what.config.connect_timeout) = (access, Duration::from_millis(300));
    let found = search(&what, &stopped, &|_| ());
    let Some(Dialed::AuthFailed(why)) = found else { panic!("{found:?}") };
    assert!(why.contains("rejected the user \"ann\""), "{why}");
}

/// A server that keeps back its answer to each connection for this long; reports each connection.
fn slow(pauses: Vec<Duration>) -> (SocketAddr, Receiver<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = bounded(10);
    thread::spawn(move || {
        for (stream, pause) in listener.incoming().zip(pauses) {
            let mut stream = stream.unwrap();
            let _ = tell.send(());
            thread::sleep(pause);
            let _ = stream.write_all(&accepts());
            thread::spawn(move || io::copy(&mut stream, &mut io::sink()));
        }
    });
    (address, told)
}

fn with_long_ticks(known: bool) -> Search {
    let mut wanted = wanted(known);
    wanted.config.tick = Some(Duration::from_millis(2500));
    wanted
}

/// With a session timeout of 4 s and a tick of 2.5 s, a lease is renewed in time only if the opening takes
/// less than half a second.
#[test]
fn a_slow_opening_is_repeated_while_that_makes_it_faster_and_twice_at_most() {
    let (_stop, stopped) = bounded(0);
    let [fast, slow_one, slower] = [0, 600, 2200].map(Duration::from_millis);
    for (pauses, connections) in [
        (vec![fast, fast], 1),
        (vec![slow_one, fast, fast], 2),
        (vec![slow_one, slower, fast], 2),
        (vec![slower, slow_one, fast, fast], 3),
    ] {
        for known in [true, false] {
            let (address, told) = slow(pauses.clone());
            let wanted = with_long_ticks(known);
            let limit = Duration::from_secs(30);
            let found = try_until_fast(&wanted, address, "", limit, &stopped);
            assert!(found.is_ok(), "{found:?}");
            assert_eq!(told.len(), connections, "{pauses:?}");
        }
    }
}

/// The answer to an attempt that was just given up may be what comes, each time.
#[test]
fn an_opening_is_not_repeated_if_another_answer_would_count_from_the_same_attempt() {
    let (_stop, stopped) = bounded(0);
    let (address, told) = slow(vec![Duration::ZERO; 3]);
    let wanted = with_long_ticks(true);
    let now = Moment::now();
    let before = Moment::from_nanos(now.as_nanos() - 1_000_000_000);
    wanted.attempts.note(before, now, Duration::from_secs(60));
    let found = try_until_fast(&wanted, address, "", Duration::from_secs(30), &stopped);
    let Ok((_, granted)) = found else { panic!("{found:?}") };
    assert_eq!((granted.sent, told.len()), (before, 1));
}

/// The repetition may take long, too, and meanwhile the session goes on.
#[test]
fn a_grant_is_told_before_the_opening_is_repeated() {
    let (_stop, stopped) = bounded(0);
    let (slow_one, fast) = (Duration::from_millis(600), Duration::ZERO);
    let (address, _told) = slow(vec![slow_one, fast]);
    let (tell, told) = bounded(10);
    let attempts = Attempts::new(move |news| tell.send(news).unwrap());
    let wanted = Search { attempts: Arc::new(attempts), ..with_long_ticks(true) };
    let found = try_until_fast(&wanted, address, "", Duration::from_secs(30), &stopped);
    assert!(found.is_ok(), "{found:?}");
    let news: Vec<News> = told.try_iter().collect();
    let [News::Sending(first), News::Granted(granted), News::Sending(_)] = &news[..] else {
        panic!("{news:?}")
    };
    assert_eq!(granted.sent, *first);
}
