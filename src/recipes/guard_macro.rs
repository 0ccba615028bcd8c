//! The methods that all guards have in common.

/// The methods of a guard over its field `hold`, and `Debug`, with what else it can tell; and what
/// it is called that is held, where that is not the lock.
macro_rules! guard {
    ($guard:ident, $what:ident) => {
        guard!($guard, $what, "the lock", is_held, ensure_held);
    };
    ($guard:ident, $what:ident, $it:literal, $is_held:ident, $ensure_held:ident) => {
        impl $guard {
            #[doc = concat!("Whether ", $it, " is held for all that is known here: no loss was seen,")]
            /// and the session's lease has not run out by this machine's clock, which counts the
            /// time that the machine or the process slept. Asks nobody; once false, always false.
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
            /// [`LockLost`](crate::ErrorKind::LockLost), [`Closed`](crate::ErrorKind::Closed) or
            /// [`AuthFailed`](crate::ErrorKind::AuthFailed) if it is not held any more;
            /// [`Server`](crate::ErrorKind::Server) if the server refuses to say.
            pub fn $ensure_held(&self) -> Result<()> {
                self.hold.ensure_held()
            }

            #[cfg(all(test, not(shuttle)))]
            #[allow(dead_code, reason = "the simulation looks at the guards of locks only")]
            pub(crate) fn seems_held(&self) -> bool {
                self.hold.held_node().seems_held()
            }

            #[doc = concat!("A handle by which any thread can wait for the loss of ", $it, ".")]
            pub fn lost(&self) -> Lost {
                self.hold.lost()
            }

            #[doc = concat!("Calls `callback`, once, when ", $it, " is lost; at once if it is")]
            /// already.
            ///
            /// Every loss that comes before the release is told, also when the guard is dropped
            /// right afterwards; a loss after the release never is. Whoever finds the loss first, be
            /// it a call of [`lost`](Self::lost) or the drop of the guard, has it told.
            ///
            /// The callback runs on a thread of this library's and may call the library and block;
            /// other callbacks get other threads. Where the system has no thread for it, it waits for
            /// the next change of the session, or the next call. Releasing the lock waits up to half
            /// a second for callbacks that are due or running, except for the one that releases it.
            /// What a callback owns is dropped when it has run, or after the release.
            pub fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
                self.hold.on_lost(Box::new(callback));
            }

            /// Whether somebody has asked to let go: zklock's `request_release`, Curator's
            /// `__REVOKE__`, or the `unlock` of ZooKeeper's "Recipes and Solutions", written to the
            /// contender's node. Dropping the guard consents; to do nothing is allowed. Asks
            /// nobody: the holder's node is watched anyway. It is not noticed where an ACL forbids
            /// the holder to read its own node.
            pub fn release_requested(&self) -> bool {
                self.hold.release_requested()
            }

            /// Calls `callback`, once, when somebody asks to let go; at once if somebody has
            /// already. It never begins after the release, and runs as that of
            /// [`on_lost`](Self::on_lost) does.
            pub fn on_release_requested(&self, callback: impl FnOnce() + Send + 'static) {
                self.hold.on_release_requested(Box::new(callback));
            }

            /// The contender's node, as the client names it.
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
