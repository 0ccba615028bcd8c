//! What stands in for SASL without the feature `sasl`: a type without values.

use std::io;

#[derive(Clone, Debug)]
pub(crate) enum Sasl {}

impl Sasl {
    pub(crate) fn check(&self) -> crate::error::Result<()> {
        match *self {}
    }

    pub(super) fn authenticate(
        &self,
        _ask: &mut dyn FnMut(&[u8]) -> io::Result<Vec<u8>>,
    ) -> io::Result<Result<(), String>> {
        match *self {}
    }
}
