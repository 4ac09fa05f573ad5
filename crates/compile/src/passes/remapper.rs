//! Recognises functions that graphs spell out: swish, hard-swish, gelu, layer normalization.

use crate::pass::constant_node;
use crate::view::View;
use crate::{Pass, PassCtx};
use ferroflow_base::{Result, Status};
use ferroflow_graph::{Graph, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, Tensor};
use layer_norm::{Channels, LayerNorm};
use smallvec::{SmallVec, smallvec};

mod layer_norm;

pub(crate) const PASS: Pass = Pass {
    name: "remapper",
    about: "replaces spelled-out swish, hard-swish, gelu and layer normalization by single nodes",
    run,
};

enum Found {
    Activation(&'static str, Output),
    LayerNorm(LayerNorm),
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let view = View::new(graph, ctx.shapes(graph)?);
    let mut found: Vec<(NodeId, Found)> = Vec::new();
    for (id, node) in graph.iter() {
        if node.outputs.first() != Some(&DType::Float) || !view.is_pure(id) {
            continue;
        }
        let hit = match node.op() {
            "Mul" => activation(&view, id),
            "Add" | "AddV2" => LayerNorm::find(&view, id).map(Found::LayerNorm),
            _ => None,
        };
        found.extend(hit.map(|f| (id, f)));
    }
    let mut patch = Patch::new();
    for (id, what) in found {
        let base = graph.node(id).name.clone();
        let attrs = Attrs::default().with("T", AttrValue::Type(DType::Float));
        let (op, attrs, inputs): (&str, Attrs, SmallVec<[Output; 4]>) = match what {
            Found::Activation(op, x) => (op, attrs, smallvec![x]),
            Found::LayerNorm(norm) => {
                let mut vector = |suffix: &str, v: Channels| match v {
                    Channels::Output(output) => Ok(output),
                    Channels::Constant(v) => {
                        let name = graph.unique_name(&format!("{base}/{suffix}"));
                        let node = constant_node(ctx, name, Tensor::vector(&v)?)?;
                        Ok::<_, Status>(Output::new(patch.add(graph, node)?, 0))
                    }
                };
                let scale = vector("scale", norm.scale)?;
                let offset = vector("offset", norm.offset)?;
                let attrs = attrs.with("epsilon", AttrValue::Float(norm.epsilon));
                ("_LayerNorm", attrs, smallvec![norm.x, scale, offset])
            }
        };
        let name = graph.unique_name(&format!("{base}/{}", op.trim_start_matches('_')));
        let node = ctx.node(name, op, attrs, &inputs, &[])?;
        patch.substitute(graph, id, node)?;
    }
    patch.apply(graph);
    Ok(())
}

/// An output as a constant times a product of other outputs.
struct Product {
    factor: f64,
    terms: SmallVec<[Output; 4]>,
}

fn product(view: &View, output: Output, depth: usize) -> Product {
    let mut p = Product {
        factor: 1.0,
        terms: smallvec![],
    };
    multiply(view, output, depth, &mut p);
    p
}

fn multiply(view: &View, output: Output, depth: usize, p: &mut Product) {
    if let Some(c) = view.scalar(output) {
        p.factor *= c as f64;
        return;
    }
    let node = view.node(output.node);
    match (node.op(), &node.inputs[..]) {
        ("Mul", [a, b]) if depth > 0 => {
            multiply(view, *a, depth - 1, p);
            multiply(view, *b, depth - 1, p);
        }
        ("Square", [a]) if depth > 0 => {
            multiply(view, *a, depth - 1, p);
            multiply(view, *a, depth - 1, p);
        }
        ("Neg", [a]) if depth > 0 => {
            p.factor = -p.factor;
            multiply(view, *a, depth - 1, p);
        }
        ("RealDiv", [a, b]) if depth > 0 && view.scalar(*b).is_some_and(|c| c != 0.0) => {
            p.factor /= view.scalar(*b).unwrap_or(1.0) as f64;
            multiply(view, *a, depth - 1, p);
        }
        _ => p.terms.push(output),
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-5 * b.abs()
}

/// `c + y` or `y + c` with a constant scalar.
fn plus_constant(view: &View, output: Output) -> Option<(f64, Output)> {
    let node = view.node(output.node);
    let ("Add" | "AddV2", [a, b]) = (node.op(), &node.inputs[..]) else {
        return None;
    };
    match (view.scalar(*a), view.scalar(*b)) {
        (Some(c), None) => Some((c as f64, *b)),
        (None, Some(c)) => Some((c as f64, *a)),
        _ => None,
    }
}

fn activation(view: &View, id: NodeId) -> Option<Found> {
    let p = product(view, Output::new(id, 0), 3);
    let [a, b] = p.terms[..] else { return None };
    [(a, b), (b, a)].into_iter().find_map(|(x, gate)| {
        let op = gated(view, p.factor, x, gate)?;
        Some(Found::Activation(op, x))
    })
}

/// The activation that `factor * x * gate` is, if `gate` is a function of `x` that makes it one.
fn gated(view: &View, factor: f64, x: Output, gate: Output) -> Option<&'static str> {
    let gate_node = view.node(gate.node);
    let inner = *gate_node.inputs.first()?;
    let scaled_x = |output: Output, by: f64| {
        let p = product(view, output, 3);
        p.terms[..] == [x] && near(p.factor, by)
    };
    match gate_node.op() {
        "Sigmoid" if near(factor, 1.0) && inner == x => Some("_Swish"),
        "Relu6" if near(factor, 1.0 / 6.0) => {
            (plus_constant(view, inner)? == (3.0, x)).then_some("_HardSwish")
        }
        "Erfc" if near(factor, 0.5) => {
            scaled_x(inner, -std::f64::consts::FRAC_1_SQRT_2).then_some("_Gelu")
        }
        "Add" | "AddV2" if near(factor, 0.5) => {
            let (one, f) = plus_constant(view, gate)?;
            let f_node = view.node(f.node);
            let arg = *f_node.inputs.first()?;
            match f_node.op() {
                "Erf" if one == 1.0 => {
                    scaled_x(arg, std::f64::consts::FRAC_1_SQRT_2).then_some("_Gelu")
                }
                "Tanh" if one == 1.0 && is_gelu_tanh_argument(view, arg, x) => Some("_GeluTanh"),
                _ => None,
            }
        }
        _ => None,
    }
}

/// `√(2/π) · (x + 0.044715 x³)`.
fn is_gelu_tanh_argument(view: &View, output: Output, x: Output) -> bool {
    let p = product(view, output, 2);
    let [sum] = p.terms[..] else { return false };
    if !near(p.factor, 0.797_884_560_802_865_4) {
        return false;
    }
    let node = view.node(sum.node);
    let ("Add" | "AddV2", [a, b]) = (node.op(), &node.inputs[..]) else {
        return false;
    };
    let is_cubic = |output: Output| {
        let p = product(view, output, 3);
        let cube = match p.terms[..] {
            [a, b, c] => a == x && b == x && c == x,
            [pow] => view
                .producer(pow, "Pow")
                .is_some_and(|n| n.inputs[0] == x && view.scalar(n.inputs[1]) == Some(3.0)),
            _ => false,
        };
        cube && near(p.factor, 0.044715)
    };
    (*a == x && is_cubic(*b)) || (*b == x && is_cubic(*a))
}
