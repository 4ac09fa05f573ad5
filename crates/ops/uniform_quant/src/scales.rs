//! Scales and zero points: of a whole tensor, or of each slice along an axis.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::KernelCtx;
use ferroflow_tensor::Shape;

/// The scales and zero points of a tensor.
pub(crate) struct Scales<'a> {
    pub scales: &'a [f32],
    pub zeros: &'a [i32],
    /// The number of elements of a slice that lie together.
    pub post: usize,
}

impl<'a> Scales<'a> {
    /// Returns inputs `i` and `i + 1`, for a tensor of this shape.
    pub(crate) fn of(ctx: &'a KernelCtx, shape: &Shape, i: usize, axis: i64) -> Result<Self> {
        let (scales, zeros) = (ctx.shape(i)?, ctx.shape(i + 1)?);
        if scales != zeros {
            return Err(invalid_argument!(
                "scales and zero_points shape must be same, but given scales shape {scales} and \
                 zero_points shape {zeros}"
            ));
        }
        if axis < -1 || axis >= shape.rank() as i64 {
            return Err(invalid_argument!(
                "quantization_axis must be -1 or in range [0, input.rank), but given {axis}"
            ));
        }
        let post = match usize::try_from(axis) {
            Err(_) if !scales.is_scalar() => {
                return Err(invalid_argument!(
                    "If quantization_axis is -1, scales and zero_points must be scalar tensors, \
                     but given scales shape {scales} and zero_points shape {zeros}"
                ));
            }
            Err(_) => shape.num_elements(),
            Ok(at) if scales.dims() != [shape[at]] => {
                return Err(invalid_argument!(
                    "If quantization_axis is not -1, scales and zero_points must be a tensor of \
                     rank 1 and the size must be equal to the input.dim_size(quantization_axis), \
                     but given quantization_axis {axis}, scales shape {scales} and zero_points \
                     shape {zeros}"
                ));
            }
            Ok(at) => shape[at + 1..].iter().product(),
        };
        Ok(Scales {
            scales: ctx.slice(i)?,
            zeros: ctx.slice(i + 1)?,
            post,
        })
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = (f32, i32)> {
        self.scales.iter().copied().zip(self.zeros.iter().copied())
    }

    /// Returns the zero points of both tensors, slice by slice.
    pub(crate) fn zeros_with(&self, o: &Scales) -> Vec<[i32; 2]> {
        each(self.zeros, o.zeros).collect()
    }
}

/// Pairs up the elements of slices, one of which may have a single one for all.
fn each<T: Copy>(a: &[T], b: &[T]) -> impl Iterator<Item = [T; 2]> {
    let n = if a.len() == 1 { b.len() } else { a.len() };
    let at = move |v: &[T], i: usize| v[if v.len() == 1 { 0 } else { i }];
    (0..n).map(move |i| [at(a, i), at(b, i)])
}

/// Returns whether all scales are positive.
pub(crate) fn check_positive(all: &[&Scales]) -> bool {
    all.iter().all(|s| s.scales.iter().all(|v| *v > 0.0))
}

/// Returns the factors from the steps of one tensor to those of another.
pub(crate) fn multipliers(from: &Scales, to: &Scales) -> Result<Vec<Multiplier>> {
    let both = each(from.scales, to.scales);
    both.map(|[from, to]| Multiplier::new(f64::from(from) / f64::from(to)))
        .collect()
}

/// A factor in fixed point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Multiplier {
    factor: i64,
    shift: u32,
}

impl Multiplier {
    pub(crate) fn new(factor: f64) -> Result<Multiplier> {
        if !factor.is_finite() || factor <= 0.0 {
            return Err(invalid_argument!(
                "double_multiplier must be a poisitive finite number. Given {factor}"
            ));
        }
        // The fraction is in [0.5, 1).
        let mut exponent = factor.log2().floor() as i32 + 1;
        let mut fraction = factor * 2f64.powi(-exponent);
        if fraction >= 1.0 {
            (fraction, exponent) = (fraction / 2.0, exponent + 1);
        } else if fraction < 0.5 {
            (fraction, exponent) = (fraction * 2.0, exponent - 1);
        }
        let mut fixed = (fraction * 2_147_483_648.0).round() as i64;
        if fixed == 1 << 31 {
            (fixed, exponent) = (fixed / 2, exponent + 1);
        }
        if exponent < -31 {
            (fixed, exponent) = (0, 0);
        }
        if exponent > 30 {
            (fixed, exponent) = ((1 << 31) - 1, 30);
        }
        Ok(Multiplier {
            factor: fixed,
            shift: (31 - exponent) as u32,
        })
    }

    /// Returns the product, rounded half up.
    #[inline(always)]
    pub(crate) fn times(self, x: i32) -> i32 {
        let round = 1i64 << (self.shift - 1);
        let product = (i64::from(x) * self.factor).wrapping_add(round) >> self.shift;
        product.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
    }
}
