//! Sines of doubles and roots of complex numbers by vector instructions.

use ferroflow_base::Result;
use ferroflow_functors::field::Promote;
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

/// Whether the square of the magnitude neither overflows nor loses digits.
#[inline(always)]
fn has_square(z: Complex64) -> bool {
    let square = z.re * z.re + z.im * z.im;
    (square > 1e-280) & (square < 1e280)
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
pub(crate) fn sqrt<T: Num + Promote<Wide = Complex64>>() -> Result<Box<dyn OpKernel>> {
    let function = VectorizedNear::new(
        #[inline(always)]
        |z: T| T::demote(sqrt_near(z.promote())),
        #[inline(always)]
        |z: T| has_square(z.promote()),
        T::root,
    );
    unary_kernel(COSTLY, function)
}
