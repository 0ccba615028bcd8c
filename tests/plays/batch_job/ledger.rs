//! A file to which many writers append, and which refuses lines with an old token.
//!
//! Each entry is a `begin` and an `end` line with a round number, one more than that of the entry
//! before. An entry without an end is from a writer that has died or lost the lock. The next holder
//! writes a `clear` line, and repeats that round.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use zklock::FencingToken;

use crate::support::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Begin,
    End,
    Clear,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) worker: usize,
    pub(crate) thread: usize,
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} thread {}", self.worker, self.thread)
    }
}

/// One line of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) kind: Kind,
    pub(crate) round: u64,
    pub(crate) token: FencingToken,
    pub(crate) writer: Writer,
    /// Microseconds since 1970.
    pub(crate) at: u64,
}

/// Microseconds since 1970.
pub(crate) fn now() -> u64 {
    u64::try_from(UNIX_EPOCH.elapsed().unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

/// The seconds between two times of lines.
pub(crate) fn seconds(from: u64, to: u64) -> f64 {
    Duration::from_micros(to.saturating_sub(from)).as_secs_f64()
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Begin => "begin",
            Kind::End => "end",
            Kind::Clear => "clear",
        };
        let Line { round, token, writer, at, .. } = self;
        write!(f, "{kind} {round} token {token} {writer} at {at}")
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Line, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let &[kind, round, "token", token, "worker", worker, "thread", thread, "at", at] =
            words.as_slice()
        else {
            return Err(format!("{text:?} is not a line of a ledger"));
        };
        let number = |word: &str| word.parse::<u64>().map_err(|error| format!("{word:?}: {error}"));
        Ok(Line {
            kind: match kind {
                "begin" => Kind::Begin,
                "end" => Kind::End,
                "clear" => Kind::Clear,
                other => return Err(format!("{other:?} is not a kind of line")),
            },
            round: number(round)?,
            token: token.parse().map_err(|error: zklock::Error| error.to_string())?,
            writer: Writer { worker: number(worker)? as usize, thread: number(thread)? as usize },
            at: number(at)?,
        })
    }
}

/// The ledger, for a writer.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: File,
    fenced: bool,
}

/// What happened to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a line may be refused"]
pub(crate) enum Outcome {
    Written,
    Refused,
}

impl Ledger {
    /// Opens the file. A ledger that is not `fenced` accepts every line.
    pub(crate) fn open(path: &Path, fenced: bool) -> Result<Ledger> {
        let file = OpenOptions::new().read(true).append(true).open(path)?;
        Ok(Ledger { file, fenced })
    }

    pub(crate) fn last(&mut self) -> Result<Option<Line>> {
        const MORE_THAN_A_LINE: u64 = 256;
        let length = self.file.seek(SeekFrom::End(0))?;
        self.file.seek(SeekFrom::Start(length.saturating_sub(MORE_THAN_A_LINE)))?;
        let mut tail = String::new();
        self.file.read_to_string(&mut tail)?;
        // Without a working lock, another writer may be writing the last line.
        tail.truncate(tail.rfind('\n').unwrap_or_default());
        Ok(tail.lines().last().map(str::parse).transpose()?)
    }

    /// Appends a line, or refuses it if its token is smaller than the largest seen.
    ///
    /// The file's lock makes check and write one step for all processes. It is held for that step
    /// only: it does not decide which worker's turn it is.
    pub(crate) fn append(&mut self, line: Line) -> Result<Outcome> {
        if !self.fenced {
            return self.write(line);
        }
        self.file.lock()?;
        let outcome = self.append_fenced(line);
        self.file.unlock()?;
        outcome
    }

    fn append_fenced(&mut self, line: Line) -> Result<Outcome> {
        // No smaller token is ever accepted, so the last token is the largest.
        match self.last()? {
            Some(last) if line.token < last.token => Ok(Outcome::Refused),
            _ => self.write(line),
        }
    }

    fn write(&mut self, line: Line) -> Result<Outcome> {
        // In one write, so that concurrent writers do not mix their lines.
        self.file.write_all(format!("{line}\n").as_bytes())?;
        Ok(Outcome::Written)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::{env, fs, thread};

    use super::*;
    use crate::support::unique;

    fn line(kind: Kind, round: u64, token: u64) -> Line {
        let token = format!("{token:016x}-00000000").parse().unwrap();
        Line { kind, round, token, writer: Writer { worker: 1, thread: 2 }, at: 3 }
    }

    /// Removed at the end.
    struct Empty(PathBuf);

    impl Empty {
        fn new(test: &str) -> Empty {
            let path = env::temp_dir().join(unique(test));
            File::create(&path).unwrap();
            Empty(path)
        }
    }

    impl Drop for Empty {
        fn drop(&mut self) {
            fs::remove_file(&self.0).unwrap();
        }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        for kind in [Kind::Begin, Kind::End, Kind::Clear] {
            let line = line(kind, 7, 0x1_0000_00a7);
            assert_eq!(line.to_string().parse(), Ok(line));
        }
    }

    #[test]
    fn a_fenced_ledger_refuses_older_tokens_only() {
        let path = Empty::new("ledger-refuses");
        let mut ledger = Ledger::open(&path.0, true).unwrap();
        for (token, outcome) in [
            (5, Outcome::Written),
            (5, Outcome::Written),
            (4, Outcome::Refused),
            (9, Outcome::Written),
            (8, Outcome::Refused),
        ] {
            assert_eq!(ledger.append(line(Kind::Begin, 1, token)).unwrap(), outcome, "{token}");
        }
        assert_eq!(ledger.last().unwrap(), Some(line(Kind::Begin, 1, 9)));
        let mut unfenced = Ledger::open(&path.0, false).unwrap();
        assert_eq!(unfenced.append(line(Kind::End, 1, 8)).unwrap(), Outcome::Written);
        assert_eq!(unfenced.last().unwrap(), Some(line(Kind::End, 1, 8)));
    }

    #[test]
    fn of_many_writers_at_once_none_gets_behind_a_later_one() {
        let path = Empty::new("ledger-races");
        let next = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut ledger = Ledger::open(&path.0, true).unwrap();
                    for round in 0..500 {
                        let token = next.fetch_add(1, Ordering::Relaxed);
                        let _ = ledger.append(line(Kind::Begin, round, token)).unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(&path.0).unwrap();
        let lines: Vec<Line> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(lines.is_sorted_by_key(|line| line.token));
        assert_eq!(lines.last().unwrap().token.zxid(), 1999, "the greatest is never refused");
    }
}
