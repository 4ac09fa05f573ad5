//! Functors whose loops are compiled for each instruction set.

use crate::binary::{BinaryFunctor, Side};
use crate::unary::UnaryFunctor;
use ferroflow_primitives::vectorized;

/// A functor whose loops over slices use the best vector instructions of the CPU.
///
/// Each instruction set has its own copy of them: for frequent functions that the baseline of the
/// compilation target computes more slowly than memory delivers.
pub struct Vectorized<Z>(pub Z);

impl<A, R, Z: UnaryFunctor<A, R>> UnaryFunctor<A, R> for Vectorized<Z> {
    #[inline]
    fn apply(&self, x: A) -> R {
        self.0.apply(x)
    }
    fn apply_slice(&self, x: &[A], y: &mut [R]) {
        vectorized(
            #[inline(always)]
            || self.0.apply_slice(x, y),
        );
    }
}

impl<A, R, Z: BinaryFunctor<A, R>> BinaryFunctor<A, R> for Vectorized<Z> {
    #[inline]
    fn apply(&self, a: A, b: A) -> R {
        self.0.apply(a, b)
    }
    fn apply_slice(&self, a: Side<A>, b: Side<A>, out: &mut [R]) {
        vectorized(
            #[inline(always)]
            || self.0.apply_slice(a, b, out),
        );
    }
    fn assign_left(&self, a: &mut [R], b: Side<A>) {
        vectorized(
            #[inline(always)]
            || self.0.assign_left(a, b),
        );
    }
    fn assign_right(&self, a: Side<A>, b: &mut [R]) {
        vectorized(
            #[inline(always)]
            || self.0.assign_right(a, b),
        );
    }
    fn in_place(&self) -> bool {
        self.0.in_place()
    }
}
