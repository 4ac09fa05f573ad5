//! AudioMicrofrontend: features of speech in integer arithmetic (TensorFlow:
//! `lite/experimental/microfrontend/ops/audio_microfrontend_op.cc`).

use crate::filter_channels::{
    FILTER_BITS, FilterBank, GainControl, Logarithm, NoiseReduction, bits,
};
use crate::fixed_fft::FixedFft;
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::indices::shape_of;
use ferroflow_opdef::{Attrs, Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, PartialShape};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "AudioMicrofrontend",
    "audio: int16 -> filterbanks: out_type | sample_rate: int = 16000; window_size: int = 25; \
     window_step: int = 10; num_channels: int = 32; upper_band_limit: float = 7500.0; \
     lower_band_limit: float = 125.0; smoothing_bits: int = 10; even_smoothing: float = 0.025; \
     odd_smoothing: float = 0.06; min_signal_remaining: float = 0.05; enable_pcan: bool = false; \
     pcan_strength: float = 0.95; pcan_offset: float = 80.0; gain_bits: int = 21; enable_log: bool \
     = true; scale_shift: int = 6; left_context: int = 0; right_context: int = 0; frame_stride: \
     int = 1; zero_padding: bool = false; out_scale: int = 1; out_type: type {uint16,float} = \
     uint16",
)
.shape(|ctx| {
    ctx.with_rank(0, 1)?;
    ctx.set(0, PartialShape::of_rank(2));
    Ok(())
})
.cost(Cost::Expensive)
.kernel(kernel)
.not_differentiable()];

/// Bits of the window's fractions.
const WINDOW_BITS: u32 = 12;

/// The attrs.
#[derive(Clone)]
struct Config {
    sample_rate: i32,
    window: usize,
    step: usize,
    n_channels: usize,
    band: [f32; 2],
    smoothing_bits: i32,
    smoothing: [f32; 3],
    /// Strength and offset of the gain control, if it is enabled.
    gain: Option<[f32; 2]>,
    gain_bits: i32,
    log: bool,
    scale_shift: i32,
    left: i64,
    right: i64,
    stride: usize,
    zero_padding: bool,
    out_scale: i32,
}

impl Config {
    fn of(attrs: &Attrs) -> Result<Self> {
        let int = |name: &str| {
            let value = attrs.int(name)?;
            i32::try_from(value).map_err(|_| {
                invalid_argument!("Attr {name} has value {value} out of range for an int32")
            })
        };
        let sample_rate = int("sample_rate")?;
        let samples = |name: &str| {
            let n = i64::from(int(name)?) * i64::from(sample_rate) / 1000;
            usize::try_from(n).map_err(|_| invalid_argument!("{name} is negative"))
        };
        let positive = |name: &str| match int(name)? {
            n if n > 0 => Ok(n),
            n => Err(invalid_argument!("{name} must be positive, got {n}")),
        };
        let (window, step) = (samples("window_size")?, samples("window_step")?);
        if step == 0 || step > window {
            return Err(invalid_argument!(
                "window_step must be positive and at most window_size, got {step} and {window} samples"
            ));
        }
        let (left, right) = (int("left_context")?, int("right_context")?);
        if left < 0 || right < 0 {
            return Err(invalid_argument!(
                "contexts must not be negative, got {left} and {right}"
            ));
        }
        let out_scale = int("out_scale")?;
        if out_scale == 0 {
            return Err(invalid_argument!("out_scale must not be zero"));
        }
        let gain = [attrs.float("pcan_strength")?, attrs.float("pcan_offset")?];
        Ok(Config {
            sample_rate,
            window,
            step,
            n_channels: positive("num_channels")? as usize,
            band: [
                attrs.float("lower_band_limit")?,
                attrs.float("upper_band_limit")?,
            ],
            smoothing_bits: int("smoothing_bits")?,
            smoothing: [
                attrs.float("even_smoothing")?,
                attrs.float("odd_smoothing")?,
                attrs.float("min_signal_remaining")?,
            ],
            gain: attrs.bool("enable_pcan")?.then_some(gain),
            gain_bits: int("gain_bits")?,
            log: attrs.bool("enable_log")?,
            scale_shift: int("scale_shift")?,
            left: left.into(),
            right: right.into(),
            stride: positive("frame_stride")? as usize,
            zero_padding: attrs.bool("zero_padding")?,
            out_scale,
        })
    }

    /// Returns the channels of each frame.
    fn frames(&self, audio: &[i16], n_frames: usize) -> Result<Vec<Vec<u16>>> {
        let size = self.window.next_power_of_two();
        let fft =
            FixedFft::new(size).ok_or_else(|| internal!("failed to populate frontend state"))?;
        let bank = FilterBank::new(self.n_channels, self.band, self.sample_rate, size / 2 + 1)?;
        let correction = bits(size as u32) - 1 - FILTER_BITS / 2;
        let mut noise = NoiseReduction::new(self.smoothing_bits, self.smoothing, self.n_channels);
        let gain = self.gain.map(|[strength, offset]| {
            GainControl::new(
                strength,
                offset,
                self.gain_bits,
                self.smoothing_bits,
                correction,
            )
        });
        let logarithm = Logarithm::new(self.scale_shift);
        let window = window(self.window);
        let frames = audio.windows(self.window).step_by(self.step).take(n_frames);
        let frames = frames.map(|samples| {
            let products = samples.iter().zip(&window);
            let products =
                products.map(|(x, w)| ((i32::from(*x) * i32::from(*w)) >> WINDOW_BITS) as i16);
            let mut signal: Vec<i16> = products.collect();
            let largest = signal
                .iter()
                .map(|x| x.wrapping_abs())
                .max()
                .unwrap_or(0)
                .max(0);
            let shift = 15 - bits(largest as u32);
            signal
                .iter_mut()
                .for_each(|x| *x = ((*x as u16) << shift) as i16);
            signal.resize(size, 0);
            let mut channels = bank.apply(&fft.spectrum(&signal), shift);
            noise.apply(&mut channels);
            if let Some(gain) = &gain {
                gain.apply(&mut channels, &noise.estimate);
            }
            let scaled = channels.into_iter().map(|value| {
                if !self.log {
                    return value;
                }
                let value = match correction < 0 {
                    true => value.wrapping_shr(correction.unsigned_abs()),
                    false => value.wrapping_shl(correction as u32),
                };
                if value > 1 { logarithm.of(value) } else { 0 }
            });
            scaled.map(|value| value.min(0xFFFF) as u16).collect()
        });
        Ok(frames.collect())
    }
}

/// Returns the coefficients of a Hann window.
fn window(size: usize) -> Vec<i16> {
    let step = (std::f64::consts::PI * 2.0 / f64::from(size as f32)) as f32;
    let coefficient = |i: usize| {
        let angle = f64::from(step) * (i as f64 + 0.5);
        let value = (0.5 - 0.5 * angle.cos()) as f32;
        (f64::from(value * (1 << WINDOW_BITS) as f32) + 0.5).floor() as i16
    };
    (0..size).map(coefficient).collect()
}

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let config = Config::of(build.attrs);
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let audio = ctx.input(0)?;
        if audio.shape().rank() != 1 {
            return Err(invalid_argument!("audio is not a vector"));
        }
        let config = config.as_ref().map_err(Clone::clone)?;
        let audio = audio.slice::<i16>()?;
        let n_frames = match audio.len().checked_sub(config.window) {
            Some(rest) => rest / config.step + 1,
            None => 0,
        };
        let width = config.n_channels as u128 * (1 + config.left + config.right) as u128;
        let width = usize::try_from(width)
            .map_err(|_| invalid_argument!("too many features in a frame: {width}"))?;
        let shape = shape_of([n_frames.div_ceil(config.stride), width])?;
        let mut out = ctx.alloc(dtype, shape)?;
        let frames = config.frames(audio, n_frames)?;
        let zeros = vec![0; config.n_channels];
        let anchors = (0..n_frames).step_by(config.stride);
        let parts = anchors.flat_map(|anchor| {
            let anchor = anchor as i64;
            anchor - config.left..=anchor + config.right
        });
        let parts = parts.map(|i| match usize::try_from(i) {
            Ok(i) if i < n_frames => &frames[i],
            _ if config.zero_padding => &zeros,
            Ok(_) => &frames[n_frames - 1],
            Err(_) => &frames[0],
        });
        let values = parts.flatten().copied();
        let scale = config.out_scale;
        match dtype {
            DType::Float => {
                let to = out.slice_mut::<f32>()?;
                for (to, value) in to.iter_mut().zip(values) {
                    *to = f32::from(value) / scale as f32;
                }
            }
            _ => {
                let to = out.slice_mut::<u16>()?;
                for (to, value) in to.iter_mut().zip(values) {
                    *to = (i32::from(value) / scale) as u16;
                }
            }
        }
        ctx.set_output(0, out)
    }))
}
