//! What zklock and its guard process tell each other: lines of JSON through two pipes; and what else zklock
//! hears of.

use std::io::{self, Write};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use zklock::LossReason;

use crate::run::boot_clock::BootTime;

/// What the guard is told.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Run the command, with these environment variables added.
    Start {
        variables: Vec<(String, String)>,
        /// Until when the lock is certain to be held; `None` if there is no lock.
        lock_ends: Option<BootTime>,
        /// From the signal that is to end the command to KILL, in nanoseconds.
        grace: u64,
        /// Whether the command becomes the terminal's foreground group.
        takes_terminal: bool,
    },
    /// The lock is certain to be held until then.
    Held { until: BootTime },
    /// The lock is lost, and the command goes on: only its descriptor tells it.
    Lost,
    /// Pass this signal on to the command's group.
    Signal { number: i32 },
    /// End the command and all that it has started, now.
    Kill,
}

/// What the guard reports.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Report {
    Started {
        process: i32,
    },
    /// The command could not be run, for this reason of the operating system's.
    NotStarted {
        process: i32,
        error: i32,
    },
    /// The command was stopped by this signal.
    Stopped {
        signal: i32,
    },
    /// The end of the lock is near, and the command was sent the signal that is to end it.
    Warned,
    Ended(Ended),
}

/// How the command has ended, after which nothing of it is left.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// It had left processes running, and they were told to end, or killed.
    pub(crate) had_left_some: bool,
    /// It was killed because the lock was at its end.
    pub(crate) by_guard: bool,
}

/// Writes a message in one piece: short ones are never mixed with others, nor written by half.
pub(crate) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Finds whole lines in what was read so far.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn next<T: for<'a> Deserialize<'a>>(&mut self) -> Option<T> {
        loop {
            let end = self.0.iter().position(|byte| *byte == b'\n')?;
            let line: Vec<u8> = self.0.drain(..=end).collect();
            // Both ends are the same program: another line can only be a part of one.
            if let Ok(message) = serde_json::from_slice(&line) {
                return Some(message);
            }
        }
    }
}

/// What happens while the command runs.
#[derive(Debug)]
pub(crate) enum Happening {
    Signal(Signal),
    Reported(Report),
    /// The guard process has ended.
    GuardEnded,
    Lost(LossReason),
    ReleaseRequested,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_pieces() {
        let (mut bytes, mut lines) = (Vec::new(), Lines::default());
        let start = Order::Start {
            variables: vec![("A".into(), "b\nc".into())],
            lock_ends: Some(u64::MAX),
            grace: 5,
            takes_terminal: false,
        };
        send(&mut bytes, &start).unwrap();
        send(&mut bytes, &Order::Kill).unwrap();
        let (first, second) = bytes.split_at(20);
        lines.add(first);
        assert_eq!(lines.next::<Order>(), None);
        lines.add(second);
        assert_eq!(lines.next(), Some(start));
        assert_eq!(lines.next(), Some(Order::Kill));
        assert_eq!(lines.next::<Order>(), None);
    }
}
