//! `/metrics`: the same for monitoring, in OpenMetrics' text format and in the older one of Prometheus.

use std::fmt::{Display, Write};
use std::time::{Duration, SystemTime};

use zklock::maintenance::MaintenanceHold;

use super::looks::{Lock, Model};
use super::status::{Ensemble, EnsembleState, STATES};

/// So many locks have a label of their own; the others are summed up under [`OTHER`].
const MOST_LOCKS: usize = 1_000;

/// No path of a lock: those begin with a slash.
const OTHER: &str = "other";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    /// Version 0.0.4, which has neither units nor an end, and calls counters by the names of their samples.
    Prometheus,
}

impl Format {
    /// What a reader asks for by its `Accept`.
    pub(crate) fn accepted(accept: &str) -> Format {
        match accept.contains("application/openmetrics-text") {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// What ends the text.
    pub(crate) fn end(self) -> &'static str {
        match self {
            Format::OpenMetrics => "# EOF\n",
            Format::Prometheus => "",
        }
    }
}

/// What does not depend on a look.
pub(crate) fn head(format: Format, ensemble: &Ensemble, connections: usize) -> String {
    let mut text = Text::new(format);
    let is_up = ensemble.state == EnsembleState::Connected;
    text.gauge("zklock_ensemble_up", "Whether the session is connected to a server.");
    text.sample(&[], u8::from(is_up));
    text.gauge("zklock_session_state", "1 for the state of the session.");
    for state in STATES {
        text.sample(&[("state", state.word())], u8::from(state == ensemble.state));
    }
    text.gauge("zklock_last_look_failed", "Whether the last look failed.");
    text.sample(&[], u8::from(ensemble.error.is_some()));
    text.counter("zklock_requests", "Requests to the ensemble, for looks that succeeded.");
    text.sample(&[], ensemble.requests);
    text.gauge("zklock_serve_connections", "Open connections of readers.");
    text.sample(&[], connections);
    text.written
}

/// What one look has shown.
pub(crate) fn rest(format: Format, model: &Model<'_>) -> String {
    let (seen, mut text) = (model.seen, Text::new(format));
    text.gauge("zklock_snapshot_timestamp_seconds", "When the last look was.");
    text.sample(&[], seconds_since_1970(seen.taken_at));
    text.gauge("zklock_look_seconds", "How long the last look took.");
    text.sample(&[], seen.took.as_secs_f64());
    text.gauge("zklock_look_requests", "How many requests the last look took.");
    text.sample(&[], seen.requests);
    if let Some(latency) = seen.latency {
        text.gauge("zklock_server_latency_seconds", "How long the server took for one request.");
        text.sample(&[], latency.as_secs_f64());
    }
    text.gauge("zklock_deadlocks", "Holders that wait for each other, certain or suspected.");
    for certain in [true, false] {
        let count = model.deadlocks.iter().filter(|(one, _)| *one == certain).count();
        text.sample(&[("certain", &certain.to_string())], count);
    }
    text.gauge("zklock_not_seen", "Paths at which there may be locks that could not be seen.");
    text.sample(&[], seen.not_seen.len());
    text.counter("zklock_hand_overs", "How often another contender came to hold any lock.");
    text.sample(&[], model.hand_overs);
    of_locks(&mut text, model);
    text.written
}

fn of_locks(text: &mut Text, model: &Model<'_>) {
    let (own, others) = model.locks.split_at(model.locks.len().min(MOST_LOCKS));
    let each = |text: &mut Text, of: fn(&Lock<'_>) -> f64, sum: fn(f64, f64) -> f64| {
        for lock in own {
            text.sample(&[("lock", lock.path)], of(lock));
        }
        if let Some(sum) = others.iter().map(of).reduce(sum) {
            text.sample(&[("lock", OTHER)], sum);
        }
    };
    let add = |one: f64, other: f64| one + other;
    text.gauge("zklock_lock_holders", "How many contenders hold the lock.");
    each(text, |lock| lock.holders.len() as f64, add);
    text.gauge("zklock_lock_waiters", "How many contenders wait for the lock.");
    each(text, |lock| lock.waiters.len() as f64, add);
    text.gauge("zklock_lock_oldest_wait_seconds", "How long the longest waiter has waited.");
    each(text, |lock| lock.oldest_wait.unwrap_or_default().as_secs_f64(), f64::max);
    text.gauge("zklock_lock_held_since_timestamp_seconds", "Since when the first holder holds.");
    for lock in own {
        let first = lock.holders.first();
        let since = first.and_then(|one| one.held_since.or(one.queued_at));
        if let Some(since) = since {
            text.sample(&[("lock", lock.path)], seconds_since_1970(since));
        }
    }
    of_maintenance(text, own);
    // Not of the others: their sum would fall when a lock gets a label of its own.
    text.counter("zklock_lock_hand_overs", "How often another contender came to hold the lock.");
    for lock in own {
        text.sample(&[("lock", lock.path)], lock.hand_overs);
    }
}

fn of_maintenance(text: &mut Text, locks: &[Lock<'_>]) {
    fn hold<'a>(lock: &'a Lock<'_>) -> Option<&'a MaintenanceHold> {
        lock.holders.iter().find_map(|one| one.maintenance.as_ref())
    }
    text.gauge("zklock_lock_maintenance", "1 if the lock is held for maintenance, otherwise 0.");
    for lock in locks {
        text.sample(&[("lock", lock.path)], u8::from(hold(lock).is_some()));
    }
    let name = "zklock_lock_maintenance_ends_timestamp_seconds";
    text.gauge(name, "When the hold for maintenance ends.");
    for lock in locks {
        let ends = hold(lock).filter(|hold| !hold.is_asked_for).and_then(|hold| hold.ends);
        if let Some(ends) = ends {
            text.sample(&[("lock", lock.path)], seconds_since_1970(ends));
        }
    }
}

fn seconds_since_1970(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

struct Text {
    format: Format,
    written: String,
    /// What is to be written before the next sample: a family without samples is left out.
    described: String,
    /// The name of the samples that follow.
    name: String,
}

impl Text {
    fn new(format: Format) -> Text {
        let [written, described, name] = [const { String::new() }; 3];
        Text { format, written, described, name }
    }

    fn gauge(&mut self, name: &str, help: &str) {
        self.family(name, "gauge", help);
        name.clone_into(&mut self.name);
    }

    fn counter(&mut self, name: &str, help: &str) {
        let sample = format!("{name}_total");
        let family = if self.format == Format::OpenMetrics { name } else { &sample };
        self.family(family, "counter", help);
        self.name = sample;
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let has_unit = self.format == Format::OpenMetrics && name.ends_with("_seconds");
        let unit = if has_unit { format!("# UNIT {name} seconds\n") } else { String::new() };
        self.described = format!("# TYPE {name} {kind}\n{unit}# HELP {name} {help}\n");
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.written.push_str(&std::mem::take(&mut self.described));
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(self.written, "{}{labels} {value}", self.name);
    }
}

/// A label's value between its quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::looks::History;
    use super::super::looks::{Seen, SeenLock};
    use super::super::looks::{at, deadlock, lock, look};
    use super::super::status::Status;
    use super::*;
    use nom_openmetrics::Label;

    fn of(format: Format, seen: &Seen) -> String {
        let mut history = History::default();
        history.note(seen);
        let head = head(format, &Status::new(at(0)).now(), 2);
        format!("{head}{}{}", rest(format, &Model::of(seen, &history)), format.end())
    }

    #[test]
    fn openmetrics_has_units_names_of_counters_and_an_end() {
        let mut seen = look(10, [lock("/locks/a", &["1"], &["4"])]);
        seen.deadlocks.push(deadlock(true, &["/locks/a"]));
        seen.latency = Some(Duration::from_millis(2));
        let text = of(Format::OpenMetrics, &seen);
        for line in [
            "zklock_ensemble_up 0",
            "zklock_session_state{state=\"connecting\"} 1",
            "zklock_session_state{state=\"connected\"} 0",
            "zklock_serve_connections 2",
            "# TYPE zklock_requests counter",
            "zklock_requests_total 0",
            "# TYPE zklock_look_seconds gauge",
            "# UNIT zklock_look_seconds seconds",
            "zklock_snapshot_timestamp_seconds 1000010",
            "zklock_server_latency_seconds 0.002",
            "zklock_deadlocks{certain=\"true\"} 1",
            "zklock_deadlocks{certain=\"false\"} 0",
            "zklock_lock_holders{lock=\"/locks/a\"} 1",
            "zklock_lock_waiters{lock=\"/locks/a\"} 1",
            "zklock_lock_oldest_wait_seconds{lock=\"/locks/a\"} 6",
            "zklock_lock_held_since_timestamp_seconds{lock=\"/locks/a\"} 1000001",
            "zklock_lock_maintenance{lock=\"/locks/a\"} 0",
            "zklock_lock_hand_overs_total{lock=\"/locks/a\"} 0",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        nom_openmetrics::parser::openmetrics(&text).unwrap();
    }

    #[test]
    fn prometheus_has_neither() {
        let text = of(Format::Prometheus, &look(10, []));
        nom_openmetrics::parser::prometheus(&text).unwrap();
        assert!(text.contains("# TYPE zklock_requests_total counter\n"), "{text}");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
        let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3";
        assert_eq!(Format::accepted(accept), Format::OpenMetrics);
        assert_eq!(Format::accepted("text/plain;version=0.0.4"), Format::Prometheus);
        assert_eq!(Format::accepted(""), Format::Prometheus);
    }

    #[test]
    fn a_label_is_read_as_it_was() {
        let path = "/locks/<b>\"\\n\n\\";
        let text = of(Format::Prometheus, &look(10, [lock(path, &["1"], &[])]));
        let (_, families) = nom_openmetrics::parser::prometheus(&text).unwrap();
        let samples: Vec<_> = families.iter().flat_map(|family| &family.samples).collect();
        let sample = samples.iter().find(|one| one.name() == "zklock_lock_holders").unwrap();
        assert_eq!(sample.labels(), [Label::new("lock", path.to_owned())]);
    }

    #[test]
    fn the_locks_beyond_a_thousand_are_summed_up() {
        let locks = (0..MOST_LOCKS + 3).map(|number| -> SeenLock {
            let waiters: &[&str] = if number >= MOST_LOCKS { &["4", "5"] } else { &["1"] };
            lock(&format!("/l{number:05}"), &["0"], waiters)
        });
        let text = of(Format::OpenMetrics, &look(10, locks));
        let other: Vec<&str> = text.lines().filter(|line| line.contains("\"other\"")).collect();
        assert_eq!(
            other,
            [
                "zklock_lock_holders{lock=\"other\"} 3",
                "zklock_lock_waiters{lock=\"other\"} 6",
                "zklock_lock_oldest_wait_seconds{lock=\"other\"} 6",
            ]
        );
        assert!(text.contains("zklock_lock_waiters{lock=\"/l00999\"} 1\n"));
        assert!(!text.contains("/l01000"));
    }
}
