//! Depthwise convolutions (TensorFlow: `core/kernels/depthwise_conv_op.cc`).

use crate::conv::depthwise_gradient;
use crate::conv_reference::{self, each_offset, over_nothing, pixel};
use crate::dense::add_broadcast;
use crate::fused::{Fused, Scaled};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::window::{Layout, Placed, Rules, conv_rules, shape as shape_of};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::conv::Conv3dShape;
use ferroflow_primitives::depthwise::{DepthwiseShape, depthwise2d};
use ferroflow_primitives::gemm::Activation;
use ferroflow_primitives::math::unary_in_place;
use ferroflow_primitives::scalar::unary_f64;
use ferroflow_sync::{Inline, par_chunks_mut};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// DepthwiseConv2dNative, and the internal _FusedDepthwiseConv2dNative, which applies `fused_ops`
/// to the output and, unlike TensorFlow's, supports explicit paddings.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "DepthwiseConv2dNative",
        "input: T, filter: T -> output: T | T: type {half,bfloat16,float,double}; \
         strides: list(int); padding: string {'SAME','VALID','EXPLICIT'}; \
         explicit_paddings: list(int) = []; data_format: string {'NHWC','NCHW'} = \
         'NHWC'; dilations: list(int) = [1,1,1,1]",
    )
    .shape(depthwise_shape)
    .cost(Cost::Expensive)
    .kernel(build)
    .gradient(depthwise_gradient),
    Op::new(
        "_FusedDepthwiseConv2dNative",
        "input: T, filter: T, args: num_args*T -> output: T | T: type \
         {half,bfloat16,float,double}; num_args: int >= 0; strides: list(int); \
         padding: string {'SAME','VALID','EXPLICIT'}; explicit_paddings: list(int) = \
         []; data_format: string {'NHWC','NCHW'} = 'NHWC'; dilations: list(int) = \
         [1,1,1,1]; fused_ops: list(string) = []; epsilon: float = 0.0001; \
         leakyrelu_alpha: float = 0.2",
    )
    .shape(depthwise_shape)
    .cost(Cost::Expensive)
    .kernel(build),
];

pub(crate) fn depthwise_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let layout = Layout::of(ctx.attrs())?;
    let rules = depthwise_rules(ctx.attrs(), layout)?;
    conv_reference::shape(ctx, layout, &rules, channels)
}

fn channels(in_c: Option<usize>, filter: &PartialShape) -> Result<Option<usize>> {
    let (filter_in_c, multiplier) = (filter.dim(-2), filter.dim(-1));
    if let (Some(a), Some(b)) = (in_c, filter_in_c)
        && a != b
    {
        return Err(other_depth(a, b));
    }
    Ok(match (in_c.or(filter_in_c), multiplier) {
        (Some(c), Some(m)) => c.checked_mul(m),
        _ => None,
    })
}

#[cold]
fn other_depth(input: usize, filter: usize) -> ferroflow_base::Status {
    invalid_argument!("input and filter must have the same depth: {input} vs {filter}")
}

/// Returns the rules of a depthwise convolution, whose strides must be equal.
pub(crate) fn depthwise_rules(attrs: &ferroflow_opdef::Attrs, layout: Layout) -> Result<Rules> {
    let rules = conv_rules(attrs, layout)?;
    if rules.iter().any(|r| r.stride != rules[0].stride) {
        return Err(invalid_argument!(
            "Current implementation only supports equal length strides in the row and column \
             dimensions."
        ));
    }
    Ok(rules)
}

/// Returns the sizes of a depthwise convolution; `groups` are the input channels.
pub(crate) fn depthwise_geometry(
    layout: Layout,
    rules: &Rules,
    input: &Shape,
    filter: &Shape,
) -> Result<Conv3dShape> {
    if input.rank() != 4 {
        return Err(invalid_argument!("input must be 4-dimensional{input}"));
    }
    if filter.rank() != 4 {
        return Err(invalid_argument!("filter must be 4-dimensional: {filter}"));
    }
    let in_c = input[layout.channel()];
    if in_c != filter[2] {
        return Err(other_depth(in_c, filter[2]));
    }
    let out_c = in_c
        .checked_mul(filter[3])
        .ok_or_else(|| invalid_argument!("filter is too large: {filter}"))?;
    let h = rules[0].place(input[layout.axis(0)], filter[0])?;
    let w = rules[1].place(input[layout.axis(1)], filter[1])?;
    Ok(conv_reference::sizes(
        input[0],
        [Placed::ONE, h, w],
        [in_c, out_c, in_c],
    ))
}

struct Depthwise {
    layout: Layout,
    rules: Rules,
    fused: Fused,
    dtype: DType,
    /// The constant filter, multiplied by the factors of a batch normalization.
    filter: Option<Tensor>,
    /// The other constants.
    scaled: Option<Scaled>,
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let layout = Layout::of(attrs)?;
    let rules = depthwise_rules(attrs, layout)?;
    let fused = Fused::of(attrs, build.inputs.len().saturating_sub(2))?;
    let dtype = build.input(0)?;
    if dtype == DType::Double && !fused.has_factor() {
        return Ok(Box::new(DepthwiseDouble {
            layout,
            rules,
            fused,
        }));
    }
    if !matches!(dtype, DType::Float | DType::Half | DType::Bfloat16) {
        return Err(build.unsupported(dtype));
    }
    let mut kernel = Depthwise {
        layout,
        rules,
        fused,
        dtype,
        filter: None,
        scaled: None,
    };
    if let Some(params) = fused.constants(build)? {
        let wide = params
            .iter()
            .map(|t| widened(&Inline, t))
            .collect::<Result<Vec<_>>>()?;
        let n = wide[0].num_elements();
        kernel.scaled = Some(fused.scaled(&wide, n)?);
    }
    if let Some(filter) = build.constant(1).filter(|f| f.shape().rank() == 4) {
        let value = widened(&Inline, &filter.get()?)?;
        kernel.filter = match (&kernel.scaled, fused.has_factor()) {
            (None, true) => None,
            (Some(scaled), true) => Some(scale(scaled, value)?),
            _ => Some(value),
        };
    }
    Ok(Box::new(kernel))
}

/// Multiplies `filter` by the factors of its output channels, which are its last two dimensions.
fn scale(scaled: &Scaled, filter: Tensor) -> Result<Tensor> {
    let shape = filter.shape().clone();
    let flat = shape_of(&[shape[0] * shape[1], shape[2] * shape[3]])?;
    scaled.check(&flat)?;
    scaled.apply(filter.with_shape(flat)?)?.with_shape(shape)
}

impl OpKernel for Depthwise {
    fn prepacks_input(&self, i: usize) -> bool {
        match i {
            1 => self.filter.is_some(),
            _ => i >= 2 && self.scaled.is_some() && i < 2 + self.fused.n_channel_args(),
        }
    }

    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let par = ctx.par();
        let filter_shape = match &self.filter {
            Some(f) => f.shape().clone(),
            None => ctx.shape(1)?.clone(),
        };
        let mut s = depthwise_geometry(self.layout, &self.rules, ctx.shape(0)?, &filter_shape)?;
        let out_c = s.plane.out_c;
        let own_scaled;
        let scaled = match &self.scaled {
            Some(scaled) => scaled,
            None => {
                let args = (2..2 + self.fused.n_channel_args())
                    .map(|i| widened(par, ctx.input(i)?))
                    .collect::<Result<Vec<_>>>()?;
                own_scaled = self.fused.scaled(&args, out_c)?;
                &own_scaled
            }
        };
        scaled.check(&Shape::from([out_c]))?;
        let filter = match &self.filter {
            Some(f) => f.clone(),
            None => scale(scaled, widened(par, ctx.input(1)?)?)?,
        };
        let mut x = self.layout.to_last(ctx, widened(par, ctx.input(0)?)?)?;
        if x.num_elements() == 0 {
            s = over_nothing(&s);
            x = Tensor::zeros(DType::Float, shape_of(&[s.plane.batch, s.plane.in_c])?)?;
        }
        let dims = shape_of(&conv_reference::output_dims(self.layout, &s))?;
        let mut out = ctx.alloc(DType::Float, dims)?;
        let ops = &self.fused.ops;
        let act = if ops.side {
            Activation::None
        } else {
            ops.activation
        };
        if out.num_elements() > 0 {
            let bias = scaled.bias.as_deref();
            let s = simd_sizes(&s);
            depthwise2d(
                par,
                &s,
                x.slice()?,
                filter.slice()?,
                bias,
                act,
                out.slice_mut()?,
            );
        }
        let mut out = self.layout.restored(ctx, out)?;
        if ops.side {
            let side = widened(par, ctx.input(2 + self.fused.n_channel_args())?)?;
            out = add_broadcast(&out, &side)?;
            unary_in_place(ops.activation.as_unary(), out.slice_mut()?);
        }
        let out = narrowed(par, out, self.dtype)?;
        ctx.set_output(0, out)
    }
}

fn simd_sizes(s: &Conv3dShape) -> DepthwiseShape {
    let p = &s.plane;
    DepthwiseShape {
        batch: p.batch,
        in_h: p.in_h,
        in_w: p.in_w,
        channels: p.in_c,
        multiplier: p.out_c / p.in_c.max(1),
        filter_h: p.filter_h,
        filter_w: p.filter_w,
        stride_h: p.stride_h,
        stride_w: p.stride_w,
        dil_h: p.dil_h,
        dil_w: p.dil_w,
        pad_top: p.pad_top,
        pad_left: p.pad_left,
        out_h: p.out_h,
        out_w: p.out_w,
    }
}

/// A depthwise convolution in double precision.
struct DepthwiseDouble {
    layout: Layout,
    rules: Rules,
    fused: Fused,
}

impl OpKernel for DepthwiseDouble {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let s = depthwise_geometry(self.layout, &self.rules, ctx.shape(0)?, ctx.shape(1)?)?;
        let x = self.layout.to_last(ctx, ctx.input(0)?.clone())?;
        let dims = shape_of(&conv_reference::output_dims(self.layout, &s))?;
        let mut out = ctx.alloc(DType::Double, dims)?;
        let (x, filter) = (x.slice::<f64>()?, ctx.slice::<f64>(1)?);
        let (in_c, out_c) = (s.plane.in_c, s.plane.out_c);
        let multiplier = out_c / in_c.max(1);
        let ops = &self.fused.ops;
        let bias = if ops.bias { ctx.slice::<f64>(2)? } else { &[] };
        if ops.side || (ops.bias && bias.len() != out_c) {
            return Err(invalid_argument!("the bias must have {out_c} elements"));
        }
        let act = ops.activation.as_unary();
        par_chunks_mut(ctx.par(), out.slice_mut::<f64>()?, out_c, 64, &|i, out| {
            out.fill(0.0);
            if !bias.is_empty() {
                out.copy_from_slice(bias);
            }
            each_offset(&s, pixel(&s, i), |tap, from| {
                let pixel = &x[from * in_c..][..in_c];
                let filter = filter[tap * out_c..][..out_c].chunks_exact(multiplier);
                for ((x, f), o) in pixel
                    .iter()
                    .zip(filter)
                    .zip(out.chunks_exact_mut(multiplier))
                {
                    for (o, f) in o.iter_mut().zip(f) {
                        *o += x * f;
                    }
                }
            });
            if ops.activation != Activation::None {
                out.iter_mut().for_each(|o| *o = unary_f64(act, *o));
            }
        });
        let out = self.layout.restored(ctx, out)?;
        ctx.set_output(0, out)
    }
}
