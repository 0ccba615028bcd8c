//! The crate's error type.

use std::fmt;
use std::sync::Arc;

/// A `Result` whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate: a kind for programs, and a message for people.
///
/// The message says what was tried, on which path, and what to do about it. Decide by
/// [`kind`](Error::kind), never by the message. "Not acquired in time" is [no error](crate#errors).
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    path: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    others: Vec<Error>,
    /// Whether the call may have taken effect, whatever its kind.
    in_doubt: bool,
}

/// The kinds of [`Error`]; a [table](crate#errors) says what to do about each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A base path, lock name or connect string that ZooKeeper, or zklock, cannot accept.
    InvalidName,
    /// An argument that cannot be accepted: a count, a duration, data, an ACL, a set of locks.
    InvalidArgument,
    /// A request or reply larger than the server or the client allows.
    ///
    /// A server closes the connection on a request beyond its own `jute.maxbuffer`. When three
    /// connections were closed right after a request of one size, more than 64 KiB, requests of
    /// that size or more fail with this kind for a minute, without being sent.
    TooLarge,
    /// A quota (count or bytes) on the path or above it is used up, and the servers enforce quotas. Nothing
    /// was changed; deletes are still possible.
    QuotaExceeded,
    /// No server answered in time, and the call has changed nothing.
    ///
    /// A guard given to the call is released all the same.
    Connect,
    /// The connection was lost, or the time was over, before the reply came: the call may have
    /// taken effect.
    ConnectionLoss,
    /// The session ended, and with it what was held: it expired, or its lease ran out by this
    /// client's own clock.
    SessionLost,
    /// What was held was lost although the session lives: its node was deleted, but not by its holder.
    NodeDeleted,
    /// What was held was given up although the session lives: it was held for longer than
    /// [`hold_at_most`](crate::DistributedLock::hold_at_most) allows.
    HeldTooLong,
    /// The servers rejected the client's credentials, or demand some; or one side does not trust
    /// the other's TLS certificate.
    AuthFailed,
    /// An ACL on a node forbids the operation.
    NotAuthorized,
    /// The lock node's sequence numbers are used up; once it has no children, the library makes it
    /// anew.
    SequenceExhausted,
    /// Other clients use another number of permits or participants, or the participant has voted otherwise
    /// before, or a node above is ephemeral, and can have no children. Nothing was acquired or voted.
    Conflict,
    /// Another member or participant has the requested name.
    Taken,
    /// The double barrier has all its participants; this one did not enter.
    Full,
    /// Something that the call needs does not exist, such as a node or a round of a two-phase commit.
    NotFound,
    /// Something that the call was to create already exists, such as a node or a round of a two-phase commit.
    AlreadyExists,
    /// The node has children, so it cannot be deleted.
    NotEmpty,
    /// The node's data has another version than the transaction requires; nothing was changed.
    VersionMismatch,
    /// The call is not possible: with a client made of a handle of the `zookeeper` crate, such as a
    /// transaction, or with the servers' settings.
    Unsupported,
    /// A [`Cancel`](crate::Cancel) token was tripped during the wait.
    Cancelled,
    /// The client was closed, or is used in a forked child process.
    Closed,
    /// The server gave an answer that this library does not expect.
    Server,
    /// The operating system refused this process a resource: a thread, a socket.
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
            in_doubt: false,
        }))
    }

    /// Names the node that the failed operation was about.
    pub(crate) fn on(mut self, path: impl Into<String>) -> Error {
        self.0.path = Some(path.into());
        self
    }

    /// Says that a request of the failed call was sent, and that its reply is not known.
    pub(crate) fn in_doubt(mut self) -> Error {
        self.0.in_doubt = true;
        self
    }

    pub(crate) fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    /// The first of the errors, with the rest as its [`others`](Error::others).
    pub(crate) fn gather(errors: impl IntoIterator<Item = Error>) -> Option<Error> {
        let mut errors = errors.into_iter();
        let mut first = errors.next()?;
        first.0.others.extend(errors);
        Some(first)
    }

    /// Returns the further errors of a call that does several things, such as
    /// [`MultiGuard::unlock`](crate::MultiGuard::unlock); empty for all other calls.
    pub fn others(&self) -> &[Error] {
        &self.0.others
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the node that the failed operation was about, as the client names it (without
    /// chroot).
    pub fn path(&self) -> Option<&str> {
        self.0.path.as_deref()
    }

    /// Returns whether the same call may succeed later, with the same arguments and without doing
    /// anything twice.
    ///
    /// A [table](crate#errors) has the kinds for which it may. False if the call [may have taken
    /// effect](Error::may_have_taken_effect).
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::*;
        if self.may_have_taken_effect() {
            return false;
        }
        match self.0.kind {
            Connect | SessionLost | NodeDeleted | HeldTooLong | SequenceExhausted | Taken
            | Full | System => true,
            ConnectionLoss | InvalidName | InvalidArgument | TooLarge | AuthFailed
            | QuotaExceeded | NotAuthorized | Cancelled | Closed | Server | Conflict | NotFound
            | AlreadyExists | NotEmpty | VersionMismatch | Unsupported => false,
        }
    }

    /// Returns whether the call may have taken effect although it failed: its request was sent, and
    /// the reply was lost.
    ///
    /// Always true for [`ConnectionLoss`](ErrorKind::ConnectionLoss). An acknowledgement, a vote or
    /// a decision that was sent and not answered is in doubt, too, if the wait for the reply was
    /// [cancelled](ErrorKind::Cancelled) or the [session lost](ErrorKind::SessionLost). Look at
    /// what the call was to change before you repeat it.
    ///
    /// What you find may still change: such a request can be delayed on its way, and the ensemble can
    /// carry it out after newer requests of the same client, at any time until the session has
    /// ended. What it has created, unless it is ephemeral, or deleted stays so. A version protects
    /// against that: use [`Znode::write_if_unchanged`](crate::Znode::write_if_unchanged) and
    /// [`delete_if_unchanged`](crate::Znode::delete_if_unchanged), or
    /// [`Transaction::check_unchanged`](crate::Transaction::check_unchanged) of a node that each
    /// change writes.
    pub fn may_have_taken_effect(&self) -> bool {
        self.0.in_doubt || self.0.kind == ErrorKind::ConnectionLoss
    }

    /// Returns whether ZooKeeper could not be reached, or was out of reach until the session was
    /// lost.
    ///
    /// True for [`Connect`](ErrorKind::Connect), [`ConnectionLoss`](ErrorKind::ConnectionLoss) and
    /// [`SessionLost`](ErrorKind::SessionLost). A job whose lock is unavailable for this reason
    /// must not conclude that another host does it.
    pub fn is_outage(&self) -> bool {
        use ErrorKind::{Connect, ConnectionLoss, SessionLost};
        matches!(self.0.kind, Connect | ConnectionLoss | SessionLost)
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

impl From<Error> for std::io::Error {
    /// Makes a `std::io::Error`, whose [`get_ref`](std::io::Error::get_ref) returns this error.
    fn from(error: Error) -> std::io::Error {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            ErrorKind::InvalidName | ErrorKind::InvalidArgument | ErrorKind::TooLarge => {
                Io::InvalidInput
            }
            ErrorKind::QuotaExceeded => Io::QuotaExceeded,
            ErrorKind::Connect => Io::NotConnected,
            ErrorKind::ConnectionLoss => Io::ConnectionAborted,
            ErrorKind::SessionLost => Io::ConnectionReset,
            ErrorKind::AuthFailed | ErrorKind::NotAuthorized => Io::PermissionDenied,
            ErrorKind::NotFound => Io::NotFound,
            ErrorKind::AlreadyExists => Io::AlreadyExists,
            ErrorKind::NotEmpty => Io::DirectoryNotEmpty,
            ErrorKind::Unsupported => Io::Unsupported,
            // Not `Interrupted` for a cancelled wait: the standard library repeats what was interrupted.
            _ => Io::Other,
        };
        std::io::Error::new(kind, error)
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
    fn it_becomes_an_error_of_input_and_output_that_still_has_it() {
        use std::io::ErrorKind as Io;
        for (kind, io) in [
            (ErrorKind::Connect, Io::NotConnected),
            (ErrorKind::NotAuthorized, Io::PermissionDenied),
            (ErrorKind::InvalidName, Io::InvalidInput),
            (ErrorKind::QuotaExceeded, Io::QuotaExceeded),
            (ErrorKind::Cancelled, Io::Other),
        ] {
            let error = std::io::Error::from(Error::new(kind, "no"));
            assert_eq!(error.kind(), io);
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
            assert_eq!(inner.map(Error::kind), Some(kind));
        }
    }

    #[test]
    fn it_says_where_and_why() {
        let cause = std::io::Error::other("no route");
        let error = Error::new(ErrorKind::Connect, "could not connect").on("/a").caused_by(cause);
        assert_eq!(error.to_string(), "could not connect (node \"/a\")");
        assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "no route");
        assert!(error.is_retryable());
        let in_doubt = Error::new(ErrorKind::SessionLost, "no reply").in_doubt();
        assert!(in_doubt.may_have_taken_effect() && !in_doubt.is_retryable());
    }
}
