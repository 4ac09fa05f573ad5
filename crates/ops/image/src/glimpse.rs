//! ExtractGlimpse: windows of images, with noise outside (TensorFlow:
//! `core/kernels/image/attention_ops.cc`, `core/kernels/eigen_attention.h`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{constant, ints, shape_of};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::philox::Philox;
use ferroflow_tensor::{DType, PartialShape};
use std::hash::{BuildHasher, RandomState};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ExtractGlimpse",
        "input: float, size: int32, offsets: float -> glimpse: float | centered: bool = true; \
         normalized: bool = true; uniform_noise: bool = true; noise: string = 'uniform'",
    )
    .shape(shape)
    .kernel(|build| kernel(build, 1))
    .not_differentiable(),
    Op::new(
        "ExtractGlimpseV2",
        "input: float, size: int32, offsets: float -> glimpse: float | centered: bool = true; \
         normalized: bool = true; uniform_noise: bool = true; noise: string = 'uniform'",
    )
    .shape(shape)
    .kernel(|build| kernel(build, 2)),
];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.with_rank(0, 4)?;
    let size = ctx.merge(&ctx.with_rank(1, 1)?, &PartialShape::of([Some(2)]))?;
    let offsets = ctx.with_rank(2, 2)?;
    let batch = ctx.merge(
        &PartialShape::of([input.dim(0)]),
        &PartialShape::of([offsets.dim(0)]),
    )?;
    if let Some(n) = offsets.dim(1)
        && n != 2
    {
        return Err(invalid_argument!("Dimension must be 2 but is {n}"));
    }
    let size = constant(ctx, 1).filter(|_| size.dim(0) == Some(2));
    let at = |i: usize| size.as_ref().and_then(|s| usize::try_from(s[i]).ok());
    let dims = [batch.dim(0), at(0), at(1), input.dim(3)];
    ctx.set(0, PartialShape::of(dims));
    Ok(())
}

#[derive(Clone, Copy)]
enum Noise {
    Zero,
    Uniform,
    Gaussian,
}

#[derive(Clone, Copy)]
struct Spec {
    version: u8,
    centered: bool,
    normalized: bool,
    noise: Noise,
}

fn kernel(build: &KernelBuild, version: u8) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let (uniform, noise) = (attrs.bool("uniform_noise")?, attrs.str("noise")?);
    if uniform && !matches!(noise, "" | "uniform") {
        return Err(invalid_argument!(
            "The uniform_noise should not be True when noise is not uniform"
        ));
    }
    let spec = Spec {
        version,
        centered: attrs.bool("centered")?,
        normalized: attrs.bool("normalized")?,
        noise: match noise {
            "" if uniform => Noise::Uniform,
            "" => Noise::Gaussian,
            "uniform" => Noise::Uniform,
            "gaussian" => Noise::Gaussian,
            "zero" => Noise::Zero,
            _ => {
                return Err(invalid_argument!(
                    "The noise could only be uniform, gaussian, or zero, got{noise}"
                ));
            }
        },
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| glimpses(ctx, spec)))
}

/// One axis of a window: `n` positions from `from` in the image go to `to` in the glimpse.
struct Overlap {
    from: usize,
    to: usize,
    n: usize,
    whole: bool,
}

impl Spec {
    /// Places a window of `size` on an axis of `input` positions.
    fn place(self, offset: f32, size: usize, input: usize) -> Overlap {
        let (length, extent) = (size as f32, input as f32);
        let mut at = if self.normalized {
            offset * extent
        } else {
            offset
        };
        match (self.version, self.normalized, self.centered) {
            (1, _, centered) => {
                if centered {
                    at = at / 2.0 + extent / 2.0;
                }
                at -= length / 2.0;
            }
            (_, true, true) => at = at / 2.0 + extent / 2.0 - length / 2.0,
            (_, false, true) => at += extent / 2.0,
            _ => {}
        }
        let (at, size, input) = (at as i64, size as i64, input as i64);
        let (from, n, to, whole) = if at < 0 {
            let n = size.saturating_add(at).max(0);
            (0, n, size - n, false)
        } else if at.saturating_add(size) >= input {
            (at, (input - at).max(0), 0, false)
        } else {
            (at, size, 0, true)
        };
        Overlap {
            from: from as usize,
            to: to as usize,
            n: n.min(input) as usize,
            whole,
        }
    }
}

fn glimpses(ctx: &mut KernelCtx, spec: Spec) -> Result<()> {
    let (input, size, offsets) = (ctx.shape(0)?, ctx.input(1)?, ctx.shape(2)?);
    if input.rank() != 4 {
        return Err(invalid_argument!(
            "input must be 4-dimensional (batch_size, height, width, depth){input}"
        ));
    }
    if size.shape().dims() != [2] {
        return Err(invalid_argument!(
            "input must be a vector of size 2 (height, width){}",
            size.shape()
        ));
    }
    if offsets.rank() != 2 {
        return Err(invalid_argument!("input must be a matrix{offsets}"));
    }
    if offsets[0] != input[0] {
        return Err(invalid_argument!(
            "first dimension should be batch{offsets}"
        ));
    }
    if offsets[1] != 2 {
        return Err(invalid_argument!(
            "second dimension should be of size 2 (y,x){offsets}"
        ));
    }
    let sizes = ints(size)?;
    let Some((height, width)) = usize::try_from(sizes[0])
        .ok()
        .zip(usize::try_from(sizes[1]).ok())
    else {
        return Err(invalid_argument!(
            "the size of a glimpse must not be negative, got {} by {}",
            sizes[0],
            sizes[1]
        ));
    };
    let (in_h, in_w, c) = (input[1], input[2], input[3]);
    let mut out = ctx.alloc(DType::Float, shape_of([input[0], height, width, c])?)?;
    if out.num_elements() == 0 {
        return ctx.set_output(0, out);
    }
    let (x, offsets) = (ctx.slice::<f32>(0)?, ctx.slice::<f32>(2)?);
    let each = out.slice_mut::<f32>()?.chunks_exact_mut(height * width * c);
    for (i, (glimpse, offset)) in each.zip(offsets.chunks_exact(2)).enumerate() {
        let image = &x[i * in_h * in_w * c..][..in_h * in_w * c];
        let rows = spec.place(offset[0], height, in_h);
        let columns = spec.place(offset[1], width, in_w);
        if !rows.whole || !columns.whole {
            fill(spec.noise, image, c, glimpse);
        }
        let n = columns.n.min(width - columns.to) * c;
        for y in 0..rows.n.min(height - rows.to) {
            let from = ((rows.from + y) * in_w + columns.from) * c;
            let to = ((rows.to + y) * width + columns.to) * c;
            if let (Some(from), Some(to)) = (image.get(from..from + n), glimpse.get_mut(to..to + n))
            {
                to.copy_from_slice(from);
            }
        }
    }
    ctx.set_output(0, out)
}

/// Fills a glimpse with noise like the image.
fn fill(noise: Noise, image: &[f32], c: usize, glimpse: &mut [f32]) {
    let mut random = Philox::new(RandomState::new().hash_one(0), 0);
    let mut unit = || random.next_u32() as f32 / 4_294_967_296.0;
    match noise {
        Noise::Zero => glimpse.fill(0.0),
        Noise::Uniform => {
            let low = image.iter().copied().fold(f32::INFINITY, f32::min);
            let high = image.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            glimpse
                .iter_mut()
                .for_each(|v| *v = low + unit() * (high - low));
        }
        Noise::Gaussian => {
            for channel in 0..c {
                let values = || image.iter().skip(channel).step_by(c).copied();
                let n = (image.len() / c).max(1) as f32;
                let mean = values().sum::<f32>() / n;
                let deviation = (values().map(|v| (v - mean).powi(2)).sum::<f32>() / n).sqrt();
                let low = values().fold(f32::INFINITY, f32::min);
                let high = values().fold(f32::NEG_INFINITY, f32::max);
                for v in glimpse.iter_mut().skip(channel).step_by(c) {
                    // Box and Muller's transform.
                    let radius = (-2.0 * (1.0 - unit()).ln()).sqrt();
                    let normal = radius * (std::f32::consts::TAU * unit()).cos();
                    *v = (mean + normal * deviation).min(high).max(low);
                }
            }
        }
    }
}
