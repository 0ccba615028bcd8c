//! From one class to another without a gap: a second node takes the first one's place in the
//! order before the first is deleted.
//!
//! As Curator does it: a reader's node that is ephemeral, but not sequential, and carries the
//! writer's number. Whoever waits behind the writer meets one of the two at any time.

use super::errors::refusal;
use super::hold::Hold;
use super::loss_reason::LossReason;
use super::ticket::{Form, Guid, Ticket};
use crate::acl::Acl;
use crate::error::Result;
use crate::path;
use crate::rt;
use crate::session::connection::{Fault, NodeKind};

impl Hold {
    /// A hold in the form's class, with the place and the token of this one, which is released.
    /// An error says why there is none; nothing is held then.
    pub(crate) fn downgrade(self, form: Form, data: &[u8], acl: &[Acl]) -> Result<Hold> {
        let lock_node = path::parent(self.path()).to_owned();
        let sequence = Ticket::parse(path::last(self.path())).map(|ticket| ticket.sequence());
        let guid = Guid::from_u128(rt::random());
        let name = format!("{}{:010}", form.prefix(guid), sequence.unwrap_or_default());
        let path = path::join(&lock_node, &name);
        let made = self.persist(|session, whole| {
            match session.create(&whole(&path), data, acl, NodeKind::Ephemeral) {
                // An earlier attempt of ours: nobody else knows its guid.
                Ok(_) | Err(Fault::NodeExists) => Ok(()),
                Err(fault) => Err(fault),
            }
        })?;
        match made {
            Ok(()) => {}
            // With the lock node our own has gone, too.
            Err(Fault::NoNode) => return Err(self.lost_error(LossReason::NodeDeleted)),
            Err(fault) => {
                // An earlier attempt may have made it.
                self.discard(&path);
                let needs = "CREATE on the lock node";
                return Err(refusal(&fault, "create the reader's node", needs, &lock_node));
            }
        }
        // Dropped in what follows, it is deleted.
        let next = self.beside(&lock_node, &name, Some(data.to_vec()));
        // That the first was there when the second was, nobody can have come between.
        self.ensure_held()?;
        self.release()?;
        Ok(next)
    }
}
