//! Data beside the locks, and transactions.

use std::thread;
use std::time::Duration;

use zklock::value::Versioned;
use zklock::znode::{CreateMode, CreateOptions, StepResult};
use zklock::{Acl, Client, Error, ErrorKind, Permissions, SharedValue};

use crate::support::proxy::opcode;
use crate::support::site::Site;
use crate::support::{
    connecting, kind, skip_before, skip_without_server, skip_without_zookeeper, unanswered,
};

const SOON: Duration = Duration::from_secs(15);
const BRIEF: Duration = Duration::from_millis(50);
/// The connect timeout.
const LIMIT: Duration = Duration::from_secs(2);

fn text(value: Option<Versioned>) -> Option<String> {
    value.map(|value| String::from_utf8(value.data).unwrap())
}

fn read(zk: &Client, path: &str) -> Option<String> {
    text(zk.znode(path).read().unwrap())
}

fn at(site: &Site, name: &str) -> String {
    format!("{}/{name}", site.base)
}

#[test]
fn a_node_is_created_read_written_and_deleted() {
    skip_without_zookeeper!();
    let site = Site::shared("znode");
    let (zk, other) = (site.client(), site.client());
    let path = at(&site, "above/a");
    let (ours, theirs) = (zk.znode(&path), other.znode(&path));
    assert_eq!((ours.read().unwrap(), ours.stat().unwrap()), (None, None));
    assert_eq!((ours.children().unwrap(), ours.acl().unwrap()), (None, None));
    assert_eq!(kind(ours.write("x")), ErrorKind::NotFound);
    assert_eq!(kind(ours.delete()), ErrorKind::NotFound);
    assert_eq!(kind(ours.set_acl(Acl::open())), ErrorKind::NotFound);
    assert_eq!(kind(ours.create(CreateMode::Persistent, "x")), ErrorKind::NotFound);
    let made = ours.create_with_parents(CreateMode::Persistent, "one").unwrap();
    assert_eq!(made.path(), path);
    let refused = theirs.create(CreateMode::Persistent, "one").unwrap_err();
    assert_eq!((refused.kind(), refused.path()), (ErrorKind::AlreadyExists, Some(&*path)));

    let first = theirs.read().unwrap().unwrap();
    assert_eq!((&*first.data, first.version.number), (&b"one"[..], 0));
    let second = ours.write("number two").unwrap();
    assert_eq!(second.number, 1);
    assert_eq!(ours.write_if_unchanged(first.version, "three").unwrap(), None);
    let third = ours.write_if_unchanged(second, "three").unwrap().expect("the same version");
    let now = theirs.read().unwrap().unwrap();
    assert_eq!((&*now.data, now.version), (&b"three"[..], third));

    let stat = ours.stat().unwrap().unwrap();
    assert_eq!((stat.version, stat.data_length, stat.child_count), (third, 5, 0));
    assert_eq!(stat.owner, None);
    assert!(stat.created_zxid < stat.written_zxid && stat.created_at <= stat.written_at);
    zk.znode(format!("{path}/child")).create(CreateMode::Persistent, "").unwrap();
    assert_eq!(kind(ours.delete()), ErrorKind::NotEmpty);
    assert_eq!(ours.children().unwrap(), Some(vec!["child".to_owned()]));
    assert!(!ours.delete_if_unchanged(second).unwrap());
    zk.znode(format!("{path}/child")).delete().unwrap();
    assert!(ours.delete_if_unchanged(third).unwrap());
    assert!(!ours.delete_if_unchanged(third).unwrap());
    drop((ours, theirs, made));
    site.finish([zk, other]);
}

#[test]
fn each_mode_makes_its_kind_of_node() {
    skip_without_zookeeper!();
    let site = Site::shared("znode-modes");
    let (zk, other) = (site.client(), site.client());
    let node = |name: &str| zk.znode(at(&site, name));
    node("persistent").create_with_parents(CreateMode::Persistent, "").unwrap();
    let ephemeral = node("ephemeral").create(CreateMode::Ephemeral, "ours").unwrap();
    assert_eq!(ephemeral.stat().unwrap().unwrap().owner, zk.session_id());
    let below = zk.znode(format!("{}/child", ephemeral.path()));
    assert_eq!(kind(below.create(CreateMode::Persistent, "")), ErrorKind::Conflict);
    for mode in [CreateMode::PersistentSequential, CreateMode::EphemeralSequential] {
        let made = [(); 2].map(|()| node("item-").create(mode, "").unwrap());
        let [first, second] = made.each_ref().map(|made| made.path().to_owned());
        assert!(first.starts_with(&at(&site, "item-0")) && first < second, "{first} {second}");
        let owner = made[0].stat().unwrap().unwrap().owner;
        assert_eq!(owner.is_some(), mode == CreateMode::EphemeralSequential);
        made.iter().for_each(|made| made.delete().unwrap());
    }
    drop(below);
    // The server deletes it at the end of the session.
    let seen = other.znode(ephemeral.path());
    let mut changes = seen.observe();
    assert_eq!(changes.next_within(SOON).unwrap().map(text), Some(Some("ours".to_owned())));
    zk.close();
    assert_eq!(changes.next_within(SOON).unwrap(), Some(None));
    drop((changes, seen, ephemeral));
    site.finish([zk, other]);
}

#[test]
fn a_container_has_no_owner() {
    skip_without_zookeeper!();
    skip_before!(
        3,
        5,
        "know no containers: the connection that asks for one ends, and the outcome may be open"
    );
    let site = Site::shared("znode-container");
    let zk = site.client();
    let node = zk.znode(at(&site, "container"));
    let container = node.create_with_parents(CreateMode::Container, "").unwrap();
    assert_eq!(container.stat().unwrap().unwrap().owner, None);
    drop((node, container));
    site.finish([zk]);
}

#[test]
fn changes_of_a_node_and_of_its_children_are_observed() {
    skip_without_zookeeper!();
    let site = Site::shared("znode-observed");
    let (zk, other) = (site.client(), site.client());
    let node = zk.znode(at(&site, "a"));
    let (mut data, mut children) = (node.observe(), node.observe_children());
    assert_eq!(data.next_within(SOON).unwrap(), Some(None));
    assert_eq!(children.next_within(SOON).unwrap(), Some(None));
    let theirs = other.znode(at(&site, "a"));
    theirs.create_with_parents(CreateMode::Persistent, "one").unwrap();
    assert_eq!(data.next_within(SOON).unwrap().map(text), Some(Some("one".to_owned())));
    assert_eq!(children.next_within(SOON).unwrap(), Some(Some(Vec::new())));
    for name in ["y", "x"] {
        other.znode(at(&site, &format!("a/{name}"))).create(CreateMode::Persistent, "").unwrap();
    }
    let mut seen = children.next_within(SOON).unwrap();
    while seen.as_ref().is_some_and(|seen| seen.as_ref().is_some_and(|names| names.len() < 2)) {
        seen = children.next_within(SOON).unwrap();
    }
    assert_eq!(seen, Some(Some(vec!["x".to_owned(), "y".to_owned()])));
    assert_eq!(data.next_within(BRIEF).unwrap(), None);
    drop((data, children, node, theirs));
    site.finish([zk, other]);
}

#[test]
fn an_acl_is_read_and_set() {
    skip_without_zookeeper!();
    let site = Site::shared("znode-acl");
    let stranger = site.client();
    let zk = site.builder().auth("digest", "me:secret").connect().unwrap();
    let node = zk.znode(at(&site, "a"));
    let private = CreateOptions::new(CreateMode::Persistent).acl(Acl::creator_only());
    zk.znode(&site.base).create_with_parents(CreateMode::Persistent, "").unwrap();
    node.create(private, "secret").unwrap();
    let theirs = stranger.znode(node.path());
    assert_eq!(kind(theirs.read()), ErrorKind::NotAuthorized);
    assert_eq!(kind(theirs.write("x")), ErrorKind::NotAuthorized);
    assert_eq!(kind(theirs.set_acl(Acl::open())), ErrorKind::NotAuthorized);
    let acl = node.acl().unwrap().unwrap();
    let [entry] = &acl[..] else { panic!("{acl:?}") };
    assert_eq!((entry.permissions, &*entry.scheme), (Permissions::ALL, "digest"));
    assert!(entry.id.starts_with("me:"), "{entry:?}");
    let shown = Acl::new(Permissions::READ, "world", "anyone");
    node.set_acl([shown.clone(), entry.clone()]).unwrap();
    assert_eq!(node.acl().unwrap().unwrap(), [shown, entry.clone()]);
    assert_eq!(text(theirs.read().unwrap()).as_deref(), Some("secret"));
    assert_eq!(kind(node.set_acl(Vec::new())), ErrorKind::InvalidArgument);
    drop((node, theirs));
    site.finish([zk, stranger]);
}

#[test]
fn a_path_is_the_client_s_own_and_is_checked() {
    skip_without_zookeeper!();
    let site = Site::shared("znode-paths");
    let zk = site.client();
    zk.znode(&site.base).create_with_parents(CreateMode::Persistent, "").unwrap();
    for path in ["", "a", "/a/", "/a//b", "/a/..", "/a\0"] {
        let node = zk.znode(path);
        assert_eq!(node.path(), path);
        assert_eq!(kind(node.read()), ErrorKind::InvalidName, "{path:?}");
        assert_eq!(kind(node.write("")), ErrorKind::InvalidName);
        assert_eq!(kind(node.observe().next_within(BRIEF)), ErrorKind::InvalidName);
        assert_eq!(kind(zk.transaction().delete(path).commit()), ErrorKind::InvalidName);
    }
    let quota = zk.znode("/zookeeper/quota");
    assert!(quota.stat().unwrap().is_some() && quota.children().unwrap().is_some());
    assert!(quota.read().unwrap().is_some() && quota.acl().unwrap().is_some());
    assert_eq!(kind(quota.write("")), ErrorKind::InvalidName);
    assert_eq!(kind(quota.delete()), ErrorKind::InvalidName);
    assert_eq!(kind(quota.set_acl(Acl::open())), ErrorKind::InvalidName);
    drop(quota);
    assert!(zk.znode("/").children().unwrap().is_some_and(|names| !names.is_empty()));
    // Below a chroot, which is created with the parents.
    let hosts = format!("{}{}/root", site.hosts(), site.base);
    let rooted = connecting(&hosts).session_timeout(SOON).connect().unwrap();
    assert_eq!(kind(rooted.znode("/a").create(CreateMode::Persistent, "")), ErrorKind::NotFound);
    let made =
        rooted.znode("/a-").create_with_parents(CreateMode::PersistentSequential, "x").unwrap();
    assert_eq!(made.path(), "/a-0000000000");
    assert_eq!(rooted.znode("/").children().unwrap().unwrap(), ["a-0000000000"]);
    let done = rooted.transaction().create("/b-", CreateMode::PersistentSequential, "").commit();
    let done = done.unwrap();
    let [StepResult::Created(numbered)] = &done[..] else { panic!("one step") };
    assert_eq!(numbered.path(), "/b-0000000001");
    drop((made, done));
    assert_eq!(read(&zk, &at(&site, "root/a-0000000000")).as_deref(), Some("x"));
    site.finish([zk, rooted]);
}

#[test]
fn a_transaction_is_done_as_a_whole_or_not_at_all() {
    skip_without_zookeeper!();
    skip_before!(3, 5, "know no containers");
    let site = Site::shared("znode-transaction");
    let zk = site.client();
    let [base, a, b, c] = ["", "/a", "/b", "/c"].map(|name| format!("{}{name}", site.base));
    zk.znode(&base).create_with_parents(CreateMode::Persistent, "").unwrap();
    let done = zk
        .transaction()
        .check(&base)
        .create(&a, CreateMode::Persistent, "a")
        .create(&b, CreateMode::Container, "b")
        .write(&a, "aa")
        .check(&b)
        .delete(&b)
        .commit()
        .unwrap();
    let kinds: Vec<_> = done
        .iter()
        .map(|step| match step {
            StepResult::Created(made) => made.path().to_owned(),
            StepResult::Written(version) => version.number.to_string(),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["Checked", &*a, &*b, "1", "Checked", "Deleted"]);
    drop(done);
    assert_eq!((read(&zk, &a).as_deref(), read(&zk, &b)), (Some("aa"), None));
    assert!(zk.transaction().commit().unwrap().is_empty());

    // The error is that of the first step that fails, and the steps before it have no effect.
    let version = zk.znode(&a).read().unwrap().unwrap().version;
    zk.znode(&a).write("newer").unwrap();
    let begun = || zk.transaction().write(&a, "never").create(&b, CreateMode::Persistent, "");
    let refused: Vec<(zklock::Transaction<'_>, ErrorKind, &str)> = vec![
        (begun().delete(&c), ErrorKind::NotFound, &c),
        (begun().write(&c, ""), ErrorKind::NotFound, &c),
        (begun().check(&c), ErrorKind::NotFound, &c),
        (begun().create(&a, CreateMode::Persistent, ""), ErrorKind::AlreadyExists, &a),
        (begun().check_unchanged(&a, version), ErrorKind::VersionMismatch, &a),
        (begun().delete(&base), ErrorKind::NotEmpty, &base),
    ];
    for (transaction, expected, path) in refused {
        let error: Error = transaction.commit().unwrap_err();
        assert_eq!((error.kind(), error.path()), (expected, Some(path)), "{error}");
        assert_eq!((read(&zk, &a).as_deref(), read(&zk, &b)), (Some("newer"), None));
    }
    let version = zk.znode(&a).read().unwrap().unwrap().version;
    zk.transaction().check_unchanged(&a, version).delete(&a).commit().unwrap();
    site.finish([zk]);
}

/// The library reports the real result where it can, and otherwise that it is unknown.
#[test]
fn a_change_whose_answer_was_lost_is_not_made_twice() {
    skip_without_server!();
    let site = Site::own("znode-lost");
    let (proxy, zk) = site.proxied(Duration::from_secs(10));
    let node = zk.znode(at(&site, "a"));
    zk.znode(&site.base).create_with_parents(CreateMode::Persistent, "").unwrap();
    // A create or a versioned write that never reached the server is repeated.
    proxy.drop_request(opcode::CREATE, 1);
    node.create(CreateMode::Persistent, "one").unwrap();
    let first = node.read().unwrap().unwrap().version;
    proxy.drop_request(opcode::SET_DATA, 1);
    let second = node.write_if_unchanged(first, "two").unwrap().expect("the same version");
    // The request reached the server: the client cannot tell who wrote the present data.
    proxy.drop_reply(opcode::SET_DATA, 1);
    assert_eq!(kind(node.write_if_unchanged(second, "three")), ErrorKind::ConnectionLoss);
    let third = node.read().unwrap().unwrap();
    assert_eq!((&*third.data, third.version.number), (&b"three"[..], 2));
    // No other change is repeated.
    proxy.drop_request(opcode::SET_DATA, 1);
    assert_eq!(kind(node.write("four")), ErrorKind::ConnectionLoss);
    // And not the one by which the session is continued.
    proxy.drop_request_on(opcode::SET_ACL, node.path(), 1);
    assert_eq!(kind(node.set_acl(Acl::open())), ErrorKind::ConnectionLoss);
    proxy.drop_request(opcode::DELETE, 1);
    assert_eq!(kind(node.delete_if_unchanged(third.version)), ErrorKind::ConnectionLoss);
    proxy.drop_request(opcode::DELETE, 1);
    assert_eq!(kind(node.delete()), ErrorKind::ConnectionLoss);
    assert_eq!(node.read().unwrap().unwrap(), third);
    proxy.drop_reply(opcode::MULTI, 1);
    let commits = proxy.count(opcode::MULTI);
    let lost = zk.transaction().write(node.path(), "four").commit();
    assert_eq!(kind(lost), ErrorKind::ConnectionLoss);
    assert_eq!(proxy.count(opcode::MULTI), commits + 1);
    assert_eq!(text(node.read().unwrap()).as_deref(), Some("four"));
    proxy.drop_reply(opcode::CREATE, 1);
    let numbered = zk.znode(at(&site, "n-"));
    let made = numbered.create(CreateMode::PersistentSequential, "");
    assert_eq!(kind(made), ErrorKind::ConnectionLoss);
    assert_eq!(zk.znode(&site.base).children().unwrap().unwrap().len(), 2);
    // A create after which the node has another client's data.
    proxy.drop_request(opcode::CREATE, 1);
    assert_eq!(kind(node.create(CreateMode::Persistent, "")), ErrorKind::AlreadyExists);
    node.delete().unwrap();
    zk.znode(node.path()).create(CreateMode::Persistent, "theirs").unwrap();
    proxy.drop_request(opcode::CREATE, 1);
    assert_eq!(kind(node.create(CreateMode::Persistent, "ours")), ErrorKind::AlreadyExists);
    // Reads are repeated.
    for code in [opcode::GET_DATA, opcode::GET_ACL, opcode::GET_CHILDREN, opcode::EXISTS] {
        proxy.drop_reply(code, 1);
    }
    assert!(node.read().unwrap().is_some() && node.acl().unwrap().is_some());
    assert!(node.children().unwrap().is_some() && node.stat().unwrap().is_some());
    drop((node, numbered));
    site.finish([zk]);
}

/// A worker does the job that a node stands for, and deletes the node: the call that created it must not
/// create it again.
#[test]
fn a_node_that_was_created_and_deleted_is_not_created_again() {
    skip_without_server!();
    let site = Site::own("znode-created");
    let (proxy, zk) = site.proxied(Duration::from_secs(20));
    let other = site.client();
    let job = at(&site, "job-17");
    other.znode(&site.base).create_with_parents(CreateMode::Persistent, "").unwrap();
    let exists = || other.znode(&job).read().unwrap().is_some();
    let delete = || other.znode(&job).delete().unwrap();

    let create = || zk.znode(&job).create(CreateMode::Persistent, "charge the card");
    let created = unanswered(&proxy, opcode::CREATE, create, exists, delete);
    assert_eq!((kind(created), read(&other, &job)), (ErrorKind::ConnectionLoss, None));
    // And that another client's node is there now does not mean that this one was not.
    let make_anew = || {
        delete();
        other.znode(&job).create(CreateMode::Persistent, "another job").unwrap();
    };
    let created = unanswered(&proxy, opcode::CREATE, create, exists, make_anew);
    assert_eq!(kind(created), ErrorKind::ConnectionLoss);
    assert_eq!(read(&other, &job).as_deref(), Some("another job"));
    delete();

    let value = SharedValue::new(&zk, &site.base, "job-17");
    let set = unanswered(&proxy, opcode::CREATE, || value.set_if_absent("ours"), exists, delete);
    assert_eq!((kind(set), read(&other, &job)), (ErrorKind::ConnectionLoss, None));
    drop(value);
    site.finish([zk, other]);
}

#[test]
fn a_node_of_another_life_is_not_written_by_a_repeated_request() {
    skip_without_server!();
    let site = Site::own("znode-written");
    let (proxy, zk) = site.proxied(Duration::from_secs(20));
    let other = site.client();
    let (ours, theirs) = (zk.znode(at(&site, "owner")), other.znode(at(&site, "owner")));
    ours.create_with_parents(CreateMode::Persistent, "nobody").unwrap();
    let free = ours.read().unwrap().unwrap().version;
    let written = || read(&other, theirs.path()).as_deref() == Some("A");
    let make_anew = || {
        theirs.delete().unwrap();
        theirs.create(CreateMode::Persistent, "B").unwrap();
    };
    let write = || ours.write_if_unchanged(free, "A");
    let wrote = unanswered(&proxy, opcode::SET_DATA, write, written, make_anew);
    assert_eq!(kind(wrote), ErrorKind::ConnectionLoss);
    let found = theirs.read().unwrap().unwrap();
    assert_eq!((&*found.data, found.version.number), (&b"B"[..], 0));
    drop((ours, theirs));
    site.finish([zk, other]);
}

/// A request that was given up with its session could still arrive, after a repeated one.
#[test]
fn a_change_is_not_repeated_in_another_session() {
    skip_without_server!();
    let site = Site::own("znode-session");
    let (proxy, zk) = site.proxied(Duration::from_secs(4));
    let node = zk.znode(at(&site, "a"));
    zk.znode(&site.base).create_with_parents(CreateMode::Persistent, "").unwrap();
    let session = zk.session_id();
    proxy.reset_counts();
    proxy.stall_request(opcode::CREATE);
    let created = thread::scope(|scope| {
        let created = scope.spawn(|| node.create(CreateMode::Persistent, ""));
        assert!(proxy.wait_for_request(opcode::CREATE, SOON));
        proxy.refuse();
        crate::support::eventually(SOON, "the end of the session", || {
            zk.state() == zklock::SessionState::Lost
        });
        proxy.pass();
        created.join().unwrap()
    });
    assert_eq!(kind(created), ErrorKind::ConnectionLoss);
    assert!(node.read().unwrap().is_none() && zk.session_id() != session);
    drop(node);
    site.finish([zk]);
}

#[test]
fn an_outage_is_an_error_in_time() {
    skip_without_server!();
    let site = Site::own("znode-outage");
    let proxy = crate::support::proxy::Proxy::start(site.server().addr());
    let builder = connecting(&proxy.hosts()).session_timeout(Duration::from_secs(20));
    let zk = builder.connect_timeout(LIMIT).connect().unwrap();
    let path = at(&site, "a");
    zk.znode(&path).create_with_parents(CreateMode::Persistent, "one").unwrap();
    // A request that was already sent may still take effect.
    proxy.stall_request(opcode::SET_DATA);
    let (written, took) = crate::support::timed(|| zk.znode(&path).write("two"));
    assert_eq!(kind(written), ErrorKind::ConnectionLoss);
    assert!(took.at_least(LIMIT / 2) && took.within(LIMIT * 2), "{took:?}");
    proxy.refuse();
    crate::support::eventually(SOON, "the outage", || {
        zk.state() != zklock::SessionState::Connected
    });
    let node = zk.znode(&path);
    for error in [
        node.write("three").unwrap_err(),
        node.delete().unwrap_err(),
        zk.transaction().write(&path, "three").commit().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        assert!(!error.may_have_taken_effect());
        assert!(error.to_string().contains("no server answered in time"), "{error}");
    }
    assert_eq!(kind(node.read()), ErrorKind::Connect);
    proxy.release();
    assert!(node.read().unwrap().is_some());
    drop(node);
    site.finish([zk]);
}

#[test]
fn what_is_too_large_is_not_sent() {
    skip_without_server!();
    let site = Site::own("znode-large");
    let (proxy, zk) = site.proxied(Duration::from_secs(10));
    let node = zk.znode(&site.base);
    let endless = vec![b'x'; 1 << 20];
    assert_eq!(kind(node.create(CreateMode::Persistent, endless.clone())), ErrorKind::TooLarge);
    assert_eq!(kind(node.write(endless.clone())), ErrorKind::TooLarge);
    let commit = zk.transaction().write(node.path(), endless).commit();
    assert_eq!(kind(commit), ErrorKind::TooLarge);
    for code in [opcode::CREATE, opcode::SET_DATA, opcode::MULTI] {
        assert_eq!(proxy.count(code), 0);
    }
    zk.close();
    assert_eq!(kind(node.read()), ErrorKind::Closed);
    assert_eq!(kind(node.write("")), ErrorKind::Closed);
    assert_eq!(kind(zk.transaction().delete("/a").commit()), ErrorKind::Closed);
    drop(node);
    site.finish([zk]);
}
