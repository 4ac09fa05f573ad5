//! Graphs: nodes, edges, import and export, shape inference, the one way to edit ([`Patch`]).
//!
//! Entry points, in reading order: [`Graph`] and [`Node`], [`import_graph`], [`infer_shapes`],
//! [`Patch`], [`prune`](crate::prune()), [`to_text`].
//!
//! Invariants (checked by [`Graph::verify`]): names are unique, every input names an existing
//! output of the dtype that the op wants, attrs are complete, no cycle but through NextIteration.
//!
//! Does not know: kernels, passes, execution.
#![forbid(unsafe_code)]

mod autodiff;
mod builder;
mod client_ends;
mod composite;
mod device;
mod execution_state;
mod export;
mod frames;
mod functions;
mod graph;
mod import;
mod inline;
mod order;
mod partition;
mod patch;
mod placement;
mod prune;
mod references;
mod shape_values;
mod shapes;
mod supported;
mod symbolic_gradient;
mod text;

pub use autodiff::{Gradient, GradientOptions, IndexedSlices, Unconnected};
pub use builder::{GraphBuilder, OpBuilder, WhileOptions};
pub use client_ends::through_rendezvous;
pub use device::{DeviceSet, DeviceSpec};
pub use execution_state::{CheckedGraphDef, GraphExecutionState, TensorConnection};
pub use export::export_graph;
pub use frames::{Frames, LoopFrame, loop_frames};
pub use functions::{Function, Library};
pub use graph::{Graph, Node, NodeId, Output};
pub use import::{import_graph, is_valid_name};
pub use order::{Consumers, topological_order};
pub use partition::{Partition, partition};
pub use patch::Patch;
pub use prune::{ARG, RETVAL, Signature, parse_tensor_name, prune};
pub use references::ORIGIN;
pub use shapes::{ShapeMap, infer_shapes};
pub use supported::{LeftOut, supported_part};
pub use text::to_text;
