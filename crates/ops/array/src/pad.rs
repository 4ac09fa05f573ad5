//! Pad and PadV2 (TensorFlow: `core/kernels/pad_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant, shape_of};
use ferroflow_functors::strided::{MIN_BLOCK, par_rows, unravel};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Item, PartialShape, Shape, Tensor, dispatch_items};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Pad",
        "input: T, paddings: Tpaddings -> output: T | T: type; Tpaddings: type \
         {int32,int64} = int32",
    )
    .shape(pad_shape)
    .kernel(pad)
    .gradient(pad_gradient),
    Op::new(
        "PadV2",
        "input: T, paddings: Tpaddings, constant_values: T -> output: T | T: type; \
         Tpaddings: type {int32,int64} = int32",
    )
    .shape(pad_shape)
    .kernel(pad)
    .gradient(pad_gradient),
];

/// The padding before and after each dimension.
pub(crate) type Margins = SmallVec<[(usize, usize); 8]>;

/// Returns the margins of each dimension; `name` is that of refusals.
pub(crate) fn margins(values: &[i64], name: &str) -> Result<Margins> {
    values
        .chunks_exact(2)
        .map(|p| match (usize::try_from(p[0]), usize::try_from(p[1])) {
            (Ok(before), Ok(after)) => Ok((before, after)),
            _ => Err(invalid_argument!(
                "{name} must be non-negative: {} {}",
                p[0],
                p[1]
            )),
        })
        .collect()
}

pub(crate) fn margins_input(ctx: &KernelCtx, rank: usize, name: &str) -> Result<Margins> {
    let paddings = ctx.input(1)?;
    let shape = paddings.shape();
    if shape.rank() != 2 || shape[1] != 2 {
        return Err(invalid_argument!(
            "paddings must be a matrix with 2 columns: {shape}"
        ));
    }
    if shape[0] != rank {
        return Err(invalid_argument!(
            "The first dimension of paddings must be the rank of inputs{shape} {}",
            ctx.shape(0)?
        ));
    }
    margins(&indices::ints(paddings)?, name)
}

pub(crate) fn padded(shape: &Shape, margins: &Margins) -> Result<Shape> {
    shape_of(
        shape
            .iter()
            .zip(margins)
            .map(|(d, m)| d.saturating_add(m.0).saturating_add(m.1)),
    )
}

/// Infers the output shape of a padding op: that of `input` plus margins.
pub(crate) fn pad_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let paddings = ctx.with_rank(1, 2)?;
    if paddings.dim(1).is_some_and(|d| d != 2) {
        return Err(invalid_argument!(
            "Dimension must be 2 but is {:?}",
            paddings.dim(1)
        ));
    }
    if ctx.num_inputs() > 2 {
        ctx.with_rank(2, 0)?;
    }
    let mut input = ctx.input(0);
    if let Some(rank) = paddings.dim(0).filter(|&n| n <= 254) {
        input = ctx.with_rank(0, rank)?;
    }
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let shape = match constant(ctx, 1) {
        Some(values) if values.len() == 2 * dims.len() => {
            let m = margins(&values, "Paddings")?;
            indices::partial(dims.len(), |i| {
                dims[i]?.checked_add(m[i].0)?.checked_add(m[i].1)
            })
        }
        _ => PartialShape::of_rank(dims.len()),
    };
    ctx.set(0, shape);
    Ok(())
}

fn pad(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(pad_values))
}

fn pad_values(ctx: &mut KernelCtx) -> Result<()> {
    let input = ctx.input(0)?;
    let shape = input.shape();
    let margins = margins_input(ctx, shape.rank(), "Paddings")?;
    let has_value = ctx.num_inputs() > 2;
    if has_value && !ctx.shape(2)?.is_scalar() {
        return Err(invalid_argument!(
            "constant_values must be a scalar. Found: {}",
            ctx.shape(2)?
        ));
    }
    let out_shape = padded(shape, &margins)?;
    if out_shape.num_elements() == input.num_elements() {
        let same = ctx.take_input(0)?.with_shape(out_shape)?;
        return ctx.set_output(0, same);
    }
    let mut out = ctx.alloc(input.dtype(), out_shape)?;
    let value = has_value.then(|| ctx.input(2)).transpose()?;
    dispatch_items!(input.dtype(), T => {
        let value = value.map(Tensor::items::<T>).transpose()?.and_then(|v| v.first().cloned());
        pad_into(ctx, input.items::<T>()?, shape, &margins, &value.unwrap_or_default(), out.items_mut::<T>()?);
    });
    ctx.set_output(0, out)
}

/// Merges dimensions: a dimension without margins joins the one before it.
fn merged(shape: &[usize], margins: &Margins) -> (SmallVec<[usize; 8]>, Margins) {
    let (mut dims, mut ms) = (SmallVec::<[usize; 8]>::new(), Margins::new());
    for (&d, &(before, after)) in shape.iter().zip(margins) {
        match (dims.last_mut(), ms.last_mut()) {
            (Some(last), Some(m)) if before == 0 && after == 0 => {
                *last *= d;
                *m = (m.0 * d, m.1 * d);
            }
            _ => {
                dims.push(d);
                ms.push((before, after));
            }
        }
    }
    (dims, ms)
}

/// Returns dimensions with their margins.
fn widened(dims: &[usize], margins: &Margins) -> SmallVec<[usize; 8]> {
    dims.iter()
        .zip(margins)
        .map(|(d, m)| d + m.0 + m.1)
        .collect()
}

/// Returns the input row of an output row that is not in a margin.
fn source(row: usize, padded: &[usize], dims: &[usize], margins: &Margins) -> Option<usize> {
    let mut coords = SmallVec::<[usize; 8]>::from_elem(0, dims.len());
    unravel(row, padded, &mut coords);
    let mut from = Some(0);
    for ((&c, &d), &(m, _)) in coords.iter().zip(dims).zip(margins) {
        let inside = c.checked_sub(m).filter(|&c| c < d);
        from = from.zip(inside).map(|(f, c)| f * d + c);
    }
    from
}

fn pad_into<T: Item>(
    ctx: &KernelCtx,
    src: &[T],
    shape: &[usize],
    margins: &Margins,
    value: &T,
    out: &mut [T],
) {
    let (dims, margins) = merged(shape, margins);
    let (Some((&n, outer)), Some(&(before, after))) = (dims.split_last(), margins.last()) else {
        return;
    };
    let outer_out = widened(outer, &margins);
    let (row, value) = (before + n + after, || value.clone());
    let copy_row = |from: usize, to: &mut [T]| {
        to[..before].fill(value());
        to[before..before + n].clone_from_slice(&src[from * n..(from + 1) * n]);
        to[before + n..].fill(value());
    };
    // Planes of short rows: their places are not computed one by one.
    if let ([planes @ .., d], [padded_planes @ .., padded]) = (outer, &outer_out[..])
        && !planes.is_empty()
        && padded * row <= MIN_BLOCK
    {
        let (first, _) = margins[planes.len()];
        return par_rows(ctx.par(), out, padded * row, &|plane, to| {
            let Some(from) = source(plane, padded_planes, planes, &margins) else {
                return to.fill(value());
            };
            let (head, rest) = to.split_at_mut(first * row);
            let (rows, tail) = rest.split_at_mut(d * row);
            head.fill(value());
            for (i, to) in rows.chunks_exact_mut(row.max(1)).enumerate() {
                copy_row(from * d + i, to);
            }
            tail.fill(value());
        });
    }
    par_rows(
        ctx.par(),
        out,
        row,
        &|row, to| match source(row, &outer_out, outer, &margins) {
            None => to.fill(value()),
            Some(from) => copy_row(from, to),
        },
    );
}

fn pad_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, paddings, d) = (g.x(0), g.x(1), g.dy(0));
    let columns = [("num", 2i64.into()), ("axis", 1i64.into())];
    let columns = paddings.node("Unpack", &[paddings], &columns);
    let Some(before) = columns.first() else {
        return Ok(());
    };
    let shape = x.shape_of().cast(paddings.dtype());
    g.set(0, d.op("Slice", &[*before, shape]))
}
