//! What the doctor finds, as lines for people or for programs.

use serde_json::json;

use crate::words::{print, print_raw};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Ok,
    Warning,
    Error,
}

/// What was found, printed at once: a look at a server that is silent takes its time.
pub(super) struct Findings {
    is_json: bool,
    worst: Level,
}

impl Findings {
    pub(super) fn new(is_json: bool) -> Findings {
        Findings { is_json, worst: Level::Ok }
    }

    pub(super) fn worst(&self) -> Level {
        self.worst
    }

    pub(super) fn add(&mut self, level: Level, about: &str, text: &str) {
        self.worst = self.worst.max(level);
        let word = match level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "error",
        };
        // If nobody reads any more, the exit code still tells.
        let _ = match self.is_json {
            true => print_raw(&json!({ "level": word, "about": about, "text": text }).to_string()),
            false => print(&format!("{word:<8} {about}: {text}")),
        };
    }
}
