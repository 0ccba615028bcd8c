//! Finds violations by the recipes that are not locks. (Elections are checked as locks.)

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::{MILLISECOND, Nanos, SECOND, Who};
use super::leftovers::FINISHER;
use super::model::{Came, Deed, Run, Span};
use super::recipes::{BARRIER, COMMIT, DOUBLE, GROUP, LEASED, PRIORITY, QUEUE};
use super::unexplained_losses::was_starved;

/// How long after the end of a call with an unknown result it may still take effect, besides a
/// session timeout.
pub(crate) const AFTERMATH: Nanos = SECOND;
/// How much longer than its limit a call may take for a request that is under way. A call that
/// takes all of that has got no reply.
const GRACE: Nanos = 45 * MILLISECOND;

/// Violations, and when they happened.
pub(crate) type Wrong = Vec<(Nanos, String)>;

pub(crate) fn wrongs(run: &Run) -> Wrong {
    let mut wrong = failures(run);
    wrong.extend(group(run));
    for recipe in [QUEUE, PRIORITY, LEASED] {
        wrong.extend(queue(run, recipe));
        wrong.extend(order(run, recipe));
    }
    wrong.extend(leases(run));
    wrong.extend(barrier(run));
    wrong.extend(double(run));
    wrong.extend(commit(run));
    wrong.extend(completeness(run));
    wrong
}

fn deeds<'a>(run: &'a Run, recipe: &'a str, deed: &'a str) -> impl Iterator<Item = &'a Deed> {
    run.deeds.iter().filter(move |one| one.is(recipe, deed))
}

/// Until when a call may have taken effect.
pub(crate) fn effective(run: &Run, deed: &Deed) -> Nanos {
    let killed = run.killed.get(&(deed.who.slot, deed.who.generation)).copied();
    let end = deed.done.or(killed).unwrap_or(run.end);
    if !deed.is_unsure() {
        return end;
    }
    // Where no server runs, no session ends: its time begins anew when one does.
    let after = run.healthy.iter().filter(|span| end <= span.1).map(|span| span.0.max(end)).min();
    after.unwrap_or(run.end) + run.session_timeout() + AFTERMATH
}

/// Whether the nemesis ended a session so shortly before that its owner may not have known.
fn some_session_was_closed(run: &Run, span: Span) -> bool {
    run.closed.values().any(|(from, to)| {
        *from <= span.1 && span.0 <= to.unwrap_or(*from) + run.session_timeout() + AFTERMATH
    })
}

/// Whether nothing was broken during a call, nor shortly before.
pub(crate) fn was_healthy(run: &Run, who: Who, (begun, done): Span) -> bool {
    // Earlier faults and killed processes still have effects for that long.
    let before = begun.saturating_sub(run.session_timeout() + AFTERMATH).max(run.start);
    run.healthy.iter().any(|span| span.0 <= before && done <= span.1)
        && !was_starved(run, (who.slot, who.generation), (before, done))
}

/// Whether a call had so little time that the answer of a healthy ensemble may have come too late: a
/// consumer that has seen an item needs several answers to get it, and a look at a barrier two.
fn is_brief(deed: &Deed) -> bool {
    let recipes = ["barrier", "double", "queue", "priority", "leased"];
    deed.limit < SECOND && recipes.contains(&deed.recipe.as_str())
}

/// Calls fail only because of the network or a session, and only while something is broken.
fn failures(run: &Run) -> Wrong {
    let mut wrong = Wrong::new();
    for deed in &run.deeds {
        let (Came::Failed { kind, message }, Some(done)) = (&deed.came, deed.done) else {
            continue;
        };
        let healthy = was_healthy(run, deed.who, (deed.begun, done));
        let fine = match kind.as_str() {
            // With so little time, an answer may be missing.
            "Connect" | "ConnectionLoss" if is_brief(deed) => true,
            // The last vote may come just before the end: then the decision is under way.
            "ConnectionLoss" if deed.recipe == "commit" && deed.deed.starts_with("decide") => true,
            "Connect" | "ConnectionLoss" | "SessionLost" | "Taken" => !healthy,
            "NodeDeleted" => some_session_was_closed(run, (deed.begun, done)),
            _ => false,
        };
        if !fine {
            let Deed { who, recipe, deed: name, .. } = deed;
            wrong.push((deed.begun, format!("{recipe} {name} of {who} failed: {kind}: {message}")));
        }
    }
    wrong
}

/// Every member is seen by the others.
fn group(run: &Run) -> Wrong {
    let unseen = deeds(run, GROUP, "look").filter(|look| look.fine() == Some("unseen"));
    unseen.map(|look| (look.begun, format!("{} is a member, but was not seen", look.who))).collect()
}

/// A queue delivers only items that were offered, a taken item only once, and loses none.
fn queue(run: &Run, recipe: &str) -> Wrong {
    let mut wrong = Wrong::new();
    let offers: HashMap<&str, &Deed> = deeds(run, recipe, "offer")
        .filter_map(|offer| Some((offer.about.first()?.as_str(), offer)))
        .collect();
    let is_leased = recipe == LEASED;
    let (mut delivered, mut firmly) = (HashSet::new(), HashSet::new());
    for taken in deeds(run, recipe, if is_leased { "lease" } else { "take" }) {
        let Some(item) = taken.fine() else { continue };
        let offer = offers.get(item).filter(|offer| offer.begun <= taken.done.unwrap_or(run.end));
        // An offer that reached no server has offered nothing.
        let in_vain = |offer: &&Deed| match &offer.came {
            Came::Failed { kind, .. } => kind == "Connect",
            _ => false,
        };
        if offer.is_none_or(in_vain) {
            wrong.push((taken.begun, format!("{recipe} has {item}, which was never offered")));
        }
        delivered.insert(item);
        if taken.firm().is_some() && !firmly.insert(item) && !is_leased {
            wrong.push((taken.begun, format!("{recipe} has delivered {item} twice")));
        }
    }
    // A take without a reply may have deleted an item, and for each process one item may have come
    // after its call had ended.
    let unanswered = deeds(run, recipe, "take").filter(|take| take.is_unsure()).count();
    let takers: HashSet<(usize, usize)> =
        deeds(run, recipe, "take").map(|take| (take.who.slot, take.who.generation)).collect();
    let allowed = if is_leased { 0 } else { unanswered + takers.len() };
    let gone: HashSet<&str> = if is_leased { acknowledged(run) } else { delivered };
    let known = offers.iter().filter(|(_, offer)| offer.firm().is_some());
    let lost: Vec<_> = known.filter(|(item, _)| !gone.contains(*item)).collect();
    if lost.len() > allowed {
        for (item, offer) in lost {
            wrong.push((offer.begun, format!("{recipe} has lost {item}")));
        }
    }
    wrong
}

/// Items that were acknowledged, or may have been.
fn acknowledged(run: &Run) -> HashSet<&str> {
    deeds(run, LEASED, "ack")
        .filter(|ack| match &ack.came {
            Came::Failed { kind, .. } => kind == "SessionLost",
            _ => true,
        })
        .filter_map(|ack| Some(ack.about.first()?.as_str()))
        .collect()
}

/// At the end, all that is left is delivered in order: by priority, and then by age. (Before that,
/// an item may be passed over while another consumer tries to take it.)
fn order(run: &Run, recipe: &str) -> Wrong {
    let offers: HashMap<&str, Span> = deeds(run, recipe, "offer")
        .map(|offer| (offer, offer.done.filter(|_| offer.firm().is_some()).unwrap_or(Nanos::MAX)))
        .filter_map(|(offer, done)| Some((offer.about.first()?.as_str(), (offer.begun, done))))
        .collect();
    let left = run.deeds.iter().filter(|deed| deed.who == FINISHER && deed.recipe == recipe);
    let left = left.filter(|deed| deed.deed == "take" || deed.deed == "lease");
    let mut wrong = Wrong::new();
    // The priority of the item before, and when the last offer with that priority began.
    let mut before: Option<(&str, Nanos)> = None;
    for item in left.filter_map(Deed::fine) {
        let Some((begun, done)) = offers.get(item).copied() else { continue };
        let priority = item.split_once('/').map_or("", |(priority, _)| priority);
        let too_late = before.is_some_and(|(earlier, latest)| {
            earlier > priority || (earlier == priority && done < latest)
        });
        if too_late {
            wrong.push((run.end, format!("{recipe} delivered {item} too late")));
        }
        let latest = before.filter(|(earlier, _)| *earlier == priority).map_or(0, |(_, at)| at);
        before = Some((priority, latest.max(begun)));
    }
    wrong
}

/// A time in which a thread claimed to have an item, or to be inside a double barrier.
#[derive(Clone, Copy)]
struct Claim<'a> {
    span: Span,
    entry: &'a Deed,
    exit: &'a Deed,
}

/// The times from each successful `entry` to the next of `exits`, which says until when the thread
/// made its claim.
fn claims<'a>(run: &'a Run, recipe: &str, entry: &str, exits: [&str; 2]) -> Vec<Claim<'a>> {
    let mut current: HashMap<Who, &Deed> = HashMap::new();
    let mut claims = Vec::new();
    for deed in run.deeds.iter().filter(|deed| deed.recipe == recipe) {
        if deed.deed == entry && deed.fine().is_some() {
            current.insert(deed.who, deed);
        } else if exits.contains(&deed.deed.as_str())
            && let Some(entry) = current.remove(&deed.who)
            && let Some(from) = entry.done
            && let Some(until) = deed.about.last().and_then(|asked| asked.parse().ok())
        {
            claims.push(Claim { span: (from, until), entry, exit: deed });
        }
    }
    claims.sort_unstable_by_key(|claim| claim.span);
    claims
}

/// One consumer has an item at a time, and no consumer gets it after it was acknowledged.
fn leases(run: &Run) -> Wrong {
    let mut wrong = Wrong::new();
    let mut last: HashMap<&str, Claim<'_>> = HashMap::new();
    for claim in claims(run, LEASED, "lease", ["ack", "return"]) {
        let item = claim.entry.fine().unwrap_or_default();
        if let Some(before) = last.get(item).filter(|before| before.span.1 > claim.span.0)
            && !some_session_was_closed(run, (claim.span.0, before.span.1))
        {
            let what = format!("{item} was leased by {} and {}", before.entry.who, claim.entry.who);
            wrong.push((claim.span.0, what));
        }
        if last.get(item).is_none_or(|before| before.span.1 < claim.span.1) {
            last.insert(item, claim);
        }
    }
    let mut gone: HashMap<&str, Nanos> = HashMap::new();
    for ack in deeds(run, LEASED, "ack").filter(|ack| ack.firm().is_some()) {
        let (Some(item), Some(done)) = (ack.about.first(), ack.done) else { continue };
        if gone.insert(item, done).is_some() {
            wrong.push((ack.begun, format!("{item} was acknowledged twice")));
        }
    }
    for lease in deeds(run, LEASED, "lease") {
        let gone = lease.fine().and_then(|item| gone.get(item));
        if gone.is_some_and(|gone| *gone < lease.begun) {
            let item = lease.fine().unwrap_or_default();
            wrong.push((lease.begun, format!("{item} was leased after it was acknowledged")));
        }
    }
    wrong
}

/// Unless it may have been lifted, no thread passes a barrier that was up when it came, and none is
/// told that it raised one that is up.
fn barrier(run: &Run) -> Wrong {
    let mut lifts: Vec<Span> =
        deeds(run, BARRIER, "lift").map(|lift| (lift.begun, effective(run, lift))).collect();
    lifts.sort_unstable();
    let mut latest = 0;
    // The latest end of all lifts up to each one.
    let ends: Vec<Nanos> = lifts
        .iter()
        .map(|(_, end)| {
            latest = latest.max(*end);
            latest
        })
        .collect();
    let may_be_lifted = |span: Span| {
        let begun = lifts.partition_point(|lift| lift.0 <= span.1);
        begun.checked_sub(1).is_some_and(|last| ends[last] >= span.0)
    };
    // When a raise had returned, and when it began: the barrier was up at some time between.
    let mut up: Vec<Span> = deeds(run, BARRIER, "raise")
        .filter(|raise| raise.firm().is_some())
        .filter_map(|raise| Some((raise.done?, raise.begun)))
        .collect();
    up.sort_unstable();
    let mut from = 0;
    let from: Vec<Nanos> = up
        .iter()
        .map(|(_, begun)| {
            from = from.max(*begun);
            from
        })
        .collect();
    let mut wrong = Wrong::new();
    let passed = deeds(run, BARRIER, "wait").filter(|wait| wait.fine().is_some());
    let raised = deeds(run, BARRIER, "raise").filter(|raise| raise.fine() == Some("true"));
    for deed in passed.chain(raised) {
        let before = up.partition_point(|(done, _)| *done < deed.begun).checked_sub(1);
        let (Some(before), Some(done)) = (before, deed.done) else { continue };
        if !may_be_lifted((from[before], done)) {
            let did = if deed.deed == "wait" { "passed" } else { "raised" };
            wrong.push((deed.begun, format!("{} {did} a barrier that was up", deed.who)));
        }
    }
    wrong
}

/// Threads enter in pairs only; and none is told that all have left while one is inside.
fn double(run: &Run) -> Wrong {
    let mut wrong = Wrong::new();
    let enters: Vec<&Deed> = deeds(run, DOUBLE, "enter").collect();
    for enter in enters.iter().filter(|enter| enter.fine().is_some()) {
        let done = enter.done.unwrap_or(run.end);
        let counts = |other: &&&Deed| {
            let given_up = other.done.filter(|_| matches!(other.came, Came::Nothing));
            // A call that gave up without a connection may leave its node for a while.
            let unsure = given_up.is_none_or(|at| {
                let healthy = |span: &Span| span.0 <= other.begun && at <= span.1;
                at >= other.begun + other.limit + GRACE || !run.healthy.iter().any(healthy)
            });
            let mut end = effective(run, other);
            if given_up.is_some() {
                end += run.session_timeout() + AFTERMATH;
            }
            // It may also be the same thread's node, left by an earlier call that gave up.
            let is_another = !std::ptr::eq(**other, *enter);
            is_another && unsure && other.begun <= done && enter.begun <= end
        };
        if !enters.iter().any(|other| counts(&other)) {
            wrong.push((done, format!("{} entered a double barrier alone", enter.who)));
        }
    }
    let inside = claims(run, DOUBLE, "enter", ["leave", "leave"]);
    for (index, claim) in inside.iter().enumerate() {
        let others = inside[..index].iter().filter(|other| other.span.1 > claim.span.0);
        if others.clone().count() > 1 && !some_session_was_closed(run, claim.span) {
            wrong.push((claim.span.0, "more than two are inside a double barrier".to_owned()));
        }
        // These are inside together; either of them may leave first.
        for other in others {
            for (left, stays) in [(claim, other), (other, claim)] {
                let told = left.exit.done.filter(|_| left.exit.fine().is_some());
                if told.is_some_and(|told| told < stays.span.1)
                    && !some_session_was_closed(run, stays.span)
                {
                    let what =
                        format!("{} left while {} was inside", left.entry.who, stays.entry.who);
                    wrong.push((stays.span.1, what));
                }
            }
        }
    }
    wrong
}

/// All participants of a round learn the same decision, and commit only if all have voted yes.
fn commit(run: &Run) -> Wrong {
    #[derive(Default)]
    struct Round<'a> {
        decision: Option<(&'a str, Nanos)>,
        yes: HashSet<&'a str>,
        no: bool,
    }
    let mut wrong = Wrong::new();
    let mut rounds: BTreeMap<&str, Round<'_>> = BTreeMap::new();
    for deed in run.deeds.iter().filter(|deed| deed.recipe == COMMIT) {
        let Some(name) = deed.about.first() else { continue };
        let round = rounds.entry(name).or_default();
        match (deed.deed.as_str(), &deed.about[1..]) {
            ("vote", [who, vote]) => {
                let (counts, may_count) = (deed.fine() == Some("true"), deed.is_unsure());
                round.no |= vote == "no" && counts;
                if vote == "yes" && (counts || may_count) {
                    round.yes.insert(who);
                }
            }
            ("decide" | "learn", _) => {
                let Some(said) = deed.firm() else { continue };
                if round.decision.is_some_and(|(before, _)| before != said) {
                    wrong.push((deed.begun, format!("{name} has two decisions, one is {said}")));
                }
                round.decision = Some((said, deed.begun));
            }
            _ => {}
        }
    }
    for (name, round) in rounds {
        if let Some(("commit", at)) = round.decision
            && (round.no || round.yes.len() < 2)
        {
            wrong.push((at, format!("{name} was committed without the votes of all")));
        }
    }
    wrong
}

/// Every call of a worker that was not killed returned.
fn completeness(run: &Run) -> Wrong {
    let mut wrong = Wrong::new();
    for deed in run.deeds.iter().filter(|deed| deed.done.is_none()) {
        if !run.killed.contains_key(&(deed.who.slot, deed.who.generation)) {
            let what = format!("{} is stuck in {} {}", deed.who, deed.recipe, deed.deed);
            wrong.push((deed.begun, what));
        }
    }
    if !run.deeds.iter().any(|deed| deed.who != FINISHER && deed.fine().is_some()) {
        wrong.push((run.end, "no call of a recipe succeeded: the run proves nothing".to_owned()));
    }
    wrong
}
