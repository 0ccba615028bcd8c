//! A real ZooKeeper server as a child process, from the packages of Debian and Ubuntu.
//!
//! It runs on a free loopback port and in a directory of its own. Both are gone when the
//! [`Server`] is dropped, and also when this process ends in any other way, `SIGKILL` included: a
//! small shell, the keeper, sits between the two, and ends the server when its standard input ends.

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::panic,
    reason = "shared by tests and examples: each uses a part, and ends if its server fails"
)]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// How long a server may take to start; it needs half a second on an idle machine.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// The pause between two looks at something that is about to change.
const POLL: Duration = Duration::from_millis(10);

/// A running ZooKeeper. Every method takes `&self`, so that one thread can pause or kill the
/// server under another.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    log: PathBuf,
    paused: AtomicBool,
    keeper: Mutex<Keeper>,
}

impl Server {
    /// Starts a server with the defaults of [`Server::builder`].
    ///
    /// # Panics
    /// When it cannot be started.
    pub(crate) fn start() -> Server {
        Server::builder().start().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Ticks of 200 ms, sessions from 200 ms to 60 s, no fsync, every four-letter word allowed.
    pub(crate) fn builder() -> Builder {
        Builder {
            tick: 200,
            min_session: 200,
            max_session: 60_000,
            force_sync: false,
            extra: Vec::new(),
            properties: Vec::new(),
            sequences: Vec::new(),
            member: None,
            place: Place::default(),
        }
    }

    /// The connect string: `address:port`.
    pub(crate) fn hosts(&self) -> String {
        self.addr().to_string()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Stops the process in its tracks (`SIGSTOP`): TCP connections are still accepted, by the
    /// kernel, and nothing is ever answered.
    pub(crate) fn pause(&self) {
        let mut keeper = self.keeper();
        keeper.signal("STOP");
        self.paused.store(true, Ordering::SeqCst);
        wait_until("the server to stop", || matches!(keeper.process_state(), Some('T' | 't')));
    }

    /// Lets a paused server go on (`SIGCONT`).
    pub(crate) fn resume(&self) {
        self.keeper().signal("CONT");
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Kills the server (`SIGKILL`), and returns when it is gone. Its data stays.
    pub(crate) fn kill(&self) {
        let mut keeper = self.keeper();
        keeper.kill();
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

    /// Starts a killed server without waiting for it.
    pub(crate) fn launch(&self) {
        self.keeper().launch();
    }

    /// Waits until the server serves clients.
    pub(crate) fn wait_ready(&self) -> io::Result<()> {
        let limit = Instant::now() + READY_LIMIT;
        loop {
            let mode = self.mode();
            if self.keeper().process_state().is_none_or(|state| state == 'Z') {
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
        self.keeper().pid.is_some() && !self.paused.load(Ordering::SeqCst)
    }

    /// What `srvr` calls the server: `standalone`, `leader` or `follower`; `None` while it does
    /// not serve.
    pub(crate) fn mode(&self) -> Option<String> {
        // A word sent while the server is starting may be accepted and never answered.
        let answer = ask(self.addr(), "srvr", Duration::from_millis(300)).ok()?;
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    /// The answer to a four-letter word.
    pub(crate) fn four_letter(&self, word: &str) -> io::Result<String> {
        ask(self.addr(), word, Duration::from_secs(5))
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
        text.parse::<f64>().unwrap_or_else(|_| panic!("{name} is {text:?}")) as u64
    }

    /// Sets the request statistics of the server to zero (`srst`).
    pub(crate) fn stat_reset(&self) {
        self.four_letter("srst").expect("srst is answered");
    }

    fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, what: &str) -> io::Error {
        io::Error::other(format!(
            "the ZooKeeper server at {} {what}; its log ended in:\n{}",
            self.address,
            self.log_tail()
        ))
    }

    fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
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
}

/// Where a server runs; on loopback by default.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) address: Ipv4Addr,
    /// What to run it by, such as `ip netns exec ...`. It has to become the server, not to start it:
    /// signals go to the process that is started.
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

    /// The shortest session time-out that the server grants, in milliseconds.
    pub(crate) fn min_session(mut self, milliseconds: u32) -> Builder {
        self.min_session = milliseconds;
        self
    }

    /// The longest session time-out that the server grants, in milliseconds.
    pub(crate) fn max_session(mut self, milliseconds: u32) -> Builder {
        self.max_session = milliseconds;
        self
    }

    /// A further line of `zoo.cfg`.
    pub(crate) fn extra(mut self, line: impl Into<String>) -> Builder {
        self.extra.push(line.into());
        self
    }

    /// A Java system property, as `name=value`: some settings cannot be made in `zoo.cfg`
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

    /// Runs the server elsewhere than on loopback.
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
                // Another process was quicker to take the port.
                Err(_) if attempt < 3 && server.log_tail().contains("already in use") => {}
                Err(error) => return Err(error),
            }
            attempt += 1;
        }
    }

    /// Starts the server without waiting for it.
    pub(crate) fn launch(&self) -> io::Result<Server> {
        let installation = Installation::find()?;
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
        java.extend(installation.java_command());
        java.push(format!("-Dzookeeper.forceSync={}", if self.force_sync { "yes" } else { "no" }));
        // Kilobytes; the default fills 64 MB of disk with zeros at the first transaction.
        java.push("-Dzookeeper.preAllocSize=64".to_owned());
        java.extend(self.properties.iter().map(|property| format!("-D{property}")));
        java.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".to_owned());
        java.push(config.display().to_string());

        let mut keeper = Keeper::spawn(&log, &directory, &java)?;
        keeper.launch();
        let address = SocketAddr::from((self.place.address, port));
        Ok(Server { address, log, paused: AtomicBool::new(false), keeper: Mutex::new(keeper) })
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

/// Where Java and ZooKeeper's jars are.
#[derive(Debug)]
pub(crate) struct Installation {
    java: PathBuf,
    jars: Vec<PathBuf>,
}

impl Installation {
    /// Looks for `java` on the `PATH`, and for the jars in `/usr/share/java` or in the directory
    /// that `ZKLOCK_ZOOKEEPER_JARS` names.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], with a message that says what to install.
    pub(crate) fn find() -> io::Result<Installation> {
        let directory = env::var_os("ZKLOCK_ZOOKEEPER_JARS")
            .map_or_else(|| PathBuf::from("/usr/share/java"), PathBuf::from);
        // The manifest of the first names the others, except for a logger.
        let jars: Vec<PathBuf> =
            ["zookeeper.jar", "slf4j-simple.jar"].map(|jar| directory.join(jar)).into();
        let java = env::var_os("PATH").and_then(|path| {
            env::split_paths(&path).map(|entry| entry.join("java")).find(|java| java.is_file())
        });

        let mut missing: Vec<String> =
            jars.iter().filter(|jar| !jar.is_file()).map(|jar| jar.display().to_string()).collect();
        if java.is_none() {
            missing.push("java on the PATH".to_owned());
        }
        match java {
            Some(java) if missing.is_empty() => Ok(Installation { java, jars }),
            _ => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "cannot start a ZooKeeper server without {}; on Debian or Ubuntu: apt-get \
                     install default-jre-headless libzookeeper-java libslf4j-java (jars elsewhere: \
                     set ZKLOCK_ZOOKEEPER_JARS to their directory)",
                    missing.join(", ")
                ),
            )),
        }
    }

    fn java_command(&self) -> Vec<String> {
        let jars: Vec<String> = self.jars.iter().map(|jar| jar.display().to_string()).collect();
        let mut command = vec![self.java.display().to_string()];
        command.extend(
            ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
                .map(str::to_owned),
        );
        command.extend(["-cp".to_owned(), jars.join(":")]);
        command
    }
}

/// The shell between this process and the server.
///
/// It ignores the signals of a terminal, and also the `SIGHUP` that the kernel sends to it and to
/// a paused server when this process is gone: it must outlive us to clean up.
/// It reads one order a line and answers each with one line. It never reaps a server that ended by
/// itself, so a process id that it has told stays the server's.
const KEEPER: &str = r#"
trap '' HUP INT PIPE TERM
log=$1 directory=$2 pid=
shift 2
end() {
    [ -z "$pid" ] || { kill -KILL "$pid"; wait "$pid"; pid=; }
}
while read -r order; do
    case $order in
    start) "$@" </dev/null >>"$log" 2>&1 & pid=$!; echo "$pid" ;;
    kill) end; echo 0 ;;
    *) kill -"$order" "$pid"; echo "$?" ;;
    esac
done
end
rm -rf "$directory"
"#;

#[derive(Debug)]
struct Keeper {
    shell: Child,
    /// Taken in `drop`: its end tells the keeper to clean up.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The server's, unless it was killed.
    pid: Option<u32>,
}

impl Keeper {
    fn spawn(log: &Path, directory: &Path, command: &[String]) -> io::Result<Keeper> {
        let mut shell = Command::new("sh")
            .args(["-c", KEEPER, "zookeeper-keeper"])
            .args([log, directory])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Out of reach of a signal to our whole group, which would leave the directory.
            .process_group(0)
            .spawn()?;
        let orders = shell.stdin.take();
        let answers =
            shell.stdout.take().ok_or_else(|| io::Error::other("no pipe to the shell"))?;
        Ok(Keeper { shell, orders, answers: BufReader::new(answers), pid: None })
    }

    fn launch(&mut self) {
        assert!(self.pid.is_none(), "the server was started already");
        let answer = self.order("start");
        self.pid = Some(answer.parse().unwrap_or_else(|_| panic!("no process id: {answer:?}")));
    }

    fn kill(&mut self) {
        self.order("kill");
        self.pid = None;
    }

    fn signal(&mut self, name: &str) {
        assert!(self.pid.is_some(), "SIG{name} to a server that was killed");
        let status = self.order(name);
        assert!(status == "0", "SIG{name} could not be sent to the server");
    }

    fn order(&mut self, order: &str) -> String {
        let mut answer = String::new();
        let orders = self.orders.as_mut().expect("taken in drop only");
        writeln!(orders, "{order}")
            .and_then(|()| self.answers.read_line(&mut answer))
            .expect("the server's keeper answers");
        answer.trim().to_owned()
    }

    /// The state letter of the process (`S`, `T`, `Z`, ...), as the kernel tells it.
    fn process_state(&self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid?)).ok()?;
        let (_, after_name) = stat.rsplit_once(") ")?;
        after_name.chars().next()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.orders = None;
        // Nothing is left to do about a failure.
        let _ = self.shell.wait();
    }
}

/// A free loopback port, below the range that the kernel takes the ports of clients from; it stays
/// this process's while it runs, even when nobody listens there.
///
/// Inside that range a client that tries again and again to reach a server that is down may be
/// given the very port that it connects to, and is then connected to itself. And a port that is
/// free because its server is down just now must not become that of another test's server, which
/// would tell the clients of the first that their sessions have expired.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static START: OnceLock<u16> = OnceLock::new();
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test processes that run side by side start at different places.
    let start = *START.get_or_init(|| (RandomState::new().hash_one(0) % u64::from(COUNT)) as u16);
    for _ in 0..COUNT {
        let offset = (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        let port = FIRST + offset;
        if claim(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST} on");
}

/// Makes the port this process's; false if it is already, or another's.
pub(crate) fn claim(port: u16) -> bool {
    static CLAIMS: Mutex<Vec<fs::File>> = Mutex::new(Vec::new());
    let directory = env::temp_dir().join("zklock-ports");
    fs::create_dir_all(&directory).expect("a directory for claims");
    let file = fs::File::create(directory.join(port.to_string())).expect("a claim's file");
    let claimed = file.try_lock().is_ok();
    if claimed {
        CLAIMS.lock().unwrap_or_else(PoisonError::into_inner).push(file);
    }
    claimed
}

fn fresh_directory() -> io::Result<PathBuf> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let directory = env::temp_dir().join(format!(
        "zklock-server-{}-{}-{}",
        std::process::id(),
        COUNTER.fetch_add(1, Ordering::Relaxed),
        now.as_nanos()
    ));
    fs::create_dir(&directory)?;
    Ok(directory)
}

fn ask(server: SocketAddr, word: &str, patience: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&server, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let limit = Instant::now() + READY_LIMIT;
    while !condition() {
        assert!(Instant::now() < limit, "waited in vain for {what}");
        thread::sleep(POLL);
    }
}

/// A snapshot file as ZooKeeper 3.8 reads it: all that a server remembers before its first
/// transaction.
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

    /// Every node by path, the root as the empty string, with the number of children ever
    /// created, from which the server takes sequence numbers. Parents come before their children.
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
