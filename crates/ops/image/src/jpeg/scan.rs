//! Entropy-coded data: sequential and progressive scans (libjpeg: `jdhuff.c`, `jdphuff.c`).

use super::Stop;
use super::bits::{Bits, Quick, Table, extended};
use super::headers::{Frame, Headers, Scan, ZIGZAG, next_marker};
use super::idct::Block;
use std::sync::Arc;

/// The most blocks that a unit has.
const MAX_BLOCKS: usize = 10;

/// The most bytes that a block takes, as libjpeg reckons.
const BLOCK_BYTES: usize = 512;

/// The coefficients of a component, block by block.
pub(super) struct Coefficients {
    pub(super) blocks: Vec<Block>,
    /// Blocks in a row, those of whole units.
    pub(super) stride: usize,
}

/// A block of a unit.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Its component in the scan, and in the frame.
    part: usize,
    component: usize,
    /// Its row and column in the unit.
    row: usize,
    column: usize,
}

/// The units of a scan.
struct Units {
    rows: usize,
    columns: usize,
    places: [Place; MAX_BLOCKS],
    n_blocks: usize,
    /// Blocks of a unit in each direction, for each component of the scan.
    sizes: Vec<(usize, usize)>,
}

impl Units {
    fn of(frame: &Frame, scan: &Scan) -> Option<Units> {
        let mut units = Units {
            rows: 0,
            columns: 0,
            places: [Place::default(); MAX_BLOCKS],
            n_blocks: 0,
            sizes: Vec::new(),
        };
        if let [part] = &scan.parts[..] {
            let component = frame.components.get(part.component)?;
            (units.rows, units.columns) = (component.rows, component.columns);
            units.places[0].component = part.component;
            units.n_blocks = 1;
            units.sizes.push((1, 1));
            return Some(units);
        }
        (units.columns, units.rows) = frame.units();
        for (i, part) in scan.parts.iter().enumerate() {
            let component = frame.components.get(part.component)?;
            units.sizes.push((component.h, component.v));
            for row in 0..component.v {
                for column in 0..component.h {
                    *units.places.get_mut(units.n_blocks)? = Place {
                        part: i,
                        component: part.component,
                        row,
                        column,
                    };
                    units.n_blocks += 1;
                }
            }
        }
        Some(units)
    }

    fn places(&self) -> &[Place] {
        self.places.get(..self.n_blocks).unwrap_or_default()
    }
}

/// What restart markers reset.
struct Restarts {
    interval: usize,
    left: usize,
    next: u8,
}

impl Restarts {
    fn new(interval: usize) -> Self {
        Restarts {
            interval,
            left: interval,
            next: 0,
        }
    }

    /// Passes a restart marker if it is due; returns whether it was.
    fn pass(&mut self, bits: &mut Bits) -> Result<bool, Stop> {
        if self.interval == 0 {
            return Ok(false);
        }
        let due = self.left == 0;
        if due {
            bits.clear_for_restart();
            let expected = 0xd0 + self.next;
            let mut marker = next_marker(bits)?;
            while marker != expected {
                let ahead = marker.wrapping_sub(expected) & 7;
                let is_restart = (0xd0..=0xd7).contains(&marker);
                match marker {
                    // A later restart or another segment stays for later.
                    _ if marker >= 0xc0 && (!is_restart || ahead == 1 || ahead == 2) => {
                        bits.marker = marker;
                        break;
                    }
                    // One that is far off counts as the expected one.
                    _ if is_restart && ahead != 6 && ahead != 7 => break,
                    _ => marker = next_marker(bits)?,
                }
            }
            self.next = (self.next + 1) & 7;
            self.left = self.interval;
            if bits.marker == 0 {
                bits.starved = false;
            }
        }
        self.left -= 1;
        Ok(due)
    }
}

const NO_TABLE: Stop = Stop::Fatal("a Huffman table is missing");

/// Returns the tables of each component of a scan.
fn tables<'h>(headers: &'h Headers, scan: &Scan) -> Result<Vec<[&'h Table; 2]>, Stop> {
    let find = |tables: &'h [Option<Arc<Table>>; 4], at: usize| tables.get(at)?.as_deref();
    let parts = scan.parts.iter();
    let pairs = parts.map(|p| Some([find(&headers.dc, p.dc)?, find(&headers.ac, p.ac)?]));
    pairs.collect::<Option<_>>().ok_or(NO_TABLE)
}

/// Reads a sequential scan; passes each block on, with its component, its row and column. Sets `done` to
/// the number of rows of units.
pub(super) fn sequential(
    headers: &Headers,
    frame: &Frame,
    scan: &Scan,
    bits: &mut Bits,
    done: &mut usize,
    mut sink: impl FnMut(usize, usize, usize, &Block),
) -> Result<(), Stop> {
    let tables = tables(headers, scan)?;
    let units = Units::of(frame, scan).ok_or(Stop::Fatal("a scan is damaged"))?;
    let mut restarts = Restarts::new(headers.restart_interval);
    let mut predictions = [0i32; 4];
    let mut blocks = [[0i16; 64]; MAX_BLOCKS];
    bits.clear();
    for row in 0..units.rows {
        for column in 0..units.columns {
            if restarts.pass(bits)? {
                predictions = [0; 4];
            }
            for block in blocks.iter_mut().take(units.n_blocks) {
                *block = [0; 64];
            }
            if !bits.starved {
                let before = predictions;
                let mut is_read = false;
                if let Some(mut quick) = bits.quick(units.n_blocks * BLOCK_BYTES) {
                    for (i, place) in units.places().iter().enumerate() {
                        let [dc, ac] = tables[place.part];
                        let prediction = &mut predictions[place.part & 3];
                        quick_block(&mut quick, dc, ac, prediction, &mut blocks[i]);
                    }
                    is_read = bits.accept(quick);
                }
                if !is_read {
                    predictions = before;
                    for (i, place) in units.places().iter().enumerate() {
                        let [dc, ac] = tables[place.part];
                        let prediction = &mut predictions[place.part & 3];
                        blocks[i] = [0; 64];
                        careful_block(bits, dc, ac, prediction, &mut blocks[i])?;
                    }
                }
                bits.save();
            }
            for (i, place) in units.places().iter().enumerate() {
                let (h, v) = units.sizes[place.part];
                let at = (row * v + place.row, column * h + place.column);
                sink(place.component, at.0, at.1, &blocks[i]);
            }
        }
        *done = row + 1;
    }
    Ok(())
}

#[inline(always)]
fn quick_block(bits: &mut Quick, dc: &Table, ac: &Table, prediction: &mut i32, block: &mut Block) {
    let size = u32::from(bits.symbol(dc));
    if size > 0 {
        let difference = extended(bits.get(size), size);
        *prediction = prediction.wrapping_add(difference);
    }
    block[0] = *prediction as i16;
    let mut k = 1;
    while k < 64 {
        if let Some((value, zeros)) = bits.whole(ac) {
            k += zeros;
            block[usize::from(ZIGZAG[k])] = value;
            k += 1;
            continue;
        }
        let symbol = bits.symbol(ac);
        let (zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        if size > 0 {
            k += zeros;
            block[usize::from(ZIGZAG[k])] = extended(bits.get(size), size) as i16;
        } else if zeros == 15 {
            k += 15;
        } else {
            break;
        }
        k += 1;
    }
}

fn careful_block(
    bits: &mut Bits,
    dc: &Table,
    ac: &Table,
    prediction: &mut i32,
    block: &mut Block,
) -> Result<(), Stop> {
    let size = u32::from(bits.symbol(dc)?);
    if size > 0 {
        let difference = extended(bits.get(size)?, size);
        *prediction = prediction.wrapping_add(difference);
    }
    block[0] = *prediction as i16;
    let mut k = 1;
    while k < 64 {
        let symbol = bits.symbol(ac)?;
        let (zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        if size > 0 {
            k += zeros;
            block[usize::from(ZIGZAG[k])] = extended(bits.get(size)?, size) as i16;
        } else if zeros == 15 {
            k += 15;
        } else {
            break;
        }
        k += 1;
    }
    Ok(())
}

/// Reads a progressive scan into the coefficients of its components.
pub(super) fn progressive(
    headers: &Headers,
    frame: &Frame,
    scan: &Scan,
    bits: &mut Bits,
    coefficients: &mut [Coefficients],
) -> Result<(), Stop> {
    let units = Units::of(frame, scan).ok_or(Stop::Fatal("a scan is damaged"))?;
    let mut restarts = Restarts::new(headers.restart_interval);
    let mut predictions = [0i32; 4];
    // Blocks that end here, without further bits.
    let mut ended = 0u32;
    let find =
        |tables: &'_ [Option<Arc<Table>>; 4], at: usize| tables.get(at).and_then(Option::clone);
    let mut tables = Vec::new();
    for part in &scan.parts {
        let table = match (scan.first, scan.high) {
            (0, 0) => Some(find(&headers.dc, part.dc).ok_or(NO_TABLE)?),
            (0, _) => None,
            _ => Some(find(&headers.ac, part.ac).ok_or(NO_TABLE)?),
        };
        tables.push(table);
    }
    bits.clear();
    for row in 0..units.rows {
        for column in 0..units.columns {
            if restarts.pass(bits)? {
                predictions = [0; 4];
                ended = 0;
            }
            for place in units.places() {
                let (h, v) = units.sizes[place.part];
                let (row, column) = (row * v + place.row, column * h + place.column);
                let plane = &mut coefficients[place.component];
                let Some(block) = plane.blocks.get_mut(row * plane.stride + column) else {
                    continue;
                };
                match &tables[place.part] {
                    None => block[0] |= (bits.get(1)? << scan.low) as i16,
                    Some(_) if bits.starved => {}
                    Some(table) if scan.first == 0 => {
                        let size = u32::from(bits.symbol(table)?);
                        let prediction = &mut predictions[place.part & 3];
                        if size > 0 {
                            let difference = extended(bits.get(size)?, size);
                            *prediction = prediction.wrapping_add(difference);
                        }
                        block[0] = (*prediction << scan.low) as i16;
                    }
                    Some(table) if scan.high == 0 => {
                        first_of_block(bits, table, scan, &mut ended, block)?;
                    }
                    Some(table) => refine_block(bits, table, scan, &mut ended, block)?,
                }
            }
            bits.save();
        }
    }
    Ok(())
}

fn first_of_block(
    bits: &mut Bits,
    table: &Table,
    scan: &Scan,
    ended: &mut u32,
    block: &mut Block,
) -> Result<(), Stop> {
    if *ended > 0 {
        *ended -= 1;
        return Ok(());
    }
    let mut k = scan.first;
    while k <= scan.last {
        let symbol = bits.symbol(table)?;
        let (zeros, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        if size > 0 {
            k += zeros as usize;
            let value = extended(bits.get(size)?, size);
            block[usize::from(ZIGZAG[k])] = (value << scan.low) as i16;
        } else if zeros == 15 {
            k += 15;
        } else {
            *ended = (1 << zeros) - 1;
            if zeros > 0 {
                *ended += bits.get(zeros)?;
            }
            break;
        }
        k += 1;
    }
    Ok(())
}

/// Reads one more bit of a coefficient that is not 0.
fn refine(bits: &mut Bits, coefficient: &mut i16, bit: i16) -> Result<(), Stop> {
    if bits.get(1)? == 1 && *coefficient & bit == 0 {
        let step = if *coefficient >= 0 { bit } else { -bit };
        *coefficient = coefficient.wrapping_add(step);
    }
    Ok(())
}

fn refine_block(
    bits: &mut Bits,
    table: &Table,
    scan: &Scan,
    ended: &mut u32,
    block: &mut Block,
) -> Result<(), Stop> {
    let bit = 1i16 << scan.low;
    let mut k = scan.first;
    if *ended == 0 {
        while k <= scan.last {
            let symbol = bits.symbol(table)?;
            let (mut zeros, size) = (u32::from(symbol >> 4), symbol & 15);
            let mut new = 0;
            if size > 0 {
                new = if bits.get(1)? == 1 { bit } else { -bit };
            } else if zeros != 15 {
                *ended = 1 << zeros;
                if zeros > 0 {
                    *ended += bits.get(zeros)?;
                }
                break;
            }
            while k <= scan.last {
                let coefficient = &mut block[usize::from(ZIGZAG[k])];
                if *coefficient != 0 {
                    refine(bits, coefficient, bit)?;
                } else if zeros == 0 {
                    break;
                } else {
                    zeros -= 1;
                }
                k += 1;
            }
            if new != 0 {
                block[usize::from(ZIGZAG[k])] = new;
            }
            k += 1;
        }
    }
    if *ended > 0 {
        while k <= scan.last {
            let coefficient = &mut block[usize::from(ZIGZAG[k])];
            if *coefficient != 0 {
                refine(bits, coefficient, bit)?;
            }
            k += 1;
        }
        *ended -= 1;
    }
    Ok(())
}
