//! How one call gets its place among the contenders and comes to the front: a state
//! machine without IO. It is given what happened and says what to do next.
//!
//! The protocol is that of ZooKeeper's lock recipe, made safe where the recipe says nothing:
//!
//! - The create carries a guid, fresh for every attempt, so that a node whose creation was not
//!   confirmed is found again and adopted rather than created twice.
//! - Such a node is adopted only if it belongs to the live session.
//! - If a list does not have it, on a connection whose server has caught up with the leader before, another
//!   one is created. The first may still come: then it is deleted, by this call or a later one.

use std::collections::HashSet;
use std::sync::Arc;

use uuid::Uuid;

use super::maintenance_ahead::HoldAhead;
use crate::contend::name::{
    ContenderKind, Form, Rule, Ticket, Verdict, Watch, has_others, in_grant_order, is_ignored,
};
use crate::error::{Error, ErrorKind};
use crate::foreign_contenders::ForeignContenders;
use crate::session::Names;
use crate::wire_values::Stat;

/// Of how many children it is asked together whether they contend.
const MOST_ASKED: usize = 1_000;

/// What to do next. One at a time; its outcome comes back as an [`Input`].
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Create an ephemeral sequential child whose name begins with the prefix, and list the
    /// children.
    Create {
        prefix: String,
    },
    /// Create the lock node, and what is missing above it.
    MakeParents,
    /// Have the connection's server catch up with the leader.
    Sync,
    /// List the children of the lock node.
    List,
    /// Read a child's stat.
    Inspect {
        name: String,
    },
    /// Read the stats of children whose names do not tell whether they contend.
    AskOrigins {
        names: Vec<String>,
    },
    /// Have the waiter woken when one of these is gone. With a successor, when all are: the own node,
    /// which is admitted then without another list. A list showed no other contender ahead, and none
    /// can come in ahead of it. Any list will do, however old: one that shows the own node shows all
    /// that were made before it and are still there.
    Watch {
        names: Vec<String>,
        successor: Option<OwnNode>,
    },
    /// Have the waiter woken when children come or go, and list them.
    WatchChildren,
    Delete {
        name: String,
    },
    /// Wait for a watch or a new connection.
    Wait,
    /// Admitted.
    Hold {
        name: String,
        czxid: i64,
        /// Whether others contend: `None` if that is not known, because no list was needed. Those
        /// that an earlier list showed may have gone since.
        contested: Option<bool>,
    },
    /// Others are in front, and the call does not wait.
    Yield,
    Fail(Error),
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// Begin, or begin anew: in a session that knows nothing of this call yet.
    Begin {
        session: i64,
    },
    Created {
        made: Result<OwnNode, Trouble>,
        /// The list requested right behind the create, if it got an answer.
        listing: Option<Listing>,
    },
    ParentsMade(Result<(), Trouble>),
    /// On the connection of this number.
    Synced(Result<u64, Trouble>),
    Listed(Result<Listing, Trouble>),
    Inspected(Result<Option<Stat>, Trouble>),
    /// Which of these come before the own node, and which do not.
    Origins(Result<Vec<(String, bool)>, Trouble>),
    Watched(Result<Watched, Trouble>),
    Deleted(Result<(), Trouble>),
    Woken,
    /// All nodes ahead that were watched are gone, and the own node stands, as events and answers of
    /// one connection say.
    Succeeded,
}

/// The node of this contender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnNode {
    pub(crate) name: String,
    /// The transaction that made it, if known.
    pub(crate) czxid: Option<i64>,
}

/// What became of the watch on a node, or of those on several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Set,
    /// These do not come before the own node, as their stats say.
    Passed(Vec<String>),
    /// The node was gone, or one of them.
    Gone,
    /// An ACL hides the node, or one of them, so a watch on it would report nothing.
    Hidden,
}

/// Why an action has not simply succeeded.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// No answer: it may have been done or not.
    Unanswered,
    /// The lock node, or what is above it, is not there.
    NoNode,
    /// Retrying does not help.
    Refused(Error),
}

#[derive(Clone, Debug)]
pub(crate) struct Listing {
    /// The number of the connection on which it was both requested and answered.
    pub(crate) on: u64,
    pub(crate) children: Names,
    /// Whether the children are watched from this list on.
    pub(crate) watched: bool,
    /// Those of them that this session had released before it asked, and that are still to be
    /// deleted.
    pub(crate) leaving: Vec<String>,
    /// Those of them that are known to contend for nothing.
    pub(crate) lasting: Vec<String>,
}

/// See the module.
pub(crate) struct Acquisition {
    form: Form,
    patient: bool,
    fresh: Box<dyn FnMut() -> Uuid + Send>,
    session: i64,
    own: Option<OwnNode>,
    /// The node that was its own until a list was without it.
    missing: Option<String>,
    /// What the list that was judged last has shown, without the list: thousands may wait in one process.
    seen: Option<Seen>,
    /// All attempts of this call and session that had no answer.
    doubtful: Vec<Uuid>,
    /// Whether it is not known yet if the last of them made a node.
    unsettled: bool,
    /// Whether an ACL hid a contender's node, so that a watch on it would report nothing.
    hidden: bool,
    /// Whether, at the last look, there were so many nodes to watch that the children are instead.
    crowded: bool,
    /// Whether the list that was judged last showed others ahead; false once something else happened.
    blocked: bool,
    notes_holders: bool,
    /// The connection whose server has caught up since the last doubt arose.
    synced: Option<u64>,
    /// Children with lower numbers that do not come before the own node, and, for the look that is made now,
    /// those that do: where the name alone does not tell.
    passed: HashSet<String>,
    before: HashSet<String>,
    foreign: Arc<ForeignContenders>,
    asked: Awaited,
}

/// What the next event answers, where the event does not say it.
#[derive(Clone, Debug)]
enum Awaited {
    Nothing,
    Create(Uuid),
    /// Which session owns the node that carries one of our guids?
    Adoption(String),
    /// Which transaction made our own node?
    Birth,
}

impl Listing {
    /// The children for the rule to judge: without the nodes that this session has released.
    /// Otherwise a client would queue behind what it has just released while the delete is repeated
    /// over a lost connection.
    ///
    /// This is safe:
    ///
    /// - Such a node was released, or its call was over, before the list was requested. No call
    ///   adopts it, as each attempt has a guid of its own, and no guard will find that it is held.
    /// - The rule judges the queue as it will be when the delete has taken effect, and the delete
    ///   can only remove this one node. Removing a node admits no contender that the others
    ///   exclude, neither in a mutex nor among readers or permits, and takes admission from none.
    /// - Other clients that still see the node wait for it, and contenders between it and our own
    ///   node are in front of us as before. Our own node was made later, so its token is greater.
    /// - Searches by guid, for nodes to adopt, to delete or to sweep, use the whole list.
    fn judged(&self, own: &str) -> Names {
        let goes = |name: &str| name != own && self.leaving.iter().any(|left| left == name);
        // Most often the delete came before the list.
        if !self.children.iter().any(goes) {
            return self.children.clone();
        }
        let stays = |name: &&str| !goes(name);
        self.children.iter().filter(stays).collect()
    }
}

/// Who was there, from one contender's place.
struct Seen {
    /// How many were ahead.
    ahead: usize,
    /// The first of them.
    first: Option<String>,
    /// The last of them that is of no known recipe.
    foreign: Option<String>,
    are_behind: bool,
    maintenance: Vec<HoldAhead>,
    /// Those of them that hold, if they are noted.
    holders: Vec<String>,
}

impl Seen {
    fn by(
        own: &str,
        children: &Names,
        notes_holders: bool,
        passes: impl Fn(&Ticket<'_>) -> bool,
    ) -> Option<Seen> {
        let mine = Ticket::parse(own)?;
        let mut seen = Seen {
            ahead: 0,
            first: None,
            foreign: None,
            are_behind: false,
            maintenance: Vec::new(),
            holders: Vec::new(),
        };
        let (mut first, mut has_maintenance) = (None::<Ticket<'_>>, false);
        let mut foreign = None::<Ticket<'_>>;
        let is_ahead = |one: &Ticket<'_>| one.is_before(&mine) && !passes(one);
        for one in children.iter().filter_map(Ticket::parse) {
            if is_ahead(&one) {
                seen.ahead += 1;
                has_maintenance |= one.is_maintenance();
                if !one.is_of_a_known_recipe() {
                    foreign = foreign.max(Some(one.clone()));
                }
                first = Some(first.map_or(one.clone(), |first| first.min(one)));
            } else {
                seen.are_behind |= one > mine && one.is_of_a_known_recipe();
            }
        }
        seen.first = first.map(|first| first.name().to_owned());
        seen.foreign = foreign.map(|foreign| foreign.name().to_owned());
        if has_maintenance {
            let mut ahead = in_grant_order(children.iter());
            ahead.retain(is_ahead);
            seen.maintenance = HoldAhead::among(&ahead);
        }
        if notes_holders {
            let mut ahead = in_grant_order(children.iter()).into_iter().filter(is_ahead);
            // The first, whatever it is, or all readers up to another contender.
            let first = ahead.next().into_iter();
            let reads = first.clone().all(|one| one.kind() == ContenderKind::Read);
            let readers = ahead.take_while(|one| one.kind() == ContenderKind::Read);
            let holders = first.chain(readers.filter(|_| reads));
            seen.holders = holders.map(|one| one.name().to_owned()).collect();
        }
        Some(seen)
    }
}

impl Acquisition {
    /// `patient` is whether to wait for others.
    pub(crate) fn new(
        form: Form,
        patient: bool,
        foreign: Arc<ForeignContenders>,
        fresh: impl FnMut() -> Uuid + Send + 'static,
    ) -> Acquisition {
        Acquisition {
            form,
            patient,
            fresh: Box::new(fresh),
            session: 0,
            own: None,
            missing: None,
            seen: None,
            doubtful: Vec::new(),
            unsettled: false,
            hidden: false,
            crowded: false,
            blocked: false,
            notes_holders: false,
            synced: None,
            passed: HashSet::new(),
            before: HashSet::new(),
            foreign,
            asked: Awaited::Nothing,
        }
    }

    pub(crate) fn step(&mut self, input: Input) -> Action {
        let asked = std::mem::replace(&mut self.asked, Awaited::Nothing);
        self.blocked = false;
        match input {
            Input::Begin { session } => {
                // What an earlier session made goes with it.
                self.session = session;
                self.own = None;
                self.doubtful.clear();
                self.unsettled = false;
                (self.hidden, self.crowded) = (false, false);
                self.synced = None;
                self.create()
            }
            Input::Created { made, listing } => self.created(asked, made, listing),
            Input::ParentsMade(Ok(()) | Err(Trouble::NoNode)) => self.create(),
            Input::ParentsMade(Err(Trouble::Unanswered)) => Action::MakeParents,
            Input::Synced(Ok(on)) => {
                self.synced = Some(on);
                Action::List
            }
            Input::Synced(Err(Trouble::Unanswered)) => Action::Sync,
            Input::Listed(Ok(listing)) => self.listed(&listing),
            Input::Inspected(found) => self.inspected(asked, found),
            Input::Deleted(Ok(()) | Err(Trouble::NoNode | Trouble::Unanswered))
            | Input::Listed(Err(Trouble::Unanswered | Trouble::NoNode))
            | Input::Origins(Err(Trouble::Unanswered | Trouble::NoNode))
            | Input::Watched(Ok(Watched::Gone) | Err(Trouble::Unanswered | Trouble::NoNode))
            | Input::Woken => self.look(),
            Input::Succeeded => self.succeed(),
            Input::Watched(Ok(Watched::Set)) => Action::Wait,
            Input::Watched(Ok(Watched::Passed(names))) => {
                self.passed.extend(names);
                self.look()
            }
            Input::Origins(Ok(origins)) => {
                for (name, is_before) in origins {
                    if is_before { &mut self.before } else { &mut self.passed }.insert(name);
                }
                // The same list would do, but of thousands in one process none keeps one. If the children are
                // to be watched, by this list: another one would be followed by the same question.
                self.look()
            }
            Input::Origins(Err(Trouble::Refused(error))) => Action::Fail(error),
            Input::Watched(Ok(Watched::Hidden)) => {
                self.hidden = true;
                Action::WatchChildren
            }
            Input::Synced(Err(Trouble::NoNode)) => Action::List,
            Input::ParentsMade(Err(Trouble::Refused(error)))
            | Input::Synced(Err(Trouble::Refused(error)))
            | Input::Listed(Err(Trouble::Refused(error)))
            | Input::Watched(Err(Trouble::Refused(error)))
            | Input::Deleted(Err(Trouble::Refused(error))) => Action::Fail(error),
        }
    }

    /// The transaction that has made the own node, if known.
    pub(super) fn made_by(&self) -> Option<i64> {
        self.own.as_ref()?.czxid
    }

    /// Whether another call can go on from here: there is a place, and nothing under way.
    pub(crate) fn has_place(&self) -> bool {
        self.own.is_some() && !self.unsettled && matches!(self.asked, Awaited::Nothing)
    }

    /// The node that was its own until the last list was without it.
    pub(super) fn take_missing(&mut self) -> Option<String> {
        self.missing.take()
    }

    /// Whether the last step has judged a list, and that showed others ahead.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// How many contenders were ahead, and which one was the first, when a list was judged last.
    pub(crate) fn ahead(&self) -> (usize, Option<String>) {
        let seen = self.seen.as_ref().filter(|_| self.own.is_some());
        seen.map_or((0, None), |seen| (seen.ahead, seen.first.clone()))
    }

    /// The last contender of no known recipe that was ahead, when a list was judged last.
    pub(super) fn foreign_ahead(&self) -> Option<&str> {
        self.seen.as_ref()?.foreign.as_deref()
    }

    /// From here on it notes who holds.
    pub(super) fn note_holders(&mut self, notes: bool) {
        self.notes_holders = notes;
    }

    /// Who held, when a list was judged last, if that was noted.
    pub(super) fn holders_ahead(&self) -> &[String] {
        let seen = self.seen.as_ref().filter(|_| self.own.is_some());
        seen.map_or(&[], |seen| &seen.holders)
    }

    /// Whether it waits for others.
    pub(super) fn is_patient(&self) -> bool {
        self.patient
    }

    /// The maintenance holds ahead, the first one first, when a list was judged last.
    pub(super) fn maintenance_ahead(&self) -> &[HoldAhead] {
        let seen = self.seen.as_ref().filter(|_| self.own.is_some());
        seen.map_or(&[], |seen| &seen.maintenance)
    }

    /// Goes on for another call, which waits for others if `patient`.
    pub(crate) fn go_on(&mut self, patient: bool) {
        self.patient = patient;
    }

    /// The name of the node that is known to be ours. A call that ends without holding leaves it behind.
    pub(crate) fn own_name(&self) -> Option<&str> {
        self.own.as_ref().map(|own| own.name.as_str())
    }

    /// The prefixes of the names of nodes that such a call may leave behind as well.
    pub(crate) fn doubtful_prefixes(&self) -> Vec<String> {
        let mut doubtful = if self.unsettled { self.doubtful.clone() } else { Vec::new() };
        if let Awaited::Create(guid) = self.asked {
            doubtful.push(guid);
        }
        doubtful.into_iter().map(|guid| self.form.prefix(guid)).collect()
    }

    fn create(&mut self) -> Action {
        let guid = (self.fresh)();
        // Who comes before another node is asked again.
        self.passed.clear();
        self.before.clear();
        self.asked = Awaited::Create(guid);
        Action::Create { prefix: self.form.prefix(guid) }
    }

    /// Looks again. While a create is in doubt, only a list after a sync is certain.
    fn look(&self) -> Action {
        match &self.own {
            None if self.synced.is_none() => Action::Sync,
            // The children would have to be watched again.
            Some(_) if self.hidden || self.crowded => Action::WatchChildren,
            _ => Action::List,
        }
    }

    fn created(
        &mut self,
        asked: Awaited,
        made: Result<OwnNode, Trouble>,
        listing: Option<Listing>,
    ) -> Action {
        match made {
            Ok(own) => {
                self.own = Some(own);
                match (self.check_number(), listing) {
                    (Some(refused), _) => refused,
                    (None, Some(listing)) => self.listed(&listing),
                    (None, None) => Action::List,
                }
            }
            Err(Trouble::Unanswered) => {
                if let Awaited::Create(guid) = asked {
                    self.doubtful.push(guid);
                    self.unsettled = true;
                }
                self.synced = None;
                Action::Sync
            }
            Err(Trouble::NoNode) => Action::MakeParents,
            Err(Trouble::Refused(error)) => Action::Fail(error),
        }
    }

    /// A number at the end of the range is never granted: the server repeats numbers there.
    fn check_number(&self) -> Option<Action> {
        let own = self.own.as_ref()?;
        match Ticket::parse(&own.name) {
            Some(ticket) if !ticket.exhausted() => None,
            Some(_) => Some(Action::Fail(Error::new(
                ErrorKind::SequenceExhausted,
                "the lock node's sequence numbers are used up; it is removed, and numbering \
                 starts anew, once the present contenders are gone",
            ))),
            None => Some(Action::Fail(Error::new(
                ErrorKind::Server,
                format!("the server made a node of an unexpected name, {:?}", own.name),
            ))),
        }
    }

    fn listed(&mut self, listing: &Listing) -> Action {
        let doubtful = self.find_doubtful(&listing.children);
        let Some(own) = &self.own else {
            return match doubtful {
                Some(name) => {
                    self.asked = Awaited::Adoption(name.clone());
                    Action::Inspect { name }
                }
                None if self.synced == Some(listing.on) => {
                    self.unsettled = false;
                    self.create()
                }
                None => Action::Sync,
            };
        };
        if let Some(name) = doubtful {
            return Action::Delete { name };
        }
        self.passed.extend(listing.lasting.iter().cloned());
        let passes = |theirs: &Ticket<'_>| self.passes(theirs);
        let seen = Seen::by(&own.name, &listing.children, self.notes_holders, passes);
        let judged = listing.judged(&own.name);
        let verdict = self.rule().decide_but_for(&own.name, judged.iter(), passes);
        // Who disagrees about the permits may be no contender.
        let asks = match &verdict {
            Verdict::Blocked(watch) => Some(watch),
            Verdict::Disagreed(_) => Some(&Watch::Children),
            _ => None,
        };
        if let Some(watch) = asks {
            let names = self.to_ask(own, watch, &judged, listing.watched);
            if !names.is_empty() {
                return Action::AskOrigins { names };
            }
        }
        self.before.clear();
        self.seen = seen;
        self.crowded = matches!(verdict, Verdict::Blocked(Watch::Children));
        self.blocked = matches!(verdict, Verdict::Blocked(_));
        match verdict {
            Verdict::Admitted => match own.czxid {
                Some(czxid) => Action::Hold {
                    name: own.name.clone(),
                    czxid,
                    contested: Some(has_others(&own.name, judged.iter())),
                },
                None => {
                    self.asked = Awaited::Birth;
                    Action::Inspect { name: own.name.clone() }
                }
            },
            Verdict::Missing => {
                // Another client has deleted the node: never a grant, but a new place at the end.
                self.missing = self.own.take().map(|own| own.name);
                self.create()
            }
            Verdict::Disagreed(permits) => Action::Fail(Error::new(
                ErrorKind::Conflict,
                format!(
                    "semaphore size mismatch: other clients use {permits} permits, this call \
                     uses {}",
                    self.form.permits
                ),
            )),
            Verdict::Blocked(_) if !self.patient => Action::Yield,
            // Whatever can get us admitted is a change of the children.
            Verdict::Blocked(_) if listing.watched => Action::Wait,
            Verdict::Blocked(Watch::Nodes(names)) => self.watch(names, &judged),
            Verdict::Blocked(Watch::Children) => Action::WatchChildren,
        }
    }

    /// Waits for these nodes; where that is certain to be enough, for all that are ahead, to go on
    /// without another list. Only our own sessions tell what has happened to a node.
    fn watch(&self, names: Vec<String>, judged: &Names) -> Action {
        let own = self.own.as_ref().filter(|own| self.session != 0 && own.czxid.is_some());
        let passes = |theirs: &Ticket<'_>| self.passes(theirs);
        match own.and_then(|own| self.rule().all_ahead_but_for(&own.name, judged.iter(), passes)) {
            Some(names) => Action::Watch { names, successor: own.cloned() },
            None => Action::Watch { names, successor: None },
        }
    }

    /// Whether that child is known not to come before the own node, or not waited for.
    fn passes(&self, theirs: &Ticket<'_>) -> bool {
        self.passed.contains(theirs.name()) || is_ignored(theirs, &self.foreign)
    }

    /// The children of which to ask whether they contend, before this watch is set or the call gives up; the
    /// latest first.
    ///
    /// Who waits finds that with the watch itself, without a request. Only where it has found some that do
    /// not contend, a whole crowd of such nodes may be there: then all are asked about together.
    fn to_ask(
        &self,
        own: &OwnNode,
        watch: &Watch,
        judged: &Names,
        by_children: bool,
    ) -> Vec<String> {
        let is_open = |one: &Ticket<'_>| {
            !one.is_certain() && !self.before.contains(one.name()) && !self.passes(one)
        };
        let asks_each = self.patient && !by_children && self.passed.is_empty();
        let matters = match watch {
            Watch::Nodes(_) if asks_each => false,
            Watch::Nodes(names) => {
                names.iter().filter_map(|name| Ticket::parse(name)).any(|one| is_open(&one))
            }
            Watch::Children => true,
        };
        let Some(mine) = Ticket::parse(&own.name).filter(|_| matters) else { return Vec::new() };
        let ahead = judged.iter().filter_map(Ticket::parse);
        let mut open: Vec<_> = ahead.filter(|one| one.is_before(&mine) && is_open(one)).collect();
        open.sort_unstable_by(|one, other| other.cmp(one));
        open.truncate(MOST_ASKED);
        open.iter().map(|one| one.name().to_owned()).collect()
    }

    /// Admitted, because all that were ahead are gone.
    fn succeed(&self) -> Action {
        let (Some(own), Some(seen)) = (&self.own, &self.seen) else { return self.look() };
        let Some(czxid) = own.czxid else { return self.look() };
        let contested = seen.are_behind.then_some(true);
        Action::Hold { name: own.name.clone(), czxid, contested }
    }

    fn rule(&self) -> Rule {
        Rule::permits(self.form.permits)
    }

    /// The earliest of the children, except for our own, that an attempt in doubt has made.
    fn find_doubtful(&self, children: &Names) -> Option<String> {
        if self.doubtful.is_empty() {
            return None;
        }
        children
            .iter()
            .filter(|name| Some(*name) != self.own_name())
            .filter_map(Ticket::parse)
            .filter(|ticket| ticket.has_any_guid(&self.doubtful))
            .min()
            .map(|ticket| ticket.name().to_owned())
    }

    fn inspected(&mut self, asked: Awaited, found: Result<Option<Stat>, Trouble>) -> Action {
        match (asked, found) {
            (Awaited::Adoption(name), Ok(Some(found))) if found.ephemeral_owner == self.session => {
                self.unsettled = false;
                self.own = Some(OwnNode { name, czxid: Some(found.czxid) });
                self.check_number().unwrap_or(Action::List)
            }
            // Without its stat, neither its owner nor its token is known.
            (Awaited::Adoption(name), Ok(Some(_)) | Err(Trouble::Refused(_))) => {
                Action::Delete { name }
            }
            (_, Err(Trouble::Refused(error))) => Action::Fail(error),
            (Awaited::Birth, Ok(Some(found))) => {
                if let Some(own) = &mut self.own {
                    own.czxid = Some(found.czxid);
                }
                Action::List
            }
            _ => self.look(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contend::name::{ContenderKind, NodeNaming};

    const MUTEX: Form = Form {
        naming: NodeNaming::Curator,
        kind: ContenderKind::Mutex,
        weight: 1,
        permits: 1,
        patience: None,
    };

    fn acquisition(patient: bool) -> Acquisition {
        let mut next = 0;
        Acquisition::new(MUTEX, patient, Arc::default(), move || {
            next += 1;
            Uuid::from_u128(next)
        })
    }

    fn name(guid: u128, sequence: u32) -> String {
        format!("{}{sequence:010}", MUTEX.prefix(Uuid::from_u128(guid)))
    }

    fn made(guid: u128, sequence: u32) -> Input {
        let name = name(guid, sequence);
        Input::Created { made: Ok(OwnNode { name, czxid: Some(100) }), listing: None }
    }

    fn made_among(guid: u128, sequence: u32, on: u64, children: &[String]) -> Input {
        let made = Ok(OwnNode { name: name(guid, sequence), czxid: Some(100) });
        Input::Created { made, listing: Some(listing(on, children)) }
    }

    fn unanswered() -> Input {
        Input::Created { made: Err(Trouble::Unanswered), listing: None }
    }

    fn listing(on: u64, children: &[String]) -> Listing {
        let children = children.iter().collect();
        Listing { on, children, watched: false, leaving: Vec::new(), lasting: Vec::new() }
    }

    fn listed(on: u64, children: &[String]) -> Input {
        Input::Listed(Ok(listing(on, children)))
    }

    /// The node, its czxid, and whether others contend.
    fn granted(action: Action) -> (String, i64, Option<bool>) {
        match action {
            Action::Hold { name, czxid, contested } => (name, czxid, contested),
            other => panic!("{other:?}"),
        }
    }

    fn begin(acquisition: &mut Acquisition) {
        assert!(matches!(acquisition.step(Input::Begin { session: 7 }), Action::Create { .. }));
    }

    #[test]
    fn alone_it_takes_one_round_trip() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        let granted = granted(acquisition.step(made_among(1, 0, 1, &[name(1, 0)])));
        assert_eq!(granted, (name(1, 0), 100, Some(false)));
    }

    #[test]
    fn what_was_listed_behind_the_create_is_judged_as_any_list() {
        let both = [name(1, 5), name(9, 4)];
        let mut one = acquisition(true);
        begin(&mut one);
        let Action::Watch { names, .. } = one.step(made_among(1, 5, 1, &both)) else { panic!() };
        assert_eq!(names, [name(9, 4)]);

        let mut impatient = acquisition(false);
        begin(&mut impatient);
        assert!(matches!(impatient.step(made_among(1, 5, 1, &both)), Action::Yield));

        let mut deleted = acquisition(true);
        begin(&mut deleted);
        let without = deleted.step(made_among(1, 5, 1, &both[1..]));
        assert!(matches!(without, Action::Create { .. }), "{without:?}");

        let mut doubtful = acquisition(true);
        begin(&mut doubtful);
        doubtful.step(unanswered());
        doubtful.step(Input::Synced(Ok(2)));
        doubtful.step(listed(2, &[]));
        let late = [name(1, 4), name(2, 5)];
        let Action::Delete { name: found } = doubtful.step(made_among(2, 5, 2, &late)) else {
            panic!()
        };
        assert_eq!(found, name(1, 4));
    }

    #[test]
    fn who_disagrees_about_the_permits_is_asked_about_first() {
        for contends in [false, true] {
            let form = Form::of_permits(NodeNaming::Curator, 1, 3);
            let mut one = Acquisition::new(form, true, Arc::default(), || Uuid::from_u128(1));
            begin(&mut one);
            let own = format!("{}0000000005", form.prefix(Uuid::from_u128(1)));
            let children = [own.clone(), "x-lease-1-of-9-0000000004".to_owned()];
            let made = Ok(OwnNode { name: own, czxid: Some(100) });
            let entered = Input::Created { made, listing: Some(listing(1, &children)) };
            let Action::AskOrigins { names } = one.step(entered) else { panic!() };
            assert_eq!(names, children[1..]);
            let origins = names.into_iter().map(|name| (name, contends)).collect();
            assert!(matches!(one.step(Input::Origins(Ok(origins))), Action::List));
            match one.step(listed(1, &children)) {
                Action::Fail(error) => assert!(contends && error.kind() == ErrorKind::Conflict),
                next => assert!(!contends && matches!(next, Action::Hold { .. }), "{next:?}"),
            }
        }
    }

    /// Behind a child that may be no contender, and one whose watch an ACL refuses.
    #[test]
    fn where_the_children_are_watched_it_waits_once_it_knows_who_comes_before() {
        let children = [name(1, 5), name(9, 3), "x-99-0000000004".to_owned()];
        let mut one = acquisition(true);
        begin(&mut one);
        assert!(matches!(one.step(made_among(1, 5, 1, &children)), Action::Watch { .. }));
        for _ in 0..3 {
            let mut next = one.step(Input::Watched(Ok(Watched::Hidden)));
            let mut asked = 0;
            while !matches!(next, Action::Wait) {
                next = one.step(match next {
                    Action::WatchChildren => {
                        Input::Listed(Ok(Listing { watched: true, ..listing(1, &children) }))
                    }
                    Action::AskOrigins { names } => {
                        asked += 1;
                        assert!(asked <= 2, "it asks again and again");
                        Input::Origins(Ok(names.into_iter().map(|name| (name, true)).collect()))
                    }
                    other => panic!("{other:?}"),
                });
            }
            assert!(asked > 0);
        }
    }

    #[test]
    fn s44_a_number_near_the_end_is_refused_whatever_was_listed_behind_it() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        let number = i32::MAX as u32 - 10;
        let Action::Fail(error) = acquisition.step(made_among(1, number, 1, &[name(1, number)]))
        else {
            panic!()
        };
        assert_eq!(error.kind(), ErrorKind::SequenceExhausted);
    }

    #[test]
    fn without_an_answer_to_the_list_it_lists_again() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        assert!(matches!(acquisition.step(made(1, 0)), Action::List));
        let granted = granted(acquisition.step(listed(1, &[name(1, 0)])));
        assert_eq!(granted, (name(1, 0), 100, Some(false)));
    }

    #[test]
    fn who_waits_learns_with_the_watch_whom_not_to_wait_for() {
        let mut one = acquisition(true);
        begin(&mut one);
        let children = [name(1, 5), "worker-0000000003".into(), "a-lock-0000000004".into()];
        let Action::Watch { names, .. } = one.step(made_among(1, 5, 1, &children)) else {
            panic!()
        };
        assert_eq!(names, ["a-lock-0000000004", "worker-0000000003"]);
        // One has passed: so all others are asked about together, and then it is this call's turn.
        let passed = Watched::Passed(vec!["a-lock-0000000004".into()]);
        assert!(matches!(one.step(Input::Watched(Ok(passed))), Action::List));
        let Action::AskOrigins { names } = one.step(listed(1, &children)) else { panic!() };
        assert_eq!(names, ["worker-0000000003"]);
        let origins = vec![("worker-0000000003".into(), false)];
        assert!(matches!(one.step(Input::Origins(Ok(origins))), Action::List));
        granted(one.step(listed(1, &children)));
    }

    #[test]
    fn who_does_not_wait_asks_before_it_gives_up() {
        for (is_before, is_granted) in [(true, false), (false, true)] {
            let mut one = acquisition(false);
            begin(&mut one);
            let children = [name(1, 5), "worker-0000000003".into()];
            let Action::AskOrigins { names } = one.step(made_among(1, 5, 1, &children)) else {
                panic!()
            };
            let origins = names.into_iter().map(|name| (name, is_before)).collect();
            assert!(matches!(one.step(Input::Origins(Ok(origins))), Action::List));
            let then = one.step(listed(1, &children));
            assert_eq!(matches!(then, Action::Hold { .. }), is_granted, "{then:?}");
            assert_eq!(matches!(then, Action::Yield), !is_granted, "{then:?}");
        }
    }

    #[test]
    fn what_is_known_to_last_takes_no_request() {
        let mut one = acquisition(false);
        begin(&mut one);
        one.step(made(1, 5));
        let children = [name(1, 5), "worker-0000000003".into()];
        let lasting = vec!["worker-0000000003".into()];
        let listing = Listing { lasting, ..listing(1, &children) };
        granted(one.step(Input::Listed(Ok(listing))));
    }

    /// Of a node that was made anew, everything is asked again.
    #[test]
    fn what_came_after_one_node_may_come_before_the_next() {
        let mut one = acquisition(true);
        begin(&mut one);
        let worker = "worker-0000000003".to_owned();
        one.step(made_among(1, 5, 1, &[name(1, 5), worker.clone()]));
        one.step(Input::Watched(Ok(Watched::Passed(vec![worker.clone()]))));
        assert!(matches!(
            one.step(listed(1, std::slice::from_ref(&worker))),
            Action::Create { .. }
        ));
        let next = one.step(made_among(2, 6, 1, &[name(2, 6), worker.clone()]));
        let Action::Watch { names, .. } = next else { panic!("{next:?}") };
        assert_eq!(names, [worker]);
    }

    #[test]
    fn a_crowd_of_strangers_is_asked_about_a_thousand_at_a_time() {
        let mut children: Vec<_> = (0..2_500).map(|number| format!("a-{number:010}")).collect();
        children.push(name(1, 2_500));
        let (mut one, mut rounds) = (acquisition(false), 0);
        begin(&mut one);
        let mut next = one.step(made_among(1, 2_500, 1, &children));
        while let Action::AskOrigins { names } = next {
            assert!(names.len() <= 1_000);
            rounds += 1;
            one.step(Input::Origins(Ok(names.into_iter().map(|name| (name, false)).collect())));
            next = one.step(listed(1, &children));
        }
        assert_eq!(rounds, 3);
        granted(next);
    }

    #[test]
    fn strangers_are_passed_if_that_is_wanted() {
        let ignore = ForeignContenders::Ignore(vec!["worker-".into(), "x-etl-".into()]);
        for (how, names, is_granted) in [
            (ForeignContenders::Warn, ["worker-0000000003", "n_0000000001"], true),
            (ForeignContenders::Warn, ["worker-0000000003", "x-5-0000000001"], false),
            (ignore.clone(), ["worker-0000000003", "x-etl-lock-0000000001"], true),
            (ignore, ["worker-0000000003", "n_0000000001"], false),
            (ForeignContenders::Wait, ["worker-0000000003", "n_0000000001"], false),
        ] {
            let mut one = acquisition(true);
            one.foreign = Arc::new(how.clone());
            begin(&mut one);
            let children = [name(1, 5), names[0].into(), names[1].into()];
            let next = one.step(made_among(1, 5, 1, &children));
            assert_eq!(matches!(next, Action::Hold { .. }), is_granted, "{how:?}: {next:?}");
        }
        // A name to the letter is never passed.
        let ignore = ForeignContenders::Ignore(vec!["_c_".into()]);
        let mut one = acquisition(true);
        one.foreign = Arc::new(ignore);
        begin(&mut one);
        let next = one.step(made_among(1, 5, 1, &[name(1, 5), name(2, 3)]));
        assert!(matches!(next, Action::Watch { .. }));
    }

    #[test]
    fn s12_a_predecessor_that_is_gone_before_the_watch_is_looked_for_again() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        acquisition.step(made(1, 5));
        let both = [name(1, 5), name(9, 4)];
        let Action::Watch { names, .. } = acquisition.step(listed(1, &both)) else { panic!() };
        assert_eq!(names, [name(9, 4)]);
        assert!(matches!(acquisition.step(Input::Watched(Ok(Watched::Gone))), Action::List));
        assert!(matches!(acquisition.step(listed(1, &both[..1])), Action::Hold { .. }));
    }

    #[test]
    fn when_all_that_were_ahead_are_gone_it_is_admitted_without_a_list() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        let all = [name(3, 7), name(1, 5), name(8, 3), name(9, 4)];
        let Action::Watch { names, successor } = acquisition.step(made_among(1, 5, 2, &all)) else {
            panic!()
        };
        assert_eq!(names, [name(9, 4), name(8, 3)]);
        let expected = OwnNode { name: name(1, 5), czxid: Some(100) };
        assert_eq!(successor, Some(expected));
        acquisition.step(Input::Watched(Ok(Watched::Set)));
        let granted = granted(acquisition.step(Input::Succeeded));
        assert_eq!(granted, (name(1, 5), 100, Some(true)), "one was behind");
    }

    #[test]
    fn a_list_comes_first_for_a_node_of_unknown_birth_and_on_a_programs_handle() {
        let both = [name(1, 5), name(9, 4)];
        let mut unborn = acquisition(true);
        begin(&mut unborn);
        let made = Ok(OwnNode { name: name(1, 5), czxid: None });
        let listing = Some(listing(1, &both));
        let next = unborn.step(Input::Created { made, listing });
        assert!(matches!(next, Action::Watch { successor: None, .. }), "{next:?}");
        let mut adopted = acquisition(true);
        adopted.step(Input::Begin { session: 0 });
        let next = adopted.step(made_among(1, 5, 1, &both));
        assert!(matches!(next, Action::Watch { successor: None, .. }), "{next:?}");
    }

    #[test]
    fn what_the_session_has_let_go_before_is_waited_for_by_nobody_of_it() {
        let all = [name(1, 6), name(9, 4), name(8, 5)];
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        let leaving = |names: &[String]| Listing { leaving: names.to_vec(), ..listing(1, &all) };
        acquisition.step(made(1, 6));
        let listed = Input::Listed(Ok(leaving(&all[2..])));
        let Action::Watch { names, .. } = acquisition.step(listed) else { panic!() };
        assert_eq!(names, [name(9, 4)], "others are in front as before");
        let listed = Input::Listed(Ok(leaving(&all[1..])));
        assert!(matches!(acquisition.step(listed), Action::Hold { .. }));
    }

    #[test]
    fn what_is_in_doubt_is_looked_for_among_all() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        acquisition.step(unanswered());
        acquisition.step(Input::Synced(Ok(2)));
        let found = Listing { leaving: vec![name(1, 4)], ..listing(2, &[name(1, 4)]) };
        let found = acquisition.step(Input::Listed(Ok(found)));
        assert!(matches!(found, Action::Inspect { .. }), "{found:?}");
    }

    #[test]
    fn s36_a_node_whose_making_was_not_confirmed_is_adopted() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        assert!(matches!(acquisition.step(unanswered()), Action::Sync));
        assert!(matches!(acquisition.step(Input::Synced(Ok(2))), Action::List));
        let Action::Inspect { name: found } = acquisition.step(listed(2, &[name(1, 3)])) else {
            panic!()
        };
        assert_eq!(found, name(1, 3));
        let mine = Stat { ephemeral_owner: 7, czxid: 55, ..Stat::default() };
        assert!(matches!(acquisition.step(Input::Inspected(Ok(Some(mine)))), Action::List));
        let granted = granted(acquisition.step(listed(2, &[name(1, 3)])));
        assert_eq!(granted, (name(1, 3), 55, Some(false)));
    }

    /// Its token would have to be guessed.
    #[test]
    fn s36_a_node_whose_stat_is_hidden_is_deleted_and_made_anew() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        acquisition.step(unanswered());
        acquisition.step(Input::Synced(Ok(2)));
        acquisition.step(listed(2, &[name(1, 3)]));
        let hidden = Trouble::Refused(Error::new(ErrorKind::NotAuthorized, "needs READ"));
        let next = acquisition.step(Input::Inspected(Err(hidden)));
        assert!(matches!(&next, Action::Delete { name: it } if *it == name(1, 3)), "{next:?}");
        assert!(matches!(acquisition.step(Input::Deleted(Ok(()))), Action::List));
        assert!(matches!(acquisition.step(listed(2, &[])), Action::Create { .. }));
        let granted = granted(acquisition.step(made_among(2, 4, 2, &[name(2, 4)])));
        assert_eq!(granted, (name(2, 4), 100, Some(false)));
    }

    #[test]
    fn s37_a_node_of_another_session_is_never_adopted() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        acquisition.step(unanswered());
        acquisition.step(Input::Synced(Ok(2)));
        acquisition.step(listed(2, &[name(1, 3)]));
        let foreign = Stat { ephemeral_owner: 6, czxid: 55, ..Stat::default() };
        let Action::Delete { .. } = acquisition.step(Input::Inspected(Ok(Some(foreign)))) else {
            panic!()
        };
    }

    #[test]
    fn s43a_absence_counts_only_on_the_connection_that_was_synced() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        acquisition.step(unanswered());
        acquisition.step(Input::Synced(Ok(2)));
        assert!(matches!(acquisition.step(listed(3, &[])), Action::Sync), "a third server may lag");
        acquisition.step(Input::Synced(Ok(3)));
        assert!(matches!(acquisition.step(listed(3, &[])), Action::Create { .. }));
    }

    #[test]
    fn s31_its_own_node_missing_is_never_a_grant() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        acquisition.step(made(1, 5));
        assert!(matches!(acquisition.step(listed(1, &[])), Action::Create { .. }));
    }

    #[test]
    fn s44_a_number_near_the_end_is_refused_and_left_to_be_deleted() {
        for number in [i32::MAX as u32, i32::MAX as u32 - 10] {
            let mut acquisition = acquisition(true);
            begin(&mut acquisition);
            let Action::Fail(error) = acquisition.step(made(1, number)) else { panic!() };
            assert_eq!(error.kind(), ErrorKind::SequenceExhausted);
            assert_eq!(acquisition.own_name(), Some(&*name(1, number)));
        }
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        let negative = format!("{}-2147483648", MUTEX.prefix(Uuid::from_u128(1)));
        let made = Ok(OwnNode { name: negative, czxid: Some(1) });
        let created = Input::Created { made, listing: None };
        let Action::Fail(error) = acquisition.step(created) else { panic!() };
        assert_eq!(error.kind(), ErrorKind::SequenceExhausted);
    }

    #[test]
    fn s44_an_adopted_node_with_a_number_near_the_end_is_refused_too() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        acquisition.step(unanswered());
        acquisition.step(Input::Synced(Ok(2)));
        acquisition.step(listed(2, &[name(1, i32::MAX as u32 - 10)]));
        let mine = Stat { ephemeral_owner: 7, czxid: 55, ..Stat::default() };
        let Action::Fail(error) = acquisition.step(Input::Inspected(Ok(Some(mine)))) else {
            panic!()
        };
        assert_eq!(error.kind(), ErrorKind::SequenceExhausted);
    }

    #[test]
    fn who_is_not_to_wait_yields_and_leaves_its_node_to_be_deleted() {
        let mut acquisition = acquisition(false);
        begin(&mut acquisition);
        acquisition.step(made(1, 5));
        let both = [name(1, 5), name(9, 4)];
        assert!(matches!(acquisition.step(listed(1, &both)), Action::Yield));
        assert_eq!(acquisition.own_name(), Some(&*name(1, 5)));
    }

    #[test]
    fn an_attempt_under_way_is_among_the_leftovers() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        assert_eq!(acquisition.doubtful_prefixes().len(), 1);
        acquisition.step(unanswered());
        assert_eq!(acquisition.doubtful_prefixes().len(), 1);
        acquisition.step(Input::Begin { session: 8 });
        assert_eq!(
            acquisition.doubtful_prefixes().len(),
            1,
            "the old session's are not ours any more"
        );
    }

    #[test]
    fn a_contender_that_may_not_be_read_is_watched_by_the_children() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        acquisition.step(made(1, 5));
        let both = [name(1, 5), name(9, 4)];
        assert!(matches!(acquisition.step(listed(1, &both)), Action::Watch { .. }));
        assert!(matches!(
            acquisition.step(Input::Watched(Ok(Watched::Hidden))),
            Action::WatchChildren
        ));
        let watched = Listing { watched: true, ..listing(1, &both) };
        assert!(matches!(acquisition.step(Input::Listed(Ok(watched))), Action::Wait));
        assert!(matches!(acquisition.step(Input::Woken), Action::WatchChildren));
    }

    #[test]
    fn a_child_watch_is_set_with_the_list_and_then_waited_for() {
        let mut acquisition = acquisition(true);
        begin(&mut acquisition);
        acquisition.form.permits = 20;
        acquisition.step(made(100, 50));
        let mut children: Vec<String> = (0..40u32).map(|n| name(n.into(), n)).collect();
        children.push(name(100, 50));
        assert!(matches!(acquisition.step(listed(1, &children)), Action::WatchChildren));
        let watched = Listing { watched: true, ..listing(1, &children) };
        assert!(matches!(acquisition.step(Input::Listed(Ok(watched.clone()))), Action::Wait));
        // One list for each wake-up, as long as there are so many.
        assert!(matches!(acquisition.step(Input::Woken), Action::WatchChildren));
        assert!(matches!(acquisition.step(Input::Listed(Ok(watched))), Action::Wait));
        assert!(matches!(acquisition.step(Input::Woken), Action::WatchChildren));
        let few = Listing { watched: true, ..listing(1, &children[21..]) };
        assert!(matches!(acquisition.step(Input::Listed(Ok(few))), Action::Hold { .. }));
    }
}
