//! One answer for all callers that ask the same at the same time: after a new connection, every
//! waiting call of a client wants the same list at once.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;

use super::time_limit::TimeLimit;
use crate::rt::{Condvar, Mutex, Signal};

/// Shares answers of type `T` among callers with the same key.
///
/// No caller gets the answer to a request that was sent before its call began.
pub(crate) struct SingleFlight<T> {
    /// By the key of the round under way: the one that will begin when it has ended.
    rounds: Mutex<HashMap<String, Option<Arc<Flight<T>>>>>,
}

struct Flight<T> {
    inner: Mutex<Inner<T>>,
    changed: Condvar,
}

struct Inner<T> {
    state: FlightState<T>,
    /// How many callers have joined and neither asked nor given up. The references to the round do
    /// not tell: a caller that has panicked may still have one.
    waiting: usize,
    /// The bells of those with a time limit, by number.
    bells: BTreeMap<u64, Signal>,
    next: u64,
}

enum FlightState<T> {
    Waiting,
    /// One of the waiting callers is to ask.
    Due,
    Done(T),
}

impl<T: Clone> SingleFlight<T> {
    /// Returns the answer of `ask`, which one of the callers runs; `None` if the caller's time
    /// limit is over first. If that caller was the one asking, another asks anew.
    pub(crate) fn get(
        &self,
        key: &str,
        limit: Option<&TimeLimit>,
        ask: impl FnOnce() -> T,
    ) -> Option<T> {
        if let Some(round) = self.join(key) {
            let mut inner = round.inner.lock();
            inner.next += 1;
            let number = inner.next;
            inner.bells.extend(limit.map(|limit| (number, limit.bell())));
            loop {
                match (&inner.state, limit) {
                    (FlightState::Done(answer), _) => return Some(answer.clone()),
                    (FlightState::Due, _) => break,
                    (FlightState::Waiting, None) => round.changed.wait(&mut inner),
                    (FlightState::Waiting, Some(limit)) if limit.is_over() => {
                        inner.waiting -= 1;
                        inner.bells.remove(&number);
                        return None;
                    }
                    (FlightState::Waiting, Some(limit)) => {
                        drop(inner);
                        limit.wait();
                        inner = round.inner.lock();
                    }
                }
            }
            inner.state = FlightState::Waiting;
            inner.waiting -= 1;
            inner.bells.remove(&number);
            drop(inner);
            return self.run(key, Some(&round), limit, ask);
        }
        self.run(key, None, limit, ask)
    }

    /// Joins the next round if one is under way already; otherwise the caller is to ask.
    fn join(&self, key: &str) -> Option<Arc<Flight<T>>> {
        let mut rounds = self.rounds.lock();
        let Some(next) = rounds.get_mut(key) else {
            rounds.insert(key.to_owned(), None);
            return None;
        };
        let next = next.get_or_insert_with(|| {
            let inner =
                Inner { state: FlightState::Waiting, waiting: 0, bells: BTreeMap::new(), next: 0 };
            Arc::new(Flight { inner: Mutex::new(inner), changed: Condvar::new() })
        });
        next.inner.lock().waiting += 1;
        Some(Arc::clone(next))
    }

    fn run(
        &self,
        key: &str,
        round: Option<&Arc<Flight<T>>>,
        limit: Option<&TimeLimit>,
        ask: impl FnOnce() -> T,
    ) -> Option<T> {
        let mut turn = AskTurn { flight: self, key, round, finished: false };
        let answer = ask();
        if limit.is_some_and(TimeLimit::was_over) {
            return None;
        }
        turn.finished = true;
        drop(turn);
        if let Some(round) = round {
            let mut inner = round.inner.lock();
            inner.state = FlightState::Done(answer.clone());
            let bells = mem::take(&mut inner.bells);
            drop(inner);
            round.changed.notify_all();
            bells.values().for_each(|bell| bell());
        }
        Some(answer)
    }
}

struct AskTurn<'a, T> {
    flight: &'a SingleFlight<T>,
    key: &'a str,
    round: Option<&'a Arc<Flight<T>>>,
    finished: bool,
}

impl<T> Drop for AskTurn<'_, T> {
    fn drop(&mut self) {
        if !self.finished && self.round.is_some_and(|round| round.hand_on()) {
            // There was no answer: another caller that waits for this round takes over.
            return;
        }
        let mut rounds = self.flight.rounds.lock();
        let next = rounds.get_mut(self.key).and_then(Option::take);
        if !next.is_some_and(|round| round.hand_on()) {
            rounds.remove(self.key);
        }
    }
}

impl<T> Flight<T> {
    /// Makes one of the waiting callers ask, if there is one.
    fn hand_on(&self) -> bool {
        let mut inner = self.inner.lock();
        if inner.waiting == 0 {
            return false;
        }
        inner.state = FlightState::Due;
        // A caller whose bell is listed is still waiting, and will look.
        match inner.bells.values().next() {
            Some(bell) => bell(),
            None => {
                self.changed.notify_one();
            }
        }
        true
    }
}

impl<T> Default for SingleFlight<T> {
    fn default() -> SingleFlight<T> {
        SingleFlight { rounds: Mutex::default() }
    }
}

impl<T> std::fmt::Debug for SingleFlight<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.rounds.lock().keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::{Sender, bounded, unbounded};
    use crate::session::wait::{Cancel, Wait};
    use std::thread::{JoinHandle, spawn, yield_now};
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(20);

    type Letters = Arc<SingleFlight<u8>>;

    /// A caller whose question is under way until the sender is dropped.
    fn hold_up(flight: &Letters) -> (JoinHandle<u8>, Sender<()>) {
        let (begun, has_begun) = bounded(0);
        let (go_on, may_go_on) = bounded::<()>(0);
        let shared = Arc::clone(flight);
        let first = spawn(move || {
            let ask = || {
                begun.send(()).unwrap();
                let _ = may_go_on.recv();
                1
            };
            shared.get("a", None, ask).unwrap()
        });
        has_begun.recv().unwrap();
        (first, go_on)
    }

    fn wait_until_joined(flight: &Letters, count: usize) {
        let joined = || {
            let rounds = flight.rounds.lock();
            rounds["a"].as_ref().is_some_and(|next| Arc::strong_count(next) == count + 1)
        };
        while !joined() {
            yield_now();
        }
    }

    fn assert_nobody_is_stranded(flight: &Letters) {
        assert_eq!(flight.get("a", None, || 7), Some(7));
        assert!(flight.rounds.lock().is_empty());
    }

    #[test]
    fn those_who_come_during_a_round_share_the_next_one() {
        let flight = Letters::default();
        let asked = Arc::new(Mutex::new(1));
        let (first, go_on) = hold_up(&flight);
        let others: Vec<_> = (0..20)
            .map(|_| {
                let (shared, asked) = (Arc::clone(&flight), Arc::clone(&asked));
                spawn(move || {
                    let ask = || {
                        *asked.lock() += 1;
                        *asked.lock()
                    };
                    shared.get("a", None, ask).unwrap()
                })
            })
            .collect();
        wait_until_joined(&flight, 20);
        assert_eq!(flight.get("b", None, || 7), Some(7), "another key does not wait");
        drop(go_on);
        assert_eq!(first.join().unwrap(), 1);
        for other in others {
            assert_eq!(other.join().unwrap(), 2);
        }
        assert_nobody_is_stranded(&flight);
    }

    #[test]
    fn a_question_that_panics_strands_nobody() {
        let flight = Letters::default();
        for others in 0..2 {
            let (first, go_on) = hold_up(&flight);
            let shared = Arc::clone(&flight);
            let panics = spawn(move || shared.get("a", None, || panic!("this one panics")));
            wait_until_joined(&flight, 1);
            let answers: Vec<_> = (0..others)
                .map(|_| {
                    let shared = Arc::clone(&flight);
                    spawn(move || shared.get("a", None, || 3).unwrap())
                })
                .collect();
            wait_until_joined(&flight, 1 + others);
            drop(go_on);
            assert_eq!(first.join().unwrap(), 1);
            // It panics only if it was the one to ask.
            let _: std::thread::Result<Option<u8>> = panics.join();
            for answer in answers {
                assert_eq!(answer.join().unwrap(), 3);
            }
            assert_nobody_is_stranded(&flight);
        }
    }

    #[test]
    fn a_question_by_a_thread_that_unwinds_is_as_good_as_any() {
        struct AsksWhenDropped(Letters);
        impl Drop for AsksWhenDropped {
            fn drop(&mut self) {
                self.0.get("a", None, || 2);
            }
        }
        let flight = Letters::default();
        let (first, go_on) = hold_up(&flight);
        let unwinding: Vec<_> = (0..2)
            .map(|_| {
                let asks = AsksWhenDropped(Arc::clone(&flight));
                spawn(move || {
                    let _asks = asks;
                    panic!("this one unwinds");
                })
            })
            .collect();
        wait_until_joined(&flight, 2);
        drop(go_on);
        assert_eq!(first.join().unwrap(), 1);
        for thread in unwinding {
            let unwound: std::thread::Result<()> = thread.join();
            assert!(unwound.is_err());
        }
        assert_nobody_is_stranded(&flight);
    }

    #[test]
    fn who_goes_before_the_answer_leaves_the_question_to_another() {
        let flight = Letters::default();
        let (first, go_on) = hold_up(&flight);
        let cancels = [(); 2].map(|()| Cancel::new());
        let (asks, asked) = unbounded();
        let callers = [0, 1].map(|number| {
            let (shared, asks, cancel) =
                (Arc::clone(&flight), asks.clone(), cancels[number].clone());
            spawn(move || {
                let limit = TimeLimit::new(&Wait::from(&cancel));
                shared.get("a", Some(&limit), || {
                    let (answer, answered) = bounded(1);
                    asks.send((number, answer)).unwrap();
                    // As verbs do: no answer counts once the limit is over.
                    let given = answered.recv().unwrap();
                    if limit.is_over() { 0 } else { given }
                })
            })
        });
        wait_until_joined(&flight, 2);
        drop(go_on);
        first.join().unwrap();
        let (goes, answer) = asked.recv_timeout(SOON).unwrap();
        cancels[goes].cancel();
        answer.send(1).unwrap();
        let (stays, answer) = asked.recv_timeout(SOON).unwrap();
        assert_ne!(stays, goes);
        answer.send(2).unwrap();
        let answers = callers.map(|caller| caller.join().unwrap());
        assert_eq!((answers[goes], answers[stays]), (None, Some(2)));
        assert_nobody_is_stranded(&flight);
    }

    #[test]
    fn who_goes_while_others_ask_holds_up_nobody() {
        let flight = Letters::default();
        let (first, go_on) = hold_up(&flight);
        let (cancel, shared) = (Cancel::new(), Arc::clone(&flight));
        let limit = TimeLimit::new(&Wait::from(&cancel));
        let (tell, told) = unbounded();
        spawn(move || tell.send(shared.get("a", Some(&limit), || panic!("asked after giving up"))));
        wait_until_joined(&flight, 1);
        cancel.cancel();
        assert_eq!(told.recv_timeout(SOON), Ok(None));
        drop(go_on);
        first.join().unwrap();
        assert_nobody_is_stranded(&flight);
    }
}
