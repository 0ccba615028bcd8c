//! What readers are served: written by the thread of the looks, once per look, and only copied for each reply.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use hyper::body::Bytes;

use super::json::{self, Place, Taken};
use super::lock_states::Model;
use super::metrics::{self, Format};
use super::status::Status;

/// No lock was seen yet.
const NOTHING_SEEN: &[u8] = br#","not_seen":[],"deadlocks":[],"edges":[],"locks":[]}"#;

#[derive(Debug)]
pub(super) struct Board {
    place: Place,
    pub(super) status: Status,
    snapshot: Mutex<Option<Arc<Snapshot>>>,
}

/// What was written of one look.
#[derive(Debug)]
pub(super) struct Snapshot {
    taken: Taken,
    json: Bytes,
    open_metrics: Bytes,
    prometheus: Bytes,
}

impl Snapshot {
    pub(super) fn of(model: &Model<'_>) -> Snapshot {
        let seen = model.seen;
        Snapshot {
            taken: Taken { at: seen.taken_at, took: seen.took, requests: seen.requests },
            json: json::rest(model).into(),
            open_metrics: metrics::rest(Format::OpenMetrics, model).into(),
            prometheus: metrics::rest(Format::Prometheus, model).into(),
        }
    }
}

impl Board {
    pub(super) fn new(place: Place, now: SystemTime) -> Board {
        Board { place, status: Status::new(now), snapshot: Mutex::new(None) }
    }

    pub(super) fn show(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(snapshot));
    }

    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `/locks.json`, in parts.
    pub(super) fn locks(&self, now: SystemTime) -> Vec<Bytes> {
        let snapshot = self.snapshot();
        let taken = snapshot.as_ref().map(|snapshot| snapshot.taken);
        let head = json::head(&self.place, &self.status.now(), taken, now);
        let rest = snapshot.map_or(Bytes::from_static(NOTHING_SEEN), |one| one.json.clone());
        vec![head.into(), rest]
    }

    /// `/metrics`, in parts, while so many readers are connected.
    pub(super) fn metrics(&self, format: Format, connections: usize) -> Vec<Bytes> {
        let head = metrics::head(format, &self.status.now(), connections);
        let rest = self.snapshot().map(|snapshot| match format {
            Format::OpenMetrics => snapshot.open_metrics.clone(),
            Format::Prometheus => snapshot.prometheus.clone(),
        });
        [Some(head.into()), rest, Some(format.end().into())].into_iter().flatten().collect()
    }

    /// `/healthz`.
    pub(super) fn health(&self) -> Bytes {
        let ensemble = self.status.now().state.word();
        serde_json::json!({ "works": true, "ensemble": ensemble }).to_string().into()
    }
}
