//! `_Dense`: a matrix product with constant weights and the ops that follow it, for inputs of any
//! rank.

use crate::fused_ops::FusedOps;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::broadcast_shape;
use ferroflow_functors::prepack;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::gemm::{Activation, Epilogue, PackedB, gemm_packed};
use ferroflow_primitives::math::{BinaryOp, binary_left, unary_in_place};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// `_Dense`: internal; `x[…, k] · w[k, n]`, then `fused_ops` (BiasAdd, Add, activation). The
/// weights and the bias are packed when the kernel is built if they are constants.
pub(crate) const OPS: &[Op] = &[Op::new(
    "_Dense",
    "x: T, w: T, args: num_args*T -> y: T | T: type {bfloat16,half,float}; num_args: int >= 0 = \
         0; transpose_w: bool = false; fused_ops: list(string) = []; leakyrelu_alpha: \
         float = 0.2",
)
.shape(shape)
.cost(Cost::Expensive)
.kernel(build)];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let x = ctx.with_rank_at_least(0, 1)?;
    let w = ctx.with_rank(1, 2)?;
    let transposed = ctx.attrs().bool("transpose_w")?;
    let n = w.dim(if transposed { 0 } else { 1 });
    if let Some(dims) = x.dims() {
        let mut out = dims.to_vec();
        if let Some(last) = out.last_mut() {
            *last = n;
        }
        ctx.set(0, PartialShape::of(out));
    }
    Ok(())
}

struct DenseKernel {
    weights: Option<PackedB>,
    bias: Option<Tensor>,
    fused: FusedOps,
    transpose_w: bool,
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let fused = FusedOps::from_attrs(build.attrs)?;
    if build.inputs.len() != 2 + fused.num_args() {
        return Err(invalid_argument!(
            "fused_ops needs {} extra arguments, got {}",
            fused.num_args(),
            build.inputs.len() - 2
        ));
    }
    let transpose_w = build.attrs.bool("transpose_w")?;
    let weights = build
        .constant(1)
        .map(|w| prepack::weights(build, w, transpose_w))
        .transpose()?;
    let bias = match build.constant(2) {
        Some(b) if fused.bias => Some(b.get()?),
        _ => None,
    };
    Ok(Box::new(DenseKernel {
        weights,
        bias,
        fused,
        transpose_w,
    }))
}

impl OpKernel for DenseKernel {
    fn prepacks_input(&self, i: usize) -> bool {
        (i == 1 && self.weights.is_some()) || (i == 2 && self.bias.is_some())
    }

    fn packed(&self) -> Result<Vec<Tensor>> {
        self.weights.iter().map(prepack::tensor).collect()
    }

    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let own;
        let weights = match &self.weights {
            Some(packed) => packed,
            None => {
                own = prepack::pack(ctx.input(1)?, self.transpose_w)?;
                &own
            }
        };
        let (k, n) = (weights.k(), weights.n());
        let x_shape = ctx.shape(0)?.clone();
        let Some((&last, outer)) = x_shape.split_last() else {
            return Err(invalid_argument!("x must be at least a vector"));
        };
        if last != k {
            return Err(invalid_argument!(
                "Matrix size-incompatible: In[0]: {x_shape}, In[1]: [{k},{n}]"
            ));
        }
        let m: usize = outer.iter().product();
        let shape: Shape = outer.iter().copied().chain([n]).collect();
        let bias = match (&self.bias, self.fused.bias) {
            (Some(b), _) => Some(b.slice::<f32>()?),
            (None, true) => Some(ctx.slice::<f32>(2)?),
            (None, false) => None,
        };
        if bias.is_some_and(|b| b.len() != n) {
            return Err(invalid_argument!("the bias must have {n} elements"));
        }
        let side_at = 2 + self.fused.bias as usize;
        let side = if self.fused.side {
            Some(ctx.input(side_at)?)
        } else {
            None
        };
        // A side input of another shape is broadcast, like the fused Add.
        let direct = side.filter(|s| *s.shape() == shape);
        let late = side.is_some() && direct.is_none();
        let mut out = ctx.alloc(DType::Float, shape)?;
        let epilogue = Epilogue {
            scale: None,
            bias,
            side: direct
                .map(|s| s.slice::<f32>())
                .transpose()?
                .map(|s| (s, n)),
            act: if late {
                Activation::None
            } else {
                self.fused.activation
            },
        };
        gemm_packed(
            ctx.par(),
            ctx.slice(0)?,
            k,
            m,
            weights,
            out.slice_mut()?,
            n,
            &epilogue,
        );
        if let (true, Some(side)) = (late, side) {
            out = add_broadcast(&out, side)?;
            unary_in_place(self.fused.activation.as_unary(), out.slice_mut()?);
        }
        ctx.set_output(0, out)
    }
}

/// Computes `a + b` with broadcasting: the slow path, for rare shapes of a fused Add.
pub(crate) fn add_broadcast(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let shape = broadcast_shape(a.shape(), b.shape())?;
    let expand = |t: &Tensor| -> Result<Tensor> {
        let mut out = Tensor::for_overwrite(DType::Float, shape.clone())?;
        let src = t.slice::<f32>()?;
        let (strides, lead) = (t.shape().strides(), shape.rank() - t.shape().rank());
        let out_strides = shape.strides();
        for (i, to) in out.slice_mut::<f32>()?.iter_mut().enumerate() {
            let from = (0..t.shape().rank())
                .filter(|&d| t.shape()[d] != 1)
                .map(|d| (i / out_strides[lead + d]) % shape[lead + d] * strides[d])
                .sum::<usize>();
            *to = src[from];
        }
        Ok(out)
    };
    let (mut sum, b) = (expand(a)?, expand(b)?);
    binary_left(BinaryOp::Add, sum.slice_mut::<f32>()?, b.slice::<f32>()?);
    Ok(sum)
}
