//! Checks a ledger: it shows whether two writers ever wrote at the same time.

use std::fmt;
use std::time::Duration;

use zklock::FencingToken;

use crate::ledger::{Kind, Line};

/// The results of checking a ledger.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    pub(crate) rounds: u64,
    pub(crate) lines: usize,
    /// Violations.
    pub(crate) faults: Vec<String>,
    /// How long each hand-over between writers took, and whether the next writer was in another
    /// process.
    pub(crate) passes: Vec<(Duration, bool)>,
    /// Entries that were begun and cleared, each with the line with which work went on.
    pub(crate) cleared: Vec<(Line, Line)>,
    pub(crate) first: Option<Line>,
    pub(crate) last: Option<Line>,
}

/// Checks a whole ledger.
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
    /// The entry without an end so far.
    open: Option<Line>,
    /// An entry that was cleared, and not repeated so far.
    torn: Option<Line>,
    highest: Option<FencingToken>,
    /// The highest token of an entry.
    begun: Option<FencingToken>,
}

impl Reader {
    fn fault(&mut self, what: impl fmt::Display) {
        self.audit.faults.push(format!("line {}: {what}", self.number));
    }

    fn line(&mut self, line: Line) {
        let Line { round, token, writer, .. } = line;
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
                if self.begun == Some(token) {
                    self.fault(format!("the token {token} is used a second time"));
                }
                self.begun = self.begun.max(Some(token));
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
                match open {
                    Some(open) if own(&open) == (round, token, writer) => {}
                    Some(open) => self.fault(format!(
                        "two writers at once: {writer} ends round {round} while {} is at round {}",
                        open.writer, open.round
                    )),
                    None => self.fault(format!("{writer} ends round {round}, which was not begun")),
                }
                self.audit.rounds = self.audit.rounds.max(round);
            }
            Kind::Clear => match self.open.take() {
                Some(open) if open.token < token && open.round == round => self.torn = Some(open),
                _ => self.fault(format!("{writer} clears round {round}, which was not left open")),
            },
        }
        match self.highest {
            Some(highest) if token < highest => {
                self.fault(format!("a stale write by {writer}: token {token} after {highest}"));
            }
            _ => self.highest = Some(token),
        }
        self.audit.last = Some(line);
        self.audit.lines += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger from kinds, rounds, tokens and workers.
    fn faults(lines: &[(&str, u64, u64, usize)]) -> Vec<String> {
        let line = |(kind, round, token, worker): &(&str, u64, u64, usize)| {
            format!("{kind} {round} token {token:016x}-00000000 worker {worker} thread 1 at 0\n")
        };
        audit(&lines.iter().map(line).collect::<String>()).faults
    }

    fn assert_found(lines: &[(&str, u64, u64, usize)], what: &[&str]) {
        let faults = faults(lines);
        assert_eq!(faults.len(), what.len(), "{faults:?}");
        for (fault, what) in faults.iter().zip(what) {
            assert!(fault.contains(what), "{fault:?} is not about {what:?}");
        }
    }

    #[test]
    fn good_work_has_no_faults() {
        assert_found(
            &[
                ("begin", 1, 10, 1),
                ("end", 1, 10, 1),
                ("begin", 2, 11, 2),
                // Worker 2 dies; worker 1 repeats the round with its own token.
                ("clear", 2, 12, 1),
                ("begin", 2, 12, 1),
                ("end", 2, 12, 1),
                ("begin", 3, 13, 2),
                ("end", 3, 13, 2),
            ],
            &[],
        );
    }

    #[test]
    fn a_stale_write_is_found_wherever_it_comes() {
        let passed_on = [
            ("begin", 1, 10, 1),
            ("clear", 1, 11, 2),
            ("begin", 1, 11, 2),
            ("end", 1, 11, 2),
            ("begin", 2, 12, 2),
            ("end", 2, 12, 2),
        ];
        for at in 2..passed_on.len() + 1 {
            let mut lines = passed_on.to_vec();
            lines.insert(at, ("end", 1, 10, 1));
            let faults = faults(&lines);
            assert!(faults.iter().any(|fault| fault.contains("a stale write")), "{at}: {faults:?}");
        }
    }

    #[test]
    fn two_writers_at_once_are_found() {
        assert_found(
            &[("begin", 1, 10, 1), ("begin", 1, 11, 2), ("end", 1, 11, 2)],
            &["two writers at once"],
        );
        assert_found(&[("begin", 1, 10, 1), ("end", 1, 11, 2)], &["two writers at once"]);
        assert_found(
            &[("begin", 1, 10, 1), ("end", 1, 10, 1), ("begin", 2, 10, 2), ("end", 2, 10, 2)],
            &["a second time"],
        );
    }

    #[test]
    fn lost_and_repeated_rounds_and_open_ends_are_found() {
        assert_found(&[("begin", 2, 10, 1), ("end", 2, 10, 1)], &["follows round 0"]);
        assert_found(&[("begin", 1, 10, 1)], &["has no end"]);
        assert_found(&[("clear", 1, 10, 1)], &["not left open"]);
        assert_found(&[("begun", 1, 10, 1)], &["not a kind of line"]);
    }
}
