//! Starts, pauses and kills the worker processes.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::options::Options;
use crate::support::Result;
use crate::support::paused::Paused;
use crate::words::{News, Order};

/// The workers, numbered from 1. They end at the end of their standard input, and so however this
/// process ends.
pub(crate) struct Crew {
    members: Vec<Member>,
    news: Receiver<(usize, News)>,
}

struct Member {
    // Dropped in this order, because a paused process does not notice the end of its input.
    paused: Option<Paused>,
    orders: Option<ChildStdin>,
    process: Child,
}

impl Crew {
    pub(crate) fn start(options: &Options) -> Result<Crew> {
        let (tell, news) = channel();
        let mut crew = Crew { members: Vec::new(), news };
        for worker in 1..=options.workers {
            let mut command = Command::new(env::current_exe()?);
            command
                .args(["--worker", &worker.to_string(), "--hosts", &options.hosts])
                .args(["--lock", &options.lock, "--threads", &options.threads.to_string()])
                .args(["--rounds", &options.rounds.to_string()])
                .args(
                    options.ledger.iter().flat_map(|path| ["--ledger".as_ref(), path.as_os_str()]),
                )
                .args(options.no_fencing.then_some("--no-fencing"))
                .args(options.break_it.then_some("--break-it"))
                .args(options.temporary.then_some("--temporary"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                // In its own process group, so that the terminal's Ctrl-C does not reach it: it
                // ends at the end of its input.
                .process_group(0);
            let mut process = command.spawn()?;
            let output = process.stdout.take().ok_or("a worker without pipes")?;
            let orders = process.stdin.take();
            crew.members.push(Member { paused: None, orders, process });
            let tell = tell.clone();
            thread::spawn(move || listen(worker, output, &tell));
        }
        Ok(crew)
    }

    /// Waits at most `limit` for the next message of a worker.
    pub(crate) fn hear(&self, limit: Duration) -> Result<Option<(usize, News)>> {
        match self.news.recv_timeout(limit) {
            Ok(news) => Ok(Some(news)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err("all workers have ended".into()),
        }
    }

    pub(crate) fn tell(&mut self, worker: usize, order: Order) -> Result<()> {
        let orders = self.members[worker - 1].orders.as_mut().ok_or("a worker without pipes")?;
        Ok(writeln!(orders, "{order}")?)
    }

    pub(crate) fn kill(&mut self, worker: usize) -> Result<()> {
        Ok(self.members[worker - 1].process.kill()?)
    }

    pub(crate) fn pause(&mut self, worker: usize) -> Result<()> {
        let member = &mut self.members[worker - 1];
        member.paused = Some(Paused::new(&member.process)?);
        Ok(())
    }

    pub(crate) fn resume(&mut self, worker: usize) {
        self.members[worker - 1].paused = None;
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for Member { paused, orders, mut process } in self.members.drain(..) {
            drop(paused);
            drop(orders);
            let _ = process.wait();
        }
    }
}

fn listen(worker: usize, output: impl Read, tell: &Sender<(usize, News)>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let _ = tell.send((worker, News::parse(&line)));
    }
    let _ = tell.send((worker, News::Ended));
}
