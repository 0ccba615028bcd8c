//! Who may do what with a node.

use std::net::Ipv4Addr;

use super::Error;

/// To read a node's data and list its children.
pub const READ: i32 = 1;
/// To set a node's data.
pub const WRITE: i32 = 2;
/// To create children of a node.
pub const CREATE: i32 = 4;
/// To delete children of a node.
pub const DELETE: i32 = 8;
/// To set a node's ACL.
pub const ADMIN: i32 = 16;
/// All of these.
pub const ALL: i32 = 31;

/// One entry of an access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// What it allows, a sum of [`READ`] and the others.
    pub permissions: i32,
    /// How clients are identified: `world`, `digest`, `ip`, `auth`.
    pub scheme: String,
    /// Which clients, as the scheme writes them.
    pub id: String,
}

impl Acl {
    /// The entry that allows this to every client.
    pub fn world(permissions: i32) -> Acl {
        Acl { permissions, scheme: "world".to_owned(), id: "anyone".to_owned() }
    }

    fn allows(&self, needed: i32, who: &[Identity]) -> bool {
        let is_meant = || match &*self.scheme {
            "world" => self.id == "anyone",
            "ip" => who.iter().any(|one| one.scheme == "ip" && is_within(&one.id, &self.id)),
            _ => who.iter().any(|one| one.scheme == self.scheme && one.id == self.id),
        };
        self.permissions & needed != 0 && is_meant()
    }
}

/// One of the ways in which a client has proved who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `digest` or `ip`.
    pub scheme: String,
    /// As an [`Acl`] would have it.
    pub id: String,
}

/// Whether one of the entries allows one of the permissions to the client.
pub(super) fn allows(acl: &[Acl], needed: i32, who: &[Identity]) -> bool {
    acl.iter().any(|entry| entry.allows(needed, who))
}

/// The list as it is kept: `auth` becomes what the client has proved, and nothing stands twice.
pub(super) fn resolved(acl: &[Acl], who: &[Identity]) -> Result<Vec<Acl>, Error> {
    let mut all: Vec<Acl> = Vec::with_capacity(acl.len());
    let mut add = |entry: Acl| {
        if !all.contains(&entry) {
            all.push(entry);
        }
    };
    for entry in acl {
        match &*entry.scheme {
            "world" if entry.id == "anyone" => add(entry.clone()),
            "auth" => {
                // The address is no proof of its own.
                let mut proved = who.iter().filter(|one| one.scheme != "ip").peekable();
                if proved.peek().is_none() {
                    return Err(Error::InvalidAcl);
                }
                for Identity { scheme, id } in proved.cloned() {
                    add(Acl { permissions: entry.permissions, scheme, id });
                }
            }
            "digest" if is_digest(&entry.id) => add(entry.clone()),
            "ip" if network(&entry.id).is_some() => add(entry.clone()),
            _ => return Err(Error::InvalidAcl),
        }
    }
    if all.is_empty() { Err(Error::InvalidAcl) } else { Ok(all) }
}

/// A name and a hash. Java does not count what is empty at the end.
fn is_digest(id: &str) -> bool {
    id.trim_end_matches(':').split(':').count() == 2
}

/// The address and how many of its bits count. Servers know none of IPv6.
fn network(id: &str) -> Option<(u32, u32)> {
    let (address, bits) = id.split_once('/').unwrap_or((id, "32"));
    let bits = bits.parse().ok().filter(|bits| *bits <= u32::BITS)?;
    Some((address.parse::<Ipv4Addr>().ok()?.to_bits(), bits))
}

fn is_within(address: &str, of: &str) -> bool {
    let (Some((address, _)), Some((of, bits))) = (network(address), network(of)) else {
        return false;
    };
    // All bits are shifted out if none of them counts.
    (address ^ of).checked_shr(u32::BITS - bits).unwrap_or_default() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(scheme: &str, id: &str) -> Acl {
        Acl { permissions: ALL, scheme: scheme.to_owned(), id: id.to_owned() }
    }

    #[test]
    fn an_acl_that_nobody_could_meet_is_refused() {
        for one in [
            acl("world", "me"),
            acl("digest", "a"),
            acl("digest", ":"),
            acl("digest", "a:"),
            acl("ip", "x"),
            acl("ip", "::1"),
            acl("ip", "1.2.3.4/"),
            acl("ip", "1.2.3.4/33"),
            acl("no", "x"),
            acl("auth", ""),
        ] {
            assert_eq!(resolved(&[one], &[]), Err(Error::InvalidAcl));
        }
        assert_eq!(resolved(&[], &[]), Err(Error::InvalidAcl));
    }

    #[test]
    fn an_address_may_be_that_of_a_network() {
        let me = [Identity { scheme: "ip".to_owned(), id: "127.0.0.1".to_owned() }];
        for of in ["127.0.0.1", "127.0.0.1/32", "127.1.2.3/8", "0.0.0.0/0", "9.9.9.9/0"] {
            assert!(allows(&resolved(&[acl("ip", of)], &[]).unwrap(), READ, &me), "{of}");
        }
        for of in ["127.0.0.2", "127.0.0.0/32", "10.0.0.0/8", "128.0.0.0/1"] {
            assert!(!allows(&resolved(&[acl("ip", of)], &[]).unwrap(), READ, &me), "{of}");
        }
    }

    #[test]
    fn auth_stands_for_what_the_client_has_proved() {
        let me = Identity { scheme: "digest".to_owned(), id: "a:b".to_owned() };
        let kept = resolved(&[acl("auth", ""), acl("digest", "a:b")], &[me]).unwrap();
        assert_eq!(kept, [acl("digest", "a:b")]);
    }
}
