//! Slices of tensors in checkpoints: naming, cutting and assembling them (TensorFlow:
//! `core/framework/tensor_slice.cc`).

use crate::proto::TensorSliceProto;
use crate::proto::tensor_slice_proto::{Extent, extent::HasLength};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_tensor::{Shape, Tensor, dispatch_items};
use std::fmt;

/// A box inside a tensor: for each dimension a start and a length, or `None` for all of it.
///
/// ```
/// use ferroflow_model::TensorSlice;
/// let (shape, slice) = TensorSlice::parse_spec("5 4 1,3:-").unwrap();
/// assert_eq!(shape.dims(), [5, 4]);
/// assert_eq!(slice.to_string(), "1,3:-");
/// assert_eq!(slice.shape(&shape).unwrap().dims(), [3, 4]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSlice {
    extents: Vec<Option<(i64, i64)>>,
}

/// A box with known bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub start: Vec<usize>,
    pub size: Vec<usize>,
}

impl Bounds {
    /// Formats like TensorFlow's slice of a tensor of this shape.
    pub(crate) fn describe(&self, whole: &Shape) -> String {
        let extents = self.start.iter().zip(&self.size).zip(whole.dims());
        let extents = extents.map(|((start, size), all)| match size == all {
            true => "-".to_string(),
            false => format!("{start},{size}"),
        });
        extents.collect::<Vec<_>>().join(":")
    }
}

impl TensorSlice {
    /// Parses an element of the ops' `shape_and_slices`: the sizes of the whole tensor, then the
    /// slice.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the text is malformed.
    pub fn parse_spec(spec: &str) -> Result<(Shape, TensorSlice)> {
        let Some((dims, slice)) = spec.rsplit_once(' ') else {
            return Err(invalid_argument!(
                "Need least two elements in shape_and_slice specification: {spec}"
            ));
        };
        let dim = |d: &str| {
            d.parse::<i64>().ok().filter(|&d| d >= 0).ok_or_else(|| {
                invalid_argument!("Non numerical dimension in shape_and_slice: {spec}")
            })
        };
        let slice = Self::parse(slice)?;
        let dims = dims.split(' ').map(dim).collect::<Result<Vec<_>>>()?;
        let shape = Shape::checked(&dims)?;
        slice.bounds(&shape)?;
        Ok((shape, slice))
    }

    /// Returns the slice that is a whole tensor.
    pub fn all(whole: &Shape) -> TensorSlice {
        TensorSlice {
            extents: vec![None; whole.rank()],
        }
    }

    pub(crate) fn from_proto(proto: &TensorSliceProto) -> TensorSlice {
        let extent = |e: &Extent| {
            e.has_length
                .map(|HasLength::Length(length)| (e.start, length))
        };
        TensorSlice {
            extents: proto.extent.iter().map(extent).collect(),
        }
    }

    pub(crate) fn to_proto(&self) -> TensorSliceProto {
        let extent = |e: &Option<(i64, i64)>| Extent {
            start: e.map_or(0, |(start, _)| start),
            has_length: e.map(|(_, length)| HasLength::Length(length)),
        };
        TensorSliceProto {
            extent: self.extents.iter().map(extent).collect(),
        }
    }

    fn parse(text: &str) -> Result<TensorSlice> {
        let extent = |part: &str| {
            if part == "-" {
                return Ok(None);
            }
            let pair = part.split_once(',').and_then(|(start, length)| {
                Some((start.parse::<i64>().ok()?, length.parse::<i64>().ok()?))
            });
            let Some((start, length)) = pair else {
                return Err(invalid_argument!(
                    "Expected a pair of numbers or '-' but got '{part}': string = {text}"
                ));
            };
            if start < 0 || length <= 0 {
                return Err(invalid_argument!(
                    "Expected non-negative start and positive length but got start = {start}, \
                     length = {length}: string = {text}"
                ));
            }
            Ok(Some((start, length)))
        };
        let extents = text.split(':').map(extent).collect::<Result<_>>()?;
        Ok(TensorSlice { extents })
    }

    /// Returns the shape of this part of a tensor of shape `whole`.
    ///
    /// # Errors
    /// INTERNAL if the slice does not fit.
    pub fn shape(&self, whole: &Shape) -> Result<Shape> {
        Ok(self.bounds(whole)?.size.into_iter().collect())
    }

    pub(crate) fn bounds(&self, whole: &Shape) -> Result<Bounds> {
        if self.extents.len() != whole.rank() {
            return Err(internal!(
                "Mismatching ranks: shape = {whole}, slice = {self}"
            ));
        }
        let mut bounds = Bounds {
            start: Vec::new(),
            size: Vec::new(),
        };
        for (i, (extent, &dim)) in self.extents.iter().zip(whole.iter()).enumerate() {
            let (start, size) = match *extent {
                None => (0, dim),
                Some((start, length)) => {
                    let inside = usize::try_from(start)
                        .ok()
                        .zip(usize::try_from(length).ok());
                    let inside =
                        inside.filter(|(s, n)| s.checked_add(*n).is_some_and(|end| end <= dim));
                    inside.ok_or_else(|| {
                        internal!(
                            "Extent in dimension {i} out of bounds: shape = {whole}, slice = {self}"
                        )
                    })?
                }
            };
            bounds.start.push(start);
            bounds.size.push(size);
        }
        Ok(bounds)
    }

    /// Returns the key of this slice of tensor `name` in a bundle: an encoding whose order is that
    /// of the parts (TensorFlow: `core/util/saved_tensor_slice_util.cc`).
    pub(crate) fn key(&self, name: &str) -> Vec<u8> {
        let mut key = vec![0];
        for &byte in name.as_bytes() {
            key.push(byte);
            match byte {
                0 => key.push(0xff),
                0xff => key.push(0),
                _ => {}
            }
        }
        key.extend([0, 1]);
        unsigned(&mut key, self.extents.len() as u64);
        for extent in &self.extents {
            let (start, length) = extent.unwrap_or((0, -1));
            signed(&mut key, start);
            signed(&mut key, length);
        }
        key
    }
}

impl fmt::Display for TensorSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, extent) in self.extents.iter().enumerate() {
            f.write_str(if i > 0 { ":" } else { "" })?;
            match extent {
                None => f.write_str("-")?,
                Some((start, length)) => write!(f, "{start},{length}")?,
            }
        }
        Ok(())
    }
}

/// Appends the number of bytes, then those bytes, most significant first.
fn unsigned(out: &mut Vec<u8>, value: u64) {
    let n_bytes = (u64::BITS - value.leading_zeros()).div_ceil(8) as usize;
    out.push(n_bytes as u8);
    out.extend(&value.to_be_bytes()[8 - n_bytes..]);
}

/// Appends a header of as many ones (zeros for negative numbers) as there are bytes, then the
/// number.
fn signed(out: &mut Vec<u8>, value: i64) {
    let magnitude = if value < 0 { !value } else { value };
    let bits = i64::BITS - magnitude.leading_zeros();
    let n_bytes = (bits + 1).div_ceil(7).max(1) as usize;
    // Ten bytes hold header and number; shorter forms are a suffix of it.
    let mut bytes = [if value < 0 { 0xff } else { 0 }; 10];
    bytes[2..].copy_from_slice(&value.to_be_bytes());
    let header = ((1u32 << n_bytes) - 1) << (16 - n_bytes);
    let at = 10 - n_bytes;
    bytes[at] ^= (header >> 8) as u8;
    if n_bytes > 1 {
        bytes[at + 1] ^= header as u8;
    }
    out.extend(&bytes[at..]);
}

impl Bounds {
    /// Returns the bounds of a whole tensor.
    pub(crate) fn of(shape: &Shape) -> Bounds {
        Bounds {
            start: vec![0; shape.rank()],
            size: shape.to_vec(),
        }
    }

    pub(crate) fn num_elements(&self) -> usize {
        self.size.iter().product()
    }

    /// Returns the intersection of both boxes, if any.
    pub(crate) fn intersect(&self, other: &Bounds) -> Option<Bounds> {
        let mut out = Bounds {
            start: Vec::new(),
            size: Vec::new(),
        };
        for i in 0..self.start.len().min(other.start.len()) {
            let start = self.start[i].max(other.start[i]);
            let end = (self.start[i] + self.size[i]).min(other.start[i] + other.size[i]);
            out.start.push(start);
            out.size.push(end.checked_sub(start).filter(|&n| n > 0)?);
        }
        Some(out)
    }

    fn relative(&self, to: &Bounds) -> Vec<usize> {
        let pairs = self.start.iter().zip(&to.start);
        pairs.map(|(a, b)| a - b).collect()
    }
}

/// Copies the elements of `common`, a part of both boxes, between tensors that hold the boxes
/// `from_box` and `to_box`.
pub(crate) fn copy_box(
    from: &Tensor,
    from_box: &Bounds,
    to: &mut Tensor,
    to_box: &Bounds,
    common: &Bounds,
) -> Result<()> {
    let (from_at, to_at) = (common.relative(from_box), common.relative(to_box));
    dispatch_items!(from.dtype(), T => {
        let (source, target) = (from.items::<T>()?, to.items_mut::<T>()?);
        let rank = common.size.len();
        let row = common.size.last().copied().unwrap_or(1);
        let n_rows = common.size[..rank.saturating_sub(1)].iter().product::<usize>();
        for i in 0..n_rows {
            let (a, b) = (
                position(i, common, from_box, &from_at),
                position(i, common, to_box, &to_at),
            );
            match (source.get(a..a + row), target.get_mut(b..b + row)) {
                (Some(source), Some(target)) => target.clone_from_slice(source),
                _ => return Err(internal!("a slice is outside its tensor")),
            }
        }
        Ok(())
    })
}

/// Returns the start of row `i` of `common` in a tensor that holds the box `of`.
fn position(mut i: usize, common: &Bounds, of: &Bounds, at: &[usize]) -> usize {
    let mut position = at.last().copied().unwrap_or(0);
    let mut stride = of.size.last().copied().unwrap_or(1);
    for d in (0..at.len().saturating_sub(1)).rev() {
        position += (i % common.size[d] + at[d]) * stride;
        i /= common.size[d];
        stride *= of.size[d];
    }
    position
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_that_mean_nothing_are_refused() {
        for spec in [
            "",
            "5",
            "5 4 1,3",
            "5 4 1,9:-",
            "a b",
            "5 4 -1,2:-",
            "5 4 0,0:-",
            "-5 4 -:-",
            "5 4 9223372036854775807,9223372036854775807:-",
            "5 4 1,2:-:-",
        ] {
            assert!(TensorSlice::parse_spec(spec).is_err(), "{spec}");
        }
    }

    #[test]
    fn keys_sort_as_numbers_do() {
        let mut last = Vec::new();
        let numbers = [
            i64::MIN,
            -(1 << 40),
            -70,
            -65,
            -64,
            -2,
            -1,
            0,
            1,
            63,
            64,
            65,
            8191,
            8192,
            1 << 20,
            1 << 40,
            i64::MAX,
        ];
        for n in numbers {
            let mut key = Vec::new();
            signed(&mut key, n);
            assert!(key > last, "{n}: {key:x?} after {last:x?}");
            last = key;
        }
        assert_eq!(last.len(), 10);
    }
}
