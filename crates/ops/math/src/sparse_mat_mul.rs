//! SparseMatMul: a product of matrices that may be mostly zeros (TensorFlow:
//! `core/kernels/sparse_matmul_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::widened;
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::product::MatMulElement;
use ferroflow_opdef::{AttrValue, Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::gemm::{BatchItem, GemmShape};
use ferroflow_tensor::{DType, PartialShape};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "SparseMatMul",
    "a: Ta, b: Tb -> product: float | transpose_a: bool = false; transpose_b: bool = false; \
     a_is_sparse: bool = false; b_is_sparse: bool = false; Ta: type {float,bfloat16} = float; Tb: \
     type {float,bfloat16} = float",
)
.shape(|ctx| {
    let (a, b) = (ctx.with_rank(0, 2)?, ctx.with_rank(1, 2)?);
    let ta = ctx.attrs().bool("transpose_a")? as isize;
    let tb = ctx.attrs().bool("transpose_b")? as isize;
    if let (Some(k), Some(l)) = (a.dim(1 - ta), b.dim(tb))
        && k != l
    {
        return Err(invalid_argument!(
            "Dimensions must be equal, but are {k} and {l}"
        ));
    }
    ctx.set(0, PartialShape::of([a.dim(ta), b.dim(1 - tb)]));
    Ok(())
})
.cost(Cost::Expensive)
.kernel(kernel)
.gradient(gradient)];

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attr = |name| build.attrs.bool(name);
    let (ta, tb) = (attr("transpose_a")?, attr("transpose_b")?);
    Ok(Box::new(move |ctx: &mut KernelCtx| product(ctx, ta, tb)))
}

fn product(ctx: &mut KernelCtx, ta: bool, tb: bool) -> Result<()> {
    let (a, b) = (ctx.input(0)?, ctx.input(1)?);
    let &[rows, cols] = a.shape().dims() else {
        return Err(invalid_argument!("a is not a matrix"));
    };
    let &[b_rows, b_cols] = b.shape().dims() else {
        return Err(invalid_argument!("b is not a matrix"));
    };
    let (m, k) = if ta { (cols, rows) } else { (rows, cols) };
    let (l, n) = if tb {
        (b_cols, b_rows)
    } else {
        (b_rows, b_cols)
    };
    if k != l {
        return Err(invalid_argument!(
            "Matrix size incompatible: a: {}, b: {}",
            a.shape(),
            b.shape()
        ));
    }
    let s = GemmShape::dense(m, n, k, ta, tb);
    let (a, b) = (widened(ctx.par(), a)?, widened(ctx.par(), b)?);
    let mut out = ctx.alloc(DType::Float, shape_of([m, n])?)?;
    if out.num_elements() > 0 {
        let item = |_| BatchItem::default();
        f32::products(
            ctx.par(),
            1,
            &s,
            a.slice()?,
            b.slice()?,
            out.slice_mut()?,
            &item,
        )?;
    }
    ctx.set_output(0, out)
}

fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (a, b, dy) = (g.x(0), g.x(1), g.dy(0));
    let (ta, tb) = (
        g.attrs().bool("transpose_a")?,
        g.attrs().bool("transpose_b")?,
    );
    let sparse = [
        g.attrs().bool("a_is_sparse")?,
        g.attrs().bool("b_is_sparse")?,
    ];
    // (value, whether it is transposed, whether it is mostly zeros)
    type Operand<'g> = (Expr<'g>, bool, bool);
    fn times<'g>(x: Operand<'g>, y: Operand<'g>, dtype: DType) -> Expr<'g> {
        let attrs: [(&'static str, AttrValue); 4] = [
            ("transpose_a", x.1.into()),
            ("transpose_b", y.1.into()),
            ("a_is_sparse", x.2.into()),
            ("b_is_sparse", y.2.into()),
        ];
        x.0.op_with("SparseMatMul", &[y.0], &attrs).cast(dtype)
    }
    let (of_a, of_b) = (a.dtype(), b.dtype());
    let da = match ta {
        false => times((dy, false, false), (b, !tb, sparse[1]), of_a),
        true => times((b, tb, sparse[1]), (dy, true, false), of_a),
    };
    let db = match tb {
        false => times((a, !ta, sparse[0]), (dy, false, false), of_b),
        true => times((dy, true, false), (a, ta, sparse[0]), of_b),
    };
    g.set(0, da)?;
    g.set(1, db)
}
