//! Gradients of Dilation2D: the maximum under a window gets the whole gradient (TensorFlow:
//! `core/kernels/dilation_ops.cc`).

use crate::conv_reference::{each_offset, output_dims, pixel};
use crate::dilation::{place, rules};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::numeric::Ordered;
use ferroflow_functors::window::{NHWC, shape as shape_of};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::conv::Conv3dShape;
use ferroflow_tensor::{DType, Tensor, dispatch};

/// Dilation2DBackpropInput, Dilation2DBackpropFilter.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Dilation2DBackpropInput",
        "input: T, filter: T, out_backprop: T -> in_backprop: T | T: realnumbertype; \
         strides: list(int) >= 4; rates: list(int) >= 4; padding: string \
         {'SAME','VALID'}",
    )
    .shape(|ctx| {
        let input = ctx.with_rank(0, 4)?;
        ctx.set(0, input);
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|build| kernel(build, false)),
    Op::new(
        "Dilation2DBackpropFilter",
        "input: T, filter: T, out_backprop: T -> filter_backprop: T | T: \
         realnumbertype; strides: list(int) >= 4; rates: list(int) >= 4; padding: \
         string {'SAME','VALID'}",
    )
    .shape(|ctx| {
        let filter = ctx.with_rank(1, 3)?;
        ctx.set(0, filter);
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|build| kernel(build, true)),
];

fn kernel(build: &KernelBuild, of_filter: bool) -> Result<Box<dyn OpKernel>> {
    let (rules, dtype) = (rules(build.attrs)?, build.output(0)?);
    let run = match dtype {
        DType::Half | DType::Bfloat16 => run::<f32>,
        _ => dispatch!(dtype, T in [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64] => run::<T>,
            else return Err(build.unsupported(dtype))),
    };
    let wide = matches!(dtype, DType::Half | DType::Bfloat16);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let s = place(&rules, ctx.shape(0)?, ctx.shape(1)?)?;
        let (dy, dims) = (ctx.shape(2)?, shape_of(&output_dims(NHWC, &s))?);
        if dy.rank() != 4 {
            return Err(invalid_argument!("out_backprop must be 4-dimensional{dy}"));
        }
        if *dy != dims {
            return Err(invalid_argument!("out_backprop has incompatible size."));
        }
        let operand = |i: usize| match wide {
            true => widened(ctx.par(), ctx.input(i)?),
            false => Ok(ctx.input(i)?.clone()),
        };
        let out = run(&s, &operand(0)?, &operand(1)?, &operand(2)?, of_filter)?;
        let out = match wide {
            true => narrowed(ctx.par(), out, dtype)?,
            false => out,
        };
        ctx.set_output(0, out)
    }))
}

fn run<T: Ordered>(
    s: &Conv3dShape,
    x: &Tensor,
    filter: &Tensor,
    dy: &Tensor,
    of_filter: bool,
) -> Result<Tensor> {
    let shape = if of_filter { filter } else { x }.shape().clone();
    let mut out = Tensor::zeros(T::DTYPE, shape)?;
    let (x, filter, dy) = (x.slice::<T>()?, filter.slice::<T>()?, dy.slice::<T>()?);
    let (to, c) = (out.slice_mut::<T>()?, s.plane.in_c);
    let (mut best, mut at) = (vec![T::LOWEST; c], vec![None; c]);
    for (i, dy) in dy.chunks_exact(c.max(1)).enumerate() {
        best.fill(T::LOWEST);
        at.fill(None);
        each_offset(s, pixel(s, i), |tap, from| {
            let values = x[from * c..][..c].iter().zip(&filter[tap * c..][..c]);
            for ((best, at), (x, f)) in best.iter_mut().zip(&mut at).zip(values) {
                let value = x.add(*f);
                if value > *best || at.is_none() {
                    *best = value;
                    *at = Some(if of_filter { tap } else { from });
                }
            }
        });
        for (j, (at, dy)) in at.iter().zip(dy).enumerate() {
            if let Some(at) = at {
                let place = &mut to[at * c + j];
                *place = place.add(*dy);
            }
        }
    }
    Ok(out)
}
