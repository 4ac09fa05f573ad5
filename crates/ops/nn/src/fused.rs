//! The channel parameters of a fused convolution: a factor and a bias, given as such or as a batch
//! normalization.

use crate::fused_ops::FusedOps;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Attrs, KernelBuild};
use ferroflow_tensor::{Shape, Tensor};

/// The steps after a convolution: batch normalization, then the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fused {
    /// The epsilon of a batch normalization.
    pub batch_norm: Option<f32>,
    /// The first extra argument is a factor of every row.
    pub scale: bool,
    pub ops: FusedOps,
}

impl Fused {
    /// Returns the steps in the attr `fused_ops` (none without the attr), which must take `n_args`
    /// arguments.
    pub fn of(attrs: &Attrs, n_args: usize) -> Result<Fused> {
        let names = match attrs.get("fused_ops") {
            Some(_) => attrs.strs("fused_ops")?,
            None => Vec::new(),
        };
        let fused = match names.split_first() {
            Some((&"FusedBatchNorm", rest)) => Fused {
                batch_norm: Some(attrs.float("epsilon")?),
                scale: false,
                ops: FusedOps::from_names(rest, attrs)?,
            },
            Some((&"Scale", rest)) => Fused {
                batch_norm: None,
                scale: true,
                ops: FusedOps::from_names(rest, attrs)?,
            },
            _ => Fused {
                batch_norm: None,
                scale: false,
                ops: FusedOps::from_names(&names, attrs)?,
            },
        };
        let expected = fused.n_channel_args() + usize::from(fused.ops.side);
        if n_args != expected || (fused.batch_norm.is_some() && fused.ops.bias) {
            return Err(invalid_argument!(
                "fused_ops {names:?} takes {expected} extra arguments, got {n_args}"
            ));
        }
        Ok(fused)
    }

    /// Returns whether the channels are multiplied.
    pub fn has_factor(&self) -> bool {
        self.scale || self.batch_norm.is_some()
    }

    /// Returns the number of arguments that are channel parameters: a factor, a bias, or scale,
    /// offset, mean and variance.
    pub fn n_channel_args(&self) -> usize {
        match self.batch_norm {
            Some(_) => 4,
            None => usize::from(self.scale) + usize::from(self.ops.bias),
        }
    }

    /// Returns the channel parameters if there are any and all are constants.
    pub fn constants(&self, build: &KernelBuild) -> Result<Option<Vec<Tensor>>> {
        let n = self.n_channel_args();
        let values: Vec<_> = (2..2 + n).map_while(|i| build.constant(i)).collect();
        if n == 0 || values.len() < n {
            return Ok(None);
        }
        values
            .into_iter()
            .map(|v| v.get())
            .collect::<Result<_>>()
            .map(Some)
    }

    /// Returns the channel parameters, in single precision, as a factor and a bias of `n` channels.
    pub fn scaled(&self, args: &[Tensor], n: usize) -> Result<Scaled> {
        if let Some(t) = args
            .iter()
            .find(|t| t.shape().rank() != 1 || t.shape()[0] != n)
        {
            return Err(match self.batch_norm {
                Some(_) => invalid_argument!(
                    "scale, offset, mean and variance must have {n} elements: {}",
                    t.shape()
                ),
                None if t.shape().rank() != 1 => {
                    invalid_argument!("bias must be 1-dimensional: {}", t.shape())
                }
                None => invalid_argument!(
                    "Must provide as many biases as the last dimension of the input tensor: \
                     {} vs. {n}",
                    t.shape()
                ),
            });
        }
        let values = |i: usize| -> Result<Option<Vec<f32>>> {
            let values = args.get(i).map(|t| t.slice::<f32>()).transpose()?;
            Ok(values.map(<[f32]>::to_vec))
        };
        match (self.batch_norm, args) {
            (None, _) if self.scale => Ok(Scaled {
                factor: values(0)?,
                bias: values(1)?,
            }),
            (None, _) => Ok(Scaled {
                factor: None,
                bias: values(0)?,
            }),
            (Some(epsilon), [scale, offset, mean, variance]) => {
                let (factor, bias) = affine(
                    scale.slice()?,
                    offset.slice()?,
                    mean.slice()?,
                    variance.slice()?,
                    epsilon,
                );
                Ok(Scaled {
                    factor: Some(factor),
                    bias: Some(bias),
                })
            }
            _ => Ok(Scaled::default()),
        }
    }
}

/// A factor for each output channel of a filter, and a bias.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scaled {
    pub factor: Option<Vec<f32>>,
    pub bias: Option<Vec<f32>>,
}

impl Scaled {
    /// Checks that the parameters have as many channels as the filter.
    pub fn check(&self, filter: &Shape) -> Result<&Self> {
        match (self.bias.as_ref().or(self.factor.as_ref()), filter.last()) {
            (Some(bias), Some(n)) if bias.len() != *n => Err(invalid_argument!(
                "Must provide as many biases as the last dimension of the input tensor: \
                 [{}] vs. {filter}",
                bias.len()
            )),
            _ => Ok(self),
        }
    }

    /// Multiplies the output channels of `filter` (its last dimension) by the factors, for
    /// kernels that do not apply them.
    pub fn apply(&self, filter: Tensor) -> Result<Tensor> {
        let Some(factor) = &self.factor else {
            return Ok(filter);
        };
        let mut out = Tensor::for_overwrite(filter.dtype(), filter.shape().clone())?;
        let zeros = vec![0.0; factor.len()];
        ferroflow_primitives::math::scale_offset(filter.slice()?, factor, &zeros, out.slice_mut()?);
        Ok(out)
    }
}

/// Batch normalization as `x * factor + bias`; the four vectors have the same length.
pub(crate) fn affine(
    scale: &[f32],
    offset: &[f32],
    mean: &[f32],
    variance: &[f32],
    epsilon: f32,
) -> (Vec<f32>, Vec<f32>) {
    let factor: Vec<f32> = scale
        .iter()
        .zip(variance)
        .map(|(s, v)| s / (v + epsilon).sqrt())
        .collect();
    let bias = offset
        .iter()
        .zip(mean)
        .zip(&factor)
        .map(|((o, m), f)| o - m * f)
        .collect();
    (factor, bias)
}
