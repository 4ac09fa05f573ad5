//! Convolutions over channels-last tensors as implicit matrix products: [`conv2d`], [`conv3d`].
//!
//! The rows of the left matrix are windows of the input, never copied: the kernels follow a table
//! of pointers, one for each filter row (or filter pixel, where pixels are dilated or channels are
//! in groups). Only windows that hang over the left or right edge are copied.

mod filter;
pub(crate) mod rows;
pub(crate) mod slide;
#[cfg(test)]
mod tests;
pub(super) mod winograd;

use super::aligned::{Aligned, SendPtr};
use super::depthwise;
use super::gemm::drive::{Out, drive};
use super::gemm::groups::GroupedProduct;
use super::gemm::{Epilogue, GemmElement, PackedB, check, check_epilogue, gemm_packed};
use bytes::Bytes;
use ferroflow_sync::Parallelism;
use rows::{Axis, Windows};

pub use filter::{conv3d_filter_gradient, suits_filter_gradient};
pub use winograd::{conv2d_filter_gradient_in_tiles, suits_filter_gradient_in_tiles};

/// The sizes of a 2-D convolution: input `[batch, in_h, in_w, in_c]`, filter
/// `[filter_h, filter_w, in_c / groups, out_c]`, output `[batch, out_h, out_w, out_c]`.
///
/// Padding after the input is whatever `out_h` and `out_w` imply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dShape {
    /// Images.
    pub batch: usize,
    /// Input rows.
    pub in_h: usize,
    /// Input columns.
    pub in_w: usize,
    /// Input channels.
    pub in_c: usize,
    /// Filter rows.
    pub filter_h: usize,
    /// Filter columns.
    pub filter_w: usize,
    /// Output channels.
    pub out_c: usize,
    /// Input rows from one output row to the next.
    pub stride_h: usize,
    /// Input columns from one output column to the next.
    pub stride_w: usize,
    /// Input rows from one filter row to the next.
    pub dil_h: usize,
    /// Input columns from one filter column to the next.
    pub dil_w: usize,
    /// Zero rows above the input.
    pub pad_top: usize,
    /// Zero columns left of the input.
    pub pad_left: usize,
    /// Output rows.
    pub out_h: usize,
    /// Output columns.
    pub out_w: usize,
    /// Channel groups, each seeing its own part of the input.
    pub groups: usize,
}

/// The sizes of a 3-D convolution, as [`Conv2dShape`] with a leading depth axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv3dShape {
    /// The sizes within a plane.
    pub plane: Conv2dShape,
    /// Input planes.
    pub in_d: usize,
    /// Filter planes.
    pub filter_d: usize,
    /// Input planes from one output plane to the next.
    pub stride_d: usize,
    /// Input planes from one filter plane to the next.
    pub dil_d: usize,
    /// Zero planes before the input.
    pub pad_front: usize,
    /// Output planes.
    pub out_d: usize,
}

impl Conv2dShape {
    /// Returns the number of input elements.
    pub fn input_len(&self) -> usize {
        self.batch * self.in_h * self.in_w * self.in_c
    }

    /// Returns the number of output elements.
    pub fn output_len(&self) -> usize {
        self.batch * self.out_h * self.out_w * self.out_c
    }

    /// Returns the number of filter elements.
    pub fn filter_len(&self) -> usize {
        self.filter_h * self.filter_w * (self.in_c / self.groups.max(1)) * self.out_c
    }

    /// Returns whether each output pixel is a product of the input pixel at its place.
    pub(crate) fn is_pointwise(&self) -> bool {
        [self.filter_h, self.filter_w, self.stride_h, self.stride_w] == [1; 4]
            && [self.pad_top, self.pad_left] == [0; 2]
            && [self.out_h, self.out_w] == [self.in_h, self.in_w]
    }

    /// Returns the equivalent 3-D convolution of one plane.
    pub fn solid(&self) -> Conv3dShape {
        Conv3dShape {
            plane: *self,
            in_d: 1,
            filter_d: 1,
            stride_d: 1,
            dil_d: 1,
            pad_front: 0,
            out_d: 1,
        }
    }
}

/// A filter `[..., in_c / groups, out_c]` packed for the kernels, once.
///
/// A 3×3 or 5×5 filter whose convolution has stride 1 may be stored transformed or to be transformed
/// on use, so a packed filter only serves convolutions with the strides, dilations and groups it was packed
/// for. Batch, input and output sizes and padding are free.
#[derive(Clone, Debug)]
pub struct PackedFilter {
    /// A matrix for each group; with a transform, for each position of a tile, or for each position
    /// of a filter that is transformed on use.
    parts: Vec<PackedB>,
    /// Instead of matrices, the filter ordered for the kernels of small groups.
    by_channel: Option<ChannelFilter>,
    transform: Option<&'static winograd::WinogradTransform>,
    n_offsets: usize,
    in_c: usize,
    out_c: usize,
}

/// A filter ordered for the kernels of small groups.
#[derive(Clone)]
struct ChannelFilter {
    data: Aligned,
    len: usize,
}

impl ChannelFilter {
    fn values(&self) -> &[f32] {
        self.data.get().get(..self.len).unwrap_or_default()
    }
}

impl std::fmt::Debug for ChannelFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChannelFilter[{}]", self.len)
    }
}

impl PackedFilter {
    /// Packs the filter of a 2-D convolution.
    ///
    /// # Panics
    /// If `filter` is too short or the channels do not divide into the groups.
    pub fn new(par: &dyn Parallelism, filter: &[f32], s: &Conv2dShape) -> Self {
        match winograd::transform(s) {
            Some(transform) if winograd::transforms_on_use(s) => {
                Self::by_positions(par, filter, s, transform)
            }
            transform => Self::with_transform(par, filter, s, transform),
        }
    }

    /// Packs the filter for exactly this 2-D convolution, as in training: the layout may depend on
    /// all sizes, and accuracy may be a digit lower.
    ///
    /// # Panics
    /// If `filter` is too short or the channels do not divide into the groups.
    pub fn for_one_use(par: &dyn Parallelism, filter: &[f32], s: &Conv2dShape) -> Self {
        Self::with_transform(par, filter, s, winograd::transform_for_one_use(s))
    }

    fn with_transform(
        par: &dyn Parallelism,
        filter: &[f32],
        s: &Conv2dShape,
        transform: Option<&'static winograd::WinogradTransform>,
    ) -> Self {
        let Some(transform) = transform else {
            return Self::with_offsets(par, filter, &s.solid());
        };
        check_filter(filter, s);
        let parts = winograd::pack(par, transform, filter, s.in_c, s.out_c);
        Self::of_transform(transform, parts, s)
    }

    /// Packs a filter that is transformed on use.
    fn by_positions(
        par: &dyn Parallelism,
        filter: &[f32],
        s: &Conv2dShape,
        transform: &'static winograd::WinogradTransform,
    ) -> Self {
        check_filter(filter, s);
        let parts = winograd::pack_positions(par, transform, filter, s.in_c, s.out_c);
        Self::of_transform(transform, parts, s)
    }

    fn of_transform(
        transform: &'static winograd::WinogradTransform,
        parts: Vec<PackedB>,
        s: &Conv2dShape,
    ) -> Self {
        PackedFilter {
            parts,
            by_channel: None,
            transform: Some(transform),
            n_offsets: s.filter_h * s.filter_w,
            in_c: s.in_c,
            out_c: s.out_c,
        }
    }

    /// Packs the filter of a 3-D convolution.
    ///
    /// # Panics
    /// If `filter` is too short or the channels do not divide into the groups.
    pub fn new_3d(par: &dyn Parallelism, filter: &[f32], s: &Conv3dShape) -> Self {
        Self::with_offsets(par, filter, s)
    }

    /// Returns the filter of a 2-D convolution whose [`PackedFilter::parts`] have these bytes;
    /// `None` if they do not fit it.
    pub fn from_packed(parts: Vec<Bytes>, s: &Conv2dShape) -> Option<Self> {
        let n_offsets = s.filter_h.checked_mul(s.filter_w)?;
        if let Some(transform) = winograd::transform(s) {
            let count = match winograd::transforms_on_use(s) {
                true => n_offsets,
                false => transform.planes(),
            };
            let size = [s.in_c, s.out_c, count];
            return Self::of_parts(parts, Some(transform), n_offsets, size, [s.in_c, s.out_c]);
        }
        Self::from_packed_3d(parts, &s.solid())
    }

    /// Returns the filter of a 3-D convolution whose [`PackedFilter::parts`] have these bytes;
    /// `None` if they do not fit it.
    pub fn from_packed_3d(parts: Vec<Bytes>, s: &Conv3dShape) -> Option<Self> {
        let p = &s.plane;
        let plane = p.filter_h.checked_mul(p.filter_w)?;
        let n_offsets = plane.checked_mul(s.filter_d)?;
        let groups = p.groups;
        if groups == 0 || !p.in_c.is_multiple_of(groups) || !p.out_c.is_multiple_of(groups) {
            return None;
        }
        let k = n_offsets.checked_mul(p.in_c / groups)?;
        if depthwise::suits(s) {
            let len = k.checked_mul(p.out_c)?;
            let [bytes] = <[Bytes; 1]>::try_from(parts).ok()?;
            if len.checked_mul(size_of::<f32>())? != bytes.len() {
                return None;
            }
            let data = Aligned::shared(bytes);
            return Some(PackedFilter {
                parts: Vec::new(),
                by_channel: Some(ChannelFilter { data, len }),
                transform: None,
                n_offsets,
                in_c: p.in_c,
                out_c: p.out_c,
            });
        }
        let size = [k, p.out_c / groups, groups];
        Self::of_parts(parts, None, n_offsets, size, [p.in_c, p.out_c])
    }

    fn of_parts(
        parts: Vec<Bytes>,
        transform: Option<&'static winograd::WinogradTransform>,
        n_offsets: usize,
        [k, n, count]: [usize; 3],
        [in_c, out_c]: [usize; 2],
    ) -> Option<Self> {
        if parts.len() != count {
            return None;
        }
        let parts = parts.into_iter().map(|b| PackedB::from_packed(k, n, b));
        Some(PackedFilter {
            parts: parts.collect::<Option<_>>()?,
            by_channel: None,
            transform,
            n_offsets,
            in_c,
            out_c,
        })
    }

    /// Returns the packed numbers, in one or several parts.
    pub fn parts(&self) -> Vec<&[f32]> {
        let by_channel = self.by_channel.iter().map(ChannelFilter::values);
        by_channel
            .chain(self.parts.iter().map(PackedB::packed))
            .collect()
    }

    fn with_offsets(par: &dyn Parallelism, filter: &[f32], s: &Conv3dShape) -> Self {
        let (s, solid) = (&s.plane, s);
        let groups = s.groups;
        assert!(
            groups > 0 && s.in_c.is_multiple_of(groups) && s.out_c.is_multiple_of(groups),
            "{} input and {} output channels do not divide into {groups} groups",
            s.in_c,
            s.out_c,
        );
        let (in_c, out_c) = (s.in_c / groups, s.out_c / groups);
        let n_offsets = solid.filter_d * s.filter_h * s.filter_w;
        let k = n_offsets * in_c;
        check(filter.len(), k, s.out_c, s.out_c, "filter");
        let mut packed = PackedFilter {
            parts: Vec::new(),
            by_channel: None,
            transform: None,
            n_offsets,
            in_c: s.in_c,
            out_c: s.out_c,
        };
        if depthwise::suits(solid) {
            let values = depthwise::reorder(&filter[..k * s.out_c], solid);
            let (mut data, len) = (Aligned::fresh(), values.len());
            data.alloc(len).copy_from_slice(&values);
            packed.by_channel = Some(ChannelFilter { data, len });
            return packed;
        }
        packed.parts = (0..groups)
            .map(|g| {
                let part = filter.get(g * out_c..).unwrap_or_default();
                PackedB::from_rows(par, part, s.out_c, k, out_c)
            })
            .collect();
        packed
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        let by_channel = self.by_channel.as_ref().map_or(0, |f| f.data.bytes());
        self.parts.iter().map(PackedB::bytes).sum::<usize>() + by_channel
    }
}

/// # Panics
/// If the filter of a convolution without groups is too short.
fn check_filter(filter: &[f32], s: &Conv2dShape) {
    let rows = s.filter_h * s.filter_w * s.in_c;
    check(filter.len(), rows, s.out_c, s.out_c, "filter");
}

/// Returns depth, height and width.
fn axes(s: &Conv3dShape) -> [Axis; 3] {
    let p = &s.plane;
    [
        Axis {
            input: s.in_d,
            output: s.out_d,
            filter: s.filter_d,
            stride: s.stride_d,
            dilation: s.dil_d,
            pad: s.pad_front,
        },
        Axis {
            input: p.in_h,
            output: p.out_h,
            filter: p.filter_h,
            stride: p.stride_h,
            dilation: p.dil_h,
            pad: p.pad_top,
        },
        Axis {
            input: p.in_w,
            output: p.out_w,
            filter: p.filter_w,
            stride: p.stride_w,
            dilation: p.dil_w,
            pad: p.pad_left,
        },
    ]
}

/// Computes `out = conv(input, filter)` in any type with matrix kernels, with a filter
/// `[depth, height, width, in_c / groups, out_c]` that is packed on the way: for types that few models convolve.
///
/// # Panics
/// If a slice is too short.
pub fn conv3d_plain<T: GemmElement>(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    input: &[T],
    filter: &[T],
    out: &mut [T],
) {
    let p = &s.plane;
    let m = p.batch * s.out_d * p.out_h * p.out_w;
    let (in_c, out_c) = (p.in_c / p.groups, p.out_c / p.groups);
    let k = s.filter_d * p.filter_h * p.filter_w * in_c;
    check(
        input.len(),
        p.batch * s.in_d * p.in_h * p.in_w,
        p.in_c,
        p.in_c,
        "input",
    );
    check(filter.len(), k, p.out_c, p.out_c, "filter");
    check(out.len(), m, p.out_c, p.out_c, "output");
    let base = SendPtr(out.as_mut_ptr());
    for g in 0..p.groups {
        let part = filter.get(g * out_c..).unwrap_or_default();
        let b = PackedB::from_rows(par, part, p.out_c, k, out_c);
        let source = Windows::new(input, p.in_c, g * in_c, in_c, axes(s));
        let out = Out::Matrix(SendPtr(base.get().wrapping_add(g * out_c)), p.out_c);
        // SAFETY: as in `conv3d`.
        unsafe { drive(par, m, &source, (&b).into(), out, &Epilogue::none(), false) };
    }
}

/// Computes `out = epilogue(conv(input, filter))`, where the epilogue's rows are output pixels.
///
/// # Panics
/// If a slice is too short, or the filter was packed for other sizes.
pub fn conv2d(
    par: &dyn Parallelism,
    s: &Conv2dShape,
    input: &[f32],
    filter: &PackedFilter,
    out: &mut [f32],
    ep: &Epilogue<'_>,
) {
    conv3d(par, &s.solid(), input, filter, out, ep);
}

/// Like [`conv2d`], over `[batch, depth, height, width, channels]`.
///
/// # Panics
/// If a slice is too short, or the filter was packed for other sizes.
pub fn conv3d(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    input: &[f32],
    filter: &PackedFilter,
    out: &mut [f32],
    ep: &Epilogue<'_>,
) {
    let p = &s.plane;
    let m = p.batch * s.out_d * p.out_h * p.out_w;
    let pixels = p.batch * s.in_d * p.in_h * p.in_w;
    assert!(
        filter.n_offsets == s.filter_d * p.filter_h * p.filter_w
            && filter.in_c == p.in_c
            && filter.out_c == p.out_c
            && match filter.transform {
                Some(transform) => transform.suits(p) && [s.in_d, s.out_d, s.filter_d] == [1; 3],
                None => match &filter.by_channel {
                    Some(f) => f.len * p.groups == filter.n_offsets * p.in_c * p.out_c,
                    None => filter.parts.len() == p.groups,
                },
            },
        "the filter was packed for another convolution",
    );
    check(input.len(), pixels, p.in_c, p.in_c, "input");
    check(out.len(), m, p.out_c, p.out_c, "output");
    check_epilogue(ep, m, p.out_c);
    if let Some(transform) = filter.transform {
        let out = SendPtr(out.as_mut_ptr());
        // SAFETY: the sizes were just checked; `out` is exclusively borrowed.
        return unsafe { winograd::run(par, transform, p, input, &filter.parts, out, ep) };
    }
    let narrow;
    let mut parts = &filter.parts;
    if let Some(by_channel) = &filter.by_channel {
        let values = by_channel.values();
        if p.groups > 1 || depthwise::joins_pixels(s) {
            return depthwise::by_channel(par, s, input, values, out, ep);
        }
        // A picture of few columns. Its filter is a column of numbers, whose order is the same.
        narrow = vec![PackedB::from_rows(par, values, 1, filter.n_offsets, 1)];
        parts = &narrow;
    }
    let axes = axes(s);
    if axes.iter().all(Axis::is_identity) && p.groups == 1 {
        return gemm_packed(par, input, p.in_c, m, &parts[0], out, p.out_c, ep);
    }
    let base = SendPtr(out.as_mut_ptr());
    if let Some(kernel) = slide::kernel(s) {
        // SAFETY: the sizes were checked; `out` is exclusively borrowed.
        return unsafe { slide::run(par, s, kernel, input, parts, base, ep) };
    }
    let (in_c, out_c) = (p.in_c / p.groups, p.out_c / p.groups);
    if p.groups > 1 && GroupedProduct::<f32>::fits(filter.n_offsets * in_c) {
        let product = GroupedProduct {
            groups: parts,
            source: &Windows::of_pixels(input, p.in_c, axes),
            run: in_c,
            step: s.stride_d * p.stride_h * p.stride_w,
            out: base,
            epilogue: ep,
        };
        // SAFETY: the sizes were checked; `Windows` only points into `input` or to zeros; `out` is exclusively borrowed.
        return unsafe { product.drive(par, m) };
    }
    for (g, b) in parts.iter().enumerate() {
        let source = Windows::new(input, p.in_c, g * in_c, in_c, axes);
        let col = g * out_c;
        let ep = Epilogue {
            scale: ep.scale.map(|s| &s[col..]),
            bias: ep.bias.map(|b| &b[col..]),
            side: ep
                .side
                .map(|(s, ld)| (s.get(col..).unwrap_or_default(), ld)),
            act: ep.act,
        };
        let out = Out::Matrix(SendPtr(base.get().wrapping_add(col)), p.out_c);
        // SAFETY: the sizes were checked; `Windows` only points into `input`, to zeros, or to the
        // scratch it is given; `out` is exclusively borrowed and a group's columns are its own.
        unsafe { drive(par, m, &source, b.into(), out, &ep, false) };
    }
}
