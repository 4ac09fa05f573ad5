//! Eig: eigenvalues and eigenvectors of any square matrix (TensorFlow:
//! `core/kernels/linalg/eig_op_impl.h`).

use crate::lu::{adjoint, product, squares, store};
use crate::matrix_functions::Wide;
use crate::self_adjoint_eig::{eig_shape, safe_reciprocal};
use crate::triangular_functions::{Square, eigenvectors, real_eigenvalues, schur};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::Promote;
use ferroflow_functors::indices::shape_of;
use ferroflow_opdef::{Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Complex32, Complex64, DType, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Eig",
    "input: T -> e: Tout, v: Tout | compute_v: bool = true; T: type \
     {float,double,complex64,complex128}; Tout: type {complex64,complex128}",
)
.shape(eig_shape)
.cost(Cost::Expensive)
.kernel(kernel)
.gradient(gradient)];

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let vectors = build.attrs.bool("compute_v")?;
    let (dtype, out) = (build.input(0)?, build.output(0)?);
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
        dispatch!(out, U in [Complex32, Complex64] =>
            Ok(Box::new(move |ctx: &mut KernelCtx| eig::<T, U>(ctx, vectors))),
            else Err(build.unsupported(out))),
        else Err(build.unsupported(dtype)))
}

/// Eigenvalues in the order that TensorFlow has, and vectors as columns, if these are wanted.
fn decompose<W: Wide>(
    a: &[W],
    n: usize,
    is_real: bool,
    vectors: bool,
) -> Option<(Vec<Complex64>, Square)> {
    let matrix: Vec<Complex64> = a.iter().map(|x| x.to_complex()).collect();
    let real = || matrix.iter().map(|x| x.re).collect::<Vec<f64>>();
    if is_real && !vectors {
        return Some((real_eigenvalues(&real(), n)?, Square::new()));
    }
    let (u, t) = schur(&matrix, n)?;
    let own: Vec<Complex64> = (0..n).map(|i| t[i * n + i]).collect();
    let v = match vectors {
        true => eigenvectors(&u, &t, n),
        false => Square::new(),
    };
    let mut order: Vec<usize> = (0..n).collect();
    if !is_real {
        // The smallest first.
        order.sort_by(|&a, &b| own[a].norm().total_cmp(&own[b].norm()));
        let values = order.iter().map(|&i| own[i]).collect();
        let v = if vectors { columns(&v, n, &order) } else { v };
        return Some((values, v));
    }
    let values = real_eigenvalues(&real(), n)?;
    // Each value has the vector of the nearest one of the complex form.
    let mut left = order.clone();
    order.clear();
    for value in &values {
        let distance = |&i: &usize| (own[i] - value).norm();
        let nearest = (0..left.len()).min_by(|&a, &b| {
            let [a, b] = [a, b].map(|k| left.get(k).map_or(f64::INFINITY, distance));
            a.total_cmp(&b)
        })?;
        order.push(left.swap_remove(nearest));
    }
    Some((values, columns(&v, n, &order)))
}

/// Returns these columns of a matrix.
fn columns(v: &[Complex64], n: usize, order: &[usize]) -> Square {
    let at = |row: usize| order.iter().map(move |&i| v[row * n + i]);
    (0..n).flat_map(at).collect()
}

/// The results for a matrix: values, vectors, and whether there are any.
struct Job<'a, U> {
    e: &'a mut [U],
    v: &'a mut [U],
    is_done: bool,
}

fn eig<T, U>(ctx: &mut KernelCtx, vectors: bool) -> Result<()>
where
    T: Promote,
    T::Wide: Wide,
    U: Promote<Wide = Complex64>,
{
    let (batch, n) = squares(ctx, 0)?;
    let mut e = ctx.alloc(U::DTYPE, shape_of(batch.iter().copied().chain([n]))?)?;
    let mut v = match vectors {
        true => ctx.alloc(U::DTYPE, ctx.shape(0)?.clone())?,
        false => Tensor::zeros(U::DTYPE, Shape::from([0]))?,
    };
    let x = ctx.slice::<T>(0)?;
    let is_real = !T::DTYPE.is_complex();
    let mut of_v = v.slice_mut::<U>()?.chunks_exact_mut((n * n).max(1));
    let new = |e| Job {
        e,
        v: of_v.next().unwrap_or_default(),
        is_done: false,
    };
    let mut jobs: Vec<Job<U>> = e
        .slice_mut::<U>()?
        .chunks_exact_mut(n.max(1))
        .map(new)
        .collect();
    par_chunks_mut(ctx.par(), &mut jobs, 1, 1, &|i, jobs| {
        let a = x.get(i * n * n..(i + 1) * n * n).unwrap_or_default();
        let a: Vec<T::Wide> = a.iter().map(|x| x.promote()).collect();
        for job in jobs {
            if let Some((e, v)) = decompose(&a, n, is_real, vectors) {
                store(&e, job.e);
                store(&v, job.v);
                job.is_done = true;
            }
        }
    });
    if jobs.iter().any(|job| !job.is_done) {
        return Err(invalid_argument!(
            "Eigen decomposition was not successful. The input might not be valid."
        ));
    }
    drop(jobs);
    ctx.set_output(0, e)?;
    ctx.set_output(1, v)
}

/// For distinct eigenvalues (Boeddeker et al., arXiv:1701.00392, eq. 4.77).
fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, de) = (g.x(0), g.dy(0));
    let diagonal = de.op("MatrixDiag", &[]);
    let (v, middle) = match g.attrs().bool("compute_v")? {
        true => {
            let (e, v, dv) = (g.y(0), g.y(1), g.dy(1));
            let differences = e.op("ExpandDims", &[e.int(-2)]) - e.op("ExpandDims", &[e.int(-1)]);
            let f = safe_reciprocal(differences).op("MatrixSetDiag", &[e.zeros_like()]);
            let inner = product(v, dv, true, false);
            let dtype = match e.dtype() {
                DType::Complex128 => DType::Double,
                _ => DType::Float,
            };
            let real = inner.op_with("Real", &[], &[("Tout", dtype.into())]);
            let real = real.cast(e.dtype()).op("MatrixDiagPart", &[]);
            let real = real.op("MatrixDiag", &[]);
            let rest = inner - product(product(v, v, true, false), real, false, false);
            (v, diagonal + f.conj() * rest)
        }
        false => {
            let attrs = [("compute_v", true.into()), ("Tout", de.dtype().into())];
            match x.node("Eig", &[x], &attrs)[..] {
                [_, v] => (v, diagonal),
                _ => return Ok(()),
            }
        }
    };
    let left = adjoint(v);
    let right = product(middle, left, false, false);
    g.set(0, left.op("MatrixSolve", &[right]).cast(x.dtype()))
}
