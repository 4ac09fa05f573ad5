//! The compiler: a graph goes in, a function body comes out. One file per pass, one visible list.
//!
//! Entry points, in reading order: [`expand`], [`optimize`], [`compile`], [`PIPELINE`], [`Pass`],
//! [`PassGroups`], [`Options`], [`emit`].
//!
//! Invariants: a pass keeps the values of all `_Retval` nodes and the effects of all targets, up
//! to rounding; after every pass the graph verifies (checked in debug builds).
//!
//! Does not know: engines, the ops' files (it finds kernels in the registry).
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod control;
mod deadness;
mod emit;
mod evaluate;
mod expand;
mod groups;
mod int8;
mod pass;
mod passes;
mod phases;
mod pipeline;
mod view;

pub use emit::emit;
pub use expand::{expand, expand_for_placement, lowered, resolve_remote_calls};
pub use groups::{PRE_PLACEMENT, PassGroup, PassGroups};
pub use int8::{Int8, OBSERVED, Ranges};
pub use pass::{Jit, Lower, Options, PART_ROUNDS, Pass, PassCtx};
pub use phases::{ExpandedGraph, OptimizedGraph};
pub use pipeline::{PIPELINE, SIMPLIFYING, compile, compile_if, compile_in, optimize};
