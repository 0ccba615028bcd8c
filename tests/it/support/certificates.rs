//! What servers and clients show each other: certificates, from an authority of the tests' own, and
//! passwords.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test code; each part uses some"
)]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// Who signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its private key.
pub(crate) struct Issued {
    pub(crate) chain: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for these hosts, whose subject is `CN=` and `subject`.
    pub(crate) fn issue(&self, subject: &str, hosts: &[&str]) -> Issued {
        self.issue_until(subject, hosts, 4000)
    }

    /// A certificate that is valid until the beginning of this year.
    pub(crate) fn issue_until(&self, subject: &str, hosts: &[&str], year: i32) -> Issued {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let chain = params.signed_by(&key, &self.issuer).unwrap().pem();
        Issued { chain, key: key.serialize_pem() }
    }
}

/// The files of one authority, for servers and clients.
#[derive(Clone, Debug)]
pub(crate) struct Files(PathBuf);

impl Files {
    /// Writes them into an empty folder.
    pub(crate) fn write(
        folder: PathBuf,
        authority: &Authority,
        server: &Issued,
        client: &Issued,
    ) -> Files {
        let files = Files(folder);
        fs::create_dir_all(&files.0).unwrap();
        fs::write(files.authorities(), authority.pem()).unwrap();
        // As a Java server reads it: the key first.
        fs::write(files.server(), format!("{}{}", server.key, server.chain)).unwrap();
        fs::write(files.server_chain(), &server.chain).unwrap();
        fs::write(files.server_key(), &server.key).unwrap();
        fs::write(files.client_chain(), &client.chain).unwrap();
        fs::write(files.client_key(), &client.key).unwrap();
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
        let jaas = format!("Server {{ {module} required user_{USER}=\"{PASSWORD}\"; }};\n");
        fs::write(files.jaas(), jaas).unwrap();
        files
    }

    pub(crate) fn at(folder: PathBuf) -> Files {
        Files(folder)
    }

    /// Those that all tests and their workers share, made by whoever is first.
    pub(crate) fn shared() -> &'static Files {
        static SHARED: OnceLock<Files> = OnceLock::new();
        SHARED.get_or_init(|| {
            let executable = env::current_exe().unwrap();
            let is_profile = |path: &&Path| {
                path.file_name().is_some_and(|name| name == "debug" || name == "release")
            };
            let built = executable.ancestors().find(is_profile).and_then(Path::parent);
            let parent = built.map_or_else(env::temp_dir, |target| target.join("tmp"));
            let folder = parent.join(format!("certificates-for-{}", HOSTS.len()));
            if !folder.join("client.key").is_file() {
                let own = parent.join(format!("certificates-{}", std::process::id()));
                let authority = Authority::new("zklock's tests");
                let (server, client) =
                    (authority.issue("server", &HOSTS), authority.issue(CLIENT, &[]));
                Files::write(own.clone(), &authority, &server, &client);
                if fs::rename(&own, &folder).is_err() {
                    fs::remove_dir_all(&own).unwrap();
                }
            }
            Files(folder)
        })
    }

    pub(crate) fn authorities(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    pub(crate) fn server(&self) -> PathBuf {
        self.0.join("server-with-key.pem")
    }

    pub(crate) fn server_chain(&self) -> PathBuf {
        self.0.join("server.pem")
    }

    pub(crate) fn server_key(&self) -> PathBuf {
        self.0.join("server.key")
    }

    /// A server's settings for SASL.
    pub(crate) fn jaas(&self) -> PathBuf {
        self.0.join("jaas.conf")
    }

    pub(crate) fn client_chain(&self) -> PathBuf {
        self.0.join("client.pem")
    }

    pub(crate) fn client_key(&self) -> PathBuf {
        self.0.join("client.key")
    }
}

/// The client's name in its certificate.
pub(crate) const CLIENT: &str = "client";

/// Whom a server with the shared files knows by SASL.
pub(crate) const USER: &str = "ann";
pub(crate) const PASSWORD: &str = "a \u{e9}t\u{e9} of 7";

/// Where servers of tests are: on loopback, or in the soak's own networks.
pub(crate) const HOSTS: [&str; 5] =
    ["localhost", "127.0.0.1", "10.77.0.1", "10.77.0.2", "10.77.0.3"];
