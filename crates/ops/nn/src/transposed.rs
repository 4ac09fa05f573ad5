//! Transposed convolutions (input gradients) as ordinary ones: one for each remainder of the output
//! position by the stride, with the part of the filter that applies to it.

use crate::conv_reference::sizes;
use ferroflow_functors::window::Placed;
use ferroflow_primitives::conv::{Conv3dShape, PackedFilter, conv3d};
use ferroflow_primitives::gemm::Epilogue;
use ferroflow_sync::{Parallelism, par_chunks_mut};

/// Number of remainders from which plain loops are as fast.
const MAX_PHASES: usize = 64;

/// The positions of one axis with the same remainder by the stride.
#[derive(Clone, Copy, Debug)]
struct Phase {
    /// The first position.
    start: usize,
    /// The first filter position that applies to them, and the number of these positions.
    first: usize,
    offsets: usize,
    pad: usize,
}

fn phases(window: usize, stride: usize, pad: usize, dilation: usize) -> Option<Vec<Phase>> {
    (0..stride)
        .map(|start| {
            let first = (start + pad) % stride;
            let offsets = window.saturating_sub(first).div_ceil(stride);
            let base = (start + pad - first) / stride;
            let pad = match offsets {
                0 => 0,
                _ => ((offsets - 1) * dilation).checked_sub(base)?,
            };
            Some(Phase {
                start,
                first,
                offsets,
                pad,
            })
        })
        .collect()
}

/// A filter, packed for a transposed convolution of certain strides, paddings, dilations and groups.
pub(crate) struct TransposedFilter {
    key: Key,
    /// The phases of each axis.
    axes: [Vec<Phase>; 3],
    /// A filter for each combination of phases; `None` if no filter position applies.
    parts: Vec<Option<PackedFilter>>,
}

type Key = ([usize; 3], [usize; 3], [usize; 3], usize, bool);

fn key(s: &Conv3dShape) -> Key {
    let p = &s.plane;
    (
        [s.stride_d, p.stride_h, p.stride_w],
        [s.pad_front, p.pad_top, p.pad_left],
        [s.dil_d, p.dil_h, p.dil_w],
        p.groups,
        // 2-D convolutions may store transformed filters.
        s.filter_d == 1 && s.in_d == 1,
    )
}

impl TransposedFilter {
    /// Packs the filter of the convolution `s` for its transpose; `None` if plain loops should be
    /// used.
    pub fn new(par: &dyn Parallelism, filter: &[f32], s: &Conv3dShape) -> Option<Self> {
        Self::packed(par, filter, s, false)
    }

    /// Like [`new`](Self::new), for convolutions of exactly these sizes
    /// ([`PackedFilter::for_one_use`]).
    pub fn for_one_use(par: &dyn Parallelism, filter: &[f32], s: &Conv3dShape) -> Option<Self> {
        Self::packed(par, filter, s, true)
    }

    fn packed(par: &dyn Parallelism, filter: &[f32], s: &Conv3dShape, once: bool) -> Option<Self> {
        let p = &s.plane;
        let (strides, pads, dilations, ..) = key(s);
        if (0..3).any(|i| strides[i] > 1 && dilations[i] > 1)
            || strides.iter().fold(1usize, |n, s| n.saturating_mul(*s)) > MAX_PHASES
        {
            return None;
        }
        let windows = [s.filter_d, p.filter_h, p.filter_w];
        let [d, h, w] = [0, 1, 2].map(|i| phases(windows[i], strides[i], pads[i], dilations[i]));
        let axes = [d?, h?, w?];
        let mut parts = Vec::new();
        for z in &axes[0] {
            for y in &axes[1] {
                for x in &axes[2] {
                    parts.push(part(
                        par,
                        filter,
                        s,
                        [*z, *y, *x],
                        once && strides == [1; 3],
                    ));
                }
            }
        }
        Some(TransposedFilter {
            key: key(s),
            axes,
            parts,
        })
    }

    /// Returns whether the filter serves `s`, too.
    pub fn serves(&self, s: &Conv3dShape) -> bool {
        self.key == key(s)
    }

    /// Computes the input gradient of the convolution `s`.
    pub fn run(&self, par: &dyn Parallelism, s: &Conv3dShape, dy: &[f32], dx: &mut [f32]) {
        let p = &s.plane;
        let (strides, ..) = self.key;
        let inputs = [s.in_d, p.in_h, p.in_w];
        if strides == [1; 3] {
            let phase = [self.axes[0][0], self.axes[1][0], self.axes[2][0]];
            match &self.parts[0] {
                Some(filter) => {
                    let shape = back(s, phase, inputs);
                    conv3d(par, &shape, dy, filter, dx, &Epilogue::none());
                }
                None => dx.fill(0.0),
            }
            return;
        }
        let mut part = Vec::new();
        let mut parts = self.parts.iter();
        for z in &self.axes[0] {
            for y in &self.axes[1] {
                for x in &self.axes[2] {
                    let filter = parts.next().and_then(Option::as_ref);
                    let phase = [*z, *y, *x];
                    let outputs = [0, 1, 2].map(|i| {
                        inputs[i]
                            .saturating_sub(phase[i].start)
                            .div_ceil(strides[i])
                    });
                    if outputs.contains(&0) {
                        continue;
                    }
                    let shape = back(s, phase, outputs);
                    part.clear();
                    part.resize(
                        shape.plane.batch * outputs.iter().product::<usize>() * p.in_c,
                        0.0,
                    );
                    if let Some(filter) = filter {
                        conv3d(par, &shape, dy, filter, &mut part, &Epilogue::none());
                    }
                    spread(par, s, phase, outputs, &part, dx);
                }
            }
        }
    }
}

/// Returns the convolution of a phase.
fn back(s: &Conv3dShape, phases: [Phase; 3], outputs: [usize; 3]) -> Conv3dShape {
    let p = &s.plane;
    let inputs = [s.out_d, p.out_h, p.out_w];
    let (_, _, dilations, ..) = key(s);
    let axes = [0, 1, 2].map(|i| Placed {
        input: inputs[i],
        window: phases[i].offsets,
        stride: 1,
        dilation: dilations[i],
        before: phases[i].pad,
        output: outputs[i],
    });
    sizes(p.batch, axes, [p.out_c, p.in_c, p.groups])
}

fn part(
    par: &dyn Parallelism,
    filter: &[f32],
    s: &Conv3dShape,
    phases: [Phase; 3],
    once: bool,
) -> Option<PackedFilter> {
    let offsets = phases.map(|p| p.offsets);
    if offsets.contains(&0) {
        return None;
    }
    let p = &s.plane;
    let (strides, _, _, groups, flat) = key(s);
    let (in_c, out_c) = (p.in_c / groups, p.out_c / groups);
    let mut values = Vec::with_capacity(offsets.iter().product::<usize>() * out_c * p.in_c);
    // The filter is reversed, and its input and output channels are swapped.
    let position = |i: usize, j: usize| phases[i].first + (offsets[i] - 1 - j) * strides[i];
    for jz in 0..offsets[0] {
        for jy in 0..offsets[1] {
            for jx in 0..offsets[2] {
                let (kz, ky, kx) = (position(0, jz), position(1, jy), position(2, jx));
                let offset = (kz * p.filter_h + ky) * p.filter_w + kx;
                let pixel = &filter[offset * in_c * p.out_c..][..in_c * p.out_c];
                for o in 0..out_c {
                    for g in 0..groups {
                        let column = pixel[g * out_c + o..].iter().step_by(p.out_c);
                        values.extend(column.take(in_c));
                    }
                }
            }
        }
    }
    let shape = match once {
        true => back(s, phases, [s.in_d, p.in_h, p.in_w]),
        false => back(s, phases, [1; 3]),
    };
    Some(match flat {
        true if once => PackedFilter::for_one_use(par, &values, &shape.plane),
        true => PackedFilter::new(par, &values, &shape.plane),
        false => PackedFilter::new_3d(par, &values, &shape),
    })
}

/// Writes the pixels of a phase to their positions.
fn spread(
    par: &dyn Parallelism,
    s: &Conv3dShape,
    phases: [Phase; 3],
    outputs: [usize; 3],
    part: &[f32],
    dx: &mut [f32],
) {
    let p = &s.plane;
    let (strides, ..) = key(s);
    let len = p.in_w * p.in_c;
    let group = (16 * 1024 / len).max(1);
    par_chunks_mut(par, dx, len, group, &|row, dx| {
        let (plane, y) = (row / p.in_h, row % p.in_h);
        let (n, z) = (plane / s.in_d, plane % s.in_d);
        let at = |i: usize, v: usize| {
            let v = v.checked_sub(phases[i].start)?;
            v.is_multiple_of(strides[i]).then_some(v / strides[i])
        };
        let (Some(z), Some(y)) = (at(0, z), at(1, y)) else {
            return;
        };
        let from = ((n * outputs[0] + z) * outputs[1] + y) * outputs[2] * p.in_c;
        let pixels = part[from..].chunks_exact(p.in_c).take(outputs[2]);
        let places = dx.chunks_exact_mut(p.in_c).skip(phases[2].start);
        for (to, pixel) in places.step_by(strides[2]).zip(pixels) {
            to.copy_from_slice(pixel);
        }
    });
}
