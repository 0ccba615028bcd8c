//! A client with the settings of the command line.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use zklock::{Acl, Client, ClientBuilder, Sasl, Tls};

use crate::args::Global;
use crate::exit::Failure;
use crate::output::say;

impl Global {
    /// The path of a lock: below the base, unless it is absolute. It may end with a slash.
    pub(crate) fn path(&self, lock: &str) -> Result<Lock, Failure> {
        let path = self.absolute(lock);
        match path.rsplit_once('/') {
            Some((base, name)) if !name.is_empty() && !lock.is_empty() => {
                let base = if base.is_empty() { "/" } else { base };
                Ok(Lock { base: base.to_owned(), name: name.to_owned(), path: path.clone() })
            }
            _ => Err(Failure::usage(format!("{lock:?} is no name of a lock"))),
        }
    }

    /// The path that locks are listed below: that of `--base`, or another one.
    pub(crate) fn base(&self, path: Option<&str>) -> String {
        self.absolute(path.unwrap_or_default())
    }

    /// This path below the base, unless it is absolute, without slashes at its end.
    fn absolute(&self, path: &str) -> String {
        let whole = match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("{}/{path}", self.base.trim_end_matches('/')),
        };
        match whole.trim_end_matches('/') {
            "" => "/".to_owned(),
            path => path.to_owned(),
        }
    }

    /// The ACL of the nodes that are created.
    pub(crate) fn acl(&self) -> Vec<Acl> {
        vec![if self.creator_only { Acl::creator_only() } else { Acl::open() }]
    }

    /// A client's settings, with its credentials.
    pub(crate) fn builder(&self) -> Result<ClientBuilder, Failure> {
        self.builder_for(&self.hosts)
    }

    /// The same for other hosts.
    pub(crate) fn builder_for(&self, hosts: &str) -> Result<ClientBuilder, Failure> {
        let mut builder = Client::builder(hosts)
            .session_timeout(self.session_timeout)
            .connect_timeout(self.connect_timeout);
        if let Some(tick) = self.tick_time {
            builder = builder.tick_time(tick);
        }
        if let Some(file) = &self.auth_file {
            for (scheme, credentials) in credentials(&read_secret(file)?) {
                builder = builder.auth(scheme, credentials);
            }
        }
        if self.speaks_tls() {
            let mut tls = Tls::new();
            if let Some(file) = &self.tls_ca {
                tls = tls.authorities(file);
            }
            if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
                tls = tls.client_certificate(certificate, key);
            }
            builder = builder.tls(tls);
        }
        if let (Some(user), Some(file)) = (&self.sasl_user, &self.sasl_password_file) {
            let password = read_secret(file)?;
            builder = builder.sasl(Sasl::digest_md5(user, password.trim_end_matches(['\r', '\n'])));
        }
        Ok(builder)
    }

    pub(crate) fn speaks_tls(&self) -> bool {
        self.tls || self.tls_ca.is_some() || self.tls_cert.is_some()
    }

    /// Whether the client shows the servers who it is, and so may read more than others.
    pub(crate) fn has_credentials(&self) -> bool {
        self.auth_file.is_some() || self.tls_cert.is_some() || self.sasl_user.is_some()
    }

    /// A connected client.
    pub(crate) fn connect(&self) -> Result<Client, Failure> {
        Ok(self.builder()?.connect()?)
    }
}

/// Ends the session, unless that takes longer than this.
pub(crate) fn close_within(limit: Duration, client: Client) {
    let (tell, told) = channel();
    let closed = thread::Builder::new().name("zklock-closer".to_owned()).spawn(move || {
        client.close();
        let _ = tell.send(());
    });
    if closed.is_ok() {
        let _ = told.recv_timeout(limit);
    }
}

/// A lock's path, and the two parts of it that the library takes.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) base: String,
    pub(crate) name: String,
    pub(crate) path: String,
}

/// Reads a file of secrets; others than its owner should not be able to.
fn read_secret(file: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(file)
        .map_err(|why| Failure::usage(format!("{} cannot be read: {why}", file.display())))?;
    let mode = file.metadata().map_or(0, |one| one.mode() & 0o777);
    if mode & 0o004 != 0 {
        say("", &format!("every user of this machine may read {} (mode {mode:o})", file.display()));
    }
    Ok(text)
}

fn credentials(text: &str) -> Vec<(String, Vec<u8>)> {
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (scheme, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            (scheme.to_owned(), rest.trim_start().as_bytes().to_vec())
        })
        .collect()
}
