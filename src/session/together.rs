//! One answer for all who ask the same at the same time: after a new connection, every
//! waiter of a client wants the same list at once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::rt::{Condvar, Mutex};

/// Shares answers of type `T` among callers with the same key.
///
/// Nobody is given an answer that was asked for before the call began.
pub(crate) struct Together<T> {
    rounds: Mutex<HashMap<String, Rounds<T>>>,
}

struct Rounds<T> {
    /// The round that will begin when the one under way has ended.
    next: Option<Arc<Round<T>>>,
}

struct Round<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    Waiting,
    /// One of those who wait for it is to ask.
    Due,
    Done(T),
}

impl<T: Clone> Together<T> {
    /// The answer of `ask`, by whoever of the callers runs it.
    pub(crate) fn get(&self, key: &str, ask: impl FnOnce() -> T) -> T {
        if let Some(round) = self.join(key) {
            let mut state = round.state.lock();
            loop {
                match &*state {
                    State::Waiting => round.changed.wait(&mut state),
                    State::Done(answer) => return answer.clone(),
                    State::Due => break,
                }
            }
            *state = State::Waiting;
            drop(state);
            return self.run(key, Some(&round), ask);
        }
        self.run(key, None, ask)
    }

    /// The round to wait for, if one is under way already.
    fn join(&self, key: &str) -> Option<Arc<Round<T>>> {
        let mut rounds = self.rounds.lock();
        let Some(of_key) = rounds.get_mut(key) else {
            rounds.insert(key.to_owned(), Rounds { next: None });
            return None;
        };
        let next = of_key.next.get_or_insert_with(|| {
            Arc::new(Round { state: Mutex::new(State::Waiting), changed: Condvar::new() })
        });
        Some(Arc::clone(next))
    }

    fn run(&self, key: &str, round: Option<&Round<T>>, ask: impl FnOnce() -> T) -> T {
        let turn = Turn { together: self, key, round };
        let answer = ask();
        drop(turn);
        if let Some(round) = round {
            *round.state.lock() = State::Done(answer.clone());
            round.changed.notify_all();
        }
        answer
    }
}

struct Turn<'a, T> {
    together: &'a Together<T>,
    key: &'a str,
    round: Option<&'a Round<T>>,
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(round) = self.round
        {
            // Another of those who wait for this round takes it over.
            *round.state.lock() = State::Due;
            round.changed.notify_one();
            return;
        }
        let mut rounds = self.together.rounds.lock();
        let next = rounds.get_mut(self.key).and_then(|of_key| of_key.next.take());
        match next {
            Some(round) => {
                *round.state.lock() = State::Due;
                round.changed.notify_one();
            }
            None => drop(rounds.remove(self.key)),
        }
    }
}

impl<T> Default for Together<T> {
    fn default() -> Together<T> {
        Together { rounds: Mutex::default() }
    }
}

impl<T> std::fmt::Debug for Together<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.rounds.lock().keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::bounded;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn those_who_come_during_a_round_share_the_next_one() {
        let together: Arc<Together<usize>> = Arc::default();
        let asked = Arc::new(AtomicUsize::new(0));
        let (begun, has_begun) = bounded(0);
        let (go_on, may_go_on) = bounded::<()>(0);
        let (shared, count) = (Arc::clone(&together), Arc::clone(&asked));
        let first = std::thread::spawn(move || {
            shared.get("a", || {
                begun.send(()).unwrap();
                let _ = may_go_on.recv();
                count.fetch_add(1, Ordering::SeqCst)
            })
        });
        has_begun.recv().unwrap();
        let others: Vec<_> = (0..20)
            .map(|_| {
                let (shared, count) = (Arc::clone(&together), Arc::clone(&asked));
                std::thread::spawn(move || shared.get("a", || count.fetch_add(1, Ordering::SeqCst)))
            })
            .collect();
        let joined = || {
            let rounds = together.rounds.lock();
            rounds["a"].next.as_ref().is_some_and(|next| Arc::strong_count(next) == 21)
        };
        while !joined() {
            std::thread::yield_now();
        }
        assert_eq!(together.get("b", || 7), 7, "another key waits for nobody");
        drop(go_on);
        assert_eq!(first.join().unwrap(), 0);
        for other in others {
            assert_eq!(other.join().unwrap(), 1);
        }
        assert!(together.rounds.lock().is_empty());
    }
}
