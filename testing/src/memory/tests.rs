//! Bytes in, bytes out, as ZooKeeper 3.8.0 answers them.

use std::time::Duration;

use super::Settings;
use super::engine::{ConnectionId, Engine};
use super::wire::{Reader, Write, op};
use crate::core::{ALL, Acl, Rules};

const NOW: Duration = Duration::ZERO;
const CREATED: i32 = 1;
const DELETED: i32 = 2;
const DATA_CHANGED: i32 = 3;
const CHILDREN_CHANGED: i32 = 4;

/// A server with clients.
struct Rig {
    engine: Engine,
    connections: ConnectionId,
    xid: i32,
}

/// A step of a transaction: its number, and what writes it.
type Part<'a> = (i32, &'a dyn Fn(&mut Vec<u8>));

/// What a client was answered.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    xid: i32,
    zxid: i64,
    error: i32,
    body: Vec<u8>,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(Rules::default())
    }

    fn with(rules: Rules) -> Rig {
        let settings = Settings { rules, ..Settings::default() };
        Rig { engine: Engine::new(settings, 1_700_000_000_000), connections: 0, xid: 0 }
    }

    fn join(&mut self) -> ConnectionId {
        self.resume(0, &[0; 16]).0
    }

    /// Connects, asks for a session, and returns the connection with what is answered: the session and its
    /// password.
    fn resume(&mut self, session: i64, password: &[u8]) -> (ConnectionId, i64, Vec<u8>) {
        self.connections += 1;
        let id = self.connections;
        self.engine.connect(id);
        self.send(id, |out| {
            out.int(0);
            out.long(0);
            out.int(10_000);
            out.long(session);
            out.bytes(password);
        });
        let out = std::mem::take(self.engine.output(id).0);
        let mut reader = Reader(&out[4 + 4 + 4..]);
        let session = reader.long().unwrap();
        (id, session, reader.bytes().unwrap().unwrap().to_vec())
    }

    fn send(&mut self, id: ConnectionId, body: impl FnOnce(&mut Vec<u8>)) {
        let mut frame = Vec::new();
        frame.frame(body);
        self.engine.input(id, &frame, NOW);
    }

    fn is_closed(&mut self, id: ConnectionId) -> bool {
        self.engine.output(id).1
    }

    /// All frames that have come.
    fn frames(&mut self, id: ConnectionId) -> Vec<Answer> {
        let out = std::mem::take(self.engine.output(id).0);
        let mut reader = Reader(&out);
        let mut answers = Vec::new();
        while let Some(frame) = reader.bytes().ok().flatten() {
            let mut frame = Reader(frame);
            let (xid, zxid) = (frame.int().unwrap(), frame.long().unwrap());
            let error = frame.int().unwrap();
            answers.push(Answer { xid, zxid, error, body: frame.0.to_vec() });
        }
        answers
    }

    /// The events that have come: what happened where.
    fn events(&mut self, id: ConnectionId) -> Vec<(i32, String)> {
        let of = |answer: Answer| {
            assert_eq!((answer.xid, answer.zxid, answer.error), (-1, -1, 0));
            let mut body = Reader(&answer.body);
            let (what, _state) = (body.int().unwrap(), body.int().unwrap());
            (what, body.string().unwrap())
        };
        self.frames(id).into_iter().map(of).collect()
    }

    fn ask(&mut self, id: ConnectionId, op: i32, body: impl FnOnce(&mut Vec<u8>)) -> Answer {
        self.xid += 1;
        let xid = self.xid;
        self.send(id, |out| {
            out.int(xid);
            out.int(op);
            body(out);
        });
        self.frames(id).pop().expect("an answer")
    }

    fn create(&mut self, id: ConnectionId, path: &str, flags: i32) -> i32 {
        self.ask(id, op::CREATE, |out| create(out, path, Some(b""), &open(), flags)).error
    }

    /// A request that has only a path and a number.
    fn at(&mut self, id: ConnectionId, op: i32, path: &str, number: i32) -> i32 {
        self.ask(id, op, |out| at(out, path, number)).error
    }

    fn look(&mut self, id: ConnectionId, op: i32, path: &str, watch: bool) -> Answer {
        self.ask(id, op, |out| {
            out.bytes(path.as_bytes());
            out.bool(watch);
        })
    }

    fn set(&mut self, id: ConnectionId, path: &str, data: Option<&[u8]>) -> i32 {
        self.ask(id, op::SET_DATA, |out| set(out, path, data)).error
    }

    /// Has a transaction carried out; returns the number and the error of the answer to each step.
    fn multi(&mut self, id: ConnectionId, steps: &[Part<'_>]) -> Vec<(i32, i32)> {
        let answer = self.ask(id, op::MULTI, |out| {
            for (op, step) in steps {
                header(out, *op, false);
                step(out);
            }
            header(out, -1, true);
        });
        assert_eq!(answer.error, 0);
        let mut body = Reader(&answer.body);
        let mut all = Vec::new();
        loop {
            let (op, is_end) = (body.int().unwrap(), body.bool().unwrap());
            let error = body.int().unwrap();
            if is_end {
                return all;
            }
            all.push((op, error));
            match op {
                -1 => assert_eq!(body.int().unwrap(), error),
                op::CREATE => drop(body.string().unwrap()),
                op::CREATE2 => {
                    body.string().unwrap();
                    stat(&mut body);
                }
                op::SET_DATA => drop(stat(&mut body)),
                _ => {}
            }
        }
    }

    fn cversion(&mut self, id: ConnectionId, path: &str) -> i32 {
        let answer = self.look(id, op::EXISTS, path, false);
        stat(&mut Reader(&answer.body))[1]
    }
}

/// A stat's three versions.
fn stat(body: &mut Reader<'_>) -> [i32; 3] {
    for _ in 0..4 {
        body.long().unwrap();
    }
    let versions = [(); 3].map(|()| body.int().unwrap());
    // The owner, the length of the data, how many children there are, and the last change of these.
    body.long().unwrap();
    body.int().unwrap();
    body.int().unwrap();
    body.long().unwrap();
    versions
}

fn header(out: &mut Vec<u8>, op: i32, is_end: bool) {
    out.int(op);
    out.bool(is_end);
    out.int(-1);
}

fn open() -> [Acl; 1] {
    [Acl::world(ALL)]
}

fn data(out: &mut Vec<u8>, data: Option<&[u8]>) {
    match data {
        Some(data) => out.bytes(data),
        None => out.int(-1),
    }
}

fn create(out: &mut Vec<u8>, path: &str, of: Option<&[u8]>, acl: &[Acl], flags: i32) {
    out.bytes(path.as_bytes());
    data(out, of);
    out.acl(acl);
    out.int(flags);
}

fn set(out: &mut Vec<u8>, path: &str, of: Option<&[u8]>) {
    out.bytes(path.as_bytes());
    data(out, of);
    out.int(-1);
}

fn at(out: &mut Vec<u8>, path: &str, number: i32) {
    out.bytes(path.as_bytes());
    out.int(number);
}

#[test]
fn no_data_is_not_empty_data() {
    let mut rig = Rig::new();
    let one = rig.join();
    let none = |rig: &mut Rig, path| {
        rig.look(one, op::GET_DATA, path, false).body.starts_with(&(-1_i32).to_be_bytes())
    };
    rig.ask(one, op::CREATE, |out| create(out, "/a", None, &open(), 0));
    assert!(none(&mut rig, "/a"));
    rig.set(one, "/a", Some(b""));
    assert!(!none(&mut rig, "/a"));
    rig.multi(one, &[(op::SET_DATA, &|out| set(out, "/a", None))]);
    assert!(none(&mut rig, "/a"));
    rig.at(one, op::DELETE, "/a", -1);
    rig.create(one, "/a", 0);
    assert!(!none(&mut rig, "/a"));
    rig.ask(one, op::CREATE, |out| create(out, "/s", None, &open(), 2));
    assert!(none(&mut rig, "/s0000000002"));
    rig.set(one, "/", None);
    assert!(none(&mut rig, "/") && none(&mut rig, ""));
}

#[test]
fn what_cannot_be_read_is_refused_and_the_connection_stays() {
    let mut rig = Rig::new();
    let one = rig.join();
    // The session has the first number.
    for (op, zxid) in [(op::EXISTS, 1), (op::CREATE, 2), (op::MULTI, 3), (op::SET_WATCHES, 3)] {
        let answer = rig.ask(one, op, |out| out.int(5));
        assert_eq!((answer.error, answer.zxid), (-5, zxid), "{op}");
    }
    // None is not a list without items, and nothing but the three kinds can be removed.
    let answer = rig.ask(one, op::SET_WATCHES, |out| {
        out.long(0);
        out.int(-1);
    });
    assert_eq!(answer.error, -5);
    assert_eq!(rig.at(one, op::REMOVE_WATCHES, "/", 4), -5);
    assert_eq!(rig.at(one, op::ADD_WATCH, "/", 2), -5);
    assert!(!rig.is_closed(one));
}

#[test]
fn a_request_that_no_client_sends_closes_the_connection() {
    let mut rig = Rig::new();
    for op in [0, 10, 99, 1000, -1] {
        let one = rig.join();
        let answer = rig.ask(one, op, |_| ());
        assert_eq!((answer.error, answer.zxid), (-6, -1), "{op}");
        assert!(rig.is_closed(one));
    }
    let one = rig.join();
    assert_eq!(rig.at(one, op::DELETE_CONTAINER, "/", 0), -8);
}

#[test]
fn words_tell_of_watches_and_reset_what_was_counted() {
    let mut rig = Rig::new();
    let (one, other) = (rig.join(), rig.join());
    rig.look(one, op::EXISTS, "/a", true);
    rig.look(other, op::EXISTS, "/a", true);
    rig.at(other, op::ADD_WATCH, "/b", 0);
    rig.look(other, op::GET_CHILDREN, "/", true);
    let mut word = |word: &[u8]| {
        rig.connections += 1;
        rig.engine.connect(rig.connections);
        rig.engine.input(rig.connections, word, NOW);
        String::from_utf8(rig.engine.output(rig.connections).0.clone()).unwrap()
    };
    assert_eq!(word(b"wchs"), "2 connections watching 2 paths\nTotal watches:3\n");
    assert_eq!(word(b"isro"), "rw");
    assert_eq!(word(b"srst"), "Server stats reset.\n");
    assert_eq!(word(b"crst"), "Connection stats reset.\n");
    // The words count, too.
    assert!(word(b"srvr").contains("Received: 2\nSent: 2\n"));
}

#[test]
fn a_ping_is_answered_with_its_own_number() {
    let mut rig = Rig::new();
    let one = rig.join();
    assert_eq!(rig.ask(one, op::PING, |_| ()).xid, -2);
}

#[test]
fn the_parent_is_looked_for_before_the_path_is_looked_at() {
    let mut rig = Rig::new();
    let one = rig.join();
    for (path, error) in [("", -8), ("a", -8), ("a/b", -101), ("/a/", -101), ("/a//b", -101)] {
        assert_eq!(rig.create(one, path, 0), error, "{path}");
    }
    for (path, error) in [("//", -8), ("/.", -8), ("/a\0", -8), ("/a/.", -101), ("/", -110)] {
        assert_eq!(rig.create(one, path, 0), error, "{path}");
    }
    for (path, error) in [("a", -8), ("a/b", -101), ("//", -101), ("/a\0", -8)] {
        assert_eq!(rig.at(one, op::DELETE, path, -1), error, "{path}");
    }
    for path in ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"] {
        assert_eq!(rig.at(one, op::DELETE, path, -1), -8, "{path}");
    }
    let refused = rig.ask(one, op::SET_ACL, |out| {
        out.bytes(b"a");
        out.acl(&open());
        out.int(-1);
    });
    assert_eq!(refused.error, -8);
    assert_eq!(rig.multi(one, &[(op::CHECK, &|out| at(out, "a", -1))]), [(-1, -8)]);
    assert_eq!(rig.look(one, op::EXISTS, "/a\0", false).error, -8);
    assert_eq!(rig.look(one, op::EXISTS, "", false).error, 0);
}

#[test]
fn text_that_is_no_utf_8_is_no_name() {
    let mut rig = Rig::new();
    let one = rig.join();
    let mut bytes = Vec::new();
    create(&mut bytes, "/a?", Some(b""), &open(), 0);
    bytes[6] = 0xff;
    assert_eq!(rig.ask(one, op::CREATE, |out| out.extend(&bytes)).error, -8);
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let mut rig = Rig::with(Rules { has_ttl: true, ..Rules::default() });
    let one = rig.join();
    for flags in [7, -1] {
        assert_eq!(rig.create(one, "/a", flags), -8);
    }
    let mut of = |flags, ttl| {
        rig.ask(one, op::CREATE_TTL, |out| {
            create(out, "/a", Some(b""), &open(), flags);
            out.long(ttl);
        })
        .error
    };
    assert_eq!([of(0, 9), of(4, 9), of(5, 0), of(5, 1 << 40)], [-8; 4]);
    assert_eq!(of(5, (1 << 40) - 1), 0);
    // A request that gives no time.
    assert_eq!(rig.create(one, "/b", 5), -8);
}

#[test]
fn a_step_is_answered_by_the_kind_of_its_node() {
    let mut rig = Rig::new();
    let one = rig.join();
    let of = |path: &'static str, flags| {
        move |out: &mut Vec<u8>| create(out, path, Some(b""), &open(), flags)
    };
    let done = rig.multi(
        one,
        &[
            (op::CREATE2, &of("/a", 0)),
            (op::CREATE_CONTAINER, &of("/b", 4)),
            (op::SET_DATA, &|out| set(out, "/a", None)),
            (op::CHECK, &|out| at(out, "/a", 1)),
            (op::DELETE, &|out| at(out, "/a", 1)),
        ],
    );
    assert_eq!(
        done,
        [(op::CREATE, 0), (op::CREATE2, 0), (op::SET_DATA, 0), (op::CHECK, 0), (op::DELETE, 0)]
    );
    let refused = rig.multi(
        one,
        &[(op::CREATE, &of("/a", 0)), (op::CREATE, &of("/c", 9)), (op::CREATE, &of("/d", 0))],
    );
    assert_eq!(refused, [(-1, 0), (-1, -8), (-1, -2)]);
}

#[test]
fn children_changes_follow_from_what_was_made_and_what_is_left() {
    let mut rig = Rig::new();
    let one = rig.join();
    // Nobody has made the server's own nodes.
    assert_eq!([rig.cversion(one, "/"), rig.cversion(one, "/zookeeper")], [-1, -2]);
    rig.create(one, "/a", 0);
    rig.create(one, "/a/b", 0);
    rig.create(one, "/a/c", 0);
    assert_eq!([rig.cversion(one, "/"), rig.cversion(one, "/a")], [0, 2]);
    rig.at(one, op::DELETE, "/a/b", -1);
    assert_eq!(rig.cversion(one, "/a"), 3);
    let config = rig.look(one, op::EXISTS, "/zookeeper/config", false);
    assert_eq!(stat(&mut Reader(&config.body)), [0, 0, -1]);
}

#[test]
fn a_session_has_one_connection() {
    let mut rig = Rig::new();
    let (one, session, password) = rig.resume(0, &[]);
    rig.look(one, op::EXISTS, "/a", true);
    let (other, again, _) = rig.resume(session, &password);
    assert_eq!(again, session);
    assert!(rig.is_closed(one));
    rig.create(other, "/a", 0);
    assert_eq!(rig.events(one), []);
    // Also if the password is wrong.
    let (wrong, none, _) = rig.resume(session, &[1; 16]);
    assert_eq!(none, 0);
    assert!(rig.is_closed(wrong) && rig.is_closed(other));
    assert_eq!(rig.engine.sessions(), [session]);
}

#[test]
fn credentials_that_are_none_are_refused() {
    let mut rig = Rig::new();
    let one = rig.join();
    let mut auth = |scheme: &[u8], said: Option<&[u8]>| {
        rig.ask(one, op::AUTH, |out| {
            out.int(0);
            out.bytes(scheme);
            data(out, said);
        })
        .error
    };
    assert_eq!(auth(b"digest", Some(b"a:b")), 0);
    assert_eq!(auth(b"digest", Some(b"a:b")), 0);
    // Who has proved the same twice is still one.
    let who = rig.ask(one, op::WHO_AM_I, |_| ());
    let mut body = Reader(&who.body);
    assert_eq!(body.int().unwrap(), 2);
    let names = [(); 4].map(|()| body.string().unwrap());
    assert_eq!(names, ["ip", "127.0.0.1", "digest", "a"]);
    let refused = rig.ask(one, op::AUTH, |out| {
        out.int(0);
        out.bytes(b"digest");
        data(out, None);
    });
    assert_eq!(refused.error, -115);
    assert!(rig.is_closed(one));
}

#[test]
fn a_client_may_ask_for_its_nodes_and_for_how_many_there_are() {
    let mut rig = Rig::new();
    let (one, other) = (rig.join(), rig.join());
    for (of, path, flags) in [(one, "/a", 0), (one, "/a/b", 1), (one, "/ab", 1), (other, "/a/c", 1)]
    {
        rig.create(of, path, flags);
    }
    let mut own = |beginning: &str| {
        let answer = rig.ask(one, op::EPHEMERALS, |out| out.bytes(beginning.as_bytes()));
        let mut body = Reader(&answer.body);
        (0..body.int().unwrap()).map(|_| body.string().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(own("/"), ["/a/b", "/ab"]);
    assert_eq!(own("/a/"), ["/a/b"]);
    let mut count = |path: &str| {
        let answer = rig.ask(one, op::COUNT_BELOW, |out| out.bytes(path.as_bytes()));
        (answer.error, Reader(&answer.body).int().ok())
    };
    assert_eq!(
        [count("/a"), count("/a/b"), count("/none")],
        [(0, Some(2)), (0, Some(0)), (-101, None)]
    );
    // The four made here, and the server's own.
    assert_eq!(count("/"), (0, Some(7)));
}

#[test]
fn several_reads_are_answered_together() {
    let mut rig = Rig::new();
    let one = rig.join();
    rig.create(one, "/a", 0);
    let answer = rig.ask(one, op::MULTI_READ, |out| {
        for (op, path) in [(op::GET_CHILDREN, "/"), (op::GET_DATA, "/none"), (op::GET_DATA, "/a")] {
            header(out, op, false);
            out.bytes(path.as_bytes());
            out.bool(true);
        }
        header(out, -1, true);
    });
    let mut body = Reader(&answer.body);
    let kinds = (body.int().unwrap(), body.bool().unwrap(), body.int().unwrap());
    assert_eq!(kinds, (op::GET_CHILDREN, false, 0));
    assert_eq!(body.int().unwrap(), 2);
    assert_eq!([body.string().unwrap(), body.string().unwrap()], ["a", "zookeeper"]);
    assert_eq!([body.int().unwrap(), i32::from(body.bool().unwrap())], [-1, 0]);
    assert_eq!([body.int().unwrap(), body.int().unwrap()], [-101, -101]);
    assert_eq!([body.int().unwrap(), i32::from(body.bool().unwrap())], [op::GET_DATA, 0]);
    assert_eq!(body.int().unwrap(), 0);
    // They watch nothing.
    rig.set(one, "/a", None);
    assert_eq!(rig.events(one), []);
    let refused = rig.ask(one, op::MULTI_READ, |out| {
        header(out, op::CREATE, false);
        create(out, "/b", None, &open(), 0);
    });
    assert_eq!(refused.error, -5);
}

#[test]
fn a_newer_watch_takes_the_place_of_an_older_one() {
    let mut rig = Rig::new();
    let (one, other) = (rig.join(), rig.join());
    let add = |rig: &mut Rig, mode| {
        let answer = rig.ask(one, op::ADD_WATCH, |out| at(out, "/a", mode));
        assert_eq!((answer.error, &answer.body[..]), (0, &[0; 4][..]));
    };
    add(&mut rig, 1);
    rig.create(other, "/a", 0);
    rig.create(other, "/a/b", 0);
    assert_eq!(rig.events(one), [(CREATED, "/a".to_owned()), (CREATED, "/a/b".to_owned())]);
    // One that does not see what is below.
    add(&mut rig, 0);
    rig.create(other, "/a/c", 0);
    assert_eq!(rig.events(one), [(CHILDREN_CHANGED, "/a".to_owned())]);
    // One that tells once.
    rig.look(one, op::EXISTS, "/a", true);
    rig.set(other, "/a", None);
    rig.set(other, "/a", None);
    assert_eq!(rig.events(one), [(DATA_CHANGED, "/a".to_owned())]);
    // That on the children is still there.
    rig.at(other, op::DELETE, "/a/b", -1);
    rig.at(other, op::DELETE, "/a/c", -1);
    rig.at(other, op::DELETE, "/a", -1);
    let changed = || (CHILDREN_CHANGED, "/a".to_owned());
    assert_eq!(rig.events(one), [changed(), changed(), (DELETED, "/a".to_owned())]);
}

#[test]
fn who_only_looks_for_a_watch_sees_those_of_others_too() {
    let mut rig = Rig::new();
    let (one, other) = (rig.join(), rig.join());
    assert_eq!(rig.at(one, op::CHECK_WATCHES, "/a", 2), -121);
    rig.look(other, op::EXISTS, "/a", true);
    assert_eq!(rig.at(one, op::CHECK_WATCHES, "/a", 2), 0);
    assert_eq!(rig.at(one, op::CHECK_WATCHES, "/a", 1), -121);
    assert_eq!(rig.at(one, op::REMOVE_WATCHES, "/a", 2), -121);
}

#[test]
fn a_watch_that_stays_can_be_removed_by_halves() {
    let mut rig = Rig::new();
    let (one, other) = (rig.join(), rig.join());
    rig.create(one, "/a", 0);
    for mode in [0, 1] {
        assert_eq!(rig.at(one, op::ADD_WATCH, "/a", mode), 0);
        assert_eq!(rig.at(one, op::CHECK_WATCHES, "/a", 1), 0);
        assert_eq!(rig.at(one, op::REMOVE_WATCHES, "/a", 2), 0);
        rig.set(other, "/a", None);
        assert_eq!(rig.events(one), []);
        assert_eq!(rig.at(one, op::CHECK_WATCHES, "/a", 2), -121);
        assert_eq!(rig.at(one, op::REMOVE_WATCHES, "/a", 3), 0);
        assert_eq!(rig.at(one, op::REMOVE_WATCHES, "/a", 3), -121);
    }
}
