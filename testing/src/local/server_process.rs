//! The parts of a ZooKeeper server that runs as a child process: an installation, a directory, and a
//! keeper, which ends the server with this process.
//!
//! The tests of this crate build their own servers of the same parts, and include this file.

#![allow(dead_code, reason = "the tests use more of it than the library")]

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec};

/// How long the keeper may take to carry out an order, or to clean up.
const KEEPER_LIMIT: Duration = Duration::from_secs(30);

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
        Installation::at(&directory)
    }

    /// Looks for `java` on the `PATH`, and for the jars in this directory.
    ///
    /// # Errors
    /// As [`find`](Installation::find).
    pub(crate) fn at(directory: &Path) -> io::Result<Installation> {
        // The manifest of the first names the others, except for a logger.
        let mut jars: Vec<PathBuf> =
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
            Some(java) if missing.is_empty() => {
                // For TLS; Debian's manifest does not name them.
                let of_netty =
                    ["netty-codec", "netty-resolver", "netty-transport-native-unix-common"];
                let of_netty = of_netty.map(|jar| directory.join(format!("{jar}.jar")));
                jars.extend(of_netty.into_iter().filter(|jar| jar.is_file()));
                Ok(Installation { java, jars })
            }
            _ => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "a local ZooKeeper server needs {}; on Debian or Ubuntu: apt-get \
                     install default-jre-headless libzookeeper-java libslf4j-java (jars elsewhere: \
                     set ZKLOCK_ZOOKEEPER_JARS to their directory)",
                    missing.join(", ")
                ),
            )),
        }
    }

    /// Which version of the server it is, if the name of its jar says so.
    pub(crate) fn version(&self) -> Option<(u32, u32)> {
        let folder = self.jars.first()?.parent()?;
        let folders = [folder.to_owned(), folder.join("lib")];
        let files =
            folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let numbers = |name: &str| {
            let mut parts = name.strip_prefix("zookeeper-")?.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        };
        files.filter_map(|file| numbers(file.file_name().to_str()?)).next()
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
/// It must outlive this process to clean up. So it ignores the signals of a terminal, and the `SIGHUP`
/// that the kernel sends to it and to a paused server when this process has ended.
/// It reads one order per line and answers each with one line. It does not reap a server that ended by
/// itself: until the order `kill`, no other process can get the server's process id.
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
///
/// Every call ends within [`KEEPER_LIMIT`].
#[derive(Debug)]
pub(crate) struct Keeper {
    shell: Child,
    /// Closed to tell the keeper to clean up.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The server's process id, unless it was killed.
    pid: Option<u32>,
}

impl Keeper {
    /// Starts a keeper for a server that [`launch`](Keeper::launch) starts with this command.
    pub(crate) fn spawn(log: &Path, directory: &Path, command: &[String]) -> io::Result<Keeper> {
        let mut shell = Command::new("sh")
            .args(["-c", KEEPER, "zookeeper-keeper"])
            .args([log, directory])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A signal to our whole process group would end the keeper before it can clean up.
            .process_group(0)
            .spawn()?;
        let orders = shell.stdin.take();
        let answers =
            shell.stdout.take().ok_or_else(|| io::Error::other("no pipe to the shell"))?;
        Ok(Keeper { shell, orders, answers: BufReader::new(answers), pid: None })
    }

    /// Starts the server.
    pub(crate) fn launch(&mut self) -> io::Result<()> {
        if self.pid.is_some() {
            return Err(io::Error::other("the server was started already"));
        }
        let answer = self.order("start")?;
        let pid = answer.parse();
        self.pid = Some(pid.map_err(|_| io::Error::other(format!("no process id: {answer:?}")))?);
        Ok(())
    }

    /// Kills the server (`SIGKILL`), and waits until its process has ended.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.order("kill")?;
        self.pid = None;
        Ok(())
    }

    /// Sends the server a signal, named without `SIG`.
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
        let orders = self.orders.as_mut().ok_or_else(keeper_has_ended)?;
        writeln!(orders, "{order}")?;
        if !self.answers_within(KEEPER_LIMIT)? {
            // Its next answer would be taken for that to another order. It cleans up when it can.
            self.orders = None;
            let text = format!("the server's keeper did not answer {order:?} in {KEEPER_LIMIT:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            return Err(keeper_has_ended());
        }
        Ok(answer.trim().to_owned())
    }

    /// Waits until there is an answer to read, or the keeper has ended.
    fn answers_within(&self, limit: Duration) -> io::Result<bool> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut pipe = [PollFd::new(self.answers.get_ref(), PollFlags::IN)];
            match rustix::event::poll(&mut pipe, Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                ready => return Ok(ready? > 0),
            }
        }
    }

    /// The process's state letter (`S`, `T`, `Z`, ...), as the kernel shows it in `/proc`.
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
        let end = Instant::now() + KEEPER_LIMIT;
        // Its end of the pipe closes when it has cleaned up. If that takes longer, it goes on without us.
        let _ = self.answers_within(KEEPER_LIMIT);
        while matches!(self.shell.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn keeper_has_ended() -> io::Error {
    io::Error::other("the server's keeper has ended")
}

/// Makes a new directory for temporary files.
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

/// The last lines of a server's log.
pub(crate) fn tail(log: &[u8]) -> String {
    let log = String::from_utf8_lossy(log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Sends a server a four-letter command; its answer.
pub(crate) fn ask(server: SocketAddr, word: &str, patience: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&server, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The server's mode by the command `srvr`: `standalone`, `leader` or `follower`. `None` while it does not
/// serve clients.
pub(crate) fn mode(server: SocketAddr) -> Option<String> {
    // A server that is starting may accept a command and never answer it.
    let answer = ask(server, "srvr", Duration::from_millis(300)).ok()?;
    answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
}
