//! The bytes to and from a server, in plain text or by TLS.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// What encrypts the bytes on a socket.
pub(crate) trait Encryption: Debug + Send {
    /// Takes one step of the handshake, and says whether it is complete.
    fn shake_hands(&mut self, tcp: &TcpStream) -> io::Result<bool>;

    /// Encrypts and writes; returns how many of the bytes are written.
    fn send(&mut self, tcp: &TcpStream, bytes: &[u8]) -> (usize, io::Result<()>);

    /// Whether it has something to send of its own.
    fn wants_to_send(&self) -> bool;

    /// Reads and decrypts; [`Interrupted`](io::ErrorKind::Interrupted) if what has come is less than can be
    /// decrypted. A buffer of 64 KiB has room for all that one call can decrypt: less than two records.
    fn read(&mut self, tcp: &TcpStream, buffer: &mut [u8]) -> io::Result<usize>;
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct ServerStream {
    tcp: Arc<TcpStream>,
    encryption: Option<Box<dyn Encryption>>,
}

impl ServerStream {
    /// With encryption, before anything else is sent or received, [`shake_hands`](Self::shake_hands) has to
    /// say that it is done.
    pub(crate) fn new(tcp: TcpStream, encryption: Option<Box<dyn Encryption>>) -> ServerStream {
        ServerStream { tcp: Arc::new(tcp), encryption }
    }

    /// The socket, to wait for it and to set its options.
    pub(crate) fn tcp(&self) -> &Arc<TcpStream> {
        &self.tcp
    }

    /// Takes one step of TLS's handshake, and says whether it is complete.
    pub(crate) fn shake_hands(&mut self) -> io::Result<bool> {
        let tcp = &*self.tcp;
        self.encryption.as_mut().map_or(Ok(true), |encryption| encryption.shake_hands(tcp))
    }

    /// Sends from the front of `bytes` what the operating system takes, and removes that.
    pub(crate) fn send(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut tcp = &*self.tcp;
        let (sent, result) = match &mut self.encryption {
            Some(encryption) => encryption.send(tcp, bytes),
            None => {
                let mut sent = 0;
                let result = write_out(|| {
                    let rest = bytes.get(sent..).filter(|rest| !rest.is_empty())?;
                    Some(tcp.write(rest).inspect(|count| sent += count))
                });
                (sent, result.map(drop))
            }
        };
        bytes.drain(..sent.min(bytes.len()));
        if bytes.is_empty() && bytes.capacity() > 256 * 1024 {
            *bytes = Vec::new();
        }
        result
    }

    /// Sends all of `bytes` within the socket's time limit.
    pub(crate) fn send_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes.to_vec();
        self.send(&mut rest)?;
        if rest.is_empty() { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Whether TLS itself has something to send.
    pub(crate) fn wants_to_send(&self) -> bool {
        self.encryption.as_ref().is_some_and(|encryption| encryption.wants_to_send())
    }

    /// Reads what has come, into a buffer of at least 64 KiB, without waiting on a socket that does not
    /// block. Nothing stays behind of which the socket would not tell.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Bounded, as callers wait meanwhile; records may be empty.
        for _ in 0..32 {
            match self.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
        Err(io::ErrorKind::Interrupted.into())
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

/// Repeats a write, which says how many bytes were taken, until there is nothing to write, which is true, or
/// the operating system takes no more.
pub(super) fn write_out(mut write: impl FnMut() -> Option<io::Result<usize>>) -> io::Result<bool> {
    while let Some(taken) = write() {
        match taken {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(true)
}
