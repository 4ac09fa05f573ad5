//! Uniform, normal and integer distributions, bit for bit TensorFlow's
//! (`core/lib/random/random_distributions.h`; normal numbers by Box and Muller, 1958).
//!
//! A tensor is filled in groups of the numbers from one block of the generator. A group depends on
//! its position only, so the result does not depend on the threads.

use ferroflow_primitives::philox::Philox;
use ferroflow_primitives::vectorized;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{bf16, f16};
use std::f64::consts::PI;

/// Blocks of the generator reserved for one number of a rejection-sampled distribution, or of the stream of a node.
pub const RESERVED: u128 = 256;
/// Elements of a parallel chunk; a multiple of every group.
const CHUNK: usize = 4096;

/// A distribution of numbers in groups.
pub trait Distribution<T>: Sync {
    /// Numbers in a group.
    const GROUP: usize;
    /// Blocks of the generator between groups.
    const STRIDE: u128 = 1;
    /// Fills a group, which may be truncated at the end of the tensor.
    fn group(&self, random: &mut Philox, out: &mut [T]);

    /// Fills groups from the current block of `random` on; the last one may be truncated.
    fn groups(&self, random: Philox, out: &mut [T]) {
        for (i, group) in out.chunks_mut(Self::GROUP).enumerate() {
            let mut random = random.skipped(i as u128 * Self::STRIDE);
            self.group(&mut random, group);
        }
    }
}

/// Fills `out` from the stream's current block on.
pub fn fill<T: Send, D: Distribution<T>>(
    par: &dyn Parallelism,
    random: &Philox,
    distribution: &D,
    out: &mut [T],
) {
    par_chunks_mut(par, out, CHUNK, 1, &|i, chunk| {
        let first = (i * (CHUNK / D::GROUP)) as u128;
        distribution.groups(random.skipped(first * D::STRIDE), chunk);
    });
}

/// Converts random bits to a float in [0, 1).
#[inline]
pub fn unit_f32(x: u32) -> f32 {
    f32::from_bits(0x3F80_0000 | (x & 0x7F_FFFF)) - 1.0
}

/// Converts random bits to a double in [0, 1).
#[inline]
pub fn unit_f64(x0: u32, x1: u32) -> f64 {
    let mantissa = ((x0 & 0xF_FFFF) as u64) << 32 | x1 as u64;
    f64::from_bits(1023 << 52 | mantissa) - 1.0
}

/// Returns two normally distributed floats.
#[inline]
fn normal_f32(x0: u32, x1: u32) -> [f32; 2] {
    let u = unit_f32(x0).max(1.0e-7);
    let v = (2.0 * PI * unit_f32(x1) as f64) as f32;
    let r = (-2.0 * u.ln()).sqrt();
    let (sin, cos) = v.sin_cos();
    [sin * r, cos * r]
}

/// Returns two normally distributed doubles.
#[inline]
pub fn normal_f64([x0, x1, x2, x3]: [u32; 4]) -> [f64; 2] {
    let u = unit_f64(x0, x1).max(1.0e-7);
    let v = 2.0 * PI * unit_f64(x2, x3);
    let r = (-2.0 * u.ln()).sqrt();
    let (sin, cos) = v.sin_cos();
    [sin * r, cos * r]
}

fn copy<T: Copy>(out: &mut [T], values: &[T]) {
    out.iter_mut().zip(values).for_each(|(o, v)| *o = *v);
}

#[inline]
fn long([a, b, c, d]: [u32; 4]) -> [u64; 2] {
    [a as u64 | (b as u64) << 32, c as u64 | (d as u64) << 32]
}

/// Random numbers that are converted at a time.
const BITS: usize = 512;

/// Uniform in [0, 1).
pub struct Uniform;

macro_rules! uniform {
    ($($ty:ty: $from:expr),*) => {$(
        impl Distribution<$ty> for Uniform {
            const GROUP: usize = 4;
            #[inline]
            fn group(&self, random: &mut Philox, out: &mut [$ty]) {
                let from: fn(u32) -> $ty = $from;
                copy(out, &random.next_block().map(from));
            }
            fn groups(&self, mut random: Philox, out: &mut [$ty]) {
                if out.len() <= <Self as Distribution<$ty>>::GROUP {
                    return self.group(&mut random, out);
                }
                let mut bits = [0; BITS];
                for out in out.chunks_mut(BITS) {
                    let bits = &mut bits[..out.len()];
                    random.fill(bits);
                    vectorized(
                        #[inline(always)]
                        || out.iter_mut().zip(&*bits).for_each(|(o, &x)| *o = ($from)(x)),
                    );
                }
            }
        }
    )*};
}
uniform! {
    f32: unit_f32,
    f16: |x| f16::from_bits(15 << 10 | (x & 0x3FF) as u16) - f16::ONE,
    bf16: |x| bf16::from_bits(127 << 7 | (x & 0x7F) as u16) - bf16::ONE
}

impl Distribution<f64> for Uniform {
    const GROUP: usize = 2;
    #[inline]
    fn group(&self, random: &mut Philox, out: &mut [f64]) {
        let [a, b, c, d] = random.next_block();
        copy(out, &[unit_f64(a, b), unit_f64(c, d)]);
    }
}

/// The standard normal distribution.
pub struct Normal;

macro_rules! normal {
    ($($ty:ty: $from:expr),*) => {$(
        impl Distribution<$ty> for Normal {
            const GROUP: usize = 4;
            #[inline]
            fn group(&self, random: &mut Philox, out: &mut [$ty]) {
                let [a, b, c, d] = random.next_block();
                let ([a, b], [c, d]) = (normal_f32(a, b), normal_f32(c, d));
                copy(out, &[a, b, c, d].map($from));
            }
        }
        impl Distribution<$ty> for Truncated {
            const GROUP: usize = 4;
            const STRIDE: u128 = RESERVED;
            fn group(&self, random: &mut Philox, out: &mut [$ty]) {
                let mut numbers = std::iter::from_fn(|| {
                    let (a, b) = (random.next_u32(), random.next_u32());
                    Some(normal_f32(a, b))
                })
                .flatten()
                .filter(|x| x.abs() < 2.0)
                .map($from);
                out.iter_mut().for_each(|o| *o = numbers.next().unwrap_or_default());
            }
        }
    )*};
}
normal! {
    f32: |x: f32| x,
    f16: f16::from_f32,
    bf16: bf16::from_f32
}

impl Distribution<f64> for Normal {
    const GROUP: usize = 2;
    #[inline]
    fn group(&self, random: &mut Philox, out: &mut [f64]) {
        copy(out, &normal_f64(random.next_block()));
    }
}

/// The standard normal distribution, redrawn beyond two standard deviations.
pub struct Truncated;

impl Distribution<f64> for Truncated {
    const GROUP: usize = 2;
    const STRIDE: u128 = RESERVED / 2;
    fn group(&self, random: &mut Philox, out: &mut [f64]) {
        let mut numbers = std::iter::from_fn(|| Some(normal_f64(random.next_block())))
            .flatten()
            .filter(|x| x.abs() < 2.0);
        out.iter_mut()
            .for_each(|o| *o = numbers.next().unwrap_or_default());
    }
}

/// Integers from `low` on, `range` of them; zero stands for all of the type.
pub struct Integers<T, U> {
    /// The first number.
    pub low: T,
    /// How many numbers there are.
    pub range: U,
}

macro_rules! integers {
    ($($ty:ty, $unsigned:ty, $n:literal, $split:expr;)*) => {$(
        impl Distribution<$ty> for Integers<$ty, $unsigned> {
            const GROUP: usize = $n;
            #[inline]
            fn group(&self, random: &mut Philox, out: &mut [$ty]) {
                let split: fn([u32; 4]) -> [$unsigned; $n] = $split;
                for (o, x) in out.iter_mut().zip(split(random.next_block())) {
                    let x = if self.range == 0 { x } else { x % self.range };
                    *o = (self.low as $unsigned).wrapping_add(x) as $ty;
                }
            }
        }
    )*};
}
integers! {
    i32, u32, 4, |block| block;
    u32, u32, 4, |block| block;
    i64, u64, 2, long;
    u64, u64, 2, long;
}

/// Returns the source positions of a shuffled vector's elements.
pub fn permutation(random: &mut Philox, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in 0..n.saturating_sub(1) {
        let left = u32::try_from(n - i).unwrap_or(u32::MAX);
        order.swap(i, i + (random.next_u32() % left) as usize);
    }
    order
}

/// Returns a uniform integer below `n`, from 32 random bits per attempt.
pub fn below_u32(random: &mut Philox, n: u32) -> u32 {
    below(n.into(), u32::MAX.into(), || random.next_u32().into()) as u32
}

/// Returns a uniform integer below `n`, from 64 random bits per attempt.
pub fn below_u64(random: &mut Philox, n: u64) -> u64 {
    below(n, u64::MAX, || {
        let (low, high) = (random.next_u32(), random.next_u32());
        u64::from(low) | u64::from(high) << 32
    })
}

/// Draws bits up to `max` until they are unbiased (rejection).
fn below(n: u64, max: u64, mut bits: impl FnMut() -> u64) -> u64 {
    if n.is_power_of_two() || n == 0 {
        return bits() & n.saturating_sub(1);
    }
    let surplus = max % n + 1;
    loop {
        let x = bits();
        if x >= surplus {
            return x % n;
        }
    }
}
