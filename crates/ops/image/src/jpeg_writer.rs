//! Encoding of JPEG files, byte by byte as libjpeg-turbo does it for TensorFlow (`core/lib/jpeg/jpeg_mem.cc`).
//!
//! Baseline and progressive files of one component or of three with or without smaller chroma; not: arithmetic codes,
//! restart intervals, 12 bits.

mod bits;
mod huffman;
mod planes;
mod scans;
mod transform;

use bits::Bits;
use huffman::{Codes, Counts};
use planes::Planes;
use scans::{Coefficients, Scan};

/// The largest size in each direction.
pub(crate) const MOST: usize = 65500;

/// How to encode an image.
pub(crate) struct Options {
    pub(crate) quality: u8,
    pub(crate) progressive: bool,
    /// Codes made for the image instead of the standard ones.
    pub(crate) optimized: bool,
    /// Chroma of half the size in each direction.
    pub(crate) smaller_chroma: bool,
    /// Pixels by 1 inch, or by 2 centimeter.
    pub(crate) unit: u8,
    pub(crate) density: [u16; 2],
    /// A segment of metadata, if any; up to 65533 bytes.
    pub(crate) metadata: Vec<u8>,
}

/// A component: luma or chroma.
#[derive(Clone, Copy)]
struct Component {
    /// Blocks of a unit in each direction.
    factor: usize,
    /// Which quantization table and codes it uses.
    table: usize,
    /// Blocks in each direction.
    width: usize,
    height: usize,
}

/// The sizes of an image.
struct Layout {
    width: usize,
    height: usize,
    components: Vec<Component>,
    /// Units of all components in each direction.
    columns: usize,
    rows: usize,
}

impl Layout {
    fn new([height, width]: [usize; 2], channels: usize, smaller_chroma: bool) -> Layout {
        let most = if channels == 3 && smaller_chroma {
            2
        } else {
            1
        };
        let components = (0..channels).map(|i| {
            let factor = if i == 0 { most } else { 1 };
            Component {
                factor,
                table: i.min(1),
                width: (width * factor).div_ceil(8 * most),
                height: (height * factor).div_ceil(8 * most),
            }
        });
        Layout {
            width,
            height,
            components: components.collect(),
            columns: width.div_ceil(8 * most),
            rows: height.div_ceil(8 * most),
        }
    }

    /// The largest factor of a component.
    fn most(&self) -> usize {
        self.components.first().map_or(1, |c| c.factor)
    }
}

/// Returns the file of an image with one or three channels.
pub(crate) fn encode(
    pixels: &[u8],
    sizes: [usize; 2],
    channels: usize,
    options: &Options,
) -> Vec<u8> {
    let layout = Layout::new(sizes, channels, options.smaller_chroma);
    let tables = [0, 1].map(|i| transform::quantization(i, options.quality));
    let mut bits = Bits::default();
    bits.bytes(&[0xff, 0xd8]);
    let [x, y] = options.density.map(u16::to_be_bytes);
    segment(
        &mut bits,
        0xe0,
        &[b"JFIF\0\x01\x01", &[options.unit][..], &x, &y, &[0, 0]],
    );
    if !options.metadata.is_empty() {
        segment(&mut bits, 0xe1, &[&options.metadata]);
    }
    for (i, table) in tables.iter().enumerate().take(channels) {
        let of = |&at: &u8| table.get(usize::from(at)).map_or(1, |&q| q as u8);
        let values: Vec<u8> = transform::ZIGZAG.iter().map(of).collect();
        segment(&mut bits, 0xdb, &[&[i as u8], &values]);
    }
    frame(&mut bits, &layout, options.progressive);
    let planes = Planes::new(pixels, &layout, &tables);
    if options.progressive {
        let all = Coefficients::of(planes);
        for scan in scans::progression(channels) {
            optimized_scan(&mut bits, &layout, &scan, &all);
        }
    } else if options.optimized {
        let all = Coefficients::of(planes);
        optimized_scan(&mut bits, &layout, &Scan::sequential(channels), &all);
    } else {
        let codes = Codes::standard();
        let scan = Scan::sequential(channels);
        scan_header(&mut bits, &layout, &scan, &codes);
        scans::sequential(&layout, planes, &mut bits.with(&codes));
        bits.finish();
    }
    bits.bytes(&[0xff, 0xd9]);
    bits.into_bytes()
}

fn segment(bits: &mut Bits, marker: u8, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    bits.bytes(&[0xff, marker]);
    bits.bytes(&((len + 2) as u16).to_be_bytes());
    for part in parts {
        bits.bytes(part);
    }
}

fn frame(bits: &mut Bits, layout: &Layout, progressive: bool) {
    let [height, width] = [layout.height, layout.width].map(|n| (n as u16).to_be_bytes());
    let mut parts = vec![layout.components.len() as u8];
    for (i, c) in layout.components.iter().enumerate() {
        parts.extend([i as u8 + 1, (c.factor * 0x11) as u8, c.table as u8]);
    }
    let marker = if progressive { 0xc2 } else { 0xc0 };
    segment(bits, marker, &[&[8], &height, &width, &parts]);
}

/// Writes a scan with the shortest codes for what it holds.
fn optimized_scan(bits: &mut Bits, layout: &Layout, scan: &Scan, all: &Coefficients) {
    let mut counts = Counts::default();
    scan.run(layout, all, &mut counts);
    let codes = counts.codes();
    scan_header(bits, layout, scan, &codes);
    scan.run(layout, all, &mut bits.with(&codes));
    bits.finish();
}

/// Writes the codes of a scan, and what it holds.
fn scan_header(bits: &mut Bits, layout: &Layout, scan: &Scan, codes: &Codes) {
    let tables = scan
        .components
        .iter()
        .filter_map(|&c| layout.components.get(c));
    let tables: Vec<usize> = tables.map(|c| c.table).collect();
    let (dc, ac) = scan.uses();
    for (i, &table) in tables.iter().enumerate() {
        if tables.iter().position(|&t| t == table) != Some(i) {
            continue;
        }
        for (class, _) in [dc, ac].into_iter().enumerate().filter(|(_, used)| *used) {
            let (lengths, symbols) = codes.listed(class, table);
            segment(
                bits,
                0xc4,
                &[&[(class << 4 | table) as u8], lengths, symbols],
            );
        }
    }
    let mut parts = vec![tables.len() as u8];
    for (&c, &table) in scan.components.iter().zip(&tables) {
        let of = |used| if used { table } else { 0 };
        parts.extend([c as u8 + 1, (of(dc) << 4 | of(ac)) as u8]);
    }
    parts.extend([
        scan.first as u8,
        scan.last as u8,
        (scan.before << 4 | scan.shift) as u8,
    ]);
    segment(bits, 0xda, &[&parts]);
}
