//! Checks locks with patience against the servers' own history of their nodes, by a rule of its own: that nobody contends
//! past an earlier one whose place is before its own; that nobody is passed by more later ones than its patience; that
//! of each worse patience at most one contends ahead of a better one; that only holders with more patience than none are
//! asked to release; and that who says that it holds was the first at the servers. The last also tells that these locks
//! and those of other clients exclude each other.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::check::{Claim, claims, taken};
use super::history::{MILLISECOND, Nanos};
use super::model::{Change, Happened, Run};
use super::work::{DOWNGRADE, INSISTS, PATIENT, room};
use super::worker::BASE;

/// Times in the servers' logs are whole milliseconds of a clock that is adjusted now and then.
const BLUR: Nanos = 5 * MILLISECOND;

/// What the check has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Calls that were the first, by their patience; `None`: of locks without patience, and of other clients.
    pub(crate) granted: BTreeMap<Option<i64>, usize>,
    /// How often one was passed by a later one, in all and at most, by its patience.
    pub(crate) passed: BTreeMap<i64, (u32, u32)>,
    /// How often a holder was asked to release.
    pub(crate) asked: usize,
    /// Claims that were compared with the servers' history.
    pub(crate) claims: usize,
}

/// A place in a room, as its node's name and data tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// The transaction that made it: numbers begin anew when the room was empty.
    made: i64,
    number: i64,
    patience: i64,
    reads: bool,
    call: String,
}

/// A contender for a lock.
#[derive(Debug)]
struct Contender {
    path: String,
    /// Its number, and the transaction that made it: a reader that was a writer has that one's number.
    order: (i64, i64),
    reads: bool,
    call: String,
    place: Option<Place>,
}

/// One lock at the servers, and its room.
#[derive(Debug, Default)]
struct Lock {
    room: HashMap<String, Place>,
    contenders: Vec<Contender>,
    /// The calls that were the first.
    granted: BTreeSet<String>,
    /// How often each member of the room was passed.
    passed: HashMap<String, u32>,
}

/// What the servers' history tells of a contender.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    is_granted: bool,
    /// When it was the first but for nodes of its own process: a session does not wait for what it deletes itself.
    first: Option<Nanos>,
    gone: Option<Nanos>,
}

impl Place {
    fn read(made: i64, path: &str, call: &str) -> Option<Place> {
        let (patience, kind) = path.split_once("-patience-")?.1.split_once('-')?;
        Some(Place {
            made,
            number: number(path)?,
            patience: patience.parse().ok()?,
            reads: kind.contains("READ"),
            call: call.to_owned(),
        })
    }

    fn key(&self) -> (i64, i64) {
        (self.number + self.patience, self.number)
    }

    fn excludes(&self, other: &Place) -> bool {
        !(self.reads && other.reads)
    }

    /// Calls of one process know of each other's ends before the servers do.
    fn is_of_same_process(&self, other: &Place) -> bool {
        process(&self.call) == process(&other.call)
    }
}

/// The number at the end of a node's name.
fn number(path: &str) -> Option<i64> {
    path.get(path.len().checked_sub(10)?..)?.parse().ok()
}

/// The process of a call: `1.0` of `1.0.3/27/lock`.
fn process(call: &str) -> &str {
    call.rsplit_once('.').map_or(call, |(front, _)| front)
}

/// What is wrong, and when that was seen.
pub(crate) fn wrongs(run: &Run) -> (Vec<(Nanos, String)>, Seen) {
    let (mut wrongs, mut seen) = (Vec::new(), Seen::default());
    let mut turns: HashMap<String, Turn> = HashMap::new();
    for name in PATIENT {
        let (lock, room) = (format!("{BASE}/{name}/"), format!("{BASE}/{}/", room(name)));
        let mut state = Lock::default();
        for change in &run.changes {
            if change.path.starts_with(&room) {
                state.room_changes(change, &mut wrongs);
            } else if change.path.starts_with(&lock) {
                if matches!(change.what, Happened::Asked) {
                    seen.asked += 1;
                    let what = state.asked(&change.path);
                    wrongs.extend(what.map(|what| (change.at, what)));
                    continue;
                }
                state.lock_changes(change, &mut wrongs);
                state.grant(change.at, &mut turns, &mut wrongs, &mut seen);
                if matches!(change.what, Happened::Deleted) {
                    turns.entry(change.path.clone()).or_default().gone = Some(change.at);
                }
            }
        }
    }
    let of_these = |claim: &&Claim<'_>| PATIENT.contains(&claim.lock);
    for claim in claims(run).values().flatten().filter(of_these) {
        seen.claims += 1;
        if let Some(wrong) = unfounded(run, claim, turns.get(claim.path)) {
            wrongs.push((claim.span.0, wrong));
        }
    }
    (wrongs, seen)
}

/// Why a claim does not fit the servers' history.
fn unfounded(run: &Run, claim: &Claim<'_>, turn: Option<&Turn>) -> Option<String> {
    let (who, path) = (claim.attempt.who, claim.path);
    let Turn { first, gone, .. } = turn.copied().unwrap_or_default();
    let is_early = first.is_none_or(|first| first > claim.span.0 + BLUR);
    if is_early && claim.attempt.how != DOWNGRADE {
        return Some(format!("{who} holds by {path}, which is not the first then: {first:?}"));
    }
    let gone = gone?;
    let excuse = taken(run, claim).any(|(from, to)| from <= gone + BLUR && claim.span.1 <= to);
    (claim.span.1 > gone + BLUR && !excuse).then(|| {
        let longer = (claim.span.1 - gone) / MILLISECOND;
        format!("{who} claims to hold by {path} for {longer} ms after that is gone")
    })
}

impl Lock {
    fn room_changes(&mut self, change: &Change, wrongs: &mut Vec<(Nanos, String)>) {
        match &change.what {
            Happened::Created(call) => {
                let place = Place::read(change.number, &change.path, call);
                self.room.extend(place.map(|place| (change.path.clone(), place)));
            }
            Happened::Deleted => drop(self.room.remove(&change.path)),
            Happened::Asked => {
                wrongs.push((change.at, format!("{} was asked to release", change.path)));
            }
        }
    }

    fn lock_changes(&mut self, change: &Change, wrongs: &mut Vec<(Nanos, String)>) {
        let Happened::Created(call) = &change.what else {
            self.contenders.retain(|one| one.path != change.path);
            return;
        };
        let Some(number) = number(&change.path) else { return };
        // After a lost session a call has two places for a while.
        let places = self.room.values().filter(|place| place.call == *call);
        let place = places.max_by_key(|place| place.made).cloned();
        if let Some(place) = &place {
            let what = self.contends(place).map(|what| format!("{} contends {what}", change.path));
            wrongs.extend(what.map(|what| (change.at, what)));
        }
        self.contenders.push(Contender {
            path: change.path.clone(),
            order: (number, change.number),
            reads: change.path.contains("READ"),
            call: call.clone(),
            place,
        });
        self.contenders.sort_by_key(|one| one.order);
    }

    /// What is wrong about it that this contender is asked to release. All that ask have a patience of 0.
    fn asked(&self, path: &str) -> Option<String> {
        let one = self.contenders.iter().find(|one| one.path == path)?;
        // A writer that becomes a reader has two nodes of one number for a while.
        let mut ahead = self.contenders.iter().filter(|ahead| ahead.order.0 < one.order.0);
        if !ahead.all(|ahead| ahead.reads && one.reads) {
            return Some(format!("{path} was asked to release, but waits"));
        }
        // A writer that became a reader has left the room.
        let may_be = match &one.place {
            Some(place) => place.patience > 0,
            None => one.reads,
        };
        (!may_be).then(|| format!("{path} was asked to release, by one that is not more urgent"))
    }

    /// What is wrong about it that this one begins to contend.
    fn contends(&self, place: &Place) -> Option<String> {
        let is_passed = |one: &&Place| {
            one.made < place.made
                && one.key() < place.key()
                && one.excludes(place)
                && !one.is_of_same_process(place)
        };
        if let Some(passed) = self.room.values().find(is_passed) {
            return Some(format!("from {place:?} past {passed:?}"));
        }
        let mut worse = BTreeSet::new();
        // The first one holds.
        for ahead in self.contenders.iter().skip(1).filter_map(|one| one.place.as_ref()) {
            let waits = !ahead.reads && self.room.values().any(|one| one == ahead);
            let is_worse = ahead.patience > place.patience && ahead.key() > place.key();
            if waits && is_worse && !worse.insert(ahead.patience) {
                return Some(format!("from {place:?} behind two that are worse, also {ahead:?}"));
            }
        }
        None
    }

    /// Notes who is the first now, and whom it has passed.
    fn grant(
        &mut self,
        at: Nanos,
        turns: &mut HashMap<String, Turn>,
        wrongs: &mut Vec<(Nanos, String)>,
        seen: &mut Seen,
    ) {
        for (place, one) in self.contenders.iter().enumerate() {
            let goes_with = |ahead: &Contender| {
                ahead.reads && one.reads || process(&ahead.call) == process(&one.call)
            };
            if self.contenders[..place].iter().all(goes_with) {
                turns.entry(one.path.clone()).or_default().first.get_or_insert(at);
            }
        }
        let readers = self.contenders.iter().take_while(|one| one.reads).count();
        for one in self.contenders.iter().take(readers.max(1)) {
            let turn = turns.entry(one.path.clone()).or_default();
            if std::mem::replace(&mut turn.is_granted, true) {
                continue;
            }
            *seen.granted.entry(one.place.as_ref().map(|place| place.patience)).or_default() += 1;
            let Some(place) = &one.place else { continue };
            if !self.granted.insert(one.call.clone()) {
                continue;
            }
            for passed in self.room.values().filter(|passed| {
                passed.made < place.made
                    && passed.excludes(place)
                    && passed.call.ends_with(INSISTS)
                    && !self.granted.contains(&passed.call)
                    && !passed.is_of_same_process(place)
            }) {
                let times = self.passed.entry(format!("{passed:?}")).or_default();
                *times += 1;
                let of_all = seen.passed.entry(passed.patience).or_default();
                *of_all = (of_all.0 + 1, of_all.1.max(*times));
                if i64::from(*times) > passed.patience {
                    wrongs.push((at, format!("{passed:?} was passed by {times}, also {place:?}")));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Who;
    use crate::model::{Attempt, Hold, Outcome, Share};

    /// The servers' history: each line one transaction, a millisecond after the one before. `+room 5 4 0.0.1/1/lock` is a
    /// place of number 5 and patience 4, `+lock 7 0.0.1/1/lock` a contender of number 7; with `-`, they are deleted,
    /// with `?` asked.
    fn run(text: &str) -> Run {
        let room = |number: &str, patience: &str| {
            format!("{BASE}/{}/x-patience-{patience}-lock-{number:0>10}", room(PATIENT[0]))
        };
        let lock = |number: &str| format!("{BASE}/{}/x-lock-{number:0>10}", PATIENT[0]);
        let change = |(index, line): (usize, &str)| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (path, what) = match words[..] {
                ["+room", number, patience, call] => {
                    (room(number, patience), Happened::Created(call.to_owned()))
                }
                ["-room", number, patience] => (room(number, patience), Happened::Deleted),
                ["+lock", number, call] => (lock(number), Happened::Created(call.to_owned())),
                ["-lock", number] => (lock(number), Happened::Deleted),
                ["?lock", number] => (lock(number), Happened::Asked),
                _ => panic!("{line:?}"),
            };
            Change { at: index as Nanos * MILLISECOND, number: index as i64, path, what }
        };
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Run { changes: lines.enumerate().map(change).collect(), ..Run::default() }
    }

    fn wrong(run: &Run) -> String {
        wrongs(run).0.into_iter().map(|(_, what)| what + "\n").collect()
    }

    /// One holds, and two wait: the later one has less patience.
    const BEGIN: &str = "
        +room 1 4 0.0.0/1/lock
        +lock 1 0.0.0/1/lock
        -room 1 4
        +room 2 4 1.0.0/1/lock
        +lock 2 1.0.0/1/lock
        +room 3 4 2.0.0/1/lock
        +room 4 0 3.0.0/1/lock";

    #[test]
    fn a_better_one_that_comes_before_those_who_do_not_contend_is_right() {
        let good = format!(
            "{BEGIN}
            +lock 3 3.0.0/1/lock
            -lock 1
            -room 2 4
            -lock 2
            -room 4 0
            -lock 3
            +lock 4 2.0.0/1/lock"
        );
        let run = run(&good);
        assert_eq!(wrong(&run), "");
        let seen = wrongs(&run).1;
        assert_eq!(seen.granted, BTreeMap::from([(Some(0), 1), (Some(4), 3)]));
        assert_eq!(seen.passed, BTreeMap::from([(4, (1, 1))]));
    }

    #[test]
    fn who_contends_past_an_earlier_one_whose_place_is_before() {
        let by = |call: &str| {
            let of_other = "+room 1 4 0.0.0/1/lock";
            wrong(&run(&format!("{of_other}\n+room 2 4 {call}/1/lock\n+lock 1 {call}/1/lock")))
        };
        assert!(by("1.0.0").contains("contends from"));
        // A call of the same process may know that the other one leaves.
        assert_eq!(by("0.0.1"), "");
    }

    #[test]
    fn who_is_passed_by_more_than_its_patience() {
        let mut text = "+room 1 1 0.0.0/1/lock".to_owned();
        for (number, passes) in [(2, false), (3, true)] {
            text += &format!(
                "\n+room {number} 0 {number}.0.0/1/lock\n+lock {number} {number}.0.0/1/lock
                -room {number} 0\n-lock {number}"
            );
            assert_eq!(wrong(&run(&text)).contains("was passed by 2"), passes, "{text}");
        }
    }

    #[test]
    fn two_of_the_same_that_contend_ahead_of_a_better_one() {
        let two = format!("{BEGIN}\n+lock 3 2.0.0/1/lock\n+lock 4 3.0.0/1/lock");
        assert!(wrong(&run(&two)).contains("behind two that are worse"), "{}", wrong(&run(&two)));
    }

    #[test]
    fn who_is_asked_though_it_waits_or_is_not_worse() {
        let asked = |last: &str| wrong(&run(&format!("{BEGIN}\n+lock 3 3.0.0/1/lock\n{last}")));
        assert_eq!(asked("?lock 1"), "");
        assert!(asked("?lock 2").contains("but waits"));
        assert!(asked("-lock 1\n-lock 2\n?lock 3").contains("not more urgent"));
        let plain = wrong(&run("+lock 1 0.0.0/1/lock\n?lock 1"));
        assert!(plain.contains("not more urgent"), "{plain}");
    }

    #[test]
    fn who_says_that_it_holds_must_be_the_first_at_that_time() {
        let claimed = |number: &str, from: Nanos, to: Nanos| {
            let text = "+lock 1 0.0.0/1/lock\n+lock 2 1.0.0/1/lock\n+lock 3 0.0.1/1/lock";
            let later = "\n-lock 9".repeat(97);
            let behind = "\n-lock 3\n+lock 5 1.0.1/2/lock";
            let mut run = run(&format!("{text}{later}\n-lock 1{behind}"));
            let [from, to] = [from, to].map(|at| at * MILLISECOND);
            run.attempts.push(Attempt {
                who: Who { slot: 0, generation: 0, thread: 0 },
                lock: PATIENT[0].to_owned(),
                share: Share::Alone,
                how: "lock".to_owned(),
                limit: None,
                want: 0,
                done: Some(from),
                outcome: Outcome::Held(Box::new(Hold {
                    token: format!("{number:0>16}-00000000").parse().unwrap(),
                    path: format!("{BASE}/{}/x-lock-{number:0>10}", PATIENT[0]),
                    others: Vec::new(),
                    session: 1,
                    got: from,
                    claimed: Some(to),
                    unheld: None,
                    lost: None,
                    refused: Vec::new(),
                    ensured: Vec::new(),
                    release: None,
                    released: None,
                })),
            });
            wrong(&run)
        };
        assert_eq!(claimed("1", 3, 99), "");
        assert!(claimed("1", 3, 150).contains("for 50 ms after that is gone"));
        assert!(claimed("2", 50, 60).contains("which is not the first then"));
        assert_eq!(claimed("2", 101, 200), "");
        assert!(claimed("3", 50, 60).contains("which is not the first then"));
        // A session does not wait for what it deletes itself.
        assert_eq!(claimed("5", 104, 200), "");
        assert!(claimed("4", 3, 4).contains("which is not the first then"));
    }
}
