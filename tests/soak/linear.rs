//! Whether the calls on one object are linearizable: whether each can have taken effect at one moment
//! between its beginning and its end. The search for such an order is that of the crate `todc-utils`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;
use zklock::FencingToken;

use super::history::{Nanos, SECOND};
use super::model::{Came, Deed, Run, Span};
use super::recipe_check::{AFTERMATH, Wrong, effective};
use super::recipes::{COUNTER, LEASED, PRIORITY, QUEUE, VALUE};

/// How long to search for an order of one object's calls. An object for which it is not found by then is
/// undecided.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many terms of an election are checked together.
const TERMS: usize = 200;
/// A `set` that lasted for so long may have been sent several times: a connection that is reset with a
/// reply under way is replaced within milliseconds.
const RESENT_AFTER: Nanos = SECOND / 500;

/// How many objects were judged, and how many of them are undecided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) objects: usize,
    pub(crate) calls: usize,
    pub(crate) undecided: usize,
}

/// What a call does to an object of one kind.
trait Effect: Clone + Debug + Send + 'static {
    type State: Clone + Debug + Default + Eq + Hash + Ord;

    /// The state after the call; `None` if its result does not fit the state before.
    fn on(&self, before: &Self::State) -> Option<Self::State>;
}

#[derive(Clone, Debug)]
struct Call<E> {
    span: Span,
    effect: E,
    /// Whether it may have had no effect.
    unsure: bool,
}

/// All states that the object may be in: an unsure call has had its effect, or not.
struct Possible<E>(PhantomData<E>);

impl<E: Effect> Specification for Possible<E> {
    type State = BTreeSet<E::State>;
    type Operation = Call<E>;

    fn init() -> Self::State {
        BTreeSet::from([E::State::default()])
    }

    fn apply(call: &Call<E>, before: &Self::State) -> (bool, Self::State) {
        let mut after: BTreeSet<_> =
            before.iter().filter_map(|state| call.effect.on(state)).collect();
        if call.unsure {
            after.extend(before.iter().cloned());
        }
        if after.is_empty() { (false, before.clone()) } else { (true, after) }
    }
}

/// Whether there is such an order; `None` if that is not found out in time.
fn is_linearizable<E: Effect>(calls: &[Call<E>]) -> Option<bool> {
    let mut actions = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        // At the same moment, beginnings come first: what may overlap does.
        actions.push(((call.span.0, 0), (number, Action::Call(call.clone()))));
        actions.push(((call.span.1, 1), (number, Action::Response(call.clone()))));
    }
    if actions.is_empty() {
        return Some(true);
    }
    actions.sort_by_key(|(at, _)| *at);
    let actions: Vec<_> = actions.into_iter().map(|(_, action)| action).collect();
    let (tell, told) = mpsc::channel();
    // It cannot be stopped: if it takes too long, it goes on until this process ends.
    thread::spawn(move || {
        tell.send(WGLChecker::<Possible<E>>::is_linearizable(History::from_actions(actions)))
    });
    told.recv_timeout(PATIENCE).ok()
}

/// Judges each object, and says of those whose calls fit no order when their calls began.
pub(crate) fn judge(run: &Run) -> (Wrong, Judged) {
    let mut court = Court::default();
    court.all("value", values(run));
    court.all("counter", counters(run));
    for queue in [QUEUE, PRIORITY] {
        court.all(queue, items(run, queue));
    }
    court.all("election", elections(run));
    (court.wrong, court.judged)
}

#[derive(Default)]
struct Court {
    wrong: Wrong,
    judged: Judged,
}

impl Court {
    fn all<E: Effect>(&mut self, kind: &str, objects: BTreeMap<String, Vec<Call<E>>>) {
        for (name, calls) in objects {
            self.judged.objects += 1;
            self.judged.calls += calls.len();
            let begun = calls.iter().map(|call| call.span.0).min().unwrap_or_default();
            match is_linearizable(&calls) {
                Some(true) => {}
                Some(false) => {
                    let what = format!("the calls on {kind} {name} fit no order: {calls:?}");
                    self.wrong.push((begun, what));
                }
                None => self.judged.undecided += 1,
            }
        }
    }
}

/// The call, unless it has certainly had no effect. `effect` gets what it returned, if that is known.
fn call<E>(run: &Run, deed: &Deed, effect: impl FnOnce(Option<&str>) -> E) -> Option<Call<E>> {
    let said = match &deed.came {
        Came::Failed { kind, .. } if kind == "Connect" => return None,
        Came::Fine(said) => Some(said.as_str()),
        Came::Nothing | Came::Failed { .. } | Came::Pending => None,
    };
    let unsure = said.is_none() || deed.shaky;
    Some(Call { span: (deed.begun, effective(run, deed)), effect: effect(said), unsure })
}

// ----- values

/// What a call does to a node with data; results are `None` where they are unknown.
#[derive(Clone, Debug)]
enum OnValue {
    Read(Option<(i32, String)>),
    /// Whether the node was created.
    Create(String, Option<bool>),
    /// Writes if the node has that version; the new version, if it was written.
    Write(String, Option<i32>, Option<Option<i32>>),
    /// Writes, or creates the node; the new version.
    Set(String, Option<i32>),
    Delete(Option<bool>),
}

fn fits<T: PartialEq>(said: &Option<T>, is: T) -> bool {
    said.as_ref().is_none_or(|said| *said == is)
}

impl Effect for OnValue {
    /// The data and their version, if the node exists.
    type State = Option<(i32, String)>;

    fn on(&self, before: &Self::State) -> Option<Self::State> {
        let now = before.as_ref().map(|(version, _)| *version);
        let (fits, after) = match self {
            OnValue::Read(found) => (found == before, before.clone()),
            OnValue::Create(data, made) => match now {
                None => (fits(made, true), Some((0, data.clone()))),
                Some(_) => (fits(made, false), before.clone()),
            },
            OnValue::Write(data, expected, written) => match now {
                Some(now) if expected.is_none_or(|expected| expected == now) => {
                    (fits(written, Some(now + 1)), Some((now + 1, data.clone())))
                }
                _ => (fits(written, None), before.clone()),
            },
            OnValue::Set(data, written) => {
                let next = now.map_or(0, |now| now + 1);
                (fits(written, next), Some((next, data.clone())))
            }
            OnValue::Delete(deleted) => (fits(deleted, now.is_some()), None),
        };
        fits.then_some(after)
    }
}

/// The calls on each value, by the value's name.
fn values(run: &Run) -> BTreeMap<String, Vec<Call<OnValue>>> {
    let mut values: BTreeMap<String, Vec<Call<OnValue>>> = BTreeMap::new();
    for deed in run.deeds.iter().filter(|deed| deed.recipe == VALUE) {
        let Some(name) = deed.about.first() else { continue };
        let data = deed.about.get(1).cloned().unwrap_or_default();
        let expected = deed.about.get(2).and_then(|number| number.parse().ok());
        let is_read = deed.deed == "get";
        let effect = |said: Option<&str>| match deed.deed.as_str() {
            "get" => OnValue::Read(said.and_then(|said| {
                let (version, data) = said.split_once(':')?;
                Some((version.parse().ok()?, data.to_owned()))
            })),
            "create" => OnValue::Create(data, said.map(|said| said == "made")),
            "write" => OnValue::Write(data, expected, said.map(|said| said.parse().ok())),
            "set" => OnValue::Set(data, said.and_then(|said| said.parse().ok())),
            _ => OnValue::Delete(said.map(|said| said == "deleted")),
        };
        let Some(call) = call(run, deed, effect) else { continue };
        // A read without a result says nothing.
        if is_read && call.unsure {
            continue;
        }
        let calls = values.entry(name.clone()).or_default();
        if let OnValue::Set(data, _) = &call.effect
            && call.span.1 - call.span.0 > RESENT_AFTER
        {
            let again =
                Call { effect: OnValue::Set(data.clone(), None), span: call.span, unsure: true };
            calls.extend(std::iter::repeat_n(again, resent(call.span)));
        }
        // Of one that was refused after a lost reply, the first attempt may still come, once the node is deleted.
        if let OnValue::Create(data, Some(false)) = &call.effect
            && call.span.1 - call.span.0 > RESENT_AFTER
        {
            let span = (call.span.0, call.span.1 + LATE_FOR);
            let late = Call { effect: OnValue::Create(data.clone(), None), span, unsure: true };
            calls.push(late);
        }
        calls.push(call);
    }
    values
}

/// For how long a request of a lost connection may still be carried out, at most: longer than links are stalled.
const LATE_FOR: u64 = 60 * SECOND;

/// How often it may have been sent in vain: under such resets, about once in a tenth of a second.
fn resent((begun, done): Span) -> usize {
    usize::try_from((done - begun) / (SECOND / 10)).map_or(12, |count| count.clamp(3, 12))
}

// ----- counters

/// Adds one, and says what the sum is then; or only says what it is.
#[derive(Clone, Debug)]
struct OnCounter {
    more: i64,
    sum: Option<i64>,
}

impl Effect for OnCounter {
    type State = i64;

    fn on(&self, before: &i64) -> Option<i64> {
        let sum = before + self.more;
        fits(&self.sum, sum).then_some(sum)
    }
}

fn counters(run: &Run) -> BTreeMap<String, Vec<Call<OnCounter>>> {
    let mut counters: BTreeMap<String, Vec<Call<OnCounter>>> = BTreeMap::new();
    for deed in run.deeds.iter().filter(|deed| deed.recipe == COUNTER) {
        let Some(name) = deed.about.first() else { continue };
        let more = i64::from(deed.deed == "add");
        let effect =
            |said: Option<&str>| OnCounter { more, sum: said.and_then(|s| s.parse().ok()) };
        if let Some(call) = call(run, deed, effect) {
            counters.entry(name.clone()).or_default().push(call);
        }
    }
    counters
}

// ----- items of queues

#[derive(Clone, Debug)]
enum OnItem {
    Offer,
    Take,
    /// A call has found the whole queue empty.
    Miss,
}

/// Whether an item was offered, and whether it was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    #[default]
    Nowhere,
    Queued,
    Taken,
}

impl Effect for OnItem {
    type State = Place;

    fn on(&self, before: &Place) -> Option<Place> {
        match (self, before) {
            (OnItem::Offer, Place::Nowhere) => Some(Place::Queued),
            (OnItem::Take, Place::Queued) => Some(Place::Taken),
            (OnItem::Miss, Place::Nowhere | Place::Taken) => Some(*before),
            _ => None,
        }
    }
}

/// The calls that concern each item of a queue.
fn items(run: &Run, queue: &str) -> BTreeMap<String, Vec<Call<OnItem>>> {
    debug_assert_ne!(queue, LEASED, "a leased item is still there");
    let of_queue = |deed: &'static str| run.deeds.iter().filter(move |one| one.is(queue, deed));
    let mut items: BTreeMap<String, Vec<Call<OnItem>>> = BTreeMap::new();
    for offer in of_queue("offer") {
        let Some(item) = offer.about.first() else { continue };
        if let Some(call) = call(run, offer, |_| OnItem::Offer) {
            items.entry(item.clone()).or_default().push(call);
        }
    }
    // A call without a result may have taken an item that a later call of its process returns.
    let mut unanswered: HashMap<(usize, usize), Vec<Nanos>> = HashMap::new();
    let mut misses: Vec<Span> = Vec::new();
    for take in of_queue("take") {
        let process = (take.who.slot, take.who.generation);
        match (&take.came, take.done) {
            (Came::Fine(_), _) => {}
            // A call with little time may not have got an item that was there.
            (Came::Nothing, _) if take.limit < SECOND => {}
            (Came::Nothing, Some(done)) if !take.shaky => misses.push((take.begun, done)),
            _ => unanswered.entry(process).or_default().push(take.begun),
        }
    }
    misses.sort_unstable();
    for take in of_queue("take") {
        let Some(calls) = take.fine().and_then(|item| items.get_mut(item)) else { continue };
        let Some(offered) = calls.first().map(|offer| offer.span.0) else { continue };
        let earlier = unanswered.get(&(take.who.slot, take.who.generation)).into_iter().flatten();
        let earliest = earlier.filter(|begun| **begun >= offered).min().copied();
        let begun = take.begun.min(earliest.unwrap_or(Nanos::MAX));
        let end = take.done.unwrap_or(run.end);
        calls.push(Call { span: (begun, end), effect: OnItem::Take, unsure: take.shaky });
    }
    let unsure: Vec<Span> = of_queue("take")
        .filter(|take| take.is_unsure())
        .map(|take| (take.begun, effective(run, take)))
        .collect();
    for calls in items.values_mut() {
        // An item that nobody has got may have been taken by a call without a result.
        if calls.len() < 2 || calls.iter().any(|call| call.unsure) {
            continue;
        }
        let life = (calls[0].span.0, calls[1].span.1);
        let meets = |span: &&Span| span.0 <= life.1 && life.0 <= span.1;
        // Nor while another thread may have been taking it in vain.
        if unsure.iter().any(|span| meets(&span)) {
            continue;
        }
        let first = misses.partition_point(|miss| miss.0 + AFTERMATH * 10 < life.0);
        let near = misses[first..].iter().take_while(|miss| miss.0 <= life.1).filter(meets);
        calls.extend(near.map(|span| Call { span: *span, effect: OnItem::Miss, unsure: false }));
    }
    items
}

// ----- elections

/// A leader's term begins, or it is still on.
#[derive(Clone, Debug)]
enum OnTerm {
    Begin(FencingToken),
    Claim(FencingToken),
}

impl Effect for OnTerm {
    /// The token of the last term.
    type State = Option<FencingToken>;

    fn on(&self, before: &Self::State) -> Option<Self::State> {
        match self {
            OnTerm::Begin(token) => (*before < Some(*token)).then_some(Some(*token)),
            OnTerm::Claim(token) => (*before == Some(*token)).then_some(*before),
        }
    }
}

/// The terms of the election, in groups of consecutive ones. Two groups have one term in common.
fn elections(run: &Run) -> BTreeMap<String, Vec<Call<OnTerm>>> {
    let led = run.holds().filter(|(attempt, _)| attempt.lock == super::work::ELECTION);
    // Whose node or session the nemesis has ended may claim to lead for a while, and another one leads.
    let mut terms: Vec<_> = led.filter(|(_, hold)| !hold.was_taken(run)).collect();
    terms.sort_by_key(|(_, hold)| hold.token);
    let mut groups = BTreeMap::new();
    let mut from = 0;
    while from + 1 < terms.len() {
        let to = terms.len().min(from + TERMS);
        let mut calls = Vec::new();
        for (attempt, hold) in &terms[from..to] {
            let begin = OnTerm::Begin(hold.token);
            calls.push(Call { span: (attempt.want, hold.got), effect: begin, unsure: false });
            if let Some(at) = hold.claimed {
                let claim = OnTerm::Claim(hold.token);
                calls.push(Call { span: (at, at), effect: claim, unsure: false });
            }
        }
        groups.insert(format!("terms from {from} on"), calls);
        from = to - 1;
    }
    groups
}
