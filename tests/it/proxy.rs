//! Properties of the faulty network that other tests rely on.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use crate::support::proxy::{Proxy, opcode};
use crate::support::server::claim;

const LONG: Duration = Duration::from_secs(10);

/// A frame of these numbers.
fn frame(numbers: &[i32]) -> Vec<u8> {
    let length = 4 * numbers.len() as i32;
    [length].iter().chain(numbers).flat_map(|number| number.to_be_bytes()).collect()
}

fn read_frame(from: &mut TcpStream) -> Vec<i32> {
    let mut number = || {
        let mut bytes = [0; 4];
        from.read_exact(&mut bytes).map(|()| i32::from_be_bytes(bytes)).unwrap()
    };
    let length = number();
    (0..length / 4).map(|_| number()).collect()
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

#[test]
fn the_port_of_a_proxy_that_refuses_is_given_to_nobody_else() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap());
    proxy.refuse();
    assert!(TcpListener::bind(proxy.addr()).is_ok(), "the proxy still listens");
    assert!(!claim(proxy.addr().port()), "another test's server could take the port");
}
