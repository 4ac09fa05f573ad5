//! Codes of 8 bits from and to floats, and sums of them. A code stands for `(code - zero) * scale`.

use crate::int8::zero_code;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Attrs, Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::int8::{combine, dequantize, quantize, quantize_finely};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, PartialShape};

/// `_Int8Quantize`, `_Int8Dequantize`, and `_Int8Combine`, the codes of a weighted sum of one or two
/// tensors of codes: internal.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "_Int8Quantize",
        "x: float -> codes: uint8 | scale: float; zero: int; parts: int >= 0 = 0",
    )
    .shape(codes_shape)
    .cost(Cost::Expensive)
    .kernel(quantization),
    Op::new(
        "_Int8Dequantize",
        "codes: uint8 -> x: float | scale: float; zero: int",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Expensive)
    .kernel(|build| {
        let (scale, zero) = steps(build.attrs)?;
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let mut out = ctx.alloc(DType::Float, ctx.shape(0)?.clone())?;
            let codes = ctx.slice::<u8>(0)?;
            par_chunks_mut(ctx.par(), out.slice_mut()?, CHUNK, 1, &|i, out| {
                dequantize(&codes[i * CHUNK..][..out.len()], scale, zero, out);
            });
            ctx.set_output(0, out)
        }))
    }),
    Op::new(
        "_Int8Combine",
        "codes: N*uint8 -> sum: uint8 | N: int >= 1; factors: list(float); offset: float; \
         low: int = 0; high: int = 255",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Expensive)
    .kernel(combination),
];

/// Numbers below which a task is not worth dispatching; even.
const CHUNK: usize = 32 * 1024;

fn steps(attrs: &Attrs) -> Result<(f32, u8)> {
    let scale = attrs.float("scale")?;
    match scale > 0.0 && scale.is_finite() {
        true => Ok((scale, zero_code(attrs, "zero")?)),
        false => Err(invalid_argument!("scale must be positive, got {scale}")),
    }
}

/// The shape of the codes; with `parts` the last axis has two codes of each number.
fn codes_shape(ctx: &mut ShapeCtx) -> Result<()> {
    if ctx.attrs().int("parts")? == 0 {
        return shapes::unchanged(ctx);
    }
    let x = ctx.with_rank_at_least(0, 1)?;
    if let Some((last, outer)) = x.dims().and_then(<[_]>::split_last) {
        let last = last.and_then(|n| n.checked_mul(2));
        ctx.set(0, PartialShape::of(outer.iter().copied().chain([last])));
    }
    Ok(())
}

/// Codes, each followed by that of what is left of its number if a step has `parts`.
fn quantization(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (scale, zero) = steps(build.attrs)?;
    let parts = build.attrs.int("parts")? as f32;
    let is_fine = parts > 0.0;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let mut dims = ctx.shape(0)?.to_vec();
        if is_fine {
            let last = dims.last_mut();
            let last =
                last.ok_or_else(|| invalid_argument!("two codes of a number need an axis"))?;
            *last = last
                .checked_mul(2)
                .ok_or_else(|| invalid_argument!("{last} numbers are too many for two codes"))?;
        }
        let mut out = ctx.alloc(DType::Uint8, dims.into_iter().collect())?;
        let x = ctx.slice::<f32>(0)?;
        par_chunks_mut(ctx.par(), out.slice_mut()?, CHUNK, 1, &|i, out| {
            let first = i * CHUNK;
            match is_fine {
                true => {
                    let x = &x[first / 2..][..out.len() / 2];
                    quantize_finely(x, 1.0 / scale, zero, parts, out);
                }
                false => quantize(&x[first..][..out.len()], 1.0 / scale, zero, out),
            }
        });
        ctx.set_output(0, out)
    }))
}

fn combination(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let factors = build.attrs.floats("factors")?;
    let [a, b] = match (&factors[..], build.inputs.len()) {
        (&[a], 1) => [a, 0.0],
        (&[a, b], 2) => [a, b],
        (given, n) => {
            return Err(invalid_argument!(
                "one or two tensors of codes have as many factors, got {n} and {given:?}"
            ));
        }
    };
    let offset = build.attrs.float("offset")?;
    let limits = (
        zero_code(build.attrs, "low")?,
        zero_code(build.attrs, "high")?,
    );
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?.clone();
        let last = ctx.num_inputs() - 1;
        if *ctx.shape(last)? != shape {
            return Err(invalid_argument!(
                "Incompatible shapes: {shape} vs. {}",
                ctx.shape(last)?
            ));
        }
        let mut out = ctx.alloc(DType::Uint8, shape)?;
        let (x, y) = (ctx.slice::<u8>(0)?, ctx.slice::<u8>(last)?);
        par_chunks_mut(ctx.par(), out.slice_mut()?, CHUNK, 1, &|i, out| {
            let range = i * CHUNK..i * CHUNK + out.len();
            let parts = [&x[range.clone()], &y[range]];
            combine(parts, [a, b], offset, limits, out);
        });
        ctx.set_output(0, out)
    }))
}
