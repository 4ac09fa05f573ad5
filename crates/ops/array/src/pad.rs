//! Margins around tensors: Pad, PadV2, MirrorPad, MirrorPadGrad.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant, shape_of};
use ferroflow_functors::strided::{par_rows, unravel};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{
    Complex32, Complex64, Element, Item, PartialShape, Shape, Tensor, bf16, dispatch,
    dispatch_items, f16,
};
use smallvec::SmallVec;

/// Pad, PadV2, MirrorPad, MirrorPadGrad.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Pad",
        "input: T, paddings: Tpaddings -> output: T | T: type; Tpaddings: type {int32,int64} = int32",
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
    Op::new(
        "MirrorPad",
        "input: T, paddings: Tpaddings -> output: T | T: type; \
         Tpaddings: type {int32,int64} = int32; mode: string {'REFLECT','SYMMETRIC'}",
    )
    .shape(pad_shape)
    .kernel(mirror_pad)
    .gradient(mirror_pad_gradient),
    Op::new(
        "MirrorPadGrad",
        "input: T, paddings: Tpaddings -> output: T | T: type; \
         Tpaddings: type {int32,int64} = int32; mode: string {'REFLECT','SYMMETRIC'}",
    )
    .shape(mirror_pad_grad_shape)
    .kernel(mirror_pad_grad)
    .gradient(mirror_pad_grad_gradient),
];

/// How much is added before and after each dimension.
type Margins = SmallVec<[(usize, usize); 8]>;

fn margins(values: &[i64]) -> Result<Margins> {
    values
        .chunks_exact(2)
        .map(|p| match (usize::try_from(p[0]), usize::try_from(p[1])) {
            (Ok(before), Ok(after)) => Ok((before, after)),
            _ => Err(invalid_argument!(
                "Paddings must be non-negative: {} {}",
                p[0],
                p[1]
            )),
        })
        .collect()
}

fn margins_input(ctx: &KernelCtx, rank: usize) -> Result<Margins> {
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
    margins(&indices::ints(paddings)?)
}

fn padded(shape: &Shape, margins: &Margins) -> Result<Shape> {
    shape_of(
        shape
            .iter()
            .zip(margins)
            .map(|(d, m)| d.saturating_add(m.0).saturating_add(m.1)),
    )
}

/// Shapes of a padding op: its output is `input` plus margins.
fn pad_shape(ctx: &mut ShapeCtx) -> Result<()> {
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
            let m = margins(&values)?;
            indices::partial(dims.len(), |i| {
                dims[i]?.checked_add(m[i].0)?.checked_add(m[i].1)
            })
        }
        _ => PartialShape::of_rank(dims.len()),
    };
    ctx.set(0, shape);
    Ok(())
}

fn pad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    Ok(dispatch_items!(dtype, T => Box::new(pad_items::<T>)))
}

fn pad_items<T: Item>(ctx: &mut KernelCtx) -> Result<()> {
    let input = ctx.input(0)?;
    let shape = input.shape();
    let margins = margins_input(ctx, shape.rank())?;
    let value = if ctx.num_inputs() > 2 {
        let value = ctx.input(2)?;
        if !value.shape().is_scalar() {
            return Err(invalid_argument!(
                "constant_values must be a scalar. Found: {}",
                value.shape()
            ));
        }
        value.items::<T>()?[0].clone()
    } else {
        T::default()
    };
    let out_shape = padded(shape, &margins)?;
    if out_shape.num_elements() == input.num_elements() {
        let same = ctx.take_input(0)?.with_shape(out_shape)?;
        return ctx.set_output(0, same);
    }
    let mut out = ctx.alloc(input.dtype(), out_shape)?;
    pad_into(
        ctx,
        input.items::<T>()?,
        shape,
        &margins,
        &value,
        out.items_mut::<T>()?,
    );
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
    let outer_out: SmallVec<[usize; 8]> = outer
        .iter()
        .zip(&margins)
        .map(|(d, m)| d + m.0 + m.1)
        .collect();
    par_rows(ctx.par(), out, before + n + after, &|row, to| {
        let mut coords = SmallVec::<[usize; 8]>::from_elem(0, outer.len());
        unravel(row, &outer_out, &mut coords);
        let mut from = Some(0);
        for ((&c, &d), &(m, _)) in coords.iter().zip(outer).zip(&margins) {
            let inside = c.checked_sub(m).filter(|&c| c < d);
            from = from.zip(inside).map(|(f, c)| f * d + c);
        }
        match from {
            None => to.fill(value.clone()),
            Some(from) => {
                to[..before].fill(value.clone());
                to[before..before + n].clone_from_slice(&src[from * n..(from + 1) * n]);
                to[before + n..].fill(value.clone());
            }
        }
    });
}

fn mode_offset(build: &KernelBuild) -> Result<usize> {
    // REFLECT leaves the border out, SYMMETRIC repeats it.
    Ok(if build.attrs.str("mode")? == "REFLECT" {
        1
    } else {
        0
    })
}

fn check_mirror(shape: &[usize], margins: &Margins, offset: usize) -> Result<()> {
    for (&d, m) in shape.iter().zip(margins) {
        if m.0.saturating_add(offset) > d.max(offset) && m.0 > 0
            || m.1.saturating_add(offset) > d.max(offset) && m.1 > 0
        {
            let words = if offset == 1 {
                "less than"
            } else {
                "no greater than"
            };
            return Err(invalid_argument!(
                "paddings must be {words} the dimension size: {}, {} not {words} {d}",
                m.0,
                m.1
            ));
        }
    }
    Ok(())
}

/// Which input index shows at output index `i` of a mirrored dimension.
fn mirrored(i: usize, before: usize, d: usize, offset: usize) -> usize {
    if i < before {
        before - 1 - i + offset
    } else if i < before + d {
        i - before
    } else {
        2 * d + before - 1 - i - offset
    }
}

fn mirror_pad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let offset = mode_offset(build)?;
    let dtype = build.input(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            mirror_pad_items::<T>(ctx, offset)
        })),
    )
}

fn mirror_pad_items<T: Item>(ctx: &mut KernelCtx, offset: usize) -> Result<()> {
    let input = ctx.input(0)?;
    let shape = input.shape();
    let margins = margins_input(ctx, shape.rank())?;
    check_mirror(shape, &margins, offset)?;
    let out_shape = padded(shape, &margins)?;
    if &out_shape == shape {
        let same = ctx.take_input(0)?;
        return ctx.set_output(0, same);
    }
    // Rows are the last padded dimension with what follows it.
    let last = margins.iter().rposition(|m| *m != (0, 0)).unwrap_or(0);
    let inner: usize = shape[last + 1..].iter().product();
    let (n, before) = (shape[last], margins[last].0);
    let outer_out = &out_shape[..last];
    let src = input.items::<T>()?;
    let mut out = ctx.alloc(input.dtype(), out_shape.clone())?;
    par_rows(
        ctx.par(),
        out.items_mut::<T>()?,
        out_shape[last] * inner,
        &|row, to| {
            let mut coords = SmallVec::<[usize; 8]>::from_elem(0, last);
            unravel(row, outer_out, &mut coords);
            let from = (0..last).fold(0, |f, i| {
                f * shape[i] + mirrored(coords[i], margins[i].0, shape[i], offset)
            });
            let from = &src[from * n * inner..(from + 1) * n * inner];
            to[before * inner..(before + n) * inner].clone_from_slice(from);
            let total = to.len() / inner.max(1);
            for i in (0..before).chain(before + n..total) {
                let j = mirrored(i, before, n, offset);
                to[i * inner..(i + 1) * inner].clone_from_slice(&from[j * inner..(j + 1) * inner]);
            }
        },
    );
    ctx.set_output(0, out)
}

fn mirror_pad_grad_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let shape = match constant(ctx, 1) {
        Some(values) if values.len() == 2 * dims.len() => {
            let m = margins(&values)?;
            indices::partial(dims.len(), |i| {
                dims[i]?.checked_sub(m[i].0)?.checked_sub(m[i].1)
            })
        }
        _ => PartialShape::of_rank(dims.len()),
    };
    ctx.set(0, shape);
    Ok(())
}

/// Folds margins back: every element of the padded tensor is added to the one it mirrors.
fn fold<T: Element>(ctx: &mut KernelCtx, offset: usize, add: fn(T, T) -> T) -> Result<()> {
    let input = ctx.input(0)?;
    let padded = input.shape();
    let margins = margins_input(ctx, padded.rank())?;
    let shape: Shape = padded
        .iter()
        .zip(&margins)
        .map(|(d, m)| {
            d.checked_sub(m.0.saturating_add(m.1)).ok_or_else(|| {
                invalid_argument!(
                    "Total paddings must be less than the input dimension size: {}, {}, {d}",
                    m.0,
                    m.1
                )
            })
        })
        .collect::<Result<_>>()?;
    check_mirror(&shape, &margins, offset)?;
    let mut out = Tensor::zeros(T::DTYPE, shape.clone())?;
    let to = out.slice_mut::<T>()?;
    let mut coords = SmallVec::<[usize; 8]>::from_elem(0, padded.rank());
    for (i, &v) in input.slice::<T>()?.iter().enumerate() {
        unravel(i, padded, &mut coords);
        let at = (0..shape.rank()).fold(0, |f, i| {
            f * shape[i] + mirrored(coords[i], margins[i].0, shape[i], offset)
        });
        to[at] = add(to[at], v);
    }
    ctx.set_output(0, out)
}

fn mirror_pad_grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let offset = mode_offset(build)?;
    macro_rules! kernel {
        ($ty:ty, $add:expr) => {
            Box::new(move |ctx: &mut KernelCtx| fold::<$ty>(ctx, offset, $add))
        };
    }
    let dtype = build.input(0)?;
    Ok(
        dispatch!(dtype, T in [i8, u8, i16, u16, i32, u32, i64, u64] => kernel!(T, T::wrapping_add),
        else dispatch!(dtype, T in [f32, f64, f16, bf16, Complex32, Complex64] =>
            kernel!(T, |a, b| a + b),
            else return Err(build.unsupported(dtype)))),
    )
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

fn mirror_pad_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g
        .dy(0)
        .op_with("MirrorPadGrad", &[g.x(1)], &[g.attr("mode")]);
    g.set(0, dx)
}

fn mirror_pad_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op_with("MirrorPad", &[g.x(1)], &[g.attr("mode")]);
    g.set(0, dx)
}
