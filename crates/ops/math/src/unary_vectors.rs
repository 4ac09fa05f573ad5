//! Sines of doubles, and exponentials, logarithms and roots of complex numbers, by vector instructions.

use ferroflow_base::Result;
use ferroflow_functors::field::{Field, Promote};
use ferroflow_functors::numeric::Num;
use ferroflow_functors::unary::{COSTLY, unary_kernel};
use ferroflow_functors::vectorized::VectorizedNear;
use ferroflow_opdef::OpKernel;
use ferroflow_primitives::double::{self, SIN_COS_LIMIT};
use ferroflow_tensor::Complex64;

#[inline(always)]
fn is_near(x: f64) -> bool {
    x.abs() < SIN_COS_LIMIT
}

/// Returns the kernel of Sin of doubles.
pub(crate) fn sin() -> Result<Box<dyn OpKernel>> {
    let function = VectorizedNear::new(
        #[inline(always)]
        |x| double::sin_cos(x).0,
        is_near,
        f64::sin,
    );
    unary_kernel(COSTLY, function)
}

/// Returns the kernel of Cos of doubles.
pub(crate) fn cos() -> Result<Box<dyn OpKernel>> {
    let function = VectorizedNear::new(
        #[inline(always)]
        |x| double::sin_cos(x).1,
        is_near,
        f64::cos,
    );
    unary_kernel(COSTLY, function)
}

/// Returns the kernel of a function of complex numbers that `near` computes of most in double precision.
fn of_complex<T: Field + Promote<Wide = Complex64>>(
    near: impl Fn(Complex64) -> Complex64 + Send + Sync + 'static,
    is_near: impl Fn(Complex64) -> bool + Send + Sync + 'static,
    far: impl Fn(T) -> T + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    let function = VectorizedNear::new(
        #[inline(always)]
        move |z: T| T::demote(near(z.promote())),
        #[inline(always)]
        move |z: T| is_near(z.promote()),
        far,
    );
    unary_kernel(COSTLY, function)
}

#[inline(always)]
fn exp_near(z: Complex64) -> Complex64 {
    let ((sin, cos), radius) = (double::sin_cos(z.im), double::exp(z.re));
    Complex64::new(radius * cos, radius * sin)
}

/// Whether the exponential is neither large nor turned often.
#[inline(always)]
fn has_exp(z: Complex64) -> bool {
    is_near(z.im) & (z.re.abs() < 700.0)
}

/// Returns the kernel of Exp of complex numbers.
pub(crate) fn exp<T: Field + Promote<Wide = Complex64>>() -> Result<Box<dyn OpKernel>> {
    of_complex::<T>(exp_near, has_exp, Field::exp)
}

/// Whether the square of the magnitude neither overflows nor loses digits.
#[inline(always)]
fn has_square(z: Complex64) -> bool {
    let square = z.re * z.re + z.im * z.im;
    (square > 1e-280) & (square < 1e280)
}

#[inline(always)]
fn ln_near(z: Complex64) -> Complex64 {
    let square = z.re * z.re + z.im * z.im;
    Complex64::new(0.5 * double::ln(square), double::atan2(z.im, z.re))
}

/// Returns the kernel of Log of complex numbers.
pub(crate) fn ln<T: Field + Promote<Wide = Complex64>>() -> Result<Box<dyn OpKernel>> {
    of_complex::<T>(ln_near, has_square, Field::ln)
}

#[inline(always)]
fn sqrt_near(z: Complex64) -> Complex64 {
    let magnitude = (z.re * z.re + z.im * z.im).sqrt();
    // The part whose sum does not cancel, and the other from it.
    let large = (0.5 * (magnitude + z.re.abs())).sqrt();
    let small = z.im / (2.0 * large);
    let is_right = z.re >= 0.0;
    Complex64::new(
        if is_right { large } else { small.abs() },
        if is_right {
            small
        } else {
            large.copysign(z.im)
        },
    )
}

/// Returns the kernel of Sqrt of complex numbers.
pub(crate) fn sqrt<T: Field + Promote<Wide = Complex64>>() -> Result<Box<dyn OpKernel>> {
    of_complex::<T>(sqrt_near, has_square, Num::root)
}
