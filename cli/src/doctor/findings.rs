//! What the doctor finds, as lines for people or for programs.

use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;

use serde_json::json;

use crate::exit::Failure;
use crate::output::{print, print_json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Ok,
    /// Nothing is wrong, but whoever looks should know.
    Note,
    Warning,
    Error,
}

/// What was found, printed at once: a look at a server that is silent takes its time.
pub(crate) struct Findings {
    is_json: bool,
    worst: Level,
    unprinted: Option<Failure>,
}

impl Findings {
    pub(crate) fn new(is_json: bool) -> Findings {
        Findings { is_json, worst: Level::Ok, unprinted: None }
    }

    /// The worst of them, or why they could not be printed.
    pub(crate) fn worst(self) -> Result<Level, Failure> {
        self.unprinted.map_or(Ok(self.worst), Err)
    }

    pub(crate) fn add(&mut self, level: Level, about: &str, text: &str) {
        self.worst = self.worst.max(level);
        let word = match level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        };
        let printed = match self.is_json {
            true => print_json(&json!({ "level": word, "about": about, "text": text })),
            false => print(&format!("{word:<8} {about}: {text}")),
        };
        // If nobody reads any more, the exit code still tells.
        if let Err(failure) = printed {
            self.unprinted.get_or_insert(failure);
        }
    }
}

/// What a thread has found; its panic is the caller's.
pub(crate) fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}
