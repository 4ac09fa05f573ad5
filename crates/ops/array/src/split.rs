//! Split and SplitV (TensorFlow: `core/kernels/split_op.cc` and `split_v_op.cc`).

use crate::pack::split_along;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, axis_in, constant, constant_int};
use ferroflow_opdef::{Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{PartialShape, Shape};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Split",
        "split_dim: int32, value: T -> output: num_split*T | num_split: int >= 1; T: type",
    )
    .shape(split_shape)
    .kernel(split)
    .gradient(split_gradient),
    Op::new(
        "SplitV",
        "value: T, size_splits: Tlen, split_dim: int32 -> output: num_split*T | \
         num_split: int >= 1; T: type; Tlen: type {int8,int32,int64} = int64",
    )
    .shape(split_v_shape)
    .kernel(split_v)
    .gradient(split_v_gradient),
];

fn with_dim(shape: &[usize], at: usize, len: usize) -> Shape {
    shape
        .iter()
        .enumerate()
        .map(|(i, &d)| if i == at { len } else { d })
        .collect()
}

fn split_axis(dim: i64, rank: usize) -> Result<usize> {
    axis_in(dim, rank).ok_or_else(|| {
        invalid_argument!("-input rank(-{rank}) <= split_dim < input rank ({rank}), but got {dim}")
    })
}

fn uneven(dim: usize, size: usize, n: usize) -> ferroflow_base::Status {
    invalid_argument!(
        "Number of ways to split should evenly divide the split dimension, but got split_dim {dim} \
         (size = {size}) and num_split {n}"
    )
}

fn split(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let n = ctx.num_outputs();
        let Some(dim) = indices::scalar(ctx.input(0)?) else {
            return Err(invalid_argument!(
                "split_dim must be a scalar but has rank {}",
                ctx.shape(0)?.rank()
            ));
        };
        let value = ctx.take_input(1)?;
        let at = split_axis(dim, value.shape().rank())?;
        let size = value.shape()[at];
        if !size.is_multiple_of(n) {
            return Err(uneven(at, size, n));
        }
        if n == 1 {
            return ctx.set_output(0, value);
        }
        let lens = std::iter::repeat_n(size / n, n);
        split_along(ctx, &value, at, lens, |len| {
            with_dim(value.shape(), at, len)
        })
    }))
}

fn split_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.num_outputs();
    let input = ctx.input(1);
    let Some(rank) = input.rank() else {
        return Ok(());
    };
    let out = match constant_int(ctx, 0) {
        None => PartialShape::of_rank(rank),
        Some(dim) => {
            let at = split_axis(dim, rank)?;
            let size = input.dim(at as isize);
            if let Some(size) = size.filter(|s| !s.is_multiple_of(n)) {
                return Err(uneven(at, size, n));
            }
            indices::partial(rank, |j| {
                if j == at {
                    size.map(|s| s / n)
                } else {
                    input.dim(j as isize)
                }
            })
        }
    };
    for i in 0..n {
        ctx.set(i, out.clone());
    }
    Ok(())
}

/// Returns the sizes with the one −1 among them resolved; they add up to `total` if that is
/// known.
fn split_sizes(
    sizes: &[i64],
    total: Option<usize>,
    n: usize,
) -> Result<SmallVec<[Option<usize>; 8]>> {
    if sizes.len() != n {
        return Err(invalid_argument!(
            "size_splits has to have num_split = {n} elements, but has {}",
            sizes.len()
        ));
    }
    let mut unknown = None;
    let mut sum = 0i64;
    for (i, &s) in sizes.iter().enumerate() {
        if s == -1 {
            if unknown.replace(i).is_some() {
                return Err(invalid_argument!("There can only be one -1 in the input."));
            }
        } else {
            sum = sum
                .checked_add(s)
                .ok_or_else(|| invalid_argument!("size_splits overflow"))?;
        }
    }
    let mut out: SmallVec<[Option<usize>; 8]> =
        sizes.iter().map(|&s| usize::try_from(s).ok()).collect();
    if let Some(total) = total {
        let rest = (total as i64).saturating_sub(sum);
        if rest < 0 || (rest > 0 && unknown.is_none()) {
            return Err(invalid_argument!(
                "Determined shape must either match input shape along split_dim exactly if fully \
                 specified, or be less than the size of the input along split_dim if not fully \
                 specified.  Got: {sum}"
            ));
        }
        if let Some(i) = unknown {
            out[i] = Some(rest as usize);
        }
    }
    match sizes.iter().position(|&s| s < -1) {
        Some(i) => Err(invalid_argument!(
            "Split size at index {i} must be >= 0. Got: {}",
            sizes[i]
        )),
        None => Ok(out),
    }
}

fn split_v(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let n = ctx.num_outputs();
        let Some(dim) = indices::int(ctx.input(2)?) else {
            return Err(invalid_argument!(
                "split_dim_tensor must have exactly one element."
            ));
        };
        let sizes = ctx.input(1)?;
        if sizes.shape().dims() != [n] {
            return Err(invalid_argument!(
                "size of the split_tensor must be 1-D and have the same elements as outputs got {} \
                 -D and {} elements",
                sizes.shape().rank(),
                sizes.num_elements()
            ));
        }
        let sizes = indices::ints(sizes)?;
        let value = ctx.take_input(0)?;
        let at = split_axis(dim, value.shape().rank())?;
        let size = value.shape()[at];
        // TensorFlow's optimizer makes an identity of one output, whose size may be -1 then.
        if n == 1 && sizes[0] != size as i64 && sizes[0] != -1 {
            return Err(invalid_argument!(
                "If there is only one output, it must have the same size as the input. Input size: \
                 {size} output size: {}",
                sizes[0]
            ));
        }
        if n == 1 {
            return ctx.set_output(0, value);
        }
        let sizes = split_sizes(&sizes, Some(size), n)?;
        let lens = sizes.into_iter().flatten();
        split_along(ctx, &value, at, lens, |len| {
            with_dim(value.shape(), at, len)
        })
    }))
}

fn split_v_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = ctx.num_outputs();
    let input = ctx.input(0);
    let Some(rank) = input.rank() else {
        return Ok(());
    };
    let dim = match constant_int(ctx, 2) {
        Some(dim) => Some(split_axis(dim, rank)?),
        None => None,
    };
    let sizes = match (constant(ctx, 1), dim) {
        (Some(sizes), Some(at)) => Some(split_sizes(&sizes, input.dim(at as isize), n)?),
        _ => None,
    };
    for i in 0..n {
        let out = indices::partial(rank, |j| match dim {
            Some(at) if j != at => input.dim(j as isize),
            Some(_) => sizes.as_ref().and_then(|s| s[i]),
            None => None,
        });
        ctx.set(i, out);
    }
    Ok(())
}

fn joined<'g>(g: &GradientCtx<'g>, axis: Expr<'g>) -> Expr<'g> {
    let mut parts: Vec<Expr> = (0..g.num_outputs()).map(|i| g.dy(i)).collect();
    parts.push(axis);
    axis.make("ConcatV2", &parts, &[])
}

/// Returns the gradient of Split.
fn split_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = joined(g, g.x(0));
    g.set(1, dx)
}

/// Returns the gradient of SplitV.
fn split_v_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = joined(g, g.x(2));
    g.set(0, dx)
}
