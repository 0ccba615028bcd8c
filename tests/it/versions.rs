//! Servers that know less than ours, or take less. The proxy imitates the older ones.

use std::time::Duration;

use zklock::{DistributedQueue, Group, LeaderElection};

use crate::support::proxy::opcode;
use crate::support::site::Site;
use crate::support::{QUIET, mutex, skip_without_server};

const LONG: Duration = Duration::from_secs(30);

/// A server before 3.5 answers that it does not know the request, and closes the connection.
#[test]
fn a_server_that_knows_no_containers_makes_plain_nodes_and_is_asked_for_one_only_once() {
    skip_without_server!();
    let site = Site::own("no-containers");
    let (proxy, zk) = site.proxied(QUIET);
    proxy.unknown(opcode::CREATE_CONTAINER);
    let lock = mutex(&zk, &site.base, "lock");
    lock.try_lock_for(LONG).unwrap().expect("a lock").unlock().unwrap();
    assert_eq!((proxy.count(opcode::CREATE_CONTAINER), proxy.connections()), (1, 2));
    lock.lock().unwrap().unlock().unwrap();
    let queue = DistributedQueue::new(&zk, &site.base, "queue");
    queue.offer("item").unwrap();
    assert_eq!(queue.try_take().unwrap().as_deref(), Some(&b"item"[..]));
    let group = Group::new(&zk, &site.base, "group");
    let member = group.join("member", "").unwrap();
    let election = LeaderElection::new(&zk, &site.base, "election");
    let leadership = election.campaign_for(LONG).unwrap().expect("to lead");
    assert_eq!((proxy.count(opcode::CREATE_CONTAINER), proxy.connections()), (1, 2));
    let mut raw = site.raw();
    for name in ["lock", "queue", "group", "election"] {
        let node = raw.exists(&format!("{}/{name}", site.base)).unwrap().expect("a node");
        assert_eq!(node.ephemeral_owner, 0, "{name} is a container");
    }
    leadership.resign().unwrap();
    member.leave().unwrap();
    raw.close().unwrap();
    drop((lock, queue, group, election, proxy));
    site.finish([zk]);
}
