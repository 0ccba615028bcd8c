//! How clients and servers of tests talk to each other: as the environment variable
//! `ZKLOCK_TESTS_TRANSPORT` says, in plain text (`plain`, the default), by TLS (`tls`), by TLS with
//! certificates of both sides (`mutual-tls`), or in plain text after SASL (`sasl`). With `keeper`, the
//! servers behave as ClickHouse Keeper, in plain text.
//!
//! Servers that speak TLS speak plain text on another port, for what looks at them from outside.

use std::env;

use zklock::{Acl, Client, ClientBuilder, Permissions};

use super::certificates::Files;
use super::keeper::behind_keepers;
use super::server::{self, Builder};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Plain,
    Tls,
    MutualTls,
    Sasl,
    Keeper,
}

impl Transport {
    /// The one that the environment asks for.
    pub(crate) fn wanted() -> Transport {
        match env::var("ZKLOCK_TESTS_TRANSPORT").as_deref() {
            Ok("" | "plain") | Err(env::VarError::NotPresent) => Transport::Plain,
            Ok("tls") => Transport::Tls,
            Ok("mutual-tls") => Transport::MutualTls,
            Ok("sasl") => Transport::Sasl,
            Ok("keeper") => Transport::Keeper,
            other => panic!("ZKLOCK_TESTS_TRANSPORT must not be {other:?}"),
        }
    }

    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Transport::Tls | Transport::MutualTls)
    }

    /// Whether a session goes on over another connection.
    pub(crate) fn keeps_sessions(self) -> bool {
        self != Transport::Keeper
    }

    /// The settings of a server.
    pub(crate) fn server(self, builder: Builder) -> Builder {
        match self {
            Transport::Plain | Transport::Keeper => builder,
            Transport::Sasl => with_sasl(builder),
            Transport::Tls => with_tls(builder, Files::shared(), "none"),
            Transport::MutualTls => with_tls(builder, Files::shared(), "need"),
        }
    }

    /// The settings of a client of such servers.
    pub(crate) fn client(self, hosts: &str) -> ClientBuilder {
        match self {
            Transport::Plain => Client::builder(hosts),
            Transport::Keeper => Client::builder(&behind_keepers(hosts)),
            Transport::Tls | Transport::MutualTls => over_tls(hosts, self),
            Transport::Sasl => over_sasl(hosts),
        }
    }

    /// Who may do what with the nodes of tests: only clients that have shown who they are, where they do.
    pub(crate) fn acl(self) -> Option<Vec<Acl>> {
        let look = Acl::world(Permissions::READ);
        match self {
            Transport::Plain | Transport::Tls | Transport::Keeper => None,
            Transport::MutualTls => Some(vec![Acl::x509(Permissions::ALL, "CN=client"), look]),
            Transport::Sasl => Some(vec![Acl::sasl(Permissions::ALL, "ann"), look]),
        }
    }
}

/// A server that speaks TLS on a second port, with these certificates; `clients` says whether it
/// `want`s or `need`s one of its clients.
pub(crate) fn with_tls(builder: Builder, files: &Files, clients: &str) -> Builder {
    let own = files.server();
    let trusted = files.authorities();
    builder
        .extra(format!("secureClientPort={}", server::free_port()))
        .extra("serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory")
        .extra(format!("ssl.keyStore.location={}", own.display()))
        .extra(format!("ssl.trustStore.location={}", trusted.display()))
        .extra(format!("ssl.clientAuth={clients}"))
        .extra("authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider")
}

/// A server that knows the users of the shared JAAS file.
pub(crate) fn with_sasl(builder: Builder) -> Builder {
    builder
        .extra("authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider")
        .property(format!("java.security.auth.login.config={}", Files::shared().jaas().display()))
}

#[cfg(feature = "tls")]
fn over_tls(hosts: &str, transport: Transport) -> ClientBuilder {
    let files = Files::shared();
    let tls = zklock::Tls::new().authorities(files.authorities());
    let tls = match transport {
        Transport::MutualTls => tls.client_certificate(files.client_chain(), files.client_key()),
        _ => tls,
    };
    Client::builder(&secure_hosts(hosts)).tls(tls)
}

#[cfg(not(feature = "tls"))]
fn over_tls(_hosts: &str, _transport: Transport) -> ClientBuilder {
    panic!("ZKLOCK_TESTS_TRANSPORT needs the feature tls")
}

#[cfg(feature = "sasl")]
fn over_sasl(hosts: &str) -> ClientBuilder {
    use super::certificates::{PASSWORD, USER};
    Client::builder(hosts).sasl(zklock::Sasl::digest_md5(USER, PASSWORD))
}

#[cfg(not(feature = "sasl"))]
fn over_sasl(_hosts: &str) -> ClientBuilder {
    panic!("ZKLOCK_TESTS_TRANSPORT needs the feature sasl")
}

/// A connect string with the ports for TLS; other hosts stay as they are.
pub(crate) fn secure_hosts(hosts: &str) -> String {
    let (hosts, chroot) = hosts.split_at(hosts.find('/').unwrap_or(hosts.len()));
    let secured = |host: &str| match host.trim().parse() {
        Ok(address) => server::secure_addr(address).to_string(),
        Err(_) => host.to_owned(),
    };
    hosts.split(',').map(secured).collect::<Vec<_>>().join(",") + chroot
}
