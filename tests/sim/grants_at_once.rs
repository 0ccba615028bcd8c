//! For this crate's own benchmarks: a client of a fake ensemble that grants every lock at once, so
//! that they measure only what the library itself takes.

use std::time::Duration;

use crate::connection_notice::{End, Info, Notice};
use crate::error::Result;
use crate::path;
use crate::rt::{Deadline, Mutex};
use crate::session::{
    Answer, Answered, Client, Connection, Created, Ensemble, Fault, Names, Reply, Request,
    SessionRecords, Step, Submission, Waiter, Waits,
};
use crate::wire_values::Stat;

/// Makes a client that never has another contender.
pub fn client() -> Client {
    Client::with(Box::new(Nobody::default()), "nobody".to_owned(), String::new())
}

/// The fake ensemble, with the name of the contender that was created last.
#[derive(Debug, Default)]
struct Nobody(Mutex<Names>);

impl Ensemble for Nobody {
    fn open(
        &self,
        records: SessionRecords,
        _waiter: &Waiter,
        _stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Connection>> {
        records.status.note(Notice::Attached);
        (records.on_notice)(Notice::Attached);
        Ok(Box::new(Nobody::default()))
    }

    fn connect_timeout(&self) -> Duration {
        Duration::from_secs(10)
    }
}

fn stat() -> Stat {
    Stat { czxid: 1, mzxid: 1, ephemeral_owner: 1, ..Stat::default() }
}

impl Connection for Nobody {
    fn submit(&self, requests: Vec<Submission>, _waits: Waits) -> bool {
        for Submission { request, on_reply } in requests {
            on_reply(Answered::Read(self.answer(request)));
        }
        true
    }

    fn flushed_by(&self, _until: Deadline) {}

    fn trusted(&self) -> Result<Duration, End> {
        Ok(Duration::ZERO)
    }

    fn info(&self) -> Info {
        Info { session: 1, ..Info::default() }
    }

    fn close(&self, _why: End, _give_up_after: Duration) {}
}

impl Nobody {
    fn answer(&self, request: Request) -> Answer<Reply> {
        Ok(match request {
            Request::One(Step::Create { path, .. }) => {
                let path = format!("{path}0000000001");
                *self.0.lock() = [path::last(&path)].into_iter().collect();
                Reply::Created(Created { path, czxid: Some(1) })
            }
            Request::One(Step::Check { .. } | Step::Delete { .. }) => return Err(Fault::NoNode),
            Request::Data { .. } => Reply::Data(Vec::new(), stat()),
            Request::Exists { .. } => Reply::Stat(stat()),
            Request::Children { .. } => Reply::Names(self.0.lock().clone()),
            Request::ChildrenAndStat { .. } => Reply::NamesAndStat(Names::default(), stat()),
            Request::One(Step::Write { .. }) | Request::SetAcl { .. } => Reply::Stat(stat()),
            Request::Transact(steps) => {
                Reply::Transacted(Ok(steps.iter().map(|_| Reply::Done).collect()))
            }
            Request::Acl { .. } => Reply::Acl(Vec::new()),
            Request::Sync | Request::Unwatch { .. } => Reply::Done,
        })
    }
}
