//! AudioSpectrogram and Mfcc (TensorFlow: `core/kernels/spectrogram.cc`, `mfcc.cc`,
//! `mfcc_mel_filterbank.cc` and `mfcc_dct.cc`).

use crate::wav::scalar_rate;
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_fft::Real;
use ferroflow_functors::indices::shape_of;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::f64::consts::PI;

/// AudioSpectrogram, Mfcc.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "AudioSpectrogram",
        "input: float -> spectrogram: float | window_size: int; stride: int; magnitude_squared: \
         bool = false",
    )
    .shape(spectrogram_shape)
    .cost(Cost::Expensive)
    .kernel(spectrogram),
    Op::new(
        "Mfcc",
        "spectrogram: float, sample_rate: int32 -> output: float | upper_frequency_limit: float \
         = 4000.0; lower_frequency_limit: float = 20.0; filterbank_channel_count: int = 40; \
         dct_coefficient_count: int = 13",
    )
    .shape(|ctx| {
        let input = ctx.with_rank(0, 3)?;
        ctx.with_rank(1, 0)?;
        let count = usize::try_from(ctx.attrs().int("dct_coefficient_count")?).ok();
        ctx.set(0, PartialShape::of([input.dim(0), input.dim(1), count]));
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(mfcc),
];

/// Sizes of windows and their distance.
#[derive(Clone, Copy)]
struct Windows {
    size: usize,
    stride: usize,
}

impl Windows {
    fn new(size: i64, stride: i64) -> Result<Windows> {
        let number = |n: i64, least: i32| {
            let n = i32::try_from(n).ok().filter(|&n| n >= least)?;
            usize::try_from(n).ok()
        };
        let size = number(size, 2)
            .ok_or_else(|| invalid_argument!("window size must be > 1, got {size}"))?;
        let stride = number(stride, 1)
            .ok_or_else(|| invalid_argument!("stride must be strictly positive, got {stride}"))?;
        Ok(Windows { size, stride })
    }

    fn count(self, samples: usize) -> usize {
        match samples.checked_sub(self.size) {
            Some(rest) => 1 + rest / self.stride,
            None => 0,
        }
    }

    fn frequencies(self) -> usize {
        1 + self.size.next_power_of_two() / 2
    }
}

fn spectrogram_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.with_rank(0, 2)?;
    let windows = Windows::new(ctx.attrs().int("window_size")?, ctx.attrs().int("stride")?)?;
    let count = input.dim(0).map(|n| windows.count(n));
    let width = Some(windows.frequencies());
    ctx.set(0, PartialShape::of([input.dim(1), count, width]));
    Ok(())
}

fn spectrogram(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let windows = Windows::new(build.attrs.int("window_size")?, build.attrs.int("stride")?)?;
    let squared = build.attrs.bool("magnitude_squared")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?;
        let &[samples, channels] = shape.dims() else {
            return Err(invalid_argument!("input must be 2-dimensional{shape}"));
        };
        let (count, width) = (windows.count(samples), windows.frequencies());
        let mut out = ctx.alloc(DType::Float, shape_of([channels, count, width])?)?;
        if out.num_elements() == 0 {
            return ctx.set_output(0, out);
        }
        let length = windows.size.next_power_of_two();
        let plan = f64::real_to_complex(length);
        let (mut signal, mut spectrum) = (plan.make_input_vec(), plan.make_output_vec());
        let mut scratch = plan.make_scratch_vec();
        let hann = |i: usize| 0.5 - 0.5 * (2.0 * PI * i as f64 / windows.size as f64).cos();
        let window: Vec<f64> = (0..windows.size).map(hann).collect();
        let input = ctx.slice::<f32>(0)?;
        for (i, row) in out.slice_mut::<f32>()?.chunks_exact_mut(width).enumerate() {
            let (channel, first) = (i / count, i % count * windows.stride);
            let column = input[first * channels + channel..].iter().step_by(channels);
            signal.fill(0.0);
            for ((to, x), w) in signal.iter_mut().zip(column).zip(&window) {
                *to = f64::from(*x) * w;
            }
            plan.process_with_scratch(&mut signal, &mut spectrum, &mut scratch)
                .map_err(|e| internal!("real FFT: {e}"))?;
            for (to, z) in row.iter_mut().zip(&spectrum) {
                let power = z.norm_sqr() as f32;
                *to = if squared { power } else { power.sqrt() };
            }
        }
        ctx.set_output(0, out)
    }))
}

fn mfcc(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let limits = [
        f64::from(attrs.float("lower_frequency_limit")?),
        f64::from(attrs.float("upper_frequency_limit")?),
    ];
    let channels = attrs.int("filterbank_channel_count")?;
    let coefficients = attrs.int("dct_coefficient_count")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shape = ctx.shape(0)?;
        let &[tracks, frames, bins] = shape.dims() else {
            return Err(invalid_argument!(
                "spectrogram must be 3-dimensional{shape}"
            ));
        };
        let rate = scalar_rate(ctx)?;
        let count = |n: i64| usize::try_from(n).ok().filter(|&n| n > 0);
        let sizes = count(channels).zip(count(coefficients));
        let sizes = sizes.filter(|(channels, coefficients)| coefficients <= channels);
        let ordered = limits[0] >= 0.0 && limits[1] > limits[0];
        let Some((n, m)) = sizes.filter(|_| ordered && rate > 0 && bins >= 2) else {
            return Err(invalid_argument!(
                "Mfcc initialization failed for channel count {bins}, sample rate {rate} and \
                 filterbank_channel_count {channels}"
            ));
        };
        let bank = MelBank::new(bins, f64::from(rate), n, limits);
        let cosines = cosines(n, m)?;
        let cosines = cosines.slice::<f64>()?;
        let mut out = ctx.alloc(DType::Float, shape_of([tracks, frames, m])?)?;
        let spectra = ctx.slice::<f32>(0)?.chunks_exact(bins);
        let mut energies = vec![0.0; n];
        for (row, spectrum) in out.slice_mut::<f32>()?.chunks_exact_mut(m).zip(spectra) {
            if bank.end >= bins {
                // As TensorFlow does for spectra that end below the upper limit.
                row.fill(0.0);
                continue;
            }
            bank.apply(spectrum, &mut energies);
            for x in &mut energies {
                *x = x.max(1e-12).ln();
            }
            for (to, cosines) in row.iter_mut().zip(cosines.chunks_exact(n)) {
                let terms = cosines.iter().zip(&energies).map(|(c, x)| c * x);
                *to = terms.sum::<f64>() as f32;
            }
        }
        ctx.set_output(0, out)
    }))
}

/// Returns the matrix of the cosine transform from `n` energies to `m` coefficients.
fn cosines(n: usize, m: usize) -> Result<Tensor> {
    let mut out = Tensor::zeros(DType::Double, shape_of([m, n])?)?;
    let norm = (2.0 / n as f64).sqrt();
    let step = PI / n as f64;
    for (i, row) in out.slice_mut::<f64>()?.chunks_exact_mut(n).enumerate() {
        for (j, to) in row.iter_mut().enumerate() {
            *to = norm * (i as f64 * step * (j as f64 + 0.5)).cos();
        }
    }
    Ok(out)
}

/// Triangular filters on the mel scale. Each bin counts for two neighboring ones.
struct MelBank {
    start: usize,
    end: usize,
    /// For each bin, one more than the filter whose falling side it is on, and its weight there.
    bins: Vec<(usize, f64)>,
}

fn mel(frequency: f64) -> f64 {
    1127.0 * (frequency / 700.0).ln_1p()
}

impl MelBank {
    fn new(length: usize, rate: f64, channels: usize, [low, high]: [f64; 2]) -> MelBank {
        let mel_low = mel(low);
        let spacing = (mel(high) - mel_low) / (channels + 1) as f64;
        let center = |i: usize| mel_low + spacing * (i + 1) as f64;
        let per_bin = 0.5 * rate / (length - 1) as f64;
        let start = (1.5 + low / per_bin) as usize;
        let end = (high / per_bin) as usize;
        let mut channel = 0;
        let bins = (0..length).map(|i| {
            let at = mel(i as f64 * per_bin);
            if i < start || i > end {
                return (0, 0.0);
            }
            while channel < channels && center(channel) < at {
                channel += 1;
            }
            let weight = match channel.checked_sub(1) {
                Some(left) => (center(channel) - at) / (center(channel) - center(left)),
                None => (center(0) - at) / (center(0) - mel_low),
            };
            (channel, weight)
        });
        MelBank {
            start,
            end,
            bins: bins.collect(),
        }
    }

    fn apply(&self, spectrum: &[f32], energies: &mut [f64]) {
        energies.fill(0.0);
        let bins = self.bins.iter().zip(spectrum);
        for ((channel, weight), power) in bins.take(self.end + 1).skip(self.start) {
            let value = f64::from(*power).sqrt();
            if let Some(left) = channel.checked_sub(1) {
                energies[left] += value * weight;
            }
            if let Some(right) = energies.get_mut(*channel) {
                *right += value - value * weight;
            }
        }
    }
}
