//! Multinomial (TensorFlow: `core/kernels/multinomial_op.cc`).

use crate::random_ops::Seeded;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::distributions::unit_f64;
use ferroflow_functors::indices::{Index, dispatch_index, int};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::philox::Philox;
use ferroflow_tensor::{DType, PartialShape, Tensor, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Multinomial",
    "logits: T, num_samples: int32 -> output: output_dtype | seed: int = 0; seed2: \
         int = 0; T: realnumbertype; output_dtype: type {int32,int64} = int64 | \
         stateful",
)
.shape(multinomial_shape)
.kernel(multinomial)
.not_differentiable()];

pub(crate) fn multinomial_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let rows = ctx.with_rank(0, 2)?.dim(0);
    ctx.with_rank(1, 0)?;
    let n = match ferroflow_functors::indices::constant_int(ctx, 1) {
        Some(n) if n < 0 => {
            return Err(invalid_argument!(
                "num_samples must be non-negative, got {n}"
            ));
        }
        n => n.map(|n| n as usize),
    };
    ctx.set(0, PartialShape::of([rows, n]));
    Ok(())
}

/// Draws classes by their logits (input 0); input 1 is the number per row.
pub(crate) fn draw<I: Index>(
    ctx: &KernelCtx,
    from: impl FnOnce(usize) -> Result<Philox>,
) -> Result<Tensor> {
    let (logits, count) = (ctx.input(0)?, ctx.input(1)?);
    let &[rows, classes] = logits.shape().dims() else {
        return Err(invalid_argument!(
            "logits should be a matrix, got shape {}",
            logits.shape()
        ));
    };
    if !count.shape().is_scalar() {
        return Err(invalid_argument!(
            "num_samples should be a scalar, got shape {}",
            count.shape()
        ));
    }
    let n = int(count).unwrap_or(-1);
    let Ok(n) = usize::try_from(n) else {
        return Err(invalid_argument!(
            "num_samples should be non-negative, got {n}"
        ));
    };
    if rows > 0 && classes == 0 {
        return Err(invalid_argument!("num_classes should be positive, got 0"));
    }
    let shape = ferroflow_functors::indices::shape_of([rows, n])?;
    let mut out = ctx.alloc(I::DTYPE, shape)?;
    if out.num_elements() == 0 {
        return Ok(out);
    }
    // A draw takes a double, which is two numbers of the generator.
    let mut stream = from(rows * n.next_multiple_of(4) * 2)?;
    let wide = as_doubles(logits)?;
    let mut sums = vec![0.0; classes];
    let rows = wide.chunks(classes);
    for (logits, out) in rows.zip(out.slice_mut::<I>()?.chunks_mut(n)) {
        let finite = logits.iter().filter(|x| x.is_finite());
        let max = finite.fold(f64::NEG_INFINITY, |a, &b| a.max(b));
        let mut total = 0.0;
        for (sum, x) in sums.iter_mut().zip(logits) {
            if x.is_finite() {
                total += (x - max).exp();
            }
            *sum = total;
        }
        for out in out {
            let (a, b) = (stream.next_u32(), stream.next_u32());
            let found = unit_f64(a, b) * total;
            *out = I::from_i64(sums.partition_point(|&sum| sum <= found) as i64);
        }
    }
    Ok(out)
}

/// Converts a tensor of a real type to doubles.
pub(crate) fn as_doubles(t: &Tensor) -> Result<Vec<f64>> {
    match t.dtype() {
        DType::Half => Ok(t.slice::<f16>()?.iter().map(|x| x.to_f64()).collect()),
        DType::Bfloat16 => Ok(t.slice::<bf16>()?.iter().map(|x| x.to_f64()).collect()),
        DType::Double => Ok(t.slice::<f64>()?.to_vec()),
        dtype => dispatch!(dtype, T in [f32, i8, i16, i32, i64, u8, u16, u32, u64]
            => Ok(t.slice::<T>()?.iter().map(|&x| x as f64).collect()),
            else Err(invalid_argument!("logits cannot be of type {dtype}"))),
    }
}

fn multinomial(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let seeded = Seeded::new(build)?;
    dispatch_index!(build.output(0)?, I => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let out = draw::<I>(ctx, |n| seeded.outputs(ctx, n))?;
        ctx.set_output(0, out)
    })))
}
