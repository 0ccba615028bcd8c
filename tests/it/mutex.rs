use std::time::Duration;

use zklock::DistributedLock;

use crate::support::site::Site;
use crate::support::skip_without_zookeeper;

#[test]
fn s01_uncontended_lock_makes_one_node_and_leaves_none() {
    skip_without_zookeeper!();
    let site = Site::shared("s01");
    let zk = site.client();
    let lock = DistributedLock::new(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    assert!(guard.is_held());
    assert_eq!(site.children("a").len(), 1);
    drop(guard);
    assert_eq!(site.children("a").len(), 0);
    assert!(lock.try_lock_for(Duration::from_secs(1)).unwrap().is_some());
    drop(lock);
    site.finish([zk]);
}
