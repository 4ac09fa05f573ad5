//! MatMul and _FusedMatMul (TensorFlow: `core/kernels/matmul_op_impl.h`, `matmul_op_fused.cc`).

use crate::add_n::{Accumulate, unequal_shapes};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::bf16_product::{is_worth_pairs, products_of_pairs};
use ferroflow_functors::broadcast::{broadcast_partial, broadcast_shape, broadcast_tensor};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::matmul::{
    check_matrices, finish_zeros, incompatible, large_product, may_be_packed, product, sizes,
};
use ferroflow_functors::numeric::Num;
use ferroflow_functors::prepack;
use ferroflow_functors::product::MatMulElement;
use ferroflow_opdef::{
    Attrs, Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx,
};
use ferroflow_primitives::gemm::{
    self, Activation, BatchItem, Epilogue, GemmShape, MAX_UPDATE_K, PackedB, gemm, gemm_add,
    gemm_packed,
};
use ferroflow_primitives::math::UnaryOp;
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, LazyTensor, PartialShape, Shape, Tensor, bf16, dispatch,
    f16,
};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MatMul",
        "a: T, b: T -> product: T | transpose_a: bool = false; transpose_b: bool = \
         false; T: type \
         {bfloat16,half,float,double,int32,int64,uint8,uint16,uint32,uint64,complex64,complex128}; \
         grad_a: bool = false; grad_b: bool = false",
    )
    .shape(mat_mul_shape)
    .cost(Cost::Expensive)
    .kernel(mat_mul)
    .gradient(mat_mul_gradient),
    Op::new(
        "_FusedMatMul",
        "a: T, b: T, args: num_args*T -> product: T | transpose_a: bool = false; \
         transpose_b: bool = false; T: type {bfloat16,half,float}; num_args: int >= 0; \
         fused_ops: list(string) = []; epsilon: float = 0.0001; leakyrelu_alpha: float \
         = 0.2",
    )
    .shape(fused_shape)
    .cost(Cost::Expensive)
    .kernel(fused_mat_mul),
];

pub(crate) fn mat_mul_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = product_shape(ctx)?;
    ctx.set(0, shape);
    Ok(())
}

fn product_shape(ctx: &ShapeCtx) -> Result<PartialShape> {
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
    Ok(PartialShape::of([a.dim(ta), b.dim(1 - tb)]))
}

fn fused_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut shape = product_shape(ctx)?;
    // The kernel refuses fewer inputs.
    if let Some(addend) = Addend::of(&ctx.attrs().strs("fused_ops")?)
        && addend.input < ctx.num_inputs()
    {
        let other = ctx.input(addend.input);
        shape = match addend.broadcasts {
            true => broadcast_partial(&other, &shape)?,
            false => ctx.merge(&other, &shape)?,
        };
    }
    ctx.set(0, shape);
    Ok(())
}

fn mat_mul(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (ta, tb) = (
        build.attrs.bool("transpose_a")?,
        build.attrs.bool("transpose_b")?,
    );
    let dtype = build.output(0)?;
    if dtype == DType::Float || dtype == DType::Double {
        let weights = packed_weights(build, ta);
        return dispatch!(dtype, T in [f32, f64] => Ok(match weights {
            Some(w) => Box::new(Packed::<T>::new(build, w, tb, Tail::default())?),
            None => Box::new(Unpacked::<T> { ta, tb, tail: Tail::default(), product: None }),
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

/// The right-hand matrix, if it is a constant for which packing pays.
fn packed_weights<'a>(build: &'a KernelBuild, transpose_a: bool) -> Option<&'a LazyTensor> {
    let weights = build.constant(1).filter(|_| !transpose_a)?;
    let &[k, n] = weights.shape().dims() else {
        return None;
    };
    (!GemmShape::dense(1, n, k, false, false).is_tiny()).then_some(weights)
}

/// What follows a product: a bias (input 2 or a constant), and an activation or an addend.
pub(crate) struct Tail<T> {
    bias: Bias<T>,
    act: Activation,
    addend: Option<Addend>,
}

/// The tensor that a product is added to.
#[derive(Clone, Copy)]
struct Addend {
    input: usize,
    /// Whether its shape may differ from the product's, as inputs of AddV2 may and those of AddN may not.
    broadcasts: bool,
}

impl Addend {
    /// Returns the addend of the attr `fused_ops`, if any.
    fn of(fused_ops: &[&str]) -> Option<Addend> {
        let (n_before, op) = match fused_ops {
            ["BiasAdd", op] => (1, op),
            [op] => (0, op),
            _ => return None,
        };
        let broadcasts = match *op {
            "Add" => true,
            "AddN" => false,
            _ => return None,
        };
        Some(Addend {
            input: 2 + n_before,
            broadcasts,
        })
    }

    /// Returns the sum of the addend and a product.
    fn add<T: Num + Accumulate>(self, ctx: &KernelCtx, product: Tensor) -> Result<Tensor> {
        let addend = ctx.input(self.input)?;
        let (x, y) = (addend.shape(), product.shape());
        if !self.broadcasts && x != y {
            return Err(unequal_shapes(ctx.node(), x, 1, y));
        }
        let shape = broadcast_shape(x, y)?;
        let mut sum = match *y == shape {
            true => product,
            false => broadcast_tensor(ctx, &product, shape.clone())?,
        };
        let addend = match *x == shape {
            true => addend.clone(),
            false => broadcast_tensor(ctx, addend, shape)?,
        };
        T::accumulate(sum.slice_mut()?, &[addend.slice()?]);
        Ok(sum)
    }
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
            addend: None,
        }
    }
}

impl<T: gemm::GemmElement + Element> Tail<T> {
    fn epilogue<'a>(&'a self, ctx: &'a KernelCtx, n: usize) -> Result<Epilogue<'a, T>> {
        let bias = match &self.bias {
            Bias::None => None,
            Bias::Constant(bias) => Some(&bias[..]),
            Bias::Input => Some(ctx.slice::<T>(2)?),
        };
        check_bias(bias, n)?;
        Ok(Epilogue::new(bias, self.act))
    }

    fn prepacks_input(&self, i: usize) -> bool {
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
pub(crate) struct Packed<T: gemm::GemmElement> {
    pub(crate) b: PackedB<T>,
    pub(crate) shape: Shape,
    tail: Tail<T>,
}

impl<T: gemm::GemmElement + Element> Packed<T> {
    pub(crate) fn new(
        build: &KernelBuild,
        weights: &LazyTensor,
        tb: bool,
        tail: Tail<T>,
    ) -> Result<Self> {
        let b = prepack::weights(build, weights, tb)?;
        weights.release();
        let shape = weights.shape().clone();
        Ok(Packed { b, shape, tail })
    }
}

impl<T: gemm::GemmElement + Element> OpKernel for Packed<T> {
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

    fn prepacks_input(&self, i: usize) -> bool {
        i == 1 || self.tail.prepacks_input(i)
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
    /// The node that was the product, if a sum has taken its place.
    product: Option<String>,
}

impl<T: gemm::GemmElement + Num + Accumulate> Unpacked<T> {
    /// Returns the product added to a tensor of its shape, in the memory of that if possible.
    fn sum(&self, ctx: &mut KernelCtx, s: &GemmShape, addend: usize) -> Result<Tensor> {
        // A right-hand matrix that may be packed already is not packed again: that saves more than adding in place.
        // Sums of several blocks, and with a bias, would be rounded in another order there.
        let is_in_place =
            !may_be_packed(s) && s.k <= MAX_UPDATE_K && matches!(self.tail.bias, Bias::None);
        let candidates: &[usize] = if is_in_place { &[addend] } else { &[] };
        let (mut out, forwarded) =
            ctx.forward_or_alloc(candidates, T::DTYPE, shape_of([s.m, s.n])?)?;
        let mut ep = self.tail.epilogue(ctx, s.n)?;
        let (a, b, to) = (ctx.input(0)?, ctx.input(1)?, out.slice_mut::<T>()?);
        if forwarded.is_some() {
            gemm_add(ctx.par(), s, a.slice()?, b.slice()?, to, &ep);
        } else {
            ep.side = Some((ctx.slice::<T>(addend)?, s.n));
            large_product(ctx, s, [a, b], to, &ep)?;
        }
        Ok(out)
    }
}

impl<T: gemm::GemmElement + Num + Accumulate> OpKernel for Unpacked<T> {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        let s = sizes(a, b, self.ta, self.tb).map_err(|e| match &self.product {
            Some(node) => e.at_node(node, "MatMul"),
            None => e,
        })?;
        let out = match self.tail.addend {
            Some(Addend { input, .. })
                if ctx.shape(input)?.dims() == [s.m, s.n] && s.k > 0 && !s.is_tiny() =>
            {
                self.sum(ctx, &s, input)?
            }
            addend => {
                let product = product(ctx, &s, [a, b], &self.tail.epilogue(ctx, s.n)?)?;
                match addend {
                    Some(addend) => addend.add::<T>(ctx, product)?,
                    None => product,
                }
            }
        };
        ctx.set_output(0, out)
    }

    fn prepacks_input(&self, i: usize) -> bool {
        self.tail.prepacks_input(i)
    }
}

/// Returns the bias, and activation or addend of the attr `fused_ops`.
fn fused_tail(attrs: &Attrs, bias: Option<Vec<f32>>) -> Result<Tail<f32>> {
    let ops = attrs.strs("fused_ops")?;
    let (bias, rest) = match ops.split_first() {
        Some((&"BiasAdd", rest)) => (bias.map_or(Bias::Input, Bias::Constant), rest),
        _ => (Bias::None, &ops[..]),
    };
    let has_bias = !matches!(bias, Bias::None);
    let addend = Addend::of(&ops);
    let act = match rest {
        [] => Activation::None,
        _ if addend.is_some() => Activation::None,
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
    let wanted = i64::from(has_bias) + i64::from(addend.is_some());
    if n_args != wanted {
        return Err(invalid_argument!(
            "Fused MatMul must have {wanted} extra arguments, but has {n_args}"
        ));
    }
    Ok(Tail { bias, act, addend })
}

fn fused_mat_mul(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (ta, tb) = (
        build.attrs.bool("transpose_a")?,
        build.attrs.bool("transpose_b")?,
    );
    match build.output(0)? {
        DType::Float => {
            let has_bias = build.attrs.strs("fused_ops")?.first() == Some(&"BiasAdd");
            let bias = match build.constant(2).filter(|_| has_bias) {
                Some(b) => Some(b.get()?.slice::<f32>()?.to_vec()),
                None => None,
            };
            let tail = fused_tail(build.attrs, bias)?;
            let weights = packed_weights(build, ta).filter(|_| tail.addend.is_none());
            Ok(match weights {
                Some(w) => Box::new(Packed::<f32>::new(build, w, tb, tail)?),
                None => {
                    let product = build.attrs.str("_product").ok().map(String::from);
                    Box::new(Unpacked {
                        ta,
                        tb,
                        tail,
                        product,
                    })
                }
            })
        }
        dtype @ (DType::Half | DType::Bfloat16) => fused_halves(ta, tb, build.attrs, dtype),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// Computes product, bias and activation in `f32`, rounded once.
fn fused_halves(ta: bool, tb: bool, attrs: &Attrs, dtype: DType) -> Result<Box<dyn OpKernel>> {
    let tail = fused_tail(attrs, None)?;
    if tail.addend.is_some() {
        return Err(ferroflow_base::unimplemented_error!(
            "Sums of {dtype} are not fused into products"
        ));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        let s = sizes(a, b, ta, tb)?;
        let wide = |i: usize| widened(ctx.par(), ctx.input(i)?);
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
            let (a, b) = (wide(0)?, wide(1)?);
            let (a, b) = (a.slice()?, b.slice()?);
            match is_worth_pairs(dtype, &s) {
                true => {
                    let first = |_| BatchItem::default();
                    products_of_pairs(ctx.par(), 1, &s, [a, b], to, &first, &ep)?;
                }
                false => gemm(ctx.par(), &s, a, b, to, &ep),
            }
        }
        ctx.set_output(0, narrowed(ctx.par(), product, dtype)?)
    }))
}

/// Returns the gradient of MatMul.
fn mat_mul_gradient(g: &mut GradientCtx) -> Result<()> {
    let (a, b, d) = (g.x(0).conj(), g.x(1).conj(), g.dy(0));
    let turned = [
        g.attrs().bool("transpose_a")?,
        g.attrs().bool("transpose_b")?,
    ];
    let product = |x: Expr, y: Expr, turn_x: bool, turn_y: bool| {
        let attrs = [
            ("transpose_a", turn_x.into()),
            ("transpose_b", turn_y.into()),
        ];
        x.op_with("MatMul", &[y], &attrs).output()
    };
    let [da, db] = products(g, a, b, d, turned, &product);
    if let Some(da) = da {
        g.set(0, da)?;
    }
    db.map_or(Ok(()), |db| g.set(1, db))
}

/// Returns the two products of the gradient of a product.
pub(crate) fn products<'g>(
    g: &GradientCtx<'g>,
    x: Expr<'g>,
    y: Expr<'g>,
    d: Expr<'g>,
    turned: [bool; 2],
    product: &dyn Fn(Expr<'g>, Expr<'g>, bool, bool) -> ferroflow_opdef::Output,
) -> [Option<Expr<'g>>; 2] {
    let of = |a, b, turn_a, turn_b| d.at(product(a, b, turn_a, turn_b));
    let [turned_x, turned_y] = turned;
    let dx = || match turned_x {
        false => of(d, y, false, !turned_y),
        true => of(y, d, turned_y, true),
    };
    let dy = || match turned_y {
        false => of(x, d, !turned_x, false),
        true => of(d, x, true, turned_x),
    };
    [g.needs(0).then(dx), g.needs(1).then(dy)]
}
