//! Convolutions: Conv2D, Conv3D and their fused forms (TensorFlow: `core/kernels/conv_ops_impl.h`).

use crate::conv_packed::Packed;
use crate::conv_reference::{self, direct, geometry, output_dims, over_nothing};
use crate::dense::add_broadcast;
use crate::fused::{Fused, Scaled};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::numeric::Num;
use ferroflow_functors::prepack;
use ferroflow_functors::window::{Layout, Rules, conv_rules, shape as shape_of};
use ferroflow_opdef::{
    AttrValue, Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx,
};
use ferroflow_primitives::conv::{Conv3dShape, PackedFilter, conv3d_plain};
use ferroflow_primitives::gemm::{Activation, Epilogue};
use ferroflow_primitives::math::unary_in_place;
use ferroflow_primitives::scalar::unary_f64;
use ferroflow_sync::{Inline, Parallelism};
use ferroflow_tensor::{DType, LazyTensor, Shape, Tensor};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Conv2D",
        "input: T, filter: T -> output: T | T: type \
         {half,bfloat16,float,double,int32}; strides: list(int); use_cudnn_on_gpu: \
         bool = true; padding: string {'SAME','VALID','EXPLICIT'}; explicit_paddings: \
         list(int) = []; data_format: string {'NHWC','NCHW'} = 'NHWC'; dilations: \
         list(int) = [1,1,1,1]",
    )
    .shape(conv_shape)
    .cost(Cost::Expensive)
    .kernel(build)
    .gradient(conv2d_gradient),
    Op::new(
        "_FusedConv2D",
        "input: T, filter: T, args: list(TArgs), host_args: num_host_args*float -> \
         output: T | T: type {half,float,double,int8,qint8}; TArgs: list(type) >= 1; \
         num_args: int >= 0; num_host_args: int >= 0 = 0; strides: list(int); padding: \
         string {'SAME','VALID','EXPLICIT'}; explicit_paddings: list(int) = []; \
         data_format: string {'NHWC','NCHW','NCHW_VECT_C'} = 'NHWC'; filter_format: \
         string {'HWIO','OIHW','OIHW_VECT_I'} = 'HWIO'; dilations: list(int) = \
         [1,1,1,1]; use_cudnn_on_gpu: bool = true; fused_ops: list(string) = []; \
         epsilon: float = 0.0001; leakyrelu_alpha: float = 0.2",
    )
    .shape(conv_shape)
    .cost(Cost::Expensive)
    .kernel(build),
    Op::new(
        "Conv",
        "input: T, filter: T -> output: T | T: type \
         {half,bfloat16,float,double,int32}; strides: list(int); padding: string \
         {'SAME','VALID','EXPLICIT'}; explicit_paddings: list(int) = []; data_format: \
         string {'CHANNELS_FIRST','CHANNELS_LAST'} = 'CHANNELS_LAST'; dilations: \
         list(int) = []; batch_dims: int = 1; groups: int = 1",
    )
    .shape(conv_shape)
    .cost(Cost::Expensive)
    .kernel(build),
    Op::new(
        "Conv3D",
        "input: T, filter: T -> output: T | T: type {half,bfloat16,float,double}; \
         strides: list(int) >= 5; padding: string {'SAME','VALID'}; data_format: \
         string {'NDHWC','NCDHW'} = 'NDHWC'; dilations: list(int) = [1,1,1,1,1]",
    )
    .shape(conv_shape)
    .cost(Cost::Expensive)
    .kernel(build)
    .gradient(conv3d_gradient),
    Op::new(
        "_FusedConv3D",
        "input: T, filter: T, args: num_args*T -> output: T | T: type \
         {bfloat16,float,half}; num_args: int >= 0; strides: list(int) >= 5; padding: \
         string {'SAME','VALID'}; data_format: string {'NDHWC','NCDHW'} = 'NDHWC'; \
         dilations: list(int) = [1,1,1,1,1]; padding_list: list(int) = []; fused_ops: \
         list(string) = []; epsilon: float = 0.0001; leakyrelu_alpha: float = 0.2",
    )
    .shape(conv_shape)
    .cost(Cost::Expensive)
    .kernel(build),
    // The pass `composite` splits these into several nodes.
    Op::new(
        "FusedPadConv2D",
        "input: T, paddings: int32, filter: T -> output: T | T: type \
         {half,bfloat16,float,double}; mode: string {'REFLECT','SYMMETRIC'}; strides: \
         list(int); padding: string {'SAME','VALID'}",
    ),
    Op::new(
        "FusedResizeAndPadConv2D",
        "input: T, size: int32, paddings: int32, filter: T -> output: T | T: type \
         {half,float,double}; resize_align_corners: bool = false; mode: string \
         {'REFLECT','SYMMETRIC'}; strides: list(int); padding: string {'SAME','VALID'}",
    ),
];

pub(crate) fn conv_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let layout = Layout::of(ctx.attrs())?;
    let rules = conv_rules(ctx.attrs(), layout)?;
    conv_reference::shape(ctx, layout, &rules, conv_reference::grouped)
}

/// The attrs and constants of a convolution.
pub(crate) struct Plan {
    pub(crate) layout: Layout,
    pub(crate) rules: Rules,
    fused: Fused,
    dtype: DType,
    /// Whether products are computed in `bfloat16`.
    pub(crate) bf16: bool,
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    if attrs.int("batch_dims").is_ok_and(|n| n != 1) {
        return Err(unimplemented_error!(
            "Conv with more than one batch dimension is not supported"
        ));
    }
    let layout = Layout::of(attrs)?;
    let n_host_args = attrs.int("num_host_args").unwrap_or(0).max(0) as usize;
    if attrs.get("filter_format").is_some() && attrs.str("filter_format")? != "HWIO" {
        return Err(unimplemented_error!(
            "Only HWIO filters are supported on the CPU"
        ));
    }
    let n_args = build.inputs.len().saturating_sub(2 + n_host_args);
    let plan = Plan {
        layout,
        rules: conv_rules(attrs, layout)?,
        fused: Fused::of(attrs, n_args)?,
        dtype: build.input(0)?,
        bf16: prepack::multiplies_bf16(build) && build.input(0)? == DType::Float,
    };
    if build.inputs.iter().any(|&t| t != plan.dtype) {
        return Err(invalid_argument!(
            "The inputs of {} differ in type",
            build.node
        ));
    }
    match plan.dtype {
        DType::Float | DType::Half | DType::Bfloat16 => Conv::build(build, plan),
        DType::Double if !plan.fused.has_factor() => Ok(Box::new(PlainConv::<f64> {
            multiply: conv3d_plain::<f64>,
            plan,
            finish: finish_double,
        })),
        DType::Int32 => Ok(Box::new(PlainConv::<i32> {
            multiply: direct::<i32>,
            plan,
            finish: |_, _, _, _| Ok(()),
        })),
        dtype => Err(build.unsupported(dtype)),
    }
}

/// A convolution in single precision.
struct Conv {
    plan: Plan,
    filter: Option<ConstFilter>,
    /// Channel parameters that are constants.
    scaled: Option<Scaled>,
}

/// The attr that compilation sets on a convolution of known channels: the number of groups, which
/// otherwise shows in the first step.
const GROUPS: &str = "_groups";

/// A constant filter.
struct ConstFilter {
    shape: Shape,
    /// Packed for as many groups as [`GROUPS`] says; the input determines the number.
    packed: Packed,
    groups: usize,
    /// Packed for another number of groups.
    grouped: Mutex<Option<(usize, Arc<Packed>)>>,
    /// The filter itself, until the first step with `groups` groups.
    source: Mutex<Option<LazyTensor>>,
}

impl Conv {
    fn build(build: &KernelBuild, plan: Plan) -> Result<Box<dyn OpKernel>> {
        let params = plan.fused.constants(build)?;
        // Malformed filters fail when run.
        let constant = build
            .constant(1)
            .filter(|f| f.shape().rank() == plan.layout.rank() && f.shape().num_elements() > 0);
        let mut scaled = None;
        if let Some(params) = &params {
            let wide = widen_all(params)?;
            let n = wide[0].num_elements();
            scaled = Some(plan.fused.scaled(&wide, n)?);
            (2..2 + params.len())
                .filter_map(|i| build.constant(i))
                .for_each(|c| c.release());
        }
        let filter = match constant {
            Some(constant) => {
                let shape = constant.shape().clone();
                let groups = build.attrs.int(GROUPS).unwrap_or(1).max(1) as usize;
                let groups = match shape.last().is_some_and(|n| n.is_multiple_of(groups)) {
                    true => groups,
                    false => 1,
                };
                let packed = match prepack::blocks(build)? {
                    Some(blocks) => Packed::of_blocks(&plan, &shape, blocks, groups)?,
                    None => {
                        Packed::new(&Inline, &plan, &widened(&Inline, &constant.get()?)?, groups)?
                    }
                };
                constant.release();
                Some(ConstFilter {
                    shape,
                    packed,
                    groups,
                    grouped: Mutex::new(None),
                    source: Mutex::new(Some(constant.clone())),
                })
            }
            None => None,
        };
        Ok(Box::new(Conv {
            plan,
            filter,
            scaled,
        }))
    }

    /// Returns the channel parameters, checked to have `n` channels.
    fn scaled(&self, ctx: &KernelCtx, n: usize) -> Result<Scaled> {
        let args = (2..2 + self.plan.fused.n_channel_args())
            .map(|i| widened(ctx.par(), ctx.input(i)?))
            .collect::<Result<Vec<_>>>()?;
        self.plan.fused.scaled(&args, n)
    }
}

fn widen_all(tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    tensors.iter().map(|t| widened(&Inline, t)).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConstFilter {
    /// Returns the filter packed for another number of groups than the graph led to expect.
    fn grouped(&self, par: &dyn Parallelism, plan: &Plan, groups: usize) -> Result<Arc<Packed>> {
        let mut slot = lock(&self.grouped);
        if let Some((n, packed)) = &*slot
            && *n == groups
        {
            return Ok(packed.clone());
        }
        let constant = lock(&self.source).clone().ok_or_else(|| {
            unimplemented_error!(
                "The number of groups changes from {} to {groups} between steps",
                self.groups
            )
        })?;
        let filter = widened(par, &constant.get()?)?;
        let packed = Arc::new(Packed::new(par, plan, &filter, groups)?);
        *slot = Some((groups, packed.clone()));
        Ok(packed)
    }
}

impl OpKernel for Conv {
    fn prepacks_input(&self, i: usize) -> bool {
        match i {
            1 => self.filter.is_some(),
            _ => i >= 2 && self.scaled.is_some() && i < 2 + self.plan.fused.n_channel_args(),
        }
    }

    fn packed(&self) -> Result<Vec<Tensor>> {
        let blocks = self.filter.iter().map(|f| f.packed.blocks());
        Ok(blocks.collect::<Result<Vec<_>>>()?.concat())
    }

    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let (par, plan) = (ctx.par(), &self.plan);
        let filter_shape = match &self.filter {
            Some(f) => f.shape.clone(),
            None => ctx.shape(1)?.clone(),
        };
        let mut s = geometry(plan.layout, &plan.rules, ctx.shape(0)?, &filter_shape)?;
        let (own_scaled, grouped, own_packed);
        let scaled = match &self.scaled {
            Some(scaled) => scaled.check(&filter_shape)?,
            None => {
                own_scaled = self.scaled(ctx, s.plane.out_c)?;
                &own_scaled
            }
        };
        let packed = match &self.filter {
            Some(f) if s.plane.groups == f.groups => {
                drop(lock(&f.source).take());
                &f.packed
            }
            Some(f) => {
                grouped = f.grouped(par, plan, s.plane.groups)?;
                &*grouped
            }
            None => {
                let value = widened(par, ctx.input(1)?)?;
                own_packed = Packed::Floats(match plan.layout.spatial {
                    2 => PackedFilter::for_one_use(par, value.slice()?, &s.plane),
                    _ => PackedFilter::new_3d(par, value.slice()?, &s),
                });
                &own_packed
            }
        };
        let mut x = plan.layout.to_last(ctx, widened(par, ctx.input(0)?)?)?;
        if x.num_elements() == 0 {
            s = over_nothing(&s);
            x = Tensor::zeros(DType::Float, shape_of(&[s.plane.batch, s.plane.in_c])?)?;
        }
        let dims = shape_of(&output_dims(plan.layout, &s))?;
        let side = match plan.fused.ops.side {
            true => Some(widened(par, ctx.input(2 + plan.fused.n_channel_args())?)?),
            false => None,
        };
        // A side input of another shape is broadcast, like the fused Add.
        let direct = side
            .as_ref()
            .filter(|side| *side.shape() == in_layout(plan.layout, &dims))
            .map(|side| plan.layout.to_last(ctx, side.clone()))
            .transpose()?;
        let late = side.is_some() && direct.is_none();
        let mut out = ctx.alloc(DType::Float, dims)?;
        let act = plan.fused.ops.activation;
        let epilogue = Epilogue {
            scale: scaled.factor.as_deref(),
            bias: scaled.bias.as_deref(),
            side: match &direct {
                Some(side) => Some((side.slice::<f32>()?, s.plane.out_c)),
                None => None,
            },
            act: if late { Activation::None } else { act },
        };
        if out.num_elements() > 0 {
            packed.convolve(par, &s, x.slice()?, out.slice_mut()?, &epilogue);
        }
        let mut out = plan.layout.restored(ctx, out)?;
        if let (true, Some(side)) = (late, side) {
            out = add_broadcast(&out, &side)?;
            unary_in_place(act.as_unary(), out.slice_mut()?);
        }
        let out = narrowed(par, out, plan.dtype)?;
        ctx.set_output(0, out)
    }
}

/// Returns the shape in `layout` of a tensor whose shape with channels last is `dims`.
fn in_layout(layout: Layout, dims: &Shape) -> Shape {
    let last = dims.rank() - 1;
    let spatial = dims[1..last].iter().copied();
    layout
        .shape(dims[0], spatial, dims[last])
        .into_iter()
        .collect()
}

/// The epilogue of a convolution of `T`: fused steps over the channels-last output.
type Finish<T> = fn(&KernelCtx, &Plan, &Conv3dShape, &mut [T]) -> Result<()>;

/// The product of a convolution of `T`: input, filter and output.
type Multiply<T> = fn(&dyn Parallelism, &Conv3dShape, &[T], &[T], &mut [T]);

/// A convolution of a type that few models convolve.
struct PlainConv<T> {
    plan: Plan,
    multiply: Multiply<T>,
    finish: Finish<T>,
}

impl<T: Num> OpKernel for PlainConv<T> {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let (par, layout) = (ctx.par(), self.plan.layout);
        let s = geometry(layout, &self.plan.rules, ctx.shape(0)?, ctx.shape(1)?)?;
        let x = layout.to_last(ctx, ctx.input(0)?.clone())?;
        let mut out = ctx.alloc(T::DTYPE, shape_of(&output_dims(layout, &s))?)?;
        let values = out.slice_mut::<T>()?;
        (self.multiply)(par, &s, x.slice()?, ctx.slice(1)?, values);
        (self.finish)(ctx, &self.plan, &s, values)?;
        let out = layout.restored(ctx, out)?;
        ctx.set_output(0, out)
    }
}

fn finish_double(ctx: &KernelCtx, plan: &Plan, s: &Conv3dShape, out: &mut [f64]) -> Result<()> {
    let (ops, n) = (&plan.fused.ops, s.plane.out_c);
    if ops.bias {
        let bias = ctx.slice::<f64>(2)?;
        if bias.len() != n {
            return Err(invalid_argument!("the bias must have {n} elements"));
        }
        for row in out.chunks_exact_mut(n) {
            row.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
    }
    if ops.side {
        let side = ctx.input(2 + usize::from(ops.bias))?.clone();
        let expected = in_layout(plan.layout, &shape_of(&output_dims(plan.layout, s))?);
        if *side.shape() != expected {
            return Err(invalid_argument!(
                "Incompatible shapes: {expected} vs. {}",
                side.shape()
            ));
        }
        let side = plan.layout.to_last(ctx, side)?;
        let side = side.slice::<f64>()?;
        out.iter_mut().zip(side).for_each(|(o, x)| *o += x);
    }
    if ops.activation != Activation::None {
        let op = ops.activation.as_unary();
        out.iter_mut().for_each(|o| *o = unary_f64(op, *o));
    }
    Ok(())
}

const WINDOW: [&str; 5] = [
    "strides",
    "padding",
    "explicit_paddings",
    "data_format",
    "dilations",
];

/// The three ops of a kind of convolution: output, gradient of the input, of the filter.
struct ConvFamily(&'static str, &'static str, &'static str);

const FULL: ConvFamily = ConvFamily("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter");

const VOLUME: ConvFamily = ConvFamily("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2");

const DEPTHWISE: ConvFamily = ConvFamily(
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
);

fn family(op: &str) -> ConvFamily {
    if op.starts_with("Conv3D") {
        VOLUME
    } else if op.starts_with("Depthwise") {
        DEPTHWISE
    } else {
        FULL
    }
}

fn attrs(g: &GradientCtx) -> Vec<(&'static str, AttrValue)> {
    let given = WINDOW.iter().filter(|name| g.attrs().get(name).is_some());
    given.map(|name| g.attr(name)).collect()
}

fn of_output(g: &mut GradientCtx, family: &ConvFamily) -> Result<()> {
    let (x, filter, d, attrs) = (g.x(0), g.x(1), g.dy(0), attrs(g));
    if g.needs(0) {
        g.set(0, x.make(family.1, &[x.shape_of(), filter, d], &attrs))?;
    }
    if g.needs(1) {
        g.set(1, x.make(family.2, &[x, filter.shape_of(), d], &attrs))?;
    }
    Ok(())
}

fn conv2d_gradient(g: &mut GradientCtx) -> Result<()> {
    of_output(g, &FULL)
}

fn conv3d_gradient(g: &mut GradientCtx) -> Result<()> {
    of_output(g, &VOLUME)
}

pub(crate) fn depthwise_gradient(g: &mut GradientCtx) -> Result<()> {
    of_output(g, &DEPTHWISE)
}

/// Returns the gradient of BackpropInput, which is linear in the filter and in the incoming
/// gradient.
pub(crate) fn of_input_gradient(g: &mut GradientCtx) -> Result<()> {
    let (filter, came, d, attrs): (Expr, Expr, Expr, _) = (g.x(1), g.x(2), g.dy(0), attrs(g));
    let family = family(g.op_name());
    if g.needs(1) {
        g.set(1, d.make(family.2, &[d, filter.shape_of(), came], &attrs))?;
    }
    if g.needs(2) {
        g.set(2, d.make(family.0, &[d, filter], &attrs))?;
    }
    Ok(())
}

/// Returns the gradient of BackpropFilter, which is linear in the input and in the incoming
/// gradient.
pub(crate) fn of_filter_gradient(g: &mut GradientCtx) -> Result<()> {
    let (x, came, d, attrs) = (g.x(0), g.x(2), g.dy(0), attrs(g));
    let family = family(g.op_name());
    if g.needs(0) {
        g.set(0, d.make(family.1, &[x.shape_of(), d, came], &attrs))?;
    }
    if g.needs(2) {
        g.set(2, d.make(family.0, &[x, d], &attrs))?;
    }
    Ok(())
}
