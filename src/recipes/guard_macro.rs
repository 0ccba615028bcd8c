//! The methods that all guards have in common.

/// The methods of a guard over its field `hold`, and `Debug`. `$what` is the method whose result
/// `Debug` shows, too; `$it` names what is held, by default "the lock".
macro_rules! guard {
    ($guard:ident, $what:ident) => {
        guard!($guard, $what, "the lock", is_held, ensure_held);
    };
    ($guard:ident, $what:ident, $it:literal, $is_held:ident, $ensure_held:ident) => {
        impl $guard {
            #[doc = concat!("Returns whether ", $it, " is held, as far as this process knows.")]
            ///
            /// True if no loss was seen, and the session's lease has not run out by this machine's
            /// clock, which counts the time that the machine or the process slept. Sends no
            /// request; once false, always false.
            pub fn $is_held(&self) -> bool {
                self.hold.is_held()
            }

            #[doc = concat!("Asks the ensemble, through its leader, whether ", $it, " is held,")]
            /// in one round trip.
            ///
            /// While the connection is lost it waits for the outcome: at most until the session is
            /// resumed or lost.
            ///
            /// # Errors
            ///
            /// [`SessionLost`](crate::ErrorKind::SessionLost),
            /// [`Lost`](crate::ErrorKind::Lost), [`Closed`](crate::ErrorKind::Closed) or
            /// [`AuthFailed`](crate::ErrorKind::AuthFailed) if it is not held any more;
            /// [`Server`](crate::ErrorKind::Server) if the server refuses the request.
            pub fn $ensure_held(&self) -> Result<()> {
                self.hold.ensure_held()
            }

            #[doc = concat!("Returns how long ", $it, " is certain to be held without another")]
            /// reply of the ensemble.
            ///
            /// While the client is connected, replies extend this time again and again. In an
            /// outage it runs down to zero, and then the loss is reported. The crate's
            /// documentation says, under "Heartbeat and lease", how much of the
            /// [session timeout](crate::Client::session_timeout) is left at the beginning of an
            /// outage. Zero also after a loss, and always on a program's own ZooKeeper handle,
            /// whose lease is not known. Sends no request.
            ///
            /// Compare it with the time that a step takes before you begin the step. It is a
            /// duration rather than an instant because it keeps running while the machine sleeps.
            pub fn lease_left(&self) -> Duration {
                self.hold.lease_left()
            }

            #[doc = concat!("Starts a transaction that takes effect only if ", $it, " is still held.")]
            ///
            /// The server checks in the same transaction that the guard's node exists. So the
            /// ensemble refuses a late write by a holder whose process was paused or cut off, and
            /// data in ZooKeeper needs no [fencing token](crate::FencingToken). Earlier writes stay.
            pub fn transaction(&self) -> crate::Transaction<'_> {
                crate::Transaction::fenced(&self.hold)
            }

            #[cfg(all(test, not(shuttle)))]
            #[allow(dead_code, reason = "the simulation looks at the guards of locks only")]
            pub(crate) fn seems_held(&self) -> bool {
                self.hold.held_node().seems_held()
            }

            #[doc = concat!("Returns a handle to wait for the loss of ", $it, " on any thread.")]
            pub fn lost(&self) -> Lost {
                self.hold.lost()
            }

            #[doc = concat!("Calls `callback`, once, when ", $it, " is lost; at once if it is")]
            /// already.
            ///
            /// Every loss before the release is reported, even if the guard is dropped right
            /// afterwards; a loss after the release never is. It does not matter what finds the
            /// loss first: a call of [`lost`](Self::lost) or the drop of the guard reports it, too.
            ///
            /// The callback runs on a thread of this library and may call the library and block;
            /// other callbacks get other threads. If the system has no thread for it, it waits for
            /// the next change of the session, or the next call. Releasing waits up to half a
            /// second for callbacks that are due or running, except for the one that releases.
            /// What a callback owns is dropped when it has run, or after the release.
            pub fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
                self.hold.on_lost(Box::new(callback));
            }

            /// Returns whether a client has requested the release.
            ///
            /// Such requests are zklock's `request_release`, Curator's `__REVOKE__`, and the
            /// `unlock` of ZooKeeper's "Recipes and Solutions", written to the contender's node.
            /// Dropping the guard consents; doing nothing is allowed. This call asks no server: the
            /// holder's node is watched anyway. A request goes unnoticed if an ACL forbids the
            /// holder to read its own node.
            pub fn release_requested(&self) -> bool {
                self.hold.release_requested()
            }

            /// Calls `callback`, once, when a client requests the release; at once if one has
            /// already. The callback never begins after the release, and runs like that of
            /// [`on_lost`](Self::on_lost).
            pub fn on_release_requested(&self, callback: impl FnOnce() + Send + 'static) {
                self.hold.on_release_requested(Box::new(callback));
            }

            /// Returns the path of the contender's node, as the client names it.
            pub fn path(&self) -> &str {
                self.hold.path()
            }
        }

        impl fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("path", &self.path())
                    .field(stringify!($what), &format_args!("{}", self.$what()))
                    .field(stringify!($is_held), &self.$is_held())
                    .finish()
            }
        }
    };
}

pub(crate) use guard;
