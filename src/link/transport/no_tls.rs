//! What stands in for TLS without the feature `tls`: a type without values.

use std::io;

use super::address_failure::Failure;
use super::server_stream::Encryption;

#[derive(Clone, Debug)]
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn check(&self) -> crate::error::Result<()> {
        match *self {}
    }

    pub(crate) fn check_host(&self, _host: &str) -> crate::error::Result<()> {
        match *self {}
    }

    pub(crate) fn encrypt(&self, _host: &str) -> Result<Box<dyn Encryption>, String> {
        match *self {}
    }

    pub(crate) fn explain(&self, _cause: io::Error) -> Failure {
        match *self {}
    }
}
