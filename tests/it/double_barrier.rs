use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use zklock::barrier::Entered;
use zklock::{Acl, Cancel, Client, DoubleBarrier, ErrorKind, LossReason, Result, SessionState};

use crate::support::proxy::{Seen, opcode};
use crate::support::raw::{self, Kind, Raw};
use crate::support::site::Site;
use crate::support::{
    QUIET, eventually, in_background, kind, last, setting, skip_unless_alone, skip_without_server,
    skip_without_zookeeper, timed,
};

const T: Duration = Duration::from_secs(4);
const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(100);

/// Whether a call did not enter: others were missing or, if it had little time, an answer was.
fn stays_out(entered: Result<Option<Entered>>) -> bool {
    entered.map_or_else(|error| error.is_outage(), |entered| entered.is_none())
}

fn barrier(zk: &Client, site: &Site, participants: u32) -> DoubleBarrier {
    DoubleBarrier::new(zk, &site.base, "a", participants)
}

fn enter(zk: &Client, site: &Site, participants: u32) -> Receiver<Result<Entered>> {
    let barrier = barrier(zk, site, participants);
    in_background(move || barrier.enter())
}

#[test]
fn s76_as_many_as_it_is_for_enter_together_and_leave_together() {
    skip_without_zookeeper!();
    let site = Site::shared("s76-enter");
    let clients = [site.quiet_client(), site.quiet_client(), site.quiet_client()];
    for round in 0..3 {
        let mut calls: Vec<_> = clients[..2].iter().map(|zk| enter(zk, &site, 3)).collect();
        site.wait_for_children("a", 2);
        assert!(calls.iter().all(|call| call.try_recv().is_err()), "round {round}");
        calls.push(enter(&clients[2], &site, 3));
        let inside: Vec<Entered> =
            calls.iter().map(|call| call.recv_timeout(SOON).unwrap().unwrap()).collect();
        assert_eq!(site.children("a").len(), 3);
        for entered in &inside {
            assert!(entered.is_held(), "{entered:?}");
            assert!(site.children("a").contains(&last(entered.path()).to_owned()));
        }
        let mut inside = inside.into_iter();
        let last_one = inside.next().unwrap();
        let leaving: Vec<_> =
            inside.map(|entered| in_background(move || entered.leave())).collect();
        site.wait_for_children("a", 1);
        assert!(leaving.iter().all(|call| call.try_recv().is_err()), "round {round}");
        last_one.leave().unwrap();
        for call in leaving {
            call.recv_timeout(SOON).unwrap().unwrap();
        }
        assert_eq!(site.children("a").len(), 0);
    }
    site.finish(clients);
}

#[test]
fn s76_who_times_out_or_is_cancelled_leaves_no_node_and_does_not_count() {
    skip_without_zookeeper!();
    let site = Site::shared("s76-limits");
    let zk = site.quiet_client();
    let three = barrier(&zk, &site, 3);
    for limit in [Duration::ZERO, BRIEF] {
        let calls = [(); 2].map(|()| {
            let barrier = three.clone();
            in_background(move || timed(|| barrier.enter_within(limit)))
        });
        for call in calls {
            let (entered, took) = call.recv_timeout(SOON).unwrap();
            assert!(stays_out(entered));
            assert!(took.at_least(limit) && took.within(SOON));
        }
        site.wait_for_children("a", 0);
    }
    let cancel = Cancel::new();
    let calls = [(); 2].map(|()| {
        let (barrier, cancel) = (three.clone(), cancel.clone());
        in_background(move || {
            barrier.enter_within(&cancel).map(|entered| entered.expect("no limit"))
        })
    });
    site.wait_for_children("a", 2);
    cancel.cancel();
    for call in calls {
        assert_eq!(kind(call.recv_timeout(SOON).unwrap()), ErrorKind::Cancelled);
    }
    assert_eq!(kind(three.enter_within(&cancel)), ErrorKind::Cancelled);
    site.wait_for_children("a", 0);

    // It would be the third participant, but the two before it have given up.
    assert!(stays_out(three.enter_within(BRIEF)));
    let calls = [(); 3].map(|()| enter(&zk, &site, 3));
    let inside = calls.map(|call| call.recv_timeout(SOON).unwrap().unwrap());
    drop(inside);
    site.wait_for_children("a", 0);
    drop(three);
    site.finish([zk]);
}

/// Whenever one participant gives up while the last one arrives: either all enter, or none.
#[test]
fn s76_all_enter_or_none_does_when_one_gives_up_at_that_moment() {
    skip_without_zookeeper!();
    let site = Site::shared("s76-race");
    let clients = [site.quiet_client(), site.quiet_client()];
    let (mut both, mut neither) = (0, 0);
    let mut pause = Duration::from_micros(500);
    for round in 0..60 {
        let cancel = Cancel::new();
        let first = {
            let (barrier, cancel) = (barrier(&clients[0], &site, 2), cancel.clone());
            in_background(move || {
                barrier.enter_within(&cancel).map(|entered| entered.expect("no limit"))
            })
        };
        site.wait_for_children("a", 1);
        let second = enter(&clients[1], &site, 2);
        thread::sleep(pause);
        cancel.cancel();
        let (first, took) = timed(|| first.recv_timeout(SOON).unwrap());
        match first {
            // The ensemble did not answer in time, so the outcome is unknown.
            Err(_) if took.at_least(Duration::from_millis(400)) => {
                clients.iter().for_each(Client::close);
                return site.finish(clients);
            }
            Ok(ours) => {
                let theirs = second.recv_timeout(SOON).unwrap().unwrap();
                assert!(ours.is_held() && theirs.is_held(), "round {round}");
                let leaving = in_background(move || theirs.leave());
                ours.leave().unwrap();
                leaving.recv_timeout(SOON).unwrap().unwrap();
                both += 1;
                pause = pause * 2 / 3;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Cancelled);
                site.wait_for_children("a", 1);
                assert!(second.try_recv().is_err(), "round {round}: it entered alone");
                // The second one still waits for a real participant.
                let ours = barrier(&clients[0], &site, 2).enter().unwrap();
                let theirs = second.recv_timeout(SOON).unwrap().unwrap();
                drop((ours, theirs));
                site.wait_for_children("a", 0);
                neither += 1;
                pause = pause * 3 / 2;
            }
        }
    }
    assert!(both > 0 && neither > 0, "{both} together, {neither} not");
    site.finish(clients);
}

#[test]
fn s76_whoever_is_named_has_entered_though_it_gives_up() {
    skip_without_server!();
    let site = Site::own("s76-named");
    let (proxy, zk) = site.proxied(QUIET);
    let (cancel, mut raw) = (Cancel::new(), site.raw());
    let call = {
        let (barrier, cancel) = (barrier(&zk, &site, 2), cancel.clone());
        in_background(move || {
            barrier.enter_within(&cancel).map(|entered| entered.expect("no limit"))
        })
    };
    // The client reads its own node and the barrier's, then lists the children.
    assert!(proxy.wait_for_requests(opcode::GET_DATA, 2, SOON));
    site.wait_for_children("a", 1);
    let own = site.children("a").remove(0);
    // The round is decided when the client gives up, but it does not know that yet.
    proxy.hold();
    raw.set_data(&format!("{}/a", site.base), own.as_bytes()).unwrap();
    cancel.cancel();
    proxy.release();
    let entered = call.recv_timeout(SOON).unwrap().unwrap();
    assert_eq!(last(entered.path()), own);
    assert!(entered.is_held());
    // To leave and re-enter is not a loss.
    assert_eq!(entered.lost().reason(), None);
    entered.leave().unwrap();
    raw.close().unwrap();
    site.finish([zk]);
}

#[test]
fn s76_one_more_than_there_may_be_is_an_error_and_has_no_effect() {
    skip_without_zookeeper!();
    let site = Site::shared("s76-full");
    let zk = site.quiet_client();
    let hurried =
        site.builder().session_timeout(QUIET).connect_timeout(BRIEF * 5).connect().unwrap();
    let two = barrier(&hurried, &site, 2);
    let calls = [(); 2].map(|()| enter(&zk, &site, 2));
    let inside = calls.map(|call| call.recv_timeout(SOON).unwrap().unwrap());
    // The call's timeout applies if it is shorter than the connect timeout.
    let (error, took) = timed(|| barrier(&zk, &site, 2).enter_within(SOON / 3).unwrap_err());
    assert!(error.kind() == ErrorKind::Full && took.within(SOON), "{error} after {took:?}");
    for error in [
        two.enter().unwrap_err(),
        two.enter_within(SOON).unwrap_err(),
        two.enter_within(&Cancel::new()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert_eq!(error.path(), Some(&*format!("{}/a", site.base)));
        assert!(error.is_retryable());
    }
    assert_eq!(kind(barrier(&zk, &site, 3).enter()), ErrorKind::Conflict);
    assert_eq!(kind(barrier(&zk, &site, 1).enter()), ErrorKind::Conflict);
    site.wait_for_children("a", 2);
    assert!(inside.iter().all(|one| one.is_held()));
    // A participant of the next round waits until this round ends.
    let [first, second] = inside;
    drop(first);
    let early = enter(&zk, &site, 2);
    site.wait_for_children("a", 2);
    assert!(early.try_recv().is_err());
    drop(second);
    let late = enter(&zk, &site, 2);
    let inside = [early, late].map(|call| call.recv_timeout(SOON).unwrap().unwrap());
    drop(inside);
    site.wait_for_children("a", 0);
    drop(two);
    site.finish([zk, hurried]);
}

/// The place of the killed process is free once the ensemble ends its session.
#[test]
fn who_was_killed_and_comes_again_waits_for_its_former_session_to_end() {
    skip_without_server!();
    let site = Site::own("double-again");
    let (proxy, dies) = site.proxied(QUIET);
    let zk = site.quiet_client();
    let calls = [enter(&zk, &site, 2), enter(&dies, &site, 2)];
    let [other, former] = calls.map(|call| call.recv_timeout(SOON).unwrap().unwrap());
    drop(other);
    let next = enter(&zk, &site, 2);
    site.wait_for_children("a", 2);
    let again = enter(&site.quiet_client(), &site, 2);
    assert!(again.recv_timeout(BRIEF).is_err(), "it entered or failed before the session ended");
    assert!(next.try_recv().is_err());
    site.expire(&proxy);
    let inside = [next, again].map(|call| call.recv_timeout(SOON).unwrap().unwrap());
    assert!(inside.iter().all(|one| one.is_held()));
    drop((inside, former));
    site.finish([zk, dies]);
}

/// A node that names another number of participants makes later participants wait until it is gone.
#[test]
fn beside_another_number_of_participants_it_waits() {
    skip_without_server!();
    let site = Site::own("double-odd");
    let (proxy, zk) = site.proxied(QUIET);
    let (other, mut raw) = (site.quiet_client(), site.raw());
    let first = enter(&other, &site, 2);
    site.wait_for_children("a", 1);
    let odd = format!("{}/a/_c_11111111-2222-3333-4444-555555555555-lease-1-of-3-", site.base);
    let odd = raw.create(&odd, b"", Kind::EphemeralSequential).unwrap();
    proxy.reset_counts();
    let error = barrier(&zk, &site, 2).enter_within(BRIEF * 5).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let second = enter(&zk, &site, 2);
    assert!(second.recv_timeout(BRIEF).is_err());
    assert!(proxy.count(opcode::CREATE) <= 2, "{:?}", proxy.requests());
    raw.delete(&odd).unwrap();
    let inside = [first, second].map(|call| call.recv_timeout(SOON).unwrap().unwrap());
    drop(inside);
    raw.close().unwrap();
    site.finish([zk, other]);
}

/// The participant's lease has ended by its own clock while its node still counts for the others:
/// before it opens a new session, or after it has read the barrier in the new session.
#[test]
fn who_is_named_after_its_session_was_lost_is_told() {
    skip_without_server!();
    for has_looked in [false, true] {
        let site = Site::own("double-lapsed");
        let (proxy, zk) = site.proxied(T);
        let other = site.quiet_client();
        let call = enter(&zk, &site, 2);
        // The client has read its own node and the barrier's, and has declared that its node
        // counts.
        assert!(proxy.wait_for_requests(opcode::GET_DATA, 2, SOON));
        site.wait_for_children("a", 1);
        let own = site.children("a").remove(0);
        let (session, password) = proxy.session();
        proxy.refuse();
        let mut keeps = Raw::resume(site.hosts(), T, session, &password).unwrap();
        eventually(SOON, "the end of the lease", || {
            keeps.ping().unwrap();
            zk.state() == SessionState::Lost
        });
        if has_looked {
            // The server must not learn that the old session is closed.
            proxy.drop_request(opcode::CLOSE_SESSION, 1_000);
            proxy.reset_counts();
            proxy.release();
            assert!(proxy.wait_for_request(opcode::GET_DATA, SOON));
        }
        let theirs = barrier(&other, &site, 2).enter().unwrap();
        assert!(theirs.is_held(), "{theirs:?}");
        proxy.release();
        let ours = call.recv_timeout(SOON).unwrap().unwrap();
        // Otherwise it has withdrawn its former node, and entered with another.
        if !has_looked || last(ours.path()) == own {
            assert_eq!(last(ours.path()), own);
            assert!(!ours.is_held() && ours.lost().wait_within(SOON).is_some());
            assert_eq!(kind(ours.leave()), ErrorKind::SessionLost);
        } else {
            assert!(ours.is_held());
            ours.leave_within(BRIEF).unwrap();
        }
        proxy.pass();
        drop((theirs, keeps));
        site.finish([zk, other]);
    }
}

#[test]
fn s77_stale_ready_nodes_and_stale_data_neither_let_through_nor_hold_up() {
    skip_without_zookeeper!();
    let site = Site::shared("s77");
    let zk = site.quiet_client();
    let mut raw = site.raw();
    let node = format!("{}/a", site.base);
    raw.create_all(&node).unwrap();
    let gone = "_c_11111111-2222-3333-4444-555555555555-lease-1-of-3-0000000007";
    for (number, data) in ["", "ready", gone, "\n\n", "a\nb\nc"].into_iter().enumerate() {
        raw.create(&format!("{node}/ready"), b"", Kind::Persistent).unwrap();
        raw.set_data(&node, if number == 0 { b"\xff\xfe\0" } else { data.as_bytes() }).unwrap();
        let three = barrier(&zk, &site, 3);
        assert!(stays_out(three.enter_within(BRIEF)), "one of three entered: {data:?}");
        let calls = [(); 2].map(|()| enter(&zk, &site, 3));
        site.wait_for_children("a", 3);
        // The same stale data, written while they wait.
        raw.set_data(&node, data.as_bytes()).unwrap();
        assert!(calls.iter().all(|call| call.try_recv().is_err()));
        let inside = [three.enter().unwrap()].into_iter();
        let inside: Vec<Entered> =
            inside.chain(calls.map(|call| call.recv_timeout(SOON).unwrap().unwrap())).collect();
        // Stale nodes and data do not block leaving either.
        let leaving: Vec<_> =
            inside.into_iter().map(|one| in_background(move || one.leave_within(SOON))).collect();
        for call in leaving {
            assert!(call.recv_timeout(SOON).unwrap().unwrap());
        }
        assert_eq!(site.children("a"), ["ready"]);
        raw.delete(&format!("{node}/ready")).unwrap();
        // The node is a container, so the server may remove it as soon as it is empty.
        raw.create_all(&node).unwrap();
    }
    raw.close().unwrap();
    site.finish([zk]);
}

#[test]
fn s78_leaving_waits_neither_for_the_dead_nor_beyond_its_time() {
    skip_without_server!();
    let site = Site::own("s78");
    let (proxy, dies) = site.proxied(T);
    let zk = site.quiet_client();
    let calls = [enter(&zk, &site, 3), enter(&zk, &site, 3), enter(&dies, &site, 3)];
    let [first, second, crashes] = calls.map(|call| call.recv_timeout(SOON).unwrap().unwrap());
    let (done, took) = timed(|| first.leave_within(BRIEF).unwrap());
    assert!(!done && took.at_least(BRIEF) && took.within(SOON), "{took:?}");
    site.wait_for_children("a", 2);
    let leaving = in_background(move || second.leave());
    site.wait_for_children("a", 1);
    assert!(leaving.try_recv().is_err());
    let lost = crashes.lost();
    site.expire(&proxy);
    leaving.recv_timeout(SOON).unwrap().unwrap();
    assert!(matches!(
        lost.wait_within(SOON),
        Some(Err(LossReason::SessionExpired | LossReason::LeaseExpired))
    ));
    assert!(!crashes.is_held());
    assert_eq!(kind(crashes.leave_within(SOON)), ErrorKind::SessionLost);
    site.finish([zk, dies]);
}

#[test]
fn s78_dropping_leaves_without_waiting() {
    skip_without_zookeeper!();
    let site = Site::shared("s78-drop");
    let zk = site.quiet_client();
    let calls = [(); 2].map(|()| enter(&zk, &site, 2));
    let [first, second] = calls.map(|call| call.recv_timeout(SOON).unwrap().unwrap());
    drop(first);
    site.wait_for_children("a", 1);
    second.leave().unwrap();
    assert_eq!(site.children("a").len(), 0);
    site.finish([zk]);
}

#[test]
fn who_loses_its_session_before_the_round_comes_again_and_counts_once() {
    skip_without_server!();
    let site = Site::own("double-expired");
    let (proxy, zk) = site.proxied(T);
    let other = site.quiet_client();
    for sessions_end in [true, false] {
        let call = enter(&zk, &site, 2);
        site.wait_for_children("a", 1);
        let before = site.children("a");
        match sessions_end {
            true => site.expire(&proxy),
            // Another client deletes the node.
            false => site.raw().delete(&format!("{}/a/{}", site.base, before[0])).unwrap(),
        }
        eventually(SOON, "another node", || {
            let now = site.children("a");
            now.len() == 1 && now != before
        });
        assert!(call.try_recv().is_err(), "it entered with itself");
        let theirs = barrier(&other, &site, 2).enter().unwrap();
        let ours = call.recv_timeout(SOON).unwrap().unwrap();
        assert!(ours.is_held() && theirs.is_held());
        drop((ours, theirs));
        site.wait_for_children("a", 0);
    }
    site.finish([zk, other]);
}

#[test]
fn who_has_come_again_waits_for_its_former_node_to_go() {
    skip_without_server!();
    let site = Site::own("double-ghost");
    let (proxy, zk) = site.proxied(T);
    let (other, mut raw) = (site.quiet_client(), site.raw());
    let call = enter(&zk, &site, 2);
    site.wait_for_children("a", 1);
    let node = format!("{}/a", site.base);
    let own = format!("{node}/{}", site.children("a")[0]);
    let (data, _) = raw.get_data(&own).unwrap();
    // Makes a node like that of a session that the client has lost but the server still keeps.
    let ghost = format!("{node}/_c_11111111-2222-3333-4444-555555555555-lease-1-of-2-");
    let ghost = raw.create(&ghost, &data, Kind::EphemeralSequential).unwrap();
    raw.set_data(&ghost, &data).unwrap();
    site.expire(&proxy);
    eventually(SOON, "a new node beside", || {
        let now = site.children("a");
        now.len() == 2 && !now.contains(&last(&own).to_owned())
    });
    let theirs = enter(&other, &site, 2);
    assert_eq!(call.recv_timeout(BRIEF * 5).ok().map(|_| ()), None, "it entered with itself");
    assert!(theirs.try_recv().is_err());
    raw.delete(&ghost).unwrap();
    let inside = [call, theirs].map(|call| call.recv_timeout(SOON).unwrap().unwrap());
    assert!(inside.iter().all(|one| one.is_held()));
    drop(inside);
    raw.close().unwrap();
    site.finish([zk, other]);
}

/// Until then the library deletes the node of a participant that gives up, without a look at the
/// round.
#[test]
fn a_place_counts_only_when_its_owner_has_said_so() {
    skip_without_server!();
    let site = Site::own("double-place");
    let ((proxy, zk), mut raw) = (site.proxied(QUIET), site.raw());
    raw.create_all(&format!("{}/a", site.base)).unwrap();
    let place = format!("{}/a/_c_11111111-2222-3333-4444-555555555555-lease-1-of-2-", site.base);
    let place = raw.create(&place, b"theirs", Kind::EphemeralSequential).unwrap();
    assert!(stays_out(barrier(&zk, &site, 2).enter_within(BRIEF)));
    // Who waits behind it is woken then.
    proxy.reset_counts();
    let entering = enter(&zk, &site, 2);
    let is_look = |one: &&Seen| one.opcode == opcode::GET_DATA && one.path.as_ref() == Some(&place);
    eventually(SOON, "a look at the place, and another that watches it", || {
        proxy.requests().iter().filter(is_look).count() == 2
    });
    raw.set_data(&place, b"theirs").unwrap();
    let entered = entering.recv_timeout(SOON).unwrap().unwrap();
    let (round, _) = raw.get_data(&format!("{}/a", site.base)).unwrap();
    let lines = ["format 1", last(&place), last(entered.path())];
    assert_eq!(String::from_utf8(round).unwrap(), lines.join("\n"));
    assert!(!entered.leave_within(BRIEF).unwrap(), "the other is inside");
    raw.close().unwrap();
    site.finish([zk]);
}

#[test]
fn guards_are_owned_and_can_be_sent() {
    fn owned<T: Send + Sync + 'static>() {}
    owned::<Entered>();
    owned::<DoubleBarrier>();
}

#[test]
fn one_that_died_does_not_count() {
    skip_without_server!();
    let site = Site::own("double-dead");
    let (dies, zk) = (site.quiet_client(), site.quiet_client());
    let call = enter(&dies, &site, 2);
    site.wait_for_children("a", 1);
    dies.close();
    assert_eq!(kind(call.recv_timeout(SOON).unwrap()), ErrorKind::Closed);
    site.wait_for_children("a", 0);
    assert!(stays_out(barrier(&zk, &site, 2).enter_within(BRIEF)));
    site.finish([dies, zk]);
}

#[test]
fn lost_answers_leave_one_round_and_one_node_each() {
    skip_without_server!();
    let site = Site::own("double-ambiguous");
    let (proxy, zk) = site.proxied(T);
    let other = site.quiet_client();
    for reply in [true, false] {
        for operation in [opcode::CREATE, opcode::MULTI, opcode::GET_DATA, opcode::GET_CHILDREN] {
            let case = format!("{operation} {reply}");
            let theirs = enter(&other, &site, 2);
            site.wait_for_children("a", 1);
            let before = proxy.connections();
            proxy.reset_counts();
            match reply {
                true => proxy.drop_reply(operation, 1),
                false => proxy.drop_request(operation, 1),
            }
            let ours = barrier(&zk, &site, 2).enter().unwrap();
            // Either participant may have decided the round.
            let asked = proxy.count(operation) > 0 || operation != opcode::MULTI;
            assert!(!asked || proxy.connections() > before, "{case}: nothing was lost");
            proxy.pass();
            let theirs = theirs.recv_timeout(SOON).unwrap().unwrap();
            assert!(ours.is_held() && theirs.is_held());
            assert_eq!(site.children("a").len(), 2, "{case}");
            let leaving = in_background(move || theirs.leave());
            proxy.drop_reply(opcode::DELETE, 1);
            ours.leave().unwrap();
            leaving.recv_timeout(SOON).unwrap().unwrap();
            assert_eq!(site.children("a").len(), 0, "{case}");
        }
    }
    // The same when it gives up.
    for reply in [true, false] {
        match reply {
            true => proxy.drop_reply(opcode::MULTI, 1),
            false => proxy.drop_request(opcode::MULTI, 1),
        }
        assert!(stays_out(barrier(&zk, &site, 2).enter_within(BRIEF)));
        site.wait_for_children("a", 0);
    }
    site.finish([zk, other]);
}

#[test]
fn limits_are_kept_when_nothing_answers() {
    skip_without_server!();
    // Long enough for its node to be made before the call ends.
    const LIMIT: Duration = Duration::from_secs(3);
    let site = Site::own("double-silence");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let two = barrier(&zk, &site, 2);
    let call = in_background(move || timed(|| two.enter_within(LIMIT)));
    site.wait_for_children("a", 1);
    proxy.hold();
    let (entered, took) = call.recv_timeout(SOON).unwrap();
    // Others may count it until its node has gone.
    assert_eq!(kind(entered), ErrorKind::ConnectionLoss);
    assert!(took.within(LIMIT + Duration::from_secs(2)), "{took:?}");
    proxy.pass();
    eventually(SOON, "its node to go", || site.children("a").is_empty());

    let calls = [enter(&zk, &site, 2), enter(&other, &site, 2)];
    let [ours, theirs] = calls.map(|call| call.recv_timeout(SOON).unwrap().unwrap());
    proxy.hold();
    let (left, took) = timed(|| ours.leave_within(BRIEF));
    assert!(
        kind(left) == ErrorKind::Connect && took.within(BRIEF + Duration::from_secs(2)),
        "{took:?}"
    );
    proxy.pass();
    theirs.leave().unwrap();
    site.finish([zk, other]);
}

#[test]
fn nobody_is_woken_before_the_round_is_complete() {
    skip_without_server!();
    let site = Site::own("double-herd");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let first = enter(&zk, &site, 4);
    // The client has read its own node and the barrier's.
    assert!(proxy.wait_for_requests(opcode::GET_DATA, 2, SOON));
    let mut calls = vec![first];
    for count in 2..4 {
        let asked = proxy.requests();
        calls.push(enter(&other, &site, 4));
        site.wait_for_children("a", count);
        // A woken participant sends three requests; the watch on its own node comes a few ms late.
        let more = proxy.requests().len() - asked.len();
        assert!(more < 3, "{count}: {:?}", proxy.requests());
    }
    calls.push(enter(&other, &site, 4));
    let inside: Vec<Entered> =
        calls.into_iter().map(|call| call.recv_timeout(SOON).unwrap().unwrap()).collect();
    drop(inside);
    site.wait_for_children("a", 0);
    site.finish([zk, other]);
}

#[test]
fn bad_names_numbers_and_refusals_are_clear_errors() {
    skip_without_zookeeper!();
    let site = Site::shared("double-refused");
    let zk = site.quiet_client();
    let bad = DoubleBarrier::new(&zk, &site.base, "a/b", 1);
    assert_eq!(kind(bad.enter()), ErrorKind::InvalidName);
    for participants in [0, 501, u32::MAX] {
        assert_eq!(
            kind(barrier(&zk, &site, participants).enter_within(SOON)),
            ErrorKind::InvalidArgument
        );
    }
    let nobodys = DoubleBarrier::new(&zk, &site.base, "a", 1).acl(Acl::creator_only());
    assert_eq!(kind(nobodys.enter()), ErrorKind::InvalidArgument, "a client without credentials");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    raw.add_auth("digest", b"owner:secret").unwrap();
    // Everything except WRITE.
    let acl = [raw::Acl::new(raw::ALL, "auth", ""), raw::Acl::new(1 | 4 | 8, "world", "anyone")];
    let node = format!("{}/a", site.base);
    raw.create_with_acl(&node, b"", Kind::Persistent, &acl).unwrap();
    let error = barrier(&zk, &site, 1).enter().unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::NotAuthorized, Some(&*node)), "{error}");
    assert!(error.to_string().contains("WRITE"), "{error}");
    site.wait_for_children("a", 0);
    raw.delete(&node).unwrap();
    let owner = site.builder().auth("digest", b"owner:secret").connect().unwrap();
    let owned = DoubleBarrier::new(&owner, &site.base, "a", 1).acl(Acl::creator_only());
    let entered = owned.enter().unwrap();
    assert_eq!(raw.get_acl(&node).unwrap()[0].scheme, "digest");
    assert_eq!(raw.get_acl(entered.path()).unwrap()[0].scheme, "digest");
    entered.leave().unwrap();
    raw.delete(&node).unwrap();
    drop((bad, nobodys, owned, raw));
    site.finish([zk, owner]);
}

#[cfg(feature = "zookeeper")]
#[test]
fn over_a_handle_of_the_programs_it_works_too() {
    use zklock::zookeeper::{WatchedEvent, ZooKeeper};

    skip_without_server!();
    let site = Site::own("double-borrowed");
    let handle = ZooKeeper::connect(site.hosts(), T, |_: WatchedEvent| ()).unwrap();
    let handle = std::sync::Arc::new(handle);
    let zk = Client::from(&handle);
    let other = site.quiet_client();
    for _ in 0..3 {
        let calls = [enter(&zk, &site, 2), enter(&other, &site, 2)];
        let inside = calls.map(|call| call.recv_timeout(SOON).unwrap().unwrap());
        let leaving = inside.map(|one| in_background(move || one.leave()));
        for call in leaving {
            call.recv_timeout(SOON).unwrap().unwrap();
        }
    }
    assert!(stays_out(barrier(&zk, &site, 2).enter_within(BRIEF)));
    site.wait_for_children("a", 0);
    zk.close();
    drop((zk, handle));
    site.finish([other]);
}

/// Only one of them reads the others' nodes.
#[test]
fn the_requests_of_a_participant_do_not_grow_with_their_number() {
    skip_without_server!();
    skip_unless_alone!();
    let site = Site::own("double-crowd");
    let clients: Vec<Client> = (0..10).map(|_| site.quiet_client()).collect();
    // Otherwise the first ones also make the barrier's node and what is above it.
    site.raw().create_all(&format!("{}/a", site.base)).unwrap();
    let requests = [10, 50, setting("ZKLOCK_PARTICIPANTS", 100) as u32].map(|participants| {
        let barriers: Vec<_> = (0..participants)
            .map(|own| barrier(&clients[own as usize % clients.len()], &site, participants))
            .collect();
        site.server().stat_reset();
        let entered: Vec<Entered> = thread::scope(|scope| {
            let all: Vec<_> =
                barriers.iter().map(|barrier| scope.spawn(|| barrier.enter().unwrap())).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let each = site.server().counter("zk_packets_received") as f64 / f64::from(participants);
        println!("{participants} participants: {each:.1} requests each");
        drop(entered);
        site.wait_for_children("a", 0);
        each
    });
    assert!(requests.iter().all(|each| *each <= 16.0), "{requests:?}");
    site.finish(clients);
}
