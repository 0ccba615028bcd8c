//! Who waits for whom, and which of them wait for ever: a function of what the contenders tell.
//!
//! A waiter waits for those ahead that exclude it. A holder waits if what holds it waits: the thread, or the
//! command, that says so on its own node. So a set of contenders waits for ever if each waiter in it is excluded
//! by others in it, and each holder in it waits by another one in it. The greatest such set is what is left when
//! all that may go on are taken out, again and again.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::list_contenders::Contender;
use super::list_locks::UnlistedReason;
use super::rule::excludes;
use super::ticket::ContenderKind;
use crate::path;
use crate::session_id::SessionId;

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
    /// The nodes whose children could not be listed, or not all, and the contenders that could not be read, and
    /// why; sorted by path.
    pub unlisted: Vec<(String, UnlistedReason)>,
    /// How many requests were sent to learn all this.
    pub requests: usize,
    pub(super) chroot: String,
    pub(super) taken: Instant,
}

/// Holders that each wait for a lock which the next one holds, and the last for one of the first: see
/// [`Waits::deadlocks`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlock {
    /// The holders, and what each waits for.
    pub holders: Vec<WaitingHolder>,
    /// Whether it cannot end by itself, unless a guard was given to another thread. Otherwise it is only suspected.
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
    /// Returns which contenders wait for other locks while they hold one.
    ///
    /// Each pair has the places, in [`contenders`](Waits::contenders), of a holder, and of the contender by which
    /// it waits. If that one holds, too, it waits for it in the same process. Only what contenders tell counts:
    /// those with data of their own, and those of other libraries, tell nothing.
    pub fn edges(&self) -> Vec<(usize, usize)> {
        let graph = Graph::of(self);
        let edges = graph.waits_by.iter().enumerate();
        edges.flat_map(|(holder, by)| by.iter().map(move |place| (holder, *place))).collect()
    }

    /// Returns the deadlocks that this look shows.
    ///
    /// One is certain if an `earlier` look, taken at least three seconds before, showed the same holders and
    /// waiters, all of which tell what they wait under, and none of which waits with a limit or a
    /// [`Cancel`](crate::Cancel). What is left to doubt are guards that were given to another thread. Other cycles are
    /// suspected: in one look only, of waits that may end by themselves, or of contenders that tell nothing and have
    /// one session, such as Curator's.
    ///
    /// Each deadlock is returned once, as one of its cycles. Who waits behind it is not in it.
    pub fn deadlocks(&self, earlier: Option<&Waits>) -> Vec<Deadlock> {
        let graph = Graph::of(self);
        let seen: Option<HashSet<_>> = earlier
            .filter(|earlier| self.taken.saturating_duration_since(earlier.taken) >= BETWEEN_LOOKS)
            .map(|earlier| earlier.contenders.iter().map(same).collect());
        let is_fixed =
            |one: &Contender| seen.as_ref().is_some_and(|seen| seen.contains(&same(one)));
        let lasts = |one: &Contender| {
            is_fixed(one) && (one.holds || one.facts().is_some_and(|facts| !facts.is_limited))
        };
        let certain = graph.stuck(lasts, false);
        let mut done = vec![false; self.contenders.len()];
        let mut found = graph.cycles(&certain, false, &mut done);
        let suspected = graph.stuck(|one| one.session.is_some(), true);
        found.extend(graph.cycles(&suspected, true, &mut done));
        found
    }
}

/// What has to be the same in two looks.
fn same(one: &Contender) -> (&str, bool, Option<SessionId>, Vec<&String>) {
    let facts = one.facts();
    let named = facts.map(|facts| facts.under.iter().chain(&facts.keeps_waiting).collect());
    (&one.path, one.holds, one.session, named.unwrap_or_default())
}

struct Graph<'a> {
    all: &'a [Contender],
    locks: Vec<Range<usize>>,
    /// The place of each one's lock in `locks`.
    lock_of: Vec<usize>,
    /// By which contenders a holder waits, as those tell.
    waits_by: Vec<Vec<usize>>,
    /// The waiters of a session that tell nothing: any of its holders may wait by them.
    silent: HashMap<SessionId, Vec<usize>>,
}

impl<'a> Graph<'a> {
    fn of(waits: &'a Waits) -> Graph<'a> {
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
        let places: HashMap<&str, usize> =
            all.iter().enumerate().map(|(place, one)| (&*one.path, place)).collect();
        let place = |node: &String| {
            let shown = node.strip_prefix(&waits.chroot)?;
            places.get(shown).copied().filter(|place| all[*place].holds)
        };
        let mut waits_by = vec![Vec::new(); all.len()];
        let mut silent: HashMap<SessionId, Vec<usize>> = HashMap::new();
        for (by, one) in all.iter().enumerate() {
            match (one.facts(), one.session) {
                (Some(facts), _) => {
                    let under = if one.holds { &facts.keeps_waiting } else { &facts.under };
                    under.iter().filter_map(place).for_each(|holder| waits_by[holder].push(by));
                }
                (None, Some(session)) if !one.holds => silent.entry(session).or_default().push(by),
                (None, _) => {}
            }
        }
        Graph { all, locks, lock_of, waits_by, silent }
    }

    /// By which contenders a holder waits, or may wait.
    fn ways(&self, holder: usize, with_silent: bool) -> impl Iterator<Item = usize> {
        let session = self.all[holder].session.filter(|_| with_silent);
        let silent = session.and_then(|session| self.silent.get(&session));
        self.waits_by[holder].iter().chain(silent.into_iter().flatten()).copied()
    }

    /// Which contenders wait for ever, if those that `last` do not end by themselves.
    fn stuck(&self, lasts: impl Fn(&Contender) -> bool, with_silent: bool) -> Vec<bool> {
        let mut stuck: Vec<bool> = self.all.iter().map(lasts).collect();
        loop {
            let mut has_changed = false;
            for lock in &self.locks {
                let mut ahead = Ahead::default();
                for place in lock.clone() {
                    let one = &self.all[place];
                    if stuck[place] {
                        stuck[place] = match one.holds {
                            true => self.ways(place, with_silent).any(|by| stuck[by]),
                            false => ahead.excludes(one),
                        };
                        has_changed |= !stuck[place];
                    }
                    if stuck[place] {
                        ahead.note(one);
                    }
                }
            }
            if !has_changed {
                return stuck;
            }
        }
    }

    /// The cycles among the holders that are stuck, without those that are `done`.
    fn cycles(&self, stuck: &[bool], is_suspected: bool, done: &mut [bool]) -> Vec<Deadlock> {
        let mut found = Vec::new();
        for start in 0..self.all.len() {
            let mut walked: Vec<(usize, usize)> = Vec::new();
            let mut at = start;
            while self.all[at].holds && stuck[at] && !done[at] {
                if let Some(first) = walked.iter().position(|(holder, _)| *holder == at) {
                    let holders = walked[first..].iter();
                    let holders = holders.map(|(holder, by)| self.waiting(*holder, *by)).collect();
                    found.push(Deadlock { holders, is_certain: !is_suspected });
                    break;
                }
                let Some(by) = self.ways(at, is_suspected).find(|by| stuck[*by]) else { break };
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
            let ahead = self.locks[self.lock_of[at]].start..at;
            let excluding =
                |place: &usize| stuck[*place] && excludes(self.all[*place].kind, self.all[at].kind);
            // The first ones hold.
            at = ahead.into_iter().find(excluding)?;
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
            ContenderKind::Mutex | ContenderKind::Write => self.are_any,
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
    use crate::contend::ticket::Ticket;
    use crate::session::connection::Stat;

    /// A look at contenders, each by its node, its session, whether it holds, and its facts.
    struct Look(Vec<Contender>, Instant);

    impl Look {
        fn new() -> Look {
            Look(Vec::new(), Instant::now())
        }

        fn with(mut self, node: &str, session: i64, holds: bool, facts: &str) -> Look {
            let stat = Stat { ephemeral_owner: session, ctime: 1, ..Stat::default() };
            let ticket = Ticket::parse(path::last(node)).unwrap();
            let data =
                if facts.is_empty() { String::new() } else { format!("of {node}\nv=1 {facts}") };
            let one = Contender::new(path::parent(node), &ticket, data.into(), &stat);
            let place = self.0.iter().filter(|it| path::parent(&it.path) == path::parent(node));
            let place = place.count();
            self.0.push(one.at(place, holds));
            self
        }

        fn holds(self, node: &str, session: i64) -> Look {
            self.with(node, session, true, "x=1")
        }

        fn waits(self, node: &str, session: i64, facts: &str) -> Look {
            self.with(node, session, false, facts)
        }

        fn taken(&self, after: Duration) -> Waits {
            let mut contenders = self.0.clone();
            contenders.sort_by(|one, other| {
                (path::parent(&one.path), one.position)
                    .cmp(&(path::parent(&other.path), other.position))
            });
            Waits {
                base: "/".to_owned(),
                contenders,
                unlisted: Vec::new(),
                requests: 0,
                chroot: "/root".to_owned(),
                taken: self.1 + after,
            }
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
        assert_eq!(two("").taken(Duration::ZERO).edges(), [(0, 3), (2, 1)]);
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
        let (first, second) = (two("").taken(Duration::ZERO), two("").taken(BETWEEN_LOOKS));
        let too_soon = two("").taken(BETWEEN_LOOKS - Duration::from_millis(1));
        fn is_certain(later: &Waits, earlier: Option<&Waits>) -> bool {
            later.deadlocks(earlier)[0].is_certain
        }
        assert!(is_certain(&second, Some(&first)));
        assert!(!is_certain(&second, None) && !is_certain(&too_soon, Some(&first)));
        // In the first look one of them held, or waited under another node.
        let changes: [fn(&mut Vec<Contender>); 2] =
            [|look| look[2].holds = true, |look| drop(look.remove(2))];
        for change in changes {
            let mut look = two("");
            change(&mut look.0);
            let other = look.taken(Duration::ZERO);
            assert!(!is_certain(&second, Some(&other)));
        }
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
    fn threads_that_wait_within_their_process_are_named_on_the_node_that_is_held() {
        let within = |one: &str, other: &str| {
            Look::new()
                .with("/a/lock-0000000001", 1, true, &format!("keeps_waiting={one}"))
                .with("/b/lock-0000000001", 1, true, &format!("keeps_waiting={other}"))
                .found()
        };
        let (a, b) = ("/root/a/lock-0000000001", "/root/b/lock-0000000001");
        assert_eq!(within(b, a), certain("/b /a"));
        assert_eq!(within(b, "/root/c/lock-0000000009"), []);
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
