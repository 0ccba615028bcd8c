//! TLS: each wrong setting is an error that says what is wrong, and certificates can be replaced.
//!
//! That locks over TLS work as others do is shown by other tests with `ZKLOCK_TESTS_TRANSPORT=tls`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use log::LevelFilter;
use zklock::znode::CreateMode;
use zklock::{Acl, Client, ClientBuilder, Error, ErrorKind, Permissions, Tls};

use crate::support::certificates::{Authority, Files, HOSTS, Issued};
use crate::support::logs::logs;
use crate::support::proxy::Proxy;
use crate::support::server::{Server, secure_addr};
use crate::support::stopwatch::Stopwatch;
use crate::support::transport::with_tls;
use crate::support::{
    eventually, mutex, skip_before, skip_unless_alone, skip_without_server, unique_base,
};

const LIMIT: Duration = Duration::from_secs(4);

/// An authority, and files in a folder that is removed at the end.
struct Folder {
    path: PathBuf,
    authority: Authority,
}

impl Folder {
    fn new(test: &str) -> Folder {
        let name = format!("certificates-{test}-{}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        Folder { path, authority: Authority::new(test) }
    }

    /// The files with this certificate of the server, and one of the client of this authority.
    fn with(&self, server: &Issued) -> Files {
        let client = self.authority.issue("client", &[]);
        Files::write(self.path.clone(), &self.authority, server, &client)
    }

    fn usual(&self) -> Files {
        self.with(&self.authority.issue("server", &HOSTS))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn start(files: &Files, clients: &str) -> Server {
    with_tls(Server::builder(), files, clients).start().unwrap()
}

fn builder(address: impl ToString, tls: Tls) -> ClientBuilder {
    Client::builder(&address.to_string()).connect_timeout(LIMIT).tls(tls)
}

fn trusting(files: &Files) -> Tls {
    Tls::new().authorities(files.authorities())
}

/// The error of connecting, which has to come in time.
fn refused(builder: ClientBuilder) -> Error {
    let watch = Stopwatch::start();
    let error = builder.connect().unwrap_err();
    let took = watch.took();
    assert!(took.within(LIMIT + Duration::from_secs(1)), "{took:?}: {error}");
    println!("{:?}: {error}", error.kind());
    error
}

fn assert_says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

fn works(zk: &Client, base: &str) {
    let lock = mutex(zk, base, "a");
    let guard = lock.lock().unwrap();
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();
}

#[test]
fn a_server_that_is_not_to_be_trusted_is_named_with_the_reason() {
    skip_without_server!();
    skip_before!(3, 5, "speak no TLS");
    let (known, unknown) = (Folder::new("known"), Folder::new("unknown"));
    let files = known.usual();
    let server = start(&files, "none");
    let address = secure_addr(server.addr());
    builder(address, trusting(&files)).connect().unwrap();
    let by_name = format!("localhost:{}", address.port());
    builder(by_name, trusting(&files)).connect().unwrap();

    let error = refused(builder(address, trusting(&unknown.usual())));
    let file = unknown.path.join("ca.pem").display().to_string();
    let words = [
        "no authority that is trusted has issued the server's certificate",
        &file,
        &address.to_string(),
    ];
    assert_says(&error, ErrorKind::AuthFailed, &words);
    let error = refused(builder(address, Tls::new()));
    assert_says(&error, ErrorKind::AuthFailed, &["the operating system's trusted authorities"]);
    // Another address of this machine, which the certificate is not for.
    let elsewhere = Forward::start(SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), 0)), address);
    let error = refused(builder(elsewhere.address, trusting(&files)));
    let words = ["the server's certificate is not for 127.0.0.2, but for localhost, 127.0.0.1,"];
    assert_says(&error, ErrorKind::AuthFailed, &words);
}

#[test]
fn a_certificate_that_has_expired_is_said_to_have() {
    skip_without_server!();
    skip_before!(3, 5, "speak no TLS");
    let folder = Folder::new("expired");
    let files = folder.with(&folder.authority.issue_until("server", &HOSTS, 2021));
    let server = start(&files, "none");
    let error = refused(builder(secure_addr(server.addr()), trusting(&files)));
    assert_says(&error, ErrorKind::AuthFailed, &["the server's certificate has expired"]);
}

#[test]
fn a_port_without_tls_and_one_with_nothing_else_are_told_apart() {
    skip_without_server!();
    skip_before!(3, 5, "speak no TLS");
    let folder = Folder::new("ports");
    let files = folder.usual();
    let server = start(&files, "none");
    let error = refused(builder(server.addr(), trusting(&files)));
    assert_says(&error, ErrorKind::Connect, &["TLS on this port"]);
    let secure = secure_addr(server.addr()).to_string();
    let error = refused(Client::builder(&secure).connect_timeout(LIMIT));
    assert_says(&error, ErrorKind::Connect, &["only TLS on this port"]);
}

#[test]
fn a_client_without_a_certificate_that_is_trusted_is_told_so() {
    skip_without_server!();
    skip_before!(3, 5, "speak no TLS");
    let (known, unknown) = (Folder::new("wanted"), Folder::new("unwanted"));
    let files = known.usual();
    let server = start(&files, "need");
    let address = secure_addr(server.addr());
    let shown = |files: &Files| {
        trusting(&known_files(&known)).client_certificate(files.client_chain(), files.client_key())
    };
    works(&builder(address, shown(&files)).connect().unwrap(), &unique_base("mutual"));
    let error = refused(builder(address, trusting(&files)));
    assert_says(&error, ErrorKind::AuthFailed, &["the server demands a certificate of the client"]);
    let error = refused(builder(address, shown(&unknown.usual())));
    assert_says(&error, ErrorKind::AuthFailed, &["the server refuses the client's certificate"]);
}

fn known_files(folder: &Folder) -> Files {
    Files::at(folder.path.clone())
}

#[test]
fn files_that_cannot_be_used_are_named_before_anything_is_sent() {
    let folder = Folder::new("files");
    let files = folder.usual();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let missing = folder.path.join("missing.pem");
    let empty = folder.path.join("empty.pem");
    fs::write(&empty, "").unwrap();
    let other = Authority::new("other").issue("client", &[]);
    let other_key = folder.path.join("other.key");
    fs::write(&other_key, &other.key).unwrap();
    for (tls, file, why) in [
        (Tls::new().authorities(&missing), &missing, "cannot be used"),
        (Tls::new().authorities(&empty), &empty, "no certificate in PEM format"),
        (
            trusting(&files).client_certificate(&missing, files.client_key()),
            &missing,
            "cannot be used",
        ),
        (
            trusting(&files).client_certificate(files.client_chain(), &empty),
            &empty,
            "cannot be used",
        ),
        (
            trusting(&files).client_certificate(files.client_chain(), &other_key),
            &other_key,
            "do not fit",
        ),
    ] {
        for result in [builder(address, tls.clone()).connect(), builder(address, tls).lazy()] {
            let error = result.unwrap_err();
            let file = file.display().to_string();
            assert_says(&error, ErrorKind::InvalidArgument, &[&file, why]);
        }
    }
    let error = builder("zk-:1", trusting(&files)).lazy().unwrap_err();
    assert_says(&error, ErrorKind::InvalidArgument, &["no certificate", "\"zk-\""]);
    let zk = builder(address, trusting(&files)).lazy().unwrap();
    let error = zk.set_hosts("zk-:1").unwrap_err();
    assert_says(&error, ErrorKind::InvalidArgument, &["no certificate", "\"zk-\""]);
    assert!(listener.accept().is_err(), "something was sent");
}

/// The certificates of the server are replaced by those of another authority, and it is restarted.
#[test]
fn certificates_are_read_again_at_each_connection() {
    skip_without_server!();
    skip_before!(3, 5, "speak no TLS");
    let folder = Folder::new("replaced");
    let files = folder.usual();
    let server = start(&files, "need");
    let tls = trusting(&files).client_certificate(files.client_chain(), files.client_key());
    let builder = builder(secure_addr(server.addr()), tls).session_timeout(Duration::from_secs(60));
    let zk = builder.connect().unwrap();
    let base = unique_base("replaced");
    let guard = mutex(&zk, &base, "a").lock().unwrap();
    let (session, token) = (zk.session_id(), guard.fencing_token());
    server.kill();
    let new = Authority::new("new");
    let (server_certificate, client) = (new.issue("server", &HOSTS), new.issue("client", &[]));
    let _ = Files::write(folder.path.clone(), &new, &server_certificate, &client);
    server.start_again();
    guard.ensure_held().unwrap();
    assert_eq!((zk.session_id(), guard.fencing_token()), (session, token));
    guard.unlock().unwrap();
}

/// While the certificates do not fit, a session that is open waits for others.
#[test]
fn a_session_outlasts_certificates_that_are_wrong_for_a_while() {
    skip_without_server!();
    skip_before!(3, 5, "speak no TLS");
    skip_unless_alone!();
    let folder = Folder::new("wrong-for-a-while");
    let files = folder.usual();
    let server = start(&files, "none");
    let logs = logs(LevelFilter::Warn);
    let proxy = Proxy::raw(secure_addr(server.addr()), Duration::ZERO);
    let builder = builder(proxy.addr(), trusting(&files));
    let zk = builder.session_timeout(Duration::from_secs(60)).connect().unwrap();
    let guard = mutex(&zk, unique_base("wrong"), "a").lock().unwrap();
    let right = fs::read(files.authorities()).unwrap();
    fs::write(files.authorities(), Authority::new("wrong").pem()).unwrap();
    proxy.cut();
    eventually(Duration::from_secs(30), "an attempt with the wrong file", || {
        logs.warnings().iter().any(|line| line.contains("no authority that is trusted"))
    });
    fs::write(files.authorities(), right).unwrap();
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();
}

/// More than a socket takes or gives at once.
#[test]
fn large_requests_and_replies_arrive_whole() {
    skip_without_server!();
    skip_before!(3, 5, "speak no TLS");
    let folder = Folder::new("large");
    let files = folder.usual();
    let server = start(&files, "none");
    let zk = builder(secure_addr(server.addr()), trusting(&files)).connect().unwrap();
    let data: Vec<u8> = (0..1_000_000u32).map(|number| (number % 251) as u8).collect();
    let node = zk.znode("/large");
    node.create(CreateMode::Persistent, data.clone()).unwrap();
    for _ in 0..10 {
        assert!(node.read().unwrap().expect("the node").data == data);
    }
}

#[test]
fn a_node_for_a_certificate_is_closed_to_others() {
    skip_without_server!();
    skip_before!(3, 5, "speak no TLS");
    let folder = Folder::new("x509");
    let files = folder.usual();
    let server = start(&files, "want");
    let address = secure_addr(server.addr());
    let shown = trusting(&files).client_certificate(files.client_chain(), files.client_key());
    let (known, stranger) = (
        builder(address, shown).connect().unwrap(),
        builder(address, trusting(&files)).connect().unwrap(),
    );
    let base = unique_base("x509");
    let lock = |zk: &Client, name: &str, acl: &Acl| {
        zklock::DistributedLock::new(zk, &base, name).acl(acl.clone())
    };
    let (by_name, by_creator) = (Acl::x509(Permissions::ALL, "CN=client"), Acl::creator_only());
    for (name, acl) in [("named", by_name), ("own", by_creator)] {
        lock(&known, name, &acl).lock().unwrap().unlock().unwrap();
        let error = lock(&stranger, name, &Acl::open()).lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
    }
    // It has shown nothing that a node could be for.
    let error = lock(&stranger, "other", &Acl::creator_only()).lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

/// A key is a secret; so is its file's content.
#[test]
fn nothing_of_a_key_is_printed() {
    let folder = Folder::new("secret");
    let files = folder.usual();
    let tls = trusting(&files).client_certificate(files.client_chain(), files.client_key());
    let key = fs::read_to_string(files.client_key()).unwrap();
    let line = key.lines().nth(1).unwrap();
    let printed = format!("{tls:?} {:?}", builder("localhost", tls.clone()));
    assert!(!printed.contains(line), "{printed}");
}

/// Passes on what comes to an address.
struct Forward {
    address: SocketAddr,
}

impl Forward {
    fn start(at: SocketAddr, to: SocketAddr) -> Forward {
        let listener = TcpListener::bind(at).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = std::net::TcpStream::connect(to).unwrap();
                let (mut from, mut into) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut from, &mut into));
                let (mut from, mut into) = (server, client);
                std::thread::spawn(move || std::io::copy(&mut from, &mut into));
            }
        });
        Forward { address }
    }
}
