//! Tests against a real ZooKeeper. `sNN_` names the acceptance scenario that a test covers.

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

mod acl; // scenario 70: lock nodes that others own
#[cfg(feature = "zookeeper")]
mod adopted; // clients of a plain handle of the zookeeper crate
mod ambiguity; // scenarios 36–43b: what happens when answers are lost
mod barrier; // barriers
mod busy; // servers that limit their requests
mod client; // connect strings, states, closing, credentials, ACLs
mod connection; // scenarios 23–33 and 35, and the hazards: blips, restarts, expiry, silence
mod costs; // what the lock asks of the server, and of the machine
mod double_barrier; // scenarios 76–78
mod election; // scenarios 73–75
mod ensemble; // scenarios 28a, 34, 34a: three nodes
mod group; // scenario 80: who is there
mod handover; // threads of one client that share a node
mod hostile_servers; // hostile bytes from servers
mod interop; // scenarios 71 and 72: lock paths shared with other clients
mod limits; // scenarios 14–22: trying, time limits, cancelling
mod logger; // a program's logger that panics
mod multi_lock; // scenarios 5 and 64–67: re-entrant and multi-locks
mod mutex; // scenarios 1–13b
mod naming; // whose style contenders are named in
mod observe; // going on looking who holds
mod proxy; // the faulty network itself
mod queue; // scenarios 79 and 80: queues
mod retry; // how much trouble a call puts up with
mod revocation; // scenario 68: asking holders to let go, and making them
mod rwlock; // scenarios 46–54
mod semaphore; // scenarios 55–63
mod sequence; // scenarios 44 and 45
mod shared_value; // scenario 80: configuration, and counting
mod two_phase_commit; // all commit, or all abort
mod versions; // servers that know less than ours, or take less
