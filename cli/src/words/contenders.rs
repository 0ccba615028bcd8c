//! How results and errors read: durations, contenders, ages.

use std::time::{Duration, SystemTime};

use zklock::{Contender, ContenderKind};

use super::maintenance;

/// A difference of clocks below this is nothing to speak of.
pub(crate) const CLOCKS_AGREE: Duration = Duration::from_secs(1);

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

/// Who a contender is: `web1 (pid 4711, backup.sh)`, what it says about itself, or what a hold for
/// maintenance is for.
pub(crate) fn who(one: &Contender) -> String {
    match one.maintenance() {
        Some(hold) => visible(&maintenance::whole(&hold)),
        None => named(one, |process| format!("pid {process}, ")),
    }
}

/// The same without what changes: the process, which is another one for each run of a job, as `web1
/// (backup.sh)`, and the end of a hold for maintenance.
pub(crate) fn client(one: &Contender) -> String {
    match one.maintenance() {
        Some(hold) => visible(&maintenance::reason(&hold)),
        None => named(one, |_| String::new()),
    }
}

/// `held by web1 (pid 4711, backup.sh)`, or `held for maintenance: disk replacement, by ops@db1, until
/// 06:00`.
pub(crate) fn held(holder: &Contender) -> String {
    let words = match holder.maintenance() {
        Some(_) => "held for",
        None if holder.patience().is_some() => "first is",
        None => "held by",
    };
    format!("{words} {}", who(holder))
}

fn named(one: &Contender, process_in_words: fn(u32) -> String) -> String {
    let text = match (&one.host, one.process, &one.program) {
        (Some(host), Some(process), Some(program)) => {
            let label = note(one).map(|note| format!(", {note:?}")).unwrap_or_default();
            format!("{host} ({}{program}{label})", process_in_words(process))
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

/// Whether that is a contender's node: its number, its name or its path.
pub(crate) fn is_at(one: &Contender, name: &str) -> bool {
    [&one.path, node(one), &number(one)].contains(&name)
}

/// The path of a contender's lock.
pub(crate) fn parent(one: &Contender) -> &str {
    one.path.rsplit_once('/').map_or("", |(lock, _)| lock)
}

/// The lock that this one waits for its turn to contend for, if it has patience and waits in a room.
pub(crate) fn lock_of_room(member: &Contender) -> Option<String> {
    member.patience()?;
    let (base, room) = parent(member).rsplit_once('/')?;
    Some(format!("{base}/{}", room.strip_prefix("_zklock_room_")?))
}

/// A contender, as the arguments of a subcommand name it: `/locks/nightly --node 0000000011`.
pub(crate) fn as_arguments(one: &Contender) -> String {
    format!("{} --node {}", quoted(parent(one)), number(one))
}

/// What ends this hold for maintenance, to be typed: `zklock release /locks/nightly --node 0000000011`.
pub(crate) fn what_releases(hold: &Contender) -> String {
    format!("zklock release {}", as_arguments(hold))
}

/// Whether another program has made it by a recipe that this one only waits for: one that is not known, or
/// not to the letter, or an election.
pub(crate) fn is_foreign(one: &Contender) -> bool {
    !one.is_of_a_known_recipe() || one.kind == ContenderKind::Other
}

/// Such a contender, and how to get past it: `/locks/a/worker-0000000001 of session 0x1, made 3 h ago, is of
/// no known recipe, and …`.
pub(crate) fn foreign_in_words(one: &Contender) -> String {
    let session = one.session.map(|id| format!(" of session {id}")).unwrap_or_default();
    let age = Ages::of_all([one]).of(one.since);
    let age = age.map(|age| format!(", made {} ago,", lasting(age))).unwrap_or_default();
    let whose = format!("{}{session}{age}", visible(&one.path));
    let until = "and is waited for until it is gone";
    if one.is_of_a_known_recipe() {
        let recipe = one.recipe();
        return format!(
            "{whose} is of another recipe ({recipe}), {until}: use a path of its own for the lock"
        );
    }
    let prefix = node(one).trim_end_matches(|last: char| last.is_ascii_digit());
    let ignore = match prefix {
        "" => String::new(),
        _ => format!(
            "; if it is no contender, all who use the lock may pass it: run --ignore {}",
            quoted(&visible(prefix))
        ),
    };
    format!(
        "{whose} is of no known recipe, {until}: end its program, or: zklock break {}{ignore}",
        as_arguments(one)
    )
}

/// The number at the end of that name, with which ZooKeeper tells the contenders of a lock apart.
pub(crate) fn number(one: &Contender) -> String {
    format!("{:010}", one.sequence)
}

/// How long ago contenders queued.
///
/// Their nodes have the time of the ensemble's clock, which nobody can read without writing something. So
/// this host's clock counts, unless a node was created later than that: then the latest time that is known.
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

    /// Of contenders that queue or hold since then.
    pub(crate) fn of_all<'a>(contenders: impl IntoIterator<Item = &'a Contender>) -> Ages {
        let times = |one: &Contender| [one.since, one.held_since()];
        Ages::among(contenders.into_iter().flat_map(times))
    }

    fn at(here: SystemTime, times: impl Iterator<Item = SystemTime>) -> Ages {
        let now = times.fold(here, SystemTime::max);
        Ages { now, behind: now.duration_since(here).unwrap_or_default() }
    }

    /// How long ago that was.
    pub(crate) fn of(&self, since: Option<SystemTime>) -> Option<Duration> {
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

    /// As `for 2 min 14 s` of a holder that tells when its wait ended, otherwise `queued 2 min 14 s ago`;
    /// `None` if an ACL hides it.
    pub(crate) fn in_words(&self, one: &Contender) -> Option<String> {
        let least = if self.clock_is_behind().is_some() { "more than " } else { "" };
        // Otherwise it may have waited, and have held only for a moment.
        let told = one.held_since().filter(|held| Some(*held) != one.since);
        if let Some(age) = self.of(told) {
            return Some(format!("for {least}{}", lasting(age)));
        }
        self.of(one.since).map(|age| format!("queued {least}{} ago", lasting(age)))
    }

    /// The same after a comma, to follow who it is; empty if an ACL hides it.
    pub(crate) fn after_comma(&self, one: &Contender) -> String {
        self.in_words(one).map(|text| format!(", {text}")).unwrap_or_default()
    }
}

/// The holders in a few words: `held by web1 (pid 4711, backup.sh), for 2 min 14 s`.
pub(crate) fn held_by(contenders: &[Contender]) -> String {
    let holders: Vec<&Contender> = contenders.iter().filter(|one| one.holds).collect();
    let Some(first) = holders.first() else { return "held by nobody now".to_owned() };
    // A hold for maintenance says until when, which is more than since when.
    let since = Ages::of_all(contenders).in_words(first).filter(|_| first.maintenance().is_none());
    let since = |front: &str| since.map(|text| format!("{front}{text}")).unwrap_or_default();
    match holders.len() {
        1 => format!("{}{}", held(first), since(", ")),
        more => format!("{} and {} more{}", held(first), more - 1, since(", the first ")),
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
