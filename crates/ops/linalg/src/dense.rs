//! Decompositions of dense matrices, which `faer` computes: of blocks, with vector instructions.

use crate::qr::{orthogonal, reflect};
use faer::diag::DiagMut;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt;
use faer::linalg::evd::{ComputeEigenvectors, self_adjoint_evd, self_adjoint_evd_scratch};
use faer::linalg::householder::{
    apply_block_householder_sequence_on_the_left_in_place_scratch as apply_scratch,
    apply_block_householder_sequence_on_the_left_in_place_with_conj as apply,
};
use faer::linalg::lu::partial_pivoting::factor as lu;
use faer::linalg::qr::no_pivoting::factor as qr;
use faer::linalg::svd::{ComputeSvdVectors, svd, svd_scratch};
use faer::linalg::triangular_solve;
use faer::traits::ComplexField;
use faer::{Auto, Conj, Mat, MatMut, MatRef, Par, Spec};
use ferroflow_functors::field::Field;
use ferroflow_functors::numeric::Num;
use ferroflow_functors::product::MatMulElement;
use ferroflow_primitives::gemm::{BatchItem, GemmShape};
use ferroflow_primitives::transpose::permute_elements;
use ferroflow_sync::Inline;
use ferroflow_tensor::{Complex32, Complex64, Element, bf16, f16};

/// Smaller systems are solved faster by plain loops.
const SMALL: usize = 24;

/// A scalar in which matrices are decomposed.
pub(crate) trait Scalar: Field {
    /// Returns the singular value decomposition; `None` if the matrix is not finite.
    fn svd(a: MatRef<'_, Self>, vectors: ComputeSvdVectors) -> Option<Singular<Self>>;
    /// Returns the eigenvalues of a self-adjoint matrix in ascending order, and the vectors as
    /// columns; `None` if the iteration does not converge. Only the lower triangle is read.
    fn self_adjoint_eig(a: Mat<Self>, vectors: bool) -> Option<(Vec<Self>, Mat<Self>)>;
    /// Returns the product `size × size` of row-major matrices, of which `turned` one is stored by
    /// its columns.
    fn product(size: usize, turned: Side, a: &[Self], b: &[Self]) -> Option<Vec<Self>>;
    /// Returns `q`, of `p` columns, and `r` of a matrix, with the signs of Eigen's.
    fn qr(a: Mat<Self>, p: usize) -> (Mat<Self>, Mat<Self>) {
        by_reflections(a.as_ref(), p)
    }
    /// Factors a row-major matrix as [`crate::lu::factor`] does, if that is worth the while.
    fn lu(_: &mut [Self], _: usize) -> Option<(Vec<usize>, bool)> {
        None
    }
    /// Replaces the lower triangle of a row-major matrix by its Cholesky factor and the rest by
    /// zeros, if that is worth the while; returns whether there is one.
    fn cholesky(_: &mut [Self], _: usize) -> Option<bool> {
        None
    }
    /// Solves `a x = b` for row-major matrices, if that is worth the while and `a` is not nearly singular; `b` has
    /// `m` columns.
    fn solve(_: &[Self], _: usize, _: &[Self], _: usize) -> Option<Vec<Self>> {
        None
    }
    /// Solves as [`crate::lu::substitute`] does, if that is worth the while; returns whether it did.
    fn substitute(_: &[Self], _: usize, _: (bool, bool), _: &mut [Self], _: usize) -> bool {
        false
    }
}

/// The decompositions that are the same for all types.
macro_rules! by_faer {
    () => {
        fn svd(a: MatRef<'_, Self>, vectors: ComputeSvdVectors) -> Option<Singular<Self>> {
            singular_values(a, vectors)
        }
        fn self_adjoint_eig(a: Mat<Self>, vectors: bool) -> Option<(Vec<Self>, Mat<Self>)> {
            self_adjoint_eig(a, vectors)
        }
        fn product(size: usize, turned: Side, a: &[Self], b: &[Self]) -> Option<Vec<Self>> {
            product(size, turned, a, b)
        }
    };
}

impl Scalar for f32 {
    by_faer!();
    fn qr(a: Mat<f32>, p: usize) -> (Mat<f32>, Mat<f32>) {
        blocked_qr(a, p)
    }
    fn cholesky(a: &mut [f32], n: usize) -> Option<bool> {
        blocked_cholesky(a, n)
    }
    fn solve(a: &[f32], n: usize, b: &[f32], m: usize) -> Option<Vec<f32>> {
        blocked_solve(a, n, b, m)
    }
    fn substitute(a: &[f32], n: usize, kind: (bool, bool), b: &mut [f32], m: usize) -> bool {
        blocked_substitute(a, n, kind, b, m)
    }
}

impl Scalar for f64 {
    by_faer!();
    fn qr(a: Mat<f64>, p: usize) -> (Mat<f64>, Mat<f64>) {
        blocked_qr(a, p)
    }
    fn lu(a: &mut [f64], n: usize) -> Option<(Vec<usize>, bool)> {
        blocked_lu(a, n)
    }
    fn cholesky(a: &mut [f64], n: usize) -> Option<bool> {
        blocked_cholesky(a, n)
    }
    fn solve(a: &[f64], n: usize, b: &[f64], m: usize) -> Option<Vec<f64>> {
        blocked_solve(a, n, b, m)
    }
    fn substitute(a: &[f64], n: usize, kind: (bool, bool), b: &mut [f64], m: usize) -> bool {
        blocked_substitute(a, n, kind, b, m)
    }
}

/// One of the matrices of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

fn product<W: MatMulElement>(size: usize, turned: Side, a: &[W], b: &[W]) -> Option<Vec<W>> {
    let (left, right) = (turned == Side::Left, turned == Side::Right);
    let shape = GemmShape::dense(size, size, a.len() / size.max(1), left, right);
    let mut out = vec![W::ZERO; size * size];
    let first = |_| BatchItem::default();
    W::products(&Inline, 1, &shape, a, b, &mut out, &first).ok()?;
    Some(out)
}

/// The rest by plain loops: Eigen chooses pivots and signs of complex numbers differently.
impl Scalar for Complex64 {
    by_faer!();
}

/// What `faer` computes with.
trait Dense: Field + ComplexField {}

impl<W: Field + ComplexField> Dense for W {}

/// An element type and the scalar in which its matrices are decomposed.
pub(crate) trait Decomposed: Element {
    type Scalar: Scalar;
    fn widen(self) -> Self::Scalar;
    fn narrow(x: Self::Scalar) -> Self;
}

macro_rules! decomposed {
    ($($ty:ty => $scalar:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Decomposed for $ty {
            type Scalar = $scalar;
            #[inline]
            fn widen(self) -> $scalar { $widen(self) }
            #[inline]
            fn narrow(x: $scalar) -> Self { $narrow(x) }
        }
    )*};
}
decomposed! {
    f32 => f32, |x| x, |x| x;
    f64 => f64, |x| x, |x| x;
    f16 => f32, f16::to_f32, f16::from_f32;
    bf16 => f32, bf16::to_f32, bf16::from_f32;
    Complex32 => Complex64,
        |x: Complex32| Complex64::new(x.re.into(), x.im.into()),
        |x: Complex64| Complex32::new(x.re as f32, x.im as f32);
    Complex64 => Complex64, |x| x, |x| x;
}

/// Returns how many matrices of a batch are worth a task.
pub(crate) fn group(m: usize, n: usize) -> usize {
    const TERMS: usize = 1 << 16;
    (TERMS / (m.max(n) * n.min(m).pow(2)).max(1)).max(1)
}

/// Returns the parts of a batch's output, each of `size` elements.
pub(crate) fn chunks<T>(all: &mut [T], size: usize) -> std::slice::ChunksExactMut<'_, T> {
    all.chunks_exact_mut(size.max(1))
}

/// Rows that are converted together: a cache line of each column.
const ROWS: usize = 16;

/// Returns a row-major matrix in `faer`'s layout.
pub(crate) fn matrix<T: Decomposed>(x: &[T], m: usize, n: usize) -> Mat<T::Scalar> {
    let mut a = Mat::from_fn(m, n, |_, _| T::Scalar::ZERO);
    for first in (0..m).step_by(ROWS) {
        for c in 0..n {
            let column = a.col_as_slice_mut(c).iter_mut().skip(first).take(ROWS);
            let values = x.iter().skip(first * n + c).step_by(n);
            column.zip(values).for_each(|(to, x)| *to = x.widen());
        }
    }
    a
}

/// Writes a matrix in row-major order.
pub(crate) fn write<T: Decomposed>(from: MatRef<'_, T::Scalar>, to: &mut [T]) {
    let (m, n) = from.shape();
    for first in (0..m).step_by(ROWS) {
        let rows = from.subrows(first, ROWS.min(m - first));
        for c in 0..n {
            let column = rows.col(c).iter();
            let values = to.iter_mut().skip(first * n + c).step_by(n);
            values.zip(column).for_each(|(to, x)| *to = T::narrow(*x));
        }
    }
}

fn is_finite<W: Dense>(a: MatRef<'_, W>) -> bool {
    a.col_iter()
        .all(|column| column.iter().all(|x| x.magnitude().is_finite()))
}

/// Returns the diagonal matrix of ones of any shape.
fn eye<W: Dense>(m: usize, n: usize) -> Mat<W> {
    Mat::from_fn(m, n, |r, c| if r == c { W::ONE } else { W::ZERO })
}

/// Singular values in descending order, and the vectors as columns.
pub(crate) struct Singular<W> {
    pub(crate) s: Vec<W>,
    pub(crate) u: Mat<W>,
    pub(crate) v: Mat<W>,
}

fn singular_values<W: Dense>(a: MatRef<'_, W>, vectors: ComputeSvdVectors) -> Option<Singular<W>> {
    let (m, n) = a.shape();
    let p = m.min(n);
    if !is_finite(a) {
        return None;
    }
    let columns = |all: usize| match vectors {
        ComputeSvdVectors::No => 0,
        ComputeSvdVectors::Thin => p,
        ComputeSvdVectors::Full => all,
    };
    let mut out = Singular {
        s: vec![W::ZERO; p],
        u: Mat::zeros(m, columns(m)),
        v: Mat::zeros(n, columns(n)),
    };
    if p == 0 {
        (out.u, out.v) = (eye(m, columns(m)), eye(n, columns(n)));
        return Some(out);
    }
    let params = Spec::new(Auto::<W>::auto());
    let scratch = svd_scratch::<W>(m, n, vectors, vectors, Par::Seq, params);
    let s = DiagMut::from_slice_mut(&mut out.s);
    let wanted = vectors != ComputeSvdVectors::No;
    let u = wanted.then_some(out.u.as_mut());
    let v = wanted.then_some(out.v.as_mut());
    let mut memory = MemBuffer::new(scratch);
    svd(a, s, u, v, Par::Seq, MemStack::new(&mut memory), params).ok()?;
    Some(out)
}

fn self_adjoint_eig<W: Dense>(mut a: Mat<W>, vectors: bool) -> Option<(Vec<W>, Mat<W>)> {
    let n = a.nrows();
    for i in 0..n {
        // As Eigen reads it.
        a[(i, i)] = W::from_f64(a[(i, i)].real_part());
    }
    let lower = |c: usize| a.col(c).iter().skip(c).all(|x| x.magnitude().is_finite());
    if !(0..n).all(lower) {
        return None;
    }
    let mut values = vec![W::ZERO; n];
    let mut v = Mat::zeros(n, if vectors { n } else { 0 });
    if n == 0 {
        return Some((values, v));
    }
    let wanted = match vectors {
        true => ComputeEigenvectors::Yes,
        false => ComputeEigenvectors::No,
    };
    let params = Spec::new(Auto::<W>::auto());
    let scratch = self_adjoint_evd_scratch::<W>(n, wanted, Par::Seq, params);
    let s = DiagMut::from_slice_mut(&mut values);
    let to = vectors.then_some(v.as_mut());
    let mut memory = MemBuffer::new(scratch);
    self_adjoint_evd(
        a.as_ref(),
        s,
        to,
        Par::Seq,
        MemStack::new(&mut memory),
        params,
    )
    .ok()?;
    Some((values, v))
}

fn by_reflections<W: Field>(a: MatRef<'_, W>, p: usize) -> (Mat<W>, Mat<W>) {
    let (m, n) = a.shape();
    let mut rows: Vec<W> = (0..m * n).map(|i| a[(i / n, i % n)]).collect();
    let factors = reflect(&mut rows, m, n);
    let q = orthogonal(&rows, &factors, m, n, p);
    let q = Mat::from_fn(m, p, |r, c| q[r * p + c]);
    let upper = |r: usize, c: usize| if c >= r { rows[r * n + c] } else { W::ZERO };
    (q, Mat::from_fn(p, n, upper))
}

fn blocked_qr<W: Dense>(mut a: Mat<W>, p: usize) -> (Mat<W>, Mat<W>) {
    let (m, n) = a.shape();
    let size = m.min(n);
    if size == 0 {
        return (eye(m, p), Mat::zeros(p, n));
    }
    let original = a.clone();
    let block = qr::recommended_block_size::<W>(m, n);
    let mut factors = Mat::zeros(block, size);
    let params = Spec::new(Auto::<W>::auto());
    let scratch = qr::qr_in_place_scratch::<W>(m, n, block, Par::Seq, params);
    let mut memory = MemBuffer::new(scratch.or(apply_scratch::<W>(m, block, p)));
    let stack = MemStack::new(&mut memory);
    let info = qr::qr_in_place(a.as_mut(), factors.as_mut(), Par::Seq, stack, params);
    if info.rank < size {
        // Then it is a row echelon form.
        return by_reflections(original.as_ref(), p);
    }
    let mut q = eye(m, p);
    let basis = a.as_ref().subcols(0, size);
    apply(
        basis,
        factors.as_ref(),
        Conj::No,
        q.as_mut(),
        Par::Seq,
        stack,
    );
    let upper = |r: usize, c: usize| if c >= r { a[(r, c)] } else { W::ZERO };
    (q, Mat::from_fn(p, n, upper))
}

/// Returns a matrix that is stored row by row, or column by column, in the other order.
fn turned<W: Dense>(from: &[W], rows: usize, columns: usize) -> Vec<W> {
    let mut to = vec![W::ZERO; from.len()];
    permute_elements(&Inline, &[rows, columns], &[1, 0], from, &mut to);
    to
}

/// Factors the square matrix whose columns follow each other; returns the source of each row and the number of
/// exchanges. `None` if a pivot is zero, which makes the rest NaN.
fn pivoted<W: Dense>(a: &mut [W], n: usize) -> Option<(Vec<usize>, usize)> {
    let (mut order, mut inverse) = (vec![0usize; n], vec![0usize; n]);
    let params = Spec::new(Auto::<W>::auto());
    let scratch = lu::lu_in_place_scratch::<usize, W>(n, n, Par::Seq, params);
    let mut memory = MemBuffer::new(scratch);
    let stack = MemStack::new(&mut memory);
    let to = MatMut::from_column_major_slice_mut(a, n, n);
    let (info, _) = lu::lu_in_place(to, &mut order, &mut inverse, Par::Seq, stack, params);
    let mut pivots = a.iter().step_by(n + 1);
    let all_good = pivots.all(|x| !x.is_zero() && x.magnitude().is_finite());
    all_good.then_some((order, info.transposition_count))
}

fn blocked_lu<W: Dense>(a: &mut [W], n: usize) -> Option<(Vec<usize>, bool)> {
    if n <= SMALL {
        return None;
    }
    let mut factors = turned(a, n, n);
    let (order, exchanges) = pivoted(&mut factors, n)?;
    a.copy_from_slice(&turned(&factors, n, n));
    Some((order, exchanges % 2 == 1))
}

fn blocked_solve<W: Dense>(a: &[W], n: usize, b: &[W], m: usize) -> Option<Vec<W>> {
    if n <= SMALL || m == 0 {
        return None;
    }
    let mut factors = turned(a, n, n);
    let (order, _) = pivoted(&mut factors, n)?;
    let rows = order.iter().flat_map(|&r| &b[r * m..][..m]);
    let rows: Vec<W> = rows.copied().collect();
    let mut x = turned(&rows, n, m);
    let factors = MatRef::from_column_major_slice(&factors, n, n);
    let mut to = MatMut::from_column_major_slice_mut(&mut x, n, m);
    triangular_solve::solve_unit_lower_triangular_in_place(factors, to.as_mut(), Par::Seq);
    triangular_solve::solve_upper_triangular_in_place(factors, to.as_mut(), Par::Seq);
    Some(turned(&x, m, n))
}

fn blocked_cholesky<W: Dense>(a: &mut [W], n: usize) -> Option<bool> {
    if n <= SMALL {
        return None;
    }
    // Only the lower triangle is read.
    let mut factor = turned(a, n, n);
    let params = Spec::new(Auto::<W>::auto());
    let scratch = llt::factor::cholesky_in_place_scratch::<W>(n, Par::Seq, params);
    let mut memory = MemBuffer::new(scratch);
    let stack = MemStack::new(&mut memory);
    let done = llt::factor::cholesky_in_place(
        MatMut::from_column_major_slice_mut(&mut factor, n, n),
        llt::factor::LltRegularization::default(),
        Par::Seq,
        stack,
        params,
    );
    a.copy_from_slice(&turned(&factor, n, n));
    for (r, row) in a.chunks_exact_mut(n).enumerate() {
        row[r + 1..].fill(W::ZERO);
    }
    Some(done.is_ok())
}

fn blocked_substitute<W: Dense>(
    a: &[W],
    n: usize,
    (lower, unit): (bool, bool),
    b: &mut [W],
    m: usize,
) -> bool {
    if n <= SMALL || m == 0 {
        return false;
    }
    let triangle = MatRef::from_row_major_slice(a, n, n);
    let mut x = turned(b, n, m);
    let to = MatMut::from_column_major_slice_mut(&mut x, n, m);
    use triangular_solve as solve;
    match (lower, unit) {
        (true, true) => solve::solve_unit_lower_triangular_in_place(triangle, to, Par::Seq),
        (true, false) => solve::solve_lower_triangular_in_place(triangle, to, Par::Seq),
        (false, true) => solve::solve_unit_upper_triangular_in_place(triangle, to, Par::Seq),
        (false, false) => solve::solve_upper_triangular_in_place(triangle, to, Par::Seq),
    }
    b.copy_from_slice(&turned(&x, m, n));
    true
}
