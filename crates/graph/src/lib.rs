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
#![warn(clippy::missing_errors_doc)]

mod autodiff;
mod builder;
mod client;
mod control_loops;
mod cost_placement;
mod costs;
mod device;
mod device_index;
mod execution_state;
mod export;
mod feed_fetch;
mod frames;
mod functions;
mod graph;
mod import;
mod import_attrs;
mod import_functions;
mod late;
mod not_registered;
mod onednn;
mod order;
mod partition;
mod patch;
mod placement;
mod prune;
mod recv_scheduling;
mod same_function;
mod shape_values;
mod shapes;
mod supported;
mod tail;
#[cfg(test)]
mod testing;
mod text;

pub use autodiff::{Gradient, GradientOptions, IndexedSlices, Unconnected};
pub use builder::{GraphBuilder, OpBuilder, WhileOptions};
pub use client::{
    ClientGraph, Consumer, FunctionRequest, ImportOptions, ImportResults, NodeDescription,
    PRODUCER, WhileLoop, attr_of_proto, attrs_of_proto, no_output, op_def_of_proto,
    op_def_to_proto,
};
pub use costs::{CopyCosts, Costs, flops};
pub use device::{DeviceKernels, DeviceSet, DeviceSpec};
pub use device_index::DeviceIndex;
pub use execution_state::{CheckedGraphDef, GraphExecutionState};
pub use export::{export_attr, export_graph};
pub use feed_fetch::{ClientDevice, args_to_send_recv, recvs_to_args, rendezvous_key};
pub use ferroflow_opdef::{NodeClass, NodeId, Output};
pub use frames::{Frames, LoopFrame, loop_frames};
pub use functions::{Function, Library, MUST_COMPILE, RUNS_EFFECTS, referred_functions};
pub use graph::{Graph, Node, unique_name};
pub use import::{import_graph, is_valid_name};
pub use import_functions::reachable_functions;
/// The attr of a node with the name of the node of the client's graph that it implements.
pub const ORIGIN: &str = "_origin";

pub use not_registered::{host_name, op_not_registered};
pub use order::{Consumers, needed_by, topological_order};
pub use partition::{Partition, PlacedGraph, partition, partition_by_task};
pub use patch::Patch;
pub use placement::{Placement, PlacementReason};
pub use prune::{
    ARG, PrunedGraph, RETVAL, Signature, TensorConnection, boundary_attrs, parse_tensor_name, prune,
};
pub use recv_scheduling::{complete_start_times, schedule_recvs};
pub use same_function::same_function;
pub use shape_values::integers;
pub use shapes::{
    HandleData, PROVEN_SHAPES, ShapeMap, handle_data, infer_proven_shapes, infer_shapes,
    set_handle_data,
};
pub use supported::{LeftOut, supported_part};
pub use tail::{Split, split_tail};
pub use text::to_text;
