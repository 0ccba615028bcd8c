//! For this crate's own measurements: a client of an ensemble that is not there, on which whoever
//! asks gets the lock. What it takes beyond that is the library's own.

use std::sync::Arc;
use std::time::Duration;

use crate::acl::Acl;
use crate::error::Result;
use crate::link::core::{End, Notice};
use crate::path;
use crate::rt::Deadline;
use crate::session::client::Client;
use crate::session::store::{
    Answer, Created, Ensemble, Entered, Fault, Info, Kind, Names, OnAnswer, Reports, Stat, Step,
    Store,
};
use crate::session::wake::Waiter;

/// A client to which nobody else ever contends.
pub fn client() -> Client {
    Client::with(Box::new(Nobody), "nobody".to_owned(), String::new())
}

#[derive(Debug)]
struct Nobody;

impl Ensemble for Nobody {
    fn open(
        &self,
        reports: Reports,
        _waiter: &Waiter,
        _stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Store>> {
        reports.status.note(Notice::Attached);
        (reports.on_notice)(Notice::Attached);
        Ok(Box::new(Nobody))
    }

    fn session_timeout(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn connect_timeout(&self) -> Duration {
        Duration::from_secs(10)
    }
}

fn stat() -> Stat {
    Stat {
        czxid: 1,
        mzxid: 1,
        ctime: 0,
        version: 0,
        child_changes: 0,
        children: 0,
        children_zxid: 0,
        ephemeral_owner: 1,
    }
}

impl Store for Nobody {
    fn create(&self, path: &str, _data: &[u8], _acl: &[Acl], _kind: Kind) -> Answer<Created> {
        Ok(Created { path: format!("{path}0000000001"), czxid: Some(1) })
    }

    fn enter(&self, path: &str, data: &[u8], acl: &[Acl]) -> Answer<Entered> {
        let made = self.create(path, data, acl, Kind::EphemeralSequential)?;
        let siblings = Some(Arc::new(vec![path::last(&made.path).to_owned()]));
        Ok(Entered { made, siblings })
    }

    fn delete(&self, _path: &str) -> Answer<()> {
        Ok(())
    }

    fn write(&self, _path: &str, _data: &[u8]) -> Answer<()> {
        Ok(())
    }

    fn transact(&self, _steps: &[Step]) -> Answer<()> {
        Ok(())
    }

    fn data(&self, path: &str, watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        self.read(path, watch)
    }

    fn read(&self, _path: &str, _watch: bool) -> Answer<Option<(Vec<u8>, Stat)>> {
        Ok(Some((Vec::new(), stat())))
    }

    fn await_making(&self, _path: &str) -> Answer<bool> {
        Ok(true)
    }

    fn children(&self, _path: &str, _watch: bool) -> Answer<Option<Names>> {
        Ok(None)
    }

    fn sync(&self) -> Answer<()> {
        Ok(())
    }

    fn confirm(&self, _path: &str) -> Answer<Option<Stat>> {
        Ok(Some(stat()))
    }

    fn watch_soon(&self, _path: &str, on_answer: OnAnswer<(Vec<u8>, Stat)>) {
        on_answer(Ok((Vec::new(), stat())));
    }

    fn watch_siblings_soon(&self, _path: &str, on_answer: OnAnswer<Stat>) {
        on_answer(Ok(stat()));
    }

    fn watch_children_soon(&self, _path: &str, on_answer: OnAnswer<Names>) {
        on_answer(Ok(Arc::default()));
    }

    fn let_go(&self, _path: &str, _until: Deadline, on_answer: OnAnswer<()>) {
        on_answer(Err(Fault::NoNode));
    }

    fn delete_soon(&self, _path: &str) {}

    fn lease(&self) -> Result<(), End> {
        Ok(())
    }

    fn info(&self) -> Info {
        Info { session: 1, ..Info::default() }
    }

    fn close(&self, _give_up_after: Duration) {}
}
