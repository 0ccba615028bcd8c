//! The one error type.

use std::fmt;
use std::sync::Arc;

/// A `Result` whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as a kind to decide by, and a message to read.
///
/// The message says what was tried, on which path, and what to do about it.
/// Decide by [`kind`](Error::kind), never by the message. "Not acquired in time" is not
/// an error: the `try_` methods answer `Ok(None)`.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    path: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    others: Vec<Error>,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A base path, lock name or connect string that ZooKeeper, or zklock, cannot accept.
    InvalidName,
    /// Data, an ACL or a setting that cannot be accepted.
    InvalidData,
    /// A request or reply larger than the server or the client allows.
    ///
    /// A server closes the connection on a request beyond its own `jute.maxbuffer`. When three
    /// connections were closed right after a request of one size, requests that are no smaller
    /// fail with this for a minute, without being sent.
    TooLarge,
    /// No server of the ensemble could be reached within the connect time-out.
    Connect,
    /// The connection broke before the answer came; the operation may have taken effect.
    ConnectionLoss,
    /// The session ended: it expired, or its lease ran out by this client's own clock.
    SessionLost,
    /// The lock was lost though the session lives: somebody deleted the contender's node.
    LockLost,
    /// The server rejected the credentials given to the client.
    AuthFailed,
    /// An ACL on a node forbids the operation.
    NotAuthorized,
    /// The lock node's sequence numbers are used up; the lock node is made anew once empty.
    SequenceExhausted,
    /// Others take a semaphore to have another number of permits, or a double barrier to be for
    /// another number of participants; nothing was acquired.
    Disagreement,
    /// Somebody else has the name that was asked for.
    Taken,
    /// More come to a double barrier than it is for; this one did not enter.
    Full,
    /// What the call is about does not exist, such as a round of a two-phase commit.
    NotFound,
    /// What the call was to make exists already, such as a round of a two-phase commit, or another
    /// vote.
    AlreadyExists,
    /// A [`Cancel`](crate::Cancel) token was tripped while waiting.
    Cancelled,
    /// The client was closed.
    Closed,
    /// The server answered with something this library does not expect.
    Server,
    /// This process could not get a resource from its operating system (a thread, a socket).
    System,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            path: None,
            source: None,
            others: Vec::new(),
        }))
    }

    /// Names the node that the failed operation was about.
    pub(crate) fn on(mut self, path: impl Into<String>) -> Error {
        self.0.path = Some(path.into());
        self
    }

    pub(crate) fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    /// The first of them, which tells of the others.
    pub(crate) fn gather(errors: impl IntoIterator<Item = Error>) -> Option<Error> {
        let mut errors = errors.into_iter();
        let mut first = errors.next()?;
        first.0.others.extend(errors);
        Some(first)
    }

    /// What else went wrong in the same call, where it did several things: see
    /// [`MultiGuard::unlock`](crate::MultiGuard::unlock). Empty for all other errors.
    pub fn others(&self) -> &[Error] {
        &self.0.others
    }

    /// The kind of the error, to decide by.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The node that the failed operation was about, as the client names it (without chroot).
    pub fn path(&self) -> Option<&str> {
        self.0.path.as_deref()
    }

    /// Whether the same call may succeed later without any change to its arguments.
    ///
    /// True for what the network or the ensemble did ([`Connect`](ErrorKind::Connect),
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss), [`SessionLost`](ErrorKind::SessionLost),
    /// [`LockLost`](ErrorKind::LockLost), [`SequenceExhausted`](ErrorKind::SequenceExhausted),
    /// [`Taken`](ErrorKind::Taken), [`Full`](ErrorKind::Full), [`System`](ErrorKind::System));
    /// false for bad arguments, refused credentials and permissions, answers that the server
    /// should not have given, what does not exist or exists already, a cancelled wait and a closed
    /// client.
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::*;
        match self.0.kind {
            Connect | ConnectionLoss | SessionLost | LockLost | SequenceExhausted | Taken
            | Full | System => true,
            InvalidName | InvalidData | TooLarge | AuthFailed | NotAuthorized | Cancelled
            | Closed | Server | Disagreement | NotFound | AlreadyExists => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(path) = &self.0.path {
            write!(f, " (node {path:?})")?;
        }
        self.0.others.iter().try_for_each(|other| write!(f, "; and {other}"))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(path) = &self.0.path {
            out.field("path", path);
        }
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        if !self.0.others.is_empty() {
            out.field("others", &self.0.others);
        }
        out.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_word_and_can_be_sent() {
        fn sendable<T: Send + Sync + 'static>() {}
        sendable::<Error>();
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn it_says_where_and_why() {
        let cause = std::io::Error::other("no route");
        let error = Error::new(ErrorKind::Connect, "could not connect").on("/a").caused_by(cause);
        assert_eq!(error.to_string(), "could not connect (node \"/a\")");
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "no route");
        assert!(error.is_retryable());
    }
}
