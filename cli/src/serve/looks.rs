//! The thread that looks, again and again: the only one that asks the ensemble, and not too much.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{io, thread};

use zklock::{Client, Deadlock, ErrorKind, UnlistedReason, Waits};

use super::board::{Board, Snapshot};
use super::history::History;
use super::model::Model;
use super::seen::Seen;
use crate::look::deadlocks::BETWEEN_LOOKS;
use crate::look::shown::why_unlisted;

/// So many requests a second are sent at most, on average from one look to the next.
const REQUESTS_A_SECOND: f64 = 500.0;

/// A look begins at most so often.
const EVERY: Duration = Duration::from_secs(1);

/// What is made of a look takes at most this part of the time.
const SHARE: u32 = 10;

/// A look that is not followed by another one for so much longer than it should is old.
const GRACE: Duration = Duration::from_secs(3);

/// Begins to look.
pub(super) fn start(client: Client, bases: Vec<String>, board: Arc<Board>) -> io::Result<()> {
    let looks = move || {
        let mut bases: Vec<Base> = bases.into_iter().map(Base::new).collect();
        let mut history = History::default();
        let mut requests = 1;
        loop {
            let begun = Instant::now();
            let seen = look(&client, &mut bases);
            let (took, made) = (begun.elapsed(), Instant::now());
            match seen {
                Ok(seen) => {
                    requests = seen.requests;
                    history.note(&seen);
                    let every = took + pause(requests, took, Duration::ZERO);
                    let next_by = seen.taken_at + 2 * every + GRACE;
                    board.show(Snapshot::of(&Model::of(&seen, &history), next_by));
                    board.status.note_look(requests, None);
                }
                // It may have sent as many requests as the one before.
                Err(error) => board.status.note_look(0, Some(error.to_string())),
            }
            thread::sleep(pause(requests, took, made.elapsed()));
        }
    };
    thread::Builder::new().name("zklock-looks".to_owned()).spawn(looks).map(drop)
}

/// How long to wait after a look that took so long, and of which it took so long to make what is served.
fn pause(requests: usize, look: Duration, made: Duration) -> Duration {
    let by_requests = Duration::from_secs_f64(requests as f64 / REQUESTS_A_SECOND);
    let rest = EVERY.max(by_requests).saturating_sub(look + made);
    rest.max((SHARE - 1) * made)
}

/// Looks at all of them, and only then says what was seen.
fn look(client: &Client, bases: &mut [Base]) -> zklock::Result<Seen> {
    let begun = Instant::now();
    let mut seen = Seen::nothing(SystemTime::now());
    // Of a plain node, whatever the answer is.
    let latency = bases.first().map(|base| {
        let asked = Instant::now();
        let answer = client.znode(&base.path).stat();
        (answer.map(drop), asked.elapsed())
    });
    if let Some((answer, took)) = latency {
        seen.requests += 1;
        match answer {
            Err(error) if error.is_outage() => return Err(error),
            _ => seen.latency = Some(took),
        }
    }
    for base in bases {
        match base.look(client) {
            Ok(Some((waits, deadlocks))) => seen.add(&waits, &deadlocks),
            Ok(None) => seen.add_unseen(&base.path, "does not exist"),
            // The other paths may be read.
            Err(error) if error.kind() == ErrorKind::NotAuthorized => {
                seen.add_unseen(&base.path, &why_unlisted(UnlistedReason::NotAuthorized));
            }
            Err(error) => return Err(error),
        }
    }
    seen.took = begun.elapsed();
    Ok(seen)
}

/// A path, and what was seen at and below it before.
struct Base {
    path: String,
    /// The last look.
    last: Option<Arc<Waits>>,
    /// One that is long enough ago to tell a deadlock from waits that go on, and one that will be.
    earlier: Earlier<Arc<Waits>>,
}

impl Base {
    fn new(path: String) -> Base {
        Base { path, last: None, earlier: Earlier::default() }
    }

    fn look(&mut self, client: &Client) -> zklock::Result<Option<(Arc<Waits>, Vec<Deadlock>)>> {
        let begun = Instant::now();
        let Some(waits) = look_at(client, &self.path, self.last.as_deref())? else {
            (self.last, self.earlier) = (None, Earlier::default());
            return Ok(None);
        };
        let waits = Arc::new(waits);
        let found = waits.deadlocks(self.earlier.before(begun).map(|one| &**one));
        self.last = Some(Arc::clone(&waits));
        self.earlier.note(Arc::clone(&waits), Instant::now());
        Ok(Some((waits, found)))
    }
}

/// Who holds and who waits at and below a path; `last` is the look before.
fn look_at(client: &Client, path: &str, _last: Option<&Waits>) -> zklock::Result<Option<Waits>> {
    client.waits(path)
}

/// Two earlier looks, by when they ended: the one to compare with, and the one that comes in its place.
#[derive(Debug)]
struct Earlier<T> {
    old: Option<(T, Instant)>,
    next: Option<(T, Instant)>,
}

impl<T> Default for Earlier<T> {
    fn default() -> Earlier<T> {
        Earlier { old: None, next: None }
    }
}

impl<T> Earlier<T> {
    /// The latest of them that is early enough for a look that began then.
    fn before(&mut self, begun: Instant) -> Option<&T> {
        let is_early = |one: &Option<(T, Instant)>| {
            one.as_ref()
                .is_some_and(|(_, ended)| begun.saturating_duration_since(*ended) >= BETWEEN_LOOKS)
        };
        if is_early(&self.next) {
            self.old = self.next.take();
        }
        if is_early(&self.old) { self.old.as_ref().map(|(one, _)| one) } else { None }
    }

    fn note(&mut self, one: T, ended: Instant) {
        if self.next.is_none() {
            self.next = Some((one, ended));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_each_second_and_less_often_if_that_takes_much() {
        let ms = Duration::from_millis;
        for (requests, look, made, wait) in [
            (3, 10, 0, 990),
            (500, 400, 0, 600),
            (2_000, 500, 0, 3_500),
            (2_000, 4_500, 0, 0),
            (3, 10, 20, 970),
            (3, 10, 200, 1_800),
        ] {
            let case = format!("{requests} requests, {look} ms, {made} ms");
            assert_eq!(pause(requests, ms(look), ms(made)), ms(wait), "{case}");
        }
    }

    #[test]
    fn the_look_to_compare_with_is_three_seconds_ago_or_more() {
        let begin = Instant::now();
        let mut earlier = Earlier::default();
        let mut compared = Vec::new();
        for second in 0..10 {
            let now = begin + Duration::from_secs(second);
            compared.push(earlier.before(now).copied());
            earlier.note(second, now);
        }
        let none = [None; 4];
        assert_eq!(compared[..4], none);
        assert_eq!(compared[4..], [0, 0, 0, 0, 4, 4].map(Some));
    }
}
