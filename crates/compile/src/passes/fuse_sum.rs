//! Fuses matrix products into the sums that read them, as `_FusedMatMul` with `Add` (TensorFlow: contraction, bias and
//! addition in `grappler/optimizers/remapper.cc`).
//!
//! The gradient of a matrix that is used more than once, as in each iteration of a loop, is such a sum. The kernel adds
//! the product to the other terms as it is computed, in their memory if nothing else reads them.
//!
//! The sum waits for what the product waited for. Nodes that waited for the product wait for its inputs instead, as in
//! the pass `control_only`.

use crate::pass::FUSED_SUFFIX;
use crate::passes::control_only::{wait_for, waiting};
use crate::passes::fuse_update::product_behind;
use crate::view::{View, has_dead_outputs};
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeClass, NodeId, Output, Patch};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, PartialShape};
use smallvec::SmallVec;

pub(crate) const PASS: Pass = Pass {
    name: NAME,
    about: "fuses matrix products into the sums that read them",
    run,
};

pub(crate) const NAME: &str = "fuse_sum";

/// The attr with the name of the product, for its errors.
const PRODUCT: &str = "_product";

/// A sum of products and at most one other term.
struct Sum {
    id: NodeId,
    /// The term that the first product is added to.
    first: Output,
    terms: SmallVec<[Term; 2]>,
}

/// A product that only a sum reads.
struct Term {
    product: NodeId,
    /// What the product and Identities after it wait for.
    controls: Vec<NodeId>,
    /// Whether nodes wait for the product.
    has_waiting: bool,
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let view = View::new(graph, ctx.shapes(graph)?);
    let sums = graph.iter().filter_map(|(id, _)| sum(&view, id));
    let sums: Vec<Sum> = sums.collect();
    let mut patch = Patch::new();
    for sum in sums {
        fuse(graph, ctx, &mut patch, sum)?;
    }
    patch.apply(graph);
    Ok(())
}

/// The sum `id`, if it has products to fuse.
fn sum(view: &View, id: NodeId) -> Option<Sum> {
    let node = view.node(id);
    let is_sum = matches!(node.op(), "Add" | "AddV2" | "AddN");
    if !is_sum || node.outputs[..] != [DType::Float] {
        return None;
    }
    let (mut first, mut terms) = (None, SmallVec::new());
    for input in &node.inputs {
        match term(view, node, *input) {
            Some(term) => terms.push(term),
            // With more terms, nothing is read or written less.
            None if first.replace(*input).is_some() => return None,
            None => {}
        }
    }
    if first.is_none() && !terms.is_empty() {
        terms.remove(0);
        first = Some(node.inputs[0]);
    }
    let first = first?;
    let shape = view.shape(first);
    // Errors name the shapes in the order of the inputs, and all terms of a sum.
    let must_equal = first != node.inputs[0] || node.inputs.len() > 2;
    let fits = |t: &Term| {
        let product = view.shape(Output::new(t.product, 0));
        match must_equal {
            true => shape.num_elements().is_some() && shape == product,
            false => may_equal(&shape, &product),
        }
    };
    (!terms.is_empty() && terms.iter().all(fits)).then_some(Sum { id, first, terms })
}

/// Whether a shape may be that of a product.
fn may_equal(shape: &PartialShape, product: &PartialShape) -> bool {
    let Some(dims) = shape.dims() else {
        return true;
    };
    let of_product = product.dims().unwrap_or(&[None, None]);
    let differ = |(a, b): (&Option<usize>, &Option<usize>)| a.is_some() && b.is_some() && a != b;
    dims.len() == 2 && !dims.iter().zip(of_product).any(differ)
}

/// The product that `input` of `sum` is, if nothing else reads it.
fn term(view: &View, sum: &Node, input: Output) -> Option<Term> {
    let (graph, consumers) = (view.graph, &view.consumers);
    let (product, controls) = product_behind(graph, consumers, sum, input, &is_product)?;
    let mut readers = consumers.of(product).iter();
    let has_waiting = readers.any(|(_, slot)| slot.is_none());
    let mut inputs = graph
        .node(product)
        .inputs
        .iter()
        .map(|i| graph.node(i.node));
    // Only one side of a Switch comes, which a control edge cannot name; what waits for a product of a variable may be
    // about to write the variable, which then would have to be copied.
    let is_variable = |n: &Node| n.class() == NodeClass::ReadVariable;
    if has_waiting && inputs.any(|n| has_dead_outputs(n) || is_variable(n)) {
        return None;
    }
    Some(Term {
        product,
        controls,
        has_waiting,
    })
}

/// Whether a node is a product of floats, perhaps with a bias.
fn is_product(node: &Node) -> bool {
    let adds_only_bias = || {
        let names = node.attrs.strs("fused_ops");
        names.is_ok_and(|names| names[..] == ["BiasAdd"])
    };
    node.outputs[..] == [DType::Float]
        && (node.op() == "MatMul" || node.op() == "_FusedMatMul" && adds_only_bias())
}

fn fuse(graph: &mut Graph, ctx: &PassCtx, patch: &mut Patch, sum: Sum) -> Result<()> {
    let node = graph.node(sum.id).clone();
    let op = if node.op() == "AddN" { "AddN" } else { "Add" };
    let (mut addend, last) = (sum.first, sum.terms.len() - 1);
    for (i, term) in sum.terms.into_iter().enumerate() {
        let product = graph.node(term.product).clone();
        let mut fused = added(ctx, &product, addend, op)?;
        if i < last {
            let name = format!("{}{FUSED_SUFFIX}", product.name);
            fused.name = graph.unique_name(&name);
            wait_for(&mut fused, term.controls);
            addend = Output::new(patch.add(graph, fused)?, 0);
        } else {
            let node = patch.edit(graph, sum.id);
            (node.def, node.attrs, node.inputs) = (fused.def, fused.attrs, fused.inputs);
            wait_for(node, term.controls);
        }
        if term.has_waiting {
            *patch.edit(graph, term.product) = waiting(&product, ctx)?;
        }
    }
    Ok(())
}

/// The product with the addition of `addend`, as input of a node `op`.
fn added(ctx: &PassCtx, product: &Node, addend: Output, op: &str) -> Result<Node> {
    let mut node = product.clone();
    let mut names = product.attrs.strs("fused_ops").unwrap_or_default();
    names.push(op);
    let names = AttrValue::strs(&names);
    node.inputs.push(addend);
    let n_args = node.inputs.len() as i64 - 2;
    node.attrs.set("fused_ops", names);
    node.attrs.set("num_args", AttrValue::Int(n_args));
    let name = product.name.trim_end_matches(FUSED_SUFFIX);
    node.attrs.set(PRODUCT, AttrValue::str(name));
    node.def = ctx.def("_FusedMatMul")?;
    node.def.complete_attrs(&mut node.attrs)?;
    Ok(node)
}
