//! Which readers are connected: not more than so many, and those that have asked nothing yet make room for
//! others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

#[derive(Clone, Debug)]
pub(crate) struct Connections {
    most: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// In the order in which they came.
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    task: Option<AbortHandle>,
    has_asked: Arc<AtomicBool>,
}

/// A place among the connections, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    number: u64,
    all: Connections,
    has_asked: Arc<AtomicBool>,
}

impl Connections {
    pub(crate) fn new(most: usize) -> Connections {
        Connections { most, state: Arc::default() }
    }

    /// A place for one more; `None` if all are taken by readers that are being served. Otherwise the one that
    /// has asked nothing for the longest time is closed, if need be.
    pub(crate) fn seat(&self) -> Option<Seat> {
        let mut state = self.lock();
        if state.open.len() >= self.most && !state.make_room() {
            return None;
        }
        let number = state.next;
        state.next += 1;
        let has_asked = Arc::new(AtomicBool::new(false));
        let open = Open { task: None, has_asked: Arc::clone(&has_asked) };
        state.open.insert(number, open);
        Some(Seat { number, all: self.clone(), has_asked })
    }

    /// Closes the one that has asked nothing for the longest time, if there is one.
    pub(crate) fn make_room(&self) {
        self.lock().make_room();
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().open.len()
    }

    /// What ends the connection in this place.
    pub(crate) fn note_task(&self, number: u64, task: AbortHandle) {
        if let Some(open) = self.lock().open.get_mut(&number) {
            open.task = Some(task);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn make_room(&mut self) -> bool {
        let idle = |one: &Open| !one.has_asked.load(Ordering::Relaxed);
        let number = self.open.iter().find(|(_, one)| idle(one)).map(|(number, _)| *number);
        let Some(open) = number.and_then(|number| self.open.remove(&number)) else { return false };
        if let Some(task) = open.task {
            task.abort();
        }
        true
    }
}

impl Seat {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Its request has come, or its reply was sent.
    pub(crate) fn set_asked(&self, has_asked: bool) {
        self.has_asked.store(has_asked, Ordering::Relaxed);
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.all.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_asks_nothing_for_the_longest_time_makes_room() {
        let all = Connections::new(3);
        let seats: Vec<Seat> = (0..3).map(|_| all.seat().unwrap()).collect();
        seats[0].set_asked(true);
        let fourth = all.seat().unwrap();
        let numbers = || all.lock().open.keys().copied().collect::<Vec<_>>();
        assert_eq!(numbers(), [0, 2, 3]);
        // The end of the one that had to go takes nobody's place.
        drop(seats);
        assert_eq!(numbers(), [3]);
        fourth.set_asked(true);
        let others: Vec<Seat> = (0..2).map(|_| all.seat().unwrap()).collect();
        others.iter().for_each(|one| one.set_asked(true));
        assert!(all.seat().is_none());
        assert_eq!(all.count(), 3);
        // Its reply was sent.
        others[1].set_asked(false);
        assert!(all.seat().is_some());
    }
}
