//! The settings of a link.

use std::sync::Arc;
use std::time::Duration;

use super::resolver::Resolver;
use crate::link::transport::Access;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct LinkConfig {
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) access: Access,
    pub(crate) session_timeout: Duration,
    /// The servers' tick, if it is stated.
    pub(crate) tick: Option<Duration>,
    /// How long a caller waits for a new session.
    pub(crate) connect_timeout: Duration,
}
