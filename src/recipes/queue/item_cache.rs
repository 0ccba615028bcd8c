//! The local cache of a queue's items: which are waiting, which are reserved by threads of this
//! process, and which are leased. Values that share a cache give each item to one thread at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::item_names::{Item, Layout};
use crate::recipes::data::Generation;
use crate::rt::{self, AtomicBool, Mutex, Signal};
use crate::session::{Names, Session, Signals, Subscription};
use crate::wire_values::Stat;

/// How long, at most, until a leased item that was passed over is checked again.
const RECHECK_AFTER: Duration = Duration::from_secs(1);

/// Among how many items, at most, a call chooses that competes with other consumers.
const MOST_SPREAD: usize = 1 << 10;

/// How long a call that was woken lets other consumers go first, after the first loss: so long, or so
/// many times as long as a list took, as getting an item takes some round trips.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const PAUSE_IN_TRIPS: u32 = 10;
/// By how much repeated losses make that longer, and how long it is at most.
const MOST_PAUSES: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// See the module.
pub(crate) struct ItemCache {
    pub(crate) layout: Layout,
    /// Rings the bells of calls that found nothing and now have to look again.
    news: Arc<Signals>,
    cached: Mutex<CachedItems>,
}

#[derive(Default)]
struct CachedItems {
    /// The connection on which the watches were set.
    on: Option<SeenOn>,
    /// The watch on the list of items; `None` if there has never been one.
    list: Option<ItemWatch>,
    generation: Option<Generation>,
    /// The last transaction that the list includes: items created later are not in it.
    listed_at: i64,
    waiting: BTreeSet<Item>,
    claimed: BTreeSet<Item>,
    /// Leased by other clients, or by an earlier session of this one.
    leased: BTreeMap<Item, ItemWatch>,
    /// Leased when they were checked, and not watched, as most such leases end soon. They are
    /// checked again, and watched if they are still leased then.
    passed: BTreeSet<Item>,
    /// When the passed items are to be checked again even if other items are waiting.
    due: Option<Instant>,
    /// Items that this client may not read.
    hidden: BTreeSet<Item>,
    rivals: Rivals,
    /// Whether this value has got an item since the items were last listed with a watch.
    has_got: bool,
    /// When a call that the list's watch has woken is to list again.
    look_at: Option<Instant>,
}

/// How much the consumers with other caches were in the way lately.
struct Rivals {
    /// Among how many of the first items a call chooses, so that not all want the same one.
    spread: usize,
    /// How many of the first pauses a call that is woken lets others go first: most of them are woken
    /// in vain, and then need no more than a list.
    pauses: u32,
    /// How long the latest list took.
    trip: Duration,
}

impl Default for Rivals {
    fn default() -> Rivals {
        Rivals { spread: 1, pauses: 0, trip: Duration::ZERO }
    }
}

impl Rivals {
    /// Notes that others took or leased an item before this value could.
    fn lost(&mut self) {
        self.spread = (self.spread * 2).min(MOST_SPREAD);
        self.woken_in_vain();
    }

    fn woken_in_vain(&mut self) {
        self.pauses = (self.pauses * 2).clamp(1, MOST_PAUSES);
    }

    fn pause(&self) -> Duration {
        let first = FIRST_PAUSE.max(self.trip * PAUSE_IN_TRIPS);
        (first * self.pauses).min(LONGEST_PAUSE)
    }

    fn got(&mut self) {
        self.spread = (self.spread / 2).max(1);
        self.pauses /= 2;
    }
}

/// What a check of an item has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemStatus {
    Free,
    Leased,
    Hidden,
    Gone,
}

/// A connection and a review period: what was seen is trusted only while both are current.
#[derive(Clone)]
pub(crate) struct SeenOn {
    session: Weak<Session>,
    connection: u64,
    review: u64,
}

/// A watch, and whether it has fired.
pub(crate) struct ItemWatch {
    fired: Arc<AtomicBool>,
    _subscription: Subscription,
}

impl SeenOn {
    /// To be called before the requests whose replies are stored with it.
    pub(crate) fn now(session: &Arc<Session>) -> SeenOn {
        let phase = session.status().now();
        let (connection, review) = (phase.connection, phase.review());
        SeenOn { session: Arc::downgrade(session), connection, review }
    }

    fn is_current(&self) -> bool {
        self.session.upgrade().is_some_and(|session| {
            let phase = session.status().now();
            phase.ended.is_none()
                && (self.connection, self.review) == (phase.connection, phase.review())
        })
    }
}

impl PartialEq for SeenOn {
    fn eq(&self, other: &SeenOn) -> bool {
        Weak::ptr_eq(&self.session, &other.session)
            && (self.connection, self.review) == (other.connection, other.review)
    }
}

impl ItemWatch {
    fn has_fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }
}

impl ItemCache {
    pub(crate) fn new(layout: Layout) -> Arc<ItemCache> {
        Arc::new(ItemCache { layout, news: Arc::default(), cached: Mutex::default() })
    }

    /// Rings the bell whenever [`has_news`](ItemCache::has_news) may have become true.
    pub(crate) fn subscribe(&self, bell: Signal) -> Subscription {
        self.news.subscribe(bell)
    }

    /// Whether a call that found nothing may find something now.
    pub(crate) fn has_news(&self) -> bool {
        let cached = self.cached.lock();
        !cached.waiting.is_empty()
            || cached.on.as_ref().is_none_or(|on| !on.is_current())
            || cached.list.as_ref().is_none_or(ItemWatch::has_fired)
            || !cached.passed.is_empty()
            || cached.leased.values().any(ItemWatch::has_fired)
    }

    /// Reserves the first item that is known to be waiting, or one of the first ones if other
    /// consumers compete for them.
    pub(crate) fn claim(self: &Arc<Self>, on: &SeenOn) -> Option<Arc<Reservation>> {
        let mut cached = self.cached.lock();
        cached.look_after_leases(on);
        let item = cached.choose(self.layout)?;
        cached.waiting.remove(&item);
        cached.claimed.insert(item.clone());
        let listed_at = cached.listed_at;
        drop(cached);
        let cache = Arc::clone(self);
        Some(Arc::new(Reservation { cache, item, listed_at, over: AtomicBool::new(false) }))
    }

    /// Whether calls choose among several items, as other consumers compete for them.
    pub(crate) fn is_spread(&self) -> bool {
        self.cached.lock().rivals.spread > 1
    }

    /// Notes that another consumer was faster.
    pub(crate) fn note_lost(&self) {
        self.cached.lock().rivals.lost();
    }

    /// Notes how long a list took.
    pub(crate) fn note_trip(&self, trip: Duration) {
        self.cached.lock().rivals.trip = trip;
    }

    /// Until when a call that was woken lets other consumers go first.
    pub(crate) fn pause(&self) -> Option<Instant> {
        let mut cached = self.cached.lock();
        let most = cached.rivals.pause();
        if most.is_zero() || cached.has_items() || !cached.list.as_ref()?.has_fired() {
            return None;
        }
        if cached.look_at.is_none() {
            // Never at once: a consumer that has won before takes the item in this time.
            let least = most / 2;
            let span = u64::try_from((most - least).as_nanos()).unwrap_or(u64::MAX).max(1);
            let more = Duration::from_nanos(rt::random() as u64 % span);
            cached.look_at = rt::now().checked_add(least + more);
        }
        cached.look_at
    }

    /// Whether an item is known that a call may try.
    pub(crate) fn has_items(&self) -> bool {
        self.cached.lock().has_items()
    }

    pub(crate) fn is_out(&self, on: &SeenOn) -> bool {
        let mut cached = self.cached.lock();
        cached.look_after_leases(on);
        cached.waiting.is_empty()
    }

    /// Whether a watch reports new items.
    pub(crate) fn is_watched(&self, on: &SeenOn) -> bool {
        let cached = self.cached.lock();
        cached.on.as_ref() == Some(on) && cached.list.as_ref().is_some_and(|list| !list.has_fired())
    }

    /// Whether it is time to check the passed items even if other items are waiting.
    pub(crate) fn is_due(&self, on: &SeenOn) -> bool {
        let mut cached = self.cached.lock();
        cached.look_after_leases(on);
        cached.due.is_some_and(|due| due <= rt::now())
    }

    /// Whether all items of this generation are known, except for those that are gone.
    pub(crate) fn has(&self, generation: Generation) -> bool {
        self.cached.lock().generation == Some(generation)
    }

    /// The items that were passed over.
    pub(crate) fn passed(&self) -> Vec<Item> {
        self.cached.lock().passed.iter().cloned().collect()
    }

    /// The first items that are known to be waiting, at most `most`.
    pub(crate) fn ahead(&self, most: usize) -> Vec<Item> {
        self.cached.lock().waiting.iter().take(most).cloned().collect()
    }

    /// Registers a watch; to be called before the request that sets it at the server.
    pub(crate) fn watch(&self, session: &Session, path: &str) -> ItemWatch {
        let fired = Arc::new(AtomicBool::new(false));
        let (flag, news) = (Arc::clone(&fired), Arc::clone(&self.news));
        let signal: Signal = Arc::new(move || {
            flag.store(true, Ordering::SeqCst);
            news.tell();
        });
        ItemWatch { fired, _subscription: session.watches().subscribe(path, signal) }
    }

    /// Stores the children of the queue's node, its stat if it exists, and the watch that the
    /// request for them has set. Returns how many children are not items.
    pub(crate) fn learn(
        &self,
        on: &SeenOn,
        children: &Names,
        queue: Option<&Stat>,
        watch: Option<ItemWatch>,
    ) -> usize {
        let (mut items, others) = self.layout.sort(children);
        let generation = queue.map(Generation::of);
        let mut cached = self.cached.lock();
        cached.look_after_leases(on);
        if queue.is_some_and(|queue| cached.has_later_list(queue)) {
            // The later list stays, and its watch.
            if cached.list.as_ref().is_none_or(ItemWatch::has_fired) {
                cached.list = watch.or(cached.list.take());
            }
            return others;
        }
        let both = cached.generation.zip(generation);
        if both.is_none_or(|(known, now)| !known.is_of_same_node(now)) {
            // The same name may now be another item.
            cached.forget_statuses();
        }
        cached.leased.retain(|item, _| items.remove(item));
        cached.passed.retain(|item| items.remove(item));
        cached.hidden.retain(|item| items.remove(item));
        items.retain(|item| !cached.claimed.contains(item));
        (cached.waiting, cached.generation) = (items, generation);
        cached.listed_at = queue.map_or(0, |queue| queue.children_zxid);
        let is_more = cached.has_items();
        if watch.is_some() {
            let was_woken = cached.list.as_ref().is_some_and(ItemWatch::has_fired);
            if was_woken && !is_more && !cached.has_got && cached.claimed.is_empty() {
                cached.rivals.woken_in_vain();
            }
            (cached.has_got, cached.look_at) = (false, None);
        }
        if !is_more {
            cached.rivals.spread = 1;
        }
        cached.list = watch.or(cached.list.take());
        drop(cached);
        if is_more {
            self.news.tell();
        }
        others
    }

    /// Forgets the list: the queue's node was deleted and created again.
    pub(crate) fn forget(&self) {
        let mut cached = self.cached.lock();
        cached.forget_statuses();
        cached.waiting.clear();
        (cached.generation, cached.list) = (None, None);
        drop(cached);
        self.news.tell();
    }

    /// Stores what a check of waiting items has shown.
    pub(crate) fn looked_ahead(&self, seen: impl Iterator<Item = (Item, ItemStatus)>) {
        let mut cached = self.cached.lock();
        for (item, status) in seen {
            match status {
                // The thread that has reserved it, or the next one that does, reads it.
                ItemStatus::Free | ItemStatus::Hidden => {}
                ItemStatus::Gone => {
                    cached.waiting.remove(&item);
                }
                ItemStatus::Leased if cached.waiting.remove(&item) => cached.pass(item),
                ItemStatus::Leased => {}
            }
        }
        drop(cached);
        // Waiting calls have to learn which items were passed: they set the watches on them.
        self.news.tell();
    }

    /// Stores what the second check of passed items has shown, with the watches that it has set.
    pub(crate) fn looked_back(&self, on: &SeenOn, seen: Vec<(Item, ItemWatch, ItemStatus)>) {
        let mut cached = self.cached.lock();
        for (item, watch, status) in seen {
            if !cached.passed.remove(&item) {
                continue;
            }
            match status {
                ItemStatus::Gone => {}
                ItemStatus::Free => {
                    cached.waiting.insert(item);
                }
                ItemStatus::Hidden => {
                    cached.hidden.insert(item);
                }
                // The call that the watch has woken may have looked before it was stored.
                ItemStatus::Leased if watch.has_fired() || cached.on.as_ref() != Some(on) => {
                    cached.passed.insert(item);
                }
                ItemStatus::Leased => {
                    cached.leased.insert(item, watch);
                }
            }
        }
        if cached.passed.is_empty() {
            cached.due = None;
        }
        drop(cached);
        self.news.tell();
    }

    /// Ends a reservation. `change` returns whether other calls have to look again.
    fn settle(&self, item: &Item, change: impl FnOnce(&mut CachedItems) -> bool) {
        let mut cached = self.cached.lock();
        cached.claimed.remove(item);
        let is_news = change(&mut cached);
        drop(cached);
        if is_news {
            self.news.tell();
        }
    }
}

impl CachedItems {
    fn has_items(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The item to try next. An order by priority is strict; by age, consumers that are in each
    /// other's way spread over the first items.
    fn choose(&self, layout: Layout) -> Option<Item> {
        let among = match layout {
            Layout::ByAge => self.rivals.spread.min(self.waiting.len()),
            Layout::ByPriority => 1,
        };
        let number = if among > 1 { rt::random() as usize % among } else { 0 };
        let chosen = self.waiting.iter().nth(number)?;
        // What is beyond the last number comes after all others.
        let is_fit = number == 0 || !chosen.is_beyond();
        if is_fit { Some(chosen.clone()) } else { self.waiting.first().cloned() }
    }

    /// Whether what is known is later than a list with this stat. Threads that share the cache
    /// may store their lists in another order than the server has made them.
    fn has_later_list(&self, queue: &Stat) -> bool {
        self.generation.is_some_and(|known| known.is_of_same_node(Generation::of(queue)))
            && queue.children_zxid < self.listed_at
    }

    /// Schedules an immediate check of leased items whose lease has ended, or whose watch is out
    /// of date.
    fn look_after_leases(&mut self, on: &SeenOn) {
        let again: BTreeSet<Item> = if self.on.as_ref() != Some(on) {
            (self.on, self.list) = (Some(on.clone()), None);
            self.waiting.append(&mut self.hidden);
            std::mem::take(&mut self.leased).into_keys().collect()
        } else if self.leased.values().any(ItemWatch::has_fired) {
            let (ended, leased): (BTreeMap<_, _>, _) =
                std::mem::take(&mut self.leased).into_iter().partition(|(_, w)| w.has_fired());
            self.leased = leased;
            ended.into_keys().collect()
        } else {
            return;
        };
        if !again.is_empty() {
            self.passed.extend(again);
            self.due = Some(rt::now());
        }
    }

    fn pass(&mut self, item: Item) {
        self.passed.insert(item);
        if self.due.is_none() {
            self.due = rt::now().checked_add(RECHECK_AFTER);
        }
    }

    fn forget_statuses(&mut self) {
        self.leased.clear();
        self.passed.clear();
        self.hidden.clear();
        self.due = None;
    }
}

impl fmt::Debug for ItemCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cached = self.cached.lock();
        f.debug_struct("ItemCache")
            .field("waiting", &cached.waiting.len())
            .field("claimed", &cached.claimed.len())
            .field("leased", &cached.leased.len())
            .finish_non_exhaustive()
    }
}

/// An item that is reserved for one thread of this process. Dropping it makes the item wait again.
pub(crate) struct Reservation {
    cache: Arc<ItemCache>,
    item: Item,
    /// The cache's `listed_at` when the item was reserved.
    listed_at: i64,
    over: AtomicBool,
}

impl Reservation {
    pub(crate) fn item(&self) -> &Item {
        &self.item
    }

    /// Whether an item created in transaction `czxid` can be the one that was listed. If not, it is
    /// an item of the same name in a queue that was created again, where others may come before it.
    pub(crate) fn is_made_at(&self, czxid: i64) -> bool {
        czxid <= self.listed_at
    }

    /// Notes that the item does not exist any more.
    pub(crate) fn note_gone(&self) {
        self.end(|_, _| false);
    }

    /// Notes that this call has the item.
    pub(crate) fn note_got(&self) {
        let mut cached = self.cache.cached.lock();
        cached.rivals.got();
        cached.has_got = true;
    }

    /// Notes that another consumer has the item for now.
    pub(crate) fn pass_over(&self) {
        self.end(|cached, item| {
            cached.pass(item);
            // Waiting calls have to learn of it before this one returns.
            true
        });
    }

    /// Notes that this client may not read the item.
    pub(crate) fn note_hidden(&self) {
        self.end(|cached, item| {
            cached.hidden.insert(item);
            false
        });
    }

    pub(crate) fn give_back(&self) {
        self.end(|cached, item| {
            cached.waiting.insert(item);
            true
        });
    }

    fn end(&self, change: impl FnOnce(&mut CachedItems, Item) -> bool) {
        if !self.over.swap(true, Ordering::SeqCst) {
            self.cache.settle(&self.item, |cached| change(cached, self.item.clone()));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reservation").field(&self.item.name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Waiter;

    fn cache(names: &[&str]) -> (Arc<ItemCache>, SeenOn) {
        let (cache, on) = (ItemCache::new(Layout::ByAge), on(1));
        learn(&cache, &on, names);
        (cache, on)
    }

    fn on(connection: u64) -> SeenOn {
        SeenOn { session: Weak::new(), connection, review: 0 }
    }

    fn learn(cache: &ItemCache, on: &SeenOn, names: &[&str]) -> usize {
        let children = names.iter().map(|name| format!("qn-000000000{name}")).collect();
        cache.learn(on, &children, Some(&queue(7, 20)), Some(watch()))
    }

    /// The stat of a queue's node, with these transactions of its creation and its last change.
    fn queue(czxid: i64, children_zxid: i64) -> Stat {
        Stat {
            czxid,
            mzxid: czxid,
            child_changes: 5,
            children: 5,
            children_zxid,
            ..Stat::default()
        }
    }

    fn looked_back(cache: &ItemCache, on: &SeenOn, status: ItemStatus) -> Vec<Arc<AtomicBool>> {
        let seen: Vec<_> = cache.passed().into_iter().map(|item| (item, watch(), status)).collect();
        let flags = seen.iter().map(|(_, watch, _)| Arc::clone(&watch.fired)).collect();
        cache.looked_back(on, seen);
        flags
    }

    fn watch() -> ItemWatch {
        let subscription = Arc::<Signals>::default().subscribe(Waiter::new().bell());
        ItemWatch { fired: Arc::default(), _subscription: subscription }
    }

    fn claim(cache: &Arc<ItemCache>, on: &SeenOn) -> Option<(i32, Arc<Reservation>)> {
        cache.claim(on).map(|claim| (claim.item().sequence(), claim))
    }

    #[test]
    fn each_is_claimed_by_one_and_waits_again_when_it_is_given_back() {
        let (cache, on) = cache(&["2", "1", "3"]);
        let (one, first) = claim(&cache, &on).unwrap();
        let (two, second) = claim(&cache, &on).unwrap();
        assert_eq!((one, two), (1, 2));
        // A list that still contains the reserved items.
        assert_eq!(learn(&cache, &on, &["1", "2", "3", "x"]), 1);
        assert_eq!(claim(&cache, &on).map(|(three, _)| three), Some(3));
        drop(first);
        assert_eq!(claim(&cache, &on).map(|(one, _)| one), Some(1));
        second.note_gone();
        drop(second);
        let (again, _one) = claim(&cache, &on).unwrap();
        assert_eq!(again, 1);
        assert_eq!(claim(&cache, &on).map(|(three, _)| three), Some(3));
    }

    #[test]
    fn a_claim_ends_once() {
        let (cache, on) = cache(&["1"]);
        let (_, lost) = claim(&cache, &on).unwrap();
        lost.give_back();
        let (_, next) = claim(&cache, &on).unwrap();
        // Dropping a guard whose lease was lost does not free the next thread's item.
        drop(lost);
        assert!(claim(&cache, &on).is_none());
        drop(next);
        assert!(claim(&cache, &on).is_some());
    }

    /// Two threads may store their lists in another order than the server has made them.
    #[test]
    fn an_older_list_that_comes_late_hides_no_new_item() {
        let (cache, on) = cache(&["1"]);
        let names = |names: &[&str]| names.iter().map(|n| format!("qn-000000000{n}")).collect();
        cache.learn(&on, &names(&["1", "2"]), Some(&queue(7, 30)), Some(watch()));
        cache.learn(&on, &names(&["1"]), Some(&queue(7, 20)), None);
        assert_eq!(cache.ahead(9).len(), 2);
        assert!(cache.is_watched(&on));
        // Its watch counts if there is no other.
        let second = self::on(2);
        assert!(!cache.is_watched(&second));
        cache.looked_ahead(std::iter::empty());
        assert!(cache.claim(&second).is_some());
        cache.learn(&second, &names(&["1"]), Some(&queue(7, 20)), Some(watch()));
        assert!(cache.is_watched(&second));
        assert_eq!(cache.ahead(9).len(), 2);
    }

    #[test]
    fn items_are_claimed_in_their_order_until_another_consumer_was_faster() {
        let names = ["1", "2", "3", "4", "5", "6", "7", "8"];
        let (cache, on) = cache(&names);
        let first = || cache.claim(&on).map(|claim| claim.item().sequence());
        let all_first = || (0..100).filter_map(|_| first()).collect::<BTreeSet<_>>();
        assert_eq!(all_first(), BTreeSet::from([1]));
        cache.note_lost();
        assert!(cache.is_spread());
        assert_eq!(all_first(), BTreeSet::from([1, 2]));
        cache.note_lost();
        assert_eq!(all_first(), BTreeSet::from([1, 2, 3, 4]));
        for _ in 0..2 {
            cache.claim(&on).unwrap().note_got();
        }
        assert_eq!(all_first(), BTreeSet::from([1]));
        // An empty queue ends the competition.
        (0..9).for_each(|_| cache.note_lost());
        cache.learn(&on, &Names::default(), Some(&queue(7, 20)), None);
        assert!(!cache.is_spread());
    }

    #[test]
    fn an_order_by_priority_is_kept_although_others_are_faster() {
        let (cache, on) = (ItemCache::new(Layout::ByPriority), on(1));
        let children = (0..9).map(|n| format!("pn-0000000007-000000000{n}")).collect();
        cache.learn(&on, &children, Some(&queue(7, 20)), Some(watch()));
        (0..9).for_each(|_| cache.note_lost());
        for number in 0..9 {
            let claim = cache.claim(&on).unwrap();
            assert_eq!(claim.item().sequence(), number);
            claim.note_gone();
        }
    }

    /// Chosen items are never those whose place in the order is unknown, while there are others.
    #[test]
    fn what_is_beyond_the_last_number_stays_the_last() {
        let (cache, on) = (ItemCache::new(Layout::ByAge), on(1));
        let children = ["qn--2147483648", "qn-0000000001"].into_iter().collect();
        cache.learn(&on, &children, Some(&queue(7, 20)), Some(watch()));
        cache.note_lost();
        for _ in 0..100 {
            assert!(!cache.claim(&on).unwrap().item().is_beyond());
        }
    }

    #[test]
    fn who_was_woken_in_vain_lets_others_go_first_and_who_gets_its_items_does_not() {
        let (cache, on) = cache(&[]);
        let fires = || {
            let fired = watch();
            fired.fired.store(true, Ordering::SeqCst);
            cache.cached.lock().list = Some(fired);
        };
        let wakes = |names: &[&str]| {
            learn(&cache, &on, names);
            fires();
            cache.pause().is_some()
        };
        fires();
        assert!(cache.pause().is_none());
        assert!(wakes(&[]) && cache.pause() == cache.pause());
        let now = rt::now();
        assert!(cache.pause().is_some_and(|end| end <= now + FIRST_PAUSE * MOST_PAUSES));
        // Not beside an item that it knows.
        assert!(!wakes(&["1"]));
        let claim = cache.claim(&on).unwrap();
        claim.note_got();
        claim.note_gone();
        // What this value has taken itself was not in vain.
        assert!(!wakes(&[]));
        // A pause is long enough for the round trips of another consumer, wherever the server is.
        cache.note_trip(Duration::from_millis(20));
        let now = rt::now();
        assert!(wakes(&[]));
        assert!(cache.pause().is_some_and(|end| end >= now + Duration::from_millis(100)));
    }

    #[test]
    fn a_leased_item_is_passed_once_and_then_watched() {
        let (cache, on) = cache(&["1"]);
        assert!(cache.is_watched(&on));
        let (_, met) = claim(&cache, &on).unwrap();
        met.pass_over();
        assert!(claim(&cache, &on).is_none() && !cache.is_due(&on));
        // A call that would wait looks at it first.
        assert!(cache.has_news());
        learn(&cache, &on, &["1"]);
        assert!(claim(&cache, &on).is_none());
        let fired = looked_back(&cache, &on, ItemStatus::Leased);
        assert!(cache.is_out(&on) && cache.cached.lock().due.is_none());
        learn(&cache, &on, &["1"]);
        assert!(claim(&cache, &on).is_none() && cache.passed().is_empty());
        fired[0].store(true, Ordering::SeqCst);
        // Another consumer may have leased it already, so it is checked before it is read.
        assert!(cache.has_news() && cache.is_due(&on));
        assert!(claim(&cache, &on).is_none());
        looked_back(&cache, &on, ItemStatus::Free);
        assert!(!cache.is_due(&on));
        assert_eq!(claim(&cache, &on).map(|(one, _)| one), Some(1));
    }

    #[test]
    fn what_is_seen_ahead_of_a_leased_item_sorts_those_that_wait() {
        let (cache, on) = cache(&["1", "2", "3", "4"]);
        assert_eq!(cache.ahead(3).len(), 3);
        let sights = [ItemStatus::Leased, ItemStatus::Gone, ItemStatus::Hidden, ItemStatus::Free];
        let seen: Vec<_> = cache.ahead(9).into_iter().zip(sights).collect();
        let (_, claimed) = claim(&cache, &on).unwrap();
        // Another thread of this process has reserved the item, and gives it back later.
        cache.looked_ahead(seen.clone().into_iter());
        assert!(cache.passed().is_empty());
        claimed.give_back();
        cache.looked_ahead(seen.into_iter());
        assert_eq!(cache.passed().len(), 1);
        let rest = [claim(&cache, &on), claim(&cache, &on)];
        assert_eq!(rest.each_ref().map(|one| one.as_ref().unwrap().0), [3, 4]);
        assert!(claim(&cache, &on).is_none());
    }

    #[test]
    fn a_watch_that_fired_before_it_was_kept_is_heeded() {
        let (cache, on) = cache(&["1"]);
        claim(&cache, &on).unwrap().1.pass_over();
        let seen = cache.passed().into_iter().map(|item| (item, watch(), ItemStatus::Leased));
        let seen: Vec<_> = seen.collect();
        seen[0].1.fired.store(true, Ordering::SeqCst);
        cache.looked_back(&on, seen);
        assert_eq!(cache.passed().len(), 1);
    }

    #[test]
    fn another_connection_has_everything_looked_at_again() {
        let (cache, first) = cache(&["1", "2", "3"]);
        claim(&cache, &first).unwrap().1.pass_over();
        looked_back(&cache, &first, ItemStatus::Leased);
        claim(&cache, &first).unwrap().1.pass_over();
        claim(&cache, &first).unwrap().1.note_hidden();
        assert!(claim(&cache, &first).is_none());
        let second = on(2);
        assert!(!cache.is_watched(&second) && cache.is_due(&second));
        assert_eq!(cache.passed().len(), 2);
        assert_eq!(claim(&cache, &second).map(|(three, _)| three), Some(3));
    }

    #[test]
    fn a_hidden_item_is_no_news_and_not_tried_again() {
        let (cache, on) = cache(&["1"]);
        claim(&cache, &on).unwrap().1.note_hidden();
        learn(&cache, &on, &["1"]);
        assert!(claim(&cache, &on).is_none() && cache.passed().is_empty());
    }

    /// The numbers of a queue that was deleted and created again start at 0 again.
    #[test]
    fn the_names_of_a_queue_that_was_made_anew_are_not_taken_for_those_that_were_listed() {
        let (cache, on) = cache(&["1", "2", "3", "4"]);
        let (_, passed) = claim(&cache, &on).unwrap();
        passed.pass_over();
        claim(&cache, &on).unwrap().1.note_hidden();
        let (_, met) = claim(&cache, &on).unwrap();
        assert!(met.is_made_at(7) && met.is_made_at(20) && !met.is_made_at(21));
        met.note_gone();
        cache.forget();
        assert!(cache.is_out(&on) && !cache.is_watched(&on));
        let children = (0..5).map(|n| format!("qn-000000000{n}")).collect();
        cache.learn(&on, &children, Some(&queue(30, 40)), Some(watch()));
        let (first, claimed) = claim(&cache, &on).unwrap();
        assert!(first == 0 && claimed.is_made_at(40));
        // What was known of the old items does not apply to the new ones.
        let (second, claimed) = claim(&cache, &on).unwrap();
        assert_eq!(second, 1);
        claimed.note_hidden();
        cache.learn(&on, &children, Some(&queue(50, 60)), Some(watch()));
        assert_eq!(claim(&cache, &on).map(|(again, _)| again), Some(1));
    }

    /// By the server's counters: a deleted item does not change the generation, a created one does.
    #[test]
    fn an_edition_ends_with_an_item_that_is_made() {
        let stat = |made: i32, deleted: i32| Stat {
            child_changes: made.wrapping_add(deleted),
            children: made.wrapping_sub(deleted),
            ..queue(7, i64::from(deleted))
        };
        assert_eq!(Generation::of(&stat(5, 0)), Generation::of(&stat(5, 4)));
        assert_ne!(Generation::of(&stat(5, 0)), Generation::of(&stat(6, 1)));
        assert_ne!(Generation::of(&stat(5, 0)), Generation::of(&Stat { czxid: 8, ..stat(5, 0) }));
        assert_eq!(Generation::of(&stat(i32::MAX, 1)), Generation::of(&stat(i32::MAX, i32::MAX)));
    }
}
