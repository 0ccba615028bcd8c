//! The local cache of a queue's items: which are waiting, which are reserved by threads of this
//! process, and which are leased. Values that share a cache give each item to one thread at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::item_names::{Item, Layout};
use crate::rt::{self, AtomicBool, Mutex};
use crate::session::connection::{Names, Stat};
use crate::session::notify::{Signal, Signals, Subscription};
use crate::session::session::Session;

/// How long, at most, until a leased item that was passed over is checked again.
const RECHECK_AFTER: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct ItemCache {
    pub(crate) layout: Layout,
    /// Rings the bells of calls that found nothing and now have to look again.
    news: Arc<Signals>,
    kept: Mutex<CachedItems>,
}

#[derive(Default)]
struct CachedItems {
    /// The connection on which the watches were set.
    on: Option<SeenOn>,
    /// The watch on the list of items; `None` if there has never been one.
    list: Option<ItemWatch>,
    edition: Option<Generation>,
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

/// Identifies all items created so far: as long as it stays the same, there are no new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation {
    queue: i64,
    made: i32,
}

impl Generation {
    pub(crate) fn of(queue: &Stat) -> Generation {
        // Changes = created + deleted, and children = created - deleted: the sum is twice the
        // number created.
        let twice = queue.child_changes.wrapping_add(queue.children);
        Generation { queue: queue.czxid, made: twice }
    }
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
        Arc::new(ItemCache { layout, news: Arc::default(), kept: Mutex::default() })
    }

    /// Rings the bell whenever [`has_news`](ItemCache::has_news) may have become true.
    pub(crate) fn subscribe(&self, bell: Signal) -> Subscription {
        self.news.subscribe(bell)
    }

    /// Whether a call that found nothing may find something now.
    pub(crate) fn has_news(&self) -> bool {
        let kept = self.kept.lock();
        !kept.waiting.is_empty()
            || kept.on.as_ref().is_none_or(|on| !on.is_current())
            || kept.list.as_ref().is_none_or(ItemWatch::has_fired)
            || !kept.passed.is_empty()
            || kept.leased.values().any(ItemWatch::has_fired)
    }

    /// Reserves the first item that is known to be waiting.
    pub(crate) fn claim(self: &Arc<Self>, on: &SeenOn) -> Option<Arc<Reservation>> {
        let mut kept = self.kept.lock();
        kept.look_after_leases(on);
        let item = kept.waiting.pop_first()?;
        kept.claimed.insert(item.clone());
        let listed_at = kept.listed_at;
        drop(kept);
        let cache = Arc::clone(self);
        Some(Arc::new(Reservation { cache, item, listed_at, over: AtomicBool::new(false) }))
    }

    pub(crate) fn is_out(&self, on: &SeenOn) -> bool {
        let mut kept = self.kept.lock();
        kept.look_after_leases(on);
        kept.waiting.is_empty()
    }

    /// Whether a watch reports new items.
    pub(crate) fn is_watched(&self, on: &SeenOn) -> bool {
        let kept = self.kept.lock();
        kept.on.as_ref() == Some(on) && kept.list.as_ref().is_some_and(|list| !list.has_fired())
    }

    /// Whether it is time to check the passed items even if other items are waiting.
    pub(crate) fn is_due(&self, on: &SeenOn) -> bool {
        let mut kept = self.kept.lock();
        kept.look_after_leases(on);
        kept.due.is_some_and(|due| due <= rt::now())
    }

    /// Whether all items of this generation are known, except for those that are gone.
    pub(crate) fn has(&self, edition: Generation) -> bool {
        self.kept.lock().edition == Some(edition)
    }

    /// The items that were passed over.
    pub(crate) fn passed(&self) -> Vec<Item> {
        self.kept.lock().passed.iter().cloned().collect()
    }

    /// The first items that are known to be waiting, at most `most`.
    pub(crate) fn ahead(&self, most: usize) -> Vec<Item> {
        self.kept.lock().waiting.iter().take(most).cloned().collect()
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
        let edition = queue.map(Generation::of);
        let mut kept = self.kept.lock();
        kept.look_after_leases(on);
        if kept.edition.map(|known| known.queue) != edition.map(|now| now.queue) {
            // The same name may now be another item.
            kept.forget_sights();
        }
        kept.leased.retain(|item, _| items.remove(item));
        kept.passed.retain(|item| items.remove(item));
        kept.hidden.retain(|item| items.remove(item));
        items.retain(|item| !kept.claimed.contains(item));
        (kept.waiting, kept.edition) = (items, edition);
        kept.listed_at = queue.map_or(0, |queue| queue.children_zxid);
        kept.list = watch.or(kept.list.take());
        let is_more = !kept.waiting.is_empty();
        drop(kept);
        if is_more {
            self.news.tell();
        }
        others
    }

    /// Forgets the list: the queue's node was deleted and created again.
    pub(crate) fn forget(&self) {
        let mut kept = self.kept.lock();
        kept.forget_sights();
        kept.waiting.clear();
        (kept.edition, kept.list) = (None, None);
        drop(kept);
        self.news.tell();
    }

    /// Stores what a check of waiting items has shown.
    pub(crate) fn looked_ahead(&self, seen: impl Iterator<Item = (Item, ItemStatus)>) {
        let mut kept = self.kept.lock();
        for (item, sight) in seen {
            match sight {
                // The thread that has reserved it, or the next one that does, reads it.
                ItemStatus::Free | ItemStatus::Hidden => {}
                ItemStatus::Gone => {
                    kept.waiting.remove(&item);
                }
                ItemStatus::Leased if kept.waiting.remove(&item) => kept.pass(item),
                ItemStatus::Leased => {}
            }
        }
        drop(kept);
        // Waiting calls have to learn which items were passed: they set the watches on them.
        self.news.tell();
    }

    /// Stores what the second check of passed items has shown, with the watches that it has set.
    pub(crate) fn looked_back(&self, on: &SeenOn, seen: Vec<(Item, ItemWatch, ItemStatus)>) {
        let mut kept = self.kept.lock();
        for (item, watch, sight) in seen {
            if !kept.passed.remove(&item) {
                continue;
            }
            match sight {
                ItemStatus::Gone => {}
                ItemStatus::Free => {
                    kept.waiting.insert(item);
                }
                ItemStatus::Hidden => {
                    kept.hidden.insert(item);
                }
                // The call that the watch has woken may have looked before it was stored.
                ItemStatus::Leased if watch.has_fired() || kept.on.as_ref() != Some(on) => {
                    kept.passed.insert(item);
                }
                ItemStatus::Leased => {
                    kept.leased.insert(item, watch);
                }
            }
        }
        if kept.passed.is_empty() {
            kept.due = None;
        }
        drop(kept);
        self.news.tell();
    }

    /// Ends a reservation. `change` returns whether other calls have to look again.
    fn settle(&self, item: &Item, change: impl FnOnce(&mut CachedItems) -> bool) {
        let mut kept = self.kept.lock();
        kept.claimed.remove(item);
        let is_news = change(&mut kept);
        drop(kept);
        if is_news {
            self.news.tell();
        }
    }
}

impl CachedItems {
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

    fn forget_sights(&mut self) {
        self.leased.clear();
        self.passed.clear();
        self.hidden.clear();
        self.due = None;
    }
}

impl fmt::Debug for ItemCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept.lock();
        f.debug_struct("ItemCache")
            .field("waiting", &kept.waiting.len())
            .field("claimed", &kept.claimed.len())
            .field("leased", &kept.leased.len())
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
    pub(crate) fn is_gone(&self) {
        self.end(|_, _| false);
    }

    /// Notes that another consumer has the item for now.
    pub(crate) fn is_passed(&self) {
        self.end(|kept, item| {
            kept.pass(item);
            // Waiting calls have to learn of it before this one returns.
            true
        });
    }

    /// Notes that this client may not read the item.
    pub(crate) fn is_hidden(&self) {
        self.end(|kept, item| {
            kept.hidden.insert(item);
            false
        });
    }

    pub(crate) fn give_back(&self) {
        self.end(|kept, item| {
            kept.waiting.insert(item);
            true
        });
    }

    fn end(&self, change: impl FnOnce(&mut CachedItems, Item) -> bool) {
        if !self.over.swap(true, Ordering::SeqCst) {
            self.cache.settle(&self.item, |kept| change(kept, self.item.clone()));
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
        f.debug_tuple("Claim").field(&self.item.name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::notify::Waiter;

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

    fn looked_back(cache: &ItemCache, on: &SeenOn, sight: ItemStatus) -> Vec<Arc<AtomicBool>> {
        let seen: Vec<_> = cache.passed().into_iter().map(|item| (item, watch(), sight)).collect();
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
        second.is_gone();
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

    #[test]
    fn a_leased_item_is_passed_once_and_then_watched() {
        let (cache, on) = cache(&["1"]);
        assert!(cache.is_watched(&on));
        let (_, met) = claim(&cache, &on).unwrap();
        met.is_passed();
        assert!(claim(&cache, &on).is_none() && !cache.is_due(&on));
        // A call that would wait looks at it first.
        assert!(cache.has_news());
        learn(&cache, &on, &["1"]);
        assert!(claim(&cache, &on).is_none());
        let fired = looked_back(&cache, &on, ItemStatus::Leased);
        assert!(cache.is_out(&on) && cache.kept.lock().due.is_none());
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
        claim(&cache, &on).unwrap().1.is_passed();
        let seen = cache.passed().into_iter().map(|item| (item, watch(), ItemStatus::Leased));
        let seen: Vec<_> = seen.collect();
        seen[0].1.fired.store(true, Ordering::SeqCst);
        cache.looked_back(&on, seen);
        assert_eq!(cache.passed().len(), 1);
    }

    #[test]
    fn another_connection_has_everything_looked_at_again() {
        let (cache, first) = cache(&["1", "2", "3"]);
        claim(&cache, &first).unwrap().1.is_passed();
        looked_back(&cache, &first, ItemStatus::Leased);
        claim(&cache, &first).unwrap().1.is_passed();
        claim(&cache, &first).unwrap().1.is_hidden();
        assert!(claim(&cache, &first).is_none());
        let second = on(2);
        assert!(!cache.is_watched(&second) && cache.is_due(&second));
        assert_eq!(cache.passed().len(), 2);
        assert_eq!(claim(&cache, &second).map(|(three, _)| three), Some(3));
    }

    #[test]
    fn a_hidden_item_is_no_news_and_not_tried_again() {
        let (cache, on) = cache(&["1"]);
        claim(&cache, &on).unwrap().1.is_hidden();
        learn(&cache, &on, &["1"]);
        assert!(claim(&cache, &on).is_none() && cache.passed().is_empty());
    }

    /// The numbers of a queue that was deleted and created again start at 0 again.
    #[test]
    fn the_names_of_a_queue_that_was_made_anew_are_not_taken_for_those_that_were_listed() {
        let (cache, on) = cache(&["1", "2", "3", "4"]);
        let (_, passed) = claim(&cache, &on).unwrap();
        passed.is_passed();
        claim(&cache, &on).unwrap().1.is_hidden();
        let (_, met) = claim(&cache, &on).unwrap();
        assert!(met.is_made_at(7) && met.is_made_at(20) && !met.is_made_at(21));
        met.is_gone();
        cache.forget();
        assert!(cache.is_out(&on) && !cache.is_watched(&on));
        let children = (0..5).map(|n| format!("qn-000000000{n}")).collect();
        cache.learn(&on, &children, Some(&queue(30, 40)), Some(watch()));
        let (first, claimed) = claim(&cache, &on).unwrap();
        assert!(first == 0 && claimed.is_made_at(40));
        // What was known of the old items does not apply to the new ones.
        let (second, claimed) = claim(&cache, &on).unwrap();
        assert_eq!(second, 1);
        claimed.is_hidden();
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
