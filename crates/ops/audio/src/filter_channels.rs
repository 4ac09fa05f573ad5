//! The integer stages of the microfrontend: Mel filter bank, noise reduction, gain control, logarithm (TensorFlow:
//! `lite/experimental/microfrontend/lib`).

use crate::fixed_fft::Complex;
use ferroflow_base::{Result, internal};

/// Bits of the weights' fractions.
pub(crate) const FILTER_BITS: i32 = 12;
const NOISE_BITS: u32 = 14;
const RATIO_BITS: i32 = 12;
const OUTPUT_BITS: i32 = 6;
const LOG_BITS: u32 = 16;
const SEGMENT_BITS: u32 = 7;

/// Returns the number of bits that a number has.
pub(crate) fn bits(n: u32) -> i32 {
    32 - n.leading_zeros() as i32
}

fn mel(frequency: f32) -> f32 {
    (1127.0 * (f64::from(frequency) / 700.0).ln_1p()) as f32
}

/// A channel: the first frequency, and its weights with those of the next channel.
struct Channel {
    start: usize,
    weights: Vec<[i16; 2]>,
}

/// Weighted sums of energies, the weights triangles on the Mel scale.
pub(crate) struct FilterBank {
    channels: Vec<Channel>,
}

impl FilterBank {
    pub(crate) fn new(
        n_channels: usize,
        [low, high]: [f32; 2],
        sample_rate: i32,
        n_frequencies: usize,
    ) -> Result<Self> {
        let failed = || internal!("failed to populate frontend state");
        let (mel_low, mel_high) = (mel(low), mel(high));
        let spacing = (mel_high - mel_low) / (n_channels + 1) as f32;
        let center = |i: usize| mel_low + spacing * (i + 1) as f32;
        let step = (0.5 * f64::from(sample_rate) / f64::from(n_frequencies as f32 - 1.0)) as f32;
        let first = (1.5 + f64::from(low / step)) as i64;
        let mut next = usize::try_from(first).map_err(|_| failed())?;
        let mut channels = Vec::new();
        for i in 0..=n_channels {
            let start = next;
            let below = if i == 0 { mel_low } else { center(i - 1) };
            let mut weights = Vec::new();
            loop {
                if next >= n_frequencies {
                    return Err(failed());
                }
                let at = mel(next as f32 * step);
                if at > center(i) || at.is_nan() || center(i).is_nan() {
                    break;
                }
                let weight = (center(i) - at) / (center(i) - below);
                let scale = f64::from(1 << FILTER_BITS);
                let fixed = |x: f64| (x * scale + 0.5).floor() as i32 as i16;
                weights.push([fixed(f64::from(weight)), fixed(1.0 - f64::from(weight))]);
                next += 1;
            }
            channels.push(Channel { start, weights });
        }
        Ok(FilterBank { channels })
    }

    /// Returns the root of each channel's energy.
    pub(crate) fn apply(&self, spectrum: &[Complex], shift: i32) -> Vec<u32> {
        let energy = |c: &Complex| {
            let (re, im) = (i32::from(c.re), i32::from(c.im));
            (re * re).wrapping_add(im * im) as u64
        };
        let mut out = Vec::with_capacity(self.channels.len());
        let mut carried = 0u64;
        for channel in &self.channels {
            let (mut sum, mut rest) = (carried, 0u64);
            let frequencies = spectrum[channel.start..].iter();
            for (c, [weight, other]) in frequencies.zip(&channel.weights) {
                let energy = energy(c);
                sum = sum.wrapping_add((*weight as u64).wrapping_mul(energy));
                rest = rest.wrapping_add((*other as u64).wrapping_mul(energy));
            }
            out.push(rounded_root(sum).wrapping_shr(shift as u32));
            carried = rest;
        }
        // The first channel is the slope up to the first center.
        out.remove(0);
        out
    }
}

/// Returns a square root, rounded; that of a 32-bit number never exceeds 16 bits.
fn rounded_root(n: u64) -> u32 {
    let root = n.isqrt();
    let most = if n <= u64::from(u32::MAX) {
        0xFFFF
    } else {
        0xFFFF_FFFF
    };
    let is_nearer_to_next = n - root * root > root && root < most;
    (root + u64::from(is_nearer_to_next)) as u32
}

/// Subtracts an estimate of the noise.
pub(crate) struct NoiseReduction {
    pub shift: u32,
    /// The weights of new values in even and odd channels.
    pub smoothing: [u32; 2],
    pub least: u32,
    pub estimate: Vec<u32>,
}

impl NoiseReduction {
    pub(crate) fn new(shift: i32, [even, odd, least]: [f32; 3], n_channels: usize) -> Self {
        let fixed = |x: f32| u32::from((x * (1 << NOISE_BITS) as f32) as i32 as u16);
        NoiseReduction {
            shift: shift as u32,
            smoothing: [fixed(even), fixed(odd)],
            least: fixed(least),
            estimate: vec![0; n_channels],
        }
    }

    pub(crate) fn apply(&mut self, signal: &mut [u32]) {
        for (i, (value, estimate)) in signal.iter_mut().zip(&mut self.estimate).enumerate() {
            let smoothing = self.smoothing[i & 1];
            let rest = (1u32 << NOISE_BITS).wrapping_sub(smoothing);
            let scaled = value.wrapping_shl(self.shift);
            let new = u64::from(scaled) * u64::from(smoothing);
            let old = u64::from(*estimate) * u64::from(rest);
            *estimate = (new.wrapping_add(old) >> NOISE_BITS) as u32;
            let noise = scaled.min(*estimate);
            let least = (u64::from(*value) * u64::from(self.least)) >> NOISE_BITS;
            let left = (scaled - noise).wrapping_shr(self.shift);
            *value = left.max(least as u32);
        }
    }
}

/// Divides by a power of the noise (PCAN: per-channel amplitude normalization).
pub(crate) struct GainControl {
    table: Vec<i16>,
    shift: u32,
}

impl GainControl {
    pub(crate) fn new(
        strength: f32,
        offset: f32,
        gain_bits: i32,
        smoothing_bits: i32,
        correction: i32,
    ) -> Self {
        let input_bits = i32::from(smoothing_bits as u16).wrapping_sub(correction);
        let gain = |x: u32| -> i16 {
            let x = x as f32 / 1u32.wrapping_shl(input_bits as u32) as f32;
            let scale = 1u32.wrapping_shl(gain_bits as u32) as f32;
            let gain = scale * (x + offset).powf(-strength);
            if gain > 32767.0 {
                return i16::MAX;
            }
            (gain + 0.5) as i32 as i16
        };
        // The third element is left out, as in TensorFlow's table.
        let mut table = vec![gain(0), gain(1)];
        for interval in 2..=32u32 {
            let low = 1u32 << (interval - 1);
            let high = if interval == 32 {
                low + (low - 1)
            } else {
                2 * low
            };
            let [y0, y1, y2] = [low, low + (low >> 1), high].map(|x| i32::from(gain(x)));
            let a1 = 4 * (y1 - y0) - (y2 - y0);
            let a2 = (y2 - y0) - a1;
            table.extend([y0 as i16, a1 as i16, a2 as i16, 0]);
        }
        GainControl {
            table,
            shift: gain_bits.wrapping_sub(correction).wrapping_sub(RATIO_BITS) as u32,
        }
    }

    /// Returns the gain by interpolation between powers of two.
    fn gain(&self, x: u32) -> i16 {
        if x < 2 {
            return self.table[x as usize];
        }
        let interval = bits(x);
        let at = (4 * interval - 6) as usize;
        if x == 2 {
            return self.table[at];
        }
        let part = if interval < 11 {
            x << (11 - interval)
        } else {
            x >> (interval - 11)
        };
        let part = (part & 0x3FF) as i32;
        let [base, slope, bend] = [0, 1, 2].map(|i| i32::from(self.table[at + i]));
        let mut result = bend.wrapping_mul(part) >> 5;
        result = result.wrapping_add(slope << 5).wrapping_mul(part);
        result = result.wrapping_add(1 << 14) >> 15;
        result.wrapping_add(base) as i16
    }

    pub(crate) fn apply(&self, signal: &mut [u32], noise: &[u32]) {
        for (value, noise) in signal.iter_mut().zip(noise) {
            let gain = i32::from(self.gain(*noise)) as u32;
            let product = u64::from(*value) * u64::from(gain);
            let ratio = product.wrapping_shr(self.shift) as u32;
            *value = match ratio < 2 << RATIO_BITS {
                true => ratio.wrapping_mul(ratio) >> (2 + 2 * RATIO_BITS - OUTPUT_BITS),
                false => (ratio >> (RATIO_BITS - OUTPUT_BITS)).wrapping_sub(1 << OUTPUT_BITS),
            };
        }
    }
}

/// A natural logarithm of integers.
pub(crate) struct Logarithm {
    /// What the logarithm to base two exceeds a line by, at the ends of segments.
    table: Vec<i32>,
    shift: u32,
}

impl Logarithm {
    pub(crate) fn new(shift: i32) -> Self {
        let n = 1 << SEGMENT_BITS;
        let excess = |i: i32| {
            let x = f64::from(i) / f64::from(n);
            (((1.0 + x).log2() - x) * 65536.0).round() as i32
        };
        Logarithm {
            table: (0..=n).map(excess).collect(),
            shift: shift as u32,
        }
    }

    /// Returns the scaled logarithm of a number above one.
    pub(crate) fn of(&self, x: u32) -> u32 {
        let whole = bits(x) as u32 - 1;
        let part = x - (1 << whole);
        let part = match whole < LOG_BITS {
            true => part << (LOG_BITS - whole),
            false => part >> (whole - LOG_BITS),
        };
        let segment = part >> (LOG_BITS - SEGMENT_BITS);
        let base = segment << (LOG_BITS - SEGMENT_BITS);
        let [low, high] = [0, 1].map(|i| self.table[segment as usize + i]);
        let slope = ((high - low) * (part - base) as i32) >> LOG_BITS;
        let fraction = (part as i32 + low + slope) as u32;
        let log2 = (whole << LOG_BITS).wrapping_add(fraction);
        let half = 1u32 << (LOG_BITS - 1);
        // ln 2 with 16 bits.
        let log = ((45426 * u64::from(log2) + u64::from(half)) >> LOG_BITS) as u32;
        log.wrapping_shl(self.shift).wrapping_add(half) >> LOG_BITS
    }
}
