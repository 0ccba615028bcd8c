//! The page of a `zklock serve` that looks at a real server.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use zklock::DistributedLock;
use zklock_testing::ZooKeeper;

use crate::KEEP_TEXTS;
use crate::browser::Browser;

struct Serving {
    process: Child,
    url: String,
}

impl Serving {
    fn start(hosts: &str) -> Serving {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zklock"));
        command.args(["serve", "--listen", "127.0.0.1:0", "/locks"]).env("ZKLOCK_HOSTS", hosts);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim_end().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}"));
        Serving { process, url: url.to_owned() }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn it_follows_locks_and_an_outage() {
    let Some(browser) = Browser::start() else { return };
    let server = ZooKeeper::builder().local().start().expect("a ZooKeeper server");
    let zk = zklock::Client::connect(server.hosts()).unwrap();
    // The name of a lock may be HTML.
    let lock = DistributedLock::new(&zk, "/locks", "<img src=x onerror=document.title='x'>");
    let guard = lock.lock().unwrap();
    let serving = Serving::start(server.hosts());
    browser.run_first(KEEP_TEXTS);
    browser.view(1_600, 1_000, "light");
    browser.open(&serving.url);
    browser.until_shown("1 lock: 1 held");
    browser.until_shown(lock.path());
    server.stop().unwrap();
    browser.until_shown("ZooKeeper cannot be reached");
    assert!(browser.text("#summary").starts_with("1 lock at "), "{}", browser.text("#summary"));
    browser.picture("real-outage-1600-light");
    server.start_again().unwrap();
    browser.until("at('situation').hidden");
    drop(guard);
    browser.until_shown("Nothing is held");
    let told = browser.value("window.texts.findIndex((one) => one.includes('Nothing is held'))");
    let reached =
        "window.texts.findLastIndex((one) => one.includes('ZooKeeper cannot be reached'))";
    assert!(told.as_i64() > browser.value(reached).as_i64(), "nothing was held in the outage");
    assert_eq!(browser.complaints(None), [""; 0]);
    for address in browser.asked_for() {
        assert!(address.starts_with(&serving.url), "{address}");
    }
}
