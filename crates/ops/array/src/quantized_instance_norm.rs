//! QuantizedInstanceNorm: each channel of each image normalized
//! (TensorFlow: `core/kernels/quantized_instance_norm.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::quantized::{
    Quantizer, codes, range_of, scalar_ranges, set_codes, set_range,
};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::DType;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "QuantizedInstanceNorm",
    "x: T, x_min: float, x_max: float -> y: T, y_min: float, y_max: float | T: type \
     {qint8,quint8,qint32,qint16,quint16}; output_range_given: bool = false; given_y_min: float = \
     0.0; given_y_max: float = 0.0; variance_epsilon: float = 0.00001; min_separation: float = \
     0.001",
)
.shape(|ctx| {
    let x = ctx.with_rank(0, 4)?;
    ctx.set(0, x);
    scalar_ranges(ctx, 1..3)
})
.kernel(kernel)];

struct Spec {
    given: Option<[f32; 2]>,
    epsilon: f32,
    separation: f32,
}

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let dtype = build.input(0)?;
    if dtype != DType::Quint8 {
        return Err(build.unsupported(dtype));
    }
    let range = [attrs.float("given_y_min")?, attrs.float("given_y_max")?];
    let given = attrs.bool("output_range_given")?.then_some(range);
    if given.is_some() && range[0] >= range[1] {
        return Err(invalid_argument!(
            "given_y_min must be less than given_y_max : {} >= {}",
            range[0],
            range[1]
        ));
    }
    let spec = Spec {
        given,
        epsilon: attrs.float("variance_epsilon")?,
        separation: attrs.float("min_separation")?,
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        normalized(ctx, &spec, dtype)
    }))
}

/// The mean and the factor of each channel of an image.
struct Norm {
    mean: Vec<f32>,
    factor: Vec<f32>,
}

fn statistics(pixels: &[u8], c: usize, scale: f32, epsilon: f32) -> Norm {
    let n = (pixels.len() / c.max(1)) as f32;
    let mut sums = vec![0u64; c];
    for pixel in pixels.chunks_exact(c.max(1)) {
        sums.iter_mut()
            .zip(pixel)
            .for_each(|(s, p)| *s += u64::from(*p));
    }
    let mean: Vec<f32> = sums.iter().map(|s| *s as f32 / n).collect();
    let mut squares = vec![0f64; c];
    for pixel in pixels.chunks_exact(c.max(1)) {
        for ((s, p), mean) in squares.iter_mut().zip(pixel).zip(&mean) {
            let d = scale * (f32::from(*p) - mean);
            *s += f64::from(d * d);
        }
    }
    let factor = squares.iter().map(|s| {
        let variance = (*s / f64::from(n)) as f32;
        1.0 / (variance + epsilon).sqrt()
    });
    Norm {
        factor: factor.collect(),
        mean,
    }
}

fn normalized(ctx: &mut KernelCtx, spec: &Spec, dtype: DType) -> Result<()> {
    let [min, max] = range_of(ctx, 1, ["x_min", "x_max"])?;
    let scale = (max - min) / 255.0;
    if min >= max {
        return Err(invalid_argument!(
            "input_min must be less than input_max : {min} >= {max}"
        ));
    }
    let shape = ctx.shape(0)?.clone();
    if shape.rank() != 4 {
        return Err(invalid_argument!(
            "x must be 4-dimensional, got shape {shape}"
        ));
    }
    let (image, c) = (shape[1] * shape[2] * shape[3], shape[3]);
    let input = codes(ctx, 0)?;
    let x = input.slice::<u8>()?;
    let mut norms: Vec<Option<Norm>> = (0..shape[0]).map(|_| None).collect();
    par_chunks_mut(ctx.par(), &mut norms, 1, 1, &|i, norm| {
        let pixels = &x[i * image..][..image];
        norm.fill_with(|| Some(statistics(pixels, c, scale, spec.epsilon)));
    });
    let norms: Vec<Norm> = norms.into_iter().flatten().collect();
    let mut floats = ctx.alloc(DType::Float, shape.clone())?;
    if image > 0 {
        par_chunks_mut(ctx.par(), floats.slice_mut::<f32>()?, c, 256, &|i, to| {
            let norm = &norms[i / (shape[1] * shape[2])];
            let sides = norm.mean.iter().zip(&norm.factor);
            for ((to, from), (mean, factor)) in to.iter_mut().zip(&x[i * c..]).zip(sides) {
                *to = scale * (f32::from(*from) - mean) * factor;
            }
        });
    }
    let floats = floats.slice::<f32>()?;
    let [low, mut high] = spec.given.unwrap_or_else(|| {
        let ends = [f32::INFINITY, f32::NEG_INFINITY];
        floats.iter().fold(ends, |[a, b], x| [a.min(*x), b.max(*x)])
    });
    if high - low < spec.separation {
        high = low + spec.separation;
    }
    let to = Quantizer::new::<u8>(low, high);
    let mut out = ctx.alloc(DType::Uint8, shape.clone())?;
    ferroflow_functors::quantized::par_map(ctx.par(), floats, out.slice_mut::<u8>()?, |x| {
        to.code(x)
    });
    set_codes(ctx, 0, out, dtype)?;
    set_range(ctx, 1, [low, high])
}
