//! `zklock hold` and `release`: locks that are held for maintenance, on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod site;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use zklock::maintenance::{MaintenanceEnd, MaintenanceHold};
use zklock::{Contender, DistributedLock, DistributedRwLock, LockNode, NodeNaming};

use self::site::{Site, said};

/// How long anything may take on a busy machine.
const LONG: Duration = Duration::from_secs(120);

impl Site {
    fn lock(&self) -> DistributedLock {
        DistributedLock::new(&self.zk, "/locks", "nightly")
    }

    /// Starts it, to be ended by a signal.
    fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn holds(lock: &LockNode) -> Vec<(Contender, MaintenanceHold)> {
    let all = lock.contenders().unwrap().into_iter();
    all.filter_map(|one| Some((one.clone(), one.maintenance()?))).collect()
}

fn ends(lock: &LockNode) -> Option<SystemTime> {
    let holds = holds(lock);
    assert_eq!(holds.len(), 1, "{holds:?}");
    holds[0].1.ends
}

#[test]
fn a_lock_is_held_until_it_is_released() {
    let site = Site::new();
    let lock = site.lock();
    let none = (1, String::new(), "zklock: nightly: nobody holds it for maintenance\n".to_owned());
    assert_eq!(site.zklock(&["release", "nightly"]), none);
    let hold = ["hold", "nightly", "--reason", "disk replacement", "--no-end"];
    let (code, out, err) = site.zklock(&hold);
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    let held = "zklock: nightly: held for maintenance, until it is released (node 0";
    assert!(err.starts_with(held), "{err}");
    let [(holder, told)] = &holds(&lock)[..] else { panic!("no hold") };
    assert!(holder.holds && holder.session.is_none());
    assert_eq!((&*told.reason, told.ends), ("disk replacement", None));
    let (user, host) = told.made_by.split_once('@').expect("who has made it");
    assert!(!user.is_empty() && !host.is_empty());
    // Nobody gets it, and a second hold waits behind the first.
    let (code, _, err) = site.zklock(&["run", "--nonblock", "nightly", "--", "true"]);
    assert_eq!(code, 124, "{err}");
    let second = [&hold[..], &["--wait", "3s"]].concat();
    let (code, _, err) = site.zklock(&second);
    assert_eq!(code, 124);
    assert!(err.starts_with("zklock: nightly: not free within "), "{err}");
    for change in [&["release", "nightly"][..], &["hold", "nightly", "--change", "--no-end"]] {
        let (code, _, err) = site.zklock(&[change, &["--node", "0000000099"]].concat());
        let says = "zklock: nightly: no hold for maintenance has the node \"0000000099\"\n";
        assert_eq!((code, err.as_str()), (1, says));
    }
    let (code, out, err) = site.zklock(&["--json", "release", "nightly"]);
    assert_eq!((code, err.as_str()), (0, "zklock: nightly: released\n"));
    let released: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(released["released"]["node"], holder.path);
    assert_eq!(site.zklock(&["run", "--nonblock", "nightly", "--", "true"]).0, 0);
    assert_eq!(lock.contenders().unwrap(), []);
}

#[test]
fn a_hold_ends_at_its_time_while_a_command_waits() {
    let site = Site::new();
    let (code, _, err) =
        site.zklock(&["hold", "nightly", "-r", "x", "--for", "1s", "--json", "-q"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let ends = ends(&site.lock()).expect("an end");
    assert_eq!(site.zklock(&["run", "nightly", "--", "true"]).0, 0);
    // The server's clock is this host's.
    assert!(SystemTime::now() >= ends, "it has ended too early");
    assert!(holds(&site.lock()).is_empty());
}

#[test]
fn the_end_is_moved_for_the_one_that_is_named() {
    let site = Site::new();
    let lock = site.lock();
    let change = ["hold", "nightly", "--change", "--until", "2999-01-01T00:00:00Z"];
    let (code, _, err) = site.zklock(&change);
    assert_eq!((code, err.as_str()), (1, "zklock: nightly: nobody holds it for maintenance\n"));
    assert_eq!(site.zklock(&["hold", "nightly", "-r", "one", "--no-end"]).0, 0);
    let (code, _, err) = site.zklock(&change);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("held for maintenance, until "), "{err}");
    let year_2999 = humantime::parse_rfc3339("2999-01-01T00:00:00Z").unwrap();
    assert_eq!(ends(&lock), Some(year_2999));
    // Of two, one has to be named.
    let (code, _, err) = site.zklock(&["hold", "nightly", "-r", "two", "--no-end", "--no-wait"]);
    assert_eq!(code, 0);
    assert!(err.contains("queued for maintenance"), "{err}");
    for arguments in [&change[..], &["release", "nightly"]] {
        let (code, _, err) = site.zklock(arguments);
        assert_eq!(code, 64);
        assert!(err.contains("2 holds for maintenance: name one by --node: 0"), "{err}");
        assert!(err.contains("(one)") && err.contains("(two)"), "{err}");
    }
    let second = holds(&lock).remove(1).0.path;
    assert_eq!(site.zklock(&["release", "nightly", "--node", &second]).0, 0);
    assert_eq!(ends(&lock), Some(year_2999));
    assert_eq!(site.zklock(&["release", "nightly"]).0, 0);
}

#[test]
fn a_hold_that_waits_is_ended_by_a_signal_and_leaves_nothing() {
    let site = Site::new();
    let lock = site.lock();
    let guard = lock.lock().unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let child = site.start(&["hold", "nightly", "-r", "x", "--for", "2h"]);
        eventually("the hold", || holds(&lock).iter().any(|(_, hold)| hold.is_asked_for));
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&output.status),
            Some(signal as i32)
        );
        assert!(holds(&lock).is_empty(), "after {signal}");
    }
    drop(guard);
}

#[test]
fn a_hold_that_did_not_get_the_lock_says_so_also_when_no_server_answers_any_more() {
    let site = Site::new();
    let lock = site.lock();
    let guard = lock.lock().unwrap();
    let hold =
        ["hold", "nightly", "-r", "x", "--no-end", "--wait", "14s", "--connect-timeout", "3s"];
    let child = site.start(&hold);
    // Then it has seen that others are ahead.
    eventually("the hold", || !holds(&lock).is_empty());
    let end = ends(&lock);
    eventually("its second write", || ends(&lock) > end);
    site.server.pause().unwrap();
    let (code, _, err) = said(child.wait_with_output().unwrap());
    site.server.resume().unwrap();
    let says = "zklock: nightly: not free within 14 s: who holds it is not known: ";
    assert!(code == 124 && err.starts_with(says), "{code}: {err}");
    drop(guard);
}

/// Nobody believes in it: it says that it is asked for, and ends half a minute after the command was heard of last.
#[test]
fn a_hold_whose_command_is_killed_while_it_waits_ends_by_itself() {
    let site = Site::new();
    let lock = site.lock();
    let guard = lock.lock().unwrap();
    let mut child = site.start(&["hold", "nightly", "-r", "x", "--no-end"]);
    eventually("the hold", || holds(&lock).iter().any(|(_, hold)| hold.is_asked_for));
    let mut waiter = site.start(&["run", "nightly", "--", "true"]);
    eventually("the waiter", || lock.contenders().unwrap().len() == 3);
    child.kill().unwrap();
    child.wait().unwrap();
    let end = ends(&lock).expect("an end");
    guard.unlock().unwrap();
    assert!(waiter.wait().unwrap().success());
    assert!(SystemTime::now() >= end, "it has ended too early");
    let mut err = String::new();
    waiter.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(err, "");
    assert!(holds(&lock).is_empty());
}

/// The hold ends by the ensemble's clock, whatever those of the hosts say.
#[test]
fn clocks_of_hosts_two_hours_apart_change_no_end() {
    if std::process::Command::new("faketime").arg("--version").output().is_err() {
        println!("SKIPPED: faketime is missing; scripts/test installs it");
        return;
    }
    let site = Site::new();
    let at = |offset: &str, arguments: &[&str]| {
        let plain = site.command(arguments);
        let mut shifted = std::process::Command::new("faketime");
        shifted.args(["-f", offset]).arg(plain.get_program()).args(plain.get_args());
        shifted.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        // Else sleeps last by another clock.
        shifted.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
        said(shifted.output().unwrap())
    };
    for (made, waits, word) in [("+2h", "-2h", "ahead of"), ("-2h", "+2h", "behind")] {
        let until = SystemTime::now() + Duration::from_secs(10_000);
        let until = humantime::format_rfc3339_seconds(until).to_string();
        let (code, _, err) = at(made, &["hold", "nightly", "-r", "x", "--until", &until]);
        assert_eq!(code, 0, "{err}");
        assert!(err.contains("this host's clock is ") && err.contains(word), "{err}");
        let lock = site.lock();
        assert_eq!(ends(&lock), Some(humantime::parse_rfc3339(&until).unwrap()));
        assert_eq!(at(waits, &["run", "--nonblock", "nightly", "--", "true"]).0, 124);
        // Its end is to come, whatever the doctor's host believes.
        let (_, found, _) = at("+9h", &["doctor", "nightly"]);
        assert!(found.contains("; nobody else gets the lock before\n"), "{found}");
        assert_eq!(at(waits, &["release", "nightly"]).0, 0);
        let (code, _, err) = at(made, &["hold", "nightly", "-r", "x", "--for", "1s"]);
        assert_eq!(code, 0, "{err}");
        let end = ends(&lock).expect("an end");
        // Another hold waits for it, and ends it.
        let (code, _, err) = at(waits, &["hold", "nightly", "-r", "y", "--for", "1ms"]);
        assert_eq!(code, 0, "{err}");
        assert!(SystemTime::now() >= end, "it has ended too early");
    }
}

#[test]
fn the_name_fits_those_who_use_the_path() {
    let site = Site::new();
    let name = |arguments: &[&str]| {
        let hold = [&["hold", "nightly", "-r", "x", "--no-end"], arguments].concat();
        let (code, _, err) = site.zklock(&hold);
        assert_eq!(code, 0, "{err}");
        let name = holds(&site.lock()).remove(0).0.path;
        assert_eq!(site.zklock(&["release", "nightly"]).0, 0);
        name
    };
    assert!(name(&[]).contains("-maintenance-lock-"));
    assert!(name(&["--rw"]).contains("-maintenance-__WRIT__"));
    assert!(name(&["--kazoo"]).contains("-maintenance__lock__"));
    // From those who are there.
    let rw = DistributedRwLock::new(&site.zk, "/locks", "nightly");
    let guard = rw.read().unwrap();
    assert_eq!(site.zklock(&["hold", "nightly", "-r", "x", "--no-end", "--no-wait"]).0, 0);
    assert!(holds(&site.lock())[0].0.path.contains("-maintenance-__WRIT__"));
    assert_eq!(site.zklock(&["release", "nightly"]).0, 0);
    drop(guard);
    let kazoo = site.lock().naming(NodeNaming::Kazoo);
    let queued = kazoo.queue_for_maintenance("x", MaintenanceEnd::Never).unwrap();
    assert_eq!(site.zklock(&["release", "nightly", "--node", &queued.path]).0, 0);
}

#[test]
fn everybody_who_looks_sees_why() {
    let site = Site::new();
    let lock = site.lock().data("ops@web1");
    let year_2999 = humantime::parse_rfc3339("2999-01-01T00:00:00Z").unwrap();
    let guard = lock.lock().unwrap();
    let asks = lock.clone();
    let asked = thread::spawn(move || {
        asks.hold_for_maintenance("disk", MaintenanceEnd::At(year_2999), LONG).unwrap()
    });
    eventually("the hold", || holds(&lock).len() == 1);
    let says = |arguments: &[&str]| {
        let mut command = site.command(arguments);
        let (_, out, err) = said(command.env("TZ", "UTC").output().unwrap());
        format!("{out}{err}")
    };
    let has = |arguments: &[&str], text: &str| {
        let all = says(arguments);
        assert!(all.contains(text), "{arguments:?}: {all}");
    };
    has(&["show", "nightly"], "maintenance\tmaintenance, asked for: disk, by ops@web1\t");
    let asked_for = "note     /locks/nightly: maintenance, asked for: disk, by ops@web1; it begins when nobody holds";
    has(&["doctor", "nightly"], asked_for);
    has(&["doctor", "--all"], asked_for);
    drop(guard);
    let hold = asked.join().unwrap().expect("the lock");
    let whole = "maintenance: disk, by ops@web1, until 2999-01-01 00:00";
    for arguments in [
        &["show", "nightly"][..],
        &["ls"],
        &["-v", "test", "nightly"],
        &["wait", "-w", "3s", "nightly"],
        &["run", "--nonblock", "nightly", "--", "true"],
    ] {
        has(arguments, whole);
    }
    let note = format!("note     /locks/nightly: {whole}; nobody else gets the lock before");
    has(&["doctor", "nightly"], &note);
    has(&["doctor", "--all"], &note);
    let heading = format!("/locks/nightly  mutex: held for {whole}; waited for by 0\n");
    has(&["show", "nightly"], &heading);
    has(&["check", "nightly"], &format!("ZKLOCK OK - /locks/nightly: held for {whole}, 0 wait"));
    let mut watch = site.command(&["watch", "nightly"]);
    let mut watch = watch.env("TZ", "UTC").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    // It ends when nobody reads any more.
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(watch.wait().unwrap().success());
    assert!(line.ends_with(&format!("  held for {whole}\n")), "{line}");
    let release = format!("zklock release /locks/nightly --node {:010}", hold.sequence);
    has(
        &["ask", "nightly"],
        &format!("held for {whole}; that belongs to no session, so nobody can be asked: {release}"),
    );
    assert_eq!(site.zklock(&["ask", "nightly"]).0, 1);
    eventually("more than a moment", || {
        let all = says(&["check", "nightly", "--max-held", "1ms"]);
        all.contains(&release) && all.contains("WARNING")
    });
    assert_eq!(site.zklock(&["leader", "nightly"]), (1, String::new(), String::new()));
    let shown: serde_json::Value =
        serde_json::from_str(&site.zklock(&["--json", "show", "nightly"]).1).unwrap();
    let told = &shown["contenders"][0]["maintenance"];
    assert_eq!((&told["reason"], &told["made_by"]), (&"disk".into(), &"ops@web1".into()));
    assert_eq!(
        (&told["asked_for"], &told["ends"]),
        (&false.into(), &"2999-01-01T00:00:00.000Z".into())
    );
    let mut waiter = site.start(&["run", "nightly", "--", "true"]);
    eventually("the waiter", || lock.contenders().unwrap().len() == 2);
    has(&["graph"], &format!("  held for {whole}"));
    has(&["graph", "--dot"], &format!("\\nheld for {whole}\\n1 wait"));
    let waits = format!("for /locks/nightly, which is held for {whole}\n");
    eventually("the wait", || {
        let all = says(&["check", "nightly", "--max-waiting", "1ms"]);
        all.starts_with("ZKLOCK CRITICAL - ") && all.ends_with(&waits)
    });
    // Neither of these is left over.
    let all =
        says(&["doctor", "nightly"]) + &says(&["show", "nightly"]) + &says(&["doctor", "--all"]);
    assert!(!all.contains("nothing will remove it"), "{all}");
    assert_eq!(site.zklock(&["release", "nightly"]).0, 0);
    assert!(waiter.wait().unwrap().success());

    let hold = lock.hold_for_maintenance("disk", MaintenanceEnd::Never, LONG).unwrap().unwrap();
    has(
        &["doctor", "nightly"],
        "warning  /locks/nightly: maintenance: disk, by ops@web1, until it is released; it has no end",
    );
    let now = MaintenanceEnd::After(Duration::from_millis(1));
    assert!(lock.change_maintenance(&hold, now).unwrap());
    eventually("a doctor who misses those who end holds", || {
        says(&["doctor", "nightly"]).contains("but nobody who uses zklock has waited or come since")
    });
    assert_eq!(site.zklock(&["ask", "nightly"]).0, 1, "it is held by no one who could be asked");
}

#[test]
fn wrong_usage_makes_nothing() {
    let site = Site::new();
    for arguments in [
        &["hold", "nightly"][..],
        &["hold", "nightly", "--no-end"],
        &["hold", "nightly", "-r", "x"],
        &["hold", "nightly", "-r", "x", "--no-end", "--for", "1h"],
        &["hold", "nightly", "-r", "x", "--until", "tomorrow"],
        &["hold", "nightly", "-r", "x", "--until", "2001-01-01T00:00:00Z"],
        &["hold", "nightly", "-r", "", "--no-end"],
        &["hold", "nightly", "-r", "a\nb", "--no-end"],
        &["hold", "nightly", "-r", "x", "--for", "0s"],
        &["hold", "nightly", "-r", "x", "--no-end", "--no-wait", "--wait", "1s"],
        &["hold", "nightly", "--change", "-r", "x", "--no-end"],
        &["hold", "nightly", "-r", "x", "--no-end", "--node", "0000000001"],
        &["hold", "", "-r", "x", "--no-end"],
    ] {
        let (code, out, err) = site.zklock(arguments);
        assert_eq!((code, out.as_str()), (64, ""), "{arguments:?}: {err}");
        assert!(!err.is_empty());
    }
    assert_eq!(site.lock().contenders().unwrap(), []);
    // The next time of day like that, by the zone that TZ names.
    let mut command = site.command(&["hold", "nightly", "-r", "x", "--until", "00:00"]);
    let (code, _, err) = said(command.env("TZ", "XXX-05:45").output().unwrap());
    assert_eq!(code, 0, "{err}");
    assert!(err.contains(" 00:00:00 +05:45"), "{err}");
    let end = ends(&site.lock()).expect("an end");
    let left = end.duration_since(SystemTime::now()).unwrap();
    assert!(left <= Duration::from_secs(86_400), "{left:?}");
}
