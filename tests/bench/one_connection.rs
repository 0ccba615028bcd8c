//! The floor of threads that share their client's connection: bare frames, as in `floor`, in two
//! ways. Either one more thread reads for them all, or one of those that wait does.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::sync::{Arc, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::floor::{
    CLOSE, CREATE, DELETE, EVENT, LIST, NO_NODE, PATIENCE, READ, Socket, create, create_paths,
    delete, int, joined, last, on_path, predecessor, string,
};
use super::obey::{Done, Hand, Outcome, Waits};

#[derive(Default)]
pub(crate) struct OneConnection {
    hosts: String,
    clients: usize,
    /// Whether a thread of its own reads.
    has_reader: bool,
}

impl OneConnection {
    pub(crate) fn with_reader() -> OneConnection {
        OneConnection { has_reader: true, ..OneConnection::default() }
    }

    /// Opens connections for `work`, and closes them.
    fn connected<T>(
        &self,
        count: usize,
        work: impl FnOnce(&[Connection]) -> Outcome<T>,
    ) -> Outcome<T> {
        let connections = (0..count)
            .map(|_| Connection::open(&self.hosts))
            .collect::<io::Result<Vec<Connection>>>()?;
        thread::scope(|scope| {
            // A reading thread waits for the reply to the close, and reads all others until then.
            let read = |connection| {
                let mut asker = Asker::new(connection);
                asker.reader = connection.waiting.lock().reader.take();
                let mailbox = Arc::clone(&asker.mailbox);
                (mailbox, scope.spawn(move || asker.wait(|came| !came.replies.is_empty())))
            };
            let reading = connections.iter().filter(|_| self.has_reader);
            let reading: Vec<_> = reading.map(read).collect();
            let done = work(&connections);
            if !self.has_reader {
                connections.iter().try_for_each(Connection::close)?;
            }
            for (connection, (mailbox, thread)) in connections.iter().zip(reading) {
                connection.send(&[(CLOSE, &[])], Some(&mailbox))?;
                thread.join().map_err(|_| "the reading thread panicked")??;
            }
            done
        })
    }
}

impl Hand for OneConnection {
    fn connect(&mut self, hosts: &str, clients: usize) -> Outcome<()> {
        hosts.clone_into(&mut self.hosts);
        self.clients = clients;
        Ok(())
    }

    fn close(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn run(&mut self, path: &str, locks: usize, threads: usize, length: Duration) -> Outcome<Done> {
        let paths: Vec<String> = (0..locks).map(|own| format!("{path}/{own}")).collect();
        create_paths(&self.hosts, &paths)?;
        self.connected(1, |connections| {
            thread::scope(|scope| {
                let work = |own: usize| {
                    let lock = Lock::new(&paths[own % locks]);
                    let waits = Waits::of_one_of(threads);
                    let connection = &connections[0];
                    scope.spawn(move || {
                        Asker::new(connection).acquire_and_release(&lock, length, waits)
                    })
                };
                joined((0..threads).map(work).collect(), length)
            })
        })
    }

    fn queue(&mut self, path: &str, waiters: usize, repeats: usize) -> Outcome<Done> {
        create_paths(&self.hosts, &[path.to_owned()])?;
        let lock = Lock::new(path);
        self.connected(self.clients, |connections| {
            let mut done = Done { operations: 0, time: Duration::ZERO, waits: Waits::none() };
            for _ in 0..repeats {
                done.time += queue_once(connections, &lock, waiters)?;
                done.operations += waiters as u64;
            }
            Ok(done)
        })
    }
}

/// How long it takes until each waiter has held the lock once.
fn queue_once(connections: &[Connection], lock: &Lock, waiters: usize) -> Outcome<Duration> {
    let mut holder = Asker::new(&connections[0]);
    let held = holder.acquire(lock, || ())?;
    let (tell, in_line) = mpsc::channel();
    thread::scope(|scope| {
        let wait = |own: usize| {
            let (connection, tell) = (&connections[own % connections.len()], tell.clone());
            scope.spawn(move || -> Outcome<()> {
                let mut asker = Asker::new(connection);
                // Telling fails if waiting for it has failed.
                let node = asker.acquire(lock, || {
                    let _ = tell.send(());
                })?;
                asker.release(&node)
            })
        };
        let working: Vec<_> = (0..waiters).map(wait).collect();
        // An error is returned only after the release: otherwise the waiters wait for ever.
        let in_line = (0..waiters).try_for_each(|_| in_line.recv_timeout(PATIENCE));
        let begin = Instant::now();
        holder.release(&held)?;
        for thread in working {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        in_line?;
        Ok(begin.elapsed())
    })
}

struct Lock {
    path: String,
    create: Vec<u8>,
    list: Vec<u8>,
}

impl Lock {
    fn new(path: &str) -> Lock {
        Lock { path: path.to_owned(), create: create(path), list: on_path(path, Some(false)) }
    }
}

struct Connection {
    sender: Mutex<Socket>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// The end from which replies are read, while nobody reads.
    reader: Option<Socket>,
    /// In the order of the requests, which is that of their replies.
    replies: VecDeque<Expected>,
    /// By the watched node.
    events: BTreeMap<String, Arc<Mailbox>>,
}

struct Expected {
    xid: i32,
    opcode: i32,
    /// Whose the reply is, unless nobody waits for it.
    whose: Option<Arc<Mailbox>>,
    /// Whether it is the last one for which this thread waits.
    is_last: bool,
}

/// What was read for a thread.
struct Mailbox {
    owner: Thread,
    came: Mutex<Came>,
}

#[derive(Default)]
struct Came {
    replies: Vec<Vec<u8>>,
    event: bool,
    failed: Option<String>,
}

impl Waiting {
    /// The thread to read next: of those that wait for replies, the one that waits longest from
    /// now on; otherwise the one that is next in line.
    fn next_reader(&self) -> Option<Arc<Mailbox>> {
        let last = self.replies.iter().rev().find_map(|expected| expected.whose.as_ref());
        last.or_else(|| self.events.values().next()).cloned()
    }
}

impl Connection {
    fn open(hosts: &str) -> io::Result<Connection> {
        let reader = Socket::connect(hosts)?;
        let sender = Mutex::new(reader.other_end()?);
        let waiting = Waiting { reader: Some(reader), ..Waiting::default() };
        Ok(Connection { sender, waiting: Mutex::new(waiting) })
    }

    fn close(&self) -> Outcome<()> {
        Asker::new(self).ask([(CLOSE, &[])]).map(drop)
    }

    fn send(&self, requests: &[(i32, &[u8])], whose: Option<&Arc<Mailbox>>) -> io::Result<()> {
        let mut sender = self.sender.lock();
        let mut waiting = self.waiting.lock();
        for (at, (opcode, body)) in requests.iter().enumerate() {
            waiting.replies.push_back(Expected {
                xid: sender.send(*opcode, body),
                opcode: *opcode,
                whose: whose.cloned(),
                is_last: at + 1 == requests.len(),
            });
        }
        drop(waiting);
        sender.flush()
    }

    /// Reads one frame, and returns who waits for nothing else.
    fn read(&self, reader: &mut Socket) -> io::Result<Option<Arc<Mailbox>>> {
        reader.receive()?;
        let frame = mem::take(&mut reader.answer);
        let (number, code) = (int(&frame, 0)?, int(&frame, 12)?);
        if number == EVENT {
            let node = string(frame.get(24..).unwrap_or_default())?;
            let whose = self.waiting.lock().events.remove(node);
            return Ok(whose.inspect(|mailbox| mailbox.came.lock().event = true));
        }
        let expected = self.waiting.lock().replies.pop_front();
        let Some(Expected { whose, is_last, .. }) = expected.filter(|expected| {
            let is_good = code == 0 || (code == NO_NODE && expected.opcode == READ);
            expected.xid == number && is_good
        }) else {
            let text = format!("unexpected: a reply to {number}, code {code}");
            return Err(io::Error::other(text));
        };
        let whose = whose.inspect(|mailbox| mailbox.came.lock().replies.push(frame));
        Ok(whose.filter(|_| is_last))
    }

    /// Tells all who wait, and lets later requests fail.
    fn fail(&self, reader: &Socket, error: &io::Error) {
        reader.shut_down();
        let mut waiting = self.waiting.lock();
        let replies = mem::take(&mut waiting.replies);
        let events = mem::take(&mut waiting.events);
        drop(waiting);
        let whose = replies.into_iter().filter_map(|expected| expected.whose);
        for mailbox in whose.chain(events.into_values()) {
            mailbox.came.lock().failed = Some(error.to_string());
            mailbox.owner.unpark();
        }
    }
}

/// A thread that uses a connection.
struct Asker<'a> {
    connection: &'a Connection,
    mailbox: Arc<Mailbox>,
    /// Set while it reads.
    reader: Option<Socket>,
}

impl Asker<'_> {
    /// For the thread that calls this.
    fn new(connection: &Connection) -> Asker<'_> {
        let mailbox = Mailbox { owner: thread::current(), came: Mutex::default() };
        Asker { connection, mailbox: Arc::new(mailbox), reader: None }
    }

    fn acquire_and_release(
        mut self,
        lock: &Lock,
        length: Duration,
        mut waits: Waits,
    ) -> Outcome<Done> {
        let begin = Instant::now();
        let mut operations = 0;
        while begin.elapsed() < length {
            let node = waits.note(|| self.acquire(lock, || ()))?;
            self.release(&node)?;
            operations += 1;
        }
        Ok(Done { operations, time: begin.elapsed(), waits })
    }

    /// Calls `in_line` before it waits for a predecessor.
    fn acquire(&mut self, lock: &Lock, in_line: impl Fn()) -> Outcome<String> {
        let [created, mut listed] = self.ask([(CREATE, &lock.create), (LIST, &lock.list)])?;
        let node = string(&created[16..])?.to_owned();
        while let Some(ahead) = predecessor(last(&node), &listed[16..])? {
            let ahead = format!("{}/{ahead}", lock.path);
            // Not kept while waiting: with a thousand waiters, lists are long.
            drop(listed);
            if self.watch(ahead)? {
                in_line();
                self.wait(|came| came.event)?;
                self.mailbox.came.lock().event = false;
            }
            [listed] = self.ask([(LIST, &lock.list)])?;
        }
        self.stop_reading();
        Ok(node)
    }

    /// Does not wait for the reply.
    fn release(&self, node: &str) -> Outcome<()> {
        Ok(self.connection.send(&[(DELETE, &delete(node))], None)?)
    }

    /// Whether the node was still there, so that an event will come.
    fn watch(&mut self, node: String) -> Outcome<bool> {
        let body = on_path(&node, Some(true));
        let mailbox = Arc::clone(&self.mailbox);
        self.connection.waiting.lock().events.insert(node.clone(), mailbox);
        let [read] = self.ask([(READ, &body)])?;
        let is_there = int(&read, 12)? == 0;
        if !is_there {
            self.connection.waiting.lock().events.remove(&node);
        }
        Ok(is_there)
    }

    fn ask<const N: usize>(&mut self, requests: [(i32, &[u8]); N]) -> Outcome<[Vec<u8>; N]> {
        self.connection.send(&requests, Some(&self.mailbox))?;
        self.wait(|came| came.replies.len() == N)?;
        let replies = mem::take(&mut self.mailbox.came.lock().replies);
        replies.try_into().map_err(|_| "too many replies".into())
    }

    /// Reads meanwhile if nobody else does.
    fn wait(&mut self, is_there: impl Fn(&Came) -> bool) -> Outcome<()> {
        loop {
            {
                let came = self.mailbox.came.lock();
                if is_there(&came) {
                    return Ok(());
                }
                if let Some(why) = &came.failed {
                    return Err(why.as_str().into());
                }
            }
            if self.reader.is_none() {
                self.reader = self.connection.waiting.lock().reader.take();
            }
            let Some(reader) = &mut self.reader else {
                thread::park();
                continue;
            };
            match self.connection.read(reader) {
                Ok(Some(other)) if !Arc::ptr_eq(&other, &self.mailbox) => other.owner.unpark(),
                Ok(_) => {}
                Err(error) => {
                    self.connection.fail(reader, &error);
                    return Err(error.into());
                }
            }
        }
    }

    /// Hands the reading on to a thread that waits.
    fn stop_reading(&mut self) {
        let Some(reader) = self.reader.take() else { return };
        let mut waiting = self.connection.waiting.lock();
        waiting.reader = Some(reader);
        let next = waiting.next_reader();
        drop(waiting);
        if let Some(next) = next {
            next.owner.unpark();
        }
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        self.stop_reading();
    }
}
