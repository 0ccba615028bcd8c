//! Shows how a ledger grows.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::ledger::{Kind, Line};
use crate::support::Result;

/// Reads the ledger as it grows.
pub(crate) struct Progress {
    file: File,
    unread: String,
    pub(crate) rounds: u64,
    pub(crate) last: Option<Line>,
    /// The last `clear` line.
    pub(crate) cleared: Option<Line>,
    /// Rounds and time when the rate was last computed.
    before: (u64, Instant),
    /// Rounds per second.
    rate: f64,
}

impl Progress {
    pub(crate) fn follow(path: &Path) -> Result<Progress> {
        Ok(Progress {
            file: File::open(path)?,
            unread: String::new(),
            rounds: 0,
            last: None,
            cleared: None,
            before: (0, Instant::now()),
            rate: 0.0,
        })
    }

    pub(crate) fn read(&mut self) -> Result<()> {
        self.file.read_to_string(&mut self.unread)?;
        let complete = self.unread.rfind('\n').map_or(0, |end| end + 1);
        for text in self.unread.drain(..complete).collect::<String>().lines() {
            let line: Line = text.parse()?;
            match line.kind {
                Kind::End => self.rounds = self.rounds.max(line.round),
                Kind::Clear => self.cleared = Some(line),
                Kind::Begin => {}
            }
            self.last = Some(line);
        }
        let (rounds, since) = self.before;
        let passed = since.elapsed();
        if passed >= Duration::from_millis(500) {
            self.rate = (self.rounds - rounds) as f64 / passed.as_secs_f64();
            self.before = (self.rounds, Instant::now());
        }
        Ok(())
    }
}

/// A status line: on a terminal it is overwritten; otherwise a line is printed every 2 s.
pub(crate) struct Display {
    terminal: bool,
    written: Instant,
}

impl Display {
    pub(crate) fn new() -> Display {
        Display { terminal: io::stdout().is_terminal(), written: Instant::now() }
    }

    pub(crate) fn progress(&mut self, rounds: u64, progress: &Progress) {
        const WIDTH: usize = 20;
        let filled = (progress.rounds * WIDTH as u64 / rounds) as usize;
        let holder = match progress.last {
            Some(line) if progress.rounds < rounds => line.writer.to_string(),
            _ => String::new(),
        };
        self.status(&format!(
            "[{:.<WIDTH$}] {:>4}/{rounds} rounds {:>5.0}/s  {holder}",
            "#".repeat(filled.min(WIDTH)),
            progress.rounds,
            progress.rate,
        ));
    }

    pub(crate) fn status(&mut self, text: &str) {
        if self.terminal {
            print!("\r\x1b[K{text}");
            let _ = io::stdout().flush();
        } else if self.written.elapsed() >= Duration::from_secs(2) {
            println!("{}", text.trim_end());
            self.written = Instant::now();
        }
    }

    pub(crate) fn line(&self, text: &str) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        println!("{clear}{text}");
    }

    pub(crate) fn end(&self) {
        if self.terminal {
            println!();
        }
    }
}
