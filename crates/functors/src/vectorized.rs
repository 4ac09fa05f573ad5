//! Functors whose loops are compiled for each instruction set.

use crate::binary::{BinaryFunctor, Side};
use crate::unary::{ConvertFn, InPlace, UnaryFn, UnaryFunctor, overwrite_blocks};
use ferroflow_primitives::vectorized;
use ferroflow_tensor::Element;

/// A functor whose loops over slices use the best vector instructions of the CPU.
///
/// Each instruction set has its own copy of them: for frequent functions that the baseline of the
/// compilation target computes more slowly than memory delivers.
pub struct Vectorized<Z>(pub Z);

impl<A: Element, F: Fn(A) -> A + Send + Sync> UnaryFunctor<A, A> for Vectorized<UnaryFn<F>> {
    #[inline]
    fn apply(&self, x: A) -> A {
        self.0.apply(x)
    }
    fn apply_slice(&self, x: &[A], y: &mut [A]) {
        vectorized(
            #[inline(always)]
            || self.0.apply_slice(x, y),
        );
    }
    fn in_place(&self) -> Option<&dyn InPlace<A>> {
        Some(self)
    }
}

impl<A: Element, F: Fn(A) -> A + Send + Sync> InPlace<A> for Vectorized<UnaryFn<F>> {
    fn overwrite(&self, y: &mut [A]) {
        vectorized(
            #[inline(always)]
            || self.0.overwrite(y),
        );
    }
}

/// A function that vector instructions compute of most arguments.
pub struct VectorizedNear<N, P, F> {
    near: N,
    is_near: P,
    far: F,
}

impl<N, P, F> VectorizedNear<N, P, F> {
    /// Returns the function that is `near`, which has no calls or branches, where `is_near`, and `far` elsewhere.
    pub fn new(near: N, is_near: P, far: F) -> Self {
        VectorizedNear { near, is_near, far }
    }
}

impl<A, N, P, F> UnaryFunctor<A, A> for VectorizedNear<N, P, F>
where
    A: Element,
    N: Fn(A) -> A + Send + Sync,
    P: Fn(A) -> bool + Send + Sync,
    F: Fn(A) -> A + Send + Sync,
{
    #[inline]
    fn apply(&self, x: A) -> A {
        match (self.is_near)(x) {
            true => (self.near)(x),
            false => (self.far)(x),
        }
    }
    fn apply_slice(&self, x: &[A], y: &mut [A]) {
        let all_near = vectorized(
            #[inline(always)]
            || {
                for (y, x) in y.iter_mut().zip(x) {
                    *y = (self.near)(*x);
                }
                x.iter().fold(true, |all, x| all & (self.is_near)(*x))
            },
        );
        if !all_near {
            let others = y.iter_mut().zip(x).filter(|(_, x)| !(self.is_near)(**x));
            others.for_each(|(y, x)| *y = (self.far)(*x));
        }
    }
    fn in_place(&self) -> Option<&dyn InPlace<A>> {
        Some(self)
    }
}

impl<A, N, P, F> InPlace<A> for VectorizedNear<N, P, F>
where
    A: Element,
    N: Fn(A) -> A + Send + Sync,
    P: Fn(A) -> bool + Send + Sync,
    F: Fn(A) -> A + Send + Sync,
{
    fn overwrite(&self, y: &mut [A]) {
        overwrite_blocks(self, y);
    }
}

impl<A, R, F> UnaryFunctor<A, R> for Vectorized<ConvertFn<F>>
where
    A: Element,
    R: Element,
    F: Fn(A) -> R + Send + Sync,
{
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
