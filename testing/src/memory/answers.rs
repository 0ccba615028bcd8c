//! The bytes of answers and events.

use std::collections::BTreeSet;

use super::wire::{Malformed, Reader, Said, Write, op};
use crate::core::{Asker, Error, Event, Identity, Reply, Request, Tree, Watches, decide};

/// Answers what the core knows nothing of, and what changes nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    pub(super) tree: &'a Tree,
    /// The nodes without data.
    pub(super) without_data: &'a BTreeSet<String>,
    pub(super) session: i64,
    pub(super) who: &'a [Identity],
}

impl Look<'_> {
    pub(super) fn answer(
        self,
        op: i32,
        mut body: Reader<'_>,
    ) -> Result<Result<Vec<u8>, Error>, Malformed> {
        let mut out = Vec::new();
        match op {
            op::WHO_AM_I => self.identities(&mut out),
            op::EPHEMERALS => {
                let path = body.string()?;
                let beginning = if path.trim() == "/" { "" } else { path.trim() };
                out.strings(&self.tree.owned_by(self.session, beginning));
            }
            op::COUNT_BELOW => {
                let path = body.string()?;
                if let Err(refused) =
                    self.read(&Request::GetChildren { path: path.clone(), watch: false })
                {
                    return Ok(Err(refused));
                }
                out.int(i32::try_from(self.tree.count_below(&path)).unwrap_or(i32::MAX));
            }
            _ => self.several(&body.reads()?, &mut out),
        }
        Ok(Ok(out))
    }

    fn identities(self, out: &mut Vec<u8>) {
        out.int(i32::try_from(self.who.len()).unwrap_or(i32::MAX));
        for Identity { scheme, id } in self.who {
            out.bytes(scheme.as_bytes());
            // No hashes of passwords.
            out.bytes(id.split(':').next().unwrap_or_default().as_bytes());
        }
    }

    fn several(self, reads: &[(i32, Request)], out: &mut Vec<u8>) {
        for (op, request) in reads {
            match self.read(request) {
                Ok(reply) => {
                    header(out, *op, false, 0);
                    let has_data = has_data(request, self.without_data);
                    write_reply(out, Answered { op: *op, said: &[], request, has_data }, &reply);
                }
                Err(refused) => {
                    header(out, -1, false, refused.code());
                    out.int(refused.code());
                }
            }
        }
        header(out, -1, true, -1);
    }

    fn read(self, request: &Request) -> Result<Reply, Error> {
        let asker = Asker { session: self.session, who: self.who, zxid: 0, time: 0 };
        // These requests set no watches.
        decide(self.tree, self.tree, &mut Watches::default(), &asker, request).reply
    }
}

/// Whether the node whose data is asked for has some, be it empty.
pub(super) fn has_data(request: &Request, without_data: &BTreeSet<String>) -> bool {
    let Request::GetData { path, .. } = request else { return true };
    // The root has two paths.
    !without_data.contains(if path.is_empty() { "/" } else { path })
}

pub(super) fn event(out: &mut Vec<u8>, event: Event, path: &str) {
    let number = match event {
        Event::Created => 1,
        Event::Deleted => 2,
        Event::DataChanged => 3,
        Event::ChildrenChanged => 4,
    };
    // The session is connected.
    let state = 3;
    out.frame(|out| {
        out.int(-1);
        out.long(-1);
        out.int(0);
        out.int(number);
        out.int(state);
        out.bytes(path.as_bytes());
    });
}

/// What a reply is the answer to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered<'a> {
    pub(super) op: i32,
    /// Of the steps.
    pub(super) said: &'a [Said],
    pub(super) request: &'a Request,
    /// Whether the node has data, be it empty.
    pub(super) has_data: bool,
}

pub(super) fn write_reply(out: &mut Vec<u8>, answered: Answered<'_>, reply: &Reply) {
    let Answered { op, said, request, has_data } = answered;
    match reply {
        Reply::Created(path, stat) => {
            out.bytes(path.as_bytes());
            if op != op::CREATE {
                out.stat(stat);
            }
        }
        Reply::Done => match request {
            Request::Sync { path } => out.bytes(path.as_bytes()),
            // It has an error of its own.
            Request::AddWatch { .. } => out.int(0),
            _ => {}
        },
        Reply::Stat(stat) => out.stat(stat),
        Reply::Data(data, stat) => {
            if has_data {
                out.bytes(data);
            } else {
                out.int(-1);
            }
            out.stat(stat);
        }
        Reply::Children(names, stat) => {
            out.strings(names);
            if op == op::GET_CHILDREN2 {
                out.stat(stat);
            }
        }
        Reply::Acl(acl, stat) => {
            out.acl(acl);
            out.stat(stat);
        }
        Reply::Multi(done) => {
            for (place, Said { op, .. }) in said.iter().enumerate() {
                match done {
                    Ok(done) => {
                        header(out, *op, false, 0);
                        if let Some(reply) = done.get(place) {
                            write_reply(out, Answered { op: *op, said: &[], ..answered }, reply);
                        }
                    }
                    Err((failed, error)) => {
                        let error = match place.cmp(failed) {
                            std::cmp::Ordering::Less => 0,
                            std::cmp::Ordering::Equal => error.code(),
                            std::cmp::Ordering::Greater => Error::RuntimeInconsistency.code(),
                        };
                        header(out, -1, false, error);
                        out.int(error);
                    }
                }
            }
            header(out, -1, true, -1);
        }
    }
}

fn header(out: &mut Vec<u8>, op: i32, is_end: bool, error: i32) {
    out.int(op);
    out.bool(is_end);
    out.int(error);
}
