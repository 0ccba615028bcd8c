//! Children's names, in few pieces of memory however many they are: a queue of thousands is listed
//! by each of its waiters.

use std::convert::Infallible;
use std::fmt;
use std::iter::once;
use std::sync::Arc;

/// Names, in no order, which are not copied when this is cloned.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Names(Arc<NameText>);

#[derive(Default, PartialEq, Eq)]
struct NameText {
    /// All names, one behind the other.
    text: String,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Names {
    /// Collects names, which have about so many bytes together, or returns the first error.
    pub(crate) fn try_collect<N: AsRef<str>, E>(
        length: usize,
        all: impl Iterator<Item = Result<N, E>>,
    ) -> Result<Names, E> {
        let mut text = String::with_capacity(length);
        let mut ends = Vec::with_capacity(all.size_hint().0);
        for name in all {
            text.push_str(name?.as_ref());
            ends.push(text.len());
        }
        Ok(Names(Arc::new(NameText { text, ends })))
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

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> + Clone {
        let NameText { text, ends } = &*self.0;
        let starts = once(&0).chain(ends.iter());
        starts.zip(ends.iter()).map(|(start, end)| &text[*start..*end])
    }
}

impl<T: AsRef<str>> FromIterator<T> for Names {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Names {
        let Ok(names) = Names::try_collect(0, all.into_iter().map(Ok::<T, Infallible>));
        names
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
