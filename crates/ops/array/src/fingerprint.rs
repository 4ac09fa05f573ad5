//! Fingerprint (TensorFlow: `core/kernels/fingerprint_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::hash::fingerprint64;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, PartialShape, Shape};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Fingerprint",
    "data: T, method: string -> fingerprint: uint8 | T: type",
)
.shape(|ctx| {
    let data = ctx.with_rank_at_least(0, 1)?;
    ctx.with_rank(1, 0)?;
    let known = ctx.constant(1).map(|_| size_of::<u64>());
    ctx.set(0, PartialShape::of([data.dim(0), known]));
    Ok(())
})
.kernel(kernel)];

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    if !dtype.is_plain() && dtype != DType::String {
        return Err(invalid_argument!("Data type not supported: {dtype}"));
    }
    Ok(Box::new(fingerprint))
}

fn fingerprint(ctx: &mut KernelCtx) -> Result<()> {
    let (data, method) = (ctx.input(0)?, ctx.input(1)?);
    let [name] = method.strings()? else {
        return Err(invalid_argument!(
            "`method` should be a scalar string: {}",
            method.shape()
        ));
    };
    if !method.shape().is_scalar() {
        return Err(invalid_argument!(
            "`method` should be a scalar string: {}",
            method.shape()
        ));
    }
    if &name[..] != b"farmhash64" {
        return Err(invalid_argument!(
            "Unsupported fingerprint method: {}",
            String::from_utf8_lossy(name)
        ));
    }
    let Some((&n, row)) = data.shape().split_first() else {
        return Err(invalid_argument!(
            "`data` should have at least one dimension: {}",
            data.shape()
        ));
    };
    let width: usize = row.iter().product();
    let mut out = ctx.alloc(DType::Uint8, Shape::from([n, size_of::<u64>()]))?;
    let fingerprint = |i: usize| -> Result<u64> {
        if data.dtype() != DType::String {
            let width = width * data.dtype().size();
            return Ok(fingerprint64(&data.bytes()?[i * width..][..width]));
        }
        match &data.strings()?[i * width..][..width] {
            [one] => Ok(fingerprint64(one)),
            // The fingerprint of all fingerprints.
            row => {
                let each = row.iter().map(|s| fingerprint64(s).to_le_bytes());
                Ok(fingerprint64(&each.collect::<Vec<_>>().concat()))
            }
        }
    };
    let rows = out.slice_mut::<u8>()?.as_chunks_mut().0;
    for (i, to) in rows.iter_mut().enumerate() {
        *to = fingerprint(i)?.to_le_bytes();
    }
    ctx.set_output(0, out)
}
