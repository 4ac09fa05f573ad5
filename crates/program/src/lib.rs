//! Programs: what a compiled function looks like, and nothing of who made it or who runs it.
//!
//! Entry points: [`Plan`], built by [`PlanBuilder`]; [`to_host_program`] makes a host program of it,
//! [`mlir`] and [`bef`] are the two forms of those.
//!
//! Does not know: graphs, passes, engines.
#![forbid(unsafe_code)]

pub mod bef;
mod builder;
pub mod lower;
pub mod mlir;
mod plan;
mod sizes;
mod wiring;

pub use builder::{BuildNode, PlanBuilder, Source};
pub use lower::to_host_program;
pub use plan::{
    Action, DEAD, Edge, EdgeKind, FrameIdx, FrameKind, FramePlan, MERGE_CONTROL, MERGE_DEAD,
    MERGE_MAX, MERGE_WAITS, NOT_DIRECT, NodeIdx, Plan, PlanNode,
};
pub use wiring::{Producer, Wiring};
