//! Dilation2D: grayscale dilation, the maximum of input plus filter under a window (TensorFlow:
//! `core/kernels/dilation_ops.cc`).

use crate::conv_reference::{output_dims, sizes};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::numeric::Ordered;
use ferroflow_functors::window::{NHWC, Placed, Rule, Rules, ints32, pads, shape as shape_of};
use ferroflow_opdef::{Attrs, Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::conv::{Conv2dShape, Conv3dShape};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};

/// Dilation2D.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Dilation2D",
    "input: T, filter: T -> output: T | T: realnumbertype; strides: list(int) >= \
         4; rates: list(int) >= 4; padding: string {'SAME','VALID'}",
)
.shape(shape)
.cost(Cost::Expensive)
.kernel(build)
.gradient(gradient)];

fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (input, filter, d) = (g.x(0), g.x(1), g.dy(0));
    let attrs = ["strides", "rates", "padding"].map(|name| g.attr(name));
    for (i, by) in ["Input", "Filter"].into_iter().enumerate() {
        if g.needs(i) {
            let op = format!("Dilation2DBackprop{by}");
            g.set(i, input.op_with(&op, &[filter, d], &attrs))?;
        }
    }
    Ok(())
}

pub(crate) fn rules(attrs: &Attrs) -> Result<Rules> {
    let (strides, rates) = (ints32(attrs, "strides")?, ints32(attrs, "rates")?);
    for (values, name) in [(&strides, "strides"), (&rates, "rates")] {
        if values.len() != 4 {
            return Err(invalid_argument!(
                "Sliding window {name} field must specify 4 dimensions"
            ));
        }
        if values[0] != 1 || values[3] != 1 {
            return Err(unimplemented_error!(
                "{name} is only supported across spatial dimensions."
            ));
        }
        if values[1] < 1 || values[2] < 1 {
            return Err(invalid_argument!("{name} must be at least 1."));
        }
    }
    Ok(pads(attrs, NHWC)?
        .into_iter()
        .enumerate()
        .map(|(i, pad)| Rule {
            stride: strides[i + 1],
            dilation: rates[i + 1],
            pad,
        })
        .collect())
}

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let rules = rules(ctx.attrs())?;
    let (input, filter) = (ctx.with_rank(0, 4)?, ctx.with_rank(1, 3)?);
    if let (Some(a), Some(b)) = (input.dim(3), filter.dim(2))
        && a != b
    {
        return Err(other_depth(a, b));
    }
    let height = rules[0].output(input.dim(1), filter.dim(0))?;
    let width = rules[1].output(input.dim(2), filter.dim(1))?;
    let depth = input.dim(3).or(filter.dim(2));
    ctx.set(0, PartialShape::of([input.dim(0), height, width, depth]));
    Ok(())
}

#[cold]
fn other_depth(input: usize, filter: usize) -> ferroflow_base::Status {
    invalid_argument!("input and filter must have the same depth: {input} vs {filter}")
}

pub(crate) fn place(rules: &Rules, input: &Shape, filter: &Shape) -> Result<Conv3dShape> {
    if input.rank() != 4 {
        return Err(invalid_argument!("input must be 4-dimensional{input}"));
    }
    if filter.rank() != 3 {
        return Err(invalid_argument!("filter must be 3-dimensional: {filter}"));
    }
    if input[3] != filter[2] {
        return Err(other_depth(input[3], filter[2]));
    }
    let axes = [
        Placed::ONE,
        rules[0].place(input[1], filter[0])?,
        rules[1].place(input[2], filter[1])?,
    ];
    Ok(sizes(input[0], axes, [input[3], input[3], 1]))
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let rules = rules(build.attrs)?;
    let dtype = build.input(0)?;
    let run = match dtype {
        DType::Half | DType::Bfloat16 => run::<f32>,
        _ => dispatch!(dtype, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64] => run::<T>,
            else return Err(build.unsupported(dtype))),
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let s = place(&rules, ctx.shape(0)?, ctx.shape(1)?)?;
        let dims = shape_of(&output_dims(NHWC, &s))?;
        let out = match dtype {
            DType::Half | DType::Bfloat16 => {
                let x = widened(ctx.par(), ctx.input(0)?)?;
                let filter = widened(ctx.par(), ctx.input(1)?)?;
                let mut out = ctx.alloc(DType::Float, dims)?;
                run(ctx.par(), &s, &x, &filter, &mut out)?;
                narrowed(ctx.par(), out, dtype)?
            }
            _ => {
                let mut out = ctx.alloc(dtype, dims)?;
                run(ctx.par(), &s, ctx.input(0)?, ctx.input(1)?, &mut out)?;
                out
            }
        };
        ctx.set_output(0, out)
    }))
}

fn run<T: Ordered>(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    x: &Tensor,
    filter: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    let (x, filter, p) = (x.slice::<T>()?, filter.slice::<T>()?, &s.plane);
    let (c, out) = (p.in_c, out.slice_mut::<T>()?);
    if out.is_empty() {
        return Ok(());
    }
    par_chunks_mut(par, out, p.out_w * c, 4, &|i, out| {
        out.fill(T::LOWEST);
        let (image, y) = (i / p.out_h, i % p.out_h);
        for ky in 0..p.filter_h {
            let at = (y * p.stride_h + ky * p.dil_h).checked_sub(p.pad_top);
            let Some(at) = at.filter(|at| *at < p.in_h) else {
                continue;
            };
            let row = &x[(image * p.in_h + at) * p.in_w * c..][..p.in_w * c];
            for kx in 0..p.filter_w {
                let filter = &filter[(ky * p.filter_w + kx) * c..][..c];
                dilate_row(p, kx, row, filter, out);
            }
        }
    });
    Ok(())
}

/// Updates a row of the output with one pixel of the filter, in column `kx`, and the row of the input under it.
fn dilate_row<T: Ordered>(p: &Conv2dShape, kx: usize, row: &[T], filter: &[T], out: &mut [T]) {
    let (c, shift) = (filter.len(), kx * p.dil_w);
    // The outputs for which the pixel is over the input.
    let first = p.pad_left.saturating_sub(shift).div_ceil(p.stride_w);
    let end = (p.in_w + p.pad_left).saturating_sub(shift);
    let end = end.div_ceil(p.stride_w).min(p.out_w);
    if first >= end {
        return;
    }
    let (from, out) = (
        first * p.stride_w + shift - p.pad_left,
        &mut out[first * c..end * c],
    );
    if let ([filter], 1) = (filter, p.stride_w) {
        for (o, x) in out.iter_mut().zip(&row[from..]) {
            *o = x.add(*filter).larger(*o);
        }
        return;
    }
    for (j, out) in out.chunks_exact_mut(c).enumerate() {
        let pixel = &row[(from + j * p.stride_w) * c..][..c];
        for ((o, x), f) in out.iter_mut().zip(pixel).zip(filter) {
            *o = x.add(*f).larger(*o);
        }
    }
}
