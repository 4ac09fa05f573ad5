//! Quotients of 32-bit integers, whose loops are vectorized: CPUs divide floats only in vectors.

use ferroflow_primitives::truncate::Truncate;

/// Returns the quotient without its fraction, and the remainder. A double holds each 32-bit
/// integer, and the double next to a fraction of two of them is never on the other side of an
/// integer.
#[inline(always)]
fn div_rem(x: i32, y: i32) -> (i32, i32) {
    let quotient = (f64::from(x) / f64::from(y)).to_i32();
    (quotient, x.wrapping_sub(quotient.wrapping_mul(y)))
}

/// Returns whether a remainder and a divisor have opposite signs.
#[inline(always)]
fn opposite(remainder: i32, y: i32) -> bool {
    remainder != 0 && remainder ^ y < 0
}

/// Returns the quotient rounded down. The caller refuses a `y` of zero.
#[inline(always)]
pub(crate) fn floor_div(x: i32, y: i32) -> i32 {
    let (quotient, remainder) = div_rem(x, y);
    quotient.wrapping_sub(opposite(remainder, y) as i32)
}

/// Returns the remainder of [`floor_div`].
#[inline(always)]
pub(crate) fn floor_mod(x: i32, y: i32) -> i32 {
    let (_, remainder) = div_rem(x, y);
    remainder.wrapping_add(if opposite(remainder, y) { y } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_functors::numeric::Ordered;

    #[test]
    fn quotients_are_those_of_integers() {
        let near = |x: i32| (-3..=3).map(move |d| x.wrapping_add(d));
        let edges = [0, 46_341, 1 << 16, 1 << 30, i32::MAX, -46_341, -(1 << 30)];
        let all: Vec<i32> = edges.into_iter().flat_map(near).collect();
        for &x in &all {
            for &y in all.iter().filter(|y| **y != 0) {
                assert_eq!(floor_div(x, y), Ordered::floor_div(x, y), "{x} / {y}");
                assert_eq!(floor_mod(x, y), Ordered::floor_mod(x, y), "{x} % {y}");
            }
        }
    }
}
