//! Children's names, in few pieces of memory however many they are: a queue of thousands is listed
//! by each of its waiters.

use std::sync::Arc;
use std::{fmt, mem, slice};

/// Names, in no order, which are not copied when this is cloned.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Names(Arc<Pieces>);

#[derive(Default, PartialEq, Eq)]
struct Pieces {
    /// All names, one behind the other.
    text: String,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Pieces {
    fn push(&mut self, name: &str) {
        self.text.push_str(name);
        self.ends.push(self.text.len());
    }
}

impl Names {
    /// Collects names, which have about so many bytes together, or returns the first error.
    pub(crate) fn try_collect<'a, E>(
        length: usize,
        all: impl ExactSizeIterator<Item = Result<&'a str, E>>,
    ) -> Result<Names, E> {
        let (text, ends) = (String::with_capacity(length), Vec::with_capacity(all.len()));
        let mut pieces = Pieces { text, ends };
        for name in all {
            pieces.push(name?);
        }
        Ok(Names(Arc::new(pieces)))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.ends.is_empty()
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.iter().any(|one| one == name)
    }

    pub(crate) fn sorted(&self) -> Vec<String> {
        let mut all: Vec<String> = self.iter().map(str::to_owned).collect();
        all.sort();
        all
    }

    pub(crate) fn iter(&self) -> Iter<'_> {
        Iter { text: &self.0.text, start: 0, ends: self.0.ends.iter() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Iter<'a> {
    text: &'a str,
    start: usize,
    ends: slice::Iter<'a, usize>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let end = *self.ends.next()?;
        self.text.get(mem::replace(&mut self.start, end)..end)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ends.size_hint()
    }
}

impl<'a> IntoIterator for &'a Names {
    type Item = &'a str;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<T: AsRef<str>> FromIterator<T> for Names {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Names {
        let mut pieces = Pieces::default();
        for name in all {
            pieces.push(name.as_ref());
        }
        Names(Arc::new(pieces))
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_apart() {
        let names: Names = ["b", "", "aé"].into_iter().collect();
        assert_eq!(names.iter().collect::<Vec<_>>(), ["b", "", "aé"]);
        assert_eq!((names.len(), names.is_empty()), (3, false));
        assert!(names.contains("aé") && names.contains("") && !names.contains("ba"));
        assert_eq!(format!("{names:?}"), r#"["b", "", "aé"]"#);
        assert!(Names::default().is_empty() && !Names::default().contains(""));
    }
}
