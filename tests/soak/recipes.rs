//! A worker's thread that calls the recipes that are not locks, one after another, and writes the
//! results to its history.

use std::sync::Arc;
use std::time::Duration;

use zklock::commit::Vote;
use zklock::queue::LeasedItem;
use zklock::value::Version;
use zklock::znode::CreateMode;
use zklock::{
    Barrier, Client, DistributedQueue, DoubleBarrier, ErrorKind, Group, PriorityQueue, Result,
    SharedCounter, SharedValue, TwoPhaseCommit,
};

use super::history::{Journal, Nanos, SECOND, Who, nanos, now, word};
use super::rng::Rng;
use super::worker::{BASE, CONNECT};

/// How long a call without its own limit may take: it ends when the connection is back, or the
/// session is lost.
const LONG: Duration = Duration::from_secs(30);
/// A round of a two-phase commit, a value and a counter are named by the time, in steps of this length,
/// so that workers find the same one.
const ROUND: Nanos = 2 * SECOND;
const PRIORITIES: u64 = 3;

/// The parent of the recipes' nodes.
pub(crate) fn base() -> String {
    format!("{BASE}/recipes")
}

pub(crate) const VALUE: &str = "value";
pub(crate) const COUNTER: &str = "counter";
pub(crate) const GROUP: &str = "group";
pub(crate) const QUEUE: &str = "queue";
pub(crate) const LEASED: &str = "leased";
pub(crate) const PRIORITY: &str = "priority";
pub(crate) const BARRIER: &str = "barrier";
pub(crate) const DOUBLE: &str = "double";
pub(crate) const COMMIT: &str = "commit";

/// One of each recipe.
pub(crate) struct Recipes {
    pub(crate) zk: Client,
    group: Group,
    pub(crate) queue: DistributedQueue,
    pub(crate) leased: DistributedQueue,
    pub(crate) priority: PriorityQueue,
    pub(crate) barrier: Barrier,
    double: DoubleBarrier,
}

impl Recipes {
    pub(crate) fn new(zk: &Client) -> Recipes {
        let base = base();
        Recipes {
            zk: zk.clone(),
            group: Group::new(zk, &base, GROUP),
            queue: DistributedQueue::new(zk, &base, QUEUE),
            leased: DistributedQueue::new(zk, &base, LEASED),
            priority: PriorityQueue::new(zk, &base, PRIORITY),
            barrier: Barrier::new(zk, &base, BARRIER),
            double: DoubleBarrier::new(zk, &base, DOUBLE, 2),
        }
    }

    pub(crate) fn round(&self, name: &str) -> TwoPhaseCommit {
        TwoPhaseCommit::new(&self.zk, format!("{}/{COMMIT}", base()), name)
    }
}

/// Writes calls and their results to a history.
pub(crate) struct Scribe {
    pub(crate) who: Who,
    pub(crate) journal: Arc<Journal>,
}

impl Scribe {
    /// Makes a call. `say` describes its result in one word; `None` for nothing.
    pub(crate) fn deed<T>(
        &self,
        deed: &str,
        limit: Duration,
        about: &str,
        call: impl FnOnce() -> Result<T>,
        say: impl FnOnce(&T) -> Option<String>,
    ) -> Option<T> {
        let space = if about.is_empty() { "" } else { " " };
        self.journal.note(self.who, format_args!("do {deed} {}{space}{about}", nanos(limit)));
        let outcome = call();
        let returned = now();
        let what = match &outcome {
            Ok(found) => {
                say(found).map_or("did nothing".to_owned(), |found| format!("did ok {found}"))
            }
            Err(error) => format!("did failed {:?} {}", error.kind(), word(error)),
        };
        self.journal.note_at(returned, self.who, what);
        outcome.ok()
    }
}

/// The state of the thread.
pub(crate) struct Deeds {
    recipes: Recipes,
    scribe: Scribe,
    rng: Rng,
    /// How many items it has offered.
    items: u64,
    /// How often it has left the group without knowing that its node is gone.
    lives: u64,
}

impl Deeds {
    pub(crate) fn new(zk: &Client, who: Who, rng: Rng, journal: Arc<Journal>) -> Deeds {
        let (recipes, scribe) = (Recipes::new(zk), Scribe { who, journal });
        Deeds { recipes, scribe, rng, items: 0, lives: 0 }
    }

    pub(crate) fn one(&mut self) {
        match self.rng.below(100) {
            0..10 => self.count(),
            10..25 => self.change(),
            25..30 => self.join(),
            30..40 => self.hand_on(),
            40..60 => self.lease(),
            60..75 => self.hand_on_by_priority(),
            75..90 => self.pass(),
            90..95 => self.meet(),
            _ => self.commit(),
        }
        std::thread::sleep(self.rng.milliseconds(2, 20));
    }

    fn do_it<T>(
        &self,
        deed: &str,
        limit: Duration,
        about: &str,
        call: impl FnOnce(&Recipes) -> Result<T>,
        say: impl FnOnce(&T) -> Option<String>,
    ) -> Option<T> {
        self.scribe.deed(deed, limit, about, || call(&self.recipes), say)
    }

    fn count(&mut self) {
        let name = this_round();
        let counter = SharedCounter::new(&self.recipes.zk, format!("{}/{COUNTER}", base()), &name);
        let sum = |sum: &i64| Some(sum.to_string());
        if self.rng.per_mille(200) {
            self.do_it("counter get", CONNECT, &name, |_| counter.get(), sum);
        } else {
            self.do_it("counter add", LONG, &name, |_| counter.add(1), sum);
        }
    }

    /// Reads or changes a value, which is a node that others create and delete.
    fn change(&mut self) {
        let (name, data) = (this_round(), self.item());
        let about = format!("{name} {data}");
        let value = SharedValue::new(&self.recipes.zk, format!("{}/{VALUE}", base()), &name);
        let node = self.recipes.zk.znode(format!("{}/{VALUE}/{name}", base()));
        let number = |version: &Version| version.number.to_string();
        let made = |made: bool| if made { "made" } else { "exists" }.to_owned();
        match self.rng.below(10) {
            0 => {
                // That there is a node, or none, is no failure.
                let create = || match node.create_with_parents(CreateMode::Persistent, &*data) {
                    Ok(_) => Ok(true),
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
                    Err(error) => Err(error),
                };
                self.do_it("value create", CONNECT, &about, |_| create(), |did| Some(made(*did)));
            }
            1 => {
                let set = || value.set_if_absent(&*data).map(|version| version.is_some());
                self.do_it("value create", CONNECT * 2, &about, |_| set(), |did| Some(made(*did)));
            }
            2..5 => {
                let say = |found: &Option<zklock::value::Versioned>| {
                    Some(found.as_ref().map_or("none".to_owned(), |found| {
                        let data = String::from_utf8_lossy(&found.data);
                        format!("{}:{data}", number(&found.version))
                    }))
                };
                let found = self.do_it("value get", CONNECT, &name, |_| value.get(), say);
                let Some(Some(found)) = found else { return };
                std::thread::sleep(self.rng.milliseconds(0, 20));
                let about = format!("{about} {}", number(&found.version));
                let write = || value.compare_and_set(found.version, &*data);
                let say = |version: &Option<Version>| {
                    Some(version.as_ref().map_or("other".to_owned(), number))
                };
                self.do_it("value write", CONNECT, &about, |_| write(), say);
            }
            5 => {
                let write = || match node.write(&*data) {
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                    written => written.map(Some),
                };
                let say = |version: &Option<Version>| {
                    Some(version.as_ref().map_or("none".to_owned(), number))
                };
                self.do_it("value write", CONNECT, &about, |_| write(), say);
            }
            6 => {
                let set = || value.set(&*data);
                self.do_it(
                    "value set",
                    CONNECT,
                    &about,
                    |_| set(),
                    |version| Some(number(version)),
                );
            }
            _ => {
                let delete = || match node.delete() {
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok("none"),
                    deleted => deleted.map(|()| "deleted"),
                };
                let say = |did: &&str| Some((*did).to_owned());
                self.do_it("value delete", CONNECT, &name, |_| delete(), say);
            }
        }
    }

    fn join(&mut self) {
        let id = format!("{}-{}", self.scribe.who.slot, self.lives);
        let joined = self.do_it("group join", CONNECT, &id, |on| on.group.join(&id, ""), done);
        let Some(membership) = joined else { return };
        let stay = self.rng.milliseconds(0, 20);
        std::thread::sleep(stay);
        let session = self.recipes.zk.session_id();
        let looked = self.do_it(
            "group look",
            CONNECT,
            &id,
            |on| {
                let sure = membership.is_member() && session.is_some();
                let seen = on.group.members()?.iter().any(|member| member.id == id);
                let sure = sure && membership.is_member() && on.zk.session_id() == session;
                Ok(if seen {
                    "seen"
                } else if sure {
                    "unseen"
                } else {
                    "unsure"
                })
            },
            |said| Some((*said).to_owned()),
        );
        if looked.is_some() && self.rng.per_mille(700) {
            self.do_it("group leave", LONG, &id, |_| membership.leave(), done);
        } else {
            // A new name: a late deletion of this node must not delete the next one, too.
            self.lives += 1;
            let drop = |_: &Recipes| {
                drop(membership);
                Ok(())
            };
            self.do_it("group drop", Duration::from_millis(500), &id, drop, done);
        }
    }

    /// A unique name for an item.
    fn item(&mut self) -> String {
        self.items += 1;
        let Who { slot, generation, .. } = self.scribe.who;
        format!("{slot}.{generation}.{}", self.items)
    }

    /// Offers an item or takes one; more are taken than offered, so that the queues stay short.
    fn hand_on(&mut self) {
        if self.rng.per_mille(450) {
            let item = self.item();
            self.do_it("queue offer", CONNECT, &item, |on| on.queue.offer(&item), done);
        } else if self.rng.per_mille(300) {
            let limit = self.rng.milliseconds(0, 100);
            self.do_it("queue take", limit, "", |on| on.queue.take_within(limit), taken);
        } else {
            self.do_it("queue take", CONNECT, "", |on| on.queue.try_take(), taken);
        }
    }

    fn hand_on_by_priority(&mut self) {
        if self.rng.per_mille(450) {
            let (item, priority) = (self.item(), self.rng.below(PRIORITIES) as u32);
            let item = format!("{priority}/{item}");
            let offer = |on: &Recipes| on.priority.offer(priority, &item);
            self.do_it("priority offer", CONNECT, &item, offer, done);
        } else if self.rng.per_mille(300) {
            let limit = self.rng.milliseconds(0, 100);
            self.do_it("priority take", limit, "", |on| on.priority.take_within(limit), taken);
        } else {
            self.do_it("priority take", CONNECT, "", |on| on.priority.try_take(), taken);
        }
    }

    fn lease(&mut self) {
        if self.rng.per_mille(400) {
            let item = self.item();
            self.do_it("leased offer", CONNECT, &item, |on| on.leased.offer(&item), done);
            return;
        }
        let limit = self.rng.milliseconds(0, 100);
        let say = |item: &Option<LeasedItem>| text(item.as_ref().map(LeasedItem::data));
        let leased = match self.rng.per_mille(300) {
            true => self.do_it("leased lease", limit, "", |on| on.leased.lease_within(limit), say),
            false => self.do_it("leased lease", CONNECT, "", |on| on.leased.try_lease(), say),
        };
        let Some(leased) = leased.flatten() else { return };
        std::thread::sleep(self.rng.milliseconds(0, 20));
        let about =
            format!("{} {}", String::from_utf8_lossy(leased.data()), claim(|| leased.is_held()));
        if self.rng.per_mille(800) {
            self.do_it("leased ack", LONG, &about, |_| leased.ack(), done);
        } else {
            let give_back = |_: &Recipes| {
                drop(leased);
                Ok(())
            };
            self.do_it("leased return", LONG, &about, give_back, done);
        }
    }

    fn pass(&mut self) {
        let yes_or_no = |did: &bool| Some(did.to_string());
        match self.rng.below(4) {
            0 => drop(self.do_it("barrier raise", CONNECT, "", |on| on.barrier.raise(), yes_or_no)),
            1 => drop(self.do_it("barrier lift", CONNECT, "", |on| on.barrier.lift(), yes_or_no)),
            _ => {
                let limit = self.rng.milliseconds(0, 100);
                let passed = |passed: &bool| passed.then(|| "passed".to_owned());
                self.do_it("barrier wait", limit, "", |on| on.barrier.wait_within(limit), passed);
            }
        }
    }

    fn meet(&mut self) {
        let limit = self.rng.milliseconds(100, 1000);
        let entered = self.do_it(
            "double enter",
            limit,
            "",
            |on| match on.double.enter_within(limit) {
                Err(error) if error.kind() == ErrorKind::Full => Ok(None),
                entered => entered,
            },
            |entered| entered.as_ref().map(|_| "all".to_owned()),
        );
        let Some(entered) = entered.flatten() else { return };
        std::thread::sleep(self.rng.milliseconds(0, 20));
        let (about, limit) = (claim(|| entered.is_held()), self.rng.milliseconds(0, 500));
        let all_left = |left: &bool| left.then(|| "all".to_owned());
        self.do_it("double leave", limit, &about, |_| entered.leave_within(limit), all_left);
    }

    /// Runs one round of a two-phase commit. It has two participants, the workers with even numbers
    /// and those with odd ones; either may decide, or both.
    fn commit(&mut self) {
        let name = this_round();
        let participant = (self.scribe.who.slot % 2).to_string();
        let (yes, decides) = (self.rng.per_mille(900), self.rng.per_mille(600));
        let limit = self.rng.milliseconds(100, 1500);
        let round = self.recipes.round(&name);
        let found = |deed, call: &dyn Fn() -> Result<_>| {
            // That a round exists already, or does not exist, is no failure.
            let call = || match call() {
                Ok(found) => Ok(Some(found)),
                Err(error) => match error.kind() {
                    ErrorKind::AlreadyExists | ErrorKind::NotFound => Ok(None),
                    _ => Err(error),
                },
            };
            self.scribe.deed(deed, CONNECT, &name, call, |found| found.as_ref().and_then(done))
        };
        let begun = found("commit begin", &|| round.begin(&["0", "1"])).flatten();
        let coordinator = begun.or_else(|| found("commit recover", &|| round.recover()).flatten());
        let Some(coordinator) = coordinator else { return };
        let join = || match round.join(&participant) {
            Err(error) if error.kind() == ErrorKind::Taken => Ok(None),
            joined => joined.map(Some),
        };
        let joined = self
            .scribe
            .deed("commit join", CONNECT, &name, join, |joined| joined.as_ref().and_then(done));
        let joined = joined.flatten();
        if let Some(joined) = &joined {
            let about = format!("{name} {participant} {}", if yes { "yes" } else { "no" });
            let counts = |counts: &Option<bool>| counts.map(|counts| counts.to_string());
            let vote = || match joined.vote(if yes { Vote::Yes } else { Vote::No }) {
                // An earlier process of this worker has voted.
                Err(error) if error.kind() == ErrorKind::Conflict => Ok(None),
                counts => counts.map(Some),
            };
            self.scribe.deed("commit vote", LONG, &about, vote, counts);
        }
        if decides {
            let limits = limit + CONNECT;
            let decide = || coordinator.decide_or_abort_within(limit);
            self.scribe.deed("commit decide", limits, &name, decide, |said| Some(said.to_string()));
        }
        if let Some(joined) = &joined {
            let learn = || joined.decision_within(limit);
            self.scribe.deed("commit learn", limit, &name, learn, |said| {
                said.map(|said| said.to_string())
            });
        }
    }
}

/// What the present round is named by.
fn this_round() -> String {
    format!("round-{:010}", now() / ROUND)
}

/// Until when something was certainly held: when `is_held` was called, if it returned true.
fn claim(is_held: impl FnOnce() -> bool) -> String {
    let asked = now();
    if is_held() { asked.to_string() } else { "-".to_owned() }
}

pub(crate) fn done<T>(_: &T) -> Option<String> {
    Some("done".to_owned())
}

pub(crate) fn text(found: Option<&[u8]>) -> Option<String> {
    found.map(|found| String::from_utf8_lossy(found).into_owned())
}

pub(crate) fn taken(found: &Option<Vec<u8>>) -> Option<String> {
    text(found.as_deref())
}
