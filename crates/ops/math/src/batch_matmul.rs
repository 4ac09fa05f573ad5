//! BatchMatMul, BatchMatMulV2, BatchMatMulV3 (TensorFlow: `core/kernels/matmul_op_impl.h`).

use crate::matmul::{Packed, Tail, products};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::{broadcast_partial, broadcast_shape};
use ferroflow_functors::half_conversion::{convert, widened};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::matmul::{finish_zeros, incompatible};
use ferroflow_functors::product::MatMulElement;
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::gemm::{self, BatchItem, Epilogue, GemmShape, gemm_packed};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, PartialShape, Shape, Tensor, bf16, dispatch, f16,
};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "BatchMatMul",
        "x: T, y: T -> output: T | T: type \
         {bfloat16,half,float,double,int32,int64,complex64,complex128}; adj_x: bool = \
         false; adj_y: bool = false; grad_x: bool = false; grad_y: bool = false",
    )
    .shape(batch_shape)
    .cost(Cost::Expensive)
    .kernel(batch_mat_mul)
    .gradient(batch_mat_mul_gradient),
    Op::new(
        "BatchMatMulV2",
        "x: T, y: T -> output: T | T: type \
         {bfloat16,half,float,double,int16,int32,int64,uint8,uint16,uint32,uint64,complex64,complex128}; \
         adj_x: bool = false; adj_y: bool = false; grad_x: bool = false; grad_y: bool \
         = false",
    )
    .shape(batch_shape)
    .cost(Cost::Expensive)
    .kernel(batch_mat_mul)
    .gradient(batch_mat_mul_gradient),
    Op::new(
        "BatchMatMulV3",
        "x: Ta, y: Tb -> output: Tout | Ta: type \
         {bfloat16,half,float,double,uint8,int8,int16,int32,int64,complex64,complex128}; \
         Tb: type \
         {bfloat16,half,float,double,uint8,int8,int16,int32,int64,complex64,complex128}; \
         Tout: type \
         {bfloat16,half,float,double,int16,int32,int64,complex64,complex128}; adj_x: \
         bool = false; adj_y: bool = false; grad_x: bool = false; grad_y: bool = false",
    )
    .shape(batch_shape)
    .cost(Cost::Expensive)
    .kernel(batch_mat_mul)
    .gradient(batch_mat_mul_gradient),
];

fn batch_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (x, y) = (ctx.with_rank_at_least(0, 2)?, ctx.with_rank_at_least(1, 2)?);
    let (Some(xd), Some(yd)) = (x.dims(), y.dims()) else {
        return Ok(());
    };
    let (xb, xm) = xd.split_at(xd.len() - 2);
    let (yb, ym) = yd.split_at(yd.len() - 2);
    let (ax, ay) = (ctx.attrs().bool("adj_x")?, ctx.attrs().bool("adj_y")?);
    if let (Some(k), Some(l)) = (xm[1 - ax as usize], ym[ay as usize])
        && k != l
    {
        return Err(incompatible(x, y));
    }
    let of = |dims: &[Option<usize>]| PartialShape::of(dims.iter().copied());
    let batch = broadcast_partial(&of(xb), &of(yb))?;
    let mut dims = batch.dims().unwrap_or(&[]).to_vec();
    dims.extend([xm[ax as usize], ym[1 - ay as usize]]);
    ctx.set(0, PartialShape::of(dims));
    Ok(())
}

fn batch_mat_mul(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (ax, ay) = (build.attrs.bool("adj_x")?, build.attrs.bool("adj_y")?);
    let dtype = build.output(0)?;
    let broadcasts = build.def.name != "BatchMatMul";
    if let Some(w) = build
        .constant(1)
        .filter(|w| w.shape().rank() == 2 && broadcasts && !ax)
        && build.input(0)? == dtype
        && build.input(1)? == dtype
        && matches!(dtype, DType::Float | DType::Double)
    {
        return dispatch!(dtype, T in [f32, f64] => {
            let packed = Packed::<T>::new(build, w, ay, Tail::default())?;
            Ok(Box::new(Flattened(packed)))
        }, else Err(build.unsupported(dtype)));
    }
    for input in [build.input(0)?, build.input(1)?] {
        if input != dtype && !converts(input, dtype) {
            return Err(build.unsupported(input));
        }
    }
    dispatch!(dtype, T in [f32, f64, f16, bf16, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| batch_kernel::<T>(ctx, ax, ay, broadcasts))),
        else Err(build.unsupported(dtype)))
}

/// A batch of matrices times one packed matrix: the batch is treated as one tall matrix.
struct Flattened<T: gemm::GemmElement>(Packed<T>);

impl<T: gemm::GemmElement + Element> OpKernel for Flattened<T> {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let x = ctx.input(0)?;
        let (k, n) = (self.0.b.k(), self.0.b.n());
        let shape = x.shape();
        let Some((&last, rest)) = shape.split_last().filter(|(_, rest)| !rest.is_empty()) else {
            return Err(invalid_argument!(
                "In[0] ndims must be >= 2: {}",
                shape.rank()
            ));
        };
        if last != k {
            return Err(incompatible(shape, &self.0.shape));
        }
        let m: usize = rest.iter().product();
        let mut out = ctx.alloc(T::DTYPE, shape_of(rest.iter().copied().chain([n]))?)?;
        let to = out.slice_mut::<T>()?;
        let ep = Epilogue::none();
        if k == 0 {
            finish_zeros(to, n, &ep);
        } else if !to.is_empty() {
            gemm_packed(ctx.par(), x.slice()?, k, m, &self.0.b, to, n, &ep);
        }
        ctx.set_output(0, out)
    }

    fn packed(&self) -> Result<Vec<Tensor>> {
        self.0.packed()
    }

    fn prepacks_input(&self, i: usize) -> bool {
        i == 1
    }
}

/// Returns input `i` as a tensor of `T`, conjugated for the adjoint of a complex matrix.
fn operand<T: MatMulElement>(ctx: &KernelCtx, i: usize, adjoint: bool) -> Result<Tensor> {
    let mut t = as_type::<T>(ctx.par(), ctx.input(i)?)?;
    if adjoint && T::DTYPE.is_complex() {
        t.slice_mut::<T>()?
            .iter_mut()
            .for_each(|v| *v = v.conjugate());
    }
    Ok(t)
}

/// Returns whether matrices of a dtype become those of the output's.
fn converts(from: DType, to: DType) -> bool {
    use DType::{Bfloat16, Double, Float, Half, Int8, Int16, Int32, Uint8};
    match to {
        Int32 => matches!(from, Int8 | Uint8 | Int16),
        Int16 | Bfloat16 => matches!(from, Int8 | Uint8),
        Float => matches!(from, Bfloat16 | Half),
        Double => from == Float,
        _ => false,
    }
}

/// Converts `t` to `T`, for products whose inputs are narrower than their output.
fn as_type<T: MatMulElement>(par: &dyn Parallelism, t: &Tensor) -> Result<Tensor> {
    if t.dtype() == T::DTYPE {
        return Ok(t.clone());
    }
    /// Converts a narrow integer or float.
    fn cast<A: Element, B: Element>(
        par: &dyn Parallelism,
        t: &Tensor,
        f: fn(A) -> B,
    ) -> Result<Tensor> {
        let mut out = Tensor::for_overwrite(B::DTYPE, t.shape().clone())?;
        convert(par, t.slice::<A>()?, out.slice_mut::<B>()?, f);
        Ok(out)
    }
    match (t.dtype(), T::DTYPE) {
        // One for each pair of `converts`.
        (DType::Int8, DType::Int32) => cast::<i8, i32>(par, t, i32::from),
        (DType::Uint8, DType::Int32) => cast::<u8, i32>(par, t, i32::from),
        (DType::Int16, DType::Int32) => cast::<i16, i32>(par, t, i32::from),
        (DType::Int8, DType::Int16) => cast::<i8, i16>(par, t, i16::from),
        (DType::Uint8, DType::Int16) => cast::<u8, i16>(par, t, i16::from),
        (DType::Int8, DType::Bfloat16) => cast(par, t, |v: i8| bf16::from_f32(v.into())),
        (DType::Uint8, DType::Bfloat16) => cast(par, t, |v: u8| bf16::from_f32(v.into())),
        (DType::Bfloat16 | DType::Half, DType::Float) => widened(par, t),
        (DType::Float, DType::Double) => cast::<f32, f64>(par, t, f64::from),
        (from, to) => Err(ferroflow_base::internal!("{from} does not become {to}")),
    }
}

/// The products of a batch.
struct Batch {
    out: Shape,
    product: GemmShape,
    /// The number of products.
    n: usize,
    /// The batch dimensions of the operands and of the output; `None` if there is one product.
    dims: Option<[Shape; 3]>,
}

impl Batch {
    /// Returns where the matrices begin. The positions are as many as the products, so the output must exist.
    fn operands(&self) -> Operands {
        let s = &self.product;
        let (a_len, b_len) = (s.m * s.k, s.k * s.n);
        match &self.dims {
            None => Operands::One,
            Some([a, b, _]) if a == b => Operands::Each(a_len, b_len),
            Some([a, b, out]) => Operands::At(
                broadcast_offsets(a, out, a_len),
                broadcast_offsets(b, out, b_len),
            ),
        }
    }
}

/// Where the matrices of a product begin.
enum Operands {
    /// There is one product.
    One,
    /// Both operands have a matrix for each product: their numbers of elements.
    Each(usize, usize),
    /// One is broadcast: the positions for each product.
    At(Vec<usize>, Vec<usize>),
}

impl Operands {
    fn item(&self, i: usize) -> BatchItem {
        let (a, b) = match self {
            Operands::One => (0, 0),
            Operands::Each(a, b) => (i * a, i * b),
            Operands::At(a, b) => (a[i], b[i]),
        };
        BatchItem { a, b, out: 0 }
    }
}

/// Returns the products of operands of shapes `xs` and `ys`, of which `turned` are transposed.
fn batch(xs: &Shape, ys: &Shape, turned: [bool; 2], broadcasts: bool) -> Result<Batch> {
    let ranks = [xs.rank(), ys.rank()];
    if !broadcasts && ranks[0] != ranks[1] {
        return Err(invalid_argument!(
            "In[0] and In[1] has different ndims: {xs} vs. {ys}"
        ));
    }
    if let Some(i) = (0..2).find(|&i| ranks[i] < 2) {
        let rank = ranks[i];
        return Err(match broadcasts {
            true => invalid_argument!("In[{i}] ndims must be >= 2: {rank}"),
            false => invalid_argument!("In[0] and In[1] ndims must be >= 2: {rank}"),
        });
    }
    let [ax, ay] = turned;
    let (xb, xm) = xs.split_at(xs.rank() - 2);
    let (yb, ym) = ys.split_at(ys.rank() - 2);
    let (m, k) = if ax { (xm[1], xm[0]) } else { (xm[0], xm[1]) };
    let (l, n) = if ay { (ym[1], ym[0]) } else { (ym[0], ym[1]) };
    let (xb, yb) = (Shape::from(xb), Shape::from(yb));
    if !broadcasts && let Some(i) = (0..xb.rank()).find(|&i| xb[i] != yb[i]) {
        return Err(invalid_argument!(
            "In[0].dim({i}) and In[1].dim({i}) must be the same: {xs} vs {ys}"
        ));
    }
    let batch = broadcast_shape(&xb, &yb).map_err(|_| {
        invalid_argument!("In[0] and In[1] must have compatible batch dimensions: {xs} vs. {ys}")
    })?;
    if k != l {
        return Err(incompatible(xs, ys));
    }
    let out = shape_of(batch.iter().copied().chain([m, n]))?;
    let n_batch = batch.num_elements();
    if yb.num_elements() == 1 && !ax {
        // With a single right-hand matrix, the batch is treated as one tall matrix.
        return Ok(Batch {
            out,
            product: GemmShape::dense(n_batch * m, n, k, false, ay),
            n: 1,
            dims: None,
        });
    }
    Ok(Batch {
        out,
        product: GemmShape::dense(m, n, k, ax, ay),
        n: n_batch,
        dims: Some([xb, yb, batch]),
    })
}

fn batch_kernel<T: MatMulElement>(
    ctx: &mut KernelCtx,
    ax: bool,
    ay: bool,
    broadcasts: bool,
) -> Result<()> {
    let (x, y) = (operand::<T>(ctx, 0, ax)?, operand::<T>(ctx, 1, ay)?);
    let batch = batch(x.shape(), y.shape(), [ax, ay], broadcasts)?;
    let mut out = ctx.alloc(T::DTYPE, batch.out.clone())?;
    let to = out.slice_mut::<T>()?;
    if !to.is_empty() {
        let (a, b) = (x.slice::<T>()?, y.slice::<T>()?);
        let operands = batch.operands();
        let item = |i| operands.item(i);
        T::products(ctx.par(), batch.n, &batch.product, a, b, to, &item)?;
    }
    ctx.set_output(0, out)
}

/// Returns the start of the matrix of each entry of `batch` in a stack of shape `from`.
fn broadcast_offsets(from: &Shape, batch: &Shape, size: usize) -> Vec<usize> {
    let lead = batch.rank() - from.rank();
    let strides = from.strides();
    let mut coords = vec![0; batch.rank()];
    (0..batch.num_elements())
        .map(|i| {
            ferroflow_functors::strided::unravel(i, batch, &mut coords);
            let at = from.iter().enumerate();
            at.map(|(j, &d)| {
                if d == 1 {
                    0
                } else {
                    coords[lead + j] * strides[j]
                }
            })
            .sum::<usize>()
                * size
        })
        .collect()
}

/// Returns the gradient of the BatchMatMul ops.
fn batch_mat_mul_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, y, d) = (g.x(0), g.x(1), g.dy(0));
    let turned = [g.attrs().bool("adj_x")?, g.attrs().bool("adj_y")?];
    let product = |a: Expr, b: Expr, adj_a: bool, adj_b: bool| {
        let attrs = [("adj_x", adj_a.into()), ("adj_y", adj_b.into())];
        a.op_with("BatchMatMulV2", &[b], &attrs).output()
    };
    let gradients = products(g, x, y, d, turned, &product);
    // Sums over the broadcast batch dimensions.
    let batch = |e: Expr| {
        let shape = e.shape();
        let dims = shape.dims()?;
        Some(dims[..dims.len().checked_sub(2)?].to_vec())
    };
    if let (Some(a), Some(b)) = (batch(x), batch(y))
        && a == b
        && a.iter().all(Option::is_some)
    {
        for (i, gradient) in gradients.into_iter().enumerate() {
            gradient.map_or(Ok(()), |d| g.set(i, d))?;
        }
        return Ok(());
    }
    let shapes = [x.shape_of(), y.shape_of()];
    let leading = shapes.map(|s| {
        let attrs = [("begin_mask", 1i64.into())];
        let slice = [s, s.ints([0]), s.ints([-2]), s.ints([1])];
        s.make("StridedSlice", &slice, &attrs)
    });
    let axes = x.node("BroadcastGradientArgs", &leading, &[]);
    for (i, gradient) in gradients.into_iter().enumerate() {
        if let (Some(d), Some(axes)) = (gradient, axes.get(i)) {
            g.set(i, d.sum(*axes, false).reshape(shapes[i]))?;
        }
    }
    Ok(())
}
