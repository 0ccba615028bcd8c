//! A value that all clients share, and change atomically.

use super::create_options::{CreateMode, CreateOptions};
use super::recipe_znode::{NodeConfig, Purpose, placed};
use super::version_and_stat::{Version, Versioned};
use super::znode::{Znode, create, first_version};
use crate::error::{Error, ErrorKind, Result};
use crate::session::connection::{Fault, NodeKind};
use crate::session::observed_changes::Changes;

/// A few bytes that every client of the ensemble sees: configuration, a name to look up, the
/// address of a leader.
///
/// It is the data of the node `base/name`: what ZooKeeper's "Recipes and Solutions" calls
/// configuration and name service. It must be below 1 MiB, and should be below some kilobytes.
/// Other programs that read and write the node, such as Curator's `SharedValue`, can share it. The
/// node stays when its writers have gone.
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
///     Ok::<_, zklock::Error>(Some((old + 1).to_string()))
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

const SET: Purpose = Purpose::to_change("set the value", "WRITE on it");

placed!(SharedValue, "Returns the value at the node `base/name`");

impl SharedValue {
    pub(crate) fn at(target: &NodeConfig) -> SharedValue {
        SharedValue { target: target.clone() }
    }

    /// Reads the value, including what any client has set before this call; `None` if it was never set.
    ///
    /// Asks the ensemble's leader first, so takes two round trips.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](ErrorKind::InvalidName); [`NotAuthorized`](ErrorKind::NotAuthorized) without
    /// READ; [`Connect`](ErrorKind::Connect) if the ensemble does not answer within the
    /// [connect timeout](crate::ClientBuilder::connect_timeout); otherwise only what
    /// [ends every wait](crate::guide#what-ends-every-wait).
    pub fn get(&self) -> Result<Option<Versioned>> {
        self.znode().read_synced()
    }

    /// Sets the value, whatever it was, and returns its version; creates the node and its missing
    /// parents.
    ///
    /// If a reply is lost, the call sets the value again, and overwrites what another client may
    /// have set meanwhile.
    ///
    /// # Errors
    ///
    /// [`TooLarge`](ErrorKind::TooLarge) for more data than the server allows: nothing was sent, or
    /// the error says that an earlier attempt may have set the value;
    /// [`NotAuthorized`](ErrorKind::NotAuthorized) without WRITE on the node, or CREATE on its
    /// parent; [`ConnectionLoss`](ErrorKind::ConnectionLoss) if a request was sent and has no answer
    /// in time: the value may be set; otherwise as [`get`](SharedValue::get).
    pub fn set(&self, data: impl Into<Vec<u8>>) -> Result<Version> {
        let (data, acl) = (data.into(), &self.target.acl);
        self.target.ask(SET, |session, node| {
            loop {
                match session.write_version(node, &data, None) {
                    Err(Fault::NoNode) => {
                        match create(session, node, &data, acl, NodeKind::Persistent, Some(acl)) {
                            Err(Fault::NodeExists) => {}
                            made => return first_version(session, node, &made?),
                        }
                    }
                    written => return written.map(|stat| Version::of(&stat)),
                }
            }
        })
    }

    /// Sets the value if there is none yet, and returns its version; `None` if there is one. Creates
    /// the node and its missing parents.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) also if a reply was lost and it cannot be known whether
    /// this call has set the value: see [`Znode::create`]. Otherwise as [`set`](SharedValue::set).
    pub fn set_if_absent(&self, data: impl Into<Vec<u8>>) -> Result<Option<Version>> {
        let options = CreateOptions::new(CreateMode::Persistent).acl(self.target.acl.clone());
        match self.znode().create_version(&options, data.into()) {
            Ok(version) => Ok(Some(version)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the value if it still has the given version, and returns the new version; `None` if it
    /// has another version, or there is no value.
    ///
    /// If several calls use the same version, exactly one succeeds. The server compares only the
    /// version's number, which starts from 0 again when the node is deleted and created again.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) also if a reply was lost, and the value was
    /// changed, by this call or by another client: the library checks, and could not tell.
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for the version number −1, which comes after
    /// 2³² changes: the server takes it for any version. Otherwise as [`set`](SharedValue::set).
    pub fn compare_and_set(
        &self,
        version: Version,
        data: impl Into<Vec<u8>>,
    ) -> Result<Option<Version>> {
        self.znode().write_if_unchanged(version, data)
    }

    /// Replaces the value by what `new` returns for it, atomically, and returns the new version;
    /// `None` if `new` declined by returning `None`.
    ///
    /// Reads the value, and sets the new one if the old one has not changed meanwhile; otherwise it
    /// starts again. `new` is given `None` if there is no value. It may be called many times: as
    /// long as other clients keep changing the value first. Its error ends the call.
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
    /// The error of `new`; otherwise as [`compare_and_set`](SharedValue::compare_and_set): in
    /// particular, after [`ConnectionLoss`](ErrorKind::ConnectionLoss) the change may have been made
    /// or not.
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
    /// Of several changes in a row, only the last may be seen. Each change costs one read; only the
    /// node is watched.
    pub fn observe(&self) -> Changes<Option<Versioned>> {
        self.znode().observe()
    }

    fn znode(&self) -> Znode {
        Znode::of(&self.target)
    }
}
