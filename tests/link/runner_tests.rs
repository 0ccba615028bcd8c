//! A link with servers that are scripted here.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::Link;
use super::commands::{DeferredRequest, MOMENT, OnEvent, OnNotice, Outgoing};
use super::reading_turn::Readable;
use crate::connect_string::Host;
use crate::connection_notice::{End, Notice};
use crate::link::protocol::{ConnectRequest, ConnectResponse, Frame};
use crate::link::search::{LinkConfig, Resolver};
use crate::link::transport::{Access, Auth};
use crate::rt::{Deadline, Moment, Signal, unbounded};
use crate::wire_values::{RawReply, code, op, xid};

const LONG: Duration = Duration::from_secs(60);

fn listen() -> (TcpListener, Host) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, Host { name: "127.0.0.1".to_owned(), port })
}

fn link(host: Host, auth: Vec<Auth>, (on_notice, on_event): (OnNotice, OnEvent)) -> Link {
    let config = LinkConfig {
        resolver: Resolver::new(vec![host]),
        access: Access { auth, ..Access::default() },
        session_timeout: LONG,
        tick: None,
        connect_timeout: LONG,
    };
    Link::open(config, on_notice, on_event).unwrap()
}

fn read_frame(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

/// Grants the session of which it is asked, or a new one.
fn grant(stream: &TcpStream) -> std::io::Result<()> {
    grant_with(stream, LONG, vec![3; 16])
}

fn grant_with(mut stream: &TcpStream, timeout: Duration, password: Vec<u8>) -> std::io::Result<()> {
    let is_continued = ConnectRequest::read(&read_frame(stream)?).unwrap().session != 0;
    let timeout = i32::try_from(timeout.as_millis()).unwrap();
    let response =
        ConnectResponse { version: 0, timeout, session: 0x77, password, read_only: false };
    stream.write_all(&response.encode())?;
    if is_continued {
        let write = read_frame(stream)?;
        stream.write_all(&Frame::reply(number_of(&write), 5, code::NO_NODE).finish())?;
    }
    Ok(())
}

fn number_of(request: &[u8]) -> i32 {
    i32::from_be_bytes(request[..4].try_into().unwrap())
}

/// A link that has its session, and the server's end of its connection.
fn attached(on_event: OnEvent) -> (Link, TcpStream) {
    let (listener, host) = listen();
    let (attached, is_attached) = mpsc::channel();
    let on_notice = move |notice| {
        if notice == Notice::Attached {
            let _ = attached.send(());
        }
    };
    let link = link(host, Vec::new(), (Box::new(on_notice), on_event));
    let (stream, _) = listener.accept().unwrap();
    // Or the operating system would keep replies back.
    stream.set_nodelay(true).unwrap();
    grant(&stream).unwrap();
    is_attached.recv_timeout(LONG).unwrap();
    (link, stream)
}

/// A request for a node's data, and a receiver of the code that answers it.
fn asked() -> (Outgoing, mpsc::Receiver<i32>) {
    let (tell, told) = mpsc::channel();
    let on_answer = Box::new(move |answer: RawReply| {
        let _ = tell.send(answer.error);
    });
    let body = Frame::new().buffer(b"/a").flag(false).body();
    (Outgoing { operation: op::EXISTS, body, on_answer }, told)
}

/// What an event returns is called once the events and answers are told that came with it.
#[test]
fn what_comes_together_is_told_before_anybody_acts_on_it() {
    let (tell, told) = mpsc::channel();
    let on_event = move |_, path: &str| {
        let (after, path) = (tell.clone(), path.to_owned());
        tell.send(path.clone()).unwrap();
        vec![Arc::new(move || after.send(format!("after {path}")).unwrap()) as Signal]
    };
    let (link, mut stream) = attached(Box::new(on_event));
    let event =
        |path: &[u8]| Frame::reply(xid::WATCH, -1, code::OK).int(2).int(3).buffer(path).finish();
    stream.write_all(&[event(b"/a"), event(b"/b")].concat()).unwrap();
    let all = [(); 4].map(|()| told.recv_timeout(LONG).unwrap());
    assert_eq!(all, ["/a", "/b", "after /a", "after /b"]);
    drop(link);
}

/// A caller's failed write may be noticed before what came before it is read.
#[test]
fn an_answer_counts_though_the_server_has_closed_the_connection_after_it() {
    let (stop, stopped) = unbounded::<()>();
    let (busy, is_busy) = mpsc::channel();
    // Until then, the link's thread reads nothing more.
    let on_event = move |_, _: &str| {
        busy.send(()).unwrap();
        let _ = stopped.recv();
        Vec::new()
    };
    let (link, mut stream) = attached(Box::new(on_event));
    let [(first, answered), (second, unanswered)] = [asked(), asked()];
    link.send(vec![first, second]);
    let request = read_frame(&stream).unwrap();
    let event = Frame::reply(xid::WATCH, -1, code::OK).int(3).int(3).buffer(b"/a").finish();
    stream.write_all(&event).unwrap();
    is_busy.recv_timeout(LONG).unwrap();
    let reply = Frame::reply(number_of(&request), 5, code::NO_NODE).finish();
    stream.write_all(&reply).unwrap();
    // The second request is not read, so this resets the connection.
    drop(stream);
    while link.shared.connection.lock().broken.is_none() {
        link.send(vec![asked().0]);
        thread::yield_now();
    }
    drop(stop);
    assert_eq!(answered.recv_timeout(LONG), Ok(code::NO_NODE));
    assert_eq!(unanswered.recv_timeout(LONG), Ok(code::CONNECTION_LOSS));
}

#[test]
fn deferred_requests_are_sent_in_their_order_but_for_those_that_nobody_wants() {
    let (link, mut stream) = attached(Box::new(|_, _| Vec::new()));
    // Until the link's thread has looked at the first one before that was due, and so has had to put it back.
    while defer_three(&link, &mut stream) < 2 {}
}

/// Reads a request; heartbeats, which come if the test takes long on a busy machine, are answered.
fn read_request(stream: &mut TcpStream) -> Vec<u8> {
    loop {
        let request = read_frame(stream).unwrap();
        if request[4..8] != op::SYNC.to_be_bytes() {
            return request;
        }
        let answer = Frame::reply(number_of(&request), 5, code::OK).buffer(b"/").finish();
        stream.write_all(&answer).unwrap();
    }
}

/// Returns how often the link's thread looked at the first one.
fn defer_three(link: &Link, stream: &mut TcpStream) -> usize {
    let [(first, of_first), (second, of_second), (unwanted, of_unwanted)] =
        [(); 3].map(|()| asked());
    let (open, gate) = mpsc::channel::<()>();
    let (look, looks) = mpsc::channel();
    let look_at_second = look.clone();
    // Until the others are queued behind it, the link's thread does not learn whether it is wanted.
    let after_the_others = move || {
        let _ = look.send("first");
        let _ = gate.recv();
        true
    };
    let is_second_wanted = move || look_at_second.send("second").is_ok();
    link.later(DeferredRequest { verb: first, is_wanted: Box::new(after_the_others) });
    link.shared.wake();
    link.later(DeferredRequest { verb: unwanted, is_wanted: Box::new(|| false) });
    link.later(DeferredRequest { verb: second, is_wanted: Box::new(is_second_wanted) });
    drop(open);
    for error in [code::NO_NODE, code::NO_AUTH] {
        let request = read_request(stream);
        let reply = Frame::reply(number_of(&request), 5, error).finish();
        stream.write_all(&reply).unwrap();
    }
    assert_eq!(of_first.recv_timeout(LONG), Ok(code::NO_NODE));
    assert_eq!(of_second.recv_timeout(LONG), Ok(code::NO_AUTH));
    let nobody = of_unwanted.recv_timeout(LONG);
    assert_eq!(nobody, Err(mpsc::RecvTimeoutError::Disconnected), "it was sent, or is kept");
    // Two that change places and then change back are sent in their order.
    let looks: Vec<_> = looks.try_iter().collect();
    let of_first = looks.iter().take_while(|what| **what == "first").count();
    assert!(!looks[of_first..].contains(&"first"), "the second one came before: {looks:?}");
    of_first
}

#[test]
fn a_deferred_request_is_sent_behind_those_that_were_queued_before_it() {
    let (link, mut stream) = attached(Box::new(|_, _| Vec::new()));
    let [(first, of_first), (queued, of_queued), (second, of_second)] = [(); 3].map(|()| asked());
    let (begin, begun) = mpsc::channel();
    let (open, gate) = mpsc::channel::<()>();
    let soon = Moment::now().plus(MOMENT);
    // When it is due, the link's thread has the connection, so other threads' requests are queued.
    let in_between = move || {
        if Moment::now() >= soon {
            let _ = begin.send(());
            let _ = gate.recv();
        }
        true
    };
    link.later(DeferredRequest { verb: first, is_wanted: Box::new(in_between) });
    begun.recv_timeout(LONG).unwrap();
    link.send(vec![queued]);
    link.later(DeferredRequest { verb: second, is_wanted: Box::new(|| true) });
    let due = Moment::now().plus(MOMENT);
    while Moment::now() < due {
        thread::yield_now();
    }
    drop(open);
    let all = [code::NO_NODE, code::NO_AUTH, code::BAD_VERSION];
    for error in all {
        let request = read_frame(&stream).unwrap();
        let reply = Frame::reply(number_of(&request), 5, error).finish();
        stream.write_all(&reply).unwrap();
    }
    let place = |told: mpsc::Receiver<i32>| {
        let told = told.recv_timeout(LONG).unwrap();
        all.iter().position(|error| *error == told)
    };
    assert!(place(of_queued) < place(of_second));
    place(of_first);
}

/// A session whose credentials are no longer accepted is closed without them, and not asked for again
/// and again if that fails.
#[test]
fn a_session_that_no_server_lets_in_is_not_asked_for_without_a_pause() {
    let (listener, host) = listen();
    let (tell, notices) = mpsc::channel();
    let on_notice = move |notice| {
        let _ = tell.send(notice);
    };
    let secret = Auth { scheme: "digest".to_owned(), credentials: b"user:secret".to_vec() };
    let link = link(host, vec![secret], (Box::new(on_notice), Box::new(|_, _| Vec::new())));
    let (stream, _) = listener.accept().unwrap();
    let auth_reply = |error| Frame::reply(xid::AUTH, 0, error).finish();
    grant(&stream).unwrap();
    read_frame(&stream).unwrap();
    (&stream).write_all(&auth_reply(code::OK)).unwrap();
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Attached));
    link.close(End::Closed, LONG);
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Ended(End::Closed)));
    // From now on, it accepts no credentials, and answers nothing without them.
    let dialled = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&dialled);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = grant(&stream).and_then(|()| {
                if number_of(&read_frame(&stream)?) != xid::AUTH {
                    return read_frame(&stream).map(drop);
                }
                (&stream).write_all(&auth_reply(code::AUTH_FAILED))?;
                read_frame(&stream).map(drop)
            });
        }
    });
    drop(stream);
    let _ = notices.recv_timeout(Duration::from_secs(2));
    let dialled = dialled.load(Ordering::SeqCst);
    assert!(dialled < 30, "{dialled} connections");
}

/// The link is closed in the moment in which a search has found a server.
#[test]
fn a_new_session_that_comes_after_the_end_is_closed() {
    let (listener, host) = listen();
    let link = link(host, Vec::new(), (Box::new(|_| ()), Box::new(|_, _| Vec::new())));
    let (stream, _) = listener.accept().unwrap();
    let connection = link.shared.connection.lock();
    link.close(End::Closed, LONG);
    grant(&stream).unwrap();
    while link.shared.commands.len() < 2 {
        thread::yield_now();
    }
    drop(connection);
    let request = read_frame(&stream).unwrap();
    assert_eq!(request[4..8], op::CLOSE_SESSION.to_be_bytes());
}

/// A link that has a session with these values, its notices, the server's end of its connection, and
/// the server.
fn opened(
    timeout: Duration,
    password: Vec<u8>,
) -> (Link, mpsc::Receiver<Notice>, TcpStream, TcpListener) {
    let (listener, host) = listen();
    let (tell, notices) = mpsc::channel();
    let on_notice = move |notice| {
        let _ = tell.send(notice);
    };
    let link = link(host, Vec::new(), (Box::new(on_notice), Box::new(|_, _| Vec::new())));
    let (stream, _) = listener.accept().unwrap();
    grant_with(&stream, timeout, password).unwrap();
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Attached));
    (link, notices, stream, listener)
}

/// Its server never serves it again, and never says what has become of it.
#[test]
fn a_session_whose_lease_is_over_is_not_searched_for_for_ever() {
    let (_link, notices, stream, listener) = opened(Duration::from_secs(2), vec![3; 16]);
    drop((stream, listener));
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Suspended));
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Ended(End::Lapsed)));
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Over));
}

#[test]
fn a_server_at_which_sessions_end_with_their_connections_closes_one_without_a_reply() {
    let (link, notices, stream, _listener) = opened(LONG, vec![0; 16]);
    link.close(End::Closed, LONG);
    assert_eq!(read_frame(&stream).unwrap()[4..8], op::CLOSE_SESSION.to_be_bytes());
    drop(stream);
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Ended(End::Closed)));
    // Sooner than any further attempt could be given up.
    assert_eq!(notices.recv_timeout(LONG / 2), Ok(Notice::Over));
}

/// That proves nothing at ZooKeeper: a server may have been killed before it read the request.
#[test]
fn a_connection_of_zookeeper_that_ends_behind_close_does_not_say_that_the_session_is_closed() {
    let (link, notices, stream, listener) = opened(LONG, vec![3; 16]);
    link.close(End::Closed, LONG);
    read_frame(&stream).unwrap();
    drop(stream);
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Ended(End::Closed)));
    let (again, _) = listener.accept().unwrap();
    grant(&again).unwrap();
    let request = read_frame(&again).unwrap();
    assert_eq!(request[4..8], op::CLOSE_SESSION.to_be_bytes());
    assert!(notices.try_recv().is_err(), "not confirmed yet");
    (&again).write_all(&Frame::reply(number_of(&request), 5, code::OK).finish()).unwrap();
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Over));
}

#[test]
fn a_connection_is_made_anew_only_if_no_request_waits_for_its_answer() {
    let (link, notices, stream, listener) = opened(LONG, vec![3; 16]);
    let (request, answered) = asked();
    link.send(vec![request]);
    let sent = read_frame(&stream).unwrap();
    link.reconnect();
    link.flushed_by(Deadline::NEVER);
    assert!(notices.try_recv().is_err(), "the request is lost");
    (&stream).write_all(&Frame::reply(number_of(&sent), 5, code::NO_NODE).finish()).unwrap();
    assert_eq!(answered.recv_timeout(LONG), Ok(code::NO_NODE));
    link.reconnect();
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Suspended));
    grant(&listener.accept().unwrap().0).unwrap();
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Attached));
}

/// As a logger does that looks at a lock while the link's thread logs, with its connection locked.
#[test]
fn who_asks_why_the_lease_has_run_out_waits_for_no_other_thread() {
    let (link, _notices, stream, listener) = opened(Duration::from_secs(2), vec![3; 16]);
    drop((stream, listener));
    let link = Arc::new(link);
    let connection = link.shared.connection.lock();
    let asks = Arc::clone(&link);
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        while asks.lease().is_ok() {
            thread::yield_now();
        }
        let _ = tell.send(asks.why_lapsed());
    });
    assert!(told.recv_timeout(LONG).is_ok(), "waits for ever");
    drop(connection);
}

/// Several threads read and tell; each event and answer says its place.
#[test]
fn what_the_server_sends_is_told_in_its_order_whoever_reads() {
    const COUNT: i32 = 3_000;
    let (told, all_told) = mpsc::channel();
    let of_event = told.clone();
    let on_event = move |_, path: &str| {
        let _ = of_event.send(path[1..].parse().unwrap());
        Vec::new()
    };
    let (link, mut stream) = attached(Box::new(on_event));
    let server = thread::spawn(move || {
        for place in 0..COUNT {
            let request = number_of(&read_request(&mut stream));
            let path = format!("/{}", 2 * place);
            let event = Frame::reply(xid::WATCH, -1, code::OK).int(3).int(3);
            let event = event.buffer(path.as_bytes()).finish();
            // The zxid says the answer's place.
            let zxid = (2 * place + 1).into();
            let answer = Frame::reply(request, zxid, code::NO_NODE).finish();
            stream.write_all(&[event, answer].concat()).unwrap();
        }
        stream
    });
    thread::scope(|scope| {
        for _ in 0..3 {
            let (link, told) = (&link, told.clone());
            scope.spawn(move || {
                for _ in 0..COUNT / 3 {
                    let (tell, is_answered) = (told.clone(), Arc::new(AtomicBool::new(false)));
                    let answered = Arc::clone(&is_answered);
                    let mut verb = asked().0;
                    verb.on_answer = Box::new(move |answer: RawReply| {
                        let _ = tell.send(answer.zxid);
                        answered.store(true, Ordering::SeqCst);
                    });
                    link.send(vec![verb]);
                    while !is_answered.load(Ordering::SeqCst) {
                        link.shared.read_and_tell();
                    }
                }
            });
        }
    });
    drop((link, server.join().unwrap(), told));
    let places: Vec<i64> = all_told.iter().collect();
    assert!(places.into_iter().eq(0..2 * i64::from(COUNT)));
}

/// Has this thread read, with this request unanswered, when `act` is called with the request.
fn while_reading(
    link: &Link,
    mut stream: &TcpStream,
    act: impl Fn(Vec<u8>),
) -> mpsc::Receiver<i32> {
    let answer = |request: &[u8]| Frame::reply(number_of(request), 5, code::NO_NODE).finish();
    loop {
        // After an answer, the link's thread leaves the reading to others for a moment.
        let (earlier, answered) = asked();
        link.send(vec![earlier]);
        let request = read_frame(stream).unwrap();
        stream.write_all(&answer(&request)).unwrap();
        answered.recv_timeout(LONG).unwrap();
        let (verb, answered) = asked();
        link.send(vec![verb]);
        let request = Cell::new(Some(read_frame(stream).unwrap()));
        let once = || {
            request.take().into_iter().for_each(&act);
            false
        };
        link.read_until(Deadline::NEVER, once);
        match request.take() {
            None => return answered,
            Some(request) => stream.write_all(&answer(&request)).unwrap(),
        }
    }
}

#[test]
fn what_a_caller_reads_of_the_sessions_end_is_told_by_the_links_thread() {
    let (link, notices, stream, _listener) = opened(LONG, vec![3; 16]);
    let answered = while_reading(&link, &stream, |request| {
        let answer = Frame::reply(number_of(&request), 5, code::NO_NODE).finish();
        let expired = Frame::reply(xid::WATCH, 0, code::SESSION_EXPIRED).finish();
        (&stream).write_all(&[answer, expired].concat()).unwrap();
    });
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Ended(End::Expired)));
    assert_eq!(answered.recv_timeout(LONG), Ok(code::NO_NODE));
}

#[test]
fn a_connection_that_is_lost_while_a_caller_reads_is_lost_for_all() {
    let (link, notices, stream, _listener) = opened(LONG, vec![3; 16]);
    let answered = while_reading(&link, &stream, |_| stream.shutdown(Shutdown::Both).unwrap());
    assert_eq!(notices.recv_timeout(LONG), Ok(Notice::Suspended));
    assert_eq!(answered.recv_timeout(LONG), Ok(code::CONNECTION_LOSS));
}
