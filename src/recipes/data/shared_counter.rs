//! A counter that all clients share.

use super::node_config::{NodeConfig, placed};
use super::shared_value::SharedValue;
use super::version::Version;
use crate::error::{Error, ErrorKind, Result};

/// A number that every client of the ensemble sees, and that many can change without losing a
/// count.
///
/// A [`SharedValue`] stores it, as eight bytes, the highest first, as in Curator's
/// `DistributedAtomicLong`. A counter that was never set is 0, and so is one whose node is empty.
///
/// ```no_run
/// use zklock::{Client, SharedCounter};
///
/// let zk = Client::connect("zk1:2181,zk2:2181")?;
/// let jobs = SharedCounter::new(&zk, "/counters", "jobs");
/// let number = jobs.add(1)?;
/// println!("this is job {number} of {}", jobs.get()?);
/// # Ok::<(), zklock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedCounter {
    target: NodeConfig,
}

placed!(SharedCounter, "Returns a handle of the counter at the node `base/name`");

impl SharedCounter {
    /// Reads the number, including every change from before this call.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the node's data is not a number of eight
    /// bytes; otherwise as [`SharedValue::get`].
    pub fn get(&self) -> Result<i64> {
        self.number(self.value().get()?.as_ref().map(|old| &*old.data))
    }

    /// Sets the number, whatever it was, and returns the version of its node.
    ///
    /// # Errors
    ///
    /// As [`SharedValue::set`].
    pub fn set(&self, number: i64) -> Result<Version> {
        self.value().set(number.to_be_bytes())
    }

    /// Adds `more`, which may be negative, and returns the new number.
    ///
    /// A call that succeeds has counted exactly once, even if other clients count at the same time.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) if a reply was lost and the library could not
    /// tell whether the call has counted; [`InvalidArgument`](ErrorKind::InvalidArgument) if the
    /// sum does not fit, or as for [`get`](SharedCounter::get); otherwise as
    /// [`SharedValue::update`].
    pub fn add(&self, more: i64) -> Result<i64> {
        let mut sum = 0;
        self.value().update(|old| {
            let number = self.number(old)?;
            sum = number.checked_add(more).ok_or_else(|| {
                self.refuse(format!("the counter is at {number}: adding {more} would overflow it"))
            })?;
            Ok::<_, Error>(Some(sum.to_be_bytes()))
        })?;
        Ok(sum)
    }

    /// Sets the number if it equals `expected`, and returns the new version of its node; `None` if
    /// it does not.
    ///
    /// # Errors
    ///
    /// As [`add`](SharedCounter::add).
    pub fn compare_and_set(&self, expected: i64, new: i64) -> Result<Option<Version>> {
        self.value().update(|old| {
            let is_expected = self.number(old)? == expected;
            Ok(is_expected.then(|| new.to_be_bytes()))
        })
    }

    /// Returns the shared value that stores the counter, to observe it.
    pub fn value(&self) -> SharedValue {
        SharedValue::at(&self.target)
    }

    fn number(&self, data: Option<&[u8]>) -> Result<i64> {
        let Some(data) = data.filter(|data| !data.is_empty()) else { return Ok(0) };
        let bytes = data.try_into().map_err(|_| {
            self.refuse(format!("not a counter: its node has {} bytes instead of 8", data.len()))
        })?;
        Ok(i64::from_be_bytes(bytes))
    }

    fn refuse(&self, why: String) -> Error {
        Error::new(ErrorKind::InvalidArgument, why).on(self.value().path())
    }
}
