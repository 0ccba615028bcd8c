//! SASL: who is known is let in, and who is not is told so at once.
//!
//! That locks work after SASL as they do without is shown by other tests with
//! `ZKLOCK_TESTS_TRANSPORT=sasl`.

use std::time::Duration;

use zklock::{Acl, Client, ClientBuilder, DistributedLock, Error, ErrorKind, Permissions, Sasl};

use crate::support::certificates::{PASSWORD, USER};
use crate::support::server::Server;
use crate::support::stopwatch::Stopwatch;
use crate::support::transport::with_sasl;
use crate::support::{eventually, skip_before, skip_without_server, unique_base};

const LIMIT: Duration = Duration::from_secs(30);

fn builder(server: &Server, user: &str, password: &str) -> ClientBuilder {
    let builder = Client::builder(&server.hosts()).connect_timeout(LIMIT);
    builder.sasl(Sasl::digest_md5(user, password))
}

/// The error of connecting, which does not take until the time is over.
fn refused(builder: ClientBuilder) -> Error {
    let watch = Stopwatch::start();
    let error = builder.connect().unwrap_err();
    let took = watch.took();
    assert!(took.within(LIMIT / 2), "{took:?}: {error}");
    println!("{:?}: {error}", error.kind());
    error
}

#[test]
fn who_is_not_known_is_refused_at_once() {
    skip_without_server!();
    skip_before!(3, 5, "say nothing when they reject a client");
    let server = with_sasl(Server::builder()).start().unwrap();
    let zk = builder(&server, USER, PASSWORD).connect().unwrap();
    assert!(zk.session_id().is_some());
    for (user, password) in [(USER, "wrong"), ("bob", "wrong"), ("bob", "\"\\,=")] {
        let error = refused(builder(&server, user, password));
        assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
        let text = error.to_string();
        assert!(text.contains("rejected SASL's user") && text.contains(user), "{text}");
        assert!(!text.contains(password), "{text}");
    }
    // A wait without a limit ends with the server's reason, too.
    let stranger = builder(&server, USER, "wrong").lazy().unwrap();
    let error = DistributedLock::new(&stranger, "/locks", "a").lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
    assert!(error.to_string().contains(&server.addr().to_string()), "{error}");
    let unconfigured = Server::start();
    let lasting = builder(&unconfigured, USER, PASSWORD).session_timeout(LIMIT * 2);
    let error = refused(lasting);
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
    assert!(error.to_string().contains("not configured for SASL"), "{error}");
    eventually(LIMIT, "the refused session to be closed", || unconfigured.sessions() == 0);
    for (user, password) in [("", "a"), ("a", ""), ("a\n", "a")] {
        let error = builder(&server, user, password).lazy().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

/// Servers before 3.5 only close the connection.
#[test]
fn a_server_that_says_nothing_is_understood_within_the_connect_timeout() {
    skip_without_server!();
    let server = with_sasl(Server::builder()).start().unwrap();
    let error = builder(&server, USER, "wrong").connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
    assert!(error.to_string().contains("rejected") && error.to_string().contains(USER), "{error}");
    // Nor does a wait without a limit go on for ever.
    let stranger = builder(&server, USER, "wrong").connect_timeout(LIMIT / 10).lazy().unwrap();
    let error = DistributedLock::new(&stranger, "/locks", "a").lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
}

/// A call that waits without a limit ends, too.
#[test]
fn a_server_that_demands_sasl_is_not_asked_for_ever() {
    skip_without_server!();
    skip_before!(3, 5, "cannot demand SASL");
    let builder = with_sasl(Server::builder()).extra("sessionRequireClientSASLAuth=true");
    let server = builder.start().unwrap();
    let base = unique_base("demanded");
    let lock = |zk: &Client| DistributedLock::new(zk, &base, "a");
    let known = self::builder(&server, USER, PASSWORD).connect().unwrap();
    lock(&known).lock().unwrap().unlock().unwrap();
    let stranger = Client::builder(&server.hosts()).lazy().unwrap();
    let error = lock(&stranger).lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
    assert!(error.to_string().contains("demands"), "{error}");
    // So does one that only looks.
    let error = lock(&stranger).contenders().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
}

#[test]
fn a_node_for_a_user_is_closed_to_others_and_stays_open_over_connections() {
    skip_without_server!();
    let server = with_sasl(Server::builder()).start().unwrap();
    let known = builder(&server, USER, PASSWORD).connect().unwrap();
    let stranger = Client::connect(&server.hosts()).unwrap();
    let base = unique_base("user");
    let lock =
        |zk: &Client, name: &str, acl: &Acl| DistributedLock::new(zk, &base, name).acl(acl.clone());
    let (by_name, by_creator) = (Acl::sasl(Permissions::ALL, USER), Acl::creator_only());
    lock(&stranger, "any", &Acl::open()).lock().unwrap().unlock().unwrap();
    for (name, acl) in [("named", by_name), ("own", by_creator)] {
        let own = lock(&known, name, &acl);
        let guard = own.lock().unwrap();
        let error = lock(&stranger, name, &Acl::open()).lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAuthorized, "{error}");
        server.restart();
        guard.ensure_held().unwrap();
        guard.unlock().unwrap();
        own.lock().unwrap().unlock().unwrap();
    }
}
