//! Access control lists.

use std::net::IpAddr;
use std::ops::BitOr;

/// What an [`Acl`] entry allows; combine permissions with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permissions(u32);

impl Permissions {
    /// No permissions.
    pub const NONE: Permissions = Permissions(0);
    /// Permission to read a node's data and list its children.
    pub const READ: Permissions = Permissions(1);
    /// Permission to set a node's data.
    pub const WRITE: Permissions = Permissions(2);
    /// Permission to create children of the node.
    pub const CREATE: Permissions = Permissions(4);
    /// Permission to delete children of the node.
    pub const DELETE: Permissions = Permissions(8);
    /// Permission to change the node's ACL.
    pub const ADMIN: Permissions = Permissions(16);
    /// All permissions.
    pub const ALL: Permissions = Permissions(31);

    /// Returns whether these permissions include all of `other`.
    pub fn contains(self, other: Permissions) -> bool {
        self.0 & other.0 == other.0
    }

    /// Reads the bits as the server sends them, and ignores unknown ones.
    pub(crate) fn from_bits(bits: i32) -> Permissions {
        Permissions(bits as u32 & Permissions::ALL.0)
    }

    /// The bits as sent to the server.
    pub(crate) fn bits(self) -> i32 {
        self.0 as i32
    }
}

impl BitOr for Permissions {
    type Output = Permissions;

    fn bitor(self, other: Permissions) -> Permissions {
        Permissions(self.0 | other.0)
    }
}

/// One entry of a node's access control list: which clients may do what.
///
/// All clients that share a lock need [`READ`](Permissions::READ), [`CREATE`](Permissions::CREATE)
/// and [`DELETE`](Permissions::DELETE) on its node, because contenders create and delete children
/// of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Acl {
    /// What the entry allows.
    pub permissions: Permissions,
    /// The scheme by which the server identifies clients, such as `world`, `digest` or `ip`.
    pub scheme: String,
    /// The clients that the entry is for, as its scheme writes them, such as `10.0.0.0/8` for `ip`.
    pub id: String,
}

impl Acl {
    /// Creates an entry from a scheme and an id in that scheme's form, such as `ip` and
    /// `10.0.0.0/8`.
    pub fn new(permissions: Permissions, scheme: impl Into<String>, id: impl Into<String>) -> Acl {
        Acl { permissions, scheme: scheme.into(), id: id.into() }
    }

    /// Returns the entry that gives every client all permissions: the default.
    pub fn open() -> Acl {
        Acl::world(Permissions::ALL)
    }

    /// Returns the entry that gives every client these permissions.
    pub fn world(permissions: Permissions) -> Acl {
        Acl::new(permissions, "world", "anyone")
    }

    /// Returns an entry for clients with these credentials of the scheme `digest`, which
    /// [`ClientBuilder::auth`](crate::ClientBuilder::auth) presents.
    ///
    /// `id` is the user's name, a colon, and in Base64 the SHA-1 of name, colon and password:
    /// `echo -n ann:secret | openssl dgst -sha1 -binary | base64` computes it.
    pub fn digest(permissions: Permissions, id: impl Into<String>) -> Acl {
        Acl::new(permissions, "digest", id)
    }

    /// Returns an entry for clients of this address or network, such as `10.0.0.7` or `10.0.0.0/8`.
    pub fn ip(permissions: Permissions, address: impl Into<String>) -> Acl {
        Acl::new(permissions, "ip", address)
    }

    /// Returns an entry for clients whose TLS certificate is for this subject, such as
    /// `CN=ann,O=Example`, as RFC 2253 writes it: the most specific part first.
    pub fn x509(permissions: Permissions, subject: impl Into<String>) -> Acl {
        Acl::new(permissions, "x509", subject)
    }

    /// Returns an entry for clients that have authenticated as this user by SASL.
    pub fn sasl(permissions: Permissions, user: impl Into<String>) -> Acl {
        Acl::new(permissions, "sasl", user)
    }

    /// Returns the entry that gives all permissions to clients with this client's own credentials
    /// ([`ClientBuilder::auth`](crate::ClientBuilder::auth), SASL, or its TLS certificate), and
    /// none to others.
    pub fn creator_only() -> Acl {
        Acl::new(Permissions::ALL, "auth", "")
    }
}

impl From<Acl> for Vec<Acl> {
    fn from(acl: Acl) -> Vec<Acl> {
        vec![acl]
    }
}

/// Why servers may refuse a node with this ACL, as it stands behind "does not accept the ACL": they tell
/// nothing.
pub(crate) fn why_refused(acl: &[Acl]) -> String {
    let entry = |entry: &Acl| format!("{}:{}", entry.scheme, entry.id);
    let mut wrong = acl.iter().filter_map(|one| Some((one, fault_of(one)?)));
    match wrong.next() {
        Some((one, fault)) => format!(": the entry {:?} {fault}", entry(one)),
        None if acl.is_empty() => ": it has no entry".to_owned(),
        None => {
            let all: Vec<String> = acl.iter().map(entry).collect();
            format!(": one of the entries {all:?} is refused, see the servers' log")
        }
    }
}

/// What may be wrong with an entry, if it is not certain to be good.
fn fault_of(entry: &Acl) -> Option<&'static str> {
    let is_word = |text: &str| !text.is_empty() && !text.contains(':');
    let is_hashed =
        || entry.id.split_once(':').is_some_and(|(user, hash)| is_word(user) && is_word(hash));
    match &*entry.scheme {
        "world" => (entry.id != "anyone").then_some("must have the id anyone"),
        "auth" => Some("is for the creator, and needs a client with credentials"),
        "digest" => {
            (!is_hashed()).then_some("must have the form digest:USER:HASH, see Acl::digest")
        }
        "ip" => {
            (!is_network(&entry.id)).then_some("must have an address, or ADDRESS/BITS, as its id")
        }
        "sasl" | "x509" => Some("is malformed, or of a scheme that the servers are not set up for"),
        _ => Some("is of a scheme that the servers do not know"),
    }
}

fn is_network(id: &str) -> bool {
    let (address, bits) =
        id.split_once('/').map_or((id, None), |(address, bits)| (address, Some(bits)));
    let longest =
        address.parse().map_or(0, |address: IpAddr| if address.is_ipv4() { 32 } else { 128 });
    longest > 0 && bits.is_none_or(|bits| bits.parse().is_ok_and(|bits: u8| bits <= longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_that_is_to_blame_is_named() {
        assert_eq!(why_refused(&[]), ": it has no entry");
        let open = Acl::open();
        for (entry, why) in [
            (
                Acl::new(Permissions::ALL, "kerberos", "ann"),
                "the entry \"kerberos:ann\" is of a scheme that",
            ),
            (
                Acl::digest(Permissions::ALL, "ann"),
                "the entry \"digest:ann\" must have the form digest:USER",
            ),
            (
                Acl::ip(Permissions::ALL, "10.0.0.0/33"),
                "the entry \"ip:10.0.0.0/33\" must have an address",
            ),
            (
                Acl::new(Permissions::ALL, "world", "me"),
                "the entry \"world:me\" must have the id anyone",
            ),
            (
                Acl::creator_only(),
                "the entry \"auth:\" is for the creator, and needs a client with credentials",
            ),
            (
                Acl::sasl(Permissions::ALL, "ann"),
                "the entry \"sasl:ann\" is malformed, or of a scheme that",
            ),
            (
                Acl::digest(Permissions::ALL, "ann:hash"),
                "one of the entries [\"world:anyone\", \"digest:ann:hash\"]",
            ),
            (
                Acl::ip(Permissions::ALL, "::1/128"),
                "one of the entries [\"world:anyone\", \"ip:::1/128\"]",
            ),
        ] {
            let said = why_refused(&[open.clone(), entry]);
            assert!(said.starts_with(&format!(": {why}")), "{said}");
        }
    }
}
