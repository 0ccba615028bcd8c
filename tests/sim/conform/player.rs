//! The language of the scripts and its player.
//!
//! A step is a line: `1 create /a/n- sequential`, `2 read /a watch`, `1 cut`. The number selects
//! the client; each has its own connection and session. `%1` is the sequential node created last,
//! `%2` the one before. `delete_all` is one transaction, and so are `check` and `write_at`, which
//! require the node's data to have the version given after the path (`write_if` and `delete_if` are
//! the same as requests of their own). `fenced` is a transaction that checks the first node, writes
//! the second, and creates and deletes the third. `outlive` deletes a child and waits until the
//! server has removed the container above it, the second path. `lose-request` and `lose-reply`
//! before a verb break the connection before or after the request takes effect.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acl::{Acl, Permissions};
use crate::connection_notice::End;
use crate::rt::{self, Deadline, Mutex};
use crate::session::{
    Created, Fault, NodeKind, Reply, Session, SessionPhase, Step, StillMeant, Subscription, Waiter,
};
use crate::wire_values::{NodeEvent, Stat};
use crate::{Client, path};

/// How long closing a session may take.
const DROP_LIMIT: Duration = Duration::from_secs(1);
pub(super) const CLIENTS: usize = 3;

/// An ensemble that scripts are played on.
pub(super) trait Ground {
    fn client(&mut self, who: usize) -> Client;

    /// Opens the client's session, if that is not done yet.
    fn open(&mut self, who: usize);

    /// Breaks the connection; a new one can be made at once.
    fn cut(&mut self, who: usize);

    /// Breaks the connection; a new one can only be made after `mend`.
    fn refuse(&mut self, who: usize);

    fn mend(&mut self, who: usize);

    /// Makes all servers unreachable until the lease has ended.
    fn lapse(&mut self, who: usize, session: &Session);

    /// Ends the session from outside.
    fn expire(&mut self, who: usize, session: i64);

    /// Breaks the connection at the next request of this kind.
    fn lose(&mut self, who: usize, verb: &str, path: &str, after: bool);

    fn is_there(&mut self, path: &str) -> bool;

    /// Lets time pass.
    fn pause(&self);

    /// Waits until all events under way to these sessions have arrived.
    fn settle(&mut self, sessions: &[&Session]);
}

/// The outcome of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    answer: String,
    /// Notices and events by client.
    news: BTreeMap<usize, String>,
}

impl Outcome {
    pub(super) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.answer)?;
        self.news.iter().try_for_each(|(who, news)| write!(f, " | {who}: {news}"))
    }
}

/// A client at work.
struct PlayerSession {
    session: Arc<Session>,
    heard: Arc<Mutex<Heard>>,
    /// Whether connections are refused, so that a new one is not waited for.
    refused: bool,
    listens: BTreeMap<String, Subscription>,
    _status: Subscription,
}

#[derive(Default)]
struct Heard {
    phase: SessionPhase,
    notices: Vec<String>,
    events: Vec<(String, NodeEvent)>,
}

impl Heard {
    fn note(&mut self, now: SessionPhase) {
        let before = std::mem::replace(&mut self.phase, now);
        if now.attached && now.connection != before.connection {
            self.notices.push("attached".to_owned());
        }
        if before.attached && !now.attached {
            self.notices.push("suspended".to_owned());
        }
        if let (None, Some(end)) = (before.ended, now.ended) {
            self.notices.push(format!("ended: {end:?}"));
        }
        if now.over && !before.over {
            self.notices.push("over".to_owned());
        }
    }
}

impl PlayerSession {
    fn take(session: Arc<Session>) -> PlayerSession {
        let heard =
            Arc::new(Mutex::new(Heard { phase: session.status().now(), ..Heard::default() }));
        let (note, of) = (Arc::clone(&heard), Arc::downgrade(&session));
        let noted = move || {
            if let Some(session) = of.upgrade() {
                let mut heard = note.lock();
                heard.note(session.status().now());
            }
        };
        let status = session.status().subscribe(Arc::new(noted));
        PlayerSession { session, heard, refused: false, listens: BTreeMap::new(), _status: status }
    }

    fn listen(&mut self, path: &str) {
        let (heard, what) = (Arc::clone(&self.heard), path.to_owned());
        let watches = self.session.watches();
        self.listens.entry(path.to_owned()).or_insert_with(|| {
            let note = move |event| {
                // Servers tell nothing of it.
                if event != NodeEvent::Watched {
                    heard.lock().events.push((what.clone(), event));
                }
                None
            };
            watches.subscribe_to_events(path, Arc::new(note))
        });
    }

    fn phase(&self) -> SessionPhase {
        self.session.status().now()
    }
}

/// Plays one script.
pub(super) struct Player<G> {
    ground: G,
    base: String,
    seats: BTreeMap<usize, PlayerSession>,
    /// The sequential nodes, in the order of creation.
    made: Vec<String>,
    /// The numbers of sessions by their ids.
    sessions: BTreeMap<i64, usize>,
    zxids: Vec<i64>,
    ctimes: BTreeMap<i64, i64>,
    /// Whatever it creates, it wants.
    meant: StillMeant,
}

impl<G: Ground> Player<G> {
    pub(super) fn new(ground: G, base: &str) -> Player<G> {
        Player {
            ground,
            base: base.to_owned(),
            seats: BTreeMap::new(),
            made: Vec::new(),
            sessions: BTreeMap::new(),
            zxids: Vec::new(),
            ctimes: BTreeMap::new(),
            meant: StillMeant::default(),
        }
    }

    pub(super) fn play(mut self, steps: &[String]) -> Vec<Outcome> {
        for who in 1..=CLIENTS {
            self.open(who);
        }
        steps.iter().map(|step| self.step(step)).collect()
    }

    fn step(&mut self, step: &str) -> Outcome {
        let mut words = step.split_whitespace();
        let who: usize = words.next().and_then(|who| who.parse().ok()).expect("a client's number");
        let before: BTreeMap<_, _> =
            self.seats.iter().map(|(who, seat)| (*who, seat.phase().connection)).collect();
        let answer = self.act(who, &words.collect::<Vec<_>>());
        if answer == "ConnectionLoss" && !self.seats[&who].refused {
            let phase = || self.seats[&who].phase();
            self.wait(|| phase().connection > before[&who] || phase().ended.is_some());
        }
        self.settle();
        let mut outcome = Outcome { answer, news: BTreeMap::new() };
        for (who, seat) in &self.seats {
            let mut heard = seat.heard.lock();
            let (notices, mut events) =
                (std::mem::take(&mut heard.notices), std::mem::take(&mut heard.events));
            // Events under way when a connection is lost may arrive or not.
            let steady = heard.phase.is_usable() && heard.phase.connection == before[who];
            if !steady || !notices.is_empty() {
                events.clear();
            }
            // The nodes of one session are deleted in no fixed order.
            events.sort();
            let mut news = notices;
            news.extend(
                events.iter().map(|(path, event)| format!("{event:?} {}", self.shown(path))),
            );
            if !seat.session.is_trusted() {
                news.push("not trusted".to_owned());
            }
            if !news.is_empty() {
                outcome.news.insert(*who, news.join(", "));
            }
        }
        outcome
    }

    fn act(&mut self, who: usize, words: &[&str]) -> String {
        let [verb, arguments @ ..] = words else { panic!("a step has no verb") };
        if let Some(after) = match *verb {
            "lose-request" => Some(false),
            "lose-reply" => Some(true),
            _ => None,
        } {
            let path = arguments.get(1).map_or_else(|| "/".to_owned(), |path| self.path(path));
            self.ground.lose(who, &arguments.join(" "), &path, after);
            return self.act(who, arguments);
        }
        let flags = &arguments[1.min(arguments.len())..];
        let watch = flags.contains(&"watch");
        let path = arguments.first().map(|path| self.path(path)).unwrap_or_default();
        if !path.is_empty() && self.seats.contains_key(&who) {
            self.listen(who, &path);
        }
        let session = Arc::clone(&self.seats[&who].session);
        match *verb {
            "create" => self.create(&session, &path, flags),
            "enter" => self.enter(&session, &path, flags),
            "delete" => told(session.delete(&path), |()| "done".to_owned()),
            "delete_all" => {
                let paths = arguments.iter().map(|path| self.path(path));
                let steps: Vec<_> = paths.map(Step::delete).collect();
                told(session.transact(&steps), |()| "done".to_owned())
            }
            "check" | "write_at" => {
                let version = Some(arguments[1].parse().expect("a version"));
                let data = format!("written by {who}").into_bytes();
                let step = match *verb {
                    "check" => Step::Check { path, version },
                    _ => Step::Write { path, data, version },
                };
                told(session.transact(&[step]), |()| "done".to_owned())
            }
            "write_if" => {
                let version = Some(arguments[1].parse().expect("a version"));
                let written = session.write_version(&path, who.to_string().as_bytes(), version);
                told(written, |stat| {
                    format!("{} bytes of {} {}", stat.data_length, stat.version, self.stat(&stat))
                })
            }
            "delete_if" => {
                let version = Some(arguments[1].parse().expect("a version"));
                told(session.delete_version(&path, version), |()| "done".to_owned())
            }
            "acl" => told(session.acl(&path), |acl| format!("{acl:?}")),
            "set_acl" => told(session.set_acl(&path, &acl_of(flags)), |()| "done".to_owned()),
            "fenced" => {
                let [target, made] = [1, 2].map(|place| self.path(arguments[place]));
                let acl = acl_of(&[]);
                let steps = [
                    Step::Check { path, version: None },
                    Step::Write { path: target, data: b"fenced".to_vec(), version: None },
                    Step::Create { path: made, data: Vec::new(), acl, kind: NodeKind::Persistent },
                    Step::delete(self.path(arguments[2])),
                ];
                told(session.commit(&steps), |transacted| match transacted {
                    Err((place, fault)) => format!("{fault:?} at {place}"),
                    Ok(done) => {
                        let mut shown = Vec::new();
                        for step in &done {
                            shown.push(match step {
                                Reply::Done => "done".to_owned(),
                                Reply::Created(created) => self.described(created),
                                Reply::Stat(stat) => stat.version.to_string(),
                                other => panic!("{other:?}, of a step"),
                            });
                        }
                        shown.join(", ")
                    }
                })
            }
            "outlive" => {
                let container = self.path(arguments[1]);
                self.listen(who, &container);
                let deleted = told(session.delete(&path), |()| "done".to_owned());
                let deadline = Deadline::after(Duration::from_secs(60));
                while self.ground.is_there(&container) {
                    assert!(!deadline.has_passed(), "{container} was not removed within 60 s");
                    self.ground.pause();
                }
                deleted
            }
            "delete_soon" => {
                session.delete_soon(&path);
                // The sync's reply comes after the delete's, on the same connection.
                let _ = session.sync();
                "asked".to_owned()
            }
            "let_go" => {
                let (slot, (bell, rung)) = (Arc::new(Mutex::new(None)), rt::bell());
                let answered = Arc::clone(&slot);
                let on_answer = move |answer| {
                    *answered.lock() = Some(answer);
                    bell.ring();
                };
                let soon = Deadline::after(Duration::from_secs(30));
                session.let_go(&path, soon, Box::new(on_answer));
                rung.wait(soon);
                told(slot.lock().take().expect("an answer"), |()| "done".to_owned())
            }
            "read" => told(session.read(&path, watch), |found| match found {
                None => "nothing".to_owned(),
                Some((data, stat)) => {
                    let data = String::from_utf8_lossy(&data);
                    format!("{data:?} of {} {}", stat.version, self.stat(&stat))
                }
            }),
            "children" => told(session.names(&path, watch), |names| match names {
                None => "nothing".to_owned(),
                Some(names) => format!("{:?}", names.sorted()),
            }),
            "list" => told(session.names_and_stat(&path, watch), |found| match found {
                None => "nothing".to_owned(),
                Some((names, stat)) => {
                    let names = names.sorted();
                    let (changes, count) = (stat.child_changes, stat.children);
                    let newest = self.zxid(stat.children_zxid);
                    format!("{names:?} {count} {changes} {newest} {}", self.stat(&stat))
                }
            }),
            "unwatch" => {
                session.unwatch_soon(&path);
                // The sync's reply comes after the other one, on the same connection.
                told(session.sync(), |()| "asked".to_owned())
            }
            "write" => {
                let data = format!("written by {who}");
                told(session.write(&path, data.as_bytes()), |()| "done".to_owned())
            }
            "await_making" => told(session.await_making(&path), |there| there.to_string()),
            "sync" => told(session.sync(), |()| "done".to_owned()),
            "confirm" => told(session.confirm(&path), |found| {
                found.map_or("nothing".to_owned(), |stat| self.stat(&stat))
            }),
            "watch_soon" => {
                let (slot, (bell, rung)) = (Arc::new(Mutex::new(None)), rt::bell());
                let answered = Arc::clone(&slot);
                let on_answer = move |answer| {
                    *answered.lock() = Some(answer);
                    bell.ring();
                };
                session.watch_soon(&path, Box::new(on_answer));
                rung.wait(Deadline::after(Duration::from_secs(30)));
                told(slot.lock().take().expect("an answer"), |(data, _)| {
                    format!("{:?}", String::from_utf8_lossy(&data))
                })
            }
            _ => self.connect(who, verb, &session),
        }
    }

    /// Performs a step on a session or its connection.
    fn connect(&mut self, who: usize, verb: &str, session: &Session) -> String {
        let before = session.status().now().connection;
        match verb {
            "open" => {
                self.seats.remove(&who);
                self.open(who);
            }
            "close" => {
                session.close(End::Closed, DROP_LIMIT);
                self.wait(|| session.status().now().over);
            }
            "cut" => {
                self.ground.cut(who);
                self.wait(|| session.status().now().connection > before);
            }
            "refuse" => {
                self.ground.refuse(who);
                self.wait(|| !session.status().now().attached);
            }
            "mend" => {
                self.ground.mend(who);
                self.wait(|| session.status().now().attached || session.status().now().over);
            }
            "lapse" => {
                self.ground.lapse(who, session);
                self.wait(|| session.status().now().over);
            }
            "expire" => {
                self.ground.expire(who, session.id());
                self.wait(|| session.status().now().over);
            }
            verb => panic!("unknown verb: {verb}"),
        }
        if let Some(seat) = self.seats.get_mut(&who) {
            seat.refused = verb == "refuse" || seat.refused && verb != "mend";
        }
        "done".to_owned()
    }

    fn open(&mut self, who: usize) {
        self.ground.open(who);
        let core = Arc::clone(self.ground.client(who).core());
        let deadline = Deadline::after(Duration::from_secs(30));
        let patience = crate::session::Patience::OneAttempt;
        let Ok(Some(session)) = core.session(&Waiter::new(), deadline, || false, patience) else {
            panic!("client {who} got no session within 30 s")
        };
        let number = self.sessions.len() + 1;
        self.sessions.insert(session.id(), number);
        self.seats.insert(who, PlayerSession::take(session));
    }

    fn enter(&mut self, session: &Session, path: &str, flags: &[&str]) -> String {
        let data = format!("of {}", self.shown(path));
        let (acl, late) = (acl_of(flags), Box::new(drop));
        let entered = session.enter(path, data.as_bytes(), &acl, &self.meant, false, late);
        told(entered, |entered| {
            let siblings = entered
                .siblings
                .map_or("no list".to_owned(), |(names, _)| format!("{:?}", names.sorted()));
            format!("{} among {siblings}", self.made(&entered.made))
        })
    }

    /// Records a new sequential node and describes it.
    fn made(&mut self, created: &Created) -> String {
        self.made.push(created.path.clone());
        for who in self.seats.keys().copied().collect::<Vec<_>>() {
            self.listen(who, &created.path);
        }
        self.described(created)
    }

    fn described(&mut self, created: &Created) -> String {
        let czxid = created.czxid.map_or("?".to_owned(), |zxid| self.zxid(zxid));
        format!("{} {czxid}", self.shown(&created.path))
    }

    fn create(&mut self, session: &Session, path: &str, flags: &[&str]) -> String {
        let kind = flags.iter().find_map(|flag| match *flag {
            "sequential" => Some(NodeKind::EphemeralSequential),
            "container" => Some(NodeKind::Container),
            "ephemeral" => Some(NodeKind::Ephemeral),
            _ => None,
        });
        let kind = kind.unwrap_or(NodeKind::Persistent);
        let data = format!("of {}", self.shown(path));
        told(session.create(path, data.as_bytes(), &acl_of(flags), kind), |created| {
            if kind == NodeKind::EphemeralSequential {
                self.made(&created)
            } else {
                self.described(&created)
            }
        })
    }

    fn listen(&mut self, who: usize, path: &str) {
        if let Some(seat) = self.seats.get_mut(&who) {
            seat.listen(path);
            seat.listen(path::parent(path));
        }
    }

    fn settle(&mut self) {
        for seat in self.seats.values() {
            let back = || seat.phase().attached || seat.phase().ended.is_some();
            self.wait(|| seat.refused || back());
        }
        let usable = self.seats.values().filter(|seat| seat.phase().is_usable());
        self.ground.settle(&usable.map(|seat| &*seat.session).collect::<Vec<_>>());
    }

    fn wait(&self, condition: impl Fn() -> bool) {
        let deadline = Deadline::after(Duration::from_secs(60));
        while !condition() {
            assert!(!deadline.has_passed(), "the condition did not hold within 60 s");
            self.ground.pause();
        }
    }

    // ----- descriptions that do not depend on the server

    fn path(&self, word: &str) -> String {
        let (head, tail) = word.split_at(
            word.get(1..).and_then(|rest| rest.find('/')).map_or(word.len(), |at| at + 1),
        );
        let Some(back) = head.strip_prefix('%') else {
            return if word == "/" { self.base.clone() } else { format!("{}{word}", self.base) };
        };
        let back: usize = back.parse().expect("a number after %");
        let made = self.made.len().checked_sub(back).and_then(|at| self.made.get(at));
        made.map_or_else(|| format!("{}/none", self.base), |made| format!("{made}{tail}"))
    }

    fn shown(&self, path: &str) -> String {
        let short = path.strip_prefix(&self.base).unwrap_or(path);
        if short.is_empty() { "/".to_owned() } else { short.to_owned() }
    }

    fn stat(&mut self, stat: &Stat) -> String {
        let czxid = self.zxid(stat.czxid);
        let ctime = *self.ctimes.entry(stat.czxid).or_insert(stat.ctime);
        assert_eq!(ctime, stat.ctime, "one node has two creation times");
        match stat.ephemeral_owner {
            0 => czxid,
            owner => match self.sessions.get(&owner) {
                Some(number) => format!("{czxid} of session {number}"),
                None => format!("{czxid} of a stranger"),
            },
        }
    }

    /// Describes a zxid by its place among those seen so far and by how many of them are smaller.
    fn zxid(&mut self, zxid: i64) -> String {
        let smaller: BTreeSet<_> = self.zxids.iter().filter(|other| **other < zxid).collect();
        let smaller = smaller.len();
        let first = self.zxids.iter().position(|other| *other == zxid);
        let first = first.unwrap_or_else(|| {
            self.zxids.push(zxid);
            self.zxids.len() - 1
        });
        format!("z{first}>{smaller}")
    }
}

fn acl_of(flags: &[&str]) -> Vec<Acl> {
    let anyone = |permissions| vec![Acl::new(permissions, "world", "anyone")];
    let acl = flags.iter().find_map(|flag| match *flag {
        "no-delete" => Some(anyone(Permissions::READ | Permissions::CREATE)),
        "no-write" => Some(anyone(Permissions::READ | Permissions::CREATE | Permissions::DELETE)),
        "no-create" => Some(anyone(Permissions::READ | Permissions::DELETE)),
        "hidden" => Some(anyone(Permissions::CREATE | Permissions::DELETE)),
        "nobody" => Some(vec![Acl::new(Permissions::ALL, "digest", "a:b")]),
        "empty" => Some(Vec::new()),
        "unknown-scheme" => Some(vec![Acl::new(Permissions::ALL, "strange", "a")]),
        "unknown-id" => Some(vec![Acl::new(Permissions::ALL, "world", "somebody")]),
        "creator" => Some(Acl::creator_only().into()),
        _ => None,
    });
    acl.unwrap_or_else(|| Acl::open().into())
}

fn told<T>(answer: Result<T, Fault>, show: impl FnOnce(T) -> String) -> String {
    match answer {
        Ok(answer) => show(answer),
        Err(Fault::Refused(_)) => "Refused".to_owned(),
        Err(fault) => format!("{fault:?}"),
    }
}
