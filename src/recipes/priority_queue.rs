//! The priority queue.

use std::time::Duration;

use super::node_config::Wait;
use super::queue::{Items, Layout, Search};
use crate::acl::Acl;
use crate::error::Result;
use crate::rt::Deadline;
use crate::session::cancel::Cancel;
use crate::session::client::Client;

/// A queue of items with a priority: the lowest number is taken first, and among equal ones the item
/// that was offered first.
///
/// An item is a node below `base/name`, whose name says its priority and, behind that, the number
/// that the server gave it. No other client has this layout. All else is as with a
/// [`DistributedQueue`](crate::DistributedQueue): an item is put there at most once by a call, and
/// delivered **at most once**.
///
/// # Order
///
/// No item is taken while another is there that comes before it and whose offer had ended when the
/// call began, or woke last.
///
/// # Costs
///
/// To take an item costs four requests in three round trips: whether there are new items is asked
/// through the leader, then the item is read and deleted. Where there are new ones, all names are
/// listed anew: a long queue to which much is offered costs a list for each item that is taken.
///
/// # Example
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
    /// The queue `name` under the path `base`: as
    /// [`DistributedLock::new`](crate::DistributedLock::new).
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> PriorityQueue {
        PriorityQueue::builder(zk, base, name).build()
    }

    /// As [`new`](PriorityQueue::new), with settings.
    pub fn builder(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> PriorityQueueBuilder {
        let items = Items::new(zk.into(), base.as_ref(), name.as_ref(), Layout::ByPriority);
        PriorityQueueBuilder { queue: PriorityQueue { items } }
    }

    /// Puts an item behind those of the same and of lower priority numbers; at most once, as
    /// [`DistributedQueue::offer`](crate::DistributedQueue::offer).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn offer(&self, priority: u32, data: impl AsRef<[u8]>) -> Result<()> {
        self.items.offer(priority, data.as_ref())
    }

    /// Takes the first item, if there is one; at most once, as
    /// [`DistributedQueue::try_take`](crate::DistributedQueue::try_take).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_take(&self) -> Result<Option<Vec<u8>>> {
        self.items.take(self.items.at_once())
    }

    /// Blocks until there is an item, and takes it; **at most once**, as
    /// [`DistributedQueue::take`](crate::DistributedQueue::take).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn take(&self) -> Result<Vec<u8>> {
        self.items.until_there(Wait::FOREVER, Items::take)
    }

    /// As [`take`](PriorityQueue::take), for so long at the most; `None` when there was no item to
    /// be had.
    ///
    /// # Errors
    ///
    /// As [`take`](PriorityQueue::take).
    pub fn take_for(&self, limit: Duration) -> Result<Option<Vec<u8>>> {
        self.items.take(Search::waiting(Wait::until(Deadline::after(limit))))
    }

    /// As [`take`](PriorityQueue::take), until any thread trips `cancel`.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled); else as [`take`](PriorityQueue::take).
    pub fn take_with(&self, cancel: &Cancel) -> Result<Vec<u8>> {
        self.items.until_there(Wait::unless(cancel), Items::take)
    }

    /// The data of the first item. Others may take it at any time.
    ///
    /// # Errors
    ///
    /// As [`DistributedQueue::peek`](crate::DistributedQueue::peek).
    pub fn peek(&self) -> Result<Option<Vec<u8>>> {
        self.items.peek()
    }

    /// How many items there are. Lists them all.
    ///
    /// # Errors
    ///
    /// As [`peek`](PriorityQueue::peek).
    pub fn len(&self) -> Result<usize> {
        self.items.len()
    }

    /// Whether there is no item.
    ///
    /// # Errors
    ///
    /// As [`peek`](PriorityQueue::peek).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.items.len()? == 0)
    }
}

/// Settings of a [`PriorityQueue`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct PriorityQueueBuilder {
    queue: PriorityQueue,
}

impl PriorityQueueBuilder {
    /// The ACL of every node that this queue makes: missing parents, the queue's node and items.
    /// Default [`Acl::open`].
    ///
    /// To take an item takes DELETE on the queue's node.
    pub fn acl(mut self, acl: impl Into<Vec<Acl>>) -> PriorityQueueBuilder {
        self.queue.items.target.acl = acl.into();
        self
    }

    /// The queue with these settings.
    pub fn build(self) -> PriorityQueue {
        self.queue
    }
}
