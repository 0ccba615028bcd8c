//! The queue: first in, first out.

mod item_cache;
mod item_names;
mod items_taken_after_timeout;
mod leased_item;
mod offer_and_take;

pub use leased_item::LeasedItem;

use crate::acl::Acl;
use crate::contend::{insist, insist_within};
use crate::error::Result;
use crate::session::{Client, Wait};

pub(crate) use item_names::Layout;
pub use offer_and_take::Items;

/// A queue of items, each of at most nearly 1 MiB: what is offered first is taken first.
///
/// An item is a sequential node below `base/name`, with the item's bytes. This is the layout of
/// ZooKeeper's own recipe and of Curator's `SimpleDistributedQueue`, whose clients may offer and
/// take beside this one. Children of another kind are ignored, with a warning.
///
/// The value is a description. The first [`offer`](Self::offer) creates the queue's node; a call
/// that waits for an item also waits for the node.
///
/// # How often an item is delivered
///
/// - [`offer`](Self::offer) puts an item there at most once; a call that is repeated after an
///   error, perhaps twice.
/// - [`take`](Items::take), [`take_within`](Items::take_within) and [`try_take`](Items::try_take)
///   deliver it **at most once**: it is deleted before it is returned. If the consumer then dies,
///   or the reply is lost, so is the item.
/// - [`lease`](Self::lease), [`lease_within`](Self::lease_within) and
///   [`try_lease`](Self::try_lease) deliver it **at least once**: until [`ack`](LeasedItem::ack)
///   deletes it, it returns to the queue.
///
/// A call that takes begins to delete an item only before its timeout. If the reply comes too late,
/// the call fails with `ConnectionLoss`, and the client keeps the item for its next call that takes
/// from this queue, or for [`late_items`](Items::late_items). Without either the item is lost with
/// the client; the log says so.
///
/// No consumer takes a leased item. Other libraries may offer to a queue whose items are leased,
/// but all its consumers should be zklock's.
///
/// # Order
///
/// A value, with its clones, takes items in the order of their numbers, as long as no other
/// consumer is faster. If one is, the value chooses among the first two items that it knows, or up
/// to 1,024 while it goes on getting none: items may be overtaken while consumers compete. A lease
/// that an earlier, lost session of the client still holds counts as another consumer's.
///
/// A leased item is passed over. When it returns, it is the first again: at once for calls that
/// wait, and within a second for consumers that passed it over. What came too late for an earlier
/// call is returned before all others.
///
/// Do not delete the queue's node while a consumer is at work: if it has read an item, and is
/// delayed until there is another item of the same name, it takes that one instead. Let zklock
/// offer the first item where Curator shares a queue: Curator's node is a container, which servers
/// remove when it has been empty for a while.
///
/// An item that this client may not read is passed over, with a warning, and tried again after a
/// while. So is an item with children of which none is a contender for its lease.
///
/// # Costs
///
/// A value and its clones share a list of the items, so the threads of one process should use
/// clones. Taking an item costs two requests, leasing and acknowledging one costs four, however
/// long the queue is. Leased items in front are checked: ten in the first round trip, a hundred in
/// each further one. A waiting consumer has one watch on the queue and one on each leased item, and
/// checks all of them again after two session timeouts.
///
/// Consumers that are not clones compete for the same items. In the tests, thirty of them that
/// empty a queue of thousands send at most 6 requests for each item, or 12 if they lease it and
/// acknowledge it at once. An item that is offered while they all wait wakes all of them; half of
/// the items cost all thirty together at most 45 requests, or 60 with leases. A value that was woken
/// in vain lets others go first the next time, for at most 500 ms.
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
/// mail.ack()?; // now it is gone; without this another consumer would get it
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DistributedQueue {
    items: Items,
}

impl DistributedQueue {
    /// Returns the queue `name` under the path `base`: see
    /// [`DistributedLock::new`](crate::DistributedLock::new).
    pub fn new(
        zk: impl Into<Client>,
        base: impl AsRef<str>,
        name: impl AsRef<str>,
    ) -> DistributedQueue {
        let items = Items::new(zk.into(), base.as_ref(), name.as_ref(), Layout::ByAge);
        DistributedQueue { items }
    }

    /// Sets the ACL of every new node, including missing parents. Default [`Acl::open`].
    ///
    /// Taking an item requires DELETE on the queue's node. Leasing one requires CREATE on the item,
    /// and ending the lease DELETE on the item.
    #[must_use = "the value is changed, and returned"]
    pub fn acl(mut self, acl: impl Into<Vec<Acl>>) -> DistributedQueue {
        self.items.target.acl = acl.into();
        self
    }

    /// Puts an item at the end of the queue, and returns its sequence number.
    ///
    /// # Errors
    ///
    /// - [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) if the reply was lost: **the item may
    ///   be in the queue, or not**, or come there [later](crate::Error::may_have_taken_effect), until the
    ///   session has ended. After a second call it may be there twice.
    /// - [`Connect`](crate::ErrorKind::Connect) if no server was reached within the [connect
    ///   timeout](crate::ClientBuilder::connect_timeout): the item is not in the queue.
    /// - [`TooLarge`](crate::ErrorKind::TooLarge), before anything is sent, if the item does not
    ///   fit into a request (1,048,575 bytes with the path and the ACL; less once servers with a
    ///   smaller `jute.maxbuffer` have closed connections because of it).
    /// - [`SequenceExhausted`](crate::ErrorKind::SequenceExhausted) if the queue has used up its
    ///   numbers and is not empty yet.
    /// - Others that [end every wait](crate::guide#what-ends-every-wait).
    pub fn offer(&self, data: impl AsRef<[u8]>) -> Result<i32> {
        self.items.offer(0, data.as_ref())
    }

    /// Leases the first item that is not leased, if there is one: it is delivered **at least
    /// once**.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) as [`try_take`](Items::try_take); otherwise as
    /// [`lease`](DistributedQueue::lease).
    pub fn try_lease(&self) -> Result<Option<LeasedItem>> {
        self.items.lease_by(self.items.at_once())
    }

    /// Blocks until there is an item that is not leased, and leases it: it is delivered **at least
    /// once**.
    ///
    /// After a lost reply the call finds out what happened.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ on the queue and CREATE and
    /// DELETE on items; otherwise as [`take`](Items::take), except for `ConnectionLoss`.
    pub fn lease(&self) -> Result<LeasedItem> {
        insist(|| self.items.lease_by(self.items.within(&Wait::FOREVER)))
    }

    /// Leases the first item that is not leased, waiting at most `wait`; `None` if the call did not
    /// get one by then.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) as [`take_within`](Items::take_within);
    /// [`Cancelled`](crate::ErrorKind::Cancelled); otherwise as [`lease`](DistributedQueue::lease).
    pub fn lease_within(&self, wait: impl Into<Wait>) -> Result<Option<LeasedItem>> {
        let wait = wait.into();
        insist_within(&wait, || self.items.lease_by(self.items.within(&wait)))
    }
}

impl Items {
    /// Returns the path of the queue's node, `base/name`.
    pub fn path(&self) -> &str {
        self.target.path()
    }

    /// Takes the first item, if there is one: it is delivered **at most once**.
    ///
    /// `None` only if, at some time during the call, the queue was empty, or all its items were
    /// leased or being taken by other threads through this value.
    ///
    /// # Errors
    ///
    /// [`Connect`](crate::ErrorKind::Connect) if no server answered all that the call had to ask
    /// within the [connect timeout](crate::ClientBuilder::connect_timeout); otherwise as
    /// [`take`](Items::take).
    pub fn try_take(&self) -> Result<Option<Vec<u8>>> {
        self.take_by(self.at_once())
    }

    /// Blocks until there is an item, and takes it: it is delivered **at most once**.
    ///
    /// # Errors
    ///
    /// - [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) if the reply to the deletion of an
    ///   item was lost, and the item may be gone: which consumer has it cannot be known, and this
    ///   call does not return it. The error's path is the item's. The queue can be used further.
    /// - [`NotAuthorized`](crate::ErrorKind::NotAuthorized) without READ and DELETE on the queue.
    /// - [`SequenceExhausted`](crate::ErrorKind::SequenceExhausted) for an item that was offered
    ///   after the queue had used up its numbers: its place in the order is unknown.
    /// - Others that [end every wait](crate::guide#what-ends-every-wait).
    pub fn take(&self) -> Result<Vec<u8>> {
        insist(|| self.take_by(self.within(&Wait::FOREVER)))
    }

    /// Takes the first item, waiting at most `wait`; `None` if the call did not get one by then.
    ///
    /// With no time to wait it tries once, for at most 50 ms.
    ///
    /// # Errors
    ///
    /// - [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) also if the time is over while an
    ///   item is being deleted. If it was deleted, the next call of this client that takes from the
    ///   queue returns it, or [`late_items`](Items::late_items).
    /// - [`Connect`](crate::ErrorKind::Connect) at the end of `wait` if no server answered in this
    ///   call, or the connection was lost before the call knew whether there was an item.
    /// - [`Cancelled`](crate::ErrorKind::Cancelled); if an item was being deleted then, the error
    ///   [says so](crate::Error::may_have_taken_effect), and the item is kept as above.
    /// - Otherwise as [`take`](Items::take).
    pub fn take_within(&self, wait: impl Into<Wait>) -> Result<Option<Vec<u8>>> {
        let wait = wait.into();
        insist_within(&wait, || self.take_by(self.within(&wait)))
    }

    /// Returns the items of calls that took them off the queue, but failed as the reply came too late.
    ///
    /// Each item once. Later calls that take return them first, so this is for programs that take no more:
    /// call it after [`Client::close`], and offer the items again through another client, or do the
    /// work. Sends no request.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::ErrorKind::InvalidName) for a name that ZooKeeper does not allow.
    pub fn late_items(&self) -> Result<Vec<Vec<u8>>> {
        self.take_late()
    }

    /// Reads the first item that is not leased and that this client may read. Others may take it at
    /// any time.
    ///
    /// # Errors
    ///
    /// As for [`Znode`](crate::Znode#errors).
    pub fn peek(&self) -> Result<Option<Vec<u8>>> {
        self.first()
    }

    /// Counts the items, including leased ones. Lists them all.
    ///
    /// # Errors
    ///
    /// As [`peek`](Items::peek).
    #[expect(clippy::len_without_is_empty, reason = "each asks the ensemble: `len` says it, too")]
    pub fn len(&self) -> Result<usize> {
        self.count()
    }
}

/// Has a queue dereference to its items.
macro_rules! items {
    ($queue:ident) => {
        impl std::ops::Deref for $queue {
            type Target = $crate::recipes::queue::Items;

            fn deref(&self) -> &$crate::recipes::queue::Items {
                &self.items
            }
        }
    };
}

pub(crate) use items;

items!(DistributedQueue);
