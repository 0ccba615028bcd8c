//! Access control lists.

use std::ops::BitOr;

/// What an [`Acl`] entry allows; combine with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permissions(u32);

impl Permissions {
    /// To read a node's data and list its children.
    pub const READ: Permissions = Permissions(1);
    /// To set a node's data.
    pub const WRITE: Permissions = Permissions(2);
    /// To create children of the node.
    pub const CREATE: Permissions = Permissions(4);
    /// To delete children of the node.
    pub const DELETE: Permissions = Permissions(8);
    /// To change the node's ACL.
    pub const ADMIN: Permissions = Permissions(16);
    /// All of them.
    pub const ALL: Permissions = Permissions(31);

    /// Whether all of `other` is allowed.
    ///
    /// ```
    /// use zklock::Permissions;
    ///
    /// let both = Permissions::READ | Permissions::CREATE;
    /// assert!(both.contains(Permissions::READ));
    /// assert!(!both.contains(Permissions::DELETE));
    /// ```
    pub fn contains(self, other: Permissions) -> bool {
        self.0 & other.0 == other.0
    }

    /// As they stand on the wire.
    pub(crate) fn bits(self) -> i32 {
        self.0.cast_signed()
    }
}

impl BitOr for Permissions {
    type Output = Permissions;

    fn bitor(self, other: Permissions) -> Permissions {
        Permissions(self.0 | other.0)
    }
}

/// One entry of a node's access control list: who may do what.
///
/// Contenders for a lock create and delete children of the lock node, so all who share a
/// lock need [`READ`](Permissions::READ), [`CREATE`](Permissions::CREATE) and
/// [`DELETE`](Permissions::DELETE) on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acl {
    pub(crate) permissions: Permissions,
    pub(crate) scheme: String,
    pub(crate) id: String,
}

impl Acl {
    /// An entry of ZooKeeper's `scheme:id` form, such as `digest` and `user:hash`, `ip` and
    /// `10.0.0.0/8`, `world` and `anyone`.
    pub fn new(permissions: Permissions, scheme: impl Into<String>, id: impl Into<String>) -> Acl {
        Acl { permissions, scheme: scheme.into(), id: id.into() }
    }

    /// Everybody may do everything; the default, as with other lock libraries.
    pub fn open() -> Acl {
        Acl::new(Permissions::ALL, "world", "anyone")
    }

    /// Whoever has the credentials that this client connected with
    /// ([`ClientBuilder::auth`](crate::ClientBuilder::auth)) may do everything, nobody else
    /// anything.
    pub fn creator_only() -> Acl {
        Acl::new(Permissions::ALL, "auth", "")
    }
}

impl From<Acl> for Vec<Acl> {
    fn from(acl: Acl) -> Vec<Acl> {
        vec![acl]
    }
}
