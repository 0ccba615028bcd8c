//! Metrics of [`zklock`]'s locks and sessions, for the facade crate [`metrics`]: how long locks are waited
//! for and held, which calls got none, which holds were lost, and how the sessions fare.
//!
//! ```no_run
//! use zklock::{Client, DistributedLock};
//! use zklock_metrics::LockMetrics;
//!
//! // First, the exporter of the program's choice, such as that of the crate metrics-exporter-prometheus.
//! let metrics = LockMetrics::new();
//! let zk = Client::builder("zk1:2181").on_event(metrics.recorder()).connect()?;
//! let _guard = DistributedLock::new(&zk, "/locks", "nightly").lock()?;
//! # Ok::<(), zklock::Error>(())
//! ```
//!
//! | metric | kind | labels | what it tells |
//! |---|---|---|---|
//! | `zklock_wait_seconds` | histogram | `lock`, `what`, `outcome` | how long calls took until they had the lock (`acquired`) or gave up (`not_acquired`) |
//! | `zklock_hold_seconds` | histogram | `lock`, `what` | how long it was held, until it was released or lost |
//! | `zklock_acquired_total` | counter | `lock`, `what` | how often it was acquired |
//! | `zklock_not_acquired_total` | counter | `lock`, `what`, `reason` | how often a call ended without it: `held_by_others`, or the [kind of error](zklock::ErrorKind), such as `connect` |
//! | `zklock_lost_total` | counter | `lock`, `what`, `reason` | how often it was lost before its release, by the [reason](zklock::LossReason), such as `lease_expired`; also memberships, items of queues and places in barriers |
//! | `zklock_waiting` | gauge | `lock` | how many threads of this process wait for it now |
//! | `zklock_held` | gauge | `lock`, `what` | how often it is held now in this process; a reentrant lock counts once, and so does a guard of several permits |
//! | `zklock_session_state` | gauge | `state` | how many clients are `connected`, `suspended` (without a connection, the locks kept) or `lost` (until they open another session) |
//! | `zklock_suspended_seconds_total` | counter | | how long sessions were without a connection, in whole seconds, counted when that ends |
//! | `zklock_cleanups_pending` | gauge | | how many nodes could not be deleted yet |
//!
//! `what` is `lock`, `permit`, `leadership`, or another thing that can be lost; `lock` is a
//! [label](LockMetrics::labelled_by) made of the lock path.
//!
//! Install the exporter before the first client, and let it forget no gauges that have not changed for a
//! while: the gauges are counted up and down.
//!
//! The metrics are made of [`Event`]s, so they lag behind by as much as the function for events does. Each
//! client takes its part off the gauges when it is closed or dropped and its last event is told.

#![forbid(unsafe_code)]

mod client_gauges;
mod labels;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

use std::fmt;
use std::sync::Arc;

use metrics::{SharedString, Unit, counter, histogram};
use zklock::Event;

use crate::client_gauges::{ClientGauges, SUSPENDED};
use crate::labels::Labels;

/// What turns events of clients into metrics. Clones share their labels.
#[derive(Clone)]
pub struct LockMetrics {
    labels: Arc<Labels>,
}

impl LockMetrics {
    /// Metrics whose label `lock` is the path of the lock without its name: that of `/locks/nightly` is
    /// `/locks`.
    #[must_use]
    pub fn new() -> LockMetrics {
        LockMetrics::labelled_by(|path| match path.rsplit_once('/') {
            Some(("", _)) | None => "/".to_owned(),
            Some((base, _)) => base.to_owned(),
        })
    }

    /// Metrics whose label `lock` is what this function makes of a lock path.
    ///
    /// It runs on the thread of the events, once for each event of a lock. At most 1,000 different labels are
    /// used; any further ones are `other`. (A monitoring system keeps each combination of labels for ever: do
    /// not make one of each path where there are many.)
    #[must_use]
    pub fn labelled_by(label: impl Fn(&str) -> String + Send + Sync + 'static) -> LockMetrics {
        LockMetrics { labels: Arc::new(Labels::new(label)) }
    }

    /// Returns the function for the events of one client, for
    /// [`ClientBuilder::on_event`](zklock::ClientBuilder::on_event).
    ///
    /// Each client needs one of its own, and so a builder of its own: clones of a builder share it. It
    /// records to the recorder that is installed when an event is told; the descriptions of the metrics go to
    /// the one that is installed now.
    pub fn recorder(&self) -> impl Fn(&Event) + Send + Sync + use<> {
        describe();
        let (labels, gauges) = (Arc::clone(&self.labels), ClientGauges::default());
        move |event| record(&labels, &gauges, event)
    }
}

impl Default for LockMetrics {
    fn default() -> LockMetrics {
        LockMetrics::new()
    }
}

impl fmt::Debug for LockMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockMetrics").finish_non_exhaustive()
    }
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_histogram!(
        "zklock_wait_seconds",
        Unit::Seconds,
        "How long calls took until they had the lock or gave up."
    );
    describe_histogram!("zklock_hold_seconds", Unit::Seconds, "How long a lock was held.");
    describe_counter!("zklock_acquired_total", Unit::Count, "Locks acquired.");
    describe_counter!(
        "zklock_not_acquired_total",
        Unit::Count,
        "Calls that ended without the lock, by reason."
    );
    describe_counter!(
        "zklock_lost_total",
        Unit::Count,
        "Locks lost before their release, by reason."
    );
    describe_gauge!("zklock_waiting", Unit::Count, "Threads that wait for a lock.");
    describe_gauge!("zklock_held", Unit::Count, "Locks that are held.");
    describe_gauge!("zklock_session_state", Unit::Count, "Clients, by the state of their session.");
    describe_counter!(
        "zklock_suspended_seconds_total",
        Unit::Seconds,
        "How long sessions were without a connection."
    );
    describe_gauge!("zklock_cleanups_pending", Unit::Count, "Nodes that could not be deleted yet.");
}

fn record(labels: &Labels, gauges: &ClientGauges, event: &Event) {
    match event {
        Event::Waiting { lock, thread, .. } => {
            gauges.waits(*thread, lock, labels.of(lock));
        }
        Event::Acquired { lock, what, waited, thread, .. } => {
            let label = labels.of(lock);
            gauges.waits_no_more(*thread, lock);
            gauges.held(label.clone(), what, 1.0);
            counter!("zklock_acquired_total", "lock" => label.clone(), "what" => *what)
                .increment(1);
            waited_for(label, what, "acquired").record(*waited);
        }
        Event::NotAcquired { lock, what, waited, error, thread, .. } => {
            let label = labels.of(lock);
            gauges.waits_no_more(*thread, lock);
            let reason = match error {
                None => "held_by_others".into(),
                Some(kind) => snake_case(&format!("{kind:?}")),
            };
            counter!("zklock_not_acquired_total", "lock" => label.clone(), "what" => *what, "reason" => reason)
                .increment(1);
            waited_for(label, what, "not_acquired").record(*waited);
        }
        Event::Released { lock, what, held, .. } => {
            let label = labels.of(lock);
            gauges.held(label.clone(), what, -1.0);
            histogram!("zklock_hold_seconds", "lock" => label, "what" => *what).record(*held);
        }
        Event::HoldLost { lock, what, held, reason, .. } => {
            let label = labels.of(lock);
            let reason = snake_case(&format!("{reason:?}"));
            counter!("zklock_lost_total", "lock" => label.clone(), "what" => *what, "reason" => reason)
                .increment(1);
            if let Some(held) = held {
                gauges.held(label.clone(), what, -1.0);
                histogram!("zklock_hold_seconds", "lock" => label, "what" => *what).record(*held);
            }
        }
        Event::Connected { .. } => gauges.session_is(Some("connected"), None),
        Event::Resumed { outage, .. } => gauges.session_is(Some("connected"), Some(*outage)),
        Event::Suspended { .. } => gauges.session_is(Some(SUSPENDED), None),
        Event::SessionLost { .. } => gauges.session_is(Some("lost"), None),
        Event::Closed => gauges.session_is(None, None),
        Event::CleanupPending { .. } => gauges.cleanups(1.0),
        Event::CleanupEnded { .. } => gauges.cleanups(-1.0),
        _ => {}
    }
}

fn waited_for(
    label: SharedString,
    what: &'static str,
    outcome: &'static str,
) -> metrics::Histogram {
    histogram!("zklock_wait_seconds", "lock" => label, "what" => what, "outcome" => outcome)
}

/// The name of a variant as a value of a label.
fn snake_case(variant: &str) -> SharedString {
    let mut text = String::new();
    for (place, letter) in variant.char_indices() {
        if letter.is_uppercase() && place > 0 {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_written_as_values_of_labels_are() {
        let reason = snake_case(&format!("{:?}", zklock::LossReason::LeaseExpired));
        assert_eq!(&*reason, "lease_expired");
        assert_eq!(&*snake_case(&format!("{:?}", zklock::ErrorKind::Connect)), "connect");
    }
}
