//! The order of elements in the result of TopK as that of integers: larger numbers first, what is not a number last, equal
//! ones by position.

/// Numbers in the order of the result.
pub(super) trait Ranked: Copy + PartialOrd {
    /// Whether ranks have 32 bits.
    const FITS: bool;

    /// Returns a number that is smaller the earlier `self` comes; that of equal numbers is equal.
    fn rank(self) -> u64;
}

macro_rules! ranked_integers {
    ($($T:ty as $Bits:ty;)*) => {$(
        impl Ranked for $T {
            const FITS: bool = <$T>::BITS == 32;
            #[inline]
            fn rank(self) -> u64 {
                (<$T>::MAX.wrapping_sub(self) as $Bits).into()
            }
        }
    )*};
}
ranked_integers! {
    i32 as u32;
    i64 as u64;
    u64 as u64;
}

macro_rules! ranked_floats {
    ($($T:ty as $Bits:ty;)*) => {$(
        impl Ranked for $T {
            const FITS: bool = <$Bits>::BITS == 32;
            #[inline]
            fn rank(self) -> u64 {
                if self.is_nan() {
                    return <$Bits>::MAX.into();
                }
                // Zero has one sign then.
                let bits = (self + 0.0).to_bits();
                let sign = bits >> (<$Bits>::BITS - 1);
                // The bits of positive numbers grow with them, those of negative ones shrink.
                let falling = if sign == 0 { <$Bits>::MAX / 2 - bits } else { bits };
                falling.into()
            }
        }
    )*};
}
ranked_floats! {
    f32 as u32;
    f64 as u64;
}

/// A rank and a position, compared in this order.
pub(super) trait Key: Copy + Ord {
    fn new(rank: u64, position: usize) -> Self;
    fn position(self) -> usize;
}

/// For ranks and positions of 32 bits.
impl Key for u64 {
    #[inline]
    fn new(rank: u64, position: usize) -> u64 {
        rank << 32 | position as u64
    }
    #[inline]
    fn position(self) -> usize {
        self as u32 as usize
    }
}

impl Key for u128 {
    #[inline]
    fn new(rank: u64, position: usize) -> u128 {
        u128::from(rank) << 64 | position as u128
    }
    #[inline]
    fn position(self) -> usize {
        self as u64 as usize
    }
}

/// Returns the keys of elements, the first of which is at position `first`.
#[inline(always)]
pub(super) fn keys<T: Ranked, K: Key>(
    elements: &[T],
    first: usize,
) -> impl ExactSizeIterator<Item = K> {
    elements
        .iter()
        .enumerate()
        .map(move |(i, x)| K::new(x.rank(), first + i))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that elements come in this order, each after the one before it or, where it is `true`, together with it.
    fn check<T: Ranked>(elements: &[(T, bool)]) {
        for pair in elements.windows(2) {
            let ranks = [pair[0].0.rank(), pair[1].0.rank()];
            match pair[1].1 {
                true => assert_eq!(ranks[0], ranks[1]),
                false => assert!(ranks[0] < ranks[1], "{ranks:?}"),
            }
        }
    }

    #[test]
    fn ranks() {
        check(&[
            (f32::INFINITY, false),
            (f32::MAX, false),
            (1.0, false),
            (f32::from_bits(1), false),
            (0.0, false),
            (-0.0, true),
            (-f32::from_bits(1), false),
            (-1.0, false),
            (f32::NEG_INFINITY, false),
            (f32::NAN, false),
            (-f32::NAN, true),
        ]);
        check(&[
            (2.5f64, false),
            (0.0, false),
            (-0.0, true),
            (-2.5, false),
            (f64::NAN, false),
        ]);
        check(&[
            (i32::MAX, false),
            (1, false),
            (0, false),
            (-1, false),
            (i32::MIN, false),
        ]);
        check(&[(i64::MAX, false), (0, false), (i64::MIN, false)]);
        check(&[(u64::MAX, false), (1, false), (0, false)]);
    }
}
