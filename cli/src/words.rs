//! How results and errors read: durations, contenders, lines on standard error.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use zklock::Contender;

use crate::background_writer::BackgroundWriter;

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
    match BACKGROUND.get() {
        Some(writer) => writer.write(line),
        None => write(&line),
    }
}

/// Says what the library logs.
pub(crate) fn log(message: &str) {
    let line = format!("zklock: {message}\n");
    match BACKGROUND.get() {
        Some(writer) => writer.write_minor(line),
        None => write(&line),
    }
}

fn write(line: &str) {
    // One write, so that lines of several processes do not mix. Nobody is left to tell of an error.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Prints a result. False if nobody reads any more, as in `zklock watch x | head`.
#[must_use]
pub(crate) fn print(line: &str) -> bool {
    print_raw(&line.split('\t').map(visible).collect::<Vec<_>>().join("\t"))
}

/// Prints a result for programs.
#[must_use]
pub(crate) fn print_raw(line: &str) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
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

/// The holders in a few words: `held by web1 (pid 4711, backup.sh), queued 2 min 14 s ago`.
///
/// ZooKeeper knows when a holder's node was created, but not when its wait was over.
pub(crate) fn held_by(contenders: &[Contender]) -> String {
    let holders: Vec<&Contender> = contenders.iter().filter(|one| one.holds).collect();
    let Some(first) = holders.first() else { return "held by nobody now".to_owned() };
    let queued = first.age().map(|age| format!("queued {} ago", lasting(age)));
    let queued = |front: &str| queued.map(|text| format!("{front}{text}")).unwrap_or_default();
    match holders.len() {
        1 => format!("held by {}{}", who(first), queued(", ")),
        more => format!("held by {} and {} more{}", who(first), more - 1, queued(", the first ")),
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
}
