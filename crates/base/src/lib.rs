//! The foundation of all other rooms: [`Status`] with TensorFlow's error codes, typed ids, numbers
//! as text, hashes, topological order.
//!
//! Entry points: [`Status`], [`Result`], the constructors ([`invalid_argument!`] and the like),
//! [`define_id!`], [`general`], [`topological_order`].
//!
//! Does not know: tensors, graphs, files, threads.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod hash;
mod id;
mod number;
mod ordered;
mod status;
mod topo;

pub use hash::{hash64, hash64_combine};
pub use number::general;
pub use ordered::{ordered_map, ordered_set, try_ordered_map};
pub use status::{Code, Result, Status};
pub use topo::topological_order;
