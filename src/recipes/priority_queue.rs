//! The priority queue.

use crate::acl::Acl;
use crate::error::Result;
use crate::recipes::queue::{Items, Layout, items};
use crate::session::Client;

/// A queue of items with priorities: the lowest priority number is taken first, and among equal
/// ones the item that was offered first.
///
/// An item is a node below `base/name`; no other library uses this layout. As in a
/// [`DistributedQueue`](crate::DistributedQueue), a call puts an item there at most once, and an
/// item is delivered **at most once**.
///
/// No item is taken while there is another one that comes before it and whose offer had returned
/// when the taking call began, or last woke up. Except that what came too late for an earlier call
/// of this client is returned first, whatever its priority.
///
/// Taking an item costs four requests in three round trips. If there are new items, all names are
/// listed again: a long queue to which much is offered costs a list for each item that is taken.
///
/// ```no_run
/// use zklock::{Client, PriorityQueue};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let jobs = PriorityQueue::new(&zk, "/queues", "jobs");
/// jobs.offer(5, "rebuild the index")?;
/// jobs.offer(0, "stop the leak")?;
/// assert_eq!(jobs.take()?, b"stop the leak");
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PriorityQueue {
    items: Items,
}

impl PriorityQueue {
    /// Returns the queue `name` under the path `base`: see
    /// [`DistributedLock::new`](crate::DistributedLock::new).
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> PriorityQueue {
        let items = Items::new(zk.into(), base.as_ref(), name.as_ref(), Layout::ByPriority);
        PriorityQueue { items }
    }

    /// Sets the ACL of every new node, including missing parents. Default [`Acl::open`].
    ///
    /// Taking an item requires DELETE on the queue's node.
    #[must_use = "the value is changed, and returned"]
    pub fn acl(mut self, acl: impl Into<Vec<Acl>>) -> PriorityQueue {
        self.items.target.acl = acl.into();
        self
    }

    /// Puts an item into the queue, behind those with the same or a lower priority
    /// number. Returns a number that no other item of the queue has.
    ///
    /// # Errors
    ///
    /// As [`DistributedQueue::offer`](crate::DistributedQueue::offer).
    pub fn offer(&self, priority: u32, data: impl AsRef<[u8]>) -> Result<i32> {
        self.items.offer(priority, data.as_ref())
    }
}

items!(PriorityQueue);
