//! Programs: the form of compiled functions, independent of compilers and engines.
//!
//! Entry points: [`Body`], and [`Plan`], its loaded form; [`mlir`] and [`bef`],
//! the text and the binary form of programs.
//!
//! Does not know: graphs, passes, engines.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod bef;
mod dataflow;
pub mod mlir;

pub use dataflow::{
    Action, ArgEdge, Body, BodyAction, BodyFrame, BodyNode, DEAD, Edge, EdgeKind, ForwardSlot,
    Frame, FrameIdx, FrameKind, KernelEntry, MakeKernel, MergeEvent, MergeState, Node, NodeIdx,
    OpSegment, Plan, Source, StaticSchedule, VariableEdges,
};
