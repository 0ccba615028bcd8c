//! Makes the calls of requests that were submitted together.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use crate::error::Error;
use crate::session::connection::{Answer, Answered, Fault, IsWanted, Reply, Request, Submission};
use crate::session::threads::Workers;

/// Requests that were submitted together. Each one gets an answer while the answers are wanted, also
/// if there is no thread for them or one panics; those that are not begun by then are not made.
pub(crate) struct Calls<F: Fn(&Request) -> Answer<Reply>> {
    pub(crate) requests: VecDeque<Submission>,
    pub(crate) is_wanted: IsWanted,
    /// Makes the call, however long it takes.
    pub(crate) answer: F,
    /// Why no thread could be started for them.
    pub(crate) no_thread: Arc<OnceLock<Error>>,
}

impl<F: Fn(&Request) -> Answer<Reply>> Calls<F> {
    /// Makes the calls on this thread.
    pub(super) fn make(mut self) {
        let mut lost = None;
        while let Some(asked) = self.requests.front().filter(|_| (self.is_wanted)()) {
            let answer = lost.clone().map_or_else(|| (self.answer)(&asked.request), Err);
            lost = answer.as_ref().err().filter(|fault| fault.is_loss()).cloned();
            self.reply(answer);
        }
    }

    /// Makes them on one of these threads.
    pub(crate) fn make_on(self, workers: &Arc<Workers>)
    where
        F: Send + 'static,
    {
        let no_thread = Arc::clone(&self.no_thread);
        // What is given back is dropped. This may not be among that: a thread that has ended since may
        // have run it.
        if let Err((error, _stranded)) = workers.submit(Box::new(move || self.make())) {
            let _ = no_thread.set(error);
        }
    }

    fn reply(&mut self, answer: Answer<Reply>) {
        if let Some(Submission { on_reply, .. }) = self.requests.pop_front() {
            on_reply(Answered::Read(answer));
        }
    }
}

impl<F: Fn(&Request) -> Answer<Reply>> Drop for Calls<F> {
    fn drop(&mut self) {
        while !self.requests.is_empty() && (self.is_wanted)() {
            let unknown = "no thread could be started for the call, or the call panicked";
            let why = self.no_thread.get().map_or(unknown.to_owned(), Error::to_string);
            self.reply(Err(Fault::System(why)));
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::rt::bounded;
    use crate::session::requests::{PendingReply, TimeLimit};
    use crate::session::wait::Wait;
    use std::time::Duration;

    const MOST: usize = 3;

    fn workers() -> Arc<Workers> {
        Workers::new("zklock-call", MOST)
    }

    fn unlimited() -> TimeLimit {
        TimeLimit::new(&Wait::FOREVER)
    }

    /// Makes one call for each of these answers.
    fn make<const N: usize>(
        workers: &Arc<Workers>,
        limit: &TimeLimit,
        answer: impl Fn(&Request) -> Answer<Reply> + Send + 'static,
    ) -> [Answer<Reply>; N] {
        let pending = PendingReply::new(N, Some(limit));
        let asked =
            |number| Submission { request: Request::Sync, on_reply: pending.on_reply(number) };
        let (requests, is_wanted) = ((0..N).map(asked).collect(), pending.is_wanted());
        Calls { requests, is_wanted, answer, no_thread: Arc::default() }.make_on(workers);
        pending.wait(&mut None)
    }

    #[test]
    fn after_a_lost_connection_no_further_call_is_made() {
        let (make_one, made) = bounded(3);
        let answer = move |_: &Request| {
            make_one.send(()).unwrap();
            if make_one.len() == 2 { Err(Fault::ConnectionLoss) } else { Err(Fault::NoNode) }
        };
        let lost = Err(Fault::ConnectionLoss);
        let expected = [Err(Fault::NoNode), lost.clone(), lost];
        assert_eq!(make(&workers(), &unlimited(), answer), expected);
        assert_eq!(made.len(), 2);
    }

    #[test]
    fn with_all_workers_stuck_a_call_still_ends_in_time_and_is_never_made() {
        let workers = workers();
        let (release, released) = bounded::<()>(0);
        let (begin, begun) = bounded(MOST);
        for _ in 0..MOST {
            let (begin, released) = (begin.clone(), released.clone());
            let job = move || {
                begin.send(()).unwrap();
                let _ = released.recv();
            };
            assert!(workers.submit(Box::new(job)).is_ok());
        }
        for _ in 0..MOST {
            begun.recv().unwrap();
        }
        let soon = TimeLimit::new(&Wait::from(Duration::from_millis(5)));
        let (make_one, made) = bounded::<()>(1);
        let answer = move |_: &Request| {
            make_one.send(()).unwrap();
            Ok(Reply::Done)
        };
        assert_eq!(make(&workers, &soon, answer), [Err(Fault::ConnectionLoss)]);
        drop(release);
        assert_eq!(make(&workers, &unlimited(), |_| Ok(Reply::Done)), [Ok(Reply::Done)]);
        // The call is given up, and its end of the channel with it.
        assert!(made.recv().is_err());
    }

    #[test]
    fn a_call_that_panics_fails_and_leaves_nobody_waiting() {
        let workers = workers();
        let [first, second] = make(&workers, &unlimited(), |_| panic!("this one panics"));
        assert!(matches!((first, second), (Err(Fault::System(_)), Err(Fault::System(_)))));
        assert_eq!(make(&workers, &unlimited(), |_| Ok(Reply::Done)), [Ok(Reply::Done)]);
    }
}
