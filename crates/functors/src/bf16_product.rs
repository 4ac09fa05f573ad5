//! Products of `bfloat16` matrices by the CPU's instructions for them.

use ferroflow_base::Result;
use ferroflow_primitives::bf16::{Bf16Weights, bf16_gemm};
use ferroflow_primitives::gemm::{BatchItem, Epilogue, GemmShape};
use ferroflow_primitives::transpose::permute_elements;
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{DType, Shape, Tensor};

/// The least rows and columns and the shortest reduction for which packing the right-hand matrix pays.
const LEAST: usize = 32;

/// Returns whether a product is of `bfloat16` numbers, for which the CPU has instructions, and is worth packing for them.
pub fn is_worth_pairs(dtype: DType, s: &GemmShape) -> bool {
    dtype == DType::Bfloat16
        && s.m >= LEAST
        && s.k >= LEAST
        && s.n >= LEAST
        && Bf16Weights::is_supported()
}

/// Writes `batch` products as [`MatMulElement::products`](crate::product::MatMulElement::products) does, of matrices
/// whose elements are `bfloat16` numbers in single precision; sums are in single precision.
///
/// # Errors
/// RESOURCE_EXHAUSTED if a transposed matrix does not fit into memory.
pub fn products_of_pairs(
    par: &dyn Parallelism,
    batch: usize,
    s: &GemmShape,
    [a, b]: [&[f32]; 2],
    out: &mut [f32],
    item: &(dyn Fn(usize) -> BatchItem + Sync),
    ep: &Epilogue<'_>,
) -> Result<()> {
    let size = if s.trans_a { s.m * s.k } else { 0 };
    let mut rows = Tensor::for_overwrite(DType::Float, Shape::from([size]))?;
    let mut packed: Option<(usize, Bf16Weights)> = None;
    for (i, out) in out.chunks_mut(s.m * s.n).take(batch).enumerate() {
        let at = item(i);
        let weights = match packed.take().filter(|(start, _)| *start == at.b) {
            Some((_, weights)) => weights,
            None => Bf16Weights::new(par, &b[at.b..], [s.k, s.n], s.trans_b),
        };
        let a = match s.trans_a {
            true => {
                let rows = rows.slice_mut::<f32>()?;
                permute_elements(par, &[s.k, s.m], &[1, 0], &a[at.a..][..rows.len()], rows);
                &*rows
            }
            false => &a[at.a..],
        };
        bf16_gemm(par, a, s.k, s.m, &weights, out, s.n, ep);
        packed = Some((at.b, weights));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::MatMulElement;
    use ferroflow_sync::Inline;
    use ferroflow_tensor::bf16;

    /// Small integers, whose products and sums are exact.
    fn numbers(n: usize, seed: usize) -> Vec<bf16> {
        let number = |i: usize| ((i * 7 + seed) % 11) as f32 - 5.0;
        (0..n).map(|i| bf16::from_f32(number(i))).collect()
    }

    #[test]
    fn products_are_those_of_single_precision() {
        for [m, n, k] in [[32, 32, 32], [33, 70, 45], [64, 31, 40]] {
            for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
                let s = GemmShape::dense(m, n, k, trans_a, trans_b);
                // The first two share the right-hand matrix.
                let item = |i: usize| BatchItem {
                    a: i * m * k,
                    b: i / 2 * k * n,
                    out: 0,
                };
                let (a, b) = (numbers(3 * m * k, 1), numbers(2 * k * n, 4));
                let (mut got, mut want) = (vec![bf16::ZERO; 3 * m * n], vec![0f32; 3 * m * n]);
                bf16::products(&Inline, 3, &s, &a, &b, &mut got, &item).unwrap();
                let wide = |x: &[bf16]| x.iter().map(|x| x.to_f32()).collect::<Vec<_>>();
                f32::products(&Inline, 3, &s, &wide(&a), &wide(&b), &mut want, &item).unwrap();
                let want: Vec<bf16> = want.iter().map(|x| bf16::from_f32(*x)).collect();
                assert_eq!(got, want, "{s:?}");
            }
        }
    }
}
