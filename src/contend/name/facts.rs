//! What a contender's node tells on the second line of its data, such as `v=1 held_for=83000`.
//!
//! The first line says whose node it is. The second consists of facts for programs, each of them a key, `=`
//! and a value without spaces; keys that are not known are passed over. Data without such a line tell no
//! facts, and those that ask the holder to release the lock say nothing else.

use std::time::Duration;

/// What is written over a contender's data to ask its holder to release the lock: Curator's word.
pub(crate) const REQUEST: &[u8] = b"__REVOKE__";
/// The word of ZooKeeper's "Recipes and Solutions", which is understood, too.
const REQUEST_OF_THE_RECIPES: &[u8] = b"unlock";

/// Begins the line, and says how the rest is to be read.
const VERSION: &str = "v=1";
const HELD_FOR: &str = "held_for";
const WAIT: &str = "wait";
const LIMITED: &str = "limited";
const UNDER: &str = "under";
const KEEPS_WAITING: &str = "keeps_waiting";
const PATIENCE: &str = "patience";

/// So many nodes are named by another one, at most.
pub(crate) const MOST_NAMED: usize = 64;

/// What is told by a contender's data. Nodes are named as the server knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// How long the lock had been held when the data were written, if its holder had waited for it.
    pub(crate) held_for: Option<Duration>,
    /// Whether its wait ends by itself some time, or may be cancelled.
    pub(crate) is_limited: bool,
    /// The nodes that are held as long as it waits: those of its thread, or of the commands around it.
    pub(crate) under: Vec<String>,
    /// The nodes that are held as long as threads of the same process wait for this one.
    pub(crate) keeps_waiting: Vec<String>,
}

/// Whether the data ask the holder to release the lock.
pub(crate) fn is_request(data: &[u8]) -> bool {
    data == REQUEST || data == REQUEST_OF_THE_RECIPES
}

/// This text as the first line, and no facts yet.
pub(crate) fn with_facts(mut first_line: Vec<u8>) -> Vec<u8> {
    first_line.push(b'\n');
    first_line.extend_from_slice(VERSION.as_bytes());
    first_line
}

/// The facts; `None` if the data tell none.
pub(crate) fn facts(data: &[u8]) -> Option<Facts> {
    let line = fact_line(data)?;
    let value = |key| value_of(line, key);
    let nodes = |key| value(key).map(nodes_in).unwrap_or_default();
    Some(Facts {
        held_for: value(HELD_FOR).and_then(|held| held.parse().ok()).map(Duration::from_millis),
        is_limited: value(WAIT) == Some(LIMITED),
        under: nodes(UNDER),
        keeps_waiting: nodes(KEEPS_WAITING),
    })
}

/// One of the facts.
pub(super) fn fact<'a>(data: &'a [u8], key: &str) -> Option<&'a str> {
    value_of(fact_line(data)?, key)
}

fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    values(line).find_map(|(one, value)| (one == key).then_some(value))
}

/// The same data with this fact; `None` if they tell no facts.
pub(crate) fn with_held_for(data: &[u8], held_for: Duration) -> Option<Vec<u8>> {
    with(data, HELD_FOR, &held_for.as_millis().to_string())
}

/// How much patience is told by a contender's data.
pub(crate) fn patience_of(data: &[u8]) -> Option<u32> {
    fact(data, PATIENCE)?.parse().ok()
}

/// The same data with this fact; `None` if they tell no facts.
pub(crate) fn with_patience(data: &[u8], patience: u32) -> Option<Vec<u8>> {
    with(data, PATIENCE, &patience.to_string())
}

/// The same data with this fact; `None` if they tell no facts, or there are no such nodes.
pub(crate) fn with_kept_waiting(data: &[u8], nodes: &[String]) -> Option<Vec<u8>> {
    if nodes.is_empty() {
        return None;
    }
    with(data, KEEPS_WAITING, &named(nodes))
}

/// The data of a contender that waits under these nodes. Whether its wait is limited stays as they say it, as
/// a command knows that better than the library. `None` if there is nothing to add.
pub(crate) fn with_wait(data: &[u8], is_limited: bool, under: &[String]) -> Option<Vec<u8>> {
    let line = fact_line(data)?;
    let says_wait = values(line).any(|(key, _)| key == WAIT);
    let waits = if is_limited && !says_wait { with(data, WAIT, LIMITED) } else { None };
    let mut all = facts(data)?.under;
    let before = all.len();
    all.extend(under.iter().filter(|node| !all.contains(node)).cloned().collect::<Vec<_>>());
    match all.len() > before {
        true => with(waits.as_deref().unwrap_or(data), UNDER, &named(&all)),
        false => waits,
    }
}

/// These data with the facts of others; `None` if either tell none.
pub(crate) fn with_facts_of(data: &[u8], others: &[u8]) -> Option<Vec<u8>> {
    replaced(data, fact_line(others)?)
}

/// Whether these are the same data, but for their facts.
pub(crate) fn differ_in_facts_only(one: &[u8], other: &[u8]) -> bool {
    let have_facts = fact_line(one).is_some() && fact_line(other).is_some();
    have_facts && without_facts(one) == without_facts(other)
}

fn without_facts(data: &[u8]) -> Vec<&[u8]> {
    let lines = data.split(|byte| *byte == b'\n').enumerate();
    lines.filter(|(place, _)| *place != 1).map(|(_, line)| line).collect()
}

pub(super) fn with(data: &[u8], key: &str, value: &str) -> Option<Vec<u8>> {
    let line = fact_line(data)?;
    let others = line.split(' ').filter(|word| word.split('=').next() != Some(key));
    let fact = format!("{key}={value}");
    replaced(data, &others.chain([&*fact]).collect::<Vec<_>>().join(" "))
}

/// The data with another line of facts.
fn replaced(data: &[u8], line: &str) -> Option<Vec<u8>> {
    fact_line(data)?;
    let text = std::str::from_utf8(data).ok()?;
    let mut lines: Vec<&str> = text.split('\n').collect();
    *lines.get_mut(1)? = line;
    Some(lines.join("\n").into_bytes())
}

fn fact_line(data: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(data).ok()?.split('\n').nth(1)?;
    (line.split(' ').next() == Some(VERSION)).then_some(line)
}

fn values(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split(' ').skip(1).filter_map(|word| word.split_once('='))
}

/// As a value: with commas between them, and `%` and two digits for what would end a name or the value.
fn named(nodes: &[String]) -> String {
    let name = |node: &String| node.replace('%', "%25").replace(',', "%2C").replace(' ', "%20");
    nodes.iter().take(MOST_NAMED).map(name).collect::<Vec<_>>().join(",")
}

fn nodes_in(value: &str) -> Vec<String> {
    let node = |name: &str| name.replace("%20", " ").replace("%2C", ",").replace("%25", "%");
    let names = value.split(',').filter(|name| !name.is_empty());
    names.take(MOST_NAMED).map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_on_the_second_line_and_the_others_stay_as_they_are() {
        let data = with_facts(b"host=a pid=1 program=b thread=c".to_vec());
        assert_eq!(facts(&data), Some(Facts::default()));
        let seconds = |held_for| {
            Some(Facts { held_for: Some(Duration::from_secs(held_for)), ..Facts::default() })
        };
        let told = with_held_for(&data, Duration::from_secs(83)).unwrap();
        assert_eq!(told, b"host=a pid=1 program=b thread=c\nv=1 held_for=83000");
        assert_eq!(facts(&told), seconds(83));
        let told = with_held_for(b"x\nv=1 held_for=1 more=2\nlabel=y", Duration::from_secs(5));
        assert_eq!(told.as_deref(), Some(&b"x\nv=1 more=2 held_for=5000\nlabel=y"[..]));
        assert_eq!(facts(&told.unwrap()), seconds(5));
    }

    #[test]
    fn a_waiter_names_the_nodes_it_waits_under_whatever_their_names() {
        let nodes: Vec<String> =
            ["/a b/x,y", "/100%/%20", "/a=b"].map(str::to_owned).into_iter().collect();
        let data = with_facts(b"host=a".to_vec());
        let waits = with_wait(&data, true, &nodes).unwrap();
        let all = facts(&waits).unwrap();
        assert_eq!((all.is_limited, &all.under), (true, &nodes));
        assert_eq!(with_wait(&data, false, &[]), None);
        // What a command has said of its wait stays, and what it runs under is not all.
        let said = b"host=a\nv=1 wait=unlimited under=/a";
        assert_eq!(with_wait(said, true, &["/a".to_owned()]), None);
        let all = facts(&with_wait(said, true, &nodes).unwrap()).unwrap();
        assert_eq!((all.is_limited, &*all.under[0], &all.under[1..]), (false, "/a", &nodes[..]));
        let theirs = with_facts_of(b"host=b\nv=1\nlabel=x", said).unwrap();
        assert_eq!(theirs, b"host=b\nv=1 wait=unlimited under=/a\nlabel=x");
        let kept = with_kept_waiting(&waits, &nodes[..1]).unwrap();
        assert_eq!(facts(&kept).unwrap().keeps_waiting, nodes[..1]);
        assert!(differ_in_facts_only(&waits, &kept) && !differ_in_facts_only(&waits, b"unlock"));
        let many: Vec<String> = (0..2 * MOST_NAMED).map(|one| format!("/{one}")).collect();
        let named = facts(&with_wait(&data, false, &many).unwrap()).unwrap().under.len();
        assert_eq!(named, MOST_NAMED);
    }

    #[test]
    fn data_of_other_programs_tell_no_facts() {
        for data in [
            &b""[..],
            b"v=1",
            b"v=1 held_for=5",
            b"host=a\nlabel=v=1",
            b"host=a\nv=12 held_for=5",
            b"host=a\n\nv=1",
            b"\xff\nv=1",
        ] {
            assert_eq!(facts(data), None, "{data:?}");
            assert_eq!(with_held_for(data, Duration::ZERO), None, "{data:?}");
        }
        for odd in ["held_for=", "held_for=-1", "held_for=1e9", "held_for=99999999999999999999"] {
            assert_eq!(facts(format!("a\nv=1 {odd}").as_bytes()), Some(Facts::default()));
        }
    }
}
