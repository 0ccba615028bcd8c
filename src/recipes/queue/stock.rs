//! What is known of a queue's items: those that wait, those that threads of ours are at, and those
//! that are leased. The values that share it give each item to one thread at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::layout::{Item, Layout};
use crate::rt::{self, AtomicBool, Mutex};
use crate::session::session::Session;
use crate::session::store::Stat;
use crate::session::wake::{Signal, Signals, Subscription};

/// After so long, at the latest, a leased item that was passed is looked at again.
const PASSING: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Stock {
    pub(crate) layout: Layout,
    /// Told when whoever has found nothing is to look again.
    news: Arc<Signals>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Where the watches were set.
    on: Option<On>,
    /// The one on the list of items; none if there has never been any.
    list: Option<Watch>,
    edition: Option<Edition>,
    waiting: BTreeSet<Item>,
    claimed: BTreeSet<Item>,
    /// By others, or by an earlier session of ours.
    leased: BTreeMap<Item, Watch>,
    /// They were leased when they were met, and most such leases do not last: nothing tells of
    /// their end.
    passed: BTreeSet<Item>,
    /// When the first of them was met.
    passed_since: Option<Instant>,
    /// They had been passed and are still there: from now on their leases are watched.
    lasting: BTreeSet<Item>,
}

/// A connection, and for how long what was seen on it is believed.
#[derive(Clone)]
pub(crate) struct On {
    session: Weak<Session>,
    connection: u64,
    review: u64,
}

/// A watch that may have fired.
pub(crate) struct Watch {
    fired: Arc<AtomicBool>,
    _subscription: Subscription,
}

/// Which items were ever made: as long as it is the same, there are no new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edition {
    queue: i64,
    made: i32,
}

impl Edition {
    pub(crate) fn of(queue: &Stat) -> Edition {
        // The changes are those that were made and those that were deleted; the children are the
        // ones without the others.
        let twice = queue.child_changes.wrapping_add(queue.children);
        Edition { queue: queue.czxid, made: twice }
    }
}

impl On {
    /// To be taken before what is seen on it is asked for.
    pub(crate) fn now(session: &Arc<Session>) -> On {
        let phase = session.status().now();
        let (connection, review) = (phase.connection, phase.review());
        On { session: Arc::downgrade(session), connection, review }
    }

    fn is_current(&self) -> bool {
        self.session.upgrade().is_some_and(|session| {
            let phase = session.status().now();
            phase.ended.is_none()
                && (self.connection, self.review) == (phase.connection, phase.review())
        })
    }
}

impl PartialEq for On {
    fn eq(&self, other: &On) -> bool {
        Weak::ptr_eq(&self.session, &other.session)
            && (self.connection, self.review) == (other.connection, other.review)
    }
}

impl Watch {
    fn has_fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }
}

impl Stock {
    pub(crate) fn new(layout: Layout) -> Arc<Stock> {
        Arc::new(Stock { layout, news: Arc::default(), kept: Mutex::default() })
    }

    /// Has a bell rung whenever [`has_news`](Stock::has_news) may have become true.
    pub(crate) fn subscribe(&self, bell: Signal) -> Subscription {
        self.news.subscribe(bell)
    }

    /// Whether a call that has found nothing may find something now.
    pub(crate) fn has_news(&self) -> bool {
        let kept = self.kept.lock();
        !kept.waiting.is_empty()
            || kept.on.as_ref().is_none_or(|on| !on.is_current())
            || kept.list.as_ref().is_none_or(Watch::has_fired)
            || !kept.passed.is_empty()
            || kept.leased.values().any(Watch::has_fired)
    }

    /// The first item that is known to wait.
    pub(crate) fn claim(self: &Arc<Self>, on: &On) -> Option<Arc<Claim>> {
        let mut kept = self.kept.lock();
        kept.look_after_leases(on);
        let item = kept.waiting.pop_first()?;
        kept.claimed.insert(item.clone());
        drop(kept);
        let stock = Arc::clone(self);
        Some(Arc::new(Claim { stock, item, over: AtomicBool::new(false) }))
    }

    pub(crate) fn is_out(&self, on: &On) -> bool {
        let mut kept = self.kept.lock();
        kept.look_after_leases(on);
        kept.waiting.is_empty()
    }

    /// Whether watches tell of whatever may come.
    pub(crate) fn is_watched(&self, on: &On) -> bool {
        let kept = self.kept.lock();
        kept.on.as_ref() == Some(on)
            && kept.passed.is_empty()
            && kept.list.as_ref().is_some_and(|list| !list.has_fired())
    }

    /// Whether it is time to look at what was passed, though there are others.
    pub(crate) fn is_due(&self) -> bool {
        let since = self.kept.lock().passed_since;
        since.is_some_and(|since| rt::now().saturating_duration_since(since) >= PASSING)
    }

    /// Whether all items of this edition are known, but for those that are gone.
    pub(crate) fn has(&self, edition: Edition) -> bool {
        let kept = self.kept.lock();
        kept.passed.is_empty() && kept.edition == Some(edition)
    }

    /// A watch, to be registered before the server is asked to set it.
    pub(crate) fn watch(&self, session: &Session, path: &str) -> Watch {
        let fired = Arc::new(AtomicBool::new(false));
        let (flag, news) = (Arc::clone(&fired), Arc::clone(&self.news));
        let signal: Signal = Arc::new(move || {
            flag.store(true, Ordering::SeqCst);
            news.tell();
        });
        Watch { fired, _subscription: session.watches().subscribe(path, signal) }
    }

    /// These are the children of the queue's node; with the watch that was set by asking for them,
    /// and the edition that they are at least of. Says how many are no items.
    pub(crate) fn learn(
        &self,
        on: &On,
        children: &[String],
        watch: Option<Watch>,
        edition: Option<Edition>,
    ) -> usize {
        let (mut items, others) = self.layout.sort(children);
        let mut kept = self.kept.lock();
        kept.look_after_leases(on);
        kept.leased.retain(|item, _| items.remove(item));
        items.retain(|item| !kept.claimed.contains(item));
        let mut lasting = std::mem::take(&mut kept.lasting);
        lasting.append(&mut kept.passed);
        lasting.retain(|item| items.contains(item));
        (kept.lasting, kept.passed_since) = (lasting, None);
        (kept.waiting, kept.edition) = (items, edition);
        kept.list = watch.or(kept.list.take());
        let is_more = !kept.waiting.is_empty();
        drop(kept);
        if is_more {
            self.news.tell();
        }
        others
    }

    /// The change says whether others are to look again.
    fn settle(&self, item: &Item, change: impl FnOnce(&mut Kept) -> bool) {
        let mut kept = self.kept.lock();
        kept.claimed.remove(item);
        let is_news = change(&mut kept);
        drop(kept);
        if is_news {
            self.news.tell();
        }
    }
}

impl Kept {
    /// Those whose lease has ended wait again, and those whose watch is of no use any more.
    fn look_after_leases(&mut self, on: &On) {
        if self.on.as_ref() != Some(on) {
            (self.on, self.list) = (Some(on.clone()), None);
            self.waiting.extend(std::mem::take(&mut self.leased).into_keys());
            self.waiting.append(&mut self.passed);
            self.passed_since = None;
        } else if self.leased.values().any(Watch::has_fired) {
            let (ended, leased): (BTreeMap<_, _>, _) =
                std::mem::take(&mut self.leased).into_iter().partition(|(_, w)| w.has_fired());
            self.leased = leased;
            self.waiting.extend(ended.into_keys());
        }
    }
}

impl fmt::Debug for Stock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept.lock();
        f.debug_struct("Stock")
            .field("waiting", &kept.waiting.len())
            .field("claimed", &kept.claimed.len())
            .field("leased", &kept.leased.len())
            .finish_non_exhaustive()
    }
}

/// An item that one thread of ours is at. Dropped, it waits again.
pub(crate) struct Claim {
    stock: Arc<Stock>,
    item: Item,
    over: AtomicBool,
}

impl Claim {
    pub(crate) fn item(&self) -> &Item {
        &self.item
    }

    /// It is not there any more.
    pub(crate) fn is_gone(&self) {
        self.end(|_, _| false);
    }

    /// It is somebody else's for the time being. False if that is to be watched.
    pub(crate) fn is_passed(&self) -> bool {
        if self.stock.kept.lock().lasting.contains(&self.item) {
            return false;
        }
        self.end(|kept, item| {
            kept.passed.insert(item);
            kept.passed_since.get_or_insert_with(rt::now);
            // Who waits for whatever may come has to know of it before we go.
            true
        });
        true
    }

    /// It is somebody else's for the time being; this watch tells of the end.
    pub(crate) fn is_leased(&self, on: &On, watch: Watch) {
        self.end(|kept, item| {
            // Who has been told by it may have looked before.
            if watch.has_fired() || kept.on.as_ref() != Some(on) {
                kept.waiting.insert(item);
                return true;
            }
            kept.lasting.remove(&item);
            kept.leased.insert(item, watch);
            false
        });
    }

    pub(crate) fn give_back(&self) {
        self.end(|kept, item| {
            kept.waiting.insert(item);
            true
        });
    }

    fn end(&self, change: impl FnOnce(&mut Kept, Item) -> bool) {
        if !self.over.swap(true, Ordering::SeqCst) {
            self.stock.settle(&self.item, |kept| change(kept, self.item.clone()));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.item.name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::wake::Waiter;

    fn stock(names: &[&str]) -> (Arc<Stock>, On) {
        let (stock, on) = (Stock::new(Layout::ByAge), on(1));
        learn(&stock, &on, names);
        (stock, on)
    }

    fn on(connection: u64) -> On {
        On { session: Weak::new(), connection, review: 0 }
    }

    fn learn(stock: &Stock, on: &On, names: &[&str]) -> usize {
        let children: Vec<String> =
            names.iter().map(|name| format!("qn-000000000{name}")).collect();
        stock.learn(on, &children, Some(watch()), None)
    }

    fn watch() -> Watch {
        let subscription = Arc::<Signals>::default().subscribe(Waiter::new().bell());
        Watch { fired: Arc::default(), _subscription: subscription }
    }

    fn claim(stock: &Arc<Stock>, on: &On) -> Option<(i32, Arc<Claim>)> {
        stock.claim(on).map(|claim| (claim.item().sequence(), claim))
    }

    #[test]
    fn each_is_claimed_by_one_and_waits_again_when_it_is_given_back() {
        let (stock, on) = stock(&["2", "1", "3"]);
        let (one, first) = claim(&stock, &on).unwrap();
        let (two, second) = claim(&stock, &on).unwrap();
        assert_eq!((one, two), (1, 2));
        // A list that still has them.
        assert_eq!(learn(&stock, &on, &["1", "2", "3", "x"]), 1);
        assert_eq!(claim(&stock, &on).map(|(three, _)| three), Some(3));
        drop(first);
        assert_eq!(claim(&stock, &on).map(|(one, _)| one), Some(1));
        second.is_gone();
        drop(second);
        let (again, _one) = claim(&stock, &on).unwrap();
        assert_eq!(again, 1);
        assert_eq!(claim(&stock, &on).map(|(three, _)| three), Some(3));
    }

    #[test]
    fn a_claim_ends_once() {
        let (stock, on) = stock(&["1"]);
        let (_, lost) = claim(&stock, &on).unwrap();
        lost.give_back();
        let (_, next) = claim(&stock, &on).unwrap();
        // As the guard whose lease was lost is dropped, another has the item.
        drop(lost);
        assert!(claim(&stock, &on).is_none());
        drop(next);
        assert!(claim(&stock, &on).is_some());
    }

    #[test]
    fn a_leased_item_is_passed_once_and_then_watched() {
        let (stock, on) = stock(&["1"]);
        assert!(stock.is_watched(&on));
        let (_, met) = claim(&stock, &on).unwrap();
        assert!(met.is_passed());
        assert!(claim(&stock, &on).is_none());
        // Whoever would wait lists first.
        assert!(!stock.is_watched(&on) && stock.has_news());
        learn(&stock, &on, &["1"]);
        let (_, met) = claim(&stock, &on).unwrap();
        assert!(!met.is_passed());
        let lease = watch();
        let fired = Arc::clone(&lease.fired);
        met.is_leased(&on, lease);
        assert!(stock.is_watched(&on) && stock.is_out(&on));
        learn(&stock, &on, &["1"]);
        assert!(claim(&stock, &on).is_none());
        fired.store(true, Ordering::SeqCst);
        assert!(stock.has_news());
        assert_eq!(claim(&stock, &on).map(|(one, _)| one), Some(1));
    }

    #[test]
    fn a_watch_that_fired_before_it_was_kept_is_heeded() {
        let (stock, on) = stock(&["1"]);
        let (_, met) = claim(&stock, &on).unwrap();
        let lease = watch();
        lease.fired.store(true, Ordering::SeqCst);
        met.is_leased(&on, lease);
        assert!(claim(&stock, &on).is_some());
    }

    #[test]
    fn another_connection_has_everything_looked_at_again() {
        let (stock, first) = stock(&["1", "2"]);
        let (_, leased) = claim(&stock, &first).unwrap();
        leased.is_leased(&first, watch());
        let (_, passed) = claim(&stock, &first).unwrap();
        assert!(passed.is_passed());
        let second = on(2);
        assert!(!stock.is_watched(&second));
        let both = [claim(&stock, &second), claim(&stock, &second)];
        assert_eq!(both.map(|one| one.unwrap().0), [1, 2]);
    }

    /// As a server counts: what is deleted changes nothing, and what is made does.
    #[test]
    fn an_edition_ends_with_an_item_that_is_made() {
        let stat = |made: i32, deleted: i32| Stat {
            czxid: 7,
            mzxid: 7,
            ctime: 0,
            version: 0,
            child_changes: made.wrapping_add(deleted),
            children: made.wrapping_sub(deleted),
            children_zxid: 0,
            ephemeral_owner: 0,
        };
        assert_eq!(Edition::of(&stat(5, 0)), Edition::of(&stat(5, 4)));
        assert_ne!(Edition::of(&stat(5, 0)), Edition::of(&stat(6, 1)));
        assert_ne!(Edition::of(&stat(5, 0)), Edition::of(&Stat { czxid: 8, ..stat(5, 0) }));
        assert_eq!(Edition::of(&stat(i32::MAX, 1)), Edition::of(&stat(i32::MAX, i32::MAX)));
    }
}
