//! What follows a quantized product in the same op: bias, sum, ReLU, another range.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::quantized::{Stored, rounded_even, set_range};
use ferroflow_opdef::KernelCtx;
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, Shape, Tensor, dispatch};

/// Returns the larger magnitude of a range.
pub(crate) fn magnitude([min, max]: [f32; 2]) -> f32 {
    min.abs().max(max.abs())
}

/// Returns the difference of the floats of consecutive codes; signed codes are symmetric.
fn level<T: Stored>([min, max]: [f32; 2]) -> f32 {
    let lowest = T::LOWEST.max(-T::HIGHEST);
    (max - min) / (T::HIGHEST - lowest) as f32
}

/// Returns the range of 32-bit sums of products with signed codes.
pub(crate) fn int_range<T: Stored>(input: [f32; 2], filter: [f32; 2]) -> [f32; 2] {
    let level = level::<T>(input) * level::<i8>(filter);
    [level * i32::MIN as f32, level * i32::MAX as f32]
}

/// The ranges of filters: one, or one for each output channel.
pub(crate) struct Filters {
    min: Vec<f32>,
    max: Vec<f32>,
    shape: Shape,
}

impl Filters {
    /// Returns the ranges in inputs `i` and `i + 1`.
    pub(crate) fn of(ctx: &KernelCtx, i: usize, channels: usize) -> Result<Filters> {
        let (min, max) = (ctx.slice::<f32>(i)?, ctx.slice::<f32>(i + 1)?);
        if min.is_empty() || ctx.shape(i)? != ctx.shape(i + 1)? {
            return Err(invalid_argument!(
                "`min_ and max_filter` must have sameshape and contain at least one element."
            ));
        }
        if min.len() != 1 && min.len() != channels {
            return Err(invalid_argument!(
                "min_filter must have 1 or {channels} elements, as many as there are output \
                 channels, but has {}",
                min.len()
            ));
        }
        Ok(Filters {
            min: min.to_vec(),
            max: max.to_vec(),
            shape: ctx.shape(i)?.clone(),
        })
    }

    /// Returns the range of the filter of a channel.
    pub(crate) fn range(&self, channel: usize) -> [f32; 2] {
        let i = if self.min.len() == 1 { 0 } else { channel };
        [self.min[i], self.max[i]]
    }

    /// Returns the largest magnitude of all ranges.
    pub(crate) fn magnitude(&self) -> f32 {
        let low = self.min.iter().copied().fold(f32::INFINITY, f32::min);
        let high = self.max.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        magnitude([low, high])
    }

    /// Sets outputs 1 and 2 to the ranges of 32-bit sums.
    pub(crate) fn set_ranges<T: Stored>(&self, ctx: &mut KernelCtx, input: [f32; 2]) -> Result<()> {
        let ranges = (0..self.min.len()).map(|c| int_range::<T>(input, self.range(c)));
        let ranges: Vec<[f32; 2]> = ranges.collect();
        if self.shape.is_scalar() {
            return set_range(ctx, 1, ranges[0]);
        }
        for side in 0..2 {
            let ends: Vec<f32> = ranges.iter().map(|r| r[side]).collect();
            ctx.set_output(side + 1, Tensor::from_slice(self.shape.clone(), &ends)?)?;
        }
        Ok(())
    }
}

/// What follows the sums, as floats: bias, summand, ReLU, the output's steps.
pub(crate) struct Epilogue {
    /// The step of the sums of each output channel.
    pub steps: Vec<f32>,
    pub bias: Option<Tensor>,
    /// With its step.
    pub summand: Option<(Tensor, f32)>,
    pub relu: bool,
    /// The step of the output.
    pub out: f32,
}

/// Returns the biases as floats.
fn biases(epilogue: &Epilogue) -> Result<Vec<f32>> {
    let n = epilogue.steps.len();
    let Some(bias) = &epilogue.bias else {
        return Ok(vec![0.0; n]);
    };
    if bias.shape().dims() != [n] {
        return Err(invalid_argument!(
            "bias must have one element for each of {n} output channels, got shape {}",
            bias.shape()
        ));
    }
    Ok(match bias.dtype() {
        DType::Float => bias.slice::<f32>()?.to_vec(),
        _ => {
            let both = bias.slice::<i32>()?.iter().zip(&epilogue.steps);
            both.map(|(b, step)| *b as f32 * step).collect()
        }
    })
}

/// Returns the output of stored integers or floats.
pub(crate) fn finish(
    ctx: &KernelCtx,
    sums: Tensor,
    epilogue: &Epilogue,
    dtype: DType,
) -> Result<Tensor> {
    let same = epilogue.steps.iter().all(|step| *step == epilogue.out);
    let stays = same && epilogue.bias.is_none() && epilogue.summand.is_none();
    if dtype == DType::Qint32 && stays {
        return only_relu(ctx, sums, epilogue.relu);
    }
    let biases = biases(epilogue)?;
    if dtype == DType::Qint32
        && same
        && epilogue.summand.is_none()
        && let Some(bias) = epilogue.bias.as_ref().filter(|b| b.dtype() == DType::Int32)
    {
        return with_int_bias(ctx, sums, bias, epilogue.relu);
    }
    let stored = ferroflow_functors::quantized::stored(dtype);
    dispatch!(stored, T in [i8, u8, i32, f32] => {
        write::<T>(ctx, &sums, epilogue, &biases)
    }, else Err(invalid_argument!("{dtype} is not an output of quantized products")))
}

fn only_relu(ctx: &KernelCtx, mut sums: Tensor, relu: bool) -> Result<Tensor> {
    if relu {
        par_chunks_mut(
            ctx.par(),
            sums.slice_mut::<i32>()?,
            1 << 14,
            1,
            &|_, sums| {
                sums.iter_mut().for_each(|v| *v = (*v).max(0));
            },
        );
    }
    Ok(sums)
}

fn with_int_bias(ctx: &KernelCtx, mut sums: Tensor, bias: &Tensor, relu: bool) -> Result<Tensor> {
    let bias = bias.slice::<i32>()?;
    let low = if relu { 0 } else { i32::MIN };
    let group = ((1 << 14) / bias.len().max(1)).max(1);
    par_chunks_mut(
        ctx.par(),
        sums.slice_mut::<i32>()?,
        bias.len(),
        group,
        &|_, sums| {
            for (v, b) in sums.iter_mut().zip(bias) {
                *v = v.saturating_add(*b).max(low);
            }
        },
    );
    Ok(sums)
}

/// An output element: rounded half to even and limited.
trait Out: Element {
    fn of(v: f32) -> Self;
}

macro_rules! codes_out {
    ($($ty:ident),*) => {$(
        impl Out for $ty {
            #[inline(always)]
            fn of(v: f32) -> Self {
                rounded_even(v) as $ty
            }
        }
    )*};
}
codes_out!(i8, u8, i32);

impl Out for f32 {
    #[inline(always)]
    fn of(v: f32) -> Self {
        v
    }
}

fn write<T: Out>(
    ctx: &KernelCtx,
    sums: &Tensor,
    epilogue: &Epilogue,
    biases: &[f32],
) -> Result<Tensor> {
    let mut out = ctx.alloc(T::DTYPE, sums.shape().clone())?;
    let (n, from) = (biases.len(), sums.slice::<i32>()?);
    if out.num_elements() == 0 {
        return Ok(out);
    }
    let added = epilogue
        .summand
        .as_ref()
        .map(|(t, factor)| summands(t, *factor));
    let added = added.transpose()?;
    let (steps, out_step) = (&epilogue.steps, epilogue.out);
    let low = if epilogue.relu { 0.0 } else { f32::MIN };
    let group = ((1 << 14) / n).max(1);
    par_chunks_mut(ctx.par(), out.slice_mut::<T>()?, n, group, &|i, out| {
        let row = &from[i * n..][..n];
        let params = biases.iter().zip(steps);
        let values = row.iter().zip(params);
        let values = values.map(|(v, (bias, step))| *v as f32 * step + bias);
        match &added {
            None => {
                for (to, v) in out.iter_mut().zip(values) {
                    *to = T::of(v.max(low) / out_step);
                }
            }
            Some(added) => {
                for ((to, v), more) in out.iter_mut().zip(values).zip(&added[i * n..]) {
                    *to = T::of((v + more).max(low) / out_step);
                }
            }
        }
    });
    Ok(out)
}

/// Returns the summands as floats.
fn summands(t: &Tensor, step: f32) -> Result<Vec<f32>> {
    if t.dtype() == DType::Float {
        return Ok(t.slice::<f32>()?.iter().map(|v| v * step).collect());
    }
    dispatch!(t.dtype(), T in [i8, u8] => {
        let values = t.slice::<T>()?.iter();
        Ok(values.map(|v| f32::from(*v) * step).collect())
    }, else Err(invalid_argument!("{} is not a type of summands", t.dtype())))
}
