//! What the doctor finds at one lock.

use std::collections::HashSet;
use std::time::SystemTime;

use zklock::{Acl, Client, Contender, DistributedLock, ErrorKind, Permissions};

use super::clock::make_and_delete;
use super::findings::Level;
use crate::args::Global;
use crate::connect::Lock;
use crate::exit::Failure;
use crate::look::PathWithoutContenders;
use crate::look::is_orphan;
use crate::look::why_and_what_to_do;
use crate::words::{
    CLOCKS_AGREE, foreign_in_words, is_foreign, lasting, lock_of_room, node, quoted, what_releases,
    who,
};

/// Above this number, new contenders of a path will soon find no sequence number.
const NEARLY_EXHAUSTED: i32 = i32::MAX / 10 * 9;

/// The numbers that servers append to the names of sequential nodes have so many digits.
const DIGITS: usize = 10;

/// What is to be said of a lock, good or bad. Children of this name that `has_locks` below them are nothing
/// foreign.
pub(crate) fn look_at_lock(
    global: &Global,
    client: &Client,
    lock: &Lock,
    now: SystemTime,
    has_locks: impl Fn(&str) -> bool,
) -> Result<Vec<(Level, String)>, Failure> {
    let znode = client.znode(&lock.path);
    let Some(names) = znode.children()? else {
        let text = "its node does not exist: nobody has used it, or it was removed when idle";
        return Ok(vec![(Level::Ok, text.to_owned())]);
    };
    let all = DistributedLock::new(client, &lock.base, &lock.name).contenders()?;
    if all.is_empty() {
        let without = PathWithoutContenders::at(client, &lock.path)?;
        if let Some(node) = without.leader_node() {
            return Ok(vec![(Level::Warning, node.in_words())]);
        }
    }
    let holders = all.iter().filter(|one| one.holds).count();
    let count = match all.first().map(|first| (first, lock_of_room(first))) {
        Some((first, Some(of))) => {
            format!("{} are in the waiting room of {of}, {} is the first", all.len(), who(first))
        }
        _ => format!("{holders} hold it, {} wait", all.len() - holders),
    };
    let mut found = vec![(Level::Ok, count)];
    match znode.acl() {
        Ok(acl) => {
            let is_let = || make_and_delete(global, client, &lock.path, "").is_ok();
            found.push(in_acl(global, &acl.unwrap_or_default(), is_let));
        }
        Err(error) if error.kind() == ErrorKind::NotAuthorized => {
            found.push((Level::Warning, format!("its ACL cannot be read: {error}")));
        }
        Err(error) => return Err(error.into()),
    }
    found.extend(all.iter().filter_map(|one| in_maintenance(one, now)));
    found.extend(in_contenders(&lock.path, &all));
    let foreign = all.iter().filter(|one| is_foreign(one));
    found.extend(foreign.map(|one| (Level::Warning, foreign_in_words(one))));
    let too = all.iter().filter(|one| one.may_hold_too());
    found.extend(too.map(|one| (Level::Warning, why_and_what_to_do(one, &all))));
    // Contenders come and go: what was there before and after the list, and is not in it, is none.
    let known: HashSet<&str> = all.iter().map(node).collect();
    let still: HashSet<String> = znode.children()?.unwrap_or_default().into_iter().collect();
    let is_foreign =
        |name: &&str| !known.contains(name) && still.contains(*name) && !has_locks(name);
    found.extend(in_others(names.iter().map(String::as_str).filter(is_foreign)));
    Ok(found)
}

/// What the ACL permits; if that does not suffice, whether the servers let this client make and delete
/// contenders.
fn in_acl(global: &Global, acl: &[Acl], is_let: impl FnOnce() -> bool) -> (Level, String) {
    let entry = |one: &Acl| format!("{}:{} {}", one.scheme, one.id, letters(one.permissions));
    let text = format!("ACL {}", acl.iter().map(entry).collect::<Vec<_>>().join(", "));
    let granted = acl
        .iter()
        .filter(|one| may_be_for_this_client(global, one))
        .fold(Permissions::NONE, |all, one| all | one.permissions);
    let lacking: Vec<&str> = [
        (Permissions::READ, "READ"),
        (Permissions::CREATE, "CREATE"),
        (Permissions::DELETE, "DELETE"),
    ]
    .iter()
    .filter(|(one, _)| !granted.contains(*one))
    .map(|(_, word)| *word)
    .collect();
    if lacking.is_empty() {
        return (Level::Ok, text);
    }
    let lacking = lacking.join(", ");
    if is_let() {
        let text = format!(
            "{text}: it does not permit {lacking} to this client, but the servers do (skipACL=yes, or it is their \
             superuser)"
        );
        return (Level::Note, text);
    }
    let text = format!(
        "{text}: it does not permit {lacking} to this client, which cannot take it: use the credentials of those who \
         do (--auth-file)"
    );
    (Level::Warning, text)
}

/// False only if the client has no credentials of that kind.
fn may_be_for_this_client(global: &Global, entry: &Acl) -> bool {
    match &*entry.scheme {
        "digest" => global.auth_file.is_some(),
        "sasl" => global.sasl_user.is_some(),
        "x509" => global.tls_cert.is_some(),
        _ => true,
    }
}

fn in_contenders(path: &str, all: &[Contender]) -> Vec<(Level, String)> {
    let mut found = Vec::new();
    for one in all.iter().filter(|one| is_orphan(one)) {
        let (name, lock) = (node(one), quoted(path));
        let text = format!(
            "{name} ({}) belongs to no session, so nothing will remove it: zklock break {lock} --node {}",
            who(one),
            quoted(name)
        );
        found.push((Level::Error, text));
    }
    let hidden: Vec<&Contender> = all.iter().filter(|one| one.since.is_none()).collect();
    if let Some(first) = hidden.first() {
        let text = format!(
            "an ACL hides who {} of its contenders are, such as {}: ask for READ on them, or use their credentials \
             (--auth-file)",
            hidden.len(),
            node(first)
        );
        found.push((Level::Warning, text));
    }
    let numbers = || all.iter().map(|one| one.sequence);
    // Behind the last number, the server goes on with negative ones.
    let worst = numbers().find(|one| *one < 0).or(numbers().max());
    if let Some(worst) = worst.filter(|one| !(0..=NEARLY_EXHAUSTED).contains(one)) {
        let text = format!(
            "sequence number {worst} of at most {}: use another name before they are used up, or delete the idle node",
            i32::MAX
        );
        found.push((Level::Error, text));
    }
    found
}

/// What is to be said of a hold for maintenance.
fn in_maintenance(one: &Contender, now: SystemTime) -> Option<(Level, String)> {
    let hold = one.maintenance()?;
    let release = what_releases(one);
    let over = hold.ends.and_then(|ends| now.duration_since(ends).ok());
    let over = over.filter(|by| *by > CLOCKS_AGREE).map(lasting);
    let (level, what) = match (over, hold.ends) {
        (Some(by), _) if hold.is_asked_for => {
            let next = format!("the next one that waits here by zklock ends it, as does {release}");
            (Level::Warning, format!("its command has ended, its time was over {by} ago: {next}"))
        }
        (Some(by), _) => {
            let why = "nobody who uses zklock has waited or come since";
            (Level::Warning, format!("its time has been over for {by}, but {why}: {release}"))
        }
        _ if hold.is_asked_for => {
            (Level::Note, "it begins when nobody holds the lock any more".to_owned())
        }
        (None, None) => (Level::Warning, format!("it has no end: {release}")),
        (None, Some(_)) if one.holds => {
            (Level::Note, "nobody else gets the lock before".to_owned())
        }
        (None, Some(_)) => (Level::Note, "it begins when those ahead have left".to_owned()),
    };
    Some((level, format!("{}; {what}", who(one))))
}

/// What the children that are no contenders may be.
fn in_others<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(Level, String)> {
    let (mut items, mut numbered, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for name in names {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        match name {
            _ if name.starts_with("qn-") || name.starts_with("pn-") => items.push(name),
            _ if digits == DIGITS && name.len() > DIGITS => numbered.push(name),
            _ => others.push(name),
        }
    }
    let text = |names: &[&str], what: &str| {
        let first = names.first()?;
        let text = format!("{} children are no contenders, such as {first:?}{what}", names.len());
        Some((Level::Warning, text))
    };
    let all = [
        text(
            &items,
            ", an item of a queue; they are ignored: give queues and locks paths of their own",
        ),
        text(
            &numbered,
            ", but have numbers as contenders have: they belong to no session, or no server gave them that number, so nobody \
             waits for them",
        ),
        text(&others, "; they are ignored"),
    ];
    all.into_iter().flatten().collect()
}

/// As zkCli.sh writes them.
fn letters(of: Permissions) -> String {
    let all = [
        (Permissions::CREATE, 'c'),
        (Permissions::DELETE, 'd'),
        (Permissions::READ, 'r'),
        (Permissions::WRITE, 'w'),
        (Permissions::ADMIN, 'a'),
    ];
    all.iter().filter(|(one, _)| of.contains(*one)).map(|(_, letter)| letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_contender_is_told_by_its_kind() {
        let names = ["qn-0000000001", "readme", "x-latch-0000000003", "x-latch-0000000004"];
        let said: Vec<String> = in_others(names.into_iter()).into_iter().map(|one| one.1).collect();
        for (line, text) in said.iter().zip([
            "1 children are no contenders, such as \"qn-0000000001\", an item of a queue",
            "2 children are no contenders, such as \"x-latch-0000000003\", but have numbers",
            "1 children are no contenders, such as \"readme\"; they are ignored",
        ]) {
            assert!(line.starts_with(text), "{line}");
        }
        assert_eq!(said.len(), 3);
    }
}
