//! The segments of a file: frame, tables, scans (libjpeg: `jdmarker.c`, `jdinput.c`).

use super::bits::{Bits, Table};
use super::{Error, Stop};
use std::sync::Arc;

/// Where coefficient `i` of a scan is in its block; a damaged file's may go beyond 63.
pub(super) const ZIGZAG: [u8; 80] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
    63, 63, 63, 63, 63, 63,
];

/// What the samples of a file stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Gray,
    Rgb,
    Ycc,
    Cmyk,
    Ycck,
}

#[derive(Clone)]
pub(super) struct Component {
    id: u8,
    /// Blocks in a unit of an interleaved scan.
    pub(super) h: usize,
    pub(super) v: usize,
    quant_index: usize,
    /// The quantization table, from the component's first scan on.
    pub(super) quant: Option<[u16; 64]>,
    /// Blocks that hold samples.
    pub(super) columns: usize,
    pub(super) rows: usize,
}

pub(super) struct Frame {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) progressive: bool,
    pub(super) components: Vec<Component>,
    pub(super) max_h: usize,
    pub(super) max_v: usize,
}

impl Frame {
    /// Returns how many units of interleaved scans there are in a row, and how many rows.
    pub(super) fn units(&self) -> (usize, usize) {
        (
            self.width.div_ceil(self.max_h * 8),
            self.height.div_ceil(self.max_v * 8),
        )
    }
}

/// A scan: its components by their number in the frame, with their tables.
pub(super) struct Scan {
    pub(super) parts: Vec<Part>,
    /// The first and the last coefficient.
    pub(super) first: usize,
    pub(super) last: usize,
    /// The bits that earlier scans had not read, and those that this one leaves.
    pub(super) high: u32,
    pub(super) low: u32,
}

#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) component: usize,
    pub(super) dc: usize,
    pub(super) ac: usize,
}

/// What the segments read so far said.
#[derive(Default)]
pub(super) struct Headers {
    pub(super) frame: Option<Frame>,
    quants: [Option<[u16; 64]>; 4],
    pub(super) dc: [Option<Arc<Table>>; 4],
    pub(super) ac: [Option<Arc<Table>>; 4],
    pub(super) restart_interval: usize,
    has_jfif: bool,
    /// What an Adobe segment said about colors.
    pub(super) adobe: Option<u8>,
}

/// What was found in front of entropy-coded data or at the end.
pub(super) enum Found {
    Scan(Scan),
    End,
}

type Outcome<T> = Result<T, Stop>;

fn be16(bytes: &[u8]) -> usize {
    match bytes {
        [high, low, ..] => usize::from(*high) << 8 | usize::from(*low),
        _ => 0,
    }
}

/// Returns the content of a segment.
fn segment<'a>(bits: &mut Bits<'a>) -> Outcome<&'a [u8]> {
    let rest = bits.data.get(bits.at..).unwrap_or_default();
    let length = be16(rest);
    let content = rest.get(2..length.max(2)).filter(|_| length >= 2);
    let content = content.ok_or(Stop::Fatal("a segment goes beyond the end"))?;
    bits.at += length;
    bits.save();
    Ok(content)
}

/// Finds the next marker, which may have been met already.
pub(super) fn next_marker(bits: &mut Bits) -> Outcome<u8> {
    if bits.marker != 0 {
        return Ok(std::mem::take(&mut bits.marker));
    }
    loop {
        while bits.byte()? != 0xff {
            bits.save();
        }
        let mut code = 0xff;
        while code == 0xff {
            code = bits.byte()?;
        }
        if code != 0 {
            bits.save();
            return Ok(code);
        }
        bits.save();
    }
}

impl Headers {
    /// Reads segments up to a scan's data or the end of the picture.
    pub(super) fn read(&mut self, bits: &mut Bits) -> Outcome<Found> {
        loop {
            let marker = next_marker(bits)?;
            match marker {
                0xc0..=0xc2 => self.read_frame(segment(bits)?, marker == 0xc2)?,
                0xc9 | 0xca => return Err(Stop::Fatal("arithmetic coding is not supported")),
                0xc3 | 0xc5..=0xc8 | 0xcb | 0xcd..=0xcf => {
                    return Err(Stop::Fatal("the kind of frame is not supported"));
                }
                0xc4 => self.read_codes(segment(bits)?)?,
                0xd8 => return Err(Stop::Fatal("the file has a second beginning")),
                0xd9 => return Ok(Found::End),
                0xda => {
                    let scan = self.read_scan(segment(bits)?)?;
                    return Ok(Found::Scan(scan));
                }
                0xdb => self.read_quants(segment(bits)?)?,
                0xdd => match segment(bits)? {
                    interval @ [_, _] => self.restart_interval = be16(interval),
                    _ => return Err(Stop::Fatal("the restart interval is damaged")),
                },
                0xe0 => {
                    let content = segment(bits)?;
                    self.has_jfif |= content.len() >= 14 && content.starts_with(b"JFIF\0");
                }
                0xee => {
                    if let [
                        b'A',
                        b'd',
                        b'o',
                        b'b',
                        b'e',
                        _,
                        _,
                        _,
                        _,
                        _,
                        _,
                        transform,
                        ..,
                    ] = segment(bits)?
                    {
                        self.adobe = Some(*transform);
                    }
                }
                0xcc | 0xdc | 0xe1..=0xed | 0xef | 0xfe => {
                    segment(bits)?;
                }
                0x01 | 0xd0..=0xd7 => {}
                _ => return Err(Stop::Fatal("a marker is unknown")),
            }
        }
    }

    fn read_frame(&mut self, content: &[u8], progressive: bool) -> Result<(), Error> {
        if self.frame.is_some() {
            return Err("the file has two frames");
        }
        let (head, rest) = content.split_at_checked(6).ok_or("the frame is damaged")?;
        let (height, width) = (be16(&head[1..]), be16(&head[3..]));
        let n = usize::from(head[5]);
        if head[0] != 8 {
            return Err("the samples do not have 8 bits");
        }
        if height == 0 || width == 0 || n == 0 {
            return Err("the picture is empty");
        }
        if rest.len() != n * 3 || n > 4 {
            return Err("the frame is damaged");
        }
        let component = |c: &[u8]| Component {
            id: c[0],
            h: usize::from(c[1] >> 4),
            v: usize::from(c[1] & 15),
            quant_index: usize::from(c[2]),
            quant: None,
            columns: 0,
            rows: 0,
        };
        let mut components: Vec<Component> = rest.chunks_exact(3).map(component).collect();
        if components
            .iter()
            .any(|c| !(1..=4).contains(&c.h) || !(1..=4).contains(&c.v))
        {
            return Err("a sampling factor is invalid");
        }
        let max_h = components.iter().map(|c| c.h).max().unwrap_or(1);
        let max_v = components.iter().map(|c| c.v).max().unwrap_or(1);
        for c in &mut components {
            c.columns = (width * c.h).div_ceil(max_h * 8);
            c.rows = (height * c.v).div_ceil(max_v * 8);
        }
        self.frame = Some(Frame {
            width,
            height,
            progressive,
            components,
            max_h,
            max_v,
        });
        Ok(())
    }

    fn read_quants(&mut self, mut content: &[u8]) -> Result<(), Error> {
        while let Some((&kind, rest)) = content.split_first() {
            let size = if kind >> 4 == 0 { 1 } else { 2 };
            let slot = self.quants.get_mut(usize::from(kind & 15));
            let slot = slot.ok_or("a quantization table has no place")?;
            let values = rest
                .get(..64 * size)
                .ok_or("a quantization table is cut short")?;
            let table = slot.insert([0; 64]);
            for (value, at) in values.chunks_exact(size).zip(ZIGZAG) {
                table[usize::from(at)] = match value {
                    [v] => u16::from(*v),
                    _ => be16(value) as u16,
                };
            }
            content = &rest[64 * size..];
        }
        Ok(())
    }

    fn read_codes(&mut self, mut content: &[u8]) -> Result<(), Error> {
        while let Some((&kind, rest)) = content.split_first() {
            let counts: &[u8; 16] = rest.first_chunk().ok_or("a Huffman table is cut short")?;
            let n: usize = counts.iter().map(|&n| usize::from(n)).sum();
            let symbols = rest.get(16..16 + n).filter(|_| n <= 256);
            let symbols = symbols.ok_or("a Huffman table is cut short")?;
            let tables = match kind >> 4 {
                0 => &mut self.dc,
                1 => &mut self.ac,
                _ => return Err("a Huffman table has no place"),
            };
            let slot = tables.get_mut(usize::from(kind & 15));
            let slot = slot.ok_or("a Huffman table has no place")?;
            *slot = Some(Table::of(counts, symbols, kind >> 4 == 0)?);
            content = &rest[16 + n..];
        }
        Ok(())
    }

    fn read_scan(&mut self, content: &[u8]) -> Result<Scan, Error> {
        let frame = self
            .frame
            .as_mut()
            .ok_or("a scan is in front of the frame")?;
        let (&n, rest) = content.split_first().ok_or("a scan is damaged")?;
        let n = usize::from(n);
        if !(1..=4).contains(&n) || rest.len() != n * 2 + 3 {
            return Err("a scan is damaged");
        }
        let mut parts: Vec<Part> = Vec::with_capacity(n);
        for part in rest[..n * 2].chunks_exact(2) {
            let found = frame.components.iter().position(|c| c.id == part[0]);
            let component = found.ok_or("a scan has a component that the frame lacks")?;
            if parts.iter().any(|p| p.component == component) {
                return Err("a scan has a component twice");
            }
            let (dc, ac) = (usize::from(part[1] >> 4), usize::from(part[1] & 15));
            parts.push(Part { component, dc, ac });
        }
        let blocks = parts
            .iter()
            .filter_map(|p| frame.components.get(p.component));
        if n > 1 && blocks.map(|c| c.h * c.v).sum::<usize>() > 10 {
            return Err("a scan's units are too large");
        }
        for part in &parts {
            let component = &mut frame.components[part.component];
            if component.quant.is_none() {
                let table = self.quants.get(component.quant_index).copied().flatten();
                component.quant = Some(table.ok_or("a quantization table is missing")?);
            }
        }
        let [first, last, approximation] = rest[n * 2..] else {
            return Err("a scan is damaged");
        };
        let (first, last) = (usize::from(first), usize::from(last));
        let (high, low) = (u32::from(approximation >> 4), u32::from(approximation & 15));
        if frame.progressive {
            let is_range = match first {
                0 => last == 0,
                _ => first <= last && last < 64 && n == 1,
            };
            if !is_range || high != 0 && high != low + 1 || low > 13 {
                return Err("a progressive scan is invalid");
            }
        }
        Ok(Scan {
            parts,
            first,
            last,
            high,
            low,
        })
    }

    /// Returns what the samples stand for.
    pub(super) fn space(&self) -> Option<Space> {
        let components = &self.frame.as_ref()?.components[..];
        match components {
            [_] => Some(Space::Gray),
            [a, b, c] => Some(match (self.has_jfif, self.adobe) {
                (true, _) => Space::Ycc,
                (_, Some(0)) => Space::Rgb,
                (_, Some(_)) => Space::Ycc,
                _ if [a.id, b.id, c.id] == *b"RGB" => Space::Rgb,
                _ => Space::Ycc,
            }),
            [_, _, _, _] => Some(match self.adobe {
                None | Some(0) => Space::Cmyk,
                Some(_) => Space::Ycck,
            }),
            _ => None,
        }
    }
}

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::Fatal(e)
    }
}
