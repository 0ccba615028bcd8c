//! Which kind of node to create, and with which ACL.

use crate::acl::Acl;
use crate::session::NodeKind;

/// The kind of a node to create.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CreateMode {
    /// Exists until a client deletes it.
    #[default]
    Persistent,
    /// Persistent, and the server appends ten digits to its path. The server appends ten digits to
    /// its path: how many children its parent has ever had.
    PersistentSequential,
    /// The server deletes it at the end of this client's session. It cannot have children.
    Ephemeral,
    /// Ephemeral, and the server appends ten digits to its path.
    EphemeralSequential,
    /// The server deletes it some time after its last child is gone. Servers before 3.5 create a
    /// persistent node instead, as does the `zookeeper` crate.
    Container,
}

impl CreateMode {
    pub(crate) fn is_sequential(self) -> bool {
        matches!(self, CreateMode::PersistentSequential | CreateMode::EphemeralSequential)
    }

    fn kind(self) -> NodeKind {
        match self {
            CreateMode::Persistent => NodeKind::Persistent,
            CreateMode::PersistentSequential => NodeKind::PersistentSequential,
            // Other clients may create a node of that name, too.
            CreateMode::Ephemeral => NodeKind::Named,
            CreateMode::EphemeralSequential => NodeKind::EphemeralSequential,
            CreateMode::Container => NodeKind::Container,
        }
    }
}

/// The mode and the ACL of a node to create.
///
/// A [`CreateMode`] converts into it: the ACL is [open](Acl::open) then.
#[derive(Clone, Debug)]
#[must_use = "options have no effect before they are given to `create`"]
pub struct CreateOptions {
    pub(crate) mode: CreateMode,
    pub(crate) acl: Vec<Acl>,
}

impl CreateOptions {
    /// Creates options for a node of this mode, with an [open](Acl::open) ACL.
    pub fn new(mode: CreateMode) -> CreateOptions {
        CreateOptions { mode, acl: vec![Acl::open()] }
    }

    /// Sets the node's ACL. Default [`Acl::open`].
    pub fn acl(mut self, acl: impl Into<Vec<Acl>>) -> CreateOptions {
        self.acl = acl.into();
        self
    }

    pub(crate) fn kind(&self) -> NodeKind {
        self.mode.kind()
    }
}

impl From<CreateMode> for CreateOptions {
    fn from(mode: CreateMode) -> CreateOptions {
        CreateOptions::new(mode)
    }
}
