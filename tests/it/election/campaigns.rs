//! One leader at a time, by campaigns of their own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use zklock::election::{ElectionPhase, ElectionProgress};
use zklock::{
    Acl, Cancel, Changes, Contender, ErrorKind, LeaderElection, Leadership, LossReason, NodeNaming,
};

use super::{BRIEF, SOON, election, last_kind, ms, named};
use crate::support::proxy::opcode;
use crate::support::raw;
use crate::support::site::Site;
use crate::support::{
    QUIET, eventually, got_nothing, kind, skip_without_server, skip_without_zookeeper, strict,
};

#[test]
fn s73_over_expiry_there_is_one_leader_and_the_old_one_is_told() {
    skip_without_server!();
    let site = Site::own("s73");
    let (proxy, zk) = site.proxied(ms(3_000));
    let clients = [site.client(), site.client()];
    let first = named(&zk, &site, "first");
    let others = clients.each_ref().map(|zk| election(zk, &site));
    let old = first.campaign().unwrap();
    let (session, calls) = (zk.session_id(), AtomicUsize::new(0));
    let (tell, told) = mpsc::channel();
    old.on_lost(move |why| tell.send(why).unwrap());
    let (leads, leaders) = mpsc::channel();
    thread::scope(|scope| {
        for (number, election) in others.iter().enumerate() {
            let (leads, calls) = (leads.clone(), &calls);
            scope.spawn(move || {
                let leadership = election.campaign().unwrap();
                calls.fetch_add(1, Ordering::SeqCst);
                leads.send(leadership).unwrap();
            });
            site.wait_for_children("a", 2 + number);
        }
        proxy.black_hole();
        let second = leaders.recv_timeout(SOON).expect("the next leader");
        assert!(!old.is_held());
        assert!(second.fencing_token() > old.fencing_token());
        assert_eq!(told.recv_timeout(SOON), Ok(LossReason::LeaseExpired));
        assert!(told.recv().is_err(), "on_lost was called twice");
        assert_eq!(old.lost().reason(), Some(LossReason::LeaseExpired));
        second.ensure_held().unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 1, "two of the others lead");
        proxy.pass();
        assert_eq!(kind(old.ensure_held()), ErrorKind::SessionLost);
        assert_eq!(kind(old.resign()), ErrorKind::SessionLost);
        // It can campaign again, behind the candidate that waits.
        let again = scope.spawn(|| first.campaign().unwrap());
        site.wait_for_children("a", 3);
        second.resign().unwrap();
        let third = leaders.recv_timeout(SOON).expect("the third leader");
        assert!(!again.is_finished());
        third.resign().unwrap();
        let again = again.join().unwrap();
        assert_ne!(zk.session_id(), session);
        again.ensure_held().unwrap();
        again.resign().unwrap();
    });
    drop((first, others));
    site.finish(clients.into_iter().chain([zk]));
}

#[test]
fn s73_a_leader_keeps_its_leadership_over_a_restart_of_the_server() {
    skip_without_server!();
    let site = Site::own("s73-restart");
    let clients = [(); 2].map(|()| site.builder().session_timeout(QUIET).connect().unwrap());
    let [ours, theirs] = clients.each_ref().map(|zk| election(zk, &site));
    let leadership = ours.campaign().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| theirs.campaign().unwrap());
        site.wait_for_children("a", 2);
        site.server().restart();
        leadership.ensure_held().unwrap();
        assert!(!waiter.is_finished());
        let token = leadership.fencing_token();
        leadership.resign().unwrap();
        assert!(waiter.join().unwrap().fencing_token() > token);
    });
    drop((ours, theirs));
    site.finish(clients);
}

#[test]
fn s74_closed_while_its_create_is_under_way_it_leaves_no_node() {
    skip_without_server!();
    for (number, withheld) in ["reply", "reply", "request", "request"].into_iter().enumerate() {
        let site = Site::own("s74");
        let (proxy, zk) = site.proxied(ms(4_000));
        let election = election(&zk, &site);
        site.raw().create_all(&format!("{}/a", site.base)).unwrap();
        if withheld == "reply" {
            proxy.stall_reply(opcode::CREATE);
        } else {
            proxy.hold();
        }
        thread::scope(|scope| {
            let supervised = number % 2 == 1;
            let election = &election;
            let campaign = scope.spawn(move || {
                if supervised {
                    election.lead::<()>(|_| panic!("it leads")).map(drop)
                } else {
                    election.campaign().map(drop)
                }
            });
            if withheld == "reply" {
                site.wait_for_children("a", 1);
            } else {
                assert!(proxy.wait_for_request(opcode::CREATE, SOON));
            }
            zk.close();
            assert_eq!(kind(campaign.join().unwrap()), ErrorKind::Closed);
            if supervised {
                assert_eq!(last_kind(election), ErrorKind::Closed);
                assert_eq!(election.progress().terms, 0);
            }
        });
        assert_eq!(election.progress().phase, ElectionPhase::Idle);
        proxy.pass();
        eventually(SOON, "the node to go", || {
            site.children("a").is_empty() && site.server().counter("zk_ephemerals_count") == 0
        });
        assert_eq!(kind(election.campaign()), ErrorKind::Closed);
        drop(election);
        site.finish([zk]);
    }
}

#[test]
fn a_campaign_can_be_bounded_and_cancelled_and_leaves_no_node() {
    skip_without_zookeeper!();
    let site = Site::shared("limits");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| election(zk, &site));
    drop(ours.try_campaign().unwrap().expect("no other candidate"));
    drop(ours.campaign_within(SOON).unwrap().expect("in time"));
    drop(ours.campaign_within(Instant::now() + SOON).unwrap().expect("in time"));
    site.wait_for_children("a", 0);
    let leadership = ours.try_campaign().unwrap().expect("no other candidate");
    assert!(theirs.try_campaign().unwrap().is_none());
    let began = Instant::now();
    assert!(got_nothing(theirs.campaign_within(BRIEF)));
    assert!(began.elapsed() >= BRIEF);
    assert!(theirs.campaign_within(Instant::now()).unwrap().is_none());
    site.wait_for_only("a", leadership.path());
    let cancel = Cancel::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| kind(theirs.campaign_within(&cancel)));
        site.wait_for_children("a", 2);
        cancel.cancel();
        assert_eq!(waiter.join().unwrap(), ErrorKind::Cancelled);
    });
    assert_eq!(kind(theirs.campaign_within(&cancel)), ErrorKind::Cancelled);
    site.wait_for_only("a", leadership.path());
    drop(leadership);
    site.wait_for_children("a", 0);
    drop((ours, theirs));
    site.finish(clients);
}

/// Nothing is handed over: each campaign waits for its own turn, even several on one value.
#[test]
fn each_campaign_has_a_node_of_its_own() {
    skip_without_zookeeper!();
    let site = Site::shared("own-node");
    let zk = site.client();
    let election = election(&zk, &site);
    let first = election.campaign().unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| election.campaign().unwrap());
        site.wait_for_children("a", 2);
        assert!(election.try_campaign().unwrap().is_none());
        let (path, token) = (first.path().to_owned(), first.fencing_token());
        drop(first);
        let second = second.join().unwrap();
        assert_ne!(second.path(), path);
        assert!(second.fencing_token() > token);
        assert_eq!(second.fencing_token().turn(), 0);
        assert!(format!("{second:?}").contains("is_held: true"), "{second:?}");
    });
    drop(election);
    site.finish([zk]);
}

#[test]
fn an_election_is_a_mutex_to_those_who_share_its_path() {
    skip_without_zookeeper!();
    for naming in [NodeNaming::Curator, NodeNaming::Kazoo] {
        let site = Site::shared("shared-path");
        let clients = [site.client(), site.client()];
        let builder = LeaderElection::new(&clients[0], &site.base, "a").naming(naming);
        let election = builder.id("leader");
        let lock = strict(&clients[1], &site.base, "a");
        let guard = lock.lock().unwrap();
        assert!(election.try_campaign().unwrap().is_none());
        drop(guard);
        let leadership = election.campaign().unwrap();
        assert!(lock.try_lock().unwrap().is_none());
        assert_eq!(lock.contenders().unwrap()[0].label(), "leader");
        let (tell, told) = mpsc::channel();
        leadership.on_release_requested(move || tell.send(()).unwrap());
        assert_eq!(lock.request_release().unwrap(), 1);
        told.recv_timeout(SOON).unwrap();
        assert!(leadership.release_requested() && leadership.is_held());
        leadership.resign().unwrap();
        assert!(lock.try_lock().unwrap().is_some());
        drop((election, lock));
        site.finish(clients);
    }
}

#[test]
fn bad_names_are_refused_before_anything_is_asked() {
    skip_without_server!();
    let site = Site::own("election-names");
    let (proxy, zk) = site.proxied(QUIET);
    let long = "n".repeat(1_025);
    for (base, name) in [
        ("", "a"),
        ("locks", "a"),
        ("/lo//cks", "a"),
        ("/locks", ""),
        ("/locks", "a/b"),
        ("/a", &long),
    ] {
        let election = LeaderElection::new(&zk, base, name);
        let kinds = [
            kind(election.campaign()),
            kind(election.campaign_within(&Cancel::new())),
            kind(election.try_campaign()),
            kind(election.campaign_within(SOON)),
            kind(election.campaign_within(Instant::now())),
            kind(election.lead::<()>(|_| panic!("it leads"))),
            kind(election.leader()),
            kind(election.contenders()),
            kind(election.observe().next_within(SOON)),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidName; 9], "{base:?} {name:?}");
        let mut observer = election.observe();
        assert_eq!(kind(observer.next().unwrap()), ErrorKind::InvalidName);
        assert!(observer.next().is_none(), "it goes on after an error");
    }
    for id in ["__REVOKE__", "unlock"] {
        let election = LeaderElection::new(&zk, &site.base, "a").id(id);
        assert_eq!(kind(election.campaign()), ErrorKind::InvalidArgument);
    }
    assert_eq!(proxy.requests(), []);
    site.finish([zk]);
}

#[test]
fn s70_its_acl_covers_the_elections_node_and_the_candidates() {
    skip_without_zookeeper!();
    let site = Site::shared("election-acl");
    let owner = site.builder().auth("digest", b"owner:secret").connect().unwrap();
    let stranger = site.client();
    let mut meddler = site.raw();
    meddler.create_all(&site.base).unwrap();
    let theirs = election(&stranger, &site);
    let builder = LeaderElection::new(&owner, &site.base, "a").id("secret");
    let ours = builder.acl(Acl::creator_only());
    let leadership = ours.campaign().unwrap();
    for path in [&format!("{}/a", site.base), leadership.path()] {
        assert_eq!(meddler.get_data(path).unwrap_err().code(), Some(raw::NO_AUTH), "{path}");
    }
    for refused in [
        kind(theirs.campaign()),
        kind(theirs.lead::<()>(|_| panic!("it leads"))),
        kind(theirs.leader()),
        kind(theirs.contenders()),
        kind(theirs.observe().next_within(SOON)),
    ] {
        assert_eq!(refused, ErrorKind::NotAuthorized);
    }
    assert_eq!(last_kind(&theirs), ErrorKind::NotAuthorized);
    assert_eq!(ours.leader().unwrap().expect("ours").label(), "secret");
    leadership.resign().unwrap();
    meddler.add_auth("digest", b"owner:secret").unwrap();
    meddler.delete_recursive(&site.base).unwrap();
    // A candidate that can be listed, but not read.
    meddler.create_all(&format!("{}/a", site.base)).unwrap();
    let hiding = LeaderElection::new(&owner, &site.base, "a").id("secret");
    let hiding = hiding.acl(Acl::creator_only());
    let leadership = hiding.campaign().unwrap();
    let leader = theirs.leader().unwrap().expect("a leader");
    assert_eq!((leader.label().as_str(), &*leader.path), ("", leadership.path()));
    leadership.resign().unwrap();
    meddler.close().unwrap();
    drop((ours, theirs, hiding));
    site.finish([owner, stranger]);
}

#[test]
fn values_can_be_shared_and_sent_and_a_leadership_cannot_be_cloned() {
    trait CloneOrNot<Answer> {
        fn ask() {}
    }
    struct Clones;
    impl<T> CloneOrNot<()> for T {}
    impl<T: Clone> CloneOrNot<Clones> for T {}
    // Ambiguous, so that it does not compile, for a type that is `Clone`.
    <Leadership as CloneOrNot<_>>::ask();

    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<Leadership>();
    anywhere::<LeaderElection>();
    anywhere::<Contender>();
    anywhere::<ElectionProgress>();
    fn sent<T: Send + 'static>() {}
    sent::<Changes<Option<Contender>>>();
}
