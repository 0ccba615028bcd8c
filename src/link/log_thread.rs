//! Writes the link's lines to the program's log, on a thread of its own: a logger may block or use the
//! client, and the link must go on meanwhile. The thread ends when no line waits.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use log::Level;
use parking_lot::Mutex as Lock;

use crate::logging;
use crate::rt;

/// So many lines wait for the logger; the latest ones are left out, and counted.
const MOST_WAITING: usize = 1_000;

/// The lock below is held for a moment only. But a forked child may find it locked for ever.
const LOCKED_AT_MOST: Duration = Duration::from_millis(100);

/// Lines for the thread that writes them.
struct Waiting {
    lines: VecDeque<(Level, String)>,
    left_out: usize,
    /// The process whose thread writes them, while there is one.
    writer: Option<u32>,
}

static WAITING: Lock<Waiting> =
    Lock::new(Waiting { lines: VecDeque::new(), left_out: 0, writer: None });

/// Has another thread write the line soon. Nothing of the program runs in this call.
pub(super) fn write_soon(level: Level, line: fmt::Arguments<'_>) {
    // The logger itself is asked by the thread that writes.
    if level > log::max_level() {
        return;
    }
    let line = line.to_string();
    let Some(mut waiting) = WAITING.try_lock_for(LOCKED_AT_MOST) else { return };
    let process = std::process::id();
    if waiting.writer.is_some_and(|writer| writer != process) {
        // The parent process writes these.
        waiting.lines.clear();
        (waiting.left_out, waiting.writer) = (0, None);
    }
    if waiting.lines.len() < MOST_WAITING {
        waiting.lines.push_back((level, line));
    } else {
        waiting.left_out += 1;
    }
    if waiting.writer.is_none() {
        waiting.writer = Some(process);
        drop(waiting);
        if rt::spawn("zklock-log", write_waiting).is_err() {
            // The next line tries again.
            WAITING.lock().writer = None;
        }
    }
}

/// Writes until no line waits.
fn write_waiting() {
    loop {
        let mut waiting = WAITING.lock();
        let Some((level, line)) = waiting.lines.pop_front() else {
            waiting.writer = None;
            return;
        };
        let left_out =
            if waiting.lines.is_empty() { std::mem::take(&mut waiting.left_out) } else { 0 };
        drop(waiting);
        logging::line!(level, target: "zklock::link", "{line}");
        if left_out > 0 {
            logging::warning!(target: "zklock::link", "{left_out} lines are left out: the logger is too slow");
        }
    }
}
