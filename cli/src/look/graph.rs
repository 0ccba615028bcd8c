//! `zklock graph`: who waits for whom.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use zklock::{Contender, Waits};

use super::contender_json_and_kinds::as_json;
use super::deadlocks::say_what_was_left_out;
use crate::args::{Global, Graph};
use crate::exit::{Exit, Failure};
use crate::output::{print, print_json, say};
use crate::words::{Ages, held, lock_of_room, parent, who};

/// So many waiters of a lock are shown one by one.
const MOST_WAITERS: usize = 10;

pub(crate) fn graph(global: &Global, options: &Graph) -> Result<Exit, Failure> {
    let base = global.base(options.path.as_deref());
    let Some(waits) = global.connect()?.waits(&base)? else {
        return Err(Failure::new(Exit::No, format!("{base} does not exist")));
    };
    let picture = Picture::of(&waits);
    let lines = match () {
        () if global.json => Vec::new(),
        () if options.dot => picture.as_dot(),
        () if options.mermaid => picture.as_mermaid(),
        () => picture.as_text(Ages::of_all(&waits.contenders)),
    };
    if global.json {
        print_json(&picture.as_json())?;
    }
    for line in &lines {
        if !print(line)? {
            break;
        }
    }
    let left_out = say_what_was_left_out(&waits);
    if picture.locks.is_empty() && left_out == 0 && !global.json {
        say("", &format!("nobody waits for a lock at or below {base}"));
    }
    Ok(Exit::Success)
}

/// The locks that are waited for, and by which holders of other locks.
struct Picture<'a> {
    locks: BTreeMap<&'a str, Vec<usize>>,
    all: &'a [Contender],
    /// By which contenders each holder waits.
    waits_by: BTreeMap<usize, Vec<usize>>,
    /// Which holders wait by each contender.
    holds: BTreeMap<usize, Vec<usize>>,
}

impl<'a> Picture<'a> {
    fn of(waits: &'a Waits) -> Picture<'a> {
        let mut picture = Picture {
            locks: BTreeMap::new(),
            all: &waits.contenders,
            waits_by: BTreeMap::new(),
            holds: BTreeMap::new(),
        };
        for (holder, by) in waits.edges() {
            picture.waits_by.entry(holder).or_default().push(by);
            picture.holds.entry(by).or_default().push(holder);
        }
        for (place, one) in waits.contenders.iter().enumerate() {
            picture.locks.entry(parent(one)).or_default().push(place);
        }
        let is_quiet = |place: &usize| {
            let is_held = picture.all[*place].holds;
            is_held && !picture.waits_by.contains_key(place) && !picture.holds.contains_key(place)
        };
        picture.locks.retain(|_, places| !places.iter().all(is_quiet));
        picture
    }

    /// The holders and the waiters of a lock.
    fn parts(&self, places: &[usize]) -> (Vec<usize>, Vec<usize>) {
        places.iter().partition(|place| self.all[**place].holds)
    }

    fn lock_of_room(&self, places: &[usize]) -> Option<String> {
        places.first().and_then(|place| lock_of_room(&self.all[*place]))
    }

    fn locks_of(&self, places: Option<&Vec<usize>>) -> Vec<&'a str> {
        let mut locks: Vec<&str> = Vec::new();
        for place in places.into_iter().flatten() {
            let lock = parent(&self.all[*place]);
            if !locks.contains(&lock) {
                locks.push(lock);
            }
        }
        locks
    }

    fn as_text(&self, ages: Ages) -> Vec<String> {
        let mut lines = Vec::new();
        for (lock, places) in &self.locks {
            lines.push(match self.lock_of_room(places) {
                Some(of) => format!("{lock}, the waiting room of {of}"),
                None => (*lock).to_owned(),
            });
            let (holders, waiters) = self.parts(places);
            for place in &holders {
                let waits = self.locks_of(self.waits_by.get(place)).join(", ");
                let waits =
                    if waits.is_empty() { waits } else { format!("; it waits for {waits}") };
                let one = &self.all[*place];
                lines.push(format!("  {}{}{waits}", held(one), ages.after_comma(one)));
                for lock in self.locks_of(self.holds.get(place)) {
                    lines.push(format!("    <- its process keeps the holder of {lock} waiting"));
                }
            }
            for place in waiters.iter().take(MOST_WAITERS) {
                let held = self.locks_of(self.holds.get(place)).join(", ");
                let held = if held.is_empty() { held } else { format!("; it holds {held}") };
                let one = &self.all[*place];
                // The others wait for the holders; for this one, that is not known.
                let begin = if one.may_hold_too() { "  may hold it too:" } else { "    <-" };
                lines.push(format!("{begin} {}{}{held}", who(one), ages.after_comma(one)));
            }
            if let Some(more) = waiters.len().checked_sub(MOST_WAITERS).filter(|more| *more > 0) {
                lines.push(format!("    <- and {more} more"));
            }
        }
        lines
    }

    /// The locks by number, with a text for each, and which one's holder or members wait for which other.
    fn drawn(&self) -> (Vec<String>, Vec<(usize, usize, &'static str)>) {
        let number: BTreeMap<&str, usize> =
            self.locks.keys().enumerate().map(|(number, lock)| (*lock, number)).collect();
        let text = |(lock, places): (&&str, &Vec<usize>)| {
            let (holders, waiters) = self.parts(places);
            let held = holders.first().map(|one| held(&self.all[*one]));
            let held = held.unwrap_or_else(|| "held by nobody now".to_owned());
            let more = if holders.len() > 1 {
                format!(" and {} more", holders.len() - 1)
            } else {
                String::new()
            };
            let too = waiters.iter().filter(|one| self.all[**one].may_hold_too()).count();
            let waiting = waiters.len() - too;
            let too = if too > 0 { format!(", {too} may hold it too") } else { String::new() };
            format!("{lock}\n{held}{more}\n{waiting} wait{too}")
        };
        let texts = self.locks.iter().map(text).collect();
        let mut arrows = Vec::new();
        for (holder, by) in &self.waits_by {
            let from = number.get(parent(&self.all[*holder]));
            for lock in self.locks_of(Some(by)) {
                let both = from.zip(number.get(lock));
                arrows.extend(both.map(|(from, to)| (*from, *to, "its holder waits for")));
            }
        }
        for (room, places) in &self.locks {
            let of = self.lock_of_room(places);
            let both = number.get(room).zip(of.and_then(|of| number.get(&*of)));
            arrows.extend(both.map(|(from, to)| (*from, *to, "its first contends for")));
        }
        (texts, arrows)
    }

    fn as_dot(&self) -> Vec<String> {
        let (texts, arrows) = self.drawn();
        let text = |(number, text): (usize, &String)| {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("  n{number} [shape=box, label=\"{text}\"];")
        };
        let arrow =
            |(from, to, why): &(usize, usize, _)| format!("  n{from} -> n{to} [label=\"{why}\"];");
        let body = texts.iter().enumerate().map(text).chain(arrows.iter().map(arrow));
        ["digraph waits {".to_owned()].into_iter().chain(body).chain(["}".to_owned()]).collect()
    }

    fn as_mermaid(&self) -> Vec<String> {
        let (texts, arrows) = self.drawn();
        let text = |(number, text): (usize, &String)| {
            // Its own escapes: what other clients have written must not become a part of the picture.
            let escaped = |one: char| match one {
                '\n' => "<br/>".to_owned(),
                one if one.is_alphanumeric() || " /._-(),:".contains(one) => one.to_string(),
                one => format!("#{};", u32::from(one)),
            };
            format!("  n{number}[\"{}\"]", text.chars().map(escaped).collect::<String>())
        };
        let arrow = |(from, to, why): &(usize, usize, _)| format!("  n{from} -->|{why}| n{to}");
        let body = texts.iter().enumerate().map(text).chain(arrows.iter().map(arrow));
        ["flowchart LR".to_owned()].into_iter().chain(body).collect()
    }

    fn as_json(&self) -> Value {
        let path = |place: usize| &self.all[place].path;
        let waits_by = self.holds.iter().flat_map(|(by, holders)| {
            holders.iter().map(|holder| json!({ "holder": path(*holder), "by": path(*by) }))
        });
        let locks = self.locks.iter().map(|(lock, places)| {
            let all = places.iter().map(|place| as_json(&self.all[*place]));
            json!({ "lock": lock, "contenders": all.collect::<Vec<_>>() })
        });
        json!({ "locks": locks.collect::<Vec<_>>(), "waits": waits_by.collect::<Vec<_>>() })
    }
}
