//! What readers are served: written by the thread of the looks, once per look, and only copied for each
//! reply.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use hyper::body::Bytes;

use super::json::{self, Place, Taken};
use super::looks::Model;
use super::metrics::{self, Format};
use super::status::Status;

/// No lock was seen yet.
const NOTHING_SEEN: &[u8] = br#","not_seen":[],"deadlocks":[],"edges":[],"locks":[]}"#;

#[derive(Debug)]
pub(crate) struct Board {
    place: Place,
    pub(crate) status: Status,
    snapshot: Mutex<Option<Arc<Snapshot>>>,
}

/// What was written of one look.
#[derive(Debug)]
pub(crate) struct Snapshot {
    taken: Taken,
    json: Bytes,
    open_metrics: Bytes,
    prometheus: Bytes,
}

impl Snapshot {
    pub(crate) fn of(model: &Model<'_>) -> Snapshot {
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
    pub(crate) fn new(place: Place, now: SystemTime) -> Board {
        Board { place, status: Status::new(now), snapshot: Mutex::new(None) }
    }

    pub(crate) fn show(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(snapshot));
    }

    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `/locks.json`, in parts.
    pub(crate) fn locks(&self, now: SystemTime) -> Vec<Bytes> {
        let snapshot = self.snapshot();
        let taken = snapshot.as_ref().map(|snapshot| snapshot.taken);
        let head = json::head(&self.place, &self.status.now(), taken, now);
        let rest = snapshot.map_or(Bytes::from_static(NOTHING_SEEN), |one| one.json.clone());
        vec![head.into(), rest]
    }

    /// `/metrics`, in parts, while so many readers are connected.
    pub(crate) fn metrics(&self, format: Format, connections: usize) -> Vec<Bytes> {
        let head = metrics::head(format, &self.status.now(), connections);
        let rest = self.snapshot().map(|snapshot| match format {
            Format::OpenMetrics => snapshot.open_metrics.clone(),
            Format::Prometheus => snapshot.prometheus.clone(),
        });
        [Some(head.into()), rest, Some(format.end().into())].into_iter().flatten().collect()
    }

    /// `/healthz`.
    pub(crate) fn health(&self) -> Bytes {
        let ensemble = self.status.now().state.word();
        serde_json::json!({ "works": true, "ensemble": ensemble }).to_string().into()
    }
}
