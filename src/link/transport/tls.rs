//! TLS to the servers: which certificates are trusted and shown, and what an error means.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error as TlsError,
    RootCertStore,
};

use super::address_failure::{Failure, is_closed};
use super::server_stream::{Encryption, write_out};
use crate::error::{Error, ErrorKind, Result};
use crate::logging;

/// How a client speaks TLS with its servers: see [`ClientBuilder::tls`](crate::ClientBuilder::tls).
///
/// The client accepts a server only if its certificate is valid, is from an authority that the
/// client trusts, and is for the host's name (or address) as the connect string writes it. The
/// client speaks TLS 1.2 and 1.3. All servers of the connect string speak TLS, on the port that
/// their `secureClientPort` sets; a host without a port has 2181, as without TLS.
///
/// All files are in PEM format, and are read again for each connection, so they can be replaced
/// while the program runs. `keytool -importkeystore -deststoretype PKCS12` and `openssl pkcs12`
/// convert a Java key store.
///
/// ```no_run
/// use zklock::{Client, Tls};
///
/// let tls = Tls::new()
///     .authorities("/etc/zk/ca.pem")
///     .client_certificate("/etc/zk/client.pem", "/etc/zk/client.key");
/// let zk = Client::builder("zk1.example.org:2281,zk2.example.org:2281").tls(tls).connect()?;
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "settings do nothing until they are given to `ClientBuilder::tls`"]
pub struct Tls {
    authorities: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Returns settings that trust the operating system's authorities, and show no client
    /// certificate.
    ///
    /// The environment variables `SSL_CERT_FILE` and `SSL_CERT_DIR` replace those authorities.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trusts only the authorities whose certificates are in `file`.
    pub fn authorities(mut self, file: impl Into<PathBuf>) -> Tls {
        self.authorities = Some(file.into());
        self
    }

    /// Shows the servers a certificate of this client: for servers that demand one, and for ACLs of
    /// the scheme [`x509`](crate::Acl::x509).
    ///
    /// `chain` has the certificate first and then those of the authorities between it and the one
    /// that the servers trust; `key` has its private key, not encrypted. The log warns if every
    /// user of the machine may read that file.
    pub fn client_certificate(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        self.certificate = Some((chain.into(), key.into()));
        self
    }

    /// # Errors
    ///
    /// Fails with `InvalidArgument`, and the name of the file, if the settings cannot be used.
    pub(crate) fn check(&self) -> Result<()> {
        let unusable = |why| Error::new(ErrorKind::InvalidArgument, why);
        self.config().map_err(unusable)?;
        let (_, ignored) = self.roots().map_err(unusable)?;
        // The operating system may have some in an old format that nobody needs.
        if ignored > 0 && self.authorities.is_some() {
            logging::warning!(
                target: "zklock::link",
                "{ignored} of the certificates in {} cannot be used and are ignored",
                self.source()
            );
        }
        let key = self.certificate.as_ref().map(|(_, key)| key);
        let mode = key.and_then(|key| Some((key, key.metadata().ok()?.mode())));
        if let Some((key, mode)) = mode.filter(|(_, mode)| mode & 0o004 != 0) {
            logging::warning!(
                target: "zklock::link",
                "every user of this machine may read the private key {} (mode {:o})",
                key.display(), mode & 0o777
            );
        }
        Ok(())
    }

    /// # Errors
    ///
    /// Fails with `InvalidArgument` if no certificate can be for this host.
    pub(crate) fn check_host(&self, host: &str) -> Result<()> {
        certified(host).map(drop).map_err(|why| Error::new(ErrorKind::InvalidArgument, why))
    }

    /// The start of a connection to `host`; otherwise why there is none.
    pub(crate) fn encrypt(&self, host: &str) -> Result<Box<dyn Encryption>, String> {
        let name = certified(host)?;
        let mut connection =
            ClientConnection::new(self.config()?, name).map_err(|error| error.to_string())?;
        // What may be queued is limited elsewhere.
        connection.set_buffer_limit(None);
        Ok(Box::new(Encrypted { connection, encrypted: 0 }))
    }

    fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(self.roots()?.0);
        let mut config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let private =
                    PrivateKeyDer::from_pem_file(key).map_err(|why| unreadable(key, why))?;
                builder.with_client_auth_cert(certificates(chain)?, private).map_err(|why| {
                    format!("{} and {} do not fit: {why}", chain.display(), key.display())
                })?
            }
        };
        // Each connection uses the certificates as they are now.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// The authorities, and how many certificates are not usable as such.
    fn roots(&self) -> Result<(RootCertStore, usize), String> {
        let found = match &self.authorities {
            Some(file) => certificates(file)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = RootCertStore::empty();
        let (_, ignored) = roots.add_parsable_certificates(found);
        if roots.is_empty() {
            return Err(format!("{}: no certificate in it can be used", self.source()));
        }
        Ok((roots, ignored))
    }

    /// Where the trusted authorities come from.
    fn source(&self) -> String {
        match &self.authorities {
            Some(file) => file.display().to_string(),
            None => "the operating system's trusted authorities".to_owned(),
        }
    }

    /// What an error of a connection means: it is told apart whether only other certificates, of one side or
    /// the other, can help.
    pub(crate) fn explain(&self, cause: io::Error) -> Failure {
        let Some(error) = cause.get_ref().and_then(|error| error.downcast_ref()) else {
            return cause.into();
        };
        let why = match error {
            TlsError::InvalidCertificate(why) => return Failure::Distrust(self.distrust(why)),
            TlsError::AlertReceived(alert) if is_about_certificates(*alert) => {
                let what = match self.certificate {
                    None => "the server demands a certificate of the client",
                    Some(_) => "the server refuses the client's certificate",
                };
                return Failure::Distrust(format!("{what} (TLS alert {alert:?})"));
            }
            TlsError::AlertReceived(alert) => {
                format!("the server ended the TLS handshake (alert {alert:?})")
            }
            TlsError::InvalidMessage(_) => {
                format!("the server does not speak TLS on this port ({error})")
            }
            other => format!("TLS failed: {other}"),
        };
        io::Error::new(cause.kind(), why).into()
    }

    fn distrust(&self, why: &CertificateError) -> String {
        use CertificateError::{
            Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
            NotValidYetContext, UnknownIssuer,
        };
        match why {
            UnknownIssuer => {
                let source = self.source();
                format!(
                    "no authority that is trusted has issued the server's certificate ({source})"
                )
            }
            NotValidForNameContext { expected, presented } if presented.is_empty() => format!(
                "the server's certificate is not for {}: it names no host (subjectAltName)",
                expected.to_str()
            ),
            NotValidForNameContext { expected, presented } => format!(
                "the server's certificate is not for {}, but for {}",
                expected.to_str(),
                presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", ")
            ),
            NotValidForName => "the server's certificate is for another name".to_owned(),
            Expired | ExpiredContext { .. } => "the server's certificate has expired".to_owned(),
            NotValidYet | NotValidYetContext { .. } => {
                "the server's certificate is not valid yet, by this machine's clock".to_owned()
            }
            other => format!("the server's certificate is refused: {other}"),
        }
    }
}

/// The host as a certificate names it.
fn certified(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned())
        .map_err(|_| format!("no certificate can be for the host name {host:?}"))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|why| unreadable(file, why))?;
    if all.is_empty() {
        return Err(format!("{} has no certificate in PEM format", file.display()));
    }
    Ok(all)
}

fn unreadable(file: &Path, why: rustls::pki_types::pem::Error) -> String {
    format!("{} cannot be used: {why}", file.display())
}

/// The name in `DnsName("name")`.
fn bare(presented: &str) -> &str {
    let inner = presented.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(presented).trim_matches('"')
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateRequired
    )
}

/// The state of TLS on a connection.
#[derive(Debug)]
struct Encrypted {
    connection: ClientConnection,
    /// How many bytes, of those to be sent, are encrypted, but not all written.
    encrypted: usize,
}

impl Encryption for Encrypted {
    fn shake_hands(&mut self, tcp: &TcpStream) -> io::Result<bool> {
        self.greet(tcp).map_err(explain_closing)
    }

    fn send(&mut self, tcp: &TcpStream, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut sent = 0;
        loop {
            match self.flush(tcp) {
                Ok(true) => sent += std::mem::take(&mut self.encrypted),
                stuck => return (sent, stuck.map(drop)),
            }
            if sent >= bytes.len() {
                return (sent, Ok(()));
            }
            let end = bytes.len().min(sent + 64 * 1024);
            match self.connection.writer().write(&bytes[sent..end]) {
                Ok(0) => return (sent, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => self.encrypted = count,
                Err(error) => return (sent, Err(error)),
            }
        }
    }

    fn wants_to_send(&self) -> bool {
        self.connection.wants_write()
    }

    fn read(&mut self, mut tcp: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        match self.connection.reader().read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
        let is_over = self.connection.read_tls(&mut tcp)? == 0;
        self.decrypt(tcp)?;
        match self.connection.reader().read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_over => {
                Err(io::ErrorKind::Interrupted.into())
            }
            result => result,
        }
    }
}

/// What it may mean that a server closes the connection in the TLS handshake.
fn explain_closing(cause: io::Error) -> io::Error {
    if !is_closed(&cause) {
        return cause;
    }
    let why = "the server closed the connection in the TLS handshake; it may speak no TLS on this port, or be \
               unable to use its own key store (see the server's log)";
    io::Error::new(cause.kind(), why)
}

impl Encrypted {
    /// A step of the TLS handshake; says whether that was the last one.
    fn greet(&mut self, mut tcp: &TcpStream) -> io::Result<bool> {
        self.flush(tcp)?;
        if !self.connection.is_handshaking() {
            return Ok(!self.connection.wants_write());
        }
        if self.connection.read_tls(&mut tcp)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.decrypt(tcp)?;
        Ok(false)
    }

    /// Writes what is encrypted, and says whether that is all written.
    fn flush(&mut self, mut tcp: &TcpStream) -> io::Result<bool> {
        let tls = &mut self.connection;
        write_out(|| tls.wants_write().then(|| tls.write_tls(&mut tcp)))
    }

    fn decrypt(&mut self, tcp: &TcpStream) -> io::Result<()> {
        self.connection.process_new_packets().map(drop).map_err(|error| {
            // An alert tells the server why.
            let _ = self.flush(tcp);
            io::Error::new(io::ErrorKind::InvalidData, error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_closed_in_the_handshake_is_explained() {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof};
        for (kind, is_explained) in
            [(UnexpectedEof, true), (ConnectionReset, true), (BrokenPipe, true), (TimedOut, false)]
        {
            let error = explain_closing(kind.into());
            assert_eq!(error.kind(), kind);
            assert_eq!(error.to_string().contains("unable to use its own key store"), is_explained);
        }
    }
}
