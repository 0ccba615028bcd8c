//! A logger that keeps what this process logs.

use std::fmt;
use std::mem;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use log::{Level, LevelFilter, Log, Metadata, Record};

/// A line of the log.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) level: Level,
    pub(crate) target: String,
    pub(crate) text: String,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.level, self.target, self.text)
    }
}

/// Keeps what is logged.
#[derive(Debug)]
pub(crate) struct Logs {
    entries: Mutex<(Vec<Entry>, Option<Instant>)>,
}

static LOGS: Logs = Logs { entries: Mutex::new((Vec::new(), None)) };

/// Starts to keep what is logged, up to this level. If tests share a process, these are the lines
/// of all of them, or none if one has set another logger.
pub(crate) fn logs(level: LevelFilter) -> &'static Logs {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let _ = log::set_logger(&LOGS);
    });
    log::set_max_level(log::max_level().max(level));
    &LOGS
}

impl Logs {
    /// Everything that was kept and not yet taken.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.kept().0.clone()
    }

    pub(crate) fn take(&self) -> Vec<Entry> {
        mem::take(&mut self.kept().0)
    }

    /// The library's own warnings and errors.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let of_note =
            |entry: &Entry| entry.level <= Level::Warn && entry.target.starts_with("zklock");
        self.entries().into_iter().filter(of_note).map(|entry| entry.text).collect()
    }

    /// Whether nothing was logged for a while.
    pub(crate) fn are_quiet(&self) -> bool {
        self.kept().1.is_none_or(|last| last.elapsed() > Duration::from_millis(100))
    }

    fn kept(&self) -> MutexGuard<'_, (Vec<Entry>, Option<Instant>)> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log for Logs {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let entry = Entry {
            level: record.level(),
            target: record.target().to_owned(),
            text: record.args().to_string(),
        };
        let mut kept = self.kept();
        kept.0.push(entry);
        kept.1 = Some(Instant::now());
    }

    fn flush(&self) {}
}
