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
    inner: Mutex<Inner<T>>,
    changed: Condvar,
}

struct Inner<T> {
    state: State<T>,
    /// How many have joined and not come to ask. They cannot be told by the references to the
    /// round: who has panicked may still have one.
    waiting: usize,
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
            let mut inner = round.inner.lock();
            loop {
                match &inner.state {
                    State::Waiting => round.changed.wait(&mut inner),
                    State::Done(answer) => return answer.clone(),
                    State::Due => break,
                }
            }
            inner.state = State::Waiting;
            inner.waiting -= 1;
            drop(inner);
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
            let inner = Inner { state: State::Waiting, waiting: 0 };
            Arc::new(Round { inner: Mutex::new(inner), changed: Condvar::new() })
        });
        next.inner.lock().waiting += 1;
        Some(Arc::clone(next))
    }

    fn run(&self, key: &str, round: Option<&Arc<Round<T>>>, ask: impl FnOnce() -> T) -> T {
        let mut turn = Turn { together: self, key, round, finished: false };
        let answer = ask();
        turn.finished = true;
        drop(turn);
        if let Some(round) = round {
            round.inner.lock().state = State::Done(answer.clone());
            round.changed.notify_all();
        }
        answer
    }
}

struct Turn<'a, T> {
    together: &'a Together<T>,
    key: &'a str,
    round: Option<&'a Arc<Round<T>>>,
    finished: bool,
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        if !self.finished
            && let Some(round) = self.round
            && round.hand_on()
        {
            // The question panicked: another of those who wait for this round takes it over.
            return;
        }
        let mut rounds = self.together.rounds.lock();
        let next = rounds.get_mut(self.key).and_then(|of_key| of_key.next.take());
        if !next.is_some_and(|round| round.hand_on()) {
            rounds.remove(self.key);
        }
    }
}

impl<T> Round<T> {
    /// Has one of those who wait ask, if there is one.
    fn hand_on(&self) -> bool {
        let mut inner = self.inner.lock();
        if inner.waiting == 0 {
            return false;
        }
        inner.state = State::Due;
        self.changed.notify_one();
        true
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
    use crate::rt::{Sender, bounded};
    use std::thread::{JoinHandle, spawn, yield_now};

    type Letters = Arc<Together<u8>>;

    /// A caller whose question is under way until the sender is dropped.
    fn hold_up(together: &Letters) -> (JoinHandle<u8>, Sender<()>) {
        let (begun, has_begun) = bounded(0);
        let (go_on, may_go_on) = bounded::<()>(0);
        let shared = Arc::clone(together);
        let first = spawn(move || {
            shared.get("a", || {
                begun.send(()).unwrap();
                let _ = may_go_on.recv();
                1
            })
        });
        has_begun.recv().unwrap();
        (first, go_on)
    }

    fn wait_until_joined(together: &Letters, count: usize) {
        let joined = || {
            let rounds = together.rounds.lock();
            rounds["a"].next.as_ref().is_some_and(|next| Arc::strong_count(next) == count + 1)
        };
        while !joined() {
            yield_now();
        }
    }

    fn assert_nobody_is_stranded(together: &Letters) {
        assert_eq!(together.get("a", || 7), 7);
        assert!(together.rounds.lock().is_empty());
    }

    #[test]
    fn those_who_come_during_a_round_share_the_next_one() {
        let together = Letters::default();
        let asked = Arc::new(Mutex::new(1));
        let (first, go_on) = hold_up(&together);
        let others: Vec<_> = (0..20)
            .map(|_| {
                let (shared, asked) = (Arc::clone(&together), Arc::clone(&asked));
                spawn(move || {
                    shared.get("a", || {
                        *asked.lock() += 1;
                        *asked.lock()
                    })
                })
            })
            .collect();
        wait_until_joined(&together, 20);
        assert_eq!(together.get("b", || 7), 7, "another key waits for nobody");
        drop(go_on);
        assert_eq!(first.join().unwrap(), 1);
        for other in others {
            assert_eq!(other.join().unwrap(), 2);
        }
        assert_nobody_is_stranded(&together);
    }

    #[test]
    fn a_question_that_panics_strands_nobody() {
        let together = Letters::default();
        for others in 0..2 {
            let (first, go_on) = hold_up(&together);
            let shared = Arc::clone(&together);
            let panics = spawn(move || shared.get("a", || panic!("this one panics")));
            wait_until_joined(&together, 1);
            let answers: Vec<_> = (0..others)
                .map(|_| {
                    let shared = Arc::clone(&together);
                    spawn(move || shared.get("a", || 3))
                })
                .collect();
            wait_until_joined(&together, 1 + others);
            drop(go_on);
            assert_eq!(first.join().unwrap(), 1);
            // Whichever of them came to ask.
            let _: std::thread::Result<u8> = panics.join();
            for answer in answers {
                assert_eq!(answer.join().unwrap(), 3);
            }
            assert_nobody_is_stranded(&together);
        }
    }

    #[test]
    fn a_question_by_a_thread_that_unwinds_is_as_good_as_any() {
        struct AsksWhenDropped(Letters);
        impl Drop for AsksWhenDropped {
            fn drop(&mut self) {
                self.0.get("a", || 2);
            }
        }
        let together = Letters::default();
        let (first, go_on) = hold_up(&together);
        let unwinding: Vec<_> = (0..2)
            .map(|_| {
                let asks = AsksWhenDropped(Arc::clone(&together));
                spawn(move || {
                    let _asks = asks;
                    panic!("this one unwinds");
                })
            })
            .collect();
        wait_until_joined(&together, 2);
        drop(go_on);
        assert_eq!(first.join().unwrap(), 1);
        for thread in unwinding {
            let unwound: std::thread::Result<()> = thread.join();
            assert!(unwound.is_err());
        }
        assert_nobody_is_stranded(&together);
    }
}
