//! Random numbers: functions that code calls with words on its stack.

use crate::code::Env;
use ferroflow_functors::distributions::{self, Integers, Normal, RESERVED, Truncated, Uniform};
use ferroflow_opdef::{Distribution, ScalarType};
use ferroflow_primitives::philox::Philox;
use ferroflow_sync::Inline;

/// The most random numbers of an instruction.
pub(crate) const MAX_DRAW: usize = 64;
/// The number of a stream that stands for two seeds.
pub(crate) const SEEDS: i64 = -1;

/// A number that programs draw.
pub(crate) trait Drawn: Copy + Send + Default {
    fn of_word(word: u64) -> Self;
    fn to_word(self) -> u64;
}

macro_rules! drawn {
    ($($ty:ty: $of:expr, $to:expr;)*) => {$(
        impl Drawn for $ty {
            fn of_word(word: u64) -> Self {
                let of: fn(u64) -> Self = $of;
                of(word)
            }
            fn to_word(self) -> u64 {
                let to: fn(Self) -> u64 = $to;
                to(self)
            }
        }
    )*};
}
drawn! {
    f32: |w| f32::from_bits(w as u32), |x| x.to_bits().into();
    f64: f64::from_bits, f64::to_bits;
    i32: |w| w as i32, |x| (x as u32).into();
    i64: |w| w as i64, |x| x as u64;
}

/// Draws `n` numbers to `words`. These begin with two seeds, if `stream` is [`SEEDS`], and the bounds of a range;
/// returns 1 if they bound none.
pub(crate) fn fill<T: Drawn, D: distributions::Distribution<T>>(
    env: &mut Env,
    words: *mut u64,
    n: i64,
    stream: i64,
    of_range: impl FnOnce([T; 2]) -> Option<D>,
) -> i64 {
    let n = usize::try_from(n).unwrap_or(0);
    // SAFETY: code calls this with a slot of its stack of `MAX_DRAW` words, of which any bits are a word.
    let words = unsafe { std::slice::from_raw_parts_mut(words, MAX_DRAW) };
    let mut numbers = [T::default(); MAX_DRAW];
    let range = [words[2], words[3]].map(T::of_word);
    let (Some(distribution), Some(numbers)) = (of_range(range), numbers.get_mut(..n)) else {
        return 1;
    };
    let from = match usize::try_from(stream) {
        Err(_) => Philox::stateless(words[0], words[1]),
        Ok(slot) => {
            let Some(stream) = env.streams.get_mut(slot) else {
                return 1;
            };
            let now = *stream;
            *stream = now.skipped(n as u128 * RESERVED);
            now
        }
    };
    distributions::fill(&Inline, &from, &distribution, numbers);
    let words = words.iter_mut().zip(numbers);
    words.for_each(|(word, number)| *word = number.to_word());
    0
}

/// Returns the address of a function that fills words with random numbers of a distribution, if
/// there are such numbers of type `ty`.
pub(crate) fn function(distribution: Distribution, ty: ScalarType) -> Option<usize> {
    macro_rules! floats {
        ($ty:ty, $distribution:expr) => {{
            extern "C" fn helper(env: &mut Env, words: *mut u64, n: i64, stream: i64) -> i64 {
                fill::<$ty, _>(env, words, n, stream, |_| Some($distribution))
            }
            helper as extern "C" fn(&mut Env<'_, '_>, *mut u64, i64, i64) -> i64 as usize
        }};
    }
    macro_rules! integers {
        ($ty:ty, $unsigned:ty) => {{
            extern "C" fn helper(env: &mut Env, words: *mut u64, n: i64, stream: i64) -> i64 {
                fill::<$ty, _>(env, words, n, stream, |[low, high]| {
                    let range = (high as $unsigned).wrapping_sub(low as $unsigned);
                    (low < high).then_some(Integers { low, range })
                })
            }
            helper as extern "C" fn(&mut Env<'_, '_>, *mut u64, i64, i64) -> i64 as usize
        }};
    }
    Some(match (distribution, ty) {
        (Distribution::Uniform, ScalarType::F32) => floats!(f32, Uniform),
        (Distribution::Uniform, ScalarType::F64) => floats!(f64, Uniform),
        (Distribution::Normal, ScalarType::F32) => floats!(f32, Normal),
        (Distribution::Normal, ScalarType::F64) => floats!(f64, Normal),
        (Distribution::TruncatedNormal, ScalarType::F32) => floats!(f32, Truncated),
        (Distribution::TruncatedNormal, ScalarType::F64) => floats!(f64, Truncated),
        (Distribution::UniformInt, ScalarType::I32) => integers!(i32, u32),
        (Distribution::UniformInt, ScalarType::I64) => integers!(i64, u64),
        _ => return None,
    })
}
