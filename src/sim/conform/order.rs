//! In what order a real server's events and replies come out of the link, which nobody
//! behind it can see: events are passed on by a thread of their own there.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use super::grounds::Rig;
use crate::link::dial::Resolver;
use crate::link::frame::{Fields, Frame, ReplyHeader, code, op, xid};
use crate::link::{Link, LinkConfig};
use crate::rt::bounded;

/// Takes the place of the handle.
struct Impostor {
    stream: TcpStream,
    _link: Link,
}

impl Impostor {
    fn connect(hosts: &str) -> Impostor {
        let (tell, attached) = bounded(1);
        let hosts: crate::hosts::ConnectString = hosts.parse().expect("an address");
        let config = LinkConfig {
            resolver: Resolver::new(hosts.hosts),
            auth: Vec::new(),
            session_timeout: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(20),
            max_reply: 1 << 20,
        };
        let on_notice = move |notice| {
            let _ = tell.try_send(notice);
        };
        let link = Link::open(config, Box::new(on_notice)).expect("a link");
        attached.recv().expect("a session");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("its number");
        let stream = TcpStream::connect(address).expect("a connection");
        let (far, _) = listener.accept().expect("its other end");
        far.set_nonblocking(true).expect("a setting");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a setting");
        link.serve(far);
        Impostor { stream, _link: link }
    }

    fn ask(&mut self, xid: i32, operation: i32, path: &str, end: Frame) {
        let frame = Frame::request(xid, operation).buffer(path.as_bytes()).raw(&end.body());
        self.stream.write_all(&frame.finish()).expect("a request");
    }

    /// What comes next: a reply by its number and error, or an event.
    fn hear(&mut self) -> (i32, i32) {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).expect("a length");
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut frame).expect("a frame");
        let header = ReplyHeader::read(&mut Fields(&frame)).expect("a header");
        (header.xid, header.error)
    }
}

#[test]
fn an_event_comes_before_the_reply_that_shows_its_change() {
    const EVENT: (i32, i32) = (xid::WATCH, code::OK);
    let Some(rig) = Rig::start() else { return };
    let mut stranger = rig.stranger();
    let mut one = Impostor::connect(&rig.hosts());
    let node = "/watched";
    let flag = |watch| Frame::new().flag(watch);
    for round in 0..100 {
        stranger.create_all(node).expect("a node");
        one.ask(1, op::GET_DATA, node, flag(true));
        one.ask(2, op::GET_CHILDREN, node, flag(true));
        assert_eq!([one.hear(), one.hear()], [(1, code::OK), (2, code::OK)]);
        let own = round % 2 == 0;
        if own {
            one.ask(3, op::DELETE, node, Frame::new().int(-1));
        } else {
            stranger.delete(node).expect("a deletion");
        }
        one.ask(4, op::EXISTS, node, flag(false));
        assert_eq!(one.hear(), EVENT, "once, though both its watches fire");
        if own {
            assert_eq!(one.hear(), (3, code::OK));
        }
        assert_eq!(one.hear(), (4, code::NO_NODE));
    }
}
