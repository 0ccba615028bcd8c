//! The unit of the README, as it stands there, under a real systemd on two hosts: two containers.
//!
//! `scripts/test --docker` makes the image, and names it in `ZKLOCK_SYSTEMD_IMAGE`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::collections::HashMap;
use std::env;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Client, DistributedLock};
use zklock_testing::ZooKeeper;

/// For what has to come, also on a busy machine.
const SOON: Duration = Duration::from_secs(120);

/// Ends by TERM, as most programs do, or when a file appears.
const PLAIN: &str =
    "#!/bin/sh\nwhile [ ! -e /run/fail ]; do sleep 0.1; done\nrm /run/fail\nexit 3\n";

const HANDLES_TERM: &str =
    "#!/bin/sh\ntrap 'echo flushed; exit 0' TERM\nwhile :; do sleep 0.1; done\n";

/// A container with systemd as its first process.
struct Host {
    container: String,
    name: &'static str,
}

impl Host {
    fn start(image: &str, name: &'static str, zookeeper: &str) -> Host {
        let container = format!("zklock-{name}-{}", std::process::id());
        let zklock = format!("{}:/usr/local/bin/zklock:ro", env!("CARGO_BIN_EXE_zklock"));
        let mut docker = Command::new("docker");
        docker.args(["run", "--detach", "--name", &container, "--network", "host"]);
        // What systemd needs.
        docker.args(["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined"]);
        docker.args(["--security-opt", "apparmor=unconfined", "--cgroupns", "host"]);
        docker.args(["--volume", "/sys/fs/cgroup:/sys/fs/cgroup:rw", "--tmpfs", "/run"]);
        docker.args(["--tmpfs", "/tmp", "--volume", &zklock, image]);
        let started = docker.output().expect("docker");
        let host = Host { container, name };
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        // Until then, nobody answers systemctl.
        until("systemd is up", || {
            let said = host.call(&["systemctl", "is-system-running", "--wait"]).stdout;
            ["running\n", "degraded\n"].iter().any(|state| said == state.as_bytes())
        });
        let unit = include_str!("../README.md").split("## systemd").nth(1).unwrap();
        let unit = unit.split("```ini\n").nth(1).unwrap().split("```").next().unwrap();
        host.write("/etc/systemd/system/scheduler.service", unit);
        // Of the test: where the servers are.
        host.write(
            "/etc/systemd/system/scheduler.service.d/test.conf",
            &format!("[Service]\nEnvironment=ZKLOCK_HOSTS={zookeeper}\n"),
        );
        host.scheduler(PLAIN);
        host.systemctl(&["daemon-reload"]);
        host
    }

    /// What the unit runs.
    fn scheduler(&self, script: &str) {
        self.write("/usr/bin/scheduler", script);
    }

    fn call(&self, command: &[&str]) -> Output {
        let mut docker = Command::new("docker");
        docker.args(["exec", &self.container]).args(command).output().unwrap()
    }

    fn write(&self, file: &str, text: &str) {
        let mut docker = Command::new("docker");
        docker.args(["exec", "--interactive", &self.container, "sh", "-c"]);
        docker.args(["mkdir -p \"${0%/*}\" && cat >\"$0\" && chmod 755 \"$0\"", file]);
        let mut docker = docker.stdin(Stdio::piped()).spawn().unwrap();
        docker.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(docker.wait().unwrap().success(), "{file}");
    }

    fn systemctl(&self, arguments: &[&str]) {
        let done = self.call(&[&["systemctl"], arguments].concat());
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{}: {arguments:?}: {said}", self.name);
    }

    /// What systemd knows of the unit.
    fn unit(&self) -> HashMap<String, String> {
        let names = "ActiveState,SubState,Result,NRestarts,StatusText";
        let shown = self.call(&["systemctl", "show", "--property", names, "scheduler"]);
        let text = String::from_utf8(shown.stdout).unwrap();
        text.lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    fn show(&self) {
        let unit = self.unit();
        let value = |name: &str| format!("{name}={}", unit[name]);
        let shown = ["ActiveState", "SubState", "Result", "NRestarts", "StatusText"].map(value);
        eprintln!("{} {}", self.name, shown.join(" "));
    }

    fn until_it_is(&self, state: &str, restarts: &str) {
        until(&format!("{} is {state}, {restarts} restarts", self.name), || {
            let unit = self.unit();
            unit["ActiveState"] == state && unit["NRestarts"] == restarts
        });
        self.show();
    }

    /// Stops the unit, which is not taken for failed.
    fn stop(&self) {
        self.systemctl(&["stop", "scheduler"]);
        self.show();
        let unit = self.unit();
        let state = ["ActiveState", "SubState", "Result"].map(|name| unit[name].as_str());
        assert_eq!(state, ["inactive", "dead", "success"], "{}", self.name);
    }

    /// What the unit and its command have said.
    fn journal(&self) -> String {
        let said = self.call(&["journalctl", "--no-pager", "-o", "cat", "-u", "scheduler"]);
        String::from_utf8(said.stdout).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}:\n{}", self.name, self.journal());
        }
        let mut docker = Command::new("docker");
        let _ = docker.args(["rm", "--force", "--volumes", &self.container]).output();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < SOON, "never: {what}");
    }
}

/// Starts the unit on a host, until it waits behind the other one.
fn start_second(host: &Host, zk: &Client) {
    host.systemctl(&["start", "--no-block", "scheduler"]);
    let lock = DistributedLock::new(zk, "/locks", "scheduler");
    until("two contenders", || lock.contenders().unwrap().len() == 2);
    host.show();
    let unit = host.unit();
    assert_eq!(unit["ActiveState"], "activating");
    assert_eq!(unit["StatusText"], "waiting: /locks/scheduler");
}

#[test]
fn a_unit_is_active_on_one_host_and_stopping_it_is_a_success() {
    let Ok(image) = env::var("ZKLOCK_SYSTEMD_IMAGE") else {
        eprintln!("skipped: no ZKLOCK_SYSTEMD_IMAGE; run scripts/test --docker");
        return;
    };
    let server = ZooKeeper::builder().local().start().expect("a ZooKeeper server");
    let zk = Client::connect(server.hosts()).unwrap();
    let [one, other] = ["web1", "web2"].map(|name| Host::start(&image, name, server.hosts()));

    eprintln!("-- started on both; the one that waits is stopped");
    one.systemctl(&["start", "scheduler"]);
    assert_eq!(one.unit()["StatusText"], "holds the lock");
    start_second(&other, &zk);
    other.stop();

    eprintln!(
        "-- the one that runs is stopped, its command has no handler for TERM: the other takes over"
    );
    start_second(&other, &zk);
    one.stop();
    other.until_it_is("active", "0");

    eprintln!("-- zklock is killed by -9: the other takes over, and the first waits");
    one.scheduler(HANDLES_TERM);
    start_second(&one, &zk);
    other.systemctl(&["kill", "--kill-who=main", "--signal=KILL", "scheduler"]);
    one.until_it_is("active", "0");
    other.until_it_is("activating", "1");

    eprintln!("-- the one that runs is stopped, its command handles TERM");
    one.stop();
    assert!(one.journal().contains("flushed\n"), "{}", one.journal());
    other.until_it_is("active", "1");

    eprintln!("-- the command fails: the other takes over, and the first waits");
    start_second(&one, &zk);
    assert!(other.call(&["touch", "/run/fail"]).status.success());
    one.until_it_is("active", "0");
    other.until_it_is("activating", "2");

    eprintln!("-- with -n -E 0, while another has the lock");
    let environment = format!("ZKLOCK_HOSTS={}", server.hosts());
    let start = ["systemd-run", "--quiet", "--unit=late", "--property=Type=notify"];
    let start = [&start[..], &["--remain-after-exit", "--setenv", &environment]].concat();
    let run = ["zklock", "run", "--notify", "-n", "-E", "0", "scheduler", "--", "/bin/false"];
    let started = other.call(&[&start[..], &run].concat());
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    let shown = other.call(&["systemctl", "show", "--property", "SubState,Result", "late"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    eprint!("late.service on web2: {shown}");
    assert!(shown.contains("SubState=exited") && shown.contains("Result=success"), "{shown}");
}
