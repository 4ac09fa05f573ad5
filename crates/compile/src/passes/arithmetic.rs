//! Removes arithmetic that does nothing, and padding and masks that readers can do themselves; turns powers by small
//! constants into products and roots.
//!
//! (TensorFlow: `RemoveNeutralElement` and `ConvertPow` of `core/grappler/optimizers/`.)

use crate::view::{View, may_be_dead};
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs};

pub(crate) const PASS: Pass = Pass {
    name: "arithmetic",
    about: "removes x*1, x/1, x+0, x-0, x&&x, x||x, transposes and reshapes that change nothing; moves Pad into convolutions, \
            masks into SelectV2; turns x^2, x^3, x^0.5, x^-0.5 and x^-1 into products and roots",
    run,
};

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let mut patch = Patch::new();
    // See the pass `identity`.
    let may_be_dead = may_be_dead(graph);
    let view = View::new(graph, ctx.shapes(graph)?);
    let mut powers = Vec::new();
    for (id, node) in graph.iter() {
        if !view.is_pure(id) || may_be_dead && view.consumers.is_awaited(id) {
            continue;
        }
        if let Some(same) = unchanged_input(&view, id, may_be_dead) {
            patch.redirect(Output::new(id, 0), same);
            patch.redirect_control(id, Some(same.node));
        }
        if matches!(node.op(), "Conv2D" | "DepthwiseConv2dNative")
            && let Some((input, attrs)) = absorb_pad(&view, id)
        {
            let conv = patch.edit(graph, id);
            (conv.inputs[0], conv.attrs) = (input, attrs);
        }
        if node.op() == "SelectV2"
            && let Some(mask) = spread_mask(&view, id)
        {
            patch.edit(graph, id).inputs[0] = mask;
        }
        if let Some(power) = power(&view, id) {
            powers.push((id, power));
        }
    }
    for (id, power) in powers {
        power.replace(graph, ctx, &mut patch, id)?;
    }
    patch.apply(graph);
    Ok(())
}

/// What a power by a constant is.
#[derive(Clone, Copy)]
enum Power {
    /// A function of one input.
    Unary(&'static str),
    Cube,
}

/// The function that a Pow is, if its exponent is one of a few constants.
fn power(view: &View, id: NodeId) -> Option<Power> {
    let node = view.node(id);
    let exponent = match node.op() {
        "Pow" => view.number(node.inputs[1])?,
        _ => return None,
    };
    const ROOTS: [(f64, &str); 4] = [
        (2.0, "Square"),
        (0.5, "Sqrt"),
        (-0.5, "Rsqrt"),
        (-1.0, "Reciprocal"),
    ];
    if exponent == 3.0 {
        return Some(Power::Cube);
    }
    let (_, op) = ROOTS.iter().find(|(of, _)| *of == exponent)?;
    Some(Power::Unary(op))
}

impl Power {
    /// Replaces the Pow `id`.
    fn replace(
        self,
        graph: &mut Graph,
        ctx: &PassCtx,
        patch: &mut Patch,
        id: NodeId,
    ) -> Result<()> {
        let (name, x) = (graph.node(id).name.clone(), graph.node(id).inputs[0]);
        let dtype = AttrValue::Type(graph.node(id).outputs[0]);
        let attrs = Attrs::default().with("T", dtype);
        let (op, inputs) = match self {
            Power::Unary(op) => (op, vec![x]),
            Power::Cube => {
                let square = graph.unique_name(&format!("{name}/square"));
                let mut square = ctx.node(square, "Square", attrs.clone(), &[x], &[])?;
                square.device = graph.node(id).device.clone();
                ("Mul", vec![x, Output::new(patch.add(graph, square)?, 0)])
            }
        };
        let mut node = ctx.node(name, op, attrs, &inputs, &[])?;
        node.device = graph.node(id).device.clone();
        *patch.edit(graph, id) = node;
        Ok(())
    }
}

/// The input that the node's output always equals. Where nodes may be dead, its other inputs must not be the reason.
fn unchanged_input(view: &View, id: NodeId, may_be_dead: bool) -> Option<Output> {
    let node = view.node(id);
    if let "Reshape" | "ExpandDims" | "Squeeze" | "BroadcastTo" | "Tile" = node.op() {
        let (from, others) = node.inputs.split_first()?;
        let is_free = |o: &Output| view.node(o.node).is_free_constant();
        if may_be_dead && !others.iter().all(is_free) {
            return None;
        }
        let shape = view.shapes.get(*from).to_full()?;
        return (view.shapes.get(Output::new(id, 0)).to_full()? == shape).then_some(*from);
    }
    let [a, b] = node.inputs[..] else { return None };
    let is = |o: Output, v: f64| view.number(o) == Some(v);
    match node.op() {
        "Mul" if is(b, 1.0) => Some(a),
        "Mul" if is(a, 1.0) => Some(b),
        "RealDiv" | "Pow" if is(b, 1.0) => Some(a),
        "Add" | "AddV2" | "Sub" if is(b, 0.0) => Some(a),
        "Add" | "AddV2" if is(a, 0.0) => Some(b),
        "LogicalAnd" | "LogicalOr" if a == b => Some(a),
        "Transpose" => {
            let order = view.ints(b)?;
            let is_identity = order.iter().enumerate().all(|(i, &p)| p == i as i64);
            // Of another rank it is an error.
            let is_rank = view.shapes.get(a).rank() == Some(order.len());
            (is_identity && is_rank).then_some(a)
        }
        _ => None,
    }
}

/// The unpadded input and the attrs of a VALID convolution whose only input is a zero Pad of
/// height and width.
fn absorb_pad(view: &View, id: NodeId) -> Option<(Output, Attrs)> {
    let node = view.node(id);
    let pad = view.producer(*node.inputs.first()?, "Pad")?;
    let pad_id = node.inputs[0].node;
    if view.only_reader(node.inputs[0]) != Some(id) || !view.is_pure(pad_id) {
        return None;
    }
    if node.attrs.str("padding").ok()? != "VALID" || node.attrs.str("data_format").ok()? != "NHWC" {
        return None;
    }
    let p = view.ints(pad.inputs[1])?;
    let [0, 0, top, bottom, left, right, 0, 0] = p[..] else {
        return None;
    };
    let mut attrs = node.attrs.clone();
    attrs.set("padding", AttrValue::str("EXPLICIT"));
    attrs.set(
        "explicit_paddings",
        AttrValue::ints(&[0, 0, top, bottom, left, right, 0, 0]),
    );
    Some((pad.inputs[0], attrs))
}

/// The mask of a SelectV2 whose condition is the mask and'ed with `true` in the shape of a value that is selected: the
/// SelectV2 broadcasts it to the same shape (Keras's attention masks are such).
fn spread_mask(view: &View, id: NodeId) -> Option<Output> {
    let [condition, values @ ..] = &view.node(id).inputs[..] else {
        return None;
    };
    let [a, b] = view.producer(*condition, "LogicalAnd")?.inputs[..] else {
        return None;
    };
    if !view.is_pure(condition.node) {
        return None;
    }
    let is_spread = |o: Output| {
        let [shape, value] = view.producer(o, "Fill")?.inputs[..] else {
            return None;
        };
        let of = *view.producer(shape, "Shape")?.inputs.first()?;
        let value = view.constant(value)?.get().ok()?;
        let is_true = value.to_scalar::<bool>().ok()?;
        (is_true && view.is_pure(o.node) && values.contains(&of)).then_some(())
    };
    match (is_spread(a), is_spread(b)) {
        (Some(()), _) => Some(b),
        (_, Some(())) => Some(a),
        _ => None,
    }
}
