//! Puts items into a queue and takes them out, for both queues: by age and by priority.

use std::fmt;
use std::sync::Arc;

use super::item_cache::{ItemCache, ItemStatus, ItemWatch, Reservation, SeenOn};
use super::item_names::{Item, Layout};
use super::items_taken_after_timeout::LateItems;
use super::leased_item::LeasedItem;
use crate::contend::{
    ContenderKind, Contention, Form, NodeNaming, OthersSeen, is_contender, pursue,
};
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::recipes::data::{Generation, NodeConfig};
use crate::recipes::locks::default_data;
use crate::rt::{self, Deadline};
use crate::session::Purpose;
use crate::session::{
    Answer, Call, Client, Created, Fault, Names, NodeKind, OnAnswer, Session, SessionState, Stop,
    Wait, cancelled, make_parents, room_for_data,
};
use crate::wire_values::Stat;

const OFFER: Purpose = Purpose::to_change("put an item into the queue", "CREATE on it");
const MAKE: Purpose = Purpose::to_change("make the queue", "CREATE on its parent");
const LIST: Purpose = Purpose::to_read("list the queue's items", "READ on it");
const READ: Purpose = Purpose::to_read("read an item", "READ on it");
const TAKE: Purpose =
    Purpose::to_change("take an item", "READ on it, and DELETE on the queue's node");

/// How many items a call that has met a leased one checks in one round trip: first a few, as they
/// may be all that are leased, then many.
const FEW: usize = 10;
const MANY: usize = 100;

/// After this many items that others had, in a row, a call that competes with other consumers stops
/// trying one after the other.
const MISSES: usize = 4;

/// A handle of a queue's items, to take, read and count them.
///
/// [`DistributedQueue`](crate::DistributedQueue) and [`PriorityQueue`](crate::PriorityQueue)
/// dereference to this type.
#[derive(Clone)]
pub struct Items {
    pub(crate) target: NodeConfig,
    cache: Arc<ItemCache>,
}

/// How to look for an item.
pub(crate) struct Search {
    call: Call,
    /// Whether to wait for an item that is not there yet.
    patient: bool,
    /// Whether `None` has to mean that there was no item; otherwise the time may have been short.
    is_thorough: bool,
}

/// What a call has seen so far.
#[derive(Default)]
struct Progress {
    /// Whether a server has answered this call, and whether there was then nothing to get.
    was_answered: bool,
    was_empty: bool,
    /// Whether this call has listed the items.
    has_listed: bool,
    /// Whether all items are known that were in the queue when the call began, or last woke up.
    is_certain: bool,
    has_to_look_back: bool,
    /// How many items, in a row, others had.
    misses: usize,
}

/// Why an attempt has not got an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missed {
    /// It is not known, or has to be passed over; there may be others.
    Unknown,
    /// The item does not exist any more.
    Gone,
    /// Another consumer has the item for now.
    Leased,
    /// Another consumer has taken or leased the item since it was read.
    Beaten,
    /// The queue's node was created again after its items were listed.
    Remade,
}

type Attempted<T> = Result<Result<T, Missed>, Stop>;

/// How to get an item that came too late for an earlier call of the client.
type Delivered<T> = fn(&LateItems, &str) -> Option<T>;

/// An item that was read, and was not leased at that time.
struct ReadItem {
    data: Vec<u8>,
    czxid: i64,
}

impl Items {
    pub(crate) fn new(client: Client, base: &str, name: &str, layout: Layout) -> Items {
        Items { target: NodeConfig::new(client, base, name), cache: ItemCache::new(layout) }
    }

    fn layout(&self) -> Layout {
        self.cache.layout
    }

    // ----- into the queue

    pub(crate) fn offer(&self, priority: u32, data: &[u8]) -> Result<i32> {
        let node = self.target.whole()?;
        let path = path::join(&node, &self.layout().prefix(priority));
        let most = room_for_data(&path, &self.target.acl);
        if data.len() > most {
            let message = format!(
                "could not put the item into the queue: it has {} bytes, at most {most} fit",
                data.len()
            );
            return Err(Error::new(ErrorKind::TooLarge, message).on(self.target.node()?));
        }
        let mut call = self.target.call(&self.connect_timeout());
        loop {
            let session = call.session().map_err(|stop| match stop {
                Stop::Failed(error) => error,
                _ => self.unreachable(),
            })?;
            let acl = &self.target.acl;
            let create = |s: &Session| s.create(&path, data, acl, NodeKind::PersistentSequential);
            match call.ask_in(&session, create) {
                Ok(Ok(made)) => return self.accept(call, &session, made),
                Ok(Err(Fault::NoNode)) => {}
                // The numbers do not grow any more, so the server has repeated one.
                Ok(Err(Fault::NodeExists)) => return Err(self.exhausted()),
                Ok(Err(fault)) if !fault.is_loss() => {
                    return Err(self.target.refused(&fault, OFFER));
                }
                _ => return Err(self.unanswered_offer()),
            }
            // Not a container: after its removal the names would repeat, and a consumer that has
            // read an item would delete another one of the same name.
            let make = |s: &Session| make_parents(s, &node, NodeKind::Persistent, acl);
            match call.ask_in(&session, make) {
                // Or it was removed again.
                Err(_) | Ok(Ok(()) | Err(Fault::NoNode)) => {}
                Ok(Err(fault)) if fault.is_loss() => {}
                Ok(Err(fault)) => return Err(self.target.refused(&fault, MAKE)),
            }
        }
    }

    /// Deletes the item again if its number is too close to the last one.
    fn accept(&self, mut call: Call, session: &Session, made: Created) -> Result<i32> {
        let item = self.layout().parse(path::last(&made.path));
        let sequence = item.as_ref().map(Item::sequence);
        if let Some(item) = item.filter(|item| !item.is_at_the_end()) {
            return Ok(item.sequence());
        }
        let node = self.target.whole()?;
        let take_back = |s: &Session| {
            s.delete(&made.path)?;
            // Without other items this restarts the numbers.
            let _ = s.delete(&node);
            Ok(())
        };
        match call.ask_in(session, take_back) {
            Ok(Ok(())) => Err(self.exhausted()),
            // A consumer has it already.
            Ok(Err(Fault::NoNode | Fault::NotEmpty)) => sequence.ok_or_else(|| self.exhausted()),
            Ok(Err(fault)) if !fault.is_loss() => Err(self.target.refused(&fault, TAKE)),
            _ => Err(self.unanswered_offer()),
        }
    }

    // ----- out of it

    /// Takes the first item out of the queue.
    pub(crate) fn take_by(&self, search: Search) -> Result<Option<Vec<u8>>> {
        self.seek(search, Some(LateItems::take), |call, session, claim, found| {
            self.remove(call, session, claim, found)
        })
    }

    /// Leases the first item.
    pub(crate) fn lease_by(&self, search: Search) -> Result<Option<LeasedItem>> {
        self.seek(search, None, |call, _, claim, found| self.secure(call, claim, found))
    }

    /// A search that waits this long for an item. Without any time to wait, it is a try: what a
    /// request may exceed a deadline by has to do.
    pub(crate) fn within(&self, wait: &Wait) -> Search {
        let (call, is_over) = (self.target.call(wait), wait.until().has_passed());
        let call = if is_over { call.with_grace() } else { call };
        Search { call, patient: !is_over, is_thorough: false }
    }

    /// A search that does not wait for an item; requests may take the connect timeout.
    pub(crate) fn at_once(&self) -> Search {
        let call = self.target.call(&self.connect_timeout());
        Search { call, patient: false, is_thorough: true }
    }

    fn late(&self) -> Arc<LateItems> {
        self.target.client.core().extension()
    }

    fn connect_timeout(&self) -> Wait {
        self.target.client.core().connect_timeout().into()
    }

    /// Tries one item after another, in their order. Items that came too late for earlier calls are
    /// returned before all others.
    fn seek<T>(
        &self,
        mut search: Search,
        delivered: Option<Delivered<T>>,
        attempt: impl Fn(&mut Call, &Arc<Session>, &Arc<Reservation>, ReadItem) -> Attempted<T>,
    ) -> Result<Option<T>> {
        self.target.node()?;
        let mut progress = Progress::default();
        match self.search(&mut search, &mut progress, delivered, attempt) {
            Ok(found) => Ok(found),
            Err(Stop::TimeOver) => self.over(&search, &progress),
            Err(stop) => Err(READ.stopped(stop, &search.call, self.target.node()?)),
        }
    }

    fn search<T>(
        &self,
        Search { call, patient, .. }: &mut Search,
        progress: &mut Progress,
        delivered: Option<Delivered<T>>,
        attempt: impl Fn(&mut Call, &Arc<Session>, &Arc<Reservation>, ReadItem) -> Attempted<T>,
    ) -> Result<Option<T>, Stop> {
        let _news = self.cache.subscribe(call.bell());
        let (late, prefix) = (self.late(), self.item_prefix()?);
        let _late = delivered.map(|_| late.subscribe(call.bell()));
        let has_late = || delivered.is_some() && late.has(&prefix);
        let has_news = || self.cache.has_news() || has_late();
        loop {
            if let Some(delivered) = delivered.and_then(|delivered| delivered(&late, &prefix)) {
                return Ok(Some(delivered));
            }
            let session = call.session()?;
            let on = SeenOn::now(&session);
            if !self.is_ready(call, &session, &on, *patient, progress)? {
                continue;
            }
            if let Some(claim) = self.cache.claim(&on) {
                let tried = match self.read(call, &session, &claim)? {
                    Ok(found) => {
                        progress.was_answered = true;
                        attempt(call, &session, &claim, found)?
                    }
                    Err(missed) => Err(missed),
                };
                match tried {
                    Ok(got) => {
                        claim.note_got();
                        return Ok(Some(got));
                    }
                    Err(missed) => {
                        self.pass(call, &session, &on, &claim, missed, progress)?;
                    }
                }
                continue;
            }
            if !*patient {
                if progress.is_certain {
                    return Ok(None);
                }
            } else if !self.cache.is_watched(&on) {
                let was_listed = self.list(call, &session, &on)?;
                progress.was_answered |= was_listed;
                progress.has_listed |= was_listed;
            } else if !self.cache.passed().is_empty() {
                progress.has_to_look_back = true;
            } else if !progress.was_answered && !call.until().is_never() {
                // During an outage that was not noticed yet, the watch reports nothing.
                progress.was_answered = self.make_certain(call, &session, &on)?;
            } else {
                progress.was_empty = progress.was_answered;
                call.wait_for(has_news)?;
                self.let_others_go_first(call, has_late);
                progress.is_certain = false;
            }
        }
    }

    /// Whether enough is known to try an item: if not, asks; false if there was no answer.
    fn is_ready(
        &self,
        call: &mut Call,
        session: &Arc<Session>,
        on: &SeenOn,
        patient: bool,
        progress: &mut Progress,
    ) -> Result<bool, Stop> {
        let has_to_be_certain = match self.layout() {
            // Items that are not known yet come later in the order.
            Layout::ByAge => !patient && self.cache.is_out(on),
            Layout::ByPriority => true,
        };
        if has_to_be_certain && !progress.is_certain {
            if !self.make_certain(call, session, on)? {
                return Ok(false);
            }
            (progress.is_certain, progress.has_to_look_back) = (true, true);
            progress.was_answered = true;
        }
        if progress.has_to_look_back || self.cache.is_due(on) {
            progress.has_to_look_back = !self.look_back(call, session, on)?;
        }
        Ok(!progress.has_to_look_back)
    }

    /// Goes on after an item that was not got.
    fn pass(
        &self,
        call: &mut Call,
        session: &Session,
        on: &SeenOn,
        claim: &Reservation,
        missed: Missed,
        progress: &mut Progress,
    ) -> Result<(), Stop> {
        progress.was_answered |= missed != Missed::Unknown;
        match missed {
            Missed::Unknown => Ok(()),
            Missed::Remade => {
                claim.note_gone();
                self.cache.forget();
                progress.is_certain = false;
                Ok(())
            }
            Missed::Gone => self.pass_gone(call, session, on, progress),
            Missed::Leased | Missed::Beaten => {
                claim.pass_over();
                self.pass_leased(call, session, missed == Missed::Beaten, progress)
            }
        }
    }

    /// Goes on after an item that others have taken before it was read. A list from before this call
    /// is outdated then, so the items are listed again; otherwise others compete for them now.
    fn pass_gone(
        &self,
        call: &mut Call,
        session: &Session,
        on: &SeenOn,
        progress: &mut Progress,
    ) -> Result<(), Stop> {
        if !self.is_missed(self.cache.is_spread() || progress.has_listed, progress) {
            return Ok(());
        }
        let node = self.target.whole()?;
        let listed = call.ask_in(session, |s| s.names_and_stat(&node, false))?;
        progress.has_listed |= self.heard(listed, LIST, |listed| self.learn(on, listed, None))?;
        Ok(())
    }

    /// Goes on after an item that others have leased, or taken since it was read.
    fn pass_leased(
        &self,
        call: &mut Call,
        session: &Session,
        is_beaten: bool,
        progress: &mut Progress,
    ) -> Result<(), Stop> {
        if !self.is_missed(is_beaten || self.cache.is_spread(), progress) {
            return Ok(());
        }
        self.look_ahead(call, session)
    }

    /// Notes that others had an item. Whether it is time to stop trying one after the other.
    fn is_missed(&self, competes: bool, progress: &mut Progress) -> bool {
        if competes {
            self.cache.note_lost();
            progress.misses += 1;
            if progress.misses < MISSES {
                return false;
            }
        }
        progress.misses = 0;
        true
    }

    /// Has a call that was woken wait for a moment if other consumers were faster lately.
    fn let_others_go_first(&self, call: &Call, has_late: impl Fn() -> bool) {
        let Some(end) = self.cache.pause() else { return };
        // Not for most of the time that is left.
        let is_soon = call.until().instant().is_some_and(|until| {
            until.saturating_duration_since(end) < end.saturating_duration_since(rt::now())
        });
        if !is_soon {
            call.has_come(Deadline::at(end), || self.cache.has_items() || has_late());
        }
    }

    /// Asks, through the leader, whether there are unknown items; if so, lists all. False if there was
    /// no answer.
    fn make_certain(&self, call: &mut Call, session: &Session, on: &SeenOn) -> Result<bool, Stop> {
        let node = self.target.whole()?;
        let listed = call.ask_in(session, |s| {
            let generation = s.confirm(&node)?.map(|stat| Generation::of(&stat));
            if generation.is_some_and(|generation| self.cache.has(generation)) {
                return Ok(None);
            }
            Ok(Some(s.names_and_stat(&node, false)?))
        })?;
        self.heard(listed, LIST, |listed| {
            if let Some(listed) = listed {
                self.learn(on, listed, None);
            }
        })
    }

    /// Lists the items and sets a watch for new ones, even if the queue's node does not exist yet.
    /// False if there was no answer.
    fn list(&self, call: &mut Call, session: &Arc<Session>, on: &SeenOn) -> Result<bool, Stop> {
        let node = self.target.whole()?;
        let watch = self.cache.watch(session, &node);
        let begin = rt::now();
        let listed = call.ask_in(session, |s| {
            loop {
                let listed = s.names_and_stat(&node, true)?;
                if listed.is_some() || !s.await_making(&node)? {
                    return Ok(listed);
                }
            }
        })?;
        self.heard(listed, LIST, |listed| {
            self.cache.note_trip(rt::now().saturating_duration_since(begin));
            self.learn(on, listed, Some(watch));
        })
    }

    fn learn(&self, on: &SeenOn, listed: Option<(Names, Stat)>, watch: Option<ItemWatch>) {
        let (children, queue) = listed.unzip();
        let others = self.cache.learn(on, &children.unwrap_or_default(), queue.as_ref(), watch);
        self.warn_of(others);
    }

    /// Checks whether the next items are leased, too, until one of them is not.
    fn look_ahead(&self, call: &mut Call, session: &Session) -> Result<(), Stop> {
        let mut most = FEW;
        loop {
            let items = self.cache.ahead(most);
            if items.is_empty() {
                return Ok(());
            }
            let (paths, warn) = (self.paths(&items)?, self.blocked_warning()?);
            let seen = call.ask_in(session, |s| look_at(s, &paths, false, &warn))?;
            let mut is_free = false;
            let was_answered = self.heard(seen, READ, |sights| {
                is_free = sights
                    .iter()
                    .any(|status| matches!(status, ItemStatus::Free | ItemStatus::Hidden));
                self.cache.looked_ahead(items.into_iter().zip(sights));
            })?;
            if is_free || !was_answered {
                return Ok(());
            }
            most = MANY;
        }
    }

    /// Checks again the items that were passed over, and sets watches for the end of their leases.
    /// False if there was no answer.
    fn look_back(
        &self,
        call: &mut Call,
        session: &Arc<Session>,
        on: &SeenOn,
    ) -> Result<bool, Stop> {
        for items in self.cache.passed().chunks(MANY) {
            let paths = self.paths(items)?;
            let watches: Vec<_> =
                paths.iter().map(|path| self.cache.watch(session, path)).collect();
            let warn = self.blocked_warning()?;
            let seen = call.ask_in(session, |s| look_at(s, &paths, true, &warn))?;
            let was_answered = self.heard(seen, READ, |sights| {
                let seen = items.iter().cloned().zip(watches).zip(sights);
                let seen = seen.map(|((item, watch), status)| (item, watch, status));
                self.cache.looked_back(on, seen.collect());
            })?;
            if !was_answered {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The items' paths, as the server knows them.
    fn paths(&self, items: &[Item]) -> Result<Vec<String>> {
        let node = self.target.whole()?;
        Ok(items.iter().map(|item| path::join(&node, item.name())).collect())
    }

    /// Reads the item, whose data never change. Fails if its number does not say whether it is its
    /// turn.
    fn read(&self, call: &mut Call, session: &Session, claim: &Reservation) -> Attempted<ReadItem> {
        let path = path::join(&self.target.whole()?, claim.item().name());
        let is_beyond = claim.item().is_beyond();
        let read = call.ask_in(session, |s| match is_beyond {
            true => Ok(s.confirm(&path)?.map(|stat| (Vec::new(), stat))),
            false => s.data(&path, false),
        })?;
        Ok(match read {
            Err(fault) if fault.is_loss() => Err(Missed::Unknown),
            Ok(None) => {
                claim.note_gone();
                Err(Missed::Gone)
            }
            Ok(Some(_)) if is_beyond => return Err(beyond(&self.item_node(claim)?).into()),
            Err(fault) if is_beyond => return Err(self.target.refused(&fault, READ).into()),
            Ok(Some((_, stat))) if !claim.is_made_at(stat.czxid) => Err(Missed::Remade),
            Ok(Some((_, stat))) if stat.children > 0 => Err(Missed::Leased),
            Ok(Some((data, stat))) => Ok(ReadItem { data, czxid: stat.czxid }),
            Err(Fault::NoAuth) => {
                warn_of_hidden(&self.target.client, &self.item_node(claim)?);
                claim.note_hidden();
                Err(Missed::Unknown)
            }
            Err(fault) => {
                return Err(self.target.refused(&fault, READ).on(self.item_node(claim)?).into());
            }
        })
    }

    /// Deletes an item that was read. Does not begin after the timeout. Once it has begun, a call
    /// whose time is over fails, as the item may be gone; if it is, the next call that takes gets it.
    fn remove(
        &self,
        call: &mut Call,
        session: &Arc<Session>,
        claim: &Arc<Reservation>,
        found: ReadItem,
    ) -> Attempted<Vec<u8>> {
        call.check()?;
        call.allow_grace();
        let item = self.item_node(claim)?;
        let path = path::join(&self.target.whole()?, claim.item().name());
        let refused = |fault: &Fault| Stop::Failed(self.target.refused(fault, TAKE).on(&item));
        let (mut session, data) = (Arc::clone(session), Arc::new(found.data));
        // Whether the reply to a deletion was lost.
        let mut is_unknown = false;
        loop {
            let is_there = !is_unknown
                || match call.ask_in(&session, |s| s.confirm(&path)) {
                    Ok(Ok(Some(stat))) if stat.czxid == found.czxid => true,
                    Ok(Ok(_)) => {
                        claim.note_gone();
                        return Err(unanswered_take(&item).into());
                    }
                    Ok(Err(fault)) if fault.is_loss() => false,
                    Ok(Err(fault)) => return Err(refused(&fault)),
                    Err(_) => return Err(unanswered_take(&item).into()),
                };
            if is_there {
                let late = self.deliver_late(claim, &data)?;
                match call.ask_in(&session, |s| s.delete_or(&path, late)) {
                    Ok(Ok(())) => {
                        claim.note_gone();
                        return Ok(Ok(Arc::unwrap_or_clone(data)));
                    }
                    Ok(Err(Fault::NoNode)) => {
                        claim.note_gone();
                        return match is_unknown {
                            true => Err(unanswered_take(&item).into()),
                            false => Ok(Err(Missed::Beaten)),
                        };
                    }
                    Ok(Err(Fault::NotEmpty)) => return Ok(Err(Missed::Beaten)),
                    Ok(Err(fault)) if fault.is_loss() => is_unknown = true,
                    Ok(Err(fault)) => return Err(refused(&fault)),
                    Err(_) if is_unknown => return Err(unanswered_take(&item).into()),
                    Err(Stop::Cancelled) => return Err(cancelled(&item).in_doubt().into()),
                    Err(_) => return Err(late_take(&item).into()),
                }
            }
            // Without a session the outcome stays unknown.
            session = call.session().map_err(|stop| match stop {
                Stop::Failed(error) => unanswered_take(&item).caused_by(error),
                _ => unanswered_take(&item),
            })?;
        }
    }

    /// What to do with the answer to an item's deletion that comes too late for its call.
    fn deliver_late(&self, claim: &Arc<Reservation>, data: &Arc<Vec<u8>>) -> Result<OnAnswer<()>> {
        let (claim, data) = (Arc::clone(claim), Arc::clone(data));
        let (prefix, cached) = (self.item_prefix()?, self.late());
        Ok(Box::new(move |answer| match answer {
            Ok(()) => {
                claim.note_gone();
                cached.put(&prefix, Arc::unwrap_or_clone(data));
            }
            Err(Fault::NoNode) => claim.note_gone(),
            // The call has reported the doubt.
            Err(_) => {}
        }))
    }

    /// Takes the lease of an item that was read.
    fn secure(
        &self,
        call: &Call,
        claim: &Arc<Reservation>,
        found: ReadItem,
    ) -> Attempted<LeasedItem> {
        let node = self.item_node(claim)?;
        let contention = Contention {
            client: &self.target.client,
            node: &node,
            reported_as: &node,
            noun: "item's lease",
            data: default_data(),
            acl: &self.target.acl,
            form: Form::new(NodeNaming::Curator, ContenderKind::Mutex),
            tells_facts: false,
            must_exist: true,
            asks_worse_than: None,
            hold_at_most: None,
        };
        let mut lease = Call::new(call.core(), call.limit());
        let got = match pursue(&contention, &mut lease, false, &OthersSeen::default(), None, Some) {
            // Another client has taken the item.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            got => got?,
        };
        match got {
            Some(hold) => Ok(Ok(LeasedItem::new(hold, Arc::clone(claim), node, found.data))),
            None => {
                call.check_asking()?;
                Ok(Err(Missed::Beaten))
            }
        }
    }

    /// The items that came too late for calls of this client, and that no later call has returned.
    pub(super) fn take_late(&self) -> Result<Vec<Vec<u8>>> {
        let (late, prefix) = (self.late(), self.item_prefix()?);
        Ok(std::iter::from_fn(|| late.take(&prefix)).collect())
    }

    // ----- reading

    /// The data of the first item that is not leased.
    pub(super) fn first(&self) -> Result<Option<Vec<u8>>> {
        let layout = self.layout();
        let (client, own_node) = (&self.target.client, self.target.node()?);
        let warn = |path: &str| warn_of_hidden(client, &path::join(own_node, path::last(path)));
        let warn_of_blocked = self.blocked_warning()?;
        self.target.ask(READ, |s, node| {
            s.sync()?;
            let Some(children) = s.names(node, false)? else { return Ok(None) };
            let (items, _) = layout.sort(&children);
            let items = items.into_iter().take_while(|item| !item.is_beyond());
            let paths: Vec<String> = items.map(|item| path::join(node, item.name())).collect();
            // Usually it is the first one, which is therefore read without a check before.
            let Some((first, others)) = paths.split_first() else { return Ok(None) };
            if let Some(data) = read_free(s, first, &warn)? {
                return Ok(Some(data));
            }
            for paths in others.chunks(MANY) {
                for (path, status) in paths.iter().zip(look_at(s, paths, false, &warn_of_blocked)?)
                {
                    if !matches!(status, ItemStatus::Free | ItemStatus::Hidden) {
                        continue;
                    }
                    if let Some(data) = read_free(s, path, &warn)? {
                        return Ok(Some(data));
                    }
                }
            }
            Ok(None)
        })
    }

    pub(super) fn count(&self) -> Result<usize> {
        let layout = self.layout();
        self.target.ask(LIST, |s, node| {
            s.sync()?;
            let children = s.names(node, false)?.unwrap_or_default();
            Ok(children.iter().filter(|name| layout.parse(name).is_some()).count())
        })
    }

    // ----- answers, names and messages

    /// Learns from an answer; false if there was none.
    fn heard<T>(
        &self,
        answer: Answer<T>,
        purpose: Purpose,
        learn: impl FnOnce(T),
    ) -> Result<bool, Stop> {
        match answer {
            Ok(found) => {
                learn(found);
                Ok(true)
            }
            Err(fault) if fault.is_loss() => Ok(false),
            Err(fault) => Err(self.target.refused(&fault, purpose).into()),
        }
    }

    /// What a call returns that got nothing before its timeout: `None` only if a server said that
    /// there was nothing, or answers, but has not answered all that the call had to ask.
    fn over<T>(&self, search: &Search, progress: &Progress) -> Result<Option<T>> {
        let is_served = || self.target.client.state() == SessionState::Connected;
        if progress.was_empty || !search.is_thorough && progress.was_answered && is_served() {
            return Ok(None);
        }
        Err(READ.unanswered(self.target.client.core(), false, self.target.node()?))
    }

    /// The path that the items' nodes begin with, as the client names them.
    fn item_prefix(&self) -> Result<String> {
        Ok(path::join(self.target.node()?, &self.layout().prefix(0)))
    }

    /// The item's node, as the client names it.
    fn item_node(&self, claim: &Reservation) -> Result<String> {
        Ok(path::join(self.target.node()?, claim.item().name()))
    }

    /// Warns, once, of an item that is passed over for ever: its children are no leases.
    fn blocked_warning(&self) -> Result<impl Fn(&str)> {
        let (core, node) = (self.target.client.core(), self.target.node()?);
        Ok(move |path: &str| {
            core.warn_once(&path::join(node, path::last(path)), || {
                Some(
                    "the item has children that are no leases; passing it over until they are \
                      deleted"
                        .to_owned(),
                )
            });
        })
    }

    fn warn_of(&self, others: usize) {
        if others > 0 {
            let node = self.target.node().unwrap_or_default();
            self.target.client.core().warn_once(node, || {
                Some(format!("ignoring {others} children that are no items of this queue"))
            });
        }
    }

    fn unreachable(&self) -> Error {
        let limit = self.target.client.core().connect_timeout();
        let message = format!("no server answered within {limit:?}; the item is not in the queue");
        Error::new(ErrorKind::Connect, message).on(self.target.node().unwrap_or_default())
    }

    fn unanswered_offer(&self) -> Error {
        Error::new(
            ErrorKind::ConnectionLoss,
            "no reply to the request that puts the item into the queue: it may be there, or not",
        )
        .on(self.target.node().unwrap_or_default())
    }

    fn exhausted(&self) -> Error {
        Error::new(
            ErrorKind::SequenceExhausted,
            "the sequence numbers of the queue's node are used up; they start again when the queue \
             is empty: take all items, then retry",
        )
        .on(self.target.node().unwrap_or_default())
    }
}

/// Checks whether these items are leased; with `watch`, sets watches on their leases.
fn look_at(
    session: &Session,
    paths: &[String],
    watch: bool,
    warn_of_blocked: &impl Fn(&str),
) -> Answer<Vec<ItemStatus>> {
    let status = |(path, answer): (&String, Answer<Option<Names>>)| match answer {
        Ok(None) => Ok(ItemStatus::Gone),
        Ok(Some(children)) if children.is_empty() => Ok(ItemStatus::Free),
        Ok(Some(children)) => {
            if !children.iter().any(is_contender) {
                warn_of_blocked(path);
            }
            Ok(ItemStatus::Leased)
        }
        Err(Fault::NoAuth) => Ok(ItemStatus::Hidden),
        Err(fault) => Err(fault),
    };
    paths.iter().zip(session.children_each(paths, watch)).map(status).collect()
}

/// The data of the item; `None` if it is gone or leased, or may not be read.
fn read_free(
    session: &Session,
    path: &str,
    warn_of_hidden: &impl Fn(&str),
) -> Answer<Option<Vec<u8>>> {
    match session.data(path, false) {
        Err(Fault::NoAuth) => {
            warn_of_hidden(path);
            Ok(None)
        }
        found => Ok(found?.filter(|(_, stat)| stat.children == 0).map(|(data, _)| data)),
    }
}

fn warn_of_hidden(client: &Client, item: &str) {
    client.core().warn_once(item, || {
        Some("not authorized to read the item: requires READ on it; passing it over".to_owned())
    });
}

fn unanswered_take(item: &str) -> Error {
    Error::new(
        ErrorKind::ConnectionLoss,
        "no reply to the deletion of an item: it may be gone from the queue, and this call does \
         not return it; lease items that must not be lost",
    )
    .on(item)
}

fn late_take(item: &str) -> Error {
    Error::new(
        ErrorKind::ConnectionLoss,
        "no reply in time to the deletion of an item: if it is gone from the queue, the next call of \
         this client that takes from the queue returns it, or `late_items`",
    )
    .on(item)
}

fn beyond(item: &str) -> Error {
    Error::new(
        ErrorKind::SequenceExhausted,
        "the item was offered after the sequence numbers of the queue's node were used up, so its \
         place in the order is unknown: read the node with another tool and delete it, then retry",
    )
    .on(item)
}

impl fmt::Debug for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Items").field("target", &self.target).field("cache", &self.cache).finish()
    }
}
