//! A file that many writers append to, in which it shows if two of them were ever at it at once.
//!
//! Each entry is a `begin` and an `end` line with a round number, one more than that of the entry
//! before. Whoever finds an entry without an end, of a writer that has died, writes a `clear` line
//! and does that round again.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use zklock::FencingToken;

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

/// Between two times of lines.
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
                other => return Err(format!("{other:?} is no kind of line")),
            },
            round: number(round)?,
            token: token.parse().map_err(|error: zklock::Error| error.to_string())?,
            writer: Writer { worker: number(worker)? as usize, thread: number(thread)? as usize },
            at: number(at)?,
        })
    }
}

/// The ledger, for a writer or a reader.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: File,
}

impl Ledger {
    pub(crate) fn open(path: &Path) -> io::Result<Ledger> {
        let file = OpenOptions::new().read(true).append(true).open(path)?;
        Ok(Ledger { file })
    }

    pub(crate) fn last(&mut self) -> Result<Option<Line>, Box<dyn std::error::Error>> {
        const MORE_THAN_A_LINE: u64 = 256;
        let length = self.file.seek(SeekFrom::End(0))?;
        self.file.seek(SeekFrom::Start(length.saturating_sub(MORE_THAN_A_LINE)))?;
        let mut tail = String::new();
        self.file.read_to_string(&mut tail)?;
        Ok(tail.lines().last().map(str::parse).transpose()?)
    }

    pub(crate) fn append(&mut self, line: Line) -> io::Result<()> {
        // In one write, so that lines are whole whoever writes them.
        self.file.write_all(format!("{line}\n").as_bytes())
    }
}

/// What a ledger tells.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    pub(crate) rounds: u64,
    pub(crate) lines: usize,
    /// What must not be.
    pub(crate) faults: Vec<String>,
    /// How long the lock was on its way from one writer to another, and whether that was in
    /// another process.
    pub(crate) passes: Vec<(Duration, bool)>,
    /// Entries that were begun and cleared, each with the line by which work went on.
    pub(crate) cleared: Vec<(Line, Line)>,
    pub(crate) first: Option<Line>,
    pub(crate) last: Option<Line>,
}

/// Reads a whole ledger with suspicion.
pub(crate) fn audit(text: &str) -> Audit {
    let mut reader = Reader::default();
    for (index, text) in text.lines().enumerate() {
        reader.number = index + 1;
        match text.parse() {
            Ok(line) => reader.line(line),
            Err(error) => reader.fault(error),
        }
    }
    reader.number += 1;
    if let Some(open) = reader.open {
        reader.fault(format!("round {} has no end", open.round));
    }
    reader.audit
}

#[derive(Default)]
struct Reader {
    audit: Audit,
    number: usize,
    /// The entry that has no end yet.
    open: Option<Line>,
    /// An entry that was cleared and not done again yet.
    torn: Option<Line>,
    highest: Option<FencingToken>,
    dead: BTreeSet<usize>,
}

impl Reader {
    fn fault(&mut self, what: impl fmt::Display) {
        self.audit.faults.push(format!("line {}: {what}", self.number));
    }

    fn line(&mut self, line: Line) {
        let Line { round, token, writer, .. } = line;
        if self.dead.remove(&writer.worker) {
            self.fault(format!("two writers at once: {writer} goes on, and was taken for dead"));
        }
        match line.kind {
            Kind::Begin => {
                if let Some(open) = self.open.replace(line) {
                    self.fault(format!(
                        "two writers at once: {writer} begins round {round} while {} is at round {}",
                        open.writer, open.round
                    ));
                }
                if round != self.audit.rounds + 1 {
                    let last = self.audit.rounds;
                    self.fault(format!("round {round} by {writer} follows round {last}"));
                }
                if let Some(highest) = self.highest.filter(|highest| token <= *highest) {
                    self.fault(format!("the token {token} comes after {highest}"));
                }
                self.highest = self.highest.max(Some(token));
                if let Some(torn) = self.torn.take() {
                    self.audit.cleared.push((torn, line));
                } else if let Some(last) = self.audit.last
                    && last.writer != writer
                {
                    let way = Duration::from_micros(line.at.saturating_sub(last.at));
                    self.audit.passes.push((way, last.writer.worker != writer.worker));
                }
                self.audit.first.get_or_insert(line);
            }
            Kind::End => {
                let open = self.open.take();
                let own = |open: &Line| (open.round, open.token, open.writer);
                if open.as_ref().map(own) != Some((round, token, writer)) {
                    let at = open.map_or("nobody".to_owned(), |open| open.writer.to_string());
                    self.fault(format!(
                        "two writers at once: {writer} ends round {round} while {at} is at it"
                    ));
                }
                self.audit.rounds = self.audit.rounds.max(round);
            }
            Kind::Clear => match self.open.take() {
                Some(open) if open.writer.worker != writer.worker && open.round == round => {
                    self.dead.insert(open.writer.worker);
                    self.torn = Some(open);
                }
                _ => self.fault(format!("{writer} clears round {round}, which nobody left")),
            },
        }
        self.audit.last = Some(line);
        self.audit.lines += 1;
    }
}
