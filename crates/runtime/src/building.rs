//! Building graphs in Rust: [`GraphBuilder`].
//!
//! A loop:
//!
//! ```
//! use ferroflow_runtime::building::GraphBuilder;
//! use ferroflow_runtime::registry;
//! use ferroflow_runtime::{Session, SessionOptions};
//! use ferroflow_runtime::{DType, PartialShape, Tensor};
//!
//! let mut b = GraphBuilder::new(registry());
//! let n = b.placeholder("n", DType::Int32, PartialShape::scalar()).unwrap();
//! let zero = b.constant("zero", Tensor::scalar(0i32)).unwrap();
//! let one = b.constant("one", Tensor::scalar(1i32)).unwrap();
//! // The sum of 0..n.
//! let vars = b
//!     .while_loop(
//!         "loop",
//!         &[zero, zero],
//!         |b, v| b.op("Less").input(v[0]).input(n).output(),
//!         |b, v| {
//!             let sum = b.op("AddV2").input(v[1]).input(v[0]).output()?;
//!             let next = b.op("AddV2").input(v[0]).input(one).output()?;
//!             Ok(vec![next, sum])
//!         },
//!         Default::default(),
//!     )
//!     .unwrap();
//! b.op("Identity").name("sum").input(vars[1]).build().unwrap();
//! let session = Session::new(b.finish().unwrap(), SessionOptions::default());
//! let sum = session.run(&[("n:0", Tensor::scalar(5i32))], &["sum:0"], &[]).unwrap();
//! assert_eq!(sum[0].to_scalar::<i32>().unwrap(), 10);
//! ```
//!
//! Attrs that follow from the inputs:
//!
//! ```
//! use ferroflow_runtime::building::GraphBuilder;
//! use ferroflow_runtime::registry;
//! use ferroflow_runtime::Tensor;
//! let mut b = GraphBuilder::new(registry());
//! let x = b.constant("x", Tensor::scalar(1.5f32)).unwrap();
//! // `T` and `N` follow from the inputs.
//! let sum = b.op("AddN").inputs(&[x, x, x]).output().unwrap();
//! assert_eq!(b.graph().node(sum.node).attrs.int("N").unwrap(), 3);
//! ```
//!
//! A conditional:
//!
//! ```
//! use ferroflow_runtime::building::GraphBuilder;
//! use ferroflow_runtime::registry;
//! use ferroflow_runtime::{Session, SessionOptions};
//! use ferroflow_runtime::{DType, PartialShape, Tensor};
//! let mut b = GraphBuilder::new(registry());
//! let x = b.placeholder("x", DType::Float, PartialShape::scalar()).unwrap();
//! let zero = b.constant("zero", Tensor::scalar(0f32)).unwrap();
//! let is_negative = b.op("Less").input(x).input(zero).output().unwrap();
//! let y = b
//!     .cond(
//!         "abs",
//!         is_negative,
//!         |b| Ok(vec![b.op("Neg").input(x).output()?]),
//!         |_| Ok(vec![x]),
//!     )
//!     .unwrap();
//! b.op("Identity").name("y").input(y[0]).build().unwrap();
//! let session = Session::new(b.finish().unwrap(), SessionOptions::default());
//! let y = session.run(&[("x:0", Tensor::scalar(-2f32))], &["y:0"], &[]).unwrap();
//! assert_eq!(y[0].to_scalar::<f32>().unwrap(), 2.0);
//! ```
//!
//! A function:
//!
//! ```
//! use ferroflow_runtime::building::GraphBuilder;
//! use ferroflow_runtime::registry;
//! use ferroflow_runtime::{Session, SessionOptions};
//! use ferroflow_runtime::{DType, Tensor};
//! let mut b = GraphBuilder::new(registry());
//! b.function("square", &[DType::Float], |b, args| {
//!     Ok(vec![b.op("Mul").input(args[0]).input(args[0]).output()?])
//! })
//! .unwrap();
//! let x = b.constant("x", Tensor::scalar(3f32)).unwrap();
//! let y = b.call("square", &[x]).unwrap();
//! b.op("Identity").name("y").input(y[0]).build().unwrap();
//! let session = Session::new(b.finish().unwrap(), SessionOptions::default());
//! let y = session.run(&[], &["y:0"], &[]).unwrap();
//! assert_eq!(y[0].to_scalar::<f32>().unwrap(), 9.0);
//! ```
//!
//! A gradient:
//!
//! ```
//! use ferroflow_runtime::building::{GradientOptions, GraphBuilder};
//! use ferroflow_runtime::registry;
//! use ferroflow_runtime::{DType, PartialShape, Session, SessionOptions, Tensor};
//! let mut b = GraphBuilder::new(registry());
//! let x = b.placeholder("x", DType::Float, PartialShape::scalar()).unwrap();
//! let y = b.op("Square").input(x).output().unwrap();
//! let dx = b.gradients(&[y], &[x], &GradientOptions::default()).unwrap()[0].unwrap();
//! b.op("Identity").name("dx").input(dx).build().unwrap();
//! let session = Session::new(b.finish().unwrap(), SessionOptions::default());
//! let dx = session.run(&[("x:0", Tensor::scalar(3f32))], &["dx:0"], &[]).unwrap();
//! assert_eq!(dx[0].to_scalar::<f32>().unwrap(), 6.0);
//! ```

use crate::{Result, registry};
use ferroflow_graph::{Graph, NodeClass, referred_functions};
use ferroflow_opdef::GradientRule;
use ferroflow_tensor::DType;
use std::collections::BTreeMap;

pub use ferroflow_graph::{
    Gradient, GradientOptions, GraphBuilder, IndexedSlices, OpBuilder, Unconnected, WhileOptions,
};
pub use ferroflow_opdef::AttrValue;

/// Lowers If, Case and While to Switch, Merge and loops, and inlines calls: the form that
/// [`GraphBuilder::gradients`] differentiates. Nodes keep their names and ids.
///
/// # Errors
/// INVALID_ARGUMENT if a function that the graph calls does not exist or does not fit its call.
///
/// ```
/// use ferroflow_runtime::building::{GradientOptions, GraphBuilder, lowered};
/// use ferroflow_runtime::{DType, PartialShape, Tensor, registry};
/// let mut b = GraphBuilder::new(registry());
/// b.function("square", &[DType::Float], |b, a| Ok(vec![b.op("Square").input(a[0]).output()?]))
///     .unwrap();
/// b.function("same", &[DType::Float], |_, a| Ok(vec![a[0]])).unwrap();
/// let x = b.placeholder("x", DType::Float, PartialShape::scalar()).unwrap();
/// let which = b.placeholder("which", DType::Bool, PartialShape::scalar()).unwrap();
/// let y = b.if_op(which, &[x], "square", "same").unwrap()[0];
/// let mut b = GraphBuilder::from_graph(lowered(b.finish().unwrap()).unwrap(), registry());
/// assert!(b.gradients(&[y], &[x], &GradientOptions::default()).unwrap()[0].is_some());
/// ```
pub fn lowered(graph: Graph) -> Result<Graph> {
    ferroflow_compile::lowered(graph, registry())
}

/// Returns the ops without a gradient that connect differentiable inputs to differentiable outputs, in
/// the graph and in the functions that it runs, with the number of their nodes.
pub fn without_gradient(graph: &Graph) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let library = graph.library();
    let (mut names, mut n_seen) = (Vec::new(), 0);
    add_without_gradient(graph, &mut names, &mut found);
    while let Some(name) = names.get(n_seen).cloned() {
        n_seen += 1;
        if let Ok(function) = library.get(&name) {
            add_without_gradient(&function.graph, &mut names, &mut found);
        }
    }
    found
}

/// Counts the nodes of one graph and appends the functions that it runs to `names`.
fn add_without_gradient(
    graph: &Graph,
    names: &mut Vec<String>,
    found: &mut BTreeMap<String, usize>,
) {
    let differs = |t: &DType| t.is_floating() || t.is_complex();
    for (_, node) in graph.iter() {
        let takes = node.inputs.iter().filter_map(|i| graph.dtype(*i));
        let connects = takes.into_iter().any(|t| differs(&t)) && node.outputs.iter().any(differs);
        // Loops and conditionals need no gradient rule; see `lowered`.
        let class = node.class();
        if class.calls_functions() && class != NodeClass::For {
            // The condition of a loop is not differentiated.
            let cond = match node.attrs.get("cond") {
                Some(AttrValue::Func(f)) => f.name.as_str(),
                _ => "",
            };
            for name in referred_functions(node).filter(|name| *name != cond) {
                if !names.iter().any(|n| n == name) {
                    names.push(name.to_string());
                }
            }
            continue;
        }
        let rule = registry().op(node.op()).map(|op| op.gradient);
        let is_open = matches!(rule, Some(GradientRule::Undefined) | None);
        if connects && is_open && !class.is_control_flow() {
            *found.entry(node.op().to_string()).or_insert(0) += 1;
        }
    }
}
