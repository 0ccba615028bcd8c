//! A whole run: each workload in rounds, in each round one contestant after another.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::contestant::Contestant;
use super::crew::{Trouble, Worker};
use super::machine::{self, Load};
use super::network;
use super::options::Options;
use super::results::{Latency, Missing, Results, Run};
use super::support::certificates::Files;
use super::support::server::{Place, Server};
use super::support::transport::{secure_hosts, with_tls};
use super::workload::{ServerKind, Work, Workload};

/// How often a run is tried if other load spoils it.
const ATTEMPTS: usize = 3;
/// How many runs of a workload are tried again at most, in percent of its runs.
const AGAIN: usize = 30;
/// How long to wait for other load to end before trying again.
const PAUSE: Duration = Duration::from_secs(1);
const START: Duration = Duration::from_secs(60);

pub(crate) fn campaign(options: &Options, stop: &AtomicBool) -> Result<Results, Box<dyn Error>> {
    let mut campaign = Campaign {
        options,
        stop,
        logs: options.out.join("logs"),
        servers: BTreeMap::new(),
        networks: BTreeMap::new(),
        workers: BTreeMap::new(),
        again: 0,
        results: Results {
            workloads: options.workloads.clone(),
            runs: Vec::new(),
            missing: Vec::new(),
            needed: options.needed(),
            rounds: options.rounds,
            seconds: options.length.as_secs_f64(),
            machine: machine::describe(),
            server: String::new(),
            accepted_load: options.accept_load,
        },
    };
    fs::create_dir_all(&campaign.logs)?;
    for workload in &options.workloads {
        campaign.measure(workload)?;
    }
    let Campaign { results, logs, .. } = campaign;
    // Logs are useful only after a failure.
    let _ = fs::remove_dir_all(logs);
    Ok(results)
}

struct Campaign<'a> {
    options: &'a Options,
    stop: &'a AtomicBool,
    logs: PathBuf,
    // Dropped before the servers.
    workers: BTreeMap<(Contestant, usize), Worker>,
    servers: BTreeMap<ServerKind, Server>,
    /// Addresses behind which a server is, as far away as this.
    networks: BTreeMap<(ServerKind, Duration), String>,
    /// How many runs of this workload may still be tried again.
    again: usize,
    results: Results,
}

impl Campaign<'_> {
    fn measure(&mut self, workload: &Workload) -> Result<(), Box<dyn Error>> {
        println!("{}: {}", workload.name, workload.what);
        let is_new_server = self.start_server(workload.server)?;
        let mut present = Vec::new();
        for contestant in workload.contestants {
            if !self.options.contestants.contains(contestant) {
                continue;
            }
            if !contestant.is_there(&self.options.programs) {
                self.miss(workload, *contestant, "not built; see scripts/peers --bench");
                continue;
            }
            match self.prepare(workload, *contestant, is_new_server) {
                Ok(()) => present.push(*contestant),
                Err(trouble) => self.fail(workload, *contestant, trouble)?,
            }
        }
        self.again = (AGAIN * self.options.rounds * present.len()).div_ceil(100);
        for round in 0..self.options.rounds {
            // Each round starts with another contestant.
            let order = (0..present.len()).map(|place| present[(place + round) % present.len()]);
            for contestant in order.collect::<Vec<_>>() {
                if self.is_missing(workload, contestant) {
                    continue;
                }
                match self.run(workload, contestant, round) {
                    Ok(run) => {
                        println!("  {}", line(&run));
                        self.results.runs.push(run);
                    }
                    Err(trouble) => self.fail(workload, contestant, trouble)?,
                }
            }
        }
        for contestant in present {
            match self.ask(contestant, workload.processes, "close", START) {
                Err(Trouble::Stopped) => return Err("stopped".into()),
                Ok(_) if contestant.is_compiled_at_work() => {}
                // A new process for the next workload: its memory is that of this workload only.
                Ok(_) | Err(_) => self.drop_workers(contestant),
            }
        }
        Ok(())
    }

    /// Starts a server if there is none yet, and returns whether it did.
    fn start_server(&mut self, kind: ServerKind) -> Result<bool, Box<dyn Error>> {
        if self.servers.contains_key(&kind) {
            return Ok(false);
        }
        // As in production. By default, tests start servers that start fast and stay small.
        let java = "_JAVA_OPTIONS=-XX:TieredStopAtLevel=4 -Xmx512m";
        let command = vec!["env".to_owned(), java.to_owned()];
        let builder = match kind {
            ServerKind::WithTls => with_tls(Server::builder(), Files::shared(), "need"),
            _ => Server::builder(),
        };
        let server = builder
            .tick(2000)
            .min_session(4000)
            .force_sync(kind != ServerKind::WithoutFsync)
            .property("zookeeper.preAllocSize=65536")
            .place(Place { command, ..Place::default() })
            .start()?;
        let version = server.four_letter("srvr")?;
        let version = version.lines().find_map(|line| line.strip_prefix("Zookeeper version: "));
        self.results.server = version.and_then(|text| text.split('-').next()).unwrap_or("?").into();
        self.servers.insert(kind, server);
        Ok(true)
    }

    /// Starts a contestant's processes, connects them, and warms them up.
    fn prepare(
        &mut self,
        workload: &Workload,
        contestant: Contestant,
        is_new_server: bool,
    ) -> Result<(), Trouble> {
        let path = path(workload, contestant);
        for index in 0..workload.processes {
            if self.workers.contains_key(&(contestant, index)) {
                continue;
            }
            let programs = &self.options.programs;
            let mut worker = Worker::start(contestant, index, programs, &self.logs)
                .map_err(|error| Trouble::Ended(error.to_string()))?;
            worker.ready(START, self.stop)?;
            if contestant.is_compiled_at_work() {
                let hosts = self.servers[&workload.server].hosts();
                for order in compiling(&hosts, &path, self.options.length) {
                    worker.order(&order);
                    worker.answer(START, self.stop)?;
                }
            }
            self.workers.insert((contestant, index), worker);
        }
        let hosts = self.hosts(workload)?;
        let is_by_tls = contestant == Contestant::ZklockTls;
        let hosts = if is_by_tls { secure_hosts(&hosts) } else { hosts };
        let connect = format!("connect {hosts} {}", workload.clients());
        self.ask(contestant, workload.processes, &connect, START)?;
        // A new server gets faster for a while, too, as it is compiled while it runs.
        let usual = self.options.length / 2;
        let length = if is_new_server { usual.max(Duration::from_secs(2)) } else { usual };
        let order = workload.warm_up(&path, length);
        self.ask(contestant, workload.processes, &order, self.limit(workload)).map(drop)
    }

    /// Where the clients find the server, with the workload's network in between.
    fn hosts(&mut self, workload: &Workload) -> Result<String, Trouble> {
        let direct = self.servers[&workload.server].hosts();
        let Some(one_way) = workload.network else { return Ok(direct) };
        if let Some(far) = self.networks.get(&(workload.server, one_way)) {
            return Ok(far.clone());
        }
        let far = network::between(&direct, one_way)
            .map_err(|error| Trouble::Ended(error.to_string()))?;
        self.networks.insert((workload.server, one_way), far.clone());
        Ok(far)
    }

    fn limit(&self, workload: &Workload) -> Duration {
        match workload.work {
            Work::Loop { .. } => self.options.limit + self.options.length * 2,
            Work::Queue { .. } | Work::Hold { .. } | Work::Recipe { .. } => self.options.limit,
        }
    }

    /// Measures one run, and repeats it a few times while other load spoils it.
    fn run(
        &mut self,
        workload: &Workload,
        contestant: Contestant,
        round: usize,
    ) -> Result<Run, Trouble> {
        let mut attempt = 1;
        loop {
            let mut run = self.attempt(workload, contestant, round)?;
            run.spoiled = machine::spoils(run.others) && !self.options.accept_load;
            if !is_tried_again(run.spoiled, attempt, self.again) {
                return Ok(run);
            }
            println!("  {}, trying again", line(&run));
            attempt += 1;
            self.again -= 1;
            let end = Instant::now() + PAUSE;
            while Instant::now() < end && !self.stop.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn attempt(
        &mut self,
        workload: &Workload,
        contestant: Contestant,
        round: usize,
    ) -> Result<Run, Trouble> {
        let pids: Vec<u32> = (0..workload.processes)
            .filter_map(|index| Some(self.workers.get(&(contestant, index))?.pid()))
            .collect();
        let used = || pids.iter().map(|pid| machine::processor_seconds(*pid)).sum::<f64>();
        for pid in &pids {
            // If this fails, the peak is the one since the worker's start.
            let _ = machine::forget_peak(*pid);
        }
        let order = workload.order(&path(workload, contestant), self.options.length);
        let (server, ours) = (&self.servers[&workload.server], self.processes());
        let counters = Counters::read(server);
        let own = Counters::read(server).less(&counters);
        let (before, load) = (used(), Load::now(&ours));
        let answers = self.ask(contestant, workload.processes, &order, self.limit(workload))?;
        let others = load.others(&Load::now(&ours));
        let processor = used() - before;
        let server = &self.servers[&workload.server];
        // Less the requests of the second reading and of the third.
        let counted = Counters::read(server).less(&counters).less(&own).less(&own);
        let switches = answers.iter().map(|answer| answer.switches).sum();
        let (shares, rest): (Vec<u64>, Vec<_>) = answers
            .into_iter()
            .map(|Answer { operations, seconds, waits, .. }| {
                (operations, (operations as f64 / seconds, waits))
            })
            .unzip();
        let (speeds, waits): (Vec<f64>, Vec<_>) = rest.into_iter().unzip();
        let [acquired, handed_over] = Latency::of_waits(&waits);
        Ok(Run {
            workload: workload.name,
            contestant,
            round,
            operations: shares.iter().sum(),
            speed: speeds.iter().sum(),
            processor,
            switches,
            peak: pids.iter().filter_map(|pid| machine::peak(*pid)).max(),
            requests: counted.requests,
            fsyncs: counted.fsyncs,
            shares,
            acquired,
            handed_over,
            others,
            spoiled: false,
        })
    }

    /// Sends an order to all processes of a contestant at once, and waits for their answers.
    fn ask(
        &mut self,
        contestant: Contestant,
        processes: usize,
        order: &str,
        limit: Duration,
    ) -> Result<Vec<Answer>, Trouble> {
        for index in 0..processes {
            if let Some(worker) = self.workers.get_mut(&(contestant, index)) {
                worker.order(order);
            }
        }
        let end = Instant::now() + limit;
        let mut answers = Vec::new();
        for index in 0..processes {
            let Some(worker) = self.workers.get(&(contestant, index)) else { continue };
            let answer = worker.answer(end - Instant::now().min(end), self.stop);
            let answer = answer.map_err(|trouble| match trouble {
                Trouble::TooSlow(_) => Trouble::TooSlow(limit),
                other => other,
            })?;
            answers.push(Answer {
                operations: answer["operations"].as_u64().unwrap_or_default(),
                seconds: answer["seconds"].as_f64().unwrap_or_default(),
                waits: serde_json::from_value(answer["waits"].clone()).unwrap_or_default(),
                switches: answer["switches"].as_u64(),
            });
        }
        Ok(answers)
    }

    /// All processes of the bench except for this one.
    fn processes(&self) -> Vec<u32> {
        let servers = self.servers.values().filter_map(Server::pid);
        servers.chain(self.workers.values().map(Worker::pid)).collect()
    }

    fn is_missing(&self, workload: &Workload, contestant: Contestant) -> bool {
        let is_it = |missing: &Missing| {
            missing.workload == workload.name && missing.contestant == contestant
        };
        self.results.missing.iter().any(is_it)
    }

    fn miss(&mut self, workload: &Workload, contestant: Contestant, why: &str) {
        println!("  skipped: {}: {why}", contestant.name());
        let missing = Missing { workload: workload.name, contestant, why: why.to_owned() };
        self.results.missing.push(missing);
    }

    /// Leaves a contestant out of the rest of a workload; the next workload starts it again.
    fn fail(
        &mut self,
        workload: &Workload,
        contestant: Contestant,
        trouble: Trouble,
    ) -> Result<(), Box<dyn Error>> {
        self.drop_workers(contestant);
        match trouble {
            Trouble::Stopped => return Err("stopped".into()),
            Trouble::TooSlow(limit) => {
                let why = format!("takes more than {} s", limit.as_secs_f64());
                self.miss(workload, contestant, &why);
            }
            Trouble::Ended(why) => self.miss(workload, contestant, &format!("failed: {why}")),
        }
        Ok(())
    }

    fn drop_workers(&mut self, contestant: Contestant) {
        self.workers.retain(|(whose, _), _| *whose != contestant);
    }
}

/// What a worker says that it has done; `waits` are those of [`Waits`](super::obey::Waits).
struct Answer {
    operations: u64,
    seconds: f64,
    waits: Vec<[u64; 2]>,
    /// Other clients' workers do not count them.
    switches: Option<u64>,
}

fn is_tried_again(spoiled: bool, attempt: usize, left: usize) -> bool {
    spoiled && attempt < ATTEMPTS && left > 0
}

/// A contestant's lock path, the same in all rounds, so that only the first one creates parents.
fn path(workload: &Workload, contestant: Contestant) -> String {
    format!("/bench/{}/{}", workload.name, contestant.name())
}

/// More than ten thousand operations, until the JVM has compiled what runs often: uncontended and
/// contended, by several threads, because that is more operations in the same time.
fn compiling(hosts: &str, path: &str, length: Duration) -> [String; 4] {
    let millis = length.as_millis();
    [
        format!("connect {hosts} 1"),
        format!("loop {path} 8 8 {}", millis * 4),
        format!("loop {path} 1 8 {}", millis * 2),
        "close".to_owned(),
    ]
}

fn line(run: &Run) -> String {
    let Run { contestant, round, speed, others, .. } = run;
    let spoiled = if run.spoiled { ", spoiled" } else { "" };
    let percent = others * 100.0;
    let name = contestant.name();
    format!("{round} {name:<25} {speed:>12.0} per second; others {percent:.0} %{spoiled}")
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counters {
    requests: u64,
    fsyncs: u64,
}

impl Counters {
    fn read(server: &Server) -> Counters {
        let all = server.mntr();
        let number = |name: &str| all.get(name).and_then(|text| text.parse::<f64>().ok());
        Counters {
            requests: number("zk_packets_received").unwrap_or_default() as u64,
            // Missing before the first fsync.
            fsyncs: number("zk_cnt_fsynctime").unwrap_or_default() as u64,
        }
    }

    fn less(self, other: &Counters) -> Counters {
        Counters {
            requests: self.requests.saturating_sub(other.requests),
            fsyncs: self.fsyncs.saturating_sub(other.fsyncs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spoiled_is_tried_again_but_not_for_ever() {
        assert!(is_tried_again(true, 1, 1));
        assert!(is_tried_again(true, ATTEMPTS - 1, 9));
        assert!(!is_tried_again(true, ATTEMPTS, 9));
        assert!(!is_tried_again(true, 1, 0));
        assert!(!is_tried_again(false, 1, 9));
    }

    #[test]
    fn counters_do_not_run_backwards() {
        let (few, many) =
            (Counters { requests: 1, fsyncs: 2 }, Counters { requests: 9, fsyncs: 2 });
        assert_eq!(many.less(&few), Counters { requests: 8, fsyncs: 0 });
        assert_eq!(few.less(&many), Counters { requests: 0, fsyncs: 0 });
    }
}
