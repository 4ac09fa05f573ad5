//! Attributes of StableHLO's ops.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_stablehlo::{Attr, Op};
use ferroflow_tensor::{DType, Tensor};

fn missing(op: &Op, name: &str) -> ferroflow_base::Status {
    invalid_argument!("the op {} has no valid attribute {name}", op.name)
}

/// The elements of a tensor of integers or conditions.
pub(super) fn integers(tensor: &Tensor) -> Option<Vec<i64>> {
    Some(match tensor.dtype() {
        DType::Bool => tensor
            .slice::<bool>()
            .ok()?
            .iter()
            .map(|b| i64::from(*b))
            .collect(),
        DType::Int32 => tensor
            .slice::<i32>()
            .ok()?
            .iter()
            .map(|n| i64::from(*n))
            .collect(),
        DType::Int64 => tensor.slice::<i64>().ok()?.to_vec(),
        _ => return None,
    })
}

/// A list of integers.
///
/// # Errors
/// INVALID_ARGUMENT if the op lacks it.
pub(super) fn ints(op: &Op, name: &str) -> Result<Vec<i64>> {
    let value = match op.attr(name) {
        Some(Attr::Tensor(tensor)) => integers(tensor),
        Some(Attr::Array(list)) => list
            .iter()
            .map(|item| match item {
                Attr::Int(n) => Some(*n),
                Attr::Bool(b) => Some(i64::from(*b)),
                _ => None,
            })
            .collect(),
        _ => None,
    };
    value.ok_or_else(|| missing(op, name))
}

/// A list of integers, or `default` for each of `n` if the list is empty or missing.
pub(super) fn ints_or(op: &Op, name: &str, n: usize, default: i64) -> Vec<i64> {
    match ints(op, name) {
        Ok(list) if !list.is_empty() => list,
        _ => vec![default; n],
    }
}

/// Positions of dimensions.
///
/// # Errors
/// As [`ints`], and if one is negative.
pub(super) fn dims(op: &Op, name: &str) -> Result<Vec<usize>> {
    let list = ints(op, name)?;
    let size = |n: &i64| usize::try_from(*n).map_err(|_| missing(op, name));
    list.iter().map(size).collect()
}

/// # Errors
/// INVALID_ARGUMENT if the op lacks it.
pub(super) fn int(op: &Op, name: &str) -> Result<i64> {
    match op.attr(name) {
        Some(Attr::Int(n)) => Ok(*n),
        _ => Err(missing(op, name)),
    }
}

/// The position of a dimension.
///
/// # Errors
/// As [`int`], and if it is negative.
pub(super) fn dim(op: &Op, name: &str) -> Result<usize> {
    usize::try_from(int(op, name)?).map_err(|_| missing(op, name))
}

/// A condition, `false` if the op lacks it.
pub(super) fn flag(op: &Op, name: &str) -> bool {
    matches!(op.attr(name), Some(Attr::Bool(true)))
}

/// # Errors
/// INVALID_ARGUMENT if the op lacks it.
pub(super) fn text<'o>(op: &'o Op, name: &str) -> Result<&'o str> {
    match op.attr(name) {
        Some(Attr::Str(text)) => Ok(text),
        Some(Attr::Enum(text)) => Ok(text),
        _ => Err(missing(op, name)),
    }
}

/// # Errors
/// INVALID_ARGUMENT if the op lacks it.
pub(super) fn float(op: &Op, name: &str) -> Result<f32> {
    match op.attr(name) {
        Some(Attr::Float(value)) => Ok(*value as f32),
        _ => Err(missing(op, name)),
    }
}

/// A dimension on which windows move: its size and dilation, the padding on both sides, and the size, dilation and step of
/// windows.
pub(super) struct Axis {
    pub(super) size: Option<usize>,
    pub(super) base_dilation: i64,
    pub(super) pads: [i64; 2],
    pub(super) window: Option<usize>,
    pub(super) dilation: i64,
    pub(super) stride: i64,
}

impl Axis {
    /// Checks that as many windows fit as the result has.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if not, or if a step or a dilation is not positive.
    pub(super) fn check(&self, result: Option<usize>) -> Result<()> {
        if self.stride < 1 || self.dilation < 1 || self.base_dilation < 1 {
            return Err(invalid_argument!(
                "steps and dilations of windows must be positive"
            ));
        }
        let (Some(size), Some(window), Some(result)) = (self.size, self.window, result) else {
            return Ok(());
        };
        let spread = |n: usize, by: i64| match n as i128 {
            0 => 0,
            n => (n - 1) * i128::from(by) + 1,
        };
        let pads = i128::from(self.pads[0]) + i128::from(self.pads[1]);
        let room = spread(size, self.base_dilation) + pads - spread(window, self.dilation);
        let fit = if room < 0 {
            0
        } else {
            room / i128::from(self.stride) + 1
        };
        match fit == result as i128 {
            true => Ok(()),
            false => Err(invalid_argument!(
                "{fit} windows fit into a dimension of which the result has {result}"
            )),
        }
    }
}

/// A message of protobuf whose fields are lists of integers, by their numbers (XLA: `xla_data.proto`).
pub(super) fn message(fields: &[(u32, &[i64])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (tag, values) in fields {
        for value in *values {
            varint(&mut out, u64::from(tag << 3));
            varint(&mut out, *value as u64);
        }
    }
    out
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_protobuf() {
        assert_eq!(
            message(&[(1, &[0, 300]), (4, &[1])]),
            [8, 0, 8, 0xac, 2, 32, 1]
        );
    }
}
