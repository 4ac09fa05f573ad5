//! Functions for the engine `dataflow`: [`Body`] is the executable form, in files and between compiler
//! and loader; [`Plan`] is the same with its kernels built.

mod attrs;
mod body;
mod builder;
pub(crate) mod codec;
mod derive;
mod load;
mod merge;
#[cfg(test)]
mod tests;
mod verify;

pub use body::{
    Action, Body, DEAD, Dataflow, Edge, EdgeKind, ForwardSlot, Frame, FrameIdx, FrameKind,
    KernelEntry, Node, NodeIdx,
};
pub use builder::{BodyBuilder, BuildNode, Source};
pub use load::{MakeKernel, Plan};
pub use merge::{MergeEvent, MergeState};
