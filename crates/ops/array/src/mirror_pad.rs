//! MirrorPad and MirrorPadGrad (TensorFlow: `core/kernels/image/mirror_pad_op.cc`).

use crate::pad::{Margins, margins, margins_input, pad_shape, padded};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant};
use ferroflow_functors::strided::{par_rows, unravel};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{
    Complex32, Complex64, Element, Item, PartialShape, Shape, Tensor, bf16, dispatch,
    dispatch_items, f16,
};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MirrorPad",
        "input: T, paddings: Tpaddings -> output: T | T: type; Tpaddings: type \
         {int32,int64} = int32; mode: string {'REFLECT','SYMMETRIC'}",
    )
    .shape(pad_shape)
    .kernel(mirror_pad)
    .gradient(mirror_pad_gradient),
    Op::new(
        "MirrorPadGrad",
        "input: T, paddings: Tpaddings -> output: T | T: type; Tpaddings: type \
         {int32,int64} = int32; mode: string {'REFLECT','SYMMETRIC'}",
    )
    .shape(mirror_pad_grad_shape)
    .kernel(mirror_pad_grad)
    .gradient(mirror_pad_grad_gradient),
];

fn mode_offset(build: &KernelBuild) -> Result<usize> {
    // REFLECT omits the border, SYMMETRIC repeats it.
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

/// Returns the input index for output index `i` of a mirrored dimension.
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
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let dtype = ctx.input(0)?.dtype();
        dispatch_items!(dtype, T => mirror_pad_items::<T>(ctx, offset))
    }))
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
    // A row is the last padded dimension with those inside it.
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

/// Folds margins back: adds every element of the padded tensor to the one it mirrors.
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
