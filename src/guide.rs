//! Which recipe to use when, and what calls promise. There is no code here.
//!
//! # Which recipe
//!
//! | To have ... | use | and not |
//! |---|---|---|
//! | one of many do something for a moment | [`DistributedLock`](crate::DistributedLock) | an election: its candidates stay |
//! | one of many do something once, such as every night | [`Once`](crate::Once) | a lock alone: a late host finds it free, and does it again |
//! | one of many do something for as long as it lives, and know who | [`LeaderElection`](crate::LeaderElection) | a lock in a loop: `lead` is that loop |
//! | readers beside each other, and writers alone | [`DistributedRwLock`](crate::DistributedRwLock) | two mutexes |
//! | no more than so many at once | [`DistributedSemaphore`](crate::DistributedSemaphore) | a counter: it does not notice who died |
//! | code that holds a lock call code that takes it | [`ReentrantLock`](crate::ReentrantLock) | a mutex: the thread would wait for itself |
//! | several locks, all or none | [`MultiLock`](crate::MultiLock) | one after the other: two could each wait for the other |
//! | all wait until somebody gives the sign | [`Barrier`](crate::Barrier) | a lock that is held for that: it goes with its holder |
//! | a known number begin together, and end together | [`DoubleBarrier`](crate::DoubleBarrier) | a barrier: it counts nobody |
//! | each piece of work done once, if at all | [`DistributedQueue::take`](crate::queue::Items::take) | a lease: what was done, and not acknowledged, comes again |
//! | each piece of work done, perhaps twice | [`DistributedQueue::lease`](crate::DistributedQueue::lease) | `take`: what its taker does not finish is gone |
//! | the urgent work first | [`PriorityQueue`](crate::PriorityQueue) | several queues: nobody can wait for all of them |
//! | all of a few do something, or none of them | [`TwoPhaseCommit`](crate::TwoPhaseCommit) | a barrier: nobody can say no |
//! | know who is there | [`Group`](crate::Group) | the contenders of a lock |
//! | data of the program's own, on the locks' session | [`Client::znode`](crate::Client::znode) | a second client |
//! | settings that all see | [`SharedValue`](crate::SharedValue) | a file in a queue: a value has no history |
//! | count without losing one | [`SharedCounter`](crate::SharedCounter) | get and set: others come in between |
//!
//! # What goes with whom
//!
//! What a session holds goes with it: locks, leadership, permits, leases, places in barriers and in
//! rounds of a commit. A [`Membership`](crate::group::Membership) comes back in the next session by itself;
//! [`lead`](crate::LeaderElection::lead) stands again. What stays, whoever dies: the items of
//! queues, values and counters, persistent nodes, marks of jobs, a raised barrier, votes and decisions.
//!
//! # How sure a call is
//!
//! A connection can be lost while a reply is under way. Afterwards the library checks what happened,
//! and reports the real result where it can. Where it cannot, the error is
//! [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss): the call
//! [may have taken effect](crate::Error::may_have_taken_effect), and is not
//! [retryable](crate::Error::is_retryable). [`Connect`](crate::ErrorKind::Connect) means that it
//! certainly had no effect.
//!
//! | | after a lost reply |
//! |---|---|
//! | whatever makes a node of the session: locks, leadership, leases, places, memberships | looked for, and kept or deleted |
//! | releases, leaving, acknowledging | repeated until it is certain, or the session has ended |
//! | [`SharedValue::set`](crate::SharedValue::set) | repeated, perhaps over what another client has set meanwhile |
//! | [`Barrier::raise`](crate::Barrier::raise), [`lift`](crate::Barrier::lift), [`TwoPhaseCommit::begin`](crate::TwoPhaseCommit::begin), votes and decisions | checked, as far as possible; otherwise `ConnectionLoss` |
//! | [`DistributedQueue::take`](crate::queue::Items::take) | looked for; if the item is gone, `ConnectionLoss`, whose path is the item's. The same if the time is over before the reply: then the next call returns the item, or `late_items` |
//! | [`SharedValue::compare_and_set`](crate::SharedValue::compare_and_set), `update`, [`SharedCounter::add`](crate::SharedCounter::add) | looked for, and repeated if it was certainly not made; `ConnectionLoss` if this call or another client may have changed the value meanwhile |
//! | [`Znode::write_if_unchanged`](crate::Znode::write_if_unchanged) | the same |
//! | [`SharedValue::set_if_absent`](crate::SharedValue::set_if_absent), [`Znode::create`](crate::Znode::create) of a node without a number | looked for, and repeated if nothing was created or deleted below its parent; otherwise `ConnectionLoss` |
//! | [`Znode::write`](crate::Znode::write), [`delete`](crate::Znode::delete), [`set_acl`](crate::Znode::set_acl), sequential nodes, [`Transaction::commit`](crate::Transaction::commit) | not repeated: `ConnectionLoss` says that it may have been done |
//! | [`DistributedQueue::offer`](crate::DistributedQueue::offer) | not repeated: `ConnectionLoss` says that the item may be in the queue; a second offer may put it there twice |
//!
//! # A job that somebody must do
//!
//! Of the hosts that run a job for one key, one does it, and the others have to decide whether to wait
//! for it. [`Once::run`](crate::Once::run) gives up at once: `Busy` says that another call is at work, and
//! nothing of how it ends. If it fails, or its process dies, nobody does the job.
//! [`Once::run_within`](crate::Once::run_within) waits until the mark is there, or takes over. When its
//! time is over it returns `Busy`, too: that is no success, and a program should say so.
//!
//! # `None`, or an error
//!
//! A call that may return `None` (or, like [`Barrier::wait_within`](crate::Barrier::wait_within), `false`)
//! does so only if a server said during this call that others hold the lock or that the queue is
//! empty, or if another thread of this process holds the lock. If no server answered in time, the
//! call fails with `Connect` at the same moment. So a job never takes an outage for another holder.
//! A call that takes or leases an item also returns `None` if a server has answered it, the client is
//! connected, and the time was over before the call had got an item.
//!
//! # What ends every wait
//!
//! A call that waits goes on through lost connections, lost sessions and outages, until it has what it
//! is for, or its time is over. Other errors end it at once, because it cannot tell that more waiting
//! would help:
//!
//! | Kind | Is there any use in calling again? |
//! |---|---|
//! | [`InvalidName`](crate::ErrorKind::InvalidName), [`InvalidArgument`](crate::ErrorKind::InvalidArgument), [`TooLarge`](crate::ErrorKind::TooLarge), [`NotAuthorized`](crate::ErrorKind::NotAuthorized), [`AuthFailed`](crate::ErrorKind::AuthFailed), [`Unsupported`](crate::ErrorKind::Unsupported), [`Server`](crate::ErrorKind::Server) | only after something else is changed: a name, an ACL, credentials, a server |
//! | [`Closed`](crate::ErrorKind::Closed) | with another client |
//! | [`Conflict`](crate::ErrorKind::Conflict), [`NotFound`](crate::ErrorKind::NotFound) | after what the call needs was set right or created |
//! | [`System`](crate::ErrorKind::System), [`SequenceExhausted`](crate::ErrorKind::SequenceExhausted), [`Full`](crate::ErrorKind::Full) | yes, later: these are [retryable](crate::Error::is_retryable) |
//!
//! No call gives all of them: each names those of its own. If the client limits its
//! [retries](crate::Retry), trouble with the connection beyond that limit ends a wait for a lock, too.
//!
//! # What no recipe can do
//!
//! - Stop a process that was paused between a look and a write. A holder's [fencing
//!   token](crate::FencingToken) lets the receiver of a late write refuse it. Leaders and leased items
//!   have one, too. The ensemble itself refuses a late write by a guard's
//!   [transaction](crate::Hold::transaction).
//! - Read what is true now. Between the answer and its use, everything may change. `members`,
//!   `leader`, `contenders`, `len` and `peek` are for people, and for decisions that may be out of
//!   date.
//! - Store much. ZooKeeper keeps everything in memory, on each server; a node has less than 1 MiB,
//!   better some kilobytes. Thousands of queued items are fine; use a message broker for millions.
