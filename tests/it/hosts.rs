//! Servers that are replaced, and servers that have lost their data.

use std::sync::mpsc::channel;
use std::time::Duration;

use log::LevelFilter;
use zklock::{Client, ErrorKind};

use crate::support::logs::logs;
use crate::support::proxy::Proxy;
use crate::support::raw::{Kind, Raw};
use crate::support::site::Site;
use crate::support::{
    QUIET, connecting, eventually, mutex, skip_unless_alone, skip_without_server,
};

const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_connection_stays_until_it_ends_and_the_next_is_to_one_of_the_new_hosts() {
    skip_without_server!();
    let site = Site::own("new-hosts");
    let (before, after) = (Proxy::start(site.server().addr()), Proxy::start(site.server().addr()));
    let zk = connecting(&before.hosts()).session_timeout(QUIET).connect().unwrap();
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let (session, token) = (zk.session_id(), guard.fencing_token());
    let made = before.connections();
    zk.set_hosts(&after.hosts()).unwrap();
    guard.ensure_held().unwrap();
    assert_eq!((before.connections(), after.connections()), (made, 0));
    before.refuse();
    guard.ensure_held().unwrap();
    assert_eq!((before.connections(), after.connections()), (made, 1));
    assert_eq!((zk.session_id(), guard.fencing_token()), (session, token));
    assert!(format!("{zk:?}").contains(&after.hosts()), "{zk:?}");
    guard.unlock().unwrap();
    site.finish([zk]);
}

#[test]
fn a_search_that_is_under_way_uses_the_new_hosts() {
    skip_without_server!();
    let site = Site::own("while-searching");
    let (before, after) = (Proxy::start(site.server().addr()), Proxy::start(site.server().addr()));
    before.refuse();
    let zk = connecting(&before.hosts()).session_timeout(QUIET).lazy().unwrap();
    let (tell, told) = channel();
    let lock = mutex(&zk, &site.base, "a");
    std::thread::spawn(move || tell.send(lock.lock().unwrap()).unwrap());
    eventually(LONG, "a search", || zk.stats().threads >= 2);
    zk.set_hosts(&after.hosts()).unwrap();
    told.recv_timeout(LONG).unwrap().unlock().unwrap();
    site.finish([zk]);
}

#[test]
fn hosts_that_are_malformed_or_have_another_chroot_change_nothing() {
    let zk = Client::builder("127.0.0.1:1/app").lazy().unwrap();
    for (hosts, why) in [
        ("", "no host is named"),
        ("a:b", "the port"),
        ("127.0.0.1:2/other", "the client's chroot is \"/app\", and stays so"),
        ("127.0.0.1:2/app/more", "the client's chroot"),
    ] {
        let error = zk.set_hosts(hosts).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName);
        assert!(error.to_string().contains(why), "{error}");
        assert!(format!("{zk:?}").contains("127.0.0.1:1"), "{zk:?}");
    }
    for hosts in ["127.0.0.1:2", "127.0.0.1:3/app"] {
        zk.set_hosts(hosts).unwrap();
        assert!(format!("{zk:?}").contains(&hosts[..11]), "{zk:?}");
    }
}

/// The servers do not know the session, and close each connection of a client that has seen more than
/// they have: that is no outage, and ends.
#[test]
fn an_ensemble_that_was_made_anew_is_told_from_an_outage() {
    skip_without_server!();
    skip_unless_alone!();
    let site = Site::own("made-anew");
    let logs = logs(LevelFilter::Warn);
    let mut raw = Raw::connect(site.hosts(), LONG).unwrap();
    for number in 0..100 {
        raw.create(&format!("/{number}"), b"", Kind::Persistent).unwrap();
    }
    raw.close().unwrap();
    let zk = site.builder().session_timeout(Duration::from_secs(2)).connect().unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let (session, token) = (zk.session_id(), guard.fencing_token());
    site.server().kill();
    site.server().wipe();
    site.server().start_again();
    assert!(guard.lost().wait().is_err());
    let again = lock.lock().unwrap();
    assert!(again.fencing_token() < token, "the numbers have begun anew");
    assert_ne!(zk.session_id(), session);
    again.unlock().unwrap();
    drop(guard);
    let told = |words: &str| logs.warnings().iter().filter(|line| line.contains(words)).count();
    eventually(LONG, "the warning", || told("the ensemble has lost data, or was made anew") > 0);
    assert_eq!(told("the ensemble has lost data, or was made anew"), 1, "{:#?}", logs.warnings());
    drop(lock);
    site.finish([zk]);
}
