//! The bytes between client and server: the socket, TLS, and what shows who the client is.

mod access;
mod address_failure;
#[cfg_attr(not(feature = "sasl"), path = "no_sasl.rs")]
mod sasl;
mod server_stream;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

pub(crate) use access::{Access, Auth};
pub(crate) use address_failure::{Failure, is_closed};
#[cfg(feature = "sasl")]
pub use sasl::Sasl;
pub(crate) use server_stream::ServerStream;
#[cfg(feature = "tls")]
pub use tls::Tls;
