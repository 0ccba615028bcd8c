//! One end of the proxy's connections: in plain text, or by TLS, which a thread for each direction shares.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use super::certificates::Files;

/// A connection; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    tcp: Arc<TcpStream>,
    tls: Arc<OnceLock<Mutex<Connection>>>,
}

impl Wire {
    pub(crate) fn plain(tcp: TcpStream) -> Wire {
        Wire { tcp: Arc::new(tcp), tls: Arc::default() }
    }

    /// Answers a TLS handshake, if that is what the client begins with.
    pub(crate) fn accept(&self) -> io::Result<bool> {
        let mut first = [0];
        if self.tcp.peek(&mut first)? == 0 || first != [22] {
            return Ok(false);
        }
        let files = Files::shared();
        let chain =
            CertificateDer::pem_file_iter(files.server_chain()).map_err(io::Error::other)?;
        let chain = chain.collect::<Result<_, _>>().map_err(io::Error::other)?;
        let key = PrivateKeyDer::from_pem_file(files.server_key()).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key))
            .map_err(io::Error::other)?;
        let connection = ServerConnection::new(Arc::new(config)).map_err(io::Error::other)?;
        self.begin(Connection::Server(connection))?;
        Ok(true)
    }

    /// Begins TLS with a server, and shows it the client's certificate.
    pub(crate) fn encrypt(&self, address: SocketAddr) -> io::Result<()> {
        let files = Files::shared();
        let mut roots = RootCertStore::empty();
        let chain = |file| -> io::Result<Vec<CertificateDer<'static>>> {
            let all = CertificateDer::pem_file_iter(file).map_err(io::Error::other)?;
            all.collect::<Result<_, _>>().map_err(io::Error::other)
        };
        roots.add_parsable_certificates(chain(files.authorities())?);
        let key = PrivateKeyDer::from_pem_file(files.client_key()).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let own = chain(files.client_chain())?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_root_certificates(roots).with_client_auth_cert(own, key))
            .map_err(io::Error::other)?;
        let name = ServerName::from(address.ip());
        let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        self.begin(Connection::Client(connection))
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.get().is_some()
    }

    fn begin(&self, mut connection: Connection) -> io::Result<()> {
        while connection.is_handshaking() {
            connection.complete_io(&mut &*self.tcp)?;
        }
        connection.set_buffer_limit(None);
        let _ = self.tls.set(Mutex::new(connection));
        Ok(())
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = self.tls.get() else { return (&*self.tcp).read(buffer) };
        let locked = || tls.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match locked().reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            // Without the lock, so that the other direction goes on.
            // No more than one call of `read_tls` takes.
            let mut encrypted = [0; 4096];
            let length = (&*self.tcp).read(&mut encrypted)?;
            let mut connection = locked();
            let mut rest = &encrypted[..length];
            loop {
                connection.read_tls(&mut rest)?;
                connection.process_new_packets().map_err(io::Error::other)?;
                if rest.is_empty() {
                    break;
                }
            }
            while connection.wants_write() {
                connection.write_tls(&mut &*self.tcp)?;
            }
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = self.tls.get() else { return (&*self.tcp).write(bytes) };
        let mut connection = tls.lock().unwrap_or_else(PoisonError::into_inner);
        connection.writer().write_all(bytes)?;
        while connection.wants_write() {
            connection.write_tls(&mut &*self.tcp)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
