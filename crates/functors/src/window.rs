//! Sliding windows over images and volumes, for convolutions and pooling.

use crate::transpose::transposed;
use ferroflow_base::{Result, Status, invalid_argument, unimplemented_error};
use ferroflow_opdef::{Attrs, KernelCtx};
use ferroflow_tensor::{Shape, Tensor};
use smallvec::SmallVec;

/// The order of dimensions of a batch of images or volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Whether channels are the last dimension (NHWC) rather than the second (NCHW).
    pub channels_last: bool,
    /// 2 for images, 3 for volumes.
    pub spatial: usize,
}

/// Channels-last images.
pub const NHWC: Layout = Layout {
    channels_last: true,
    spatial: 2,
};

impl Layout {
    /// Returns the layout of the attr `data_format`; channels-last images if there is none.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an unknown format, UNIMPLEMENTED for one without a CPU kernel.
    pub fn of(attrs: &Attrs) -> Result<Layout> {
        if attrs.get("data_format").is_none() {
            return Ok(NHWC);
        }
        let (channels_last, spatial) = match attrs.str("data_format")? {
            "NHWC" => (true, 2),
            "NCHW" => (false, 2),
            "NDHWC" => (true, 3),
            "NCDHW" => (false, 3),
            // For the op Conv, the strides determine the number of axes.
            format @ ("CHANNELS_LAST" | "CHANNELS_FIRST") => {
                let spatial = attrs.list("strides")?.len().wrapping_sub(2);
                if !(2..=3).contains(&spatial) {
                    return Err(invalid_argument!(
                        "Sliding window strides field must specify 4 or 5 dimensions"
                    ));
                }
                (format == "CHANNELS_LAST", spatial)
            }
            format @ "NCHW_VECT_C" => {
                return Err(unimplemented_error!(
                    "The data format {format} is not supported on the CPU"
                ));
            }
            _ => return Err(invalid_argument!("Invalid data format")),
        };
        Ok(Layout {
            channels_last,
            spatial,
        })
    }

    /// Returns the number of dimensions, including batch and channels.
    pub fn rank(self) -> usize {
        self.spatial + 2
    }

    /// Returns the position of the channels.
    pub fn channel(self) -> usize {
        if self.channels_last {
            self.rank() - 1
        } else {
            1
        }
    }

    /// Returns the position of spatial dimension `i`.
    pub fn axis(self, i: usize) -> usize {
        if self.channels_last { i + 1 } else { i + 2 }
    }

    /// Returns a shape in this layout.
    pub fn shape<T>(
        self,
        batch: T,
        spatial: impl IntoIterator<Item = T>,
        channels: T,
    ) -> SmallVec<[T; 6]> {
        let mut dims = SmallVec::new();
        dims.push(batch);
        dims.extend(spatial);
        let at = if self.channels_last { dims.len() } else { 1 };
        dims.insert(at, channels);
        dims
    }

    /// Converts `t` from this layout to channels last.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the result does not fit into memory.
    pub fn to_last(self, ctx: &KernelCtx, t: Tensor) -> Result<Tensor> {
        match (self.channels_last, self.spatial) {
            (true, _) => Ok(t),
            (_, 2) => transposed(ctx, t, &[0, 2, 3, 1]),
            _ => transposed(ctx, t, &[0, 2, 3, 4, 1]),
        }
    }

    /// Converts `t` from channels last to this layout.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the result does not fit into memory.
    pub fn restored(self, ctx: &KernelCtx, t: Tensor) -> Result<Tensor> {
        match (self.channels_last, self.spatial) {
            (true, _) => Ok(t),
            (_, 2) => transposed(ctx, t, &[0, 3, 1, 2]),
            _ => transposed(ctx, t, &[0, 4, 1, 2, 3]),
        }
    }
}

/// The padding around an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pad {
    /// No padding.
    Valid,
    /// Padding such that the output has `ceil(input / stride)` positions.
    Same,
    /// Padding before and after.
    Explicit(i64, i64),
}

/// The placement of windows along one axis.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Step between windows.
    pub stride: i64,
    /// Step between the elements of a window.
    pub dilation: i64,
    /// Padding.
    pub pad: Pad,
}

/// The rules of the spatial axes.
pub type Rules = SmallVec<[Rule; 3]>;

/// An axis with windows on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Size of the input.
    pub input: usize,
    /// Size of the window.
    pub window: usize,
    /// Step between windows.
    pub stride: usize,
    /// Step between the elements of a window.
    pub dilation: usize,
    /// Positions before the input where the first window starts.
    pub before: usize,
    /// Size of the output.
    pub output: usize,
}

impl Placed {
    /// An axis of length one.
    pub const ONE: Placed = Placed {
        input: 1,
        window: 1,
        stride: 1,
        dilation: 1,
        before: 0,
        output: 1,
    };
}

impl Rule {
    /// Places windows on an axis of `input` positions.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the output would be negative or the numbers are too large.
    pub fn place(&self, input: usize, window: usize) -> Result<Placed> {
        if self.stride <= 0 {
            return Err(invalid_argument!(
                "Stride must be > 0, but got {}",
                self.stride
            ));
        }
        if self.dilation < 1 {
            return Err(invalid_argument!(
                "Dilation rate must be >= 1, but got {}",
                self.dilation
            ));
        }
        let (n, stride) = (input as i128, i128::from(self.stride));
        let reach = (window as i128 - 1) * i128::from(self.dilation) + 1;
        let (output, before) = match self.pad {
            Pad::Valid => ((n - reach + stride) / stride, 0),
            Pad::Explicit(before, after) => {
                let n = n + i128::from(before) + i128::from(after);
                ((n - reach + stride) / stride, i128::from(before))
            }
            Pad::Same => {
                let output = (n + stride - 1) / stride;
                let needed = ((output - 1) * stride + reach - n).max(0);
                (output, needed / 2)
            }
        };
        if output < 0 {
            return Err(invalid_argument!(
                "Computed output size would be negative: {output} [input_size: {input}, \
                 effective_filter_size: {reach}, stride: {stride}]"
            ));
        }
        if reach > i128::from(i32::MAX) || output > i128::from(i64::MAX) {
            return Err(invalid_argument!(
                "windows of {reach} over {input} positions are too large"
            ));
        }
        Ok(Placed {
            input,
            window,
            stride: self.stride as usize,
            dilation: self.dilation as usize,
            before: before as usize,
            output: output as usize,
        })
    }

    /// Returns the output size as far as it is known.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the output would be negative or the numbers are too large.
    pub fn output(&self, input: Option<usize>, window: Option<usize>) -> Result<Option<usize>> {
        let window = match (self.pad, window) {
            (Pad::Same, None) => 1,
            (_, Some(window)) => window,
            _ => return Ok(None),
        };
        input.map(|n| Ok(self.place(n, window)?.output)).transpose()
    }
}

/// Returns a list attr of numbers that TensorFlow stores in 32 bits.
///
/// # Errors
/// INVALID_ARGUMENT if the attr is missing or a number does not fit.
pub fn ints32(attrs: &Attrs, name: &str) -> Result<Vec<i64>> {
    let values = attrs.ints(name)?;
    match values.iter().find(|&&v| i32::try_from(v).is_err()) {
        Some(v) => Err(invalid_argument!(
            "Attr {name} has value {v} out of range for an int32"
        )),
        None => Ok(values),
    }
}

/// Returns the padding of each spatial axis from the attrs `padding` and `explicit_paddings`.
///
/// # Errors
/// INVALID_ARGUMENT if the attrs are missing or do not fit each other.
pub fn pads(attrs: &Attrs, layout: Layout) -> Result<SmallVec<[Pad; 3]>> {
    let pad = match attrs.str("padding")? {
        "EXPLICIT" => None,
        "SAME" => Some(Pad::Same),
        "VALID" => Some(Pad::Valid),
        other => return Err(invalid_argument!("Unknown padding type: {other}")),
    };
    if let Some(pad) = pad {
        return Ok(SmallVec::from_elem(pad, layout.spatial));
    }
    let explicit = ints32(attrs, "explicit_paddings")?;
    if explicit.len() != 2 * layout.rank() {
        return Err(invalid_argument!(
            "explicit_paddings attribute must contain {} values, but got: {}",
            2 * layout.rank(),
            explicit.len()
        ));
    }
    if explicit.iter().any(|&p| p < 0) {
        return Err(invalid_argument!(
            "All elements of explicit_paddings must be nonnegative"
        ));
    }
    let at = |i: usize| (explicit[2 * i], explicit[2 * i + 1]);
    if at(0) != (0, 0) || at(layout.channel()) != (0, 0) {
        return Err(invalid_argument!(
            "Nonzero explicit padding in the batch or depth dimensions is not supported"
        ));
    }
    Ok((0..layout.spatial)
        .map(|i| at(layout.axis(i)))
        .map(|(before, after)| Pad::Explicit(before, after))
        .collect())
}

/// Returns the rules of a convolution from its attrs.
///
/// # Errors
/// INVALID_ARGUMENT or UNIMPLEMENTED, as in TensorFlow, if the attrs are missing or not valid.
pub fn conv_rules(attrs: &Attrs, layout: Layout) -> Result<Rules> {
    let list = |name: &str, unit: bool| -> Result<Vec<i64>> {
        let missing = attrs
            .get(name)
            .is_none_or(|_| unit && attrs.list(name).is_ok_and(<[_]>::is_empty));
        let values = if missing && unit {
            vec![1; layout.rank()]
        } else {
            ints32(attrs, name)?
        };
        if values.len() != layout.rank() {
            return Err(invalid_argument!(
                "Sliding window {name} field must specify {} dimensions",
                layout.rank()
            ));
        }
        if values[0] != 1 || values[layout.channel()] != 1 {
            return Err(outer(name));
        }
        Ok(values)
    };
    let strides = list("strides", false)?;
    let dilations = list("dilations", true)?;
    let is_explicit = attrs.str("padding")? == "EXPLICIT";
    let given = attrs.get("explicit_paddings").is_some();
    if !is_explicit && given && !ints32(attrs, "explicit_paddings")?.is_empty() {
        return Err(invalid_argument!(
            "explicit_paddings attribute must be empty if the padding attribute is not EXPLICIT"
        ));
    }
    let pads = pads(attrs, layout)?;
    (0..layout.spatial)
        .map(|i| {
            let (stride, dilation) = (strides[layout.axis(i)], dilations[layout.axis(i)]);
            if stride <= 0 {
                return Err(invalid_argument!(
                    "Row and column strides should be larger than 0."
                ));
            }
            if dilation <= 0 {
                return Err(invalid_argument!("Dilated rates should be larger than 0."));
            }
            Ok(Rule {
                stride,
                dilation,
                pad: pads[i],
            })
        })
        .collect()
}

#[cold]
fn outer(name: &str) -> Status {
    let text = "Current implementation does not yet support";
    match name {
        "strides" => {
            unimplemented_error!("{text} {name} in the batch and depth dimensions.")
        }
        _ => invalid_argument!("{text} {name} in the batch and depth dimensions."),
    }
}

/// Returns a shape from dimensions.
///
/// # Errors
/// INVALID_ARGUMENT if their product is too large.
pub fn shape(dims: &[usize]) -> Result<Shape> {
    crate::indices::shape_of(dims.iter().copied())
}
