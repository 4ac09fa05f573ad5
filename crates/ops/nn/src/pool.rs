//! Max and average pooling (TensorFlow: `core/kernels/maxpooling_op.cc`, `avgpooling_op.cc` and
//! `pooling_ops_3d.cc`).

use crate::conv_reference::{self, Offsets, each_offset, offsets_of, output_dims, pixel};
use crate::wide::{self, dispatch_wide};
use ferroflow_base::{Code, Result, invalid_argument, unimplemented_error};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::indices;
use ferroflow_functors::numeric::Ordered;
use ferroflow_functors::window::{
    Layout, Pad, Placed, Rule, Rules, ints32, pads, shape as shape_of,
};
use ferroflow_opdef::{Attrs, Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::conv::Conv3dShape;
use ferroflow_primitives::pool::{PoolAxis, PoolKind, pool3d};
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor, dispatch};
use smallvec::SmallVec;

/// The attr of a max pool whose results are NaN where elements are, as in StableHLO.
const OR_NAN: &str = "_or_nan";

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MaxPool",
        "input: T -> output: T | T: type \
         {half,bfloat16,float,double,int32,int64,uint8,int16,int8,uint16,qint8} = \
         float; ksize: list(int) >= 4; strides: list(int) >= 4; padding: string \
         {'SAME','VALID','EXPLICIT'}; explicit_paddings: list(int) = []; data_format: \
         string {'NHWC','NCHW','NCHW_VECT_C'} = 'NHWC'",
    )
    .shape(shape_max)
    .cost(Cost::Expensive)
    .kernel(|build| build_pool(build, PoolKind::Max))
    .gradient(max_pool_gradient),
    Op::new(
        "MaxPoolV2",
        "input: T, ksize: int32, strides: int32 -> output: T | T: type \
         {half,bfloat16,float,double,int32,int64,uint8,int16,int8,uint16,qint8} = \
         float; padding: string {'SAME','VALID'}; data_format: string \
         {'NHWC','NCHW','NCHW_VECT_C'} = 'NHWC'",
    )
    .shape(shape_v2)
    .cost(Cost::Expensive)
    .kernel(|build| build_pool(build, PoolKind::Max))
    .gradient(max_pool_v2_gradient),
    Op::new(
        "AvgPool",
        "value: T -> output: T | ksize: list(int) >= 4; strides: list(int) >= 4; \
         padding: string {'SAME','VALID'}; data_format: string {'NHWC','NCHW'} = \
         'NHWC'; T: type {half,bfloat16,float,double}",
    )
    .shape(shape_average)
    .cost(Cost::Expensive)
    .kernel(|build| build_pool(build, PoolKind::Average))
    .gradient(average_pool_gradient),
    Op::new(
        "MaxPool3D",
        "input: T -> output: T | ksize: list(int) >= 5; strides: list(int) >= 5; \
         padding: string {'SAME','VALID'}; data_format: string {'NDHWC','NCDHW'} = \
         'NDHWC'; T: type {half,bfloat16,float}",
    )
    .shape(shape_max)
    .cost(Cost::Expensive)
    .kernel(|build| build_pool(build, PoolKind::Max))
    .gradient(max_pool_gradient),
    Op::new(
        "AvgPool3D",
        "input: T -> output: T | ksize: list(int) >= 5; strides: list(int) >= 5; \
         padding: string {'SAME','VALID'}; data_format: string {'NDHWC','NCDHW'} = \
         'NDHWC'; T: type {half,bfloat16,float,double}",
    )
    .shape(shape_average)
    .cost(Cost::Expensive)
    .kernel(|build| build_pool(build, PoolKind::Average))
    .gradient(average_pool_gradient),
    Op::new(
        "MaxPoolWithArgmax",
        "input: T -> output: T, argmax: Targmax | ksize: list(int) >= 4; strides: \
         list(int) >= 4; Targmax: type {int32,int64} = int64; padding: string \
         {'SAME','VALID'}; include_batch_in_index: bool = false; T: realnumbertype",
    )
    .shape(|ctx| {
        shape_max(ctx)?;
        shape_of_argmax(ctx)
    })
    .cost(Cost::Expensive)
    .kernel(build_argmax)
    .gradient(argmax_gradient),
];

/// The windows of a pooling.
#[derive(Clone, Debug)]
pub(crate) struct PoolSpec {
    pub layout: Layout,
    pub windows: SmallVec<[usize; 3]>,
    pub rules: Rules,
    /// Channels pooled into one; 1 except for depthwise max pooling.
    depth: usize,
}

impl PoolSpec {
    /// Returns the windows of the attrs.
    pub fn of(attrs: &Attrs, kind: PoolKind) -> Result<PoolSpec> {
        let ksize = ints32(attrs, "ksize")?;
        let strides = ints32(attrs, "strides")?;
        PoolSpec::new(attrs, kind, &ksize, &strides)
    }

    pub fn new(attrs: &Attrs, kind: PoolKind, ksize: &[i64], strides: &[i64]) -> Result<PoolSpec> {
        let layout = Layout::of(attrs)?;
        let layout = if ksize.len() == 5 && attrs.get("data_format").is_none() {
            Layout {
                spatial: 3,
                ..layout
            }
        } else {
            layout
        };
        let rank = layout.rank();
        for (values, name) in [(ksize, "ksize"), (strides, "stride")] {
            if values.len() != rank {
                return Err(invalid_argument!(
                    "Sliding window {name} field must specify {rank} dimensions"
                ));
            }
            if let Some(v) = values.iter().find(|&&v| v <= 0) {
                return Err(invalid_argument!(
                    "Sliding window {name} must be positive, got {v}"
                ));
            }
        }
        if ksize[0] != 1 || strides[0] != 1 {
            return Err(unimplemented_error!(
                "Pooling is not yet supported on the batch dimension."
            ));
        }
        let pads: SmallVec<[Pad; 3]> = pads(attrs, layout)?;
        let axes = || (0..layout.spatial).map(|i| layout.axis(i));
        let (depth, depth_stride) = (ksize[layout.channel()], strides[layout.channel()]);
        if (depth, depth_stride) != (1, 1) {
            if kind == PoolKind::Average || layout.spatial == 3 {
                return Err(unimplemented_error!(
                    "Non-spatial pooling is not yet supported. Volunteers? :)"
                ));
            }
            if depth > 1 && axes().any(|i| ksize[i] != 1) {
                return Err(unimplemented_error!(
                    "MaxPooling supports exactly one of pooling across depth or pooling across \
                     width/height."
                ));
            }
            if depth != depth_stride {
                return Err(unimplemented_error!(
                    "Depthwise max pooling requires the depth window to equal the depth stride"
                ));
            }
        }
        Ok(PoolSpec {
            layout,
            windows: axes().map(|i| ksize[i] as usize).collect(),
            rules: axes()
                .zip(pads)
                .map(|(i, pad)| Rule {
                    stride: strides[i],
                    dilation: 1,
                    pad,
                })
                .collect(),
            depth: depth as usize,
        })
    }

    /// Returns the windows over an input, as a convolution; for depthwise pooling only the output's
    /// size is valid.
    pub fn place(&self, input: &Shape) -> Result<Conv3dShape> {
        if input.rank() != self.layout.rank() {
            return Err(invalid_argument!(
                "tensor_in_shape must have {} spatial dimensions. {} {}",
                self.layout.spatial,
                input.rank(),
                input.rank().saturating_sub(3)
            ));
        }
        let mut axes = [Placed::ONE; 3];
        for (i, axis) in axes[3 - self.layout.spatial..].iter_mut().enumerate() {
            *axis = self.rules[i].place(input[self.layout.axis(i)], self.windows[i])?;
        }
        let in_c = input[self.layout.channel()];
        if !in_c.is_multiple_of(self.depth) {
            return Err(unimplemented_error!(
                "Depthwise max pooling requires the depth window to evenly divide the input depth."
            ));
        }
        Ok(conv_reference::sizes(
            input[0],
            axes,
            [in_c, in_c / self.depth, 1],
        ))
    }

    fn shape(&self, ctx: &mut ShapeCtx) -> Result<()> {
        let input = ctx.with_rank(0, self.layout.rank())?;
        let spatial = (0..self.layout.spatial)
            .map(|i| {
                let n = input.dim(self.layout.axis(i) as isize);
                self.rules[i].output(n, Some(self.windows[i]))
            })
            .collect::<Result<Vec<_>>>()?;
        let channels = input.dim(self.layout.channel() as isize);
        let channels = channels.map(|c| c / self.depth);
        let dims = self.layout.shape(input.dim(0), spatial, channels);
        ctx.set(0, PartialShape::of(dims));
        Ok(())
    }
}

pub(crate) fn shape_max(ctx: &mut ShapeCtx) -> Result<()> {
    match PoolSpec::of(ctx.attrs(), PoolKind::Max) {
        // Such a node may be in a graph; running it is an error.
        Err(e) if e.code() == Code::Unimplemented => {
            ctx.set(0, PartialShape::of_rank(ctx.input(0).rank().unwrap_or(4)));
            Ok(())
        }
        spec => spec?.shape(ctx),
    }
}

pub(crate) fn shape_average(ctx: &mut ShapeCtx) -> Result<()> {
    PoolSpec::of(ctx.attrs(), PoolKind::Average)?.shape(ctx)
}

fn shape_v2(ctx: &mut ShapeCtx) -> Result<()> {
    let layout = Layout::of(ctx.attrs())?;
    ctx.with_rank(0, layout.rank())?;
    match (ctx.constant_ints(1), ctx.constant_ints(2)) {
        (Some(k), Some(s)) => PoolSpec::new(ctx.attrs(), PoolKind::Max, &k, &s)?.shape(ctx),
        _ => {
            ctx.set(0, PartialShape::of_rank(layout.rank()));
            Ok(())
        }
    }
}

fn shape_of_argmax(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    let spec = PoolSpec::of(ctx.attrs(), PoolKind::Max)?;
    let dims = (0..4).map(|i| match i {
        1 | 2 => spec.rules[i - 1].output(input.dim(i as isize), Some(spec.windows[i - 1])),
        _ => Ok(input.dim(i as isize)),
    });
    let dims = dims.collect::<Result<Vec<_>>>()?;
    ctx.set(1, PartialShape::of(dims));
    Ok(())
}

/// Runs a pooling op of one dtype.
type Run =
    fn(&dyn Parallelism, PoolKind, &PoolSpec, &Conv3dShape, &Tensor, &mut Tensor) -> Result<()>;

struct Pool {
    kind: PoolKind,
    /// `None` if window and strides are inputs.
    spec: Option<PoolSpec>,
    attrs: Attrs,
    dtype: DType,
    run: Run,
}

fn build_pool(build: &KernelBuild, kind: PoolKind) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    let kind = match kind {
        PoolKind::Max if build.attrs.bool(OR_NAN).unwrap_or(false) => PoolKind::MaxOrNan,
        kind => kind,
    };
    let run: Run = match (dtype, kind) {
        (DType::Float | DType::Half | DType::Bfloat16, _) => run_float,
        (DType::Double, PoolKind::Average) => run_average,
        (_, PoolKind::Max | PoolKind::MaxOrNan) => {
            dispatch!(dtype, T in [f64, i8, i16, i32, i64, u8, u16] =>
            run_max::<T>,
            else return Err(build.unsupported(dtype)))
        }
        _ => return Err(build.unsupported(dtype)),
    };
    let from_inputs = build.inputs.len() > 1;
    Ok(Box::new(Pool {
        kind,
        spec: if from_inputs {
            None
        } else {
            Some(PoolSpec::of(build.attrs, kind)?)
        },
        attrs: if from_inputs {
            build.attrs.clone()
        } else {
            Attrs::default()
        },
        dtype,
        run,
    }))
}

impl OpKernel for Pool {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let own;
        let spec = match &self.spec {
            Some(spec) => spec,
            None => {
                let (k, s) = (indices::ints(ctx.input(1)?)?, indices::ints(ctx.input(2)?)?);
                own = PoolSpec::new(&self.attrs, self.kind, &k, &s)?;
                &own
            }
        };
        let shape = ctx.shape(0)?;
        if matches!(self.dtype, DType::Float | DType::Half | DType::Bfloat16)
            && shape.rank() != spec.layout.rank()
        {
            return Err(invalid_argument!("Input must be 4 or 5-dimensional"));
        }
        let s = spec.place(shape)?;
        let wide = matches!(self.dtype, DType::Half | DType::Bfloat16);
        let x = match wide {
            true => widened(ctx.par(), ctx.input(0)?)?,
            false => ctx.input(0)?.clone(),
        };
        let x = spec.layout.to_last(ctx, x)?;
        let mut out = ctx.alloc(x.dtype(), shape_of(&output_dims(spec.layout, &s))?)?;
        if out.num_elements() > 0 {
            (self.run)(ctx.par(), self.kind, spec, &s, &x, &mut out)?;
        }
        let mut out = spec.layout.restored(ctx, out)?;
        if wide {
            out = narrowed(ctx.par(), out, self.dtype)?;
        }
        ctx.set_output(0, out)
    }
}

fn run_float(
    par: &dyn Parallelism,
    kind: PoolKind,
    spec: &PoolSpec,
    s: &Conv3dShape,
    x: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    if spec.depth > 1 {
        return run_max::<f32>(par, kind, spec, s, x, out);
    }
    let axis = |input, output, window, stride, pad| PoolAxis {
        input,
        output,
        window,
        stride,
        pad,
    };
    let p = &s.plane;
    let axes = [
        axis(s.in_d, s.out_d, s.filter_d, s.stride_d, s.pad_front),
        axis(p.in_h, p.out_h, p.filter_h, p.stride_h, p.pad_top),
        axis(p.in_w, p.out_w, p.filter_w, p.stride_w, p.pad_left),
    ];
    pool3d(
        par,
        kind,
        p.batch,
        axes,
        p.in_c,
        x.slice()?,
        out.slice_mut()?,
    );
    Ok(())
}

fn run_average(
    par: &dyn Parallelism,
    _: PoolKind,
    _: &PoolSpec,
    s: &Conv3dShape,
    x: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    let (x, c) = (x.slice::<f64>()?, s.plane.in_c);
    par_chunks_mut(par, out.slice_mut::<f64>()?, c, 64, &|i, out| {
        out.fill(0.0);
        let mut n = 0usize;
        each_offset(s, pixel(s, i), |_, from| {
            n += 1;
            let pixel = &x[from * c..][..c];
            out.iter_mut().zip(pixel).for_each(|(o, x)| *o += x);
        });
        out.iter_mut().for_each(|o| *o /= n.max(1) as f64);
    });
    Ok(())
}

pub(crate) fn run_max<T: Ordered>(
    par: &dyn Parallelism,
    _: PoolKind,
    spec: &PoolSpec,
    s: &Conv3dShape,
    x: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    let (x, c, depth) = (x.slice::<T>()?, s.plane.in_c, spec.depth);
    par_chunks_mut(par, out.slice_mut::<T>()?, s.plane.out_c, 64, &|i, out| {
        out.fill(T::LOWEST);
        each_offset(s, pixel(s, i), |_, from| {
            let pixel = &x[from * c..][..c];
            if depth == 1 {
                out.iter_mut()
                    .zip(pixel)
                    .for_each(|(o, x)| *o = x.larger(*o));
            } else {
                for (o, pixel) in out.iter_mut().zip(pixel.chunks_exact(depth)) {
                    *o = pixel.iter().fold(*o, |a, b| b.larger(a));
                }
            }
        });
    });
    Ok(())
}

struct Argmax {
    spec: PoolSpec,
    with_batch: bool,
    index: DType,
}

fn build_argmax(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    if !wide::is_real(dtype) {
        return Err(build.unsupported(dtype));
    }
    let spec = PoolSpec::of(build.attrs, PoolKind::Max)?;
    if spec.depth > 1 {
        return Err(unimplemented_error!(
            "Depthwise max pooling is not supported by MaxPoolWithArgmax"
        ));
    }
    Ok(Box::new(Argmax {
        spec,
        with_batch: build.attrs.bool("include_batch_in_index")?,
        index: build.output(1)?,
    }))
}

impl OpKernel for Argmax {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        if ctx.shape(0)?.rank() != 4 {
            return Err(invalid_argument!("tensor_in must be 4-dimensional (2)"));
        }
        let s = self.spec.place(ctx.shape(0)?)?;
        let dims = shape_of(&output_dims(self.spec.layout, &s))?;
        let mut at = ctx.alloc(DType::Int64, dims.clone())?;
        let dtype = ctx.input(0)?.dtype();
        let x = wide::widened(ctx.par(), ctx.input(0)?)?;
        let positions = at.slice_mut::<i64>()?;
        let out = dispatch_wide!(x.dtype(), T => {
            let x = x.slice::<T>()?;
            find_largest(ctx.par(), &s, x, positions);
            let mut out = ctx.alloc(T::DTYPE, dims.clone())?;
            for (o, &k) in out.slice_mut::<T>()?.iter_mut().zip(&*positions) {
                *o = if k < 0 { T::default() } else { x[k as usize] };
            }
            out
        }, else return Err(invalid_argument!("pooling of {dtype} is not supported")));
        let out = wide::narrowed(ctx.par(), out, dtype)?;
        let per_image = (s.plane.in_h * s.plane.in_w * s.plane.in_c).max(1) as i64;
        let local = |k: i64| match k < 0 || self.with_batch {
            true => k.max(0),
            false => k % per_image,
        };
        let index = if self.index == DType::Int32 {
            let mut index = ctx.alloc(DType::Int32, dims)?;
            for (o, &k) in index.slice_mut::<i32>()?.iter_mut().zip(&*positions) {
                *o = local(k) as i32;
            }
            index
        } else {
            positions.iter_mut().for_each(|k| *k = local(*k));
            at
        };
        ctx.set_output(0, out)?;
        ctx.set_output(1, index)
    }
}

/// Sets `at` to the positions of maxima in the whole input; -1 where a window is empty.
fn find_largest<T: Element + PartialOrd>(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    x: &[T],
    at: &mut [i64],
) {
    let c = s.plane.in_c;
    par_chunks_mut(par, at, c, 64, &|i, at| {
        at.fill(-1);
        let mut window = Offsets::new();
        offsets_of(s, i, &mut window);
        for (_, from) in window {
            for (j, best) in at.iter_mut().enumerate() {
                let k = from * c + j;
                if *best < 0 || x[k] > x[*best as usize] {
                    *best = k as i64;
                }
            }
        }
    });
}

/// Returns the attrs of the op's window.
pub(crate) fn window(g: &GradientCtx) -> Vec<(&'static str, ferroflow_opdef::AttrValue)> {
    let names = [
        "ksize",
        "strides",
        "padding",
        "explicit_paddings",
        "data_format",
    ];
    let given = names
        .into_iter()
        .filter(|name| g.attrs().get(name).is_some());
    given.map(|name| g.attr(name)).collect()
}

fn max_pool_gradient(g: &mut GradientCtx) -> Result<()> {
    let op = format!("{}Grad", g.op_name());
    let dx = g.x(0).op_with(&op, &[g.y(0), g.dy(0)], &window(g));
    g.set(0, dx)
}

fn max_pool_v2_gradient(g: &mut GradientCtx) -> Result<()> {
    let rest = [g.y(0), g.dy(0), g.x(1), g.x(2)];
    let dx = g.x(0).op_with("MaxPoolGradV2", &rest, &window(g));
    g.set(0, dx)
}

fn average_pool_gradient(g: &mut GradientCtx) -> Result<()> {
    let op = format!("{}Grad", g.op_name());
    let dx = g.x(0).shape_of().op_with(&op, &[g.dy(0)], &window(g));
    g.set(0, dx)
}

fn argmax_gradient(g: &mut GradientCtx) -> Result<()> {
    let mut attrs = window(g);
    attrs.push(g.attr("include_batch_in_index"));
    let dx = g
        .x(0)
        .op_with("MaxPoolGradWithArgmax", &[g.dy(0), g.y(1)], &attrs);
    g.set(0, dx)
}
