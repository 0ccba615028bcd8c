//! The locks: a mutex, a read/write lock, a semaphore, a reentrant lock, and several of them at once.

mod lock_node;
mod multi_lock;
mod mutex;
mod reentrant;
mod rwlock;
mod semaphore;

pub use lock_node::LockNode;
pub(crate) use lock_node::{default_data, guard, naming_setting, node_settings};
pub use multi_lock::{MultiGuard, MultiLock};
pub use mutex::{DistributedLock, LockGuard};
pub use reentrant::{ReentrantGuard, ReentrantLock};
pub use rwlock::{DistributedRwLock, ReadGuard, WriteGuard};
pub use semaphore::{DistributedSemaphore, Permit};
