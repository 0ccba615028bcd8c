use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use log::LevelFilter;
use zklock::group::{Member, Membership};
use zklock::{Acl, Client, ErrorKind, Group, LeaderElection, LossReason, Lost};

use crate::support::logs::logs;
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::{self, ALL, Kind};
use crate::support::site::Site;
use crate::support::{
    QUIET, connecting, eventually, in_background, kind, mutex, skip_unless_alone,
    skip_without_server, skip_without_zookeeper, threads_named,
};

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);
/// In the line about a member that the server does not let rejoin.
const REFUSED: &str = "cannot rejoin, retrying every 1s";

fn ids(members: Vec<Member>) -> Vec<String> {
    members.into_iter().map(|member| member.id).collect()
}

#[test]
fn members_come_and_go_and_are_seen() {
    skip_without_zookeeper!();
    let site = Site::shared("group");
    let clients = [site.client(), site.client()];
    let [ours, theirs] = clients.each_ref().map(|zk| Group::new(zk, &site.base, "a"));
    assert_eq!(ours.members().unwrap(), []);
    let mut changes = ours.observe();
    assert_eq!(changes.next_within(SOON).unwrap(), Some(Vec::new()));
    let second = theirs.join("second", "at 2").unwrap();
    assert_eq!(changes.next_within(SOON).unwrap().map(ids), Some(vec!["second".to_owned()]));
    let first = ours.join("first", "at 1").unwrap();
    assert!(first.is_member() && second.is_member());
    assert_eq!(first.path(), format!("{}/a/first", site.base));
    let members = changes.next_within(SOON).unwrap().expect("a change");
    let data: Vec<_> = members.iter().map(|one| (&*one.id, &*one.data, one.session)).collect();
    let [ours_id, theirs_id] = clients.each_ref().map(Client::session_id);
    assert_eq!(data, [("first", &b"at 1"[..], ours_id), ("second", b"at 2", theirs_id)]);
    assert_eq!(changes.next_within(BRIEF).unwrap(), None);
    second.leave().unwrap();
    assert_eq!(ids(ours.members().unwrap()), ["first"]);
    assert_eq!(changes.next_within(SOON).unwrap().map(ids), Some(vec!["first".to_owned()]));
    drop(first);
    assert_eq!(changes.next_within(SOON).unwrap(), Some(Vec::new()));
    drop((changes, ours, theirs));
    site.finish(clients);
}

#[test]
fn s80_a_membership_comes_back_in_a_new_session() {
    skip_without_server!();
    let site = Site::own("s80-member");
    let (proxy, zk) = site.proxied(Duration::from_secs(10));
    let other = site.client();
    let [ours, theirs] = [&zk, &other].map(|zk| Group::new(zk, &site.base, "a"));
    let membership = ours.join("me", "still here").unwrap();
    let mut raw = site.raw();
    for round in 0..3 {
        let before = zk.session_id();
        site.expire(&proxy);
        eventually(SOON, "a member of a new session", || {
            let members = theirs.members().unwrap();
            members.iter().any(|one| one.session != before && one.data == b"still here")
        });
        eventually(SOON, "the membership to know", || membership.is_member());
        // It also comes back when another client deletes its node.
        raw.delete(membership.path()).unwrap();
        eventually(SOON, "the node", || ids(theirs.members().unwrap()) == ["me"]);
        // And when the group's node is deleted with it.
        if round == 1 {
            // In one transaction: otherwise the member would be back before its parent is deleted.
            let group = format!("{}/a", site.base);
            raw.delete_together([membership.path(), &group].into_iter()).unwrap();
            eventually(SOON, "the group", || ids(theirs.members().unwrap()) == ["me"]);
        }
    }
    membership.leave().unwrap();
    assert_eq!(theirs.members().unwrap(), []);
    raw.close().unwrap();
    drop((ours, theirs));
    site.finish([zk, other]);
}

/// When a killed program starts again, its former session still occupies its id.
#[test]
fn who_comes_again_waits_for_its_former_self() {
    skip_without_zookeeper!();
    let site = Site::shared("group-again");
    let zk = site.client();
    let group = Group::new(&zk, &site.base, "a");
    drop(group.join("nobody", "").unwrap());
    let mut former = site.raw();
    let path = format!("{}/a/me", site.base);
    former.create(&path, b"once", Kind::Ephemeral).unwrap();
    thread::scope(|scope| {
        let joining = scope.spawn(|| group.join("me", "again"));
        eventually(SOON, "a wait", || zk.stats().watches > 0);
        former.close().unwrap();
        let membership = joining.join().unwrap().unwrap();
        assert_eq!(group.members().unwrap()[0].data, b"again");
        // Another client of the same program, too, finds the id taken.
        let late = site.builder().connect_timeout(Duration::from_millis(300)).connect().unwrap();
        let error = Group::new(&late, &site.base, "a").join("me", "").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Taken, "{error}");
        assert!(error.is_retryable());
        assert_eq!(error.path(), Some(&*path));
        drop(membership);
    });
    drop(group);
    site.finish([zk]);
}

#[test]
fn lost_answers_leave_one_node_or_none() {
    skip_without_server!();
    let site = Site::own("group-lost");
    let (proxy, zk) = site.proxied(Duration::from_secs(10));
    let group = Group::new(&zk, &site.base, "a");
    for round in 0..3 {
        proxy.drop_reply(opcode::CREATE, 1);
        let membership = group.join("me", "").unwrap();
        assert_eq!(ids(group.members().unwrap()), ["me"], "{round}");
        proxy.drop_reply(opcode::DELETE, 1);
        membership.leave().unwrap();
        assert_eq!(group.members().unwrap(), [], "{round}");
    }
    // While no server answers, the node is deleted in the background.
    let membership = group.join("me", "").unwrap();
    proxy.refuse();
    drop(membership);
    proxy.release();
    site.wait_for_children("a", 0);
    drop(group);
    site.finish([zk]);
}

/// A client's memberships need threads only while they rejoin, and never one each.
#[test]
fn many_memberships_share_a_few_threads() {
    skip_without_server!();
    skip_unless_alone!();
    const MANY: usize = 500;
    let site = Site::own("group-threads");
    let (proxy, zk) = site.proxied(Duration::from_secs(10));
    let group = Group::new(&zk, &site.base, "a");
    let count = || threads_named("zklock-member").len();
    let members: Vec<Membership> =
        (0..MANY).map(|id| group.join(id.to_string(), "").unwrap()).collect();
    assert_eq!(count(), 0, "while none is lost");
    let losses: Vec<Lost> = members.iter().map(Membership::lost).collect();
    site.expire(&proxy);
    let mut most = 0;
    eventually(SOON, "all are back", || {
        most = most.max(count());
        let are_lost = losses.iter().all(|lost| lost.reason().is_some());
        are_lost && members.iter().all(Membership::is_member)
    });
    assert!((1..=32).contains(&most), "{most} threads");
    assert_eq!(group.members().unwrap().len(), MANY);
    eventually(SOON, "the end of the threads", || count() == 0);
    zk.close();
    assert!(!members.iter().any(Membership::is_member));
    drop(members);
    eventually(SOON, "the end of the threads", || count() == 0);
    drop(group);
    site.finish([zk]);
}

/// More members of a client wait for their ids than it has threads to rejoin with.
#[test]
fn members_whose_ids_are_taken_hold_up_no_other() {
    skip_without_server!();
    const MANY: usize = 50;
    let site = Site::own("group-taken");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let [ours, theirs] = [&zk, &other].map(|zk| Group::new(zk, &site.base, "a"));
    let members: Vec<Membership> =
        (0..MANY).map(|id| ours.join(id.to_string(), "ours").unwrap()).collect();
    let last = ours.join("last", "ours").unwrap();
    proxy.hold();
    let mut raw = site.raw();
    members.iter().for_each(|member| raw.delete(member.path()).unwrap());
    let since: Vec<Membership> =
        (0..MANY).map(|id| theirs.join(id.to_string(), "theirs").unwrap()).collect();
    proxy.release();
    eventually(SOON, "all to know", || !members.iter().any(Membership::is_member));
    raw.delete(last.path()).unwrap();
    eventually(SOON, "the last to know", || last.lost().reason().is_none() && last.is_member());
    eventually(SOON, "its node", || {
        ours.members().unwrap().iter().any(|one| one.id == "last" && one.data == b"ours")
    });
    drop(since);
    eventually(SOON, "all are back", || members.iter().all(Membership::is_member));
    raw.close().unwrap();
    drop((members, last, ours, theirs));
    site.finish([zk, other]);
}

/// More members of a client are refused than its threads could ask for in time, one after the other.
#[test]
fn members_that_are_refused_hold_up_no_other() {
    skip_without_server!();
    skip_unless_alone!();
    const MANY: usize = 640;
    let logs = logs(LevelFilter::Warn);
    let site = Site::own("group-refused");
    let (zk, mut raw) = (site.quiet_client(), site.raw());
    let [closed, open] = ["a", "b"].map(|name| Group::new(&zk, &site.base, name));
    let members: Vec<Membership> =
        (0..MANY).map(|id| closed.join(id.to_string(), "").unwrap()).collect();
    let last = open.join("last", "").unwrap();
    raw.add_auth("digest", b"me:secret").unwrap();
    let node = format!("{}/a", site.base);
    let (read, owner) = (raw::Acl::new(1, "world", "anyone"), raw::Acl::new(ALL, "auth", ""));
    raw.set_acl(&node, &[read, owner]).unwrap();
    members.iter().for_each(|member| raw.delete(member.path()).unwrap());
    eventually(SOON * 4, "the refusals", || {
        logs.warnings().iter().filter(|one| one.contains(REFUSED)).count() == MANY
    });
    let (lost, (tell, told)) = (last.lost(), channel());
    last.on_rejoined(move || tell.send(()).unwrap());
    raw.delete(last.path()).unwrap();
    assert_eq!(lost.wait_within(SOON), Some(Err(LossReason::NodeDeleted)));
    told.recv_timeout(SOON).unwrap();
    raw.set_acl(&node, &raw::Acl::open()).unwrap();
    eventually(SOON * 4, "all are back", || members.iter().all(Membership::is_member));
    raw.close().unwrap();
    drop((members, last, closed, open));
    site.finish([zk]);
}

/// More members of a client are lost in an outage than it has threads to rejoin with.
#[test]
fn in_an_outage_all_members_are_told_of_their_loss() {
    skip_without_server!();
    const MANY: usize = 50;
    let site = Site::own("group-outage");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let group = Group::new(&zk, &site.base, "a");
    let members: Vec<Membership> =
        (0..MANY).map(|id| group.join(id.to_string(), "").unwrap()).collect();
    let (tell, told) = channel();
    for member in &members {
        let tell = tell.clone();
        member.on_lost(move |why| tell.send(why).unwrap());
    }
    proxy.refuse();
    for _ in 0..MANY {
        told.recv_timeout(SOON).unwrap();
    }
    proxy.pass();
    eventually(SOON, "all are back", || members.iter().all(Membership::is_member));
    drop((members, group));
    site.finish([zk]);
}

#[test]
fn what_is_refused_is_said() {
    skip_without_zookeeper!();
    let site = Site::shared("group-refused");
    let zk = site.client();
    let group = Group::new(&zk, &site.base, "a");
    for id in ["", ".", "a/b", "a\n", "zookeeper\0"] {
        assert_eq!(kind(group.join(id, "")), ErrorKind::InvalidName, "{id:?}");
    }
    assert_eq!(kind(Group::new(&zk, "no path", "a").members()), ErrorKind::InvalidName);
    assert_eq!(kind(group.join("me", vec![0; 1 << 20])), ErrorKind::TooLarge);
    let membership = group.join("me", "").unwrap();
    let mut raw = site.raw();
    raw.add_auth("digest", b"me:secret").unwrap();
    let node = format!("{}/a", site.base);
    let (read, owner) = (raw::Acl::new(1, "world", "anyone"), raw::Acl::new(ALL, "auth", ""));
    raw.set_acl(&node, &[read, owner]).unwrap();
    assert_eq!(kind(group.join("you", "")), ErrorKind::NotAuthorized);
    assert_eq!(kind(membership.leave()), ErrorKind::NotAuthorized);
    let (all, owner) = (raw::Acl::new(ALL, "world", "anyone"), raw::Acl::new(ALL, "auth", ""));
    raw.set_acl(&node, &[all, owner]).unwrap();
    site.wait_for_children("a", 0);
    raw.close().unwrap();
    drop(group);
    site.finish([zk]);
}

#[test]
fn nobody_to_ask_ends_joining_in_time() {
    skip_without_server!();
    let site = Site::own("group-nobody");
    let proxy = Proxy::start(site.server().addr());
    let zk = connecting(&proxy.hosts())
        .session_timeout(Duration::from_secs(30))
        .connect_timeout(Duration::from_secs(2))
        .connect()
        .unwrap();
    let group = Group::new(&zk, &site.base, "a");
    proxy.stall_reply(opcode::CREATE);
    assert_eq!(kind(group.join("me", "")), ErrorKind::Connect);
    proxy.release();
    // The node that the late answer reports is deleted.
    site.wait_for_children("a", 0);
    eventually(SOON, "the last delete", || zk.stats().pending_deletes == 0);
    site.wait_for_children("a", 0);
    drop(group);
    site.finish([zk]);
}

/// A client that waits for the id gets it when an operator deletes the node, before the first
/// member is back.
#[test]
fn whoever_has_the_id_since_keeps_it() {
    skip_without_server!();
    let site = Site::own("group-since");
    let (proxy, zk) = site.proxied(QUIET);
    let other = site.quiet_client();
    let [ours, theirs] = [&zk, &other].map(|zk| Group::new(zk, &site.base, "a"));
    let former = ours.join("me", "former").unwrap();
    let (tell, told) = channel();
    let back = tell.clone();
    former.on_lost(move |why| tell.send(Some(why)).unwrap());
    former.on_rejoined(move || back.send(None).unwrap());
    for leaves in [false, true] {
        let lost = former.lost();
        assert!(former.is_member() && lost.reason().is_none());
        proxy.hold();
        site.raw().delete(former.path()).unwrap();
        let since = theirs.join("me", "since").unwrap();
        let members = theirs.members().unwrap();
        proxy.release();
        assert_eq!(told.recv_timeout(SOON).unwrap(), Some(LossReason::NodeDeleted));
        assert_eq!(lost.wait_within(SOON), Some(Err(LossReason::NodeDeleted)));
        assert!(!former.is_member(), "another client has the id");
        // A callback that is set only now is called at once.
        let (tell, late) = channel();
        former.on_lost(move |why| tell.send(why).unwrap());
        assert_eq!(late.recv_timeout(SOON).unwrap(), LossReason::NodeDeleted);
        assert!(former.lost().reason().is_some() && since.is_member());
        if leaves {
            former.leave().unwrap();
            assert_eq!(theirs.members().unwrap(), members);
            assert!(since.is_member());
            break;
        }
        drop(since);
        assert_eq!(told.recv_timeout(SOON).unwrap(), None, "on_rejoined is called");
        assert!(former.is_member() && former.lost().reason().is_none());
        assert_eq!(theirs.members().unwrap()[0].data, b"former");
    }
    assert!(told.recv_timeout(BRIEF).is_err(), "a callback was called after it has left");
    drop((ours, theirs));
    site.finish([zk, other]);
}

#[test]
fn a_membership_that_may_not_come_back_is_none() {
    skip_without_zookeeper!();
    skip_unless_alone!();
    let logs = logs(LevelFilter::Warn);
    let site = Site::shared("group-forbidden");
    let (zk, mut raw) = (site.quiet_client(), site.raw());
    let group = Group::new(&zk, &site.base, "a");
    let membership = group.join("me", "").unwrap();
    raw.add_auth("digest", b"me:secret").unwrap();
    let node = format!("{}/a", site.base);
    let (read, owner) = (raw::Acl::new(1, "world", "anyone"), raw::Acl::new(ALL, "auth", ""));
    raw.set_acl(&node, &[read, owner]).unwrap();
    raw.delete(membership.path()).unwrap();
    assert_eq!(membership.lost().wait_within(SOON), Some(Err(LossReason::NodeDeleted)));
    // Nothing but the refusal tells when to ask again.
    eventually(SOON, "a refusal", || logs.warnings().iter().any(|one| one.contains(REFUSED)));
    assert!(!membership.is_member());
    let (tell, told) = channel();
    membership.on_rejoined(move || tell.send(()).unwrap());
    raw.set_acl(&node, &raw::Acl::open()).unwrap();
    told.recv_timeout(SOON).unwrap();
    assert!(membership.is_member());
    raw.close().unwrap();
    drop((membership, group));
    site.finish([zk]);
}

/// The second call waits, even if the answers that tell whose node it is are lost.
#[test]
fn one_client_has_an_id_once() {
    skip_without_server!();
    let site = Site::own("group-once");
    let (proxy, zk) = site.proxied(QUIET);
    let group = Group::new(&zk, &site.base, "a");
    drop(group.join("nobody", "").unwrap());
    // Both have seen that there is no such node when they create it.
    proxy.hold();
    let joining = ["one", "two"].map(|data| {
        let group = group.clone();
        in_background(move || group.join("me", data))
    });
    proxy.drop_reply(opcode::CREATE, 2);
    proxy.release();
    let told = in_background(move || {
        let [one, two] = joining;
        loop {
            match (one.recv_timeout(BRIEF), two.try_recv()) {
                (Ok(first), second) => return (first, second.ok(), two),
                (Err(_), Ok(first)) => return (first, one.try_recv().ok(), one),
                _ => {}
            }
        }
    });
    let (first, second, other) = told.recv_timeout(SOON).unwrap();
    let first = first.unwrap();
    assert!(second.is_none(), "two have one id");
    assert!(first.is_member());
    assert!(other.recv_timeout(BRIEF).is_err(), "two have one id");
    first.leave().unwrap();
    let second = other.recv_timeout(SOON).unwrap().unwrap();
    assert!(second.is_member());
    drop((second, group));
    site.finish([zk]);
}

/// The member's node was made anew, but the answer has not arrived, when the member leaves.
#[test]
fn once_left_no_node_is_there() {
    skip_without_server!();
    let site = Site::own("group-left");
    let (proxy, zk) = site.proxied(QUIET);
    let group = Group::new(&zk, &site.base, "a");
    let membership = group.join("me", "").unwrap();
    proxy.reset_counts();
    proxy.stall_reply(opcode::CREATE);
    site.raw().delete(membership.path()).unwrap();
    assert!(proxy.wait_for_request(opcode::CREATE, SOON));
    site.wait_for_children("a", 1);
    let leaving = in_background(move || membership.leave());
    assert!(leaving.recv_timeout(BRIEF).is_err(), "it returned while its node was there");
    proxy.release();
    leaving.recv_timeout(SOON).unwrap().unwrap();
    assert_eq!(site.children("a").len(), 0);
    drop(group);
    site.finish([zk]);
}

/// Otherwise the answer would end the client on the thread that brings it.
#[test]
fn a_join_that_is_given_up_keeps_no_client() {
    skip_without_server!();
    let site = Site::own("group-given-up");
    let (proxy, zk) = site.proxied(QUIET);
    let group = Group::new(&zk, &site.base, "a");
    assert!(group.join("before", "").unwrap().leave().is_ok());
    proxy.reset_counts();
    proxy.stall_reply(opcode::CREATE);
    assert!(group.join_within("me", "", Duration::from_millis(500)).is_err());
    assert!(proxy.wait_for_request(opcode::CREATE, SOON));
    drop((group, zk));
    assert!(proxy.wait_for_request(opcode::CLOSE_SESSION, SOON), "the client lives on");
    proxy.release();
    site.finish([]);
}

#[test]
fn a_member_that_may_not_be_read_is_there_without_its_data() {
    skip_without_zookeeper!();
    let site = Site::shared("group-private");
    let logs = logs(LevelFilter::Warn);
    let (zk, owner) =
        (site.quiet_client(), site.builder().auth("digest", "me:secret").connect().unwrap());
    let group = Group::new(&zk, &site.base, "a");
    let open = group.join("open", "at 1").unwrap();
    let mut changes = group.observe();
    assert_eq!(changes.next_within(SOON).unwrap().map(ids), Some(vec!["open".to_owned()]));
    let private = Group::new(&owner, &site.base, "a").acl([Acl::creator_only()]);
    let hidden = private.join("private", "at 2").unwrap();
    let seen = changes.next_within(SOON).unwrap().expect("a change");
    let data: Vec<_> = seen.iter().map(|one| (&*one.id, &*one.data, one.session)).collect();
    let [ours, mut theirs] = [&zk, &owner].map(Client::session_id);
    if site.raw().exists(hidden.path()).is_err() {
        // These servers hide a node's session from clients that may not read its data.
        theirs = None;
    }
    assert_eq!(data, [("open", &b"at 1"[..], ours), ("private", b"", theirs)]);
    assert_eq!(group.members().unwrap(), seen);
    assert_eq!(private.members().unwrap()[1].data, b"at 2");
    let warnings = logs.warnings();
    let warned = warnings.iter().filter(|line| line.contains(hidden.path())).count();
    assert_eq!(warned, 1, "{warnings:#?}");
    // The observer goes on.
    hidden.leave().unwrap();
    assert_eq!(changes.next_within(SOON).unwrap().map(ids), Some(vec!["open".to_owned()]));
    drop((open, changes, group, private));
    site.finish([zk, owner]);
}

#[test]
fn looks_ask_the_ensembles_leader_first() {
    skip_without_server!();
    let site = Site::own("latest");
    let (proxy, zk) = site.proxied(QUIET);
    let group = Group::new(&zk, &site.base, "a");
    let election = LeaderElection::new(&zk, &site.base, "b");
    let membership = group.join("me", "").unwrap();
    let leadership = election.campaign().unwrap();
    let lock = mutex(&zk, &site.base, "b");
    let asks = |what: &dyn Fn() -> usize| {
        // A watch that is set a moment later does not count.
        proxy.reset_counts();
        assert_eq!(what(), 1);
        let all = proxy.requests().into_iter().map(|one| one.opcode);
        let lists = [opcode::GET_CHILDREN, opcode::GET_CHILDREN2];
        let all = all.filter(|one| *one == opcode::SYNC || lists.contains(one));
        all.map(|one| if lists.contains(&one) { opcode::GET_CHILDREN } else { one })
            .collect::<Vec<_>>()
    };
    let looks: [&dyn Fn() -> usize; 4] = [
        &|| group.members().unwrap().len(),
        &|| election.leader().unwrap().iter().count(),
        &|| election.contenders().unwrap().len(),
        &|| lock.contenders().unwrap().len(),
    ];
    for look in looks {
        assert_eq!(asks(look), [opcode::SYNC, opcode::GET_CHILDREN]);
    }
    proxy.reset_counts();
    zk.sync().unwrap();
    assert_eq!((proxy.count(opcode::SYNC), proxy.total_requests()), (1, 1));
    drop((membership, leadership, group, election, lock));
    site.finish([zk]);
}

/// Each look reads only the members that have joined since the one before.
#[test]
fn what_an_observer_knows_is_not_read_again() {
    skip_without_server!();
    let site = Site::own("group-known");
    let (proxy, zk) = site.proxied(QUIET);
    let mut raw = site.raw();
    let group = format!("{}/a", site.base);
    raw.create_all(&group).unwrap();
    let mut join = |id: &str, data: &str| {
        raw.create(&format!("{group}/{id}"), data.as_bytes(), Kind::Ephemeral).unwrap()
    };
    (0..300).for_each(|number| drop(join(&format!("m{number:03}"), "one of many")));
    let mut changes = Group::new(&zk, &site.base, "a").observe();
    assert_eq!(changes.next_within(SOON).unwrap().unwrap().len(), 300);
    proxy.reset_counts();
    join("x", "new");
    let members = changes.next_within(SOON).unwrap().unwrap();
    assert_eq!((members.len(), &*members[300].id, &*members[300].data), (301, "x", &b"new"[..]));
    assert!(members[..300].iter().all(|member| member.data == b"one of many"));
    assert_eq!(proxy.total_requests(), 2, "{:?}", proxy.requests());
    proxy.reset_counts();
    site.raw().delete(&format!("{group}/m007")).unwrap();
    assert_eq!(changes.next_within(SOON).unwrap().unwrap().len(), 300);
    assert_eq!(proxy.total_requests(), 1);
    // One that has left and joined again between two looks has other data now.
    site.raw().delete(&format!("{group}/x")).unwrap();
    join("x", "newer");
    let members = changes.next_within(SOON).unwrap().unwrap();
    assert_eq!((members.len(), &*members[299].data), (300, &b"newer"[..]));
    raw.close().unwrap();
    drop(changes);
    site.finish([zk]);
}

/// A member each round trip would take ten times as long as the client waits for an ensemble.
#[test]
fn a_large_group_that_is_far_away_is_read_in_time() {
    skip_without_server!();
    let site = Site::own("group-far");
    let mut raw = site.raw();
    let group = format!("{}/a", site.base);
    raw.create_all(&group).unwrap();
    // An ACL hides the data of half of them.
    let hiding = [raw::Acl::new(ALL & !1, "world", "anyone")];
    for number in 0..1_000 {
        let member = raw.create(&format!("{group}/{number}"), b"", Kind::Ephemeral).unwrap();
        if number % 2 == 0 {
            raw.set_acl(&member, &hiding).unwrap();
        }
    }
    let proxy = Proxy::start(site.server().addr());
    let zk = connecting(&proxy.hosts()).connect_timeout(Duration::from_secs(4)).connect().unwrap();
    proxy.delay(Duration::from_millis(10));
    let start = Instant::now();
    assert_eq!(Group::new(&zk, &site.base, "a").members().unwrap().len(), 1_000);
    println!("1,000 members, half of them hidden, 20 ms away: {:?}", start.elapsed());
    proxy.pass();
    raw.close().unwrap();
    site.finish([zk]);
}

/// The server knows of it only when it ends the session.
#[test]
fn leaving_is_no_success_if_the_server_did_not_hear_of_it() {
    skip_without_server!();
    let site = Site::own("group-unheard");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let join = |id: &str| Group::new(&zk, &site.base, "a").join(id, "").unwrap();
    let (heard, waiting, away) = (join("heard"), join("waiting"), ["a", "b", "c", "d"].map(join));
    heard.leave().unwrap();
    proxy.refuse();
    assert_eq!(kind(waiting.leave()), ErrorKind::SessionLost);
    // The loss was noticed before, and one of them waits for a session for all.
    for member in &away {
        assert!(member.lost().wait_within(SOON).is_some());
        let (tell, told) = channel();
        member.on_lost(move |why| tell.send(why).unwrap());
        told.recv_timeout(SOON).unwrap();
    }
    for member in away.into_iter().rev() {
        assert_eq!(kind(member.leave()), ErrorKind::SessionLost);
    }
    proxy.pass();
    site.finish([zk]);
}
