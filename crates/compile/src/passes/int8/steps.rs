//! The numbers that codes stand for, as ranges and nodes say it.

use crate::view::View;
use ferroflow_graph::{Node, Output};

/// Codes between `low` and `high`, which stand for `(code - zero) * scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Steps {
    pub scale: f32,
    pub zero: u8,
    pub low: u8,
    pub high: u8,
}

impl Steps {
    /// Steps between limits, nudged so that zero is one of them (TensorFlow:
    /// `core/kernels/fake_quant_ops_functor.h`); `None` if they are not finite or there are none.
    fn nudged(min: f32, max: f32, low: u8, high: u8) -> Option<Steps> {
        let scale = (max - min) / f32::from(high - low);
        if !(scale.is_finite() && scale > 0.0 && (1.0 / scale).is_finite()) {
            return None;
        }
        let zero = f32::from(low) - min / scale;
        let zero = zero.clamp(f32::from(low), f32::from(high)).round() as u8;
        Some(Steps {
            scale,
            zero,
            low,
            high,
        })
    }

    /// The steps of a tensor with numbers in a range.
    pub(super) fn of_range((min, max): (f32, f32)) -> Option<Steps> {
        Steps::nudged(min.min(0.0), max.max(0.0), 0, 255)
    }

    /// The code of a number, not rounded.
    pub(super) fn place(&self, x: f64) -> f64 {
        x / f64::from(self.scale) + f64::from(self.zero)
    }

    /// The steps of a node that rounds to steps between constants.
    pub(super) fn of_node(view: &View, node: &Node) -> Option<Steps> {
        if node.op().starts_with("FakeQuant") {
            let bits = node.attrs.int("num_bits").ok()?;
            let low = u8::from(node.attrs.bool("narrow_range").ok()?);
            let high = highest(bits)?;
            let (min, max) = match node.op() {
                "FakeQuantWithMinMaxArgs" => {
                    (node.attrs.float("min").ok()?, node.attrs.float("max").ok()?)
                }
                "FakeQuantWithMinMaxVars" => (
                    view.scalar(*node.inputs.get(1)?)?,
                    view.scalar(*node.inputs.get(2)?)?,
                ),
                _ => return None,
            };
            return Steps::nudged(min, max, low, high);
        }
        match node.op() {
            "QuantizeAndDequantizeV2" | "QuantizeAndDequantizeV3" | "QuantizeAndDequantizeV4" => {
                quantize_and_dequantize(view, node)
            }
            _ => None,
        }
    }
}

/// The highest code of this many bits.
fn highest(bits: i64) -> Option<u8> {
    match (2..=8).contains(&bits) {
        true => Some(((1u32 << bits) - 1) as u8),
        false => None,
    }
}

/// Steps around zero (TensorFlow: `core/kernels/quantize_and_dequantize_op.h`).
fn quantize_and_dequantize(view: &View, node: &Node) -> Option<Steps> {
    let bits = match node.op() {
        "QuantizeAndDequantizeV3" => {
            let bits = view.constant(*node.inputs.get(3)?)?.get().ok()?;
            i64::from(bits.to_scalar::<i32>().ok()?)
        }
        _ => node.attrs.int("num_bits").ok()?,
    };
    let per_channel = node.attrs.int("axis").ok().is_some_and(|axis| axis != -1);
    if !node.attrs.bool("range_given").ok()? || per_channel {
        return None;
    }
    let range = |at: usize| -> Option<f32> { view.scalar(*node.inputs.get(at)?) };
    let (min, max) = (range(1)?, range(2)?);
    let highest = highest(bits)?;
    if !node.attrs.bool("signed_input").ok()? {
        let scale = max / f32::from(highest);
        let is_sane = scale.is_finite() && scale > 0.0 && min >= 0.0;
        return is_sane.then_some(Steps {
            scale,
            zero: 0,
            low: 0,
            high: highest,
        });
    }
    let half = highest / 2;
    let narrow = node.attrs.bool("narrow_range").unwrap_or(false);
    let lowest = f32::from(half) + if narrow { 0.0 } else { 1.0 };
    let scale = (max / f32::from(half)).max(-min / lowest);
    let is_sane = scale.is_finite() && scale > 0.0;
    is_sane.then_some(Steps {
        scale,
        zero: half + 1,
        low: u8::from(narrow),
        high: highest,
    })
}

/// The name of an output among ranges.
pub(super) fn range_name(view: &View, output: Output) -> String {
    format!("{}:{}", view.node(output.node).name, output.slot)
}
