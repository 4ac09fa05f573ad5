//! XlaPad, with negative and interior padding, and XlaBroadcastHelper (TensorFlow:
//! `compiler/tf2xla/kernels/{xla_pad,xla_broadcast_helper}_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, Ints, constant};
use ferroflow_functors::strided::{Strided, filled};
use ferroflow_opdef::{KernelCtx, Op, ShapeCtx};
use ferroflow_tensor::{PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "XlaPad",
        "input: T, padding_value: T, padding_low: Tindices, padding_high: Tindices, padding_interior: Tindices \
         -> output: T | T: type; Tindices: type {int32,int64}",
    )
    .shape(pad_shape)
    .kernel(|_| Ok(Box::new(pad))),
    Op::new(
        "XlaBroadcastHelper",
        "lhs: T, rhs: T, broadcast_dims: Tindices -> lhs_output: T, rhs_output: T | T: numbertype; \
         Tindices: type {int32,int64}",
    )
    .kernel(|_| Ok(Box::new(broadcast))),
];

/// Returns the size of a padded dimension, negative if more is taken away than there is.
fn padded_size(size: usize, [low, high, interior]: [i64; 3]) -> i64 {
    let size = size as i128;
    let total =
        size + (size - 1).max(0) * i128::from(interior) + i128::from(low) + i128::from(high);
    total.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

const NAMES: [&str; 3] = ["padding_low", "padding_high", "padding_interior"];

fn pad_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    if let Some(rank) = ctx.input(1).rank().filter(|&rank| rank > 0) {
        return Err(invalid_argument!(
            "padding_value input must be scalar, found rank {rank}"
        ));
    }
    let paddings = [2, 3, 4].map(|i| constant(ctx, i));
    let [Some(low), Some(high), Some(interior)] = paddings else {
        ctx.set(0, PartialShape::of_rank(dims.len()));
        return Ok(());
    };
    for (i, name) in NAMES.iter().enumerate() {
        let has = ctx.constant(2 + i).map(Tensor::shape);
        if has.is_some_and(|has| has.dims() != [dims.len()]) {
            return Err(invalid_argument!(
                "{name} must be a 1D tensor of size {}",
                dims.len()
            ));
        }
    }
    let padded = |(i, size): (usize, &Option<usize>)| {
        if interior[i] < 0 {
            return Err(invalid_argument!(
                "padding_interior must contain only non-negative values, found {}",
                interior[i]
            ));
        }
        let Some(size) = *size else {
            return Ok(None);
        };
        let size = padded_size(size, [low[i], high[i], interior[i]]);
        let unfit = |_| invalid_argument!("resulting padded dimension has negative size {size}");
        usize::try_from(size).map(Some).map_err(unfit)
    };
    let out: Vec<Option<usize>> = dims.iter().enumerate().map(padded).collect::<Result<_>>()?;
    ctx.set(0, PartialShape::of(out));
    Ok(())
}

/// The elements of a dimension that stay, and where the first goes.
struct Kept {
    first: usize,
    n: usize,
    at: usize,
    step: usize,
}

impl Kept {
    fn of(size: usize, out: usize, low: i64, interior: i64) -> Kept {
        let (low, step) = (i128::from(low), i128::from(interior) + 1);
        // Elements before the first are at negative places, those from the end on behind the last.
        let ceil = |x: i128| (x + step - 1).div_euclid(step);
        let first = ceil((-low).max(0)).min(size as i128);
        let end = ceil((out as i128 - low).max(0)).clamp(first, size as i128);
        Kept {
            first: first as usize,
            n: (end - first) as usize,
            at: (low + first * step).max(0) as usize,
            step: usize::try_from(step).unwrap_or(usize::MAX),
        }
    }
}

fn pad(ctx: &mut KernelCtx) -> Result<()> {
    let (input, value) = (ctx.input(0)?, ctx.input(1)?);
    if value.shape().rank() != 0 {
        return Err(invalid_argument!("padding_value must be a scalar"));
    }
    let shape = input.shape();
    let mut paddings: [Ints; 3] = Default::default();
    for (i, name) in NAMES.iter().enumerate() {
        paddings[i] = indices::ints(ctx.input(2 + i)?)?;
        if paddings[i].len() != shape.rank() {
            return Err(invalid_argument!(
                "The size of {name} must be equal to the input rank ({} vs. {})",
                paddings[i].len(),
                shape.rank()
            ));
        }
    }
    let [low, high, interior] = paddings;
    if interior.iter().any(|&n| n < 0) {
        return Err(invalid_argument!(
            "padding_interior must be non-negative, got {}",
            indices::list(interior)
        ));
    }
    let mut sizes = Ints::new();
    for (i, &size) in shape.iter().enumerate() {
        let size = padded_size(size, [low[i], high[i], interior[i]]);
        if size < 0 {
            return Err(invalid_argument!(
                "Padding result in negative size for dimension {i}"
            ));
        }
        sizes.push(size);
    }
    let out_shape = Shape::checked(&sizes)?;
    let kept = |i: usize| Kept::of(shape[i], out_shape[i], low[i], interior[i]);
    let kept: Vec<Kept> = (0..shape.rank()).map(kept).collect();
    let mut out = filled(ctx, value, out_shape)?;
    if kept.iter().all(|k| k.n > 0) {
        place(ctx, input, &kept, &mut out)?;
    }
    ctx.set_output(0, out)
}

/// Writes the elements that stay to their places.
fn place(ctx: &KernelCtx, input: &Tensor, kept: &[Kept], out: &mut Tensor) -> Result<()> {
    let view = |strides: &[usize], start: fn(&Kept) -> usize, step: fn(&Kept) -> usize| {
        let base: usize = kept.iter().zip(strides).map(|(k, s)| start(k) * s).sum();
        let dims = kept.iter().zip(strides);
        Strided::new(
            base as isize,
            dims.map(|(k, &s)| (k.n, if k.n > 1 { (s * step(k)) as isize } else { 0 })),
        )
    };
    let from = view(&input.shape().strides(), |k| k.first, |_| 1);
    let to = view(&out.shape().strides(), |k| k.at, |k| k.step);
    if from.len() == input.num_elements() {
        return to.scatter(input, out);
    }
    let mut dense = ctx.alloc(input.dtype(), kept.iter().map(|k| k.n).collect())?;
    from.gather(ctx.par(), input, &mut dense)?;
    to.scatter(&dense, out)
}

fn broadcast(ctx: &mut KernelCtx) -> Result<()> {
    let dims = indices::ints(ctx.input(2)?)?;
    let (lhs, rhs) = (ctx.shape(0)?.clone(), ctx.shape(1)?.clone());
    let shapes = format!("argument shapes: {lhs} and {rhs}");
    let spreads_lhs = lhs.rank() < rhs.rank();
    let (small, large) = if spreads_lhs {
        (&lhs, &rhs)
    } else {
        (&rhs, &lhs)
    };
    let mut inputs = [ctx.take_input(0)?, ctx.take_input(1)?];
    if dims.is_empty() {
        if lhs.rank() != rhs.rank() && small.rank() != 0 {
            return Err(invalid_argument!(
                "If broadcast_dims is empty, both arguments must have equal rank; argument shapes, or at least \
                 one argument must be a scalar: {lhs} and {rhs}"
            ));
        }
    } else {
        let listed = format!("broadcast_dims: {}", indices::list(&dims));
        if dims.len() != small.rank() {
            return Err(invalid_argument!(
                "broadcast_dims must have size equal to the smaller argument rank; {listed}; {shapes}"
            ));
        }
        if !dims.is_sorted_by(|a, b| a < b) {
            return Err(invalid_argument!(
                "Duplicate or nonmonotonic dimension in broadcast_dims; {listed}"
            ));
        }
        let mut spread = vec![1; large.rank()];
        for (i, &dim) in dims.iter().enumerate() {
            let place = usize::try_from(dim).ok().and_then(|d| spread.get_mut(d));
            let Some(place) = place else {
                return Err(invalid_argument!(
                    "Invalid broadcast dimension ({dim}); {listed}; {shapes}"
                ));
            };
            *place = small[i];
        }
        let at = usize::from(!spreads_lhs);
        inputs[at] = inputs[at]
            .clone()
            .with_shape(spread.into_iter().collect())?;
    }
    for (i, input) in inputs.into_iter().enumerate() {
        ctx.set_output(i, input)?;
    }
    Ok(())
}
