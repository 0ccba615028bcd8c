use std::time::Duration;

use zklock::{DistributedLock, ErrorKind, LockGuard, LossReason, Result};

use crate::support::proxy::{Proxy, opcode};
use crate::support::site::Site;
use crate::support::{QUIET, eventually, skip_without_server, skip_without_zookeeper};

/// Bytes of paths that the servers are said to carry at a session's end.
const LIMIT: usize = 16_384;

/// Locks of many names until the session may own no more.
fn fill(site: &Site, locks: impl Fn(usize) -> DistributedLock) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    loop {
        match locks(guards.len()).lock() {
            Ok(guard) => guards.push(guard),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
                let text = error.to_string();
                assert!(text.contains(&LIMIT.to_string()) && text.contains(&site.base), "{text}");
                assert!(!error.is_outage() && !error.is_retryable(), "{error}");
                return guards;
            }
        }
    }
}

#[test]
fn a_session_that_owns_too_much_is_refused_more_until_it_owns_less() {
    skip_without_server!();
    let site = Site::shared("owned");
    let zk = site.builder().session_timeout(QUIET).session_paths_limit(LIMIT).connect().unwrap();
    let lock = |number: usize| DistributedLock::new(&zk, &site.base, format!("lock-{number}"));
    let mut guards = fill(&site, lock);
    let owned: usize = guards.iter().map(|guard| guard.path().len() + 4).sum();
    assert!(owned <= LIMIT / 4 * 3 && owned > LIMIT / 2, "{owned} bytes in {}", guards.len());
    // Another session has a limit of its own, and holds what this one was refused.
    let other = site.quiet_client();
    let name = format!("lock-{}", guards.len());
    DistributedLock::new(&other, &site.base, name)
        .try_lock()
        .unwrap()
        .expect("nobody holds it")
        .unlock()
        .unwrap();
    for guard in guards.drain(..10) {
        guard.unlock().unwrap();
    }
    assert!((0..10).all(|number| lock(number).lock().is_ok()), "there is room for ten");
    drop(guards);
    site.finish([zk, other]);
}

#[test]
fn the_end_of_a_session_that_owns_much_is_made_small_before() {
    skip_without_zookeeper!();
    let site = Site::own("owned-close");
    for is_much in [false, true] {
        let proxy = Proxy::start(site.server().addr());
        let builder = zklock::Client::builder(&proxy.hosts()).session_timeout(QUIET);
        let zk = builder.session_paths_limit(LIMIT).connect().unwrap();
        let lock = |number: usize| DistributedLock::new(&zk, &site.base, format!("lock-{number}"));
        let guards = match is_much {
            true => fill(&site, lock),
            false => (0..3).map(|number| lock(number).lock()).collect::<Result<_>>().unwrap(),
        };
        // One of them is gone already: that keeps none of the others.
        if is_much {
            site.client().znode(guards[1].path()).delete().unwrap();
            eventually(Duration::from_secs(20), "the loss", || !guards[1].is_held());
        }
        proxy.reset_counts();
        zk.close();
        let deleted = proxy.count(opcode::DELETE);
        assert_eq!(proxy.count(opcode::CLOSE_SESSION), 1);
        assert_eq!(deleted, if is_much { guards.len() as u64 - 1 } else { 0 });
        for guard in &guards {
            let reason = guard.lost().reason();
            assert!(!guard.is_held());
            assert!(matches!(reason, Some(LossReason::ClientClosed | LossReason::NodeDeleted)));
        }
        for number in 0..guards.len() {
            assert_eq!(site.children(&format!("lock-{number}")).len(), 0);
        }
    }
    site.finish([]);
}
