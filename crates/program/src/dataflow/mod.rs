//! Functions for the engine `dataflow`: [`Body`] is the executable form, in files and between compiler
//! and loader; [`Plan`] is its loaded form.

mod body;
mod load;
mod merge;
mod op_segment;
mod plan;
mod simple;
mod static_schedule;
#[cfg(test)]
mod tests;
mod verify;

pub use body::{
    Action, Body, BodyAction, BodyFrame, BodyNode, FrameIdx, FrameKind, KernelEntry, NodeIdx,
    Source,
};
pub use load::MakeKernel;
pub use merge::{MergeEvent, MergeState};
pub use op_segment::OpSegment;
pub use plan::{DEAD, Edge, EdgeKind, ForwardSlot, Frame, Node, Plan};
pub use static_schedule::{ArgEdge, StaticSchedule, VariableEdges};
