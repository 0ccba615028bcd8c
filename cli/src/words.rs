//! How results and errors read: durations, contenders, lines on standard error.

use std::io::{ErrorKind, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use zklock::Contender;

use crate::background_writer::BackgroundWriter;
use crate::exit::{Exit, Failure};

/// A difference of clocks below this is nothing to speak of.
pub(crate) const CLOCKS_AGREE: Duration = Duration::from_secs(1);

static QUIET: AtomicBool = AtomicBool::new(false);

static BACKGROUND: OnceLock<BackgroundWriter> = OnceLock::new();

/// From now on, nobody waits for a reader of standard error.
pub(crate) fn write_in_background() -> std::io::Result<()> {
    let writer = BackgroundWriter::start("zklock-words", std::io::stderr())?;
    let _ = BACKGROUND.set(writer);
    Ok(())
}

/// Waits until everything is written, if somebody reads it.
pub(crate) fn flush() {
    if let Some(writer) = BACKGROUND.get() {
        writer.flush();
    }
}

/// From now on, only failures are said.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Says something on standard error.
pub(crate) fn say(subject: &str, message: &str) {
    if !QUIET.load(Ordering::Relaxed) {
        complain(subject, message);
    }
}

/// Says on standard error what went wrong.
pub(crate) fn complain(subject: &str, message: &str) {
    let line = match subject {
        "" => format!("zklock: {message}\n"),
        _ => format!("zklock: {subject}: {message}\n"),
    };
    write(line, BackgroundWriter::write);
}

/// Says what the library logs.
pub(crate) fn log(message: &str) {
    write(format!("zklock: {message}\n"), BackgroundWriter::write_minor);
}

fn write(line: String, in_background: impl Fn(&BackgroundWriter, String)) {
    match BACKGROUND.get() {
        Some(writer) => in_background(writer, line),
        // One write, so that lines of several processes do not mix. Nobody is left to tell of an error.
        None => drop(std::io::stderr().lock().write_all(line.as_bytes())),
    }
}

/// Prints a result. False if nobody reads any more, as in `zklock watch x | head`; an error if it cannot be written,
/// as on a full disk.
pub(crate) fn print(line: &str) -> Result<bool, Failure> {
    let cells: Vec<String> = line.split('\t').map(visible).collect();
    print_text(format!("{}\n", cells.join("\t")).as_bytes())
}

/// Prints a result for programs, as `print` does.
pub(crate) fn print_json(result: &Value) -> Result<bool, Failure> {
    print_text(format!("{result}\n").as_bytes())
}

/// Prints this text as it is, as `print` does.
pub(crate) fn print_text(text: &[u8]) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(Exit::Failed, format!("standard output: {error}"))),
    }
}

/// The text with control characters replaced: what other clients have written must not control the terminal.
pub(crate) fn visible(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '\u{fffd}' } else { one }).collect()
}

/// A duration in two units at most: `0.2 s`, `41 s`, `2 min 14 s`, `3 h 5 min`, `12 d 3 h`.
pub(crate) fn lasting(time: Duration) -> String {
    let seconds = time.as_secs();
    let pair = |large: u64, of: &str, small: u64, unit: &str| match small {
        0 => format!("{large} {of}"),
        _ => format!("{large} {of} {small} {unit}"),
    };
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3_600 => pair(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => pair(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => pair(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// The same with a tenth of a second below a minute, and never more than it is: for what is surely survived.
pub(crate) fn at_least(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds}.{} s", time.subsec_millis() / 100),
        _ => lasting(time),
    }
}

/// The same without spaces, for tables: `0.2s`, `41s`, `2m14s`, `3h5m`, `12d3h`.
pub(crate) fn lasting_short(time: Duration) -> String {
    lasting(time).replace("min", "m").replace(' ', "")
}

/// Who a contender is: `web1 (pid 4711, backup.sh)`, or what it says about itself.
pub(crate) fn who(one: &Contender) -> String {
    let text = match (one.host(), one.process(), one.program()) {
        (Some(host), Some(process), Some(program)) => {
            let label = note(one).map(|note| format!(", {note:?}")).unwrap_or_default();
            format!("{host} (pid {process}, {program}{label})")
        }
        _ if !one.label().is_empty() => one.label(),
        _ => match one.session {
            Some(session) => format!("session {session}"),
            None => format!("node {}", node(one)),
        },
    };
    visible(&text)
}

/// What `--label` has added to a contender's data.
pub(crate) fn note(one: &Contender) -> Option<String> {
    let text = std::str::from_utf8(&one.data).ok()?;
    let note = text.lines().skip(1).find_map(|line| line.strip_prefix("label="))?;
    Some(visible(note))
}

/// The last component of a contender's path.
pub(crate) fn node(one: &Contender) -> &str {
    one.path.rsplit('/').next().unwrap_or_default()
}

/// All of these contenders: `web1 (pid 4711, backup.sh), web2 (pid 911, backup.sh)`.
pub(crate) fn all(contenders: &[Contender]) -> String {
    contenders.iter().map(who).collect::<Vec<_>>().join(", ")
}

/// The number at the end of that name, with which ZooKeeper tells the contenders of a lock apart.
pub(crate) fn number(one: &Contender) -> String {
    format!("{:010}", one.sequence)
}

/// How long ago contenders queued.
///
/// Their nodes have the time of the ensemble's clock, which nobody can read without writing something. So this
/// host's clock counts, unless a node was created later than that: then the latest time that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ages {
    now: SystemTime,
    behind: Duration,
}

impl Ages {
    /// Of contenders whose nodes were created then; `None` where an ACL hides it.
    pub(crate) fn among(times: impl IntoIterator<Item = Option<SystemTime>>) -> Ages {
        Ages::at(SystemTime::now(), times.into_iter().flatten())
    }

    fn at(here: SystemTime, times: impl Iterator<Item = SystemTime>) -> Ages {
        let now = times.fold(here, SystemTime::max);
        Ages { now, behind: now.duration_since(here).unwrap_or_default() }
    }

    fn of(&self, since: Option<SystemTime>) -> Option<Duration> {
        self.now.duration_since(since?).ok()
    }

    /// How far this host's clock is behind the ensemble's, at least. All ages are then too short.
    pub(crate) fn clock_is_behind(&self) -> Option<Duration> {
        (self.behind >= CLOCKS_AGREE).then_some(self.behind)
    }

    /// For tables: `2m14s`, or `>2m14s`; empty if an ACL hides it.
    pub(crate) fn in_short(&self, since: Option<SystemTime>) -> String {
        let least = if self.clock_is_behind().is_some() { ">" } else { "" };
        self.of(since).map(|age| format!("{least}{}", lasting_short(age))).unwrap_or_default()
    }

    /// As `queued 2 min 14 s ago`; `None` if an ACL hides it.
    pub(crate) fn in_words(&self, since: Option<SystemTime>) -> Option<String> {
        let least = if self.clock_is_behind().is_some() { "more than " } else { "" };
        self.of(since).map(|age| format!("queued {least}{} ago", lasting(age)))
    }
}

/// The holders in a few words: `held by web1 (pid 4711, backup.sh), queued 2 min 14 s ago`.
///
/// ZooKeeper knows when a holder's node was created, but not when its wait was over.
pub(crate) fn held_by(contenders: &[Contender]) -> String {
    let holders: Vec<&Contender> = contenders.iter().filter(|one| one.holds).collect();
    let Some(first) = holders.first() else { return "held by nobody now".to_owned() };
    let queued = Ages::among(contenders.iter().map(|one| one.since)).in_words(first.since);
    let queued = |front: &str| queued.map(|text| format!("{front}{text}")).unwrap_or_default();
    match holders.len() {
        1 => format!("held by {}{}", who(first), queued(", ")),
        more => format!("held by {} and {} more{}", who(first), more - 1, queued(", the first ")),
    }
}

/// A word of a shell's command line.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "/._-:,+@%".contains(one);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        let all = [
            (200, "0.2 s"),
            (41_000, "41 s"),
            (134_000, "2 min 14 s"),
            (120_000, "2 min"),
            (11_100_000, "3 h 5 min"),
            (1_047_600_000, "12 d 3 h"),
        ];
        for (milliseconds, text) in all {
            assert_eq!(lasting(Duration::from_millis(milliseconds)), text);
        }
        assert_eq!(lasting_short(Duration::from_secs(134)), "2m14s");
        assert_eq!(at_least(Duration::from_millis(20_883)), "20.8 s");
        assert_eq!(at_least(Duration::from_millis(134_900)), "2 min 14 s");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(visible("a\u{1b}[2Jb\nc"), "a\u{fffd}[2Jb\u{fffd}c");
    }

    #[test]
    fn no_age_is_negative_and_a_clock_that_is_behind_is_noticed() {
        let second = Duration::from_secs(1);
        let here = SystemTime::UNIX_EPOCH + 100 * second;
        let ages =
            |created: u32| Ages::at(here, [here - second, here + created * second].into_iter());
        assert_eq!((ages(0).now, ages(0).clock_is_behind()), (here, None));
        let behind = ages(30);
        assert_eq!((behind.now, behind.clock_is_behind()), (here + 30 * second, Some(30 * second)));
    }

    #[test]
    fn a_shell_reads_the_word_as_it_is() {
        for (word, written) in [("/locks/a", "/locks/a"), ("a b", "'a b'"), ("it's", "'it'\\''s'")]
        {
            assert_eq!(quoted(word), written);
        }
    }
}
