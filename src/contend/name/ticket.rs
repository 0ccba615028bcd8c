//! What a contender's node name says.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use uuid::Uuid;
use uuid::fmt::{Hyphenated, Simple};

/// What a contender holds or waits for, as its node's name shows.
///
/// Other clients' names are recognised too, so that one lock path can be shared with them. A name
/// counts only with a sequence number at its end: ten digits, as the server adds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ContenderKind {
    /// An exclusive lock.
    ///
    /// Before the sequence number, its name has `lock-` (Curator, go-zookeeper), `__lock__` (kazoo),
    /// `lock-<32 hex digits>-` (aiozk) or `x-<session id>-` (ZooKeeper's `WriteLock` and `zoo_lock`).
    Mutex,
    /// A read lock, which only readers hold at the same time.
    ///
    /// Its name has `__READ__` (Curator), `__rlock__` (kazoo), `read-<32 hex digits>-` (aiozk) or
    /// `LOCK-SHARED-` (Hive).
    Read,
    /// A write lock, which excludes every other contender.
    ///
    /// Its name has `__WRIT__` (Curator), `write-<32 hex digits>-` (aiozk) or `LOCK-EXCLUSIVE-` (Hive).
    Write,
    /// Permits of a semaphore.
    ///
    /// They exclude all other kinds. Its name has `lease-<how many>-of-<permits>-`.
    Permits,
    /// Another program's, of a kind that is not known, such as an election of Curator's `LeaderLatch`: it is
    /// taken to exclude every other contender.
    ///
    /// Its name has none of the above, only the sequence number: see
    /// [`ForeignContenders`](crate::ForeignContenders).
    Other,
}

/// How contenders' nodes are named, which decides which clients in other languages respect the
/// lock.
///
/// Nodes in every known style are recognised, whichever is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeNaming {
    /// Names like Curator's: `_c_<uuid>-lock-`, `_c_<uuid>-__READ__` and `_c_<uuid>-__WRIT__`, then
    /// the sequence number.
    ///
    /// For sharing with Curator's `InterProcessMutex` and `InterProcessReadWriteLock`,
    /// go-zookeeper, zookeeper-client's `new_curator` locks, and kazoo if its locks are made with
    /// the `extra_lock_patterns` that `docs/interop.md` in the repository lists.
    #[default]
    Curator,
    /// Names like kazoo's: `<32 hex digits>__lock__`, and `<32 hex digits>__rlock__` for readers,
    /// then the sequence number.
    ///
    /// For sharing with kazoo as shipped, and go-zookeeper; not with Curator. The lock path is a
    /// plain persistent node, because kazoo expects that it stays once it has seen it.
    Kazoo,
}

/// What a contender asks for, and in which naming style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) naming: NodeNaming,
    pub(crate) kind: ContenderKind,
    /// How many permits, of how many; both 1 except for a semaphore.
    pub(crate) weight: u32,
    pub(crate) permits: u32,
    /// How many later ones may come before it, if it is in a waiting room.
    pub(crate) patience: Option<u32>,
}

impl Form {
    pub(crate) fn new(naming: NodeNaming, kind: ContenderKind) -> Form {
        Form { naming, kind, weight: 1, permits: 1, patience: None }
    }

    /// In the waiting room of a lock for contenders of this kind.
    pub(crate) fn of_patience(kind: ContenderKind, patience: u32) -> Form {
        Form { patience: Some(patience), ..Form::new(NodeNaming::Curator, kind) }
    }

    pub(crate) fn of_permits(naming: NodeNaming, weight: u32, permits: u32) -> Form {
        Form { weight, permits, ..Form::new(naming, ContenderKind::Permits) }
    }

    /// Checks the numbers of permits; the error says what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Form { weight, permits, .. } = *self;
        if weight == 0 || weight > permits {
            return Err(format!(
                "cannot acquire {weight} of {permits} permits: a semaphore needs at least one \
                 permit, and a call acquires at least one and at most all of them"
            ));
        }
        Ok(())
    }

    /// What stands between the guid and the number.
    pub(crate) fn marker(&self) -> Cow<'static, str> {
        Cow::Borrowed(match (self.naming, self.kind) {
            (NodeNaming::Curator, ContenderKind::Mutex) => "-lock-",
            (NodeNaming::Curator, ContenderKind::Read) => "-__READ__",
            (NodeNaming::Curator, ContenderKind::Write) => "-__WRIT__",
            (NodeNaming::Kazoo, ContenderKind::Mutex | ContenderKind::Write) => "__lock__",
            (NodeNaming::Kazoo, ContenderKind::Read) => "__rlock__",
            (_, ContenderKind::Permits) => {
                return Cow::Owned(format!("-lease-{}-of-{}-", self.weight, self.permits));
            }
            // Nothing of ours is.
            (_, ContenderKind::Other) => "-",
        })
    }

    /// The name to create a contender with, to which the server adds the number. The guid identifies
    /// one attempt's node, to find it after an answer was lost (CURATOR-45).
    pub(crate) fn prefix(&self, guid: Uuid) -> String {
        let mut prefix = self.naming.front(guid);
        if let Some(patience) = self.patience {
            prefix.push_str(PATIENCE);
            prefix.push_str(&patience.to_string());
        }
        prefix.push_str(&self.marker());
        prefix
    }

    /// The same for a maintenance hold, whose name says so: all clients take it for a contender.
    pub(crate) fn maintenance_prefix(&self, guid: Uuid) -> String {
        let mut prefix = self.naming.front(guid);
        prefix.push_str(MAINTENANCE);
        prefix.push_str(&self.marker());
        prefix
    }
}

impl NodeNaming {
    /// Begins the names of all contenders with this guid.
    pub(crate) fn front(self, guid: Uuid) -> String {
        let mut buffer = [0; Hyphenated::LENGTH];
        // With room for what follows in most names.
        let mut front = String::with_capacity(64);
        match self {
            NodeNaming::Curator => {
                front.push_str(PROTECTED);
                front.push_str(guid.hyphenated().encode_lower(&mut buffer));
            }
            NodeNaming::Kazoo => front.push_str(guid.simple().encode_lower(&mut buffer)),
        }
        front
    }
}

/// No number this close to the last one is granted: past it the server repeats numbers, and
/// contenders that queued at the same time may already have taken the rest.
pub(crate) const SEQUENCE_MARGIN: i32 = 1 << 16;

/// None is the end of another one, so a name matches at most one.
const MARKERS: [(&str, ContenderKind); 8] = [
    ("lock-", ContenderKind::Mutex),
    ("__lock__", ContenderKind::Mutex),
    ("__READ__", ContenderKind::Read),
    ("__rlock__", ContenderKind::Read),
    ("__WRIT__", ContenderKind::Write),
    ("latch-", ContenderKind::Other),
    ("LOCK-SHARED-", ContenderKind::Read),
    ("LOCK-EXCLUSIVE-", ContenderKind::Write),
];

/// What aiozk's names begin with; then there are 32 hex digits and a `-`.
const OF_AIOZK: [(&str, ContenderKind); 3] = [
    ("lock-", ContenderKind::Mutex),
    ("read-", ContenderKind::Read),
    ("write-", ContenderKind::Write),
];

const PROTECTED: &str = "_c_";

/// Stands between the guid and the marker of a maintenance hold.
const MAINTENANCE: &str = "-maintenance";

/// Stands between the guid and the patience of a member of a waiting room.
const PATIENCE: &str = "-patience-";

/// The greatest patience: a lock is sure to be granted some time.
pub(crate) const MOST_PATIENCE: u32 = 1_000_000;

/// A contender's place in the queue; the order of tickets is the order of grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket<'a> {
    name: &'a str,
    sequence: i32,
    kind: ContenderKind,
    guid: Range<usize>,
    weight: u32,
    permits: u32,
    patience: Option<u32>,
    is_known: bool,
}

impl<'a> Ticket<'a> {
    /// Reads a child's name; `None` for a child without a sequence number. If the name is not
    /// [certain](Ticket::is_certain), it may be no contender: see [`child_origin`](super::child_origin).
    pub(crate) fn parse(name: &'a str) -> Option<Ticket<'a>> {
        Ticket::parse_up_to(i32::MAX, name)
    }

    /// As `parse`, but also `None` for a child with a number after this one.
    pub(crate) fn parse_up_to(last: i32, name: &'a str) -> Option<Ticket<'a>> {
        let (head, sequence) = split_sequence(name).filter(|(_, sequence)| *sequence <= last)?;
        // Permits last: theirs is the name that takes longest to read.
        let lock =
            split_marker(head).or_else(|| split_write_lock(head)).or_else(|| split_aiozk(head));
        let known = lock.map(|(guid, kind)| (guid, kind, 1, 1)).or_else(|| {
            let (guid, weight, permits) = split_lease(head)?;
            Some((guid, ContenderKind::Permits, weight, permits))
        });
        match known {
            Some((guid, kind, weight, permits)) => {
                let patience = patience_in(&name[guid.clone()]);
                let is_known = true;
                Some(Ticket { name, sequence, kind, guid, weight, permits, patience, is_known })
            }
            None => Ticket::of_number(name).filter(|ticket| ticket.sequence <= last),
        }
    }

    /// Of a recipe that is not known. No negative number is read: a name may well end with a `-` and nine
    /// digits, and would come before everybody.
    fn of_number(name: &'a str) -> Option<Ticket<'a>> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (head, number) = name.split_at(name.len() - digits);
        let sequence = number.parse().ok().filter(|_| digits == 10)?;
        Some(Ticket {
            name,
            sequence,
            kind: ContenderKind::Other,
            guid: guid_in(head),
            weight: 1,
            permits: 1,
            patience: None,
            is_known: false,
        })
    }

    /// Whether the name alone tells that it contends: it is that of a recipe, to the letter. One that only
    /// has a marker may be anything's, such as `etl-lock-2024010112`.
    pub(crate) fn is_certain(&self) -> bool {
        self.is_known && is_a_guid_or_nothing(self.guid())
    }

    /// Whether the name is that of a recipe which is known.
    pub(crate) fn is_of_a_known_recipe(&self) -> bool {
        self.is_known
    }

    /// Whether a server may have given it its number, below a node in which so many children were made: one
    /// that cannot have been given is no contender's, if the name does not tell that.
    pub(crate) fn may_be_of(&self, made: i32) -> bool {
        self.is_certain() || self.sequence < made
    }

    /// What the name says of the recipe, besides the guid and the number.
    pub(crate) fn recipe(&self) -> &'a str {
        let (head, _) = self.name.split_at(self.name.len() - 10);
        let text = match self.is_known && !self.guid.is_empty() {
            // aiozk's guid comes last.
            true if head[self.guid.end..].len() > 1 => &head[self.guid.end..],
            true => &head[..self.guid.start],
            false => {
                let text = head.strip_prefix(PROTECTED).unwrap_or(head);
                let has_guid = text.get(..Hyphenated::LENGTH).is_some_and(is_a_guid_or_nothing);
                let text = if has_guid { &text[Hyphenated::LENGTH..] } else { text };
                text.split('#').next().unwrap_or(text)
            }
        };
        text.trim_matches(['-', '_', '#'])
    }

    /// Whether it comes before `mine`, if it contends.
    pub(crate) fn is_before(&self, mine: &Ticket<'_>) -> bool {
        // A downgraded reader has its writer's number.
        self < mine && (self.is_known || self.sequence < mine.sequence)
    }

    pub(crate) fn name(&self) -> &'a str {
        self.name
    }

    pub(crate) fn sequence(&self) -> i32 {
        self.sequence
    }

    pub(crate) fn kind(&self) -> ContenderKind {
        self.kind
    }

    /// Breaks ties, because Curator's downgraded reader shares its writer's number.
    pub(crate) fn guid(&self) -> &str {
        &self.name[self.guid.clone()]
    }

    /// What stands between the guid and the number.
    pub(crate) fn marker(&self) -> &str {
        let rest = &self.name[self.guid.end..];
        rest.trim_end_matches(|c: char| c.is_ascii_digit())
    }

    /// How many permits it asks for; 1 except for a semaphore.
    pub(crate) fn weight(&self) -> u32 {
        self.weight
    }

    /// How many permits its semaphore has, by its name; 1 except for a semaphore.
    pub(crate) fn permits(&self) -> u32 {
        self.permits
    }

    /// Whether it may be a writer's: in kazoo's naming, writers are named like mutexes.
    pub(crate) fn may_be_a_writer(&self) -> bool {
        self.kind == ContenderKind::Write || self.marker().contains("__lock__")
    }

    pub(crate) fn has_any_guid(&self, guids: &[Uuid]) -> bool {
        guids.iter().any(|guid| self.has_guid(*guid))
    }

    pub(crate) fn has_guid(&self, guid: Uuid) -> bool {
        let goes_on = |rest: &str| rest.starts_with('-');
        let ours = |name: &str| name.strip_prefix(&guid.to_string()).is_some_and(goes_on);
        let of_kazoo =
            |rest: &str| ["__", "-lease-", MAINTENANCE].iter().any(|begin| rest.starts_with(begin));
        self.name.strip_prefix(PROTECTED).is_some_and(ours)
            || self.name.strip_prefix(&guid.simple().to_string()).is_some_and(of_kazoo)
    }

    /// How many later ones may come before it; `None` outside of waiting rooms.
    pub(crate) fn patience(&self) -> Option<u32> {
        self.patience
    }

    /// Its number and its patience: the order in a waiting room.
    fn place(&self) -> i64 {
        i64::from(self.sequence) + i64::from(self.patience.unwrap_or(0))
    }

    /// All contenders ahead of it have this number, or a smaller one.
    pub(crate) fn last_ahead(&self) -> i32 {
        if self.patience.is_some() { i32::MAX } else { self.sequence }
    }

    /// Whether it is a maintenance hold's.
    pub(crate) fn is_maintenance(&self) -> bool {
        self.guid().ends_with(MAINTENANCE)
    }

    /// Whether the numbers of this lock node are used up, so that this ticket proves no place.
    pub(crate) fn exhausted(&self) -> bool {
        self.sequence < 0 || self.sequence > i32::MAX - SEQUENCE_MARGIN
    }

    #[cfg(test)]
    pub(crate) fn weighing(self, weight: u32) -> Ticket<'a> {
        Ticket { weight, ..self }
    }
}

impl Ord for Ticket<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.place().cmp(&other.place()))
            .then_with(|| self.sequence.cmp(&other.sequence))
            .then_with(|| self.guid().cmp(other.guid()))
            .then_with(|| self.name.cmp(other.name))
    }
}

impl PartialOrd for Ticket<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Whether that is the name of a contender of a known recipe.
pub(crate) fn is_contender(name: &str) -> bool {
    Ticket::parse(name).is_some_and(|ticket| ticket.is_of_a_known_recipe())
}

/// Takes the number off the end: ten digits, or as the server's `%010d` writes a negative one.
fn split_sequence(name: &str) -> Option<(&str, i32)> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (head, number) = name.split_at(name.len() - digits);
    // The '-' of "lock-0000000001" belongs to the marker, the second one of "lock--000000001" to
    // the number: it is a sign only where a whole marker remains in front of it.
    let negative = head.strip_suffix('-').filter(|rest| rest.ends_with(['-', '_']));
    match (negative, digits) {
        (Some(rest), 9 | 10) => Some((rest, name[rest.len()..].parse().ok()?)),
        (None, 10) => Some((head, number.parse().ok()?)),
        _ => None,
    }
}

fn split_marker(head: &str) -> Option<(Range<usize>, ContenderKind)> {
    MARKERS.into_iter().find_map(|(marker, kind)| Some((guid_in(head.strip_suffix(marker)?), kind)))
}

/// Whether what stands for the guid is one, or nothing, as in some recipes.
fn is_a_guid_or_nothing(text: &str) -> bool {
    // Ours may say more behind it.
    let guid = match text.strip_suffix(MAINTENANCE) {
        Some(guid) => guid,
        None if patience_in(text).is_some() => &text[..Hyphenated::LENGTH],
        None => text,
    };
    let is_hyphen = |at: usize| guid.len() == Hyphenated::LENGTH && matches!(at, 8 | 13 | 18 | 23);
    let fits = |(at, byte): (usize, u8)| match is_hyphen(at) {
        true => byte == b'-',
        false => byte.is_ascii_hexdigit(),
    };
    matches!(guid.len(), 0 | Simple::LENGTH | Hyphenated::LENGTH)
        && guid.bytes().enumerate().all(fits)
}

/// `lock-<32 hex digits>-`, and so on.
fn split_aiozk(head: &str) -> Option<(Range<usize>, ContenderKind)> {
    OF_AIOZK.into_iter().find_map(|(begin, kind)| {
        let guid = head.strip_prefix(begin)?.strip_suffix('-')?;
        let is_guid = guid.len() == Simple::LENGTH && guid.bytes().all(|b| b.is_ascii_hexdigit());
        is_guid.then(|| (begin.len()..begin.len() + guid.len(), kind))
    })
}

/// Where the guid is in what stands before a marker.
fn guid_in(front: &str) -> Range<usize> {
    let start = if front.starts_with(PROTECTED) { PROTECTED.len() } else { 0 };
    let end = front.strip_suffix('-').map_or(front.len(), str::len);
    start.min(end)..end
}

/// `<guid>-patience-<patience>`, in what stands before a marker. Other names have no more than a guid there.
fn patience_in(guid: &str) -> Option<u32> {
    let rest = guid.get(Hyphenated::LENGTH..).filter(|rest| !rest.is_empty())?;
    let digits = rest.strip_prefix(PATIENCE)?;
    let patience: u32 = digits.parse().ok()?;
    (patience <= MOST_PATIENCE && patience.to_string() == digits).then_some(patience)
}

/// `<guid>-lease-<weight>-of-<permits>-`.
fn split_lease(head: &str) -> Option<(Range<usize>, u32, u32)> {
    let (front, permits) = head.strip_suffix('-')?.rsplit_once("-of-")?;
    let (guid, weight) = front.rsplit_once("lease-")?;
    let (weight, permits) = (count(weight)?, count(permits)?);
    (weight <= permits).then(|| (guid_in(guid), weight, permits))
}

/// Reads a number of at least 1, without sign or leading zeros.
fn count(digits: &str) -> Option<u32> {
    let number: u32 = digits.parse().ok()?;
    (number > 0 && number.to_string() == digits).then_some(number)
}

/// `x-<session id>-`, where only the session id can break a tie: a signed number, or 16 hex digits as
/// ZooKeeper's C recipe writes it.
fn split_write_lock(head: &str) -> Option<(Range<usize>, ContenderKind)> {
    let session = head.strip_prefix("x-")?.strip_suffix('-')?;
    let digits = session.strip_prefix('-').unwrap_or(session);
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let is_hex = session.len() == 16 && session.bytes().all(|b| b.is_ascii_hexdigit());
    (is_number || is_hex).then(|| (2..2 + session.len(), ContenderKind::Mutex))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
    const HEX: &str = "0f8fad5bd9cb469fa16570867728950e";

    fn ticket(name: &str) -> Ticket<'_> {
        Ticket::parse(name).unwrap_or_else(|| panic!("{name:?} is not recognised as a contender"))
    }

    #[test]
    fn the_names_of_every_peer_are_recognised() {
        use ContenderKind::*;
        for (name, kind, sequence, guid) in [
            (format!("_c_{UUID}-lock-0000000007"), Mutex, 7, UUID),
            (format!("_c_{UUID}-__READ__0000000008"), Read, 8, UUID),
            (format!("_c_{UUID}-__WRIT__0000000009"), Write, 9, UUID),
            (format!("{HEX}__lock__0000000010"), Mutex, 10, HEX),
            (format!("{HEX}__rlock__0000000011"), Read, 11, HEX),
            (format!("{HEX}-lock-0000000012"), Mutex, 12, HEX),
            (format!("_c_{HEX}-lock-0000000013"), Mutex, 13, HEX),
            ("x-72057594037927936-0000000014".into(), Mutex, 14, "72057594037927936"),
            ("x--5-0000000015".into(), Mutex, 15, "-5"),
            ("lock-0000000016".into(), Mutex, 16, ""),
            ("-lock-0000000016".into(), Mutex, 16, ""),
            ("_c_-lock-0000000017".into(), Mutex, 17, ""),
            ("_c_lock-0000000017".into(), Mutex, 17, ""),
            ("x-1-lock-0000000018".into(), Mutex, 18, "x-1"),
            ("ä😀__READ__0000000019".into(), Read, 19, "ä😀"),
            (format!("_c_{UUID}-lease-1-of-1-0000000020"), Permits, 20, UUID),
            (format!("{HEX}-lease-1-of-1-0000000021"), Permits, 21, HEX),
            ("lease-1-of-1--000000022".into(), Permits, -22, ""),
            ("_c_-lease-1-of-1-0000000023".into(), Permits, 23, ""),
        ] {
            let ticket = ticket(&name);
            assert_eq!((ticket.kind(), ticket.sequence()), (kind, sequence), "{name}");
            assert_eq!((ticket.guid(), ticket.name(), ticket.weight()), (guid, &*name, 1));
        }
    }

    #[test]
    fn a_semaphore_s_names_say_how_many_of_how_many() {
        let max = u32::MAX;
        for (weight, permits) in [(1, 1), (2, 3), (10, 10), (1, max), (max, max)] {
            let form = Form::of_permits(NodeNaming::Curator, weight, permits);
            let name = format!("{}0000000001", form.prefix(Uuid::from_u128(1)));
            let ticket = ticket(&name);
            assert_eq!((ticket.weight(), ticket.permits()), (weight, permits));
        }
    }

    #[test]
    fn a_negative_number_is_read_as_the_server_writes_it() {
        for (name, sequence) in [
            ("a-lock--2147483648", i32::MIN),
            ("a-lock--000000001", -1),
            ("a__lock__-2147483647", -i32::MAX),
            ("a__rlock__-123456789", -123_456_789),
            ("a__WRIT__-0000000001", -1),
            ("x-5--000000001", -1),
            ("x--5--2147483648", i32::MIN),
            ("a-lock-2147483647", i32::MAX),
        ] {
            assert_eq!(ticket(name).sequence(), sequence, "{name}");
            assert!(ticket(name).exhausted());
        }
    }

    #[test]
    fn a_child_without_a_sequence_number_is_ignored() {
        for name in [
            "",
            "0",
            "foo",
            "leases",
            "lock-",
            "lock-1",
            "lock-000000001",
            "lock-00000000001",
            "lock--00000001",
            "lock--00000000001",
            "lock-2147483648",
            "lock-4294967295",
            "lock-9999999999",
            "lock--2147483649",
            "lock-+000000001",
            "lock-000000000١",
            "lock-0000000001 ",
            "lock-0000000001\n",
            "x--5",
            "host-123456789",
            "host--123456789",
            "a-lease-1-of-10000000001",
        ] {
            assert_eq!(Ticket::parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn who_has_a_sequence_number_and_no_known_name_is_another_s() {
        for (name, recipe) in [
            ("0000000001", ""),
            ("-0000000001", ""),
            ("lock---000000001", ""),
            ("block0000000001", "block"),
            ("Lock_0000000001", "Lock"),
            ("__LOCK__0000000001", "LOCK"),
            ("__read__0000000001", "read"),
            ("read-only-0000000001", "read-only"),
            ("qn-0000000001", "qn"),
            ("n_0000000001", "n"),
            ("72057594037927936-core_node3-n_0000000001", "72057594037927936-core_node3-n"),
            ("zlock#0f8fad5b-d9cb-469f-a165-70867728950e#0000000001", "zlock"),
            ("entry-001-0000000001", "entry-001"),
            ("_c_0f8fad5b-d9cb-469f-a165-70867728950e-lease-0000000001", "lease"),
            ("host-1234567890", "host"),
            ("host--1234567890", "host"),
            ("job-1700000000", "job"),
            ("x-0000000001", "x"),
            ("x--0000000001", "x"),
            ("x-a-0000000001", "x-a"),
            ("x-5---000000001", "x-5"),
            ("a-lease-0-of-1-0000000001", "a-lease-0-of-1"),
            ("a-lease-2-of-1-0000000001", "a-lease-2-of-1"),
            ("a-lease-01-of-1-0000000001", "a-lease-01-of-1"),
            ("a-lease-1-of-4294967296-0000000001", "a-lease-1-of-4294967296"),
        ] {
            // Where the number has nine digits and a sign, it is none of an unknown recipe's.
            let Some(other) = Ticket::parse(name) else {
                assert!(name.contains("--0000"), "{name}");
                continue;
            };
            let told = (other.kind(), other.is_certain(), other.is_of_a_known_recipe());
            assert_eq!(told, (ContenderKind::Other, false, false), "{name}");
            assert!(other.sequence() > 0, "{name}");
            assert_eq!(other.recipe(), recipe, "{name}");
        }
    }

    #[test]
    fn names_of_known_recipes_are_certain_to_the_letter_only() {
        use ContenderKind::*;
        for (name, kind, is_certain, recipe) in [
            (format!("_c_{UUID}-lock-0000000001"), Mutex, true, "lock"),
            (format!("_c_{HEX}-lock-0000000001"), Mutex, true, "lock"),
            (format!("{HEX}__lock__0000000001"), Mutex, true, "lock"),
            (format!("{HEX}__rlock__0000000001"), Read, true, "rlock"),
            (format!("_c_{UUID}-__READ__0000000001"), Read, true, "READ"),
            (format!("_c_{UUID}-lease-1-of-2-0000000001"), Permits, true, "lease-1-of-2"),
            (format!("_c_{UUID}-maintenance-lock-0000000001"), Mutex, true, "lock"),
            (format!("_c_{UUID}-patience-5-lock-0000000001"), Mutex, true, "lock"),
            (format!("_c_{UUID}-latch-0000000001"), Other, true, "latch"),
            (format!("lock-{HEX}-0000000001"), Mutex, true, "lock"),
            (format!("read-{HEX}-0000000001"), Read, true, "read"),
            (format!("write-{HEX}-0000000001"), Write, true, "write"),
            ("lock-0000000001".into(), Mutex, true, "lock"),
            ("LOCK-SHARED-0000000001".into(), Read, true, "LOCK-SHARED"),
            ("LOCK-EXCLUSIVE-0000000001".into(), Write, true, "LOCK-EXCLUSIVE"),
            ("x-72057594037927936-0000000001".into(), Mutex, false, "x"),
            ("x-010000afe6420002-0000000001".into(), Mutex, false, "x"),
            ("etl-lock-2024010112".into(), Mutex, false, "lock"),
            ("job-lock-1700000000".into(), Mutex, false, "lock"),
            ("a__lock__0000000001".into(), Mutex, false, "lock"),
            ("x-latch-0000000001".into(), Other, false, "latch"),
            (format!("{UUID}0-lock-0000000001"), Mutex, false, "lock"),
            (format!("{}-lock-0000000001", "g".repeat(32)), Mutex, false, "lock"),
        ] {
            let ticket = ticket(&name);
            assert_eq!((ticket.kind(), ticket.is_certain()), (kind, is_certain), "{name}");
            assert_eq!(ticket.recipe(), recipe, "{name}");
            assert!(ticket.is_of_a_known_recipe());
        }
    }

    #[test]
    fn tickets_are_ordered_by_number_then_guid_then_name() {
        let names = [
            "z-lock--000000001",
            "z__lock__0000000002",
            "_c_a-__WRIT__0000000010",
            "a-__READ__0000000010",
            "_c_b-__WRIT__0000000010",
            "x-1-0000000011",
        ];
        let tickets: Vec<_> = names.map(ticket).into();
        assert!(tickets.is_sorted());
        assert!(tickets.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn numbers_near_the_end_are_exhausted() {
        let exhausted = |sequence: i32| ticket(&format!("lock-{sequence:010}")).exhausted();
        assert!(!exhausted(0));
        assert!(!exhausted(i32::MAX - SEQUENCE_MARGIN));
        assert!(exhausted(i32::MAX - SEQUENCE_MARGIN + 1));
        assert!(exhausted(i32::MAX));
        assert!(exhausted(-1));
        assert!(exhausted(i32::MIN));
    }

    #[test]
    fn an_attempt_finds_its_own_node_and_no_other() {
        let guid = Uuid::from_u128(0x0f8fad5b_d9cb_469f_a165_70867728950e);
        assert_eq!(guid.to_string(), UUID);
        assert_eq!(guid.simple().to_string(), HEX);
        for (naming, kind, written) in [
            (NodeNaming::Curator, ContenderKind::Mutex, format!("_c_{UUID}-lock-")),
            (NodeNaming::Curator, ContenderKind::Read, format!("_c_{UUID}-__READ__")),
            (NodeNaming::Curator, ContenderKind::Write, format!("_c_{UUID}-__WRIT__")),
            (NodeNaming::Kazoo, ContenderKind::Mutex, format!("{HEX}__lock__")),
            (NodeNaming::Kazoo, ContenderKind::Read, format!("{HEX}__rlock__")),
            (NodeNaming::Kazoo, ContenderKind::Write, format!("{HEX}__lock__")),
        ] {
            assert_eq!(Form::new(naming, kind).prefix(guid), written);
            assert!(ticket(&format!("{written}0000000001")).has_guid(guid), "{written}");
        }
        for (naming, written) in [
            (NodeNaming::Curator, format!("_c_{UUID}-lease-2-of-3-")),
            (NodeNaming::Kazoo, format!("{HEX}-lease-2-of-3-")),
        ] {
            assert_eq!(Form::of_permits(naming, 2, 3).prefix(guid), written);
            assert!(ticket(&format!("{written}0000000001")).has_guid(guid), "{written}");
        }
        assert_eq!(Uuid::from_u128(1).to_string(), "00000000-0000-0000-0000-000000000001");
        assert!(ticket(&format!("_c_{UUID}-lock-0000000001")).has_guid(guid));
        assert!(ticket(&format!("_c_{UUID}-__READ__0000000001")).has_guid(guid));
        for other in [
            format!("_c_{UUID}__lock__0000000001"),
            format!("_c_{UUID}0-lock-0000000001"),
            format!("{UUID}-lock-0000000001"),
            format!("{HEX}-lock-0000000001"),
            format!("a{HEX}__lock__0000000001"),
            format!("a_c_{UUID}-lock-0000000001"),
            format!("_c_{}-lock-0000000001", UUID.to_uppercase()),
            "ä-lock-0000000001".into(),
        ] {
            assert!(!ticket(&other).has_guid(guid), "{other}");
        }
    }

    fn form() -> impl Strategy<Value = Form> {
        let naming = prop::sample::select(vec![NodeNaming::Curator, NodeNaming::Kazoo]);
        let kind = prop::sample::select(vec![
            ContenderKind::Mutex,
            ContenderKind::Read,
            ContenderKind::Write,
        ]);
        let permits = (1..=u32::MAX).prop_flat_map(|permits| (1..=permits, Just(permits)));
        let permits = (naming.clone(), permits)
            .prop_map(|(naming, (weight, permits))| Form::of_permits(naming, weight, permits));
        prop_oneof![(naming, kind).prop_map(|(naming, kind)| Form::new(naming, kind)), permits]
    }

    proptest! {
        #[test]
        fn no_name_makes_the_parser_panic(
            name in prop_oneof![
                any::<String>(),
                "(_c_|ä|😀|x-|-|lock-|lease-|-of-|__lock__|__rlock__|__WRIT__|__READ__|[0-9]{0,3}){0,5}[0-9]{8,11}",
            ],
        ) {
            if let Some(ticket) = Ticket::parse(&name) {
                prop_assert_eq!(ticket.name(), &name);
                prop_assert!(name.contains(ticket.guid()));
                prop_assert!(!ticket.has_guid(Uuid::from_u128(0)));
            }
        }

        #[test]
        fn what_the_server_makes_of_our_prefix_is_read_back(
            form in form(),
            bits: u128,
            other: u128,
            sequence: i32,
        ) {
            let guid = Uuid::from_u128(bits);
            let name = format!("{}{sequence:010}", form.prefix(guid));
            let ticket = ticket(&name);
            let kind = match (form.naming, form.kind) {
                (NodeNaming::Kazoo, ContenderKind::Write) => ContenderKind::Mutex,
                (_, kind) => kind,
            };
            prop_assert_eq!(ticket.kind(), kind);
            prop_assert_eq!((ticket.weight(), ticket.permits()), (form.weight, form.permits));
            prop_assert_eq!(ticket.sequence(), sequence);
            let text = match form.naming {
                NodeNaming::Curator => guid.to_string(),
                NodeNaming::Kazoo => guid.simple().to_string(),
            };
            prop_assert_eq!(ticket.guid(), text);
            prop_assert!(ticket.has_guid(guid));
            prop_assert_eq!(ticket.has_guid(Uuid::from_u128(other)), bits == other);
        }
    }
}
