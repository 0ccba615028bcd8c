//! What stands in for TLS without the feature `tls`: types without values.

use std::io;
use std::net::TcpStream;

use super::failure::Failure;

#[derive(Clone, Debug)]
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn check(&self) -> crate::error::Result<()> {
        match *self {}
    }

    pub(crate) fn check_host(&self, _host: &str) -> crate::error::Result<()> {
        match *self {}
    }

    pub(super) fn encrypt(&self, _host: &str) -> Result<Encryption, String> {
        match *self {}
    }

    pub(super) fn explain(&self, _cause: io::Error) -> Failure {
        match *self {}
    }
}

#[derive(Debug)]
pub(super) enum Encryption {}

impl Encryption {
    pub(super) fn shake_hands(&mut self, _tcp: &TcpStream) -> io::Result<bool> {
        match *self {}
    }

    pub(super) fn send(&mut self, _tcp: &TcpStream, _bytes: &[u8]) -> (usize, io::Result<()>) {
        match *self {}
    }

    pub(super) fn wants_to_send(&self) -> bool {
        match *self {}
    }

    pub(super) fn receive(&mut self, _tcp: &TcpStream, _buffer: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn read(&mut self, _tcp: &TcpStream, _buffer: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}
