//! Conv2DBackpropInput, Conv2DBackpropFilter, and their 3-D and depthwise forms (TensorFlow:
//! `core/kernels/conv_grad_input_ops.cc` and `conv_grad_filter_ops.cc`). The gradient of the input
//! is a transposed convolution, which networks also use in their forward pass.

use crate::conv::{of_filter_gradient, of_input_gradient};
use crate::conv_filter;
use crate::conv_reference::{each_offset, each_origin, each_pair, geometry, input_pixel, pixel};
use crate::depthwise::{depthwise_geometry, depthwise_rules};
use crate::transposed::TransposedFilter;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::indices;
use ferroflow_functors::numeric::Num;
use ferroflow_functors::window::{Layout, Rules, conv_rules};
use ferroflow_opdef::{Attrs, Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::conv::{Conv3dShape, conv3d_filter_gradient, suits_filter_gradient};
use ferroflow_primitives::depthwise::{filter_gradient_by_channel, suits_small_groups};
use ferroflow_primitives::gemm::{Epilogue, GemmShape, gemm};
use ferroflow_sync::{Inline, Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Conv2DBackpropInput",
        "input_sizes: int32, filter: T, out_backprop: T -> output: T | T: type \
         {half,bfloat16,float,double,int32}; strides: list(int); use_cudnn_on_gpu: \
         bool = true; padding: string {'SAME','VALID','EXPLICIT'}; explicit_paddings: \
         list(int) = []; data_format: string {'NHWC','NCHW'} = 'NHWC'; dilations: \
         list(int) = [1,1,1,1]",
    )
    .shape(shape_input)
    .cost(Cost::Expensive)
    .kernel(|build| build_input(build, conv_rules, ConvKind::Full))
    .gradient(of_input_gradient),
    Op::new(
        "Conv2DBackpropFilter",
        "input: T, filter_sizes: int32, out_backprop: T -> output: T | T: type \
         {half,bfloat16,float,double}; strides: list(int); use_cudnn_on_gpu: bool = \
         true; padding: string {'SAME','VALID','EXPLICIT'}; explicit_paddings: \
         list(int) = []; data_format: string {'NHWC','NCHW'} = 'NHWC'; dilations: \
         list(int) = [1,1,1,1]",
    )
    .shape(shape_filter)
    .cost(Cost::Expensive)
    .kernel(|build| build_filter(build, conv_rules, ConvKind::Full))
    .gradient(of_filter_gradient),
    Op::new(
        "Conv3DBackpropInputV2",
        "input_sizes: Tshape, filter: T, out_backprop: T -> output: T | T: type \
         {half,bfloat16,float,double}; strides: list(int) >= 5; padding: string \
         {'SAME','VALID'}; data_format: string {'NDHWC','NCDHW'} = 'NDHWC'; dilations: \
         list(int) = [1,1,1,1,1]; Tshape: type {int32,int64} = int32",
    )
    .shape(shape_input)
    .cost(Cost::Expensive)
    .kernel(|build| build_input(build, conv_rules, ConvKind::Full))
    .gradient(of_input_gradient),
    Op::new(
        "Conv3DBackpropFilterV2",
        "input: T, filter_sizes: int32, out_backprop: T -> output: T | T: type \
         {half,bfloat16,float,double}; strides: list(int) >= 5; padding: string \
         {'SAME','VALID'}; data_format: string {'NDHWC','NCDHW'} = 'NDHWC'; dilations: \
         list(int) = [1,1,1,1,1]",
    )
    .shape(shape_filter)
    .cost(Cost::Expensive)
    .kernel(|build| build_filter(build, conv_rules, ConvKind::Full))
    .gradient(of_filter_gradient),
    Op::new(
        "DepthwiseConv2dNativeBackpropInput",
        "input_sizes: int32, filter: T, out_backprop: T -> output: T | T: type \
         {half,bfloat16,float,double}; strides: list(int); padding: string \
         {'SAME','VALID','EXPLICIT'}; explicit_paddings: list(int) = []; data_format: \
         string {'NHWC','NCHW'} = 'NHWC'; dilations: list(int) = [1,1,1,1]",
    )
    .shape(shape_input)
    .cost(Cost::Expensive)
    .kernel(|build| build_input(build, depthwise_rules, ConvKind::Depthwise))
    .gradient(of_input_gradient),
    Op::new(
        "DepthwiseConv2dNativeBackpropFilter",
        "input: T, filter_sizes: int32, out_backprop: T -> output: T | T: type \
         {half,bfloat16,float,double}; strides: list(int); padding: string \
         {'SAME','VALID','EXPLICIT'}; explicit_paddings: list(int) = []; data_format: \
         string {'NHWC','NCHW'} = 'NHWC'; dilations: list(int) = [1,1,1,1]",
    )
    .shape(shape_filter)
    .cost(Cost::Expensive)
    .kernel(|build| build_filter(build, depthwise_rules, ConvKind::Depthwise))
    .gradient(of_filter_gradient),
];

/// Returns the shape of a constant vector of sizes.
fn constant_shape(ctx: &ShapeCtx, i: usize, rank: usize) -> Result<Option<Shape>> {
    ctx.with_rank(i, 1)?;
    match ctx.constant_ints(i) {
        Some(sizes) if sizes.len() == rank => Ok(Some(Shape::checked(&sizes)?)),
        _ => Ok(None),
    }
}

fn shape_input(ctx: &mut ShapeCtx) -> Result<()> {
    let layout = Layout::of(ctx.attrs())?;
    let rank = layout.rank();
    let dy = ctx.with_rank(2, rank)?;
    let filter = ctx.with_rank(1, rank)?;
    let shape = match constant_shape(ctx, 0, rank)? {
        Some(shape) => PartialShape::from(&shape),
        // A vector of spatial sizes leaves the other dimensions unknown.
        None => {
            let sizes = ctx.constant_ints(0).filter(|s| s.len() == layout.spatial);
            let spatial: Vec<_> = (0..layout.spatial)
                .map(|i| sizes.as_ref().and_then(|s| usize::try_from(s[i]).ok()))
                .collect();
            let channels = sizes.as_ref().and_then(|_| filter.dim(-2));
            let batch = sizes.as_ref().and_then(|_| dy.dim(0));
            PartialShape::of(layout.shape(batch, spatial, channels))
        }
    };
    ctx.set(0, shape);
    Ok(())
}

fn shape_filter(ctx: &mut ShapeCtx) -> Result<()> {
    let rank = Layout::of(ctx.attrs())?.rank();
    ctx.with_rank(0, rank)?;
    ctx.with_rank(2, rank)?;
    let shape = match constant_shape(ctx, 1, rank)? {
        Some(shape) => PartialShape::from(&shape),
        None => PartialShape::of_rank(rank),
    };
    ctx.set(0, shape);
    Ok(())
}

/// Whether an output channel depends on all input channels (of its group), or on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConvKind {
    Full,
    Depthwise,
}

struct Gradient {
    layout: Layout,
    rules: Rules,
    kind: ConvKind,
    dtype: DType,
    op: String,
    /// A constant filter.
    filter: Option<Tensor>,
    packed: Mutex<Option<Arc<TransposedFilter>>>,
}

impl Gradient {
    fn new(
        build: &KernelBuild,
        rules: fn(&Attrs, Layout) -> Result<Rules>,
        kind: ConvKind,
    ) -> Result<Gradient> {
        let layout = Layout::of(build.attrs)?;
        let dtype = build.output(0)?;
        match dtype {
            DType::Float | DType::Double | DType::Half | DType::Bfloat16 | DType::Int32 => {}
            dtype => return Err(build.unsupported(dtype)),
        }
        Ok(Gradient {
            layout,
            rules: rules(build.attrs, layout)?,
            kind,
            dtype,
            // As TensorFlow's messages have it.
            op: match build.def.name.strip_prefix("Conv3D") {
                Some(_) => format!("{}Op", build.def.name.trim_end_matches("V2")),
                None => build.def.name.to_string(),
            },
            filter: None,
            packed: Mutex::new(None),
        })
    }

    /// Returns the sizes of the convolution whose gradient this is.
    fn geometry(&self, input: &Shape, filter: &Shape, dy: &Shape) -> Result<Conv3dShape> {
        let s = match self.kind {
            ConvKind::Full => geometry(self.layout, &self.rules, input, filter)?,
            ConvKind::Depthwise => depthwise_geometry(self.layout, &self.rules, input, filter)?,
        };
        let (op, rank) = (&self.op, self.layout.rank());
        if dy.rank() != rank {
            return Err(invalid_argument!(
                "{op}: out_backprop must be {rank}-dimensional"
            ));
        }
        if dy[0] != s.plane.batch {
            return Err(invalid_argument!(
                "{op}: input and out_backprop must have the same batch size. Input batch: {}, \
                 outbackprop batch: {}",
                s.plane.batch,
                dy[0]
            ));
        }
        if dy[self.layout.channel()] != s.plane.out_c {
            return Err(invalid_argument!(
                "{op}: filter and out_backprop must have the same out_depth"
            ));
        }
        let p = &s.plane;
        let computed = [
            (s.out_d, s.stride_d, s.dil_d),
            (p.out_h, p.stride_h, p.dil_h),
            (p.out_w, p.stride_w, p.dil_w),
        ];
        for i in 0..self.layout.spatial {
            let at = self.layout.axis(i);
            let (output, stride, dilation) = computed[3 - self.layout.spatial + i];
            if dy[at] != output {
                return Err(invalid_argument!(
                    "{op}: Size of out_backprop doesn't match computed: actual = {}, computed = \
                     {output} spatial_dim: {at} input: {} filter: {} output: {} stride: {stride} \
                     dilation: {dilation}",
                    dy[at],
                    input[at],
                    filter[i],
                    dy[at]
                ));
            }
        }
        Ok(s)
    }

    /// Converts an operand to the layout and dtype that the kernels compute with.
    fn operand(&self, ctx: &KernelCtx, t: &Tensor) -> Result<Tensor> {
        match self.dtype {
            DType::Half | DType::Bfloat16 => widened(ctx.par(), t),
            _ => Ok(t.clone()),
        }
    }

    fn finish(&self, ctx: &mut KernelCtx, out: Tensor) -> Result<()> {
        let out = match self.dtype {
            DType::Half | DType::Bfloat16 => narrowed(ctx.par(), out, self.dtype)?,
            _ => out,
        };
        ctx.set_output(0, out)
    }
}

/// Returns the sizes of the images (input 0) or of the filter (input 1). Refusals have oneDNN's
/// words for the dtypes that it has kernels for.
fn sizes_input(ctx: &KernelCtx, i: usize, k: &Gradient) -> Result<indices::Ints> {
    let (t, dy) = (ctx.input(i)?, ctx.shape(2)?.rank());
    let is_onednn = matches!(k.dtype, DType::Float | DType::Half | DType::Bfloat16);
    let (is_3d, shape) = (k.layout.spatial == 3, t.shape());
    if i == 0 && is_onednn && !matches!(dy, 4 | 5) {
        return Err(invalid_argument!(
            "input_sizes must be 4 or 5-dimensional, got: {dy}"
        ));
    }
    let is_plain = k.kind == ConvKind::Full && !is_3d;
    if i == 0 && is_plain && dy != 4 {
        return Err(invalid_argument!(
            "input_sizes must be 4-dimensional, got: {dy}"
        ));
    }
    let [name, op] = [["input_sizes", "Input"], ["filter_sizes", "Filter"]][i];
    if shape.rank() != 1 {
        let rank = shape.rank();
        return Err(match (is_3d, i) {
            (true, 0) => return indices::shape_vector(t).map(|_| indices::Ints::new()),
            (true, _) => invalid_argument!("{name} shape must be rank 1 but is rank {rank}"),
            (false, 1) if is_onednn => {
                invalid_argument!("filter_tensor must be a vector, got {shape}")
            }
            (false, 1) if is_plain => invalid_argument!(
                "Conv2DCustomBackpropFilter: {name} input must be 1-dim, not {rank}"
            ),
            _ => invalid_argument!("Conv2DBackprop{op}: {name} input must be 1-dim, not {rank}"),
        });
    }
    let sizes = indices::ints(t)?;
    match sizes.iter().position(|&n| n < 0) {
        Some(at) if k.kind == ConvKind::Depthwise && !is_onednn => {
            Err(invalid_argument!("Dimension {at} of {name} must be >= 0"))
        }
        _ => Ok(sizes),
    }
}

struct ByInput(Gradient);

fn build_input(
    build: &KernelBuild,
    rules: fn(&Attrs, Layout) -> Result<Rules>,
    kind: ConvKind,
) -> Result<Box<dyn OpKernel>> {
    let mut gradient = Gradient::new(build, rules, kind)?;
    gradient.filter = build.constant(1).map(|f| f.get()).transpose()?;
    Ok(Box::new(ByInput(gradient)))
}

impl OpKernel for ByInput {
    fn prepacks_input(&self, i: usize) -> bool {
        i == 1 && self.0.filter.is_some()
    }

    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let k = &self.0;
        let (layout, par) = (k.layout, ctx.par());
        let filter = match &k.filter {
            Some(f) => f.clone(),
            None => ctx.input(1)?.clone(),
        };
        let dy = ctx.input(2)?;
        let sizes = sizes_input(ctx, 0, k)?;
        let shape = if sizes.len() == layout.spatial && k.kind == ConvKind::Full {
            if dy.shape().rank() != layout.rank() || filter.shape().rank() != layout.rank() {
                return Err(invalid_argument!(
                    "{}: out_backprop must be {}-dimensional",
                    k.op,
                    layout.rank()
                ));
            }
            let in_c = filter.shape()[layout.rank() - 2] as i64;
            let batch = dy.shape()[0] as i64;
            Shape::checked(&layout.shape(batch, sizes.iter().copied(), in_c))?
        } else {
            Shape::checked(&sizes)?
        };
        let s = k.geometry(&shape, filter.shape(), dy.shape())?;
        let dy = layout.to_last(ctx, k.operand(ctx, dy)?)?;
        let mut dims = shape.to_vec();
        let channels = dims.remove(layout.channel());
        dims.push(channels);
        let filter = k.operand(ctx, &filter)?;
        let mut out = ctx.alloc(dy.dtype(), ferroflow_functors::window::shape(&dims)?)?;
        if out.num_elements() > 0 {
            match dy.dtype() {
                DType::Float => k.by_input_float(par, &s, &filter, &dy, &mut out)?,
                DType::Double if k.kind == ConvKind::Full && s.plane.groups == 1 => {
                    let (filter, dy) = (filter.slice()?, dy.slice()?);
                    by_input_columns(par, &s, filter, dy, out.slice_mut()?);
                }
                DType::Double => by_input::<f64>(par, k.kind, &s, &filter, &dy, &mut out)?,
                _ => by_input::<i32>(par, k.kind, &s, &filter, &dy, &mut out)?,
            }
        }
        let out = layout.restored(ctx, out)?;
        k.finish(ctx, out)
    }
}

impl Gradient {
    fn by_input_float(
        &self,
        par: &dyn Parallelism,
        s: &Conv3dShape,
        filter: &Tensor,
        dy: &Tensor,
        out: &mut Tensor,
    ) -> Result<()> {
        // A depthwise filter is laid out as one with a group for each input channel.
        if dy.num_elements() > 0 {
            let kept = |slot: &Option<Arc<TransposedFilter>>| {
                slot.as_ref().filter(|p| p.serves(s)).cloned()
            };
            let mut packed = kept(&self.packed.lock().unwrap_or_else(PoisonError::into_inner));
            if packed.is_none() {
                let pack = match self.filter {
                    Some(_) => TransposedFilter::new,
                    None => TransposedFilter::for_one_use,
                };
                packed = pack(par, filter.slice()?, s).map(Arc::new);
                if self.filter.is_some() {
                    let mut slot = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
                    *slot = packed.clone();
                }
            }
            if let Some(packed) = packed {
                packed.run(par, s, dy.slice()?, out.slice_mut()?);
                return Ok(());
            }
        }
        by_input::<f32>(par, self.kind, s, filter, dy, out)
    }
}

fn by_input<T: Num>(
    par: &dyn Parallelism,
    kind: ConvKind,
    s: &Conv3dShape,
    filter: &Tensor,
    dy: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    let (filter, dy) = (filter.slice::<T>()?, dy.slice::<T>()?);
    let (in_c, out_c, groups) = (s.plane.in_c, s.plane.out_c, s.plane.groups);
    let dot = |a: &[T], b: &[T]| {
        a.iter()
            .zip(b)
            .fold(T::ZERO, |sum, (a, b)| sum.add(a.mul(*b)))
    };
    par_chunks_mut(par, out.slice_mut::<T>()?, in_c, 8, &|i, out| {
        out.fill(T::ZERO);
        each_origin(s, input_pixel(s, i), |tap, to| {
            let dy = &dy[to * out_c..][..out_c];
            if kind == ConvKind::Depthwise {
                let m = out_c / in_c;
                let filter = &filter[tap * out_c..][..out_c];
                if m == 1 {
                    for ((o, d), f) in out.iter_mut().zip(dy).zip(filter) {
                        *o = o.add(d.mul(*f));
                    }
                    return;
                }
                for (c, o) in out.iter_mut().enumerate() {
                    *o = o.add(dot(&dy[c * m..][..m], &filter[c * m..][..m]));
                }
                return;
            }
            let (per_in, per_out) = (in_c / groups, out_c / groups);
            for (c, o) in out.iter_mut().enumerate() {
                let (g, i) = (c / per_in, c % per_in);
                let row = &filter[(tap * per_in + i) * out_c + g * per_out..][..per_out];
                *o = o.add(dot(&dy[g * per_out..][..per_out], row));
            }
        });
    });
    Ok(())
}

/// Output pixels whose products are computed together.
const PIXELS: usize = 128;

/// The gradient by the input as a product of the output's gradient and the filter, whose columns are added to the
/// pixels that they come from.
fn by_input_columns(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    filter: &[f64],
    dy: &[f64],
    out: &mut [f64],
) {
    let p = &s.plane;
    let (in_image, pixels) = (
        s.in_d * p.in_h * p.in_w * p.in_c,
        s.out_d * p.out_h * p.out_w,
    );
    let k = s.filter_d * p.filter_h * p.filter_w * p.in_c;
    par_chunks_mut(par, out, in_image, 1, &|n, out| {
        out.fill(0.0);
        let mut columns = vec![0.0; PIXELS.min(pixels) * k];
        for first in (0..pixels).step_by(PIXELS) {
            let m = PIXELS.min(pixels - first);
            let at = n * pixels + first;
            let shape = GemmShape::dense(m, k, p.out_c, false, true);
            let dy = &dy[at * p.out_c..][..m * p.out_c];
            gemm(
                &Inline,
                &shape,
                dy,
                filter,
                &mut columns[..m * k],
                &Epilogue::none(),
            );
            for (i, columns) in columns.chunks_exact(k).take(m).enumerate() {
                each_offset(s, pixel(s, at + i), |tap, to| {
                    let column = &columns[tap * p.in_c..][..p.in_c];
                    let to = &mut out[to * p.in_c - n * in_image..][..p.in_c];
                    to.iter_mut().zip(column).for_each(|(o, c)| *o += c);
                });
            }
        }
    });
}

struct ByFilter(Gradient);

fn build_filter(
    build: &KernelBuild,
    rules: fn(&Attrs, Layout) -> Result<Rules>,
    kind: ConvKind,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(ByFilter(Gradient::new(build, rules, kind)?)))
}

impl OpKernel for ByFilter {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let k = &self.0;
        let par = ctx.par();
        let (x, dy) = (ctx.input(0)?, ctx.input(2)?);
        let filter = Shape::checked(&sizes_input(ctx, 1, k)?)?;
        let s = k.geometry(x.shape(), &filter, dy.shape())?;
        let x = k.layout.to_last(ctx, k.operand(ctx, x)?)?;
        let dy = k.layout.to_last(ctx, k.operand(ctx, dy)?)?;
        let mut out = ctx.alloc(dy.dtype(), filter)?;
        match dy.dtype() {
            DType::Float if suits_small_groups(&s) => {
                filter_gradient_by_channel(par, &s, x.slice()?, dy.slice()?, out.slice_mut()?);
            }
            DType::Float if s.plane.groups == 1 => {
                conv_filter::by_filter(par, &s, x.slice()?, dy.slice()?, out.slice_mut()?);
            }
            DType::Float if suits_filter_gradient(&s) => {
                conv3d_filter_gradient::<f32>(par, &s, x.slice()?, dy.slice()?, out.slice_mut()?);
            }
            DType::Double if k.kind == ConvKind::Full && suits_filter_gradient(&s) => {
                conv3d_filter_gradient::<f64>(par, &s, x.slice()?, dy.slice()?, out.slice_mut()?);
            }
            DType::Float => by_filter::<f32>(par, k.kind, &s, &x, &dy, &mut out)?,
            DType::Double => by_filter::<f64>(par, k.kind, &s, &x, &dy, &mut out)?,
            _ => by_filter::<i32>(par, k.kind, &s, &x, &dy, &mut out)?,
        }
        k.finish(ctx, out)
    }
}

fn by_filter<T: Num>(
    par: &dyn Parallelism,
    kind: ConvKind,
    s: &Conv3dShape,
    x: &Tensor,
    dy: &Tensor,
    out: &mut Tensor,
) -> Result<()> {
    let (x, dy) = (x.slice::<T>()?, dy.slice::<T>()?);
    let (in_c, out_c, groups) = (s.plane.in_c, s.plane.out_c, s.plane.groups);
    if kind == ConvKind::Depthwise {
        // One filter pixel at a time, with all of its channels contiguous.
        let m = out_c / in_c.max(1);
        par_chunks_mut(par, out.slice_mut::<T>()?, out_c, 1, &|tap, out| {
            out.fill(T::ZERO);
            each_pair(s, tap, |from, to| {
                let (x, dy) = (&x[from * in_c..][..in_c], &dy[to * out_c..][..out_c]);
                if m == 1 {
                    for ((o, x), d) in out.iter_mut().zip(x).zip(dy) {
                        *o = o.add(x.mul(*d));
                    }
                    return;
                }
                let rows = out.chunks_exact_mut(m).zip(dy.chunks_exact(m));
                for ((out, dy), x) in rows.zip(x) {
                    for (o, d) in out.iter_mut().zip(dy) {
                        *o = o.add(x.mul(*d));
                    }
                }
            });
        });
        return Ok(());
    }
    // Rows of a filter pixel.
    let rows = in_c / groups.max(1);
    par_chunks_mut(par, out.slice_mut::<T>()?, out_c, 1, &|i, out| {
        let (tap, row) = (i / rows, i % rows);
        out.fill(T::ZERO);
        each_pair(s, tap, |from, to| {
            let (x, dy) = (&x[from * in_c..][..in_c], &dy[to * out_c..][..out_c]);
            let per_out = out_c / groups;
            for (g, (out, dy)) in out
                .chunks_exact_mut(per_out)
                .zip(dy.chunks_exact(per_out))
                .enumerate()
            {
                let x = x[g * rows + row];
                for (o, d) in out.iter_mut().zip(dy) {
                    *o = o.add(x.mul(*d));
                }
            }
        });
    });
    Ok(())
}
