//! Where: the indices of nonzero elements (TensorFlow: `core/kernels/where_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Complex32, Complex64, DType, Element, PartialShape, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Where",
    "input: T -> index: int64 | T: type {numbertype,bool} = bool",
)
.shape(|ctx| {
    let rank = ctx.input(0).rank();
    ctx.set(0, PartialShape::of([None, rank]));
    Ok(())
})
.kernel(where_)];

fn where_(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    /// Returns the positions of the elements that are not zero.
    fn kernel<T: Element>(ctx: &mut KernelCtx) -> Result<()> {
        let input = ctx.input(0)?;
        let dims = input.shape();
        let rank = dims.rank();
        if !(1..=8).contains(&rank) {
            return Err(invalid_argument!(
                "WhereOp : Unhandled input dimensions: {rank}"
            ));
        }
        let values = input.slice::<T>()?;
        let zero = T::default();
        let n = values.iter().filter(|v| **v != zero).count();
        let mut out = ctx.alloc(DType::Int64, indices::shape_of([n, rank])?)?;
        let hits = values.iter().enumerate().filter(|(_, v)| **v != zero);
        let mut coords = vec![0; rank];
        let row = dims[rank - 1].max(1);
        let mut at = usize::MAX;
        for (to, (i, _)) in out.slice_mut::<i64>()?.chunks_mut(rank).zip(hits) {
            if i / row != at {
                at = i / row;
                ferroflow_functors::strided::unravel(i, dims, &mut coords);
            }
            coords[rank - 1] = i - at * row;
            for (t, &c) in to.iter_mut().zip(&coords) {
                *t = c as i64;
            }
        }
        ctx.set_output(0, out)
    }
    dispatch!(dtype, T in [bool, f32, f64, i32, i64, u8, i8, i16, u16, u32, u64, f16, bf16, Complex32, Complex64] =>
        Ok(Box::new(kernel::<T>)),
        else Err(build.unsupported(dtype)))
}
