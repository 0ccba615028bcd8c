//! A session of our own: a [`Connection`] over a link, which encodes requests and decodes replies.

use std::sync::Arc;
use std::time::Duration;

use crate::acl::{Acl, Permissions};
use crate::connect_string::Host;
use crate::connection_notice::{End, Info};
use crate::error::{Error, ErrorKind, Result};
use crate::link::{
    AwaitsServer, DeferredRequest, Fields, Frame, Link, LinkConfig, Malformed, Outgoing,
    UnsupportedOperations,
};
use crate::rt::Deadline;
use crate::session::connection::{
    Answer, Answered, Connection, Created, Ensemble, Fault, IsWanted, Names, NodeKind, ReadRaw,
    Reply, Request, SessionRecords, Step, Submission, Transacted, Waits,
};
use crate::session::requests::{rejected, until_attached};
use crate::session::wait::Waiter;
use crate::wire_values::{
    FLAG_CONTAINER, FLAG_EPHEMERAL, FLAG_EPHEMERAL_SEQUENTIAL, FLAG_SEQUENTIAL, RawReply,
    SYNC_ROOT, code, op,
};

impl Ensemble for LinkConfig {
    fn open(
        &self,
        records: SessionRecords,
        waiter: &Waiter,
        stop: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Connection>> {
        let (status, watches) = (Arc::clone(&records.status), Arc::clone(&records.watches));
        let limit = self.connect_timeout;
        let link = Link::open(
            self.clone(),
            Box::new(move |notice| records.note(notice)),
            Box::new(move |event, path| watches.note(event, path)),
        )?;
        let deadline = Deadline::after(limit);
        let attached = until_attached(&status, waiter, deadline, stop);
        let trouble = link.info().trouble;
        match (attached, trouble.clone()) {
            (Ok(true), _) => return self.usable(link),
            (Err(error), why) if error.kind() == ErrorKind::AuthFailed => {
                return Err(rejected(why));
            }
            (Err(error), _) => return Err(error),
            (Ok(false), _) => {}
        }
        let hosts = &self.resolver;
        let trouble = trouble.unwrap_or_else(|| format!("no answer yet from {hosts}"));
        Err(Error::new(
            ErrorKind::Connect,
            format!("no ZooKeeper server could be reached within {limit:?}: {trouble}"),
        ))
    }

    fn hosts(&self) -> Option<String> {
        Some(self.resolver.to_string())
    }

    fn unsupported_operations(&self) -> Arc<UnsupportedOperations> {
        Arc::clone(&self.resolver.unsupported_operations)
    }

    fn why_no_server(&self) -> Option<String> {
        self.resolver.why_no_server()
    }

    fn set_hosts(&self, hosts: Vec<Host>) -> Result<()> {
        self.access.check_hosts(&hosts)?;
        self.resolver.set_hosts(hosts);
        Ok(())
    }

    fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }
}

impl LinkConfig {
    fn usable(&self, link: Link) -> Result<Box<dyn Connection>> {
        let info = link.info();
        match self.tick.filter(|_| info.outage_limit.is_zero()) {
            None => Ok(Box::new(link)),
            Some(tick) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "with servers whose tickTime is {tick:?}, as is stated, no lease of a session timeout of {:?}, \
                     which was granted, could be renewed in time: ask for a longer one",
                    info.timeout
                ),
            )),
        }
    }
}

impl Connection for Link {
    fn submit(&self, requests: Vec<Submission>, _waits: Waits) -> bool {
        Link::send(self, requests.into_iter().map(verb).collect())
    }

    fn later(&self, asked: Submission, is_wanted: IsWanted) {
        Link::later(self, DeferredRequest { verb: verb(asked), is_wanted });
    }

    fn await_server(&self, reads: bool) -> Option<AwaitsServer> {
        Link::await_server(self, reads)
    }

    fn read_until(&self, then: Deadline, is_done: &dyn Fn() -> bool) {
        Link::read_until(self, then, is_done);
    }

    fn flushed_by(&self, until: Deadline) {
        Link::flushed_by(self, until);
    }

    fn trusted(&self) -> Result<Duration, End> {
        Link::lease(self)
    }

    fn trusted_here(&self) -> Result<Duration, End> {
        Link::lease_here(self)
    }

    fn seen_zxid(&self) -> i64 {
        Link::seen_zxid(self)
    }

    fn why_lapsed(&self) -> Option<String> {
        Link::why_lapsed(self)
    }

    fn info(&self) -> Info {
        Link::info(self)
    }

    fn reconnect(&self) {
        Link::reconnect(self);
    }

    fn close(&self, why: End, give_up_after: Duration) {
        Link::close(self, why, give_up_after);
    }
}

// ----- encoding requests

fn verb(Submission { request, on_reply }: Submission) -> Outgoing {
    let (operation, body, read) = encode(&request);
    let on_answer = Box::new(move |raw| on_reply(Answered::Unread(raw, read)));
    Outgoing { operation, body, on_answer }
}

fn encode(request: &Request) -> (i32, Vec<u8>, ReadRaw) {
    let about = |path: &str, watch: bool| Frame::new().buffer(path.as_bytes()).flag(watch).body();
    match request {
        Request::One(step) => {
            let (operation, body) = encode_step(step);
            match step {
                Step::Check { .. } | Step::Delete { .. } => {
                    (operation, body, |raw| told(raw, done))
                }
                Step::Create { .. } => (operation, body, |raw| told(raw, created)),
                Step::Write { .. } => (operation, body, |raw| told(raw, stat)),
            }
        }
        Request::Transact(steps) => {
            (op::MULTI, transaction(steps), |raw| told(raw, transacted).map(Reply::Transacted))
        }
        Request::Acl { path } => {
            (op::GET_ACL, Frame::new().buffer(path.as_bytes()).body(), |raw| told(raw, entries))
        }
        Request::SetAcl { path, acl } => {
            let body = with_acl(Frame::new().buffer(path.as_bytes()), acl).int(any(None)).body();
            (op::SET_ACL, body, |raw| told(raw, stat))
        }
        Request::Data { path, watch } => {
            (op::GET_DATA, about(path, *watch), |raw| told(raw, data_and_stat))
        }
        Request::Exists { path, watch } => (op::EXISTS, about(path, *watch), |raw| told(raw, stat)),
        Request::Children { path, watch } => {
            (op::GET_CHILDREN, about(path, *watch), |raw| told(raw, names))
        }
        Request::ChildrenAndStat { path, watch } => {
            (op::GET_CHILDREN_AND_STAT, about(path, *watch), |raw| told(raw, names_and_stat))
        }
        Request::Sync => (op::SYNC, SYNC_ROOT.to_vec(), |raw| told(raw, done)),
        Request::Unwatch { path } => {
            /// Watches for a node's data, its children or its creation.
            const ANY: i32 = 3;
            let body = Frame::new().buffer(path.as_bytes()).int(ANY).body();
            (op::REMOVE_WATCHES, body, |raw| told(raw, done))
        }
    }
}

fn encode_step(step: &Step) -> (i32, Vec<u8>) {
    match step {
        Step::Check { path, version } => {
            (op::CHECK, Frame::new().buffer(path.as_bytes()).int(any(*version)).body())
        }
        Step::Create { path, data, acl, kind } => {
            let all = with_acl(Frame::new().buffer(path.as_bytes()).buffer(data), acl);
            let is_container = *kind == NodeKind::Container;
            let operation = if is_container { op::CREATE_CONTAINER } else { op::CREATE };
            (operation, all.int(flags(*kind)).body())
        }
        Step::Delete { path, version } => {
            (op::DELETE, Frame::new().buffer(path.as_bytes()).int(any(*version)).body())
        }
        Step::Write { path, data, version } => {
            let body = Frame::new().buffer(path.as_bytes()).buffer(data).int(any(*version)).body();
            (op::SET_DATA, body)
        }
    }
}

fn with_acl(frame: Frame, acl: &[Acl]) -> Frame {
    let count = i32::try_from(acl.len()).unwrap_or(i32::MAX);
    acl.iter().fold(frame.int(count), |frame, acl| {
        frame.int(acl.permissions.bits()).buffer(acl.scheme.as_bytes()).buffer(acl.id.as_bytes())
    })
}

/// `None` means any version.
fn any(version: Option<i32>) -> i32 {
    version.unwrap_or(-1)
}

fn transaction(steps: &[Step]) -> Vec<u8> {
    let all = steps.iter().map(encode_step).fold(Frame::new(), |frame, (operation, body)| {
        frame.int(operation).flag(false).int(-1).raw(&body)
    });
    all.int(-1).flag(true).int(-1).body()
}

fn flags(kind: NodeKind) -> i32 {
    match kind {
        NodeKind::Persistent => 0,
        NodeKind::Container => FLAG_CONTAINER,
        NodeKind::Ephemeral | NodeKind::Named => FLAG_EPHEMERAL,
        NodeKind::PersistentSequential => FLAG_SEQUENTIAL,
        NodeKind::EphemeralSequential | NodeKind::Contender => FLAG_EPHEMERAL_SEQUENTIAL,
    }
}

// ----- decoding replies

fn told<T>(raw: &RawReply, read: fn(&RawReply) -> Result<T, Malformed>) -> Answer<T> {
    if raw.error == code::MARSHALLING && !raw.body.is_empty() {
        // The link says why; a server never says more than the code.
        return Err(Fault::TooLarge(String::from_utf8_lossy(&raw.body).into_owned()));
    }
    outcome(raw.error)?;
    read(raw).map_err(|malformed| Fault::Refused(malformed.to_string()))
}

fn outcome(error: i32) -> Answer<()> {
    let other = match error {
        code::OK => return Ok(()),
        code::CONNECTION_LOSS => return Err(Fault::ConnectionLoss),
        code::SESSION_EXPIRED => return Err(Fault::SessionEnded),
        code::NO_NODE => return Err(Fault::NoNode),
        code::NODE_EXISTS => return Err(Fault::NodeExists),
        code::NOT_EMPTY => return Err(Fault::NotEmpty),
        code::BAD_VERSION => return Err(Fault::BadVersion),
        code::NO_AUTH => return Err(Fault::NoAuth),
        code::INVALID_ACL => return Err(Fault::InvalidAcl(String::new())),
        code::QUOTA_EXCEEDED => return Err(Fault::QuotaExceeded),
        code::LOCAL_SESSION => return Err(Fault::LocalSession),
        code::NO_CHILDREN_FOR_EPHEMERALS => return Err(Fault::BelowEphemeral),
        code::MARSHALLING => return Err(Fault::too_large()),
        code::THROTTLED => return Err(Fault::Busy),
        code::UNIMPLEMENTED => return Err(Fault::Unknown),
        code::BAD_ARGUMENTS => "BadArguments",
        other => &format!("error {other}"),
    };
    Err(Fault::Refused(format!("the server refused the request: {other}")))
}

/// The outcome of a transaction. If a step failed, the steps before it have no error, and those
/// after it have one that says nothing.
fn transacted(raw: &RawReply) -> Result<Transacted, Malformed> {
    let (mut fields, mut done, mut errors) = (Fields(&raw.body), Vec::new(), 0);
    loop {
        let (operation, is_end, _) = (fields.int()?, fields.flag()?, fields.int()?);
        if is_end {
            return Ok(Ok(done));
        }
        let created =
            |path: &str| Reply::Created(Created { path: path.to_owned(), czxid: Some(raw.zxid) });
        done.push(match operation {
            op::CREATE => created(fields.string()?),
            op::CREATE_CONTAINER | op::CREATE_AND_STAT => {
                let made = created(fields.string()?);
                fields.stat()?;
                made
            }
            op::SET_DATA => Reply::Stat(fields.stat()?),
            op::DELETE | op::CHECK => Reply::Done,
            -1 => match outcome(fields.int()?) {
                Ok(()) => {
                    errors += 1;
                    continue;
                }
                Err(fault) => return Ok(Err((errors, fault))),
            },
            _ => return Err(Malformed("a transaction step of an unknown kind")),
        });
    }
}

fn entries(raw: &RawReply) -> Result<Reply, Malformed> {
    let mut fields = Fields(&raw.body);
    let entry = |fields: &mut Fields<'_>| {
        let permissions = Permissions::from_bits(fields.int()?);
        let (scheme, id) = (fields.string()?, fields.string()?);
        Ok(Acl::new(permissions, scheme, id))
    };
    let count = fields.count()?;
    (0..count).map(|_| entry(&mut fields)).collect::<Result<_, _>>().map(Reply::Acl)
}

fn done(_: &RawReply) -> Result<Reply, Malformed> {
    Ok(Reply::Done)
}

/// The reply's zxid is that of the transaction that created the node.
fn created(raw: &RawReply) -> Result<Reply, Malformed> {
    let path = Fields(&raw.body).string()?.to_owned();
    Ok(Reply::Created(Created { path, czxid: Some(raw.zxid) }))
}

fn data_and_stat(raw: &RawReply) -> Result<Reply, Malformed> {
    let mut fields = Fields(&raw.body);
    Ok(Reply::Data(fields.buffer()?.to_vec(), fields.stat()?))
}

fn stat(raw: &RawReply) -> Result<Reply, Malformed> {
    Fields(&raw.body).stat().map(Reply::Stat)
}

fn listed(fields: &mut Fields<'_>) -> Result<Names, Malformed> {
    let count = fields.count()?;
    let length = fields.0.len().saturating_sub(4 * count);
    Names::try_collect(length, (0..count).map(|_| fields.string()))
}

fn names(raw: &RawReply) -> Result<Reply, Malformed> {
    listed(&mut Fields(&raw.body)).map(Reply::Names)
}

fn names_and_stat(raw: &RawReply) -> Result<Reply, Malformed> {
    let mut fields = Fields(&raw.body);
    Ok(Reply::NamesAndStat(listed(&mut fields)?, fields.stat()?))
}
