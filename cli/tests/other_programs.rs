//! Lock paths with nodes of other programs, named as these name them, on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod site;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use zklock::{DistributedLock, NodeNaming};

use self::raw::{Kind, Raw};
use self::site::Site;

#[path = "../../tests/it/support/raw.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod raw;

const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const HEX: &str = "0f8fad5bd9cb469fa16570867728950e";

impl Site {
    /// A session of another program.
    fn raw(&self) -> Raw {
        Raw::connect(self.server.hosts(), Duration::from_secs(60)).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (_, out, err) = self.zklock(&[&["--json"], arguments].concat());
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"))
    }

    /// The lines that it prints, each as its cells.
    fn rows(&self, arguments: &[&str]) -> Vec<Vec<String>> {
        let (code, out, err) = self.zklock(arguments);
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
        out.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    }
}

fn session(of: &Raw) -> String {
    format!("{:#x}", of.session())
}

/// Creates a sequential node of the session below a lock's node, which is made.
fn contender(raw: &mut Raw, lock: &str, name: &str, data: &[u8]) -> String {
    raw.create_all(lock).unwrap();
    raw.create(&format!("{lock}/{name}"), data, Kind::EphemeralSequential).unwrap()
}

#[test]
fn a_contender_of_another_recipe_is_shown_with_its_name() {
    let site = Site::new();
    let mut raw = site.raw();
    for (lock, name, kind, recipe) in [
        ("spark", format!("_c_{UUID}-latch-"), "other (latch)", "latch"),
        ("accumulo", format!("zlock#{UUID}#"), "other (zlock)", "zlock"),
        ("aiozk", format!("lock-{HEX}-"), "mutex", "lock"),
        ("kazoo", format!("{HEX}__lock__"), "mutex", "lock"),
    ] {
        let path = format!("/locks/{lock}");
        let node = contender(&mut raw, &path, &name, b"web9");
        let rows = site.rows(&["show", lock]);
        assert_eq!(rows[0], [format!("{path}  mutex: held by 1, waited for by 0")]);
        assert_eq!(rows[1][..3], ["holds", kind, "web9"]);
        assert_eq!(rows[1][5], session(&raw));
        let shown = &site.json(&["show", lock])["contenders"][0];
        let word = kind.split(' ').next().unwrap();
        assert_eq!((&shown["kind"], &shown["recipe"]), (&word.into(), &recipe.into()));
        assert_eq!(shown["may_hold_too"], false);
        assert_eq!(shown["node"], node.as_str());
        let listed = site.rows(&["ls", &path]);
        assert_eq!(listed[0][..3], [&*path, kind, "web9"]);
    }
}

/// Kazoo ignores our node, which is ahead of its own.
#[test]
fn who_may_hold_beside_the_holder_is_told() {
    let site = Site::new();
    let lock = DistributedLock::new(&site.zk, "/locks", "a").data("ours");
    let guard = lock.lock().unwrap();
    let mut raw = site.raw();
    let other = raw.create(&format!("/locks/a/{HEX}__lock__"), b"kazoo", Kind::EphemeralSequential);
    let other = other.unwrap();
    let rows = site.rows(&["show", "a"]);
    assert_eq!(rows[0], ["/locks/a  mutex: held by 1, waited for by 0, 1 may hold it too"]);
    assert_eq!(rows[2][..3], ["may hold", "mutex", "kazoo"]);
    assert_eq!(site.json(&["show", "a"])["contenders"][1]["may_hold_too"], true);
    let (_, out, _) = site.zklock(&["graph"]);
    assert!(out.contains("\n  may hold it too: kazoo") && !out.contains("<-"), "{out}");
    let (_, out, _) = site.zklock(&["graph", "--dot"]);
    assert!(out.contains("\\n0 wait, 1 may hold it too\""), "{out}");
    let warning = "ZKLOCK WARNING - /locks/a: kazoo (node ";
    for (options, code, begin) in [
        (&["check", "a"][..], 1, warning),
        (&["check", "a", "--kazoo-as-it-comes"], 2, "ZKLOCK CRITICAL - /locks/a: kazoo (node "),
    ] {
        let (found, out, _) = site.zklock(options);
        assert_eq!(found, code, "{out}");
        assert!(out.starts_with(begin) && out.contains("may hold it too: kazoo ignores"), "{out}");
    }
    let (code, out, _) = site.zklock(&["doctor", "a"]);
    assert_eq!(code, 0, "{out}");
    let (_, line) = out.split_once("warning  /locks/a: kazoo (node ").unwrap();
    let line = line.lines().next().unwrap();
    for part in ["extra_lock_patterns", "run --kazoo", "NodeNaming::Kazoo"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    raw.delete(&other).unwrap();
    assert_eq!(site.zklock(&["check", "a"]).0, 0);
    // Both respect each other with kazoo's names; a latch waits for no other node.
    guard.unlock().unwrap();
    let guard = lock.naming(NodeNaming::Kazoo).lock().unwrap();
    contender(&mut raw, "/locks/a", &format!("{HEX}__lock__"), b"");
    assert_eq!(site.rows(&["show", "a"])[2][0], "behind 1");
    assert_eq!(site.zklock(&["check", "a", "--kazoo-as-it-comes"]).0, 0);
    contender(&mut raw, "/locks/a", &format!("_c_{UUID}-latch-"), b"");
    assert_eq!(site.rows(&["show", "a"])[3][0], "may hold");
    let (code, out, _) = site.zklock(&["check", "a", "--kazoo-as-it-comes"]);
    assert!(code == 1 && out.contains("LeaderLatch waits for other latches only"), "{out}");
    guard.unlock().unwrap();
}

/// Patroni's leader: an ephemeral node, which only its creator makes.
#[test]
fn a_leader_s_node_without_a_number_is_never_free() {
    let site = Site::new();
    let mut raw = site.raw();
    raw.create_all("/service/x/members").unwrap();
    raw.create("/service/x/leader", b"n1", Kind::Ephemeral).unwrap();
    let is_said = |text: &str| {
        let begin = format!("ephemeral node of session {}, since ", session(&raw));
        let end = ", data \"n1\": not a lock of a queue; its owner leads";
        assert!(text.contains(&begin) && text.contains(end), "{text}");
    };
    for path in ["/service/x/leader", "/service/x"] {
        let (code, out, _) = site.zklock(&["show", path]);
        assert_eq!(code, 0);
        is_said(&out);
        assert!(out.starts_with(&format!("{path}  ")) && !out.contains("free"), "{out}");
        let (code, out, _) = site.zklock(&["check", path, "--must-exist"]);
        assert_eq!(code, 0, "{out}");
        is_said(&out);
        assert_eq!(site.zklock(&["check", path, "--max-held", "0"]).0, 2);
        let (code, _, err) = site.zklock(&["test", "-v", path]);
        assert_eq!(code, 0);
        is_said(&err);
        assert_eq!(site.zklock(&["test", path]), (0, String::new(), String::new()));
        assert_eq!(site.json(&["test", path])["held"], true);
        assert_eq!(site.zklock(&["leader", path]), (0, "n1\n".to_owned(), String::new()));
        let (_, out, _) = site.zklock(&["doctor", path]);
        is_said(out.lines().find(|line| line.starts_with("warning  /service/x")).unwrap());
        let (code, _, err) = site.zklock(&["wait", path, "-w", "1s"]);
        assert_eq!(code, 124, "{err}");
        is_said(&err);
        let (code, _, err) = site.zklock(&["ask", path]);
        assert_eq!(code, 1, "{err}");
        is_said(&err);
        is_said(&site.zklock(&["watch", path, "--for", "1s"]).2);
        let shown = site.json(&["show", path]);
        assert_eq!(shown["leader_node"]["node"], "/service/x/leader");
        assert_eq!(shown["leader_node"]["data"], "n1");
        assert_eq!(shown["exists"], true);
    }
    // Nothing is made, and nothing is run.
    for arguments in [
        &["run", "/service/x/leader", "echo", "ran"][..],
        &["run", "-n", "-s", "/service/x/leader", "echo", "ran"],
        &["run", "--permits", "2", "/service/x/leader", "echo", "ran"],
        &["run", "--also", "/service/x/leader", "a", "echo", "ran"],
        &["lead", "/service/x/leader", "echo", "ran"],
        &["hold", "/service/x/leader", "-r", "x", "--no-end"],
        &["hold", "/service/x/leader", "-r", "x", "--no-end", "--no-wait"],
    ] {
        let (code, out, err) = site.zklock(arguments);
        assert_eq!((code, out.as_str()), (124, ""), "{arguments:?}: {err}");
        is_said(&err);
    }
    let (code, _, err) = site.zklock(&["run", "/service/x/leader/a", "echo", "ran"]);
    assert!(code == 124 && err.contains("/service/x/leader above it: "), "{err}");
    let (code, out, err) = site.zklock(&["run", "-E", "0", "/service/x/leader", "echo", "ran"]);
    assert_eq!((code, out.as_str()), (0, ""));
    is_said(&err);
    // It is waited for.
    let waiter = site.command(&["-vv", "wait", "/service/x/leader"]).stderr(Stdio::piped()).spawn();
    let mut waiter = Listened::to(waiter.unwrap());
    waiter.until("");
    raw.delete("/service/x/leader").unwrap();
    assert_eq!(waiter.end().0, 0);
    assert_eq!(site.zklock(&["leader", "/service/x/leader"]).0, 1);
}

#[test]
fn a_path_that_is_not_there_is_not_said_to_be_free() {
    let site = Site::new();
    let says = |text: &str| text.contains("no such node: nobody holds it, and nobody has yet");
    let (code, out, err) = site.zklock(&["show", "nigthly"]);
    assert!(code == 0 && out.starts_with("/locks/nigthly  no such node") && says(&out), "{out}");
    assert_eq!(err, "");
    let (code, out, _) = site.zklock(&["check", "nigthly"]);
    assert!(code == 0 && out.starts_with("ZKLOCK OK - ") && says(&out), "{out}");
    let (code, _, err) = site.zklock(&["test", "nigthly"]);
    assert!(code == 1 && says(&err), "{err}");
    let (code, _, err) = site.zklock(&["wait", "nigthly"]);
    assert!(code == 0 && says(&err), "{err}");
    let shown = site.json(&["show", "nigthly"]);
    assert_eq!((&shown["exists"], &shown["kind"]), (&false.into(), &Value::Null));
    for (arguments, code) in
        [(["check", "nigthly"], 2), (["test", "nigthly"], 125), (["wait", "nigthly"], 125)]
    {
        let (found, out, err) = site.zklock(&[&arguments[..], &["--must-exist"]].concat());
        assert_eq!(found, code, "{arguments:?}");
        assert!(says(&out) || says(&err), "{out}{err}");
    }
    site.raw().create_all("/locks/nigthly").unwrap();
    for (arguments, code) in
        [(["check", "nigthly"], 0), (["test", "nigthly"], 1), (["wait", "nigthly"], 0)]
    {
        let (found, _, err) = site.zklock(&[&arguments[..], &["--must-exist"]].concat());
        assert_eq!((found, err.as_str()), (code, ""), "{arguments:?}");
    }
    assert_eq!(site.zklock(&["show", "nigthly"]).1, "/locks/nigthly  free\n");
}

/// A process of which the lines on standard error are read.
struct Listened {
    child: Child,
    lines: BufReader<std::process::ChildStderr>,
}

impl Drop for Listened {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Listened {
    fn to(mut child: Child) -> Listened {
        let lines = BufReader::new(child.stderr.take().unwrap());
        Listened { child, lines }
    }

    /// Waits for a line with this text.
    fn until(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "no line with {text:?}");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The exit code, and what else it says.
    fn end(mut self) -> (i32, String) {
        let mut said = String::new();
        self.lines.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code().unwrap(), said)
    }
}

/// Starts a command, and hears what it says.
fn listen(site: &Site, arguments: &[&str]) -> Listened {
    let mut command = site.command(arguments);
    Listened::to(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
}

#[test]
fn a_wait_behind_an_unknown_recipe_is_told_and_may_be_passed() {
    let site = Site::new();
    let mut raw = site.raw();
    let made = contender(&mut raw, "/locks/a", "worker-", b"web9:80");
    let mut waiter = listen(&site, &["-v", "run", "a", "true"]);
    let line = waiter.until("which is not of zklock or a recipe that it knows");
    assert!(line.contains(&made) && line.contains("web9:80"), "{line}");
    assert!(line.contains(&format!("of session {}, made ", session(&raw))), "{line}");
    for wait in [&["-n"][..], &["-w", "100ms"]] {
        let (code, out, err) = site.zklock(&[&["run"], wait, &["a", "echo", "ran"]].concat());
        assert_eq!((code, out.as_str()), (124, ""));
        let named = format!(". {made} of session {}, made ", session(&raw));
        assert!(err.contains(&named) && err.contains(" run --ignore worker-"), "{err}");
        let number = &made[made.len() - 10..];
        assert!(err.contains(&format!("zklock break /locks/a --node {number}")), "{err}");
    }
    // As the waiter is before it, the one that passes it waits for that.
    let passing = listen(&site, &["run", "--ignore", "x", "--ignore", "worker-", "b", "true"]);
    assert_eq!(passing.end().0, 0);
    let other = contender(&mut raw, "/locks/b", "worker-", b"");
    for (prefix, code) in [("worker-", 0), ("work", 0), ("x", 124)] {
        let (found, _, err) = site.zklock(&["run", "-n", "--ignore", prefix, "b", "true"]);
        assert_eq!(found, code, "{prefix}: {err}");
    }
    assert_eq!(site.zklock(&["run", "--ignore", "", "b", "true"]).0, 64);
    // A known one is waited for.
    let name = format!("_c_{UUID}-lock-");
    contender(&mut raw, "/locks/c", &name, b"");
    assert_eq!(site.zklock(&["run", "-n", "--ignore", "_c_", "c", "true"]).0, 124);
    raw.delete(&made).unwrap();
    assert_eq!(waiter.end().0, 0);
    raw.delete(&other).unwrap();
}

#[test]
fn what_will_block_after_an_upgrade_is_listed() {
    let site = Site::new();
    let mut raw = site.raw();
    let latch = contender(&mut raw, "/locks/spark", &format!("_c_{UUID}-latch-"), b"");
    let worker = contender(&mut raw, "/locks/deep/a", "worker-", b"w1");
    let marked = contender(&mut raw, "/locks/b", "etl-lock-", b"");
    contender(&mut raw, "/locks/kazoo", &format!("{HEX}__lock__"), b"");
    let _lasting = raw.create("/locks/b/x-5-", b"", Kind::PersistentSequential).unwrap();
    let (code, out, err) = site.zklock(&["doctor", "--all", "/locks"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let told = |path: &str, lock: &str, next: &str| {
        let begin = format!("warning  {lock}: {path} of session {}, made ", session(&raw));
        let line = out.lines().find(|line| line.starts_with(&begin));
        assert!(line.is_some_and(|line| line.contains(next)), "{begin}: {out}");
    };
    told(&latch, "/locks/spark", "is of another recipe (latch), and is waited for");
    told(&worker, "/locks/deep/a", "zklock break /locks/deep/a --node ");
    told(&marked, "/locks/b", "run --ignore etl-lock-");
    assert_eq!(out.matches("is waited for until it is gone").count(), 3, "{out}");
}

#[test]
fn a_node_that_contends_for_nothing_is_deleted_only_by_force() {
    let site = Site::new();
    let mut raw = site.raw();
    raw.create_all("/locks/a").unwrap();
    let lasting = raw.create("/locks/a/job-", b"", Kind::PersistentSequential).unwrap();
    let number = lasting[lasting.len() - 10..].to_owned();
    let word = "belongs to no session and has no recipe's name, so nobody waits for it";
    for node in [&*number, &lasting] {
        let (code, _, err) = site.zklock(&["break", "a", "--node", node, "--yes"]);
        assert!(code == 64 && err.contains(word) && err.contains("--force"), "{err}");
    }
    let (code, _, err) = site.zklock(&["break", "a", "--node", &number, "--force"]);
    assert!(code == 64 && err.contains("nobody can confirm this at a terminal"), "{err}");
    assert!(raw.exists(&lasting).unwrap().is_some());
    let (code, _, err) = site.zklock(&["break", "a", "--node", &number, "--force", "--yes"]);
    assert_eq!((code, err), (0, format!("zklock: a: {lasting} was deleted\n")));
    assert!(raw.exists(&lasting).unwrap().is_none());
    // Nothing else is.
    raw.create("/locks/a/config", b"", Kind::Persistent).unwrap();
    for node in ["config", "0000000099", "x"] {
        let options = ["break", "a", "--force", "--yes", "--node", node];
        let none = "zklock: a: no contender is like that; see zklock show\n";
        assert_eq!(site.zklock(&options), (1, String::new(), none.to_owned()), "{node}");
    }
    // An orphan of a recipe to the letter contends, and so does a session's node.
    let orphan = format!("/locks/a/_c_{UUID}-lock-0000000007");
    raw.create(&orphan, b"", Kind::Persistent).unwrap();
    assert_eq!(site.zklock(&["break", "a", "--node", "0000000007", "--yes"]).0, 0);
    assert!(raw.exists(&orphan).unwrap().is_none());
    let worker = contender(&mut raw, "/locks/a", "worker-", b"w1");
    assert_eq!(site.zklock(&["break", "a", "--node", &worker, "--yes"]).0, 0);
    assert!(raw.exists(&worker).unwrap().is_none());
}

#[test]
fn a_command_runs_under_kazoo_s_locks() {
    let site = Site::new();
    let mut raw = site.raw();
    let script = "zklock --hosts \"$ZKLOCK_HOSTS\" --json show a";
    let script = script.replace("zklock ", &format!("{} ", env!("CARGO_BIN_EXE_zklock")));
    let node_of = |options: &[&str]| {
        let (code, out, err) =
            site.zklock(&[&["run"], options, &["a", "--", "sh", "-c", &*script]].concat());
        assert_eq!(code, 0, "{err}");
        let shown: Value = serde_json::from_str(&out).unwrap();
        let last = shown["contenders"].as_array().unwrap().last().unwrap().clone();
        (last["node"].as_str().unwrap().to_owned(), err)
    };
    let (node, err) = node_of(&["--kazoo"]);
    assert!(node.contains("__lock__") && err.is_empty(), "{node} {err}");
    assert!(node_of(&["--kazoo", "-s"]).0.contains("__rlock__"));
    let (node, err) = node_of(&[]);
    assert!(node.contains("-lock-") && err.is_empty(), "{node} {err}");
    // A reader of kazoo's keeps no reader waiting.
    let reader = contender(&mut raw, "/locks/a", &format!("{HEX}__rlock__"), b"");
    let says =
        "zklock: a: all who are at the lock have kazoo's names, and so has this one (--kazoo)\n";
    let (node, err) = node_of(&["-s"]);
    assert!(node.contains("__rlock__") && err == says, "{node} {err}");
    raw.delete(&reader).unwrap();
    for options in [&["run", "a", "true"][..], &["run", "-x", "-w", "1h", "a", "true"]] {
        let holder = contender(&mut raw, "/locks/a", &format!("{HEX}__lock__"), b"");
        let mut waiter = listen(&site, options);
        assert_eq!(waiter.until(""), says);
        let lock = DistributedLock::new(&site.zk, "/locks", "a");
        // It has a node of that name, and no other one.
        let mut children = site.zk.znode("/locks/a").observe_children();
        while lock.contenders().unwrap().len() < 2 {
            children.next_within(Duration::from_secs(60)).unwrap().unwrap();
        }
        let all = lock.contenders().unwrap();
        assert!(all.len() == 2 && all[1].path.ends_with(&format!("{:010}", all[1].sequence)));
        assert!(all[1].path.contains("__lock__"), "{all:?}");
        raw.delete(&holder).unwrap();
        assert_eq!(waiter.end(), (0, String::new()));
    }
    // Of both names, it keeps its own.
    let curator = contender(&mut raw, "/locks/a", &format!("_c_{UUID}-lock-"), b"");
    let kazoo = contender(&mut raw, "/locks/a", &format!("{HEX}__lock__"), b"");
    let (code, _, err) = site.zklock(&["run", "-w", "1s", "a", "true"]);
    assert!(code == 124 && !err.contains("kazoo"), "{err}");
    raw.delete(&curator).unwrap();
    raw.delete(&kazoo).unwrap();
    // A signal ends the wait as ever.
    let holder = contender(&mut raw, "/locks/a", &format!("{HEX}__lock__"), b"");
    let mut waiter = listen(&site, &["run", "a", "true"]);
    assert_eq!(waiter.until(""), says);
    let process = nix::unistd::Pid::from_raw(i32::try_from(waiter.child.id()).unwrap());
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM).unwrap();
    let mut said = String::new();
    waiter.lines.read_to_string(&mut said).unwrap();
    let status = waiter.child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15), "{said}");
    raw.delete(&holder).unwrap();
}

/// Patroni elects nobody while there is a node of ours at the path of its leader.
#[test]
fn a_new_path_beside_another_program_s_nodes_is_made_only_if_that_is_said() {
    let site = Site::new();
    let mut raw = site.raw();
    raw.create_all("/service/x/members").unwrap();
    raw.create("/service/x/members/n1", b"{}", Kind::Ephemeral).unwrap();
    for name in ["config", "history", "initialize"] {
        raw.create(&format!("/service/x/{name}"), b"data", Kind::Persistent).unwrap();
    }
    let says = "/service/x/leader does not exist, and what is beside it is no lock (config, history, initialize and 1 \
                more): ";
    for arguments in [
        &["run", "/service/x/leader", "echo", "ran"][..],
        &["run", "-n", "-s", "/service/x/leader", "echo", "ran"],
        &["run", "--permits", "2", "/service/x/leader", "echo", "ran"],
        &["run", "--lead", "/service/x/leader", "echo", "ran"],
        &["run", "--patience", "2", "/service/x/leader", "echo", "ran"],
        &["run", "--also", "/service/x/leader", "a", "echo", "ran"],
        &["hold", "/service/x/leader", "-r", "x", "--no-end"],
    ] {
        let (code, out, err) = site.zklock(arguments);
        assert_eq!((code, out.as_str()), (64, ""), "{arguments:?}: {err}");
        assert!(err.contains(says) && err.contains("--create"), "{arguments:?}: {err}");
    }
    let children = |path: &str| site.zk.znode(path).children().unwrap().unwrap();
    assert_eq!(children("/service/x"), ["config", "history", "initialize", "members"]);
    assert_eq!(site.zklock(&["run", "--create", "/service/x/leader", "echo", "ran"]).1, "ran\n");
    // Its node is there now, or was.
    let (code, _, err) = site.zklock(&["run", "--once", "k", "/service/x/leader", "true"]);
    assert_eq!(code, 0, "{err}");
    // No parent, one without children, with locks at any depth, with a lock that is idle, or with marks of one.
    for (made, path) in [
        (&[][..], "/new/a"),
        (&["/empty"], "/empty/a"),
        (&["/idle/b"], "/idle/a"),
        (&["/marks/a.once/k"], "/marks/a"),
    ] {
        for one in made {
            raw.create_all(one).unwrap();
        }
        let (code, out, err) = site.zklock(&["run", path, "echo", "ran"]);
        assert_eq!((code, out.as_str()), (0, "ran\n"), "{path}: {err}");
    }
    raw.create_all("/app/config").unwrap();
    raw.create("/app/config/x", b"1", Kind::Persistent).unwrap();
    assert_eq!(site.zklock(&["run", "/app/a", "true"]).0, 64);
    let guard = DistributedLock::new(&site.zk, "/app/jobs/night", "b").lock().unwrap();
    assert_eq!(site.zklock(&["run", "/app/a", "true"]).0, 0);
    guard.unlock().unwrap();
}

/// Passes connections on to the server, and tells the kinds of the requests; `None` at the end of each connection.
fn listen_in(server: &str) -> (String, Receiver<Option<i32>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, server) = (listener.local_addr().unwrap().to_string(), server.to_owned());
    let (tell, told) = channel();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (server, tell) = (TcpStream::connect(&server).unwrap(), tell.clone());
            let (mut back, mut from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut from, &mut back));
            thread::spawn(move || {
                // At the end of either connection.
                let _ = pass_on(client, server, &tell);
                let _ = tell.send(None);
            });
        }
    });
    (address, told)
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, tell: &Sender<Option<i32>>) -> io::Result<()> {
    let mut is_handshake = true;
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        from.read_exact(&mut frame)?;
        if !std::mem::replace(&mut is_handshake, false) {
            let opcode = i32::from_be_bytes(frame[4..8].try_into().unwrap());
            tell.send(Some(opcode)).unwrap();
        }
        to.write_all(&[&length[..], &frame].concat())?;
    }
}

/// What is beside a lock's node is asked only if that is not there, and kazoo's names are seen in what a wait asks anyway.
#[test]
fn a_lock_that_is_there_costs_no_request_more() {
    // The holder reads its own node to watch it, if the command is still at work then.
    const READ: i32 = 4;
    const PING: i32 = 11;
    let site = Site::new();
    site.raw().create_all("/locks/a").unwrap();
    let (hosts, told) = listen_in(site.server.hosts());
    let cost = |options: &[&str]| {
        let mut command = site.command(&[&["run"], options, &["a", "true"]].concat());
        assert!(command.env("ZKLOCK_HOSTS", &hosts).status().unwrap().success());
        let all = told.iter().map_while(|opcode| opcode);
        all.filter(|opcode| ![READ, PING].contains(opcode)).collect::<Vec<_>>()
    };
    for options in [&["-w", "1h"][..], &["-n"], &["-x"], &["--lead"], &["--permits", "2"]] {
        let without_a_look = cost(&[options, &["--create"]].concat());
        assert_eq!(cost(options), without_a_look, "{options:?}");
    }
}
