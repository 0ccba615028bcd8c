//! Tests against a real ZooKeeper. A test named `sNN_…` covers scenario NN, `hNN_…` hazard NN: see
//! `tests/README.md`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs,
    reason = "test code"
)]

mod support;

mod acl; // scenario 70: lock nodes that belong to others
#[cfg(feature = "zookeeper")]
mod adopted; // clients of a program's own handle of the zookeeper crate
mod ambiguity; // scenarios 36–43b: lost replies
mod async_programs; // tasks of a tokio program
mod barrier; // barriers
mod busy; // servers that throttle requests
mod client; // connect strings, states, closing, credentials, ACLs
mod connection; // scenarios 23–33 and 35, and the hazards: blips, restarts, expiry, silence
mod costs; // requests, threads, memory and processor time
mod deadlocks; // who waits for whom, and what waits for ever
mod double_barrier; // scenarios 76–78
mod down_or_taken; // scenarios 17 and 18: an outage is not taken for other holders
mod election; // scenarios 73–75
mod ensemble; // scenarios 34 and 34a: three nodes
mod fenced; // transactions of guards
mod foreign_contenders; // children with numbers that other programs have made
mod group; // scenario 80: group membership
mod handover; // threads of one client that share a node
mod held_since; // since when locks are held
mod hold_at_most; // locks that may be held for some time at most
mod hostile_servers; // hostile bytes from servers
mod hosts; // servers that are replaced, or have lost their data
mod interop; // scenarios 71 and 72: lock paths shared with other clients
mod keeper; // scenarios 23–25 and 34a at servers that are not ZooKeeper
mod late_requests; // requests of a lost connection that are carried out after later ones
mod lease; // how long locks stay certain: outages, pauses, throttling, servers with unequal limits
mod lease_losses; // scenario 28a: the own clock is first, whichever server is cut off
mod limits; // scenarios 14–22: trying, timeouts, cancelling
mod logger; // a program's logger that panics, and one that uses the client
mod maintenance; // locks that are held for maintenance
mod multi_lock; // scenarios 5 and 64–67: reentrant locks and multi-locks
mod mutex; // scenarios 1–13b
mod naming; // contenders named in the styles of other clients
mod observe; // watching which contenders hold
mod once; // jobs that run once
mod owned_nodes; // how much a session may own
mod patience; // locks whose contenders have patience
mod proxy; // the faulty network itself
mod queue; // scenarios 79 and 80: queues
mod refresh; // looks that repeat another one in few requests
mod refusals; // quotas that are used up, and local sessions
mod replaced_sessions; // sessions that own nothing, and a create that gets no answer
mod report; // what a client reports to the program, and how it starts
mod revocation; // scenario 68: asking holders to release, and forcing them
mod rwlock; // scenarios 46–54
#[cfg(feature = "sasl")]
mod sasl; // users with passwords
mod semaphore; // scenarios 55–63
mod sequence; // scenarios 44 and 45
mod shared_value; // scenario 80: shared values and counters
#[cfg(feature = "tls")]
mod tls; // certificates and keys, and what is wrong with them
mod two_phase_commit; // all participants commit, or all abort
mod unused_lock_nodes; // lock nodes in which no contender was ever made
mod versions; // older servers, and servers with smaller limits
mod within; // calls bounded by a time, a token, or both
mod znode; // data beside the locks, and transactions
