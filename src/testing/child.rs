//! What a ZooKeeper server as a child process is made of: an installation, a port, a directory,
//! and a keeper that ends the server with this process.
//!
//! The tests of this crate build their own servers of the same pieces, and include this file.

#![allow(dead_code, reason = "the tests use more of it than the library")]

use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

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

    /// Java with its options; properties, the main class and the configuration follow.
    pub(crate) fn java_command(&self) -> Vec<String> {
        let jars: Vec<String> = self.jars.iter().map(|jar| jar.display().to_string()).collect();
        let mut command = vec![self.java.display().to_string()];
        command.extend(
            ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData"]
                .map(str::to_owned),
        );
        command.extend(["-cp".to_owned(), jars.join(":")]);
        // Kilobytes; the default fills 64 MB of disk with zeros at the first transaction.
        command.push("-Dzookeeper.preAllocSize=64".to_owned());
        command
    }
}

/// The server's main class.
pub(crate) const MAIN_CLASS: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

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

/// Starts and ends a server, and removes its directory, at the latest when this process ends.
#[derive(Debug)]
pub(crate) struct Keeper {
    shell: Child,
    /// Taken in `drop`: its end tells the keeper to clean up.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The server's, unless it was killed.
    pid: Option<u32>,
}

impl Keeper {
    /// A keeper for a server that is yet to be [launched](Keeper::launch) by this command.
    pub(crate) fn spawn(log: &Path, directory: &Path, command: &[String]) -> io::Result<Keeper> {
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

    pub(crate) fn launch(&mut self) -> io::Result<()> {
        if self.pid.is_some() {
            return Err(io::Error::other("the server was started already"));
        }
        let answer = self.order("start")?;
        let pid = answer.parse();
        self.pid = Some(pid.map_err(|_| io::Error::other(format!("no process id: {answer:?}")))?);
        Ok(())
    }

    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.order("kill")?;
        self.pid = None;
        Ok(())
    }

    pub(crate) fn signal(&mut self, name: &str) -> io::Result<()> {
        if self.pid.is_none() {
            return Err(io::Error::other(format!("SIG{name} to a server that was killed")));
        }
        match self.order(name)?.as_str() {
            "0" => Ok(()),
            _ => Err(io::Error::other(format!("SIG{name} could not be sent to the server"))),
        }
    }

    /// The server's process, unless it was killed.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    fn order(&mut self, order: &str) -> io::Result<String> {
        let mut answer = String::new();
        let orders = self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(orders, "{order}")?;
        if self.answers.read_line(&mut answer)? == 0 {
            return Err(io::Error::other("the server's keeper has ended"));
        }
        Ok(answer.trim().to_owned())
    }

    /// The state letter of the process (`S`, `T`, `Z`, ...), as the kernel tells it.
    pub(crate) fn process_state(&self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid?)).ok()?;
        let (_, after_name) = stat.rsplit_once(") ")?;
        after_name.chars().next()
    }

    /// Whether the process has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.process_state().is_none_or(|state| state == 'Z')
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
/// this process's while it runs, or until it is [given back](release), even when nobody listens
/// there.
///
/// Inside that range a client that tries again and again to reach a server that is down may be
/// given the very port that it connects to, and is then connected to itself. And a port that is
/// free because its server is down just now must not become that of another test's server, which
/// would tell the clients of the first that their sessions have expired.
pub(crate) fn free_port() -> io::Result<u16> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static START: OnceLock<u16> = OnceLock::new();
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test processes that run side by side start at different places.
    let start = *START.get_or_init(|| (RandomState::new().hash_one(0) % u64::from(COUNT)) as u16);
    for _ in 0..COUNT {
        let offset = (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        let port = FIRST + offset;
        if claim(port)? {
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(port);
            }
            release(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("no free port from {FIRST} on")))
}

/// The ports that are this process's, by locked files.
static CLAIMS: Mutex<Vec<(u16, fs::File)>> = Mutex::new(Vec::new());

/// Makes the port this process's; false if it is already, or another's.
pub(crate) fn claim(port: u16) -> io::Result<bool> {
    // Nobody can write in another's directory.
    let user = fs::metadata("/proc/self").map_or(0, |process| process.uid());
    let directory = env::temp_dir().join(format!("zklock-ports-{user}"));
    let file = fs::create_dir_all(&directory)
        .and_then(|()| fs::File::create(directory.join(port.to_string())))
        .map_err(|cause| {
            let text = format!("cannot claim a port in {}: {cause}", directory.display());
            io::Error::new(cause.kind(), text)
        })?;
    let claimed = file.try_lock().is_ok();
    if claimed {
        CLAIMS.lock().unwrap_or_else(PoisonError::into_inner).push((port, file));
    }
    Ok(claimed)
}

/// Gives a port back.
pub(crate) fn release(port: u16) {
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner).retain(|(claimed, _)| *claimed != port);
}

/// A directory for temporary files that is nobody else's.
pub(crate) fn fresh_directory() -> io::Result<PathBuf> {
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

/// The last lines of a server's log, or what can be read of them.
pub(crate) fn tail(log: &[u8]) -> String {
    let log = String::from_utf8_lossy(log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// The answer to a four-letter word.
pub(crate) fn ask(server: SocketAddr, word: &str, patience: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&server, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// What `srvr` calls the server: `standalone`, `leader` or `follower`; `None` while it does
/// not serve.
pub(crate) fn mode(server: SocketAddr) -> Option<String> {
    // A word sent while the server is starting may be accepted and never answered.
    let answer = ask(server, "srvr", Duration::from_millis(300)).ok()?;
    answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
}
