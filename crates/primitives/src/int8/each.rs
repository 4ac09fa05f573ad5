//! Codes number by number: from floats, to floats, and sums of two tensors of codes.

use crate::isa::vectorized;

/// Adding it rounds a number between 0 and 255 to an integer, ties to even, in the lowest bits.
const ROUNDS: f32 = 12_582_912.0;

#[inline(always)]
fn code(y: f32, low: f32, high: f32) -> u8 {
    rounded(y, low, high).to_bits() as u8
}

/// The sum of `ROUNDS` and a number between the limits, whose last bits are the code.
#[inline(always)]
fn rounded(y: f32, low: f32, high: f32) -> f32 {
    // NaN becomes the lower limit.
    let y = if y > low { y } else { low };
    let y = if y < high { y } else { high };
    y + ROUNDS
}

/// Writes the codes of numbers: `x * inverse + zero`, rounded, ties to even.
///
/// ```
/// let mut codes = [0; 4];
/// ferroflow_primitives::int8::quantize(&[-1.0, 0.0, 0.26, 99.0], 10.0, 3, &mut codes);
/// assert_eq!(codes, [0, 3, 6, 255]);
/// ```
///
/// # Panics
/// If the slices differ in length.
pub fn quantize(x: &[f32], inverse: f32, zero: u8, codes: &mut [u8]) {
    assert_eq!(x.len(), codes.len(), "as many codes as numbers");
    let zero = f32::from(zero);
    vectorized(|| {
        for (to, x) in codes.iter_mut().zip(x) {
            *to = code(*x * inverse + zero, 0.0, 255.0);
        }
    });
}

/// Writes two codes of each number: that of [`quantize`], and that of what is left of it, in steps of which
/// `parts` are one of the first.
///
/// ```
/// let mut codes = [0; 6];
/// ferroflow_primitives::int8::quantize_finely(&[0.26, -0.33, 99.0], 10.0, 128, 8.0, &mut codes);
/// assert_eq!(codes, [131, 125, 125, 126, 255, 255]);
/// ```
///
/// # Panics
/// If there are not twice as many codes as numbers.
pub fn quantize_finely(x: &[f32], inverse: f32, zero: u8, parts: f32, codes: &mut [u8]) {
    assert_eq!(2 * x.len(), codes.len(), "two codes of each number");
    let zero = f32::from(zero);
    let (pairs, _) = codes.as_chunks_mut::<2>();
    vectorized(|| {
        for (to, x) in pairs.iter_mut().zip(x) {
            let y = *x * inverse + zero;
            let first = rounded(y, 0.0, 255.0);
            let left = (y - (first - ROUNDS)) * parts + zero;
            let second = rounded(left, 0.0, 255.0);
            // One number of 16 bits is stored faster than two bytes.
            let both = (first.to_bits() & 0xff) | second.to_bits() << 8;
            *to = (both as u16).to_le_bytes();
        }
    });
}

/// Writes the numbers of codes: `(code - zero) * scale`.
///
/// ```
/// let mut x = [0.0; 2];
/// ferroflow_primitives::int8::dequantize(&[3, 5], 0.5, 3, &mut x);
/// assert_eq!(x, [0.0, 1.0]);
/// ```
///
/// # Panics
/// If the slices differ in length.
pub fn dequantize(codes: &[u8], scale: f32, zero: u8, x: &mut [f32]) {
    assert_eq!(x.len(), codes.len(), "as many codes as numbers");
    let zero = i32::from(zero);
    vectorized(|| {
        for (to, code) in x.iter_mut().zip(codes) {
            *to = (i32::from(*code) - zero) as f32 * scale;
        }
    });
}

/// Writes codes of sums: `a * factors[0] + b * factors[1] + offset`, clamped to the limits and rounded, ties
/// to even.
///
/// ```
/// let mut sum = [0; 2];
/// ferroflow_primitives::int8::combine([&[1, 200], &[2, 200]], [1.0, 0.5], 0.0, (0, 255), &mut sum);
/// assert_eq!(sum, [2, 255]);
/// ```
///
/// # Panics
/// If the slices differ in length.
pub fn combine(
    [a, b]: [&[u8]; 2],
    [of_a, of_b]: [f32; 2],
    offset: f32,
    (low, high): (u8, u8),
    out: &mut [u8],
) {
    assert!(
        a.len() == out.len() && b.len() == out.len(),
        "as many codes on both sides"
    );
    let (low, high) = (f32::from(low), f32::from(high));
    vectorized(|| {
        for (to, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
            let y = f32::from(*a) * of_a + f32::from(*b) * of_b + offset;
            *to = code(y, low, high);
        }
    });
}
