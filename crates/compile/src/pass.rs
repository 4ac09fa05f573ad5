//! [`Pass`] and its context.

use crate::Int8;
use ferroflow_base::{Result, internal};
use ferroflow_graph::{Graph, Node, NodeId, Output, ShapeMap};
use ferroflow_opdef::{AttrValue, Attrs, OpDef, Registry};
use ferroflow_tensor::{DType, LazyTensor};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A rewrite of a whole graph.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Name, for switching it off and for `inspect --after`.
    pub name: &'static str,
    /// One sentence on what it does.
    pub about: &'static str,
    /// The rewrite.
    pub run: fn(&mut Graph, &PassCtx) -> Result<()>,
}

/// The context of a pass.
pub struct PassCtx<'a> {
    /// The ops.
    pub registry: &'a Registry,
    /// Whether functional control flow becomes dataflow control flow.
    pub lower: Lower,
    /// The dtype that products of floats, and what is around them, are computed in, if not theirs.
    pub precision: Option<DType>,
    /// Whether products run on 8-bit codes.
    pub int8: &'a Int8,
    /// Which groups of nodes become programs in machine code.
    pub jit: Jit,
    /// The shapes that were inferred last, with the revision of their graph.
    pub(crate) inferred: RefCell<Option<(u64, Rc<ShapeMap>)>>,
}

impl<'a> PassCtx<'a> {
    /// What passes before the pipeline know.
    pub fn new(registry: &'a Registry, lower: Lower) -> Self {
        PassCtx {
            registry,
            lower,
            precision: None,
            int8: &Int8::Off,
            jit: Jit::Off,
            inferred: RefCell::default(),
        }
    }

    /// The schema of an op that must exist.
    ///
    /// # Errors
    /// INTERNAL if the op is not registered.
    pub fn def(&self, op: &str) -> Result<Arc<OpDef>> {
        self.registry
            .def(op)?
            .ok_or_else(|| internal!("a pass needs op {op}, which is not registered"))
    }

    /// A node with defaults for the attrs that are not given.
    ///
    /// # Errors
    /// INTERNAL if the op is not registered, INVALID_ARGUMENT if attrs do not match its signature.
    pub fn node(
        &self,
        name: String,
        op: &str,
        attrs: Attrs,
        inputs: &[Output],
        controls: &[NodeId],
    ) -> Result<Node> {
        Node::new(self.registry, name, op, attrs, inputs, controls)
    }

    /// `node` as a node of another op, with defaults for the attrs that it lacks.
    pub(crate) fn become_op(&self, mut node: Node, op: &str) -> Result<Node> {
        node.def = self.def(op)?;
        node.def.complete_attrs(&mut node.attrs)?;
        node.outputs = node.def.output_dtypes(&node.attrs)?;
        Ok(node)
    }

    /// Shapes of the graph as it is now.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if shapes contradict each other.
    pub fn shapes(&self, graph: &Graph) -> Result<Rc<ShapeMap>> {
        let revision = graph.revision();
        if let Some((of, shapes)) = &*self.inferred.borrow()
            && *of == revision
        {
            return Ok(shapes.clone());
        }
        let shapes = Rc::new(ferroflow_graph::infer_proven_shapes(graph, self.registry)?);
        *self.inferred.borrow_mut() = Some((revision, shapes.clone()));
        Ok(shapes)
    }
}

/// Options of the compiler.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Whether any pass runs at all.
    pub optimize: bool,
    /// Names of passes that are left out.
    pub disabled: Vec<String>,
    /// The If, Case and While nodes that become Switch, Merge and loops, so that they run concurrently with the
    /// nodes around them; applies without `optimize` too.
    pub lower: Lower,
    /// Whether loops, conditionals and groups of small ops become programs in machine code.
    pub jit: Jit,
    /// The full name of the device that runs the graph, whose kernels the nodes have; if empty, nodes have the kernels
    /// of the devices that they name.
    pub device: String,
    /// The dtype, bfloat16 or half, that devices compute products of floats, and what is around them, in. Without a
    /// device, bfloat16 is what products by constants are computed in, with sums of floats, on CPUs that can.
    pub precision: Option<DType>,
    /// Whether products run on 8-bit codes, with less exact results.
    pub int8: Int8,
    /// How often the passes [that simplify](crate::SIMPLIFYING) run at most: they end when nothing changes.
    pub rounds: usize,
}

/// The rounds of a graph that is a part of another one: what other devices do is not seen any more (TensorFlow:
/// `core/common_runtime/graph_optimizer.cc`).
pub const PART_ROUNDS: usize = 10;

/// Whether loops, conditionals and groups of small ops become programs in machine code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Jit {
    /// Never.
    Off,
    /// Where that is expected to be faster.
    #[default]
    Auto,
    /// Wherever that is possible.
    On,
}

/// The If, Case and While nodes that are lowered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lower {
    /// None.
    Never,
    /// Those that carry the attr `_lower_using_switch_merge`, as in TensorFlow's sessions.
    Marked,
    /// All.
    Always,
}

impl Options {
    /// All passes.
    pub fn all() -> Self {
        Options {
            optimize: true,
            disabled: Vec::new(),
            lower: Lower::Never,
            jit: Jit::Auto,
            device: String::new(),
            precision: None,
            int8: Int8::Off,
            rounds: 1,
        }
    }

    /// No pass.
    pub fn none() -> Self {
        Options {
            optimize: false,
            disabled: Vec::new(),
            lower: Lower::Never,
            jit: Jit::Auto,
            device: String::new(),
            precision: None,
            int8: Int8::Off,
            rounds: 1,
        }
    }
}

/// The suffix of the name of a fused node, after the name of the last one that was fused.
pub(crate) const FUSED_SUFFIX: &str = "/fused";

/// Removes attrs but those, and but TensorFlow's internal ones.
pub(crate) fn keep_attrs(attrs: &mut Attrs, names: &[&str]) {
    let kept = attrs
        .iter()
        .filter(|(name, _)| names.contains(&name.as_ref()) || name.starts_with('_'));
    *attrs = kept.map(|(k, v)| (k.clone(), v.clone())).collect();
}

/// A Const node with this value.
pub(crate) fn constant_node(
    ctx: &PassCtx,
    name: String,
    value: impl Into<LazyTensor>,
) -> Result<Node> {
    let value = value.into();
    let attrs = Attrs::default()
        .with("dtype", AttrValue::Type(value.dtype()))
        .with("value", AttrValue::Tensor(value));
    ctx.node(name, "Const", attrs, &[], &[])
}
