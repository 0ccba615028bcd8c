//! Sessions that own nothing, and are ended when a create gets no answer; and those that are kept then.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use zklock::znode::CreateMode;
use zklock::{
    Client, ClientBuilder, DistributedLock, Event, Group, LossReason, SessionId, SessionState,
    SharedCounter, SharedValue,
};

use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{
    QUIET, connecting, eventually, in_background, skip_without_server, strict, waiting,
};

const LONG: Duration = Duration::from_secs(30);
const BRIEF: Duration = Duration::from_millis(50);

/// A client of the test's own server, behind a proxy that can misbehave, and what the program is told.
struct Rig {
    site: Site,
    proxy: Proxy,
    zk: Client,
    states: Receiver<SessionState>,
    events: Receiver<Event>,
}

impl Rig {
    fn new(test: &str, settings: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Rig {
        let site = Site::own(test);
        let proxy = Proxy::start(site.server().addr());
        let (tell, events) = mpsc::channel();
        let on_event = move |event: &Event| drop(tell.send(event.clone()));
        let builder = connecting(&proxy.hosts()).session_timeout(QUIET).on_event(on_event);
        let zk = settings(builder).connect().unwrap();
        let (tell, states) = mpsc::channel();
        let on_state = move |state| {
            let _ = tell.send(state);
        };
        zk.on_state_change(on_state).detach();
        Rig { site, proxy, zk, states, events }
    }

    fn session(&self) -> SessionId {
        self.zk.session_id().expect("a session")
    }

    fn lock(&self, name: &str) -> DistributedLock {
        strict(&self.zk, &self.site.base, name)
    }

    /// The next event of the session.
    fn event(&self) -> Event {
        loop {
            let event = self.events.recv_timeout(LONG).expect("an event");
            match event {
                Event::Connected { .. }
                | Event::Suspended { .. }
                | Event::Resumed { .. }
                | Event::SessionLost { .. } => return event,
                _ => {}
            }
        }
    }

    /// Checks what the program was told of a session in whose place another one was opened.
    fn assert_replaced(&self, before: SessionId, case: &str) {
        let after = self.session();
        assert_ne!(after, before, "{case}");
        for expected in [SessionState::Suspended, SessionState::Connected] {
            assert_eq!(self.states.recv_timeout(LONG), Ok(expected), "{case}");
        }
        let of = |event: &Event| match *event {
            Event::Suspended { session, .. } => ("suspended", session),
            Event::Connected { session, .. } => ("connected", session),
            Event::Resumed { session, outage, .. } => {
                assert!(!outage.is_zero(), "{case}: {event}");
                ("resumed", session)
            }
            _ => panic!("{case}: {event}"),
        };
        let told = [(); 3].map(|()| of(&self.event()));
        let expected = [("suspended", before), ("connected", after), ("resumed", after)];
        assert_eq!(told, expected.map(|(what, session)| (what, Some(session))), "{case}");
    }

    fn finish(self, others: impl IntoIterator<Item = Client>) {
        self.site.finish(others.into_iter().chain([self.zk]));
    }
}

fn text(value: Option<zklock::value::Versioned>) -> String {
    String::from_utf8(value.expect("a value").data).unwrap()
}

#[test]
fn a_session_that_owns_nothing_is_replaced_and_nothing_is_lost() {
    skip_without_server!();
    for is_made in [true, false] {
        let rig = Rig::new("replaced", |builder| builder);
        let case = format!("the node is made: {is_made}");
        assert!(matches!(rig.event(), Event::Connected { .. }));
        let other = rig.site.client();
        let theirs = SharedValue::new(&other, &rig.site.base, "value");
        theirs.set("before").unwrap();
        let mut changes = SharedValue::new(&rig.zk, &rig.site.base, "value").observe();
        assert_eq!(text(changes.next_within(LONG).unwrap().unwrap()), "before");
        let observer = waiting(move || changes.next_within(LONG));
        let before = rig.session();
        match is_made {
            true => rig.proxy.drop_reply_on(opcode::CREATE, "_c_", 1),
            false => rig.proxy.drop_request_on(opcode::CREATE, "_c_", 1),
        }
        // It gets the lock, and is not behind the node that it has made before.
        let lock = rig.lock("a");
        let guard = lock.try_lock().unwrap().expect("nobody else wants it");
        rig.assert_replaced(before, &case);
        let queue = rig.site.children("a");
        assert!(queue.len() == 1 && guard.path().ends_with(&queue[0]), "{case}: {queue:?}");
        guard.ensure_held().unwrap();
        // Who only observes goes on in the next session.
        theirs.set("after").unwrap();
        let seen = observer.join().unwrap().unwrap().expect("a change");
        assert_eq!(text(seen), "after", "{case}");
        // Something is held now.
        let session = rig.session();
        rig.proxy.drop_reply_on(opcode::CREATE, "_c_", 1);
        rig.lock("b").lock().unwrap().unlock().unwrap();
        assert_eq!(rig.session(), session, "{case}");
        assert!(guard.is_held(), "{case}");
        guard.unlock().unwrap();
        // And nothing again, but not for two session timeouts yet.
        rig.proxy.drop_reply_on(opcode::CREATE, "_c_", 1);
        rig.lock("b").lock().unwrap().unlock().unwrap();
        assert_eq!(rig.session(), session, "{case}");
        drop((theirs, lock));
        rig.finish([other]);
    }
}

#[test]
fn a_thread_that_waits_for_a_lock_keeps_its_place_when_another_loses_an_answer() {
    skip_without_server!();
    let rig = Rig::new("replaced-waiter", |builder| builder);
    let other = rig.site.client();
    let theirs = strict(&other, &rig.site.base, "a");
    let holder = theirs.lock().unwrap();
    let session = rig.session();
    let lock = rig.lock("a");
    let waiter = waiting(move || lock.lock().unwrap());
    rig.site.wait_for_children("a", 2);
    let queue = theirs.contenders().unwrap();
    rig.proxy.drop_reply_on(opcode::CREATE, "_c_", 1);
    rig.lock("b").lock().unwrap().unlock().unwrap();
    assert_eq!(rig.session(), session);
    let paths = |queue: &[zklock::Contender]| -> Vec<String> {
        queue.iter().map(|one| one.path.clone()).collect()
    };
    assert_eq!(paths(&theirs.contenders().unwrap()), paths(&queue));
    holder.unlock().unwrap();
    let guard = waiter.join().unwrap();
    assert_eq!(guard.path(), queue[1].path);
    guard.unlock().unwrap();
    drop(theirs);
    rig.finish([other]);
}

#[test]
fn an_unlock_without_an_answer_keeps_the_session() {
    skip_without_server!();
    let rig = Rig::new("replaced-unlock", |builder| builder);
    let guard = rig.lock("a").lock().unwrap();
    let session = rig.session();
    rig.site.raw().create_all(&format!("{}/b", rig.site.base)).unwrap();
    // Both are under way when the connection is lost.
    rig.proxy.reset_counts();
    rig.proxy.stall_request(opcode::DELETE);
    let unlocking = thread::spawn(move || guard.unlock());
    assert!(rig.proxy.wait_for_request(opcode::DELETE, LONG));
    let lock = rig.lock("b");
    let locking = thread::spawn(move || lock.lock());
    assert!(rig.proxy.wait_for_request(opcode::CREATE, LONG));
    rig.proxy.cut();
    rig.proxy.pass();
    unlocking.join().unwrap().unwrap();
    locking.join().unwrap().unwrap().unlock().unwrap();
    assert_eq!(rig.session(), session);
    rig.finish([]);
}

#[test]
fn what_the_program_may_have_made_itself_keeps_the_session() {
    skip_without_server!();
    let rig = Rig::new("replaced-program", |builder| builder);
    rig.site.raw().create_all(&rig.site.base).unwrap();
    let session = rig.session();
    rig.proxy.drop_reply_on(opcode::CREATE, "mine", 1);
    // It may have succeeded or not, as far as the program knows.
    let node = rig.zk.znode(format!("{}/mine", rig.site.base));
    let _ = node.create(CreateMode::Ephemeral, "");
    assert_eq!(rig.zk.znode(node.path()).stat().unwrap().unwrap().owner, Some(session));
    rig.proxy.drop_reply_on(opcode::CREATE, "_c_", 1);
    rig.lock("a").lock().unwrap().unlock().unwrap();
    assert_eq!(rig.session(), session);
    node.delete().unwrap();
    drop(node);
    rig.finish([]);
}

#[test]
fn a_change_that_is_yet_to_be_found_out_keeps_the_session() {
    skip_without_server!();
    let rig = Rig::new("replaced-change", |builder| builder);
    let counter = SharedCounter::new(&rig.zk, &rig.site.base, "counter");
    counter.set(1).unwrap();
    rig.site.raw().create_all(&format!("{}/a", rig.site.base)).unwrap();
    let session = rig.session();
    rig.proxy.reset_counts();
    rig.proxy.stall_request(opcode::SET_DATA);
    let adding = thread::spawn(move || counter.add(1));
    assert!(rig.proxy.wait_for_request(opcode::SET_DATA, LONG));
    let lock = rig.lock("a");
    let locking = thread::spawn(move || lock.lock());
    assert!(rig.proxy.wait_for_request(opcode::CREATE, LONG));
    rig.proxy.cut();
    rig.proxy.pass();
    // In another session nobody would know whether it was made.
    assert_eq!(adding.join().unwrap().unwrap(), 2);
    locking.join().unwrap().unwrap().unlock().unwrap();
    assert_eq!(rig.session(), session);
    rig.finish([]);
}

/// The member's node was about to be made anew when the session was replaced, and may be there.
#[test]
fn a_member_has_left_when_the_session_is_over_that_was_replaced() {
    skip_without_server!();
    let rig = Rig::new("replaced-member", |builder| builder);
    let membership = Group::new(&rig.zk, &rig.site.base, "a").join("me", "").unwrap();
    let before = rig.session();
    rig.proxy.reset_counts();
    rig.proxy.stall_reply(opcode::CREATE);
    rig.site.raw().delete(membership.path()).unwrap();
    assert!(rig.proxy.wait_for_request(opcode::CREATE, LONG));
    rig.site.wait_for_children("a", 1);
    rig.proxy.refuse();
    eventually(LONG, "the end of the session", || rig.zk.session_id() != Some(before));
    let leaving = in_background(move || membership.leave());
    assert!(leaving.recv_timeout(BRIEF).is_err(), "it returned while its node was there");
    rig.proxy.pass();
    leaving.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(rig.site.children("a").len(), 0);
    rig.finish([]);
}

#[test]
fn a_session_in_whose_place_no_other_can_be_opened_is_lost() {
    skip_without_server!();
    let rig =
        Rig::new("replaced-outage", |builder| builder.connect_timeout(Duration::from_secs(2)));
    assert!(matches!(rig.event(), Event::Connected { .. }));
    let before = rig.session();
    rig.site.raw().create_all(&format!("{}/a", rig.site.base)).unwrap();
    rig.proxy.reset_counts();
    rig.proxy.stall_request(opcode::CREATE);
    let lock = rig.lock("a");
    let locking = thread::spawn(move || lock.lock());
    assert!(rig.proxy.wait_for_request(opcode::CREATE, LONG));
    rig.proxy.refuse();
    for expected in [SessionState::Suspended, SessionState::Lost] {
        assert_eq!(rig.states.recv_timeout(LONG), Ok(expected));
    }
    assert_eq!(rig.zk.session_id(), None);
    rig.proxy.pass();
    locking.join().unwrap().unwrap().unlock().unwrap();
    assert_eq!(rig.states.recv_timeout(LONG), Ok(SessionState::Connected));
    assert!(matches!(rig.event(), Event::Suspended { session, .. } if session == Some(before)));
    match rig.event() {
        Event::SessionLost { session, reason, details, .. } => {
            assert_eq!((session, reason), (Some(before), LossReason::LeaseExpired));
            let details = details.expect("details");
            assert!(details.contains("nothing was held"), "{details}");
        }
        event => panic!("{event}"),
    }
    assert!(matches!(rig.event(), Event::Connected { .. }));
    rig.finish([]);
}
