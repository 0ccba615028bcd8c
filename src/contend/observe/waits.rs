//! Who waits for whom, and which of them wait for ever: a function of what the contenders tell.
//!
//! A waiter waits for those ahead that exclude it. A holder waits if what holds it waits: the thread, or the
//! command, that says so on its own node. So a set of contenders waits for ever if each waiter in it is
//! excluded by others in it, and each holder in it waits by another one in it. The greatest such set is what
//! is left when all that may go on are taken out, again and again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use super::contender::Contender;
use super::kept_lists::KeptLists;
use super::lock_list::UnlistedReason;
use super::reading::Reading;
use crate::contend::name::{ContenderKind, excludes};
use crate::session_id::SessionId;
use crate::{path, rt};

/// Two looks must be at least this far apart for what both show to be certain.
pub(crate) const BETWEEN_LOOKS: Duration = Duration::from_secs(3);

/// Who held and waited for the locks below a path at one time: see [`Client::waits`](crate::Client::waits).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waits {
    /// The path at and below which the locks are.
    pub base: String,
    /// The contenders, sorted by lock path, those of one lock in the order of grants.
    pub contenders: Vec<Contender>,
    /// The nodes whose children could not be listed, or not all, and the contenders that could not be read,
    /// and why; sorted by path.
    pub unlisted: Vec<(String, UnlistedReason)>,
    /// How many requests were sent to learn all this.
    pub requests: usize,
    pub(super) chroot: String,
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    /// When each contender was read, by its path.
    pub(super) readings: HashMap<String, Reading>,
    /// The lists of children that a look which refreshes this one need not ask for.
    pub(super) lists: KeptLists,
}

/// Holders that each wait for a lock which the next one holds, and the last for one of the first: see
/// [`Waits::deadlocks`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlock {
    /// The holders, and what each waits for.
    pub holders: Vec<WaitingHolder>,
    /// Whether it cannot end by itself, as far as the contenders tell; otherwise it is only suspected.
    pub is_certain: bool,
}

/// A holder of one lock that waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingHolder {
    /// The contender that holds.
    pub holder: Contender,
    /// The path of the lock that it waits for.
    pub waits_for: String,
    /// The contender by which it waits; `None` if it waits within the process that holds that lock.
    pub waiter: Option<Contender>,
}

impl Waits {
    /// Returns what is known of the locks at `base` and below it before anybody has looked: nothing.
    ///
    /// To [`refresh`](Waits::refresh), so that the first look has a limit of requests, too.
    pub fn empty(base: impl Into<String>) -> Waits {
        let now = rt::now();
        Waits {
            base: base.into(),
            contenders: Vec::new(),
            unlisted: Vec::new(),
            requests: 0,
            chroot: String::new(),
            begun: now,
            ended: now,
            readings: HashMap::new(),
            lists: KeptLists::default(),
        }
    }

    /// Returns which contenders wait for other locks while they hold one.
    ///
    /// Each pair has the places, in [`contenders`](Waits::contenders), of a holder, and of the contender by
    /// which it waits. That one may be of another thread of its process, which contends for all of them or
    /// holds. Only what contenders tell counts: those with data of their own, and those of other libraries,
    /// tell nothing.
    pub fn edges(&self) -> Vec<(usize, usize)> {
        let edges = Edges::of(self);
        edges.told.into_iter().map(|edge| (edge.holder, edge.by)).collect()
    }

    /// Returns the deadlocks that this look shows, each as one of its cycles. Who waits behind it is not in
    /// it.
    ///
    /// One is certain if an `earlier` look, which ended at least three seconds before this one began, showed
    /// the same waits, all of them told by contenders of this library (those within a process again since
    /// then), and none with a limit or a [`Cancel`](crate::Cancel). What is left to doubt: a guard may have
    /// been given to another thread, and a command may be ended from outside. Other cycles are only
    /// suspected: a thread that waits for itself; waits that may end by themselves; contenders that tell
    /// nothing and have one session, such as Curator's, at several locks. Without an earlier look, all are;
    /// with one, only those of contenders that were in it.
    pub fn deadlocks(&self, earlier: Option<&Waits>) -> Vec<Deadlock> {
        let edges = Edges::of(self);
        let before = earlier.map(|earlier| (earlier, Edges::of(earlier)));
        let seen: Option<HashSet<_>> =
            earlier.map(|earlier| earlier.contenders.iter().map(same).collect());
        let was_seen = |one: &Contender| seen.as_ref().is_none_or(|seen| seen.contains(&same(one)));
        let mut done = vec![false; self.contenders.len()];
        let mut found = Vec::new();
        if let Some((earlier, before)) = before.filter(|(earlier, _)| {
            self.begun.saturating_duration_since(earlier.ended) >= BETWEEN_LOOKS
        }) {
            let before: HashMap<_, _> = before.named(earlier).collect();
            let told =
                edges.told.iter().zip(edges.named(self)).filter_map(|(edge, (names, told))| {
                    let before = before.get(&names)?;
                    // Who waits within a process has it told again and again.
                    (!edge.is_retold || told > *before).then_some(*edge)
                });
            let graph = Graph::of(self, told.collect(), HashMap::new());
            let lasts = |one: &Contender| {
                let never_ends = || one.facts().is_some_and(|facts| !facts.is_limited);
                was_seen(one) && (one.holds || never_ends())
            };
            found = graph.cycles(&graph.stuck(lasts), true, &mut done);
        }
        let graph = Graph::of(self, edges.told, edges.silent);
        let stuck = graph.stuck(|one| one.session.is_some() && was_seen(one));
        found.extend(graph.cycles(&stuck, false, &mut done));
        found
    }
}

/// What has to be the same in two looks.
fn same(one: &Contender) -> (&str, bool, Option<SessionId>) {
    (&one.path, one.holds, one.session)
}

/// Whether it waits and tells nothing of it. Candidates of an election have no facts, and may have one thread
/// each.
fn waits_silently(one: &Contender) -> bool {
    one.facts().is_none() && !one.holds && one.host.is_none()
}

/// A holder waits by a contender.
#[derive(Clone, Copy)]
struct Edge {
    holder: usize,
    by: usize,
    /// Whether the contender tells it of other threads of its process, and says so again from time to time.
    is_retold: bool,
}

/// Which holders wait by which contenders.
struct Edges {
    told: Vec<Edge>,
    /// The waiters of a session that tell nothing: any of its holders of other locks may wait by them. (Those
    /// of one lock are different threads: a thread that waited for itself would do so in any library.)
    silent: HashMap<SessionId, Vec<usize>>,
}

impl Edges {
    fn of(waits: &Waits) -> Edges {
        let all = &*waits.contenders;
        let places: HashMap<&str, usize> =
            all.iter().enumerate().map(|(place, one)| (&*one.path, place)).collect();
        let place = |node: &String| {
            let shown = node.strip_prefix(&waits.chroot)?;
            places.get(shown).copied().filter(|place| all[*place].holds)
        };
        let mut edges = Edges { told: Vec::new(), silent: HashMap::new() };
        for (by, one) in all.iter().enumerate() {
            let Some(facts) = one.facts() else {
                let session = one.session.filter(|_| waits_silently(one));
                session.into_iter().for_each(|id| edges.silent.entry(id).or_default().push(by));
                continue;
            };
            let under = facts.under.iter().filter(|_| !one.holds).map(|node| (node, false));
            let kept = facts.keeps_waiting.iter().map(|node| (node, true));
            for (node, is_retold) in under.chain(kept) {
                edges.told.extend(place(node).map(|holder| Edge { holder, by, is_retold }));
            }
        }
        edges
    }

    /// The same by the nodes' paths, and when the contenders told it.
    fn named<'a>(
        &self,
        waits: &'a Waits,
    ) -> impl Iterator<Item = ((&'a str, &'a str, bool), Option<SystemTime>)> {
        let all = &waits.contenders;
        self.told.iter().map(move |edge| {
            let Edge { holder, by, is_retold } = *edge;
            ((&*all[holder].path, &*all[by].path, is_retold), all[by].written())
        })
    }
}

struct Graph<'a> {
    all: &'a [Contender],
    locks: Vec<Range<usize>>,
    /// The place of each one's lock in `locks`.
    lock_of: Vec<usize>,
    /// By which contenders each holder waits, and which holders wait by each contender.
    waits_by: Vec<Vec<usize>>,
    holders_by: Vec<Vec<usize>>,
    silent: HashMap<SessionId, Vec<usize>>,
}

impl<'a> Graph<'a> {
    fn of(waits: &'a Waits, edges: Vec<Edge>, silent: HashMap<SessionId, Vec<usize>>) -> Graph<'a> {
        let all = &*waits.contenders;
        let mut locks: Vec<Range<usize>> = Vec::new();
        let mut lock_of = Vec::with_capacity(all.len());
        for (place, one) in all.iter().enumerate() {
            match locks.last_mut() {
                Some(of) if path::parent(&all[of.start].path) == path::parent(&one.path) => {
                    of.end = place + 1;
                }
                _ => locks.push(place..place + 1),
            }
            lock_of.push(locks.len() - 1);
        }
        let (mut waits_by, mut holders_by) =
            (vec![Vec::new(); all.len()], vec![Vec::new(); all.len()]);
        for Edge { holder, by, .. } in edges {
            waits_by[holder].push(by);
            holders_by[by].push(holder);
        }
        Graph { all, locks, lock_of, waits_by, holders_by, silent }
    }

    /// Which contenders wait for ever, if those that `last` do not end by themselves: all that do not go on
    /// when those do that may.
    fn stuck(&self, lasts: impl Fn(&Contender) -> bool) -> Vec<bool> {
        let mut stuck: Vec<bool> = self.all.iter().map(lasts).collect();
        // How many there are at each lock.
        let mut silent: HashMap<SessionId, HashMap<usize, usize>> = HashMap::new();
        for (session, waiters) in &self.silent {
            for by in waiters.iter().filter(|by| stuck[**by]) {
                *silent.entry(*session).or_default().entry(self.lock_of[*by]).or_default() += 1;
            }
        }
        let mut holders_of: HashMap<SessionId, Vec<usize>> = HashMap::new();
        for (place, one) in self.all.iter().enumerate().filter(|(_, one)| one.holds) {
            one.session.into_iter().for_each(|id| holders_of.entry(id).or_default().push(place));
        }
        let mut due: BTreeSet<usize> = (0..self.locks.len()).collect();
        while let Some(lock) = due.pop_first() {
            let mut ahead = Ahead::default();
            for place in self.locks[lock].clone() {
                let one = &self.all[place];
                let may_be_silent = || {
                    let by_lock = one.session.and_then(|id| silent.get(&id));
                    by_lock.is_some_and(|all| all.keys().any(|other| *other != lock))
                };
                let stays = stuck[place]
                    && match one.holds {
                        true => self.waits_by[place].iter().any(|by| stuck[*by]) || may_be_silent(),
                        false => ahead.excludes(one),
                    };
                if stays {
                    ahead.note(one);
                } else if std::mem::replace(&mut stuck[place], false) {
                    due.extend(self.holders_by[place].iter().map(|holder| self.lock_of[*holder]));
                    if let Some(id) = one.session.filter(|_| waits_silently(one)) {
                        let by_lock = silent.entry(id).or_default();
                        let left = by_lock.get(&lock).copied().unwrap_or(0);
                        if left > 1 {
                            by_lock.insert(lock, left - 1);
                        } else if by_lock.remove(&lock).is_some() && by_lock.len() <= 1 {
                            let holders = holders_of.get(&id).into_iter().flatten();
                            due.extend(holders.map(|holder| self.lock_of[*holder]));
                        }
                    }
                }
            }
        }
        stuck
    }

    /// By which stuck contender a holder waits.
    fn way(&self, holder: usize, stuck: &[bool]) -> Option<usize> {
        let silent = self.all[holder].session.and_then(|session| self.silent.get(&session));
        let is_other = |by: &&usize| self.lock_of[**by] != self.lock_of[holder];
        let silent = silent.into_iter().flatten().filter(is_other);
        let mut ways = self.waits_by[holder].iter().chain(silent);
        ways.find(|by| stuck[**by]).copied()
    }

    /// The cycles among the holders that are stuck, without those that are `done`.
    fn cycles(&self, stuck: &[bool], is_certain: bool, done: &mut [bool]) -> Vec<Deadlock> {
        let mut found = Vec::new();
        for start in 0..self.all.len() {
            let mut walked: Vec<(usize, usize)> = Vec::new();
            let mut step_of: HashMap<usize, usize> = HashMap::new();
            let mut at = start;
            while self.all[at].holds && stuck[at] && !done[at] {
                if let Some(first) = step_of.get(&at) {
                    let holders = walked[*first..].iter();
                    let holders: Vec<WaitingHolder> =
                        holders.map(|(holder, by)| self.waiting(*holder, *by)).collect();
                    // A thread that waits for itself may as well have given its guard away.
                    let is_certain = is_certain && holders.len() > 1;
                    found.push(Deadlock { holders, is_certain });
                    break;
                }
                let Some(by) = self.way(at, stuck) else { break };
                step_of.insert(at, walked.len());
                walked.push((at, by));
                let Some(next) = self.holder_ahead(by, stuck) else { break };
                at = next;
            }
            walked.into_iter().for_each(|(holder, _)| done[holder] = true);
        }
        found
    }

    fn waiting(&self, holder: usize, by: usize) -> WaitingHolder {
        let by = &self.all[by];
        WaitingHolder {
            holder: self.all[holder].clone(),
            waits_for: path::parent(&by.path).to_owned(),
            waiter: (!by.holds).then(|| by.clone()),
        }
    }

    /// The stuck holder for which this contender waits, if need be through other waiters.
    fn holder_ahead(&self, by: usize, stuck: &[bool]) -> Option<usize> {
        let mut at = by;
        while !self.all[at].holds {
            let mut ahead = self.locks[self.lock_of[at]].start..at;
            let excluding =
                |place: &usize| stuck[*place] && excludes(self.all[*place].kind, self.all[at].kind);
            // The first ones hold.
            at = ahead.find(excluding)?;
        }
        Some(at)
    }
}

/// Those of the contenders ahead that are stuck.
#[derive(Default)]
struct Ahead {
    are_any: bool,
    are_any_but_readers: bool,
    weight: u64,
}

impl Ahead {
    fn note(&mut self, one: &Contender) {
        self.are_any = true;
        self.are_any_but_readers |= one.kind != ContenderKind::Read;
        self.weight = self.weight.saturating_add(match one.kind {
            ContenderKind::Permits => u64::from(one.weight),
            // A lock on a semaphore's node leaves no permit.
            _ => u64::from(u32::MAX),
        });
    }

    fn excludes(&self, one: &Contender) -> bool {
        match one.kind {
            ContenderKind::Read => self.are_any_but_readers,
            ContenderKind::Permits => {
                self.weight.saturating_add(u64::from(one.weight)) > u64::from(one.permits)
            }
            _ => self.are_any,
        }
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_certain { "deadlock: " } else { "suspected deadlock: " })?;
        for (place, WaitingHolder { holder, waits_for, .. }) in self.holders.iter().enumerate() {
            let separator = if place == 0 { "" } else { "; " };
            let lock = path::parent(&holder.path);
            write!(f, "{separator}{:?} holds {lock} and waits for {waits_for}", holder.label())?;
        }
        f.write_str(", unless a guard was given to another thread")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contend::name::Ticket;
    use crate::wire_values::Stat;

    /// Contenders, each by its node, its session, whether it holds, and its facts.
    struct Look {
        contenders: Vec<(String, i64, bool, String)>,
        begun: Instant,
        /// Whether each look finds data that were written since the one before.
        is_retold: bool,
    }

    impl Look {
        fn new() -> Look {
            Look { contenders: Vec::new(), begun: Instant::now(), is_retold: true }
        }

        fn with(mut self, node: &str, session: i64, holds: bool, facts: &str) -> Look {
            self.contenders.push((node.to_owned(), session, holds, facts.to_owned()));
            self
        }

        fn holds(self, node: &str, session: i64) -> Look {
            self.with(node, session, true, "x=1")
        }

        fn waits(self, node: &str, session: i64, facts: &str) -> Look {
            self.with(node, session, false, facts)
        }

        fn taken(&self, after: Duration) -> Waits {
            let mut all = self.contenders.clone();
            all.sort();
            let mtime = if self.is_retold { after.as_millis() as i64 } else { 0 };
            let mut contenders: Vec<Contender> = Vec::new();
            for (node, session, holds, facts) in all {
                let stat = Stat { ephemeral_owner: session, ctime: 1, mtime, ..Stat::default() };
                let (lock, ticket) =
                    (path::parent(&node), Ticket::parse(path::last(&node)).unwrap());
                let data = if facts.is_empty() { facts } else { format!("of {node}\nv=1 {facts}") };
                contenders.push(Contender::new(lock, &ticket, data.into(), &stat).at(0, holds));
            }
            // By number, as they are granted.
            contenders.sort_by(|one, other| {
                let key = |one: &Contender| (path::parent(&one.path).to_owned(), one.sequence);
                key(one).cmp(&key(other))
            });
            let at = self.begun + after;
            let (chroot, begun, ended) = ("/root".to_owned(), at, at);
            Waits { contenders, chroot, begun, ended, ..Waits::empty("/") }
        }

        /// Whether the deadlocks that two looks in a row show are certain, and for which locks each waits.
        fn found(&self) -> Vec<(bool, String)> {
            let (first, second) = (self.taken(Duration::ZERO), self.taken(BETWEEN_LOOKS));
            let waits_for = |one: &Deadlock| {
                let locks = one.holders.iter().map(|holder| holder.waits_for.as_str());
                (one.is_certain, locks.collect::<Vec<_>>().join(" "))
            };
            second.deadlocks(Some(&first)).iter().map(waits_for).collect()
        }
    }

    /// Two locks, in opposite order.
    fn two(facts: &str) -> Look {
        Look::new()
            .holds("/a/lock-0000000001", 1)
            .holds("/b/lock-0000000001", 2)
            .waits("/b/lock-0000000002", 1, &format!("under=/root/a/lock-0000000001{facts}"))
            .waits("/a/lock-0000000002", 2, "under=/root/b/lock-0000000001")
    }

    fn certain(locks: &str) -> Vec<(bool, String)> {
        vec![(true, locks.to_owned())]
    }

    fn suspected(locks: &str) -> Vec<(bool, String)> {
        vec![(false, locks.to_owned())]
    }

    #[test]
    fn locks_taken_in_opposite_order_are_a_deadlock() {
        assert_eq!(two("").found(), certain("/b /a"));
        assert_eq!(two("").taken(Duration::ZERO).edges(), [(2, 1), (0, 3)]);
        // Others behind are not in it, whoever they are.
        let behind =
            two("").waits("/a/lock-0000000003", 3, "x=1").waits("/b/lock-0000000003", 4, "");
        assert_eq!(behind.found(), certain("/b /a"));
        let text = two("").taken(Duration::ZERO).deadlocks(None)[0].to_string();
        assert!(text.starts_with(
            "suspected deadlock: \"of /a/lock-0000000001\" holds /a and waits for /b; \"of /b/"
        ));
    }

    #[test]
    fn threads_of_one_session_that_tell_nothing_contend_for_a_lock_without_being_suspected() {
        let alone = || Look::new().with("/a/lock-0000000001", 1, true, "");
        let two = || alone().waits("/a/lock-0000000002", 1, "").waits("/a/lock-0000000003", 1, "");
        assert_eq!(two().found(), []);
        // Its waiters of another lock are not looked at instead, until they wait for what the session holds.
        let other = || two().holds("/b/lock-0000000001", 2).waits("/b/lock-0000000002", 1, "");
        assert_eq!(other().found(), []);
        let crossed = other().waits("/a/lock-0000000004", 2, "under=/root/b/lock-0000000001");
        assert_eq!(crossed.found(), suspected("/b /a"));
    }

    #[test]
    fn five_in_a_circle_and_not_four_of_them() {
        let circle = |waiters: i64| {
            let mut look = Look::new();
            for one in 0..5 {
                look = look.holds(&format!("/{one}/lock-0000000001"), one + 1);
            }
            for one in 0..waiters {
                let under = format!("under=/root/{one}/lock-0000000001");
                look = look.waits(&format!("/{}/lock-0000000002", (one + 1) % 5), one + 1, &under);
            }
            look.found()
        };
        assert_eq!(circle(5), certain("/1 /2 /3 /4 /0"));
        assert_eq!(circle(4), []);
    }

    #[test]
    fn what_may_end_by_itself_is_only_suspected() {
        assert_eq!(two(" wait=limited").found(), suspected("/b /a"));
        let look = two("");
        let (first, second) = (look.taken(Duration::ZERO), look.taken(BETWEEN_LOOKS));
        let too_soon = look.taken(BETWEEN_LOOKS - Duration::from_millis(1));
        fn is_certain(later: &Waits, earlier: Option<&Waits>) -> bool {
            later.deadlocks(earlier)[0].is_certain
        }
        assert!(is_certain(&second, Some(&first)));
        assert!(!is_certain(&second, None) && !is_certain(&too_soon, Some(&first)));
        // In the first look one of them waited under another node: only that is not certain. Or it held, or
        // was not there: nothing has lasted.
        let before = |change: fn(&mut Look)| {
            let mut look = Look { begun: look.begun, ..two("") };
            change(&mut look);
            second.deadlocks(Some(&look.taken(Duration::ZERO)))
        };
        let found =
            before(|look| look.contenders[2].3 = "under=/root/c/lock-0000000001".to_owned());
        assert!(!found[0].is_certain);
        assert_eq!(before(|look| look.contenders[2].2 = true), []);
        assert_eq!(before(|look| drop(look.contenders.remove(2))), []);
    }

    #[test]
    fn a_thread_that_waits_for_itself_is_only_suspected() {
        let look = Look::new().holds("/a/lock-0000000001", 1).waits(
            "/a/lock-0000000002",
            1,
            "under=/root/a/lock-0000000001",
        );
        assert_eq!(look.found(), suspected("/a"));
        let within = "keeps_waiting=/root/a/lock-0000000001";
        assert_eq!(
            Look::new().with("/a/lock-0000000001", 1, true, within).found(),
            suspected("/a")
        );
    }

    #[test]
    fn a_semaphore_is_in_a_deadlock_only_if_too_many_of_its_permits_are() {
        let semaphore = |second_is_stuck: bool| {
            let look = Look::new()
                .holds("/s/lease-1-of-2-0000000001", 1)
                .holds("/s/lease-1-of-2-0000000002", 2)
                .holds("/m/lock-0000000001", 3)
                .waits("/m/lock-0000000002", 1, "under=/root/s/lease-1-of-2-0000000001")
                .waits("/s/lease-1-of-2-0000000003", 3, "under=/root/m/lock-0000000001");
            match second_is_stuck {
                true => {
                    look.waits("/m/lock-0000000003", 2, "under=/root/s/lease-1-of-2-0000000002")
                }
                false => look,
            }
        };
        assert_eq!(semaphore(true).found(), certain("/s /m"));
        assert_eq!(semaphore(false).found(), []);
    }

    #[test]
    fn a_reader_waits_for_a_writer_that_waits_for_readers() {
        // The second reader waits behind the writer only because that waits for the first reader.
        let look = Look::new()
            .holds("/rw/__READ__0000000001", 1)
            .waits("/rw/__WRIT__0000000002", 2, "x=1")
            .holds("/m/lock-0000000001", 3)
            .waits("/m/lock-0000000002", 1, "under=/root/rw/__READ__0000000001")
            .waits("/rw/__READ__0000000003", 3, "under=/root/m/lock-0000000001");
        assert_eq!(look.found(), certain("/rw /m"));
        let without_writer = Look::new()
            .holds("/rw/__READ__0000000001", 1)
            .holds("/rw/__READ__0000000003", 3)
            .holds("/m/lock-0000000001", 3)
            .waits("/m/lock-0000000002", 1, "under=/root/rw/__READ__0000000001");
        assert_eq!(without_writer.found(), []);
    }

    #[test]
    fn threads_that_wait_within_their_process_are_named_on_the_node_that_is_there() {
        let within =
            |one: &str, other: &str| {
                Look::new()
                    .with("/a/lock-0000000001", 1, true, &format!("keeps_waiting={one}"))
                    .with("/b/lock-0000000001", 1, true, &format!("keeps_waiting={other}"))
            };
        let (a, b) = ("/root/a/lock-0000000001", "/root/b/lock-0000000001");
        assert_eq!(within(b, a).found(), certain("/b /a"));
        assert_eq!(within(b, "/root/c/lock-0000000009").found(), []);
        // What was not told again may have ended.
        assert_eq!(Look { is_retold: false, ..within(b, a) }.found(), suspected("/b /a"));
        // Behind a thread that itself waits.
        let behind = Look::new()
            .holds("/z/lock-0000000001", 1)
            .holds("/y/lock-0000000001", 2)
            .waits("/y/lock-0000000002", 1, "keeps_waiting=/root/z/lock-0000000001")
            .waits("/z/lock-0000000002", 2, "under=/root/y/lock-0000000001");
        assert_eq!(behind.found(), certain("/z /y"));
    }

    #[test]
    fn twenty_thousand_contenders_are_judged_at_once() {
        // A chain in which each link goes on only when the next one does.
        let mut chain = Look::new();
        for one in 0..5_000 {
            chain = chain.holds(&format!("/l{one:05}/lock-0000000001"), 2 * one);
            let under = format!("under=/root/l{one:05}/lock-0000000001");
            let next = format!("/l{:05}/lock-0000000002", one + 1);
            chain = chain.waits(&next, 2 * one, &under);
        }
        // And a session of many that tell nothing.
        for one in 0..10_000 {
            chain = chain.with(&format!("/m{one:05}/lock-0000000001"), 1, one % 2 == 0, "");
        }
        assert_eq!(chain.found(), []);
    }

    #[test]
    fn contenders_that_tell_nothing_are_joined_by_their_session_and_only_suspected() {
        let foreign = |waiters_session| {
            Look::new()
                .with("/a/lock-0000000001", 1, true, "")
                .holds("/b/lock-0000000001", 2)
                .with("/b/lock-0000000002", waiters_session, false, "")
                .waits("/a/lock-0000000002", 2, "under=/root/b/lock-0000000001")
                .found()
        };
        assert_eq!(foreign(1), suspected("/b /a"));
        assert_eq!(foreign(9), []);
    }
}
