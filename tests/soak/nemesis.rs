//! Causes the planned faults in servers, workers and connections, and heals them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::history::{Journal, now};
use super::network::Ground;
use super::options::Options;
use super::plan::{Fault, Kind, Plan, Round};
use super::support::proxy::{Proxy, opcode};
use super::support::raw::{self, Raw};
use super::work::{NODES, by_sequence};
use super::worker::{BASE, LOCKS, STAY};
use super::workers::Crew;

/// The session timeout of the nemesis's own sessions.
const OWN_SESSION: Duration = Duration::from_secs(10);

/// How long to wait for a worker that was told to stay: it is to acquire a lock in that time.
const SETTLE: Duration = Duration::from_millis(200);

pub(crate) struct Nemesis<'a> {
    pub(crate) ground: &'a Ground,
    /// The proxies between workers and servers, by worker and server; only one for a worker with one
    /// address in front of all servers.
    pub(crate) proxies: &'a [Vec<Proxy>],
    pub(crate) crew: &'a Crew,
    pub(crate) options: &'a Options,
    pub(crate) journal: &'a Journal,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) end: Instant,
}

/// What has to be healed.
enum Wound {
    None,
    Killed(Vec<usize>),
    Stopped(usize),
    Parted(usize),
    /// The link of this follower is stalled, which the fronts are to lead away from.
    Stalled(usize),
    Frozen(usize),
    Dead(usize),
    Ways(Vec<(usize, usize)>),
}

impl Nemesis<'_> {
    /// Causes and heals faults until the time is over. At the end everything is healed.
    pub(crate) fn rage(&self, plan: Plan) {
        self.pause(Duration::from_secs(2));
        for (number, round) in plan.enumerate() {
            if self.is_over() {
                return;
            }
            self.round(number, &round);
        }
    }

    /// Restarts one server after the other until the time is over.
    pub(crate) fn roll(&self) {
        self.pause(Duration::from_secs(2));
        for number in 0.. {
            if self.is_over() {
                return;
            }
            let node = number % self.ground.ensemble.nodes().len();
            self.note(format_args!("round {number}"));
            self.note(format_args!("fault rolling-restart server {node}"));
            self.ground.ensemble.node(node).restart();
            self.ground.ensemble.wait_ready();
            self.note("heal rolling-restart");
            self.note(format_args!("healthy {number}"));
            self.pause(Duration::from_secs(2));
        }
    }

    fn round(&self, number: usize, round: &Round) {
        // Otherwise the proxies' memory of requests grows without limit.
        self.proxies.iter().flatten().for_each(Proxy::reset_counts);
        self.note(format_args!("round {number}"));
        let mut wounds = Vec::new();
        for fault in &round.faults {
            if fault.surprises_a_holder() {
                self.crew.order(self.victim(fault), STAY);
                self.pause(SETTLE);
            }
            wounds.push(self.inject(fault));
            // A second fault happens while the first one lasts.
            self.pause(self.length(fault) / round.faults.len() as u32);
        }
        for (fault, wound) in round.faults.iter().zip(wounds).rev() {
            self.mend(wound, fault);
            self.note(format_args!("heal {}", fault.kind.name()));
        }
        self.ground.ensemble.wait_ready();
        self.note(format_args!("healthy {number}"));
        self.pause(round.quiet);
    }

    fn inject(&self, fault: &Fault) -> Wound {
        let Ground { ensemble, .. } = self.ground;
        let name = fault.kind.name();
        let tell = |what: String| self.note(format_args!("fault {name} {what}"));
        let worker = self.victim(fault);
        let leader = || ensemble.leader();
        let follower = || {
            let followers = ensemble.followers();
            followers[fault.node % followers.len()]
        };
        let any = fault.node % ensemble.nodes().len();
        match fault.kind {
            Kind::KillLeader | Kind::KillFollower => {
                let node = if fault.kind == Kind::KillLeader { leader() } else { follower() };
                tell(format!("server {node}"));
                ensemble.node(node).kill();
                Wound::Killed(vec![node])
            }
            Kind::KillAll => {
                tell("all servers".to_owned());
                let all: Vec<usize> = (0..ensemble.nodes().len()).collect();
                all.iter().for_each(|node| ensemble.node(*node).kill());
                Wound::Killed(all)
            }
            Kind::Rolling => {
                tell("all servers".to_owned());
                for node in ensemble.nodes() {
                    node.restart();
                    ensemble.wait_ready();
                    self.pause(fault.length);
                }
                Wound::None
            }
            Kind::BriefStop => {
                tell(format!("server {any}"));
                ensemble.node(any).pause();
                Wound::Stopped(any)
            }
            Kind::StopLeader | Kind::StopFollower => {
                let node = if fault.kind == Kind::StopLeader { leader() } else { follower() };
                tell(format!("server {node}"));
                ensemble.node(node).pause();
                Wound::Stopped(node)
            }
            Kind::IsolateLeader | Kind::IsolateFollower => {
                let node = if fault.kind == Kind::IsolateLeader { leader() } else { follower() };
                tell(format!("server {node}"));
                self.ground.isolate(node);
                Wound::Parted(node)
            }
            Kind::StallLink => {
                let node = follower();
                tell(format!("server {node}"));
                self.ground.stall(node);
                Wound::Parted(node)
            }
            Kind::StallThenMove => {
                let node = follower();
                tell(format!("server {node}"));
                self.move_fronts(node);
                self.pause(SETTLE);
                self.ground.stall(node);
                Wound::Stalled(node)
            }
            Kind::MoveFront => {
                tell(format!("to server {any}"));
                self.move_fronts(any);
                Wound::None
            }
            Kind::Mute => {
                tell(format!("server {any}"));
                self.ground.mute(any);
                Wound::Parted(any)
            }
            Kind::Unplug => {
                tell(format!("server {any}"));
                self.ground.unplug(any);
                Wound::Parted(any)
            }
            Kind::PauseWorker | Kind::FreezeWorker => {
                tell(format!("worker {worker}"));
                self.crew.stop(worker, self.journal);
                Wound::Frozen(worker)
            }
            Kind::KillWorker if worker != 0 => {
                tell(format!("worker {worker}"));
                self.crew.kill(worker, self.journal);
                Wound::Dead(worker)
            }
            Kind::SlowOpening if worker != 0 => {
                tell(format!("worker {worker} at server {any}"));
                self.open_slowly(worker, any, fault.length);
                Wound::Ways(self.all_ways(worker))
            }
            Kind::KillWorker | Kind::SlowOpening => Wound::None,
            Kind::SlowReopening => {
                tell(format!("all of worker {worker}"));
                let ways = self.all_ways(worker);
                for (worker, node) in &ways {
                    // Until it is healed.
                    self.proxies[*worker][*node].slow_opening(OWN_SESSION * 100);
                    self.proxies[*worker][*node].cut();
                }
                Wound::Ways(ways)
            }
            Kind::Cut
            | Kind::BlackHole
            | Kind::BlackHoleThenCut
            | Kind::Delay
            | Kind::LoseCreateReply
            | Kind::LoseDeleteReply
            | Kind::LoseWriteReply
            | Kind::LoseRequest
            | Kind::Throttle => {
                let (what, ways) = self.ways(fault);
                tell(what);
                ways.iter().for_each(|(worker, node)| {
                    self.harm(fault, &self.proxies[*worker][*node]);
                });
                Wound::Ways(ways)
            }
            Kind::CloseSession | Kind::DeleteHolder | Kind::DeleteWaiter => {
                match self.meddle(fault) {
                    Ok(what) => tell(what),
                    Err(failure) => tell(format!("failed: {failure}")),
                }
                Wound::None
            }
        }
    }

    /// Has the workers that have one address for all servers connect to this one.
    fn move_fronts(&self, node: usize) {
        let servers = self.ground.ensemble.nodes();
        for front in self.proxies.iter().filter(|ways| ways.len() < servers.len()).flatten() {
            front.set_target(servers[node].addr());
            front.cut();
        }
    }

    /// How long the fault lasts. One that must cost nothing is over before the lease is.
    fn length(&self, fault: &Fault) -> Duration {
        match fault.kind {
            Kind::SlowReopening => {
                let lease = self.options.lease(self.victim(fault));
                // The rest is for connecting again, and for a busy machine.
                fault.length.min(lease.least_left().saturating_sub(lease.timeout / 8))
            }
            Kind::BriefStop => {
                let lease = self.options.lease(0);
                let spare =
                    lease.least_left_after(Duration::ZERO).saturating_sub(lease.timeout / 10);
                fault.length.min(spare)
            }
            // Until the session is open, which the fault itself waits for.
            Kind::SlowOpening => Duration::ZERO,
            _ => fault.length,
        }
    }

    /// Replaces a worker, whose first session is opened at this server, and slowly.
    fn open_slowly(&self, worker: usize, node: usize, slow: Duration) {
        self.crew.kill(worker, self.journal);
        let node = node % self.proxies[worker].len();
        for (index, way) in self.proxies[worker].iter().enumerate() {
            if index == node { way.slow_opening(slow) } else { way.refuse() }
        }
        self.crew.replace(worker);
        let way = &self.proxies[worker][node];
        // Attempts that take too long are given up, and repeated with more time.
        let end = Instant::now() + slow * 4 + Duration::from_secs(5);
        while way.opens_slowly() && Instant::now() < end && !self.is_over() {
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn all_ways(&self, worker: usize) -> Vec<(usize, usize)> {
        (0..self.proxies[worker].len()).map(|node| (worker, node)).collect()
    }

    /// The worker that a fault harms, if it harms one.
    fn victim(&self, fault: &Fault) -> usize {
        match (fault.kind, self.crew.size()) {
            // Worker 0 is never killed.
            (Kind::KillWorker | Kind::SlowOpening, size @ 2..) => 1 + fault.worker % (size - 1),
            (_, size) => fault.worker % size,
        }
    }

    /// Which connections are harmed: those of one worker, those to one server, or all.
    fn ways(&self, fault: &Fault) -> (String, Vec<(usize, usize)>) {
        let (workers, nodes) = (self.crew.size(), self.ground.ensemble.nodes().len());
        let (worker, node) = (self.victim(fault), fault.node % nodes);
        let all = (0..workers).flat_map(|worker| self.all_ways(worker));
        match fault.choice % 4 {
            0 => (format!("all to server {node}"), all.filter(|way| way.1 == node).collect()),
            1 => ("all".to_owned(), all.collect()),
            _ => (format!("all of worker {worker}"), all.filter(|way| way.0 == worker).collect()),
        }
    }

    fn harm(&self, fault: &Fault, way: &Proxy) {
        match fault.kind {
            Kind::BlackHole | Kind::BlackHoleThenCut => way.black_hole(),
            Kind::Delay => {
                let longest = Duration::from_millis(20 + fault.choice % 130);
                way.delay_requests(longest);
                way.delay_replies(longest / 2);
            }
            Kind::LoseCreateReply => way.drop_reply_on(opcode::CREATE, BASE, fault.count),
            Kind::LoseDeleteReply => way.drop_reply_on(opcode::DELETE, BASE, fault.count),
            // SET_DATA: the counter. MULTI: decisions and acknowledgements.
            Kind::LoseWriteReply => {
                way.drop_reply_on(opcode::SET_DATA, BASE, fault.count);
                way.drop_reply(opcode::MULTI, fault.count);
            }
            Kind::LoseRequest => {
                let kinds = [opcode::CREATE, opcode::DELETE, opcode::GET_CHILDREN, opcode::EXISTS];
                let kind = kinds[(fault.choice / 4) as usize % kinds.len()];
                way.drop_request_on(kind, BASE, fault.count);
            }
            Kind::Throttle => way.throttle_share(opcode::SYNC, 50 + fault.choice / 4 % 26),
            _ => way.cut(),
        }
    }

    fn mend(&self, wound: Wound, fault: &Fault) {
        let Ground { ensemble, .. } = self.ground;
        match wound {
            Wound::None => {}
            Wound::Killed(nodes) => {
                nodes.iter().for_each(|node| ensemble.node(*node).launch());
                for node in nodes {
                    ensemble.node(node).wait_ready().expect("a killed server is ready again");
                }
            }
            Wound::Stopped(node) => ensemble.node(node).resume(),
            Wound::Parted(node) => self.ground.heal(node),
            Wound::Stalled(node) => {
                self.move_fronts((node + 1 + fault.node % 2) % ensemble.nodes().len());
                // Meanwhile workers make requests there.
                self.pause(SETTLE);
                self.ground.heal(node);
            }
            Wound::Frozen(worker) => self.crew.resume(worker, self.journal),
            Wound::Dead(worker) => self.crew.replace(worker),
            Wound::Ways(ways) => {
                for (worker, node) in ways {
                    let way = &self.proxies[worker][node];
                    if matches!(fault.kind, Kind::Cut | Kind::BlackHoleThenCut) {
                        way.cut();
                    }
                    way.pass();
                }
            }
        }
    }

    /// Deletes a contender, or ends its session, as another client might.
    fn meddle(&self, fault: &Fault) -> raw::Result<String> {
        let mut raw = Raw::connect(&self.ground.ensemble.hosts(), OWN_SESSION)?;
        // Half of the time the first lock, for which most threads contend.
        let pick = (fault.choice >> 16) as usize;
        let lock = if pick.is_multiple_of(2) { LOCKS[0] } else { NODES[pick / 2 % NODES.len()] };
        let node = format!("{BASE}/{lock}");
        raw.sync("/")?;
        let mut contenders = raw.get_children(&node)?;
        contenders.sort_by(|one, other| by_sequence(one, other));
        let first = fault.kind == Kind::DeleteHolder
            || (fault.kind == Kind::CloseSession && fault.choice % 8 < 5);
        let index = match contenders.len() {
            0 => return Ok(format!("no contender for lock {lock}")),
            _ if first => 0,
            count => 1.min(count - 1) + fault.node % (count - 1).max(1),
        };
        let path = format!("{node}/{}", contenders[index]);
        let what = if fault.kind == Kind::CloseSession {
            let owner = raw.exists(&path)?.map_or(0, |stat| stat.ephemeral_owner);
            self.close_session(owner)?;
            format!("{owner:x} of {path}")
        } else {
            let asked = now();
            // Written before it takes effect, in case the reply is lost.
            self.note(format_args!("deleting {path}"));
            match raw.delete(&path) {
                Ok(()) => self.note(format_args!("deleted {path} {asked}")),
                Err(failure) if failure.code() == Some(raw::NO_NODE) => {}
                Err(failure) => return Err(failure),
            }
            path
        };
        raw.close()?;
        Ok(what)
    }

    fn close_session(&self, session: i64) -> raw::Result<()> {
        let mut known = self.proxies.iter().flatten().flat_map(Proxy::sessions);
        let Some((_, password)) = known.find(|(id, _)| *id == session) else {
            return Ok(());
        };
        let hosts = self.ground.ensemble.hosts();
        self.note(format_args!("closing {session:x}"));
        // The session's own client may resume it before it is closed.
        for _ in 0..10 {
            let closed = Raw::resume(&hosts, OWN_SESSION, session, &password).and_then(Raw::close);
            if closed.is_ok() {
                self.note(format_args!("closed {session:x}"));
                break;
            }
        }
        Ok(())
    }

    fn note(&self, what: impl std::fmt::Display) {
        self.journal.note("-", what);
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst) || Instant::now() >= self.end
    }

    /// Sleeps, at most until the run is over.
    fn pause(&self, length: Duration) {
        let end = Instant::now() + length;
        while Instant::now() < end && !self.is_over() {
            thread::sleep(Duration::from_millis(20).min(end - Instant::now().min(end)));
        }
    }
}
