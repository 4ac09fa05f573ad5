//! Elementwise ops with two inputs and broadcasting: scalars inline, large tensors in parallel
//! blocks whose inner loops see plain slices or one repeated value, in place if an input's storage
//! is free.

use crate::broadcast::broadcast_shape;
pub use crate::broadcast_walk::BroadcastPlan;
use crate::half_conversion::HALF_BLOCK;
use crate::numeric::{Half, Ordered};
use crate::shapes;
use crate::unary::CHEAP;
use ferroflow_base::Result;
use ferroflow_opdef::{KernelCtx, KernelFactory, Op, OpKernel};
use ferroflow_primitives::math::{self, BinaryOp, Operand, UnaryOp};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Element, Shape, Tensor};
use std::marker::PhantomData;

/// Returns an elementwise op with two inputs, broadcast together.
pub const fn binary_op(name: &'static str, signature: &'static str, kernel: KernelFactory) -> Op {
    Op::new(name, signature)
        .shape(shapes::broadcast)
        .kernel(kernel)
}

/// One operand of an inner loop.
#[derive(Clone, Copy)]
pub enum Side<'a, A> {
    /// One element each.
    Slice(&'a [A]),
    /// The same element everywhere.
    Scalar(A),
}

/// A function of two elements, over slices.
pub trait BinaryFunctor<A, R>: Send + Sync {
    /// Returns the result for one pair of elements.
    fn apply(&self, a: A, b: A) -> R;
    /// `out[i] = f(a[i], b[i])`; slices are as long as `out`.
    fn apply_slice(&self, a: Side<A>, b: Side<A>, out: &mut [R]);
    /// `a[i] = f(a[i], b[i])`; only called when [`BinaryFunctor::in_place`].
    fn assign_left(&self, a: &mut [R], b: Side<A>);
    /// `b[i] = f(a[i], b[i])`; only called when [`BinaryFunctor::in_place`].
    fn assign_right(&self, a: Side<A>, b: &mut [R]);
    /// Returns whether the function can overwrite an operand.
    fn in_place(&self) -> bool;
}

#[inline(always)]
fn apply_all<A: Copy, R>(a: Side<A>, b: Side<A>, out: &mut [R], f: impl Fn(A, A) -> R) {
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
        (Side::Scalar(a), Side::Scalar(b)) => {
            for out in out {
                *out = f(a, b);
            }
        }
    }
}

/// A closure of two elements with a result of the same type.
pub struct BinaryFn<F>(pub F);

impl<A: Element, F: Fn(A, A) -> A + Send + Sync> BinaryFunctor<A, A> for BinaryFn<F> {
    #[inline]
    fn apply(&self, a: A, b: A) -> A {
        (self.0)(a, b)
    }
    #[inline(always)]
    fn apply_slice(&self, a: Side<A>, b: Side<A>, out: &mut [A]) {
        apply_all(a, b, out, &self.0);
    }
    #[inline(always)]
    fn assign_left(&self, a: &mut [A], b: Side<A>) {
        match b {
            Side::Slice(b) => {
                for (a, b) in a.iter_mut().zip(b) {
                    *a = (self.0)(*a, *b);
                }
            }
            Side::Scalar(b) => {
                for a in a {
                    *a = (self.0)(*a, b);
                }
            }
        }
    }
    #[inline(always)]
    fn assign_right(&self, a: Side<A>, b: &mut [A]) {
        match a {
            Side::Slice(a) => {
                for (b, a) in b.iter_mut().zip(a) {
                    *b = (self.0)(*a, *b);
                }
            }
            Side::Scalar(a) => {
                for b in b {
                    *b = (self.0)(a, *b);
                }
            }
        }
    }
    fn in_place(&self) -> bool {
        true
    }
}

/// A function of `ferroflow_primitives`; the closure is the same for single elements.
pub struct SimdBinary<F>(pub BinaryOp, pub F);

impl<'a> From<Side<'a, f32>> for Operand<'a> {
    fn from(side: Side<'a, f32>) -> Self {
        match side {
            Side::Slice(s) => Operand::Slice(s),
            Side::Scalar(x) => Operand::Scalar(x),
        }
    }
}

impl<F: Fn(f32, f32) -> f32 + Send + Sync> BinaryFunctor<f32, f32> for SimdBinary<F> {
    #[inline]
    fn apply(&self, a: f32, b: f32) -> f32 {
        (self.1)(a, b)
    }
    fn apply_slice(&self, a: Side<f32>, b: Side<f32>, out: &mut [f32]) {
        math::binary(self.0, a, b, out);
    }
    fn assign_left(&self, a: &mut [f32], b: Side<f32>) {
        math::binary_left(self.0, a, b);
    }
    fn assign_right(&self, a: Side<f32>, b: &mut [f32]) {
        math::binary_right(self.0, a, b);
    }
    fn in_place(&self) -> bool {
        true
    }
}

/// The maximum (or minimum) of two numbers; a scalar on one side is a bound, which
/// `ferroflow_primitives` supports.
pub struct Limit {
    /// Whether this is the maximum.
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

impl BinaryFunctor<f32, f32> for Limit {
    #[inline]
    fn apply(&self, a: f32, b: f32) -> f32 {
        if self.larger {
            a.larger(b)
        } else {
            a.smaller(b)
        }
    }
    fn apply_slice(&self, a: Side<f32>, b: Side<f32>, out: &mut [f32]) {
        match (a, b) {
            (Side::Slice(x), Side::Scalar(c)) | (Side::Scalar(c), Side::Slice(x))
                if !c.is_nan() =>
            {
                math::unary(self.bound(c), x, out);
            }
            _ if self.larger => apply_all(a, b, out, f32::larger),
            _ => apply_all(a, b, out, f32::smaller),
        }
    }
    fn assign_left(&self, a: &mut [f32], b: Side<f32>) {
        match b {
            Side::Scalar(c) if !c.is_nan() => math::unary_in_place(self.bound(c), a),
            _ if self.larger => BinaryFn(f32::larger).assign_left(a, b),
            _ => BinaryFn(f32::smaller).assign_left(a, b),
        }
    }
    fn assign_right(&self, a: Side<f32>, b: &mut [f32]) {
        self.assign_left(b, a);
    }
    fn in_place(&self) -> bool {
        true
    }
}

/// A closure of two elements with a result of another type.
pub struct ComparisonFn<F>(pub F);

impl<A: Element, R: Element, F: Fn(A, A) -> R + Send + Sync> BinaryFunctor<A, R>
    for ComparisonFn<F>
{
    #[inline]
    fn apply(&self, a: A, b: A) -> R {
        (self.0)(a, b)
    }
    fn apply_slice(&self, a: Side<A>, b: Side<A>, out: &mut [R]) {
        apply_all(a, b, out, &self.0);
    }
    fn assign_left(&self, _: &mut [R], _: Side<A>) {}
    fn assign_right(&self, _: Side<A>, _: &mut [R]) {}
    fn in_place(&self) -> bool {
        false
    }
}

/// An `f32` function of two 16-bit floats, such as a comparison.
pub struct WidenOperands<M>(pub M);

impl<H: Half, R: Element, M: BinaryFunctor<f32, R>> BinaryFunctor<H, R> for WidenOperands<M> {
    fn apply(&self, a: H, b: H) -> R {
        self.0.apply(a.wide(), b.wide())
    }
    fn apply_slice(&self, a: Side<H>, b: Side<H>, out: &mut [R]) {
        each_widened(a, b, out, |a, b, out| self.0.apply_slice(a, b, out));
    }
    fn assign_left(&self, _: &mut [R], _: Side<H>) {}
    fn assign_right(&self, _: Side<H>, _: &mut [R]) {}
    fn in_place(&self) -> bool {
        false
    }
}

/// An `f32` function for a 16-bit float.
pub struct HalfBinary(pub Box<dyn BinaryFunctor<f32, f32>>);

impl<H: Half> BinaryFunctor<H, H> for HalfBinary {
    fn apply(&self, a: H, b: H) -> H {
        H::narrow(self.0.apply(a.wide(), b.wide()))
    }
    fn apply_slice(&self, a: Side<H>, b: Side<H>, out: &mut [H]) {
        let mut wide = [0.0; HALF_BLOCK];
        each_widened(a, b, out, |a, b, out| {
            let wide = &mut wide[..out.len()];
            self.0.apply_slice(a, b, wide);
            H::narrow_all(wide, out);
        });
    }
    fn assign_left(&self, a: &mut [H], b: Side<H>) {
        overwrite_widened(a, b, |a, b| self.0.assign_left(a, b));
    }
    fn assign_right(&self, a: Side<H>, b: &mut [H]) {
        overwrite_widened(b, a, |b, a| self.0.assign_right(a, b));
    }
    fn in_place(&self) -> bool {
        self.0.in_place()
    }
}

/// Calls `f` with each block of `out` and of the operands in single precision.
fn each_widened<H: Half, R>(
    a: Side<H>,
    b: Side<H>,
    out: &mut [R],
    mut f: impl FnMut(Side<f32>, Side<f32>, &mut [R]),
) {
    let (mut wide_a, mut wide_b) = ([0.0; HALF_BLOCK], [0.0; HALF_BLOCK]);
    for (i, out) in out.chunks_mut(HALF_BLOCK).enumerate() {
        let range = i * HALF_BLOCK..i * HALF_BLOCK + out.len();
        let a = widen_side(a, range.clone(), &mut wide_a);
        let b = widen_side(b, range, &mut wide_b);
        f(a, b, out);
    }
}

/// Calls `f` with each block of `out`, which it changes, and of the other operand in single precision.
fn overwrite_widened<H: Half>(
    out: &mut [H],
    other: Side<H>,
    mut f: impl FnMut(&mut [f32], Side<f32>),
) {
    let (mut wide_out, mut wide_other) = ([0.0; HALF_BLOCK], [0.0; HALF_BLOCK]);
    for (i, out) in out.chunks_mut(HALF_BLOCK).enumerate() {
        let range = i * HALF_BLOCK..i * HALF_BLOCK + out.len();
        let wide = &mut wide_out[..out.len()];
        H::widen(out, wide);
        f(wide, widen_side(other, range, &mut wide_other));
        H::narrow_all(wide, out);
    }
}

fn widen_side<'a, H: Half>(
    side: Side<H>,
    range: std::ops::Range<usize>,
    wide: &'a mut [f32; HALF_BLOCK],
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

/// Elements of the repeated row.
const TILE: usize = 512;

/// A check of the second operand's elements.
type Check<A> = fn(&[A]) -> Result<()>;

/// Returns the kernel that applies `functor` to inputs 0 and 1 broadcast together.
///
/// # Errors
/// None; the type is that of kernel factories.
pub fn binary_kernel<A: Element, R: Element>(
    functor: impl BinaryFunctor<A, R> + 'static,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(BinaryKernel {
        functor,
        types: PhantomData,
    }))
}

/// A kernel with a fast path for two scalars, which loops and small graphs consist of, with the
/// function inlined.
struct BinaryKernel<A, R, Z> {
    functor: Z,
    types: PhantomData<fn(A) -> R>,
}

impl<A: Element, R: Element, Z: BinaryFunctor<A, R> + 'static> OpKernel for BinaryKernel<A, R, Z> {
    #[inline]
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        match (ctx.inline_scalar::<A>(0), ctx.inline_scalar::<A>(1)) {
            (Some(x), Some(y)) => ctx.set_output(0, Tensor::scalar(self.functor.apply(x, y))),
            _ => apply_broadcast(ctx, &self.functor, None),
        }
    }
}

/// Returns the kernel of an `f32` function for a 16-bit float.
///
/// # Errors
/// None; the type is that of kernel factories.
pub fn half_binary_kernel<H: Half>(
    functor: impl BinaryFunctor<f32, f32> + 'static,
) -> Result<Box<dyn OpKernel>> {
    binary_kernel::<H, H>(HalfBinary(Box::new(functor)))
}

/// Like [`binary_kernel`], with a check of input 1 if the output is not empty.
///
/// # Errors
/// None; the type is that of kernel factories.
pub fn checked_binary_kernel<A: Element, R: Element>(
    functor: impl BinaryFunctor<A, R> + 'static,
    check: Check<A>,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(CheckedKernel {
        functor: Box::new(functor),
        check,
    }))
}

/// A kernel with a check of the second operand's elements.
struct CheckedKernel<A, R> {
    functor: Box<dyn BinaryFunctor<A, R>>,
    check: Check<A>,
}

impl<A: Element, R: Element> OpKernel for CheckedKernel<A, R> {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        match (ctx.inline_scalar::<A>(0), ctx.inline_scalar::<A>(1)) {
            (Some(x), Some(y)) => {
                (self.check)(&[y])?;
                ctx.set_output(0, Tensor::scalar(self.functor.apply(x, y)))
            }
            _ => apply_broadcast(ctx, &*self.functor, Some(self.check)),
        }
    }
}

/// Returns the shape of two tensors broadcast together.
///
/// # Errors
/// INVALID_ARGUMENT if they are not compatible or the shape is too large.
pub fn checked_broadcast(a: &Shape, b: &Shape) -> Result<Shape> {
    if a == b {
        return Ok(a.clone());
    }
    let shape = broadcast_shape(a, b)?;
    Shape::checked(&shape.to_i64())
}

/// Computes output 0 from inputs 0 and 1. Not generic over the function, so there is one copy per pair of types.
#[inline(never)]
fn apply_broadcast<A: Element, R: Element>(
    ctx: &mut KernelCtx,
    functor: &dyn BinaryFunctor<A, R>,
    check: Option<Check<A>>,
) -> Result<()> {
    let (a, b) = (ctx.input(0)?, ctx.input(1)?);
    if let ([x], [y]) = (a.slice::<A>()?, b.slice::<A>()?) {
        if let Some(check) = check {
            check(&[*y])?;
        }
        let z = Tensor::scalar(functor.apply(*x, *y));
        let z = if a.shape().is_scalar() && b.shape().is_scalar() {
            z
        } else {
            z.with_shape(broadcast_shape(a.shape(), b.shape())?)?
        };
        return ctx.set_output(0, z);
    }
    let shape = checked_broadcast(a.shape(), b.shape())?;
    let plan = BroadcastPlan::broadcast(&shape, a.shape(), b.shape());
    if let Some(check) = check
        && shape.num_elements() > 0
    {
        check(ctx.slice::<A>(1)?)?;
    }
    apply_plan(ctx, functor, shape, &plan)
}

/// Computes output 0 of shape `shape` by `plan`, which must fit the inputs' element counts.
///
/// # Errors
/// RESOURCE_EXHAUSTED if the output does not fit into memory.
pub fn apply_plan<A: Element, R: Element>(
    ctx: &mut KernelCtx,
    functor: &dyn BinaryFunctor<A, R>,
    shape: Shape,
    plan: &BroadcastPlan,
) -> Result<()> {
    let (n, par) = (shape.num_elements(), ctx.par());
    if n == 0 {
        let out = ctx.alloc(R::DTYPE, shape)?;
        return ctx.set_output(0, out);
    }
    let in_place = A::DTYPE == R::DTYPE && functor.in_place();
    let (a_step, b_step) = plan.inner_strides();
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
    if tile.is_empty() && plan.has_short_runs() {
        // An operand whose layout differs from the output's is expanded piece by piece.
        let (whole_a, whole_b) = (a.len() == n, b.len() == n);
        let [spread_a, spread_b] = plan.spreads();
        par_chunks_mut(par, values, CHEAP, 1, &|i, out| {
            let (mut copy_a, mut copy_b) = ([A::default(); TILE], [A::default(); TILE]);
            for (k, out) in out.chunks_mut(TILE).enumerate() {
                let (start, len) = (i * CHEAP + k * TILE, out.len());
                let (copy_a, copy_b) = (&mut copy_a[..len], &mut copy_b[..len]);
                if !left && !whole_a {
                    spread_a.write(a, start, copy_a);
                }
                if !right && !whole_b {
                    spread_b.write(b, start, copy_b);
                }
                let a = if whole_a {
                    &a[start..start + len]
                } else {
                    copy_a
                };
                let b = if whole_b {
                    &b[start..start + len]
                } else {
                    copy_b
                };
                match (left, right) {
                    (true, _) => functor.assign_left(out, Side::Slice(b)),
                    (_, true) => functor.assign_right(Side::Slice(a), out),
                    _ => functor.apply_slice(Side::Slice(a), Side::Slice(b), out),
                }
            }
        });
        return ctx.set_output(0, out);
    }
    let run: &(dyn Fn(&mut [R], usize, usize) + Sync) = if left {
        &|out, _, at| functor.assign_left(out, side(b, b_step, at, out.len()))
    } else if right {
        &|out, at, _| functor.assign_right(side(a, a_step, at, out.len()), out)
    } else {
        &|out, a_at, b_at| {
            let n = out.len();
            functor.apply_slice(side(a, a_step, a_at, n), side(b, b_step, b_at, n), out);
        }
    };
    plan.fill(par, CHEAP, values, tile.len(), run);
    ctx.set_output(0, out)
}
/// `a[i] = f(a[i], b[i])` by a functor that works in place; the slices have the same length.
pub fn assign_left<A: Element>(
    par: &dyn Parallelism,
    functor: &dyn BinaryFunctor<A, A>,
    a: &mut [A],
    b: &[A],
) {
    par_chunks_mut(par, a, CHEAP, 1, &|i, a| {
        let b = &b[i * CHEAP..][..a.len()];
        functor.assign_left(a, Side::Slice(b));
    });
}

/// Returns `n` elements of an operand from `at` on; with stride 0 they are all the same one.
#[inline]
fn side<A: Copy>(data: &[A], step: usize, at: usize, n: usize) -> Side<'_, A> {
    match step {
        0 => Side::Scalar(data[at]),
        _ => Side::Slice(&data[at..at + n]),
    }
}
