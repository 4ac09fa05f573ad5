//! DecodeRaw and DecodePaddedRaw (TensorFlow: `core/kernels/decode_padded_raw_op.cc` and
//! `decode_raw_op.cc`).

use ferroflow_base::{Result, invalid_argument, resource_exhausted};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "DecodeRaw",
        "bytes: string -> output: out_type | out_type: type \
         {half,float,double,int32,uint16,uint8,int16,int8,int64,complex64,complex128,bool,bfloat16}; \
         little_endian: bool = true",
    )
    .shape(|ctx| {
        let input = ctx.input(0);
        if let Some(dims) = input.dims() {
            ctx.set(0, PartialShape::of(dims.iter().copied().chain([None])));
        }
        Ok(())
    })
    .kernel(|build| raw(build, false))
    .not_differentiable(),
    Op::new(
        "DecodePaddedRaw",
        "input_bytes: string, fixed_length: int32 -> output: out_type | out_type: type \
         {half,float,double,int32,uint16,uint8,int16,int8,int64,bfloat16}; \
         little_endian: bool = true |",
    )
    .shape(|ctx| {
        ctx.with_rank(1, 0)?;
        let size = ctx.attrs().dtype("out_type")?.size() as i64;
        let width = match ferroflow_functors::indices::constant_int(ctx, 1) {
            Some(n) => {
                check_length(n, size)?;
                usize::try_from(n / size).ok()
            }
            None => None,
        };
        let input = ctx.input(0);
        if let Some(dims) = input.dims() {
            ctx.set(0, PartialShape::of(dims.iter().copied().chain([width])));
        }
        Ok(())
    })
    .kernel(|build| raw(build, true))
    .not_differentiable(),
];

fn check_length(length: i64, size: i64) -> Result<()> {
    if length % size != 0 {
        return Err(invalid_argument!(
            "fixed_length ({length}) must be a multiple of the size of out_type ({size})"
        ));
    }
    if length <= 0 {
        return Err(invalid_argument!(
            "fixed_length ({length}) must be greater than zero."
        ));
    }
    Ok(())
}

/// Returns the kernel that reinterprets the bytes of strings as numbers: all of one length, or, if
/// `padded`, padded with zeros or truncated to a given length.
fn raw(build: &KernelBuild, padded: bool) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    let swapped = !build.attrs.bool("little_endian")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (input, size) = (ctx.input(0)?, dtype.size().max(1));
        let strings = input.strings()?;
        let width = match padded {
            true => {
                let length = ctx.input(1)?;
                if !length.shape().is_scalar() {
                    return Err(invalid_argument!(
                        "k must be scalar, got shape {}",
                        length.shape()
                    ));
                }
                let length = i64::from(length.to_scalar::<i32>()?);
                check_length(length, size as i64)?;
                length as usize
            }
            false => strings.first().map_or(0, |s| s.len()),
        };
        if let Some(other) = strings.iter().find(|s| !padded && s.len() != width) {
            return Err(invalid_argument!(
                "DecodeRaw requires input strings to all be the same size, but element 1 has size \
                 {width} != {}",
                other.len()
            ));
        }
        if width % size != 0 {
            return Err(invalid_argument!(
                "Input to DecodeRaw has length {width} that is not a multiple of {size}, the size of \
                 {dtype}"
            ));
        }
        let mut bytes = Vec::new();
        let n = strings.len().saturating_mul(width);
        bytes
            .try_reserve_exact(n)
            .map_err(|_| resource_exhausted!("OOM when allocating {n} bytes"))?;
        for string in strings {
            let end = bytes.len() + width;
            bytes.extend_from_slice(&string[..width.min(string.len())]);
            bytes.resize(end, 0);
        }
        // Real and imaginary parts are byte-swapped separately.
        let unit = match dtype.is_complex() {
            true => size / 2,
            false => size,
        };
        if swapped && unit > 1 {
            bytes.chunks_exact_mut(unit).for_each(<[u8]>::reverse);
        }
        if dtype == DType::Bool {
            bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        let dims = input.shape().iter().copied().chain([width / size]);
        let shape: Shape = ferroflow_functors::indices::shape_of(dims)?;
        let out = Tensor::from_bytes(dtype, shape, &bytes)?;
        ctx.set_output(0, out)
    }))
}
