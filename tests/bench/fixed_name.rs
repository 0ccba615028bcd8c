//! Another way to have more urgent contenders come first, in bare frames, to compare with: a queue beside the lock, whose
//! first member makes the one node that stands for the lock, of a fixed name, in one transaction with the deletion of its
//! own node in the queue. All wait for their predecessor in the queue; the first, for the lock's node.

use std::io;
use std::time::{Duration, Instant};

use super::floor::{
    CREATE, DELETE, EVENT, LIST, NO_NODE, READ, Socket, create, create_as, create_paths, delete,
    int, last, on_path, predecessor, string,
};
use super::obey::{Done, Hand, Outcome, Waits};
use super::support::raw::Kind;

const MULTI: i32 = 14;
const NODE_EXISTS: i32 = -110;

#[derive(Default)]
pub(crate) struct FixedName {
    hosts: String,
}

impl FixedName {
    /// `deleted`: the deletion of the lock's node, which has no answer yet.
    fn acquire(socket: &mut Socket, queue: &str, lock: &str, deleted: Option<i32>) -> Outcome<()> {
        let list = on_path(queue, Some(false));
        let created = socket.send(CREATE, &create(queue));
        let mut listed = socket.send(LIST, &list);
        socket.flush()?;
        if let Some(deleted) = deleted {
            socket.answer(deleted)?;
        }
        let own = string(socket.answer(created)?)?.to_owned();
        while let Some(name) = predecessor(last(&own), socket.answer(listed)?)?.map(str::to_owned) {
            until_gone(socket, &format!("{queue}/{name}"))?;
            listed = socket.send(LIST, &list);
            socket.flush()?;
        }
        let together = transaction(&own, lock);
        loop {
            let sent = socket.send(MULTI, &together);
            socket.flush()?;
            // The first result says whether all succeeded; of the errors, one is not that the others did not.
            let results = socket.answer(sent)?;
            if int(results, 0)? != -1 {
                return Ok(());
            }
            let code = NODE_EXISTS.to_be_bytes();
            if !results.windows(code.len()).any(|part| part == code) {
                return Err("the transaction failed, not because the lock is held".into());
            }
            until_gone(socket, lock)?;
        }
    }
}

impl Hand for FixedName {
    fn connect(&mut self, hosts: &str, _: usize) -> Outcome<()> {
        hosts.clone_into(&mut self.hosts);
        Ok(())
    }

    fn close(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn run(&mut self, path: &str, _: usize, threads: usize, length: Duration) -> Outcome<Done> {
        if threads != 1 {
            return Err("it has one thread".into());
        }
        let (queue, lock) = (format!("{path}/queue"), format!("{path}/lock"));
        create_paths(&self.hosts, std::slice::from_ref(&queue))?;
        let mut socket = Socket::connect(&self.hosts)?;
        let (mut operations, mut waits) = (0, Waits::of_one_of(1));
        let mut deleting = None;
        let begin = Instant::now();
        while begin.elapsed() < length {
            let deleted = deleting.take();
            waits.note(|| FixedName::acquire(&mut socket, &queue, &lock, deleted))?;
            deleting = Some(socket.send(DELETE, &delete(&lock)));
            socket.flush()?;
            operations += 1;
        }
        let time = begin.elapsed();
        if let Some(deleted) = deleting {
            socket.answer(deleted)?;
        }
        socket.close()?;
        Ok(Done { operations, time, waits })
    }

    fn queue(&mut self, _: &str, _: usize, _: usize) -> Outcome<Done> {
        Err("it is measured in loops only".into())
    }
}

/// Waits until this node is gone.
fn until_gone(socket: &mut Socket, path: &str) -> io::Result<()> {
    // One that is gone already is not watched.
    let asked = socket.send(READ, &on_path(path, Some(true)));
    socket.flush()?;
    loop {
        socket.receive()?;
        match (int(&socket.answer, 0)?, int(&socket.answer, 12)?) {
            // The event of a node that was there.
            (EVENT, _) => return Ok(()),
            (number, 0) if number == asked => {}
            (number, NO_NODE) if number == asked => return Ok(()),
            (number, code) => {
                let text = format!("unexpected: a reply to {number}, code {code}");
                return Err(io::Error::other(text));
            }
        }
    }
}

/// A request to delete the own node in the queue and to make the lock's node, or to do neither.
fn transaction(own: &str, lock: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (opcode, part) in [(DELETE, delete(own)), (CREATE, create_as(lock, Kind::Ephemeral))] {
        put_header(&mut body, opcode, false);
        body.extend(part);
    }
    put_header(&mut body, -1, true);
    body
}

fn put_header(body: &mut Vec<u8>, opcode: i32, is_last: bool) {
    body.extend(opcode.to_be_bytes());
    body.push(u8::from(is_last));
    body.extend((-1_i32).to_be_bytes());
}
