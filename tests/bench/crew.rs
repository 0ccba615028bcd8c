//! The worker processes, which stay alive from round to round.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::contestant::Contestant;

/// Why a worker did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It takes longer than this limit.
    TooSlow(Duration),
    /// It has ended, with this reason.
    Ended(String),
    /// The bench was interrupted.
    Stopped,
}

/// A worker process, killed when this is dropped. If the bench itself is killed, the worker ends at
/// the end of its input.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    log: PathBuf,
}

impl Worker {
    pub(crate) fn start(
        contestant: Contestant,
        index: usize,
        programs: &Path,
        logs: &Path,
    ) -> io::Result<Worker> {
        let log = logs.join(format!("{}-{index}.err", contestant.name()));
        let mut child = contestant
            .command(programs)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            // In its own process group, so that the terminal's Ctrl-C does not reach it.
            .process_group(0)
            .spawn()?;
        let orders = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let (tell, answers) = mpsc::channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(io::Result::ok);
            // Sending fails if the `Worker` was dropped.
            let _ = lines
                .filter_map(|line| Some(line.strip_prefix("peer: ")?.to_owned()))
                .try_for_each(|answer| tell.send(answer));
        });
        Ok(Worker { child, orders, answers, log })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn order(&mut self, order: &str) {
        // If the worker has ended, reading its answer fails.
        let _ = writeln!(self.orders, "{order}");
    }

    pub(crate) fn ready(&self, limit: Duration, stop: &AtomicBool) -> Result<(), Trouble> {
        self.line(limit, stop).map(drop)
    }

    pub(crate) fn answer(&self, limit: Duration, stop: &AtomicBool) -> Result<Value, Trouble> {
        let line = self.line(limit, stop)?;
        serde_json::from_str(&line).map_err(|error| Trouble::Ended(format!("{line:?}: {error}")))
    }

    fn line(&self, limit: Duration, stop: &AtomicBool) -> Result<String, Trouble> {
        let end = Instant::now() + limit;
        loop {
            if stop.load(Ordering::SeqCst) {
                return Err(Trouble::Stopped);
            }
            match self.answers.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(RecvTimeoutError::Timeout) => return Err(Trouble::TooSlow(limit)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Trouble::Ended(self.last_words()));
                }
            }
        }
    }

    fn last_words(&self) -> String {
        let said = fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        last.unwrap_or("it ended without a message").trim().to_owned()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
