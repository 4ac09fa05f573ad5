//! DecodeCompressed (TensorFlow: `core/kernels/decode_compressed_op.cc`).

use ferroflow_base::{
    Result, data_loss, invalid_argument, resource_exhausted, unimplemented_error,
};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Bytes, Tensor};
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use std::io::{ErrorKind, Read};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "DecodeCompressed",
    "bytes: string -> output: string | compression_type: string = ''",
)
.shape(shapes::unchanged)
.cost(Cost::Expensive)
.kernel(kernel)];

#[derive(Clone, Copy)]
enum Compression {
    None,
    Zlib,
    Gzip,
}

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let compression = match build.attrs.str("compression_type")? {
        "" => Compression::None,
        "ZLIB" => Compression::Zlib,
        "GZIP" => Compression::Gzip,
        "ZSTD" => {
            return Err(unimplemented_error!(
                "ZSTD is not supported; compress with ZLIB or GZIP"
            ));
        }
        _ => {
            return Err(invalid_argument!(
                "Only ZLIB, ZSTD, GZIP or NONE are supported compressions"
            ));
        }
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let from = input.strings()?;
        let mut out: Vec<Result<Bytes>> = from.iter().map(|_| Ok(Bytes::new())).collect();
        par_chunks_mut(ctx.par(), &mut out, 1, 1, &|i, out| {
            out.fill_with(|| decoded(&from[i], compression));
        });
        let out = out.into_iter().collect::<Result<Vec<_>>>()?;
        let out = Tensor::from_strings(input.shape().clone(), out)?;
        ctx.set_output(0, out)
    }))
}

/// Returns the bytes; those before the end if the input is cut off, as in TensorFlow.
fn decoded(bytes: &Bytes, compression: Compression) -> Result<Bytes> {
    if bytes.is_empty() {
        return Ok(Bytes::new());
    }
    let starts_well = match (compression, &bytes[..]) {
        (Compression::Zlib, [a, b, ..]) => u16::from_be_bytes([*a, *b]).is_multiple_of(31),
        (Compression::Gzip, [a, b, ..]) => [*a, *b] == [0x1f, 0x8b],
        _ => true,
    };
    if !starts_well {
        return Err(data_loss!(
            "inflate() failed with error -3: incorrect header check"
        ));
    }
    let all = bytes.len();
    match compression {
        Compression::None => Ok(bytes.clone()),
        Compression::Zlib => inflated(ZlibDecoder::new(&bytes[..]), all, |d| d.get_ref().len()),
        Compression::Gzip => inflated(MultiGzDecoder::new(&bytes[..]), all, |d| d.get_ref().len()),
    }
}

/// Bytes after which the size of the result is estimated.
const START: usize = 16 << 20;

/// Reads all that `n` compressed bytes stand for, of which `left` are not read yet. The size of large results is
/// estimated from their start, so that they do not take twice the memory while they grow.
fn inflated<D: Read>(mut from: D, n: usize, left: impl Fn(&D) -> usize) -> Result<Bytes> {
    let mut out = Vec::with_capacity(n.saturating_mul(4).clamp(256, START));
    let mut read = from.by_ref().take(START as u64).read_to_end(&mut out);
    if out.len() == START && read.is_ok() {
        let most = i32::MAX as usize;
        let used = n.saturating_sub(left(&from)).max(1);
        let expected = START as u128 * n as u128 / used as u128;
        let more = (expected / 16 * 17).min(most as u128) as usize;
        out.try_reserve_exact(more.saturating_sub(START))
            .map_err(|_| resource_exhausted!("OOM when inflating {n} bytes to {expected}"))?;
        read = from.take((most - START) as u64).read_to_end(&mut out);
    }
    match read {
        Ok(_) => Ok(Bytes::from(out)),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(Bytes::from(out)),
        Err(e) => Err(data_loss!("inflate() failed with error -3: {e}")),
    }
}
