//! The bytes to and from a server, in plain text or by TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::tls::Encryption;

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct ServerStream {
    tcp: Arc<TcpStream>,
    encryption: Option<Box<Encryption>>,
}

impl ServerStream {
    pub(crate) fn plain(tcp: TcpStream) -> ServerStream {
        ServerStream { tcp: Arc::new(tcp), encryption: None }
    }

    /// Before anything else is sent or received, [`shake_hands`](Self::shake_hands) has to say that it is
    /// done.
    pub(super) fn encrypted(tcp: TcpStream, encryption: Encryption) -> ServerStream {
        ServerStream { tcp: Arc::new(tcp), encryption: Some(Box::new(encryption)) }
    }

    /// The socket, to wait for it and to set its options.
    pub(super) fn tcp(&self) -> &Arc<TcpStream> {
        &self.tcp
    }

    /// Takes one step of TLS's handshake, and says whether it is complete.
    pub(super) fn shake_hands(&mut self) -> io::Result<bool> {
        let tcp = &*self.tcp;
        self.encryption.as_mut().map_or(Ok(true), |encryption| encryption.shake_hands(tcp))
    }

    /// Sends from the front of `bytes` what the operating system takes, and removes that.
    pub(super) fn send(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut tcp = &*self.tcp;
        let (sent, result) = match &mut self.encryption {
            Some(encryption) => encryption.send(tcp, bytes),
            None => write_out(bytes.len(), |from| tcp.write(&bytes[from..])),
        };
        bytes.drain(..sent.min(bytes.len()));
        if bytes.is_empty() && bytes.capacity() > 256 * 1024 {
            *bytes = Vec::new();
        }
        result
    }

    /// Sends all of `bytes` within the socket's time limit.
    pub(super) fn send_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes.to_vec();
        self.send(&mut rest)?;
        if rest.is_empty() { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Whether TLS itself has something to send.
    pub(super) fn wants_to_send(&self) -> bool {
        self.encryption.as_ref().is_some_and(|encryption| encryption.wants_to_send())
    }

    /// Reads what has come, into a buffer of at least 64 KiB, without waiting on a socket that does not
    /// block. Nothing stays behind of which the socket would not tell.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.encryption {
            Some(encryption) => encryption.receive(&self.tcp, buffer),
            None => (&*self.tcp).read(buffer),
        }
    }
}

/// Some of what has come; [`Interrupted`](io::ErrorKind::Interrupted) if that was less than can be
/// decrypted.
impl Read for ServerStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.encryption {
            Some(encryption) => encryption.read(&self.tcp, buffer),
            None => (&*self.tcp).read(buffer),
        }
    }
}

/// Writes until all of `length` bytes are written or the operating system takes no more; returns how
/// many it took.
fn write_out(
    length: usize,
    mut write: impl FnMut(usize) -> io::Result<usize>,
) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < length {
        match write(written) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}
