//! Elementwise ops with one input: scalars inline, large tensors in parallel blocks, in place if
//! the input's storage is free.

use crate::half_conversion::HALF_BLOCK;
use crate::numeric::Half;
use crate::shapes;
use ferroflow_base::Result;
use ferroflow_opdef::{KernelBuild, KernelCtx, KernelFactory, Op, OpKernel};
use ferroflow_primitives::math::{self, UnaryOp};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, Tensor};
use std::marker::PhantomData;

/// Elements per block of a cheap function.
pub const CHEAP: usize = 16 * 1024;
/// Elements per block of an expensive function.
pub const COSTLY: usize = 4 * 1024;

/// Returns an elementwise op with one input.
pub const fn unary_op(name: &'static str, signature: &'static str, kernel: KernelFactory) -> Op {
    Op::new(name, signature)
        .shape(shapes::unchanged)
        .kernel(kernel)
}

/// Returns the dtype of the first input of an op whose kernel supports floats.
///
/// # Errors
/// INVALID_ARGUMENT if there is no kernel for the dtype.
pub fn float_input(build: &KernelBuild) -> Result<DType> {
    match build.input(0)? {
        dtype @ (DType::Float | DType::Half | DType::Bfloat16 | DType::Double) => Ok(dtype),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// A function of one element, over slices.
pub trait UnaryFunctor<A, R>: Send + Sync {
    /// Returns the result for one element.
    fn apply(&self, x: A) -> R;
    /// `y[i] = f(x[i])`; both have the same length.
    fn apply_slice(&self, x: &[A], y: &mut [R]);
    /// Computes `x[i] = f(x[i])` and returns true, for functions that can; else returns false.
    fn in_place(&self, y: &mut [R]) -> bool;
}

/// A closure of one element as a [`UnaryFunctor`].
pub struct UnaryFn<F>(pub F);

impl<A: Element, F: Fn(A) -> A + Send + Sync> UnaryFunctor<A, A> for UnaryFn<F> {
    #[inline]
    fn apply(&self, x: A) -> A {
        (self.0)(x)
    }
    fn apply_slice(&self, x: &[A], y: &mut [A]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = (self.0)(*x);
        }
    }
    fn in_place(&self, y: &mut [A]) -> bool {
        for y in y {
            *y = (self.0)(*y);
        }
        true
    }
}

/// A function of `ferroflow_primitives`.
pub struct SimdUnary(pub UnaryOp);

impl UnaryFunctor<f32, f32> for SimdUnary {
    fn apply(&self, x: f32) -> f32 {
        let mut y = [x];
        math::unary_in_place(self.0, &mut y);
        y[0]
    }
    fn apply_slice(&self, x: &[f32], y: &mut [f32]) {
        math::unary(self.0, x, y);
    }
    fn in_place(&self, y: &mut [f32]) -> bool {
        math::unary_in_place(self.0, y);
        true
    }
}

/// A closure whose result is of another type, as a [`UnaryFunctor`].
pub struct ConvertFn<F>(pub F);

impl<A: Element, R: Element, F: Fn(A) -> R + Send + Sync> UnaryFunctor<A, R> for ConvertFn<F> {
    #[inline]
    fn apply(&self, x: A) -> R {
        (self.0)(x)
    }
    fn apply_slice(&self, x: &[A], y: &mut [R]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = (self.0)(*x);
        }
    }
    fn in_place(&self, _: &mut [R]) -> bool {
        false
    }
}

/// An `f32` function of a 16-bit float.
pub struct WidenInput<M>(pub M);

impl<H: Half, R: Element, M: UnaryFunctor<f32, R>> UnaryFunctor<H, R> for WidenInput<M> {
    fn apply(&self, x: H) -> R {
        self.0.apply(x.wide())
    }
    fn apply_slice(&self, x: &[H], y: &mut [R]) {
        let mut wide = [0.0; HALF_BLOCK];
        for (x, y) in x.chunks(HALF_BLOCK).zip(y.chunks_mut(HALF_BLOCK)) {
            let wide = &mut wide[..x.len()];
            H::widen(x, wide);
            self.0.apply_slice(wide, y);
        }
    }
    fn in_place(&self, _: &mut [R]) -> bool {
        false
    }
}

/// A function with an `f32` result that is rounded to a 16-bit float.
pub struct NarrowOutput<M>(pub M);

impl<A: Element, H: Half, M: UnaryFunctor<A, f32>> UnaryFunctor<A, H> for NarrowOutput<M> {
    fn apply(&self, x: A) -> H {
        H::narrow(self.0.apply(x))
    }
    fn apply_slice(&self, x: &[A], y: &mut [H]) {
        let mut wide = [0.0; HALF_BLOCK];
        for (x, y) in x.chunks(HALF_BLOCK).zip(y.chunks_mut(HALF_BLOCK)) {
            let wide = &mut wide[..x.len()];
            self.0.apply_slice(x, wide);
            H::narrow_all(wide, y);
        }
    }
    fn in_place(&self, _: &mut [H]) -> bool {
        false
    }
}

impl<A, R, M: UnaryFunctor<A, R> + ?Sized> UnaryFunctor<A, R> for Box<M> {
    fn apply(&self, x: A) -> R {
        (**self).apply(x)
    }
    fn apply_slice(&self, x: &[A], y: &mut [R]) {
        (**self).apply_slice(x, y);
    }
    fn in_place(&self, y: &mut [R]) -> bool {
        (**self).in_place(y)
    }
}

/// A kernel of `functor`, in blocks of `block` elements. Scalars, which loops and small graphs consist of, have a fast
/// path with the function inlined.
struct UnaryKernel<A, R, M> {
    functor: M,
    block: usize,
    types: PhantomData<fn(A) -> R>,
}

/// Returns the kernel that applies `functor` to input 0, in blocks of `block` elements.
///
/// # Errors
/// None; the type is that of kernel factories.
pub fn unary_kernel<A: Element, R: Element>(
    block: usize,
    functor: impl UnaryFunctor<A, R> + 'static,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(UnaryKernel {
        functor,
        block,
        types: PhantomData,
    }))
}

impl<A: Element, R: Element, M: UnaryFunctor<A, R> + 'static> OpKernel for UnaryKernel<A, R, M> {
    #[inline]
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        match ctx.inline_scalar::<A>(0) {
            Some(x) => ctx.set_output(0, Tensor::scalar(self.functor.apply(x))),
            None => apply_in_blocks(ctx, self.block, &self.functor),
        }
    }
}

/// Returns the kernel of an `f32` function for a 16-bit float.
///
/// # Errors
/// None; the type is that of kernel factories.
pub fn half_unary_kernel<H: Half>(
    block: usize,
    functor: impl UnaryFunctor<f32, f32> + 'static,
) -> Result<Box<dyn OpKernel>> {
    let functor: Box<dyn UnaryFunctor<f32, f32>> = Box::new(functor);
    unary_kernel::<H, H>(block, WidenInput(NarrowOutput(functor)))
}

/// Applies `functor` to input 0. Not generic over the function, so there is one copy per pair of types.
#[inline(never)]
fn apply_in_blocks<A: Element, R: Element>(
    ctx: &mut KernelCtx,
    block: usize,
    functor: &dyn UnaryFunctor<A, R>,
) -> Result<()> {
    let can_overwrite = A::DTYPE == R::DTYPE && functor.in_place(&mut []);
    let mut y = output_for(ctx, A::DTYPE, R::DTYPE, can_overwrite)?;
    let par = ctx.par();
    let values = y.tensor.slice_mut::<R>()?;
    if y.is_input {
        par_chunks_mut(par, values, block, 1, &|_, y| {
            functor.in_place(y);
        });
    } else {
        let x = ctx.input(0)?.slice::<A>()?;
        par_chunks_mut(par, values, block, 1, &|i, y| {
            let start = i * block;
            functor.apply_slice(&x[start..start + y.len()], y);
        });
    }
    ctx.set_output(0, y.tensor)
}

/// The tensor that becomes output 0.
struct Output {
    tensor: Tensor,
    /// Whether it is input 0, to be overwritten.
    is_input: bool,
}

/// Returns input 0 if it may be overwritten, else a new tensor of its shape. For all types at once: casts alone
/// have over 200 pairs.
#[inline(never)]
fn output_for(ctx: &mut KernelCtx, from: DType, to: DType, can_overwrite: bool) -> Result<Output> {
    let n = ctx.input(0)?.num_elements();
    let is_input = can_overwrite && ctx.can_forward(0, from, n);
    let tensor = match is_input {
        true => ctx.take_input(0)?,
        false => ctx.alloc(to, ctx.input(0)?.shape().clone())?,
    };
    Ok(Output { tensor, is_input })
}
