//! Finds violations in a run.

use std::collections::HashMap;

use zklock::{FencingToken, LossReason};

use super::growth::Growth;
use super::history::{MILLISECOND, Nanos, SECOND, Who, seconds, word as word_of};
use super::linear::{self, Judged};
use super::model::{Attempt, Deed, Hold, Outcome, Run, Share, Span, common};
use super::options::Locks;
use super::order;
use super::recipe_check;
use super::unexplained_losses;
use super::work::DOWNGRADE;

/// How long a guard may still claim to hold after the latest moment at which it must know of its
/// loss: the server rounds up to a tick, and the machine is busy.
const MARGIN: Nanos = SECOND;
/// How long a lock may be free while a thread waits and nothing is broken, besides a session
/// timeout, which is how long an orphaned node may stay. In any case no longer than two session timeouts
/// and [`MARGIN`], within which the nodes of requests are found that were carried out late.
const FREE: Nanos = 3 * SECOND;
/// How late a call with a limit may return, besides the time in which its process got no processor.
/// The library promises 50 ms; the machine is busy.
const LATE: Nanos = 250 * MILLISECOND;
/// How much longer a cancelled call may take, to delete its node.
const PARTING: Nanos = 500 * MILLISECOND;
/// The result of the checks.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<String>,
    /// How many claims overlapped because the nemesis had deleted a holder's node.
    pub(crate) excused: usize,
    /// The longest of these overlaps.
    pub(crate) longest_excused: Nanos,
    /// The longest time that a lock was free while a thread waited and nothing was broken.
    pub(crate) longest_free: Nanos,
    /// The longest time by which a call with a limit returned late.
    pub(crate) latest: Nanos,
    pub(crate) growth: Option<Growth>,
    /// How many histories fit an order.
    pub(crate) judged: Judged,
    /// What was seen of locks with patience, if the workers used those.
    pub(crate) order: Option<order::Seen>,
}

pub(crate) fn check(run: &Run) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.violations.extend(run.errors.iter().cloned());
    verdict.violations.extend(run.strays.iter().cloned());
    verdict.violations.extend(run.left.iter().map(|what| format!("left behind: {what}")));
    verdict.exclusion(run);
    verdict.register(run);
    verdict.free(run);
    verdict.outcomes(run);
    for (at, what) in
        unexplained_losses::unfounded(run).into_iter().chain(recipe_check::wrongs(run))
    {
        verdict.violation(run, at, what);
    }
    let (unordered, judged) = linear::judge(run);
    verdict.judged = judged;
    for (at, what) in unordered {
        verdict.violation(run, at, what);
    }
    if Locks::of(run) != Locks::All {
        let (wrongs, seen) = order::wrongs(run);
        verdict.order = Some(seen);
        wrongs.into_iter().for_each(|(at, what)| verdict.violation(run, at, what));
    }
    verdict.completeness(run);
    verdict.growth = Growth::of(run);
    if let Some(growth) = verdict.growth.filter(|growth| growth.judged && !growth.is_flat()) {
        verdict.violations.push(format!("a worker that was never killed grew: {growth:?}"));
    }
    if run.setting("plan") == "rolling" {
        verdict.nothing_lost(run);
    }
    verdict
}

/// A time in which a guard claimed to hold a lock.
pub(crate) struct Claim<'a> {
    pub(crate) span: Span,
    pub(crate) lock: &'a str,
    token: FencingToken,
    pub(crate) path: &'a str,
    pub(crate) attempt: &'a Attempt,
    hold: &'a Hold,
}

impl Verdict {
    fn violation(&mut self, run: &Run, at: Nanos, what: String) {
        self.violations.push(format!("at {:.3} s: {what}", seconds(at.saturating_sub(run.start))));
    }

    /// Claims of one lock overlap only as its rule allows, and tokens grow from claim to claim.
    fn exclusion(&mut self, run: &Run) {
        for claims in claims(run).into_values() {
            self.permits(run, &claims);
            let mut active: Vec<&Claim<'_>> = Vec::new();
            // The highest token of all claims, and of the claims that exclude all others.
            let mut highest: [Option<&Claim<'_>>; 2] = [None; 2];
            for claim in &claims {
                let share = claim.attempt.share;
                active.retain(|earlier| earlier.span.1 > claim.span.0);
                for earlier in &active {
                    if share.goes_with(earlier.attempt.share) {
                        continue;
                    }
                    let overlap = (claim.span.0, earlier.span.1.min(claim.span.1));
                    // The newer contender may get the lock once the older one's node is gone.
                    let older = if earlier.token < claim.token { earlier } else { claim };
                    let excused = excused(run, older, overlap);
                    if excused > 0 {
                        self.excused += 1;
                        self.longest_excused = self.longest_excused.max(excused);
                    }
                    let without_need = overlap.1 - overlap.0 - excused;
                    if without_need > 0 {
                        let what = format!(
                            "two holders of {} for {:.3} ms: {} ({}) and {} ({})",
                            claim.lock,
                            without_need as f64 / MILLISECOND as f64,
                            earlier.attempt.who,
                            earlier.token,
                            claim.attempt.who,
                            claim.token
                        );
                        self.violation(run, claim.span.0, what);
                    }
                }
                // Readers may be granted in any order, and a downgraded writer keeps its token.
                let below = match share {
                    Share::Alone => highest[0],
                    Share::Read => highest[1].filter(|before| !is_downgraded(claim, before)),
                    Share::Permits { .. } => None,
                };
                if let Some(before) = below.filter(|before| {
                    before.token >= claim.token && !was_taken(run, claim, before.span.0)
                }) {
                    let what = format!(
                        "tokens do not grow: {} of {} comes after {} of {}",
                        claim.token, claim.attempt.who, before.token, before.attempt.who
                    );
                    self.violation(run, claim.span.0, what);
                }
                let kinds = if share == Share::Alone { 2 } else { 1 };
                for highest in highest.iter_mut().take(kinds) {
                    if highest.is_none_or(|before| before.token < claim.token) {
                        *highest = Some(claim);
                    }
                }
                self.outlived(run, claim);
                active.push(claim);
            }
        }
    }

    /// At most as many permits are held as the semaphore has.
    fn permits(&mut self, run: &Run, claims: &[Claim<'_>]) {
        let mut changes = Vec::new();
        let mut most = 0;
        for claim in claims {
            let Share::Permits { weight, of } = claim.attempt.share else { continue };
            // From `taken` on, its node may be gone.
            let taken = taken(run, claim).map(|(from, _)| from).min();
            let end = taken.map_or(claim.span.1, |taken| taken.min(claim.span.1));
            let weight = i64::try_from(weight).unwrap_or(i64::MAX);
            most = i64::try_from(of).unwrap_or(i64::MAX);
            if end > claim.span.0 {
                changes.extend([(claim.span.0, weight, claim.lock), (end, -weight, claim.lock)]);
            }
        }
        // At the same moment, releases come before acquisitions.
        changes.sort_unstable();
        let mut held = 0;
        for (at, weight, lock) in changes {
            held += weight;
            if weight > 0 && held > most {
                self.violation(run, at, format!("{held} of {most} permits of {lock} are held"));
            }
        }
    }

    /// A guard whose node is gone knows it by the end of its lease.
    fn outlived(&mut self, run: &Run, claim: &Claim<'_>) {
        let gone = [run.deleted.get(claim.path), run.closed.get(&claim.hold.session)];
        let gone = gone.into_iter().flatten().filter_map(|(_, confirmed)| *confirmed).min();
        if let Some(gone) = gone
            && claim.span.1 > gone + run.session_timeout() + MARGIN
        {
            let what = format!(
                "{} held on for {:.1} s after its node was deleted",
                claim.attempt.who,
                seconds(claim.span.1 - gone)
            );
            self.violation(run, claim.span.1, what);
        }
    }

    /// The register accepted no older token after a newer one, and refused no holder.
    fn register(&mut self, run: &Run) {
        let mut highest: HashMap<&str, FencingToken> = HashMap::new();
        for decision in &run.register {
            let before = highest.get(decision.lock.as_str()).copied();
            let stale = before.is_some_and(|before| decision.token < before);
            if decision.accepted && stale {
                let what = format!("the register accepted {} after a newer one", decision.token);
                self.violation(run, decision.at, what);
            } else if !decision.accepted && !stale {
                let what = format!("the register refused {}, which was not stale", decision.token);
                self.violation(run, decision.at, what);
            }
            if !stale {
                highest.insert(&decision.lock, decision.token);
            }
        }
        for (attempt, hold) in run.holds() {
            let claims = of_hold(attempt, hold, (hold.got, hold.claimed.unwrap_or(0)));
            for refused in hold.refused.iter().filter(|refused| **refused < claims[0].span.1) {
                if !claims.iter().any(|claim| was_taken(run, claim, *refused)) {
                    let what = format!("{} held the lock, and its write was refused", attempt.who);
                    self.violation(run, *refused, what);
                }
            }
        }
    }

    /// No lock is free for long while a thread waits for it and nothing is broken.
    fn free(&mut self, run: &Run) {
        let mut changes: HashMap<&str, Vec<(Nanos, i32, i32)>> = HashMap::new();
        for attempt in &run.attempts {
            let killed = run.killed.get(&(attempt.who.slot, attempt.who.generation)).copied();
            let over = killed.unwrap_or(run.end);
            let changes = changes.entry(&attempt.lock).or_default();
            if attempt.how != "try_lock" {
                changes.push((attempt.want, 0, 1));
                changes.push((attempt.done.unwrap_or(over), 0, -1));
            }
            if let Some(hold) = attempt.hold() {
                changes.push((hold.got, 1, 0));
                changes.push((hold.end().unwrap_or(over).max(hold.got), -1, 0));
            }
        }
        let limit = (run.session_timeout() + FREE).min(2 * run.session_timeout() + MARGIN);
        for (lock, mut changes) in changes {
            changes.sort_unstable();
            let (mut holders, mut waiters, mut last, mut free) = (0, 0, run.start, Vec::new());
            for (at, holder, waiter) in changes {
                if holders == 0 && waiters > 0 && at > last {
                    free.push((last, at));
                }
                if holders > 0 || holder > 0 {
                    self.judge_free(run, lock, limit, &std::mem::take(&mut free));
                }
                (holders, waiters, last) = (holders + holder, waiters + waiter, at);
            }
            self.judge_free(run, lock, limit, &free);
        }
    }

    /// `free`: the times between one holder and the next in which the lock was free and a thread
    /// waited.
    fn judge_free(&mut self, run: &Run, lock: &str, limit: Nanos, free: &[Span]) {
        let (Some(first), Some(last)) = (free.first(), free.last()) else { return };
        let between = run.healthy.partition_point(|healthy| healthy.1 <= first.0);
        for healthy in run.healthy[between..].iter().take_while(|healthy| healthy.0 < last.1) {
            let time: Nanos = free.iter().map(|free| common(*free, *healthy)).sum();
            self.longest_free = self.longest_free.max(time);
            if time > limit {
                let shown = shown(run, lock, (first.0, last.1));
                let what =
                    format!("{lock} was free for {:.1} s with waiters{shown}", seconds(time));
                self.violation(run, healthy.0.max(first.0), what);
            }
        }
    }

    /// No call fails without a cause, and limits are kept.
    fn outcomes(&mut self, run: &Run) {
        for attempt in &run.attempts {
            if let Outcome::Failed { kind, message } = &attempt.outcome
                && !(kind == "Connect" && may_be_unanswered(run, attempt))
            {
                let what = format!("{} of {} failed: {kind}: {message}", attempt.how, attempt.who);
                self.violation(run, attempt.want, what);
            }
            if let Some(hold) = attempt.hold() {
                self.release(run, attempt, hold);
            }
            if let Some((limit, done)) = attempt.limit.zip(attempt.done) {
                // One for the node that was waiting, and one for those that held already.
                let partings = 1 + u64::from(attempt.lock.contains('+'));
                let parting = if attempt.how == "lock_within" { PARTING * partings } else { 0 };
                let span = (attempt.want, done);
                self.limit(run, attempt.who, &attempt.how, (limit, parting), span);
            }
        }
        for deed in &run.deeds {
            if let Deed { who, limit, begun, done: Some(done), .. } = *deed {
                let what = format!("{} {}", deed.recipe, deed.deed);
                self.limit(run, who, &what, (limit, 0), (begun, done));
            }
        }
    }

    /// A call keeps its limit. `limit`: the limit itself, and what the call may take besides.
    fn limit(&mut self, run: &Run, who: Who, call: &str, limit: (Nanos, Nanos), span: Span) {
        let slot = who.slot;
        if run.stops.iter().any(|(stopped, stop)| *stopped == slot && common(*stop, span) > 0) {
            return;
        }
        let starved = run.starved.get(&(slot, who.generation));
        let starved: Nanos =
            starved.into_iter().flatten().map(|starved| common(*starved, span)).sum();
        let late = (span.1 - span.0).saturating_sub(limit.0 + limit.1 + starved);
        self.latest = self.latest.max(late);
        if late > LATE {
            let what = format!(
                "{call} of {who} with a limit of {:.3} s returned {:.3} s too late",
                seconds(limit.0),
                seconds(late)
            );
            self.violation(run, span.0, what);
        }
    }

    /// A guard reports a loss only if there was one.
    fn release(&mut self, run: &Run, attempt: &Attempt, hold: &Hold) {
        let lost = hold.lost.iter().map(|(_, reason)| reason.as_str());
        let said = hold.released.iter().map(|(_, outcome)| outcome.as_str());
        let ensured = hold.ensured.iter().map(|(_, outcome)| outcome.as_str());
        for word in lost.chain(said).chain(ensured) {
            let is = |reason: LossReason| word == word_of(reason);
            let fine = match word {
                "ok" | "SessionLost" => true,
                _ if is(LossReason::SessionExpired) || is(LossReason::LeaseExpired) => true,
                // Its session may have ended after it was asked for, and before it was looked for.
                "NodeDeleted" => hold.was_taken(run),
                _ => is(LossReason::NodeDeleted) && hold.was_taken(run),
            };
            if !fine {
                let what = format!("{} of {} was told {word}", attempt.who, hold.path);
                self.violation(run, hold.got, what);
            }
        }
    }

    /// Every worker that was not killed finished: no waiter is stuck, every guard was released.
    fn completeness(&mut self, run: &Run) {
        match run.setting("workers").parse() {
            Ok(workers) => {
                for (slot, generation) in run.started(workers).difference(&run.processes) {
                    let what = format!("the history of worker {slot}.{generation} is missing");
                    self.violations.push(what);
                }
            }
            Err(_) => self.violations.push("run.txt has no number of workers".to_owned()),
        }
        for process in &run.processes {
            if !run.ended.contains(process) && !run.killed.contains_key(process) {
                let what = format!("the history of worker {}.{} has no end", process.0, process.1);
                self.violations.push(what);
            }
        }
        let last: HashMap<_, _> =
            run.attempts.iter().map(|attempt| (attempt.who, attempt.want)).collect();
        for attempt in &run.attempts {
            let process = (attempt.who.slot, attempt.who.generation);
            if run.killed.contains_key(&process) && last[&attempt.who] == attempt.want {
                continue;
            }
            if attempt.done.is_none() {
                let what = format!("{} is stuck in {}", attempt.who, attempt.how);
                self.violation(run, attempt.want, what);
            }
            if attempt.hold().is_some_and(|hold| hold.released.is_none()) {
                let what = format!("{} never released {}", attempt.who, attempt.lock);
                self.violation(run, attempt.want, what);
            }
        }
        if run.ending.is_none() {
            self.violations.push("the history of the nemesis has no end".to_owned());
        }
        if run.holds().next().is_none() {
            self.violations.push("no worker ever held a lock: the run proves nothing".to_owned());
        }
    }

    /// No session and no lock is lost, as is required when servers restart one after another.
    fn nothing_lost(&mut self, run: &Run) {
        for (at, who, client, state) in &run.states {
            if state == "lost" {
                let what = format!("client {client} of {who} lost its session");
                self.violation(run, *at, what);
            }
        }
        for (attempt, hold) in run.holds() {
            if let Some(at) = hold.lost.as_ref().map(|(at, _)| *at).or(hold.unheld) {
                let what = format!("{} lost its lock", attempt.who);
                self.violation(run, at, what);
            }
        }
    }
}

/// What the servers showed of the lock in that time, in words.
fn shown(run: &Run, lock: &str, span: Span) -> String {
    let is_of = |name: &str| lock.split('+').any(|one| one == name);
    let views = run.views.iter().filter(|view| is_of(&view.lock) && common(view.span, span) > 0);
    let at = |at: Nanos| seconds(at.saturating_sub(run.start));
    let words = views.map(|view| {
        format!(
            "; {} showed {} of session {} as the first of {} from {:.1} to {:.1} s",
            view.server,
            view.first,
            view.owner,
            view.count,
            at(view.span.0),
            at(view.span.1)
        )
    });
    words.collect()
}

/// The claims of each lock, in the order in which they begin.
pub(crate) fn claims(run: &Run) -> HashMap<&str, Vec<Claim<'_>>> {
    let mut claims: HashMap<&str, Vec<Claim<'_>>> = HashMap::new();
    for (attempt, hold) in run.holds() {
        if let Some(until) = hold.claimed.filter(|until| *until >= hold.got) {
            for claim in of_hold(attempt, hold, (hold.got, until)) {
                claims.entry(claim.lock).or_default().push(claim);
            }
        }
    }
    for claims in claims.values_mut() {
        claims.sort_by_key(|claim| claim.span);
    }
    claims
}

/// One claim for each of the locks that the guard holds.
fn of_hold<'a>(attempt: &'a Attempt, hold: &'a Hold, span: Span) -> Vec<Claim<'a>> {
    let places = attempt.lock.split('+').zip(hold.places());
    places.map(|(lock, (token, path))| Claim { span, lock, token, path, attempt, hold }).collect()
}

/// Whether the reader is the writer after a downgrade.
fn is_downgraded(reader: &Claim<'_>, writer: &Claim<'_>) -> bool {
    reader.attempt.how == DOWNGRADE
        && (reader.attempt.who, reader.token) == (writer.attempt.who, writer.token)
}

/// The times in which a claim may go on after the nemesis has, or may have, deleted its node or
/// ended its session: its holder must know by the end of its lease.
pub(crate) fn taken<'a>(run: &'a Run, claim: &Claim<'_>) -> impl Iterator<Item = Span> + 'a {
    let taken = [run.deleted.get(claim.path), run.closed.get(&claim.hold.session)];
    taken.into_iter().flatten().map(|(from, confirmed)| {
        (*from, confirmed.unwrap_or(*from) + run.session_timeout() + MARGIN)
    })
}

fn was_taken(run: &Run, claim: &Claim<'_>, at: Nanos) -> bool {
    taken(run, claim).any(|(from, to)| from <= at && at <= to)
}

/// For how much of a time the claim may go on because the nemesis took its node or session.
fn excused(run: &Run, claim: &Claim<'_>, time: Span) -> Nanos {
    taken(run, claim).map(|taken| common(taken, time)).max().unwrap_or_default()
}

/// Whether a call with a limit may have had no answer in time: something was broken, or it had
/// hardly any time.
fn may_be_unanswered(run: &Run, attempt: &Attempt) -> bool {
    let (Some(limit), Some(done)) = (attempt.limit, attempt.done) else { return false };
    limit < SECOND || !recipe_check::was_healthy(run, attempt.who, (attempt.want, done))
}
