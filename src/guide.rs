//! Which recipe to use when, and what each call guarantees.
//!
//! # Which recipe
//!
//! - One of many does something for a moment: [`DistributedLock`](crate::DistributedLock), not an
//!   election, whose candidates stay.
//! - One of many does something once, such as every night: [`Once`](crate::Once). With a lock
//!   alone, a late host finds it free, and does it again.
//! - One of many does something for as long as it lives, and all know which:
//!   [`LeaderElection`](crate::LeaderElection), not a lock in a loop: `lead` is that loop.
//! - Readers beside each other, and writers alone: [`DistributedRwLock`](crate::DistributedRwLock).
//! - At most so many at once: [`DistributedSemaphore`](crate::DistributedSemaphore), not a counter,
//!   which does not notice dead clients.
//! - Code that holds a lock calls code that takes it: [`ReentrantLock`](crate::ReentrantLock).
//! - A holder that may hang must not block the others for ever:
//!   [`hold_at_most`](crate::DistributedLock::hold_at_most), a setting of all locks, and [fencing
//!   tokens](crate::FencingToken).
//! - Urgent ones must not wait behind patient ones: [`patience`](crate::DistributedLock::patience), a setting
//!   of mutexes and read/write locks, which all who use the path should have. With
//!   [`ask_worse`](crate::DistributedLock::ask_worse) they need not wait for a patient holder that makes
//!   room.
//! - Several locks, all or none: [`MultiLock`](crate::MultiLock). One after the other can deadlock.
//! - All wait for a signal: [`Barrier`](crate::Barrier), not a held lock, which ends with its
//!   holder.
//! - A known number begin together, and end together: [`DoubleBarrier`](crate::DoubleBarrier).
//! - Each piece of work is done once, if at all:
//!   [`DistributedQueue::take`](crate::queue::Items::take). What its taker does not finish is gone.
//! - Each piece of work is done, perhaps twice:
//!   [`DistributedQueue::lease`](crate::DistributedQueue::lease). Work that was done, but not
//!   acknowledged, comes again.
//! - The urgent work first: [`PriorityQueue`](crate::PriorityQueue), not several queues: no call
//!   waits for all of them.
//! - All of a few do something, or none of them: [`TwoPhaseCommit`](crate::TwoPhaseCommit), not a
//!   barrier, where nobody can say no.
//! - Know the present members: [`Group`](crate::Group), not the contenders of a lock.
//! - The program's own data, on the locks' session: [`Client::znode`](crate::Client::znode).
//! - Settings that all see: [`SharedValue`](crate::SharedValue). It has no history.
//! - Count without losing one: [`SharedCounter`](crate::SharedCounter).
//!
//! # What ends with the session
//!
//! Locks, leadership, permits, leases, and places in barriers and in rounds of a commit end with
//! their session. A [`Membership`](crate::group::Membership) comes back in the next session by
//! itself; [`lead`](crate::LeaderElection::lead) campaigns again. Items of queues, values and
//! counters, persistent nodes, marks of jobs, a raised barrier, votes and decisions stay, whichever
//! client dies.
//!
//! # How sure a call is
//!
//! After a lost reply the library checks what happened, and reports the real result where it can.
//! Where it cannot, the error is [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss): the call
//! [may have taken effect](crate::Error::may_have_taken_effect), and is not
//! [retryable](crate::Error::is_retryable). [`Connect`](crate::ErrorKind::Connect) means that it
//! certainly had no effect. By call, after a lost reply:
//!
//! - **Calls that make a node of the session** (locks, leadership, leases, places, memberships): it
//!   is looked for, and kept or deleted; or it ends with the session, if the client [owned nothing
//!   there](crate::Client).
//! - **Releases, leaving, acknowledging**: repeated until it is certain, or the session has ended.
//! - **[`SharedValue::set`](crate::SharedValue::set)**: repeated, perhaps over what another client
//!   has set meanwhile.
//! - **[`Barrier::raise`](crate::Barrier::raise), [`lift`](crate::Barrier::lift),
//!   [`TwoPhaseCommit::begin`](crate::TwoPhaseCommit::begin)**: found out exactly, unless the session
//!   ends before that.
//! - **Votes and decisions, marks of jobs and [`Once::forget`](crate::Once::forget)**: checked, as far
//!   as possible; otherwise `ConnectionLoss`.
//! - **[`DistributedQueue::take`](crate::queue::Items::take)**: looked for; if the item is gone,
//!   `ConnectionLoss` with the item's path. The same if the time is over before the reply: then the
//!   next call returns the item, or `late_items`.
//! - **[`SharedValue::compare_and_set`](crate::SharedValue::compare_and_set), `update`,
//!   [`SharedCounter::add`](crate::SharedCounter::add),
//!   [`Znode::write_if_unchanged`](crate::Znode::write_if_unchanged)**: looked for, and repeated if
//!   it was certainly not made; `ConnectionLoss` if this call or another client may have changed
//!   the value meanwhile.
//! - **[`SharedValue::set_if_absent`](crate::SharedValue::set_if_absent),
//!   [`Znode::create`](crate::Znode::create) of a node without a number**: looked for, and repeated
//!   if nothing was created or deleted below its parent; otherwise `ConnectionLoss`.
//! - **[`Znode::write`](crate::Znode::write), [`delete`](crate::Znode::delete),
//!   [`set_acl`](crate::Znode::set_acl), sequential nodes,
//!   [`Transaction::commit`](crate::Transaction::commit),
//!   [`DistributedQueue::offer`](crate::DistributedQueue::offer)**: not repeated; `ConnectionLoss`
//!   says that it may have been done. A second offer may put the item there twice.
//!
//! A request whose reply was lost may also be carried out later, after newer ones of the same client,
//! [until its session has ended](crate::Error::may_have_taken_effect). `SharedValue::set`, `raise`,
//! `lift`, `begin`, marks of jobs and `forget` are safe from that: what such a call has changed, once it
//! has succeeded, is not undone by an older one of the same client. (Their pages tell the exceptions.) The
//! same is true of calls that name a version, as long as the node is not deleted and created again.
//!
//! # `None`, or an error
//!
//! A call that may return `None` (or, like [`Barrier::wait_within`](crate::Barrier::wait_within),
//! `false`) does so only if a server said during this call that others hold the lock or that the
//! queue is empty, or if another thread of this process holds the lock. If no server answered in
//! time, the call fails with `Connect` at the same moment. A call that takes or leases an item also
//! returns `None` if a server has answered it, the client is connected, and the time was over
//! before the call had got an item.
//!
//! # What ends every wait
//!
//! A waiting call goes on through lost connections, lost sessions and outages, until it succeeds or
//! its time is over. Other errors end it at once. Is there any use in calling again?
//!
//! - Only after something else is changed (a name, an ACL, credentials, a server):
//!   [`InvalidName`](crate::ErrorKind::InvalidName),
//!   [`InvalidArgument`](crate::ErrorKind::InvalidArgument),
//!   [`TooLarge`](crate::ErrorKind::TooLarge), [`QuotaExceeded`](crate::ErrorKind::QuotaExceeded),
//!   [`NotAuthorized`](crate::ErrorKind::NotAuthorized),
//!   [`AuthFailed`](crate::ErrorKind::AuthFailed), [`Unsupported`](crate::ErrorKind::Unsupported),
//!   [`Server`](crate::ErrorKind::Server)
//! - With another client: [`Closed`](crate::ErrorKind::Closed)
//! - After what the call needs was set right or created: [`Conflict`](crate::ErrorKind::Conflict),
//!   [`NotFound`](crate::ErrorKind::NotFound)
//! - Later: the [retryable](crate::Error::is_retryable) [`System`](crate::ErrorKind::System),
//!   [`SequenceExhausted`](crate::ErrorKind::SequenceExhausted), [`Full`](crate::ErrorKind::Full)
//!
//! No call returns all of them.
//!
//! # What no recipe can do
//!
//! - Stop a process that was paused between a look and a write: see the
//!   [guarantees](crate#guarantees).
//! - Read what is true now. Everything may change between the answer and its use: `members`,
//!   `leader`, `contenders`, `len` and `peek` are for people, and for decisions that may be out of
//!   date.
//! - Store much. ZooKeeper keeps everything in memory, on each server; a node has less than 1 MiB,
//!   better some kilobytes. Thousands of queued items are fine; use a message broker for millions.
