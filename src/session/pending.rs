//! A thread that waits for the answers to requests of the link's.

use std::sync::Arc;

use crate::link::core::{Answer as Reply, OnAnswer};
use crate::rt::{Condvar, Mutex};

/// The answers to so many requests.
pub(super) struct Pending<const N: usize>(Arc<Shared<N>>);

struct Shared<const N: usize> {
    state: Mutex<State<N>>,
    done: Condvar,
}

struct State<const N: usize> {
    replies: [Option<Reply>; N],
    missing: usize,
}

impl<const N: usize> Pending<N> {
    pub(super) fn new() -> Pending<N> {
        let state = State { replies: [const { None }; N], missing: N };
        Pending(Arc::new(Shared { state: Mutex::new(state), done: Condvar::new() }))
    }

    /// What to do with the answer to the request of this number, to be asked for once each.
    pub(super) fn on_answer(&self, number: usize) -> OnAnswer {
        let mut promise = Promise { shared: Arc::clone(&self.0), number, reply: None };
        Box::new(move |reply| {
            promise.reply = Some(reply);
            drop(promise);
        })
    }

    /// Waits for all of them. `None` stands for one that will never come.
    pub(super) fn wait(self) -> [Option<Reply>; N] {
        let mut state = self.0.state.lock();
        while state.missing > 0 {
            self.0.done.wait(&mut state);
        }
        std::mem::replace(&mut state.replies, [const { None }; N])
    }
}

/// Dropped with a reply or without: nobody waits for ever.
struct Promise<const N: usize> {
    shared: Arc<Shared<N>>,
    number: usize,
    reply: Option<Reply>,
}

impl<const N: usize> Drop for Promise<N> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(reply) = state.replies.get_mut(self.number) {
            *reply = self.reply.take();
        }
        state.missing -= 1;
        // One wake-up, for the last of them.
        let is_last = state.missing == 0;
        drop(state);
        if is_last {
            self.shared.done.notify_one();
        }
    }
}
