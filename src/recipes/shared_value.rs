//! A value that all clients share, and change one at a time.

use std::fmt;

use super::changes::Changes;
use super::node_config::{NodeConfig, Purpose, Wait, placed};
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::Deadline;
use crate::session::connection::{Answer, Fault, NodeKind, Stat, Step};
use crate::session::create_parents::make_parents;
use crate::session::session::Session;
use crate::session::watch_loop::View;

/// A few bytes that every client of the ensemble sees: configuration, a name that is looked up,
/// the address of who is in charge.
///
/// It is the data of the node `base/name`, of which ZooKeeper's "Recipes and Solutions" speaks as
/// configuration and name service; below 1 MiB, and better below some kilobytes. Whatever else
/// reads and writes the node, such as Curator's `SharedValue`, can share it. The node stays when
/// its writers have gone.
///
/// The value is a description: cheap to make and to clone, and not tied to a session.
///
/// ```no_run
/// use zklock::{Client, SharedValue};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let limit = SharedValue::new(&zk, "/config", "limit");
/// limit.set("100")?;
/// let new = limit.update(|old| {
///     let old: u32 = old.and_then(|old| std::str::from_utf8(old).ok()?.parse().ok()).unwrap_or(0);
///     (old + 1).to_string()
/// })?;
/// for value in limit.observe() {
///     println!("now it is {:?}", value?);
/// #   break;
/// }
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedValue {
    target: NodeConfig,
}

/// A value, and which one it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Versioned {
    data: Vec<u8>,
    version: Version,
}

impl Versioned {
    /// The bytes.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The bytes, without a copy.
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// What [`compare_and_set`](SharedValue::compare_and_set) asks for.
    pub fn version(&self) -> Version {
        self.version
    }
}

impl fmt::Debug for Versioned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Versioned")
            .field("data", &String::from_utf8_lossy(&self.data))
            .field("version", &self.version)
            .finish()
    }
}

/// Which of the values of a node one is: each change makes another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// The transaction that made the node: who makes it anew starts the numbers again.
    node: i64,
    number: i32,
}

impl Version {
    /// ZooKeeper's number of the version: how often the value was set since the node was made.
    pub fn number(&self) -> i32 {
        self.number
    }

    fn of(stat: &Stat) -> Version {
        Version { node: stat.czxid, number: stat.version }
    }

    /// The server takes −1 for any version.
    fn check(self) -> Result<()> {
        if self.number != -1 {
            return Ok(());
        }
        let message = "to the server, version -1 is any version; set the value without a look";
        Err(Error::new(ErrorKind::InvalidData, message))
    }

    fn next(self) -> Version {
        Version { number: self.number.wrapping_add(1), ..self }
    }
}

const GET: Purpose = Purpose { tried: "read the value", needs: "READ on it" };
const SET: Purpose = Purpose { tried: "set the value", needs: "WRITE on it" };
const MAKE: Purpose =
    Purpose { tried: "make the node of the value", needs: "CREATE on its parent" };

/// How a change to one version of the value has ended.
enum Change {
    Done,
    /// It was another version.
    Outdated,
    /// A reply was lost, and what is there now may be ours or somebody else's.
    Unknown,
    /// Not done by this attempt; an earlier one may have done it.
    Refused(Error),
}

placed!(SharedValue, SharedValueBuilder, "The value of the node `base/name`");

impl SharedValue {
    pub(crate) fn at(target: &NodeConfig) -> SharedValue {
        SharedValue { target: target.clone() }
    }

    /// The value as this client's server knows it; `None` if it was never set.
    ///
    /// That server may lag behind the others, as all reads of ZooKeeper's may, by what is usually
    /// milliseconds: use [`latest`](SharedValue::latest) to see what others have set before. What
    /// this client has set itself in this session, it sees.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](ErrorKind::InvalidName); [`NotAuthorized`](ErrorKind::NotAuthorized) without
    /// READ; [`Connect`](ErrorKind::Connect) or [`ConnectionLoss`](ErrorKind::ConnectionLoss) when
    /// the ensemble does not answer within the
    /// [connect time-out](crate::ClientBuilder::connect_timeout); what waiting cannot mend else.
    pub fn get(&self) -> Result<Option<Versioned>> {
        self.target.ask(GET, read)
    }

    /// As [`get`](SharedValue::get), of all that was set before this call, by whomever: asks the
    /// ensemble's leader first, in two round trips.
    ///
    /// # Errors
    ///
    /// As [`get`](SharedValue::get).
    pub fn latest(&self) -> Result<Option<Versioned>> {
        self.target.ask(GET, |session, node| {
            session.sync()?;
            read(session, node)
        })
    }

    /// Sets the value, whatever it was; makes the node, and what is missing above it.
    ///
    /// If a reply is lost it is set again, over what somebody else may have set meanwhile.
    ///
    /// # Errors
    ///
    /// [`TooLarge`](ErrorKind::TooLarge) for more than the server takes: before anything is sent, or
    /// the error says that an earlier attempt may have set it;
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without WRITE on the node, or CREATE on its
    /// parent; else as [`get`](SharedValue::get). Where the ensemble has not answered in time, it may
    /// be set all the same.
    pub fn set(&self, data: impl Into<Vec<u8>>) -> Result<()> {
        let (data, acl) = (data.into(), self.target.acl.clone());
        let until = Deadline::after(self.target.client.core().connect_timeout());
        self.target.ask(SET, move |session, node| {
            loop {
                // Nobody waits for it any more, and may set something else meanwhile.
                if until.has_passed() {
                    return Err(Fault::ConnectionLoss);
                }
                match session.write(node, &data) {
                    Err(Fault::NoNode) => match make(session, node, &data, &acl) {
                        Err(Fault::NodeExists) => {}
                        made => return made,
                    },
                    written => return written,
                }
            }
        })
    }

    /// Sets the value if there is none yet; whether it did. Node and parents are made.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) also if a reply was lost, and the value is the
    /// same that this call wanted to set: it cannot be known whose it is. Else as
    /// [`set`](SharedValue::set).
    pub fn set_if_absent(&self, data: impl Into<Vec<u8>>) -> Result<bool> {
        let (data, acl) = (data.into(), self.target.acl.clone());
        let wanted = data.clone();
        let change = self.change(MAKE, move |session, node| make(session, node, &data, &acl))?;
        match change {
            Change::Done => Ok(true),
            Change::Outdated => Ok(false),
            Change::Unknown => match self.latest()? {
                Some(now) if now.version.number == 0 && now.data != wanted => Ok(false),
                _ => Err(self.unknown()),
            },
            Change::Refused(error) => match self.latest()? {
                None => Err(error),
                Some(_) => Err(self.unknown()),
            },
        }
    }

    /// Sets the value if it still has the version that was read; `None` if it has another, or none.
    ///
    /// Of all who try with one version, exactly one succeeds.
    ///
    /// The number of a version is what the server compares: a node that somebody has deleted and
    /// made anew counts from 0 again.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) also if a reply was lost, and the value has been
    /// changed since, so that it cannot be known by whom; where it can be known, it is found out.
    /// [`InvalidData`](ErrorKind::InvalidData) for the version number −1, after 2³² changes: the
    /// server takes it for any version. Else as [`set`](SharedValue::set).
    pub fn compare_and_set(
        &self,
        version: Version,
        data: impl Into<Vec<u8>>,
    ) -> Result<Option<Version>> {
        version.check().map_err(|error| error.on(self.path()))?;
        let data = data.into();
        let wanted = data.clone();
        let change = self.change(SET, move |session, node| {
            let (path, data) = (node.to_owned(), data.clone());
            session.transact(&[Step::Write { path, data, version: Some(version.number) }])
        })?;
        let next = version.next();
        match change {
            Change::Done => Ok(Some(next)),
            Change::Outdated => Ok(None),
            Change::Unknown => match self.latest()? {
                // The one change since then was not ours.
                Some(now) if now.version == next && now.data != wanted => Ok(None),
                _ => Err(self.unknown()),
            },
            Change::Refused(error) => match self.latest()? {
                Some(now) if now.version == version => Err(error),
                _ => Err(self.unknown()),
            },
        }
    }

    /// Changes the value by what it was, in one go: reads it, and sets what `new` makes of it if it
    /// is still the same; else again. `None` stands for no value.
    ///
    /// `new` may be called many times. It goes on for as long as others are faster, which is no
    /// longer than they go on.
    ///
    /// # Errors
    ///
    /// As [`compare_and_set`](SharedValue::compare_and_set): in particular with
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) the change may have been made, or not.
    pub fn update<D: Into<Vec<u8>>>(
        &self,
        mut new: impl FnMut(Option<&[u8]>) -> D,
    ) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        self.change_by(|old| {
            data = new(old).into();
            Ok(Some(data.clone()))
        })?;
        Ok(data)
    }

    /// As `update`, but not if `new` gives nothing; whether it was changed.
    pub(crate) fn change_by(
        &self,
        mut new: impl FnMut(Option<&[u8]>) -> Result<Option<Vec<u8>>>,
    ) -> Result<bool> {
        loop {
            let old = self.latest()?;
            let Some(data) = new(old.as_ref().map(Versioned::data))? else { return Ok(false) };
            let done = match old {
                Some(old) => self.compare_and_set(old.version, data)?.is_some(),
                None => self.set_if_absent(data)?,
            };
            if done {
                return Ok(true);
            }
        }
    }

    /// The value whenever it changes, and at first as it is; `None` while there is none. Of several
    /// changes in a row the last is seen. Each change costs one read, and the node is all that is
    /// watched.
    pub fn observe(&self) -> Changes<Option<Versioned>> {
        Changes::new(&self.target, GET, |view: &mut View<'_>, node: &str| {
            let found = view.node_or_making(node)?;
            Ok(found.map(|(data, stat)| Versioned { data, version: Version::of(&stat) }))
        })
    }

    /// Makes a change that can succeed but once, however often it is asked for.
    fn change(
        &self,
        purpose: Purpose,
        change: impl Fn(&Session, &str) -> Answer<()> + Clone + Send + 'static,
    ) -> Result<Change> {
        let whole = self.target.whole()?;
        let until = Deadline::after(self.target.client.core().connect_timeout());
        let mut watch_loop = self.target.watch_loop(Wait::FOREVER);
        let mut lost = false;
        loop {
            let session = watch_loop.session(until);
            let session = session.map_err(|error| match lost {
                true => self.unknown().caused_by(error),
                false => error,
            })?;
            let Some(session) = session else {
                let fault = Fault::ConnectionLoss;
                return Err(if lost {
                    self.unknown()
                } else {
                    self.target.refused(&fault, purpose)
                });
            };
            let (change, whole) = (change.clone(), whole.clone());
            match watch_loop.ask(&session, until, move |session| change(session, &whole), drop)? {
                Some(Ok(())) => return Ok(Change::Done),
                Some(Err(Fault::BadVersion | Fault::NodeExists | Fault::NoNode)) => {
                    return Ok(if lost { Change::Unknown } else { Change::Outdated });
                }
                None | Some(Err(Fault::ConnectionLoss | Fault::SessionEnded)) => {
                    lost = true;
                    if until.has_passed() {
                        return Err(self.unknown());
                    }
                }
                Some(Err(fault)) => {
                    let error = self.target.refused(&fault, purpose);
                    return if lost { Ok(Change::Refused(error)) } else { Err(error) };
                }
            }
        }
    }

    /// The node, as the client names it; empty for one that cannot be.
    pub(crate) fn path(&self) -> &str {
        self.target.node().unwrap_or_default()
    }

    fn unknown(&self) -> Error {
        let message = "the connection was lost before the answer came: the value may have been \
                       set, or not";
        Error::new(ErrorKind::ConnectionLoss, message).on(self.path())
    }
}

fn read(session: &Session, node: &str) -> Answer<Option<Versioned>> {
    let found = session.data(node, false)?;
    Ok(found.map(|(data, stat)| Versioned { data, version: Version::of(&stat) }))
}

/// The node with its data, and what is missing above it.
fn make(session: &Session, node: &str, data: &[u8], acl: &[Acl]) -> Answer<()> {
    match session.create(node, data, acl, NodeKind::Persistent) {
        Err(Fault::NoNode) => {
            make_parents(session, crate::path::parent(node), NodeKind::Persistent, acl)?;
            session.create(node, data, acl, NodeKind::Persistent).map(drop)
        }
        made => made.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_would_match_any_is_refused() {
        let last = Version { node: 7, number: -2 };
        assert!(last.check().is_ok() && last.next().check().is_err());
        assert!(last.next().next().check().is_ok());
        let most = Version { node: 7, number: i32::MAX };
        assert_eq!(most.next().number(), i32::MIN);
    }
}
