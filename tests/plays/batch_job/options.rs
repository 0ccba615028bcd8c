//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use crate::support::Result;

pub(crate) const USAGE: &str = "\
usage: batch_job [--workers N] [--threads N] [--rounds N] [--ledger FILE]
                 [--no-fencing | --break-it]
       batch_job --check-ledger FILE

  --workers N          worker processes (3)
  --threads N          threads in each of them (4)
  --rounds N           entries to write in total (3500)
  --ledger FILE        write the entries to FILE, and keep it
  --no-fencing         accept every write, to show what happens without checks of tokens
  --break-it           give each worker its own lock, without fencing, to show what happens
                       without a working lock. No worker is paused or killed
  --check-ledger FILE  only check a ledger that was kept";

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) workers: usize,
    pub(crate) threads: usize,
    pub(crate) rounds: u64,
    pub(crate) ledger: Option<PathBuf>,
    pub(crate) no_fencing: bool,
    pub(crate) break_it: bool,
    pub(crate) check: Option<PathBuf>,
    pub(crate) help: bool,
    // Set if this process is a worker. The program starts workers with these options; users do not.
    pub(crate) worker: Option<usize>,
    pub(crate) hosts: String,
    pub(crate) lock: String,
    pub(crate) temporary: bool,
}

impl Options {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
        let mut options = Options {
            workers: 3,
            threads: 4,
            rounds: 3500,
            ledger: None,
            no_fencing: false,
            break_it: false,
            check: None,
            help: false,
            worker: None,
            hosts: String::new(),
            lock: String::new(),
            temporary: false,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--workers" => options.workers = positive(&argument, &value()?)?,
                "--threads" => options.threads = positive(&argument, &value()?)?,
                "--rounds" => options.rounds = positive(&argument, &value()?)?,
                "--ledger" => options.ledger = Some(value()?.into()),
                "--no-fencing" => options.no_fencing = true,
                "--break-it" => options.break_it = true,
                "--check-ledger" => options.check = Some(value()?.into()),
                "--help" | "-h" => options.help = true,
                "--worker" => options.worker = Some(positive(&argument, &value()?)?),
                "--hosts" => options.hosts = value()?,
                "--lock" => options.lock = value()?,
                "--temporary" => options.temporary = true,
                _ => return Err(format!("unknown option: {argument}").into()),
            }
        }
        Ok(options)
    }

    /// Whether the ledger checks tokens. Tokens of different locks cannot be compared.
    pub(crate) fn fenced(&self) -> bool {
        !self.no_fencing && !self.break_it
    }
}

fn positive<N: FromStr + PartialOrd + From<u8>>(option: &str, text: &str) -> Result<N> {
    let number: Option<N> = text.parse().ok().filter(|number| *number >= N::from(1));
    number.ok_or_else(|| format!("{option}: {text:?} is not a number above 0").into())
}
