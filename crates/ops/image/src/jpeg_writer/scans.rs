//! Scans: the order of coefficients in a file, and the symbols that stand for them (libjpeg: `jchuff.c`, `jcphuff.c`,
//! `jcparam.c`).

use super::Layout;
use super::huffman::Sink;
use super::planes::Planes;
use super::transform::Block;

/// Blocks without further coefficients that one symbol can stand for.
const MOST_ENDS: u32 = 0x7fff;

/// Bits of corrections that may wait for such a symbol.
const MOST_WAITING: usize = 1000 - 64 + 1;

/// The quantized coefficients of each component, in rows of blocks.
pub(super) struct Coefficients(Vec<Vec<Block>>);

impl Coefficients {
    pub(super) fn of(planes: Planes) -> Coefficients {
        let mut all: Vec<Vec<Block>> = Vec::new();
        planes.each(|row| {
            all.resize_with(row.len(), Vec::new);
            all.iter_mut()
                .zip(row)
                .for_each(|(all, row)| all.extend_from_slice(row));
        });
        Coefficients(all)
    }
}

/// What a scan holds: bits `shift..before` of the coefficients `first..=last` of some components.
pub(super) struct Scan {
    pub(super) components: Vec<usize>,
    pub(super) first: usize,
    pub(super) last: usize,
    /// The bits from here on are in earlier scans; 0 if there are none.
    pub(super) before: u32,
    pub(super) shift: u32,
    progressive: bool,
}

/// Returns the scans of a progressive file.
pub(super) fn progression(channels: usize) -> Vec<Scan> {
    let scan = |components: &[usize], [first, last]: [usize; 2], before, shift| Scan {
        components: components.to_vec(),
        first,
        last,
        before,
        shift,
        progressive: true,
    };
    match channels {
        3 => vec![
            scan(&[0, 1, 2], [0, 0], 0, 1),
            scan(&[0], [1, 5], 0, 2),
            scan(&[2], [1, 63], 0, 1),
            scan(&[1], [1, 63], 0, 1),
            scan(&[0], [6, 63], 0, 2),
            scan(&[0], [1, 63], 2, 1),
            scan(&[0, 1, 2], [0, 0], 1, 0),
            scan(&[2], [1, 63], 1, 0),
            scan(&[1], [1, 63], 1, 0),
            scan(&[0], [1, 63], 1, 0),
        ],
        _ => vec![
            scan(&[0], [0, 0], 0, 1),
            scan(&[0], [1, 5], 0, 2),
            scan(&[0], [6, 63], 0, 2),
            scan(&[0], [1, 63], 2, 1),
            scan(&[0], [0, 0], 1, 0),
            scan(&[0], [1, 63], 1, 0),
        ],
    }
}

impl Scan {
    /// The scan of a file with one.
    pub(super) fn sequential(channels: usize) -> Scan {
        Scan {
            components: (0..channels).collect(),
            first: 0,
            last: 63,
            before: 0,
            shift: 0,
            progressive: false,
        }
    }

    /// Returns whether codes for DC and AC coefficients are used.
    pub(super) fn uses(&self) -> (bool, bool) {
        match self.progressive {
            true => (self.first == 0 && self.before == 0, self.first > 0),
            false => (true, true),
        }
    }

    /// Keeps the bits of the coefficients in the scan.
    #[inline(always)]
    fn range(&self, bits: u64) -> u64 {
        bits & (u64::MAX >> (63 - self.last)) & (u64::MAX << self.first)
    }

    /// Passes on the symbols of the scan.
    pub(super) fn run(&self, layout: &Layout, all: &Coefficients, to: &mut impl Sink) {
        let mut coder = Coder::default();
        match self.components[..] {
            // A scan of one component leaves out the blocks behind the image.
            [c] => {
                let Some((component, blocks)) = layout.components.get(c).zip(all.0.get(c)) else {
                    return;
                };
                let rows = blocks.chunks_exact(layout.columns * component.factor);
                for block in rows
                    .take(component.height)
                    .flat_map(|row| &row[..component.width])
                {
                    coder.block(self, block, c, component.table, to);
                }
            }
            _ => {
                let rows = |c: usize, row: usize| {
                    let n = layout.columns * layout.components[c].factor.pow(2);
                    &all.0[c][row * n..(row + 1) * n]
                };
                for row in 0..layout.rows {
                    coder.units(self, layout, |c| rows(c, row), to);
                }
            }
        }
        coder.end_blocks(self, layout.components[self.components[0]].table + 2, to);
    }
}

/// Passes on the symbols of the only scan, without keeping coefficients.
pub(super) fn sequential(layout: &Layout, planes: Planes, to: &mut impl Sink) {
    let mut coder = Coder::default();
    let scan = Scan::sequential(layout.components.len());
    planes.each(|blocks| coder.units(&scan, layout, |c| &blocks[c][..], to));
}

/// What symbols depend on, besides the block.
#[derive(Default)]
struct Coder {
    /// The last mean of each component.
    means: [i32; 3],
    /// Blocks that ended without a symbol so far.
    ends: u32,
    /// Corrections in these blocks.
    waiting: Vec<bool>,
    /// Corrections in the block, until they are passed on.
    corrections: Vec<bool>,
}

/// Returns the number of bits of a value.
#[inline(always)]
fn size(v: u32) -> u32 {
    32 - v.leading_zeros()
}

impl Coder {
    /// Passes on a row of units of several components.
    fn units<'b>(
        &mut self,
        scan: &Scan,
        layout: &Layout,
        blocks: impl Fn(usize) -> &'b [Block],
        to: &mut impl Sink,
    ) {
        let components = layout.components.iter().enumerate();
        let components: Vec<_> = components
            .map(|(c, component)| (c, component, blocks(c)))
            .collect();
        for x in 0..layout.columns {
            for (c, component, blocks) in &components {
                let factor = component.factor;
                for row in blocks.chunks_exact(layout.columns * factor) {
                    for block in &row[x * factor..(x + 1) * factor] {
                        self.block(scan, block, *c, component.table, to);
                    }
                }
            }
        }
    }

    #[inline]
    fn block(
        &mut self,
        scan: &Scan,
        block: &Block,
        component: usize,
        table: usize,
        to: &mut impl Sink,
    ) {
        match (scan.progressive, scan.first, scan.before) {
            (false, ..) => {
                self.mean(block[0].into(), component, table, to);
                whole(block, table + 2, to);
            }
            (_, 0, 0) => self.mean(i32::from(block[0]) >> scan.shift, component, table, to),
            (_, 0, _) => to.bits((i32::from(block[0]) >> scan.shift) as u32 & 1, 1),
            (_, _, 0) => self.first_bits(scan, block, table + 2, to),
            _ => self.further_bits(scan, block, table + 2, to),
        }
    }

    /// Passes on the difference to the last mean.
    #[inline]
    fn mean(&mut self, mean: i32, component: usize, table: usize, to: &mut impl Sink) {
        let last = &mut self.means[component];
        let difference = mean - *last;
        *last = mean;
        let n = size(difference.unsigned_abs());
        to.symbol(table, n as u8, low_bits(difference, n), n);
    }

    fn first_bits(&mut self, scan: &Scan, block: &Block, table: usize, to: &mut impl Sink) {
        let mut start = scan.first;
        for at in ones(scan.range(nonzero(block, scan.shift))) {
            self.end_blocks(scan, table, to);
            let v = i32::from(block[at]);
            let value = (v.abs() >> scan.shift) * v.signum();
            coefficient(at - start, value, table, to);
            start = at + 1;
        }
        if start <= scan.last {
            self.ends += 1;
            if self.ends == MOST_ENDS {
                self.end_blocks(scan, table, to);
            }
        }
    }

    /// Passes on the next bit: of coefficients that are new, and as corrections of those that are known.
    fn further_bits(&mut self, scan: &Scan, block: &Block, table: usize, to: &mut impl Sink) {
        let there = scan.range(nonzero(block, scan.shift));
        let new = there & !nonzero(block, scan.shift + 1);
        let (mut zeros, mut start) = (0, scan.first);
        let mut corrections = std::mem::take(&mut self.corrections);
        for at in ones(there) {
            zeros += at - start;
            start = at + 1;
            while zeros > 15 && new >> at != 0 {
                self.end_blocks(scan, table, to);
                to.symbol(table, 0xf0, 0, 0);
                zeros -= 16;
                all_bits(&mut corrections, to);
            }
            if new >> at & 1 == 0 {
                corrections.push(block[at].unsigned_abs() >> scan.shift & 1 == 1);
                continue;
            }
            self.end_blocks(scan, table, to);
            to.symbol(table, (zeros << 4) as u8 | 1, (block[at] >= 0).into(), 1);
            all_bits(&mut corrections, to);
            zeros = 0;
        }
        if zeros > 0 || start <= scan.last || !corrections.is_empty() {
            self.ends += 1;
            self.waiting.append(&mut corrections);
            if self.ends == MOST_ENDS || self.waiting.len() > MOST_WAITING {
                self.end_blocks(scan, table, to);
            }
        }
        self.corrections = corrections;
    }

    /// Passes on the symbol for the blocks that ended, and their corrections.
    #[inline]
    fn end_blocks(&mut self, scan: &Scan, table: usize, to: &mut impl Sink) {
        if self.ends == 0 || !scan.progressive {
            return;
        }
        let n = size(self.ends) - 1;
        to.symbol(table, (n << 4) as u8, self.ends & ((1 << n) - 1), n);
        self.ends = 0;
        all_bits(&mut self.waiting, to);
    }
}

fn all_bits(bits: &mut Vec<bool>, to: &mut impl Sink) {
    bits.drain(..).for_each(|bit| to.bits(bit.into(), 1));
}

/// Returns a bit for each coefficient that is not zero without its last bits.
#[inline(always)]
fn nonzero(block: &Block, shift: u32) -> u64 {
    let mut there = 0;
    for (i, &v) in block.iter().enumerate() {
        there |= u64::from(v.unsigned_abs() >> shift != 0) << i;
    }
    there
}

/// Returns the places of the ones.
#[inline(always)]
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (at < 64).then_some(at)
    })
}

/// Returns the bits after a symbol with this size: of a negative value, one less.
#[inline(always)]
fn low_bits(v: i32, n: u32) -> u32 {
    (v + (v >> 31)) as u32 & ((1 << n) - 1)
}

/// Passes on a coefficient and the zeros before it.
#[inline(always)]
fn coefficient(mut zeros: usize, value: i32, table: usize, to: &mut impl Sink) {
    while zeros > 15 {
        to.symbol(table, 0xf0, 0, 0);
        zeros -= 16;
    }
    let n = size(value.unsigned_abs());
    to.symbol(table, (zeros << 4) as u8 | n as u8, low_bits(value, n), n);
}

/// Passes on the coefficients but the mean.
#[inline]
fn whole(block: &Block, table: usize, to: &mut impl Sink) {
    let mut start = 1;
    for at in ones(nonzero(block, 0) & !1) {
        coefficient(at - start, i32::from(block[at]), table, to);
        start = at + 1;
    }
    if start < 64 {
        to.symbol(table, 0, 0, 0);
    }
}
