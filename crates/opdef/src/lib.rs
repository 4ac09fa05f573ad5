//! Definitions of ops, attrs and kernels, without any op or algorithm.
//!
//! Entry points, in reading order: [`AttrValue`] and [`Attrs`], [`OpDef`] with its signature text
//! and [`NodeClass`], [`Op`] (a row of an op file), [`Registry`], [`OpKernel`] with [`KernelBuild`]
//! and [`KernelCtx`], [`ShapeCtx`], [`GradientCtx`], [`Resources`].
//!
//! Does not know: which ops exist, graphs, engines.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod attr;
mod class;
mod cluster;
mod collective;
mod ctx;
mod dataset_graphs;
mod def;
mod edge;
mod elementwise;
mod function;
mod function_tasks;
mod gradient;
mod gradient_expr;
mod kernel;
mod kernel_def;
mod op;
mod prepared;
mod reference;
mod registry;
mod rendezvous;
mod resource;
mod shape;
mod signature;
mod text;

pub use attr::{AttrValue, Attrs, FuncRef, Name};
pub use class::NodeClass;
pub use cluster::{
    Cluster, ClusterBlock, ClusterInput, ClusterInst, ClusterLoop, ClusterOutput, Distribution,
    Draw, RandomSource, ScalarBinary, ScalarType, ScalarUnary, ValueId,
};
pub use collective::{CollectiveOp, CollectiveRequest, Collectives, FinishFn, MergeFn};
pub use ctx::{KernelCtx, NodeInfo, StepServices, Value};
pub use dataset_graphs::{DatasetGraphs, FUNCTION_LIBRARY, LocalGraph};
pub use def::{ArgDef, ArgType, AttrDef, AttrType, OpDef, OpFlags};
pub use edge::{NodeId, Output};
pub use elementwise::{BinaryFn, ElementwiseProgram, Instruction, UnaryFn};
pub use function::{Callable, Functions};
pub use function_tasks::{FunctionTasks, has_resource_of};
pub use gradient::{GradientCtx, GradientFn, GradientNode, GradientRule};
pub use gradient_expr::{Expr, Gradient, GradientGraph, IndexedSlices};
pub use kernel::{AsyncCall, INPUT_NAME, KernelBuild, OpKernel, PACKED, no_kernel};
pub use kernel_def::{DEVICE_DEFAULT, KERNEL_LABEL, KernelDef, KernelFn};
pub use op::{Cost, DefinedShapeFn, KernelFactory, Op, ShapeFn};
pub use prepared::{PreparedOp, PreparedOps};
pub use registry::{KernelAdapter, OpFile, OpGroup, RegisteredOp, Registry};
pub use rendezvous::{RecvDone, Rendezvous, child_frame_id};
pub use resource::{DEFAULT_CONTAINER, Resources};
pub use shape::ShapeCtx;
