//! SparseMatrixMatMul, SparseMatrixSparseMatMul and SparseMatrixTranspose (TensorFlow:
//! `core/kernels/sparse/mat_mul_op.h`, `sparse_mat_mul_op.cc`, `transpose_op.cc`).

use crate::csr::{Csr, Owned, Part};
use crate::csr_gradients::{with_dense_gradient, with_sparse_gradient};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::field::Field;
use ferroflow_opdef::{Attrs, Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Complex32, Complex64, DType, PartialShape, Shape, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SparseMatrixMatMul",
        "a: variant, b: T -> output: T | T: type; transpose_a: bool = false; transpose_b: bool = \
         false; adjoint_a: bool = false; adjoint_b: bool = false; transpose_output: bool = false; \
         conjugate_output: bool = false",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.with_rank_at_least(1, 2)?;
        Sides::of(ctx.attrs())?;
        let rank = ctx.input(1).rank();
        ctx.set(
            0,
            rank.map_or_else(PartialShape::unknown, |n| PartialShape::of(vec![None; n])),
        );
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(with_dense)
    .gradient(with_dense_gradient),
    Op::new(
        "SparseMatrixSparseMatMul",
        "a: variant, b: variant -> c: variant | type: type {float,double,complex64,complex128}; \
         transpose_a: bool = false; transpose_b: bool = false; adjoint_a: bool = false; adjoint_b: \
         bool = false",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.with_rank(1, 0)?;
        Sides::of(ctx.attrs())?;
        ctx.set(0, PartialShape::scalar());
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(with_sparse)
    .gradient(with_sparse_gradient),
    Op::new(
        "SparseMatrixTranspose",
        "input: variant -> output: variant | conjugate: bool = false; type: type \
         {float,double,complex64,complex128}",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.set(0, PartialShape::scalar());
        Ok(())
    })
    .kernel(transpose)
    .gradient(|g| {
        let attrs = [g.attr("type"), g.attr("conjugate")];
        let dx = g.dy(0).make("SparseMatrixTranspose", &[g.dy(0)], &attrs);
        g.set(0, dx)
    }),
];

/// How a factor enters a product.
#[derive(Clone, Copy)]
struct Side {
    transpose: bool,
    conjugate: bool,
}

#[derive(Clone, Copy)]
struct Sides {
    a: Side,
    b: Side,
}

impl Sides {
    fn of(attrs: &Attrs) -> Result<Sides> {
        let side = |transpose: &str, adjoint: &str| {
            let (transposed, conjugate) = (attrs.bool(transpose)?, attrs.bool(adjoint)?);
            match transposed && conjugate {
                true => Err(invalid_argument!(
                    "Only one of {adjoint} and {transpose} may be true."
                )),
                false => Ok(Side {
                    transpose: transposed || conjugate,
                    conjugate,
                }),
            }
        };
        Ok(Sides {
            a: side("transpose_a", "adjoint_a")?,
            b: side("transpose_b", "adjoint_b")?,
        })
    }
}

fn disagree(a: &Shape, gap: &str, b: &Shape) -> Status {
    invalid_argument!(
        "Inner product dimensions of A and B do not agree.{gap}Shapes are: {a} vs. {b}"
    )
}

fn with_dense(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let product = Product {
        sides: Sides::of(build.attrs)?,
        transpose_output: build.attrs.bool("transpose_output")?,
        conjugate_output: build.attrs.bool("conjugate_output")?,
    };
    let dtype = build.input(1)?;
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| product.run::<T>(ctx))),
        else Err(build.unsupported(dtype)))
}

/// A product of sparse matrices with dense ones.
#[derive(Clone, Copy)]
struct Product {
    sides: Sides,
    transpose_output: bool,
    conjugate_output: bool,
}

/// A dense matrix as a factor.
struct Dense<'a, T> {
    values: &'a [T],
    columns: usize,
    side: Side,
}

impl<T: Field> Dense<'_, T> {
    fn get(&self, r: usize, c: usize) -> T {
        let at = match self.side.transpose {
            true => c * self.columns + r,
            false => r * self.columns + c,
        };
        let x = self.values.get(at).copied().unwrap_or(T::ZERO);
        if self.side.conjugate { x.conj() } else { x }
    }
}

impl Product {
    fn run<T: Field>(self, ctx: &mut KernelCtx) -> Result<()> {
        let (a, b) = (Csr::input(ctx, 0)?, ctx.input(1)?);
        let (n_batches, sizes) = check_dense(a, b.dtype(), b.shape())?;
        let (rows, inner) = oriented(a.size(), self.sides.a);
        let (b_inner, columns) = oriented((sizes[0], sizes[1]), self.sides.b);
        if inner != b_inner {
            return Err(disagree(&Shape::checked(&a.shape)?, " ", b.shape()));
        }
        let mut shape = b.shape().to_i64();
        shape.truncate(shape.len() - 2);
        shape.extend(match self.transpose_output {
            true => [columns as i64, rows as i64],
            false => [rows as i64, columns as i64],
        });
        let mut out = ctx.alloc(T::DTYPE, Shape::checked(&shape)?)?;
        let size = rows * columns;
        let from = b.slice::<T>()?;
        let to = out.slice_mut::<T>()?;
        to.fill(T::ZERO);
        for batch in 0..n_batches {
            let dense = Dense {
                values: from.get(batch * sizes[0] * sizes[1]..).unwrap_or_default(),
                columns: sizes[1],
                side: self.sides.b,
            };
            let to = to
                .get_mut(batch * size..(batch + 1) * size)
                .unwrap_or_default();
            self.one(a.part(batch)?, a.size().0, &dense, to, (rows, columns));
        }
        ctx.set_output(0, out)
    }

    /// Computes one product of the batch.
    fn one<T: Field>(
        self,
        a: Part<'_, T>,
        a_rows: usize,
        b: &Dense<T>,
        to: &mut [T],
        (rows, columns): (usize, usize),
    ) {
        for r in 0..a_rows {
            for (c, x) in a.row(r) {
                let x = if self.sides.a.conjugate { x.conj() } else { x };
                let (row, k) = if self.sides.a.transpose {
                    (c, r)
                } else {
                    (r, c)
                };
                for column in 0..columns {
                    let at = match self.transpose_output {
                        true => column * rows + row,
                        false => row * columns + column,
                    };
                    if let Some(sum) = to.get_mut(at) {
                        *sum = sum.add(x.mul(b.get(k, column)));
                    }
                }
            }
        }
        if self.conjugate_output {
            to.iter_mut().for_each(|x| *x = x.conj());
        }
    }
}

fn oriented((rows, columns): (usize, usize), side: Side) -> (usize, usize) {
    match side.transpose {
        true => (columns, rows),
        false => (rows, columns),
    }
}

/// Checks a dense factor against a sparse one; returns the batch size and the dense rows and
/// columns.
fn check_dense(a: &Csr, dtype: DType, b: &Shape) -> Result<(usize, [usize; 2])> {
    if a.values.dtype() != dtype {
        return Err(invalid_argument!(
            "Input types don't match.  a.dtype == {} vs. b.dtype == {dtype}",
            a.values.dtype()
        ));
    }
    if a.shape.len() != b.rank() {
        return Err(invalid_argument!(
            "Ranks of a and b must match, saw: {} vs. {}.",
            a.shape.len(),
            b.rank()
        ));
    }
    let (n_batches, sizes) = match *b.dims() {
        [rows, columns] => (1, [rows, columns]),
        [batches, rows, columns] => (batches, [rows, columns]),
        _ => return Err(invalid_argument!("b must have rank 2 or 3, got {b}")),
    };
    if a.batch_size() != n_batches {
        return Err(invalid_argument!(
            "Batch sizes of a and b must match, saw: {} vs. {n_batches}.",
            a.batch_size()
        ));
    }
    Ok((n_batches, sizes))
}

fn with_sparse(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let sides = Sides::of(build.attrs)?;
    let dtype = build.attrs.dtype("type")?;
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| multiply::<T>(ctx, sides))),
        else Err(build.unsupported(dtype)))
}

fn multiply<T: Field>(ctx: &mut KernelCtx, sides: Sides) -> Result<()> {
    let (a, b) = (Csr::input(ctx, 0)?, Csr::input(ctx, 1)?);
    a.check_dtype(T::DTYPE, |wanted, found| {
        invalid_argument!("dtype of a is not equal to 'type': {found} vs. {wanted}")
    })?;
    b.check_dtype(T::DTYPE, |wanted, found| {
        invalid_argument!("dtype of b is not equal to 'type': {found} vs. {wanted}")
    })?;
    let (of_a, of_b) = (a.batch_size(), b.batch_size());
    if of_a != of_b && of_a != 1 && of_b != 1 {
        return Err(invalid_argument!(
            "Batch sizes of A and B are not compatible.  Batch sizes are: {of_a} vs. {of_b}"
        ));
    }
    let (rows, inner) = oriented(a.size(), sides.a);
    let (b_inner, columns) = oriented(b.size(), sides.b);
    if inner != b_inner || a.shape.len() != b.shape.len() {
        return Err(disagree(
            &Shape::checked(&a.shape)?,
            "  ",
            &Shape::checked(&b.shape)?,
        ));
    }
    let n_batches = if of_a == 1 { of_b } else { of_a };
    let mut shape = a.shape.clone();
    shape.truncate(shape.len() - 2);
    shape.iter_mut().for_each(|d| *d = n_batches as i64);
    shape.extend([rows as i64, columns as i64]);
    let mut parts = Vec::with_capacity(n_batches);
    for batch in 0..n_batches {
        let one = |m: &Csr, side: Side| -> Result<Owned<T>> {
            let part = m.part::<T>(if m.batch_size() == 1 { 0 } else { batch })?;
            Ok(turned(part, m.size(), side))
        };
        parts.push(product(&one(a, sides.a)?, &one(b, sides.b)?, rows, columns));
    }
    ctx.set_output(0, Csr::of_parts(shape, parts)?.into_tensor()?)
}

/// Multiplies two matrices row by row; sums that cancel stay in the result.
fn product<T: Field>(a: &Owned<T>, b: &Owned<T>, rows: usize, columns: usize) -> Owned<T> {
    let mut out = Owned {
        rows: vec![0],
        columns: Vec::new(),
        values: Vec::new(),
    };
    let mut sums = vec![T::ZERO; columns];
    let mut seen = vec![false; columns];
    for r in 0..rows {
        let mut touched = Vec::new();
        for (k, x) in a.part().row(r) {
            for (c, y) in b.part().row(k) {
                if !std::mem::replace(&mut seen[c], true) {
                    touched.push(c);
                    sums[c] = T::ZERO;
                }
                sums[c] = sums[c].add(x.mul(y));
            }
        }
        touched.sort_unstable();
        for c in touched {
            seen[c] = false;
            out.columns.push(c as i32);
            out.values.push(sums[c]);
        }
        out.rows.push(out.columns.len() as i32);
    }
    out
}

/// Copies a matrix, transposed and conjugated as asked.
fn turned<T: Field>(part: Part<'_, T>, (rows, columns): (usize, usize), side: Side) -> Owned<T> {
    let conjugated = |x: T| if side.conjugate { x.conj() } else { x };
    if !side.transpose {
        return Owned {
            rows: part.rows.to_vec(),
            columns: part.columns.to_vec(),
            values: part.values.iter().map(|x| conjugated(*x)).collect(),
        };
    }
    let mut starts = vec![0i32; columns + 1];
    for &c in part.columns {
        starts[c as usize + 1] += 1;
    }
    starts.iter_mut().fold(0, |sum, n| {
        *n += sum;
        *n
    });
    let mut free = starts.clone();
    let mut out = Owned {
        rows: starts,
        columns: vec![0; part.columns.len()],
        values: vec![T::ZERO; part.columns.len()],
    };
    for r in 0..rows {
        for (c, x) in part.row(r) {
            let at = free[c] as usize;
            free[c] += 1;
            out.columns[at] = r as i32;
            out.values[at] = conjugated(x);
        }
    }
    out
}

fn transpose(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let side = Side {
        transpose: true,
        conjugate: build.attrs.bool("conjugate")?,
    };
    let dtype = build.attrs.dtype("type")?;
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| transpose_all::<T>(ctx, side))),
        else Err(build.unsupported(dtype)))
}

fn transpose_all<T: Field>(ctx: &mut KernelCtx, side: Side) -> Result<()> {
    let matrix = Csr::input(ctx, 0)?;
    matrix.check_dtype(T::DTYPE, |wanted, found| {
        invalid_argument!("dtype of input is not equal to 'type': {found} vs. {wanted}")
    })?;
    let mut parts = Vec::with_capacity(matrix.batch_size());
    for b in 0..matrix.batch_size() {
        parts.push(turned(matrix.part::<T>(b)?, matrix.size(), side));
    }
    let mut shape = matrix.shape.clone();
    let rank = shape.len();
    shape.swap(rank - 1, rank - 2);
    ctx.set_output(0, Csr::of_parts(shape, parts)?.into_tensor()?)
}
