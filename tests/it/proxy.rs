//! Properties of the faulty network that other tests rely on.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::support::proxy::{Proxy, opcode};
use crate::support::server::claim;
use crate::support::stopwatch::Stopwatch;

const LONG: Duration = Duration::from_secs(10);

/// A frame of these numbers.
fn frame(numbers: &[i32]) -> Vec<u8> {
    let length = 4 * numbers.len() as i32;
    [length].iter().chain(numbers).flat_map(|number| number.to_be_bytes()).collect()
}

/// The numbers of a frame, without a rest that is shorter than one.
fn read_frame(from: &mut TcpStream) -> Vec<i32> {
    let mut length = [0; 4];
    from.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; i32::from_be_bytes(length) as usize];
    from.read_exact(&mut bytes).unwrap();
    let numbers = bytes.as_chunks().0;
    numbers.iter().map(|number| i32::from_be_bytes(*number)).collect()
}

#[test]
fn a_reply_that_comes_after_the_release_is_not_withheld() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap());
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client.write_all(&frame(&[0])).unwrap(); // a handshake
    let (mut server, _) = listener.accept().unwrap();
    assert_eq!(read_frame(&mut server), [0]);
    server.write_all(&frame(&[0])).unwrap();
    assert_eq!(read_frame(&mut client), [0]);

    proxy.stall_reply(opcode::SYNC);
    for xid in [1, 2] {
        client.write_all(&frame(&[xid, opcode::SYNC])).unwrap();
        assert_eq!(read_frame(&mut server), [xid, opcode::SYNC]);
    }
    proxy.release();
    for xid in [1, 2] {
        server.write_all(&frame(&[xid, 0])).unwrap();
        assert_eq!(read_frame(&mut client), [xid, 0]);
    }

    // A stall that is armed after a release withholds replies again.
    proxy.stall_reply(opcode::SYNC);
    client.write_all(&frame(&[3, opcode::SYNC])).unwrap();
    assert_eq!(read_frame(&mut server), [3, opcode::SYNC]);
    server.write_all(&frame(&[3, 0])).unwrap();
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(client.read(&mut [0]).is_err(), "it was not withheld");
    client.set_read_timeout(Some(LONG)).unwrap();
    proxy.pass();
    assert_eq!(read_frame(&mut client), [3, 0]);
}

/// A client behind the proxy whose request to connect has reached the server.
fn opening(proxy: &Proxy, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client.write_all(&frame(&[0])).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(read_frame(&mut server), [0]);
    (client, server)
}

#[test]
fn an_opening_is_slow_once() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap());
    let slow = Duration::from_secs(1);
    proxy.slow_opening(slow);
    let (mut client, mut server) = opening(&proxy, &listener);
    let asked = Instant::now();
    server.write_all(&frame(&[0])).unwrap();
    assert_eq!(read_frame(&mut client), [0]);
    assert!(asked.elapsed() >= slow);

    let (mut next, mut server) = opening(&proxy, &listener);
    let asked = Stopwatch::start();
    server.write_all(&frame(&[0])).unwrap();
    assert_eq!(read_frame(&mut next), [0]);
    let took = asked.took();
    assert!(took.within(slow / 2), "the next one took {took:?}");

    // The end of all faults delivers an answer that is held back.
    proxy.slow_opening(LONG * 60);
    let (mut third, mut server) = opening(&proxy, &listener);
    server.write_all(&frame(&[0])).unwrap();
    third.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(third.read(&mut [0]).is_err(), "it was not held back");
    third.set_read_timeout(Some(LONG)).unwrap();
    proxy.pass();
    assert_eq!(read_frame(&mut third), [0]);
}

#[test]
fn a_share_of_the_requests_is_throttled_and_all_are_answered_in_order() {
    const ROUNDS: i32 = 200;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap());
    let (mut client, mut server) = opening(&proxy, &listener);
    server.write_all(&frame(&[0])).unwrap();
    assert_eq!(read_frame(&mut client), [0]);
    proxy.throttle_share(opcode::SYNC, 75);
    let mut throttled = 0;
    for xid in 1..=ROUNDS {
        client.write_all(&frame(&[xid, opcode::SYNC])).unwrap();
        let passed = read_frame(&mut server);
        assert_eq!(passed[0], xid);
        // Of another request, the server's answer does not matter.
        server.write_all(&frame(&[xid, 0, 0, 0])).unwrap();
        let answer = read_frame(&mut client);
        let is_throttled = passed[1] != opcode::SYNC;
        assert_eq!(answer, [xid, 0, 0, if is_throttled { -127 } else { 0 }]);
        throttled += i32::from(is_throttled);
    }
    assert!((ROUNDS * 65 / 100..=ROUNDS * 85 / 100).contains(&throttled), "{throttled}");
    assert_eq!(proxy.throttled(), throttled as u64);
    proxy.pass();
    client.write_all(&frame(&[0, opcode::SYNC])).unwrap();
    assert_eq!(read_frame(&mut server), [0, opcode::SYNC]);
}

#[test]
fn the_port_of_a_proxy_that_refuses_is_given_to_nobody_else() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap());
    proxy.refuse();
    assert!(TcpListener::bind(proxy.addr()).is_ok(), "the proxy still listens");
    assert!(!claim(proxy.addr().port()), "another test's server could take the port");
}

#[test]
fn what_a_raw_proxy_holds_arrives_together() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::raw(listener.local_addr().unwrap(), Duration::ZERO);
    proxy.hold();
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    client.set_nodelay(true).unwrap();
    [b"a", b"b", b"c"].into_iter().for_each(|piece| client.write_all(piece).unwrap());
    proxy.release();
    let (mut server, _) = listener.accept().unwrap();
    let mut bytes = [0; 8];
    let length = server.read(&mut bytes).unwrap();
    assert_eq!(&bytes[..length], b"abc");
}
