//! Bitcast (TensorFlow: `c/kernels/bitcast_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::partial;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Bitcast",
    "input: T -> output: type | T: type \
         {bfloat16,half,float,double,int64,int32,uint8,uint16,uint32,uint64,int8,int16,complex64,complex128,qint8,quint8,qint16,quint16,qint32}; \
         type: type \
         {bfloat16,half,float,double,int64,int32,uint8,uint16,uint32,uint64,int8,int16,complex64,complex128,qint8,quint8,qint16,quint16,qint32}",
)
.shape(bitcast_shape)
.kernel(bitcast)];

/// Returns the dimensions after reading `from` as `to`: different sizes add or remove an innermost
/// dimension.
fn bitcast_dims(from: DType, to: DType, dims: &[Option<usize>]) -> Result<PartialShape> {
    let (a, b) = (from.size(), to.size());
    if a == 0 || b == 0 {
        return Err(invalid_argument!(
            "Cannot bitcast types {from} to {to} because of type sizes"
        ));
    }
    if a == b {
        return Ok(PartialShape::of(dims.iter().copied()));
    }
    if a > b {
        return Ok(PartialShape::of(dims.iter().copied().chain([Some(a / b)])));
    }
    match dims.split_last() {
        Some((last, rest)) if last.is_none_or(|d| d == b / a) => {
            Ok(PartialShape::of(rest.iter().copied()))
        }
        _ => Err(invalid_argument!(
            "Cannot bitcast from {} to {}",
            from as i32,
            to as i32
        )),
    }
}

fn bitcast_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (from, to) = (ctx.attrs().dtype("T")?, ctx.attrs().dtype("type")?);
    if let Some(dims) = ctx.input(0).dims() {
        let shape = bitcast_dims(from, to, dims)?;
        ctx.set(0, shape);
    }
    Ok(())
}

fn bitcast(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (from, to) = (build.input(0)?, build.output(0)?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let value = ctx.take_input(0)?;
        let dims = PartialShape::from(value.shape());
        let shape = bitcast_dims(from, to, dims.dims().unwrap_or(&[]))?;
        let out = if from.size() == to.size() {
            value.bitcast(to)?
        } else {
            let shape = partial(shape.rank().unwrap_or(0), |i| shape.dim(i as isize));
            let full = shape.to_full().unwrap_or_default();
            Tensor::from_bytes(to, full, value.bytes()?)?
        };
        ctx.set_output(0, out)
    }))
}
