//! The loop of the optimizers: one pass over a variable and its slots, with a rule for one element.
//!
//! An op's inputs are handles of its variables, then numbers and the gradient, in its own order.
//! The same rule serves the whole variable, rows of it, and a gradient that is a product of two
//! matrices, which is consumed tile by tile.

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::indices::{Index, dispatch_index};
use ferroflow_functors::matmul;
use ferroflow_opdef::{KernelBuild, KernelCtx, OpKernel};
use ferroflow_primitives::each::each;
use ferroflow_primitives::gemm::{Epilogue, GemmShape, MAX_UPDATE_K, gemm_update};
use ferroflow_resources::resource::{Var, lock, value_mut, variable};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{Complex32, Complex64, DType, Element, Shape, Tensor};
use num_complex::ComplexFloat;
use smallvec::SmallVec;
use std::sync::Arc;

/// Elements per parallel block.
const BLOCK: usize = 8 * 1024;

/// An element type of variables.
pub(crate) trait Parameter: Element {
    /// Applies `rule` to values and the product of two matrices; returns false if the type has no
    /// such kernel.
    fn update<F: Fn([&mut Self; N], Self) + Sync, const N: usize>(
        _par: &dyn Parallelism,
        _s: &GemmShape,
        _factors: [&[Self]; 2],
        _values: &mut [&mut [Self]; N],
        _rule: &F,
    ) -> bool {
        false
    }
    fn of(x: f64) -> Self;
    /// Returns the number with these parts; a real number ignores the second.
    fn of_parts(re: f64, _im: f64) -> Self {
        Self::of(re)
    }
    /// Flushes subnormal numbers to zero, keeping the sign.
    fn flushed(self) -> Self;
}

#[inline(always)]
fn flushed<T: num_traits::Float>(x: T) -> T {
    if x.abs() < T::min_positive_value() {
        T::zero().copysign(x)
    } else {
        x
    }
}

/// A floating-point element type of variables.
pub(crate) trait RealParameter: ComplexFloat<Real = Self> + PartialOrd + Parameter {
    /// Returns 1, -1, or the number itself if it is zero or NaN.
    #[inline(always)]
    fn sign(self) -> Self {
        if self > Self::of(0.0) {
            Self::of(1.0)
        } else if self < Self::of(0.0) {
            Self::of(-1.0)
        } else {
            self
        }
    }
    /// Returns the number with the sign of another one.
    fn with_sign_of(self, o: Self) -> Self;
    /// Returns the larger.
    #[inline(always)]
    fn or_larger(self, o: Self) -> Self {
        if self < o { o } else { self }
    }
}

impl Parameter for f32 {
    fn update<F: Fn([&mut f32; N], f32) + Sync, const N: usize>(
        par: &dyn Parallelism,
        s: &GemmShape,
        [a, b]: [&[f32]; 2],
        values: &mut [&mut [f32]; N],
        rule: &F,
    ) -> bool {
        if s.is_tiny() || s.k > MAX_UPDATE_K {
            return false;
        }
        let values = values.each_mut().map(|v| &mut **v);
        gemm_update(par, s, a, b, values, rule);
        true
    }
    #[inline(always)]
    fn of(x: f64) -> Self {
        x as f32
    }
    #[inline(always)]
    fn flushed(self) -> Self {
        flushed(self)
    }
}

impl Parameter for f64 {
    #[inline(always)]
    fn of(x: f64) -> Self {
        x
    }
    #[inline(always)]
    fn flushed(self) -> Self {
        flushed(self)
    }
}

impl RealParameter for f32 {
    #[inline(always)]
    fn with_sign_of(self, o: f32) -> f32 {
        self.copysign(o)
    }
}

impl RealParameter for f64 {
    #[inline(always)]
    fn with_sign_of(self, o: f64) -> f64 {
        self.copysign(o)
    }
}

impl Parameter for Complex32 {
    fn of(x: f64) -> Self {
        Self::of_parts(x, 0.0)
    }
    fn of_parts(re: f64, im: f64) -> Self {
        Complex32::new(re as f32, im as f32)
    }
    fn flushed(self) -> Self {
        Complex32::new(flushed(self.re), flushed(self.im))
    }
}

impl Parameter for Complex64 {
    fn of(x: f64) -> Self {
        Self::of_parts(x, 0.0)
    }
    fn of_parts(re: f64, im: f64) -> Self {
        Complex64::new(re, im)
    }
    fn flushed(self) -> Self {
        Complex64::new(flushed(self.re), flushed(self.im))
    }
}

/// The positions of an op's inputs.
#[derive(Clone)]
struct Inputs {
    /// Number of handles, which come first.
    n_vars: usize,
    numbers: Vec<(usize, String)>,
    gradient: usize,
    gradient_name: &'static str,
    /// The other factor of a product gradient, and which of the two are transposed.
    factor: Option<(usize, [bool; 2])>,
    indices: Option<usize>,
    /// The dtype of variables and gradient; rules may compute in a wider one.
    dtype: DType,
}

impl Inputs {
    fn new(build: &KernelBuild) -> Result<Inputs> {
        let named = |name: &str| build.def.inputs.iter().position(|arg| arg.name() == name);
        // A product has `a` in the gradient's position, and errors call it the gradient.
        let names = [("grad", "grad"), ("delta", "delta")];
        let of_product = if named("alpha").is_some() {
            "delta"
        } else {
            "grad"
        };
        let names = names.into_iter().chain([("a", of_product)]);
        let gradient = names.map(|(arg, name)| named(arg).map(|i| (i, name)));
        let gradient = gradient.flatten().next();
        let (gradient, gradient_name) =
            gradient.ok_or_else(|| internal!("an optimizer needs a gradient"))?;
        let factor = match named("b") {
            Some(b) => {
                let is = |attr| build.attrs.bool(attr);
                Some((b, [is("transpose_a")?, is("transpose_b")?]))
            }
            None => None,
        };
        let indices = named("indices");
        let is_handle = |dtype: &&DType| **dtype == DType::Resource;
        let n_vars = build.inputs.iter().take_while(is_handle).count();
        let args = build.def.inputs.iter().enumerate().skip(n_vars);
        Ok(Inputs {
            n_vars,
            numbers: args
                .filter(|(i, _)| *i != gradient && Some(*i) != indices)
                .filter(|(i, _)| factor.is_none_or(|(b, _)| *i != b))
                .map(|(i, arg)| (i, arg.name().to_string()))
                .collect(),
            gradient,
            gradient_name,
            factor,
            indices,
            dtype: build.input(gradient)?,
        })
    }

    /// Returns the real and imaginary parts of the numeric parameters, in the op's order.
    fn numbers(&self, ctx: &KernelCtx) -> Result<SmallVec<[[f64; 2]; 8]>> {
        let number = |(i, name): &(usize, String)| {
            let t = ctx.input(*i)?;
            if !t.shape().is_scalar() {
                return Err(invalid_argument!("{name} is not a scalar: {}", t.shape()));
            }
            Ok(match t.dtype() {
                DType::Complex64 => {
                    let z = t.to_scalar::<Complex32>()?;
                    [z.re.into(), z.im.into()]
                }
                DType::Complex128 => {
                    let z = t.to_scalar::<Complex64>()?;
                    [z.re, z.im]
                }
                _ => [real(ctx, t)?, 0.0],
            })
        };
        self.numbers.iter().map(number).collect()
    }
}

fn real(ctx: &KernelCtx, t: &Tensor) -> Result<f64> {
    Ok(match t.dtype() {
        DType::Float => t.to_scalar::<f32>()?.into(),
        DType::Double => t.to_scalar::<f64>()?,
        DType::Int64 => t.to_scalar::<i64>()? as f64,
        _ => widened(ctx.par(), t)?.to_scalar::<f32>()?.into(),
    })
}

/// Returns the kernel of a rule with `N` variables (the variable itself and its slots) and `M`
/// numbers.
///
/// `rule` creates the function of one element from the numbers of the step.
pub(crate) fn kernel<T, F, const N: usize, const M: usize>(
    build: &KernelBuild,
    rule: impl Fn([T; M]) -> F + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>>
where
    T: Parameter,
    F: Fn([&mut T; N], T) + Sync,
{
    let inputs = Inputs::new(build)?;
    if inputs.n_vars != N || inputs.numbers.len() != M {
        return Err(internal!(
            "{} has {} variables and {} numbers, its rule {N} and {M}",
            build.def.name,
            inputs.n_vars,
            inputs.numbers.len()
        ));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let mut numbers = [T::of(0.0); M];
        for (to, [re, im]) in numbers.iter_mut().zip(inputs.numbers(ctx)?) {
            *to = T::of_parts(re, im);
        }
        let rule = rule(numbers);
        step(ctx, &inputs, T::DTYPE, &|par, values, work| match work {
            Work::Gradient(gradient, rows) => {
                apply(par, values, gradient, rows, &rule).map(|()| true)
            }
            Work::Product(s, [a, b]) => {
                let (mut slices, factors) =
                    (slices::<T, N>(values)?, [a.slice::<T>()?, b.slice::<T>()?]);
                Ok(T::update(par, s, factors, &mut slices, &rule))
            }
        })
    }))
}

/// What variables are updated by.
enum Work<'a> {
    /// A gradient of these rows, or of all.
    Gradient(&'a Tensor, Option<&'a [usize]>),
    /// The product of two matrices.
    Product(&'a GemmShape, [&'a Tensor; 2]),
}

/// Applies a rule to the variable and its slots; returns false if there is no kernel for the work.
type Update<'a> = dyn Fn(&dyn Parallelism, &mut [&mut Tensor], Work<'_>) -> Result<bool> + 'a;

/// Does a step of an optimizer that computes in `dtype`.
fn step(ctx: &KernelCtx, inputs: &Inputs, dtype: DType, update: &Update<'_>) -> Result<()> {
    let vars = (0..inputs.n_vars).map(|i| variable(ctx, i));
    let vars: Vec<Arc<Var>> = vars.collect::<Result<_>>()?;
    let mut locked = lock(ctx, &vars)?;
    let mut values = Vec::with_capacity(inputs.n_vars);
    for ((i, value), var) in locked.iter_mut().enumerate().zip(&vars) {
        if value.is_none() && !var.is_reference() {
            return Err(internal!("Invalid variable reference."));
        }
        values.push(value_mut(ctx, i, value, inputs.dtype)?);
    }
    let mut gradient = ctx.input(inputs.gradient)?;
    let shape = match values.first() {
        Some(var) => var.shape().clone(),
        None => return Ok(()),
    };
    if let Some(other) = values.iter().find(|v| *v.shape() != shape) {
        return Err(invalid_argument!(
            "var and its slots do not have the same shape {shape} {}",
            other.shape()
        ));
    }
    let check = |gradient: &Shape| match *gradient == shape {
        true => Ok(()),
        false => Err(invalid_argument!(
            "var and {} do not have the same shape{shape} {gradient}",
            inputs.gradient_name
        )),
    };
    let par = ctx.par();
    let product;
    if let Some((b, [ta, tb])) = inputs.factor {
        let factors = [gradient, ctx.input(b)?];
        let s = matmul::sizes(factors[0], factors[1], ta, tb)?;
        check(&Shape::from([s.m, s.n]))?;
        if inputs.dtype == dtype && update(par, &mut values, Work::Product(&s, factors))? {
            return Ok(());
        }
        product = matmul::product::<f32>(ctx, &s, factors, &Epilogue::none())?;
        gradient = &product;
    }
    let rows = match inputs.indices {
        None => {
            check(gradient.shape())?;
            None
        }
        Some(i) => Some(rows(&shape, gradient.shape(), ctx.input(i)?)?),
    };
    if inputs.dtype == dtype {
        return update(par, &mut values, Work::Gradient(gradient, rows.as_deref())).map(drop);
    }
    let mut wide = values
        .iter()
        .map(|t| widened(par, t))
        .collect::<Result<Vec<_>>>()?;
    let gradient = widened(par, gradient)?;
    let mut all: Vec<&mut Tensor> = wide.iter_mut().collect();
    update(par, &mut all, Work::Gradient(&gradient, rows.as_deref()))?;
    for (value, wide) in values.into_iter().zip(wide) {
        *value = narrowed(par, wide, inputs.dtype)?;
    }
    Ok(())
}

/// Returns the rows of the variable that the gradient has.
fn rows(var: &Shape, gradient: &Shape, indices: &Tensor) -> Result<Vec<usize>> {
    if var.rank() == 0 {
        return Err(invalid_argument!("var must be at least 1 dimensional"));
    }
    if indices.shape().rank() != 1 {
        return Err(invalid_argument!("indices must be one-dimensional"));
    }
    if gradient.rank() != var.rank() {
        return Err(invalid_argument!(
            "var and grad must match in rank: {var} and {gradient}"
        ));
    }
    let of_var = var.dims().iter().zip(gradient.dims()).skip(1);
    if let Some(i) = of_var.clone().position(|(v, g)| v != g) {
        return Err(invalid_argument!(
            "var and grad must match in dimension {}",
            i + 1
        ));
    }
    if gradient.dims().first() != Some(&indices.num_elements()) {
        return Err(invalid_argument!(
            "grad must be the same size as indices in the first dimension."
        ));
    }
    let limit = var.dims().first().copied().unwrap_or(0);
    dispatch_index!(indices.dtype(), I => {
        let picked = indices.slice::<I>()?.iter().enumerate();
        picked
            .map(|(at, index)| {
                let index = index.to_i64();
                let row = usize::try_from(index).ok().filter(|&r| r < limit);
                row.ok_or_else(|| {
                    invalid_argument!("Index {index} at offset {at} in indices is out of range")
                })
            })
            .collect()
    })
}

/// Returns the elements of all variables.
fn slices<'a, T: Parameter, const N: usize>(
    values: &'a mut [&mut Tensor],
) -> Result<[&'a mut [T]; N]> {
    let slices = values.iter_mut().map(|v| v.slice_mut::<T>());
    let slices: Vec<_> = slices.collect::<Result<_>>()?;
    slices
        .try_into()
        .map_err(|_| internal!("{N} variables expected"))
}

fn apply<T: Parameter, F: Fn([&mut T; N], T) + Sync, const N: usize>(
    par: &dyn Parallelism,
    values: &mut [&mut Tensor],
    gradient: &Tensor,
    rows: Option<&[usize]>,
    rule: &F,
) -> Result<()> {
    let gradient = gradient.slice::<T>()?;
    let slices = slices::<T, N>(values)?;
    let Some(rows) = rows else {
        blocks(par, slices, gradient, rule);
        return Ok(());
    };
    let width = match rows.len() {
        0 => return Ok(()),
        n => gradient.len() / n,
    };
    let mut slices = slices;
    // A row may occur twice, so rows are processed in order.
    for (row, gradient) in rows.iter().zip(gradient.chunks(width.max(1))) {
        let range = row * width..(row + 1) * width;
        let parts = slices
            .each_mut()
            .map(|s| s.get_mut(range.clone()).unwrap_or_default());
        each(parts, gradient, rule);
    }
    Ok(())
}

/// Applies the rule to all elements, in parallel blocks.
fn blocks<T: Parameter, F: Fn([&mut T; N], T) + Sync, const N: usize>(
    par: &dyn Parallelism,
    slices: [&mut [T]; N],
    gradient: &[T],
    rule: &F,
) {
    if gradient.len() <= BLOCK || par.width() == 1 {
        return each(slices, gradient, rule);
    }
    let mut chunks = slices.map(|s| s.chunks_mut(BLOCK));
    let mut pieces: Vec<([&mut [T]; N], &[T])> = gradient
        .chunks(BLOCK)
        .map(|g| (chunks.each_mut().map(|c| c.next().unwrap_or_default()), g))
        .collect();
    par_chunks_mut(par, &mut pieces, 1, 1, &|_, pieces| {
        for (slices, gradient) in pieces {
            each(slices.each_mut().map(|s| &mut **s), gradient, rule);
        }
    });
}
