//! SparseTensorDenseMatMul: the product of a sparse and a dense matrix (TensorFlow:
//! `core/kernels/sparse_tensor_dense_matmul_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::numeric::Num;
use ferroflow_functors::product::MatMulElement;
use ferroflow_opdef::{AttrValue, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Complex32, Complex64, DType, PartialShape, Shape, Tensor, dispatch};

/// SparseTensorDenseMatMul.
pub(crate) const OPS: &[Op] = &[Op::new(
    "SparseTensorDenseMatMul",
    "a_indices: Tindices, a_values: T, a_shape: int64, b: T -> product: T | T: \
         type; Tindices: type {int32,int64} = int64; adjoint_a: bool = false; \
         adjoint_b: bool = false",
)
.shape(|ctx| {
    let (adjoint_a, adjoint_b) = (
        ctx.attrs().bool("adjoint_a")?,
        ctx.attrs().bool("adjoint_b")?,
    );
    ctx.with_rank(0, 2)?;
    ctx.with_rank(1, 1)?;
    let a = ferroflow_functors::indices::shape_input(ctx, 2)?;
    if a.rank().is_some_and(|rank| rank != 2) {
        return Err(invalid_argument!("Tensor 'a_shape' must have 2 elements"));
    }
    let b = ctx.with_rank(3, 2)?;
    let rows = a.dims().and_then(|_| a.dim(adjoint_a.into()));
    ctx.set(0, PartialShape::of([rows, b.dim((!adjoint_b).into())]));
    Ok(())
})
.kernel(kernel)
.gradient(gradient)];

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let adjoint = [
        build.attrs.bool("adjoint_a")?,
        build.attrs.bool("adjoint_b")?,
    ];
    let dtype = build.output(0)?;
    let has_kernel = dtype.is_floating() || dtype.is_complex() || dtype == DType::Int32;
    if !has_kernel {
        return Err(build.unsupported(dtype));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (mut values, mut b) = (ctx.input(1)?.clone(), ctx.input(3)?.clone());
        let is_half = matches!(dtype, DType::Half | DType::Bfloat16);
        if is_half {
            (values, b) = (widened(ctx.par(), &values)?, widened(ctx.par(), &b)?);
        }
        let out = dispatch!(values.dtype(), T in
            [f32, f64, i32, Complex32, Complex64] => product::<T>(ctx, &values, &b, adjoint),
            else Err(invalid_argument!("sparse products of type {dtype} are not supported")))?;
        let out = match is_half {
            true => narrowed(ctx.par(), out, dtype)?,
            false => out,
        };
        ctx.set_output(0, out)
    }))
}

/// The positions of a matrix's values.
enum Places<'a> {
    Int(&'a [i32]),
    Long(&'a [i64]),
}

impl Places<'_> {
    fn of(t: &Tensor) -> Result<Places<'_>> {
        match t.dtype() {
            DType::Int32 => Ok(Places::Int(t.slice()?)),
            _ => Ok(Places::Long(t.slice()?)),
        }
    }

    /// Returns row and column of a value.
    #[inline]
    fn get(&self, i: usize) -> [i64; 2] {
        match self {
            Places::Int(all) => [all[2 * i].into(), all[2 * i + 1].into()],
            Places::Long(all) => [all[2 * i], all[2 * i + 1]],
        }
    }
}

/// Rows of fewer elements take less time than a call.
const SHORT: usize = 16;

/// The sizes of a product.
struct Sizes {
    rows: i64,
    inner: usize,
    cols: usize,
    b_cols: usize,
}

impl Sizes {
    /// Checks the parts of the sparse matrix, and that it fits `b`.
    fn of(
        ctx: &KernelCtx,
        values: &Tensor,
        b: &Tensor,
        [adjoint_a, adjoint_b]: [bool; 2],
    ) -> Result<Sizes> {
        let (at, shape) = (ctx.input(0)?, ctx.input(2)?);
        let &[b_rows, b_cols] = b.shape().dims() else {
            return Err(invalid_argument!("Tensor 'b' is not a matrix"));
        };
        if shape.shape().rank() != 1 {
            return Err(invalid_argument!("Tensor 'a_shape' is not a vector"));
        }
        let &[a_rows, a_cols] = shape.slice::<i64>()? else {
            return Err(invalid_argument!("Tensor 'a_shape' must have 2 elements"));
        };
        if values.shape().rank() != 1 {
            return Err(invalid_argument!("Tensor 'a_values' is not a vector"));
        }
        let &[n, width] = at.shape().dims() else {
            return Err(invalid_argument!("Tensor 'a_indices' is not a matrix"));
        };
        if n != values.num_elements() {
            return Err(invalid_argument!(
                "Number of rows of a_indices does not match number of entries in a_values"
            ));
        }
        if width != 2 {
            return Err(invalid_argument!(
                "Number of columns of a_indices does not match number of entries in a_shape"
            ));
        }
        let (rows, inner) = if adjoint_a {
            (a_cols, a_rows)
        } else {
            (a_rows, a_cols)
        };
        let (b_inner, cols) = if adjoint_b {
            (b_cols, b_rows)
        } else {
            (b_rows, b_cols)
        };
        if inner != b_inner as i64 {
            return Err(invalid_argument!(
                "Cannot multiply A and B because inner dimension does not match: {inner} vs. {b_inner}.  \
                 Did you forget a transpose?  Dimensions of A: [{a_rows}, {a_cols}).  Dimensions of B: {}",
                b.shape()
            ));
        }
        Ok(Sizes {
            rows,
            inner: b_inner,
            cols,
            b_cols,
        })
    }
}

fn product<T: Num + MatMulElement>(
    ctx: &KernelCtx,
    values: &Tensor,
    b: &Tensor,
    adjoints: [bool; 2],
) -> Result<Tensor> {
    let Sizes {
        rows,
        inner,
        cols,
        b_cols,
    } = Sizes::of(ctx, values, b, adjoints)?;
    let [adjoint_a, adjoint_b] = adjoints;
    let shape = Shape::checked(&[rows, cols as i64])?;
    let mut out = ctx.alloc(T::DTYPE, shape)?;
    let to = out.slice_mut::<T>()?;
    to.fill(<T as Num>::ZERO);
    if to.is_empty() {
        return Ok(out);
    }
    let (b, values, at) = (
        b.slice::<T>()?,
        values.slice::<T>()?,
        Places::of(ctx.input(0)?)?,
    );
    for (i, &value) in values.iter().enumerate() {
        let [row, col] = at.get(i);
        let (row, row_at, col, col_at) = match adjoint_a {
            true => (col, 1, row, 0),
            false => (row, 0, col, 1),
        };
        let inside = |x: i64, limit: usize, name: &str, column: usize| {
            let found = usize::try_from(x).ok().filter(|&x| x < limit);
            found.ok_or_else(|| {
                invalid_argument!("{name} ({x}) from index[{i},{column}] out of bounds (>={limit})")
            })
        };
        let k = inside(col, inner, "k", col_at)?;
        let row = inside(row, rows as usize, "m", row_at)?;
        let value = if adjoint_a { value.conjugate() } else { value };
        let to = &mut to[row * cols..][..cols];
        if adjoint_b {
            let from = b[k..].iter().step_by(b_cols);
            for (to, &x) in to.iter_mut().zip(from) {
                *to = to.add(value.mul(x.conjugate()));
            }
        } else if cols <= SHORT {
            for (to, &x) in to.iter_mut().zip(&b[k * cols..][..cols]) {
                *to = to.add(value.mul(x));
            }
        } else {
            T::add_scaled(to, value, &b[k * cols..][..cols]);
        }
    }
    Ok(out)
}

/// The gradient by the sparse values, only at their positions.
fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (at, values, shape, b, dy) = (g.x(0), g.x(1), g.x(2), g.x(3), g.dy(0));
    let (adjoint_a, adjoint_b) = (g.attrs().bool("adjoint_a")?, g.attrs().bool("adjoint_b")?);
    if g.needs(3) {
        let attrs = [("adjoint_a", AttrValue::Bool(!adjoint_a))];
        let db = at.make("SparseTensorDenseMatMul", &[at, values, shape, dy], &attrs);
        let db = match adjoint_b {
            true => db.op("ConjugateTranspose", &[db.ints([1, 0])]),
            false => db,
        };
        g.set(3, db)?;
    }
    if g.needs(1) {
        let zero = at.int(0);
        let [rows, cols] = [0, 1].map(|i| at.op("GatherV2", &[at.int(i), at.int(1)]));
        let pick = |e: Expr<'_>, along: Expr<'_>| e.op("GatherV2", &[along, zero]).output();
        let (of_dy, of_b) = match adjoint_a {
            true => (cols, rows),
            false => (rows, cols),
        };
        let b = match adjoint_b {
            true => b.op("Transpose", &[b.ints([1, 0])]),
            false => b.conj(),
        };
        let product = dy.at(pick(dy, of_dy)) * dy.at(pick(b, of_b));
        let da = product.sum(product.int(1), false);
        g.set(1, if adjoint_a { da.conj() } else { da })?;
    }
    Ok(())
}
