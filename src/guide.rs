//! Which recipe to use when. There is no code here.
//!
//! # What is to be had
//!
//! | To have ... | use | and not |
//! |---|---|---|
//! | one of many do something for a moment | [`DistributedLock`](crate::DistributedLock) | an election: its candidates stay |
//! | one of many do something for as long as it lives, and know who | [`LeaderElection`](crate::LeaderElection) | a lock in a loop: `lead` is that loop |
//! | readers beside each other, and writers alone | [`DistributedRwLock`](crate::DistributedRwLock) | two mutexes |
//! | no more than so many at once | [`DistributedSemaphore`](crate::DistributedSemaphore) | a counter: it does not notice who died |
//! | code that holds a lock call code that takes it | [`ReentrantLock`](crate::ReentrantLock) | a mutex: the thread would wait for itself |
//! | several locks, all or none | [`MultiLock`](crate::MultiLock) | one after the other: two could each wait for the other |
//! | all wait until somebody gives the sign | [`Barrier`](crate::Barrier) | a lock that is held for that: it goes with its holder |
//! | a known number begin together, and end together | [`DoubleBarrier`](crate::DoubleBarrier) | a barrier: it counts nobody |
//! | each piece of work done once, if at all | [`DistributedQueue::take`](crate::DistributedQueue::take) | a lease: what was done, and not acknowledged, comes again |
//! | each piece of work done, perhaps twice | [`DistributedQueue::lease`](crate::DistributedQueue::lease) | `take`: what its taker does not finish is gone |
//! | the urgent work first | [`PriorityQueue`](crate::PriorityQueue) | several queues: nobody can wait for all of them |
//! | all of a few do something, or none of them | [`TwoPhaseCommit`](crate::TwoPhaseCommit) | a barrier: nobody can say no |
//! | know who is there | [`Group`](crate::Group) | the contenders of a lock |
//! | settings that all see | [`SharedValue`](crate::SharedValue) | a file in a queue: a value has no history |
//! | count without losing one | [`SharedCounter`](crate::SharedCounter) | get and set: others come in between |
//!
//! # What goes with whom
//!
//! What a session holds goes with it: locks, leadership, permits, leases, places in barriers and in
//! rounds of a commit. A [`Membership`](crate::Membership) comes back in the next session by itself;
//! [`lead`](crate::LeaderElection::lead) stands again. What stays, whoever dies: the items of
//! queues, values and counters, a raised barrier, votes and decisions.
//!
//! # How sure a call is
//!
//! A connection can be lost while an answer is under way. What can be found out afterwards is found
//! out, without a word:
//!
//! | | after a lost answer |
//! |---|---|
//! | whatever makes a node of the session: locks, leadership, leases, places, memberships | looked for, and kept or deleted |
//! | releases, leaving, acknowledging | asked again, until it is certain, or the session has ended |
//! | [`SharedValue::set`](crate::SharedValue::set) | asked again, perhaps over what somebody else has set meanwhile |
//! | [`Barrier::raise`](crate::Barrier::raise), [`lift`](crate::Barrier::lift), [`TwoPhaseCommit::begin`](crate::TwoPhaseCommit::begin), votes and decisions | found out, as far as can be; else `ConnectionLoss` says that it is not known |
//! | [`DistributedQueue::take`](crate::DistributedQueue::take) | looked for; if the item is gone, `ConnectionLoss` says so, and names it |
//! | [`SharedValue::compare_and_set`](crate::SharedValue::compare_and_set), `update`, [`SharedCounter::add`](crate::SharedCounter::add) | asked again, as only one of both can succeed; if somebody else may have been in between, [`ConnectionLoss`](crate::ErrorKind::ConnectionLoss) says that it is not known |
//! | [`DistributedQueue::offer`](crate::DistributedQueue::offer) | `ConnectionLoss` says that the item may be in the queue: whoever offers it again may have it there twice |
//!
//! # What no recipe can do
//!
//! Stop a process that was paused between a look and a deed. A holder's [fencing
//! token](crate::FencingToken) lets whoever receives a late deed refuse it; a leader has one, too.
//!
//! Read what is true now: between the answer and its use, all may have changed. `members`, `leader`,
//! `contenders`, `len`, `peek` are for people, and for decisions that may be out of date.
//!
//! Store much. ZooKeeper keeps everything in memory, on each server; a node has less than 1 MiB, and
//! better some kilobytes. Queues of thousands of items are well; of millions, they are for something
//! else.
