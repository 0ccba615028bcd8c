//! A client's limits on how many losses and how long an outage a call survives.

use std::time::Duration;

use zklock::{Client, ErrorKind, Retry, SessionState};

use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::stopwatch::{Moment, Stopwatch};
use crate::support::{connecting, eventually, mutex, skip_before, skip_without_server};

const SOON: Duration = Duration::from_secs(20);
/// What the machine may add to a limit.
const OVERSHOOT: Duration = Duration::from_millis(700);

fn client(proxy: &Proxy, session_timeout: Duration, retry: Retry) -> Client {
    let builder = connecting(&proxy.hosts()).session_timeout(session_timeout);
    builder.retry(retry).connect().unwrap()
}

#[test]
fn no_patience_with_outages_is_none_with_a_connection() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::own("retry-zero");
    let proxy = Proxy::start(site.server().addr());
    let zk = client(&proxy, Duration::from_secs(3), Retry::default().outage(Duration::ZERO));
    let lock = mutex(&zk, &site.base, "a");
    for _ in 0..3 {
        lock.lock().unwrap().unlock().unwrap();
    }
    proxy.refuse();
    eventually(SOON, "the outage", || zk.state() == SessionState::Suspended);
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Connect);
    eventually(SOON, "the end of the session", || zk.state() == SessionState::Lost);
    assert_eq!(lock.lock().unwrap_err().kind(), ErrorKind::Connect);
    proxy.pass();
    eventually(SOON, "a new session", || lock.lock().is_ok());
    drop(lock);
    site.finish([zk]);
}

#[test]
fn an_outage_goes_on_when_the_session_ends_in_it_and_the_call_ends_on_time() {
    skip_without_server!();
    let site = Site::own("retry-outage");
    let proxy = Proxy::start(site.server().addr());
    let (session, outage) = (Duration::from_millis(1500), Duration::from_secs(3));
    let zk = client(&proxy, session, Retry::default().outage(outage));
    let lock = mutex(&zk, &site.base, "a");
    let other = site.client();
    let held = mutex(&other, &site.base, "a").lock().unwrap();
    let waiter = std::thread::spawn(move || {
        let error = lock.lock().unwrap_err();
        (error.kind(), Moment::now())
    });
    site.wait_for_children("a", 2);
    proxy.refuse();
    eventually(SOON, "the outage", || zk.state() == SessionState::Suspended);
    let start = Stopwatch::start();
    let (kind, end) = waiter.join().unwrap();
    assert_eq!(kind, ErrorKind::Connect, "the session did not end during the outage");
    let took = start.took_until(end);
    assert!(took.within(outage + OVERSHOOT), "{took:?} without a connection");
    proxy.pass();
    site.wait_for_children("a", 1);
    drop(held);
    site.finish([zk, other]);
}

#[test]
fn losses_are_counted_and_leave_no_node() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::own("retry-losses");
    let proxy = Proxy::start(site.server().addr());
    for most in 0..3 {
        let retry = Retry::default().losses(most);
        let zk = client(&proxy, Duration::from_secs(10), retry);
        let lock = mutex(&zk, &site.base, "a");
        lock.lock().unwrap().unlock().unwrap();
        proxy.drop_request(opcode::CREATE, most as usize);
        lock.lock().expect("within the limit").unlock().unwrap();
        proxy.drop_request(opcode::CREATE, most as usize + 1);
        let error = lock.lock().expect_err("one loss too many");
        assert_eq!(error.kind(), ErrorKind::Connect);
        assert!(error.is_retryable());
        // A node that was made is adopted, unless that is one loss too many.
        proxy.drop_reply(opcode::CREATE, 1);
        match lock.lock() {
            Ok(guard) => guard.unlock().unwrap(),
            Err(error) => assert_eq!((error.kind(), most), (ErrorKind::Connect, 0)),
        }
        eventually(SOON, "the end of cleaning up", || zk.stats().pending_deletes == 0);
        assert!(site.children("a").is_empty(), "{most}");
        drop(lock);
        zk.close();
    }
    site.finish([]);
}
