//! Elementwise functions over slices: [`unary`], [`binary`] and their in-place forms.
//!
//! They cost one table lookup per call, so that interpreters may work block by block.

#[cfg(test)]
mod tests;

use super::table::DispatchTable;
use super::vector::Simd;

/// A function of one number.
///
/// NaN propagates, also through `Max`-like bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnaryOp {
    /// `x`.
    Identity,
    /// `-x`.
    Neg,
    /// `|x|`.
    Abs,
    /// `x²`.
    Square,
    /// `√x`.
    Sqrt,
    /// `1 / √x`.
    Rsqrt,
    /// `1 / x`.
    Reciprocal,
    /// `e^x`.
    Exp,
    /// `e^x - 1`.
    Expm1,
    /// `ln x`.
    Log,
    /// `ln (1 + x)`.
    Log1p,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Arcsine.
    Asin,
    /// Arccosine.
    Acos,
    /// Arctangent.
    Atan,
    /// Hyperbolic tangent.
    Tanh,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Inverse hyperbolic tangent.
    Atanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// The error function.
    Erf,
    /// `1 - erf x`.
    Erfc,
    /// Rounds down.
    Floor,
    /// Rounds up.
    Ceil,
    /// Rounds to nearest, ties to even.
    Round,
    /// Rounds toward zero.
    Trunc,
    /// `-1`, `0` or `1`.
    Sign,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `min(max(x, lo), hi)`.
    Clamp(f32, f32),
    /// `x` above zero, a multiple of it below.
    LeakyRelu(f32),
    /// `x` above zero, a multiple of `e^x - 1` below.
    Elu(f32),
    /// The self-normalizing exponential unit.
    Selu,
    /// `ln (1 + e^x)`.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `x · sigmoid(x)`.
    Swish,
    /// `x · hard_sigmoid(x)`.
    HardSwish,
    /// `min(max(x + 3, 0), 6) / 6`.
    HardSigmoid,
    /// `x Φ(x)` by the error function.
    GeluErf,
    /// `x Φ(x)` by the tangent approximation.
    GeluTanh,
    /// `x · a + b`.
    Affine(f32, f32),
    /// `x^c`.
    Pow(f32),
}

impl UnaryOp {
    /// Returns its table row and its two parameters.
    pub(crate) fn code(self) -> (usize, [f32; 2]) {
        let no = [0.0; 2];
        match self {
            UnaryOp::Identity => (0, no),
            UnaryOp::Neg => (1, no),
            UnaryOp::Abs => (2, no),
            UnaryOp::Square => (3, no),
            UnaryOp::Sqrt => (4, no),
            UnaryOp::Rsqrt => (5, no),
            UnaryOp::Reciprocal => (6, no),
            UnaryOp::Exp => (7, no),
            UnaryOp::Expm1 => (8, no),
            UnaryOp::Log => (9, no),
            UnaryOp::Log1p => (10, no),
            UnaryOp::Sin => (11, no),
            UnaryOp::Cos => (12, no),
            UnaryOp::Tanh => (13, no),
            UnaryOp::Sigmoid => (14, no),
            UnaryOp::Erf => (15, no),
            UnaryOp::Erfc => (16, no),
            UnaryOp::Floor => (17, no),
            UnaryOp::Ceil => (18, no),
            UnaryOp::Round => (19, no),
            UnaryOp::Trunc => (20, no),
            UnaryOp::Sign => (21, no),
            UnaryOp::Relu => (22, [0.0, f32::INFINITY]),
            UnaryOp::Relu6 => (22, [0.0, 6.0]),
            UnaryOp::Clamp(lo, hi) => (22, [lo, hi]),
            UnaryOp::LeakyRelu(a) => (23, [a, 0.0]),
            UnaryOp::Elu(a) => (24, [1.0, a]),
            UnaryOp::Selu => (24, [1.050_701, 1.758_099_3]),
            UnaryOp::Softplus => (25, no),
            UnaryOp::Softsign => (26, no),
            UnaryOp::Swish => (27, no),
            UnaryOp::HardSwish => (28, no),
            UnaryOp::HardSigmoid => (29, no),
            UnaryOp::GeluErf => (30, no),
            UnaryOp::GeluTanh => (31, no),
            UnaryOp::Affine(a, b) => (32, [a, b]),
            UnaryOp::Pow(c) => (33, [c, 0.0]),
            UnaryOp::Asin => (34, no),
            UnaryOp::Acos => (35, no),
            UnaryOp::Atan => (36, no),
            UnaryOp::Sinh => (37, no),
            UnaryOp::Cosh => (38, no),
            UnaryOp::Asinh => (39, no),
            UnaryOp::Acosh => (40, no),
            UnaryOp::Atanh => (41, no),
        }
    }
}

/// A function of two numbers.
///
/// `Max` and `Min` are NaN if either operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryOp {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a · b`.
    Mul,
    /// `a / b`.
    Div,
    /// The larger.
    Max,
    /// The smaller.
    Min,
    /// `(a - b)²`.
    SquaredDifference,
    /// `a^b`.
    Pow,
    /// `a · (b > 0 ? 1 : 0)`.
    ReluGrad,
    /// `b · (1 - a²)`.
    TanhGrad,
    /// `b · a · (1 - a)`.
    SigmoidGrad,
    /// `a · ln b`; 0 where `a` is 0.
    Xlogy,
    /// `a · ln (1 + b)`; 0 where `a` is 0.
    Xlog1py,
    /// The angle of the point `(b, a)`.
    Atan2,
}

/// One side of a [`binary`] function.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// One number per element.
    Slice(&'a [f32]),
    /// The same number everywhere.
    Scalar(f32),
}

impl<'a> From<&'a [f32]> for Operand<'a> {
    fn from(s: &'a [f32]) -> Self {
        Operand::Slice(s)
    }
}
impl From<f32> for Operand<'_> {
    fn from(x: f32) -> Self {
        Operand::Scalar(x)
    }
}

/// Computes `dst[i] = op(src[i])`.
///
/// # Panics
/// If the lengths differ.
pub fn unary(op: UnaryOp, src: &[f32], dst: &mut [f32]) {
    assert_eq!(src.len(), dst.len(), "unary: lengths differ");
    let (code, p) = op.code();
    // SAFETY: both are valid for the same number of elements and disjoint by their borrows; the
    // table's functions are those of this CPU.
    unsafe { DispatchTable::current().unary[code](src.as_ptr(), dst.as_mut_ptr(), dst.len(), p) }
}

/// Computes `data[i] = op(data[i])`.
pub fn unary_in_place(op: UnaryOp, data: &mut [f32]) {
    unary_with(DispatchTable::current(), op, data);
}

pub(crate) fn unary_with(table: &DispatchTable, op: UnaryOp, data: &mut [f32]) {
    let (code, p) = op.code();
    let ptr = data.as_mut_ptr();
    // SAFETY: valid and exclusive; each element is read before it is written. The table's
    // functions are those of this CPU.
    unsafe { table.unary[code](ptr, ptr, data.len(), p) }
}

/// Computes `dst[i] = op(a[i], b[i])`.
///
/// # Panics
/// If a slice operand's length differs from that of `dst`.
pub fn binary<'a>(
    op: BinaryOp,
    a: impl Into<Operand<'a>>,
    b: impl Into<Operand<'a>>,
    dst: &mut [f32],
) {
    let (a, b) = (a.into(), b.into());
    if let Operand::Scalar(y) = b
        && op == BinaryOp::Pow
        && let Operand::Slice(a) = a
    {
        return unary(UnaryOp::Pow(y), a, dst);
    }
    let (a, b) = (Side::of(&a, dst.len()), Side::of(&b, dst.len()));
    // SAFETY: `Side::of` checked the lengths; the borrows keep `dst` apart from the operands.
    unsafe { run_binary(op, a, b, dst.as_mut_ptr(), dst.len()) }
}

/// Returns `op(a, b)`, as [`binary`] computes it.
///
/// ```
/// use ferroflow_primitives::math::{BinaryOp, binary_single};
/// assert_eq!(binary_single(BinaryOp::Xlogy, 0.0, -1.0), 0.0);
/// ```
pub fn binary_single(op: BinaryOp, a: f32, b: f32) -> f32 {
    let mut result = [a];
    binary_left(op, &mut result, b);
    result[0]
}

/// Computes `a[i] = op(a[i], b[i])`.
///
/// # Panics
/// If the lengths differ.
pub fn binary_left<'a>(op: BinaryOp, a: &mut [f32], b: impl Into<Operand<'a>>) {
    let b = b.into();
    let n = a.len();
    if let (BinaryOp::Pow, Operand::Scalar(y)) = (op, b) {
        return unary_in_place(UnaryOp::Pow(y), a);
    }
    let ptr = a.as_mut_ptr();
    // SAFETY: lengths are checked; `a` is exclusively borrowed, and each element is read before
    // it is written.
    unsafe { run_binary(op, Side { ptr, step: 1 }, Side::of(&b, n), ptr, n) }
}

/// Computes `b[i] = op(a[i], b[i])`.
///
/// # Panics
/// If the lengths differ.
pub fn binary_right<'a>(op: BinaryOp, a: impl Into<Operand<'a>>, b: &mut [f32]) {
    let a = a.into();
    let (n, ptr) = (b.len(), b.as_mut_ptr());
    // SAFETY: as in `binary_left`.
    unsafe { run_binary(op, Side::of(&a, n), Side { ptr, step: 1 }, ptr, n) }
}

/// Computes `dst[r][c] = src[r][c] · scale[c] + offset[c]` for rows as long as `scale`.
///
/// # Panics
/// If `scale` and `offset` differ in length, or `src` and `dst` do, or they are not whole rows.
pub fn scale_offset(src: &[f32], scale: &[f32], offset: &[f32], dst: &mut [f32]) {
    assert_eq!(scale.len(), offset.len(), "scale_offset: lengths differ");
    assert_eq!(src.len(), dst.len(), "scale_offset: lengths differ");
    if dst.is_empty() {
        return;
    }
    assert!(
        !scale.is_empty() && dst.len().is_multiple_of(scale.len()),
        "scale_offset: rows"
    );
    let table = DispatchTable::current();
    for (s, d) in src
        .chunks_exact(scale.len())
        .zip(dst.chunks_exact_mut(scale.len()))
    {
        let (a, b) = (scale.as_ptr(), offset.as_ptr());
        // SAFETY: all four are `scale.len()` long; the table's functions are those of this CPU.
        unsafe { (table.scale_offset)(s.as_ptr(), a, b, d.as_mut_ptr(), scale.len()) }
    }
}

/// A checked operand: a step of zero repeats one number.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    ptr: *const f32,
    step: usize,
}

impl Side {
    fn of(x: &Operand<'_>, n: usize) -> Side {
        match x {
            Operand::Slice(s) => {
                assert_eq!(s.len(), n, "binary: lengths differ");
                Side {
                    ptr: s.as_ptr(),
                    step: 1,
                }
            }
            Operand::Scalar(x) => Side { ptr: x, step: 0 },
        }
    }
}

/// # Safety
/// Both sides hold `n` elements (or one number), `dst` is valid for writing `n`, and is the same
/// as, or disjoint from, each slice.
unsafe fn run_binary(op: BinaryOp, a: Side, b: Side, dst: *mut f32, n: usize) {
    // SAFETY: the caller's promise; the table's functions are those of this CPU.
    unsafe { DispatchTable::current().binary[op as usize](a, b, dst, n) }
}

/// A function of a vector that is always inlined, unlike a closure.
pub(crate) trait Fun<S: Simd> {
    /// Returns the value.
    fn call(&self, x: S::V) -> S::V;
}

impl<S: Simd, F: Fn(S::V) -> S::V> Fun<S> for F {
    #[inline(always)]
    fn call(&self, x: S::V) -> S::V {
        self(x)
    }
}

/// Applies `f` to every vector of `src`.
///
/// # Safety
/// `src` can be read and `dst` written for `n` elements; they are equal or disjoint.
#[inline(always)]
pub(crate) unsafe fn map<S: Simd>(s: S, src: *const f32, dst: *mut f32, n: usize, f: impl Fun<S>) {
    let mut i = 0;
    // SAFETY: every access is below `n`.
    unsafe {
        while i + 2 * S::N <= n {
            let (x, y) = (s.load(src.add(i)), s.load(src.add(i + S::N)));
            let (x, y) = (f.call(x), f.call(y));
            s.store(dst.add(i), x);
            s.store(dst.add(i + S::N), y);
            i += 2 * S::N;
        }
        if i + S::N <= n {
            s.store(dst.add(i), f.call(s.load(src.add(i))));
            i += S::N;
        }
        if i < n {
            s.store_part(dst.add(i), f.call(s.load_part(src.add(i), n - i)), n - i);
        }
    }
}

/// Applies `f` to every pair of vectors.
///
/// # Safety
/// As for [`run_binary`].
#[inline(always)]
pub(crate) unsafe fn zip<S: Simd>(
    s: S,
    a: Side,
    b: Side,
    dst: *mut f32,
    n: usize,
    f: impl Fn(S::V, S::V) -> S::V,
) {
    // SAFETY: a side with step 0 holds one number, the others `n`; `map` stays below `n`.
    unsafe {
        if b.step == 0 {
            let y = s.splat(*b.ptr);
            if a.step == 0 {
                let x = f(s.splat(*a.ptr), y);
                return map(s, dst, dst, n, |_| x);
            }
            return map(s, a.ptr, dst, n, |x| f(x, y));
        }
        if a.step == 0 {
            let x = s.splat(*a.ptr);
            return map(s, b.ptr, dst, n, |y| f(x, y));
        }
        let mut i = 0;
        while i + 2 * S::N <= n {
            let x0 = f(s.load(a.ptr.add(i)), s.load(b.ptr.add(i)));
            let x1 = f(s.load(a.ptr.add(i + S::N)), s.load(b.ptr.add(i + S::N)));
            s.store(dst.add(i), x0);
            s.store(dst.add(i + S::N), x1);
            i += 2 * S::N;
        }
        if i + S::N <= n {
            s.store(dst.add(i), f(s.load(a.ptr.add(i)), s.load(b.ptr.add(i))));
            i += S::N;
        }
        if i < n {
            let left = n - i;
            let x = f(
                s.load_part(a.ptr.add(i), left),
                s.load_part(b.ptr.add(i), left),
            );
            s.store_part(dst.add(i), x, left);
        }
    }
}

/// Computes `dst = src · scale + offset`.
///
/// # Safety
/// All four are valid for `n` elements.
#[inline(always)]
pub(crate) unsafe fn scale_offset_row<S: Simd>(
    s: S,
    src: *const f32,
    scale: *const f32,
    offset: *const f32,
    dst: *mut f32,
    n: usize,
) {
    let mut i = 0;
    // SAFETY: every access is below `n`.
    unsafe {
        while i + S::N <= n {
            let y = s.fma(
                s.load(src.add(i)),
                s.load(scale.add(i)),
                s.load(offset.add(i)),
            );
            s.store(dst.add(i), y);
            i += S::N;
        }
        if i < n {
            let left = n - i;
            let x = s.load_part(src.add(i), left);
            let y = s.fma(
                x,
                s.load_part(scale.add(i), left),
                s.load_part(offset.add(i), left),
            );
            s.store_part(dst.add(i), y, left);
        }
    }
}

/// Computes `a^b`, element by element through the C library.
///
/// # Safety
/// As for [`run_binary`].
pub(crate) unsafe fn pow_loop(a: Side, b: Side, dst: *mut f32, n: usize) {
    for i in 0..n {
        // SAFETY: index `i * step` is below `n`, or zero for a single number.
        unsafe { *dst.add(i) = (*a.ptr.add(i * a.step)).powf(*b.ptr.add(i * b.step)) };
    }
}

/// Computes `x^c`, by multiplication for common exponents.
///
/// # Safety
/// As for [`map`].
#[inline(always)]
pub(crate) unsafe fn pow_const<S: Simd>(s: S, src: *const f32, dst: *mut f32, n: usize, c: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        if c == 2.0 {
            map(s, src, dst, n, |x| s.mul(x, x))
        } else if c == 3.0 {
            map(s, src, dst, n, |x| s.mul(s.mul(x, x), x))
        } else if c == 1.0 {
            map(s, src, dst, n, |x| x)
        } else if c == -1.0 {
            map(s, src, dst, n, |x| s.div(s.splat(1.0), x))
        } else {
            for i in 0..n {
                *dst.add(i) = (*src.add(i)).powf(c);
            }
        }
    }
}
