//! What a maintenance hold is: a contender's node that belongs to no session. Its name keeps all clients from
//! the lock, and its data say why and until when. Functions without IO.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use super::facts::{fact, with, with_facts};
use super::ticket::{ContenderKind, Form, NodeNaming, Ticket};
use crate::rt;
use crate::session::Names;
use crate::wire_values::Stat;

const REASON: &str = "maintenance: ";
const MADE_BY: &str = "made by ";
/// What it is so far: asked for, or held.
const STATE: &str = "maintenance";
const ASKED_FOR: &str = "asked_for";
const HELD: &str = "held";
/// Since when it is held, in milliseconds of the ensemble's clock.
const HELD_SINCE: &str = "held_since";
/// When it ends: `never`, `at:` a time by the ensemble's clock, or `after:` a time since its data were
/// written, both in milliseconds.
const ENDS: &str = "ends";
const NEVER: &str = "never";
const AT: &str = "at:";
const AFTER: &str = "after:";

/// A hold that is asked for ends so long after its maker has been heard of last.
const ASKED_FOR_ENDS_AFTER: Duration = Duration::from_secs(30);

/// When a maintenance hold ends: see
/// [`LockNode::hold_for_maintenance`](crate::LockNode::hold_for_maintenance).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MaintenanceEnd {
    /// So long after the lock is held, in whole milliseconds and more than zero.
    After(Duration),
    /// At this time, by the ensemble's clock, whatever this machine's clock says.
    At(SystemTime),
    /// Only when it is released.
    Never,
}

impl MaintenanceEnd {
    /// When it is, for a hold whose data were written then.
    fn of_written(self, written: i64) -> Option<i64> {
        match self {
            MaintenanceEnd::After(after) => {
                written.checked_add(i64::try_from(after.as_millis()).ok()?)
            }
            MaintenanceEnd::At(time) => Some(milliseconds(time)),
            MaintenanceEnd::Never => None,
        }
    }

    fn told_by(data: &[u8]) -> MaintenanceEnd {
        let told = fact(data, ENDS).unwrap_or(NEVER);
        let after = |begin| told.strip_prefix(begin)?.parse().ok().map(Duration::from_millis);
        let at = |since| SystemTime::UNIX_EPOCH.checked_add(since).map(MaintenanceEnd::At);
        (after(AT).and_then(at))
            .or_else(|| after(AFTER).map(MaintenanceEnd::After))
            .unwrap_or(MaintenanceEnd::Never)
    }
}

impl fmt::Display for MaintenanceEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaintenanceEnd::After(after) => write!(f, "{AFTER}{}", after.as_millis()),
            MaintenanceEnd::At(time) => write!(f, "{AT}{}", milliseconds(*time)),
            MaintenanceEnd::Never => f.write_str(NEVER),
        }
    }
}

/// Why a lock is held for maintenance, and until when: see
/// [`Contender::maintenance`](crate::Contender::maintenance).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaintenanceHold {
    /// Why; empty if the node does not tell.
    pub reason: String,
    /// Who has made it; empty if the node does not tell.
    pub made_by: String,
    /// Whether somebody still waits for this hold to be the first: then it ends half a minute after that one
    /// has been heard of last.
    pub is_asked_for: bool,
    /// When it ends, by the ensemble's clock; `None` if only when it is released.
    pub ends: Option<SystemTime>,
}

impl MaintenanceHold {
    /// What the data of such a hold say, which were written then.
    pub(crate) fn read(data: &[u8], written: Option<SystemTime>) -> MaintenanceHold {
        let text = String::from_utf8_lossy(data);
        let line = |at: usize, begin: &str| {
            let line = text.split('\n').nth(at).and_then(|line| line.strip_prefix(begin));
            line.unwrap_or_default().to_owned()
        };
        let ends =
            written.and_then(|at| MaintenanceEnd::told_by(data).of_written(milliseconds(at)));
        MaintenanceHold {
            reason: line(0, REASON),
            made_by: line(2, MADE_BY),
            is_asked_for: fact(data, STATE) == Some(ASKED_FOR),
            ends: ends.and_then(time),
        }
    }
}

/// When such a node ends, in milliseconds of the ensemble's clock; `None` if it is another's, or does not
/// end.
pub(crate) fn end_of(data: &[u8], stat: &Stat) -> Option<i64> {
    let end = MaintenanceEnd::told_by(data).of_written(stat.mtime);
    end.filter(|_| stat.ephemeral_owner == 0)
}

/// Since when it has been held, if its data tell.
pub(crate) fn held_since(data: &[u8]) -> Option<SystemTime> {
    time(fact(data, HELD_SINCE)?.parse().ok()?)
}

/// Whether these are the data of a hold that is held.
pub(crate) fn is_held(data: &[u8]) -> bool {
    fact(data, STATE) == Some(HELD)
}

/// The data of a hold that is asked for.
pub(crate) fn asked_for(reason: &str, made_by: &str) -> Vec<u8> {
    let mut data = with_facts(format!("{REASON}{reason}").into_bytes());
    data.extend(format!("\n{MADE_BY}{made_by}").into_bytes());
    let ends = MaintenanceEnd::After(ASKED_FOR_ENDS_AFTER);
    with_each(data, [(STATE, ASKED_FOR.to_owned()), (ENDS, ends.to_string())])
}

/// The same data of a hold that is held since then, or queued. If another client has overwritten them, they
/// tell nothing else any more.
pub(crate) fn held(data: Vec<u8>, since: Option<i64>, end: MaintenanceEnd) -> Vec<u8> {
    let data = if fact(&data, STATE).is_some() { data } else { asked_for("", "") };
    let since = since.map(|since| (HELD_SINCE, since.to_string()));
    let facts = [(STATE, HELD.to_owned()), (ENDS, end.to_string())];
    with_each(data, facts.into_iter().chain(since))
}

fn with_each(data: Vec<u8>, facts: impl IntoIterator<Item = (&'static str, String)>) -> Vec<u8> {
    facts.into_iter().fold(data, |data, (key, value)| with(&data, key, &value).unwrap_or(data))
}

/// The form of the lock's own contenders, or the one that those who are there respect: Curator's read/write
/// locks respect only names of their own, and so does kazoo.
pub(crate) fn fitting(form: Form, children: &Names) -> Form {
    let is_of_kazoo = |one: &Ticket<'_>| one.marker().ends_with("lock__");
    let is_shared =
        |one: &Ticket<'_>| matches!(one.kind(), ContenderKind::Read | ContenderKind::Write);
    let is_known = |one: &Ticket<'_>| one.is_of_a_known_recipe();
    let mut contenders = children.iter().filter_map(Ticket::parse).filter(is_known).peekable();
    if contenders.peek().is_some() && contenders.clone().all(|one| is_of_kazoo(&one)) {
        return Form::new(NodeNaming::Kazoo, ContenderKind::Mutex);
    }
    match contenders.any(|one| is_shared(&one) && !is_of_kazoo(&one)) {
        true => Form::new(NodeNaming::Curator, ContenderKind::Write),
        false => form,
    }
}

/// What the ensemble's clock says, as it was told at some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnsembleClock {
    said: i64,
    at: Instant,
}

impl EnsembleClock {
    /// It said this then, or before.
    pub(crate) fn new(said: i64, at: Instant) -> EnsembleClock {
        EnsembleClock { said, at }
    }

    /// In milliseconds since 1970.
    pub(crate) fn now(self) -> i64 {
        let since = rt::now().saturating_duration_since(self.at).as_millis();
        self.said.saturating_add(i64::try_from(since).unwrap_or(i64::MAX))
    }

    pub(crate) fn is_after(self, time: SystemTime) -> bool {
        self.now() > milliseconds(time)
    }

    /// How long it is until that time is over.
    pub(crate) fn until_after(self, time: SystemTime) -> Duration {
        self.until(milliseconds(time).saturating_add(1))
    }

    /// How long it is until then.
    pub(crate) fn until(self, then: i64) -> Duration {
        Duration::from_millis(u64::try_from(then.saturating_sub(self.now())).unwrap_or(0))
    }
}

/// A time in milliseconds since 1970; before that, zero.
fn milliseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn time(milliseconds: i64) -> Option<SystemTime> {
    let since = Duration::from_millis(u64::try_from(milliseconds).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_says_why_by_whom_and_until_when() {
        let asked = asked_for("disk, \"b\": new", "ops@host");
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut hold = MaintenanceHold {
            reason: "disk, \"b\": new".to_owned(),
            made_by: "ops@host".to_owned(),
            is_asked_for: true,
            ends: Some(at(130)),
        };
        assert_eq!(MaintenanceHold::read(&asked, Some(at(100))), hold);
        hold.is_asked_for = false;
        let mut data = asked;
        for (end, ends) in [
            (MaintenanceEnd::After(Duration::from_secs(7200)), Some(at(7300))),
            (MaintenanceEnd::At(at(500)), Some(at(500))),
            (MaintenanceEnd::Never, None),
        ] {
            data = held(data, Some(99_000), end);
            hold.ends = ends;
            assert_eq!(MaintenanceHold::read(&data, Some(at(100))), hold);
            let stat = Stat { mtime: 100_000, ..Stat::default() };
            assert_eq!(end_of(&data, &stat).and_then(time), ends);
            assert_eq!(held_since(&data), Some(at(99)));
        }
    }

    #[test]
    fn what_others_wrote_never_ends() {
        let persistent = Stat { mtime: 5, ..Stat::default() };
        let of_a_session = Stat { ephemeral_owner: 1, ..persistent };
        let data = asked_for("x", "y");
        assert_eq!(end_of(&data, &persistent), Some(30_005));
        assert_eq!(end_of(&data, &of_a_session), None);
        let now = Some(SystemTime::now());
        for odd in [
            "",
            "unlock",
            "a\nv=1 ends=never",
            "a\nv=1 ends=after:-1",
            "a\nv=1 ends=at:",
            "a\nv=1 ends=after:18446744073709551615",
            "\nends=after:5",
        ] {
            assert_eq!(end_of(odd.as_bytes(), &persistent), None, "{odd}");
            assert_eq!(MaintenanceHold::read(odd.as_bytes(), now).ends, None);
        }
        let again = held(b"unlock".to_vec(), None, MaintenanceEnd::After(Duration::from_millis(1)));
        assert_eq!(end_of(&again, &persistent), Some(6), "an end can be given again");
        let hold = MaintenanceHold::read(&again, now);
        assert!(hold.reason.is_empty() && hold.made_by.is_empty() && !hold.is_asked_for);
        let far = Stat { mtime: i64::MAX, ..Stat::default() };
        assert_eq!(end_of(&data, &far), None);
        let far = b"a\nv=1 ends=at:18446744073709551615";
        assert_eq!(end_of(far, &persistent), Some(i64::MAX));
    }

    #[test]
    fn its_name_is_one_that_those_who_are_there_respect() {
        use ContenderKind::{Mutex, Write};
        use NodeNaming::{Curator, Kazoo};
        let own = Form::new(Curator, Mutex);
        let fits = |names: &[&str]| fitting(own, &names.iter().collect());
        assert_eq!(fits(&[]), own);
        assert_eq!(fits(&["foo", "_c_a-lock-0000000001"]), own);
        assert_eq!(fits(&["a-lease-1-of-2-0000000001"]), own);
        let shared = Form::new(Curator, Write);
        assert_eq!(fits(&["_c_a-__READ__0000000001"]), shared);
        assert_eq!(fits(&["_c_a-lock-0000000001", "_c_a-__WRIT__0000000002"]), shared);
        let kazoo = Form::new(Kazoo, Mutex);
        assert_eq!(fits(&["a__lock__0000000001", "a__rlock__0000000002"]), kazoo);
        // kazoo was told to respect Curator's names, too.
        assert_eq!(fits(&["a__lock__0000000001", "_c_a-lock-0000000002"]), own);
        for form in [own, shared, kazoo] {
            let prefix = form.maintenance_prefix(uuid::Uuid::from_u128(1));
            let name = format!("{prefix}0000000001");
            let ticket = Ticket::parse(&name).unwrap();
            assert!(ticket.is_maintenance() && ticket.has_guid(uuid::Uuid::from_u128(1)));
            assert_eq!(ticket.kind(), form.kind);
        }
        assert!(!Ticket::parse("_c_a-lock-0000000001").unwrap().is_maintenance());
    }
}
