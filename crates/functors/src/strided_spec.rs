//! Strided slices: TensorFlow's begin/end/strides with their five masks, resolved against a shape
//! (TensorFlow: `core/util/strided_slice_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::Attrs;
use ferroflow_tensor::PartialShape;
use smallvec::SmallVec;

/// The masks of the StridedSlice ops; bit `i` applies to element `i` of the spec.
#[derive(Clone, Copy, Debug, Default)]
pub struct Masks {
    begin: i64,
    end: i64,
    ellipsis: i64,
    new_axis: i64,
    shrink_axis: i64,
}

impl Masks {
    /// Returns the masks in a node's attrs.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an attr is missing.
    pub fn from_attrs(attrs: &Attrs) -> Result<Self> {
        Ok(Masks {
            begin: attrs.int("begin_mask")?,
            end: attrs.int("end_mask")?,
            ellipsis: attrs.int("ellipsis_mask")?,
            new_axis: attrs.int("new_axis_mask")?,
            shrink_axis: attrs.int("shrink_axis_mask")?,
        })
    }
}

/// One input dimension of a resolved spec: elements `begin`, `begin + stride`, … as many as `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DimSpan {
    /// The first element; meaningful only when `len` is known and not 0.
    pub begin: i64,
    /// Distance between elements.
    pub stride: i64,
    /// Number of elements, if known.
    pub len: Option<usize>,
}

/// A spec resolved against an input shape.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// One for every input dimension.
    pub spans: SmallVec<[DimSpan; 4]>,
    /// The output's dimensions: with new axes, without shrunk ones.
    pub shape: SmallVec<[Option<usize>; 4]>,
}

/// The slice of one input dimension.
#[derive(Clone, Copy)]
struct DimSlice {
    begin: Option<i64>,
    end: Option<i64>,
    stride: i64,
    begin_masked: bool,
    end_masked: bool,
    shrink: bool,
}

const WHOLE: DimSlice = DimSlice {
    begin: Some(0),
    end: Some(0),
    stride: 1,
    begin_masked: true,
    end_masked: true,
    shrink: false,
};

/// The source of an output dimension.
enum Source {
    New,
    Input(usize),
}

/// A spec of all input dimensions.
#[derive(Default)]
struct Dense {
    slices: SmallVec<[DimSlice; 4]>,
    /// The output dimensions.
    outputs: SmallVec<[Source; 6]>,
}

/// Resolves a spec against `dims`. `begin` and `end` may be unknown to shape inference.
///
/// # Errors
/// INVALID_ARGUMENT if the spec is not valid or does not fit.
pub fn resolve(
    dims: &[Option<usize>],
    begin: Option<&[i64]>,
    end: Option<&[i64]>,
    strides: &[i64],
    masks: Masks,
) -> Result<Resolved> {
    let n = strides.len();
    let wrong = |v: Option<&[i64]>| v.is_some_and(|v| v.len() != n);
    if n >= 32 || wrong(begin) || wrong(end) {
        return Err(invalid_argument!(
            "Expected begin, end, and strides to be 1D equal size tensors, but got shapes [{}], \
             [{}], and [{n}] instead.",
            begin.map_or(n, <[i64]>::len),
            end.map_or(n, <[i64]>::len)
        ));
    }
    if masks.ellipsis & masks.ellipsis.wrapping_sub(1) != 0 {
        return Err(invalid_argument!(
            "Multiple ellipses in slice spec not allowed"
        ));
    }
    let Dense { slices, outputs } = dense(dims, begin, end, strides, masks)?;
    let spans = slices
        .iter()
        .zip(dims)
        .enumerate()
        .map(|(i, (d, &dim))| span(i, d, dim))
        .collect::<Result<SmallVec<[DimSpan; 4]>>>()?;
    let shape = outputs
        .iter()
        .map(|source| match source {
            Source::New => Some(1),
            Source::Input(i) => spans[*i].len,
        })
        .collect();
    Ok(Resolved { spans, shape })
}

/// Spreads the elements of a spec over the input dimensions.
fn dense(
    dims: &[Option<usize>],
    begin: Option<&[i64]>,
    end: Option<&[i64]>,
    strides: &[i64],
    masks: Masks,
) -> Result<Dense> {
    let n = strides.len();
    let bit = |mask: i64, i: usize| mask >> i & 1 == 1;
    let ellipsis = (0..n).find(|&i| bit(masks.ellipsis, i)).unwrap_or(n);
    let new_axes_after = (ellipsis..n)
        .filter(|&i| i > ellipsis && bit(masks.new_axis, i))
        .count();
    let mut dense = Dense::default();
    for i in 0..n.max(ellipsis + 1) {
        let at = dense.slices.len();
        if i == ellipsis {
            // The ellipsis covers the dimensions that the elements after it leave.
            let after = n.saturating_sub(i + 1);
            let next = (dims.len() + new_axes_after)
                .saturating_sub(after)
                .min(dims.len());
            for at in at..next {
                dense.outputs.push(Source::Input(at));
                dense.slices.push(WHOLE);
            }
        } else if bit(masks.new_axis, i) {
            dense.outputs.push(Source::New);
        } else if at == dims.len() {
            return Err(match dims.len() {
                0 => invalid_argument!("Attempting to slice scalar input."),
                rank => invalid_argument!(
                    "Index out of range using input dim {rank}; input has only {rank} dims"
                ),
            });
        } else {
            let shrink = bit(masks.shrink_axis, i);
            if !shrink {
                dense.outputs.push(Source::Input(at));
            }
            dense.slices.push(DimSlice {
                begin: begin.map(|b| b[i]),
                end: end.map(|e| e[i]),
                stride: strides[i],
                begin_masked: bit(masks.begin, i),
                end_masked: bit(masks.end, i),
                shrink,
            });
        }
    }
    Ok(dense)
}

fn span(i: usize, d: &DimSlice, dim: Option<usize>) -> Result<DimSpan> {
    if d.stride == 0 {
        return Err(invalid_argument!("strides[{i}] must be non-zero"));
    }
    if d.shrink && d.stride < 0 {
        return Err(invalid_argument!(
            "only stride 1 allowed on non-range indexing."
        ));
    }
    let Some(dim) = dim else {
        return Ok(DimSpan {
            begin: 0,
            stride: d.stride,
            len: d.shrink.then_some(1),
        });
    };
    let dim = dim as i64;
    if d.shrink {
        let Some(begin) = d.begin else {
            return Ok(DimSpan {
                begin: 0,
                stride: 1,
                len: Some(1),
            });
        };
        let at = if begin < 0 {
            begin.wrapping_add(dim)
        } else {
            begin
        };
        if at < 0 || at >= dim {
            return Err(invalid_argument!(
                "slice index {at} of dimension {i} out of bounds."
            ));
        }
        return Ok(DimSpan {
            begin: at,
            stride: 1,
            len: Some(1),
        });
    }
    let forward = d.stride > 0;
    let (lo, hi) = if forward { (0, dim) } else { (-1, dim - 1) };
    let clamp = |x: i64| (if x < 0 { x.saturating_add(dim) } else { x }).clamp(lo, hi);
    let begin = if d.begin_masked {
        Some(if forward { lo } else { hi })
    } else {
        d.begin.map(clamp)
    };
    let end = if d.end_masked {
        Some(if forward { hi } else { lo })
    } else {
        d.end.map(clamp)
    };
    let len = match (begin, end) {
        (Some(b), Some(e)) if (forward && b < e) || (!forward && b > e) => {
            Some((e.abs_diff(b)).div_ceil(d.stride.unsigned_abs()) as usize)
        }
        (Some(_), Some(_)) => Some(0),
        _ => None,
    };
    Ok(DimSpan {
        begin: begin.unwrap_or(0),
        stride: d.stride,
        len,
    })
}

/// Returns the output shape for shape inference.
///
/// # Errors
/// As for [`resolve`].
pub fn infer(
    input: &PartialShape,
    begin: Option<&[i64]>,
    end: Option<&[i64]>,
    strides: &[i64],
    masks: Masks,
) -> Result<PartialShape> {
    match input.dims() {
        None => Ok(PartialShape::unknown()),
        Some(dims) => Ok(PartialShape::of(
            resolve(dims, begin, end, strides, masks)?.shape,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ellipsis_new_axis_and_shrink() {
        // x[1, ..., None, ::-2] of shape [3, 4, 5, 6]
        let masks = Masks {
            begin: 8,
            end: 8,
            ellipsis: 2,
            new_axis: 4,
            shrink_axis: 1,
        };
        let dims = [Some(3), Some(4), Some(5), Some(6)];
        let begin = [1, 0, 0, 0];
        let r = resolve(&dims, Some(&begin), Some(&begin), &[1, 1, 1, -2], masks).unwrap();
        assert_eq!(r.shape[..], [Some(4), Some(5), Some(1), Some(3)]);
        assert_eq!(
            r.spans[3],
            DimSpan {
                begin: 5,
                stride: -2,
                len: Some(3)
            }
        );
        let unknown = resolve(&dims, None, None, &[1, 1, 1, -2], masks).unwrap();
        assert_eq!(unknown.shape, r.shape);
    }

    #[test]
    fn hostile_specs_are_errors() {
        let none = Masks::default();
        let dims = [Some(3)];
        assert!(resolve(&dims, Some(&[0]), Some(&[1]), &[0], none).is_err());
        assert!(resolve(&dims, Some(&[0, 0]), Some(&[1, 1]), &[1, 1], none).is_err());
        assert!(resolve(&dims, Some(&[0]), Some(&[1, 1]), &[1], none).is_err());
        let shrink = Masks {
            shrink_axis: 1,
            ..none
        };
        assert!(resolve(&dims, Some(&[3]), Some(&[4]), &[1], shrink).is_err());
        let big = [i64::MIN];
        let r = resolve(&dims, Some(&big), Some(&[i64::MAX]), &[i64::MAX], none).unwrap();
        assert_eq!(r.shape[..], [Some(1)]);
        let r = resolve(&dims, Some(&[i64::MAX]), Some(&big), &[i64::MIN], none).unwrap();
        assert_eq!(r.shape[..], [Some(1)]);
    }
}
