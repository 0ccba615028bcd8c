use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::{explore, join, threads};
use crate::rt::AtomicU64;
use crate::rt::shuttled::{give_way, one_in};
use crate::session::{Cancel, SingleFlight, TimeLimit, Wait};

/// Has `count` threads ask twice each, while the answer changes. `panics` decides whether a
/// question panics. Two of the threads have a time limit; one of these is cancelled.
fn callers(count: usize, panics: impl Fn() -> bool + Clone + Send + 'static) -> impl FnOnce() {
    let together = Arc::new(SingleFlight::<u64>::default());
    let (world, asking) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (shared, changing) = (Arc::clone(&together), Arc::clone(&world));
    let cancel = Cancel::new();
    let token = cancel.clone();
    let callers = threads(count, move |number| {
        let key = if number == 4 { "b" } else { "a" };
        for _ in 0..2 {
            let limit = match number {
                1 => Some(TimeLimit::new(&Wait::from(Duration::from_millis(1)))),
                2 => Some(TimeLimit::new(&Wait::from(&token))),
                _ => None,
            };
            let before = world.load(SeqCst);
            let ask = || {
                // A caller whose limit is over gets no answer.
                let is_over = limit.as_ref().is_some_and(TimeLimit::is_over);
                if key == "a" {
                    assert_eq!(asking.fetch_add(1, SeqCst), 0, "two threads ask at once");
                }
                let answer = if is_over { 0 } else { world.load(SeqCst) };
                if key == "a" {
                    asking.fetch_sub(1, SeqCst);
                }
                if panics() {
                    give_way();
                }
                answer
            };
            let get = || shared.get(key, limit.as_ref(), ask);
            match catch_unwind(AssertUnwindSafe(get)) {
                Ok(Some(answer)) => {
                    assert!(answer >= before, "stale answer {answer}: it was {before} already");
                }
                Ok(None) => assert!(limit.as_ref().is_some_and(TimeLimit::was_over)),
                Err(_) => {}
            }
        }
    });
    for _ in 0..4 {
        changing.fetch_add(1, SeqCst);
    }
    cancel.cancel();
    join(callers);
    move || assert_eq!(format!("{together:?}"), "{}")
}

#[test]
fn everybody_gets_an_answer_that_is_not_stale() {
    explore(|| callers(5, || false));
}

#[test]
fn a_question_that_panics_strands_nobody() {
    explore(|| callers(3, || one_in(3)));
}

/// A question works as usual on a thread that is unwinding.
#[test]
fn who_asks_while_unwinding_strands_nobody() {
    struct AsksWhenDropped(Arc<SingleFlight<u64>>);
    impl Drop for AsksWhenDropped {
        fn drop(&mut self) {
            self.0.get("a", None, || 1);
        }
    }
    explore(|| {
        let together = Arc::new(SingleFlight::<u64>::default());
        let shared = Arc::clone(&together);
        let callers = threads(3, move |number| {
            let asks = AsksWhenDropped(Arc::clone(&shared));
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let _asks = asks;
                // Only one thread panics: shuttle cannot tell two unwinding threads apart.
                if number == 0 {
                    give_way();
                }
            }));
        });
        join(callers);
        move || assert_eq!(format!("{together:?}"), "{}")
    });
}
