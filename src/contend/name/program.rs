//! Which contenders do not wait for which others, as their programs do it: clients in other languages that do
//! not recognise our node names hold a lock beside us, though ours respect them.
//!
//! Each rule was tried with the real program: see `docs/interop.md`.

use super::rule::excludes;
use super::ticket::{ContenderKind, Form, Ticket};
use crate::session::Names;

/// Whose program has made a contender, by its name. Ours with the default naming are named as Curator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    CuratorMutex,
    CuratorReadWrite,
    CuratorLatch,
    Go,
    Kazoo,
    /// ZooKeeper's `WriteLock`, and its recipe in C.
    WriteLock,
    /// One of aiozk's locks that waits for every number.
    Aiozk,
    /// A reader of aiozk's `SharedLock`, which waits for the writers of that only.
    AiozkReader,
    Hive,
    /// A semaphore's permit, or a hold for maintenance: only this library makes them.
    Ours,
    Unknown,
}

impl Program {
    fn of(ticket: &Ticket<'_>) -> Program {
        let (guid, marker) = (ticket.guid(), ticket.marker());
        let is_dashed = guid.len() == DASHED;
        match ticket.kind() {
            _ if ticket.is_maintenance() => Program::Ours,
            ContenderKind::Permits => Program::Ours,
            _ if marker.ends_with("__lock__") || marker.ends_with("__rlock__") => Program::Kazoo,
            _ if ticket.name().starts_with("x-") => Program::WriteLock,
            _ if ticket.name().starts_with("LOCK-") => Program::Hive,
            // The guid stands behind the marker.
            ContenderKind::Read if marker == "-" => Program::AiozkReader,
            ContenderKind::Mutex | ContenderKind::Write if marker == "-" => Program::Aiozk,
            ContenderKind::Other if marker == "-latch-" => Program::CuratorLatch,
            ContenderKind::Mutex if is_dashed => Program::CuratorMutex,
            ContenderKind::Read | ContenderKind::Write if is_dashed => Program::CuratorReadWrite,
            ContenderKind::Mutex => Program::Go,
            _ => Program::Unknown,
        }
    }
}

/// Why this contender does not wait for the other one, if it is known that it does not.
fn blindness(theirs: &Ticket<'_>, other: &Ticket<'_>) -> Option<&'static str> {
    use Program::{
        Aiozk, AiozkReader, CuratorLatch, CuratorMutex, CuratorReadWrite, Go, Hive, Kazoo, Ours,
        Unknown, WriteLock,
    };
    const KAZOO: &str = "kazoo ignores this lock's nodes; set `extra_lock_patterns` in kazoo, or \
                         use `NodeNaming::Kazoo` here";
    const CURATOR: &str = "Curator ignores nodes named in kazoo's style; use \
                           `NodeNaming::Curator` here";
    const MIXED: &str = "Curator's mutexes and read/write locks ignore each other; use a lock \
                         path of its own for each";
    const SEMAPHORE: &str = "clients of other locks ignore a semaphore's nodes; use a lock path \
                             of its own for the semaphore";
    const WRITE_LOCK: &str = "ZooKeeper's WriteLock and its lock in C ignore nodes named in kazoo's \
                              style; use `NodeNaming::Curator` here";
    const LATCH: &str = "Curator's LeaderLatch waits for other latches only, so its leader and a \
                         holder of this lock exclude each other in one direction only";
    const HIVE: &str = "Hive's locks wait for other locks of Hive only";
    const READER: &str = "readers of aiozk's SharedLock wait for its writers only";
    match (Program::of(theirs), Program::of(other)) {
        (Ours | Aiozk | Unknown, _) => None,
        (Go, Ours) => None,
        (one, Ours) if !other.is_maintenance() && one != Kazoo => Some(SEMAPHORE),
        // A maintenance hold is named as those are that it is made for.
        (_, Ours) => None,
        (CuratorLatch, CuratorLatch) | (Hive, Hive) | (Kazoo, Kazoo) => None,
        (CuratorLatch, _) => Some(LATCH),
        (Hive, _) => Some(HIVE),
        (AiozkReader, Aiozk) if other.kind() == ContenderKind::Write => None,
        (AiozkReader, _) => Some(READER),
        (Kazoo, _) => Some(KAZOO),
        (WriteLock, Kazoo) => Some(WRITE_LOCK),
        (CuratorMutex | CuratorReadWrite, Kazoo) => Some(CURATOR),
        (CuratorMutex, CuratorReadWrite) | (CuratorReadWrite, CuratorMutex) => Some(MIXED),
        _ => None,
    }
}

/// How long a uuid is with its dashes, which go-zookeeper leaves out.
const DASHED: usize = 36;

/// The warning, if one of the children is a contender that does not wait for one of this form.
pub(crate) fn interop_warning(form: Form, children: &Names) -> Option<String> {
    let marker = form.marker();
    // Those named like ours are quickly seen to be compatible: they are most of them.
    let is_alike =
        |name: &str| name.trim_end_matches(|c: char| c.is_ascii_digit()).ends_with(&*marker);
    let others = || children.iter().filter(|name| !is_alike(name));
    others().next()?;
    let ours = format!("{}0000000000", form.prefix(uuid::Uuid::nil()));
    let ours = Ticket::parse(&ours)?;
    others().find_map(|name| {
        let why = blindness(&Ticket::parse(name)?, &ours)?;
        Some(format!("there is an incompatible contender {name:?}: {why}"))
    })
}

/// Which of the contenders, in the order of grants, may hold beside the holders, the first so many: those
/// whose programs wait for none of those ahead. `is_curator` is whether one that is named as ours and
/// Curator's are is Curator's.
pub(crate) fn those_who_may_hold_too(
    in_grant_order: &[&str],
    holders: usize,
    is_curator: impl Fn(usize) -> bool,
) -> Vec<bool> {
    let tickets: Vec<_> = in_grant_order.iter().map(|name| Ticket::parse(name)).collect();
    let programs: Vec<_> = tickets.iter().flatten().map(Program::of).collect();
    // Mostly, all are of one program.
    if programs.windows(2).all(|pair| pair[0] == pair[1]) {
        return vec![false; tickets.len()];
    }
    let may_hold = |place: usize| {
        let Some(one) = tickets[place].as_ref().filter(|_| place >= holders) else { return false };
        if matches!(Program::of(one), Program::CuratorMutex | Program::CuratorReadWrite)
            && !is_curator(place)
        {
            return false;
        }
        let ahead = tickets[..place].iter().flatten();
        let mut in_the_way = ahead.filter(|other| excludes(other.kind(), one.kind()));
        in_the_way.all(|other| blindness(one, other).is_some())
    };
    (0..tickets.len()).map(may_hold).collect()
}

#[cfg(test)]
mod tests {
    use super::super::ticket::NodeNaming;
    use super::*;

    const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
    const HEX: &str = "0f8fad5bd9cb469fa16570867728950e";

    #[test]
    fn s72_those_who_cannot_respect_us_are_told_of_and_nobody_else() {
        use NodeNaming::{Curator, Kazoo};
        let curator_mutex = format!("_c_{UUID}-lock-0000000001");
        let curator_reader = format!("_c_{UUID}-__READ__0000000001");
        let curator_writer = format!("_c_{UUID}-__WRIT__0000000001");
        let kazoo_mutex = format!("{HEX}__lock__0000000001");
        let kazoo_reader = format!("{HEX}__rlock__0000000001");
        let go_mutex = format!("_c_{HEX}-lock-0000000001");
        let write_lock = "x-5-0000000001".to_owned();
        let permit = format!("_c_{UUID}-lease-1-of-2-0000000001");
        let latch = format!("_c_{UUID}-latch-0000000001");
        let hive = "LOCK-SHARED-0000000001".to_owned();
        let aiozk = format!("lock-{HEX}-0000000001");
        let aiozk_reader = format!("read-{HEX}-0000000001");
        let stranger = "leases".to_owned();
        let mutex = |naming| Form::new(naming, ContenderKind::Mutex);
        let reader = |naming| Form::new(naming, ContenderKind::Read);
        let semaphore = Form::of_permits(Curator, 1, 2);
        for (form, theirs, warned_of) in [
            (mutex(Curator), &curator_mutex, false),
            (mutex(Curator), &go_mutex, false),
            (mutex(Curator), &write_lock, false),
            (mutex(Kazoo), &write_lock, true),
            (mutex(Curator), &latch, true),
            (mutex(Curator), &hive, true),
            (reader(Curator), &hive, true),
            (mutex(Curator), &aiozk, false),
            (mutex(Kazoo), &aiozk, false),
            (mutex(Curator), &aiozk_reader, true),
            (mutex(Curator), &"zlock#1#0000000001".to_owned(), false),
            (mutex(Curator), &stranger, false),
            (mutex(Curator), &permit, false),
            (mutex(Curator), &kazoo_mutex, true),
            (mutex(Curator), &kazoo_reader, true),
            (mutex(Curator), &curator_reader, true),
            (mutex(Curator), &format!("_c_{UUID}-maintenance-__WRIT__0000000001"), false),
            (mutex(Curator), &curator_writer, true),
            (reader(Curator), &curator_reader, false),
            (reader(Curator), &curator_writer, false),
            (reader(Curator), &curator_mutex, true),
            (reader(Curator), &kazoo_reader, true),
            (mutex(Kazoo), &kazoo_mutex, false),
            (mutex(Kazoo), &kazoo_reader, false),
            (mutex(Kazoo), &go_mutex, false),
            (mutex(Kazoo), &curator_mutex, true),
            (reader(Kazoo), &kazoo_mutex, false),
            (reader(Kazoo), &curator_writer, true),
            (semaphore, &permit, false),
            (semaphore, &stranger, false),
            (semaphore, &curator_mutex, true),
        ] {
            let warning = interop_warning(form, &[theirs].into_iter().collect());
            assert_eq!(warning.is_some(), warned_of, "{form:?} and {theirs}");
        }
    }

    #[test]
    fn whoever_waits_for_none_of_those_ahead_may_hold_too() {
        let ours = |number: u32| format!("_c_{UUID}-lock-{number:010}");
        let kazoo = |number: u32| format!("{HEX}__lock__{number:010}");
        let aiozk = |number: u32| format!("lock-{HEX}-{number:010}");
        let latch = |number: u32| format!("_c_{UUID}-latch-{number:010}");
        for (names, expected) in [
            (vec![ours(1), ours(2), ours(3)], vec![false; 3]),
            (vec![ours(1), kazoo(2), kazoo(3), ours(4)], vec![false, true, false, false]),
            (vec![kazoo(1), kazoo(2), ours(3)], vec![false; 3]),
            (vec![ours(1), aiozk(2), latch(3), latch(4)], vec![false, false, true, false]),
        ] {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            assert_eq!(those_who_may_hold_too(&names, 1, |_| false), expected, "{names:?}");
        }
        let names = [kazoo(1), ours(2)];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(those_who_may_hold_too(&names, 1, |_| true), [false, true]);
    }

    /// Who holds by the rule of each program, as it is written there: by what its names contain.
    fn holds_by_its_own_rule(names: &[String], place: usize) -> bool {
        let (own, ahead) = (&*names[place], &names[..place]);
        let none = |counts: &dyn Fn(&str) -> bool| !ahead.iter().any(|name| counts(name));
        if own.contains("__lock__") {
            return none(&|name| name.contains("__lock__") || name.contains("__rlock__"));
        }
        if own.contains("latch-") {
            return none(&|name| name.contains("latch-"));
        }
        if own.starts_with("LOCK-") {
            return none(&|name| name.starts_with("LOCK-"));
        }
        if own.starts_with("read-") {
            return none(&|name| name.starts_with("write-"));
        }
        if own.starts_with("x-") {
            // Its number stands behind the last dash; who has none is taken for the last.
            return none(&|name| name.contains('-'));
        }
        // Ours, Go's, aiozk's: every number.
        ahead.is_empty()
    }

    proptest::proptest! {
        /// Of all who exclude each other, only the first holds by our rule; whoever else holds by its own, of
        /// that we say so.
        #[test]
        fn who_holds_beside_the_first_is_known(
            fronts in proptest::collection::vec(proptest::sample::select(vec![
                format!("_c_{UUID}-lock-"),
                format!("_c_{HEX}-lock-"),
                format!("{HEX}__lock__"),
                format!("lock-{HEX}-"),
                format!("read-{HEX}-"),
                format!("write-{HEX}-"),
                format!("_c_{UUID}-latch-"),
                "LOCK-EXCLUSIVE-".to_owned(),
                "x-5-".to_owned(),
                "x-010000afe6420002-".to_owned(),
            ]), 1..8),
        ) {
            let names: Vec<String> =
                (0..).zip(&fronts).map(|(number, front)| format!("{front}{number:010}")).collect();
            let all: Vec<&str> = names.iter().map(String::as_str).collect();
            let holders = super::super::rule::count_holders(&all);
            let may_hold_too = those_who_may_hold_too(&all, holders, |_| false);
            for place in holders..all.len() {
                if holds_by_its_own_rule(&names, place) {
                    proptest::prop_assert!(may_hold_too[place], "{:?} of {all:?}", all[place]);
                }
                if may_hold_too[place] {
                    proptest::prop_assert!(!names[place].starts_with("lock-"), "{:?}", all[place]);
                }
            }
        }
    }
}
