//! Which label a lock has, so that there are not too many.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use metrics::SharedString;

/// So many different labels are used.
const MOST: usize = 1_000;

/// The label of all locks beyond those.
const OTHER: &str = "other";

type LabelOf = dyn Fn(&str) -> String + Send + Sync;

/// See the module.
pub(crate) struct Labels {
    label_of: Box<LabelOf>,
    used: Mutex<HashSet<SharedString>>,
}

impl Labels {
    pub(crate) fn new(label_of: impl Fn(&str) -> String + Send + Sync + 'static) -> Labels {
        Labels { label_of: Box::new(label_of), used: Mutex::default() }
    }

    /// The label of the lock at this path.
    pub(crate) fn of(&self, path: &str) -> SharedString {
        // Without the lock: it is the program's function.
        let label = SharedString::from((self.label_of)(path));
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.contains(&label) {
            return label;
        }
        if used.len() == MOST {
            return SharedString::const_str(OTHER);
        }
        used.insert(label.clone());
        label
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_beyond_the_first_thousand_are_other_and_the_first_stay() {
        let labels = Labels::new(str::to_owned);
        for number in 0..2 * MOST {
            let path = format!("/{number}");
            assert_eq!(&*labels.of(&path), if number < MOST { &*path } else { OTHER });
        }
        assert_eq!(&*labels.of("/7"), "/7");
    }
}
