//! Decoding of JPEG files, sample by sample as libjpeg-turbo does it for TensorFlow
//! (`core/lib/jpeg/jpeg_mem.cc`).
//!
//! Baseline, extended and progressive files with Huffman codes and 8 bits per sample; not: arithmetic
//! codes, lossless and hierarchical files, 12 bits.

mod bits;
mod headers;
mod idct;
mod rows;
mod scan;

use bits::Bits;
use headers::{Found, Frame, Headers, Scan, Space};
use idct::{Block, Transform};
use rows::{Plane, Upsampling};
use scan::Coefficients;

/// Why a file cannot be decoded.
pub(crate) type Error = &'static str;

/// Why reading stops.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The file ends within a unit: what was read so far may be used.
    Suspended,
    Fatal(Error),
}

impl Stop {
    fn reason(self) -> Error {
        match self {
            Stop::Suspended => "the file ends too early",
            Stop::Fatal(reason) => reason,
        }
    }
}

/// How a file is decoded.
pub(crate) struct Options {
    /// 1 or 3; 0 means as many as the file has.
    pub(crate) channels: usize,
    /// The picture is this many times smaller in both directions: 1, 2, 4 or 8.
    pub(crate) ratio: usize,
    /// Whether chroma is interpolated.
    pub(crate) fancy: bool,
    /// Whether the slower, more accurate cosine transform is used.
    pub(crate) accurate: bool,
    /// Whether what is missing at the end of a file is made up.
    pub(crate) recovers: bool,
    /// The part of the rows that must be there; the others are black.
    pub(crate) fraction: f32,
    /// First row and column, height and width.
    pub(crate) window: Option<[usize; 4]>,
}

/// A picture whose blocks are transformed; pixels are made when they are written.
pub(crate) struct Picture {
    layout: Layout,
    targets: Vec<Target>,
    adobe: bool,
    /// Rows that the file has.
    rows: usize,
}

/// Returns height, width and number of components.
pub(crate) fn shape(file: &[u8]) -> Result<[usize; 3], Error> {
    let (headers, _, _) = start(file, false)?;
    let frame = headers.frame.as_ref().ok_or("the frame is missing")?;
    let n = match headers.space() {
        Some(_) => frame.components.len(),
        None => return Err("the number of components is not supported"),
    };
    Ok([frame.height, frame.width, n])
}

/// Reads a file up to its first scan.
fn start(file: &[u8], recovers: bool) -> Result<(Headers, Bits<'_>, Scan), Error> {
    let mut bits = Bits::new(file, recovers);
    if !file.starts_with(&[0xff, 0xd8]) {
        return Err("the beginning is missing");
    }
    bits.at = 2;
    bits.save();
    let mut headers = Headers::default();
    match headers.read(&mut bits).map_err(Stop::reason)? {
        Found::Scan(scan) => Ok((headers, bits, scan)),
        Found::End => Err("the file has no scan"),
    }
}

/// A picture to be read: which samples and pixels are needed.
struct Layout {
    space: Space,
    channels: usize,
    /// Components that pixels are made of.
    used: usize,
    /// Samples that blocks have in a direction, where that is smallest.
    smallest: usize,
    height: usize,
    width: usize,
    /// First row, first column of what is cut out, height and width.
    window: [usize; 4],
    /// The first column that is computed.
    left: usize,
}

impl Layout {
    fn of(headers: &Headers, frame: &Frame, options: &Options) -> Result<Layout, Error> {
        let space = headers
            .space()
            .ok_or("the number of components is not supported")?;
        let channels = match options.channels {
            0 => frame.components.len().min(3),
            n => n,
        };
        let used = match (space, channels) {
            (Space::Gray | Space::Ycc, 1) => 1,
            (Space::Cmyk | Space::Ycck, 1) => return Err("the colors have no gray form"),
            _ => frame.components.len(),
        };
        let smallest = 8 / options.ratio.clamp(1, 8);
        let height = (frame.height * smallest).div_ceil(8);
        let width = (frame.width * smallest).div_ceil(8);
        if height as u64 * width as u64 * frame.components.len() as u64 >= 1 << 29 {
            return Err("the picture is too large");
        }
        let (mut window, mut left) = ([0, 0, height, width], 0);
        if let Some([y, x, h, w]) = options.window {
            let fits = |from: usize, n: usize, size| {
                n > 0 && from.checked_add(n).is_some_and(|end| end <= size)
            };
            if !fits(y, h, height) || !fits(x, w, width) {
                return Err("the window goes beyond the picture");
            }
            let unit = match frame.components.len() {
                1 => smallest,
                _ => smallest * frame.max_h,
            };
            (window, left) = ([y, x, h, w], x / unit * unit);
        }
        Ok(Layout {
            space,
            channels,
            used,
            smallest,
            height,
            width,
            window,
            left,
        })
    }

    /// Returns a component's transform, its size, and its empty plane.
    fn plane(
        &self,
        frame: &Frame,
        i: usize,
        options: &Options,
    ) -> Result<(Transform, usize, Plane), Error> {
        let component = frame.components.get(i).ok_or("a component is missing")?;
        let (h, v) = (component.h, component.v);
        let (max_h, max_v) = (frame.max_h * self.smallest, frame.max_v * self.smallest);
        let mut size = self.smallest;
        while size < 8 && max_h % (h * size * 2) == 0 && max_v % (v * size * 2) == 0 {
            size *= 2;
        }
        let (in_h, in_v) = (h * size, v * size);
        let right = self.window[1] + self.window[3];
        let width = ((right - self.left) * in_h).div_ceil(max_h);
        let full_width = (frame.width * in_h).div_ceil(frame.max_h * 8);
        let height = (frame.height * in_v).div_ceil(frame.max_v * 8);
        let fancy = options.fancy && self.smallest > 1;
        let is_wide = width > 2;
        let upsampling = match (max_h / in_h, max_v / in_v) {
            _ if max_h % in_h != 0 || max_v % in_v != 0 => {
                return Err("fractional sampling factors are not supported");
            }
            (2, 1) if fancy && is_wide => Upsampling::Row,
            (1, 2) if fancy => Upsampling::Column,
            (2, 2) if fancy && is_wide => Upsampling::Both,
            (h, v) => Upsampling::Repeat(h, v),
        };
        let (columns, rows) = frame.units();
        let stride = (columns * h).max(component.columns) * size;
        let rows = (rows * v).max(component.rows) * size;
        let from = (self.left * in_h) / max_h;
        let plane = Plane {
            samples: vec![0; stride * rows],
            stride,
            from,
            width: width.min(full_width.saturating_sub(from)),
            height,
            upsampling,
        };
        Ok((Transform::of(size, options.accurate), size, plane))
    }
}

/// A component while its blocks are transformed.
struct Target {
    transform: Transform,
    multipliers: Block,
    size: usize,
    plane: Plane,
}

impl Target {
    fn put(&mut self, row: usize, column: usize, block: &Block) {
        let at = (row * self.plane.stride + column) * self.size;
        if let Some(out) = self.plane.samples.get_mut(at..) {
            self.transform
                .run(block, &self.multipliers, out, self.plane.stride);
        }
    }
}

/// The most bytes of samples for a file of a size; larger claims are those of damaged files.
fn most(file: &[u8]) -> usize {
    file.len().saturating_mul(1024).saturating_add(1 << 20)
}

/// Decodes a file.
///
/// # Errors
/// What is wrong with the file or the window.
pub(crate) fn decode(file: &[u8], options: &Options) -> Result<Picture, Error> {
    let (mut headers, mut bits, scan) = start(file, options.recovers)?;
    // Taken out, so that further segments can be read into the headers.
    let frame = headers.frame.as_ref().ok_or("the frame is missing")?;
    let layout = Layout::of(&headers, frame, options)?;
    let n = frame.components.len();
    if layout.height * layout.width * n > most(file) {
        return Err("the file is too short for a picture of its size");
    }
    let mut targets = Vec::with_capacity(layout.used);
    for i in 0..layout.used {
        let (transform, size, plane) = layout.plane(frame, i, options)?;
        targets.push(Target {
            transform,
            multipliers: [0; 64],
            size,
            plane,
        });
    }
    let rows = match frame.progressive || scan.parts.len() < n {
        true => {
            buffered(file, &mut headers, &mut bits, scan, &mut targets)?;
            layout.height
        }
        false => streamed(
            &mut headers,
            &mut bits,
            &scan,
            &mut targets,
            &layout,
            options,
        )?,
    };
    let picture = Picture {
        layout,
        targets,
        adobe: headers.adobe.is_some(),
        rows,
    };
    let height = picture.layout.window[2];
    match (picture.there() as f32 / height as f32) < options.fraction.min(1.0) {
        true => Err("the file ends too early"),
        false => Ok(picture),
    }
}

/// Reads a file with one scan; returns how many rows of pixels there are.
fn streamed(
    headers: &mut Headers,
    bits: &mut Bits,
    scan: &Scan,
    targets: &mut [Target],
    layout: &Layout,
    options: &Options,
) -> Result<usize, Error> {
    let frame = headers.frame.take().ok_or("the frame is missing")?;
    for (target, component) in targets.iter_mut().zip(&frame.components) {
        let quant = component.quant.ok_or("a quantization table is missing")?;
        target.multipliers = target.transform.multipliers(&quant);
    }
    let mut done = 0;
    let read = scan::sequential(
        headers,
        &frame,
        scan,
        bits,
        &mut done,
        |i, row, column, block| {
            if let (Some(target), Some(component)) = (targets.get_mut(i), frame.components.get(i))
                && row < component.rows
                && column < component.columns
            {
                target.put(row, column, block);
            }
        },
    );
    let has_context = targets
        .iter()
        .any(|t| matches!(t.plane.upsampling, Upsampling::Both | Upsampling::Column));
    let of_unit = match scan.parts.len() {
        1 => layout.smallest,
        _ => layout.smallest * frame.max_v,
    };
    let max_v = frame.max_v;
    headers.frame = Some(frame);
    match read {
        Ok(()) => match headers.read(bits) {
            Ok(Found::Scan(_)) => Err("the file has a scan too many"),
            Ok(Found::End) | Err(Stop::Suspended) => Ok(layout.height),
            Err(Stop::Fatal(e)) => Err(e),
        },
        Err(Stop::Suspended) if options.window.is_none() => {
            let held = if has_context { max_v } else { 0 };
            Ok((done * of_unit).saturating_sub(held).min(layout.height))
        }
        Err(stop) => Err(stop.reason()),
    }
}

/// Reads a file with several scans.
fn buffered(
    file: &[u8],
    headers: &mut Headers,
    bits: &mut Bits,
    first: Scan,
    targets: &mut [Target],
) -> Result<(), Error> {
    let frame = headers.frame.as_ref().ok_or("the frame is missing")?;
    let (columns, rows) = frame.units();
    let mut coefficients = Vec::with_capacity(frame.components.len());
    for c in &frame.components {
        let stride = (columns * c.h).max(c.columns);
        let n = stride * (rows * c.v).max(c.rows);
        if n > most(file) / 64 {
            return Err("the file is too short for a picture of its size");
        }
        coefficients.push(Coefficients {
            blocks: vec![[0; 64]; n],
            stride,
        });
    }
    let mut next = Some(first);
    while let Some(scan) = next {
        let frame = headers.frame.take().ok_or("the frame is missing")?;
        let read = match frame.progressive {
            true => scan::progressive(headers, &frame, &scan, bits, &mut coefficients),
            false => scan::sequential(
                headers,
                &frame,
                &scan,
                bits,
                &mut 0,
                |i, row, column, block| {
                    if let Some(plane) = coefficients.get_mut(i)
                        && let Some(to) = plane.blocks.get_mut(row * plane.stride + column)
                    {
                        *to = *block;
                    }
                },
            ),
        };
        headers.frame = Some(frame);
        read.map_err(Stop::reason)?;
        next = match headers.read(bits).map_err(Stop::reason)? {
            Found::Scan(scan) => Some(scan),
            Found::End => None,
        };
    }
    let frame = headers.frame.as_ref().ok_or("the frame is missing")?;
    for ((target, component), plane) in targets.iter_mut().zip(&frame.components).zip(&coefficients)
    {
        // A component without a scan has no table: it stays gray.
        let quant = component.quant.unwrap_or([0; 64]);
        target.multipliers = target.transform.multipliers(&quant);
        for row in 0..component.rows {
            let blocks = plane.blocks.get(row * plane.stride..).unwrap_or_default();
            for (column, block) in blocks.iter().take(component.columns).enumerate() {
                target.put(row, column, block);
            }
        }
    }
    Ok(())
}

impl Picture {
    /// Returns height, width and channels.
    pub(crate) fn dims(&self) -> [usize; 3] {
        let [_, _, height, width] = self.layout.window;
        [height, width, self.layout.channels]
    }

    /// Returns how many rows of the window the file has.
    fn there(&self) -> usize {
        let [y, _, height, _] = self.layout.window;
        self.rows.saturating_sub(y).min(height)
    }

    /// Writes the pixels, row by row, to a slice that they fill.
    pub(crate) fn write(&self, out: &mut [u8]) {
        let [y, x, _, width] = self.layout.window;
        let channels = self.layout.channels;
        let skip = x - self.layout.left;
        let mut expanded: Vec<Vec<u8>> = vec![Vec::new(); self.targets.len()];
        let mut sums = Vec::new();
        let there = (self.there() * width * channels).min(out.len());
        let (out, missing) = out.split_at_mut(there);
        missing.fill(0);
        for (i, out) in out.chunks_exact_mut(width * channels).enumerate() {
            let mut parts: [&[u8]; 4] = [&[]; 4];
            for ((part, target), buffer) in parts.iter_mut().zip(&self.targets).zip(&mut expanded) {
                let row = target.plane.expand(y + i, buffer, &mut sums);
                *part = row.get(skip..skip + width).unwrap_or_default();
            }
            let parts = parts.get(..self.targets.len()).unwrap_or_default();
            rows::convert(self.layout.space, parts, self.adobe, channels, out);
        }
    }
}
