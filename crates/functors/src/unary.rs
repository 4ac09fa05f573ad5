//! Elementwise ops with one input: scalars inline, large tensors in parallel blocks, in place if
//! the input's storage is free.

use crate::half_conversion::HALF_BLOCK;
use crate::numeric::Half;
use crate::shapes;
use ferroflow_base::Result;
use ferroflow_opdef::{KernelBuild, KernelCtx, KernelFactory, Op, OpKernel};
use ferroflow_primitives::math::{self, UnaryOp};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, Part, PartMut, Tensor};
use smallvec::SmallVec;
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
    /// Returns the function that overwrites its input, if this can.
    fn in_place(&self) -> Option<&dyn InPlace<R>> {
        None
    }
}

/// A function of one element that overwrites a slice.
pub trait InPlace<R>: Sync {
    /// Computes `y[i] = f(y[i])`.
    fn overwrite(&self, y: &mut [R]);
}

/// Elements that are copied before they are overwritten.
const BLOCK: usize = 256;

/// Computes `y[i] = f(y[i])` from copies of blocks.
#[inline]
pub fn overwrite_blocks<A: Element>(f: &impl UnaryFunctor<A, A>, y: &mut [A]) {
    let mut copy = [A::default(); BLOCK];
    for y in y.chunks_mut(BLOCK) {
        let x = &mut copy[..y.len()];
        x.copy_from_slice(y);
        f.apply_slice(x, y);
    }
}

/// A closure of one element as a [`UnaryFunctor`].
pub struct UnaryFn<F>(pub F);

impl<A: Element, F: Fn(A) -> A + Send + Sync> UnaryFunctor<A, A> for UnaryFn<F> {
    #[inline]
    fn apply(&self, x: A) -> A {
        (self.0)(x)
    }
    #[inline(always)]
    fn apply_slice(&self, x: &[A], y: &mut [A]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = (self.0)(*x);
        }
    }
    fn in_place(&self) -> Option<&dyn InPlace<A>> {
        Some(self)
    }
}

impl<A: Element, F: Fn(A) -> A + Send + Sync> InPlace<A> for UnaryFn<F> {
    #[inline(always)]
    fn overwrite(&self, y: &mut [A]) {
        for y in y {
            *y = (self.0)(*y);
        }
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
    fn in_place(&self) -> Option<&dyn InPlace<f32>> {
        Some(self)
    }
}

impl InPlace<f32> for SimdUnary {
    fn overwrite(&self, y: &mut [f32]) {
        math::unary_in_place(self.0, y);
    }
}

/// A closure whose result is of another type, as a [`UnaryFunctor`].
pub struct ConvertFn<F>(pub F);

impl<A: Element, R: Element, F: Fn(A) -> R + Send + Sync> UnaryFunctor<A, R> for ConvertFn<F> {
    #[inline]
    fn apply(&self, x: A) -> R {
        (self.0)(x)
    }
    #[inline(always)]
    fn apply_slice(&self, x: &[A], y: &mut [R]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = (self.0)(*x);
        }
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
}

impl<A, R, M: UnaryFunctor<A, R> + ?Sized> UnaryFunctor<A, R> for Box<M> {
    fn apply(&self, x: A) -> R {
        (**self).apply(x)
    }
    fn apply_slice(&self, x: &[A], y: &mut [R]) {
        (**self).apply_slice(x, y);
    }
    fn in_place(&self) -> Option<&dyn InPlace<R>> {
        (**self).in_place()
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
            None => apply_in_blocks(ctx, self.block, [A::DTYPE, R::DTYPE], self),
        }
    }
}

/// A functor over elements whose types are values.
trait PartFunctor: Sync {
    fn can_overwrite(&self) -> bool;
    fn overwrite(&self, y: &mut PartMut);
    fn apply(&self, x: Part, y: &mut PartMut);
}

impl<A: Element, R: Element, M: UnaryFunctor<A, R>> PartFunctor for UnaryKernel<A, R, M> {
    fn can_overwrite(&self) -> bool {
        A::DTYPE == R::DTYPE && self.functor.in_place().is_some()
    }
    fn overwrite(&self, y: &mut PartMut) {
        if let Some(functor) = self.functor.in_place() {
            functor.overwrite(y.slice_mut());
        }
    }
    fn apply(&self, x: Part, y: &mut PartMut) {
        self.functor.apply_slice(x.slice(), y.slice_mut());
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

/// Applies `functor` to input 0. There is one copy for all types: casts alone have over 200 pairs.
fn apply_in_blocks(
    ctx: &mut KernelCtx,
    block: usize,
    [from, to]: [DType; 2],
    functor: &dyn PartFunctor,
) -> Result<()> {
    let mut y = output_for(ctx, from, to, functor.can_overwrite())?;
    if y.tensor.num_elements() == 0 {
        return ctx.set_output(0, y.tensor);
    }
    let x = match y.is_input {
        true => None,
        false => Some(ctx.input(0)?.part()?),
    };
    let mut parts: SmallVec<[PartMut; 1]> = y.tensor.part_mut()?.chunks(block).collect();
    par_chunks_mut(ctx.par(), &mut parts, 1, 1, &|i, parts| {
        for y in parts {
            match x {
                None => functor.overwrite(y),
                Some(x) => functor.apply(x.range(i * block..i * block + y.len()), y),
            }
        }
    });
    drop(parts);
    ctx.set_output(0, y.tensor)
}

/// The tensor that becomes output 0.
struct Output {
    tensor: Tensor,
    /// Whether it is input 0, to be overwritten.
    is_input: bool,
}

/// Returns input 0 if it may be overwritten, else a new tensor of its shape.
fn output_for(ctx: &mut KernelCtx, from: DType, to: DType, can_overwrite: bool) -> Result<Output> {
    let n = ctx.input(0)?.num_elements();
    let is_input = can_overwrite && ctx.can_forward(0, from, n);
    let tensor = match is_input {
        true => ctx.take_input(0)?,
        false => ctx.alloc(to, ctx.input(0)?.shape().clone())?,
    };
    Ok(Output { tensor, is_input })
}
