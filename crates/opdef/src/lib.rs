//! What an op, an attr and a kernel *are*. No op and no algorithm lives here.
//!
//! Entry points, in reading order: [`AttrValue`] and [`Attrs`], [`OpDef`] and its signature text,
//! [`Op`] (a row of an op file), [`Registry`], [`OpKernel`] with [`KernelBuild`] and [`KernelCtx`],
//! [`ShapeCtx`], [`GradientCtx`], [`Resources`].
//!
//! Does not know: which ops exist, graphs, engines.
#![forbid(unsafe_code)]

mod attr;
mod ctx;
mod def;
mod function;
mod gradient;
mod kernel;
mod op;
mod prepared;
mod registry;
mod resource;
mod shape;
mod signature;
mod text;

pub use attr::{AttrValue, Attrs, FuncRef, Name};
pub use ctx::{KernelCtx, NodeInfo, StepServices, Value};
pub use def::{ArgDef, ArgType, AttrDef, AttrType, OpDef, OpFlags};
pub use function::{Callable, Functions};
pub use gradient::{
    Expr, Gradient, GradientCtx, GradientFn, GradientGraph, GradientNode, GradientRule, Slices,
    Symbol,
};
pub use kernel::{AsyncCall, INPUT_NAME, KernelBuild, OpKernel, PACKED, no_kernel};
pub use op::{Cost, KernelFactory, Op, ShapeFn};
pub use prepared::{PreparedOp, PreparedOps};
pub use registry::Registry;
pub use resource::{DEFAULT_CONTAINER, Resources};
pub use shape::ShapeCtx;
