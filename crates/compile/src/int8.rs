//! [`Int8`]: whether products run on 8-bit codes, and what calibration found.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether products and convolutions run on 8-bit codes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Int8 {
    /// They do not.
    #[default]
    Off,
    /// They do where the ranges of their inputs are known: from FakeQuant nodes and the like, and from
    /// these.
    On(Arc<Ranges>),
    /// They do not, but each tensor whose range matters becomes a further result of the graph, a `_Retval`
    /// with the attr [`OBSERVED`].
    Observe,
    /// As [`Int8::On`], and what each product lacks in the mean of each output channel, compared with the
    /// graph of floats, is added to it and becomes a further result: a `_Retval` with the attr
    /// [`OBSERVED`]. Each product is corrected for what the corrected ones before it still lose (Nagel et
    /// al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019, empirical
    /// bias correction).
    Correct(Arc<Ranges>),
}

impl Int8 {
    /// Returns what holds for the functions of a graph: ranges that their own nodes say.
    pub(crate) fn in_functions(&self) -> Int8 {
        match self {
            Int8::Off | Int8::Observe => Int8::Off,
            Int8::On(_) | Int8::Correct(_) => Int8::On(Arc::default()),
        }
    }
}

/// The attr with the name under which [`Ranges`] has the range, or the correction, of a `_Retval`'s tensor.
pub const OBSERVED: &str = "_observed";

/// The lowest and the highest number of tensors, by name, and the means and corrections of their channels, as a
/// calibration found them.
///
/// ```
/// let mut ranges = ferroflow_compile::Ranges::default();
/// ranges.add("x:0", (-1.0, 2.0));
/// ranges.add("x:0", (0.0, 3.0));
/// assert_eq!(ranges.get("x:0"), Some((-1.0, 3.0)));
/// ranges.set_means("x:0", &[0.5, 1.5]);
/// assert_eq!(ranges.means("x:0"), Some(vec![0.5, 1.5]));
/// ranges.set_corrections("x:0", &[0.25, -0.5]);
/// assert_eq!(ranges.corrections("x:0"), Some(vec![0.25, -0.5]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ranges {
    /// The bits of floats: options are compared and hashed.
    limits: BTreeMap<String, [u32; 2]>,
    means: BTreeMap<String, Vec<u32>>,
    corrections: BTreeMap<String, Vec<u32>>,
    pub(crate) two_codes: bool,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|bits| f32::from_bits(*bits)).collect()
}

impl Ranges {
    /// Returns no ranges; `two_codes` says whether convolutions that expand a tensor of few channels read two codes of
    /// each number.
    pub fn new(two_codes: bool) -> Self {
        Ranges {
            two_codes,
            ..Ranges::default()
        }
    }

    /// Returns the range of a tensor.
    pub fn get(&self, name: &str) -> Option<(f32, f32)> {
        let [low, high] = self.limits.get(name)?.map(f32::from_bits);
        Some((low, high))
    }

    /// Widens the range of a tensor; numbers that are not finite do not count.
    pub fn add(&mut self, name: &str, (low, high): (f32, f32)) {
        if !low.is_finite() || !high.is_finite() {
            return;
        }
        let (low, high) = match self.get(name) {
            Some((old_low, old_high)) => (low.min(old_low), high.max(old_high)),
            None => (low, high),
        };
        let bits = [low.to_bits(), high.to_bits()];
        self.limits.insert(name.to_string(), bits);
    }

    /// Returns the mean of each channel, the last axis, of a tensor.
    pub fn means(&self, name: &str) -> Option<Vec<f32>> {
        Some(floats(self.means.get(name)?))
    }

    /// Sets the mean of each channel of a tensor.
    pub fn set_means(&mut self, name: &str, means: &[f32]) {
        self.means.insert(name.to_string(), bits(means));
    }

    /// Returns what is added to each channel of a product on codes.
    pub fn corrections(&self, name: &str) -> Option<Vec<f32>> {
        Some(floats(self.corrections.get(name)?))
    }

    /// Sets what is added to each channel of a product on codes.
    pub fn set_corrections(&mut self, name: &str, corrections: &[f32]) {
        let corrections = bits(corrections);
        self.corrections.insert(name.to_string(), corrections);
    }
}
