//! Queues shared with Curator's `SimpleDistributedQueue`.

use std::time::{Duration, Instant};

use zklock::DistributedQueue;

use super::peer::{Peer, Whose, skip_without};
use super::row;
use crate::support::site::Site;
use crate::support::{skip_without_zookeeper, waiting};

const ITEMS: usize = 300;
const SOON: Duration = Duration::from_secs(15);

/// The item with this number, as the peer makes it.
fn item(number: usize) -> Vec<u8> {
    (0..number).map(|place| (number * 31 + place) as u8).collect()
}

/// Items arrive in order and unchanged, in both directions, whether they are there already or the
/// other side waits for them.
#[test]
fn s71_a_queue_is_shared_with_curator() {
    skip_without_zookeeper!();
    skip_without!(Whose::CuratorQueue);
    let site = Site::shared("s71-queue");
    let zk = site.client();
    let queue = DistributedQueue::new(&zk, &site.base, "q");
    let path = format!("{}/q", site.base);
    let mut peer = Peer::start(Whose::CuratorQueue, site.hosts());
    for waits in [false, true] {
        let begin = Instant::now();
        let taker = queue.clone();
        let take_all = move || {
            for number in 0..ITEMS {
                let taken = match number % 3 {
                    0 => taker.take().unwrap(),
                    1 => taker.take_within(SOON).unwrap().expect("in time"),
                    _ => {
                        let item = taker.lease().unwrap();
                        let data = item.data().to_vec();
                        item.ack().unwrap();
                        data
                    }
                };
                assert!(taken == item(number), "other bytes at {number}");
            }
        };
        if waits {
            let takes = waiting(take_all);
            assert_eq!(peer.ask(&format!("offer {path} {ITEMS}")), format!("offered {ITEMS}"));
            takes.join().unwrap();
        } else {
            assert_eq!(peer.ask(&format!("offer {path} {ITEMS}")), format!("offered {ITEMS}"));
            take_all();
        }
        assert_eq!(queue.try_take().unwrap(), None);
        row(["curator's queue", "zklock"], ITEMS, begin, "takes in order");

        let begin = Instant::now();
        if waits {
            peer.order(&format!("take {path} {ITEMS}"));
        }
        for number in 0..ITEMS {
            queue.offer(item(number)).unwrap();
        }
        if !waits {
            peer.order(&format!("take {path} {ITEMS}"));
        }
        assert_eq!(peer.answer(SOON * 4), format!("taken {ITEMS}"));
        row(["zklock's queue", "curator"], ITEMS, begin, "takes in order");
    }
    peer.end();
    drop(queue);
    site.finish([zk]);
}
