//! Gradients of pooling: the maximum gets the whole gradient, an average distributes it
//! (TensorFlow: `core/kernels/maxpooling_op.cc`, `avgpooling_op.cc` and `pooling_ops_3d.cc`).

use crate::conv_reference::{each_window, output_dims};
use crate::pool::{PoolSpec, window};
use crate::wide::{self, dispatch_wide};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::indices::{self, Index};
use ferroflow_functors::numeric::Ordered;
use ferroflow_functors::window::{Layout, shape as shape_of};
use ferroflow_opdef::{Attrs, Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::conv::Conv3dShape;
use ferroflow_primitives::pool::PoolKind;
use ferroflow_primitives::vectorized;
use ferroflow_sync::{Parallelism, par_chunks_mut};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};
use largest::{Image, TOGETHER};
use overlap::Overlap;

mod largest;
mod overlap;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MaxPoolGrad",
        "orig_input: T, orig_output: T, grad: T -> output: T | ksize: list(int) >= 4; \
         strides: list(int) >= 4; padding: string {'SAME','VALID','EXPLICIT'}; \
         explicit_paddings: list(int) = []; data_format: string {'NHWC','NCHW'} = \
         'NHWC'; T: realnumbertype = float",
    )
    .shape(like_input)
    .cost(Cost::Expensive)
    .kernel(|build| max_grad(build, Order::First))
    .gradient(max_grad_gradient),
    Op::new(
        "MaxPoolGradV2",
        "orig_input: T, orig_output: T, grad: T, ksize: int32, strides: int32 -> \
         output: T | padding: string {'SAME','VALID'}; data_format: string \
         {'NHWC','NCHW'} = 'NHWC'; T: realnumbertype = float",
    )
    .shape(like_input)
    .cost(Cost::Expensive)
    .kernel(|build| max_grad(build, Order::First))
    .gradient(max_grad_gradient),
    Op::new(
        "MaxPoolGradGrad",
        "orig_input: T, orig_output: T, grad: T -> output: T | ksize: list(int) >= 4; \
         strides: list(int) >= 4; padding: string {'SAME','VALID'}; data_format: \
         string {'NHWC','NCHW'} = 'NHWC'; T: realnumbertype",
    )
    .shape(like_output)
    .cost(Cost::Expensive)
    .kernel(|build| max_grad(build, Order::Second))
    .gradient(max_grad_grad_gradient),
    Op::new(
        "MaxPoolGradGradV2",
        "orig_input: T, orig_output: T, grad: T, ksize: int32, strides: int32 -> \
         output: T | padding: string {'SAME','VALID'}; data_format: string \
         {'NHWC','NCHW'} = 'NHWC'; T: realnumbertype",
    )
    .shape(like_output)
    .cost(Cost::Expensive)
    .kernel(|build| max_grad(build, Order::Second)),
    Op::new(
        "MaxPool3DGrad",
        "orig_input: TInput, orig_output: TInput, grad: T -> output: T | ksize: \
         list(int) >= 5; strides: list(int) >= 5; padding: string {'SAME','VALID'}; \
         data_format: string {'NDHWC','NCDHW'} = 'NDHWC'; T: type \
         {half,bfloat16,float} = float; TInput: type {half,bfloat16,float} = float",
    )
    .shape(like_input)
    .cost(Cost::Expensive)
    .kernel(|build| max_grad(build, Order::First))
    .gradient(max_grad_gradient),
    Op::new(
        "MaxPool3DGradGrad",
        "orig_input: T, orig_output: T, grad: T -> output: T | ksize: list(int) >= 5; \
         strides: list(int) >= 5; padding: string {'SAME','VALID'}; data_format: \
         string {'NDHWC','NCDHW'} = 'NDHWC'; T: realnumbertype",
    )
    .shape(like_output)
    .cost(Cost::Expensive)
    .kernel(|build| max_grad(build, Order::Second))
    .gradient(max_grad_grad_gradient),
    Op::new(
        "MaxPoolGradWithArgmax",
        "input: T, grad: T, argmax: Targmax -> output: T | ksize: list(int) >= 4; \
         strides: list(int) >= 4; padding: string {'SAME','VALID'}; \
         include_batch_in_index: bool = false; Targmax: type {int32,int64}; T: \
         realnumbertype",
    )
    .shape(|ctx| {
        let input = ctx.with_rank(0, 4)?;
        ctx.set(0, input);
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(argmax_grad),
    Op::new(
        "AvgPoolGrad",
        "orig_input_shape: int32, grad: T -> output: T | ksize: list(int) >= 4; \
         strides: list(int) >= 4; padding: string {'SAME','VALID'}; data_format: \
         string {'NHWC','NCHW'} = 'NHWC'; T: type {half,bfloat16,float,double}",
    )
    .shape(average_shape)
    .cost(Cost::Expensive)
    .kernel(average_grad)
    .gradient(average_grad_gradient),
    Op::new(
        "AvgPool3DGrad",
        "orig_input_shape: int32, grad: T -> output: T | ksize: list(int) >= 5; \
         strides: list(int) >= 5; padding: string {'SAME','VALID'}; data_format: \
         string {'NDHWC','NCDHW'} = 'NDHWC'; T: type {half,bfloat16,float,double}",
    )
    .shape(average_shape)
    .cost(Cost::Expensive)
    .kernel(average_grad)
    .gradient(average_grad_gradient),
];

fn like_input(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = ctx.with_rank(0, Layout::of(ctx.attrs())?.rank())?;
    ctx.set(0, shape);
    Ok(())
}

fn like_output(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = ctx.with_rank(1, Layout::of(ctx.attrs())?.rank())?;
    ctx.set(0, shape);
    Ok(())
}

fn average_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let rank = Layout::of(ctx.attrs())?.rank();
    let shape = match ctx.constant_ints(0) {
        Some(sizes) if sizes.len() == rank => (&Shape::checked(&sizes)?).into(),
        _ => PartialShape::of_rank(rank),
    };
    ctx.set(0, shape);
    Ok(())
}

/// Whether the position of the maximum gets the gradient of its window, or is read from (for second
/// derivatives).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    First,
    Second,
}

/// Returns the windows over `input`, whose pooling must have the shape `output`.
fn placed(spec: &PoolSpec, input: &Shape, output: &Shape) -> Result<Conv3dShape> {
    let s = spec.place(input)?;
    if s.plane.out_c != s.plane.in_c {
        return Err(unimplemented_error!(
            "Depthwise max pooling has no gradient on the CPU"
        ));
    }
    let dims = shape_of(&output_dims(spec.layout, &s))?;
    let mut expected = dims.to_vec();
    if !spec.layout.channels_last
        && let Some(channels) = expected.pop()
    {
        expected.insert(1, channels);
    }
    if output.dims() != expected {
        return Err(invalid_argument!(
            "Expected orig_output and grad of shape {}, got {output}",
            shape_of(&expected)?
        ));
    }
    Ok(s)
}

/// Returns the number of elements of one image of the input and of the output.
fn image_sizes(s: &Conv3dShape) -> (usize, usize) {
    let (p, c) = (&s.plane, s.plane.in_c);
    // Without images their size is arbitrary.
    let size = |dims: [usize; 4]| dims.into_iter().fold(1, usize::saturating_mul);
    (
        size([s.in_d, p.in_h, p.in_w, c]),
        size([s.out_d, p.out_h, p.out_w, c]),
    )
}

/// Returns whether windows do not overlap, and whether they cover all pixels.
fn windows(s: &Conv3dShape) -> (bool, bool) {
    let p = &s.plane;
    let axes = [
        [s.filter_d, s.stride_d, s.in_d + s.pad_front, s.out_d],
        [p.filter_h, p.stride_h, p.in_h + p.pad_top, p.out_h],
        [p.filter_w, p.stride_w, p.in_w + p.pad_left, p.out_w],
    ];
    let disjoint = axes.iter().all(|[window, stride, ..]| window <= stride);
    let covering = axes.iter().all(|[window, stride, input, output]| {
        window >= stride && output.saturating_mul(*stride) >= *input
    });
    (disjoint, covering)
}

struct MaxGrad {
    order: Order,
    /// The number of dimensions of all tensors.
    rank: usize,
    /// `None` if window and strides are inputs.
    spec: Option<PoolSpec>,
    attrs: Attrs,
    dtype: DType,
}

fn max_grad(build: &KernelBuild, order: Order) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    if !dtype.is_floating() && !dtype.is_integer() {
        return Err(build.unsupported(dtype));
    }
    let spec = match build.inputs.len() {
        3 => Some(PoolSpec::of(build.attrs, PoolKind::Max)?),
        _ => None,
    };
    Ok(Box::new(MaxGrad {
        order,
        rank: Layout::of(build.attrs)?.rank(),
        spec,
        attrs: build.attrs.clone(),
        dtype,
    }))
}

impl OpKernel for MaxGrad {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let grad = match self.order {
            Order::First => "out_backprop",
            Order::Second => "out_grad_backprop",
        };
        for (i, name) in ["tensor_in", "tensor_out", grad].into_iter().enumerate() {
            if ctx.shape(i)?.rank() != self.rank {
                return Err(invalid_argument!(
                    "{name} must be {}-dimensional",
                    self.rank
                ));
            }
        }
        let own;
        let spec = match &self.spec {
            Some(spec) => spec,
            None => {
                let (k, s) = (indices::ints(ctx.input(3)?)?, indices::ints(ctx.input(4)?)?);
                own = PoolSpec::new(&self.attrs, PoolKind::Max, &k, &s)?;
                &own
            }
        };
        let s = placed(spec, ctx.shape(0)?, ctx.shape(1)?)?;
        let of_grad = if self.order == Order::First { 1 } else { 0 };
        if ctx.shape(2)? != ctx.shape(of_grad)? {
            return Err(invalid_argument!(
                "Expected grad shape to be {}, but got {}",
                ctx.shape(of_grad)?,
                ctx.shape(2)?
            ));
        }
        let par = ctx.par();
        let (x, grad) = (
            wide::widened(par, ctx.input(0)?)?.into_owned(),
            wide::widened(par, ctx.input(2)?)?.into_owned(),
        );
        let x = spec.layout.to_last(ctx, x)?;
        let grad = spec.layout.to_last(ctx, grad)?;
        let out = dispatch_wide!(grad.dtype(), T =>
            self.run::<T>(ctx, &s, spec.layout, &x, &grad)?,
            else return Err(invalid_argument!("pooling of {} is not supported", grad.dtype())));
        let out = spec.layout.restored(ctx, out)?;
        let out = wide::narrowed(par, out, self.dtype)?;
        ctx.set_output(0, out)
    }
}

impl MaxGrad {
    fn run<T: Ordered>(
        &self,
        ctx: &KernelCtx,
        s: &Conv3dShape,
        layout: Layout,
        x: &Tensor,
        grad: &Tensor,
    ) -> Result<Tensor> {
        let (x_slice, grad) = (x.slice::<T>()?, grad.slice::<T>()?);
        let (in_image, out_image) = image_sizes(s);
        let dims = match self.order {
            Order::First => x.shape().clone(),
            Order::Second => shape_of(&output_dims(layout, s))?,
        };
        let mut out = ctx.alloc(T::DTYPE, dims)?;
        if out.num_elements() == 0 {
            // Of any size.
            return Ok(out);
        }
        let (image, (disjoint, covering)) = match self.order {
            Order::First => (in_image, windows(s)),
            Order::Second => (out_image, (false, false)),
        };
        let overlap = (self.order == Order::First && !disjoint)
            .then(|| Overlap::new::<T>(s))
            .flatten();
        par_chunks_mut(ctx.par(), out.slice_mut::<T>()?, image, 1, &|n, out| {
            let image = Image {
                s,
                n,
                x: x_slice,
                grad,
                sizes: [in_image, out_image],
            };
            match (&overlap, self.order) {
                (Some(overlap), _) => image.add_up(overlap, out),
                (None, Order::First) if disjoint => {
                    if !covering {
                        out.fill(T::ZERO);
                    }
                    image.hand_down(out);
                }
                (None, Order::First) => image.scatter(out),
                (None, Order::Second) => image.read(out),
            }
        });
        Ok(out)
    }
}

fn argmax_grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let spec = PoolSpec::of(build.attrs, PoolKind::Max)?;
    let with_batch = build.attrs.bool("include_batch_in_index")?;
    let (dtype, index) = (build.output(0)?, build.input(2)?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        placed(&spec, ctx.shape(0)?, ctx.shape(1)?)?;
        if ctx.shape(1)? != ctx.shape(2)? {
            return Err(invalid_argument!(
                "Expected argmax shape to be {}, but got {}",
                ctx.shape(1)?,
                ctx.shape(2)?
            ));
        }
        let grad = wide::widened(ctx.par(), ctx.input(1)?)?;
        let out = dispatch_wide!(grad.dtype(), T =>
            dispatch!(index, I in [i32, i64] => scatter::<T, I>(ctx, with_batch, &grad)?,
                else return Err(invalid_argument!("{index} is not an index type"))),
            else return Err(invalid_argument!("pooling of {dtype} is not supported")));
        let out = wide::narrowed(ctx.par(), out, dtype)?;
        ctx.set_output(0, out)
    }))
}

fn scatter<T: Ordered, I: Index>(
    ctx: &KernelCtx,
    with_batch: bool,
    grad: &Tensor,
) -> Result<Tensor> {
    let shape = ctx.shape(0)?.clone();
    let batch = shape.dims().first().copied().unwrap_or(0).max(1);
    let mut out = Tensor::zeros(T::DTYPE, shape)?;
    let (image, of_grad) = (out.num_elements() / batch, grad.num_elements() / batch);
    let to = out.slice_mut::<T>()?;
    for (i, (g, at)) in grad
        .slice::<T>()?
        .iter()
        .zip(ctx.slice::<I>(2)?)
        .enumerate()
    {
        let n = if with_batch { 0 } else { i / of_grad.max(1) };
        let at = usize::try_from(at.to_i64()).ok();
        let place = at.and_then(|at| to.get_mut((n * image).checked_add(at)?));
        let place = place.ok_or_else(|| {
            invalid_argument!(
                "Invalid input_backprop index: {:?}, max: {}",
                at,
                batch * image
            )
        })?;
        *place = place.add(*g);
    }
    Ok(out)
}

fn average_grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let spec = PoolSpec::of(build.attrs, PoolKind::Average)?;
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (sizes, rank) = (ctx.input(0)?, spec.layout.rank());
        if sizes.shape().rank() != 1 || sizes.num_elements() != rank {
            return Err(invalid_argument!(
                "out_backprop must be 1-dimensional and {rank} elements"
            ));
        }
        let shape = Shape::checked(&indices::ints(sizes)?)?;
        let s = placed(&spec, &shape, ctx.shape(1)?)?;
        let mut dims = shape.to_vec();
        let channels = dims.remove(spec.layout.channel());
        dims.push(channels);
        let dims = shape_of(&dims)?;
        let out = match dtype {
            DType::Double => {
                let grad = spec.layout.to_last(ctx, ctx.input(1)?.clone())?;
                share_out::<f64>(ctx.par(), &s, dims, &grad)?
            }
            _ => {
                let grad = widened(ctx.par(), ctx.input(1)?)?;
                let grad = spec.layout.to_last(ctx, grad)?;
                let out = share_out::<f32>(ctx.par(), &s, dims, &grad)?;
                narrowed(ctx.par(), out, dtype)?
            }
        };
        let out = spec.layout.restored(ctx, out)?;
        ctx.set_output(0, out)
    }))
}

fn share_out<T: Ordered>(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    dims: Shape,
    grad: &Tensor,
) -> Result<Tensor> {
    let (grad, c) = (grad.slice::<T>()?, s.plane.in_c);
    let (in_image, out_image) = image_sizes(s);
    let mut out = Tensor::for_overwrite(T::DTYPE, dims)?;
    if out.num_elements() == 0 {
        // Of any size.
        return Ok(out);
    }
    let overlap = Overlap::new::<T>(s);
    par_chunks_mut(par, out.slice_mut::<T>()?, in_image, 1, &|n, out| {
        let mut shares = grad[n * out_image..][..out_image].to_vec();
        let share = |shares: &mut [T], i: usize, window: &[usize]| {
            let (count, at) = (T::from_count(window.len()), i * c - n * out_image);
            let share = &mut shares[at..][..c];
            share.iter_mut().for_each(|share| *share = share.div(count));
            at
        };
        if let Some(overlap) = &overlap {
            each_window(s, n, |i, _, window| {
                share(&mut shares, i, window);
            });
            return vectorized(
                #[inline(always)]
                || overlap.sums(&shares, out),
            );
        }
        out.fill(T::ZERO);
        each_window(s, n, |i, first, window| {
            let at = share(&mut shares, i, window);
            for to in window {
                let place = &mut out[first + to - n * in_image..][..c];
                for (o, share) in place.iter_mut().zip(&shares[at..]) {
                    *o = o.add(*share);
                }
            }
        });
    });
    Ok(out)
}

/// With the positions of the maxima fixed, the op is linear in the incoming gradient.
fn max_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let op = g.op_name().replace("Grad", "GradGrad");
    let mut inputs = g.xs();
    if let Some(came) = inputs.get_mut(2) {
        *came = g.dy(0);
    }
    g.set(2, g.x(0).make(&op, &inputs, &window(g)))
}

fn max_grad_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let op = g.op_name().trim_end_matches("Grad");
    let op = format!("{op}Grad");
    let d = g.x(0).op_with(&op, &[g.x(1), g.dy(0)], &window(g));
    g.set(2, d)
}

fn average_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let op = g.op_name().trim_end_matches("Grad");
    let d = g.dy(0).op_with(op, &[], &window(g));
    g.set(1, d)
}
