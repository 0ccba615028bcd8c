//! A run, as read from its histories: which thread wanted which lock when, with what result, and
//! what the nemesis did meanwhile. Nothing is judged here.

use std::collections::{BTreeMap, HashMap, HashSet};

use zklock::FencingToken;

use super::history::{MILLISECOND, Nanos, SECOND, Who};
use super::plan::Kind;

/// From, to.
pub(crate) type Span = (Nanos, Nanos);

/// How long two spans overlap.
pub(crate) fn common(one: Span, other: Span) -> Nanos {
    one.1.min(other.1).saturating_sub(one.0.max(other.0))
}

#[derive(Debug, Default)]
pub(crate) struct Run {
    /// What is in `run.txt`.
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) attempts: Vec<Attempt>,
    /// Calls of the recipes that are not locks; those of each thread in order.
    pub(crate) deeds: Vec<Deed>,
    pub(crate) states: Vec<(Nanos, Who, usize, String)>,
    /// What workers had left over at the end, or the run on the machine, in words.
    pub(crate) left: Vec<String>,
    pub(crate) register: Vec<Decision>,
    pub(crate) faults: Vec<Fault>,
    /// Times in which nothing was broken.
    pub(crate) healthy: Vec<Span>,
    /// Contenders that the nemesis deleted: when it sent the request, and when that was confirmed.
    pub(crate) deleted: HashMap<String, (Nanos, Option<Nanos>)>,
    /// Sessions that the nemesis ended: likewise.
    pub(crate) closed: HashMap<i64, (Nanos, Option<Nanos>)>,
    /// When a worker was stopped.
    pub(crate) stops: Vec<(usize, Span)>,
    /// When a worker process got no processor, in order.
    pub(crate) starved: HashMap<(usize, usize), Vec<Span>>,
    /// When a worker process was killed.
    pub(crate) killed: HashMap<(usize, usize), Nanos>,
    /// Processes that wrote a history.
    pub(crate) processes: HashSet<(usize, usize)>,
    /// Processes that ended properly.
    pub(crate) ended: HashSet<(usize, usize)>,
    /// Workers that ended too early, or not when they should have.
    pub(crate) strays: Vec<String>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) views: Vec<View>,
    /// The servers' own history of locks with patience, in their order.
    pub(crate) changes: Vec<Change>,
    /// How often another client took them.
    pub(crate) stranger: usize,
    pub(crate) errors: Vec<String>,
    pub(crate) start: Nanos,
    /// When the workers were told to end.
    pub(crate) ending: Option<Nanos>,
    pub(crate) end: Nanos,
}

/// How a lock was requested, which decides with which others it may be held at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    Alone,
    Read,
    Permits { weight: u64, of: u64 },
}

impl Share {
    /// Parses a word of a history: `alone`, `read`, `2/3`.
    pub(crate) fn parse(word: &str) -> Option<Share> {
        match word {
            "alone" => Some(Share::Alone),
            "read" => Some(Share::Read),
            permits => {
                let (weight, of) = permits.split_once('/')?;
                Some(Share::Permits { weight: weight.parse().ok()?, of: of.parse().ok()? })
            }
        }
    }

    /// Whether both may hold at once, if there are enough permits.
    pub(crate) fn goes_with(self, other: Share) -> bool {
        match (self, other) {
            (Share::Read, Share::Read) => true,
            (Share::Permits { of, .. }, Share::Permits { of: theirs, .. }) => of == theirs,
            _ => false,
        }
    }
}

/// One call of a thread that acquires a lock.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) who: Who,
    /// The lock's name; of several at once, their names joined with `+`.
    pub(crate) lock: String,
    pub(crate) share: Share,
    pub(crate) how: String,
    pub(crate) limit: Option<Nanos>,
    pub(crate) want: Nanos,
    /// When the call returned.
    pub(crate) done: Option<Nanos>,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Pending,
    Nothing,
    Cancelled,
    Failed { kind: String, message: String },
    Held(Box<Hold>),
}

/// The life of a guard.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) token: FencingToken,
    pub(crate) path: String,
    /// Token and node of the second lock, and so on, if several were acquired at once.
    pub(crate) others: Vec<(FencingToken, String)>,
    pub(crate) session: i64,
    pub(crate) got: Nanos,
    /// It was held at least up to here: when the last call of `is_held` that returned true began.
    pub(crate) claimed: Option<Nanos>,
    /// When it was first seen not to be held.
    pub(crate) unheld: Option<Nanos>,
    pub(crate) lost: Option<(Nanos, String)>,
    /// When the holder was told that its write was refused.
    pub(crate) refused: Vec<Nanos>,
    pub(crate) ensured: Vec<(Nanos, String)>,
    pub(crate) release: Option<Nanos>,
    pub(crate) released: Option<(Nanos, String)>,
}

impl Hold {
    /// All its tokens and nodes, in the order of the locks.
    pub(crate) fn places(&self) -> impl Iterator<Item = (FencingToken, &str)> {
        let others = self.others.iter().map(|(token, path)| (*token, path.as_str()));
        std::iter::once((self.token, self.path.as_str())).chain(others)
    }

    /// Whether the nemesis has deleted one of its nodes, or ended its session.
    pub(crate) fn was_taken(&self, run: &Run) -> bool {
        self.places().any(|(_, path)| run.deleted.contains_key(path))
            || run.closed.contains_key(&self.session)
    }

    /// When its owner first knew that it had ended.
    pub(crate) fn end(&self) -> Option<Nanos> {
        let lost = self.lost.as_ref().map(|(at, _)| *at);
        let released = self.released.as_ref().map(|(at, _)| *at);
        [self.unheld, lost, released].into_iter().flatten().min()
    }
}

impl Attempt {
    pub(crate) fn hold(&self) -> Option<&Hold> {
        match &self.outcome {
            Outcome::Held(hold) => Some(hold),
            _ => None,
        }
    }
}

/// One call of a thread to a recipe that is not a lock.
#[derive(Clone, Debug)]
pub(crate) struct Deed {
    pub(crate) who: Who,
    pub(crate) recipe: String,
    pub(crate) deed: String,
    pub(crate) limit: Nanos,
    /// Further words about it, such as the item.
    pub(crate) about: Vec<String>,
    pub(crate) begun: Nanos,
    /// When the call returned.
    pub(crate) done: Option<Nanos>,
    pub(crate) came: Came,
    /// Whether the reply came just as a server was killed, stopped or cut off. Up to some versions,
    /// ZooKeeper may then forget what it has acknowledged (ZOOKEEPER-4712, ZOOKEEPER-4785).
    pub(crate) shaky: bool,
}

/// The result of a call.
#[derive(Clone, Debug)]
pub(crate) enum Came {
    Pending,
    Nothing,
    Fine(String),
    Failed { kind: String, message: String },
}

impl Deed {
    pub(crate) fn is(&self, recipe: &str, deed: &str) -> bool {
        self.recipe == recipe && self.deed == deed
    }

    /// What the call returned, if it succeeded and ZooKeeper must not forget it.
    pub(crate) fn firm(&self) -> Option<&str> {
        self.fine().filter(|_| !self.shaky)
    }

    /// What the call returned, if it succeeded.
    pub(crate) fn fine(&self) -> Option<&str> {
        match &self.came {
            Came::Fine(said) => Some(said),
            _ => None,
        }
    }

    /// Whether it is unknown if the call took effect.
    pub(crate) fn is_unsure(&self) -> bool {
        matches!(self.came, Came::Pending | Came::Failed { .. })
    }
}

/// A decision of the register.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    pub(crate) at: Nanos,
    pub(crate) accepted: bool,
    pub(crate) lock: String,
    pub(crate) token: FencingToken,
}

/// What happened to a node, as the servers' logs have it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) at: Nanos,
    /// The transaction's number.
    pub(crate) number: i64,
    pub(crate) path: String,
    pub(crate) what: Happened,
}

#[derive(Clone, Debug)]
pub(crate) enum Happened {
    /// With this as the first line of its data.
    Created(String),
    Deleted,
    /// Its holder was asked to release.
    Asked,
}

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    pub(crate) from: Nanos,
    pub(crate) to: Option<Nanos>,
}

/// A worker's memory and threads at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Nanos,
    pub(crate) slot: usize,
    pub(crate) kilobytes: u64,
    pub(crate) threads: u64,
}

/// What a server showed of a lock: who had been its first contender for long.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) server: String,
    pub(crate) lock: String,
    pub(crate) first: String,
    /// The session that owns it.
    pub(crate) owner: String,
    /// Since when, and when that was noted.
    pub(crate) span: Span,
    /// How many contenders there were.
    pub(crate) count: u64,
}

impl Run {
    pub(crate) fn setting(&self, name: &str) -> &str {
        self.settings.get(name).map_or("", String::as_str)
    }

    fn milliseconds(&self, setting: &str) -> Option<Nanos> {
        Some(self.setting(setting).parse::<u64>().ok()? * MILLISECOND)
    }

    /// The longest that a server grants.
    pub(crate) fn session_timeout(&self) -> Nanos {
        let most = self.milliseconds("most_session_ms").or(self.milliseconds("session_ms"));
        most.unwrap_or(2 * SECOND)
    }

    /// The shortest that a server grants.
    pub(crate) fn least_session_timeout(&self) -> Nanos {
        self.milliseconds("least_session_ms").unwrap_or_else(|| self.session_timeout())
    }

    /// Times in which nothing was broken that may cost a lock or a session.
    pub(crate) fn calm(&self) -> Vec<Span> {
        let mut calm: Vec<Span> = Vec::new();
        for healthy in &self.healthy {
            match calm.last_mut() {
                Some(last) if self.cost_nothing((last.1, healthy.0)) => last.1 = healthy.1,
                _ => calm.push(*healthy),
            }
        }
        calm
    }

    /// Whether all faults that began in that time must cost no lock. Among other faults they may.
    fn cost_nothing(&self, time: Span) -> bool {
        let mut faults = self.faults.iter().filter(|fault| (time.0..=time.1).contains(&fault.from));
        let costs_nothing = |kind| Kind::named(kind).is_some_and(Kind::costs_nothing);
        self.is_mild() && faults.all(|fault| costs_nothing(&fault.kind))
    }

    /// Whether the plan has only faults that must cost nothing.
    pub(crate) fn is_mild(&self) -> bool {
        self.setting("plan") == "lease"
    }

    /// The worker processes that must have existed: each that was killed was replaced.
    pub(crate) fn started(&self, workers: usize) -> HashSet<(usize, usize)> {
        let first = (0..workers).map(|slot| (slot, 0));
        let next = self.killed.keys().map(|(slot, generation)| (*slot, generation + 1));
        first.chain(next).collect()
    }

    /// All guards, with the attempts that acquired them.
    pub(crate) fn holds(&self) -> impl Iterator<Item = (&Attempt, &Hold)> {
        self.attempts.iter().filter_map(|attempt| Some((attempt, attempt.hold()?)))
    }
}
