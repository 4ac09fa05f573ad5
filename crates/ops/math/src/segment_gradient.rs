//! Gradients of sums and products over segments.

use ferroflow_base::Result;
use ferroflow_opdef::{Expr, GradientCtx};
use ferroflow_tensor::DType;

/// For each element of the input, the element of `v` that belongs to its segment; `other` where the
/// segment's number is negative and the element belongs to none.
fn spread<'g>(g: &GradientCtx<'g>, v: Expr<'g>, other: f64) -> Expr<'g> {
    let ids = g.x(1);
    let zero = v.int(0);
    if !g.op_name().starts_with("Unsorted") {
        return v.op("GatherV2", &[ids, zero]);
    }
    let none = ids.number(0.0);
    let gathered = v.op("GatherV2", &[ids.op("Maximum", &[none]), zero]);
    // The test gets as many dimensions as what was gathered.
    let is_in = ids.op("GreaterEqual", &[none]);
    let missing = gathered.op("Rank", &[]) - ids.op("Rank", &[]);
    let ones = v
        .int(1)
        .make("Fill", &[missing.reshape(v.ints([1])), v.int(1)], &[]);
    let shape = is_in.make("ConcatV2", &[is_in.op("Shape", &[]), ones, zero], &[]);
    let number = v.number(other);
    gathered.where_(is_in.reshape(shape), number)
}

/// The same op on other values.
fn again<'g>(g: &GradientCtx<'g>, op: &str, x: Expr<'g>) -> Expr<'g> {
    match g.op_name().starts_with("Unsorted") {
        true => x.op(&format!("UnsortedSegment{op}"), &[g.x(1), g.x(2)]),
        false => x.op(&format!("Segment{op}"), &[g.x(1)]),
    }
}

pub(crate) fn sum(g: &mut GradientCtx) -> Result<()> {
    let dx = spread(g, g.dy(0), 0.0);
    g.set(0, dx)
}

pub(crate) fn mean(g: &mut GradientCtx) -> Result<()> {
    let (x, ids, d) = (g.x(0), g.x(1), g.dy(0));
    let n = ids.op("OnesLike", &[]).cast(d.dtype());
    let n = n.op("SegmentSum", &[ids]).op("Maximum", &[d.number(1.0)]);
    // One number for each segment, with as many dimensions as the input.
    let shape = n.make(
        "ConcatV2",
        &[n.op("Shape", &[]), ones_behind(x), x.int(0)],
        &[],
    );
    let dx = spread(g, d / n.reshape(shape), 0.0);
    g.set(0, dx)
}

/// Elements that are as large as the result share the gradient.
pub(crate) fn extreme(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), g.y(0), g.dy(0));
    let is_it = x.op("Equal", &[spread(g, y, 0.0)]).cast(d.dtype());
    let share = d / again(g, "Sum", is_it);
    // Segments without elements have no share; nothing is gathered from them.
    let dx = spread(g, share, 0.0);
    let picked = is_it.op("NotEqual", &[is_it.number(0.0)]);
    g.set(0, dx.where_(picked, dx.zeros_like()))
}

/// The product of the others must not be found by division where a zero is among them.
pub(crate) fn prod(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), g.y(0), g.dy(0));
    let is_zero = x.op("Equal", &[x.number(0.0)]);
    let n_zeros = again(g, "Sum", is_zero.cast(DType::Int32));
    let several = n_zeros.op("Greater", &[x.int(1)]);
    let d = d.zeros_like().where_(several, d);
    let others = x.op("OnesLike", &[]).where_(is_zero, x);
    let rest = spread(g, again(g, "Prod", others), 1.0);
    let quotient = spread(g, y, 1.0) / others;
    let dx = spread(g, d, 0.0) * rest.where_(is_zero, quotient);
    g.set(0, dx)
}

pub(crate) fn sparse(g: &mut GradientCtx) -> Result<()> {
    let (x, indices, ids, d) = (g.x(0), g.x(1), g.x(2), g.dy(0));
    let zero = d.int(0);
    let mut rows = d.op("GatherV2", &[ids, zero]);
    let op = g.op_name();
    if !op.starts_with("SparseSegmentSum") {
        let n = ids.op("OnesLike", &[]).cast(d.dtype());
        let n = n.op("SegmentSum", &[ids]).op("GatherV2", &[ids, zero]);
        let n = if op.contains("SqrtN") {
            n.op("Sqrt", &[])
        } else {
            n
        };
        let width = d.make("ConcatV2", &[d.ints([-1]), ones_behind(x), zero], &[]);
        rows = rows / n.reshape(width);
    }
    let shape = x.shape_of();
    let size = shape.op("GatherV2", &[zero, zero]);
    g.set(0, rows.op("UnsortedSegmentSum", &[indices, size]))
}

/// A 1 for each dimension but the first.
fn ones_behind(x: Expr) -> Expr {
    match x.rank() {
        Some(rank) => x.ints(std::iter::repeat_n(1, rank.saturating_sub(1))),
        None => {
            let rest = x.op("Rank", &[]) - x.int(1);
            x.int(0)
                .make("Fill", &[rest.reshape(x.ints([1])), x.int(1)], &[])
        }
    }
}
