//! Moves a hold from one kind to another without a gap: a second node takes the first one's place
//! in the order before the first is deleted.
//!
//! Curator does the same: the reader's node is ephemeral, but not sequential, and carries the
//! writer's number. A contender that waits behind the writer sees one of the two at any time.

use uuid::Uuid;

use crate::acl::Acl;
use crate::contend::hold::Hold;
use crate::contend::name::{Form, Ticket};
use crate::error::Result;
use crate::loss_reason::LossReason;
use crate::session::{Fault, Purpose, StillMeant, Wait};
use crate::{path, rt};

const CREATE: Purpose = Purpose::to_change("create the reader's node", "CREATE on the lock node");

impl Hold {
    /// Replaces this hold, which is released, by one in the form's kind with the same place and
    /// token. After an error nothing is held.
    pub(crate) fn downgrade(
        self,
        form: Form,
        (data, acl): (&[u8], &[Acl]),
        wait: &Wait,
    ) -> Result<Hold> {
        // Otherwise a reader's node would be made for nothing, and a lost answer to that could end the
        // session.
        self.check()?;
        let lock_node = path::parent(self.path()).to_owned();
        let sequence = Ticket::parse(path::last(self.path())).map(|ticket| ticket.sequence());
        let guid = Uuid::from_u128(rt::random());
        let name = format!("{}{:010}", form.prefix(guid), sequence.unwrap_or_default());
        let path = path::join(&lock_node, &name);
        let whole = self.whole(&path);
        let meant = StillMeant::default();
        let made = self.persist(wait, CREATE, |session| {
            match session.create_unique(&whole, data, acl, &meant) {
                // An earlier attempt of this call made it: no other call knows its guid.
                Ok(_) | Err(Fault::NodeExists) => Ok(()),
                Err(fault) => Err(fault),
            }
        });
        match made.inspect_err(|_| self.discard(&path))? {
            Ok(()) => {}
            // The lock node is gone, and so is our own below it.
            Err(Fault::NoNode) => {
                self.check()?;
                return Err(self.lose(LossReason::NodeDeleted));
            }
            Err(fault) => {
                // An earlier attempt may have made it.
                self.discard(&path);
                return Err(CREATE.refused(&fault, &lock_node));
            }
        }
        // If a later step fails, dropping this deletes the new node.
        let mut next = self.beside(&lock_node, &name, Some(data.to_vec()));
        next.note_taken();
        // The first node must still be there: then no contender can have come between the two.
        self.ensure_held_within(wait)?;
        next.report_as_one_with(&self);
        // If that is not confirmed in time, the background goes on; the reader's place is certain.
        self.release_within(wait)?;
        Ok(next)
    }
}
