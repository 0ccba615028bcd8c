//! `--patience`: more urgent ones come first.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use zklock::DistributedLock;

use super::support::{Running, Site};

const LONG: Duration = Duration::from_secs(120);

const SESSION: [&str; 2] = ["--session-timeout", "60s"];

/// A command that says its number when it holds the lock, and waits for it now.
fn waits(
    site: &Site,
    lock: &DistributedLock,
    patience: &str,
    number: usize,
    file: &Path,
) -> Running {
    let script = format!("echo {number} >> '{}'", file.display());
    let mut command = site.zklock();
    command.args(SESSION).args(["run", "--patience", patience, "a", "sh", "-c", &script]);
    let running = Running::of(&mut command);
    eventually("the next one in the room", || lock.waiting_room().unwrap().len() == number + 1);
    running
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_more_urgent_command_comes_before_patient_ones_and_show_shows_the_room() {
    let site = Site::new("patience");
    let zk = zklock::Client::connect(site.server.hosts()).unwrap();
    let lock = DistributedLock::new(&zk, "/locks", "a");
    let guard = lock.lock().unwrap();
    let file = site.file("order");
    let all: Vec<Running> = ["50", "50", "0"]
        .iter()
        .enumerate()
        .map(|(number, patience)| waits(&site, &lock, patience, number, &file))
        .collect();
    eventually("the urgent one", || lock.contenders().unwrap().len() == 3);
    let shown = site.zklock().args(["show", "a"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    // The urgent one contends, too.
    assert!(
        shown.starts_with("/locks/a  mutex: held by 1, waited for by 2, 1 in the waiting room\n"),
        "{shown}"
    );
    assert!(shown.contains("in the room (50)"), "{shown}");
    let listed = site.zklock().arg("ls").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let room = listed.lines().find(|line| line.starts_with("/locks/_zklock_room_a")).unwrap();
    assert!(room.contains("room") && room.contains("first "), "{room}");
    let said = |arguments: &[&str]| {
        let output = site.zklock().args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let room = "/locks/_zklock_room_a";
    let graph = said(&["graph", "/locks"]);
    assert!(
        graph.contains(&format!("{room}, the waiting room of /locks/a\n  first is ")),
        "{graph}"
    );
    let drawn = said(&["graph", "--mermaid", "/locks"]);
    assert!(drawn.contains("-->|its first contends for| "), "{drawn}");
    let doctor = said(&["doctor", "a"]);
    assert!(doctor.contains("3 are in the waiting room of /locks/a, "), "{doctor}");
    guard.unlock().unwrap();
    for running in all {
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "0\n2\n1\n");
    for options in [["--patience", "1000001"], ["--patience", "-1"]] {
        let ended = site.run([&options[..], &["-n", "a", "true"]].concat());
        assert_eq!(ended.code, Some(64), "{}", ended.err);
    }
}
