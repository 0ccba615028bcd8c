//! Waits for the replies to requests that were sent together.

use std::mem;
use std::sync::Arc;

use super::connection::{Answer, Answered, Fault, IsWanted, OnAnswer, OnReply, Reply};
use super::notify::Signal;
use super::time_limit::TimeLimit;
use crate::rt::{Condvar, Mutex};

/// The answers to one request, or to several.
pub(crate) struct PendingReply<'a> {
    shared: Arc<ReplySlot>,
    limit: Option<&'a TimeLimit>,
}

struct ReplySlot {
    state: Mutex<ReplyState>,
    done: Condvar,
    /// The bell of a caller with a time limit.
    bell: Option<Signal>,
}

struct ReplyState {
    answers: Vec<Option<Answered>>,
    missing: usize,
    /// Whether the caller no longer waits.
    gave_up: bool,
    /// Called with the first answer if the caller no longer waits for it.
    late: Option<OnAnswer<Reply>>,
}

impl<'a> PendingReply<'a> {
    /// For the answers to `count` requests, to a caller that waits within this limit.
    pub(crate) fn new(count: usize, limit: Option<&'a TimeLimit>) -> PendingReply<'a> {
        let answers = std::iter::repeat_with(|| None).take(count).collect();
        let state = ReplyState { answers, missing: count, gave_up: false, late: None };
        let bell = limit.map(TimeLimit::bell);
        let shared = ReplySlot { state: Mutex::new(state), done: Condvar::new(), bell };
        PendingReply { shared: Arc::new(shared), limit }
    }

    /// What to call with the answer to request `number`. Call this once for each request.
    pub(crate) fn on_reply(&self, number: usize) -> OnReply {
        let mut promise = ReplyPromise { shared: Arc::clone(&self.shared), number, answer: None };
        Box::new(move |answer| {
            promise.answer = Some(answer);
            drop(promise);
        })
    }

    /// Says whether the caller still waits.
    pub(crate) fn is_wanted(&self) -> IsWanted {
        let shared = Arc::clone(&self.shared);
        Box::new(move || !shared.state.lock().gave_up)
    }

    /// Waits as `wait_all` does, for a number of answers that is known.
    pub(crate) fn wait<const N: usize>(
        self,
        late: &mut Option<OnAnswer<Reply>>,
    ) -> [Answer<Reply>; N] {
        let mut all = self.wait_all(late);
        std::array::from_fn(|_| all.next().unwrap_or(Err(DROPPED)))
    }

    /// Waits for all answers, or until the limit is over: an answer that has not come by then
    /// counts as a lost connection. If the first answer is missing then, `late` is taken, and
    /// called with that answer when it comes.
    pub(crate) fn wait_all(
        self,
        late: &mut Option<OnAnswer<Reply>>,
    ) -> impl Iterator<Item = Answer<Reply>> {
        let (answers, missing) = self.wait_or_give_up(late);
        let or_missing = move |answer: Option<Answered>| {
            answer.map_or_else(|| Err(missing.clone()), Answered::read)
        };
        answers.into_iter().map(or_missing)
    }

    /// Returns the answers, and what a missing one means.
    fn wait_or_give_up(self, late: &mut Option<OnAnswer<Reply>>) -> (Vec<Option<Answered>>, Fault) {
        let mut state = self.shared.state.lock();
        while state.missing > 0 {
            match self.limit {
                None => self.shared.done.wait(&mut state),
                Some(limit) if limit.is_over() => {
                    state.gave_up = true;
                    let answers = mem::take(&mut state.answers);
                    if answers.first().is_none_or(Option::is_none) {
                        state.late = late.take();
                    }
                    return (answers, Fault::ConnectionLoss);
                }
                Some(limit) => {
                    drop(state);
                    limit.wait();
                    state = self.shared.state.lock();
                }
            }
        }
        (mem::take(&mut state.answers), DROPPED)
    }
}

/// What a dropped answer means: the session is over.
const DROPPED: Fault = Fault::SessionEnded;

/// Delivers the answer when dropped. Without one, that ends the wait, too.
struct ReplyPromise {
    shared: Arc<ReplySlot>,
    number: usize,
    answer: Option<Answered>,
}

impl Drop for ReplyPromise {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.missing -= 1;
        // Only the last answer wakes the caller.
        let is_last = state.missing == 0;
        let late = if self.number == 0 { state.late.take() } else { None };
        if let Some(late) = late {
            drop(state);
            return late(self.answer.take().map_or(Err(DROPPED), Answered::read));
        }
        if let Some(answer) = state.answers.get_mut(self.number) {
            *answer = self.answer.take();
        }
        drop(state);
        match &self.shared.bell {
            _ if !is_last => {}
            Some(bell) => bell(),
            None => {
                self.shared.done.notify_one();
            }
        }
    }
}
