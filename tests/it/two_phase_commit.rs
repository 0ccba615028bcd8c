use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use zklock::commit::{Coordinator, Decision, Participant, Vote};
use zklock::{Acl, Cancel, Client, ErrorKind, Result, SessionState, TwoPhaseCommit};

use crate::support::proxy::opcode;
use crate::support::raw::{self, Kind, Raw};
use crate::support::site::Site;
use crate::support::{
    QUIET, eventually, got_nothing, in_background, kind, skip_without_server,
    skip_without_zookeeper, timed,
};

const T: Duration = Duration::from_secs(4);
const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(100);
const NAMES: [&str; 3] = ["a", "b", "c"];

fn round(zk: &Client, site: &Site) -> TwoPhaseCommit {
    TwoPhaseCommit::new(zk, &site.base, "r")
}

fn decide(coordinator: Coordinator) -> Receiver<Result<Decision>> {
    in_background(move || coordinator.decide())
}

/// A round that all three participants have joined.
fn begun(zk: &Client, site: &Site) -> (TwoPhaseCommit, Coordinator, Vec<Participant>) {
    let round = round(zk, site);
    let coordinator = round.begin(&NAMES).unwrap();
    let participants = NAMES.map(|name| round.join(name).unwrap()).into();
    (round, coordinator, participants)
}

fn decided(round: &TwoPhaseCommit) -> Option<Decision> {
    round.state().unwrap().expect("the round").decision
}

/// Checks that all participants get the decision, present or late, and that it is visible.
fn assert_decided(round: &TwoPhaseCommit, participants: &[Participant], decision: Decision) {
    for participant in participants {
        assert_eq!(participant.decision().unwrap(), decision, "{participant:?}");
        assert_eq!(participant.decision_within(SOON).unwrap(), Some(decision));
    }
    assert_eq!(decided(round), Some(decision));
    let again = round.recover().unwrap();
    assert_eq!(again.decide().unwrap(), decision);
    assert_eq!(again.abort().unwrap(), decision);
    assert_eq!(again.decide_or_abort_within(SOON).unwrap(), decision);
}

/// The nodes among the round's children that mark a decision.
fn marks(site: &Site) -> Vec<String> {
    let mut children = site.children("r");
    children.retain(|name| name == "commit" || name == "abort");
    children
}

#[test]
fn when_all_vote_yes_everybody_commits() {
    skip_without_zookeeper!();
    let site = Site::shared("2pc-commit");
    let clients =
        [site.quiet_client(), site.quiet_client(), site.quiet_client(), site.quiet_client()];
    let round = round(&clients[0], &site);
    let coordinator = round.begin(&NAMES).unwrap();
    assert_eq!(coordinator.participants(), NAMES);
    let decision = decide(coordinator);
    let participants: Vec<Participant> = (NAMES.iter().zip(&clients[1..]))
        .map(|(name, zk)| self::round(zk, &site).join(name).unwrap())
        .collect();
    for participant in &participants {
        assert!(participant.is_held());
        // Another session may take its name, so its node can fence nothing.
        let fenced = participant.transaction().check(participant.path()).commit();
        assert_eq!(kind(fenced), ErrorKind::InvalidArgument);
        assert_eq!(decided(&round), None);
        assert!(decision.try_recv().is_err());
        assert!(participant.vote(Vote::Yes).unwrap());
    }
    assert_eq!(decision.recv_timeout(SOON).unwrap().unwrap(), Decision::Commit);
    assert_decided(&round, &participants, Decision::Commit);
    assert_eq!(marks(&site), ["commit"]);
    // A repeated vote changes nothing.
    assert!(participants[0].vote(Vote::Yes).unwrap());
    drop((participants, round));
    site.finish(clients);
}

#[test]
fn guards_are_owned_and_can_be_sent() {
    fn owned<T: Send + Sync + 'static>() {}
    owned::<Participant>();
    owned::<Coordinator>();
    owned::<TwoPhaseCommit>();
}

#[test]
fn a_no_aborts() {
    skip_without_zookeeper!();
    let site = Site::shared("2pc-no");
    let zk = site.quiet_client();
    let (round, coordinator, participants) = begun(&zk, &site);
    let decision = decide(coordinator);
    assert!(participants[0].vote(Vote::Yes).unwrap());
    assert!(participants[1].vote(Vote::No).unwrap());
    assert_eq!(decision.recv_timeout(SOON).unwrap().unwrap(), Decision::Abort);
    assert_decided(&round, &participants, Decision::Abort);
    assert!(!participants[2].vote(Vote::Yes).unwrap(), "a vote that comes too late");
    assert_eq!(kind(participants[0].vote(Vote::No)), ErrorKind::Conflict);
    assert_eq!(marks(&site), ["abort"]);
    drop((participants, round));
    site.finish([zk]);
}

#[test]
fn a_death_aborts_before_and_after_the_vote() {
    skip_without_server!();
    let site = Site::own("2pc-death");
    let zk = site.quiet_client();
    for votes in [false, true] {
        let (proxy, dies) = site.proxied(T);
        let round = round(&zk, &site);
        let decision = decide(round.begin(&NAMES).unwrap());
        let participants = ["a", "b"].map(|name| round.join(name).unwrap());
        let doomed = self::round(&dies, &site).join("c").unwrap();
        for participant in &participants {
            participant.vote(Vote::Yes).unwrap();
        }
        if votes {
            // It dies while it votes, with two coordinators that would decide.
            drop(decision);
            let recovered = round.recover().unwrap();
            let (session, password) = proxy.session();
            proxy.stall_reply(opcode::MULTI);
            let vote = in_background(move || (doomed.vote(Vote::Yes), doomed));
            eventually(SOON, "the vote or the decision", || {
                let children = site.children("r");
                children.contains(&"yes-c".to_owned()) || !marks(&site).is_empty()
            });
            proxy.refuse();
            let _ = Raw::resume(site.hosts(), T, session, &password).and_then(Raw::close);
            proxy.pass();
            // Either decision is possible, but it is the same for all.
            let decision = recovered.decide().unwrap();
            assert_decided(&round, &participants, decision);
            assert_eq!(marks(&site), [decision.to_string()]);
            drop(vote.recv_timeout(SOON).unwrap());
        } else {
            eventually(SOON, "the coordinator to see it", || {
                round.state().unwrap().unwrap().participants.iter().all(|one| one.is_here)
            });
            dies.close();
            // It never voted: a coordinator that has seen it aborts at once, another at its limit.
            let recovered = round.recover().unwrap();
            assert_eq!(recovered.decide_or_abort_within(BRIEF).unwrap(), Decision::Abort);
            assert_eq!(decision.recv_timeout(SOON).unwrap().unwrap(), Decision::Abort);
            assert_decided(&round, &participants, Decision::Abort);
            drop(doomed);
        }
        drop(participants);
        dies.close();
        assert!(round.forget().unwrap());
    }
    site.finish([zk]);
}

#[test]
fn one_that_voted_yes_and_died_is_not_committed_without() {
    skip_without_zookeeper!();
    let site = Site::shared("2pc-yes-and-dead");
    let (zk, dies) = (site.quiet_client(), site.quiet_client());
    let round = round(&zk, &site);
    let coordinator = round.begin(&["a", "b"]).unwrap();
    let survivor = round.join("a").unwrap();
    let doomed = self::round(&dies, &site).join("b").unwrap();
    survivor.vote(Vote::Yes).unwrap();
    doomed.vote(Vote::Yes).unwrap();
    dies.close();
    assert_eq!(coordinator.decide().unwrap(), Decision::Abort);
    assert_eq!(survivor.decision().unwrap(), Decision::Abort);
    assert_eq!(kind(doomed.vote(Vote::Yes)), ErrorKind::Closed);
    drop((survivor, doomed, coordinator, round));
    site.finish([zk, dies]);
}

#[test]
fn one_that_voted_yes_and_dies_while_all_is_decided_is_not_committed_without() {
    skip_without_server!();
    let site = Site::own("2pc-dies-while-decided");
    let (proxy, zk) = site.proxied(QUIET);
    let dies = site.quiet_client();
    let coordinator = round(&zk, &site).begin(&["a", "b"]).unwrap();
    let survivor = round(&zk, &site).join("a").unwrap();
    let doomed = round(&dies, &site).join("b").unwrap();
    survivor.vote(Vote::Yes).unwrap();
    doomed.vote(Vote::Yes).unwrap();
    proxy.reset_counts();
    proxy.stall_request(opcode::MULTI);
    let decision = decide(coordinator);
    assert!(proxy.wait_for_request(opcode::MULTI, SOON), "it has seen both, and decides");
    dies.close();
    proxy.release();
    assert_eq!(decision.recv().unwrap().unwrap(), Decision::Abort);
    assert_eq!(survivor.decision().unwrap(), Decision::Abort);
    drop((survivor, doomed, proxy));
    site.finish([zk, dies]);
}

#[test]
fn the_end_of_the_time_aborts() {
    skip_without_zookeeper!();
    let site = Site::shared("2pc-limit");
    let zk = site.quiet_client();
    let (round, coordinator, participants) = begun(&zk, &site);
    participants[0].vote(Vote::Yes).unwrap();
    let (none, took) = timed(|| participants[0].decision_within(BRIEF).unwrap());
    assert!(none.is_none() && took.at_least(BRIEF) && took.within(SOON));
    let cancel = Cancel::new();
    cancel.cancel();
    assert_eq!(kind(participants[0].decision_within(&cancel)), ErrorKind::Cancelled);
    assert_eq!(kind(coordinator.decide_within(&cancel)), ErrorKind::Cancelled);
    assert_eq!(decided(&round), None, "nothing is decided by that");
    let (decision, took) = timed(|| coordinator.decide_or_abort_within(BRIEF).unwrap());
    assert!(decision == Decision::Abort && took.at_least(BRIEF) && took.within(SOON));
    assert_decided(&round, &participants, Decision::Abort);
    drop((participants, coordinator, round));
    site.finish([zk]);
}

#[test]
fn who_restarts_learns_the_decision_and_keeps_its_vote() {
    skip_without_zookeeper!();
    let site = Site::shared("2pc-restart");
    let (zk, restarts) = (site.quiet_client(), site.quiet_client());
    let (round, coordinator, mut participants) = begun(&zk, &site);
    let theirs = self::round(&restarts, &site);
    let last = participants.pop().unwrap();
    assert!(last.vote(Vote::Yes).unwrap());
    // The ensemble still has its former node.
    let joining = in_background(move || theirs.join("c"));
    assert!(joining.recv_timeout(BRIEF).is_err());
    drop(last);
    // Before the decision: its vote is binding.
    let again = joining.recv_timeout(SOON).unwrap().unwrap();
    assert_eq!(kind(again.vote(Vote::No)), ErrorKind::Conflict);
    assert!(again.vote(Vote::Yes).unwrap());
    participants.iter().for_each(|one| assert!(one.vote(Vote::Yes).unwrap()));
    assert_eq!(coordinator.decide().unwrap(), Decision::Commit);
    drop((again, participants));
    restarts.close();
    // After the decision.
    let restarted = site.quiet_client();
    let later = self::round(&restarted, &site);
    assert_eq!(decided(&later), Some(Decision::Commit));
    let again = later.join("c").unwrap();
    assert_eq!(again.decision().unwrap(), Decision::Commit);
    assert!(again.vote(Vote::Yes).unwrap());
    drop((again, later, round, coordinator));
    site.finish([zk, restarts, restarted]);
}

#[test]
fn a_participant_waits_on_over_a_lost_session() {
    skip_without_server!();
    let site = Site::own("2pc-expired");
    let (proxy, zk) = site.proxied(T);
    let other = site.quiet_client();
    let round = round(&other, &site);
    let coordinator = round.begin(&["a", "b"]).unwrap();
    let participant = self::round(&zk, &site).join("a").unwrap();
    participant.vote(Vote::Yes).unwrap();
    let lost = participant.lost();
    let learns = in_background(move || (participant.decision(), participant.vote(Vote::Yes)));
    site.expire(&proxy);
    assert!(matches!(lost.wait_within(SOON), Some(Err(_))));
    assert_eq!(coordinator.decide().unwrap(), Decision::Abort);
    let (decision, vote) = learns.recv_timeout(SOON).unwrap();
    assert_eq!(decision.unwrap(), Decision::Abort);
    assert_eq!(kind(vote), ErrorKind::SessionLost);
    drop((coordinator, round));
    site.finish([zk, other]);
}

#[test]
fn a_round_whose_coordinator_is_gone_can_be_recovered() {
    skip_without_zookeeper!();
    let site = Site::shared("2pc-recover");
    let (gone, zk) = (site.quiet_client(), site.quiet_client());
    for votes in [2, 3] {
        let coordinator = round(&gone, &site).begin(&NAMES).unwrap();
        let round = round(&zk, &site);
        let participants = NAMES.map(|name| round.join(name).unwrap());
        participants[..votes].iter().for_each(|one| assert!(one.vote(Vote::Yes).unwrap()));
        drop(coordinator);
        assert!(got_nothing(participants[0].decision_within(BRIEF)), "it blocks");
        let recovered = round.recover().unwrap();
        assert_eq!(recovered.participants(), NAMES);
        let (decision, expected) = match votes {
            2 => (recovered.abort().unwrap(), Decision::Abort),
            _ => (recovered.decide().unwrap(), Decision::Commit),
        };
        assert_eq!(decision, expected);
        assert_decided(&round, &participants, expected);
        assert!(round.forget().unwrap());
    }
    site.finish([gone, zk]);
}

#[test]
fn two_coordinators_come_to_one_decision() {
    skip_without_zookeeper!();
    let site = Site::shared("2pc-exclusive");
    let clients = [site.quiet_client(), site.quiet_client()];
    let mut seen = [0, 0];
    let mut pause = Duration::from_micros(500);
    for _ in 0..40 {
        let (round, first, participants) = begun(&clients[0], &site);
        let second = self::round(&clients[1], &site).recover().unwrap();
        participants[..2].iter().for_each(|one| assert!(one.vote(Vote::Yes).unwrap()));
        let commits = decide(first);
        let aborts = in_background(move || {
            thread::sleep(pause);
            second.abort()
        });
        participants[2].vote(Vote::Yes).unwrap();
        let decision = commits.recv_timeout(SOON).unwrap().unwrap();
        assert_eq!(aborts.recv_timeout(SOON).unwrap().unwrap(), decision);
        assert_decided(&round, &participants, decision);
        assert_eq!(marks(&site), [decision.to_string()]);
        assert!(round.forget().unwrap());
        seen[usize::from(decision == Decision::Commit)] += 1;
        // Moves towards the moment at which either is possible.
        pause = if decision == Decision::Commit { pause * 2 / 3 } else { pause * 3 / 2 };
    }
    assert!(seen.iter().all(|count| *count > 0), "aborted and committed: {seen:?}");
    site.finish(clients);
}

#[test]
fn lost_answers_begin_join_vote_and_decide_once() {
    skip_without_server!();
    let site = Site::own("2pc-ambiguous");
    let (proxy, zk) = site.proxied(T);
    let round = round(&zk, &site);
    for reply in [true, false] {
        let lose = |operation| {
            match reply {
                true => proxy.drop_reply(operation, 1),
                false => proxy.drop_request(operation, 1),
            }
            proxy.connections()
        };
        site.raw().create_all(&site.base).unwrap();
        let before = lose(opcode::MULTI);
        let coordinator = round.begin(&["a", "b"]).unwrap();
        assert!(proxy.connections() > before);
        let before = lose(opcode::CREATE);
        let a = round.join("a").unwrap();
        assert!(proxy.connections() > before && a.is_held());
        let owner = site.raw().exists(a.path()).unwrap().unwrap().ephemeral_owner;
        assert_eq!(Some(owner.into()), zk.session_id());
        let before = lose(opcode::MULTI);
        assert!(a.vote(Vote::Yes).unwrap());
        assert!(proxy.connections() > before);
        let b = round.join("b").unwrap();
        b.vote(Vote::Yes).unwrap();
        let before = lose(opcode::MULTI);
        assert_eq!(coordinator.decide().unwrap(), Decision::Commit);
        assert!(proxy.connections() > before);
        assert_eq!(site.children("r"), ["commit", "here-a", "here-b", "yes-a", "yes-b"]);
        drop((a, b));
        assert!(round.forget().unwrap());
    }
    drop(round);
    site.finish([zk]);
}

#[test]
fn one_listing_shows_every_state() {
    skip_without_server!();
    let site = Site::own("2pc-state");
    let (proxy, zk) = site.proxied(QUIET);
    let round = round(&zk, &site);
    assert_eq!(round.state().unwrap(), None);
    let coordinator = round.begin(&NAMES).unwrap();
    let [a, b] = ["a", "b"].map(|name| round.join(name).unwrap());
    a.vote(Vote::Yes).unwrap();
    b.vote(Vote::No).unwrap();
    drop(b);
    eventually(SOON, "its node to go", || !site.children("r").contains(&"here-b".to_owned()));
    proxy.reset_counts();
    let state = round.state().unwrap().unwrap();
    assert_eq!(proxy.count(opcode::GET_CHILDREN), 1);
    let seen: Vec<_> =
        state.participants.iter().map(|one| (&*one.name, one.is_here, one.vote)).collect();
    assert_eq!(
        seen,
        [("a", true, Some(Vote::Yes)), ("b", false, Some(Vote::No)), ("c", false, None)]
    );
    assert_eq!(state.decision, None);
    assert!(!round.forget().unwrap(), "it is not decided");
    assert_eq!(coordinator.decide().unwrap(), Decision::Abort);
    assert_eq!(round.state().unwrap().unwrap().decision, Some(Decision::Abort));
    assert!(round.forget().unwrap());
    assert_eq!(round.state().unwrap(), None);
    drop((a, round, coordinator));
    site.finish([zk]);
}

#[test]
fn a_vote_wakes_no_participant() {
    skip_without_server!();
    let site = Site::own("2pc-herd");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let round = round(&other, &site);
    let coordinator = round.begin(&NAMES).unwrap();
    let waits = self::round(&zk, &site).join("a").unwrap();
    assert!(waits.vote(Vote::Yes).unwrap());
    let learns = in_background(move || waits.decision());
    // It watches its own node and the round's.
    eventually(SOON, "its watches", || site.server().counter("zk_watch_count") == 2);
    let before = proxy.total_requests();
    let others = ["b", "c"].map(|name| round.join(name).unwrap());
    for one in &others {
        one.vote(Vote::Yes).unwrap();
    }
    assert_eq!(proxy.total_requests(), before, "{:?}", proxy.requests());
    assert_eq!(coordinator.decide().unwrap(), Decision::Commit);
    assert_eq!(learns.recv_timeout(SOON).unwrap().unwrap(), Decision::Commit);
    drop((others, round, coordinator));
    site.finish([zk, other]);
}

#[test]
fn what_cannot_be_is_a_clear_error() {
    skip_without_zookeeper!();
    let site = Site::shared("2pc-errors");
    let zk = site.quiet_client();
    let round = round(&zk, &site);
    assert_eq!(kind(round.recover()), ErrorKind::NotFound);
    assert_eq!(kind(round.join("a")), ErrorKind::NotFound);
    assert_eq!(round.state().unwrap(), None);
    assert_eq!(kind(round.forget()), ErrorKind::NotFound);
    assert_eq!(kind(round.begin::<&str>(&[])), ErrorKind::InvalidArgument);
    assert_eq!(kind(round.begin(&["a", "a"])), ErrorKind::InvalidArgument);
    assert_eq!(kind(round.begin(&["a", "b/c"])), ErrorKind::InvalidName);
    let many: Vec<String> = (0..20_000).map(|number| format!("participant-{number}")).collect();
    assert_eq!(kind(round.begin(&many)), ErrorKind::InvalidArgument);
    let bad = TwoPhaseCommit::new(&zk, "relative", "r");
    assert_eq!(kind(bad.begin(&["a"])), ErrorKind::InvalidName);
    assert_eq!(kind(bad.state()), ErrorKind::InvalidName);

    let coordinator = round.begin(&["a"]).unwrap();
    let error = round.begin(&["a"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(error.path(), Some(&*format!("{}/r", site.base)));
    assert_eq!(kind(round.join("b")), ErrorKind::InvalidName);
    assert_eq!(kind(round.join("../a")), ErrorKind::InvalidName);
    let a = round.join("a").unwrap();
    let hurried =
        site.builder().session_timeout(QUIET).connect_timeout(BRIEF * 5).connect().unwrap();
    let error = self::round(&hurried, &site).join("a").unwrap_err();
    assert!(error.kind() == ErrorKind::Taken && error.is_retryable(), "{error}");
    hurried.close();
    assert_eq!(coordinator.abort().unwrap(), Decision::Abort);
    assert!(round.forget().unwrap());
    // They do not belong to a new round of the same name.
    let next = round.begin(&["a"]).unwrap();
    assert_eq!(kind(coordinator.decide()), ErrorKind::NotFound);
    assert_eq!(kind(a.decision()), ErrorKind::NotFound);
    drop(a);
    next.abort().unwrap();
    assert!(round.forget().unwrap());

    // The node is not that of a round.
    site.raw().create_all(&format!("{}/r", site.base)).unwrap();
    assert_eq!(kind(round.recover()), ErrorKind::Server);
    assert_eq!(kind(round.begin(&["a"])), ErrorKind::AlreadyExists);
    drop((round, bad, coordinator, next));
    site.finish([zk]);
}

#[test]
fn acls_are_kept_and_refusals_said() {
    skip_without_zookeeper!();
    let site = Site::shared("2pc-acl");
    let (zk, owner) =
        (site.quiet_client(), site.builder().auth("digest", b"owner:secret").connect().unwrap());
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let owned = TwoPhaseCommit::new(&owner, &site.base, "r").acl(Acl::creator_only());
    let coordinator = owned.begin(&["a"]).unwrap();
    let a = owned.join("a").unwrap();
    a.vote(Vote::Yes).unwrap();
    assert_eq!(coordinator.decide().unwrap(), Decision::Commit);
    raw.add_auth("digest", b"owner:secret").unwrap();
    for child in ["", "/here-a", "/yes-a", "/commit"] {
        let acl = raw.get_acl(&format!("{}/r{child}", site.base)).unwrap();
        assert_eq!((acl.len(), &*acl[0].scheme), (1, "digest"), "{child}");
    }
    drop((a, coordinator));
    owned.forget().unwrap();

    // Everything except WRITE: others can vote, but not decide.
    let round = round(&zk, &site);
    let coordinator = round.begin(&["a"]).unwrap();
    let acl = [raw::Acl::new(raw::ALL, "auth", ""), raw::Acl::new(1 | 4 | 8, "world", "anyone")];
    raw.set_acl(&format!("{}/r", site.base), &acl).unwrap();
    let a = round.join("a").unwrap();
    assert!(a.vote(Vote::Yes).unwrap());
    let error = coordinator.decide().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAuthorized);
    assert!(error.to_string().contains("WRITE"), "{error}");
    assert_eq!(decided(&round), None);
    raw.set_acl(&format!("{}/r", site.base), &acl[..1]).unwrap();
    assert_eq!(kind(a.vote(Vote::Yes)), ErrorKind::NotAuthorized);
    assert_eq!(kind(a.decision()), ErrorKind::NotAuthorized);
    raw.delete_recursive(&format!("{}/r", site.base)).unwrap();
    drop((a, round, owned, coordinator, raw));
    site.finish([zk, owner]);
}

#[test]
fn a_decision_that_a_stranger_shows_decides_nothing() {
    skip_without_zookeeper!();
    let site = Site::shared("2pc-stranger");
    let zk = site.quiet_client();
    let (round, coordinator, participants) = begun(&zk, &site);
    let mut raw = site.raw();
    raw.create(&format!("{}/r/commit", site.base), b"", Kind::Persistent).unwrap();
    assert!(got_nothing(participants[0].decision_within(BRIEF)));
    assert_eq!(round.state().unwrap().unwrap().decision, None);
    participants.iter().for_each(|one| assert!(one.vote(Vote::Yes).unwrap()));
    assert_eq!(coordinator.decide().unwrap(), Decision::Commit);
    assert_decided(&round, &participants, Decision::Commit);
    raw.close().unwrap();
    drop((participants, round, coordinator));
    site.finish([zk]);
}

#[cfg(feature = "zookeeper")]
#[test]
fn over_a_handle_of_the_programs_it_works_too() {
    use zklock::zookeeper::{WatchedEvent, ZooKeeper};

    skip_without_server!();
    let site = Site::own("2pc-borrowed");
    let handle = ZooKeeper::connect(site.hosts(), T, |_: WatchedEvent| ()).unwrap();
    let handle = std::sync::Arc::new(handle);
    let zk = Client::from(&handle);
    let (round, coordinator, participants) = begun(&zk, &site);
    participants.iter().for_each(|one| assert!(one.vote(Vote::Yes).unwrap()));
    assert_eq!(coordinator.decide().unwrap(), Decision::Commit);
    assert_decided(&round, &participants, Decision::Commit);
    drop(participants);
    assert!(round.forget().unwrap());
    zk.close();
    drop((round, coordinator, zk, handle));
    site.finish([]);
}

#[test]
fn a_dropped_participant_spares_its_replacement() {
    skip_without_server!();
    let site = Site::own("2pc-replaced");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let round = round(&other, &site);
    let coordinator = round.begin(&["a"]).unwrap();
    // The second time the connection has to come back first.
    for suspended in [false, true] {
        let former = self::round(&zk, &site).join("a").unwrap();
        proxy.hold();
        site.raw().delete(former.path()).unwrap();
        let replacement = round.join("a").unwrap();
        let made = || site.raw().exists(replacement.path()).unwrap().map(|stat| stat.czxid);
        let before = made();
        if suspended {
            proxy.refuse();
            eventually(SOON, "the loss", || zk.state() == SessionState::Suspended);
            drop(former);
            assert_eq!(zk.stats().pending_deletes, 1);
            proxy.release();
        } else {
            proxy.release();
            drop(former);
        }
        eventually(SOON, "the end of the former", || zk.stats().pending_deletes == 0);
        assert_eq!(made(), before);
        assert!(before.is_some() && replacement.is_held(), "suspended: {suspended}");
    }
    coordinator.abort().unwrap();
    drop((round, coordinator));
    site.finish([zk, other]);
}

/// The round's own children are deleted, but not those of its children.
#[test]
fn a_round_with_a_stranger_s_nodes_is_not_forgotten() {
    skip_without_server!();
    let site = Site::own("2pc-strange");
    let (proxy, zk) = site.proxied(QUIET);
    let (round, mut raw) = (round(&zk, &site), site.raw());
    assert_eq!(round.begin(&["a"]).unwrap().abort().unwrap(), Decision::Abort);
    raw.create_all(&format!("{}/r/notes/today", site.base)).unwrap();
    proxy.reset_counts();
    let error = round.forget().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert!(error.to_string().contains("notes"), "{error}");
    assert!(proxy.total_requests() < 20, "{:?}", proxy.requests());
    raw.delete(&format!("{}/r/notes/today", site.base)).unwrap();
    assert!(round.forget().unwrap());
    raw.close().unwrap();
    drop(round);
    site.finish([zk]);
}

/// Votes and the decision come between the two answers that make up the state.
#[test]
fn a_state_is_that_of_one_moment() {
    skip_without_server!();
    let site = Site::own("2pc-moment");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let round = round(&other, &site);
    let coordinator = round.begin(&["a"]).unwrap();
    let a = round.join("a").unwrap();
    let looks = self::round(&zk, &site);
    looks.state().unwrap();
    proxy.reset_counts();
    proxy.stall_reply(opcode::GET_CHILDREN);
    let state = in_background(move || looks.state());
    assert!(proxy.wait_for_request(opcode::GET_CHILDREN, SOON));
    a.vote(Vote::Yes).unwrap();
    assert_eq!(coordinator.decide().unwrap(), Decision::Commit);
    proxy.release();
    let state = state.recv_timeout(SOON).unwrap().unwrap().unwrap();
    let votes: Vec<_> = state.participants.iter().map(|one| one.vote).collect();
    assert!(
        state.decision.is_none() || votes == [Some(Vote::Yes)],
        "committed, but the votes are {votes:?}"
    );
    drop((a, coordinator, round));
    site.finish([zk, other]);
}

#[test]
fn a_round_begins_once_though_its_answer_is_lost() {
    skip_without_server!();
    let site = Site::own("2pc-once");
    let (proxy, zk) = site.proxied(T);
    let other = site.quiet_client();
    site.raw().create_all(&site.base).unwrap();
    let theirs = round(&other, &site);
    proxy.stall_reply(opcode::MULTI);
    let begins = round(&zk, &site);
    let beginning = in_background(move || begins.begin(&["a"]));
    eventually(SOON, "the round", || theirs.state().unwrap().is_some());
    proxy.refuse();
    // Meanwhile another client recovers, aborts and forgets the round.
    theirs.recover().unwrap().abort().unwrap();
    assert!(theirs.forget().unwrap());
    proxy.pass();
    let coordinator = beginning.recv_timeout(SOON).unwrap().unwrap();
    assert_eq!(kind(coordinator.decide()), ErrorKind::NotFound);
    assert_eq!(theirs.state().unwrap(), None, "it has begun again");
    drop(coordinator);
    drop(theirs);
    site.finish([zk, other]);
}

#[test]
fn a_vote_in_a_forgotten_round_says_so() {
    skip_without_zookeeper!();
    let site = Site::shared("2pc-vote-forgotten");
    let (zk, other) = (site.quiet_client(), site.quiet_client());
    let round = round(&other, &site);
    let participant = self::round(&zk, &site).join("a");
    assert_eq!(kind(participant), ErrorKind::NotFound);
    round.begin(&["a"]).unwrap().abort().unwrap();
    let participant = self::round(&zk, &site).join("a").unwrap();
    assert!(round.forget().unwrap());
    assert!(matches!(participant.lost().wait_within(SOON), Some(Err(_))));
    assert_eq!(kind(participant.vote(Vote::Yes)), ErrorKind::NotFound);
    // A new round of the same name does not accept its vote.
    let next = round.begin(&["a"]).unwrap();
    assert_eq!(kind(participant.vote(Vote::Yes)), ErrorKind::NotFound);
    drop(participant);
    // In a round that still exists, the participant is lost.
    let participant = self::round(&zk, &site).join("a").unwrap();
    site.raw().delete(participant.path()).unwrap();
    assert!(matches!(participant.lost().wait_within(SOON), Some(Err(_))));
    assert_eq!(kind(participant.vote(Vote::Yes)), ErrorKind::NodeDeleted);
    next.abort().unwrap();
    drop((participant, next, round));
    site.finish([zk, other]);
}
