//! The command line.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::contestant::Contestant;
use super::workload::{self, Workload};

pub(crate) const USAGE: &str = "\
usage: bench [--rounds N] [--seconds S] [--only WORKLOAD,..] [--peers NAME,..] [--write]

  --rounds N          how often each client is measured in each workload (5); at least 3
  --seconds S         how long each measurement takes (1.5); may be a fraction
  --only WORKLOAD,..  one, one-nofsync, one-netty, own, shared-8, shared-8-nofsync, shared-32,
                      processes-2, processes-4, processes-4x8, one-1ms, processes-2-1ms,
                      processes-4-1ms, queued-200, queued-1000, held-10000 (all)
  --peers NAME,..     curator, kazoo, zookeeper-client, raw (all that are built)
  --limit SECONDS     give up a measurement that takes longer (60)
  --write             write table, figures and plots to benches/results, as part of the
                      documentation, not to target/bench
  --out DIR           write them to DIR
  --accept-load       measure even if other programs load the machine; the results are
                      not to be quoted. Allows fewer than 3 rounds

The exit code is 0 if the measurement succeeded, whether or not the goals are met.";

/// How many rounds a ratio needs at least.
const NEEDED: usize = 3;

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) length: Duration,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) contestants: Vec<Contestant>,
    pub(crate) limit: Duration,
    pub(crate) out: PathBuf,
    /// The directory of other clients' programs.
    pub(crate) programs: PathBuf,
    /// Whether runs count that other load has spoiled; for trying out this program.
    pub(crate) accept_load: bool,
    pub(crate) help: bool,
    /// Set if this process is a worker. The bench starts workers with this option; users do not.
    pub(crate) worker: Option<Contestant>,
}

impl Options {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            rounds: 5,
            length: Duration::from_millis(1500),
            workloads: workload::ALL.into(),
            contestants: Contestant::ALL.into(),
            limit: Duration::from_secs(60),
            out: "target/bench".into(),
            programs: "target/tmp/peers".into(),
            accept_load: false,
            help: false,
            worker: None,
        };
        let (mut write, mut partial) = (false, false);
        while let Some(option) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{option} needs a value"));
            match option.as_str() {
                "--rounds" => options.rounds = number::<usize>(&option, &value()?)?.max(1),
                "--seconds" => options.length = seconds(&option, &value()?)?,
                "--only" => {
                    partial = true;
                    options.workloads = each(&option, &value()?, Workload::of_name)?;
                }
                "--peers" => {
                    partial = true;
                    let chosen = each(&option, &value()?, Contestant::of_name)?;
                    let has_floors = chosen.contains(&Contestant::Raw);
                    options.contestants.retain(|one| {
                        chosen.contains(one) || one.is_ours() || (one.is_floor() && has_floors)
                    });
                }
                "--limit" => options.limit = seconds(&option, &value()?)?,
                "--write" => write = true,
                "--out" => options.out = value()?.into(),
                "--programs" => options.programs = value()?.into(),
                "--accept-load" => options.accept_load = true,
                "--help" | "-h" => options.help = true,
                "--worker" => {
                    let name = value()?;
                    let worker = Contestant::of_name(&name).ok_or(format!("no worker: {name}"))?;
                    options.worker = Some(worker);
                }
                _ => return Err(format!("unknown option: {option}")),
            }
        }
        if options.rounds < NEEDED && !options.accept_load {
            return Err(format!("--rounds: at least {NEEDED}, or use --accept-load"));
        }
        if write {
            if partial || options.accept_load {
                return Err("--write excludes --only, --peers and --accept-load".to_owned());
            }
            options.out = "benches/results".into();
        }
        Ok(options)
    }

    /// How many clean rounds of both sides a ratio needs.
    pub(crate) fn needed(&self) -> usize {
        if self.accept_load { 1 } else { NEEDED }
    }
}

fn number<N: FromStr>(option: &str, text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{option}: {text:?} is not a valid number"))
}

fn seconds(option: &str, text: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(number(option, text)?)
        .ok()
        .filter(|length| !length.is_zero())
        .ok_or_else(|| format!("{option}: {text:?} is not a valid length of time"))
}

fn each<T>(option: &str, text: &str, of_name: fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    let parse = |name: &str| of_name(name).ok_or_else(|| format!("{option}: unknown {name:?}"));
    text.split(',').map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_is_chosen_is_what_is_run() {
        let options = parse("--only own,queued-200 --peers kazoo,raw").unwrap();
        let names: Vec<&str> = options.workloads.iter().map(|workload| workload.name).collect();
        assert_eq!(names, ["own", "queued-200"]);
        assert!(options.contestants.contains(&Contestant::Zklock));
        assert!(options.contestants.contains(&Contestant::Kazoo));
        assert!(options.contestants.contains(&Contestant::RawUnwaited));
        assert!(!options.contestants.contains(&Contestant::Curator));
        assert!(parse("--only nothing").is_err());
    }

    #[test]
    fn the_documentation_has_whole_runs_only() {
        assert_eq!(parse("--write").unwrap().out, PathBuf::from("benches/results"));
        for partial in ["--only one", "--peers raw", "--accept-load", "--rounds 2"] {
            assert!(parse(&format!("--write {partial}")).is_err(), "{partial}");
        }
    }

    #[test]
    fn a_ratio_takes_three_rounds_unless_nothing_counts() {
        assert!(parse("--rounds 2").is_err());
        assert_eq!(parse("--rounds 3").unwrap().needed(), 3);
        assert_eq!(parse("--rounds 1 --accept-load").unwrap().needed(), 1);
    }
}
