//! Whether a lock waits for contenders of recipes that this library does not know.

/// Whether a lock waits for contenders of recipes that this library does not know: see
/// [`ClientBuilder::foreign_contenders`](crate::ClientBuilder::foreign_contenders).
///
/// Such a contender is a child of the lock node that ends in a sequence number, has no name of a [known
/// recipe](crate::ContenderKind), belongs to a session, and was made before the call's own node. Known ones
/// are always waited for, and so is a child whose stat an ACL hides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignContenders {
    /// They are waited for, and the log says so: whoever they are, nobody gets in beside them.
    #[default]
    Wait,
    /// They are passed, and the log says so once for each lock: for the time until all clients of a lock are
    /// of a version that waits.
    Warn,
    /// Those whose names begin with one of these are passed, all others are waited for.
    ///
    /// This goes for names that have a recipe's marker, too, if they are not its to the letter: such as
    /// `x-etl-lock-`.
    Ignore(Vec<String>),
}

impl ForeignContenders {
    /// Whether a child of this name is passed that is no recipe's to the letter; `is_known` if it has a
    /// recipe's marker.
    pub(crate) fn passes(&self, name: &str, is_known: bool) -> bool {
        match self {
            ForeignContenders::Wait => false,
            ForeignContenders::Warn => !is_known,
            ForeignContenders::Ignore(begins) => {
                begins.iter().any(|begin| name.starts_with(&**begin))
            }
        }
    }
}
