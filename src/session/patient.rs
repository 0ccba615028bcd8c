//! Asks again what a server was too busy for.
//!
//! A server that limits its requests (`zookeeper.request_throttle_max_requests`, since 3.6) answers
//! some of them with an error, on a connection that lives on, and has not done what they ask for.

use std::time::Duration;

use super::store::{
    Answer, Created, Entered, Fault, Found, Info, IsWanted, Kind, Names, OnAnswer, Stat, Step,
    Store,
};
use super::wake::Waiter;
use crate::acl::Acl;
use crate::link::core::End;
use crate::rt::Deadline;

/// The first pause before the next attempt; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
const LONGEST: Duration = Duration::from_millis(200);
/// After so many attempts the answer counts as lost: some two seconds.
const ATTEMPTS: u32 = 15;

/// A store whose calls are repeated, with pauses, while the server is too busy for them. What is
/// asked without waiting for the answer is told [`Fault::Busy`].
#[derive(Debug)]
pub(super) struct Patient(pub(super) Box<dyn Store>);

fn patiently<T>(ask: impl Fn() -> Answer<T>) -> Answer<T> {
    let mut pause = PAUSE;
    for _ in 0..ATTEMPTS {
        match ask() {
            Err(Fault::Busy) => Waiter::new().wait(Deadline::after(pause)),
            answer => return answer,
        }
        pause = (pause * 2).min(LONGEST);
    }
    Err(Fault::ConnectionLoss)
}

impl Store for Patient {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], kind: Kind) -> Answer<Created> {
        patiently(|| self.0.create(path, data, acl, kind))
    }

    fn enter(&self, path: &str, data: &[u8], acl: &[Acl]) -> Answer<Entered> {
        patiently(|| self.0.enter(path, data, acl))
    }

    fn delete(&self, path: &str) -> Answer<()> {
        patiently(|| self.0.delete(path))
    }

    /// Looks again each time: the node may have been replaced meanwhile.
    fn delete_named(&self, path: &str, czxid: i64) -> Answer<()> {
        patiently(|| self.0.delete_named(path, czxid))
    }

    fn write(&self, path: &str, data: &[u8]) -> Answer<()> {
        patiently(|| self.0.write(path, data))
    }

    fn transact(&self, steps: &[Step]) -> Answer<()> {
        patiently(|| self.0.transact(steps))
    }

    fn data(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        patiently(|| self.0.data(path, watch))
    }

    fn read(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        patiently(|| self.0.read(path, watch))
    }

    fn read_each(&self, paths: &[String]) -> Vec<Answer<Found>> {
        let again = |(path, answer): (&String, _)| match answer {
            Err(Fault::Busy) => self.read(path, false),
            answer => answer,
        };
        paths.iter().zip(self.0.read_each(paths)).map(again).collect()
    }

    fn await_making(&self, path: &str) -> Answer<bool> {
        patiently(|| self.0.await_making(path))
    }

    fn children(&self, path: &str, watch: bool) -> Answer<Option<Names>> {
        patiently(|| self.0.children(path, watch))
    }

    fn list(&self, path: &str, watch: bool) -> Answer<Option<(Names, Stat)>> {
        patiently(|| self.0.list(path, watch))
    }

    fn children_each(&self, paths: &[String], watch: bool) -> Vec<Answer<Option<Names>>> {
        let again = |(path, answer): (&String, _)| match answer {
            Err(Fault::Busy) => self.children(path, watch),
            answer => answer,
        };
        paths.iter().zip(self.0.children_each(paths, watch)).map(again).collect()
    }

    fn sync(&self) -> Answer<()> {
        patiently(|| self.0.sync())
    }

    fn confirm(&self, path: &str) -> Answer<Option<Stat>> {
        patiently(|| self.0.confirm(path))
    }

    fn watch_soon(&self, path: &str, on_answer: OnAnswer<(Vec<u8>, Stat)>) {
        self.0.watch_soon(path, on_answer);
    }

    fn watch_later(&self, path: &str, is_wanted: IsWanted, on_answer: OnAnswer<(Vec<u8>, Stat)>) {
        self.0.watch_later(path, is_wanted, on_answer);
    }

    fn watch_siblings_soon(&self, path: &str, on_answer: OnAnswer<Stat>) {
        self.0.watch_siblings_soon(path, on_answer);
    }

    fn watch_children_soon(&self, path: &str, on_answer: OnAnswer<Names>) {
        self.0.watch_children_soon(path, on_answer);
    }

    fn unwatch_soon(&self, path: &str) {
        self.0.unwatch_soon(path);
    }

    fn let_go(&self, path: &str, until: Deadline, on_answer: OnAnswer<()>) {
        self.0.let_go(path, until, on_answer);
    }

    fn delete_soon(&self, path: &str) {
        self.0.delete_soon(path);
    }

    fn lease(&self) -> Result<(), End> {
        self.0.lease()
    }

    fn may_adopt(&self) -> bool {
        self.0.may_adopt()
    }

    fn info(&self) -> Info {
        self.0.info()
    }

    fn close(&self, give_up_after: Duration) {
        self.0.close(give_up_after);
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_the_server_was_too_busy_for_is_asked_again() {
        let asked = Cell::new(0);
        let answer = patiently(|| {
            asked.set(asked.get() + 1);
            if asked.get() < 3 { Err(Fault::Busy) } else { Ok(asked.get()) }
        });
        assert_eq!(answer, Ok(3));
        assert_eq!(patiently(|| Err::<(), _>(Fault::NoNode)), Err(Fault::NoNode));
    }
}
