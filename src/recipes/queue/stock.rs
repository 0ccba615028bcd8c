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
    /// The last transaction that the list tells of: items that were made later are not in it.
    listed_at: i64,
    waiting: BTreeSet<Item>,
    claimed: BTreeSet<Item>,
    /// By others, or by an earlier session of ours.
    leased: BTreeMap<Item, Watch>,
    /// They were leased when they were looked at, and most such leases do not last: nothing tells
    /// of their end. They are looked at again, and if they are still leased then, they are watched.
    passed: BTreeSet<Item>,
    /// When they are to be looked at again, though there are others.
    due: Option<Instant>,
    /// They may not be read.
    hidden: BTreeSet<Item>,
}

/// What a look at an item has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    Free,
    Leased,
    Hidden,
    Gone,
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
        let listed_at = kept.listed_at;
        drop(kept);
        let stock = Arc::clone(self);
        Some(Arc::new(Claim { stock, item, listed_at, over: AtomicBool::new(false) }))
    }

    pub(crate) fn is_out(&self, on: &On) -> bool {
        let mut kept = self.kept.lock();
        kept.look_after_leases(on);
        kept.waiting.is_empty()
    }

    /// Whether a watch tells of new items.
    pub(crate) fn is_watched(&self, on: &On) -> bool {
        let kept = self.kept.lock();
        kept.on.as_ref() == Some(on) && kept.list.as_ref().is_some_and(|list| !list.has_fired())
    }

    /// Whether it is time to look at what was passed, though there are others.
    pub(crate) fn is_due(&self, on: &On) -> bool {
        let mut kept = self.kept.lock();
        kept.look_after_leases(on);
        kept.due.is_some_and(|due| due <= rt::now())
    }

    /// Whether all items of this edition are known, but for those that are gone.
    pub(crate) fn has(&self, edition: Edition) -> bool {
        self.kept.lock().edition == Some(edition)
    }

    /// Those that were passed.
    pub(crate) fn passed(&self) -> Vec<Item> {
        self.kept.lock().passed.iter().cloned().collect()
    }

    /// So many of the first that are known to wait.
    pub(crate) fn ahead(&self, most: usize) -> Vec<Item> {
        self.kept.lock().waiting.iter().take(most).cloned().collect()
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

    /// These are the children of the queue's node, with its stat if it is there, and with the watch
    /// that was set by asking for them. Says how many are no items.
    pub(crate) fn learn(
        &self,
        on: &On,
        children: &[String],
        queue: Option<&Stat>,
        watch: Option<Watch>,
    ) -> usize {
        let (mut items, others) = self.layout.sort(children);
        let edition = queue.map(Edition::of);
        let mut kept = self.kept.lock();
        kept.look_after_leases(on);
        if kept.edition.map(|known| known.queue) != edition.map(|now| now.queue) {
            // What has the same name may be another item.
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

    /// The list is of a queue that is gone: there is another one in its place.
    pub(crate) fn forget(&self) {
        let mut kept = self.kept.lock();
        kept.forget_sights();
        kept.waiting.clear();
        (kept.edition, kept.list) = (None, None);
        drop(kept);
        self.news.tell();
    }

    /// What a look at items that wait has shown.
    pub(crate) fn looked_ahead(&self, seen: impl Iterator<Item = (Item, Sight)>) {
        let mut kept = self.kept.lock();
        for (item, sight) in seen {
            match sight {
                // A closer look will tell, if nobody is at it.
                Sight::Free | Sight::Hidden => {}
                Sight::Gone => {
                    kept.waiting.remove(&item);
                }
                Sight::Leased if kept.waiting.remove(&item) => kept.pass(item),
                Sight::Leased => {}
            }
        }
        drop(kept);
        // Calls that wait for whatever may come have to know of what was passed.
        self.news.tell();
    }

    /// What another look at items that had been passed has shown, with the watches that were set by
    /// it.
    pub(crate) fn looked_back(&self, on: &On, seen: Vec<(Item, Watch, Sight)>) {
        let mut kept = self.kept.lock();
        for (item, watch, sight) in seen {
            if !kept.passed.remove(&item) {
                continue;
            }
            match sight {
                Sight::Gone => {}
                Sight::Free => {
                    kept.waiting.insert(item);
                }
                Sight::Hidden => {
                    kept.hidden.insert(item);
                }
                // A call that was told by it may have looked before.
                Sight::Leased if watch.has_fired() || kept.on.as_ref() != Some(on) => {
                    kept.passed.insert(item);
                }
                Sight::Leased => {
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
    /// Those whose lease has ended, and those whose watch is of no use any more, are to be looked at
    /// again at once.
    fn look_after_leases(&mut self, on: &On) {
        let again: BTreeSet<Item> = if self.on.as_ref() != Some(on) {
            (self.on, self.list) = (Some(on.clone()), None);
            self.waiting.append(&mut self.hidden);
            std::mem::take(&mut self.leased).into_keys().collect()
        } else if self.leased.values().any(Watch::has_fired) {
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
            self.due = rt::now().checked_add(PASSING);
        }
    }

    fn forget_sights(&mut self) {
        self.leased.clear();
        self.passed.clear();
        self.hidden.clear();
        self.due = None;
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
    /// As the stock's, when it was claimed.
    listed_at: i64,
    over: AtomicBool,
}

impl Claim {
    pub(crate) fn item(&self) -> &Item {
        &self.item
    }

    /// Whether an item that was made then can be the one that was listed. Another one of the same
    /// name is of a queue that was made anew, and others may come before it there.
    pub(crate) fn is_made_at(&self, czxid: i64) -> bool {
        czxid <= self.listed_at
    }

    /// It is not there any more.
    pub(crate) fn is_gone(&self) {
        self.end(|_, _| false);
    }

    /// It is somebody else's for the time being.
    pub(crate) fn is_passed(&self) {
        self.end(|kept, item| {
            kept.pass(item);
            // Who waits for whatever may come has to know of it before we go.
            true
        });
    }

    /// It may not be read.
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
        stock.learn(on, &children, Some(&queue(7, 20)), Some(watch()))
    }

    /// The stat of a queue that was made then, and to which nothing has happened since.
    fn queue(czxid: i64, children_zxid: i64) -> Stat {
        Stat {
            czxid,
            mzxid: czxid,
            ctime: 0,
            version: 0,
            child_changes: 5,
            children: 5,
            children_zxid,
            ephemeral_owner: 0,
        }
    }

    fn looked_back(stock: &Stock, on: &On, sight: Sight) -> Vec<Arc<AtomicBool>> {
        let seen: Vec<_> = stock.passed().into_iter().map(|item| (item, watch(), sight)).collect();
        let flags = seen.iter().map(|(_, watch, _)| Arc::clone(&watch.fired)).collect();
        stock.looked_back(on, seen);
        flags
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
        met.is_passed();
        assert!(claim(&stock, &on).is_none() && !stock.is_due(&on));
        // A call that would wait looks at it first.
        assert!(stock.has_news());
        learn(&stock, &on, &["1"]);
        assert!(claim(&stock, &on).is_none());
        let fired = looked_back(&stock, &on, Sight::Leased);
        assert!(stock.is_out(&on) && stock.kept.lock().due.is_none());
        learn(&stock, &on, &["1"]);
        assert!(claim(&stock, &on).is_none() && stock.passed().is_empty());
        fired[0].store(true, Ordering::SeqCst);
        // It may have another lease: nothing is read to find out.
        assert!(stock.has_news() && stock.is_due(&on));
        assert!(claim(&stock, &on).is_none());
        looked_back(&stock, &on, Sight::Free);
        assert!(!stock.is_due(&on));
        assert_eq!(claim(&stock, &on).map(|(one, _)| one), Some(1));
    }

    #[test]
    fn what_is_seen_ahead_of_a_leased_item_sorts_those_that_wait() {
        let (stock, on) = stock(&["1", "2", "3", "4"]);
        assert_eq!(stock.ahead(3).len(), 3);
        let sights = [Sight::Leased, Sight::Gone, Sight::Hidden, Sight::Free];
        let seen: Vec<_> = stock.ahead(9).into_iter().zip(sights).collect();
        let (_, claimed) = claim(&stock, &on).unwrap();
        // One of ours was faster, who gives it back.
        stock.looked_ahead(seen.clone().into_iter());
        assert!(stock.passed().is_empty());
        claimed.give_back();
        stock.looked_ahead(seen.into_iter());
        assert_eq!(stock.passed().len(), 1);
        let rest = [claim(&stock, &on), claim(&stock, &on)];
        assert_eq!(rest.each_ref().map(|one| one.as_ref().unwrap().0), [3, 4]);
        assert!(claim(&stock, &on).is_none());
    }

    #[test]
    fn a_watch_that_fired_before_it_was_kept_is_heeded() {
        let (stock, on) = stock(&["1"]);
        claim(&stock, &on).unwrap().1.is_passed();
        let seen = stock.passed().into_iter().map(|item| (item, watch(), Sight::Leased));
        let seen: Vec<_> = seen.collect();
        seen[0].1.fired.store(true, Ordering::SeqCst);
        stock.looked_back(&on, seen);
        assert_eq!(stock.passed().len(), 1);
    }

    #[test]
    fn another_connection_has_everything_looked_at_again() {
        let (stock, first) = stock(&["1", "2", "3"]);
        claim(&stock, &first).unwrap().1.is_passed();
        looked_back(&stock, &first, Sight::Leased);
        claim(&stock, &first).unwrap().1.is_passed();
        claim(&stock, &first).unwrap().1.is_hidden();
        assert!(claim(&stock, &first).is_none());
        let second = on(2);
        assert!(!stock.is_watched(&second) && stock.is_due(&second));
        assert_eq!(stock.passed().len(), 2);
        assert_eq!(claim(&stock, &second).map(|(three, _)| three), Some(3));
    }

    #[test]
    fn a_hidden_item_is_no_news_and_not_tried_again() {
        let (stock, on) = stock(&["1"]);
        claim(&stock, &on).unwrap().1.is_hidden();
        learn(&stock, &on, &["1"]);
        assert!(claim(&stock, &on).is_none() && stock.passed().is_empty());
    }

    /// The numbers of a queue that was removed and made anew begin at 0 again.
    #[test]
    fn the_names_of_a_queue_that_was_made_anew_are_not_taken_for_those_that_were_listed() {
        let (stock, on) = stock(&["1", "2", "3", "4"]);
        let (_, passed) = claim(&stock, &on).unwrap();
        passed.is_passed();
        claim(&stock, &on).unwrap().1.is_hidden();
        let (_, met) = claim(&stock, &on).unwrap();
        assert!(met.is_made_at(7) && met.is_made_at(20) && !met.is_made_at(21));
        met.is_gone();
        stock.forget();
        assert!(stock.is_out(&on) && !stock.is_watched(&on));
        let children: Vec<String> = (0..5).map(|n| format!("qn-000000000{n}")).collect();
        stock.learn(&on, &children, Some(&queue(30, 40)), Some(watch()));
        let (first, claimed) = claim(&stock, &on).unwrap();
        assert!(first == 0 && claimed.is_made_at(40));
        // Nothing that was seen of the old ones is held against the new ones.
        let (second, claimed) = claim(&stock, &on).unwrap();
        assert_eq!(second, 1);
        claimed.is_hidden();
        stock.learn(&on, &children, Some(&queue(50, 60)), Some(watch()));
        assert_eq!(claim(&stock, &on).map(|(again, _)| again), Some(1));
    }

    /// As a server counts: what is deleted changes nothing, and what is made does.
    #[test]
    fn an_edition_ends_with_an_item_that_is_made() {
        let stat = |made: i32, deleted: i32| Stat {
            child_changes: made.wrapping_add(deleted),
            children: made.wrapping_sub(deleted),
            ..queue(7, i64::from(deleted))
        };
        assert_eq!(Edition::of(&stat(5, 0)), Edition::of(&stat(5, 4)));
        assert_ne!(Edition::of(&stat(5, 0)), Edition::of(&stat(6, 1)));
        assert_ne!(Edition::of(&stat(5, 0)), Edition::of(&Stat { czxid: 8, ..stat(5, 0) }));
        assert_eq!(Edition::of(&stat(i32::MAX, 1)), Edition::of(&stat(i32::MAX, i32::MAX)));
    }
}
