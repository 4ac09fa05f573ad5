//! TridiagonalMatMul and TridiagonalSolve (TensorFlow:
//! `core/kernels/linalg/tridiagonal_matmul_op.cc` and `tridiagonal_solve_op.cc`, gradients in
//! `python/ops/linalg_grad.py`).

use crate::lu::matrices;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::field::{Field, Promote};
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Complex32, Complex64, DType, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "TridiagonalMatMul",
        "superdiag: T, maindiag: T, subdiag: T, rhs: T -> output: T | T: type \
         {double,float,complex64,complex128} |",
    )
    .shape(|ctx| {
        for i in 0..3 {
            ctx.with_rank_at_least(i, 2)?;
        }
        let rhs = ctx.with_rank_at_least(3, 2)?;
        ctx.set(0, rhs);
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|build| {
        let dtype = build.input(0)?;
        dispatch!(dtype, T in [f32, f64, Complex32, Complex64] => Ok(Box::new(multiply::<T>)),
            else Err(build.unsupported(dtype)))
    })
    .gradient(product_gradient),
    Op::new(
        "TridiagonalSolve",
        "diagonals: T, rhs: T -> output: T | partial_pivoting: bool = true; perturb_singular: \
         bool = false; T: type {double,float,complex64,complex128}",
    )
    .shape(|ctx| {
        ctx.with_rank_at_least(0, 2)?;
        let rhs = ctx.with_rank_at_least(1, 2)?;
        ctx.set(0, rhs);
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(build_solve)
    .gradient(solve_gradient),
];

/// Checks that all inputs have the same rank and batch dimensions.
fn check_batches(ctx: &KernelCtx) -> Result<()> {
    let (batch, ..) = matrices(ctx, 0)?;
    for i in 1..ctx.num_inputs() {
        let shape = ctx.shape(i)?;
        if shape.rank() != batch.rank() + 2 {
            return Err(invalid_argument!(
                "All input tensors must have the same rank."
            ));
        }
        if shape[..batch.rank()] != *batch.dims() {
            return Err(invalid_argument!(
                "All input tensors must have the same outer dimensions."
            ));
        }
    }
    Ok(())
}

fn multiply<T: Promote>(ctx: &mut KernelCtx) -> Result<()> {
    check_batches(ctx)?;
    let (_, n, m) = matrices(ctx, 3)?;
    for (i, name) in ["superdiagonal", "main diagonal", "subdiagonal"]
        .iter()
        .enumerate()
    {
        let (_, rows, columns) = matrices(ctx, i)?;
        if (rows, columns) != (1, n) {
            return Err(invalid_argument!("Invalid {name} shape."));
        }
    }
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(3)?.clone())?;
    let [above, main, below, rhs] = [0, 1, 2, 3].map(|i| ctx.slice::<T>(i));
    let (above, main, below, rhs) = (above?, main?, below?, rhs?);
    if !rhs.is_empty() {
        for (i, row) in out.slice_mut::<T>()?.chunks_exact_mut(m).enumerate() {
            // Diagonals are stored one after the other, as the rows are.
            let terms = [
                (i % n > 0, below[i], i.wrapping_sub(1)),
                (true, main[i], i),
                (i % n + 1 < n, above[i], i + 1),
            ];
            for (c, to) in row.iter_mut().enumerate() {
                let terms = terms.iter().filter(|(inside, ..)| *inside);
                let sum = terms.fold(T::Wide::ZERO, |sum, (_, factor, row)| {
                    sum.add(factor.promote().mul(rhs[row * m + c].promote()))
                });
                *to = T::demote(sum);
            }
        }
    }
    ctx.set_output(0, out)
}

fn build_solve(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let pivots = build.attrs.bool("partial_pivoting")?;
    let perturbs = build.attrs.bool("perturb_singular")?;
    if perturbs && !pivots {
        return Err(invalid_argument!(
            "Setting perturb_singular requires also setting partial_pivoting."
        ));
    }
    let dtype = build.input(0)?;
    // The precision decides by how much pivots are perturbed.
    let epsilon = match dtype {
        DType::Float | DType::Complex64 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    };
    let epsilon = perturbs.then_some(epsilon);
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] => {
        Ok(Box::new(move |ctx: &mut KernelCtx| solve::<T>(ctx, pivots, epsilon)))
    }, else Err(build.unsupported(dtype)))
}

fn solve<T: Promote>(ctx: &mut KernelCtx, pivots: bool, epsilon: Option<f64>) -> Result<()> {
    check_batches(ctx)?;
    let (batch, diagonals, n) = matrices(ctx, 0)?;
    let (_, rows, m) = matrices(ctx, 1)?;
    if diagonals != 3 {
        return Err(invalid_argument!(
            "Expected diagonals to be provided as a matrix with 3 rows, got {diagonals} rows."
        ));
    }
    if n != rows {
        return Err(invalid_argument!(
            "Expected the same number of left-hand sides and right-hand sides, got {n} and \
             {rows}."
        ));
    }
    let mut out = ctx.alloc(T::DTYPE, ctx.shape(1)?.clone())?;
    let (a, b) = (ctx.slice::<T>(0)?, ctx.slice::<T>(1)?);
    let to = out.slice_mut::<T>()?;
    for i in 0..if b.is_empty() {
        0
    } else {
        batch.num_elements()
    } {
        let a: Vec<T::Wide> = a[i * 3 * n..][..3 * n]
            .iter()
            .map(|x| x.promote())
            .collect();
        let mut x: Vec<T::Wide> = b[i * n * m..][..n * m]
            .iter()
            .map(|x| x.promote())
            .collect();
        let solved = System::new(&a, n).eliminate(&mut x, m, pivots, epsilon);
        if !solved {
            // For systems without a solution TensorFlow returns its types' NaN; complex ones have 0.
            x.fill(match T::DTYPE.is_complex() {
                true => T::Wide::ZERO,
                false => T::Wide::from_f64(f64::NAN),
            });
        }
        crate::lu::store(&x, &mut to[i * n * m..][..n * m]);
    }
    ctx.set_output(0, out)
}

/// A tridiagonal matrix; elimination leaves an upper triangle of three diagonals.
struct System<W> {
    below: Vec<W>,
    main: Vec<W>,
    above: Vec<W>,
    second: Vec<W>,
}

impl<W: Field> System<W> {
    fn new(diagonals: &[W], n: usize) -> Self {
        let (above, others) = diagonals.split_at(n);
        let (main, below) = others.split_at(n);
        let mut above = above.to_vec();
        above[n - 1] = W::ZERO;
        System {
            below: below.to_vec(),
            main: main.to_vec(),
            above,
            second: vec![W::ZERO; n],
        }
    }

    /// Replaces the right-hand sides `x`, `m` columns, by the solutions. Returns whether there are
    /// any.
    fn eliminate(mut self, x: &mut [W], m: usize, pivots: bool, epsilon: Option<f64>) -> bool {
        let n = self.main.len();
        for k in 0..n - 1 {
            let lead = self.below[k + 1];
            if pivots && self.main[k].magnitude() < lead.magnitude() {
                self.below[k + 1] = self.main[k];
                self.main[k] = lead;
                (self.above[k], self.main[k + 1]) = (self.main[k + 1], self.above[k]);
                (self.second[k], self.above[k + 1]) = (self.above[k + 1], W::ZERO);
                let (upper, lower) = x[k * m..].split_at_mut(m);
                upper.swap_with_slice(&mut lower[..m]);
            }
            if self.main[k].is_zero() {
                if epsilon.is_some() && self.below[k + 1].is_zero() {
                    continue;
                }
                return false;
            }
            let factor = self.below[k + 1].div(self.main[k]);
            self.main[k + 1] = self.main[k + 1].sub(factor.mul(self.above[k]));
            self.above[k + 1] = self.above[k + 1].sub(factor.mul(self.second[k]));
            let (upper, lower) = x[k * m..].split_at_mut(m);
            for (x, top) in lower.iter_mut().zip(upper) {
                *x = x.sub(factor.mul(*top));
            }
        }
        let diagonals = [&self.main, &self.above, &self.second];
        let largest = diagonals.iter().flat_map(|d| d.iter());
        let largest = largest.fold(0.0, |max: f64, x| max.max(x.magnitude()));
        for k in (0..n).rev() {
            let mut pivot = self.main[k];
            if let Some(epsilon) = epsilon {
                // At least so large that quotients stay finite.
                let least = (epsilon * largest).max(f64::MIN_POSITIVE / epsilon);
                if pivot.magnitude() < least {
                    pivot = W::from_f64(least.copysign(pivot.real_part()));
                }
            }
            if pivot.is_zero() {
                return false;
            }
            for c in 0..m {
                let mut value = x[k * m + c];
                if k + 1 < n {
                    value = value.sub(self.above[k].mul(x[(k + 1) * m + c]));
                }
                if k + 2 < n {
                    value = value.sub(self.second[k].mul(x[(k + 2) * m + c]));
                }
                x[k * m + c] = value.div(pivot);
            }
        }
        true
    }
}

/// Returns rows `k + by` of matrices as rows `k`, with zeros outside.
fn shifted(x: Expr<'_>, by: i32) -> Expr<'_> {
    let (before, after) = (i32::max(-by, 0), i32::max(by, 0));
    let rank = x.op("Rank", &[]) - x.int(2);
    let outer = x
        .ints([0])
        .op("Tile", &[rank.op("ExpandDims", &[x.int(0)])]);
    let join = |row: i64, column: i64| {
        let ends = x.ints([row, column]);
        x.make("ConcatV2", &[outer, ends, x.int(0)], &[("N", 2.into())])
    };
    let begin = join(after.into(), 0);
    let shape = x.op("Shape", &[]);
    let size = shape - join(i64::from(before + after), 0);
    let inner = x.op("Slice", &[begin, size]);
    let pads = [join(before.into(), 0), join(after.into(), 0)];
    let pads = x.make("Pack", &pads, &[("N", 2.into()), ("axis", 1.into())]);
    inner.op("Pad", &[pads])
}

/// Returns the sums over the columns.
fn row_sums(x: Expr<'_>) -> Expr<'_> {
    x.sum(x.int(-1), false)
}

fn product_gradient(g: &mut GradientCtx) -> Result<()> {
    let (d, rhs) = (g.dy(0), g.x(3).conj());
    // A diagonal is a row, which becomes the column of factors of the rows.
    let [above, main, below] = [0, 1, 2].map(|i| crate::lu::adjoint(g.x(i)));
    let products = [shifted(rhs, 1) * d, rhs * d, shifted(rhs, -1) * d];
    let parts = products.map(|x| row_sums(x).op("ExpandDims", &[x.int(-2)]));
    let dx = shifted(above * d, -1) + main * d + shifted(below * d, 1);
    for (i, part) in parts.into_iter().enumerate() {
        g.set(i, part)?;
    }
    g.set(3, dx)
}

fn solve_gradient<'g>(g: &mut GradientCtx<'g>) -> Result<()> {
    let (diagonals, x, d) = (g.x(0), g.y(0), g.dy(0));
    let axis = [("num", 3.into()), ("axis", (-2).into())];
    let &[above, main, below] = &diagonals.node("Unpack", &[diagonals], &axis)[..] else {
        return Ok(());
    };
    // The rows of a transposed matrix begin where its columns did.
    let along = |diagonal: Expr<'g>, by: i32| {
        let column = diagonal.op("ExpandDims", &[diagonal.int(-1)]);
        let dims = [(
            "squeeze_dims",
            ferroflow_opdef::AttrValue::List(vec![(-1).into()]),
        )];
        shifted(column, by).op_with("Squeeze", &[], &dims)
    };
    let rows = [along(below, 1), main, along(above, -1)];
    let axis = [("N", 3.into()), ("axis", (-2).into())];
    let transposed = diagonals.make("Pack", &rows, &axis);
    let attrs = [g.attr("partial_pivoting"), g.attr("perturb_singular")];
    let db = transposed.op_with("TridiagonalSolve", &[d], &attrs);
    let products = [shifted(x, 1), x, shifted(x, -1)].map(|x| row_sums(db * x));
    g.set(0, -diagonals.make("Pack", &products, &axis))?;
    g.set(1, db)
}
