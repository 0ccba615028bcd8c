use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::{explore, join, threads};
use crate::rt::AtomicU64;
use crate::rt::shuttled::{give_way, one_in};
use crate::session::together::Together;

/// Callers of `count` threads, each twice, while what is asked for changes. `panics` says whether
/// a question does.
fn callers(count: usize, panics: impl Fn() -> bool + Clone + Send + 'static) -> impl FnOnce() {
    let together = Arc::new(Together::<u64>::default());
    let (world, asking) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (shared, changing) = (Arc::clone(&together), Arc::clone(&world));
    let callers = threads(count, move |number| {
        let key = if number == 4 { "b" } else { "a" };
        for _ in 0..2 {
            let before = world.load(SeqCst);
            let ask = || {
                if key == "a" {
                    assert_eq!(asking.fetch_add(1, SeqCst), 0, "two ask at once");
                }
                let answer = world.load(SeqCst);
                if key == "a" {
                    asking.fetch_sub(1, SeqCst);
                }
                if panics() {
                    give_way();
                }
                answer
            };
            if let Ok(answer) = catch_unwind(AssertUnwindSafe(|| shared.get(key, ask))) {
                assert!(answer >= before, "the answer {answer} was asked for before {before}");
            }
        }
    });
    for _ in 0..4 {
        changing.fetch_add(1, SeqCst);
    }
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

/// A question by a thread that unwinds is as good as any.
#[test]
fn who_asks_while_unwinding_strands_nobody() {
    struct AsksWhenDropped(Arc<Together<u64>>);
    impl Drop for AsksWhenDropped {
        fn drop(&mut self) {
            self.0.get("a", || 1);
        }
    }
    explore(|| {
        let together = Arc::new(Together::<u64>::default());
        let shared = Arc::clone(&together);
        let callers = threads(3, move |number| {
            let asks = AsksWhenDropped(Arc::clone(&shared));
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let _asks = asks;
                // One at the most: two that unwind cannot be told apart by what runs them.
                if number == 0 {
                    give_way();
                }
            }));
        });
        join(callers);
        move || assert_eq!(format!("{together:?}"), "{}")
    });
}
