//! What stands in for SASL without the feature `sasl`: a type without values.

use std::io;

use super::address_failure::Failure;

#[derive(Clone, Debug)]
pub(crate) enum Sasl {}

impl Sasl {
    pub(crate) fn check(&self) -> crate::error::Result<()> {
        match *self {}
    }

    pub(crate) fn authenticate(
        &self,
        _ask: impl FnMut(&[u8]) -> io::Result<(i32, Vec<u8>)>,
    ) -> Result<(), Failure> {
        match *self {}
    }
}
