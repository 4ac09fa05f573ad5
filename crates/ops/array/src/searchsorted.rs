//! LowerBound and UpperBound: binary search in sorted rows (TensorFlow:
//! `core/kernels/searchsorted_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Element, Tensor, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "LowerBound",
        "sorted_inputs: T, values: T -> output: out_type | T: type; \
         out_type: type {int32,int64} = int32",
    )
    .shape(bound_shape)
    .kernel(|b| bound(b, false)),
    Op::new(
        "UpperBound",
        "sorted_inputs: T, values: T -> output: out_type | T: type; \
         out_type: type {int32,int64} = int32",
    )
    .shape(bound_shape)
    .kernel(|b| bound(b, true)),
];

fn bound_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = ctx.with_rank(1, 2)?;
    ctx.with_rank(0, 2)?;
    ctx.set(0, shape);
    Ok(())
}

fn bound(build: &KernelBuild, upper: bool) -> Result<Box<dyn OpKernel>> {
    let (dtype, index) = (build.input(0)?, build.output(0)?);
    let find: Find = dispatch!(dtype, T in [f32, f64, i32, i64, u8, i8, i16, u16, u32, u64, f16, bf16] =>
        find::<T>,
        else return Err(build.unsupported(dtype)));
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (sorted, values) = (ctx.input(0)?, ctx.input(1)?);
        let (s, v) = (sorted.shape(), values.shape());
        for (name, shape) in [("sorted_inputs", s), ("values", v)] {
            if shape.rank() != 2 {
                return Err(invalid_argument!(
                    "Shape must be rank 2 but is rank {} for `{name}` argument",
                    shape.rank()
                ));
            }
        }
        if s[0] != v[0] {
            return Err(invalid_argument!(
                "Leading dim_size of both tensors must match."
            ));
        }
        let mut out = ctx.alloc(index, v.clone())?;
        find(ctx.par(), sorted, values, upper, &mut out)?;
        ctx.set_output(0, out)
    }))
}

type Find = fn(&dyn Parallelism, &Tensor, &Tensor, bool, &mut Tensor) -> Result<()>;

/// Sets `out` to where each value of a row belongs in the sorted row.
fn find<T: Element + PartialOrd>(
    par: &dyn Parallelism,
    sorted: &Tensor,
    values: &Tensor,
    upper: bool,
    out: &mut Tensor,
) -> Result<()> {
    let (n, m) = (sorted.shape()[1], values.shape()[1]);
    let (from, wanted) = (sorted.slice::<T>()?, values.slice::<T>()?);
    let find = |i: usize| {
        let row = &from[i / m * n..][..n];
        let v = wanted[i];
        row.partition_point(|x| {
            if upper {
                !matches!(v.partial_cmp(x), Some(std::cmp::Ordering::Less))
            } else {
                *x < v
            }
        })
    };
    dispatch!(out.dtype(), I in [i32, i64] => {
        par_chunks_mut(par, out.slice_mut::<I>()?, 4096, 1, &|block, to| {
            for (j, o) in to.iter_mut().enumerate() {
                *o = find(block * 4096 + j) as I;
            }
        });
    }, else {});
    Ok(())
}
