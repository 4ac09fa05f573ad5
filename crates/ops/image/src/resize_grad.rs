//! ResizeBilinearGrad, ResizeBicubicGrad, ResizeNearestNeighborGrad: each output pixel's gradient
//! is added to the pixels that it was interpolated from (TensorFlow:
//! `core/kernels/image/resize_*_op.cc`).

use crate::resize::{MIN_TASK, Mapping, cubics, lerps, positions};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_functors::indices;
use ferroflow_functors::numeric::Num;
use ferroflow_functors::window::shape as shape_of;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};

/// ResizeBilinearGrad, ResizeBicubicGrad, ResizeNearestNeighborGrad.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ResizeBilinearGrad",
        "grads: float, original_image: T -> output: T | T: type \
         {float,bfloat16,half,double}; align_corners: bool = false; \
         half_pixel_centers: bool = false",
    )
    .shape(|ctx| {
        let image = ctx.with_rank(1, 4)?;
        ctx.set(0, image);
        Ok(())
    })
    .kernel(|build| {
        interpolated(build, |mapping, input, output| {
            lerps(mapping, input, output)
                .iter()
                .map(|l| vec![(l.lower, 1.0 - l.weight), (l.upper, l.weight)])
                .collect()
        })
    })
    .not_differentiable(),
    Op::new(
        "ResizeBicubicGrad",
        "grads: float, original_image: T -> output: T | T: type {float,double}; \
         align_corners: bool = false; half_pixel_centers: bool = false",
    )
    .shape(|ctx| {
        let image = ctx.with_rank(1, 4)?;
        ctx.set(0, image);
        Ok(())
    })
    .kernel(|build| {
        interpolated(build, |mapping, input, output| {
            cubics(mapping, input, output)
                .iter()
                .map(|c| c.at.into_iter().zip(c.weight).collect())
                .collect()
        })
    }),
    Op::new(
        "ResizeNearestNeighborGrad",
        "grads: T, size: int32 -> output: T | T: type \
         {uint8,int8,int32,half,float,double,bfloat16}; align_corners: bool = false; \
         half_pixel_centers: bool = false",
    )
    .shape(|ctx| {
        let grads = ctx.with_rank(0, 4)?;
        ctx.with_rank(1, 1)?;
        let size = indices::constant(ctx, 1).filter(|s| s.len() == 2);
        let at = |i: usize| size.as_ref().and_then(|s| usize::try_from(*s.get(i)?).ok());
        ctx.set(
            0,
            PartialShape::of([grads.dim(0), at(0), at(1), grads.dim(3)]),
        );
        Ok(())
    })
    .kernel(nearest),
];

/// For each position along an axis of the resized image, the source positions in the original, and
/// their weights.
type Sources = Vec<Vec<(usize, f32)>>;

fn check(grads: &Shape, name: &str) -> Result<()> {
    if grads.rank() != 4 {
        return Err(invalid_argument!("{name} must be 4-dimensional{grads}"));
    }
    if grads.dims().iter().skip(1).any(|&d| d == 0) {
        return Err(invalid_argument!(
            "input_grad must be of non-zero size, got {grads}"
        ));
    }
    Ok(())
}

fn interpolated(
    build: &KernelBuild,
    sources: fn(Mapping, usize, usize) -> Sources,
) -> Result<Box<dyn OpKernel>> {
    let (mapping, dtype) = (Mapping::of(build.attrs)?, build.output(0)?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (grads, image) = (ctx.shape(0)?.clone(), ctx.shape(1)?.clone());
        check(&grads, "input_grad")?;
        if image.rank() != 4 {
            return Err(invalid_argument!(
                "original_image must be 4-dimensional{image}"
            ));
        }
        if image[0] != grads[0] || image[3] != grads[3] {
            return Err(invalid_argument!(
                "the gradient {grads} and the image {image} differ in batch or channels"
            ));
        }
        if image[1] == 0 || image[2] == 0 {
            return Err(invalid_argument!(
                "original_image must be of non-zero size, got {image}"
            ));
        }
        let ys = sources(mapping, image[1], grads[1]);
        let xs = sources(mapping, image[2], grads[2]);
        let grads = ctx.slice::<f32>(0)?;
        let out = match dtype {
            DType::Double => scatter(ctx, grads, image, &ys, &xs)?,
            _ => {
                let out = add_by_axes(ctx, grads, image, [&ys, &xs], |g, w| g * w)?;
                narrowed(ctx.par(), out, dtype)?
            }
        };
        ctx.set_output(0, out)
    }))
}

/// Adds up the gradients at each position of the original, in doubles.
fn scatter(
    ctx: &KernelCtx,
    grads: &[f32],
    image: Shape,
    ys: &[Vec<(usize, f32)>],
    xs: &[Vec<(usize, f32)>],
) -> Result<Tensor> {
    let (width, c) = (image[2], image[3]);
    let per_image = image[1].saturating_mul(width * c);
    let of_grads = ys.len() * xs.len() * c;
    let mut out = ctx.alloc(DType::Double, image)?;
    par_chunks_mut(ctx.par(), out.slice_mut()?, per_image, 1, &|n, out| {
        out.fill(0.0);
        let rows = grads[n * of_grads..][..of_grads].chunks_exact(xs.len() * c);
        for (ys, row) in ys.iter().zip(rows) {
            for (xs, pixel) in xs.iter().zip(row.chunks_exact(c)) {
                for (y, v) in ys {
                    for (x, h) in xs {
                        let to: &mut [f64] = &mut out[(y * width + x) * c..][..c];
                        for (to, g) in to.iter_mut().zip(pixel) {
                            *to += f64::from(g * v * h);
                        }
                    }
                }
            }
        }
    });
    Ok(out)
}

/// Adds up the gradients at each position of the original: first the lines that a line of it contributes to, then the
/// columns of their sum. An element of `ys` and `xs` has the positions that a line or column was made of, with weights;
/// `times` multiplies by one.
fn add_by_axes<T: Num, W: Copy + Sync, S: AsRef<[(usize, W)]> + Sync>(
    ctx: &KernelCtx,
    grads: &[T],
    image: Shape,
    [ys, xs]: [&[S]; 2],
    times: impl Fn(T, W) -> T + Sync,
) -> Result<Tensor> {
    let (height, width, c) = (image[1], image[2], image[3]);
    let mut out = ctx.alloc(T::DTYPE, image)?;
    if out.num_elements() == 0 {
        // Of any height.
        return Ok(out);
    }
    let mut lines: Vec<Vec<(usize, W)>> = vec![Vec::new(); height];
    for (from, ys) in ys.iter().enumerate() {
        let ys = ys.as_ref().iter();
        ys.for_each(|&(y, v)| lines[y].push((from, v)));
    }
    let (line, of_line) = (xs.len() * c, width * c);
    let of_grads = ys.len() * line;
    let group = (MIN_TASK / (line + of_line).max(1)).max(1);
    let to = out.slice_mut::<T>()?;
    par_chunks_mut(ctx.par(), to, of_line, group, &|i, out| {
        let (n, y) = (i / height, i % height);
        let grads = &grads[n * of_grads..][..of_grads];
        out.fill(T::ZERO);
        if lines[y].is_empty() {
            return;
        }
        let add = |to: &mut [T], from: &[T], w: W| {
            let each = to.iter_mut().zip(from);
            each.for_each(|(to, g)| *to = to.add(times(*g, w)));
        };
        let mut sum = vec![T::ZERO; line];
        for &(from, v) in &lines[y] {
            add(&mut sum, &grads[from * line..][..line], v);
        }
        for (xs, pixel) in xs.iter().zip(sum.chunks_exact(c)) {
            for &(x, h) in xs.as_ref() {
                add(&mut out[x * c..][..c], pixel, h);
            }
        }
    });
    Ok(out)
}

fn nearest(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (mapping, dtype) = (Mapping::of(build.attrs)?, build.output(0)?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let grads = ctx.shape(0)?.clone();
        check(&grads, "input")?;
        let size = ctx.input(1)?;
        if size.shape().dims() != [2] {
            let must = if size.shape().rank() == 1 {
                "have two elements"
            } else {
                "be 1-dimensional"
            };
            return Err(invalid_argument!("shape_t must {must}{}", size.shape()));
        }
        let size = indices::ints(size)?;
        if size.iter().any(|&n| n <= 0) {
            return Err(invalid_argument!("shape_t's elements must be positive"));
        }
        let size = Shape::checked(&size)?;
        let image = shape_of(&[grads[0], size[0], size[1], grads[3]])?;
        let sources = |input, output| {
            let positions = positions(mapping, input, output).into_iter();
            positions.map(|at| [(at, ())]).collect::<Vec<_>>()
        };
        let (ys, xs) = (sources(size[0], grads[1]), sources(size[1], grads[2]));
        let t = match dtype {
            DType::Half | DType::Bfloat16 => widened(ctx.par(), ctx.input(0)?)?,
            _ => ctx.input(0)?.clone(),
        };
        let out = dispatch!(t.dtype(), T in [f32, f64, i8, i32, u8] =>
            add_by_axes::<T, _, _>(ctx, t.slice()?, image, [&ys, &xs], |g, ()| g)?,
            else return Err(invalid_argument!("images of {dtype} are not supported")));
        let out = match out.dtype() == dtype {
            true => out,
            false => narrowed(ctx.par(), out, dtype)?,
        };
        ctx.set_output(0, out)
    }))
}
