//! `zklock serve`: who may read, how much readers may take, and what they read, also in an outage.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod site;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nom_openmetrics::Label;
use serde_json::{Value, json};
use zklock::maintenance::MaintenanceEnd;
use zklock::znode::{CreateMode, CreateOptions};
use zklock::{Acl, DistributedLock, Permissions};

use self::site::{Said, Site, said};

const SOON: Duration = Duration::from_secs(60);

const TOKEN: &str = "correct-horse-battery-staple";

/// Nothing listens there.
const NOWHERE: &str = "127.0.0.1:1";

const GUID: &str = "_c_aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa-lock-";

fn zklock(hosts: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zklock"));
    command.env("ZKLOCK_HOSTS", hosts).env("ZKLOCK_CONNECT_TIMEOUT", "1s");
    command.env("ZKLOCK_SESSION_TIMEOUT", "6s").arg("serve").args(arguments);
    command.stdin(Stdio::null());
    command
}

/// What it says when it does not start.
fn refused(arguments: &[&str]) -> Said {
    said(zklock(NOWHERE, arguments).output().unwrap())
}

/// A server of ours, which is ended with the test.
struct Serving {
    process: Child,
    address: String,
}

impl Serving {
    fn start(hosts: &str, arguments: &[&str]) -> Serving {
        let mut command = zklock(hosts, arguments);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ");
        let address = address.unwrap_or_else(|| panic!("{line:?}")).to_owned();
        Serving { process, address }
    }

    /// On a port of loopback, while there is no ensemble.
    fn alone(arguments: &[&str]) -> Serving {
        Serving::start(NOWHERE, &[&["--listen", "127.0.0.1:0"], arguments].concat())
    }

    fn port(&self) -> u16 {
        let (_, port) = self.address.trim_end_matches('/').rsplit_once(':').unwrap();
        port.parse().unwrap()
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port())).unwrap()
    }

    fn asked(&self, request: &str) -> Reply {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        Reply::read(&mut stream).unwrap()
    }

    fn get_with(&self, path: &str, headers: &str) -> Reply {
        let port = self.port();
        self.asked(&format!("GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\n{headers}\r\n"))
    }

    fn get(&self, path: &str) -> Reply {
        self.get_with(path, "")
    }

    fn locks(&self) -> Value {
        let reply = self.get("/locks.json");
        assert_eq!(reply.status, 200);
        serde_json::from_str(&reply.body).unwrap_or_else(|why| panic!("{why}: {}", reply.body))
    }

    /// Waits until what it tells of the locks is so.
    fn tells(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut told = Value::Null;
        eventually(what, || {
            told = self.locks();
            is_so(&told)
        });
        told
    }

    /// The value of a metric; `None` if it is not there.
    fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let reply = self.get("/metrics");
        let (_, families) = nom_openmetrics::parser::prometheus(&reply.body).unwrap();
        let labels: Vec<Label> =
            labels.iter().map(|(name, value)| Label::new(name, (*value).to_owned())).collect();
        let mut samples = families.iter().flat_map(|family| &family.samples);
        let sample = samples.find(|one| one.name() == name && one.labels() == labels);
        sample.map(nom_openmetrics::Sample::number)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), signal).unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(Debug)]
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Reply {
    /// Everything that comes until the connection ends; `None` if nothing does.
    fn read(stream: &mut impl Read) -> Option<Reply> {
        let mut bytes = Vec::new();
        // An end that is not clean has lost nothing that was read before.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().unwrap();
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        Some(Reply { status, headers: lines.map(header).collect(), body: body.to_owned() })
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(one, _)| one == name).map(|(_, value)| value.as_str())
    }
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < SOON, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn folder(test: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("zklock-serve-{test}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A file that only this user can read.
fn secret(file: &Path, text: &str) -> String {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn every_reply_keeps_browsers_from_doing_more_than_show_the_page() {
    let serving = Serving::alone(&[]);
    let host = format!("Host: localhost:{}", serving.port());
    let all = [
        ("GET / HTTP/1.1", &*host, 200, "text/html; charset=utf-8"),
        ("GET /?x=y HTTP/1.1", &host, 200, "text/html; charset=utf-8"),
        ("GET /page.css HTTP/1.1", &host, 200, "text/css; charset=utf-8"),
        ("GET /page.js HTTP/1.1", &host, 200, "text/javascript; charset=utf-8"),
        ("GET /locks.json HTTP/1.1", &host, 200, "application/json"),
        ("GET /metrics HTTP/1.1", &host, 200, "text/plain; version=0.0.4; charset=utf-8"),
        ("GET /healthz HTTP/1.1", &host, 200, "application/json"),
        ("GET /healthz HTTP/1.0", &host, 200, "application/json"),
        ("GET /none HTTP/1.1", &host, 404, "text/plain; charset=utf-8"),
        ("GET /../etc/passwd HTTP/1.1", &host, 404, "text/plain; charset=utf-8"),
        ("POST / HTTP/1.1", &host, 405, "text/plain; charset=utf-8"),
        ("GET / HTTP/1.1", "Host: evil.example", 421, "text/plain; charset=utf-8"),
    ];
    let guards = [
        (
            "content-security-policy",
            "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
             img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
        ),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
    ];
    for (line, host, status, kind) in all {
        let origin = "Origin: http://evil.example";
        let reply = serving.asked(&format!("{line}\r\n{host}\r\n{origin}\r\n\r\n"));
        assert_eq!((reply.status, reply.header("content-type")), (status, Some(kind)), "{line}");
        for (name, value) in guards {
            assert_eq!(reply.header(name), Some(value), "{line}");
        }
        let cors = reply.headers.iter().find(|(name, _)| name.starts_with("access-control"));
        assert_eq!(cors, None, "{line}");
        assert_eq!(reply.header("set-cookie"), None, "{line}");
    }
}

#[test]
fn only_reads_are_answered_and_no_body_is_read() {
    let serving = Serving::alone(&[]);
    let port = serving.port();
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"] {
        let head = format!("{method} /locks.json HTTP/1.1\r\nHost: localhost:{port}\r\n");
        let reply = serving.asked(&format!("{head}\r\n"));
        assert_eq!((reply.status, reply.header("allow")), (405, Some("GET, HEAD")), "{method}");
        // The body never comes, and is not waited for.
        let reply = serving.asked(&format!("{head}Content-Length: 1000000\r\n\r\n"));
        assert_eq!(reply.status, 405, "{method}");
    }
    let got = serving.get("/healthz");
    let head = format!("HEAD /healthz HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    let reply = serving.asked(&head);
    assert_eq!((reply.status, reply.body.as_str()), (200, ""));
    assert_eq!(reply.header("content-length"), Some(&*got.body.len().to_string()));
    // Something else than HTTP.
    let mut stream = serving.connect();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").unwrap();
    assert_eq!(Reply::read(&mut stream).map(|reply| reply.status), Some(400));
}

#[test]
fn names_of_others_are_not_answered() {
    let serving = Serving::alone(&["--host", "locks.example", "--host", "proxy.example:8443"]);
    let port = serving.port();
    let status = |hosts: &str| serving.asked(&format!("GET / HTTP/1.1\r\n{hosts}\r\n")).status;
    for own in [
        &format!("127.0.0.1:{port}"),
        &format!("localhost:{port}"),
        &format!("[::1]:{port}"),
        &format!("LocalHost:{port}"),
        "locks.example",
        &format!("locks.example:{port}"),
        "proxy.example:8443",
    ] {
        assert_eq!(status(&format!("Host: {own}\r\n")), 200, "{own}");
    }
    for foreign in [
        "evil.example",
        &format!("evil.example:{port}"),
        "localhost",
        "127.0.0.1",
        "localhost:1",
        &format!("localhost.evil.example:{port}"),
        "proxy.example",
        "",
    ] {
        assert_eq!(status(&format!("Host: {foreign}\r\n")), 421, "{foreign:?}");
    }
    assert_eq!(status(""), 421);
    assert_eq!(status(&format!("Host: localhost:{port}\r\nHost: evil.example\r\n")), 421);
    let absolute = format!("GET http://evil.example/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    assert_eq!(serving.asked(&absolute).status, 421);
}

#[test]
fn others_than_this_host_need_a_token_or_have_none_by_request() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let (code, out, err) = refused(&["--listen", address]);
        assert_eq!((code, out.as_str()), (64, ""), "{err}");
        assert!(err.contains("--token-file FILE") && err.contains("--no-token"), "{err}");
    }
    let open = Serving::start(NOWHERE, &["--listen", "0.0.0.0:0", "--no-token"]);
    assert_eq!(open.get("/locks.json").status, 200);
    let folder = folder("reach");
    let token = secret(&folder.join("token"), TOKEN);
    let closed = Serving::start(NOWHERE, &["--listen", "0.0.0.0:0", "--token-file", &token]);
    assert_eq!(closed.get("/locks.json").status, 401);
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(closed.get_with("/locks.json", &bearer).status, 200);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_credentials_show_is_not_for_all_users_of_this_host() {
    let folder = folder("credentials");
    let token = secret(&folder.join("token"), TOKEN);
    let auth = secret(&folder.join("auth"), "digest ann:secret\n");
    let password = secret(&folder.join("password"), "secret\n");
    let socket = format!("unix:{}", folder.join("socket").display());
    let all: [&[&str]; 3] = [
        &["--auth-file", &auth],
        &["--sasl-user", "ann", "--sasl-password-file", &password],
        &["--tls-cert", "c.pem", "--tls-key", "k.pem"],
    ];
    for credentials in all {
        for more in [&[][..], &["--no-token"]] {
            let (code, out, err) =
                refused(&[&["--listen", "127.0.0.1:0"], credentials, more].concat());
            assert_eq!((code, out.as_str()), (64, ""), "{err}");
            assert!(err.contains("--token-file FILE") && err.contains("unix:PATH"), "{err}");
        }
    }
    for credentials in &all[..2] {
        let serving = Serving::alone(&[credentials, &["--token-file", &token][..]].concat());
        assert_eq!(serving.get("/metrics").status, 401);
        let serving = Serving::start(NOWHERE, &[credentials, &["--listen", &socket][..]].concat());
        assert_eq!(serving.address, socket);
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_token_is_shown_by_a_header_or_once_in_the_link_and_is_never_logged() {
    let folder = folder("token");
    let token = secret(&folder.join("token"), &format!("{TOKEN}\n"));
    let log = folder.join("log");
    let mut command = zklock(NOWHERE, &["-vvv", "--listen", "127.0.0.1:0", "--token-file", &token]);
    let mut process =
        command.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening on ").unwrap().to_owned();
    let serving = Serving { process, address };
    assert_eq!(serving.get("/healthz").status, 200);
    for path in ["/", "/page.css", "/page.js", "/locks.json", "/metrics", "/none"] {
        let reply = serving.get(path);
        assert_eq!(reply.status, 401, "{path}");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"), "{path}");
        assert!(!reply.body.contains(TOKEN), "{path}");
    }
    let bearer = |token: &str| {
        serving.get_with("/locks.json", &format!("Authorization: Bearer {token}\r\n")).status
    };
    assert_eq!(bearer(TOKEN), 200);
    for wrong in ["", "x", &TOKEN[1..], &format!("{TOKEN}x"), &TOKEN.to_uppercase()] {
        assert_eq!(bearer(wrong), 401, "{wrong}");
        assert_eq!(serving.get(&format!("/?token={wrong}")).status, 401, "{wrong}");
    }
    // Not in the links to what is not the page.
    assert_eq!(serving.get(&format!("/locks.json?token={TOKEN}")).status, 401);
    let reply = serving.get(&format!("/?token={TOKEN}"));
    assert_eq!((reply.status, reply.header("location")), (303, Some("/")));
    let cookie = reply.header("set-cookie").unwrap();
    let mut parts: Vec<&str> = cookie.split("; ").collect();
    let cookie = parts.remove(0);
    parts.sort_unstable();
    assert_eq!(parts, ["HttpOnly", "Path=/", "SameSite=Strict"]);
    let headers = format!("Cookie: a=b; {cookie}\r\n");
    assert_eq!(serving.get_with("/", &headers).status, 200);
    assert_eq!(serving.get_with("/locks.json", &headers).status, 200);
    drop(serving);
    let log = fs::read_to_string(log).unwrap();
    assert!(!log.is_empty() && !log.contains(TOKEN), "{log}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_token_that_others_know_is_none() {
    let folder = folder("bad-token");
    let file = folder.join("token");
    let path = secret(&file, TOKEN);
    for (mode, why) in [(0o604, "mode 604"), (0o602, "mode 602"), (0o620, "mode 620")] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let (code, _, err) = refused(&["--token-file", &path]);
        assert!(code == 64 && err.contains(why) && err.contains("chmod g-w,o-rw"), "{err}");
        assert!(!err.contains(TOKEN), "{err}");
    }
    for (text, why) in [
        ("0123456789abcde\n", "at least 16 characters, and this has 15"),
        ("", "and this has 0"),
        ("0123456789 abcdef", "letters, digits"),
    ] {
        secret(&file, text);
        let (code, _, err) = refused(&["--token-file", &path]);
        assert!(code == 64 && err.contains(why), "{err}");
    }
    let (code, _, err) = refused(&["--token-file", "/no/token"]);
    assert!(code == 64 && err.contains("/no/token cannot be read"), "{err}");
    assert_eq!(refused(&["--token-file", &path, "--no-token"]).0, 64);
    fs::remove_dir_all(folder).unwrap();
}

fn get_of_socket(socket: &Path, path: &str) -> Reply {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    Reply::read(&mut stream).unwrap()
}

#[test]
fn a_socket_is_for_this_user_and_replaces_only_a_stale_one() {
    let folder = folder("socket");
    let socket = folder.join("socket");
    let listen = format!("unix:{}", socket.display());
    let arguments = ["--listen", &*listen];
    let mut serving = Serving::start(NOWHERE, &arguments);
    let file = socket.metadata().unwrap();
    assert_eq!(file.mode() & 0o777, 0o600);
    assert_eq!(get_of_socket(&socket, "/healthz").status, 200);
    // One that is in use.
    let (code, _, err) = refused(&arguments);
    assert!(code == 125 && err.contains("another process listens on it"), "{err}");
    assert_eq!(socket.metadata().unwrap().ino(), file.ino());
    // A stale one.
    serving.process.kill().unwrap();
    serving.process.wait().unwrap();
    assert!(socket.exists());
    let mut serving = Serving::start(NOWHERE, &arguments);
    assert_eq!(get_of_socket(&socket, "/healthz").status, 200);
    serving.signal(Signal::SIGTERM);
    assert_eq!(serving.process.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
    // The end removes no socket of others.
    let mut serving = Serving::start(NOWHERE, &arguments);
    fs::remove_file(&socket).unwrap();
    let other = UnixListener::bind(&socket).unwrap();
    serving.signal(Signal::SIGTERM);
    assert_eq!(serving.process.wait().unwrap().code(), Some(0));
    assert!(socket.exists());
    drop(other);
    // A file of others.
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "kept").unwrap();
    let (code, _, err) = refused(&arguments);
    assert!(code == 125 && err.contains("is no socket"), "{err}");
    assert_eq!(fs::read_to_string(&socket).unwrap(), "kept");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_signal_ends_it_as_a_success_whatever_readers_do() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut serving = Serving::alone(&[]);
        let _idle = serving.connect();
        let mut slow = serving.connect();
        slow.write_all(b"GET /locks.json HTTP/1.1\r\n").unwrap();
        assert_eq!(serving.get("/healthz").status, 200);
        serving.signal(signal);
        assert_eq!(serving.process.wait().unwrap().code(), Some(0), "{signal}");
    }
    // An address that is taken.
    let serving = Serving::alone(&[]);
    let (code, _, err) = refused(&["--listen", &format!("127.0.0.1:{}", serving.port())]);
    assert!(code == 125 && err.contains("cannot listen on 127.0.0.1:"), "{err}");
}

#[test]
fn a_head_is_at_most_eight_kilobytes() {
    let serving = Serving::alone(&[]);
    let status = |length: usize| {
        serving.get_with("/healthz", &format!("X-Long: {}\r\n", "a".repeat(length))).status
    };
    assert_eq!(status(7_000), 200);
    assert_eq!(status(9_000), 431);
    assert_eq!(status(200_000), 431);
    let mut many = String::new();
    (0..500).for_each(|number| write!(many, "X-{number}: a\r\n").unwrap());
    assert_eq!(serving.get_with("/healthz", &many).status, 431);
    // It goes on for others.
    assert_eq!(serving.get("/healthz").status, 200);
}

#[test]
fn two_hundred_idle_connections_leave_room_for_others() {
    let serving = Serving::alone(&[]);
    let mut idle: Vec<TcpStream> = (0..200).map(|_| serving.connect()).collect();
    for _ in 0..20 {
        assert_eq!(serving.get("/locks.json").status, 200);
        let connections = serving.metric("zklock_serve_connections", &[]).unwrap();
        assert!((1.0..=128.0).contains(&connections), "{connections}");
    }
    // The first ones had to go.
    assert_eq!(idle[0].read(&mut [0]).unwrap_or(0), 0);
    // And after a while, the others, too.
    for mut one in idle {
        one.set_read_timeout(Some(SOON)).unwrap();
        assert_eq!(one.read(&mut [0]).unwrap_or(0), 0);
    }
}

#[test]
fn a_head_that_takes_too_long_is_not_waited_for() {
    let serving = Serving::alone(&[]);
    let begun = Instant::now();
    let mut slow = serving.connect();
    let mut writer = slow.try_clone().unwrap();
    let drip = thread::spawn(move || {
        let head = "GET /locks.json HTTP/1.1\r\nX-Slow: ".chars().chain(std::iter::repeat('a'));
        for letter in head {
            if writer.write_all(&[letter as u8]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(200));
        }
    });
    assert_eq!(serving.get("/healthz").status, 200);
    slow.set_read_timeout(Some(SOON)).unwrap();
    let read = slow.read(&mut [0]);
    assert!(matches!(&read, Ok(0)) || read.as_ref().is_err_and(is_reset), "{read:?}");
    assert!(begun.elapsed() > Duration::from_secs(9), "{:?}", begun.elapsed());
    let _ = slow.shutdown(Shutdown::Both);
    drip.join().unwrap();
}

fn is_reset(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionReset
}

impl Site {
    /// Creates nodes of contenders, with these data.
    fn contenders(&self, all: &[(&str, &str)]) {
        let create = all.iter().fold(self.zk.transaction(), |create, (node, data)| {
            create.create(*node, CreateMode::Ephemeral, *data)
        });
        create.commit().unwrap();
    }

    fn folders<'a>(&self, paths: impl IntoIterator<Item = &'a str>) {
        let create = paths.into_iter().fold(self.zk.transaction(), |create, path| {
            create.create(path, CreateMode::Persistent, "")
        });
        create.commit().unwrap();
    }

    fn serve(&self, arguments: &[&str]) -> Serving {
        let arguments = [&["--listen", "127.0.0.1:0"], arguments].concat();
        Serving::start(self.server.hosts(), &arguments)
    }

    fn lock(&self, name: &str) -> DistributedLock {
        DistributedLock::new(&self.zk, "/locks", name)
    }
}

/// The lock of this path in a reply.
fn lock_in<'a>(told: &'a Value, path: &str) -> Option<&'a Value> {
    told["locks"].as_array().unwrap().iter().find(|one| one["path"] == path)
}

#[test]
fn readers_that_do_not_read_are_dropped_and_are_not_too_many() {
    let site = Site::new();
    let folder = folder("slow");
    let socket = folder.join("socket");
    let locks: Vec<String> = (0..1_000).map(|number| format!("/locks/{number:04}")).collect();
    let nodes: Vec<String> = locks.iter().map(|lock| format!("{lock}/{GUID}0000000000")).collect();
    site.folders(["/locks"]);
    for some in locks.chunks(500) {
        site.folders(some.iter().map(String::as_str));
    }
    let data = format!("host=web1 pid=7 program=job thread=t\nlabel={}", "a".repeat(4_000));
    for some in nodes.chunks(100) {
        site.contenders(&some.iter().map(|node| (&**node, &*data)).collect::<Vec<_>>());
    }
    let listen = format!("unix:{}", socket.display());
    let _serving = Serving::start(site.server.hosts(), &["--listen", &listen]);
    // More than fits into a socket that nobody reads from.
    let much = 600_000;
    eventually("the locks", || get_of_socket(&socket, "/locks.json").body.len() > much);
    // Of what others have written, not all is passed on.
    assert!(!get_of_socket(&socket, "/locks.json").body.contains(&"a".repeat(201)));
    let begun = Instant::now();
    let slow: Vec<UnixStream> = (0..128)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(b"GET /locks.json HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            // Its reply has begun.
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            stream
        })
        .collect();
    let mut one_more = UnixStream::connect(&socket).unwrap();
    // It may be told so before it has asked.
    let _ = one_more.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let reply = Reply::read(&mut one_more).unwrap();
    assert_eq!((reply.status, reply.header("x-content-type-options")), (503, Some("nosniff")));
    eventually("the end of all of them", || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let reply = Reply::read(&mut stream);
        reply.is_some_and(|reply| reply.body.contains("\nzklock_serve_connections 1\n"))
    });
    assert!(begun.elapsed() > Duration::from_secs(29), "{:?}", begun.elapsed());
    for mut one in slow {
        let mut rest = Vec::new();
        let _ = one.read_to_end(&mut rest);
        assert!(rest.len() < much, "{}", rest.len());
    }
    fs::remove_dir_all(folder).unwrap();
}

/// How many packets the server has received, as it says itself.
fn received(site: &Site) -> u64 {
    let mut stream = TcpStream::connect(site.server.hosts()).unwrap();
    stream.write_all(b"srvr").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("Received: "));
    count.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

#[test]
fn readers_cause_no_requests() {
    let site = Site::new();
    let _held = site.lock("a").lock().unwrap();
    let serving = site.serve(&[]);
    serving.tells("the lock", |told| lock_in(told, "/locks/a").is_some());
    let (begun, before) = (Instant::now(), received(&site));
    for path in ["/locks.json", "/metrics", "/", "/healthz"].into_iter().cycle().take(2_000) {
        assert_eq!(serving.get(path).status, 200);
    }
    // Those of the looks, one a second.
    let most = 50 + 20 * begun.elapsed().as_secs();
    let caused = received(&site) - before;
    assert!(caused < most, "{caused} in {:?}", begun.elapsed());
    let counted = serving.metric("zklock_requests_total", &[]).unwrap();
    assert!(counted > 0.0 && counted < received(&site) as f64, "{counted}");
}

#[test]
fn an_outage_is_told_apart_from_locks_that_nobody_holds() {
    let site = Site::new();
    site.server.stop().unwrap();
    let serving = site.serve(&[]);
    let told = serving.tells("an error", |told| !told["ensemble"]["error"].is_null());
    assert_eq!(
        (&told["ensemble"]["state"], &told["snapshot"]),
        (&json!("connecting"), &json!(null))
    );
    assert_eq!(told["ensemble"]["hosts"], site.server.hosts());
    assert_eq!(serving.metric("zklock_ensemble_up", &[]), Some(0.0));
    assert_eq!(serving.metric("zklock_session_state", &[("state", "connecting")]), Some(1.0));
    assert_eq!(serving.metric("zklock_snapshot_timestamp_seconds", &[]), None);
    let health = serving.get("/healthz");
    let body: Value = serde_json::from_str(&health.body).unwrap();
    assert_eq!((health.status, body), (200, json!({ "works": true, "ensemble": "connecting" })));
    site.server.start_again().unwrap();
    let told = serving.tells("a look", |told| !told["snapshot"].is_null());
    assert_eq!(told["locks"], json!([]));
    assert_eq!(told["not_seen"], json!([{ "path": "/locks", "why": "does not exist" }]));
    let _held = site.lock("a").lock().unwrap();
    let told = serving.tells("the lock", |told| lock_in(told, "/locks/a").is_some());
    let is_held =
        |told: &Value| lock_in(told, "/locks/a").is_some_and(|one| one["state"] == "held");
    assert!(is_held(&told), "{told}");
    assert_eq!(
        (&told["ensemble"]["state"], &told["ensemble"]["error"]),
        (&json!("connected"), &json!(null))
    );
    assert_eq!(serving.metric("zklock_ensemble_up", &[]), Some(1.0));
    site.server.stop().unwrap();
    // What was seen last is still told, with its age.
    let told = serving.tells("the outage", |told| {
        let ensemble = &told["ensemble"];
        ensemble["state"] != "connected"
            && !ensemble["error"].is_null()
            && told["snapshot"]["is_old"] == true
    });
    assert!(is_held(&told), "{told}");
    assert_eq!(serving.metric("zklock_ensemble_up", &[]), Some(0.0));
    assert_eq!(serving.metric("zklock_lock_holders", &[("lock", "/locks/a")]), Some(1.0));
    assert_eq!(serving.get("/healthz").status, 200);
    site.server.start_again().unwrap();
    serving.tells("the end of the outage", |told| {
        let ensemble = &told["ensemble"];
        ensemble["state"] == "connected"
            && ensemble["error"].is_null()
            && told["snapshot"]["is_old"] == false
    });
    assert_eq!(serving.metric("zklock_ensemble_up", &[]), Some(1.0));
}

#[test]
fn names_and_texts_of_others_stay_what_they_are() {
    let site = Site::new();
    let name = "<img src=x onerror=alert(1)>\"'\\";
    let label = "<script>alert(2)</script>\"\\";
    let data = format!("host=<b>web</b> pid=7 program=job thread=t\nlabel={label}\n");
    let _held = site.lock(name).data(data).lock().unwrap();
    let serving = site.serve(&[]);
    let path = format!("/locks/{name}");
    let told = serving.tells("the lock", |told| lock_in(told, &path).is_some());
    let holder = &lock_in(&told, &path).unwrap()["holders"][0];
    assert_eq!((&holder["label"], &holder["host"]), (&json!(label), &json!("<b>web</b>")));
    assert_eq!(serving.metric("zklock_lock_holders", &[("lock", &path)]), Some(1.0));
}

#[test]
fn holders_that_wait_for_each_other_are_a_deadlock_with_what_ends_it() {
    let site = Site::new();
    site.folders(["/locks", "/locks/a", "/locks/b"]);
    let node = |lock: &str, number: u32| format!("/locks/{lock}/{GUID}{number:010}");
    let holds = |host: &str| format!("host={host} pid=7 program=job thread=t\nv=1");
    let waits = |host: &str, under: &str| format!("{} under={under}", holds(host));
    let (a, b) = (node("a", 0), node("b", 0));
    site.contenders(&[
        (&a, &holds("web1")),
        (&b, &holds("web2")),
        (&node("b", 1), &waits("web1", &a)),
        (&node("a", 1), &waits("web2", &b)),
    ]);
    let serving = site.serve(&["/locks", "/locks/a"]);
    let told = serving.tells("a deadlock", |told| told["deadlocks"] != json!([]));
    assert_eq!(told["bases"], json!(["/locks"]));
    let told = serving.tells("certainty", |told| told["deadlocks"][0]["is_certain"] == true);
    let deadlock = &told["deadlocks"][0];
    let text = deadlock["text"].as_str().unwrap();
    assert!(text.starts_with("deadlock: web1 (pid 7, job) holds /locks/a"), "{text}");
    assert!(text.ends_with(", unless a guard was given to another thread"), "{text}");
    assert_eq!(deadlock["locks"], json!(["/locks/a", "/locks/b"]));
    assert_eq!(deadlock["nodes"], json!([a, node("b", 1), b, node("a", 1)]));
    let ask = deadlock["commands"][0].as_str().unwrap();
    assert!(ask.starts_with("zklock ask /locks/") && ask.ends_with(" --node 0000000000"), "{ask}");
    for lock in ["a", "b"] {
        let lock = lock_in(&told, &format!("/locks/{lock}")).unwrap();
        assert_eq!((&lock["state"], &lock["waiters_total"]), (&json!("deadlock"), &json!(1)));
    }
    let holder = &lock_in(&told, "/locks/a").unwrap()["holders"][0];
    assert_eq!(holder["waits_for"], json!(["/locks/b"]));
    let edges = told["edges"].as_array().unwrap();
    assert!(edges.contains(&json!({ "holder": a, "waits_by": node("b", 1) })), "{told}");
    assert_eq!(serving.metric("zklock_deadlocks", &[("certain", "true")]), Some(1.0));
    assert_eq!(serving.metric("zklock_deadlocks", &[("certain", "false")]), Some(0.0));
    // The command says the same.
    let (code, out, _) = site.zklock(&["deadlocks"]);
    assert!(code == 1 && out.contains(ask), "{out}");
    site.zk.znode(node("a", 1)).delete().unwrap();
    serving.tells("its end", |told| told["deadlocks"] == json!([]));
}

#[test]
fn a_hold_for_maintenance_tells_why_and_until_when_also_when_that_changes() {
    let site = Site::new();
    let lock = DistributedLock::new(&site.zk, "/locks", "nightly").data("ops@web1");
    let guard = lock.lock().unwrap();
    let asks = lock.clone();
    let asked = thread::spawn(move || {
        asks.hold_for_maintenance("disk", MaintenanceEnd::Never, Duration::from_secs(600)).unwrap()
    });
    let serving = Serving::start(site.server.hosts(), &["--listen", "127.0.0.1:0"]);
    let of_first = |told: &Value, part: &str| {
        lock_in(told, "/locks/nightly").map_or(Value::Null, |lock| lock[part][0].clone())
    };
    let told = serving.tells("what is asked for", |told| {
        of_first(told, "waiters")["maintenance"]["asked_for"] == true
    });
    assert_eq!(of_first(&told, "waiters")["who"], "maintenance: disk, by ops@web1");
    let labels = [("lock", "/locks/nightly")];
    assert_eq!(serving.metric("zklock_lock_maintenance", &labels), Some(0.0));
    drop(guard);
    let hold = asked.join().unwrap().expect("the lock");
    let maintenance = |ends: Value| json!({ "reason": "disk", "made_by": "ops@web1", "asked_for": false, "ends": ends });
    serving.tells("the hold", |told| {
        of_first(told, "holders")["maintenance"] == maintenance(Value::Null)
    });
    assert_eq!(serving.metric("zklock_lock_maintenance", &labels), Some(1.0));
    let ends = "zklock_lock_maintenance_ends_timestamp_seconds";
    assert_eq!(serving.metric(ends, &labels), None);
    let year_2999 = humantime::parse_rfc3339("2999-01-01T00:00:00Z").unwrap();
    assert!(lock.change_maintenance(&hold, MaintenanceEnd::At(year_2999)).unwrap());
    serving.tells("the end", |told| {
        of_first(told, "holders")["maintenance"] == maintenance(json!("2999-01-01T00:00:00.000Z"))
    });
    assert_eq!(serving.metric(ends, &labels), Some(32_472_144_000.0));
    assert!(lock.release_maintenance(&hold).unwrap());
}

#[test]
fn what_cannot_be_read_is_named_and_hides_nothing_else() {
    let site = Site::new();
    let _held = site.lock("a").lock().unwrap();
    let nobody = Acl::digest(Permissions::ALL, "nobody:nothing");
    let hidden = CreateOptions::new(CreateMode::Persistent).acl(nobody);
    for path in ["/hidden", "/locks/hidden"] {
        let _ = site.zk.znode(path).create(hidden.clone(), "").unwrap();
    }
    let serving = site.serve(&["/hidden", "/locks", "/nowhere", "/bad//name", "/zookeeper"]);
    let told = serving.tells("the lock", |told| lock_in(told, "/locks/a").is_some());
    let no_read = "cannot be read: not permitted (READ)";
    let not_seen: Vec<(&str, &str)> = told["not_seen"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["path"].as_str().unwrap(), one["why"].as_str().unwrap()))
        .collect();
    let why = |path: &str| not_seen.iter().find(|(one, _)| *one == path).map(|(_, why)| *why);
    assert_eq!(why("/hidden"), Some(no_read));
    assert_eq!(why("/locks/hidden"), Some(no_read));
    assert_eq!(why("/nowhere"), Some("does not exist"));
    assert!(why("/bad//name").is_some_and(|why| why.contains("two '/' in a row")), "{told}");
    assert!(why("/zookeeper").is_some(), "{told}");
    assert_eq!(serving.metric("zklock_not_seen", &[]), Some(5.0));
    assert_eq!(serving.metric("zklock_last_look_failed", &[]), Some(0.0));
    assert_eq!(told["ensemble"]["error"], json!(null));
}

#[test]
fn a_lock_that_passes_on_tells_who_has_held_it() {
    let site = Site::new();
    let serving = site.serve(&[]);
    let of = |host: &str| site.lock("a").data(format!("host={host} pid=7 program=job thread=t"));
    let first = of("web1").lock().unwrap();
    let has = |told: &Value, who: &str| {
        let lock = lock_in(told, "/locks/a").map(|one| one["holders"][0]["who"].clone());
        lock == Some(json!(format!("{who} (pid 7, job)")))
    };
    serving.tells("the first holder", |told| has(told, "web1"));
    first.unlock().unwrap();
    let second = of("web2").lock().unwrap();
    serving.tells("the second holder", |told| has(told, "web2"));
    second.unlock().unwrap();
    let told = serving.tells("nobody", |told| {
        lock_in(told, "/locks/a").is_some_and(|one| one["state"] == "free")
    });
    let lock = lock_in(&told, "/locks/a").unwrap();
    assert_eq!((&lock["hand_overs"], &lock["holders"]), (&json!(1), &json!([])));
    let past: Vec<&str> =
        lock["past"].as_array().unwrap().iter().map(|one| one["who"].as_str().unwrap()).collect();
    assert_eq!(past, ["web1 (pid 7, job)", "web2 (pid 7, job)"]);
    let total = serving.metric("zklock_lock_hand_overs_total", &[("lock", "/locks/a")]);
    assert_eq!(total, Some(1.0));
    let reply = serving.get_with("/metrics", "Accept: application/openmetrics-text\r\n");
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(reply.header("content-type"), Some(kind));
    nom_openmetrics::parser::openmetrics(&reply.body).unwrap();
    assert!(reply.body.contains("# TYPE zklock_lock_hand_overs counter\n"), "{}", reply.body);
}
