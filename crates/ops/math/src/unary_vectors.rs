//! Sines of doubles, and exponentials, logarithms and roots of complex numbers, by vector instructions.

use ferroflow_base::Result;
use ferroflow_functors::field::{Field, Promote};
use ferroflow_functors::numeric::Num;
use ferroflow_functors::unary::{COSTLY, InPlace, UnaryFunctor, overwrite_blocks, unary_kernel};
use ferroflow_functors::vectorized::VectorizedNear;
use ferroflow_opdef::OpKernel;
use ferroflow_primitives::double::{self, SIN_COS_LIMIT};
use ferroflow_primitives::vectorized;
use ferroflow_tensor::{Complex64, Element};

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

/// Numbers of a block.
const BLOCK: usize = 64;

/// The real and the imaginary parts of a block apart, as vector instructions take them.
struct Parts {
    re: [f64; BLOCK],
    im: [f64; BLOCK],
}

/// A function of complex numbers of which vector instructions compute blocks in double precision.
struct Planar<N, P, F> {
    /// Overwrites a block; its loops have no calls or branches.
    near: N,
    is_near: P,
    far: F,
}

impl<N, P, F> Planar<N, P, F> {
    fn new(near: N, is_near: P, far: F) -> Self {
        Planar { near, is_near, far }
    }
}

impl<T, N, P, F> UnaryFunctor<T, T> for Planar<N, P, F>
where
    T: Element + Promote<Wide = Complex64>,
    N: Fn(&mut Parts) + Send + Sync,
    P: Fn(Complex64) -> bool + Send + Sync,
    F: Fn(T) -> T + Send + Sync,
{
    fn apply(&self, x: T) -> T {
        (self.far)(x)
    }

    fn apply_slice(&self, x: &[T], y: &mut [T]) {
        for (x, y) in x.chunks(BLOCK).zip(y.chunks_mut(BLOCK)) {
            // One keeps the numbers behind the last one harmless.
            let mut parts = Parts {
                re: [1.0; BLOCK],
                im: [1.0; BLOCK],
            };
            let mut all_near = true;
            for (i, x) in x.iter().enumerate() {
                let z = x.promote();
                (parts.re[i], parts.im[i]) = (z.re, z.im);
                all_near &= (self.is_near)(z);
            }
            vectorized(
                #[inline(always)]
                || (self.near)(&mut parts),
            );
            for (i, y) in y.iter_mut().enumerate() {
                *y = T::demote(Complex64::new(parts.re[i], parts.im[i]));
            }
            if !all_near {
                let others = y
                    .iter_mut()
                    .zip(x)
                    .filter(|(_, x)| !(self.is_near)(x.promote()));
                others.for_each(|(y, x)| *y = (self.far)(*x));
            }
        }
    }

    fn in_place(&self) -> Option<&dyn InPlace<T>> {
        Some(self)
    }
}

impl<T, N, P, F> InPlace<T> for Planar<N, P, F>
where
    T: Element + Promote<Wide = Complex64>,
    N: Fn(&mut Parts) + Send + Sync,
    P: Fn(Complex64) -> bool + Send + Sync,
    F: Fn(T) -> T + Send + Sync,
{
    fn overwrite(&self, y: &mut [T]) {
        overwrite_blocks(self, y);
    }
}

#[inline(always)]
fn exp_parts(parts: &mut Parts) {
    let (mut sin, mut cos) = ([0.0; BLOCK], [0.0; BLOCK]);
    for i in 0..BLOCK {
        (sin[i], cos[i]) = double::sin_cos(parts.im[i]);
    }
    for re in &mut parts.re {
        *re = double::exp(*re);
    }
    for i in 0..BLOCK {
        (parts.re[i], parts.im[i]) = (parts.re[i] * cos[i], parts.re[i] * sin[i]);
    }
}

/// Returns the kernel of Exp of complex numbers.
pub(crate) fn exp<T>() -> Result<Box<dyn OpKernel>>
where
    T: Field + Element + Promote<Wide = Complex64>,
{
    let function = Planar::new(
        #[inline(always)]
        |parts: &mut Parts| exp_parts(parts),
        #[inline(always)]
        |z: Complex64| is_near(z.im) & (z.re.abs() < 700.0),
        |z: T| z.exp(),
    );
    unary_kernel(COSTLY, function)
}

#[inline(always)]
fn ln_parts(parts: &mut Parts) {
    let mut size = [0.0; BLOCK];
    for (i, size) in size.iter_mut().enumerate() {
        let (a, b) = (parts.re[i].abs(), parts.im[i].abs());
        let (large, small) = (a.max(b), a.min(b));
        // Near one the logarithm is of what the square is more than that.
        let more = (large - 1.0) * (large + 1.0) + small * small;
        let square = large * large + small * small;
        let is_near_one = more.abs() < 0.5;
        let near_one = double::ln_1p(if is_near_one { more } else { 0.0 });
        let other = double::ln(square);
        *size = 0.5 * if is_near_one { near_one } else { other };
    }
    for i in 0..BLOCK {
        parts.im[i] = double::atan2(parts.im[i], parts.re[i]);
    }
    parts.re = size;
}

/// Returns the kernel of Log of complex numbers.
pub(crate) fn ln<T>() -> Result<Box<dyn OpKernel>>
where
    T: Field + Element + Promote<Wide = Complex64>,
{
    let function = Planar::new(
        #[inline(always)]
        |parts: &mut Parts| ln_parts(parts),
        #[inline(always)]
        |z: Complex64| has_square(z),
        |z: T| z.ln(),
    );
    unary_kernel(COSTLY, function)
}
