use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use shuttle::thread::spawn;

use super::{explore, join, threads};
use crate::rt::shuttled::{give_way, one_in, set_poverty};
use crate::rt::{AtomicBool, AtomicU64, Condvar, Mutex};
use crate::session::{
    Answered, Callbacks, Calls, Cancel, Fault, OnAnswer, PendingReply, Reply, Request, Submission,
    TimeLimit, Wait, Workers,
};
use crate::wire_values::Stat;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Result,
    GaveUp,
    Failed,
}

/// What happened to one call's job.
#[derive(Default)]
struct Fate {
    begun: AtomicU64,
    panicked: AtomicBool,
    late: AtomicU64,
}

/// Has more callers than workers make calls on a handle, some of which give up. Each call ends
/// exactly once, and one that has begun gives its answer to the caller or to `late`.
fn callers(panics: bool) -> impl FnOnce() {
    let (workers, cancel) = (Workers::new("zklock-call", 2), Cancel::new());
    let fates: Arc<[Fate; 4]> = Arc::default();
    let ends = Arc::clone(&fates);
    let callers = threads(4, move |number| {
        let wait = match number {
            1 => Wait::from(Duration::from_millis(1)),
            2 => Wait::from(&cancel),
            _ => Wait::FOREVER,
        };
        let limit = TimeLimit::new(&wait);
        let (call_ends, late_ends) = (Arc::clone(&ends), Arc::clone(&ends));
        let answer = move |_: &Request| {
            call_ends[number].begun.fetch_add(1, SeqCst);
            if panics && one_in(3) {
                call_ends[number].panicked.store(true, SeqCst);
                give_way();
            }
            Ok(Reply::Data(number.to_string().into_bytes(), Stat::default()))
        };
        let late: OnAnswer<Reply> = Box::new(move |answer| {
            late_ends[number].late.fetch_add(u64::from(answer.is_ok()), SeqCst);
        });
        let canceller = (number == 2).then(|| {
            let cancel = cancel.clone();
            spawn(move || cancel.cancel())
        });
        let pending = PendingReply::new(1, Some(&limit));
        let asked = Submission { request: Request::Sync, on_reply: pending.on_reply(0) };
        let (requests, is_wanted) = ([asked].into(), pending.is_wanted());
        Calls { requests, is_wanted, answer, no_thread: Arc::default() }.make_on(&workers);
        let [answer] = pending.wait(&mut Some(late));
        let outcome = match answer {
            Ok(Reply::Data(data, _)) => {
                assert_eq!(data, number.to_string().into_bytes());
                Outcome::Result
            }
            Err(Fault::ConnectionLoss) if limit.was_over() => Outcome::GaveUp,
            Err(Fault::System(_)) => Outcome::Failed,
            other => panic!("{other:?}"),
        };
        join(canceller.into_iter().collect());
        outcome
    });
    let outcomes = join(callers);
    move || {
        for (number, (outcome, fate)) in outcomes.into_iter().zip(fates.iter()).enumerate() {
            let begun = fate.begun.load(SeqCst);
            let (panicked, late) = (fate.panicked.load(SeqCst), fate.late.load(SeqCst));
            let as_it_should = match outcome {
                Outcome::Result => begun == 1 && !panicked && late == 0,
                Outcome::GaveUp => begun <= 1 && late == begun - u64::from(panicked),
                Outcome::Failed => begun == u64::from(panicked) && late == 0,
            };
            let may_give_up = number == 1 || number == 2;
            assert!(as_it_should, "{outcome:?}: begun {begun}, late {late}, panicked {panicked}");
            assert!(may_give_up || outcome != Outcome::GaveUp, "{number} has no limit");
        }
    }
}

#[test]
fn a_call_has_one_end_and_its_result_one_taker() {
    explore(|| callers(false));
}

#[test]
fn a_job_that_panics_fails_its_call_alone() {
    explore(|| callers(true));
}

#[test]
fn without_threads_a_call_fails_but_does_not_hang() {
    explore(|| {
        set_poverty(50);
        callers(false)
    });
}

/// As on a connection: the answer comes, or is dropped, while the caller's limit runs out.
#[test]
fn an_answer_has_one_taker() {
    explore(|| {
        let cancel = Cancel::new();
        let limit = TimeLimit::new(&Wait::from(&cancel));
        let pending = PendingReply::new(1, Some(&limit));
        let on_reply = pending.on_reply(0);
        let is_answered = one_in(2);
        let answers = spawn(move || match is_answered {
            true => on_reply(Answered::Read(Ok(Reply::Done))),
            false => drop(on_reply),
        });
        let cancels = spawn(move || cancel.cancel());
        let (late, told) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, was_answered) = (Arc::clone(&late), Arc::clone(&told));
        let mut on_late: Option<OnAnswer<Reply>> = Some(Box::new(move |answer| {
            was_answered.store(answer.is_ok(), SeqCst);
            count.fetch_add(1, SeqCst);
        }));
        let [answer, _] = pending.wait(&mut on_late);
        let gave_up = limit.was_over();
        let expected = match (gave_up, is_answered) {
            (true, _) => Err(Fault::ConnectionLoss),
            (false, true) => Ok(Reply::Done),
            (false, false) => Err(Fault::SessionEnded),
        };
        assert_eq!(answer, expected);
        assert_eq!(on_late.is_none(), gave_up);
        join(vec![answers, cancels]);
        move || {
            assert_eq!(late.load(SeqCst), u64::from(gave_up));
            assert!(!gave_up || told.load(SeqCst) == is_answered);
        }
    });
}

#[test]
fn no_job_is_stranded_by_workers_that_end() {
    explore(|| {
        let (workers, done) = (Workers::new("worker", 2), Arc::new(AtomicU64::new(0)));
        let doing = Arc::clone(&done);
        join(threads(3, move |_| {
            for _ in 0..2 {
                let done = Arc::clone(&doing);
                let job = move || {
                    done.fetch_add(1, SeqCst);
                };
                assert!(workers.submit(Box::new(job)).is_ok());
            }
        }));
        move || assert_eq!(done.load(SeqCst), 6)
    });
}

/// A job is not left to a worker that is on its way to another job.
#[test]
fn jobs_that_wait_for_each_other_are_not_behind_each_other() {
    explore(|| {
        let (workers, met) = (Workers::new("worker", 2), Arc::new((Mutex::new(0), Condvar::new())));
        // In some schedules this job leaves an idle worker.
        assert!(workers.submit(Box::new(|| ())).is_ok());
        join(threads(2, move |_| {
            let met = Arc::clone(&met);
            let job = move || {
                let (count, changed) = &*met;
                let mut count = count.lock();
                *count += 1;
                changed.notify_all();
                while *count < 2 {
                    changed.wait(&mut count);
                }
            };
            assert!(workers.submit(Box::new(job)).is_ok());
        }));
        || ()
    });
}

/// Jobs that are given back never run; all others do.
#[test]
fn what_finds_no_thread_is_given_back_or_done() {
    explore(|| {
        set_poverty(60);
        let (workers, done) = (Workers::new("worker", 2), Arc::new(AtomicU64::new(0)));
        let doing = Arc::clone(&done);
        let given_back = join(threads(3, move |_| {
            let submit = |_| {
                let done = Arc::clone(&doing);
                let job = move || {
                    done.fetch_add(1, SeqCst);
                };
                workers.submit(Box::new(job)).map_or_else(|(_, stranded)| stranded.len(), |()| 0)
            };
            (0..2).map(submit).sum::<usize>()
        }));
        let given_back = given_back.iter().sum::<usize>() as u64;
        move || assert_eq!(done.load(SeqCst) + given_back, 6)
    });
}

#[test]
fn callbacks_without_a_thread_run_once_there_is_one() {
    explore(|| {
        set_poverty(60);
        let (events, done) = (Callbacks::of_program(), Arc::new(AtomicU64::new(0)));
        let (dispatching, doing) = (events.clone(), Arc::clone(&done));
        join(threads(3, move |number| {
            let done = Arc::clone(&doing);
            dispatching.dispatch(move || {
                done.fetch_add(1, SeqCst);
                if number == 1 {
                    give_way();
                }
            });
            // Notices and calls retry in the same way.
            dispatching.retry();
        }));
        set_poverty(0);
        events.retry();
        move || assert_eq!(done.load(SeqCst), 3)
    });
}
