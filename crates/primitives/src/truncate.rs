//! Floats as integers, as the conversion instructions of x86 return them: without the fraction, and the smallest
//! integer where the float is NaN or out of range. Loops of them are vectorized, unlike those of `as`.

/// A float type.
pub trait Truncate: Copy {
    /// Returns the integer part, or [`i32::MIN`] if it does not fit.
    fn to_i32(self) -> i32;
    /// Returns the integer part, or [`i64::MIN`] if it does not fit.
    fn to_i64(self) -> i64;
}

macro_rules! truncate {
    ($($float:ty: $($name:ident -> $int:ty),*;)*) => {
        $(impl Truncate for $float {
            $(
                #[inline(always)]
                fn $name(self) -> $int {
                    const MIN: $float = <$int>::MIN as $float;
                    match (MIN..-MIN).contains(&self) {
                        // SAFETY: the integer part of a float of this range fits, since the bounds are powers of two.
                        true => unsafe { self.to_int_unchecked() },
                        false => <$int>::MIN,
                    }
                }
            )*
        })*
    };
}

truncate! {
    f32: to_i32 -> i32, to_i64 -> i64;
    f64: to_i32 -> i32, to_i64 -> i64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_the_smallest() {
        let rows: [(f64, i32, i64); 9] = [
            (1.9, 1, 1),
            (-1.9, -1, -1),
            (-0.0, 0, 0),
            (f64::NAN, i32::MIN, i64::MIN),
            (f64::INFINITY, i32::MIN, i64::MIN),
            (2147483648.0, i32::MIN, 2147483648),
            (-2147483648.0, i32::MIN, -2147483648),
            (9.3e18, i32::MIN, i64::MIN),
            (-9.3e18, i32::MIN, i64::MIN),
        ];
        for (x, narrow, wide) in rows {
            assert_eq!((x.to_i32(), x.to_i64()), (narrow, wide), "{x}");
            assert_eq!(
                ((x as f32).to_i32(), (x as f32).to_i64()),
                (narrow, wide),
                "{x}"
            );
        }
        // The next double is in range, unlike the next float.
        assert_eq!(2147483647.5f64.to_i32(), i32::MAX);
    }
}
