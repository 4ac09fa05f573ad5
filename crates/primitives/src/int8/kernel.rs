//! The inner loops of products of codes, and their epilogue.

use super::dot::{Dot, Kind};
use super::winograd::{Products, outputs};
use crate::vector::portable::Portable;
use crate::vector::{Lanes, Simd, array};

/// What is added to a result, before the clamp.
#[derive(Clone, Copy)]
pub(crate) enum Added {
    Nothing,
    Codes(*const u8),
    Floats(*const f32),
}

/// Where results go.
#[derive(Clone, Copy)]
pub(crate) enum To {
    Codes(*mut u8),
    Floats(*mut f32),
    /// The sums themselves.
    Sums(*mut i32),
}

impl Added {
    #[inline(always)]
    pub(crate) fn at(self, offset: usize) -> Added {
        match self {
            Added::Nothing => Added::Nothing,
            Added::Codes(p) => Added::Codes(p.wrapping_add(offset)),
            Added::Floats(p) => Added::Floats(p.wrapping_add(offset)),
        }
    }
}

impl To {
    #[inline(always)]
    pub(crate) fn at(self, offset: usize) -> To {
        match self {
            To::Codes(p) => To::Codes(p.wrapping_add(offset)),
            To::Floats(p) => To::Floats(p.wrapping_add(offset)),
            To::Sums(p) => To::Sums(p.wrapping_add(offset)),
        }
    }
}

/// The steps that follow a sum: `clamp(sum * scale + bias + side * factor)`.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    /// A number for each column of the padded panels.
    pub scale: *const f32,
    pub bias: *const f32,
    pub side: Added,
    pub factor: f32,
    pub to: To,
    /// Elements from a row of the side and of the output to the next.
    pub ld: usize,
    pub low: f32,
    pub high: f32,
}

impl Finish {
    /// Returns the epilogue of the rows from `row` and the columns from `column` on; `padded` is the
    /// place of the column in the scales.
    #[inline(always)]
    pub(crate) fn at(&self, row: usize, column: usize, padded: usize) -> Finish {
        Finish {
            scale: self.scale.wrapping_add(padded),
            bias: self.bias.wrapping_add(padded),
            side: self.side.at(row * self.ld + column),
            to: self.to.at(row * self.ld + column),
            ..*self
        }
    }

    /// Returns the epilogue with its numbers in registers.
    #[inline(always)]
    fn ready<D: Dot>(&self, d: D) -> Ready<D> {
        let s = d.simd();
        Ready {
            d,
            side: self.side,
            factor: s.splat(self.factor),
            to: self.to,
            low: s.splat(self.low),
            high: s.splat(self.high),
        }
    }
}

/// An epilogue with its numbers in registers.
#[derive(Clone, Copy)]
struct Ready<D: Dot> {
    d: D,
    side: Added,
    factor: <D::S as Lanes>::V,
    to: To,
    low: <D::S as Lanes>::V,
    high: <D::S as Lanes>::V,
}

impl<D: Dot> Ready<D> {
    /// Writes the results of `n` columns, at most those of a vector, `offset` elements behind the first one.
    ///
    /// # Safety
    /// The side and the output are valid for `n` elements there.
    #[inline(always)]
    unsafe fn write(
        &self,
        sum: <D::S as Simd>::I,
        [scale, bias]: [<D::S as Lanes>::V; 2],
        offset: usize,
        n: usize,
    ) {
        let (d, s) = (self.d, self.d.simd());
        let lanes = <D::S as Lanes>::N;
        // SAFETY: the caller's promise.
        unsafe {
            if let To::Sums(p) = self.to {
                // These have whole vectors.
                return s.store(p.add(offset).cast(), s.float(sum));
            }
            let mut y = s.add(s.mul(s.to_float(sum), scale), bias);
            match self.side {
                Added::Nothing => {}
                Added::Codes(p) => {
                    let p = p.add(offset);
                    let side = if n < lanes {
                        d.codes_part(p, n)
                    } else {
                        d.codes(p)
                    };
                    y = s.add(y, s.mul(side, self.factor));
                }
                Added::Floats(p) => {
                    let side = if n < lanes {
                        s.load_part(p.add(offset), n)
                    } else {
                        s.load(p.add(offset))
                    };
                    y = s.add(y, s.mul(side, self.factor));
                }
            }
            // NaN becomes the lower limit.
            let y = s.min(s.max(y, self.low), self.high);
            match self.to {
                To::Codes(p) if n < lanes => d.store_codes_part(p.add(offset), y, n),
                To::Codes(p) => d.store_codes(p.add(offset), y),
                To::Floats(p) if n < lanes => s.store_part(p.add(offset), y, n),
                To::Floats(p) => s.store(p.add(offset), y),
                To::Sums(_) => {}
            }
        }
    }
}

/// One panel of columns times several row tiles.
pub(crate) struct Sweep {
    /// Rows of `4 * steps` bytes.
    pub rows: *const u8,
    /// Bytes from a row to the next.
    pub ld: usize,
    pub tiles: usize,
    pub steps: usize,
    /// `steps` times a panel's vectors.
    pub weights: *const i32,
    /// What the sums of a panel's columns start with.
    pub start: *const i32,
    /// Columns that exist.
    pub n: usize,
    pub finish: Finish,
}

/// Computes `tiles` tiles of `MR` rows and `NV` vectors.
///
/// # Safety
/// Every pointer of `job` is valid as described there, and no other thread accesses the output.
#[inline(always)]
unsafe fn sweep<D: Dot, const MR: usize, const NV: usize>(d: D, job: &Sweep) {
    let lanes = <D::S as Lanes>::N;
    let (s, ready) = (d.simd(), job.finish.ready(d));
    for tile in 0..job.tiles {
        // SAFETY: the caller promises `tiles * MR` rows, and the panel.
        let sums = unsafe {
            let base = job.rows.add(tile * MR * job.ld);
            let rows: [*const u8; MR] = array(|r| base.wrapping_add(r * job.ld));
            let mut sums = [[d.ints(job.start); NV]; MR];
            let mut v = 1;
            while v < NV {
                let start = d.ints(job.start.add(v * lanes));
                let mut r = 0;
                while r < MR {
                    sums[r][v] = start;
                    r += 1;
                }
                v += 1;
            }
            let (mut weights, mut at, end) = (job.weights, 0, job.steps * 4);
            while at < end {
                let mut w = [d.ints(weights); NV];
                let mut v = 1;
                while v < NV {
                    w[v] = d.ints(weights.add(v * lanes));
                    v += 1;
                }
                let mut r = 0;
                while r < MR {
                    let codes = d.spread(rows[r].add(at).cast());
                    let mut v = 0;
                    while v < NV {
                        sums[r][v] = d.dot(sums[r][v], codes, w[v]);
                        v += 1;
                    }
                    r += 1;
                }
                weights = weights.add(D::VECTORS * lanes);
                at += 4;
            }
            // A copy with constant places, so that only it is indexed by variables.
            let mut done = [[d.ints(job.start); NV]; MR];
            let mut r = 0;
            while r < MR {
                let mut v = 0;
                while v < NV {
                    done[r][v] = sums[r][v];
                    v += 1;
                }
                r += 1;
            }
            done
        };
        let mut v = 0;
        while v < NV {
            let column = v * lanes;
            let n = (job.n - column).min(lanes);
            // SAFETY: rows `tile * MR..`, columns below `n` of the panel.
            unsafe {
                let channels = [
                    s.load(job.finish.scale.add(column)),
                    s.load(job.finish.bias.add(column)),
                ];
                let mut r = 0;
                while r < MR {
                    let offset = (tile * MR + r) * job.finish.ld + column;
                    ready.write(sums[r][v], channels, offset, n);
                    r += 1;
                }
            }
            v += 1;
        }
    }
}

/// Sums of a panel that tiles have computed.
pub(crate) struct Sums {
    pub sums: *const i32,
    /// Elements from a row of sums to the next.
    pub ld: usize,
    pub rows: usize,
    /// Columns that exist.
    pub n: usize,
    pub finish: Finish,
}

/// Writes the results of sums.
///
/// # Safety
/// The sums are readable in whole vectors, and as for [`sweep`].
#[inline(always)]
unsafe fn finish<D: Dot>(d: D, job: &Sums) {
    let lanes = <D::S as Lanes>::N;
    let (s, ready) = (d.simd(), job.finish.ready(d));
    let mut column = 0;
    while column < job.n {
        let n = (job.n - column).min(lanes);
        // SAFETY: the caller's promise.
        unsafe {
            let channels = [
                s.load(job.finish.scale.add(column)),
                s.load(job.finish.bias.add(column)),
            ];
            for row in 0..job.rows {
                let sum = d.ints(job.sums.add(row * job.ld + column));
                ready.write(sum, channels, row * job.finish.ld + column, n);
            }
        }
        column += lanes;
    }
}

/// Pixels of an output row of a convolution of each channel.
pub(crate) struct Pixels {
    /// Interleaved input rows: a vector element holds the codes under one column of the filter.
    pub lines: *const i32,
    /// The place of each tap's vector, relative to the pixel's.
    pub taps: *const usize,
    pub n_taps: usize,
    /// Elements from a pixel to the next.
    pub step: usize,
    pub pixels: usize,
    /// `[tap][channels]`.
    pub weights: *const i32,
    /// Elements from a tap's weights to the next.
    pub ld_weights: usize,
    pub start: *const i32,
    /// Channels that exist.
    pub n: usize,
    pub finish: Finish,
}

/// Pixels computed together.
const TOGETHER: usize = 4;
/// The most taps whose weights are kept in registers.
const FEW: usize = 6;

/// Computes some pixels; `TAPS` is the number of taps, or zero for any.
///
/// # Safety
/// As for [`sweep`].
#[inline(always)]
unsafe fn pixels<D: Dot, const TAPS: usize>(d: D, job: &Pixels) {
    let lanes = <D::S as Lanes>::N;
    let (s, ready) = (d.simd(), job.finish.ready(d));
    let mut column = 0;
    while column < job.n {
        // SAFETY: the caller's promise; vectors of channels are padded.
        unsafe {
            let start = d.ints(job.start.add(column));
            let channels = [
                s.load(job.finish.scale.add(column)),
                s.load(job.finish.bias.add(column)),
            ];
            let lines = job.lines.add(column);
            let weights = job.weights.add(column);
            let mut kept = [start; FEW];
            let mut places = [0; FEW];
            let mut t = 0;
            while t < TAPS {
                kept[t] = d.ints(weights.add(t * job.ld_weights));
                places[t] = *job.taps.add(t);
                t += 1;
            }
            let n = (job.n - column).min(lanes);
            let mut pixel = 0;
            while pixel + TOGETHER <= job.pixels {
                let at = lines.add(pixel * job.step);
                let (mut a, mut b, mut c, mut e) = (start, start, start, start);
                let mut t = 0;
                while t < if TAPS > 0 { TAPS } else { job.n_taps } {
                    let (w, place) = if TAPS > 0 {
                        (kept[t], places[t])
                    } else {
                        let w = d.ints(weights.add(t * job.ld_weights));
                        (w, *job.taps.add(t))
                    };
                    let at = at.add(place);
                    a = d.dot(a, d.ints(at), w);
                    b = d.dot(b, d.ints(at.add(job.step)), w);
                    c = d.dot(c, d.ints(at.add(2 * job.step)), w);
                    e = d.dot(e, d.ints(at.add(3 * job.step)), w);
                    t += 1;
                }
                // Not an array: sums that a variable indexes would be in memory.
                let (ld, offset) = (job.finish.ld, pixel * job.finish.ld + column);
                ready.write(a, channels, offset, n);
                ready.write(b, channels, offset + ld, n);
                ready.write(c, channels, offset + 2 * ld, n);
                ready.write(e, channels, offset + 3 * ld, n);
                pixel += TOGETHER;
            }
            while pixel < job.pixels {
                let at = lines.add(pixel * job.step);
                let mut sum = start;
                let mut t = 0;
                while t < job.n_taps {
                    let w = d.ints(weights.add(t * job.ld_weights));
                    sum = d.dot(sum, d.ints(at.add(*job.taps.add(t))), w);
                    t += 1;
                }
                let offset = pixel * job.finish.ld + column;
                ready.write(sum, channels, offset, n);
                pixel += 1;
            }
        }
        column += lanes;
    }
}

/// The most rows of a tile.
pub(crate) const MAX_ROWS: usize = 6;

pub(crate) type SweepFn = unsafe fn(&Sweep);
pub(crate) type PixelsFn = unsafe fn(&Pixels);
pub(crate) type SumsFn = unsafe fn(&Sums);
type ProductsFn = unsafe fn(&Products);

/// The loops compiled for one kind of product.
pub(crate) struct Table {
    pub lanes: usize,
    /// Vectors in a panel.
    pub vectors: usize,
    /// By vectors and rows, each less one.
    pub sweeps: &'static [[SweepFn; MAX_ROWS]],
    /// For any number of taps, for three and for six.
    pixels: [PixelsFn; 3],
    pub finish: SumsFn,
    pub(super) outputs: ProductsFn,
}

impl Table {
    /// Returns the loops of a kind that the CPU has.
    pub(crate) fn of(kind: Kind) -> &'static Table {
        match kind {
            Kind::Portable => &portable::TABLE,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => &avx2::TABLE,
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => &avx_vnni::TABLE,
            #[cfg(target_arch = "x86_64")]
            Kind::Vnni | Kind::Amx => &vnni::TABLE,
            #[cfg(not(target_arch = "x86_64"))]
            _ => &portable::TABLE,
        }
    }

    /// Returns the loop for this number of taps.
    pub(crate) fn pixels(&self, n_taps: usize) -> PixelsFn {
        self.pixels[match n_taps {
            3 => 1,
            6 => 2,
            _ => 0,
        }]
    }
}

/// A module of the loops compiled for one kind.
macro_rules! kind {
    ($module:ident, $dot:ty = $new:expr, [$($feature:literal)?], [$($nv:literal)*]) => {
        mod $module {
            use super::*;

            macro_rules! job {
                ($algo:expr, $job:ty) => {{
                    $(#[target_feature(enable = $feature)])?
                    unsafe fn run(job: &$job) {
                        // SAFETY: the table is only reached on a CPU with these instructions.
                        #[allow(unused_unsafe, reason = "the portable token is free")]
                        let d: $dot = unsafe { $new };
                        // SAFETY: the caller's promise is the one the function asks for.
                        unsafe { $algo(d, job) }
                    }
                    run
                }};
            }

            pub(super) static TABLE: Table = Table {
                lanes: <<$dot as Dot>::S as Lanes>::N,
                vectors: <$dot as Dot>::VECTORS,
                sweeps: &[$([
                    job!(sweep::<$dot, 1, $nv>, Sweep),
                    job!(sweep::<$dot, 2, $nv>, Sweep),
                    job!(sweep::<$dot, 3, $nv>, Sweep),
                    job!(sweep::<$dot, 4, $nv>, Sweep),
                    job!(sweep::<$dot, 5, $nv>, Sweep),
                    job!(sweep::<$dot, 6, $nv>, Sweep),
                ],)*],
                pixels: [
                    job!(pixels::<$dot, 0>, Pixels),
                    job!(pixels::<$dot, 3>, Pixels),
                    job!(pixels::<$dot, 6>, Pixels),
                ],
                finish: job!(finish::<$dot>, Sums),
                outputs: job!(outputs::<$dot>, Products),
            };
        }
    };
}

kind!(portable, Portable = Portable, [], [1 2]);
#[cfg(target_arch = "x86_64")]
kind!(
    avx2,
    crate::vector::avx2::Avx2 = crate::vector::avx2::Avx2::new(),
    ["avx2,fma"],
    [1 2]
);
#[cfg(target_arch = "x86_64")]
kind!(
    avx_vnni,
    super::super::dot::x86::AvxVnni = super::super::dot::x86::AvxVnni::new(),
    ["avx2,fma,avxvnni"],
    [1 2]
);
#[cfg(target_arch = "x86_64")]
kind!(
    vnni,
    super::super::dot::x86::Vnni = super::super::dot::x86::Vnni::new(),
    ["avx512f,avx512vl,avx512bw,avx512dq,avx512vnni,avx2,fma"],
    [1 2 3 4]
);
