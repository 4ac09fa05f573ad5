//! Attention in one launch, in TF32, half precision and bfloat16.

use crate::place::{Inputs, Place, alone, attrs, cast, doubles, random};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::{DType, Tensor};
use ferroflow_testkit::tensors;

/// Batches, heads, queries, keys and depth: multiples of the tiles of kernels, and others.
const SIZES: [[usize; 5]; 11] = [
    [2, 3, 70, 130, 64],
    [1, 2, 64, 64, 64],
    [2, 2, 5, 200, 40],
    [1, 2, 65, 33, 128],
    [2, 1, 1, 1, 8],
    [1, 3, 20, 300, 32],
    [1, 1, 128, 129, 96],
    [1, 2, 3, 31, 24],
    [1, 1, 63, 65, 128],
    [1, 2, 70, 130, 32],
    [2, 1, 64, 64, 32],
];

/// What changes the scores.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mask {
    None,
    /// Added, by batch and key.
    KeyBias,
    /// Added, by all dimensions, with infinities.
    FullBias,
    /// By key; all of batch 0 is masked.
    KeyCondition,
    /// By query and key.
    QueryCondition,
}

const MASKS: [Mask; 5] = [
    Mask::None,
    Mask::KeyBias,
    Mask::FullBias,
    Mask::KeyCondition,
    Mask::QueryCondition,
];

/// A call: of three tensors, or of the heads of one.
struct Call {
    sizes: [usize; 5],
    dtype: DType,
    mask: Mask,
    /// Whether heads are before rows, of q, k, v and y.
    heads_first: [bool; 4],
    is_joined: bool,
}

impl Call {
    fn mask(&self) -> Option<Tensor> {
        let [b, n, t, s, _] = self.sizes;
        let bools = |shape: [usize; 4], f: &dyn Fn(usize) -> bool| {
            let values: Vec<bool> = (0..shape.iter().product()).map(f).collect();
            Some(Tensor::from_slice(shape, &values).expect("as many"))
        };
        match self.mask {
            Mask::None => None,
            Mask::KeyBias => Some(random(&[b, 1, 1, s], 9, self.dtype)),
            Mask::FullBias => {
                let mut values = doubles(&random(&[b, n, t, s], 9, DType::Float));
                // Not the last key.
                let masked = values
                    .chunks_mut(s)
                    .flat_map(|row| row[..s - 1].iter_mut().step_by(3));
                masked.for_each(|v| *v = f64::NEG_INFINITY);
                let bias = Tensor::from_slice([b, n, t, s], &values).expect("as many");
                Some(cast(&bias, self.dtype))
            }
            Mask::KeyCondition => bools([b, 1, 1, s], &|i| i >= s && i % 3 != 0),
            Mask::QueryCondition => bools([1, 1, t, s], &|i| i % s <= i / s || i % 5 == 0),
        }
    }

    fn layout(&self, i: usize, rows: usize, heads: usize) -> [usize; 4] {
        let [b, .., h] = self.sizes;
        match self.heads_first[i] {
            true => [b, heads, rows, h],
            false => [b, rows, heads, h],
        }
    }

    /// q, k and v.
    fn operands(&self) -> [Tensor; 3] {
        let [_, n, t, s, _] = self.sizes;
        if self.is_joined {
            let all = random(&self.layout(0, t, 3 * n), 1, self.dtype);
            return [all.clone(), all.clone(), all];
        }
        let of = |i: usize, rows: usize| random(&self.layout(i, rows, n), i as u64, self.dtype);
        [of(0, t), of(1, s), of(2, s)]
    }

    /// The result in double precision.
    fn expected(
        &self,
        operands: &[Tensor; 3],
        mask: Option<&Tensor>,
        scale: f64,
        fill: f64,
    ) -> Vec<f64> {
        let [b, n, t, s, h] = self.sizes;
        let operands = operands.each_ref().map(doubles);
        let heads = if self.is_joined { 3 * n } else { n };
        let at = |i: usize, [batch, head, row]: [usize; 3], rows: usize| {
            let head = if self.is_joined { head + i * n } else { head };
            let place = match self.heads_first[i] {
                true => (batch * heads + head) * rows + row,
                false => (batch * rows + row) * heads + head,
            };
            place * h
        };
        let masked = mask.map(|m| (m.dtype(), m.shape().clone(), doubles(m)));
        let of_mask = |place: [usize; 4]| {
            let (dtype, shape, values) = masked.as_ref()?;
            let i = (0..4).fold(0, |at, d| at * shape[d] + place[d].min(shape[d] - 1));
            Some((*dtype, values[i]))
        };
        let mut y = vec![0.0; b * n * t * h];
        for place in 0..b * n * t {
            let (batch, head, query) = (place / n / t, place / t % n, place % t);
            let q = at(0, [batch, head, query], t);
            let score = |key: usize| {
                let k = at(1, [batch, head, key], s);
                let sum: f64 = (0..h)
                    .map(|i| operands[0][q + i] * operands[1][k + i])
                    .sum();
                match of_mask([batch, head, query, key]) {
                    Some((DType::Bool, 0.0)) => fill,
                    Some((DType::Bool, _)) | None => sum * scale,
                    Some((_, bias)) => sum * scale + bias,
                }
            };
            let scores: Vec<f64> = (0..s).map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|v| (v - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let to = match self.heads_first[3] {
                true => (batch * n + head) * t + query,
                false => (batch * t + query) * n + head,
            };
            for (key, weight) in weights.iter().enumerate() {
                let v = at(2, [batch, head, key], s);
                for i in 0..h {
                    y[to * h + i] += weight / total * operands[2][v + i];
                }
            }
        }
        y
    }

    fn check(&self, gpu: &Place) {
        let [_, n, t, ..] = self.sizes;
        let (operands, mask) = (self.operands(), self.mask());
        let layouts = self
            .heads_first
            .map(|first| AttrValue::str(if first { "BNTH" } else { "BTNH" }));
        let count = |is_there: bool| AttrValue::Int(i64::from(is_there));
        let is_condition = mask.as_ref().is_some_and(|m| m.dtype() == DType::Bool);
        let (scale, fill) = (0.3, -1e9);
        let mut by = attrs(&[
            ("T", AttrValue::Type(self.dtype)),
            ("layouts", AttrValue::List(layouts.into())),
            ("num_biases", count(mask.is_some() && !is_condition)),
            ("num_conditions", count(is_condition)),
            ("scale", AttrValue::Float(scale)),
            ("fill", AttrValue::Float(fill)),
        ]);
        if self.is_joined {
            let first = [0, n, 2 * n].map(|i| AttrValue::Int(i as i64));
            by = by.with("heads", AttrValue::Int(n as i64));
            by = by.with("first_heads", AttrValue::List(first.into()));
        }
        let inputs: Vec<Tensor> = operands.iter().cloned().chain(mask.clone()).collect();
        let what = format!(
            "{:?} {} {:?} {:?}",
            self.sizes, self.dtype, self.mask, self.heads_first
        );
        let y = gpu.compute("_Attention", &by, &inputs, Inputs::OnDevice);
        let y = &y.unwrap_or_else(|e| panic!("{what}: {e}"))[0];
        let expected = self.expected(&operands, mask.as_ref(), scale.into(), fill.into());
        let expected = Tensor::from_slice(self.layout(3, t, n), &expected).expect("as many");
        // Weights are rounded to 10 bits of mantissa, or 7.
        let tol = if self.dtype == DType::Bfloat16 {
            1.6e-2
        } else {
            2e-3
        };
        let compared =
            tensors::compare(&cast(&expected, DType::Float), &cast(y, DType::Float), tol);
        compared.unwrap_or_else(|e| panic!("{what}: {e:.300}"));
    }
}

#[test]
fn attention_is_one_launch() {
    let _alone = alone(true);
    let Some(gpu) = Place::gpu(80) else {
        return;
    };
    for dtype in [DType::Float, DType::Half, DType::Bfloat16] {
        for (i, sizes) in SIZES.into_iter().enumerate() {
            for (j, mask) in MASKS.into_iter().enumerate() {
                let heads_first = [0, 1, 2, 3].map(|bit| (i + j) >> bit & 1 == 1);
                let call = Call {
                    sizes,
                    dtype,
                    mask,
                    heads_first,
                    is_joined: false,
                };
                call.check(&gpu);
            }
        }
        for heads_first in [[false; 4], [true; 4]] {
            let call = Call {
                sizes: [2, 2, 35, 35, 16],
                dtype,
                mask: Mask::KeyCondition,
                heads_first,
                is_joined: true,
            };
            call.check(&gpu);
        }
    }
}
