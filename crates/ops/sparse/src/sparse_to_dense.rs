//! SparseToDense (TensorFlow: `core/kernels/sparse_to_dense_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::{indices, sparse};
use ferroflow_opdef::{Expr, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, Item, Shape, Tensor, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "SparseToDense",
    "sparse_indices: Tindices, output_shape: Tindices, sparse_values: T, \
         default_value: T -> dense: T | validate_indices: bool = true; T: type; \
         Tindices: type {int32,int64}",
)
.shape(|ctx| {
    let shape = indices::shape_input(ctx, 1)?;
    ctx.set(0, shape);
    Ok(())
})
.kernel(to_dense)
.gradient(|g| {
    let dy = g.dy(0);
    let dx = dy.op("GatherNd", &[g.x(0)]);
    g.set(2, dx.sum_to(g.x(2)))?;
    fn sum(e: Expr<'_>) -> Expr<'_> {
        e.reshape(e.ints([-1])).sum(e.int(0), false)
    }
    g.set(3, sum(dy) - sum(dx))
})];

fn to_dense(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let validate = build.attrs.bool("validate_indices")?;
    let dtype = build.output(0)?;
    Ok(
        dispatch_items!(dtype, T => Box::new(move |ctx: &mut KernelCtx| {
            let out = dense::<T>(ctx, dtype, validate)?;
            ctx.set_output(0, out)
        })),
    )
}

fn dense<T: Item>(ctx: &KernelCtx, dtype: DType, validate: bool) -> Result<Tensor> {
    let (at, sizes) = (ctx.input(0)?, ctx.input(1)?);
    let (values, default) = (ctx.input(2)?, ctx.input(3)?);
    let (n, width) = match *at.shape().dims() {
        [] => (1, 1),
        [n] => (n, 1),
        [n, width] => (n, width),
        _ => {
            return Err(invalid_argument!(
                "sparse_indices should be a scalar, vector, or matrix, got shape {}",
                at.shape()
            ));
        }
    };
    if sizes.shape().rank() != 1 {
        return Err(invalid_argument!(
            "output_shape must be rank 1, got shape {}",
            sizes.shape()
        ));
    }
    if sizes.num_elements() != width {
        return Err(invalid_argument!(
            "output_shape has incorrect number of elements: {} should be: {width}",
            sizes.num_elements()
        ));
    }
    let one = values.shape().is_scalar();
    if !one && (values.shape().rank() != 1 || values.num_elements() != n) {
        return Err(invalid_argument!(
            "sparse_values has incorrect shape {}, should be [] or [{n}]",
            values.shape()
        ));
    }
    if !default.shape().is_scalar() {
        return Err(invalid_argument!("default_value should be a scalar."));
    }
    let shape = Shape::checked(&indices::ints(sizes)?)?;
    let strides = shape.strides();
    let mut out = Tensor::for_overwrite(dtype, shape.clone())?;
    let filler = default.items::<T>()?.first().cloned().unwrap_or_default();
    let cells = out.items_mut::<T>()?;
    cells.fill(filler);
    let (at, values) = (indices::ints(at)?, values.items::<T>()?);
    if validate {
        sparse::check_ordered(&at, width, &shape.to_i64())?;
    }
    for i in 0..n {
        let row = at.get(i * width..(i + 1) * width).unwrap_or_default();
        let mut place = 0;
        for ((&x, &d), &s) in row.iter().zip(shape.dims()).zip(&strides) {
            let Some(x) = usize::try_from(x).ok().filter(|&x| x < d) else {
                return Err(invalid_argument!(
                    "Indices are not valid (out of bounds).  Shape: {shape}"
                ));
            };
            place += x * s;
        }
        let value = values.get(if one { 0 } else { i });
        if let (Some(cell), Some(value)) = (cells.get_mut(place), value) {
            *cell = value.clone();
        }
    }
    Ok(out)
}
