//! Fuses scaled dot-product attention into [`_Attention`](ATTENTION): two products with a softmax between them, each value used
//! once. Only devices have a kernel of it.
//!
//! Products are Einsum, or BatchMatMul between transposes of positions and heads. Between the first product and the softmax
//! there may be a factor, then a bias or a SelectV2 between scores and a number. If the queries, keys and values are products of
//! one tensor by constants, they become one product.

mod projections;

use crate::pass::FUSED_SUFFIX;
use crate::view::View;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, Node, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, PartialShape};
use projections::{Merged, Projections};

pub(crate) const NAME: &str = "fuse_attention";

pub(crate) const PASS: Pass = Pass {
    name: NAME,
    about: "fuses products with a softmax between them into attention of devices",
    run,
};

const ATTENTION: &str = "_Attention";

/// The largest depth that kernels have, and what depths are multiples of.
const MAX_DEPTH: usize = 128;
const DEPTH_STEP: usize = 8;

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let view = View::new(graph, ctx.shapes(graph)?);
    let found = view.graph.iter().filter(|(_, n)| n.op() == "Softmax");
    let found: Vec<Attention> = found.filter_map(|(id, _)| attention(&view, id)).collect();
    let fused = |a: &Attention| Ok((a.node(&view, ctx)?, a.merged(&view, ctx)?));
    let nodes: Vec<(Node, Option<Merged>)> = found.iter().map(fused).collect::<Result<_>>()?;
    let mut patch = Patch::new();
    for (attention, (mut node, merged)) in found.iter().zip(nodes) {
        if let Some(merged) = merged {
            let heads = merged.add(graph, ctx, &mut patch)?;
            node.inputs[..3].fill(heads);
        }
        let new = patch.add(graph, node)?;
        patch.redirect(Output::new(attention.end, 0), Output::new(new, 0));
        patch.redirect_control(attention.end, Some(new));
    }
    patch.apply(graph);
    Ok(())
}

/// A tensor of four dimensions.
#[derive(Clone, Copy)]
struct Operand {
    output: Output,
    /// Whether heads come before positions.
    heads_first: bool,
}

/// What changes scores before the softmax.
#[derive(Clone, Copy)]
enum Mask {
    None,
    /// A tensor is added.
    Bias(Output),
    /// A number stands where the condition is false.
    Condition(Output, f32),
}

/// The scores as the softmax takes them.
struct Scores {
    q: Operand,
    k: Operand,
    scale: f32,
    mask: Mask,
}

struct Attention {
    scores: Scores,
    v: Operand,
    /// The products that make all operands of one tensor, if they can be one.
    projections: Option<Projections>,
    /// The node whose result is replaced.
    end: NodeId,
    heads_first: bool,
}

impl Attention {
    fn node(&self, view: &View, ctx: &PassCtx) -> Result<Node> {
        let Scores { q, k, scale, mask } = self.scores;
        let operands = [q, k, self.v];
        let layouts = operands.iter().map(|o| o.heads_first);
        let layouts: Vec<&str> = layouts.chain([self.heads_first]).map(layout).collect();
        let mut attrs = Attrs::default();
        attrs.set("T", AttrValue::Type(DType::Float));
        attrs.set("layouts", AttrValue::strs(&layouts));
        attrs.set("scale", AttrValue::Float(scale));
        let mut inputs: Vec<Output> = operands.iter().map(|o| o.output).collect();
        match mask {
            Mask::None => {}
            Mask::Bias(bias) => {
                attrs.set("num_biases", AttrValue::Int(1));
                inputs.push(bias);
            }
            Mask::Condition(condition, fill) => {
                attrs.set("num_conditions", AttrValue::Int(1));
                attrs.set("fill", AttrValue::Float(fill));
                inputs.push(condition);
            }
        }
        if let Some(Projections { heads, .. }) = self.projections {
            let first = [0, heads, 2 * heads];
            attrs.set("heads", AttrValue::Int(heads));
            attrs.set("first_heads", AttrValue::ints(&first));
        }
        let name = format!("{}{FUSED_SUFFIX}", view.node(self.end).name);
        ctx.node(
            view.graph.unique_name(&name),
            ATTENTION,
            attrs,
            &inputs,
            &[],
        )
    }

    fn merged(&self, view: &View, ctx: &PassCtx) -> Result<Option<Merged>> {
        let merged = self.projections.as_ref().map(|p| p.nodes(view, ctx));
        merged.transpose()
    }
}

fn layout(heads_first: bool) -> &'static str {
    if heads_first { "BNTH" } else { "BTNH" }
}

/// What is computed with the softmax `id`, if it is attention.
fn attention(view: &View, id: NodeId) -> Option<Attention> {
    let softmax = view.node(id);
    let is_float = softmax.attrs.dtype("T").ok()? == DType::Float;
    if !is_float || !view.is_pure(id) {
        return None;
    }
    let scores = scores(view, softmax.inputs[0])?;
    let product = view.only_reader(Output::new(id, 0))?;
    let node = view.node(product);
    if !view.is_pure(product) {
        return None;
    }
    let (v, end, heads_first) = match node.op() {
        "Einsum" => {
            let at = node.inputs.iter().position(|i| i.node == id)?;
            let (v, heads_first) = of_weights(node, at)?;
            (v, product, heads_first)
        }
        "BatchMatMul" | "BatchMatMulV2" if node.inputs[0].node == id => {
            let is_plain = !adjoint(node, "adj_x") && !adjoint(node, "adj_y");
            let v = is_plain.then(|| turned(view, node.inputs[1]))?;
            let next = view.only_reader(Output::new(product, 0));
            let next = next.filter(|next| {
                let input = view.node(*next).inputs.first();
                input.is_some_and(|i| i.node == product)
                    && transpose(view, *next).is_some_and(|(_, perm)| perm == [0, 2, 1, 3])
            });
            (v, next.unwrap_or(product), next.is_none())
        }
        _ => return None,
    };
    let [q, k, v_depth] = [scores.q, scores.k, v].map(|o| depth(view, o));
    let depth = q.filter(|d| k == q && v_depth == q && *d <= MAX_DEPTH)?;
    let projections = Projections::of(view, [scores.q, scores.k, v]);
    depth.is_multiple_of(DEPTH_STEP).then_some(Attention {
        projections,
        scores,
        v,
        end,
        heads_first,
    })
}

/// The last of four dimensions.
fn depth(view: &View, operand: Operand) -> Option<usize> {
    let shape = view.shape(operand.output);
    let dims = shape.dims().filter(|d| d.len() == 4)?;
    dims[3]
}

fn adjoint(node: &Node, attr: &str) -> bool {
    node.attrs.bool(attr).unwrap_or(false)
}

/// What a Transpose turns, and how.
fn transpose(view: &View, id: NodeId) -> Option<(Output, Vec<i64>)> {
    let node = view.node(id);
    if node.op() != "Transpose" || !view.is_pure(id) {
        return None;
    }
    Some((node.inputs[0], view.ints(node.inputs[1])?))
}

/// An operand `[batch, heads, positions, depth]` of a product, or what a Transpose makes one of.
fn turned(view: &View, output: Output) -> Operand {
    match transpose(view, output.node) {
        Some((from, perm)) if perm == [0, 2, 1, 3] => Operand {
            output: from,
            heads_first: false,
        },
        _ => Operand {
            output,
            heads_first: true,
        },
    }
}

/// The node that only the one before reads.
fn used_once<'a>(view: &View<'a>, output: Output) -> Option<&'a Node> {
    view.only_reader(output)?;
    let node = view.node(output.node);
    (output.slot == 0 && view.is_pure(output.node)).then_some(node)
}

fn scores(view: &View, input: Output) -> Option<Scores> {
    let (mut at, mut mask) = (input, Mask::None);
    let node = used_once(view, at)?;
    match (node.op(), &node.inputs[..]) {
        ("SelectV2", [condition, own, fill]) => {
            mask = Mask::Condition(*condition, view.scalar(*fill)?);
            at = *own;
        }
        ("Add" | "AddV2", [a, b]) => {
            let is_own = |o: &Output| used_once(view, *o).is_some_and(is_scaled_product);
            let (own, bias) = if is_own(a) { (*a, *b) } else { (*b, *a) };
            mask = Mask::Bias(bias);
            at = own;
        }
        _ => {}
    }
    let scores = view.shape(at);
    let masks_fit = match mask {
        Mask::None => true,
        Mask::Bias(m) | Mask::Condition(m, _) => fits(&view.shape(m), &scores),
    };
    let node = used_once(view, at)?;
    let (scale, at) = match (node.op(), &node.inputs[..]) {
        ("Mul", [a, b]) => match (view.scalar(*a), view.scalar(*b)) {
            (None, Some(factor)) => (factor, *a),
            (Some(factor), None) => (factor, *b),
            _ => return None,
        },
        ("RealDiv", [a, b]) => (1.0 / view.scalar(*b)?, *a),
        _ => (1.0, at),
    };
    let (q, k) = operands(view, used_once(view, at)?)?;
    masks_fit.then_some(Scores { q, k, scale, mask })
}

fn is_scaled_product(node: &Node) -> bool {
    let ops = ["Einsum", "BatchMatMul", "BatchMatMulV2", "Mul", "RealDiv"];
    ops.contains(&node.op())
}

/// Whether a mask is broadcast to the scores rather than they to the mask, as far as can be seen; kernels check the rest.
fn fits(mask: &PartialShape, scores: &PartialShape) -> bool {
    let (Some(mask), Some(scores)) = (mask.dims(), scores.dims()) else {
        return false;
    };
    let mut pairs = mask.iter().rev().zip(scores.iter().rev());
    mask.len() <= scores.len() && pairs.all(|(m, s)| *m == Some(1) || m == s || *s != Some(1))
}

/// The query and the keys of a product.
fn operands(view: &View, node: &Node) -> Option<(Operand, Operand)> {
    match node.op() {
        "Einsum" => of_equation(node),
        "BatchMatMul" | "BatchMatMulV2" if !adjoint(node, "adj_x") => {
            let (q, k) = (turned(view, node.inputs[0]), node.inputs[1]);
            if adjoint(node, "adj_y") {
                return Some((q, turned(view, k)));
            }
            let (from, perm) = transpose(view, k.node)?;
            let heads_first = match perm[..] {
                [0, 1, 3, 2] => true,
                [0, 2, 3, 1] => false,
                _ => return None,
            };
            Some((
                q,
                Operand {
                    output: from,
                    heads_first,
                },
            ))
        }
        _ => None,
    }
}

/// The labels of two operands of four dimensions and of the result.
fn labels(node: &Node) -> Option<[[char; 4]; 3]> {
    let text: String = node.attrs.str("equation").ok()?.replace(' ', "");
    let (inputs, output) = text.split_once("->")?;
    let (a, b) = inputs.split_once(',')?;
    let four = |labels: &str| -> Option<[char; 4]> {
        let labels: Vec<char> = labels.chars().collect();
        labels.try_into().ok()
    };
    Some([four(a)?, four(b)?, four(output)?])
}

/// An operand whose dimensions have these labels, if they are a batch, a row, a depth and, before or behind the rows, a head.
fn labelled(
    output: Output,
    labels: [char; 4],
    row: char,
    [batch, head]: [char; 2],
) -> Option<Operand> {
    let depth = labels[3];
    let heads_first = match labels[..3] {
        [b, h, r] if [b, h, r] == [batch, head, row] => true,
        [b, r, h] if [b, h, r] == [batch, head, row] => false,
        _ => return None,
    };
    let is_new = ![batch, head, row].contains(&depth);
    is_new.then_some(Operand {
        output,
        heads_first,
    })
}

/// The operands of `q kᵀ`, whose result has the labels batch, head, query and key; the fifth label is the depth.
fn of_equation(node: &Node) -> Option<(Operand, Operand)> {
    let [a, b, [batch, head, query, key]] = labels(node)?;
    let [x, y] = [(node.inputs[0], a), (node.inputs[1], b)];
    let (q, k) = if a.contains(&query) { (x, y) } else { (y, x) };
    let is_summed = q.1[3] == k.1[3] && ![query, key].contains(&q.1[3]);
    is_summed.then_some((
        labelled(q.0, q.1, query, [batch, head])?,
        labelled(k.0, k.1, key, [batch, head])?,
    ))
}

/// The values that the weights, operand `at` of an Einsum, are multiplied by, and whether heads are first in the result.
fn of_weights(node: &Node, at: usize) -> Option<(Operand, bool)> {
    let [a, b, y] = labels(node)?;
    let ([batch, head, query, key], values) = if at == 0 { (a, b) } else { (b, a) };
    let v = labelled(node.inputs[1 - at], values, key, [batch, head])?;
    let result = labelled(v.output, y, query, [batch, head])?;
    let is_kept = y[3] == values[3] && ![query, key].contains(&y[3]);
    is_kept.then_some((v, result.heads_first))
}
