//! Asks about many nodes: together, or paced.

use std::mem;
use std::sync::Arc;

use super::kept_lists::{List, ListsOfLook};
use super::pace::Pace;
use crate::error::{Error, Result};
use crate::rt::{self, Deadline, Mutex};
use crate::session::{Answer, Call, ClientCore, Fault, Purpose, Session, Stop};

/// Asks about many nodes.
pub(super) trait AskEach {
    type Error;

    /// The answers to a question about each of these paths, none of them a lost connection or session. The
    /// question is one request for each path; it may be asked about some of them at a time, and again.
    fn each<T>(
        &mut self,
        paths: &[String],
        question: impl Fn(&Session, &[String]) -> Vec<Answer<T>>,
    ) -> Result<Vec<Answer<T>>, Self::Error>;

    /// The children of each of these nodes, and its stat.
    fn list_each(&mut self, paths: &[String]) -> Result<Vec<Answer<Option<List>>>, Self::Error> {
        self.each(paths, |session, paths| session.lists_each(paths, false))
    }

    /// How many lists of children were known, and not asked for.
    fn known(&self) -> usize {
        0
    }

    /// How many requests may be made beyond those that have to be.
    fn spare(&self) -> usize {
        usize::MAX
    }

    /// The error for an answer that ends it all.
    fn refused(&self, fault: Fault) -> Self::Error;
}

/// Together.
impl AskEach for &Session {
    type Error = Fault;

    fn each<T>(
        &mut self,
        paths: &[String],
        question: impl Fn(&Session, &[String]) -> Vec<Answer<T>>,
    ) -> Answer<Vec<Answer<T>>> {
        unless_lost(question(self, paths))
    }

    fn refused(&self, fault: Fault) -> Fault {
        fault
    }
}

fn unless_lost<T>(answers: Vec<Answer<T>>) -> Answer<Vec<Answer<T>>> {
    match answers.iter().filter_map(|one| one.as_ref().err()).find(|fault| fault.is_loss()) {
        Some(lost) => Err(lost.clone()),
        None => Ok(answers),
    }
}

/// Paced. What was answered before a connection or a session was lost is not asked again.
pub(super) struct Paced<'a> {
    pub(super) core: &'a Arc<ClientCore>,
    pub(super) purpose: Purpose,
    /// The node that errors are about.
    pub(super) node: &'a str,
    /// Of all paced questions of this client.
    pub(super) pace: Arc<Mutex<Pace>>,
    /// The session whose server has caught up with the leader since this began.
    pub(super) synced: Option<i64>,
    pub(super) lists: ListsOfLook,
    pub(super) known: usize,
}

impl AskEach for Paced<'_> {
    type Error = Error;

    fn each<T>(
        &mut self,
        paths: &[String],
        question: impl Fn(&Session, &[String]) -> Vec<Answer<T>>,
    ) -> Result<Vec<Answer<T>>> {
        let mut answers = Vec::with_capacity(paths.len());
        let chunk = self.spare();
        for some in paths.chunks(chunk) {
            let ask = |session: &Session| unless_lost(question(session, some));
            answers.extend(self.insist(some.len(), ask)?);
        }
        Ok(answers)
    }

    fn list_each(&mut self, paths: &[String]) -> Result<Vec<Answer<Option<List>>>> {
        let mut call = self.call();
        let session = call.session().map_err(|stop| self.stopped(stop, &call))?;
        let known = match self.synced == Some(session.id()) {
            true => self.lists.known(&session, paths),
            false => vec![None; paths.len()],
        };
        let unknown = paths.iter().zip(&known).filter(|(_, list)| list.is_none());
        let unknown: Vec<String> = unknown.map(|(path, _)| path.clone()).collect();
        self.known += paths.len() - unknown.len();
        let lists = mem::take(&mut self.lists);
        let asked = self.each(&unknown, |session, paths| lists.ask(session, paths));
        self.lists = lists;
        let mut asked = asked?.into_iter();
        let answers = known.into_iter().map(|list| match list {
            Some(list) => Ok(Some(list)),
            None => asked.next().unwrap_or(Ok(None)),
        });
        Ok(answers.collect())
    }

    fn known(&self) -> usize {
        self.known
    }

    fn spare(&self) -> usize {
        self.pace.lock().chunk()
    }

    fn refused(&self, fault: Fault) -> Error {
        self.purpose.refused(&fault, self.node)
    }
}

impl Paced<'_> {
    /// Asks, with so many requests, until there is an answer, within the connect timeout from the first
    /// request. That includes pauses before the question is repeated.
    fn insist<T>(&mut self, count: usize, question: impl Fn(&Session) -> Answer<T>) -> Result<T> {
        let mut first = None;
        loop {
            self.pause(count)?;
            let call = first.get_or_insert_with(|| self.call());
            let (begun, synced, mut sent) = (rt::now(), &mut self.synced, 0);
            let answer = call.ask(|session| {
                let id = Some(session.id());
                if *synced != id {
                    sent = 1;
                    session.sync()?;
                    *synced = id;
                    return Ok(None);
                }
                sent = count;
                question(session).map(Some)
            });
            self.pace.lock().note(sent, begun, rt::now());
            match answer {
                Ok(Ok(Some(answer))) => return Ok(answer),
                // Another step: the pause before the question is not a part of this one.
                Ok(Ok(None)) => first = None,
                Ok(Err(_)) if call.is_unanswered() => {}
                Ok(Err(fault)) => return Err(self.refused(fault)),
                Err(stop) => return Err(self.stopped(stop, call)),
            }
        }
    }

    /// Until so many requests may be sent. The end of the session ends a pause, and there has to be another
    /// one.
    fn pause(&mut self, count: usize) -> Result<()> {
        loop {
            let until = self.pace.lock().pause(count, rt::now());
            let Some(until) = until else { return Ok(()) };
            let mut call = self.call();
            let session = call.session().map_err(|stop| self.stopped(stop, &call))?;
            call.has_come(Deadline::at(until), || session.status().now().ended.is_some());
        }
    }

    fn call(&self) -> Call {
        Call::strict(self.core, &self.core.connect_timeout().into())
    }

    fn stopped(&self, stop: Stop, call: &Call) -> Error {
        self.purpose.stopped(stop, call, self.node)
    }
}
