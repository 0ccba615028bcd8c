//! Which hosts are asked, and what is said of those that cannot be used.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use log::LevelFilter;
use zklock::{Client, Error, ErrorKind};

use super::{Impostor, LONG, OVERSHOOT, keep_silent, works};
use crate::support::logs::logs;
use crate::support::server::free_port;
use crate::support::site::Site;
use crate::support::stopwatch::Stopwatch;
use crate::support::{
    eventually, mutex, skip_before, skip_unless_alone, skip_without_server, skip_without_zookeeper,
};

fn refused(hosts: &str) -> Error {
    Client::connect(hosts).err().unwrap_or_else(|| panic!("{hosts:?} was accepted"))
}

fn host_and_port(hosts: &str) -> (&str, &str) {
    hosts.rsplit_once(':').unwrap()
}

#[test]
fn malformed_connect_strings_name_the_offending_part() {
    let cases = [
        ("", "no host"),
        ("   ", "no host"),
        ("/app", "no host"),
        ("zk1:2181,,zk2", "between commas"),
        ("zk1,", "between commas"),
        (":2181", "\":2181\""),
        ("zk1:0", "\"zk1:0\""),
        ("zk1:65536", "\"zk1:65536\""),
        ("zk1:+1", "\"zk1:+1\""),
        ("zk1:", "\"zk1:\""),
        ("zk1:port,zk2", "\"zk1:port\""),
        ("zk1,zk 2", "\"zk 2\""),
        ("zk1,zk2!,zk3", "\"zk2!\""),
        ("::1:2181", "[::1]:2181"),
        ("[::1", "\"[::1\""),
        ("[::1]2181", "\"[::1]2181\""),
        ("[fe80::1%eth0]:2181", "zone"),
        ("[zk1]:2181", "\"zk1\""),
        ("zk1/app/", "chroot"),
        ("zk1/app,zk2/app", "chroot"),
        ("zk1/app//x", "chroot"),
        ("zk1/app/../x", "chroot"),
        ("zk1/a\0b", "chroot"),
    ];
    for (hosts, part) in cases {
        let error = refused(hosts);
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{hosts:?}: {error}");
        assert!(error.to_string().contains(part), "{hosts:?}: {error}");
        assert!(!error.is_retryable());
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let builder = || Client::builder("127.0.0.1:1");
    let cases = [
        ("no session", builder().session_timeout(Duration::ZERO)),
        ("too short a session", builder().session_timeout(Duration::from_micros(999))),
        ("too long a session", builder().session_timeout(Duration::from_millis(1 << 31))),
        ("an endless session", builder().session_timeout(Duration::MAX)),
        ("no time to connect", builder().connect_timeout(Duration::ZERO)),
        ("no scheme", builder().auth("", b"user:password")),
        ("no scheme's name", builder().auth("dig\0est", b"user:password")),
        ("too long credentials", builder().auth("digest", vec![b'x'; 65 * 1024])),
    ];
    for (what, builder) in cases {
        let error = builder.connect().expect_err(what);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{what}: {error}");
    }
    // A connect timeout of any length is valid: other limits may be shorter.
    let error = builder().connect_timeout(Duration::from_millis(50)).connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect);
}

#[test]
fn several_hosts_of_which_one_serves() {
    skip_without_zookeeper!();
    let site = Site::shared("hosts");
    let dead = free_port();
    let list = format!(" 127.0.0.1:{dead} , {} ,127.0.0.1:{dead}", site.hosts());
    let zk = Client::connect(&list).unwrap();
    works(&zk, &site);
    site.finish([zk]);
}

#[test]
fn a_chroot_goes_before_every_path_and_is_made() {
    skip_without_zookeeper!();
    let site = Site::shared("chroot");
    let zk = Client::connect(&format!("{}{}/root", site.hosts(), site.base)).unwrap();
    let lock = mutex(&zk, "/locks", "a");
    let guard = lock.lock().unwrap();
    assert!(guard.path().starts_with("/locks/a/"), "{}", guard.path());
    assert_eq!(lock.contenders().unwrap()[0].path, guard.path());
    let whole = format!("{}/root{}", site.base, guard.path());
    assert!(site.raw().exists(&whole).unwrap().is_some());
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();

    let top = mutex(&zk, "/", "top").lock().unwrap();
    assert_eq!(site.children("root/top").len(), 1);
    drop((top, lock));
    // A single slash is not a chroot.
    let plain = Client::connect(&format!("{}/", site.hosts())).unwrap();
    works(&plain, &site);
    site.finish([zk, plain]);
}

#[test]
fn an_ipv6_address_is_written_in_brackets() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::own("ipv6");
    let Ok(forward) = Impostor::forwarding("[::1]:0", site.server().addr()) else {
        println!("SKIPPED: no IPv6 loopback here");
        return;
    };
    let hosts = forward.address.to_string();
    assert!(hosts.starts_with("[::1]:"), "{hosts}");
    let zk = Client::connect(&hosts).unwrap();
    works(&zk, &site);
    assert_eq!(forward.visits(), 1);
    site.finish([zk]);
}

#[test]
fn the_default_port_is_2181() {
    skip_without_server!();
    skip_before!(
        3,
        5,
        "close the connection of the first lock of a session, as they know no containers"
    );
    let site = Site::own("port");
    // An address of the loopback network that is hardly ever used.
    let Ok(forward) = Impostor::forwarding("127.77.21.81:2181", site.server().addr()) else {
        println!("SKIPPED: port 2181 is taken on every address");
        return;
    };
    let zk = Client::connect("127.77.21.81").unwrap();
    works(&zk, &site);
    assert_eq!(forward.visits(), 1);
    site.finish([zk]);
}

#[test]
fn names_are_resolved() {
    skip_without_zookeeper!();
    let site = Site::shared("names");
    let (_, port) = host_and_port(site.hosts());
    if site.hosts() != format!("127.0.0.1:{port}") {
        println!("SKIPPED: the given server is elsewhere");
        return;
    }
    // `localhost` may also be [::1], where nothing listens.
    let zk = Client::connect(&format!("localhost:{port}")).unwrap();
    works(&zk, &site);
    site.finish([zk]);
}

#[test]
fn an_unknown_host_among_good_ones_is_only_a_warning() {
    skip_without_zookeeper!();
    skip_unless_alone!();
    let logs = logs(LevelFilter::Trace);
    let site = Site::shared("unknown");
    let zk = Client::connect(&format!("nowhere.invalid:2181,{}", site.hosts())).unwrap();
    works(&zk, &site);
    eventually(LONG, "the warning", || {
        logs.warnings().iter().any(|warning| warning.contains("nowhere.invalid:2181"))
    });
    site.finish([zk]);
}

#[test]
fn hosts_that_are_all_unknown_fail_on_time() {
    let limit = Duration::from_millis(700);
    let started = Stopwatch::start();
    let hosts = "nowhere.invalid,neither.invalid:2182";
    let error = Client::builder(hosts).connect_timeout(limit).connect().unwrap_err();
    let took = started.took();
    assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
    assert!(error.is_retryable());
    assert!(error.to_string().contains("nowhere.invalid"), "{error}");
    assert!(took.within(limit + OVERSHOOT), "{took:?}");
}

#[test]
fn nothing_listening_is_a_connect_error_that_names_the_address_on_time() {
    let address = format!("127.0.0.1:{}", free_port());
    for limit in [1, 50, 600].map(Duration::from_millis) {
        let started = Stopwatch::start();
        let error = Client::builder(&address).connect_timeout(limit).connect().unwrap_err();
        let took = started.took();
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        assert!(error.to_string().contains(&address), "{limit:?}: {error}");
        assert!(took.within(limit + OVERSHOOT), "{limit:?}: {took:?}");
        assert!(took.at_least(limit), "{limit:?}: gave up after {took:?}");
    }
}

#[test]
fn a_silent_host_alone_is_a_connect_error_that_names_it_on_time() {
    let silent = Impostor::new(keep_silent);
    let address = silent.address.to_string();
    for limit in [300, 1500].map(Duration::from_millis) {
        let started = Stopwatch::start();
        let error = Client::builder(&address).connect_timeout(limit).connect().unwrap_err();
        let took = started.took();
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        assert!(error.to_string().contains(&address), "{limit:?}: {error}");
        assert!(took.within(limit + OVERSHOOT), "{limit:?}: {took:?}");
    }
}

#[test]
fn a_silent_host_delays_connecting_but_little() {
    skip_without_zookeeper!();
    let site = Site::shared("silent");
    let silent = Impostor::new(keep_silent);
    let list = format!("{},{}", silent.address, site.hosts());
    let mut clients = Vec::new();
    // Hosts are tried in random order.
    while silent.visits() < 2 {
        assert!(clients.len() < 100, "the hosts are not shuffled");
        let started = Stopwatch::start();
        let builder = Client::builder(&list).session_timeout(Duration::from_secs(4));
        clients.push(builder.connect().unwrap());
        let took = started.took();
        assert!(took.within(Duration::from_secs(2)), "{took:?}");
    }
    works(&clients[0], &site);
    site.finish(clients);
}

#[test]
fn hosts_that_are_not_zookeeper_are_passed_over() {
    skip_without_zookeeper!();
    let site = Site::shared("impostors");
    let says = |bytes: &[u8]| {
        let bytes = bytes.to_vec();
        Impostor::new(move |mut stream: TcpStream| {
            let _ = stream.read(&mut [0; 256]);
            let _ = stream.write_all(&bytes);
            keep_silent(stream);
        })
    };
    let mut absurd = [0; 40];
    absurd[3] = 36;
    absurd[10] = 16; // a timeout
    absurd[19] = 7; // a session
    absurd[20] = 0x7f; // the length of its password
    let impostors = [
        ("closes", Impostor::new(drop)),
        ("answers HTTP", says(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")),
        ("says 2 GiB", says(b"\x7f\xff\xff\xff")),
        ("says a negative length", says(b"\xff\xff\xff\xff")),
        ("says nothing in a frame", says(b"\0\0\0\0")),
        ("sends a short answer", says(b"\0\0\0\x10\0\0\0\0\0\0\x10\0")),
        ("sends an answer cut short", says(&[0, 0, 0, 0x25, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0])),
        ("sends an absurd password", says(&absurd)),
    ];
    let mut clients = Vec::new();
    for (what, impostor) in &impostors {
        let list = format!("{},{}", impostor.address, site.hosts());
        let mut tries = 0;
        while impostor.visits() == 0 {
            tries += 1;
            assert!(tries < 100, "{what}: the hosts are not shuffled");
            let started = Stopwatch::start();
            let builder = Client::builder(&list).session_timeout(Duration::from_secs(4));
            let zk = builder.connect().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(started.took().within(Duration::from_secs(3)), "{what}: {:?}", started.took());
            if impostor.visits() > 0 {
                works(&zk, &site);
            }
            clients.push(zk);
        }
        let alone = Client::builder(&impostor.address.to_string());
        let error = alone.connect_timeout(Duration::from_millis(400)).connect().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect, "{what}: {error}");
        assert!(error.to_string().contains(&impostor.address.to_string()), "{what}: {error}");
    }
    site.finish(clients);
}
