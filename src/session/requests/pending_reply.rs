//! Waits for the replies to requests that were sent together.

use std::mem;
use std::sync::Arc;

use super::time_limit::TimeLimit;
use crate::link::AwaitsServer;
use crate::rt::{Condvar, Deadline, Mutex, Signal};
use crate::session::connection::{
    Answer, Answered, Connection, Fault, IsWanted, OnAnswer, OnReply, Reply,
};

/// The answers to one request, or to several.
pub(crate) struct PendingReply<'a> {
    shared: Arc<ReplySlot>,
    limit: Option<&'a TimeLimit>,
    /// What the caller may read itself.
    connection: Option<&'a dyn Connection>,
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
    /// While the caller waits.
    waits: Option<AwaitsServer>,
}

impl<'a> PendingReply<'a> {
    /// For the answers to `count` requests, to a caller that waits within this limit.
    pub(crate) fn new(count: usize, limit: Option<&'a TimeLimit>) -> PendingReply<'a> {
        let answers = std::iter::repeat_with(|| None).take(count).collect();
        let state = ReplyState { answers, missing: count, gave_up: false, late: None, waits: None };
        let bell = limit.map(TimeLimit::bell);
        let shared = ReplySlot { state: Mutex::new(state), done: Condvar::new(), bell };
        PendingReply { shared: Arc::new(shared), limit, connection: None }
    }

    /// The same, for answers that come over this connection.
    pub(crate) fn over(self, connection: &'a dyn Connection) -> PendingReply<'a> {
        PendingReply { connection: Some(connection), ..self }
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
        self.read();
        let mut state = self.shared.state.lock();
        while state.missing > 0 {
            match self.limit {
                None => self.shared.done.wait(&mut state),
                Some(limit) if limit.is_over() => {
                    (state.gave_up, state.waits) = (true, None);
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

    /// Reads what the server sends, if nobody else does.
    fn read(&self) {
        // It would notice a cancel only after a while.
        let may_read = !self.limit.is_some_and(TimeLimit::may_be_cancelled);
        let Some(connection) = self.connection else { return };
        let Some(waits) = connection.await_server(may_read) else { return };
        let mut state = self.shared.state.lock();
        if state.missing == 0 {
            return;
        }
        state.waits = Some(waits);
        drop(state);
        if !may_read {
            return;
        }
        let is_over = || self.limit.is_some_and(TimeLimit::is_over);
        let until = self.limit.map_or(Deadline::NEVER, TimeLimit::until);
        connection.read_until(until, &|| self.shared.state.lock().missing == 0 || is_over());
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
        if is_last {
            state.waits = None;
        }
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::connection_notice::{End, Info};
    use crate::link::ReadingTurn;
    use crate::rt::Moment;
    use crate::session::connection::{Submission, Waits};
    use std::time::Duration;

    /// A connection that another thread reads.
    #[derive(Debug)]
    struct ReadByAnother(Arc<ReadingTurn>);

    impl Connection for ReadByAnother {
        fn submit(&self, _requests: Vec<Submission>, _waits: Waits) -> bool {
            true
        }

        fn await_server(&self, _reads: bool) -> Option<AwaitsServer> {
            Some(self.0.count())
        }

        fn flushed_by(&self, _until: Deadline) {}

        fn trusted(&self) -> Result<Duration, End> {
            Ok(Duration::ZERO)
        }

        fn info(&self) -> Info {
            Info::default()
        }

        fn close(&self, _why: End, _give_up_after: Duration) {}
    }

    #[test]
    fn an_answered_caller_no_longer_counts() {
        let turn = ReadingTurn::new();
        let connection = ReadByAnother(Arc::clone(&turn));
        let must_read = || turn.rest(Moment::ZERO, Moment::NEVER).is_none();
        let pending = PendingReply::new(1, None).over(&connection);
        let on_reply = pending.on_reply(0);
        pending.read();
        assert!(must_read());
        on_reply(Answered::Read(Ok(Reply::Done)));
        assert!(!must_read(), "it has its answer, though it has not run since");
        assert_eq!(pending.wait(&mut None), [Ok(Reply::Done)]);
    }
}
