//! The order in which a real server's events and replies come out of the link.

use std::time::Duration;

use super::servers::Rig;
use crate::link::{Access, Frame, Link, LinkConfig, Outgoing, Resolver};
use crate::rt::{Receiver, Sender, bounded, unbounded};
use crate::wire_values::{NodeEvent, code, op};

#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Answer(i32, i32),
    Event(NodeEvent, String),
}

struct Listener {
    link: Link,
    tell: Sender<Heard>,
    heard: Receiver<Heard>,
}

impl Listener {
    fn connect(hosts: &str) -> Listener {
        let (attach, attached) = bounded(1);
        let (tell, heard) = unbounded();
        let hosts: crate::connect_string::ConnectString = hosts.parse().expect("an address");
        let config = LinkConfig {
            resolver: Resolver::new(hosts.hosts),
            access: Access::default(),
            session_timeout: Duration::from_secs(20),
            tick: None,
            connect_timeout: Duration::from_secs(20),
        };
        let on_notice = move |notice| {
            let _ = attach.try_send(notice);
        };
        let events = tell.clone();
        let on_event = move |event, path: &str| {
            let _ = events.send(Heard::Event(event, path.to_owned()));
            Vec::new()
        };
        let link = Link::open(config, Box::new(on_notice), Box::new(on_event)).expect("a link");
        attached.recv().expect("a session");
        Listener { link, tell, heard }
    }

    fn ask(&self, number: i32, operation: i32, path: &str, end: Frame) {
        let body = Frame::new().buffer(path.as_bytes()).raw(&end.body()).body();
        let tell = self.tell.clone();
        let on_answer = move |answer: crate::wire_values::RawReply| {
            let _ = tell.send(Heard::Answer(number, answer.error));
        };
        self.link.send(vec![Outgoing { operation, body, on_answer: Box::new(on_answer) }]);
    }

    fn hear(&self) -> Heard {
        self.heard.recv_timeout(Duration::from_secs(20)).expect("an answer or an event")
    }
}

#[test]
fn an_event_comes_before_the_reply_that_shows_its_change() {
    let Some(rig) = Rig::start() else { return };
    let mut stranger = rig.stranger();
    let one = Listener::connect(&rig.hosts());
    let node = "/watched";
    let flag = |watch| Frame::new().flag(watch);
    for round in 0..100 {
        stranger.create_all(node).expect("a node");
        one.ask(1, op::GET_DATA, node, flag(true));
        one.ask(2, op::GET_CHILDREN, node, flag(true));
        let answers = [Heard::Answer(1, code::OK), Heard::Answer(2, code::OK)];
        assert_eq!([one.hear(), one.hear()], answers);
        let own = round % 2 == 0;
        if own {
            one.ask(3, op::DELETE, node, Frame::new().int(-1));
        } else {
            stranger.delete(node).expect("a deletion");
        }
        one.ask(4, op::EXISTS, node, flag(false));
        let event = Heard::Event(NodeEvent::Deleted, node.to_owned());
        assert_eq!(one.hear(), event, "expected one event, although two watches fire");
        if own {
            assert_eq!(one.hear(), Heard::Answer(3, code::OK));
        }
        assert_eq!(one.hear(), Heard::Answer(4, code::NO_NODE));
    }
}
