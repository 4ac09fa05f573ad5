//! Wiring: sessions over all the rooms below.
//!
//! Entry points: [`Session`], [`SessionOptions`], [`RunOptions`], [`SavedModel`], [`CompiledModel`];
//! [`building`] for graphs built in Rust, [`eager`] for single ops, [`host`] for host programs.
//!
//! Does not know: the network, command lines.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod building;
mod calibration;
mod callable;
mod chrome_trace;
pub mod cluster;
mod compiled;
mod cost_model;
mod dataset_graphs;
mod device_costs;
mod devices;
pub mod eager;
mod freeze;
pub mod host;
mod interface;
mod object_graph;
mod saved_model;
mod session;
mod shape_classes;
mod weights;
mod wire_variants;

pub use calibration::Calibration;
pub use callable::{Callable, keeps_inputs};
pub use chrome_trace::{ChromeTrace, DeadnessLog};
pub use compiled::{CompileRequest, CompiledModel, ModelSummary};
pub use cost_model::CostModel;
pub use device_costs::{GpuCosts, measure_gpus};
pub use devices::{StreamDeviceOptions, StreamDevices};
pub use ferroflow_base::{Code, Result, Status};
pub use ferroflow_compile::{
    Int8, Jit as CompileJit, Lower, Options as CompileOptions, PART_ROUNDS, PIPELINE,
    PRE_PLACEMENT, Pass, PassCtx, PassGroup, PassGroups, Ranges,
};
pub use ferroflow_executor::{
    BlockUse, MemoryUse, NodeSpan, SharedOutput, StreamSpan, TraceSink, TracedTensor,
};
pub use ferroflow_functors::summarize::summary;
pub use ferroflow_gpu::set_tf32;
pub use ferroflow_graph::{
    CopyCosts, DeviceSet, DeviceSpec, Graph, Node, NodeClass, NodeId, Output, Patch,
    PlacementReason, ShapeMap, Signature, TensorConnection, attrs_of_proto, export_attr,
    export_graph, flops, import_graph, loop_frames, parse_tensor_name, to_text, topological_order,
};
pub use ferroflow_model::arrays;
pub use ferroflow_opdef::{
    AsyncCall, AttrValue, Attrs, CollectiveOp, CollectiveRequest, Collectives, DEFAULT_CONTAINER,
    FinishFn, FunctionTasks, MergeFn, RecvDone, Rendezvous, Resources, StepServices,
    has_resource_of,
};
pub use ferroflow_resources::log::listen_to_prints;
pub use ferroflow_resources::rendezvous::LocalRendezvous;
pub use ferroflow_resources::resource::ANONYMOUS;
pub use ferroflow_sync::{CancelToken, Pool, Step, StepTable};
pub use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
pub use interface::{outputs, placeholders};
pub use saved_model::{DEFAULT_SIGNATURE, ModelSignature, SERVE, SavedModel, SignatureTensor};
pub use session::{PlacedNode, RunOptions, Session, SessionOptions, registry};
pub use weights::Precision;
pub use wire_variants::{decode_variant, encode_variant};
