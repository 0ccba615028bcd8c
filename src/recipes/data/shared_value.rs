//! A value that all clients share, and change atomically.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::create_options::{CreateMode, CreateOptions};
use super::node_config::{NodeConfig, placed};
use super::permit::Permits;
use super::version::{Version, Versioned};
use super::znode::{Znode, create, first_version};
use crate::acl::Acl;
use crate::error::{Error, ErrorKind, Result};
use crate::rt::Mutex;
use crate::session::{Answer, Changes, Fault, NodeKind, Purpose, Session, Step, stat};
use crate::wire_values::Stat;

/// A few bytes that every client of the ensemble sees: configuration, a name to look up, the
/// address of a leader.
///
/// It is the data of the persistent node `base/name`, below 1 MiB, better some kilobytes. Other
/// programs that read and write the node, such as Curator's `SharedValue`, can share it. The value
/// is cheap to make and to clone, and not tied to a session.
///
/// ```no_run
/// use zklock::{Client, SharedValue};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let limit = SharedValue::new(&zk, "/config", "limit");
/// limit.set("100")?;
/// println!("it is {:?}", limit.get()?);
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedValue {
    target: NodeConfig,
}

const SET: Purpose = Purpose::to_change("set the value", "WRITE on it");

placed!(SharedValue, "Returns a handle of the value at the node `base/name`");

impl SharedValue {
    pub(crate) fn at(target: &NodeConfig) -> SharedValue {
        SharedValue { target: target.clone() }
    }

    /// Reads the value, including what any client has set before this call; `None` if it was never
    /// set.
    ///
    /// Asks the ensemble's leader first: two round trips.
    ///
    /// # Errors
    ///
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without READ; otherwise as for
    /// [`Znode`](crate::Znode#errors).
    pub fn get(&self) -> Result<Option<Versioned>> {
        let found = self.znode().read_synced()?;
        self.note(found.as_ref().map(|found| found.version));
        Ok(found)
    }

    /// Sets the value, whatever it was, and returns its version; creates the node and its missing
    /// parents.
    ///
    /// - If a reply is lost, the call sets the value again, and overwrites what another client may
    ///   have set meanwhile.
    /// - A call that succeeded is not undone by an earlier `set` of this client whose reply was lost,
    ///   even if the ensemble carries that out [later](crate::Error::may_have_taken_effect). Not so
    ///   if the node was deleted meanwhile: the earlier `set` may create it again, or write to a new
    ///   node whose versions, which start from 0 again, have come to the same number.
    /// - It never fails because others set the value at the same time.
    ///
    /// For that the call writes over the version that it knows. If others were first, it writes over
    /// any, in a transaction that deletes a short-lived node beside the value, so that it cannot be
    /// carried out later. The first `set` of a client takes two round trips, further ones one as long
    /// as no other client changes the value.
    ///
    /// - Without READ on the node, servers from 3.7.3, 3.8.4 and 3.9.2 on do not tell the version. If
    ///   CREATE or DELETE on its parent is lacking, too, an earlier `set` may undo later ones.
    /// - On a program's own handle, which has no transactions, a call tries again until it is not the
    ///   second, at most for the connect timeout.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) if a request has no answer within the connect
    /// timeout: the value may be set, even later, until the session has ended or a later `set`
    /// succeeds. [`TooLarge`](ErrorKind::TooLarge) for more data than the server allows: nothing was
    /// sent, or the error says that an earlier attempt may have set the value;
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without WRITE on the node, or CREATE on its
    /// parent; otherwise as for [`Znode`](crate::Znode#errors).
    pub fn set(&self, data: impl Into<Vec<u8>>) -> Result<Version> {
        let core = self.target.client.core();
        let mut setter = Setter {
            data: data.into(),
            acl: &self.target.acl,
            known: self.versions(),
            permits: Permits::new(core),
            is_beaten: false,
        };
        let set = self.target.ask(SET, |session, node| setter.set(session, node))?;
        self.note(Some(set));
        Ok(set)
    }

    /// Sets the value as [`set`](SharedValue::set) does, if there is none yet; otherwise
    /// returns `None`.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) also if a reply was lost and it cannot be
    /// known whether this call has set the value, as with [`Znode::create`]. Otherwise as
    /// [`set`](SharedValue::set).
    pub fn set_if_absent(&self, data: impl Into<Vec<u8>>) -> Result<Option<Version>> {
        let options = CreateOptions::new(CreateMode::Persistent).acl(self.target.acl.clone());
        match self.znode().create_version(&options, data.into()) {
            Ok(version) => {
                self.note(Some(version));
                Ok(Some(version))
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the value if it still has the given version, and returns the new version; `None` if it
    /// has another version, or there is no value.
    ///
    /// If several calls use the same version, exactly one succeeds. Versions start again with a new
    /// node, as with [`Znode::write_if_unchanged`].
    ///
    /// # Errors
    ///
    /// As [`Znode::write_if_unchanged`]; otherwise as [`set`](SharedValue::set).
    pub fn compare_and_set(
        &self,
        version: Version,
        data: impl Into<Vec<u8>>,
    ) -> Result<Option<Version>> {
        let set = self.znode().write_if_unchanged(version, data)?;
        self.note(set);
        Ok(set)
    }

    /// Replaces the value atomically by what the closure returns for it, and returns the new
    /// version; `None` if the closure returned `None`.
    ///
    /// It starts again if the value was changed between reading and setting it: `new` may be called
    /// many times. `new` is given `None` if there is no value. Its error ends the call.
    ///
    /// ```no_run
    /// use zklock::{Client, Error, SharedValue};
    ///
    /// let zk = Client::connect("localhost")?;
    /// SharedValue::new(&zk, "/app", "hosts").update(|old| {
    ///     let mut hosts = old.unwrap_or_default().to_vec();
    ///     hosts.extend(b"zk4\n");
    ///     Ok::<_, Error>(Some(hosts))
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `new`; otherwise as [`compare_and_set`](SharedValue::compare_and_set): after
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) the change may have been made or not.
    pub fn update<D: Into<Vec<u8>>, E: From<Error>>(
        &self,
        mut new: impl FnMut(Option<&[u8]>) -> Result<Option<D>, E>,
    ) -> Result<Option<Version>, E> {
        loop {
            let old = self.get()?;
            let Some(data) = new(old.as_ref().map(|old| &*old.data))? else { return Ok(None) };
            let set = match old {
                Some(old) => self.compare_and_set(old.version, data)?,
                None => self.set_if_absent(data)?,
            };
            if set.is_some() {
                return Ok(set);
            }
        }
    }

    /// Observes the value: first the present value, then the value after each change; `None` while
    /// there is none.
    ///
    /// Of several changes in a row, only the last may be seen. Each change costs one read.
    pub fn observe(&self) -> Changes<Option<Versioned>> {
        self.znode().observe()
    }

    fn znode(&self) -> Znode {
        Znode::of(&self.target)
    }

    fn versions(&self) -> Arc<KnownVersions> {
        self.target.client.core().extension()
    }

    fn note(&self, version: Option<Version>) {
        if let (Some(version), Ok(node)) = (version, self.target.whole()) {
            self.versions().note(node, version.number);
        }
    }
}

/// How many values a client knows the version of, at most.
const MOST_KNOWN: usize = 1_000;

/// The versions that a client knows of its values, by their nodes. One that is out of date costs a read.
#[derive(Default)]
struct KnownVersions(Mutex<BTreeMap<String, i32>>);

impl KnownVersions {
    fn of(&self, node: &str) -> Option<i32> {
        self.0.lock().get(node).copied()
    }

    fn note(&self, node: String, number: i32) {
        let mut known = self.0.lock();
        if known.len() >= MOST_KNOWN && !known.contains_key(&node) {
            known.pop_first();
        }
        known.insert(node, number);
    }

    /// Forgets this version of the node, if no call has noted another since.
    fn forget(&self, node: &str, number: i32) {
        let mut known = self.0.lock();
        if known.get(node) == Some(&number) {
            known.remove(node);
        }
    }
}

/// One call of [`SharedValue::set`].
struct Setter<'a> {
    data: Vec<u8>,
    acl: &'a [Acl],
    known: Arc<KnownVersions>,
    permits: Permits,
    /// Whether others have changed the value first.
    is_beaten: bool,
}

impl Setter<'_> {
    fn set(&mut self, session: &Session, node: &str) -> Answer<Version> {
        if session.has_transactions() {
            self.permits.settle(session, node)?;
        }
        loop {
            let version = match self.known.of(node) {
                Some(number) => Some(number),
                None => match session.confirm(node) {
                    Ok(Some(stat)) => Some(stat.version),
                    Ok(None) => match self.create(session, node) {
                        Err(Fault::NodeExists) => continue,
                        made => return made,
                    },
                    Err(Fault::NoAuth) => None,
                    Err(fault) => return Err(fault),
                },
            };
            let mut written = self.write(session, node, version);
            if written == Err(Fault::BadVersion) && !std::mem::replace(&mut self.is_beaten, true) {
                written = self.write(session, node, version);
            }
            match written {
                Err(Fault::BadVersion | Fault::NoNode) => {
                    if let Some(number) = version {
                        self.known.forget(node, number);
                    }
                }
                written => return written.map(|stat| Version::of(&stat)),
            }
        }
    }

    fn create(&self, session: &Session, node: &str) -> Answer<Version> {
        let made =
            create(session, node, &self.data, self.acl, NodeKind::Persistent, Some(self.acl))?;
        first_version(session, node, &made)
    }

    /// Writes over this version. If it is hidden, or others were first, over any, with a permit. On a handle
    /// without transactions, or if the parent's ACL forbids permits, over this version all the same.
    fn write(&mut self, session: &Session, node: &str, version: Option<i32>) -> Answer<Stat> {
        if (self.is_beaten || version.is_none()) && session.has_transactions() {
            let (path, data) = (node.to_owned(), self.data.clone());
            let write = Step::Write { path, data, version: None };
            match self.permits.spend(session, node, &write) {
                Err(Fault::NoAuth) => {}
                written => return written.and_then(stat),
            }
        }
        session.write_version(node, &self.data, version)
    }
}
