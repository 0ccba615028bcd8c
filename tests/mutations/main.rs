//! Deliberate faults, as rows of what to replace in the library or the command, that tests have to find:
//! `scripts/mutants` tries them.
//!
//! ```text
//! faults list [--changed FILE]... [--shard K/N] [WORD...]
//!                      those whose names contain a word: name, seeds, features, the words that choose the
//!                      tests, and what breaks, with tabs in between. With --changed those only that change
//!                      one of these files; of what is left, with --shard the Kth and each Nth behind it
//! faults apply NAME    makes the fault in the present folder, and prints the files that it changes
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command")]

use std::collections::BTreeSet;
use std::ops::Range;
use std::process::ExitCode;
use std::str::FromStr;
use std::{env, fs};

use serde::Deserialize;

/// Where the rows are, in the repository's folder.
const ROWS: &str = "tests/mutations";

const USAGE: &str = "faults list [--changed FILE]... [--shard K/N] [WORD...], or faults apply NAME";

#[derive(Debug, Deserialize)]
struct Rows {
    fault: Vec<Fault>,
}

/// A fault, and the tests that must find it: the simulation, unless it says which.
#[derive(Debug, Deserialize)]
struct Fault {
    name: String,
    /// What goes wrong, as a sentence.
    breaks: String,
    /// Words, separated by spaces: the tests whose names contain one of them.
    kill: Option<String>,
    /// A model of threads.
    shuttle: Option<String>,
    /// The features that these tests need.
    features: Option<String>,
    /// With this many seeds, for what is found too rarely with those of a plain run.
    seeds: Option<u64>,
    #[serde(flatten)]
    change: Change,
    /// Further changes.
    #[serde(default)]
    and: Vec<Change>,
}

/// Replaces a text that occurs once, however it is indented and broken at its spaces.
#[derive(Debug, Deserialize)]
struct Change {
    file: String,
    /// The item that has the text, by a part of its first line; without it, the whole file.
    #[serde(rename = "in")]
    item: Option<String>,
    old: String,
    new: String,
}

impl Fault {
    fn changes(&self) -> impl Iterator<Item = &Change> {
        [&self.change].into_iter().chain(&self.and)
    }

    fn row(&self) -> String {
        let seeds = self.seeds.map_or("-".to_owned(), |seeds| seeds.to_string());
        let features = self.features.as_deref().unwrap_or("-");
        let words = match &self.shuttle {
            Some(model) => format!("models::{model}"),
            None => self.kill.as_deref().unwrap_or("sim::").to_owned(),
        };
        format!("{}\t{seeds}\t{features}\t{words}\t{}", self.name, self.breaks)
    }

    /// The files that it changes, with what they contain then.
    fn made(&self) -> Result<Vec<(String, String)>, String> {
        let mut files: Vec<(String, String)> = Vec::new();
        for change in self.changes() {
            let at = match files.iter().position(|(file, _)| *file == change.file) {
                Some(at) => at,
                None => {
                    files.push((change.file.clone(), read(&change.file)?));
                    files.len() - 1
                }
            };
            let text = &mut files[at].1;
            let found = change.find(text).map_err(|why| format!("{}: {why}", change.file))?;
            text.replace_range(found, &change.new);
        }
        Ok(files)
    }
}

impl Change {
    /// Where the old text is.
    fn find(&self, text: &str) -> Result<Range<usize>, String> {
        let within = match &self.item {
            None => 0..text.len(),
            Some(item) => find_item(text, item)?,
        };
        let (old, _) = spaced(&self.old, 0);
        let (all, places) = spaced(&text[within.clone()], within.start);
        let mut found = all.match_indices(&old);
        match (found.next(), found.next()) {
            (Some((from, _)), None) => Ok(places[from]..places[from + old.len() - 1] + 1),
            (None, _) => Err(format!("does not contain {old:?}")),
            (Some(_), Some(_)) => Err(format!("contains {old:?} several times")),
        }
    }
}

/// The text with one space for each run of white space, and where each of its bytes was, counted from
/// `start`.
fn spaced(text: &str, start: usize) -> (String, Vec<usize>) {
    let (mut spaced, mut places) = (String::new(), Vec::new());
    for (at, letter) in text.char_indices() {
        if letter.is_whitespace() {
            if spaced.is_empty() || spaced.ends_with(' ') {
                continue;
            }
            spaced.push(' ');
            places.push(start + at);
        } else {
            spaced.push(letter);
            places.extend((0..letter.len_utf8()).map(|byte| start + at + byte));
        }
    }
    if spaced.ends_with(' ') {
        spaced.pop();
        places.pop();
    }
    (spaced, places)
}

/// The lines of the item whose first line has this part.
fn find_item(text: &str, part: &str) -> Result<Range<usize>, String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut begun: Option<(usize, usize)> = None;
    let (mut end, mut at) = (None, 0);
    for line in text.split_inclusive('\n') {
        let begins = line.contains(part);
        match begun {
            Some(_) if begins => return Err(format!("contains {part:?} several times")),
            None if begins => begun = Some((at, indent(line))),
            Some((_, depth)) if end.is_none() => {
                let words = line.trim();
                let closes = words.starts_with(['}', ')', ']']) && indent(line) <= depth;
                // Otherwise this is the end of the parameters.
                if closes && !words.ends_with('{') && !words.starts_with(") ") {
                    end = Some(at + line.len());
                }
            }
            _ => {}
        }
        at += line.len();
    }
    let (from, _) = begun.ok_or_else(|| format!("does not contain {part:?}"))?;
    Ok(from..end.unwrap_or(text.len()))
}

fn read(file: &str) -> Result<String, String> {
    fs::read_to_string(file).map_err(|why| format!("{file}: {why}"))
}

/// All faults, named with their files.
fn faults() -> Result<Vec<Fault>, String> {
    let entries = fs::read_dir(ROWS).map_err(|why| format!("{ROWS}: {why}"))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let floors: BTreeSet<String> =
        names.filter_map(|name| Some(name.strip_suffix(".toml")?.to_owned())).collect();
    let mut all = Vec::new();
    for floor in floors {
        let file = format!("{ROWS}/{floor}.toml");
        let rows: Rows = toml::from_str(&read(&file)?).map_err(|why| format!("{file}: {why}"))?;
        all.extend(rows.fault.into_iter().map(|mut fault| {
            fault.name = format!("{floor}/{}", fault.name);
            fault
        }));
    }
    Ok(all)
}

/// Which of the faults are listed.
#[derive(Debug, Default)]
struct Choice {
    words: Vec<String>,
    changed: Option<BTreeSet<String>>,
    shard: Option<Shard>,
}

/// One of several parts, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shard {
    part: usize,
    parts: usize,
}

impl Choice {
    fn read(words: &[String]) -> Result<Choice, String> {
        let mut choice = Choice::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--changed" => {
                    choice.changed.get_or_insert_default().insert(value()?.clone());
                }
                "--shard" => choice.shard = Some(value()?.parse()?),
                _ => choice.words.push(word.clone()),
            }
        }
        Ok(choice)
    }

    /// By shard last: so shards are alike in length. Each has rows of each floor, as those of one floor take alike long.
    fn of<'a>(&self, faults: &'a [Fault]) -> Vec<&'a Fault> {
        let is_named = |fault: &Fault| {
            self.words.is_empty() || self.words.iter().any(|word| fault.name.contains(word))
        };
        let has_changed = |fault: &Fault| {
            let changed = self.changed.as_ref();
            changed.is_none_or(|files| fault.changes().any(|it| files.contains(&it.file)))
        };
        let chosen = faults.iter().filter(|fault| is_named(fault) && has_changed(fault));
        let Shard { part, parts } = self.shard.unwrap_or(Shard { part: 1, parts: 1 });
        chosen.skip(part - 1).step_by(parts).collect()
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let numbers = text.split_once('/').and_then(|(part, parts)| {
            Some(Shard { part: part.parse().ok()?, parts: parts.parse().ok()? })
        });
        numbers
            .filter(|shard| (1..=shard.parts).contains(&shard.part))
            .ok_or(format!("{text:?} is no shard: it is K/N, with K from 1 to N, as in 2/3"))
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((verb, words)) if verb == "list" => list(words),
        Some((verb, [name])) if verb == "apply" => apply(name),
        _ => Err(format!("usage: {USAGE}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn list(words: &[String]) -> Result<(), String> {
    for fault in Choice::read(words)?.of(&faults()?) {
        println!("{}", fault.row());
    }
    Ok(())
}

fn apply(name: &str) -> Result<(), String> {
    let all = faults()?;
    let fault = all.iter().find(|fault| fault.name == name).ok_or("there is no such fault")?;
    for (file, text) in fault.made()? {
        fs::write(&file, text).map_err(|why| format!("{file}: {why}"))?;
        println!("{file}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_can_be_made_in_the_present_code() {
        let all = faults().unwrap();
        let wrong: Vec<String> = all
            .iter()
            .filter_map(|fault| Some(format!("{}: {}", fault.name, fault.made().err()?)))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(all.len() > 200, "{}", all.len());
    }

    #[test]
    fn each_fault_has_a_name_of_its_own_and_says_what_breaks() {
        let mut names = BTreeSet::new();
        for fault in faults().unwrap() {
            assert!(fault.breaks.ends_with(['.', '!']), "{}: {:?}", fault.name, fault.breaks);
            assert!(fault.changes().all(|change| change.old != change.new), "{}", fault.name);
            assert!(fault.kill.is_none() || fault.shuttle.is_none(), "{}", fault.name);
            assert!(names.insert(fault.name.clone()), "{} is there twice", fault.name);
        }
    }

    /// Otherwise a misspelt `kill` would mean the simulation.
    #[test]
    fn rows_have_no_other_keys() {
        let known = "name breaks kill shuttle features seeds file in old new and";
        let known: BTreeSet<&str> = known.split(' ').collect();
        for entry in fs::read_dir(ROWS).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "toml") {
                let rows: toml::Table = read(path.to_str().unwrap()).unwrap().parse().unwrap();
                for row in rows["fault"].as_array().unwrap() {
                    let row = row.as_table().unwrap();
                    let other = row.keys().find(|key| !known.contains(key.as_str()));
                    assert!(other.is_none(), "{other:?} in {row:?}");
                }
            }
        }
    }

    fn choice(words: &str) -> Result<Choice, String> {
        Choice::read(&words.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn each_row_is_in_one_shard_and_shards_are_alike_in_length() {
        let all = faults().unwrap();
        for parts in [1, 2, 7, all.len(), all.len() + 1] {
            let names = |part| {
                let shard = choice(&format!("--shard {part}/{parts}")).unwrap();
                shard.of(&all).iter().map(|fault| fault.name.clone()).collect::<Vec<_>>()
            };
            let shards: Vec<_> = (1..=parts).map(names).collect();
            let sizes: BTreeSet<usize> = shards.iter().map(Vec::len).collect();
            assert!(sizes.last().unwrap() - sizes.first().unwrap() <= 1, "{sizes:?}");
            let dealt = (0..all.len()).map(|row| shards[row % parts][row / parts].clone());
            assert!(dealt.eq(all.iter().map(|fault| fault.name.clone())), "{parts}");
            assert_eq!(shards.iter().map(Vec::len).sum::<usize>(), all.len());
        }
    }

    #[test]
    fn a_shard_is_one_of_so_many() {
        assert_eq!("2/3".parse(), Ok(Shard { part: 2, parts: 3 }));
        assert_eq!("3/3".parse(), Ok(Shard { part: 3, parts: 3 }));
        for wrong in ["0/3", "4/3", "0/0", "1/0", "2", "/", "1/", "/1", "-1/3", "1/2/3", "a/b", ""]
        {
            let why = wrong.parse::<Shard>().unwrap_err();
            assert!(why.contains("K from 1 to N"), "{wrong}: {why}");
        }
        assert!(choice("--shard").is_err());
        assert!(choice("--changed").is_err());
    }

    #[test]
    fn rows_are_chosen_by_the_files_that_they_change_and_then_by_shard() {
        let all = faults().unwrap();
        let names = |words: &str| {
            let chosen = choice(words).unwrap();
            chosen.of(&all).iter().map(|fault| fault.name.clone()).collect::<Vec<_>>()
        };
        let several = all.iter().find(|fault| !fault.and.is_empty()).unwrap();
        for change in several.changes() {
            assert!(names(&format!("--changed {}", change.file)).contains(&several.name));
        }
        let rule = names("--changed src/contend/name/rule.rs");
        assert!(rule.len() > 3 && rule.len() < all.len() / 2, "{rule:?}");
        let of_both = names("--changed no.rs --changed src/contend/name/rule.rs");
        assert_eq!(of_both, rule);
        assert_eq!(names("--changed no.rs"), [""; 0]);
        let second: Vec<_> = rule.iter().skip(1).step_by(3).cloned().collect();
        assert_eq!(names("--changed src/contend/name/rule.rs --shard 2/3"), second);
        assert_eq!(names("--changed src/contend/name/rule.rs no-such-name"), [""; 0]);
    }

    #[test]
    fn a_text_is_found_however_it_is_spaced_but_once_only() {
        let text =
            "fn one(\n    of: u8,\n) -> u8 {\n    of\n        + 1\n}\n\nfn two() {\n    1 + 1\n}\n";
        let change = |item: Option<&str>, old: &str| Change {
            file: String::new(),
            item: item.map(str::to_owned),
            old: old.to_owned(),
            new: String::new(),
        };
        let found = |item, old| change(item, old).find(text).map(|found| &text[found]);
        assert_eq!(found(Some("fn one("), "of + 1"), Ok("of\n        + 1"));
        assert_eq!(found(Some("fn two("), "\n1 + 1\n"), Ok("1 + 1"));
        assert!(found(Some("fn two("), "of").is_err(), "another item");
        assert!(found(None, "+ 1").is_err(), "twice");
        assert!(found(Some("fn"), "of").is_err(), "two items");
        assert!(found(Some("fn three"), "of").is_err(), "no item");
    }
}
