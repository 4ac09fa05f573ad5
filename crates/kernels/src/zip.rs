//! The engine of elementwise ops with two inputs and broadcasting: scalars at once, large tensors
//! in parallel blocks whose inner loops see plain slices or one repeated value, in place where an
//! input's storage is free.

use crate::broadcast::broadcast_shape;
use crate::map::CHEAP;
use crate::num::{Half, Ordered};
use crate::simd::math::{self, BinaryOp, Operand, UnaryOp};
use ferroflow_base::Result;
use ferroflow_opdef::{KernelCtx, OpKernel};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Element, Shape, Tensor};
use smallvec::SmallVec;

/// One operand of an inner loop.
#[derive(Clone, Copy)]
pub(crate) enum Side<'a, A> {
    /// An element each.
    Slice(&'a [A]),
    /// The same element everywhere.
    Scalar(A),
}

/// A function of two elements, over slices.
pub(crate) trait Zip<A, R>: Send + Sync {
    fn one(&self, a: A, b: A) -> R;
    /// `out[i] = f(a[i], b[i])`; slices are as long as `out`.
    fn all(&self, a: Side<A>, b: Side<A>, out: &mut [R]);
    /// `a[i] = f(a[i], b[i])`; only called when [`Zip::in_place`].
    fn left(&self, a: &mut [R], b: Side<A>);
    /// `b[i] = f(a[i], b[i])`; only called when [`Zip::in_place`].
    fn right(&self, a: Side<A>, b: &mut [R]);
    /// Whether the function can overwrite an operand.
    fn in_place(&self) -> bool;
}

fn zip_all<A: Copy, R>(a: Side<A>, b: Side<A>, out: &mut [R], f: impl Fn(A, A) -> R) {
    match (a, b) {
        (Side::Slice(a), Side::Slice(b)) => {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = f(*a, *b);
            }
        }
        (Side::Slice(a), Side::Scalar(b)) => {
            for (out, a) in out.iter_mut().zip(a) {
                *out = f(*a, b);
            }
        }
        (Side::Scalar(a), Side::Slice(b)) => {
            for (out, b) in out.iter_mut().zip(b) {
                *out = f(a, *b);
            }
        }
        (Side::Scalar(a), Side::Scalar(b)) => out.iter_mut().for_each(|out| *out = f(a, b)),
    }
}

/// A closure of two elements with a result of the same type.
pub(crate) struct Both<F>(pub F);

impl<A: Element, F: Fn(A, A) -> A + Send + Sync> Zip<A, A> for Both<F> {
    #[inline]
    fn one(&self, a: A, b: A) -> A {
        (self.0)(a, b)
    }
    fn all(&self, a: Side<A>, b: Side<A>, out: &mut [A]) {
        zip_all(a, b, out, &self.0);
    }
    fn left(&self, a: &mut [A], b: Side<A>) {
        match b {
            Side::Slice(b) => a.iter_mut().zip(b).for_each(|(a, b)| *a = (self.0)(*a, *b)),
            Side::Scalar(b) => a.iter_mut().for_each(|a| *a = (self.0)(*a, b)),
        }
    }
    fn right(&self, a: Side<A>, b: &mut [A]) {
        match a {
            Side::Slice(a) => b.iter_mut().zip(a).for_each(|(b, a)| *b = (self.0)(*a, *b)),
            Side::Scalar(a) => b.iter_mut().for_each(|b| *b = (self.0)(a, *b)),
        }
    }
    fn in_place(&self) -> bool {
        true
    }
}

/// A function of the SIMD room; the closure is the same for single elements.
pub(crate) struct Simd(pub BinaryOp, pub fn(f32, f32) -> f32);

impl<'a> From<Side<'a, f32>> for Operand<'a> {
    fn from(side: Side<'a, f32>) -> Self {
        match side {
            Side::Slice(s) => Operand::Slice(s),
            Side::Scalar(x) => Operand::Scalar(x),
        }
    }
}

impl Zip<f32, f32> for Simd {
    #[inline]
    fn one(&self, a: f32, b: f32) -> f32 {
        (self.1)(a, b)
    }
    fn all(&self, a: Side<f32>, b: Side<f32>, out: &mut [f32]) {
        math::binary(self.0, a, b, out);
    }
    fn left(&self, a: &mut [f32], b: Side<f32>) {
        math::binary_left(self.0, a, b);
    }
    fn right(&self, a: Side<f32>, b: &mut [f32]) {
        math::binary_right(self.0, a, b);
    }
    fn in_place(&self) -> bool {
        true
    }
}

/// The larger (or smaller) of two numbers; a plain number on one side makes it a limit, which the
/// SIMD room has.
pub(crate) struct Limit {
    pub larger: bool,
}

impl Limit {
    fn bound(&self, x: f32) -> UnaryOp {
        match self.larger {
            true => UnaryOp::Clamp(x, f32::INFINITY),
            false => UnaryOp::Clamp(f32::NEG_INFINITY, x),
        }
    }
}

impl Zip<f32, f32> for Limit {
    #[inline]
    fn one(&self, a: f32, b: f32) -> f32 {
        if self.larger {
            a.larger(b)
        } else {
            a.smaller(b)
        }
    }
    fn all(&self, a: Side<f32>, b: Side<f32>, out: &mut [f32]) {
        match (a, b) {
            (Side::Slice(x), Side::Scalar(c)) | (Side::Scalar(c), Side::Slice(x))
                if !c.is_nan() =>
            {
                math::unary(self.bound(c), x, out);
            }
            _ if self.larger => zip_all(a, b, out, f32::larger),
            _ => zip_all(a, b, out, f32::smaller),
        }
    }
    fn left(&self, a: &mut [f32], b: Side<f32>) {
        match b {
            Side::Scalar(c) if !c.is_nan() => math::unary_in_place(self.bound(c), a),
            _ if self.larger => Both(f32::larger).left(a, b),
            _ => Both(f32::smaller).left(a, b),
        }
    }
    fn right(&self, a: Side<f32>, b: &mut [f32]) {
        self.left(b, a);
    }
    fn in_place(&self) -> bool {
        true
    }
}

/// A closure of two elements with a result of another type.
pub(crate) struct Test<F>(pub F);

impl<A: Element, R: Element, F: Fn(A, A) -> R + Send + Sync> Zip<A, R> for Test<F> {
    #[inline]
    fn one(&self, a: A, b: A) -> R {
        (self.0)(a, b)
    }
    fn all(&self, a: Side<A>, b: Side<A>, out: &mut [R]) {
        zip_all(a, b, out, &self.0);
    }
    fn left(&self, _: &mut [R], _: Side<A>) {}
    fn right(&self, _: Side<A>, _: &mut [R]) {}
    fn in_place(&self) -> bool {
        false
    }
}

/// Elements that the 16-bit floats are widened by at a time.
const WIDE: usize = 512;

/// A function of `f32` for a 16-bit float.
pub(crate) struct Rounded(pub Box<dyn Zip<f32, f32>>);

impl<H: Half> Zip<H, H> for Rounded {
    fn one(&self, a: H, b: H) -> H {
        H::narrow(self.0.one(a.wide(), b.wide()))
    }
    fn all(&self, a: Side<H>, b: Side<H>, out: &mut [H]) {
        let (mut wide_a, mut wide_b, mut wide) = ([0.0; WIDE], [0.0; WIDE], [0.0; WIDE]);
        for (i, out) in out.chunks_mut(WIDE).enumerate() {
            let range = i * WIDE..i * WIDE + out.len();
            let a = widen_side(a, range.clone(), &mut wide_a);
            let b = widen_side(b, range, &mut wide_b);
            let wide = &mut wide[..out.len()];
            self.0.all(a, b, wide);
            H::narrow_all(wide, out);
        }
    }
    fn left(&self, _: &mut [H], _: Side<H>) {}
    fn right(&self, _: Side<H>, _: &mut [H]) {}
    fn in_place(&self) -> bool {
        false
    }
}

fn widen_side<'a, H: Half>(
    side: Side<H>,
    range: std::ops::Range<usize>,
    wide: &'a mut [f32; WIDE],
) -> Side<'a, f32> {
    match side {
        Side::Scalar(x) => Side::Scalar(x.wide()),
        Side::Slice(x) => {
            let wide = &mut wide[..range.len()];
            H::widen(&x[range], wide);
            Side::Slice(wide)
        }
    }
}

/// A run of dimensions that both operands walk alike: its length and their strides.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dim {
    n: usize,
    a: usize,
    b: usize,
}

/// How two operands are walked to make an output: collapsed dimensions, outermost first. The
/// innermost has strides of 0 and 1 only.
#[derive(Debug)]
pub(crate) struct Plan(SmallVec<[Dim; 4]>);

impl Plan {
    /// The plan of operands of shapes `a` and `b` broadcast to `out`.
    pub(crate) fn broadcast(out: &[usize], a: &[usize], b: &[usize]) -> Plan {
        let rank = out.len();
        let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
        Plan::new((0..rank).map(|i| (out[i], at(a, i) == out[i], at(b, i) == out[i])))
    }

    /// The plan of dimensions, outermost first: length, and whether each operand has it.
    pub(crate) fn new(dims: impl DoubleEndedIterator<Item = (usize, bool, bool)>) -> Plan {
        let mut plan: SmallVec<[Dim; 4]> = SmallVec::new();
        let (mut a_len, mut b_len) = (1usize, 1usize);
        for (n, in_a, in_b) in dims.rev().filter(|d| d.0 != 1) {
            match plan.last_mut() {
                Some(last) if (last.a > 0) == in_a && (last.b > 0) == in_b => {
                    last.n = last.n.wrapping_mul(n)
                }
                _ => plan.push(Dim {
                    n,
                    a: if in_a { a_len } else { 0 },
                    b: if in_b { b_len } else { 0 },
                }),
            }
            a_len = a_len.wrapping_mul(if in_a { n } else { 1 });
            b_len = b_len.wrapping_mul(if in_b { n } else { 1 });
        }
        if plan.is_empty() {
            plan.push(Dim { n: 1, a: 1, b: 1 });
        }
        plan.reverse();
        Plan(plan)
    }

    /// Calls `f(i, n, a, b)` for the inner runs of output elements `start..end`: the run's first
    /// element (counted from `start`), its length, and where it begins in each operand.
    fn runs(&self, start: usize, end: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
        let (inner, outer) = match self.0.split_last() {
            Some((inner, outer)) if inner.n > 0 => (*inner, outer),
            _ => return,
        };
        let mut index: SmallVec<[usize; 4]> = SmallVec::from_elem(0, outer.len());
        let (mut a, mut b, mut row) = (0, 0, start / inner.n);
        for (i, d) in outer.iter().enumerate().rev() {
            index[i] = row % d.n;
            row /= d.n;
            a += index[i] * d.a;
            b += index[i] * d.b;
        }
        let (mut at, mut column) = (start, start % inner.n);
        while at < end {
            let n = (inner.n - column).min(end - at);
            f(at - start, n, a + column * inner.a, b + column * inner.b);
            at += n;
            column = 0;
            for (i, d) in outer.iter().enumerate().rev() {
                index[i] += 1;
                a += d.a;
                b += d.b;
                if index[i] < d.n {
                    break;
                }
                a -= d.n * d.a;
                b -= d.n * d.b;
                index[i] = 0;
            }
        }
    }

    /// Calls `f(i, a, b)` for each of the `n` output elements and where its operands are.
    pub(crate) fn elements(&self, n: usize, mut f: impl FnMut(usize, usize, usize)) {
        let inner = self.0[self.0.len() - 1];
        self.runs(0, n, |i, len, a, b| {
            for k in 0..len {
                f(i + k, a + k * inner.a, b + k * inner.b);
            }
        });
    }

    /// The length of the short row of `b` that repeats under all of `a`, if the plan is that.
    fn short_period(&self) -> Option<usize> {
        match self.0[..] {
            [
                Dim { b: 0, a: 1.., .. },
                Dim {
                    n: n @ 2..SHORT,
                    a: 1,
                    b: 1,
                },
            ] => Some(n),
            _ => None,
        }
    }

    /// Fills `out` block by block, `f(run, a, b)` for every run.
    fn fill<R: Send>(
        &self,
        par: &dyn Parallelism,
        block: usize,
        out: &mut [R],
        tile: usize,
        f: &(dyn Fn(&mut [R], usize, usize) + Sync),
    ) {
        par_chunks_mut(par, out, block, 1, &|i, out| {
            let (start, end) = (i * block, i * block + out.len());
            if tile == 0 {
                return self.runs(start, end, |i, n, a, b| f(&mut out[i..i + n], a, b));
            }
            let period = self.short_period().unwrap_or(1);
            let mut at = start;
            while at < end {
                let phase = at % period;
                let n = (tile - phase).min(end - at);
                f(&mut out[at - start..at - start + n], at, phase);
                at += n;
            }
        });
    }
}

/// Rows shorter than this are repeated into a longer one first.
const SHORT: usize = 64;

/// Elements of the longer row.
const TILE: usize = 512;

/// A test of the second operand's elements.
type Check<A> = fn(&[A]) -> Result<()>;

/// A two-input kernel: the function, and a test of the second operand's elements.
pub(crate) struct ZipKernel<A, R> {
    zip: Box<dyn Zip<A, R>>,
    check: Option<Check<A>>,
    block: usize,
}

/// The kernel that applies `zip` to inputs 0 and 1 broadcast together.
pub(crate) fn zip_kernel<A: Element, R: Element>(
    zip: impl Zip<A, R> + 'static,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(ZipKernel::new(zip)))
}

/// The kernel of an `f32` function for a 16-bit float.
pub(crate) fn half_zip_kernel<H: Half>(
    zip: impl Zip<f32, f32> + 'static,
) -> Result<Box<dyn OpKernel>> {
    zip_kernel::<H, H>(Rounded(Box::new(zip)))
}

/// The same with a test of input 1, for outputs that are not empty.
pub(crate) fn checked_zip_kernel<A: Element, R: Element>(
    zip: impl Zip<A, R> + 'static,
    check: Check<A>,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(ZipKernel {
        check: Some(check),
        ..ZipKernel::new(zip)
    }))
}

/// The shape of two tensors broadcast together, refusing sizes that no tensor can have.
pub(crate) fn checked_broadcast(a: &Shape, b: &Shape) -> Result<Shape> {
    if a == b {
        return Ok(a.clone());
    }
    let shape = broadcast_shape(a, b)?;
    Shape::checked(&shape.to_i64())
}

impl<A: Element, R: Element> OpKernel for ZipKernel<A, R> {
    #[inline]
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        if let ([x], [y]) = (a.slice::<A>()?, b.slice::<A>()?) {
            if let Some(check) = self.check {
                check(&[*y])?;
            }
            let z = Tensor::scalar(self.zip.one(*x, *y));
            let z = if a.shape().is_scalar() && b.shape().is_scalar() {
                z
            } else {
                z.with_shape(broadcast_shape(a.shape(), b.shape())?)?
            };
            return ctx.set_output(0, z);
        }
        let shape = checked_broadcast(a.shape(), b.shape())?;
        let plan = Plan::broadcast(&shape, a.shape(), b.shape());
        self.run(ctx, shape, &plan)
    }
}

impl<A: Element, R: Element> ZipKernel<A, R> {
    /// A kernel without a check.
    pub(crate) fn new(zip: impl Zip<A, R> + 'static) -> Self {
        ZipKernel {
            zip: Box::new(zip),
            check: None,
            block: CHEAP,
        }
    }

    /// Computes output 0 of shape `shape` by `plan`, which must fit the inputs' element counts.
    pub(crate) fn run(&self, ctx: &mut KernelCtx, shape: Shape, plan: &Plan) -> Result<()> {
        let (zip, n, par) = (&*self.zip, shape.num_elements(), ctx.par());
        if n == 0 {
            let out = ctx.alloc(R::DTYPE, shape)?;
            return ctx.set_output(0, out);
        }
        if let Some(check) = self.check {
            check(ctx.slice::<A>(1)?)?;
        }
        let in_place = A::DTYPE == R::DTYPE && zip.in_place();
        let inner = plan.0[plan.0.len() - 1];
        let left = in_place && ctx.can_forward(0, A::DTYPE, n);
        let right = !left && in_place && ctx.can_forward(1, A::DTYPE, n);
        let mut out = match (left, right) {
            (true, _) => ctx.take_input(0)?.with_shape(shape)?,
            (_, true) => ctx.take_input(1)?.with_shape(shape)?,
            _ => ctx.alloc(R::DTYPE, shape)?,
        };
        let values = out.slice_mut::<R>()?;
        let a = if left { &[] } else { ctx.slice::<A>(0)? };
        let b = if right { &[] } else { ctx.slice::<A>(1)? };
        let tile = match plan.short_period() {
            Some(period) if !right && n > TILE => b.repeat(TILE / period),
            _ => Vec::new(),
        };
        let b = if tile.is_empty() { b } else { &tile };
        let run: &(dyn Fn(&mut [R], usize, usize) + Sync) = if left {
            &|out, _, at| zip.left(out, side(b, inner.b, at, out.len()))
        } else if right {
            &|out, at, _| zip.right(side(a, inner.a, at, out.len()), out)
        } else {
            &|out, a_at, b_at| {
                let n = out.len();
                zip.all(side(a, inner.a, a_at, n), side(b, inner.b, b_at, n), out);
            }
        };
        plan.fill(par, self.block, values, tile.len(), run);
        ctx.set_output(0, out)
    }
}

/// `n` elements of an operand from `at` on; with stride 0 they are all the same one.
#[inline]
fn side<A: Copy>(data: &[A], step: usize, at: usize, n: usize) -> Side<'_, A> {
    match step {
        0 => Side::Scalar(data[at]),
        _ => Side::Slice(&data[at..at + n]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_sync::Inline;

    fn check(out: &[usize], a: &[usize], b: &[usize]) {
        let plan = Plan::broadcast(out, a, b);
        let n: usize = out.iter().product();
        let position = |mut i: usize, dims: &[usize]| {
            let (mut at, mut stride) = (0, 1);
            for (k, &d) in out.iter().enumerate().rev() {
                let c = i % d;
                i /= d;
                if let Some(j) = (k + dims.len()).checked_sub(out.len()) {
                    at += if dims[j] == 1 { 0 } else { c * stride };
                    stride *= dims[j];
                }
            }
            at
        };
        let expected: Vec<_> = (0..n).map(|i| (position(i, a), position(i, b))).collect();
        let mut got = vec![(0, 0); n];
        plan.elements(n, |i, a, b| got[i] = (a, b));
        assert_eq!(got, expected, "{out:?} {a:?} {b:?}");
        let inner = plan.0[plan.0.len() - 1];
        got.fill((0, 0));
        let tile = plan.short_period().map_or(0, |p| 3 * p);
        plan.fill(&Inline, 7, &mut got, tile, &|run, a, b| {
            for (k, x) in run.iter_mut().enumerate() {
                let b = b + k * inner.b;
                *x = (a + k * inner.a, if tile > 0 { b % inner.n } else { b });
            }
        });
        // A block of 7 elements starts a new count, so `par_chunks_mut` covers every phase.
        assert_eq!(got, expected, "blocks of {out:?} {a:?} {b:?}");
    }

    #[test]
    fn plans_walk_every_element_in_order() {
        check(&[4, 5], &[4, 5], &[5]);
        check(&[4, 5], &[4, 1], &[5]);
        check(&[2, 3, 4], &[3, 1], &[2, 1, 4]);
        check(&[2, 1, 3, 4, 5], &[2, 1, 1, 4, 1], &[3, 1, 5]);
        check(&[6, 2, 3], &[6, 2, 3], &[2, 3]);
        check(&[3], &[1], &[3]);
        check(&[1, 1], &[1], &[1, 1]);
    }
}
