//! Several worker processes, each with several threads, append to one file under one lock. Half
//! way, one of them is killed while it holds the lock. At the end the file is read with suspicion.
//!
//! ```text
//! cargo run --release --example batch_job
//! ```
//!
//! It starts a ZooKeeper server of its own unless `ZKLOCK_HOSTS` names one. The exit code is 0 if
//! never two writers were at it at once, 1 if they were, 2 if it could not run.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "examples talk to people")]

mod support;

use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio, exit};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use support::ledger::{Audit, Kind, Ledger, Line, Writer, audit, now, seconds};
use support::progress::{Display, Progress};
use support::{Result, ZooKeeper, unique};
use zklock::{Client, DistributedLock, LockGuard};

/// How soon the lock of a process that dies passes on, if the server agrees.
const SESSION_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an entry takes to write.
const WORK: Duration = Duration::from_millis(1);
const BASE: &str = "/zklock-demo";
/// To a worker: whichever of its threads next has the lock is not to let go of it.
const STAY: &str = "stay";
/// From a worker: so it is.
const STAYING: &str = "staying";

const USAGE: &str = "\
usage: batch_job [--workers N] [--threads N] [--rounds N] [--ledger FILE] [--break-it]
       batch_job --check-ledger FILE

  --workers N          worker processes (3)
  --threads N          threads in each of them (4)
  --rounds N           entries to write, all together (3500)
  --ledger FILE        where to write them, and to keep them
  --break-it           give each worker a lock of its own: what if the lock did not work?
  --check-ledger FILE  only read a ledger that was kept";

fn main() -> ExitCode {
    env_logger::init();
    support::exit(run())
}

fn run() -> Result<bool> {
    let options = match Options::parse(env::args().skip(1)) {
        Ok(options) => options,
        Err(reason) => return Err(format!("{reason}\n\n{USAGE}").into()),
    };
    if options.help {
        println!("{USAGE}");
        Ok(true)
    } else if let Some(worker) = options.worker {
        work(worker, &options)
    } else if let Some(path) = &options.check {
        let found = audit(&fs::read_to_string(path)?);
        println!("{} rounds in {} lines", found.rounds, found.lines);
        Ok(report_faults(&found))
    } else {
        lead(options)
    }
}

#[derive(Clone, Debug)]
struct Options {
    workers: usize,
    threads: usize,
    rounds: u64,
    ledger: Option<PathBuf>,
    break_it: bool,
    check: Option<PathBuf>,
    help: bool,
    // Not for people: what makes this process a worker.
    worker: Option<usize>,
    hosts: String,
    lock: String,
    temporary: bool,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
        let mut options = Options {
            workers: 3,
            threads: 4,
            rounds: 3500,
            ledger: None,
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
                "--break-it" => options.break_it = true,
                "--check-ledger" => options.check = Some(value()?.into()),
                "--help" | "-h" => options.help = true,
                "--worker" => options.worker = Some(positive(&argument, &value()?)?),
                "--hosts" => options.hosts = value()?,
                "--lock" => options.lock = value()?,
                "--temporary" => options.temporary = true,
                _ => return Err(format!("{argument}: no such option").into()),
            }
        }
        Ok(options)
    }
}

fn positive<N: FromStr + PartialOrd + From<u8>>(option: &str, text: &str) -> Result<N> {
    let number: Option<N> = text.parse().ok().filter(|number| *number >= N::from(1));
    number.ok_or_else(|| format!("{option}: {text:?} is not a number from 1 on").into())
}

// ----- a worker

fn work(worker: usize, options: &Options) -> Result<bool> {
    let path = options.ledger.as_deref().ok_or("--worker needs --ledger")?;
    let zk = Client::builder(&options.hosts).session_timeout(SESSION_TIMEOUT).connect()?;
    let (stay, leaving) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let writers: Vec<_> = (1..=options.threads)
            .map(|thread| {
                let (writer, zk, stay, leaving) = (Writer { worker, thread }, &zk, &stay, &leaving);
                scope.spawn(move || {
                    if let Err(error) = write_entries(writer, zk, path, options, stay)
                        && !leaving.load(Ordering::SeqCst)
                    {
                        // The whole worker stops, as a job does that can no longer be sure.
                        tell(&format!("thread {thread} failed: {error}"));
                        exit(1);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            for order in io::stdin().lines().map_while(Result::ok) {
                stay.store(order == STAY, Ordering::SeqCst);
            }
            // Whoever started this process is gone, however it ended.
            leaving.store(true, Ordering::SeqCst);
            if options.temporary {
                let _ = fs::remove_file(path);
            }
            zk.close();
            exit(1);
        });
        for writer in writers {
            let _ = writer.join();
        }
        if leaving.load(Ordering::SeqCst) {
            park();
        }
        zk.close();
        exit(0);
    })
}

/// To the process that started this one, if it is still there.
fn tell(news: &str) {
    let _ = writeln!(io::stdout(), "{news}");
}

fn park() -> ! {
    loop {
        thread::park();
    }
}

fn write_entries(
    writer: Writer,
    zk: &Client,
    path: &Path,
    options: &Options,
    stay: &AtomicBool,
) -> Result<()> {
    let name = match options.break_it {
        true => format!("{}-{}", options.lock, writer.worker),
        false => options.lock.clone(),
    };
    let lock = DistributedLock::builder(zk, BASE, name).data(writer.to_string()).build();
    loop {
        let guard = lock.lock()?;
        let token = guard.fencing_token();
        let mut ledger = Ledger::open(path)?;
        let last = ledger.last()?;
        let round = match last {
            None => 1,
            Some(Line { kind: Kind::End, round, .. }) => round + 1,
            Some(Line { round, .. }) => round,
        };
        if round > options.rounds {
            return Ok(());
        }
        let line = |kind| Line { kind, round, token, writer, at: now() };
        if last.is_some_and(|last| last.kind == Kind::Begin) {
            // We hold the lock, so who has begun this is dead.
            append(&mut ledger, &guard, line(Kind::Clear))?;
        }
        append(&mut ledger, &guard, line(Kind::Begin))?;
        if stay.swap(false, Ordering::SeqCst) {
            tell(STAYING);
            park();
        }
        thread::sleep(WORK);
        append(&mut ledger, &guard, line(Kind::End))?;
        drop(guard);
    }
}

fn append(ledger: &mut Ledger, guard: &LockGuard, line: Line) -> Result<()> {
    if !guard.is_held() {
        let why = guard.lost().reason().map_or("not held".to_owned(), |why| why.to_string());
        return Err(format!("the lock is lost ({why}), so nothing is written any more").into());
    }
    Ok(ledger.append(line)?)
}

// ----- the process that starts the workers

fn lead(options: Options) -> Result<bool> {
    let zookeeper = ZooKeeper::find()?;
    let zk = Client::builder(zookeeper.hosts()).session_timeout(SESSION_TIMEOUT).connect()?;
    let name = unique("ledger");
    let temporary = options.ledger.is_none();
    let path =
        options.ledger.clone().unwrap_or_else(|| env::temp_dir().join(format!("zklock-{name}")));
    File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let worker = Options {
        ledger: Some(path.clone()),
        hosts: zookeeper.hosts().to_owned(),
        lock: name,
        temporary,
        ..options
    };
    println!(
        "{} workers of {} threads each write {} rounds to {}",
        worker.workers,
        worker.threads,
        worker.rounds,
        path.display()
    );
    if worker.break_it {
        println!("each worker has a lock of its own (--break-it)");
    } else {
        println!("under the lock {BASE}/{}", worker.lock);
    }

    let mut crew = Crew::start(&worker)?;
    let ends = crew.watch(&worker, &zk, &path)?;
    drop(crew);

    let mut found = audit(&fs::read_to_string(&path)?);
    for (torn, _) in &found.cleared {
        let worker = torn.writer.worker;
        if ends.killed.is_none_or(|(killed, _)| killed != worker) && !ends.failed.contains(&worker)
        {
            found.faults.push(format!("worker {worker} was taken for dead, and was not"));
        }
    }
    summarize(&worker, &found, &ends, zk.session_timeout());
    let mut fine = report_faults(&found);
    if found.rounds < worker.rounds {
        println!("FAILED: all workers ended after {} rounds", found.rounds);
        fine = false;
    }
    if fine && temporary {
        fs::remove_file(&path)?;
    } else {
        println!("the ledger is in {}", path.display());
    }
    Ok(fine)
}

/// The worker processes. They end when their standard input does: however this process ends.
struct Crew {
    members: Vec<(Child, ChildStdin)>,
    news: Receiver<(usize, News)>,
}

enum News {
    /// It holds the lock and will not let go of it.
    Staying,
    Failed(String),
}

/// How workers ended before their time.
#[derive(Default)]
struct Ends {
    /// Which one was killed, and when, in microseconds since 1970.
    killed: Option<(usize, u64)>,
    failed: Vec<usize>,
}

impl Crew {
    fn start(options: &Options) -> Result<Crew> {
        let (tell, news) = channel();
        let mut crew = Crew { members: Vec::new(), news };
        for worker in 1..=options.workers {
            let mut command = Command::new(env::current_exe()?);
            command
                .args(["--worker", &worker.to_string(), "--hosts", &options.hosts])
                .args(["--lock", &options.lock, "--threads", &options.threads.to_string()])
                .args(["--rounds", &options.rounds.to_string()])
                .args(
                    options.ledger.iter().flat_map(|path| ["--ledger".as_ref(), path.as_os_str()]),
                )
                .args(options.break_it.then_some("--break-it"))
                .args(options.temporary.then_some("--temporary"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                // Out of reach of the terminal's Ctrl-C: they are to see the end of their input.
                .process_group(0);
            let mut child = command.spawn()?;
            let (Some(orders), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
                return Err("a worker without pipes".into());
            };
            crew.members.push((child, orders));
            let tell = tell.clone();
            thread::spawn(move || listen(worker, output, &tell));
        }
        Ok(crew)
    }

    /// Shows how the work goes on, and kills the first worker half way, until all have ended.
    fn watch(&mut self, options: &Options, zk: &Client, path: &Path) -> Result<Ends> {
        let mut display = Display::new();
        let mut progress = Progress::follow(path)?;
        let mut ends = Ends::default();
        let mut asked = options.workers < 2 || options.break_it;
        let mut passed_on = false;
        loop {
            let news = self.news.recv_timeout(Duration::from_millis(100));
            progress.read()?;
            match news {
                Ok((worker, News::Staying)) => {
                    self.members[worker - 1].0.kill()?;
                    ends.killed = Some((worker, now()));
                    let round = progress.rounds + 1;
                    display.line(&format!(
                        "killed worker {worker} (SIGKILL) in round {round}, while it held the lock"
                    ));
                    display.line(&format!("the queue: {}", queue(zk, options)?));
                }
                Ok((worker, News::Failed(what))) => {
                    ends.failed.push(worker);
                    display.line(&what);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if !asked && progress.rounds >= options.rounds / 2 {
                asked = true;
                writeln!(self.members[0].1, "{STAY}")?;
            }
            if let Some((worker, at)) = ends.killed
                && !passed_on
            {
                let limit = zk.session_timeout().as_secs_f64();
                if let Some(next) = progress.cleared.filter(|next| next.at > at) {
                    passed_on = true;
                    let waited = seconds(at, next.at);
                    display.line(&format!(
                        "after {waited:.1} s its lock is with {}; work goes on",
                        next.writer
                    ));
                } else {
                    display.status(&format!(
                        "waiting for the session of worker {worker} to end: {:.1} s of {limit:.1} s",
                        seconds(at, now()),
                    ));
                }
            } else {
                display.progress(options.rounds, &progress);
            }
        }
        display.progress(options.rounds, &progress);
        display.end();
        Ok(ends)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (mut child, orders) in self.members.drain(..) {
            drop(orders);
            let _ = child.wait();
        }
    }
}

fn listen(worker: usize, output: impl Read, tell: &Sender<(usize, News)>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let news = if line == STAYING {
            News::Staying
        } else {
            News::Failed(format!("worker {worker}: {line}"))
        };
        let _ = tell.send((worker, news));
    }
}

/// Who holds the lock and who waits for it, as ZooKeeper knows it.
fn queue(zk: &Client, options: &Options) -> Result<String> {
    let all = DistributedLock::new(zk, BASE, &options.lock).contenders()?;
    let first: Vec<String> = all.iter().take(3).map(|contender| contender.label()).collect();
    let more = all.len() - first.len();
    Ok(format!("{}, {more} more", first.join(", ")))
}

// ----- what became of it

fn summarize(options: &Options, found: &Audit, ends: &Ends, session_timeout: Duration) {
    let mut ways: Vec<Duration> = found.passes.iter().map(|(way, _)| *way).collect();
    ways.sort_unstable();
    let at = |share: f64| ways.get((ways.len() as f64 * share) as usize).copied();
    let ms = |way: Option<Duration>| way.unwrap_or_default().as_secs_f64() * 1e3;
    let between_processes = found.passes.iter().filter(|(_, other)| *other).count();
    let waited: f64 = found.cleared.iter().map(|(torn, next)| seconds(torn.at, next.at)).sum();
    let took = match (found.first, found.last) {
        (Some(first), Some(last)) => seconds(first.at, last.at) - waited,
        _ => 0.0,
    };

    println!();
    println!(
        "rounds       {}; workers: {}, threads in each: {}",
        found.rounds, options.workers, options.threads
    );
    if !ways.is_empty() {
        println!("hand-overs   {}, {between_processes} of them to another process", ways.len());
        println!(
            "latency      of a hand-over: median {:.1} ms, 99 % under {:.1} ms, at most {:.1} ms",
            ms(at(0.5)),
            ms(at(0.99)),
            ms(ways.last().copied())
        );
    }
    match (ends.killed, found.cleared.first()) {
        (Some((worker, at)), Some((_, next))) => println!(
            "killed       worker {worker}; its lock passed on after {:.1} s (session time-out {:.1} s)",
            seconds(at, next.at),
            session_timeout.as_secs_f64()
        ),
        _ => println!("killed       no worker"),
    }
    println!(
        "speed        {:.0} rounds a second, each with {WORK:?} of work{}",
        found.rounds as f64 / took.max(0.001),
        if waited > 0.0 { ", that wait left out" } else { "" }
    );
}

fn report_faults(found: &Audit) -> bool {
    const SHOWN: usize = 5;
    for fault in found.faults.iter().take(SHOWN) {
        println!("FAULT        {fault}");
    }
    if found.faults.len() > SHOWN {
        println!("             and {} more", found.faults.len() - SHOWN);
    }
    let fine = found.faults.is_empty();
    if fine {
        println!(
            "the ledger   is in order: never two writers at once, no round lost or repeated, tokens grow"
        );
    } else {
        println!("the ledger   IS NOT IN ORDER; faults: {}", found.faults.len());
    }
    fine
}
