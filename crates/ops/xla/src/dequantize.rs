//! XlaDequantize: bytes that are packed in integers, as numbers (XLA: `hlo/builder/lib/quantize.h`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::transpose::transposed;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, Shape, bf16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "XlaDequantize",
    "input: uint32 -> output: bfloat16 | min_range: float; max_range: float; mode: string; transpose_output: bool | \
     stateful",
)
.kernel(dequantize)];

fn dequantize(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (min, max) = (
        build.attrs.float("min_range")?,
        build.attrs.float("max_range")?,
    );
    let is_combined = build.attrs.str("mode")? == "MIN_COMBINED";
    let is_transposed = build.attrs.bool("transpose_output")?;
    let round = bf16::from_f32;
    let scale = round((max - min) / 255.0);
    let offset = round(min);
    let value = move |byte: u8| round(round(f32::from(byte)).to_f32() * scale.to_f32());
    let table: Vec<bf16> = (0..=u8::MAX)
        .map(|byte| round(value(byte).to_f32() + offset.to_f32()))
        .collect();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if !is_combined {
            return Err(invalid_argument!(
                "Only MIN_COMBINED mode is supported in xla::Dequantize Op."
            ));
        }
        let x = ctx.input(0)?;
        let mut dims = x.shape().to_i64();
        let Some(last) = dims.last_mut() else {
            return Err(invalid_argument!(
                "the input must have at least one dimension"
            ));
        };
        *last = last.saturating_mul(4);
        let mut out = ctx.alloc(DType::Bfloat16, Shape::checked(&dims)?)?;
        let words = x.slice::<u32>()?;
        for (out, word) in out.slice_mut::<bf16>()?.chunks_exact_mut(4).zip(words) {
            for (out, byte) in out.iter_mut().zip(word.to_be_bytes()) {
                *out = table[usize::from(byte)];
            }
        }
        if is_transposed {
            let perm: Vec<usize> = (0..dims.len()).rev().collect();
            out = transposed(ctx, out, &perm)?;
        }
        ctx.set_output(0, out)
    }))
}
