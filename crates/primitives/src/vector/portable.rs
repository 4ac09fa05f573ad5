//! Plain arrays that the compiler turns into the vectors of the target's baseline.

use super::{Lanes, Simd};

/// Lanes of a portable `f32` vector.
const F: usize = 4;
/// Lanes of a portable `f64` vector.
const D: usize = 2;

/// Four `f32` lanes on any CPU.
#[derive(Clone, Copy)]
pub(crate) struct Portable;
/// Two `f64` lanes on any CPU.
#[derive(Clone, Copy)]
pub(crate) struct PortableDouble;

/// A portable `f32` vector.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(crate) struct Vf(pub(crate) [f32; F]);
/// A portable `f64` vector.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(crate) struct Vd([f64; D]);
/// A portable vector of 32-bit integers, and the mask.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(crate) struct Vi(pub(crate) [i32; F]);

/// An array of the values of an expression at each lane: the calls of `std::array::from_fn` are not always inlined.
macro_rules! four {
    ($i:ident => $e:expr) => {
        [
            four!(0, $i, $e),
            four!(1, $i, $e),
            four!(2, $i, $e),
            four!(3, $i, $e),
        ]
    };
    ($at:literal, $i:ident, $e:expr) => {{
        let $i: usize = $at;
        $e
    }};
}
pub(crate) use four;

macro_rules! two {
    ($i:ident => $e:expr) => {
        [four!(0, $i, $e), four!(1, $i, $e)]
    };
}

macro_rules! lanes {
    ($token:ident, $vec:ident, $t:ty, $n:expr, $each:ident) => {
        impl Lanes for $token {
            type T = $t;
            type V = $vec;
            const N: usize = $n;

            #[inline(always)]
            fn splat(self, x: $t) -> $vec {
                $vec([x; $n])
            }
            #[inline(always)]
            fn zero(self) -> $vec {
                $vec([0.0; $n])
            }
            #[inline(always)]
            unsafe fn load(self, p: *const $t) -> $vec {
                // SAFETY: the caller's promise.
                $vec(unsafe { p.cast::<[$t; $n]>().read_unaligned() })
            }
            #[inline(always)]
            unsafe fn load_part(self, p: *const $t, n: usize) -> $vec {
                let mut v = [0.0; $n];
                for (i, x) in v.iter_mut().enumerate().take(n) {
                    // SAFETY: `i < n`, and the caller's promise.
                    *x = unsafe { *p.add(i) };
                }
                $vec(v)
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t, v: $vec) {
                // SAFETY: the caller's promise.
                unsafe { p.cast::<[$t; $n]>().write_unaligned(v.0) }
            }
            #[inline(always)]
            unsafe fn store_part(self, p: *mut $t, v: $vec, n: usize) {
                for (i, x) in v.0.iter().enumerate().take(n) {
                    // SAFETY: `i < n`, and the caller's promise.
                    unsafe { *p.add(i) = *x }
                }
            }
            #[inline(always)]
            fn prefetch(self, _: *const $t) {}
            #[inline(always)]
            fn add(self, a: $vec, b: $vec) -> $vec {
                $vec($each!(i => a.0[i] + b.0[i]))
            }
            #[inline(always)]
            fn sub(self, a: $vec, b: $vec) -> $vec {
                $vec($each!(i => a.0[i] - b.0[i]))
            }
            #[inline(always)]
            fn mul(self, a: $vec, b: $vec) -> $vec {
                $vec($each!(i => a.0[i] * b.0[i]))
            }
            #[inline(always)]
            fn div(self, a: $vec, b: $vec) -> $vec {
                $vec($each!(i => a.0[i] / b.0[i]))
            }
            #[inline(always)]
            fn fma(self, a: $vec, b: $vec, c: $vec) -> $vec {
                if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
                    $vec($each!(i => a.0[i].mul_add(b.0[i], c.0[i])))
                } else {
                    $vec($each!(i => a.0[i] * b.0[i] + c.0[i]))
                }
            }
            #[inline(always)]
            fn min(self, a: $vec, b: $vec) -> $vec {
                $vec($each!(i => if a.0[i] < b.0[i] { a.0[i] } else { b.0[i] }))
            }
            #[inline(always)]
            fn max(self, a: $vec, b: $vec) -> $vec {
                $vec($each!(i => if a.0[i] > b.0[i] { a.0[i] } else { b.0[i] }))
            }
            #[inline(always)]
            fn sqrt(self, a: $vec) -> $vec {
                $vec($each!(i => a.0[i].sqrt()))
            }
            #[inline(always)]
            fn sum(self, a: $vec) -> $t {
                a.0.iter().sum()
            }
            #[inline(always)]
            fn hmax(self, a: $vec) -> $t {
                a.0.iter().copied().fold(<$t>::NEG_INFINITY, <$t>::max)
            }
            #[inline(always)]
            fn hmin(self, a: $vec) -> $t {
                a.0.iter().copied().fold(<$t>::INFINITY, <$t>::min)
            }
        }
    };
}
lanes!(Portable, Vf, f32, F, four);
lanes!(PortableDouble, Vd, f64, D, two);

impl Simd for Portable {
    type I = Vi;
    type M = Vi;

    #[inline(always)]
    fn lt(self, a: Vf, b: Vf) -> Vi {
        Vi(four!(i => -i32::from(a.0[i] < b.0[i])))
    }
    #[inline(always)]
    fn eq(self, a: Vf, b: Vf) -> Vi {
        Vi(four!(i => -i32::from(a.0[i] == b.0[i])))
    }
    #[inline(always)]
    fn unordered(self, a: Vf, b: Vf) -> Vi {
        Vi(four!(i => -i32::from(a.0[i].is_nan() | b.0[i].is_nan())))
    }
    #[inline(always)]
    fn select(self, m: Vi, a: Vf, b: Vf) -> Vf {
        Vf(four!(i => {
            let (x, y) = (a.0[i].to_bits(), b.0[i].to_bits());
            let m = m.0[i] as u32;
            f32::from_bits((x & m) | (y & !m))
        }))
    }
    #[inline(always)]
    fn any(self, m: Vi) -> bool {
        m.0.iter().fold(0, |x, y| x | y) != 0
    }
    #[inline(always)]
    fn bits(self, a: Vf) -> Vi {
        Vi(four!(i => a.0[i].to_bits() as i32))
    }
    #[inline(always)]
    fn float(self, a: Vi) -> Vf {
        Vf(four!(i => f32::from_bits(a.0[i] as u32)))
    }
    #[inline(always)]
    fn isplat(self, x: i32) -> Vi {
        Vi([x; F])
    }
    #[inline(always)]
    fn iadd(self, a: Vi, b: Vi) -> Vi {
        Vi(four!(i => a.0[i].wrapping_add(b.0[i])))
    }
    #[inline(always)]
    fn isub(self, a: Vi, b: Vi) -> Vi {
        Vi(four!(i => a.0[i].wrapping_sub(b.0[i])))
    }
    #[inline(always)]
    fn iand(self, a: Vi, b: Vi) -> Vi {
        Vi(four!(i => a.0[i] & b.0[i]))
    }
    #[inline(always)]
    fn ior(self, a: Vi, b: Vi) -> Vi {
        Vi(four!(i => a.0[i] | b.0[i]))
    }
    #[inline(always)]
    fn ixor(self, a: Vi, b: Vi) -> Vi {
        Vi(four!(i => a.0[i] ^ b.0[i]))
    }
    #[inline(always)]
    fn ishl<const B: u32>(self, a: Vi) -> Vi {
        Vi(four!(i => a.0[i].wrapping_shl(B)))
    }
    #[inline(always)]
    fn isar<const B: u32>(self, a: Vi) -> Vi {
        Vi(four!(i => a.0[i].wrapping_shr(B)))
    }
    #[inline(always)]
    fn to_float(self, a: Vi) -> Vf {
        Vf(four!(i => a.0[i] as f32))
    }
    #[inline(always)]
    fn floor(self, a: Vf) -> Vf {
        Vf(four!(i => a.0[i].floor()))
    }
    #[inline(always)]
    fn ceil(self, a: Vf) -> Vf {
        Vf(four!(i => a.0[i].ceil()))
    }
    #[inline(always)]
    fn round(self, a: Vf) -> Vf {
        Vf(four!(i => a.0[i].round_ties_even()))
    }
    #[inline(always)]
    fn trunc(self, a: Vf) -> Vf {
        Vf(four!(i => a.0[i].trunc()))
    }
}
