//! Credentials: who is admitted, and when they are presented.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use log::LevelFilter;
use zklock::{Acl, Client, ErrorKind, LossReason, SessionState};

use super::{Impostor, LONG, works};
use crate::support::logs::logs;
use crate::support::proxy::{Proxy, opcode};
use crate::support::raw::NO_AUTH;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    eventually, mutex, skip_unless_alone, skip_without_server, skip_without_zookeeper, waiting,
};

#[test]
fn creator_only_admits_whoever_has_the_credentials() {
    skip_without_zookeeper!();
    let site = Site::shared("creator");
    let mut raw = site.raw();
    raw.create_all(&site.base).unwrap();
    let owner = site.builder().auth("digest", b"me:secret").connect().unwrap();
    let same = site.builder().auth("digest", b"me:secret").connect().unwrap();
    let other = site.builder().auth("digest", b"you:secret").connect().unwrap();
    let nobody = site.client();
    let node = format!("{}/a", site.base);
    let lock = |client: &Client| mutex(client, &site.base, "a").acl(Acl::creator_only());
    let guard = lock(&owner).lock().unwrap();
    guard.ensure_held().unwrap();
    assert_eq!(raw.get_children(&node).unwrap_err().code(), Some(NO_AUTH));
    assert!(lock(&same).try_lock().unwrap().is_none());
    assert_eq!(lock(&same).contenders().unwrap().len(), 1);
    for stranger in [&other, &nobody] {
        let plain = mutex(stranger, &site.base, "a");
        let errors = [
            (plain.lock().unwrap_err(), "CREATE"),
            (plain.try_lock().unwrap_err(), "CREATE"),
            (plain.try_lock_for(LONG).unwrap_err(), "CREATE"),
            (plain.contenders().unwrap_err(), "READ"),
        ];
        for (error, need) in errors {
            assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
            let text = error.to_string();
            assert!(text.contains(&node) && text.contains(need), "{text}");
            assert_eq!(error.path(), Some(node.as_str()));
            assert!(!error.is_retryable());
        }
    }
    guard.unlock().unwrap();
    lock(&same).lock().unwrap().unlock().unwrap();

    raw.add_auth("digest", b"me:secret").unwrap();
    assert!(raw.get_children(&node).unwrap().is_empty());
    raw.delete(&node).unwrap();
    site.finish([owner, same, other, nobody]);
}

#[test]
fn credentials_are_presented_again_after_a_reconnect() {
    skip_without_server!();
    let site = Site::own("again");
    let proxy = Proxy::start(site.server().addr());
    let builder = Client::builder(&proxy.hosts()).session_timeout(Duration::from_secs(4));
    let zk = builder.auth("digest", b"me:one").auth("digest", b"me:two").connect().unwrap();
    site.raw().create_all(&site.base).unwrap();
    let lock = mutex(&zk, &site.base, "a").acl(Acl::creator_only());
    for _ in 0..3 {
        let guard = lock.lock().unwrap();
        let before = proxy.connections();
        proxy.cut();
        eventually(LONG, "the next connection", || proxy.connections() > before);
        guard.ensure_held().unwrap();
        guard.unlock().unwrap();
    }
    assert!(proxy.count(opcode::AUTH) >= 8);
    let mut raw = site.raw();
    raw.add_auth("digest", b"me:two").unwrap();
    assert!(raw.get_children(&format!("{}/a", site.base)).unwrap().is_empty());
    raw.delete_recursive(&site.base).unwrap();
    drop(lock);
    site.finish([zk]);
}

#[test]
fn an_unknown_scheme_is_refused_at_once() {
    skip_without_zookeeper!();
    let site = Site::shared("scheme");
    let started = Stopwatch::start();
    let error = site.builder().auth("nonsense", b"me:secret").connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
    assert!(!error.is_retryable());
    assert!(!error.to_string().contains("secret"));
    assert!(started.took().within(Duration::from_secs(5)), "{:?}", started.took());
    site.finish([]);
}

/// Serves like a ZooKeeper that grants any session and refuses all credentials.
fn reject_credentials(mut stream: TcpStream) {
    let frame = |stream: &mut TcpStream| {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut body).map(|()| body)
    };
    let Ok(hello) = frame(&mut stream) else { return };
    let mut welcome = vec![0, 0, 0, 36, 0, 0, 0, 0];
    welcome.extend(&hello[12..16]); // the timeout asked for
    welcome.extend(&hello[16..24]); // the session
    welcome.extend([0, 0, 0, 16]);
    welcome.extend([0; 16]);
    let _ = stream.write_all(&welcome);
    if frame(&mut stream).is_ok() {
        let mut refusal = vec![0, 0, 0, 16];
        refusal.extend((-4i32).to_be_bytes());
        refusal.extend([0; 8]);
        refusal.extend((-115i32).to_be_bytes());
        let _ = stream.write_all(&refusal);
    }
}

#[test]
fn credentials_refused_later_end_the_session_and_are_not_tried_in_a_loop() {
    skip_without_server!();
    let site = Site::own("refused");
    let proxy = Proxy::start(site.server().addr());
    let builder = Client::builder(&proxy.hosts()).session_timeout(Duration::from_secs(2));
    let zk = builder.auth("digest", b"me:secret").connect().unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    let theirs = lock.clone();
    let waiter = waiting(move || theirs.lock().map(drop));
    eventually(LONG, "the waiter", || zk.stats().watches == 2);

    let impostor = Impostor::new(reject_credentials);
    proxy.set_target(impostor.address);
    proxy.cut();
    assert_eq!(guard.lost().wait_within(LONG), Some(Err(LossReason::AuthFailed)));
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::AuthFailed);
    assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::AuthFailed);
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::AuthFailed);
    assert_eq!(lock.try_lock_for(LONG).unwrap_err().kind(), ErrorKind::AuthFailed);
    // One connection for the old session and one to close it, one for each of the three calls that
    // tried to open a new one. On a busy machine, a handshake may be begun twice more.
    eventually(LONG, "the goodbye", || impostor.visits() >= 5);
    assert_eq!(zk.state(), SessionState::Lost);

    proxy.set_target(site.server().addr());
    works(&zk, &site);
    assert!(impostor.visits() <= 15, "{}", impostor.visits());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn credentials_are_neither_shown_nor_logged() {
    skip_without_server!();
    skip_unless_alone!();
    const SECRET: &str = "hunter-of-secrets";
    let logs = logs(LevelFilter::Trace);
    let site = Site::own("secret");
    let proxy = Proxy::start(site.server().addr());
    site.raw().create_all(&site.base).unwrap();
    let credentials = format!("me:{SECRET}");
    let builder = Client::builder(&proxy.hosts())
        .session_timeout(Duration::from_secs(3))
        .auth("digest", credentials.as_bytes());
    let mut shown = vec![format!("{builder:?} {builder:#?}")];
    let refused = builder.clone().auth("nonsense", credentials.as_bytes()).connect().unwrap_err();
    shown.push(format!("{refused} {refused:?}"));
    let zk = builder.connect().unwrap();
    let lock = mutex(&zk, &site.base, "a").acl(Acl::creator_only());
    let guard = lock.lock().unwrap();
    let lost = guard.lost();
    shown.push(format!("{zk:?} {zk:#?} {lock:?} {guard:?} {lost:?} {:?}", zk.stats()));
    proxy.cut();
    guard.ensure_held().unwrap();
    proxy.refuse();
    assert!(matches!(lost.wait_within(LONG), Some(Err(_))));
    proxy.pass();
    drop(guard);
    let guard = lock.lock().unwrap();
    shown.push(format!("{zk:?} {lock:?} {guard:?}"));
    drop((guard, lock));
    zk.close();
    let mut raw = site.raw();
    raw.add_auth("digest", credentials.as_bytes()).unwrap();
    raw.delete_recursive(&site.base).unwrap();
    site.finish([zk]);

    let bytes = format!("{:?}", SECRET.as_bytes());
    let bytes = bytes.trim_matches(['[', ']']);
    let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
    let leaks = |text: &str| text.contains(SECRET) || text.contains(bytes) || text.contains(&hex);
    let logged = logs.entries();
    assert!(logged.iter().any(|entry| entry.target.starts_with("zklock")), "nothing was captured");
    for entry in logged {
        assert!(!leaks(&entry.to_string()), "{entry}");
    }
    for text in shown {
        assert!(!leaks(&text), "{text}");
    }
}
