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

/// Elements that are looked at before their positions are written.
const BLOCK: usize = 256;

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
        let mut coords = vec![0; rank];
        let (mut rest, mut found) = (out.slice_mut::<i64>()?, [0; BLOCK]);
        for (i, row) in values.chunks(dims[rank - 1].max(1)).enumerate() {
            ferroflow_functors::strided::unravel(i, &dims[..rank - 1], &mut coords[..rank - 1]);
            for (block, values) in row.chunks(BLOCK).enumerate() {
                // Without branches: which elements are not zero cannot be predicted.
                let mut n_found = 0;
                for (j, v) in values.iter().enumerate() {
                    found[n_found & (BLOCK - 1)] = j;
                    n_found += usize::from(*v != zero);
                }
                let (to, tail) = std::mem::take(&mut rest).split_at_mut(n_found * rank);
                rest = tail;
                for (to, j) in to.chunks_exact_mut(rank).zip(&found) {
                    coords[rank - 1] = block * BLOCK + j;
                    for (to, &c) in to.iter_mut().zip(&coords) {
                        *to = c as i64;
                    }
                }
            }
        }
        ctx.set_output(0, out)
    }
    dispatch!(dtype, T in [bool, f32, f64, i32, i64, u8, i8, i16, u16, u32, u64, f16, bf16, Complex32, Complex64] =>
        Ok(Box::new(kernel::<T>)),
        else Err(build.unsupported(dtype)))
}
