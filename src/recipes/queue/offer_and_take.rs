//! Puts items into a queue and takes them out, for both queues: by age and by priority.

use std::fmt;
use std::sync::Arc;

use super::item_cache::{ItemCache, ItemStatus, ItemWatch, Reservation, SeenOn};
use super::item_names::Item;
use super::item_names::Layout;
use super::lease::LeasedItem;
use crate::contend::acquire::{Contention, Limits, pursue};
use crate::contend::others_ahead::OthersAhead;
use crate::contend::ticket::{ContenderKind, Form, NodeNaming, Ticket};
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::recipes::generation::Generation;
use crate::recipes::lock_config::default_data;
use crate::recipes::node_config::{NodeConfig, Purpose, WaitLimits};
use crate::rt::{self, Deadline};
use crate::session::client::Client;
use crate::session::connection::{Answer, Created, Fault, Names, NodeKind, Stat, room};
use crate::session::create_parents::make_parents;
use crate::session::late_queue_items::LateItems;
use crate::session::session::Session;
use crate::session::status::SessionState;
use crate::session::wait::Wait;
use crate::session::watch_loop::{WatchLoop, worth_asking};

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

/// A queue's node, and the cache of its items.
#[derive(Clone)]
pub(crate) struct Items {
    pub(crate) target: NodeConfig,
    cache: Arc<ItemCache>,
}

/// For how long to look for an item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search<'a> {
    pub(crate) wait: WaitLimits<'a>,
    /// Whether to wait for an item that is not there yet.
    pub(crate) patient: bool,
    /// Whether `None` has to mean that there was no item; otherwise the time may have been short.
    pub(crate) is_thorough: bool,
}

/// What a call has seen so far.
#[derive(Default)]
struct Progress {
    /// Whether a server has answered this call, and whether there was then nothing to get.
    was_answered: bool,
    was_empty: bool,
    /// Whether this call has listed the items.
    has_listed: bool,
    /// How many items, in a row, others had.
    misses: usize,
}

impl<'a> Search<'a> {
    pub(crate) const FOREVER: Search<'static> =
        Search { wait: WaitLimits::FOREVER, patient: true, is_thorough: false };

    /// Without any time to wait, it is a try: what a request may exceed a deadline by has to do.
    pub(crate) fn waiting(wait: &'a Wait) -> Search<'a> {
        let limits = WaitLimits::from(wait);
        if wait.until().has_passed() {
            let wait = WaitLimits { until: limits.ask_until, ..limits };
            return Search { wait, patient: false, is_thorough: false };
        }
        Search { wait: limits, patient: true, is_thorough: false }
    }
}

/// The result of an attempt to get one item.
enum Tried<T> {
    Got(T),
    /// Not this one; there may be others.
    Another,
    /// The item does not exist any more.
    Gone,
    /// Another consumer has the item for now.
    Leased,
    /// Another consumer has taken or leased the item since it was read.
    Beaten,
    /// The queue's node was created again after its items were listed.
    Remade,
    NoTime,
}

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
        let most = room(&path, &self.target.acl);
        if data.len() > most {
            let message = format!(
                "could not put the item into the queue: it has {} bytes, at most {most} fit",
                data.len()
            );
            return Err(Error::new(ErrorKind::TooLarge, message).on(self.target.node()?));
        }
        let until = Deadline::after(self.target.client.core().connect_timeout());
        let mut watch_loop = self.target.watch_loop(WaitLimits::until(until));
        loop {
            let session = watch_loop.session(until)?.ok_or_else(|| self.unreachable())?;
            let acl = &self.target.acl;
            let create = |s: &Session| s.create(&path, data, acl, NodeKind::PersistentSequential);
            match watch_loop.ask(&session, until, create) {
                Some(Ok(made)) => return self.accept(&watch_loop, &session, until, made),
                Some(Err(Fault::NoNode)) => {}
                // The numbers do not grow any more, so the server has repeated one.
                Some(Err(Fault::NodeExists)) => return Err(self.exhausted()),
                None | Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => {
                    return Err(self.unanswered_offer());
                }
                Some(Err(fault)) => return Err(self.target.refused(&fault, OFFER)),
            }
            // Not a container: after its removal the names would repeat, and a consumer that has
            // read an item would delete another one of the same name.
            let make = |s: &Session| make_parents(s, &node, NodeKind::Persistent, acl);
            match watch_loop.ask(&session, until, make) {
                None | Some(Ok(()) | Err(Fault::ConnectionLoss | Fault::SessionEnded)) => {}
                // It was removed again.
                Some(Err(Fault::NoNode)) => {}
                Some(Err(fault)) => return Err(self.target.refused(&fault, MAKE)),
            }
        }
    }

    /// Deletes the item again if its number is too close to the last one.
    fn accept(
        &self,
        watch_loop: &WatchLoop,
        session: &Arc<Session>,
        until: Deadline,
        made: Created,
    ) -> Result<i32> {
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
        match watch_loop.ask(session, until, take_back) {
            Some(Ok(())) => Err(self.exhausted()),
            // A consumer has it already.
            Some(Err(Fault::NoNode | Fault::NotEmpty)) => sequence.ok_or_else(|| self.exhausted()),
            None | Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => {
                Err(self.unanswered_offer())
            }
            Some(Err(fault)) => Err(self.target.refused(&fault, TAKE)),
        }
    }

    // ----- out of it

    /// Takes the first item out of the queue.
    pub(crate) fn take(&self, search: Search<'_>) -> Result<Option<Vec<u8>>> {
        self.seek(search, Some(LateItems::take), |watch_loop, session, claim, found| {
            self.remove(watch_loop, session, claim, found, search)
        })
    }

    /// Leases the first item.
    pub(crate) fn lease(&self, search: Search<'_>) -> Result<Option<LeasedItem>> {
        self.seek(search, None, |watch_loop, _, claim, found| {
            self.secure(watch_loop, claim, found, search)
        })
    }

    /// A search that does not wait for an item; requests may take the connect timeout.
    pub(crate) fn at_once(&self) -> Search<'static> {
        let until = Deadline::after(self.target.client.core().connect_timeout());
        Search { wait: WaitLimits::until(until), patient: false, is_thorough: true }
    }

    /// Tries one item after another, in their order. Items that came too late for earlier calls are
    /// returned before all others.
    fn seek<T>(
        &self,
        search: Search<'_>,
        delivered: Option<Delivered<T>>,
        attempt: impl Fn(&mut WatchLoop, &Arc<Session>, &Arc<Reservation>, ReadItem) -> Result<Tried<T>>,
    ) -> Result<Option<T>> {
        self.target.node()?;
        let mut watch_loop = self.target.watch_loop(search.wait);
        let _news = self.cache.subscribe(watch_loop.bell());
        let (late, prefix) = (self.target.client.core().late(), self.item_prefix()?);
        let _late = delivered.map(|_| late.subscribe(watch_loop.bell()));
        let has_late = || delivered.is_some() && late.has(&prefix);
        let has_news = || self.cache.has_news() || has_late();
        let until = search.wait.ask_until;
        let mut progress = Progress::default();
        // Whether all items are known that were in the queue when the call began, or last woke up.
        let mut is_certain = false;
        let mut has_to_look_back = false;
        loop {
            if let Some(delivered) = delivered.and_then(|delivered| delivered(late, &prefix)) {
                return Ok(Some(delivered));
            }
            let Some(session) = watch_loop.session(until)? else {
                return self.over(search, &progress);
            };
            let on = SeenOn::now(&session);
            let has_to_be = match self.layout() {
                // Items that are not known yet come later in the order.
                Layout::ByAge => !search.patient && self.cache.is_out(&on),
                Layout::ByPriority => true,
            };
            if has_to_be && !is_certain {
                match self.make_certain(&mut watch_loop, &session, &on, until)? {
                    Tried::Got(()) => {
                        (is_certain, has_to_look_back, progress.was_answered) = (true, true, true);
                    }
                    Tried::NoTime => return self.over(search, &progress),
                    _ => continue,
                }
            }
            if has_to_look_back || self.cache.is_due(&on) {
                match self.look_back(&watch_loop, &session, &on, until)? {
                    Tried::Got(()) => has_to_look_back = false,
                    Tried::NoTime => return self.over(search, &progress),
                    _ => continue,
                }
            }
            if let Some(claim) = self.cache.claim(&on) {
                let tried = if claim.item().is_beyond() {
                    self.refuse(&watch_loop, &session, &claim, until)?
                } else {
                    match self.read(&watch_loop, &session, &claim, until)? {
                        Tried::Got(found) => {
                            progress.was_answered = true;
                            attempt(&mut watch_loop, &session, &claim, found)?
                        }
                        Tried::Another => Tried::Another,
                        Tried::Gone => Tried::Gone,
                        Tried::Leased => Tried::Leased,
                        Tried::Beaten => Tried::Beaten,
                        Tried::Remade => Tried::Remade,
                        Tried::NoTime => Tried::NoTime,
                    }
                };
                progress.was_answered |= !matches!(tried, Tried::Another | Tried::NoTime);
                let next = match tried {
                    Tried::Got(got) => {
                        claim.note_got();
                        return Ok(Some(got));
                    }
                    Tried::Another => continue,
                    Tried::NoTime => return self.over(search, &progress),
                    Tried::Remade => {
                        claim.note_gone();
                        self.cache.forget();
                        is_certain = false;
                        continue;
                    }
                    Tried::Gone => self.pass_gone(&watch_loop, &session, &on, until, &mut progress),
                    Tried::Leased | Tried::Beaten => {
                        claim.pass_over();
                        let is_beaten = matches!(tried, Tried::Beaten);
                        self.pass_leased(&watch_loop, &session, until, is_beaten, &mut progress)
                    }
                };
                if let Tried::NoTime = next? {
                    return self.over(search, &progress);
                }
                continue;
            }
            if !search.patient {
                if is_certain {
                    return Ok(None);
                }
            } else if !self.cache.is_watched(&on) {
                match self.list(&watch_loop, &session, &on, until)? {
                    Tried::NoTime => return self.over(search, &progress),
                    tried => {
                        let was_listed = matches!(tried, Tried::Got(()));
                        progress.was_answered |= was_listed;
                        progress.has_listed |= was_listed;
                    }
                }
            } else if !self.cache.passed().is_empty() {
                has_to_look_back = true;
            } else if !progress.was_answered && !search.wait.until.is_never() {
                // During an outage that was not noticed yet, the watch reports nothing.
                match self.make_certain(&mut watch_loop, &session, &on, until)? {
                    Tried::NoTime => return self.over(search, &progress),
                    tried => progress.was_answered = matches!(tried, Tried::Got(())),
                }
            } else {
                progress.was_empty = progress.was_answered;
                if !watch_loop.has_come(search.wait.until, has_news) {
                    return self.over(search, &progress);
                }
                self.let_others_go_first(&watch_loop, search, has_late);
                is_certain = false;
            }
        }
    }

    /// Goes on after an item that others have taken before it was read. A list from before this call
    /// is outdated then, so the items are listed again; otherwise others compete for them now.
    fn pass_gone(
        &self,
        watch_loop: &WatchLoop,
        session: &Arc<Session>,
        on: &SeenOn,
        until: Deadline,
        progress: &mut Progress,
    ) -> Result<Tried<()>> {
        if self.cache.is_spread() || progress.has_listed {
            self.cache.note_lost();
            progress.misses += 1;
            if progress.misses < MISSES {
                return Ok(Tried::Got(()));
            }
        }
        progress.misses = 0;
        let node = self.target.whole()?;
        let listed = watch_loop.ask(session, until, |s| s.names_and_stat(&node, false));
        let listed = self.heard(listed, LIST, |listed| self.learn(on, listed, None))?;
        progress.has_listed |= matches!(listed, Tried::Got(()));
        Ok(listed)
    }

    /// Goes on after an item that others have leased, or taken since it was read.
    fn pass_leased(
        &self,
        watch_loop: &WatchLoop,
        session: &Arc<Session>,
        until: Deadline,
        is_beaten: bool,
        progress: &mut Progress,
    ) -> Result<Tried<()>> {
        if is_beaten || self.cache.is_spread() {
            self.cache.note_lost();
            progress.misses += 1;
            if progress.misses < MISSES {
                return Ok(Tried::Got(()));
            }
        }
        progress.misses = 0;
        self.look_ahead(watch_loop, session, until)
    }

    /// Has a call that was woken wait for a moment if other consumers were faster lately.
    fn let_others_go_first(
        &self,
        watch_loop: &WatchLoop,
        search: Search<'_>,
        has_late: impl Fn() -> bool,
    ) {
        let Some(end) = self.cache.pause() else { return };
        // Not for most of the time that is left.
        let is_soon = search.wait.until.instant().is_some_and(|until| {
            until.saturating_duration_since(end) < end.saturating_duration_since(rt::now())
        });
        if !is_soon {
            watch_loop.has_come(Deadline::at(end), || self.cache.has_items() || has_late());
        }
    }

    /// Asks, through the leader, whether there are unknown items; if so, lists all.
    fn make_certain(
        &self,
        watch_loop: &mut WatchLoop,
        session: &Arc<Session>,
        on: &SeenOn,
        until: Deadline,
    ) -> Result<Tried<()>> {
        let node = self.target.whole()?;
        let listed = watch_loop.ask(session, until, |s| {
            let generation = s.confirm(&node)?.map(|stat| Generation::of(&stat));
            if generation.is_some_and(|generation| self.cache.has(generation)) {
                return Ok(None);
            }
            Ok(Some(s.names_and_stat(&node, false)?))
        });
        self.heard(listed, LIST, |listed| {
            if let Some(listed) = listed {
                self.learn(on, listed, None);
            }
        })
    }

    /// Lists the items and sets a watch for new ones, even if the queue's node does not exist yet.
    fn list(
        &self,
        watch_loop: &WatchLoop,
        session: &Arc<Session>,
        on: &SeenOn,
        until: Deadline,
    ) -> Result<Tried<()>> {
        let node = self.target.whole()?;
        let watch = self.cache.watch(session, &node);
        let begin = rt::now();
        let listed = watch_loop.ask(session, until, |s| {
            loop {
                let listed = s.names_and_stat(&node, true)?;
                if listed.is_some() || !s.await_making(&node)? {
                    return Ok(listed);
                }
            }
        });
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
    fn look_ahead(
        &self,
        watch_loop: &WatchLoop,
        session: &Arc<Session>,
        until: Deadline,
    ) -> Result<Tried<()>> {
        let mut most = FEW;
        loop {
            let items = self.cache.ahead(most);
            if items.is_empty() {
                return Ok(Tried::Got(()));
            }
            let paths = self.paths(&items)?;
            let warn = self.blocked_warning()?;
            let heard = watch_loop.ask(session, until, |s| look_at(s, &paths, false, &warn));
            let mut is_free = false;
            let tried = self.heard(heard, READ, |sights| {
                is_free = sights
                    .iter()
                    .any(|status| matches!(status, ItemStatus::Free | ItemStatus::Hidden));
                self.cache.looked_ahead(items.into_iter().zip(sights));
            })?;
            if is_free || !matches!(tried, Tried::Got(())) {
                return Ok(tried);
            }
            most = MANY;
        }
    }

    /// Checks again the items that were passed over, and sets watches for the end of their leases.
    fn look_back(
        &self,
        watch_loop: &WatchLoop,
        session: &Arc<Session>,
        on: &SeenOn,
        until: Deadline,
    ) -> Result<Tried<()>> {
        for items in self.cache.passed().chunks(MANY) {
            let paths = self.paths(items)?;
            let watches: Vec<_> =
                paths.iter().map(|path| self.cache.watch(session, path)).collect();
            let warn = self.blocked_warning()?;
            let heard = watch_loop.ask(session, until, |s| look_at(s, &paths, true, &warn));
            let tried = self.heard(heard, READ, |sights| {
                let seen = items.iter().cloned().zip(watches).zip(sights);
                let seen = seen.map(|((item, watch), status)| (item, watch, status));
                self.cache.looked_back(on, seen.collect());
            })?;
            if !matches!(tried, Tried::Got(())) {
                return Ok(tried);
            }
        }
        Ok(Tried::Got(()))
    }

    /// The items' paths, as the server knows them.
    fn paths(&self, items: &[Item]) -> Result<Vec<String>> {
        let node = self.target.whole()?;
        Ok(items.iter().map(|item| path::join(&node, item.name())).collect())
    }

    /// Fails if the item exists: its number does not say whether it is this item's turn.
    fn refuse<T>(
        &self,
        watch_loop: &WatchLoop,
        session: &Arc<Session>,
        claim: &Reservation,
        until: Deadline,
    ) -> Result<Tried<T>> {
        let path = path::join(&self.target.whole()?, claim.item().name());
        match watch_loop.ask(session, until, |s| s.confirm(&path)) {
            None => Ok(Tried::NoTime),
            Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => Ok(Tried::Another),
            Some(Ok(None)) => {
                claim.note_gone();
                Ok(Tried::Gone)
            }
            Some(Ok(Some(_))) => Err(beyond(&self.item_node(claim)?)),
            Some(Err(fault)) => Err(self.target.refused(&fault, READ)),
        }
    }

    /// Reads the item, whose data never change.
    fn read(
        &self,
        watch_loop: &WatchLoop,
        session: &Arc<Session>,
        claim: &Reservation,
        until: Deadline,
    ) -> Result<Tried<ReadItem>> {
        let path = path::join(&self.target.whole()?, claim.item().name());
        Ok(match watch_loop.ask(session, until, |s| s.data(&path, false)) {
            None => Tried::NoTime,
            Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => Tried::Another,
            Some(Ok(None)) => {
                claim.note_gone();
                Tried::Gone
            }
            Some(Ok(Some((_, stat)))) if !claim.is_made_at(stat.czxid) => Tried::Remade,
            Some(Ok(Some((_, stat)))) if stat.children > 0 => Tried::Leased,
            Some(Ok(Some((data, stat)))) => Tried::Got(ReadItem { data, czxid: stat.czxid }),
            Some(Err(Fault::NoAuth)) => {
                warn_of_hidden(&self.target.client, &self.item_node(claim)?);
                claim.note_hidden();
                Tried::Another
            }
            Some(Err(fault)) => {
                return Err(self.target.refused(&fault, READ).on(self.item_node(claim)?));
            }
        })
    }

    /// Deletes an item that was read. Does not begin after the timeout. Once it has begun, a call
    /// whose time is over fails, as the item may be gone; if it is, the next call that takes gets it.
    fn remove(
        &self,
        watch_loop: &mut WatchLoop,
        session: &Arc<Session>,
        claim: &Arc<Reservation>,
        found: ReadItem,
        search: Search<'_>,
    ) -> Result<Tried<Vec<u8>>> {
        if watch_loop.is_over(search.wait.until) {
            return Ok(Tried::NoTime);
        }
        let until = worth_asking(search.wait.until);
        let item = self.item_node(claim)?;
        let path = path::join(&self.target.whole()?, claim.item().name());
        let doubt = || unanswered_take(&item);
        let refused = |fault: &Fault| self.target.refused(fault, TAKE).on(&item);
        let (mut session, data) = (Arc::clone(session), Arc::new(found.data));
        // Whether the reply to a deletion was lost.
        let mut is_unknown = false;
        loop {
            let mut is_there = true;
            if is_unknown {
                match watch_loop.ask(&session, until, |s| s.confirm(&path)) {
                    Some(Ok(Some(stat))) if stat.czxid == found.czxid => {}
                    Some(Ok(_)) => {
                        claim.note_gone();
                        return Err(doubt());
                    }
                    Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => is_there = false,
                    Some(Err(fault)) => return Err(refused(&fault)),
                    None => return Err(doubt()),
                }
            }
            if is_there {
                let late = {
                    let (claim, data) = (Arc::clone(claim), Arc::clone(&data));
                    let (prefix, cached) =
                        (self.item_prefix()?, Arc::clone(self.target.client.core().late()));
                    move |answer| match answer {
                        Ok(()) => {
                            claim.note_gone();
                            cached.put(&prefix, Arc::unwrap_or_clone(data));
                        }
                        Err(Fault::NoNode) => claim.note_gone(),
                        // The call has reported the doubt.
                        Err(_) => {}
                    }
                };
                match watch_loop.ask(&session, until, |s| s.delete_or(&path, Box::new(late))) {
                    Some(Ok(())) => {
                        claim.note_gone();
                        return Ok(Tried::Got(Arc::unwrap_or_clone(data)));
                    }
                    Some(Err(Fault::NoNode)) => {
                        claim.note_gone();
                        return if is_unknown { Err(doubt()) } else { Ok(Tried::Beaten) };
                    }
                    Some(Err(Fault::NotEmpty)) => return Ok(Tried::Beaten),
                    Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => is_unknown = true,
                    Some(Err(fault)) => return Err(refused(&fault)),
                    None if is_unknown => return Err(doubt()),
                    None => {
                        return Err(match search.wait.check(&item) {
                            Err(cancelled) => cancelled.in_doubt(),
                            Ok(()) => late_take(&item),
                        });
                    }
                }
            }
            // Without a session the outcome stays unknown.
            session = match watch_loop.session(until) {
                Ok(Some(session)) => session,
                Ok(None) => return Err(doubt()),
                Err(error) => return Err(doubt().caused_by(error)),
            };
        }
    }

    /// Takes the lease of an item that was read.
    fn secure(
        &self,
        watch_loop: &WatchLoop,
        claim: &Arc<Reservation>,
        found: ReadItem,
        search: Search<'_>,
    ) -> Result<Tried<LeasedItem>> {
        let node = self.item_node(claim)?;
        let contention = Contention {
            client: self.target.client.clone(),
            node: node.clone(),
            noun: "item's lease",
            data: default_data(),
            acl: self.target.acl.clone(),
            form: Form::new(NodeNaming::Curator, ContenderKind::Mutex),
            must_exist: true,
        };
        let WaitLimits { until: deadline, cancel, .. } = search.wait;
        let limits = Limits { deadline, patient: false, cancel };
        match pursue(&contention, limits, &OthersAhead::default(), None, Some)? {
            Some(hold) => {
                Ok(Tried::Got(LeasedItem::new(hold, Arc::clone(claim), node, found.data)))
            }
            None if watch_loop.is_over(search.wait.ask_until) => Ok(Tried::NoTime),
            None => Ok(Tried::Beaten),
        }
    }

    /// The items that came too late for calls of this client, and that no later call has returned.
    pub(crate) fn late_items(&self) -> Result<Vec<Vec<u8>>> {
        let (late, prefix) = (self.target.client.core().late(), self.item_prefix()?);
        Ok(std::iter::from_fn(|| late.take(&prefix)).collect())
    }

    // ----- reading

    /// The data of the first item that is not leased.
    pub(crate) fn peek(&self) -> Result<Option<Vec<u8>>> {
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

    pub(crate) fn len(&self) -> Result<usize> {
        let layout = self.layout();
        self.target.ask(LIST, |s, node| {
            s.sync()?;
            let children = s.names(node, false)?.unwrap_or_default();
            Ok(children.iter().filter(|name| layout.parse(name).is_some()).count())
        })
    }

    // ----- answers, names and messages

    fn heard<T>(
        &self,
        heard: Option<Answer<T>>,
        purpose: Purpose,
        learn: impl FnOnce(T),
    ) -> Result<Tried<()>> {
        match heard {
            None => Ok(Tried::NoTime),
            Some(Ok(found)) => {
                learn(found);
                Ok(Tried::Got(()))
            }
            Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => Ok(Tried::Another),
            Some(Err(fault)) => Err(self.target.refused(&fault, purpose)),
        }
    }

    /// What a call returns that got nothing before its timeout: `None` only if a server said that
    /// there was nothing, or answers, but has not answered all that the call had to ask.
    fn over<T>(&self, search: Search<'_>, progress: &Progress) -> Result<Option<T>> {
        let nothing = search.wait.over(self.target.node()?)?;
        let is_served = || self.target.client.state() == SessionState::Connected;
        if progress.was_empty || !search.is_thorough && progress.was_answered && is_served() {
            return Ok(nothing);
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
            if !children.iter().any(|name| Ticket::parse(name).is_some()) {
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
