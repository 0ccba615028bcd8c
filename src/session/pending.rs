//! A thread that waits for the answers to its requests.

use std::mem;
use std::sync::Arc;

use super::store::{Answer, Answered, Both, OnReply, Reply};
use crate::rt::{Condvar, Mutex};

/// The answers to one request, or two.
pub(super) struct Pending(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    done: Condvar,
}

struct State {
    answers: Both<Answered>,
    missing: usize,
}

impl Pending {
    /// Of so many requests.
    pub(super) fn new(count: usize) -> Pending {
        let state = State { answers: [None, None], missing: count };
        Pending(Arc::new(Shared { state: Mutex::new(state), done: Condvar::new() }))
    }

    /// What to do with the answer to the request of this number, to be asked for once each.
    pub(super) fn on_reply(&self, number: usize) -> OnReply {
        let mut promise = Promise { shared: Arc::clone(&self.0), number, answer: None };
        Box::new(move |answer| {
            promise.answer = Some(answer);
            drop(promise);
        })
    }

    /// Waits for all of them. `None` stands for one that will never come.
    pub(super) fn wait(self) -> Both<Answer<Reply>> {
        let mut state = self.0.state.lock();
        while state.missing > 0 {
            self.0.done.wait(&mut state);
        }
        let answers = mem::take(&mut state.answers);
        drop(state);
        answers.map(|answer| answer.map(Answered::read))
    }
}

/// Dropped with an answer or without: nobody waits for ever.
struct Promise {
    shared: Arc<Shared>,
    number: usize,
    answer: Option<Answered>,
}

impl Drop for Promise {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(answer) = state.answers.get_mut(self.number) {
            *answer = self.answer.take();
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
