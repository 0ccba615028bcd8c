//! Histories: files to which every process writes one line for each event, with the time of a clock
//! that all processes of a machine share.
//!
//! A line is `time who what...`: nanoseconds, the writer, and words. A line is written with one
//! `write` and not buffered. So a process that is killed may lack an acquisition or a claim at the
//! end, but has never written one that did not happen.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on the clock of all histories.
pub(crate) type Nanos = u64;

pub(crate) const SECOND: Nanos = 1_000_000_000;
pub(crate) const MILLISECOND: Nanos = 1_000_000;

/// The clock that the lease is measured by: it goes on in a process that is stopped.
pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.unsigned_abs() * SECOND + time.tv_nsec.unsigned_abs()
}

pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / SECOND as f64
}

/// A thread of a worker process. A worker that was killed is replaced by its next generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Who {
    pub(crate) slot: usize,
    pub(crate) generation: usize,
    pub(crate) thread: usize,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.slot, self.generation, self.thread)
    }
}

impl FromStr for Who {
    type Err = String;

    fn from_str(text: &str) -> Result<Who, String> {
        let parts: Option<Vec<usize>> = text.split('.').map(|part| part.parse().ok()).collect();
        match parts.as_deref() {
            Some(&[slot, generation, thread]) => Ok(Who { slot, generation, thread }),
            _ => Err(format!("{text:?} is not a worker's thread")),
        }
    }
}

/// Writes a history.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
}

impl Journal {
    pub(crate) fn create(path: &Path) -> io::Result<Journal> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Journal { file })
    }

    /// Writes that something has just happened.
    pub(crate) fn note(&self, who: impl fmt::Display, what: impl fmt::Display) {
        self.note_at(now(), who, what);
    }

    pub(crate) fn note_at(&self, at: Nanos, who: impl fmt::Display, what: impl fmt::Display) {
        let line = format!("{at} {who} {what}\n");
        (&self.file).write_all(line.as_bytes()).expect("a history can be written");
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) at: Nanos,
    pub(crate) who: String,
    pub(crate) words: Vec<String>,
}

impl Line {
    pub(crate) fn words(&self) -> Vec<&str> {
        self.words.iter().map(String::as_str).collect()
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Line, String> {
        let mut words = text.split(' ').map(str::to_owned);
        let at = words.next().and_then(|word| word.parse().ok());
        match (at, words.next()) {
            (Some(at), Some(who)) => Ok(Line { at, who, words: words.collect() }),
            _ => Err(format!("{text:?} is not a line of a history")),
        }
    }
}

/// The lines of one history. The last one may be torn, if its writer was killed.
pub(crate) fn lines(name: &str, text: &str) -> Result<Vec<Line>, String> {
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let parse = |line: &str| line.parse().map_err(|error| format!("{name}: {error}"));
    text[..whole].lines().map(parse).collect()
}

/// Makes a text one word, for a line: spaces become underscores.
pub(crate) fn word(text: impl fmt::Display) -> String {
    text.to_string().replace(char::is_whitespace, "_")
}
