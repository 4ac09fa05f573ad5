//! DecodeWav and EncodeWav: 16-bit PCM files (TensorFlow: `core/lib/wav/wav_io.cc`,
//! `core/kernels/decode_wav_op.cc` and `encode_wav_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::shape_of;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Tensor};

/// DecodeWav, EncodeWav.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "DecodeWav",
        "contents: string -> audio: float, sample_rate: int32 | desired_channels: int = -1; \
         desired_samples: int = -1",
    )
    .shape(decode_shape)
    .cost(Cost::Expensive)
    .kernel(decode),
    Op::new(
        "EncodeWav",
        "audio: float, sample_rate: int32 -> contents: string |",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 2)?;
        ctx.with_rank(1, 0)?;
        ctx.set(0, PartialShape::scalar());
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|_| Ok(Box::new(encode))),
];

/// Returns an attr that is a size, or -1 for the file's.
fn desired(n: i64, what: &str) -> Result<Option<usize>> {
    match n {
        -1 => Ok(None),
        n => usize::try_from(n)
            .map(Some)
            .map_err(|_| invalid_argument!("{what} must be non-negative, got {n}")),
    }
}

fn decode_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank(0, 0)?;
    let channels = desired(ctx.attrs().int("desired_channels")?, "channels")?;
    let samples = desired(ctx.attrs().int("desired_samples")?, "samples")?;
    ctx.set(0, PartialShape::of([samples, channels]));
    ctx.set(1, PartialShape::scalar());
    Ok(())
}

fn decode(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let channels = desired(build.attrs.int("desired_channels")?, "channels")?;
    let samples = desired(build.attrs.int("desired_samples")?, "samples")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let contents = ctx.input(0)?;
        let [bytes] = contents.strings()? else {
            return Err(invalid_argument!(
                "contents must be scalar, got shape {}",
                contents.shape()
            ));
        };
        if !contents.shape().is_scalar() {
            return Err(invalid_argument!(
                "contents must be scalar, got shape {}",
                contents.shape()
            ));
        }
        let wav = Wav::parse(bytes)?;
        let samples = samples.unwrap_or(wav.samples);
        let channels = channels.unwrap_or(wav.channels);
        let shape = shape_of([samples, channels])?;
        let mut audio = Tensor::zeros(DType::Float, shape)?;
        let frames = wav.data.chunks_exact(2 * wav.channels);
        let rows = audio.slice_mut::<f32>()?.chunks_exact_mut(channels.max(1));
        for (frame, row) in frames.zip(rows) {
            let frame = frame.as_chunks().0;
            for (c, to) in row.iter_mut().enumerate() {
                // The last channel is repeated.
                let sample = frame.get(c).or(frame.last()).copied().unwrap_or_default();
                *to = f32::from(i16::from_le_bytes(sample)) / 32768.0;
            }
        }
        let rate = wav.rate as i32;
        ctx.set_output(0, audio)?;
        ctx.set_output(1, Tensor::scalar(rate))
    }))
}

/// A file's header and samples.
struct Wav<'a> {
    channels: usize,
    samples: usize,
    rate: u32,
    data: &'a [u8],
}

/// The rest of a file.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, rest) = self
            .0
            .split_at_checked(n)
            .ok_or_else(|| invalid_argument!("Data too short when trying to read string"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn expect(&mut self, text: &str) -> Result<()> {
        let found = self.take(text.len())?;
        match found == text.as_bytes() {
            true => Ok(()),
            false => Err(invalid_argument!(
                "Header mismatch: Expected {text} but found {}",
                String::from_utf8_lossy(found)
            )),
        }
    }
}

/// Chunks that may precede the format.
const SKIPPED: [&[u8; 4]; 8] = [
    b"JUNK", b"bext", b"iXML", b"qlty", b"mext", b"levl", b"link", b"axml",
];

impl<'a> Wav<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Wav<'a>> {
        let mut reader = Reader(bytes);
        reader.expect("RIFF")?;
        reader.u32()?;
        reader.expect("WAVE")?;
        let (channels, rate) = format(&mut reader)?;
        let per_frame = 2 * channels;
        let mut data = None;
        while !reader.0.is_empty() {
            let id = reader.take(4)?;
            let size = reader.u32()?;
            if i32::try_from(size).is_err() {
                return Err(invalid_argument!(
                    "WAV data chunk '{}' is too large: {size} bytes, but the limit is {}",
                    String::from_utf8_lossy(id),
                    i32::MAX
                ));
            }
            let size = size as usize;
            if id != b"data" {
                reader.0 = reader.0.get(size..).unwrap_or_default();
                continue;
            }
            if data.is_some() {
                return Err(invalid_argument!("More than one data chunk found in WAV"));
            }
            data = Some(reader.take(size / per_frame * per_frame)?);
        }
        let data = data.ok_or_else(|| invalid_argument!("No data chunk found in WAV"))?;
        let samples = data.len() / per_frame;
        Ok(Wav {
            channels,
            samples,
            rate,
            data,
        })
    }
}

/// Reads the format; returns the number of channels and the sample rate.
fn format(reader: &mut Reader) -> Result<(usize, u32)> {
    let mut id = reader.take(4)?;
    while id != b"fmt " {
        if !SKIPPED.iter().any(|skipped| id == *skipped) {
            return Err(invalid_argument!(
                "Unexpected field {}",
                String::from_utf8_lossy(id)
            ));
        }
        let size = reader.u32()?;
        reader.take(size as usize)?;
        id = reader.take(4)?;
    }
    let size = reader.u32()?;
    if !matches!(size, 16 | 18) {
        return Err(invalid_argument!(
            "Bad format chunk size for WAV: Expected 16 or 18, but got{size}"
        ));
    }
    let format = reader.u16()?;
    if format != 1 {
        return Err(invalid_argument!(
            "Bad audio format for WAV: Expected 1 (PCM), but got{format}"
        ));
    }
    let channels = reader.u16()?;
    if channels < 1 {
        return Err(invalid_argument!(
            "Bad number of channels for WAV: Expected at least 1, but got {channels}"
        ));
    }
    let (rate, per_second) = (reader.u32()?, reader.u32()?);
    let (per_sample, bits) = (reader.u16()?, reader.u16()?);
    if bits != 16 {
        return Err(invalid_argument!(
            "Can only read 16-bit WAV files, but received {bits}"
        ));
    }
    let expected = 2 * u32::from(channels);
    if u32::from(per_sample) != expected {
        return Err(invalid_argument!(
            "Bad bytes per sample in WAV header: Expected {expected} but got {per_sample}"
        ));
    }
    let expected = u64::from(per_sample) * u64::from(rate);
    if u64::from(per_second) != expected {
        return Err(invalid_argument!(
            "Bad bytes per second in WAV header: Expected {expected} but got {per_second} \
             (sample_rate={rate}, bytes_per_sample={per_sample})"
        ));
    }
    if size == 18 {
        reader.0 = reader.0.get(2..).unwrap_or_default();
    }
    Ok((channels.into(), rate))
}

fn encode(ctx: &mut KernelCtx) -> Result<()> {
    let shape = ctx.shape(0)?;
    let &[_, channels] = shape.dims() else {
        return Err(invalid_argument!("audio must be 2-dimensional{shape}"));
    };
    let rate = scalar_rate(ctx)?;
    let rate = u32::try_from(rate).ok().filter(|&r| r > 0).ok_or_else(|| {
        invalid_argument!(
            "sample_rate must be in (0, 2^32), got: {}",
            i64::from(rate) as u64
        )
    })?;
    let out = ferroflow_functors::wav::encode(ctx.slice::<f32>(0)?, rate, channels)?;
    ctx.set_output(0, Tensor::string(out))
}

/// Returns input 1, the sample rate.
pub(crate) fn scalar_rate(ctx: &KernelCtx) -> Result<i32> {
    let rate = ctx.input(1)?;
    match rate.shape().is_scalar() {
        true => rate.to_scalar::<i32>(),
        false => Err(invalid_argument!(
            "Input sample_rate should be a scalar tensor, got {} instead.",
            rate.shape()
        )),
    }
}
