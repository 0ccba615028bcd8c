//! Threads, descriptors and connections, and that none is left.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use zklock::{Client, ErrorKind};

use super::{Impostor, LONG, OVERSHOOT, keep_silent, sessions, works};
use crate::support::server::free_port;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    eventually, mutex, skip_in_memory, skip_unless_alone, skip_without_server,
    skip_without_zookeeper, threads_named,
};

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn fifty_clients_leave_neither_threads_nor_descriptors() {
    skip_without_server!();
    skip_unless_alone!();
    let site = Site::own("fifty");
    let open = || {
        let clients: Vec<Client> = (0..10).map(|_| site.client()).collect();
        for zk in &clients {
            works(zk, &site);
        }
        for (number, zk) in clients.into_iter().enumerate() {
            if number % 2 == 0 {
                zk.close();
            }
        }
    };
    let quiet = || threads_named("zklock-").is_empty();
    open();
    eventually(LONG, "the first threads to end", quiet);
    let before = descriptors();
    for _ in 0..5 {
        open();
    }
    eventually(LONG, "the last threads to end", quiet);
    eventually(LONG, "the last descriptors to be closed", || descriptors() <= before);
    eventually(LONG, "the last session to end", || sessions(&site) == 0);
    site.finish([]);
}

/// A client has nothing but its connection: no other process on this machine can connect to it.
#[test]
fn a_client_has_one_thread_and_one_connection_and_listens_nowhere() {
    skip_without_zookeeper!();
    skip_in_memory!();
    skip_unless_alone!();
    let site = Site::shared("possessions");
    let threads = || threads_named("").len();
    let before = (tcp_sockets(), threads());
    let zk = site.client();
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let mut after = tcp_sockets();
    after.retain(|socket| !before.0.contains(socket));
    let [state] = &after.iter().map(|(_, state)| state.as_str()).collect::<Vec<_>>()[..] else {
        panic!("{after:?}");
    };
    assert_eq!(*state, "01", "established");
    eventually(LONG, "the threads that connected to end", || threads() == before.1 + 1);
    assert_eq!(threads_named("zklock-"), ["zklock-link"]);
    guard.unlock().unwrap();
    site.finish([zk]);
}

/// This process's TCP sockets: their inode numbers and the kernel's codes for their states.
fn tcp_sockets() -> Vec<(String, String)> {
    let own: Vec<String> = fs::read_dir("/proc/self/fd")
        .expect("a /proc file system")
        .filter_map(|entry| {
            fs::read_link(entry.ok()?.path()).ok()?.into_os_string().into_string().ok()
        })
        .collect();
    let tables = ["tcp", "tcp6"]
        .map(|table| fs::read_to_string(format!("/proc/self/net/{table}")).unwrap_or_default());
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (state, inode) = (*fields.get(3)?, *fields.get(9)?);
        let is_ours = own.contains(&format!("socket:[{inode}]"));
        is_ours.then(|| (inode.to_owned(), state.to_owned()))
    };
    tables.iter().flat_map(|table| table.lines()).filter_map(line).collect()
}

/// A child process with the link's socket could send requests in the session's name.
#[test]
fn a_child_process_inherits_no_socket() {
    skip_without_zookeeper!();
    let site = Site::shared("child");
    let zk = site.client();
    let guard = mutex(&zk, &site.base, "a").lock().unwrap();
    let mut child = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let running = format!("/proc/{}/comm", child.id());
    eventually(LONG, "the child to be another program", || {
        fs::read_to_string(&running).is_ok_and(|name| name.trim_end() == "sleep")
    });
    let inherited: Vec<_> = fs::read_dir(format!("/proc/{}/fd", child.id()))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter(|link| link.to_string_lossy().starts_with("socket:"))
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(inherited, Vec::<std::path::PathBuf>::new());
    guard.unlock().unwrap();
    site.finish([zk]);
}

#[test]
fn failed_connects_leave_neither_threads_nor_descriptors() {
    skip_unless_alone!();
    let silent = Impostor::new(keep_silent);
    let hosts = format!("{},127.0.0.1:{},nowhere.invalid", silent.address, free_port());
    let fail = || {
        let builder = Client::builder(&hosts).connect_timeout(Duration::from_millis(20));
        assert_eq!(builder.connect().unwrap_err().kind(), ErrorKind::Connect);
    };
    let quiet = || threads_named("zklock-").is_empty();
    fail();
    eventually(LONG, "the first threads to end", quiet);
    let before = descriptors();
    for _ in 0..20 {
        fail();
    }
    eventually(LONG, "the last threads to end", quiet);
    eventually(LONG, "the last descriptors to be closed", || descriptors() <= before);
}

#[test]
fn looking_at_contenders_ends_on_time() {
    skip_without_server!();
    let site = Site::own("look");
    let limit = Duration::from_millis(500);
    let builder = site.builder().session_timeout(Duration::from_secs(20));
    let zk = builder.connect_timeout(limit).connect().unwrap();
    let lock = mutex(&zk, &site.base, "a");
    let guard = lock.lock().unwrap();
    site.server().pause();
    let begun = Stopwatch::start();
    let error = lock.contenders().unwrap_err();
    let took = begun.took();
    site.server().resume();
    assert_eq!(error.kind(), ErrorKind::Connect);
    assert!(took.within(limit + OVERSHOOT), "it took {took:?}");
    assert_eq!(lock.contenders().unwrap().len(), 1);
    drop((guard, lock));
    site.finish([zk]);
}
