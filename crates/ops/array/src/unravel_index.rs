//! UnravelIndex: coordinates of positions in a flattened tensor (TensorFlow:
//! `core/kernels/unravel_index_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices;
use ferroflow_functors::summarize::debug_string;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// UnravelIndex.
pub(crate) const OPS: &[Op] = &[Op::new(
    "UnravelIndex",
    "indices: Tidx, dims: Tidx -> output: Tidx | Tidx: type {int32,int64} = int32",
)
.shape(|ctx| {
    let dims = ctx.with_rank(1, 1)?;
    let indices = ctx.input(0);
    match indices.rank() {
        Some(0) => ctx.set(0, dims),
        Some(1) => ctx.set(0, PartialShape::of([dims.dim(0), indices.dim(0)])),
        _ => {}
    }
    Ok(())
})
.kernel(unravel)
.not_differentiable()];

fn unravel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (at, dims) = (ctx.input(0)?, ctx.input(1)?);
        if at.shape().rank() > 1 {
            return Err(invalid_argument!(
                "The indices can only be scalar or vector, got \"{}\"",
                at.shape()
            ));
        }
        if at.num_elements() == 0 {
            return Err(invalid_argument!(
                "received empty tensor indices: {}",
                debug_string(at)
            ));
        }
        if dims.shape().rank() != 1 {
            return Err(invalid_argument!(
                "The indices can only be 1-D, got \"{}\"",
                dims.shape()
            ));
        }
        let sizes = indices::ints(dims)?;
        let mut total: i64 = 1;
        for (i, &d) in sizes.iter().enumerate() {
            if d == 0 {
                return Err(invalid_argument!(
                    "Input dims cannot contain a dim of zero, but dims contains zero at index {i}"
                ));
            }
            if d < 0 {
                return Err(invalid_argument!(
                    "Input dims cannot be negative. Got dim = {d} at index {i}"
                ));
            }
            let fits = |p: &i64| dtype != DType::Int32 || i32::try_from(*p).is_ok();
            total = total.checked_mul(d).filter(fits).ok_or_else(|| {
                invalid_argument!(
                    "Input dims product is causing integer overflow: ({})",
                    indices::aligned(&sizes)
                )
            })?;
        }
        let at_list = indices::ints(at)?;
        let n = at_list.len();
        let mut out = vec![0i64; n.saturating_mul(sizes.len())];
        for (column, &index) in at_list.iter().enumerate() {
            if index >= total {
                return Err(invalid_argument!("index is out of bound as with dims"));
            }
            // Division that truncates makes coordinates of negative indices, too.
            let mut stride = 1;
            for (row, &d) in sizes.iter().enumerate().rev() {
                if let Some(cell) = out.get_mut(row * n + column) {
                    *cell = index % (stride * d) / stride;
                }
                stride *= d;
            }
        }
        let shape = match at.shape().is_scalar() {
            true => Shape::from([sizes.len()]),
            false => Shape::from([sizes.len(), n]),
        };
        let flat: Tensor = indices::int_vector(dtype, out.into_iter())?;
        ctx.set_output(0, flat.with_shape(shape)?)
    }))
}
