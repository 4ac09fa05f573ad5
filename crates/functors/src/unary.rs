//! The engine of elementwise ops with one input: scalars at once, large tensors in parallel
//! blocks, in place where the input's storage is free.

use crate::numeric::Half;
use ferroflow_base::Result;
use ferroflow_opdef::{KernelBuild, KernelCtx, OpKernel};
use ferroflow_primitives::math::{self, UnaryOp};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, Tensor};
use std::sync::Arc;

/// Elements of a block of a cheap function.
pub const CHEAP: usize = 16 * 1024;
/// Elements of a block of a costly function.
pub const COSTLY: usize = 4 * 1024;
/// Elements that the 16-bit floats are widened by at a time.
const WIDE: usize = 512;

/// The dtype of the first input of an op whose kernel is for floats.
pub fn float_input(build: &KernelBuild) -> Result<DType> {
    match build.input(0)? {
        dtype @ (DType::Float | DType::Half | DType::Bfloat16 | DType::Double) => Ok(dtype),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// A function of one element, over slices.
pub trait Map<A, R>: Send + Sync {
    /// Returns the result for one element.
    fn one(&self, x: A) -> R;
    /// `y[i] = f(x[i])`; both have the same length.
    fn all(&self, x: &[A], y: &mut [R]);
    /// `x[i] = f(x[i])`, for functions that can; false when this one cannot.
    fn in_place(&self, y: &mut [R]) -> bool;
}

/// A closure of one element as a [`Map`].
pub struct Each<F>(pub F);

impl<A: Element, F: Fn(A) -> A + Send + Sync> Map<A, A> for Each<F> {
    #[inline]
    fn one(&self, x: A) -> A {
        (self.0)(x)
    }
    fn all(&self, x: &[A], y: &mut [A]) {
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

/// A function of the SIMD room.
pub struct Simd(pub UnaryOp);

impl Map<f32, f32> for Simd {
    fn one(&self, x: f32) -> f32 {
        let mut y = [x];
        math::unary_in_place(self.0, &mut y);
        y[0]
    }
    fn all(&self, x: &[f32], y: &mut [f32]) {
        math::unary(self.0, x, y);
    }
    fn in_place(&self, y: &mut [f32]) -> bool {
        math::unary_in_place(self.0, y);
        true
    }
}

/// A closure whose result is of another type, as a [`Map`].
pub struct Convert<F>(pub F);

impl<A: Element, R: Element, F: Fn(A) -> R + Send + Sync> Map<A, R> for Convert<F> {
    #[inline]
    fn one(&self, x: A) -> R {
        (self.0)(x)
    }
    fn all(&self, x: &[A], y: &mut [R]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = (self.0)(*x);
        }
    }
    fn in_place(&self, _: &mut [R]) -> bool {
        false
    }
}

/// A function of `f32` whose argument comes from a 16-bit float.
pub struct Widened<M>(pub M);

impl<H: Half, R: Element, M: Map<f32, R>> Map<H, R> for Widened<M> {
    fn one(&self, x: H) -> R {
        self.0.one(x.wide())
    }
    fn all(&self, x: &[H], y: &mut [R]) {
        let mut wide = [0.0; WIDE];
        for (x, y) in x.chunks(WIDE).zip(y.chunks_mut(WIDE)) {
            let wide = &mut wide[..x.len()];
            H::widen(x, wide);
            self.0.all(wide, y);
        }
    }
    fn in_place(&self, _: &mut [R]) -> bool {
        false
    }
}

/// A function with an `f32` result that is rounded to a 16-bit float.
pub struct Narrowed<M>(pub M);

impl<A: Element, H: Half, M: Map<A, f32>> Map<A, H> for Narrowed<M> {
    fn one(&self, x: A) -> H {
        H::narrow(self.0.one(x))
    }
    fn all(&self, x: &[A], y: &mut [H]) {
        let mut wide = [0.0; WIDE];
        for (x, y) in x.chunks(WIDE).zip(y.chunks_mut(WIDE)) {
            let wide = &mut wide[..x.len()];
            self.0.all(x, wide);
            H::narrow_all(wide, y);
        }
    }
    fn in_place(&self, _: &mut [H]) -> bool {
        false
    }
}

impl<A, R, M: Map<A, R> + ?Sized> Map<A, R> for Box<M> {
    fn one(&self, x: A) -> R {
        (**self).one(x)
    }
    fn all(&self, x: &[A], y: &mut [R]) {
        (**self).all(x, y);
    }
    fn in_place(&self, y: &mut [R]) -> bool {
        (**self).in_place(y)
    }
}

struct Kernel<A, R> {
    map: Arc<dyn Map<A, R>>,
    block: usize,
}

/// The kernel that applies `map` to input 0, in blocks of `block` elements.
pub fn map_kernel<A: Element, R: Element>(
    block: usize,
    map: impl Map<A, R> + 'static,
) -> Result<Box<dyn OpKernel>> {
    let map = Arc::new(map);
    Ok(Box::new(ScalarFirst {
        general: Kernel::<A, R> {
            map: map.clone(),
            block,
        },
        map,
    }))
}

/// A scalar, which loops and small graphs are made of, takes a short way in which the function is
/// inlined.
struct ScalarFirst<A, R, M> {
    map: Arc<M>,
    general: Kernel<A, R>,
}

impl<A: Element, R: Element, M: Map<A, R>> OpKernel for ScalarFirst<A, R, M> {
    #[inline]
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        match ctx.inline_scalar::<A>(0) {
            Some(x) => ctx.set_output(0, Tensor::scalar(self.map.one(x))),
            None => self.general.compute(ctx),
        }
    }
}

/// The kernel of an `f32` function for a 16-bit float.
pub fn half_kernel<H: Half>(
    block: usize,
    map: impl Map<f32, f32> + 'static,
) -> Result<Box<dyn OpKernel>> {
    let map: Box<dyn Map<f32, f32>> = Box::new(map);
    map_kernel::<H, H>(block, Widened(Narrowed(map)))
}

impl<A: Element, R: Element> OpKernel for Kernel<A, R> {
    // One copy for all functions of these types.
    #[inline(never)]
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let x = ctx.input(0)?;
        if let [value] = x.slice::<A>()? {
            let y = Tensor::scalar(self.map.one(*value));
            let y = if x.shape().is_scalar() {
                y
            } else {
                y.with_shape(x.shape().clone())?
            };
            return ctx.set_output(0, y);
        }
        self.large(ctx)
    }
}

impl<A: Element, R: Element> Kernel<A, R> {
    fn large(&self, ctx: &mut KernelCtx) -> Result<()> {
        let par = ctx.par();
        let n = ctx.input(0)?.num_elements();
        if A::DTYPE == R::DTYPE && self.map.in_place(&mut []) && ctx.can_forward(0, A::DTYPE, n) {
            let mut y = ctx.take_input(0)?;
            par_chunks_mut(par, y.slice_mut::<R>()?, self.block, 1, &|_, y| {
                self.map.in_place(y);
            });
            return ctx.set_output(0, y);
        }
        let x = ctx.input(0)?;
        let mut y = ctx.alloc(R::DTYPE, x.shape().clone())?;
        let x = x.slice::<A>()?;
        par_chunks_mut(par, y.slice_mut::<R>()?, self.block, 1, &|i, y| {
            let start = i * self.block;
            self.map.all(&x[start..start + y.len()], y);
        });
        ctx.set_output(0, y)
    }
}
