//! The thread that looks, again and again: the only one that asks the ensemble, and not too much.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{io, thread};

use zklock::{Client, Deadlock, ErrorKind, UnlistedReason, Waits};

use super::looks::History;
use super::looks::Model;
use super::looks::Seen;
use super::prepared_replies::{Board, Snapshot};
use crate::look::BETWEEN_LOOKS;
use crate::look::why_unlisted;

/// So many requests a second are sent at most, besides one for each look.
const REQUESTS_A_SECOND: u32 = 490;

/// A look begins at most so often.
const EVERY: Duration = Duration::from_secs(1);

/// What is made of a look takes at most this part of the time.
const SHARE: u32 = 10;

/// Begins to look.
pub(crate) fn start(client: Client, bases: Vec<String>, board: Arc<Board>) -> io::Result<()> {
    let looks = move || {
        let mut bases: Vec<Base> = bases.into_iter().map(Base::new).collect();
        let mut history = History::default();
        loop {
            let begun = Instant::now();
            let seen = look(&client, &mut bases);
            let (took, made) = (begun.elapsed(), Instant::now());
            match seen {
                Ok(seen) => {
                    history.note(&seen);
                    board.show(Snapshot::of(&Model::of(&seen, &history)));
                    board.status.note_look(seen.requests, None);
                }
                Err(error) => board.status.note_look(0, Some(error.to_string())),
            }
            thread::sleep(pause(took, made.elapsed()));
        }
    };
    thread::Builder::new().name("zklock-looks".to_owned()).spawn(looks).map(drop)
}

/// How long to wait after a look that took so long, and of which it took so long to make what is served.
fn pause(look: Duration, made: Duration) -> Duration {
    EVERY.saturating_sub(look + made).max((SHARE - 1) * made)
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
            Err(error)
                if matches!(error.kind(), ErrorKind::InvalidName | ErrorKind::InvalidArgument) =>
            {
                seen.add_unseen(&base.path, &error.to_string());
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
    last: Arc<Waits>,
    /// One that is long enough ago to tell a deadlock from waits that go on, and one that will be.
    earlier: Earlier<Arc<Waits>>,
}

impl Base {
    fn new(path: String) -> Base {
        let last = Arc::new(Waits::empty(&*path));
        Base { path, last, earlier: Earlier::default() }
    }

    fn look(&mut self, client: &Client) -> zklock::Result<Option<(Arc<Waits>, Vec<Deadlock>)>> {
        let begun = Instant::now();
        let Some(waits) = self.last.refresh(client, REQUESTS_A_SECOND)? else {
            self.earlier = Earlier::default();
            return Ok(None);
        };
        let waits = Arc::new(waits);
        let found = waits.deadlocks(self.earlier.before(begun).map(|one| &**one));
        self.last = Arc::clone(&waits);
        self.earlier.note(Arc::clone(&waits), Instant::now());
        Ok(Some((waits, found)))
    }
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
        for (look, made, wait) in
            [(10, 0, 990), (400, 0, 600), (4_500, 0, 0), (10, 20, 970), (10, 200, 1_800)]
        {
            assert_eq!(pause(ms(look), ms(made)), ms(wait), "{look} ms, {made} ms");
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
