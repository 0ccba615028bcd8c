//! The two places where scripts are played: a real server, with each client behind its own proxy,
//! and a simulated ensemble of one server without delays.

use std::any::Any;
use std::env;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use zklock_testing::ZooKeeper;
use zklock_testing::core::{Rules, password};

use super::player::{CLIENTS, Ground, Outcome, Player};
use super::scripts::{self, SEQUENCES, Script};
use super::servers::proxy::{Proxy, opcode};
use super::servers::raw::{Kind, Raw};
use super::servers::server::Server;
use crate::acl::Acl;
use crate::rt::schedule::{Schedule, Stuck, current};
use crate::rt::{self, Deadline, Mutex};
use crate::session::Patience::OneAttempt;
use crate::session::{Session, Waiter};
use crate::sim::connection::SimulatedEnsemble;
use crate::sim::world::{Habits, Operation, RequestStage, Trap, World};
use crate::{Client, path};

// Parts of the integration tests.
#[path = "../../it/support/certificates.rs"]
mod certificates;
#[allow(dead_code, reason = "only parts are used here")]
#[path = "../../it/support/proxy.rs"]
mod proxy;
#[allow(dead_code, reason = "only parts are used here")]
#[path = "../../it/support/raw.rs"]
mod raw;
#[path = "../../it/support/server.rs"]
mod server;
#[path = "../../it/support/wire.rs"]
mod wire;

/// A node that players change to find out whether all earlier events have arrived.
const BEACON: &str = "/beacon";
/// A node that no client may read.
const HIDDEN: &str = "/hidden";

// ----- a real server

/// A server for any number of scripts.
pub(super) struct Rig {
    address: SocketAddr,
    _server: Box<dyn Any + Send + Sync>,
    /// Whether it hides events of nodes from clients that may not read them.
    pub(super) discreet: bool,
    /// Whether it hides the stat of such nodes, too.
    pub(super) hides_stat: bool,
    /// Whether it knows neither containers nor the removal of watches.
    pub(super) is_old: bool,
}

impl Rig {
    /// Starts a server. If none can be started, prints the reason and returns `None`.
    pub(super) fn start() -> Option<Rig> {
        Rig::with(&[])
    }

    /// Starts a server that removes containers as soon as they have outlived their children.
    pub(super) fn tidying() -> Option<Rig> {
        Rig::with(&["znode.container.checkIntervalMs=20"])
    }

    fn with(properties: &[&str]) -> Option<Rig> {
        match server::can_start() {
            Ok(()) => {}
            Err(why) if env::var_os("ZKLOCK_TESTS_MUST_RUN").is_some() => panic!("{why}"),
            Err(why) => {
                eprintln!("SKIPPED: {why}");
                return None;
            }
        }
        let builder = SEQUENCES
            .iter()
            .fold(Server::builder(), |builder, (path, next)| builder.sequence(*path, *next));
        let builder = properties.iter().fold(builder, |builder, one| builder.property(*one));
        let server = builder.start().expect("a server");
        Some(Rig::on(server.addr(), Box::new(server)))
    }

    /// Starts a server in memory, which is reached by sockets, too.
    pub(super) fn in_memory(rules: Rules, check_interval: Duration) -> Rig {
        let server = SEQUENCES
            .iter()
            .fold(ZooKeeper::builder().in_memory(), |builder, (path, next)| {
                builder.sequence(*path, *next)
            })
            .rules(rules)
            .check_interval(check_interval)
            .start()
            .expect("a server in memory");
        Rig::on(server.hosts().parse().expect("an address"), Box::new(server))
    }

    fn on(address: SocketAddr, server: Box<dyn Any + Send + Sync>) -> Rig {
        let (discreet, hides_stat, is_old) = (false, false, false);
        let mut rig = Rig { address, _server: server, discreet, hides_stat, is_old };
        let mut stranger = rig.stranger();
        stranger.create(BEACON, b"", Kind::Persistent).expect("a beacon");
        let nobody = [raw::Acl::new(raw::ALL, "digest", "a:b")];
        stranger.create_with_acl(HIDDEN, b"", Kind::Persistent, &nobody).expect("a hidden node");
        rig.hides_stat = stranger.exists(HIDDEN).is_err();
        rig.is_old = rig.closes_on_containers();
        let told = rig.play(&scripts::hidden());
        rig.discreet = !told.iter().any(|outcome| outcome.has_news());
        rig
    }

    /// The library's own call would make a plain node instead, if it learns in time that it has to.
    fn closes_on_containers(&self) -> bool {
        self.stranger().create("/box", b"", Kind::Container).is_err()
    }

    pub(super) fn hosts(&self) -> String {
        self.address.to_string()
    }

    pub(super) fn stranger(&self) -> Raw {
        Raw::connect(&self.hosts(), Duration::from_secs(60)).expect("a connection")
    }

    pub(super) fn play(&self, script: &Script) -> Vec<Outcome> {
        let mut stranger = self.stranger();
        stranger.create_all(&script.base()).expect("the script's base");
        let clients = (1..=CLIENTS).map(|_| {
            let proxy = Proxy::start(self.address);
            let client = Client::builder(&proxy.hosts()).session_timeout(script.timeout);
            (client.connect().expect("a client"), proxy)
        });
        let real = Real { hosts: self.hosts(), stranger, clients: clients.collect() };
        Player::new(real, &script.base()).play(&script.steps)
    }
}

struct Real {
    hosts: String,
    stranger: Raw,
    clients: Vec<(Client, Proxy)>,
}

impl Real {
    fn proxy(&self, who: usize) -> &Proxy {
        &self.clients[who - 1].1
    }
}

impl Ground for Real {
    fn client(&mut self, who: usize) -> Client {
        self.clients[who - 1].0.clone()
    }

    fn open(&mut self, _who: usize) {}

    fn cut(&mut self, who: usize) {
        self.proxy(who).cut();
    }

    fn refuse(&mut self, who: usize) {
        self.proxy(who).refuse();
    }

    fn mend(&mut self, who: usize) {
        self.proxy(who).pass();
    }

    fn lapse(&mut self, who: usize, session: &Session) {
        self.proxy(who).refuse();
        let deadline = Deadline::after(Duration::from_secs(60));
        while session.status().now().ended.is_none() {
            assert!(!deadline.has_passed(), "the lease did not end within 60 s");
            self.pause();
        }
        self.proxy(who).pass();
    }

    fn expire(&mut self, who: usize, session: i64) {
        self.proxy(who).refuse();
        let timeout = Duration::from_secs(60);
        let other = Raw::resume(&self.hosts, timeout, session, &password(session));
        other.expect("the password").close().expect("an end");
        self.proxy(who).pass();
    }

    fn lose(&mut self, who: usize, request: &str, path: &str, after: bool) {
        let verb = request.split(' ').next().unwrap_or_default();
        let code = match verb {
            "create" if request.contains("container") => opcode::CREATE_CONTAINER,
            "create" | "enter" => opcode::CREATE,
            "delete" | "let_go" => opcode::DELETE,
            "write" => opcode::SET_DATA,
            "await_making" => opcode::EXISTS,
            "read" | "watch_soon" => opcode::GET_DATA,
            "children" => opcode::GET_CHILDREN,
            "list" => opcode::GET_CHILDREN2,
            "check" | "write_at" => opcode::MULTI,
            _ => opcode::SYNC,
        };
        let path = match code {
            opcode::SYNC => "/",
            opcode::MULTI => "",
            _ => path,
        };
        match after {
            false => self.proxy(who).drop_request_on(code, path, 1),
            true => self.proxy(who).drop_reply_on(code, path, 1),
        }
    }

    fn is_there(&mut self, path: &str) -> bool {
        self.stranger.exists(path).expect("an answer").is_some()
    }

    fn pause(&self) {
        std::thread::sleep(Duration::from_millis(1));
    }

    /// Events arrive in order: when the beacon's event has arrived, so have all earlier ones.
    fn settle(&mut self, sessions: &[&Session]) {
        let watchers: Vec<_> = sessions
            .iter()
            .map(|session| {
                let (bell, rung) = rt::bell();
                let heard = Arc::new(Mutex::new(false));
                let hears = Arc::clone(&heard);
                let signal = move || {
                    *hears.lock() = true;
                    bell.ring();
                };
                let listens = session.watches().subscribe(BEACON, Arc::new(signal));
                session.read(BEACON, true).expect("the beacon");
                (heard, rung, listens)
            })
            .collect();
        self.stranger.set_data(BEACON, b"").expect("the beacon changes");
        for (heard, rung, _listens) in watchers {
            rung.wait(Deadline::after(Duration::from_secs(30)));
            assert!(*heard.lock(), "no event of the beacon within 30 s");
        }
    }
}

// ----- the simulated one

pub(super) struct SimulatedServer {
    world: Arc<World>,
    clients: Vec<Client>,
}

impl SimulatedServer {
    pub(super) fn play(script: &Script, rig: &Rig) -> Vec<Outcome> {
        let (schedule, running) = Schedule::begin(1, false);
        let world = World::new(Habits {
            hesitation: Duration::ZERO,
            reminds: false,
            servers: 1,
            latency: Duration::ZERO,
            lag: Duration::ZERO,
            session_timeout: script.timeout,
            connect_timeout: Duration::from_secs(10),
            forgetful: 0,
            discreet: rig.discreet,
            hides_stat: rig.hides_stat,
            is_old: rig.is_old,
            largest: None,
            tidies: script.tidied.then_some(Duration::ZERO),
            late: None,
        });
        let (outcomes, base, steps) = (Arc::default(), script.base(), script.steps.clone());
        let told: Arc<Mutex<Vec<Outcome>>> = Arc::clone(&outcomes);
        world.act(|world| {
            world.make(&base, &[Acl::open()], 0);
            for (path, next) in SEQUENCES {
                if path::parent(path) == base {
                    world.make(path, &[Acl::open()], *next);
                }
            }
        });
        let body = move || {
            let clients = (1..=CLIENTS).map(|who| {
                let servers = Box::new(SimulatedEnsemble(Arc::clone(&world)));
                Client::with(servers, format!("{who}"), String::new())
            });
            let clients = clients.collect();
            let simulated = SimulatedServer { world, clients };
            *told.lock() = Player::new(simulated, &base).play(&steps);
        };
        let _ = schedule.within(0, || schedule.start("player", body));
        while outcomes.lock().is_empty() {
            match schedule.step() {
                Ok(()) => {}
                Err(Stuck::Panicked { task, why }) => panic!("{}: {task}: {why}", script.name),
                Err(Stuck::Quiet) => panic!("{}: nothing happens any more", script.name),
            }
        }
        drop(running);
        std::mem::take(&mut *outcomes.lock())
    }

    fn pass(&self, time: Duration) {
        if let Some(schedule) = current() {
            schedule.pause(time);
        }
    }
}

impl Ground for SimulatedServer {
    fn client(&mut self, who: usize) -> Client {
        self.clients[who - 1].clone()
    }

    /// Runs each client in its own process, so that faults can hit it alone.
    fn open(&mut self, who: usize) {
        let core = Arc::clone(self.clients[who - 1].core());
        let open = move || {
            let _ = core.session(&Waiter::new(), Deadline::NEVER, || false, OneAttempt);
        };
        if let Some(schedule) = current() {
            let _ = schedule.within(who, || schedule.start("opener", open));
            self.pass(Duration::from_millis(1));
        }
    }

    fn cut(&mut self, who: usize) {
        self.world.act(|world| world.cut_all(who, Duration::ZERO, Duration::ZERO));
    }

    fn refuse(&mut self, who: usize) {
        let long = Duration::from_secs(3_600);
        self.world.act(|world| world.cut_all(who, Duration::ZERO, long));
    }

    fn mend(&mut self, who: usize) {
        self.world.act(|world| world.mend(who));
    }

    fn lapse(&mut self, who: usize, session: &Session) {
        self.refuse(who);
        while session.status().now().ended.is_none() {
            self.pause();
        }
        self.mend(who);
    }

    fn expire(&mut self, who: usize, _session: i64) {
        self.world.act(|world| world.murder(who));
    }

    fn lose(&mut self, who: usize, request: &str, _path: &str, after: bool) {
        let on = match request.split(' ').next().unwrap_or_default() {
            "create" | "enter" => Operation::Create,
            "delete" | "let_go" => Operation::Delete,
            "write" => Operation::Write,
            "read" | "watch_soon" | "await_making" => Operation::Read,
            "children" | "list" => Operation::Children,
            "check" | "write_at" => Operation::Transact,
            _ => Operation::Sync,
        };
        let when = if after { RequestStage::Done } else { RequestStage::Lost };
        self.world
            .act(|world| world.set_trap(who, Trap { on, when, mend: Duration::ZERO, times: 1 }));
    }

    fn is_there(&mut self, path: &str) -> bool {
        self.world.look(|world| world.contains(path))
    }

    fn pause(&self) {
        self.pass(Duration::from_millis(1));
    }

    fn settle(&mut self, _sessions: &[&Session]) {
        self.pass(Duration::from_millis(10));
    }
}
