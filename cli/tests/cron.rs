//! The line of the README for cron, as it stands there, on five hosts: five processes, each with a home and a
//! network of its own.
//!
//! The kernel's file lock (flock) judges whether two of them do the job at once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "what these tests do not need")]
#[path = "running/forward.rs"]
mod forward;
#[allow(dead_code, reason = "what these tests do not need")]
#[path = "running/support.rs"]
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use zklock::once::OnceMark;
use zklock::{Client, Contender, DistributedLock, Once};

use forward::Forward;
use support::{Ended, Site, children};

/// The job tells that it has begun, and ends as it is told to. `JUDGE` is what flock does about another one.
const JOB: &str = r#"#!/bin/sh
cd "${0%/*}" || exit
exec 9>>judge
flock JUDGE 9 || { echo overlap >> log; exit 99; }
host=${HOME##*/}
echo "$host begins" >> log
echo "$host" > begun
read order < orders
[ "$order" = fail ] && exit 7
echo "$host is done" >> log
"#;

/// For what has to come, also on a busy machine.
const SOON: Duration = Duration::from_secs(120);

struct Cron {
    site: Site,
    zk: Client,
    /// What the README has below the settings, without its time and user.
    line: String,
    /// The settings above it.
    settings: Vec<(String, String)>,
}

/// A process that cron has started on a host.
struct Host {
    name: String,
    child: Child,
    is_cut_off: Arc<AtomicBool>,
}

impl Cron {
    fn new(test: &str) -> Cron {
        Cron::judged_by(test, "-n")
    }

    fn judged_by(test: &str, judge: &str) -> Cron {
        let site = Site::new(test);
        for fifo in ["begun", "orders"] {
            mkfifo(&site.file(fifo), Mode::S_IRWXU).unwrap();
        }
        let job = site.file("backup.sh");
        fs::write(&job, JOB.replace("JUDGE", judge)).unwrap();
        fs::set_permissions(&job, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(site.file("log"), "").unwrap();

        let text = include_str!("../README.md").split("## Cron").nth(1).unwrap();
        let (mut settings, mut line) = (Vec::new(), None);
        for text in text.split("```").nth(1).unwrap().lines().skip(1) {
            match text.split_once('=') {
                Some((name, value)) if !name.contains(' ') => {
                    settings.push((name.to_owned(), value.to_owned()));
                }
                _ => {
                    // Minute, hour, day of the month, month, day of the week, user.
                    let fields = text.split_whitespace().take(6).collect::<Vec<_>>();
                    assert_eq!(fields, ["15", "2", "*", "*", "*", "root"]);
                    line = text.split_once("root").map(|(_, line)| line.trim_start());
                }
            }
        }
        let line = line.unwrap();
        assert!(!line.replace("\\%", "").contains('%'), "cron ends a line there: {line}");
        // Only where the programs are is another place.
        let mut line = line.replace("\\%", "%");
        for (place, ours) in [
            ("/usr/local/bin/zklock", env!("CARGO_BIN_EXE_zklock")),
            ("/opt/backup.sh", job.to_str().unwrap()),
        ] {
            assert_eq!(line.matches(place).count(), 1, "{place} in {line}");
            line = line.replace(place, ours);
        }
        let zk = Client::connect(site.server.hosts()).unwrap();
        Cron { site, zk, line, settings }
    }

    /// Runs the line as cron does: by `/bin/sh`, in the home, with few variables.
    fn start(&self, name: &str, line: &str) -> Host {
        let home = self.site.file(name);
        fs::create_dir_all(&home).unwrap();
        let is_cut_off = Arc::new(AtomicBool::new(false));
        let forward = {
            let is_cut_off = Arc::clone(&is_cut_off);
            Forward::start(self.site.server.hosts(), move |_| is_cut_off.load(Ordering::SeqCst))
        };
        let mut command = Command::new("/bin/sh");
        command.env_clear().envs(self.settings.iter().map(|(name, value)| (name, value)));
        command.env("HOME", &home).env("LOGNAME", "root").env("SHELL", "/bin/sh");
        command.env("PATH", "/usr/bin:/bin").env("TZ", noon()).current_dir(&home);
        // Of the test: where the servers are, and a session that a busy machine does not lose.
        command.env("ZKLOCK_HOSTS", &forward.hosts).env("ZKLOCK_SESSION_TIMEOUT", "20s");
        command.args(["-c", line]).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Host { name: name.to_owned(), child, is_cut_off }
    }

    /// Starts all at once. The one whose job has begun, and the others, which wait.
    fn start_five(&self) -> (Host, Vec<Host>) {
        let names = ["web1", "web2", "web3", "web4", "web5"];
        let mut hosts: Vec<Host> = names.map(|name| self.start(name, &self.line)).into();
        let begun = self.begun();
        let first = hosts.iter().position(|host| host.name == begun).unwrap();
        let first = hosts.swap_remove(first);
        until("all are in the queue", || self.contenders().len() == 5);
        (first, hosts)
    }

    /// Waits until a job begins; the name of its host.
    fn begun(&self) -> String {
        let (tell, told) = mpsc::channel();
        let fifo = self.site.file("begun");
        thread::spawn(move || tell.send(fs::read_to_string(fifo).unwrap()));
        told.recv_timeout(SOON).expect("a job begins").trim_end().to_owned()
    }

    /// Tells the job how to end.
    fn order(&self, order: &str) {
        fs::write(self.site.file("orders"), format!("{order}\n")).unwrap();
    }

    fn contenders(&self) -> Vec<Contender> {
        DistributedLock::new(&self.zk, "/locks", "nightly").contenders().unwrap()
    }

    fn marks(&self) -> Vec<OnceMark> {
        Once::new(&self.zk, "/locks", "nightly.once").marks().unwrap()
    }

    /// One of those that wait does the job, to its end; all others learn of it, and a late one, too.
    fn is_done_by_another(&self, first: &str, mut others: Vec<Host>) {
        let second = self.begun();
        assert_ne!(second, first);
        // Nobody knows yet that it will be done.
        assert_eq!(self.marks(), []);
        for other in &mut others {
            assert!(other.child.try_wait().unwrap().is_none(), "{} has ended", other.name);
        }
        self.order("succeed");
        for other in others {
            let name = other.name.clone();
            let ended = other.end();
            assert_eq!(ended, (0, String::new()), "{name}");
        }
        let marks = self.marks();
        assert_eq!(marks.len(), 1, "{marks:?}");
        assert_eq!(self.start("late", &self.line).end(), (0, String::new()));
        let log = fs::read_to_string(self.site.file("log")).unwrap();
        assert_eq!(log, format!("{first} begins\n{second} begins\n{second} is done\n"));
    }
}

impl Host {
    /// The exit code, as a shell shows it, and what cron would mail.
    fn end(self) -> (i32, String) {
        let Ended { code, signal, out, err } = Ended::new(self.child.wait_with_output().unwrap());
        (code.or_else(|| Some(128 + signal?)).unwrap(), out + &err)
    }
}

/// A time zone in which midnight, when the key changes, is far.
fn noon() -> String {
    let hours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3600 % 24;
    format!("NOON{:+}", i64::try_from(hours).unwrap() - 12)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < SOON, "never: {what}");
        thread::yield_now();
    }
}

#[test]
fn a_job_that_fails_is_done_by_the_next_host() {
    let cron = Cron::new("cron-fails");
    let (first, others) = cron.start_five();
    let name = first.name.clone();
    cron.order("fail");
    assert_eq!(first.end(), (7, String::new()));
    cron.is_done_by_another(&name, others);
}

#[test]
fn a_job_whose_zklock_is_killed_is_done_by_the_next_host() {
    let cron = Cron::new("cron-killed");
    let (first, others) = cron.start_five();
    let name = first.name.clone();
    let process = Pid::from_raw(cron.contenders()[0].process.unwrap().try_into().unwrap());
    let guard = children(process)[0];
    for process in [process, guard] {
        kill(process, Signal::SIGKILL).unwrap();
    }
    assert_eq!(first.end().0, 137);
    cron.is_done_by_another(&name, others);
}

#[test]
fn a_job_whose_session_is_lost_is_done_by_the_next_host() {
    // As the manual of run says, the next one may begin some milliseconds before the first is killed: it waits for that.
    let cron = Cron::judged_by("cron-expired", "-w 100");
    let (first, others) = cron.start_five();
    let name = first.name.clone();
    let session = cron.contenders()[0].session.unwrap();
    cron.site.server.expire(session.into()).unwrap();
    let (code, said) = first.end();
    assert!(code == 123 && said.contains("LOCK LOST after "), "{code}: {said}");
    cron.is_done_by_another(&name, others);
}

#[test]
fn a_job_whose_host_is_cut_off_is_done_by_the_next_host() {
    let cron = Cron::new("cron-cut-off");
    let (first, others) = cron.start_five();
    let name = first.name.clone();
    first.is_cut_off.store(true, Ordering::SeqCst);
    let (code, said) = first.end();
    assert!(code == 123 && said.contains("LOCK LOST after "), "{code}: {said}");
    cron.is_done_by_another(&name, others);
}

#[test]
fn a_host_that_waits_in_vain_says_so_and_does_not_exit_with_0() {
    let cron = Cron::new("cron-vain");
    assert_eq!(cron.line.matches(" -w 6h ").count(), 1);
    let first = cron.start("web1", &cron.line);
    cron.begun();
    let short = cron.line.replace(" -w 6h ", " -w 1s ");
    let (code, said) = cron.start("web2", &short).end();
    assert!(code == 124 && said.starts_with("zklock: nightly: held by "), "{code}: {said}");
    assert!(said.ends_with("; not free within 1.0 s\n"), "{said}");
    cron.order("succeed");
    assert_eq!(first.end(), (0, String::new()));
    assert_eq!(cron.start("web2", &short).end(), (0, String::new()));
}
