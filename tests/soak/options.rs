//! The command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::model::Run;
use super::stranger;
use super::support::promised_lease::PromisedLease;
use super::support::transport::Transport;

/// The servers' tick.
pub(crate) const TICK: Duration = Duration::from_millis(200);

pub(crate) const USAGE: &str = "\
usage: soak [--minutes N] [--nodes 1|3] [--seed S] [--out DIR] [...]
       soak --check DIR

  --minutes N         how long to run (2); may be a fraction
  --nodes 1|3         number of servers (3)
  --seed S            decides which faults happen, in which order; a random seed is printed
  --out DIR           where to write histories, summary and timeline (target/soak/...)
  --plan all|rolling|lease|late
                      all faults; or only restarts of one server after another, during which
                      no session may be lost; or only faults that a session's lease must
                      survive, such as sessions that open slowly and throttled heartbeats; or
                      only stalled links between servers, and one address in front of all, by
                      which requests are carried out late (all)
  --locks all|patience|beside
                      locks of all kinds; or only those with patience, of three lengths; or
                      those beside others on the same paths, and Curator's (all)
  --tick none|half|all
                      which workers tell the library the servers' tick (none; with --plan
                      lease half)
  --unequal more|less|both
                      one server grants at least twice the session timeout, or at most half of
                      it; or one does this and one that (all grant what is asked for). A grant
                      of less whose answer is lost may leave two holders for a while
  --network namespaces|loopback
                      a network namespace for each server, which needs root and the command ip,
                      or all servers on loopback (namespaces where possible)
  --workers N         worker processes (4)
  --threads N         threads in each (4); the last one uses a second lock. One more thread
                      uses the recipes that are not locks
  --session SECONDS   session timeout (2; with --plan rolling and lease 10)
  --tls               clients and servers talk by TLS, with certificates of both sides
  --break-it          give each worker its own locks, to show that the checks find violations
  --check DIR         only check the histories of an earlier run

The exit code is 0 if no violation was found, 1 if one was found, 2 if it could not run.";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    All,
    Rolling,
    Lease,
    Late,
}

impl Plan {
    const NAMES: [(&str, Plan); 4] = [
        ("all", Plan::All),
        ("rolling", Plan::Rolling),
        ("lease", Plan::Lease),
        ("late", Plan::Late),
    ];

    pub(crate) fn name(self) -> &'static str {
        name_of(self, &Plan::NAMES)
    }
}

/// Which locks the workers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locks {
    All,
    Patience,
    Beside,
}

impl Locks {
    const NAMES: [(&str, Locks); 3] =
        [("all", Locks::All), ("patience", Locks::Patience), ("beside", Locks::Beside)];

    pub(crate) fn name(self) -> &'static str {
        name_of(self, &Locks::NAMES)
    }

    pub(crate) fn of(run: &Run) -> Locks {
        let found = Locks::NAMES.iter().find(|(name, _)| *name == run.setting("locks"));
        found.map_or(Locks::All, |(_, locks)| *locks)
    }
}

/// Which workers tell the library the servers' tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stated {
    None,
    Half,
    All,
}

impl Stated {
    const NAMES: [(&str, Stated); 3] =
        [("none", Stated::None), ("half", Stated::Half), ("all", Stated::All)];

    pub(crate) fn name(self) -> &'static str {
        name_of(self, &Stated::NAMES)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) length: Duration,
    pub(crate) nodes: usize,
    pub(crate) seed: u64,
    pub(crate) out: Option<PathBuf>,
    pub(crate) plan: Plan,
    pub(crate) locks: Locks,
    /// Whether to use namespaces rather than loopback; `None`: namespaces where possible.
    pub(crate) namespaces: Option<bool>,
    pub(crate) workers: usize,
    pub(crate) threads: usize,
    pub(crate) session: Duration,
    pub(crate) stated: Option<Stated>,
    /// Whether one server grants more than the session timeout, and whether one grants less.
    pub(crate) unequal: (bool, bool),
    pub(crate) break_it: bool,
    pub(crate) check: Option<PathBuf>,
    pub(crate) help: bool,
    /// Set if this process is a worker. The soak starts workers with this option; users do not.
    pub(crate) worker: Option<Worker>,
}

/// The arguments of a worker process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worker {
    pub(crate) slot: usize,
    pub(crate) generation: usize,
    pub(crate) hosts: String,
}

impl Options {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            length: Duration::from_secs(120),
            nodes: 3,
            seed: super::history::now() % 1_000_000,
            out: None,
            plan: Plan::All,
            locks: Locks::All,
            namespaces: None,
            workers: 4,
            threads: 4,
            session: Duration::ZERO,
            stated: None,
            unequal: (false, false),
            break_it: false,
            check: None,
            help: false,
            worker: None,
        };
        while let Some(option) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{option} needs a value"));
            match option.as_str() {
                "--minutes" => options.length = minutes(&option, &value()?)?,
                "--nodes" => options.nodes = one_of(&option, &value()?, &[("1", 1), ("3", 3)])?,
                "--seed" => options.seed = number(&option, &value()?)?,
                "--out" => options.out = Some(value()?.into()),
                "--plan" => options.plan = one_of(&option, &value()?, &Plan::NAMES)?,
                "--locks" => options.locks = one_of(&option, &value()?, &Locks::NAMES)?,
                "--tick" => options.stated = Some(one_of(&option, &value()?, &Stated::NAMES)?),
                "--unequal" => {
                    let all =
                        [("more", (true, false)), ("less", (false, true)), ("both", (true, true))];
                    options.unequal = one_of(&option, &value()?, &all)?;
                }
                "--network" => {
                    let networks = [("namespaces", true), ("loopback", false)];
                    options.namespaces = Some(one_of(&option, &value()?, &networks)?);
                }
                "--workers" => options.workers = number::<usize>(&option, &value()?)?.max(1),
                "--threads" => options.threads = number::<usize>(&option, &value()?)?.max(1),
                "--session" => {
                    options.session =
                        Duration::from_secs(number::<u64>(&option, &value()?)?.max(1));
                }
                "--tls" if Transport::wanted().is_tls() => {}
                "--tls" => return Err("--tls is an option of scripts/soak".to_owned()),
                "--break-it" => options.break_it = true,
                "--check" => options.check = Some(value()?.into()),
                "--help" | "-h" => options.help = true,
                "--worker" => {
                    options.worker = Some(Worker {
                        slot: number(&option, &value()?)?,
                        generation: number(&option, &value()?)?,
                        hosts: value()?,
                    });
                }
                _ => return Err(format!("unknown option: {option}")),
            }
        }
        if options.session.is_zero() {
            options.session = Duration::from_secs(match options.plan {
                Plan::All | Plan::Late => 2,
                Plan::Rolling | Plan::Lease => 10,
            });
        }
        if options.unequal != (false, false) && options.nodes == 1 {
            return Err("--unequal needs three servers: use --nodes 3".to_owned());
        }
        if matches!(options.plan, Plan::Rolling | Plan::Late) && options.nodes == 1 {
            let plan = options.plan.name();
            return Err(format!("--plan {plan} needs three servers: use --nodes 3"));
        }
        Ok(options)
    }

    pub(crate) fn stated(&self) -> Stated {
        let default = if self.plan == Plan::Lease { Stated::Half } else { Stated::None };
        self.stated.unwrap_or(default)
    }

    /// Whether a worker has one address, in front of all servers, instead of one for each server.
    pub(crate) fn has_front(&self, slot: usize) -> bool {
        let has_front = match self.plan {
            Plan::All => slot % 2 == 1,
            Plan::Late => true,
            Plan::Rolling | Plan::Lease => false,
        };
        has_front && self.nodes > 1
    }

    /// The tick that a worker tells the library.
    pub(crate) fn tick(&self, slot: usize) -> Option<Duration> {
        let states = match self.stated() {
            Stated::None => false,
            Stated::Half => slot % 2 == 1,
            Stated::All => true,
        };
        states.then_some(TICK)
    }

    /// The least and the most that a server grants.
    pub(crate) fn granted(&self) -> (Duration, Duration) {
        let (more, less) = self.unequal;
        let least = if less { self.session / 2 } else { self.session };
        let most = if more { self.session * 2 } else { self.session };
        // The stranger's sessions live that long.
        let most = if self.locks == Locks::Beside { most.max(stranger::SESSION) } else { most };
        (least, most)
    }

    /// What a worker's sessions may rely on.
    pub(crate) fn lease(&self, slot: usize) -> PromisedLease {
        let least = self.granted().0;
        // A grant of another session timeout may show longer ticks.
        let shown = (self.unequal != (false, false)).then_some(least / 2);
        PromisedLease::new(least, shown.or(self.tick(slot)))
    }
}

fn number<N: FromStr>(option: &str, text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{option}: {text:?} is not a valid number"))
}

fn minutes(option: &str, text: &str) -> Result<Duration, String> {
    let minutes: f64 = number(option, text)?;
    Duration::try_from_secs_f64(minutes * 60.0)
        .ok()
        .filter(|length| !length.is_zero())
        .ok_or_else(|| format!("{option}: {text:?} is not a valid length of time"))
}

fn name_of<T: PartialEq>(one: T, all: &[(&'static str, T)]) -> &'static str {
    all.iter().find(|(_, other)| *other == one).expect("all have names").0
}

fn one_of<T: Clone>(option: &str, text: &str, all: &[(&str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| value.clone()).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        format!("{option}: {text:?} is not one of {}", names.join(", "))
    })
}
