//! How a client is let in: its credentials, and whether it connects by TLS.

use super::sasl::Sasl;
use super::tls::Tls;
use crate::connect_string::Host;
use crate::error::{self, Error, ErrorKind};

/// Credentials to present on every connection.
#[derive(Clone)]
pub(crate) struct Auth {
    pub(crate) scheme: String,
    pub(crate) credentials: Vec<u8>,
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// How a client is let in: what it shows on every connection, and whether that is by TLS.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    pub(crate) tls: Option<Tls>,
    pub(crate) sasl: Option<Sasl>,
    pub(crate) auth: Vec<Auth>,
}

impl Access {
    /// # Errors
    ///
    /// Fails with `InvalidArgument` if no server can let the client in with this, or a file of it cannot be
    /// used.
    pub(crate) fn check(&self) -> error::Result<()> {
        self.tls.as_ref().map_or(Ok(()), Tls::check)?;
        self.sasl.as_ref().map_or(Ok(()), Sasl::check)?;
        let why = |auth: &Auth| {
            if auth.scheme.is_empty() || auth.scheme.contains('\0') {
                Some("the scheme of credentials must be a name such as \"digest\"")
            } else if auth.scheme.len() + auth.credentials.len() > 64 * 1024 {
                Some("a scheme and its credentials must be at most 64 KiB together")
            } else {
                None
            }
        };
        match self.auth.iter().find_map(why) {
            Some(why) => Err(Error::new(ErrorKind::InvalidArgument, why)),
            None => Ok(()),
        }
    }

    /// # Errors
    ///
    /// Fails with `InvalidArgument` if no certificate can be for one of the hosts, and there has to be one.
    pub(crate) fn check_hosts(&self, hosts: &[Host]) -> error::Result<()> {
        let Some(tls) = &self.tls else { return Ok(()) };
        hosts.iter().try_for_each(|host| tls.check_host(&host.name))
    }
}
