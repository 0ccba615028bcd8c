//! The queue: first in, first out.

mod item_cache;
mod item_names;
pub(crate) mod lease;
mod offer_and_take;

use std::time::Duration;

use lease::LeasedItem;

use super::node_config::Wait;
use crate::acl::Acl;
use crate::error::Result;
use crate::rt::Deadline;
use crate::session::cancel::Cancel;
use crate::session::client::Client;

pub(crate) use item_names::Layout;
pub(crate) use offer_and_take::{Items, Search};

/// A queue of items, each of a few bytes up to nearly 1 MiB: what is offered first is taken first.
///
/// An item is a node below `base/name`, numbered by the server, with the item's bytes: the layout of
/// ZooKeeper's own recipe and of Curator's `SimpleDistributedQueue`, which may offer and take
/// beside this one. Children of another kind are ignored, with a warning.
///
/// The value is a description; the queue's node is made by the first [`offer`](Self::offer), and
/// whoever waits for an item waits for the node, too, and survives its deletion.
///
/// # How often an item is delivered
///
/// | | an item is delivered | because |
/// |---|---|---|
/// | [`offer`](Self::offer) | put there at most once by a call; if the call is repeated after an error, perhaps twice | the layout has no mark by which one's own item could be found again |
/// | [`take`](Self::take), [`take_for`](Self::take_for), [`take_with`](Self::take_with), [`try_take`](Self::try_take) | at most once | it is deleted before it is given; who dies then, or has no answer, loses it |
/// | [`lease`](Self::lease), [`lease_for`](Self::lease_for), [`lease_with`](Self::lease_with), [`try_lease`](Self::try_lease) | at least once | it is deleted by [`ack`](LeasedItem::ack), and returns without that |
///
/// A call to take begins to delete an item only while its time is not over. If the server's answer
/// comes too late for it even so, the client keeps the item for the next call to take from this
/// queue, by whatever value. Only when the client ends without such a call is the item lost, which
/// the log says.
///
/// # Taking and leasing in one queue
///
/// Nobody who takes gets a leased item: its lease is a node below it, and the server deletes no node
/// that has children. Other clients' consumers do not know what to make of that: they may offer to
/// a queue whose items are leased, but all its consumers should be zklock's.
///
/// # Order
///
/// Items are taken in the order of their numbers. One that is leased is passed over; when it returns
/// it is the first again, for whoever waits at once, and for whoever passed it within a second. The
/// order holds, too, when the empty queue's node was removed and its numbers begin anew.
///
/// The queue's node stays when the queue is empty. Do not delete it while a consumer is at work: a
/// consumer that has read an item, and is held up until there is another item of the same name,
/// would take that in its place. Curator's queues make their node a container, which servers remove
/// when it has been empty for a while; let zklock offer the first item where both share a queue.
///
/// An item that this client may not read is passed over, with a warning in the log; it is tried
/// again after a while.
///
/// # Costs
///
/// A value and its clones share a list of the items, which is fetched anew when it is used up: to
/// take an item costs two requests (read, delete), to lease and acknowledge one four (read, make the
/// lease, watch it, a transaction), however long the queue is. Leased items that are in the way are
/// looked at, and not read: ten of them in one round trip, from then on a hundred. A consumer that
/// waits has one watch on the queue and one on each leased item, and looks at all of them again
/// after two session time-outs. Consumers that are not clones of one
/// value meet at the same items: each reads what another then takes, and those who would lease may
/// contend for it. So threads of one process should use clones.
///
/// # Example
///
/// ```no_run
/// use zklock::{Client, DistributedQueue};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let mails = DistributedQueue::new(&zk, "/queues", "mails");
/// mails.offer("welcome 4711")?;
///
/// let mail = mails.lease()?; // waits for one
/// println!("sending {}", String::from_utf8_lossy(mail.data()));
/// mail.ack()?; // now it is gone; without this somebody else would be given it
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DistributedQueue {
    items: Items,
}

impl DistributedQueue {
    /// The queue `name` under the path `base`: as
    /// [`DistributedLock::new`](crate::DistributedLock::new).
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> DistributedQueue {
        DistributedQueue::builder(zk, base, name).build()
    }

    /// As [`new`](DistributedQueue::new), with settings.
    pub fn builder(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> DistributedQueueBuilder {
        let items = Items::new(zk.into(), base.as_ref(), name.as_ref(), Layout::ByAge);
        DistributedQueueBuilder { queue: DistributedQueue { items } }
    }

    /// Puts an item at the end of the queue; at most once.
    ///
    /// Without an answer it is not repeated: the item may be in the queue. Who repeats the call may
    /// put it there twice.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) when there was no answer: **the item may
    /// be in the queue, or not**; [`Connect`](crate::ErrorKind::Connect) when no server was reached
    /// within the [connect time-out](crate::ClientBuilder::connect_timeout), and the item is not
    /// there; [`TooLarge`](crate::ErrorKind::TooLarge), before anything is sent, for an item that
    /// does not fit into a request (1,048,575 bytes with the path and the ACL; less once servers
    /// with a smaller `jute.maxbuffer` have closed connections on it);
    /// [`SequenceExhausted`](crate::ErrorKind::SequenceExhausted) when the queue has used up its
    /// numbers and is not empty yet; what waiting cannot mend else.
    pub fn offer(&self, data: impl AsRef<[u8]>) -> Result<()> {
        self.items.offer(0, data.as_ref())
    }

    /// Takes the first item, if there is one; at most once, as [`take`](DistributedQueue::take).
    ///
    /// `None` only when the queue was empty, or all its items leased, or being taken by other threads
    /// of this value, at some time during the call.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) when no server answered within the
    /// [connect time-out](crate::ClientBuilder::connect_timeout); else as
    /// [`take`](DistributedQueue::take).
    pub fn try_take(&self) -> Result<Option<Vec<u8>>> {
        self.items.take(self.items.at_once())
    }

    /// Blocks until there is an item, and takes it; **at most once**: it is deleted before it is
    /// given, so nobody else is given it, also if this process dies at once.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) when there was no answer to the deletion
    /// of an item, and the item is found to be gone afterwards: who has it cannot be known, and this
    /// call does not give it. The error's path is the item's. The queue can go on being used.
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ and DELETE on the queue; [`SequenceExhausted`](crate::ErrorKind::SequenceExhausted) for an item
    /// whose number says nothing; what waiting cannot mend else.
    pub fn take(&self) -> Result<Vec<u8>> {
        self.items.until_there(Wait::FOREVER, Items::take)
    }

    /// As [`take`](DistributedQueue::take), for so long at the most; `None` when there was no item
    /// to be had.
    ///
    /// # Errors
    ///
    /// As [`take`](DistributedQueue::take).
    pub fn take_for(&self, limit: Duration) -> Result<Option<Vec<u8>>> {
        self.items.take(Search::waiting(Wait::until(Deadline::after(limit))))
    }

    /// As [`take`](DistributedQueue::take), until any thread trips `cancel`.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled); else as [`take`](DistributedQueue::take).
    pub fn take_with(&self, cancel: &Cancel) -> Result<Vec<u8>> {
        self.items.until_there(Wait::unless(cancel), Items::take)
    }

    /// Leases the first item that nobody has leased, if there is one; at least once, as
    /// [`lease`](DistributedQueue::lease).
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) when no server answered within the
    /// [connect time-out](crate::ClientBuilder::connect_timeout); else as
    /// [`lease`](DistributedQueue::lease).
    pub fn try_lease(&self) -> Result<Option<LeasedItem>> {
        self.items.lease(self.items.at_once())
    }

    /// Blocks until there is an item that nobody has leased, and leases it; **at least once**: it
    /// stays in the queue until it is [acknowledged](LeasedItem::ack), and others are given it when
    /// this lease ends without that.
    ///
    /// A lost answer is resolved, as with a lock.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ on the queue and CREATE and
    /// DELETE on items; [`SequenceExhausted`](crate::ErrorKind::SequenceExhausted) for an
    /// item whose number says nothing; what waiting cannot mend else.
    pub fn lease(&self) -> Result<LeasedItem> {
        self.items.until_there(Wait::FOREVER, Items::lease)
    }

    /// As [`lease`](DistributedQueue::lease), for so long at the most; `None` when there was no item
    /// to be had.
    ///
    /// # Errors
    ///
    /// As [`lease`](DistributedQueue::lease).
    pub fn lease_for(&self, limit: Duration) -> Result<Option<LeasedItem>> {
        self.items.lease(Search::waiting(Wait::until(Deadline::after(limit))))
    }

    /// As [`lease`](DistributedQueue::lease), until any thread trips `cancel`.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](crate::ErrorKind::Cancelled); else as [`lease`](DistributedQueue::lease).
    pub fn lease_with(&self, cancel: &Cancel) -> Result<LeasedItem> {
        self.items.until_there(Wait::unless(cancel), Items::lease)
    }

    /// The data of the first item that is not leased and may be read. Others may take it at any time.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) or
    /// [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) when the ensemble does not answer within
    /// the [connect time-out](crate::ClientBuilder::connect_timeout); what waiting cannot mend else.
    pub fn peek(&self) -> Result<Option<Vec<u8>>> {
        self.items.peek()
    }

    /// How many items there are, leased ones among them. Lists them all.
    ///
    /// # Errors
    ///
    /// As [`peek`](DistributedQueue::peek).
    pub fn len(&self) -> Result<usize> {
        self.items.len()
    }

    /// Whether there is no item, be it leased or not.
    ///
    /// # Errors
    ///
    /// As [`peek`](DistributedQueue::peek).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.items.len()? == 0)
    }
}

/// Settings of a [`DistributedQueue`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct DistributedQueueBuilder {
    queue: DistributedQueue,
}

impl DistributedQueueBuilder {
    /// The ACL of every node that this queue makes: missing parents, the queue's node, items and
    /// leases. Default [`Acl::open`].
    ///
    /// To take an item takes DELETE on the queue's node, to lease one CREATE on the item and to let
    /// go of it DELETE on the item.
    pub fn acl(mut self, acl: impl Into<Vec<Acl>>) -> DistributedQueueBuilder {
        self.queue.items.target.acl = acl.into();
        self
    }

    /// The queue with these settings.
    pub fn build(self) -> DistributedQueue {
        self.queue
    }
}
