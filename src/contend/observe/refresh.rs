//! Looks at all contenders below a base path again, with a limit of requests.

use std::sync::Arc;

use super::ask_each::Paced;
use super::kept_lists::ListsOfLook;
use super::lock_list::LIST;
use super::look::look;
use super::pace::Pace;
use super::waits::Waits;
use crate::error::{Error, ErrorKind, Result};
use crate::path;
use crate::rt::Mutex;
use crate::session::Client;

impl Waits {
    /// Looks again, as [`Client::waits`] does, in fewer requests and with a limit of them; `None` if the node
    /// at the base path does not exist.
    ///
    /// - Who holds and who waits is as recent as in a first look, and so is what a contender tells that was
    ///   not in this look, or took part in an [edge](Waits::edges) of it. Others are shown with what they
    ///   told when they were last read, which may be some looks ago; holders are read once more two seconds
    ///   after they have come to hold.
    /// - Any second has at most `most_per_second` requests, spread evenly, of all looks of this client that
    ///   refresh others, one after another. Requests that a server was too busy for are repeated, and not
    ///   limited.
    /// - Looks in a row find the same [deadlocks](Waits::deadlocks) as first looks do, if the earlier one
    ///   ended three seconds before; it need not be the one that was refreshed. Those within a process, of
    ///   which contenders tell later, are found when these are read again.
    ///
    /// Takes one request to catch up with the leader, which is not counted in [`requests`](Waits::requests),
    /// as another one is not for each contender that an ACL hides; one for the base; one for each node that
    /// is no contender and whose children have changed; one for each contender of which the above makes it
    /// read; and a few for the contenders that were not read for the longest time: a tenth of the nodes and
    /// reads, at most a tenth of a second's requests. Contenders whose names have no guid, those that tell
    /// nothing, because their data are hidden or empty, and [maintenance
    /// holds](crate::Contender::maintenance) are read each time. The look takes as long as its requests have
    /// to; a contender that goes before it is read is left out.
    ///
    /// A look keeps watches on the nodes until it is dropped, by which the next one learns what has changed.
    /// They are set anew on each connection, and after about two session timeouts; on a program's own handle
    /// of the `zookeeper` crate there are none, and all nodes are listed each time.
    ///
    /// # Errors
    ///
    /// As [`locks`](Client::locks), within the connect timeout for each of its steps;
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if `most_per_second` is 0.
    pub fn refresh(&self, client: &Client, most_per_second: u32) -> Result<Option<Waits>> {
        let (base, core) = (&*self.base, client.core());
        path::check_absolute(base)?;
        if most_per_second == 0 {
            let message = "cannot look with 0 requests in a second: at least 1 is needed";
            return Err(Error::new(ErrorKind::InvalidArgument, message).on(base));
        }
        let pace: Arc<Mutex<Pace>> = core.extension();
        pace.lock().limit(most_per_second);
        let lists = ListsOfLook::after(&self.lists);
        let mut asks =
            Paced { core, purpose: LIST, node: base, pace, synced: None, lists, known: 0 };
        let found = look(&mut asks, core, self)?;
        let lists = asks.lists.keep();
        Ok(found.map(|found| Waits { lists, ..found }))
    }
}
