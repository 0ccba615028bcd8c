//! A real ZooKeeper server as a child process, from the packages of Debian and Ubuntu.
//!
//! It runs on a free loopback port and in a directory of its own. Both are released when the
//! [`Server`] is dropped, and also when this process ends in any other way, `SIGKILL` included: a
//! small shell between the two, the keeper, ends the server when the shell's standard input ends.

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "shared by tests and examples: each uses a part, and panics if its server fails"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

// As zklock-testing starts them; the tests' own servers are harmed in more ways.
#[path = "../../../testing/src/local/server_process.rs"]
#[allow(clippy::duplicate_mod, reason = "the library's unit tests, with that feature, have both")]
mod child;

#[path = "../../../testing/src/local/claimed_ports.rs"]
#[allow(clippy::duplicate_mod, reason = "as above")]
mod ports;

#[path = "slow_log.rs"]
mod slow_log;

use child::{Installation, Keeper, ask, fresh_directory};
use zklock_testing::ZooKeeper;

/// How long a server may take to start; it needs half a second on an idle machine.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// The pause between two looks at something that is about to change.
const POLL: Duration = Duration::from_millis(10);

/// The processes of all servers that were started here.
static PROCESSES: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Where the servers of this process that speak TLS do so, by their other address.
static SECURE: Mutex<BTreeMap<SocketAddr, SocketAddr>> = Mutex::new(BTreeMap::new());

/// Where the server at this address speaks TLS; the address itself if that is not known.
pub(crate) fn secure_addr(address: SocketAddr) -> SocketAddr {
    let all = SECURE.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(&address).copied().unwrap_or(address)
}

/// Whether servers can be started.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] when something is missing; other kinds when a setting is wrong.
pub(crate) fn can_start() -> io::Result<()> {
    if is_in_memory() {
        return Ok(());
    }
    Installation::find()?;
    slow_log::check()
}

/// Whether servers are in memory: `ZKLOCK_TESTS_SERVER=memory`, for `scripts/test --fast`.
pub(crate) fn is_in_memory() -> bool {
    std::env::var_os("ZKLOCK_TESTS_SERVER").is_some_and(|which| which == "memory")
}

/// Ends the test, which is its process, as a server in memory lacks something that the test needs. It has its run on a real
/// server.
fn skip_without(what: &str) -> ! {
    eprintln!("SKIPPED: a server in memory has no {what}");
    std::process::exit(0);
}

/// Whether the servers that can be started are older than this version.
pub(crate) fn is_before(version: (u32, u32)) -> bool {
    if is_in_memory() {
        return false;
    }
    let found = Installation::find().ok().and_then(|installation| installation.version());
    found.is_some_and(|found| found < version)
}

/// Whether servers take long to write their transaction logs.
pub(crate) fn has_slow_log() -> bool {
    slow_log::is_wanted()
}

/// The processes of the servers that this process has started; some may have ended.
pub(crate) fn processes() -> Vec<u32> {
    PROCESSES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A running ZooKeeper. Every method takes `&self`, so that one thread can pause or kill the
/// server under another.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    paused: AtomicBool,
    runs: Runs,
}

#[derive(Debug)]
enum Runs {
    Java {
        log: PathBuf,
        keeper: Mutex<Keeper>,
    },
    Memory {
        server: ZooKeeper,
        /// What it had counted at the last reset.
        counted: Mutex<BTreeMap<String, String>>,
    },
}

impl Server {
    /// Starts a server with the defaults of [`Server::builder`].
    ///
    /// # Panics
    /// When it cannot be started.
    pub(crate) fn start() -> Server {
        Server::builder().start().unwrap_or_else(|error| panic!("{error}"))
    }

    /// A builder with ticks of 200 ms, sessions of 200 ms to ten minutes, no fsync, and every
    /// four-letter word allowed.
    pub(crate) fn builder() -> Builder {
        Builder {
            tick: 200,
            min_session: 200,
            max_session: 600_000,
            force_sync: false,
            extra: Vec::new(),
            properties: Vec::new(),
            sequences: Vec::new(),
            member: None,
            place: Place::default(),
            jars: None,
        }
    }

    /// The connect string: `address:port`.
    pub(crate) fn hosts(&self) -> String {
        self.addr().to_string()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Stops the process (`SIGSTOP`): the kernel still accepts TCP connections, but nothing is
    /// answered.
    pub(crate) fn pause(&self) {
        if let Some(server) = self.in_memory() {
            self.paused.store(true, Ordering::SeqCst);
            return server.pause().expect("it pauses");
        }
        let mut keeper = self.keeper();
        keeper.signal("STOP").unwrap_or_else(|error| panic!("{error}"));
        self.paused.store(true, Ordering::SeqCst);
        wait_until("the server to stop", || matches!(keeper.process_state(), Some('T' | 't')));
    }

    /// Lets a paused server go on (`SIGCONT`).
    pub(crate) fn resume(&self) {
        if let Some(server) = self.in_memory() {
            self.paused.store(false, Ordering::SeqCst);
            return server.resume().expect("it goes on");
        }
        self.keeper().signal("CONT").unwrap_or_else(|error| panic!("{error}"));
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Kills the server (`SIGKILL`), and returns when it is gone. Its data stays.
    pub(crate) fn kill(&self) {
        if let Some(server) = self.in_memory() {
            self.paused.store(true, Ordering::SeqCst);
            return server.stop().expect("it stops");
        }
        let mut keeper = self.keeper();
        keeper.kill().unwrap_or_else(|error| panic!("{error}"));
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Starts a killed server on the same port and data, and waits until it is ready.
    pub(crate) fn start_again(&self) {
        self.launch();
        self.wait_ready().unwrap_or_else(|error| panic!("{error}"));
    }

    /// [`kill`](Server::kill), then [`start_again`](Server::start_again).
    pub(crate) fn restart(&self) {
        self.kill();
        self.start_again();
    }

    /// Removes all data of a killed server.
    pub(crate) fn wipe(&self) {
        let data = self.data();
        fs::remove_dir_all(&data).and_then(|()| fs::create_dir(&data)).expect("a folder of data");
    }

    /// The folder of its snapshots and logs.
    pub(crate) fn data(&self) -> PathBuf {
        self.log().with_file_name("data").join("version-2")
    }

    /// Starts a killed server without waiting for it.
    pub(crate) fn launch(&self) {
        if let Some(server) = self.in_memory() {
            self.paused.store(false, Ordering::SeqCst);
            return server.start_again().expect("it starts again");
        }
        launch(&mut self.keeper()).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until the server serves clients.
    pub(crate) fn wait_ready(&self) -> io::Result<()> {
        if self.in_memory().is_some() {
            return Ok(());
        }
        let limit = Instant::now() + READY_LIMIT;
        loop {
            let mode = self.mode();
            if self.keeper().has_ended() {
                return Err(self.failure("ended while it was starting"));
            }
            if mode.is_some() {
                return Ok(());
            }
            if Instant::now() > limit {
                return Err(self.failure("did not become ready"));
            }
            thread::sleep(POLL);
        }
    }

    /// Whether the process is neither killed nor paused.
    pub(crate) fn is_running(&self) -> bool {
        (self.in_memory().is_some() || self.keeper().pid().is_some())
            && !self.paused.load(Ordering::SeqCst)
    }

    /// Its process, unless it was killed.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.keeper().pid()
    }

    /// What `srvr` calls the server: `standalone`, `leader` or `follower`; `None` while it does
    /// not serve.
    pub(crate) fn mode(&self) -> Option<String> {
        child::mode(self.addr())
    }

    /// The answer to a four-letter word.
    pub(crate) fn four_letter(&self, word: &str) -> io::Result<String> {
        ask(self.addr(), word, Duration::from_secs(30))
    }

    /// The server's own statistics, by name (`zk_watch_count`, `zk_ephemerals_count`, ...).
    pub(crate) fn mntr(&self) -> BTreeMap<String, String> {
        let answer = self.four_letter("mntr").expect("mntr is answered");
        answer
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect()
    }

    /// One number of [`mntr`](Server::mntr). Four-letter words count as packets received.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let all = self.mntr();
        let text = all.get(name).unwrap_or_else(|| panic!("mntr does not know {name}"));
        // Some are printed as floating point.
        let number = |text: &str| {
            text.parse::<f64>().unwrap_or_else(|_| panic!("{name} is {text:?}")) as u64
        };
        let Runs::Memory { counted, .. } = &self.runs else { return number(text) };
        let counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
        // Only what counts events begins anew with a reset.
        let before = counted.get(name).filter(|_| name.starts_with("zk_packets"));
        number(text) - before.map_or(0, |before| number(before))
    }

    /// How many sessions the server has. Its statistics do not say that before 3.6.
    pub(crate) fn sessions(&self) -> u64 {
        if let Some(server) = self.in_memory() {
            return server.sessions().expect("its sessions").len() as u64;
        }
        let dump = self.four_letter("dump").expect("dump is answered");
        let sessions = dump.split("ephemeral nodes dump").next().unwrap_or_default();
        let ids: BTreeSet<&str> =
            sessions.split_whitespace().filter(|word| word.starts_with("0x")).collect();
        ids.len() as u64
    }

    /// Sets the request statistics of the server to zero (`srst`).
    pub(crate) fn stat_reset(&self) {
        if let Runs::Memory { counted, .. } = &self.runs {
            *counted.lock().unwrap_or_else(PoisonError::into_inner) = self.mntr();
            return;
        }
        self.four_letter("srst").expect("srst is answered");
    }

    fn in_memory(&self) -> Option<&ZooKeeper> {
        match &self.runs {
            Runs::Memory { server, .. } => Some(server),
            Runs::Java { .. } => None,
        }
    }

    fn keeper(&self) -> MutexGuard<'_, Keeper> {
        match &self.runs {
            Runs::Java { keeper, .. } => keeper.lock().unwrap_or_else(PoisonError::into_inner),
            Runs::Memory { .. } => skip_without("process of its own"),
        }
    }

    fn log(&self) -> &Path {
        match &self.runs {
            Runs::Java { log, .. } => log,
            Runs::Memory { .. } => skip_without("files"),
        }
    }

    fn failure(&self, what: &str) -> io::Error {
        io::Error::other(format!(
            "the ZooKeeper server at {} {what}; its log ended in:\n{}",
            self.address,
            self.log_tail()
        ))
    }

    fn log_tail(&self) -> String {
        child::tail(&fs::read(self.log()).unwrap_or_default())
    }
}

/// What a [`Server`] is started with.
#[derive(Clone, Debug)]
pub(crate) struct Builder {
    tick: u32,
    min_session: u32,
    max_session: u32,
    force_sync: bool,
    extra: Vec<String>,
    properties: Vec<String>,
    sequences: Vec<(String, i32)>,
    member: Option<Member>,
    place: Place,
    /// Where the jars are, if not where they usually are.
    jars: Option<PathBuf>,
}

/// Where a server runs; on loopback by default.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) address: Ipv4Addr,
    /// A command that runs the server, such as `ip netns exec ...`. It must become the server, not
    /// start it as a child: signals go to the process that is started.
    pub(crate) command: Vec<String>,
}

impl Default for Place {
    fn default() -> Place {
        Place { address: Ipv4Addr::LOCALHOST, command: Vec::new() }
    }
}

/// Which member of an ensemble a server is.
#[derive(Clone, Copy, Debug)]
struct Member {
    id: usize,
    port: u16,
}

impl Builder {
    /// The tick, in milliseconds. Session expiry is rounded up to whole ticks.
    pub(crate) fn tick(mut self, milliseconds: u32) -> Builder {
        self.tick = milliseconds;
        self
    }

    /// The shortest session timeout that the server grants, in milliseconds.
    pub(crate) fn min_session(mut self, milliseconds: u32) -> Builder {
        self.min_session = milliseconds;
        self
    }

    /// The longest session timeout that the server grants, in milliseconds.
    pub(crate) fn max_session(mut self, milliseconds: u32) -> Builder {
        self.max_session = milliseconds;
        self
    }

    /// Adds a line to `zoo.cfg`.
    pub(crate) fn extra(mut self, line: impl Into<String>) -> Builder {
        self.extra.push(line.into());
        self
    }

    /// Sets a Java system property, as `name=value`: some settings cannot be made in `zoo.cfg`
    /// (`znode.container.checkIntervalMs`, `jute.maxbuffer`).
    pub(crate) fn property(mut self, assignment: impl Into<String>) -> Builder {
        self.properties.push(assignment.into());
        self
    }

    /// Whether transactions are forced to the disk before they are answered.
    pub(crate) fn force_sync(mut self, force: bool) -> Builder {
        self.force_sync = force;
        self
    }

    /// Starts with a persistent node at `path` (and its ancestors), open to anyone, under which
    /// the next sequential node gets the number `next`.
    pub(crate) fn sequence(mut self, path: impl Into<String>, next: i32) -> Builder {
        self.sequences.push((path.into(), next));
        self
    }

    /// Makes the server the member `id` of an ensemble, with a client port chosen beforehand.
    pub(crate) fn member(mut self, id: usize, port: u16) -> Builder {
        self.member = Some(Member { id, port });
        self
    }

    /// Runs the server with the jars in this directory.
    pub(crate) fn jars(mut self, directory: impl Into<PathBuf>) -> Builder {
        self.jars = Some(directory.into());
        self
    }

    /// Runs the server at `place` instead of on loopback.
    pub(crate) fn place(mut self, place: Place) -> Builder {
        self.place = place;
        self
    }

    /// Starts the server, and waits until it serves clients.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when Java or a jar is missing.
    pub(crate) fn start(self) -> io::Result<Server> {
        let mut attempt = 1;
        loop {
            let server = self.launch()?;
            match server.wait_ready() {
                Ok(()) => return Ok(server),
                // Another process took the port first.
                Err(_) if attempt < 3 && server.log_tail().contains("already in use") => {}
                Err(error) => return Err(error),
            }
            attempt += 1;
        }
    }

    /// Starts the server without waiting for it.
    pub(crate) fn launch(&self) -> io::Result<Server> {
        if is_in_memory() {
            return self.in_memory();
        }
        let installation = match &self.jars {
            Some(directory) => Installation::at(directory)?,
            None => Installation::find()?,
        };
        let port = self.member.map_or_else(free_port, |member| member.port);
        let directory = fresh_directory()?;
        let data = directory.join("data");
        let log = directory.join("log");
        fs::create_dir_all(data.join("version-2"))?;
        if let Some(member) = self.member {
            fs::write(data.join("myid"), member.id.to_string())?;
        }
        if !self.sequences.is_empty() {
            fs::write(data.join("version-2/snapshot.0"), snapshot::of(&self.sequences))?;
        }
        let config = directory.join("zoo.cfg");
        fs::write(&config, self.config(&data, port))?;

        let mut java = self.place.command.clone();
        java.extend(slow_log::command(&directory)?);
        java.extend(installation.java_command());
        let force_sync = self.force_sync || slow_log::is_wanted();
        java.push(format!("-Dzookeeper.forceSync={}", if force_sync { "yes" } else { "no" }));
        java.extend(self.properties.iter().map(|property| format!("-D{property}")));
        java.push(child::MAIN_CLASS.to_owned());
        java.push(config.display().to_string());

        let mut keeper = Keeper::spawn(&log, &directory, &java)?;
        launch(&mut keeper)?;
        let address = SocketAddr::from((self.place.address, port));
        let secure = self.extra.iter().find_map(|line| line.strip_prefix("secureClientPort="));
        if let Some(port) = secure.and_then(|port| port.parse().ok()) {
            let secure = SocketAddr::from((self.place.address, port));
            SECURE.lock().unwrap_or_else(PoisonError::into_inner).insert(address, secure);
        }
        let runs = Runs::Java { log, keeper: Mutex::new(keeper) };
        Ok(Server { address, paused: AtomicBool::new(false), runs })
    }

    /// The same in memory, if that is possible.
    fn in_memory(&self) -> io::Result<Server> {
        if let Some(setting) = self.extra.first() {
            skip_without(setting);
        }
        if self.member.is_some() || self.jars.is_some() || !self.place.command.is_empty() {
            skip_without("ensemble, other versions and other places");
        }
        let milliseconds = |count: u32| Duration::from_millis(count.into());
        let mut builder = ZooKeeper::builder()
            .in_memory()
            .tick_time(milliseconds(self.tick))
            .session_timeouts(milliseconds(self.min_session), milliseconds(self.max_session));
        for property in &self.properties {
            let interval = property.strip_prefix("znode.container.checkIntervalMs=");
            match interval.and_then(|interval| interval.parse().ok()) {
                Some(interval) => builder = builder.check_interval(milliseconds(interval)),
                None => skip_without(property),
            }
        }
        for (path, next) in &self.sequences {
            builder = builder.sequence(path, *next);
        }
        let server = builder.start().map_err(io::Error::other)?;
        let address = server.hosts().parse().map_err(io::Error::other)?;
        let runs = Runs::Memory { server, counted: Mutex::default() };
        Ok(Server { address, paused: AtomicBool::new(false), runs })
    }

    fn config(&self, data: &Path, port: u16) -> String {
        let mut config = format!(
            "dataDir={}\n\
             clientPort={port}\n\
             clientPortAddress={}\n\
             tickTime={}\n\
             minSessionTimeout={}\n\
             maxSessionTimeout={}\n\
             maxClientCnxns=0\n\
             admin.enableServer=false\n\
             4lw.commands.whitelist=*\n",
            data.display(),
            self.place.address,
            self.tick,
            self.min_session,
            self.max_session,
        );
        for line in &self.extra {
            config.push_str(line);
            config.push('\n');
        }
        config
    }
}

/// A free loopback port, claimed for this process.
///
/// # Panics
/// When there is none.
pub(crate) fn free_port() -> u16 {
    ports::free_port().unwrap_or_else(|error| panic!("{error}"))
}

/// Claims the port for this process; false if this process or another one has it already.
pub(crate) fn claim(port: u16) -> bool {
    ports::claim(port).unwrap_or_else(|error| panic!("{error}"))
}

fn launch(keeper: &mut Keeper) -> io::Result<()> {
    keeper.launch()?;
    PROCESSES.lock().unwrap_or_else(PoisonError::into_inner).extend(keeper.pid());
    Ok(())
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let limit = Instant::now() + READY_LIMIT;
    while !condition() {
        assert!(Instant::now() < limit, "timed out waiting for {what}");
        thread::sleep(POLL);
    }
}

/// A snapshot file as ZooKeeper 3.8 reads it: a server's whole state before its first transaction.
mod snapshot {
    use std::collections::BTreeMap;

    /// A data tree in which the next sequential node under each path gets the number given.
    pub(super) fn of(sequences: &[(String, i32)]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"ZKSN"); // magic
        out.extend(2_i32.to_be_bytes()); // version
        out.extend((-1_i64).to_be_bytes()); // database id
        out.extend(0_i32.to_be_bytes()); // sessions
        out.extend(0_i32.to_be_bytes()); // access control lists
        for (path, created) in tree(sequences) {
            put_string(&mut out, &path);
            put_node(&mut out, created);
        }
        put_string(&mut out, "/"); // end of the tree
        let checksum = adler32(&out);
        out.extend(i64::from(checksum).to_be_bytes());
        put_string(&mut out, "/"); // end of the file
        out
    }

    /// Every node by path, the root as the empty string, with the number of children ever created,
    /// from which the server derives sequence numbers. Parents come before their children.
    fn tree(sequences: &[(String, i32)]) -> BTreeMap<String, i32> {
        let own = ["/zookeeper/config", "/zookeeper/quota"];
        let mut nodes = BTreeMap::from([(String::new(), 0)]);
        for path in own.into_iter().chain(sequences.iter().map(|(path, _)| path.as_str())) {
            let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
            for end in ends {
                nodes.entry(path[..end].to_owned()).or_insert(0);
            }
        }
        let paths: Vec<String> = nodes.keys().cloned().collect();
        for path in paths {
            if let Some((parent, _)) = path.rsplit_once('/') {
                nodes.entry(parent.to_owned()).and_modify(|created| *created += 1);
            }
        }
        nodes.extend(sequences.iter().cloned());
        nodes
    }

    fn put_node(out: &mut Vec<u8>, created_children: i32) {
        out.extend(0_i32.to_be_bytes()); // data: empty
        out.extend((-1_i64).to_be_bytes()); // open to anyone
        out.extend([0; 4 * 8]); // czxid, mzxid, ctime, mtime
        out.extend(0_i32.to_be_bytes()); // version
        out.extend(created_children.to_be_bytes()); // cversion
        out.extend(0_i32.to_be_bytes()); // aversion
        out.extend([0; 2 * 8]); // ephemeral owner, pzxid
    }

    fn put_string(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as i32).to_be_bytes());
        out.extend(text.as_bytes());
    }

    fn adler32(bytes: &[u8]) -> u32 {
        let (mut a, mut b) = (1_u32, 0_u32);
        for byte in bytes {
            a = (a + u32::from(*byte)) % 65_521;
            b = (b + a) % 65_521;
        }
        b << 16 | a
    }
}
