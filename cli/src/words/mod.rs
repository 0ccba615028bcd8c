//! What people read of contenders, of maintenance and of times: the same wherever it stands.

mod contenders;
mod local_time;
mod maintenance;

pub(crate) use self::contenders::{
    Ages, CLOCKS_AGREE, as_arguments, at_least, client, foreign_in_words, held, held_by, is_at,
    is_foreign, lasting, lasting_short, lock_of_room, node, note, number, parent, quoted, visible,
    what_releases, who,
};
pub(crate) use self::local_time::{in_full, in_words, to_come};
