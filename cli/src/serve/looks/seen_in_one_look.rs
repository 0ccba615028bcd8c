//! What one look saw, as plain data: of all that follows from it, nothing needs a server.

use std::time::{Duration, SystemTime};

use zklock::maintenance::MaintenanceHold;
use zklock::{Contender, Deadlock, LockKind, Waits};

use crate::look::why_unlisted;
use crate::look::{in_words, what_ends};
use crate::words::{Ages, client, note, parent, who};

/// So many characters are kept of a contender's text, and of a sentence made of such texts.
const LONGEST_TEXT: usize = 200;
const LONGEST_SENTENCE: usize = 4_000;

/// The locks at and below all paths that are looked at.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// When it was seen, by this host's clock.
    pub(crate) taken_at: SystemTime,
    /// The same by the clock that ages count by: the ensemble's, if that is known to be ahead.
    pub(crate) clock: SystemTime,
    pub(crate) took: Duration,
    pub(crate) requests: usize,
    /// How long a server took for one request.
    pub(crate) latency: Option<Duration>,
    pub(crate) locks: Vec<SeenLock>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) deadlocks: Vec<SeenDeadlock>,
    /// What could not be looked at, and why.
    pub(crate) not_seen: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
pub(crate) struct SeenLock {
    pub(crate) path: String,
    pub(crate) kind: LockKind,
    /// In the order of grants.
    pub(crate) contenders: Vec<SeenContender>,
}

#[derive(Clone, Debug)]
pub(crate) struct SeenContender {
    pub(crate) node: String,
    pub(crate) sequence: i32,
    pub(crate) holds: bool,
    pub(crate) who: String,
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) program: Option<String>,
    pub(crate) thread: Option<String>,
    pub(crate) label: Option<String>,
    /// Of a hold for maintenance: its end is not told by `who`, as readers may be in another time zone.
    pub(crate) maintenance: Option<MaintenanceHold>,
    pub(crate) queued_at: Option<SystemTime>,
    pub(crate) held_since: Option<SystemTime>,
}

/// A holder waits for another lock by this contender. Both by their nodes.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) holder: String,
    pub(crate) waits_by: String,
}

#[derive(Clone, Debug)]
pub(crate) struct SeenDeadlock {
    pub(crate) is_certain: bool,
    pub(crate) text: String,
    pub(crate) locks: Vec<String>,
    pub(crate) nodes: Vec<String>,
    /// What to type to end it, if it is certain.
    pub(crate) commands: Vec<String>,
}

impl Seen {
    /// Nothing, at this time.
    pub(crate) fn nothing(taken_at: SystemTime) -> Seen {
        Seen {
            taken_at,
            clock: taken_at,
            took: Duration::ZERO,
            requests: 0,
            latency: None,
            locks: Vec::new(),
            edges: Vec::new(),
            deadlocks: Vec::new(),
            not_seen: Vec::new(),
        }
    }

    /// Adds what was seen at and below one path, and the deadlocks of it.
    pub(crate) fn add(&mut self, waits: &Waits, deadlocks: &[Deadlock]) {
        let all = &waits.contenders;
        let times = all.iter().flat_map(|one| [one.since, one.held_since()]).flatten();
        self.clock = times.fold(self.clock, SystemTime::max);
        self.requests += waits.requests;
        for contenders in all.chunk_by(|one, other| parent(one) == parent(other)) {
            self.locks.extend(LockKind::of(contenders).map(|kind| SeenLock {
                path: parent(&contenders[0]).to_owned(),
                kind,
                contenders: contenders.iter().map(SeenContender::from).collect(),
            }));
        }
        self.edges.extend(waits.edges().into_iter().map(|(holder, by)| Edge {
            holder: all[holder].path.clone(),
            waits_by: all[by].path.clone(),
        }));
        let ages = Ages::of_all(all);
        self.deadlocks.extend(deadlocks.iter().map(|one| SeenDeadlock::new(one, ages)));
        let unlisted = waits.unlisted.iter();
        let why = |(path, reason): &(String, _)| (path.clone(), why_unlisted(*reason));
        self.not_seen.extend(unlisted.map(why));
    }

    /// Notes that nothing at and below this path was seen.
    pub(crate) fn add_unseen(&mut self, path: &str, why: &str) {
        self.not_seen.push((path.to_owned(), why.to_owned()));
    }
}

impl From<&Contender> for SeenContender {
    fn from(one: &Contender) -> SeenContender {
        let maintenance = one.maintenance().map(|mut hold| {
            hold.reason = shortened(hold.reason);
            hold.made_by = shortened(hold.made_by);
            hold
        });
        SeenContender {
            node: one.path.clone(),
            sequence: one.sequence,
            holds: one.holds,
            who: shortened(if maintenance.is_some() { client(one) } else { who(one) }),
            host: one.host.clone().map(shortened),
            pid: one.process,
            program: one.program.clone().map(shortened),
            thread: one.thread.clone().map(shortened),
            label: note(one).map(shortened),
            maintenance,
            queued_at: one.since,
            held_since: one.held_since(),
        }
    }
}

/// A contender's text, of which others may have written any amount.
fn shortened(text: String) -> String {
    shortened_to(LONGEST_TEXT, text)
}

fn shortened_to(longest: usize, mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(longest) {
        text.truncate(end);
        text.push('…');
    }
    text
}

impl SeenDeadlock {
    fn new(deadlock: &Deadlock, ages: Ages) -> SeenDeadlock {
        let holders = &deadlock.holders;
        let doubt = match deadlock.is_certain {
            true => "unless a guard was given to another thread",
            false => "unless these waits end by themselves, or are those of different threads",
        };
        let nodes = holders.iter().flat_map(|one| [Some(&one.holder), one.waiter.as_ref()]);
        SeenDeadlock {
            is_certain: deadlock.is_certain,
            text: format!("{}, {doubt}", shortened_to(LONGEST_SENTENCE, in_words(deadlock, ages))),
            locks: holders.iter().map(|one| parent(&one.holder).to_owned()).collect(),
            nodes: nodes.flatten().map(|one| one.path.clone()).collect(),
            commands: what_ends(deadlock).into_iter().flatten().collect(),
        }
    }
}
