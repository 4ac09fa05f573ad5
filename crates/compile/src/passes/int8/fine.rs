//! Tensors that have two codes of each number: one of 256 steps, and one of what it leaves of the number.
//!
//! A tensor that no activation has clamped and that has few channels, such as the linear bottleneck between inverted
//! residuals (Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018), has no redundancy
//! that averages its rounding out, and hands it on to all that follows: in a trained MobileNetV2 most of the error of
//! codes comes from these. They stay floats here, sums of them too. The convolutions that expand them to many channels
//! read both codes as two input channels, whose weights differ by [`PARTS`]; since the input is the small side of
//! these, that costs little.

use super::steps::Steps;
use super::{Part, Role};
use ferroflow_graph::Output;
use rustc_hash::{FxHashMap, FxHashSet};

/// How many steps of the second code are one of the first. With more the weights of the second, which are as much
/// smaller, would be too coarse.
pub(super) const PARTS: u8 = 8;

/// How many output channels a convolution needs for each input channel to read two codes.
const EXPANDS: usize = 5;

impl Steps {
    /// Whether there are steps on both sides of zero for what a first code leaves.
    fn have_signs(self) -> bool {
        let signs = PARTS..=u8::MAX - PARTS;
        (self.low, self.high) == (0, u8::MAX) && signs.contains(&self.zero)
    }
}

/// Notes which products read two codes, and returns the tensors that these are of.
pub(super) fn choose(parts: &mut [Part], steps: &FxHashMap<Output, Steps>) -> FxHashSet<Output> {
    let has_codes = |part: &&Part| part.tail.is_rounded || !matches!(part.role, Role::Product(_));
    let codes: FxHashSet<Output> = parts
        .iter()
        .filter(has_codes)
        .map(|part| part.tail.end)
        .collect();
    let mut chosen = FxHashSet::default();
    for part in parts {
        let Role::Product(product) = &mut part.role else {
            continue;
        };
        let input = product.input;
        let has_signs = steps.get(&input).is_some_and(|steps| steps.have_signs());
        product.is_fine = has_signs && !codes.contains(&input) && product.expands(EXPANDS);
        if product.is_fine {
            chosen.insert(input);
        }
    }
    chosen
}

/// The codes of weights with those for second codes after each row of `n` output channels.
pub(super) fn weights(codes: &[i8], n: usize) -> Vec<i8> {
    let mut all = Vec::with_capacity(2 * codes.len());
    for row in codes.chunks_exact(n.max(1)) {
        let part = |code: &i8| (f32::from(*code) / f32::from(PARTS)).round_ties_even() as i8;
        all.extend_from_slice(row);
        all.extend(row.iter().map(part));
    }
    all
}
