//! Many at once.

use std::fs;
use std::process::Stdio;

use super::support::Site;

#[test]
fn two_hundred_at_once_run_one_after_the_other() {
    let site = Site::new("many");
    let file = site.file("ran");
    let script = format!("echo $$ >> {}", file.display());
    let spawn = |_| {
        let mut command = site.zklock();
        // Four seconds are short for two hundred processes on a small machine.
        command.args(["--session-timeout", "30s", "run", "a", "--"]).args(site.judged(&script));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<_> = (0..200).map(spawn).collect();
    for one in all {
        let output = one.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*err), (Some(0), ""));
    }
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 200);
    let zk = zklock::Client::connect(site.server.hosts()).unwrap();
    let lock = zklock::DistributedLock::new(&zk, "/locks", "a");
    assert_eq!(lock.contenders().unwrap(), []);
}
