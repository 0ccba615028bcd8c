//! Why a server for tests did not do what it was asked for.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// Why a server did not start, or a fault could not be caused.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What kind of an [`Error`] it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting, or an argument, that cannot be.
    InvalidArgument,
    /// The server has no such session.
    NotFound,
    /// Servers of this kind cannot do that, or not built like this.
    Unsupported,
    /// This machine lacks what it needs, or the server did not do it, or not in its present state.
    System,
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), source: None }
    }

    pub(crate) fn system(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::System, message)
    }

    pub(crate) fn caused_by(mut self, cause: impl StdError + Send + Sync + 'static) -> Error {
        self.source = Some(Arc::new(cause));
        self
    }

    /// Returns what kind of an error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|cause| cause.as_ref() as &(dyn StdError + 'static))
    }
}
