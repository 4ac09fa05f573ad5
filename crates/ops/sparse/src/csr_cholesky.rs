//! SparseMatrixOrderingAMD and SparseMatrixSparseCholesky (TensorFlow:
//! `core/kernels/sparse/sparse_ordering_amd_op.cc` and `sparse_cholesky_op.cc`).

use crate::csr::{Csr, Owned, Part};
use crate::minimum_degree::minimum_degree;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::Field;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Complex32, Complex64, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("SparseMatrixOrderingAMD", "input: variant -> output: int32")
        .shape(|ctx| {
            ctx.with_rank(0, 0)?;
            ctx.set(0, PartialShape::unknown());
            Ok(())
        })
        .cost(Cost::Expensive)
        .kernel(|_| Ok(Box::new(order))),
    Op::new(
        "SparseMatrixSparseCholesky",
        "input: variant, permutation: int32 -> output: variant | type: type \
         {float,double,complex64,complex128}",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.with_rank_at_least(1, 1)?;
        ctx.set(0, PartialShape::scalar());
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(factor_kernel),
];

/// Returns the order of square matrices.
fn square(matrix: &Csr) -> Result<usize> {
    let (rows, columns) = matrix.size();
    match rows == columns {
        true => Ok(rows),
        false => Err(invalid_argument!(
            "sparse matrix must be square; got: {rows} != {columns}"
        )),
    }
}

fn order(ctx: &mut KernelCtx) -> Result<()> {
    let matrix = Csr::input(ctx, 0)?;
    let n = square(matrix)?;
    let mut all: Vec<i32> = Vec::with_capacity(n * matrix.batch_size());
    for b in 0..matrix.batch_size() {
        let pattern = match matrix.values.dtype().size() {
            4 => pattern(matrix.part::<f32>(b)?, n),
            8 => match matrix.part::<f64>(b) {
                Ok(part) => pattern(part, n),
                Err(_) => pattern(matrix.part::<Complex32>(b)?, n),
            },
            _ => pattern(matrix.part::<Complex64>(b)?, n),
        };
        all.extend(minimum_degree(pattern).into_iter().map(|i| i as i32));
    }
    let shape: Vec<usize> = match matrix.shape.len() {
        2 => vec![n],
        _ => vec![matrix.batch_size(), n],
    };
    ctx.set_output(0, Tensor::from_slice(Shape::from(&shape[..]), &all)?)
}

/// Returns the columns of each row of the symmetric pattern whose lower triangle a matrix has.
fn pattern<T: Copy>(part: Part<'_, T>, n: usize) -> Vec<Vec<usize>> {
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); n];
    for r in 0..n {
        for (c, _) in part.row(r).filter(|&(c, _)| c <= r) {
            rows[r].push(c);
            if c != r {
                rows[c].push(r);
            }
        }
    }
    rows.iter_mut().for_each(|row| row.sort_unstable());
    rows
}

fn factor_kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("type")?;
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
        Ok(Box::new(factor_all::<T>)), else Err(build.unsupported(dtype)))
}

fn factor_all<T: Field>(ctx: &mut KernelCtx) -> Result<()> {
    let matrix = Csr::input(ctx, 0)?;
    matrix.check_dtype(T::DTYPE, |wanted, found| {
        invalid_argument!("Asked for a CSRSparseMatrix of type {wanted} but saw dtype: {found}")
    })?;
    let n = square(matrix)?;
    let permutation = ctx.input(1)?;
    let rank = matrix.shape.len();
    if permutation.shape().rank() + 1 != rank {
        return Err(invalid_argument!(
            "permutation must have the same rank as the number of batch dimensions plus one: \
             {} vs. {}",
            permutation.shape().rank(),
            rank - 1
        ));
    }
    let rows = permutation.shape().dims().last().copied().unwrap_or(0);
    if rows != n {
        return Err(invalid_argument!(
            "permutation must have the same number of elements in each batch as the number of rows \
             in sparse matrix; got: {rows} != {n}"
        ));
    }
    if permutation.num_elements() != n * matrix.batch_size() {
        return Err(invalid_argument!(
            "permutation must have the same batch size as sparse matrix; got: {} != {}",
            permutation.shape()[0],
            matrix.batch_size()
        ));
    }
    let order = permutation.slice::<i32>()?;
    let mut parts = Vec::with_capacity(matrix.batch_size());
    for b in 0..matrix.batch_size() {
        let order = checked(order.get(b * n..(b + 1) * n).unwrap_or_default())?;
        let rows = permuted(matrix.part::<T>(b)?, &order);
        parts.push(factor(rows).ok_or_else(|| {
            invalid_argument!(
                "Sparse Cholesky factorization failed for batch index {b}. The input might not be \
                 valid."
            )
        })?);
    }
    let factors = Csr::of_parts(matrix.shape.clone(), parts)?;
    ctx.set_output(0, factors.into_tensor()?)
}

/// Checks that each row is named once; returns the rows in order.
fn checked(order: &[i32]) -> Result<Vec<usize>> {
    let mut seen = vec![false; order.len()];
    for &i in order {
        let fresh = seen
            .get_mut(i as usize)
            .is_some_and(|s| !std::mem::replace(s, true));
        if !fresh {
            return Err(invalid_argument!(
                "permutation must have each of the numbers 0 to {} once, but {i} is repeated or \
                 out of range",
                order.len() - 1
            ));
        }
    }
    Ok(order.iter().map(|&i| i as usize).collect())
}

/// Returns the rows of the lower triangle of a matrix, of which the lower triangle is read, with rows
/// and columns in this order.
fn permuted<T: Field>(part: Part<'_, T>, order: &[usize]) -> Vec<Vec<(usize, T)>> {
    let n = order.len();
    let mut place = vec![0; n];
    for (to, &from) in order.iter().enumerate() {
        place[from] = to;
    }
    let mut rows = vec![Vec::new(); n];
    for r in 0..n {
        for (c, x) in part.row(r).filter(|&(c, _)| c <= r) {
            let (r, c) = (place[r], place[c]);
            match c <= r {
                true => rows[r].push((c, x)),
                false => rows[c].push((r, x.conj())),
            }
        }
    }
    rows
}

/// Factors a matrix whose rows are computed one after the other: the columns of a row of the factor
/// are those that the elimination tree reaches from the row's own. `None` if the matrix is not
/// positive definite.
fn factor<T: Field>(rows: Vec<Vec<(usize, T)>>) -> Option<Owned<T>> {
    let n = rows.len();
    let mut parent = vec![usize::MAX; n];
    let mut visited = vec![usize::MAX; n];
    let mut x = vec![T::ZERO; n];
    let mut diagonal = vec![T::ZERO; n];
    let mut columns: Vec<Vec<(usize, T)>> = vec![Vec::new(); n];
    let mut out = Owned {
        rows: vec![0],
        columns: Vec::new(),
        values: Vec::new(),
    };
    for (k, row) in rows.into_iter().enumerate() {
        visited[k] = k;
        let mut reached = Vec::new();
        let mut pivot = T::ZERO;
        for (c, value) in row {
            if c == k {
                pivot = pivot.add(value);
                continue;
            }
            x[c] = x[c].add(value);
            let mut v = c;
            while visited[v] != k {
                visited[v] = k;
                reached.push(v);
                if parent[v] == usize::MAX {
                    parent[v] = k;
                }
                v = parent[v];
            }
        }
        reached.sort_unstable();
        for &c in &reached {
            let value = std::mem::replace(&mut x[c], T::ZERO).div(diagonal[c]);
            for &(r, below) in &columns[c] {
                x[r] = x[r].sub(value.mul(below.conj()));
            }
            pivot = pivot.sub(value.norm());
            columns[c].push((k, value));
            out.columns.push(c as i32);
            out.values.push(value);
        }
        if pivot.real_part() <= 0.0 {
            return None;
        }
        diagonal[k] = T::from_f64(pivot.real_part()).root();
        out.columns.push(k as i32);
        out.values.push(diagonal[k]);
        out.rows.push(out.columns.len() as i32);
    }
    Some(out)
}
