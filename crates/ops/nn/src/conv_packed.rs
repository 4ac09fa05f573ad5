//! Constant filters, packed for products in single precision or in `bfloat16`.

use crate::conv::Plan;
use crate::conv_reference;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::prepack;
use ferroflow_functors::window::Placed;
use ferroflow_primitives::as_constants;
use ferroflow_primitives::bf16::{Bf16Weights, bf16_conv2d};
use ferroflow_primitives::conv::{Conv3dShape, PackedFilter, conv3d};
use ferroflow_primitives::gemm::Epilogue;
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{Bytes, Shape, Tensor};

/// A packed filter, in single precision or in `bfloat16`.
pub(crate) enum Packed {
    Floats(PackedFilter),
    Bf16(Bf16Weights),
}

impl Packed {
    /// Packs `[…, in_c / groups, out_c]` for the strides and dilations of `plan`.
    pub(crate) fn new(
        par: &dyn Parallelism,
        plan: &Plan,
        filter: &Tensor,
        groups: usize,
    ) -> Result<Packed> {
        let s = filter_sizes(plan, filter.shape(), groups)?;
        let values = filter.slice()?;
        Ok(as_constants(|| {
            match (plan.matrix_of(&s), plan.layout.spatial) {
                (Some(size), _) => Packed::Bf16(Bf16Weights::new(par, values, size, false)),
                (None, 2) => Packed::Floats(PackedFilter::new(par, values, &s.plane)),
                _ => Packed::Floats(PackedFilter::new_3d(par, values, &s)),
            }
        }))
    }

    /// Returns a packed filter of an earlier build.
    pub(crate) fn of_blocks(
        plan: &Plan,
        shape: &Shape,
        blocks: Vec<Bytes>,
        groups: usize,
    ) -> Result<Packed> {
        let s = filter_sizes(plan, shape, groups)?;
        let packed = match (plan.matrix_of(&s), plan.layout.spatial) {
            (Some([k, n]), _) => match <[Bytes; 1]>::try_from(blocks) {
                Ok([block]) => Bf16Weights::from_packed(k, n, block).map(Packed::Bf16),
                Err(_) => None,
            },
            (None, 2) => PackedFilter::from_packed(blocks, &s.plane).map(Packed::Floats),
            _ => PackedFilter::from_packed_3d(blocks, &s).map(Packed::Floats),
        };
        packed.ok_or_else(prepack::misfit)
    }

    /// Returns what a file stores.
    pub(crate) fn blocks(&self) -> Result<Vec<Tensor>> {
        match self {
            Packed::Floats(filter) => filter.parts().into_iter().map(prepack::numbers).collect(),
            Packed::Bf16(weights) => Ok(vec![prepack::numbers(weights.packed())?]),
        }
    }

    /// Computes a convolution.
    pub(crate) fn convolve(
        &self,
        par: &dyn Parallelism,
        s: &Conv3dShape,
        x: &[f32],
        out: &mut [f32],
        epilogue: &Epilogue<'_>,
    ) {
        match self {
            Packed::Floats(filter) => conv3d(par, s, x, filter, out, epilogue),
            Packed::Bf16(weights) => bf16_conv2d(par, &s.plane, x, weights, out, epilogue),
        }
    }
}

impl Plan {
    /// Returns the size of the filter's matrix, if the convolution is a product in `bfloat16`.
    fn matrix_of(&self, s: &Conv3dShape) -> Option<[usize; 2]> {
        let p = &s.plane;
        let is_product = self.bf16 && self.layout.spatial == 2 && p.groups == 1;
        is_product.then_some([p.filter_h * p.filter_w * p.in_c, p.out_c])
    }
}

/// Returns a convolution with a filter of this shape; only the sizes that concern the filter are
/// valid.
fn filter_sizes(plan: &Plan, shape: &Shape, groups: usize) -> Result<Conv3dShape> {
    let mut axes = [Placed::ONE; 3];
    for (i, axis) in axes[3 - plan.layout.spatial..].iter_mut().enumerate() {
        *axis = Placed {
            window: shape[i],
            stride: plan.rules[i].stride as usize,
            dilation: plan.rules[i].dilation as usize,
            ..Placed::ONE
        };
    }
    let rank = shape.rank();
    let in_c = shape[rank - 2]
        .checked_mul(groups)
        .ok_or_else(|| invalid_argument!("{groups} groups of {shape} are too many"))?;
    Ok(conv_reference::sizes(
        1,
        axes,
        [in_c, shape[rank - 1], groups],
    ))
}
