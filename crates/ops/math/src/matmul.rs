//! MatMul, `_FusedMatMul` and the BatchMatMul family.

use crate::matmul_gradient;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::{broadcast_partial, broadcast_shape};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::matmul::{check_matrices, finish_zeros, incompatible, product, sizes};
use ferroflow_functors::numeric::Num;
use ferroflow_functors::prepack;
use ferroflow_functors::product::{Number, convert, widened};
use ferroflow_opdef::{Attrs, Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::gemm::{
    self, Activation, BatchItem, Epilogue, GemmShape, PackedB, gemm, gemm_packed,
};
use ferroflow_primitives::math::UnaryOp;
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, LazyTensor, PartialShape, Shape, Tensor, bf16, dispatch,
    f16,
};

/// MatMul, _FusedMatMul, BatchMatMul, BatchMatMulV2, BatchMatMulV3.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MatMul",
        "a: T, b: T -> product: T | transpose_a: bool = false; transpose_b: bool = false; \
         T: type {bfloat16,half,float,double,int32,int64,uint8,uint16,uint32,uint64,complex64,\
         complex128}; grad_a: bool = false; grad_b: bool = false",
    )
    .shape(mat_mul_shape)
    .cost(Cost::Expensive)
    .kernel(mat_mul)
    .gradient(matmul_gradient::mat_mul),
    Op::new(
        "_FusedMatMul",
        "a: T, b: T, args: num_args*T -> product: T | transpose_a: bool = false; \
         transpose_b: bool = false; T: type {bfloat16,half,float}; num_args: int >= 0; \
         fused_ops: list(string) = []; epsilon: float = 0.0001; leakyrelu_alpha: float = 0.2",
    )
    .shape(mat_mul_shape)
    .cost(Cost::Expensive)
    .kernel(fused_mat_mul),
    Op::new(
        "BatchMatMul",
        "x: T, y: T -> output: T | T: type {bfloat16,half,float,double,int32,int64,complex64,\
         complex128}; adj_x: bool = false; adj_y: bool = false; grad_x: bool = false; \
         grad_y: bool = false",
    )
    .shape(batch_shape)
    .cost(Cost::Expensive)
    .kernel(batch_mat_mul)
    .gradient(matmul_gradient::batch_mat_mul),
    Op::new(
        "BatchMatMulV2",
        "x: T, y: T -> output: T | T: type {bfloat16,half,float,double,int16,int32,int64,uint8,\
         uint16,uint32,uint64,complex64,complex128}; adj_x: bool = false; adj_y: bool = false; \
         grad_x: bool = false; grad_y: bool = false",
    )
    .shape(batch_shape)
    .cost(Cost::Expensive)
    .kernel(batch_mat_mul)
    .gradient(matmul_gradient::batch_mat_mul),
    Op::new(
        "BatchMatMulV3",
        "x: Ta, y: Tb -> output: Tout | Ta: type {bfloat16,half,float,double,uint8,int8,int16,\
         int32,int64,complex64,complex128}; Tb: type {bfloat16,half,float,double,uint8,int8,int16,\
         int32,int64,complex64,complex128}; Tout: type {bfloat16,half,float,double,int16,int32,\
         int64,complex64,complex128}; adj_x: bool = false; adj_y: bool = false; \
         grad_x: bool = false; grad_y: bool = false",
    )
    .shape(batch_shape)
    .cost(Cost::Expensive)
    .kernel(batch_mat_mul)
    .gradient(matmul_gradient::batch_mat_mul),
];

fn mat_mul_shape(ctx: &mut ShapeCtx) -> Result<()> {
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
}

fn mat_mul(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (ta, tb) = (
        build.attrs.bool("transpose_a")?,
        build.attrs.bool("transpose_b")?,
    );
    let dtype = build.output(0)?;
    if dtype == DType::Float || dtype == DType::Double {
        let weights = build.constant(1).filter(|w| !ta && w.shape().rank() == 2);
        return dispatch!(dtype, T in [f32, f64] => Ok(match weights {
            Some(w) => Box::new(Packed::<T>::new(build, w, tb, Tail::default())?),
            None => Box::new(Unpacked::<T> { ta, tb, tail: Tail::default() }),
        }), else Err(build.unsupported(dtype)));
    }
    dispatch!(dtype, T in [f16, bf16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let (a, b) = (ctx.input(0)?, ctx.input(1)?);
            let s = sizes(a, b, ta, tb)?;
            let mut out = ctx.alloc(T::DTYPE, shape_of([s.m, s.n])?)?;
            if out.num_elements() > 0 {
                let item = |_| BatchItem::default();
                T::products(ctx.par(), 1, &s, a.slice()?, b.slice()?, out.slice_mut()?, &item)?;
            }
            ctx.set_output(0, out)
        })),
        else Err(build.unsupported(dtype)))
}

/// What follows a product: a bias (input 2 or a constant) and an activation.
struct Tail<T> {
    bias: Bias<T>,
    act: Activation,
}

enum Bias<T> {
    None,
    Input,
    Constant(Vec<T>),
}

impl<T> Default for Tail<T> {
    fn default() -> Self {
        Tail {
            bias: Bias::None,
            act: Activation::None,
        }
    }
}

impl<T: gemm::Element + Element> Tail<T> {
    fn epilogue<'a>(&'a self, ctx: &'a KernelCtx, n: usize) -> Result<Epilogue<'a, T>> {
        let bias = match &self.bias {
            Bias::None => None,
            Bias::Constant(bias) => Some(&bias[..]),
            Bias::Input => Some(ctx.slice::<T>(2)?),
        };
        check_bias(bias, n)?;
        Ok(Epilogue::new(bias, self.act))
    }

    fn absorbs(&self, i: usize) -> bool {
        i == 2 && matches!(self.bias, Bias::Constant(_))
    }
}

fn check_bias<T>(bias: Option<&[T]>, n: usize) -> Result<()> {
    match bias {
        Some(bias) if bias.len() != n => Err(invalid_argument!(
            "Incompatible shapes: bias has {} elements, but the product has {n} columns",
            bias.len()
        )),
        _ => Ok(()),
    }
}

/// A product whose right-hand matrix is a constant, packed when the kernel was built.
struct Packed<T: gemm::Element> {
    b: PackedB<T>,
    shape: Shape,
    tail: Tail<T>,
}

impl<T: gemm::Element + Element> Packed<T> {
    fn new(build: &KernelBuild, weights: &LazyTensor, tb: bool, tail: Tail<T>) -> Result<Self> {
        let b = prepack::weights(build, weights, tb)?;
        weights.release();
        let shape = weights.shape().clone();
        Ok(Packed { b, shape, tail })
    }
}

impl<T: gemm::Element + Element> OpKernel for Packed<T> {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let a = ctx.input(0)?;
        let shape = a.shape();
        let (k, n) = (self.b.k(), self.b.n());
        check_matrices(T::DTYPE, shape, &self.shape)?;
        if shape[1] != k {
            return Err(incompatible(shape, &self.shape));
        }
        let mut out = ctx.alloc(T::DTYPE, shape_of([shape[0], n])?)?;
        let ep = self.tail.epilogue(ctx, n)?;
        let to = out.slice_mut::<T>()?;
        if k == 0 {
            finish_zeros(to, n, &ep);
        } else if !to.is_empty() {
            gemm_packed(ctx.par(), a.slice()?, k, shape[0], &self.b, to, n, &ep);
        }
        ctx.set_output(0, out)
    }

    fn absorbs(&self, i: usize) -> bool {
        i == 1 || self.tail.absorbs(i)
    }

    fn packed(&self) -> Result<Vec<Tensor>> {
        Ok(vec![prepack::tensor(&self.b)?])
    }
}

/// A product of two inputs.
struct Unpacked<T> {
    ta: bool,
    tb: bool,
    tail: Tail<T>,
}

impl<T: gemm::Element + Num> OpKernel for Unpacked<T> {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        let s = sizes(a, b, self.ta, self.tb)?;
        let ep = self.tail.epilogue(ctx, s.n)?;
        let out = product(ctx, &s, [a, b], &ep)?;
        ctx.set_output(0, out)
    }

    fn absorbs(&self, i: usize) -> bool {
        self.tail.absorbs(i)
    }
}

/// The bias and activation that `fused_ops` names.
fn fused_tail(attrs: &Attrs, bias: Option<Vec<f32>>) -> Result<Tail<f32>> {
    let ops = attrs.strs("fused_ops")?;
    let (bias, rest) = match ops.split_first() {
        Some((&"BiasAdd", rest)) => (bias.map_or(Bias::Input, Bias::Constant), rest),
        _ => (Bias::None, &ops[..]),
    };
    let act = match rest {
        [] => Activation::None,
        ["Relu"] => Activation::Relu,
        ["Relu6"] => Activation::Relu6,
        ["Elu"] => UnaryOp::Elu(1.0).into(),
        ["LeakyRelu"] => UnaryOp::LeakyRelu(attrs.float("leakyrelu_alpha")?).into(),
        ["Tanh"] => UnaryOp::Tanh.into(),
        ["Sigmoid"] => UnaryOp::Sigmoid.into(),
        ["GeluApproximate"] => UnaryOp::GeluTanh.into(),
        ["GeluExact"] => UnaryOp::GeluErf.into(),
        _ => {
            return Err(ferroflow_base::unimplemented_error!(
                "Fusion is not implemented: [{}]",
                ops.join(",")
            ));
        }
    };
    let n_args = attrs.int("num_args")?;
    let wanted = i64::from(!matches!(bias, Bias::None));
    if n_args != wanted {
        return Err(invalid_argument!(
            "Fused MatMul must have {wanted} extra arguments, but has {n_args}"
        ));
    }
    Ok(Tail { bias, act })
}

fn fused_mat_mul(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (ta, tb) = (
        build.attrs.bool("transpose_a")?,
        build.attrs.bool("transpose_b")?,
    );
    match build.output(0)? {
        DType::Float => {
            let bias = match build.constant(2) {
                Some(b) => Some(b.get()?.slice::<f32>()?.to_vec()),
                None => None,
            };
            let tail = fused_tail(build.attrs, bias)?;
            Ok(
                match build.constant(1).filter(|w| !ta && w.shape().rank() == 2) {
                    Some(w) => Box::new(Packed::<f32>::new(build, w, tb, tail)?),
                    None => Box::new(Unpacked { ta, tb, tail }),
                },
            )
        }
        DType::Half => Ok(fused_halves(
            ta,
            tb,
            build.attrs,
            f16::to_f32,
            f16::from_f32,
        )?),
        DType::Bfloat16 => Ok(fused_halves(
            ta,
            tb,
            build.attrs,
            bf16::to_f32,
            bf16::from_f32,
        )?),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// Product, bias and activation in `f32`, rounded once.
fn fused_halves<T: Element>(
    ta: bool,
    tb: bool,
    attrs: &Attrs,
    widen: fn(T) -> f32,
    narrow: fn(f32) -> T,
) -> Result<Box<dyn OpKernel>> {
    let tail = fused_tail(attrs, None)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        let s = sizes(a, b, ta, tb)?;
        let wide = |i: usize| widened(ctx.par(), ctx.slice::<T>(i)?, widen);
        let bias = match tail.bias {
            Bias::None => None,
            _ => Some(wide(2)?),
        };
        let bias = bias.as_ref().map(|b| b.slice::<f32>()).transpose()?;
        check_bias(bias, s.n)?;
        let ep = Epilogue::new(bias, tail.act);
        let mut product = ctx.alloc(DType::Float, shape_of([s.m, s.n])?)?;
        let to = product.slice_mut::<f32>()?;
        if s.k == 0 {
            finish_zeros(to, s.n, &ep);
        } else if !to.is_empty() {
            gemm(ctx.par(), &s, wide(0)?.slice()?, wide(1)?.slice()?, to, &ep);
        }
        let mut out = ctx.alloc(T::DTYPE, product.shape().clone())?;
        convert(
            ctx.par(),
            product.slice::<f32>()?,
            out.slice_mut::<T>()?,
            narrow,
        );
        ctx.set_output(0, out)
    }))
}

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
    dispatch!(dtype, T in [f32, f64, f16, bf16, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| batch_kernel::<T>(ctx, ax, ay, broadcasts))),
        else Err(build.unsupported(dtype)))
}

/// A batch of matrices against one packed matrix: the batch is one tall matrix.
struct Flattened<T: gemm::Element>(Packed<T>);

impl<T: gemm::Element + Element> OpKernel for Flattened<T> {
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

    fn absorbs(&self, i: usize) -> bool {
        i == 1
    }
}

/// Input `i` as a tensor of `T`; conjugated when it is to be the adjoint of a complex matrix.
fn operand<T: Number>(ctx: &KernelCtx, i: usize, adjoint: bool) -> Result<Tensor> {
    let mut t = as_type::<T>(ctx.par(), ctx.input(i)?)?;
    if adjoint && T::DTYPE.is_complex() {
        t.slice_mut::<T>()?
            .iter_mut()
            .for_each(|v| *v = v.conjugate());
    }
    Ok(t)
}

/// The values of `t` as `T`, for the products whose inputs are narrower than their output.
fn as_type<T: Number>(par: &dyn Parallelism, t: &Tensor) -> Result<Tensor> {
    if t.dtype() == T::DTYPE {
        return Ok(t.clone());
    }
    /// What a narrow integer or float becomes.
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
        (DType::Int8, DType::Int32) => cast::<i8, i32>(par, t, i32::from),
        (DType::Uint8, DType::Int32) => cast::<u8, i32>(par, t, i32::from),
        (DType::Int16, DType::Int32) => cast::<i16, i32>(par, t, i32::from),
        (DType::Int8, DType::Int16) => cast::<i8, i16>(par, t, i16::from),
        (DType::Uint8, DType::Int16) => cast::<u8, i16>(par, t, i16::from),
        (DType::Int8, DType::Bfloat16) => cast(par, t, |v: i8| bf16::from_f32(v.into())),
        (DType::Uint8, DType::Bfloat16) => cast(par, t, |v: u8| bf16::from_f32(v.into())),
        (DType::Bfloat16, DType::Float) => cast(par, t, bf16::to_f32),
        (DType::Half, DType::Float) => cast(par, t, f16::to_f32),
        (DType::Float, DType::Double) => cast::<f32, f64>(par, t, f64::from),
        (from, to) => Err(ferroflow_base::unimplemented_error!(
            "BatchMatMulV3 of {from} to {to} is not supported on the CPU"
        )),
    }
}

fn batch_kernel<T: Number>(
    ctx: &mut KernelCtx,
    ax: bool,
    ay: bool,
    broadcasts: bool,
) -> Result<()> {
    let (x, y) = (operand::<T>(ctx, 0, ax)?, operand::<T>(ctx, 1, ay)?);
    let (xs, ys) = (x.shape(), y.shape());
    for (i, s) in [(0, xs), (1, ys)] {
        if s.rank() < 2 {
            return Err(invalid_argument!(
                "In[{i}] ndims must be >= 2: {}",
                s.rank()
            ));
        }
    }
    let (xb, xm) = xs.split_at(xs.rank() - 2);
    let (yb, ym) = ys.split_at(ys.rank() - 2);
    let (m, k) = if ax { (xm[1], xm[0]) } else { (xm[0], xm[1]) };
    let (l, n) = if ay { (ym[1], ym[0]) } else { (ym[0], ym[1]) };
    let (xb, yb) = (Shape::from(xb), Shape::from(yb));
    if !broadcasts && xb != yb {
        return Err(invalid_argument!(
            "In[0] and In[1] has different batch dims: {xs} vs. {ys}"
        ));
    }
    let batch = broadcast_shape(&xb, &yb).map_err(|_| {
        invalid_argument!("In[0] and In[1] must have compatible batch dimensions: {xs} vs. {ys}")
    })?;
    if k != l {
        return Err(incompatible(xs, ys));
    }
    let mut out = ctx.alloc(T::DTYPE, shape_of(batch.iter().copied().chain([m, n]))?)?;
    let to = out.slice_mut::<T>()?;
    if to.is_empty() {
        return ctx.set_output(0, out);
    }
    let (a, b) = (x.slice::<T>()?, y.slice::<T>()?);
    let n_batch = batch.num_elements();
    if yb.num_elements() == 1 && !ax {
        // One right-hand matrix for all: the batch is one tall matrix.
        let s = GemmShape::dense(n_batch * m, n, k, false, ay);
        T::products(ctx.par(), 1, &s, a, b, to, &|_| BatchItem::default())?;
        return ctx.set_output(0, out);
    }
    let s = GemmShape::dense(m, n, k, ax, ay);
    if xb == yb {
        let item = |i| BatchItem {
            a: i * m * k,
            b: i * k * n,
            out: 0,
        };
        T::products(ctx.par(), n_batch, &s, a, b, to, &item)?;
    } else {
        let offsets = |from: &Shape, size: usize| broadcast_offsets(from, &batch, size);
        let (xo, yo) = (offsets(&xb, m * k), offsets(&yb, k * n));
        let item = |i: usize| BatchItem {
            a: xo[i],
            b: yo[i],
            out: 0,
        };
        T::products(ctx.par(), n_batch, &s, a, b, to, &item)?;
    }
    ctx.set_output(0, out)
}

/// Where the matrix of each entry of `batch` starts in a stack of shape `from`.
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
