//! Reads histories into a run.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use super::history::{Line, MILLISECOND, Nanos, Who, lines};
use super::model::{
    Attempt, Came, Change, Decision, Deed, Fault, Happened, Hold, Outcome, Run, Sample, Share, View,
};

/// The texts of a run's files, by the files' names.
pub(crate) type Files = BTreeMap<String, String>;

pub(crate) const SETTINGS: &str = "run.txt";
pub(crate) const NEMESIS: &str = "nemesis.log";
pub(crate) const REGISTER: &str = "register.log";
pub(crate) const SAMPLES: &str = "samples.log";
/// What the recipes' nodes contained at the end.
pub(crate) const FINISH: &str = "finish.log";
/// What became of nodes, from the servers' transaction logs.
pub(crate) const SERVERS: &str = "servers.log";

/// How long after the beginning of a fault ZooKeeper may forget what it acknowledges: see
/// `Deed::shaky`.
const SHAKY: Nanos = 500 * MILLISECOND;

pub(crate) fn worker_name(slot: usize, generation: usize) -> String {
    format!("worker-{slot}-{generation}.log")
}

pub(crate) fn files(directory: &Path) -> Result<Files, String> {
    let mut files = Files::new();
    let named = |error| format!("{}: {error}", directory.display());
    for entry in fs::read_dir(directory).map_err(named)?.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name == SETTINGS || name.ends_with(".log") {
            files.insert(name, fs::read_to_string(entry.path()).map_err(named)?);
        }
    }
    Ok(files)
}

impl Run {
    pub(crate) fn read(files: &Files) -> Result<Run, String> {
        let text = |name: &str| files.get(name).ok_or(format!("the file {name} is missing"));
        let mut run = Run::default();
        for (name, value) in text(SETTINGS)?.lines().filter_map(|line| line.split_once('=')) {
            run.settings.insert(name.to_owned(), value.to_owned());
        }
        run.nemesis(&lines(NEMESIS, text(NEMESIS)?)?);
        for (name, text) in files.iter().filter(|(name, _)| name.starts_with("worker-")) {
            run.worker(name, &lines(name, text)?);
        }
        let mut current = HashMap::new();
        for line in lines(FINISH, files.get(FINISH).map_or("", String::as_str))? {
            let who = line.who.parse().ok();
            if who.and_then(|who| run.deed(who, &line, &mut current)).is_none() {
                run.odd(FINISH, &line);
            }
        }
        run.register(&lines(REGISTER, text(REGISTER)?)?);
        for line in lines(SAMPLES, text(SAMPLES)?)? {
            run.sample(&line);
        }
        for line in lines(SERVERS, files.get(SERVERS).map_or("", String::as_str))? {
            match (i64::from_str_radix(&line.who, 16), &line.words()[..]) {
                (Ok(number), &[what, path, ref data @ ..]) => {
                    let what = match what {
                        "created" => Happened::Created(data.join(" ")),
                        "deleted" => Happened::Deleted,
                        "asked" => Happened::Asked,
                        _ => {
                            run.odd(SERVERS, &line);
                            continue;
                        }
                    };
                    run.changes.push(Change { at: line.at, number, path: path.to_owned(), what });
                }
                _ => run.odd(SERVERS, &line),
            }
        }
        Ok(run)
    }

    fn odd(&mut self, file: &str, line: &Line) {
        self.errors.push(format!("{file}: unexpected line: {} {}", line.at, line.words.join(" ")));
    }

    fn worker(&mut self, file: &str, lines: &[Line]) {
        // Each thread's present attempt, and all attempts by token: a loss may be reported when its
        // thread is at its next attempt.
        let mut current: HashMap<Who, usize> = HashMap::new();
        let mut tokens: HashMap<String, usize> = HashMap::new();
        let mut deeds: HashMap<Who, usize> = HashMap::new();
        for line in lines {
            let Ok(who) = line.who.parse::<Who>() else {
                self.odd(file, line);
                continue;
            };
            let process = (who.slot, who.generation);
            let at = line.at;
            self.processes.insert(process);
            match line.words()[..] {
                ["begin", _] | ["unconnected", _] => {}
                ["end"] => {
                    self.ended.insert(process);
                }
                ["starved", from] => {
                    let from = from.parse().unwrap_or(at);
                    self.starved.entry(process).or_default().push((from, at));
                }
                ["left", ..] => self.left.push(format!("{who}: {}", line.words.join(" "))),
                ["state", client, state] => {
                    let client = client.parse().unwrap_or_default();
                    self.states.push((at, who, client, state.to_owned()));
                }
                ["want", lock, how, limit, ref share @ ..] => {
                    let Some(share) = Share::parse(share.first().unwrap_or(&"alone")) else {
                        self.odd(file, line);
                        continue;
                    };
                    current.insert(who, self.attempts.len());
                    self.attempts.push(Attempt {
                        who,
                        lock: lock.to_owned(),
                        share,
                        how: how.to_owned(),
                        limit: limit.parse().ok(),
                        want: at,
                        done: None,
                        outcome: Outcome::Pending,
                    });
                }
                ["do" | "did", ..] => {
                    if self.deed(who, line, &mut deeds).is_none() {
                        self.odd(file, line);
                    }
                }
                ["lost", token, reason] => {
                    let attempt = tokens.get(token).map(|index| &mut self.attempts[*index]);
                    match attempt.map(|attempt| &mut attempt.outcome) {
                        Some(Outcome::Held(hold)) => hold.lost = Some((at, reason.to_owned())),
                        _ => self.odd(file, line),
                    }
                }
                _ => {
                    let index = current.get(&who).copied();
                    let known = index.and_then(|index| {
                        let attempt = &mut self.attempts[index];
                        let known = attempt.note(line);
                        if let ["got", token, _, path, ..] = line.words()[..] {
                            tokens.insert(token.to_owned(), index);
                            tokens.insert(path.to_owned(), index);
                        }
                        known
                    });
                    if known.is_none() {
                        self.odd(file, line);
                    }
                }
            }
        }
    }

    /// `current`: each thread's present call. `None` if the line does not fit it.
    fn deed(&mut self, who: Who, line: &Line, current: &mut HashMap<Who, usize>) -> Option<()> {
        let came = match line.words()[..] {
            ["do", recipe, deed, limit, ref about @ ..] => {
                current.insert(who, self.deeds.len());
                self.deeds.push(Deed {
                    who,
                    recipe: recipe.to_owned(),
                    deed: deed.to_owned(),
                    limit: limit.parse().ok()?,
                    about: about.iter().map(|word| (*word).to_owned()).collect(),
                    begun: line.at,
                    done: None,
                    came: Came::Pending,
                    shaky: false,
                });
                return Some(());
            }
            ["did", "nothing"] => Came::Nothing,
            ["did", "ok", said] => Came::Fine(said.to_owned()),
            ["did", "failed", kind, message] => {
                Came::Failed { kind: kind.to_owned(), message: message.to_owned() }
            }
            _ => return None,
        };
        let deed = &mut self.deeds[current.remove(&who)?];
        (deed.done, deed.came) = (Some(line.at), came);
        deed.shaky = self.faults.iter().any(|fault| {
            takes_a_server(&fault.kind) && (fault.from..fault.from + SHAKY).contains(&line.at)
        });
        Some(())
    }

    fn nemesis(&mut self, lines: &[Line]) {
        let mut healthy_from = lines.first().map(|line| line.at);
        self.start = healthy_from.unwrap_or_default();
        self.end = lines.last().map_or(0, |line| line.at);
        let mut stopped: HashMap<usize, Nanos> = HashMap::new();
        for line in lines {
            let at = line.at;
            let number = |text: &str| text.parse::<usize>().unwrap_or_default();
            let session = |text: &str| i64::from_str_radix(text, 16).unwrap_or_default();
            match line.words()[..] {
                ["begin"] => {}
                ["stranger", turns] => self.stranger = number(turns),
                ["round", _] | ["ending"] => {
                    self.healthy.extend(healthy_from.take().map(|from| (from, at)));
                    if line.words[0] == "ending" {
                        self.ending = Some(at);
                    }
                }
                ["healthy", _] => healthy_from = Some(at),
                ["fault", kind, ..] => {
                    self.faults.push(Fault { kind: kind.to_owned(), from: at, to: None });
                }
                ["heal", kind] => {
                    let open = self.faults.iter_mut().rev().find(|fault| fault.kind == kind);
                    if let Some(fault) = open {
                        fault.to = Some(at);
                    }
                }
                ["deleting", path] => {
                    self.deleted.insert(path.to_owned(), (at, None));
                }
                ["deleted", path, _] => {
                    self.deleted.entry(path.to_owned()).or_insert((at, None)).1 = Some(at);
                }
                ["closing", id] => {
                    self.closed.insert(session(id), (at, None));
                }
                ["closed", id] => {
                    self.closed.entry(session(id)).or_insert((at, None)).1 = Some(at);
                }
                ["stop", slot] => {
                    stopped.insert(number(slot), at);
                }
                ["cont", slot] => {
                    let from = stopped.remove(&number(slot)).unwrap_or(at);
                    self.stops.push((number(slot), (from, at)));
                }
                ["kill", slot, generation] => {
                    self.killed.insert((number(slot), number(generation)), at);
                }
                ["exited", slot, generation, status] => self
                    .strays
                    .push(format!("worker {slot}.{generation} ended before the end: {status}")),
                ["stuck", slot, generation] => self
                    .strays
                    .push(format!("worker {slot}.{generation} did not end in time and was killed")),
                ["left", ..] => self.left.push(line.words[1..].join(" ")),
                _ => self.odd(NEMESIS, line),
            }
        }
    }

    fn register(&mut self, lines: &[Line]) {
        for line in lines {
            match line.words()[..] {
                [verdict @ ("accepted" | "refused"), lock, token] => {
                    let Ok(token) = token.parse() else { continue };
                    let (lock, accepted) = (lock.to_owned(), verdict == "accepted");
                    self.register.push(Decision { at: line.at, accepted, lock, token });
                }
                _ => self.odd(REGISTER, line),
            }
        }
    }

    fn sample(&mut self, line: &Line) {
        let number = |text: &str| text.parse::<u64>().unwrap_or_default();
        match line.words()[..] {
            ["shows", lock, first, owner, since, count] => self.views.push(View {
                server: line.who.clone(),
                lock: lock.to_owned(),
                first: first.to_owned(),
                owner: owner.to_owned(),
                span: (number(since), line.at),
                count: number(count),
            }),
            ["sample", slot, _, kilobytes, threads] => {
                self.samples.push(Sample {
                    at: line.at,
                    slot: number(slot) as usize,
                    kilobytes: number(kilobytes),
                    threads: number(threads),
                });
            }
            ["exited", slot, generation, status] => self
                .strays
                .push(format!("worker {slot}.{generation} ended before the end: {status}")),
            _ => self.odd(SAMPLES, line),
        }
    }
}

/// Whether a fault of that kind kills or stops a server, or cuts it off from the others.
fn takes_a_server(kind: &str) -> bool {
    ["kill-all", "rolling-restart"].contains(&kind)
        || ["-server", "-leader", "-follower"].iter().any(|end| kind.ends_with(end))
}

impl Attempt {
    /// `None` if the line does not fit this attempt.
    fn note(&mut self, line: &Line) -> Option<()> {
        let at = line.at;
        let words = line.words();
        match (&mut self.outcome, &words[..]) {
            (Outcome::Pending, ["got", token, session, path, others @ ..]) => {
                let other = |pair: &[&str]| match pair {
                    [token, path] => Some((token.parse().ok()?, (*path).to_owned())),
                    _ => None,
                };
                self.done = Some(at);
                self.outcome = Outcome::Held(Box::new(Hold {
                    token: token.parse().ok()?,
                    path: (*path).to_owned(),
                    others: others.chunks(2).map(other).collect::<Option<_>>()?,
                    session: i64::from_str_radix(session, 16).ok()?,
                    got: at,
                    claimed: None,
                    unheld: None,
                    lost: None,
                    refused: Vec::new(),
                    ensured: Vec::new(),
                    release: None,
                    released: None,
                }));
            }
            (Outcome::Pending, ["nothing"]) => {
                self.done = Some(at);
                self.outcome = Outcome::Nothing;
            }
            (Outcome::Pending, ["cancelled"]) => {
                self.done = Some(at);
                self.outcome = Outcome::Cancelled;
            }
            (Outcome::Pending, ["failed", kind, message]) => {
                self.done = Some(at);
                let (kind, message) = ((*kind).to_owned(), (*message).to_owned());
                self.outcome = Outcome::Failed { kind, message };
            }
            (Outcome::Held(hold), ["held", asked]) => {
                let asked = asked.parse().ok()?;
                hold.claimed = hold.claimed.max(Some(asked));
            }
            (Outcome::Held(hold), ["unheld", _]) => hold.unheld = hold.unheld.or(Some(at)),
            (Outcome::Held(hold), ["wrote", _, verdict]) => {
                if *verdict == "refused" {
                    hold.refused.push(at);
                }
            }
            (Outcome::Held(hold), ["ensured", asked, outcome]) => {
                if *outcome == "ok" {
                    // It was held at some time during that call.
                    hold.claimed = hold.claimed.max(Some(asked.parse().ok()?));
                }
                hold.ensured.push((at, (*outcome).to_owned()));
            }
            (Outcome::Held(hold), ["release", _]) => hold.release = Some(at),
            (Outcome::Held(hold), ["released", outcome]) => {
                hold.released = Some((at, (*outcome).to_owned()));
            }
            _ => return None,
        }
        Some(())
    }
}
