//! A counter that all clients share.

use super::node_config::{NodeConfig, placed};
use super::shared_value::{SharedValue, Versioned};
use crate::error::{Error, ErrorKind, Result};

/// A number that every client of the ensemble sees, and that many change without losing a count.
///
/// It stands on a [`SharedValue`], as eight bytes, the highest first: what Curator's
/// `DistributedAtomicLong` has. A counter that was never set is 0, and so is one whose node is empty.
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

placed!(SharedCounter, SharedCounterBuilder, "The counter at the node `base/name`");

impl SharedCounter {
    /// The number, of all that was counted before this call.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](ErrorKind::InvalidData) if what is there is no number of eight bytes; else as
    /// [`SharedValue::latest`].
    pub fn get(&self) -> Result<i64> {
        self.number(self.value().latest()?.as_ref().map(Versioned::data))
    }

    /// Sets the number, whatever it was.
    ///
    /// # Errors
    ///
    /// As [`SharedValue::set`].
    pub fn set(&self, number: i64) -> Result<()> {
        self.value().set(number.to_be_bytes())
    }

    /// Adds, or takes away what is negative, and says what the number is then. Each call counts
    /// exactly once, whoever counts beside it.
    ///
    /// # Errors
    ///
    /// [`ConnectionLoss`](ErrorKind::ConnectionLoss) if a reply was lost and it cannot be known
    /// whether it was counted; [`InvalidData`](ErrorKind::InvalidData) if the number would not fit,
    /// or as [`get`](SharedCounter::get); else as [`SharedValue::update`].
    pub fn add(&self, more: i64) -> Result<i64> {
        let mut sum = 0;
        self.value().change_by(|old| {
            let number = self.number(old)?;
            sum = number.checked_add(more).ok_or_else(|| {
                self.refuse(format!("the counter is at {number}, and {more} more do not fit in it"))
            })?;
            Ok(Some(sum.to_be_bytes().to_vec()))
        })?;
        Ok(sum)
    }

    /// Sets the number if it is the one that is expected; whether it was.
    ///
    /// # Errors
    ///
    /// As [`add`](SharedCounter::add).
    pub fn compare_and_set(&self, expected: i64, new: i64) -> Result<bool> {
        self.value().change_by(|old| {
            let is_expected = self.number(old)? == expected;
            Ok(is_expected.then(|| new.to_be_bytes().to_vec()))
        })
    }

    /// The value that it stands on: to observe it.
    pub fn value(&self) -> SharedValue {
        SharedValue::at(&self.target)
    }

    fn number(&self, data: Option<&[u8]>) -> Result<i64> {
        let Some(data) = data.filter(|data| !data.is_empty()) else { return Ok(0) };
        let bytes = data.try_into().map_err(|_| {
            self.refuse(format!("a counter has 8 bytes, and there are {}", data.len()))
        })?;
        Ok(i64::from_be_bytes(bytes))
    }

    fn refuse(&self, why: String) -> Error {
        Error::new(ErrorKind::InvalidData, why).on(self.value().path())
    }
}
