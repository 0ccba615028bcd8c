//! Who reads, with waits of real calls: nothing here looks again by itself, so whoever is not woken waits
//! for ever, which is a failure.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use shuttle::thread::spawn;

use super::{explore, join, threads};
use crate::connection_notice::{End, Info};
use crate::link::{AwaitsServer, Readable, ReadingTurn};
use crate::rt::{Condvar, Deadline, Moment, Mutex, Signal};
use crate::session::{
    Answered, Connection, OnReply, PendingReply, Reply, Request, Submission, Waiter, Waits,
};

/// A connection whose server answers and sends events.
struct Line {
    turn: Arc<ReadingTurn>,
    state: Mutex<LineState>,
    changed: Condvar,
}

#[derive(Default)]
struct LineState {
    asked: VecDeque<OnReply>,
    to_read: VecDeque<Sent>,
    /// How many threads wait for the server.
    polling: usize,
    is_woken: bool,
    is_over: bool,
}

enum Sent {
    Answer(OnReply),
    Event(Signal),
}

impl Line {
    fn new() -> Arc<Line> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Line { turn: ReadingTurn::new(), state, changed })
    }

    fn change(&self, change: impl FnOnce(&mut LineState)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Waits as `poll` does.
    fn poll(&self, for_server: bool, is_thread: bool) {
        let mut state = self.state.lock();
        state.polling += usize::from(for_server);
        assert!(state.polling <= 1, "two wait for the server");
        while !(is_thread && (state.is_woken || state.is_over)
            || for_server && !state.to_read.is_empty())
        {
            self.changed.wait(&mut state);
        }
        state.polling -= usize::from(for_server);
    }

    /// What the link's thread does, as long as the clock stands still.
    fn run(&self) {
        loop {
            let reads = self.turn.rest(Moment::ZERO, Moment::NEVER).is_none();
            self.poll(reads, true);
            let mut state = self.state.lock();
            state.is_woken = false;
            if state.is_over {
                return;
            }
            drop(state);
            if reads {
                self.read_and_tell();
            }
        }
    }

    /// Answers so many requests, and sends these events in between.
    fn serve(&self, mut count: usize, mut events: Vec<Signal>) {
        while count > 0 || !events.is_empty() {
            if let Some(event) = events.pop() {
                self.change(|state| state.to_read.push_back(Sent::Event(event)));
            }
            if count > 0 {
                let mut state = self.state.lock();
                while state.asked.is_empty() {
                    self.changed.wait(&mut state);
                }
                count -= 1;
                let answer = state.asked.pop_front().map(Sent::Answer);
                state.to_read.extend(answer);
                drop(state);
                self.changed.notify_all();
            }
        }
    }
}

impl Readable for Line {
    fn wait_for_server(&self, _until: Moment) -> bool {
        self.poll(true, false);
        true
    }

    fn read_and_tell(&self) -> bool {
        let all = std::mem::take(&mut self.state.lock().to_read);
        for sent in all {
            match sent {
                Sent::Answer(on_reply) => on_reply(Answered::Read(Ok(Reply::Done))),
                Sent::Event(signal) => signal(),
            }
        }
        true
    }

    fn wake(&self) {
        self.change(|state| state.is_woken = true);
    }
}

impl Connection for Line {
    fn submit(&self, requests: Vec<Submission>, _waits: Waits) -> bool {
        self.change(|state| state.asked.extend(requests.into_iter().map(|one| one.on_reply)));
        true
    }

    fn await_server(&self, reads: bool) -> Option<AwaitsServer> {
        Some(if reads { self.turn.count() } else { self.turn.count_sleeper(self) })
    }

    fn read_until(&self, _then: Deadline, is_done: &dyn Fn() -> bool) {
        self.turn.read(self, Moment::ZERO, Moment::NEVER, is_done);
    }

    fn flushed_by(&self, _until: Deadline) {}

    fn trusted(&self) -> Result<Duration, End> {
        Ok(Duration::MAX)
    }

    fn info(&self) -> Info {
        Info::default()
    }

    fn close(&self, _why: End, _give_up_after: Duration) {}
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Line")
    }
}

fn ask(line: &Line) {
    let pending = PendingReply::new(1, None).over(line);
    let asked = Submission { request: Request::Sync, on_reply: pending.on_reply(0) };
    line.submit(vec![asked], Waits::Here);
    let [answer] = pending.wait(&mut None);
    assert_eq!(answer, Ok(Reply::Done));
}

/// Has callers ask, each so often, and others wait for an event each.
fn callers_and_sleepers(callers: usize, asks: usize, sleepers: usize) -> impl FnOnce() {
    let line = Line::new();
    let waiters: Vec<Waiter> = (0..sleepers).map(|_| Waiter::new()).collect();
    let events = waiters.iter().map(Waiter::bell).collect();
    let (on_thread, at_server) = (Arc::clone(&line), Arc::clone(&line));
    let thread = spawn(move || on_thread.run());
    let server = spawn(move || at_server.serve(callers * asks, events));
    let sleepers = waiters.into_iter().enumerate().map(|(number, waiter)| {
        let line = Arc::clone(&line);
        spawn(move || {
            if number > 0 {
                // As a call does that waits for an event.
                let waits = Cell::new(line.await_server(true));
                line.read_until(Deadline::NEVER, &|| {
                    let is_rung = waiter.is_rung();
                    if is_rung {
                        drop(waits.take());
                    }
                    is_rung
                });
            }
            let _waits = (!waiter.is_rung()).then(|| line.await_server(false));
            waiter.wait(Deadline::NEVER);
        })
    });
    let sleepers: Vec<_> = sleepers.collect();
    let asking = Arc::clone(&line);
    join(threads(callers, move |_| (0..asks).for_each(|_| ask(&asking))));
    join(sleepers);
    server.join().unwrap();
    line.change(|state| state.is_over = true);
    thread.join().unwrap();
    || ()
}

#[test]
fn a_caller_that_reads_leaves_nobody_behind() {
    explore(|| callers_and_sleepers(3, 2, 0));
}

#[test]
fn whoever_sleeps_hears_of_its_event() {
    explore(|| callers_and_sleepers(1, 2, 2));
}

#[test]
fn those_who_only_sleep_are_read_for() {
    explore(|| callers_and_sleepers(0, 0, 1));
}
