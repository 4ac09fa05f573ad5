//! QuantizedMaxPool and QuantizedAvgPool (TensorFlow: `core/kernels/quantized_pooling_ops.cc`).

use crate::conv_reference::{each_offset, output_dims, pixel};
use crate::pool::{PoolSpec, run_max, shape_average, shape_max};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::quantized::{Stored, codes, scalar_ranges, set_codes, set_range, stored};
use ferroflow_functors::window::shape as shape_of;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::conv::Conv3dShape;
use ferroflow_primitives::pool::PoolKind;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Element, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "QuantizedMaxPool",
        "input: T, min_input: float, max_input: float -> output: T, min_output: float, \
         max_output: float | T: type {qint8,quint8,qint32,qint16,quint16}; ksize: list(int); \
         strides: list(int); padding: string {'SAME','VALID'}",
    )
    .shape(|ctx| {
        shape_max(ctx)?;
        scalar_ranges(ctx, 1..3)
    })
    .cost(Cost::Expensive)
    .kernel(|build| kernel(build, PoolKind::Max)),
    Op::new(
        "QuantizedAvgPool",
        "input: T, min_input: float, max_input: float -> output: T, min_output: float, \
         max_output: float | T: type {qint8,quint8,qint32,qint16,quint16}; ksize: list(int); \
         strides: list(int); padding: string {'SAME','VALID'}",
    )
    .shape(|ctx| {
        shape_average(ctx)?;
        scalar_ranges(ctx, 1..3)
    })
    .cost(Cost::Expensive)
    .kernel(|build| kernel(build, PoolKind::Average)),
];

fn kernel(build: &KernelBuild, kind: PoolKind) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    let spec = PoolSpec::of(build.attrs, kind);
    dispatch!(stored(dtype), T in [u8, i8] => {
        let spec = spec?;
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let range = [ends(ctx, 1, "min_input")?, ends(ctx, 2, "max_input")?];
            let s = spec.place(ctx.shape(0)?)?;
            let x = codes(ctx, 0)?;
            let mut out = ctx.alloc(T::DTYPE, shape_of(&output_dims(spec.layout, &s))?)?;
            if out.num_elements() > 0 {
                match kind {
                    PoolKind::Max => run_max::<T>(ctx.par(), kind, &spec, &s, &x, &mut out)?,
                    _ => average(ctx.par(), &s, x.slice::<T>()?, out.slice_mut::<T>()?),
                }
            }
            set_codes(ctx, 0, out, dtype)?;
            set_range(ctx, 1, range)
        }))
    }, else Err(build.unsupported(dtype)))
}

fn ends(ctx: &KernelCtx, i: usize, name: &str) -> Result<f32> {
    let t = ctx.input(i)?;
    match t.shape().rank() {
        0 => t.to_scalar(),
        rank => Err(invalid_argument!(
            "{name} shape must be rank 0 but is rank {rank}, received shape: {}",
            t.shape()
        )),
    }
}

/// Writes the averages of windows, rounded toward zero.
fn average<T: Stored>(par: &dyn Parallelism, s: &Conv3dShape, x: &[T], out: &mut [T]) {
    let c = s.plane.in_c;
    par_chunks_mut(par, out, c, 64, &|i, out| {
        let (mut sums, mut n) = (vec![0i64; c], 0i64);
        each_offset(s, pixel(s, i), |_, from| {
            n += 1;
            let pixel = &x[from * c..][..c];
            sums.iter_mut().zip(pixel).for_each(|(s, x)| *s += x.wide());
        });
        for (to, sum) in out.iter_mut().zip(&sums) {
            *to = T::narrow(sum / n.max(1));
        }
    });
}
