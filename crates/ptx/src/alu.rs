//! Arithmetic of whole warps: rows of registers.

use crate::Res;
use crate::float::{self, bfloat, half, holds, single_bits, tf32, whole};
use crate::ops::{Cmp, Float, Int, Op, Round, Ty};

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// A register of each lane; smaller values are in the low bits, above which there may be anything.
pub(crate) type Row = [u64; LANES];

/// The registers of a warp.
pub(crate) struct Rows(pub(crate) Vec<Row>);

impl Rows {
    pub(crate) fn get(&self, row: u32) -> &Row {
        &self.0[row as usize]
    }

    pub(crate) fn set(&mut self, row: u32, lane: usize, value: u64) {
        self.0[row as usize][lane] = value;
    }

    /// The lanes whose predicate is set.
    pub(crate) fn lanes(&self, row: u32) -> u32 {
        let lanes = self.get(row).iter().enumerate();
        lanes.fold(0, |mask, (i, v)| mask | ((*v & 1) as u32) << i)
    }

    #[inline(always)]
    fn map<const N: usize>(
        &mut self,
        mask: u32,
        d: &[u32],
        s: &[u32],
        f: impl Fn([u64; N]) -> u64,
    ) {
        let inputs: [Row; N] = std::array::from_fn(|i| self.0[s[i] as usize]);
        let out = &mut self.0[d[0] as usize];
        let value = |lane: usize| f(std::array::from_fn(|i| inputs[i][lane]));
        if mask == u32::MAX {
            for (lane, out) in out.iter_mut().enumerate() {
                *out = value(lane);
            }
            return;
        }
        for (lane, out) in out.iter_mut().enumerate() {
            if mask >> lane & 1 == 1 {
                *out = value(lane);
            }
        }
    }
}

/// Integers of a type.
trait Word: Copy + Ord {
    const BITS: u32;
    fn of(bits: u64) -> Self;
    fn wide(self) -> i128;
    /// By PTX, division by zero has no meaning: it is all ones on GPUs.
    fn div(self, by: Self) -> u64;
    fn rem(self, by: Self) -> u64;
}

macro_rules! words {
    ($($t:ty),*) => {$(
        impl Word for $t {
            const BITS: u32 = <$t>::BITS;
            #[inline(always)]
            fn of(bits: u64) -> Self {
                bits as $t
            }
            #[inline(always)]
            fn wide(self) -> i128 {
                self as i128
            }
            fn div(self, by: Self) -> u64 {
                if by == 0 { u64::MAX } else { self.wrapping_div(by) as u64 }
            }
            fn rem(self, by: Self) -> u64 {
                if by == 0 { u64::MAX } else { self.wrapping_rem(by) as u64 }
            }
        }
    )*};
}
words!(i16, u16, i32, u32, i64, u64);

fn of_words<T: Word>(rows: &mut Rows, mask: u32, int: Int, d: &[u32], s: &[u32]) {
    let of = T::of;
    match int {
        Int::MulHigh => rows.map(mask, d, s, |[a, b]| {
            (of(a).wide().wrapping_mul(of(b).wide()) >> T::BITS) as u64
        }),
        Int::MulWide => rows.map(mask, d, s, |[a, b]| {
            of(a).wide().wrapping_mul(of(b).wide()) as u64
        }),
        Int::MadWide => rows.map(mask, d, s, |[a, b, c]| {
            (of(a).wide().wrapping_mul(of(b).wide()) as u64).wrapping_add(c)
        }),
        Int::Div => rows.map(mask, d, s, |[a, b]| of(a).div(of(b))),
        Int::Rem => rows.map(mask, d, s, |[a, b]| of(a).rem(of(b))),
        Int::Min => rows.map(mask, d, s, |[a, b]| if of(a) <= of(b) { a } else { b }),
        Int::Max => rows.map(mask, d, s, |[a, b]| if of(a) >= of(b) { a } else { b }),
        Int::Abs => rows.map(mask, d, s, |[a]| of(a).wide().wrapping_abs() as u64),
        Int::Shl => rows.map(mask, d, s, |[a, b]| {
            if b as u32 >= T::BITS {
                0
            } else {
                a << (b as u32)
            }
        }),
        Int::Shr => rows.map(mask, d, s, |[a, b]| {
            (of(a).wide() >> (b as u32).min(T::BITS)) as u64
        }),
        Int::Insert => rows.map(mask, d, s, |[a, b, at, n]| {
            let (at, n) = (at & 0xff, n & 0xff);
            let ones = if n >= 64 { u64::MAX } else { (1 << n) - 1 };
            let field = if at >= 64 { 0 } else { ones << at };
            (b & !field) | (a.checked_shl(at as u32).unwrap_or(0) & field)
        }),
        _ => {}
    }
}

fn integers(rows: &mut Rows, mask: u32, int: Int, ty: Ty, d: &[u32], s: &[u32]) {
    match int {
        // The same for all types.
        Int::Add => rows.map(mask, d, s, |[a, b]| a.wrapping_add(b)),
        Int::Sub => rows.map(mask, d, s, |[a, b]| a.wrapping_sub(b)),
        Int::Mul => rows.map(mask, d, s, |[a, b]| a.wrapping_mul(b)),
        Int::Mad => rows.map(mask, d, s, |[a, b, c]| a.wrapping_mul(b).wrapping_add(c)),
        Int::Neg => rows.map(mask, d, s, |[a]| a.wrapping_neg()),
        Int::And => rows.map(mask, d, s, |[a, b]| a & b),
        Int::Or => rows.map(mask, d, s, |[a, b]| a | b),
        Int::Xor => rows.map(mask, d, s, |[a, b]| a ^ b),
        Int::Not => rows.map(mask, d, s, |[a]| !a),
        _ => match (ty.size(), ty.is_signed()) {
            (2, true) => of_words::<i16>(rows, mask, int, d, s),
            (2, false) => of_words::<u16>(rows, mask, int, d, s),
            (4, true) => of_words::<i32>(rows, mask, int, d, s),
            (4, false) => of_words::<u32>(rows, mask, int, d, s),
            (8, true) => of_words::<i64>(rows, mask, int, d, s),
            _ => of_words::<u64>(rows, mask, int, d, s),
        },
    }
}

fn singles(rows: &mut Rows, mask: u32, f: Float, d: &[u32], s: &[u32]) {
    let of = |bits: u64| f32::from_bits(bits as u32);
    match f {
        // The most frequent ones.
        Float::Fma(Round::Nearest) => {
            rows.map(mask, d, s, |[a, b, c]| {
                single_bits(of(a).mul_add(of(b), of(c)))
            });
        }
        Float::Add(Round::Nearest) => rows.map(mask, d, s, |[a, b]| single_bits(of(a) + of(b))),
        Float::Mul(Round::Nearest) => rows.map(mask, d, s, |[a, b]| single_bits(of(a) * of(b))),
        _ => match s.len() {
            1 => rows.map(mask, d, s, |[a]| float::single(f, a, 0, 0)),
            2 => rows.map(mask, d, s, |[a, b]| float::single(f, a, b, 0)),
            _ => rows.map(mask, d, s, |[a, b, c]| float::single(f, a, b, c)),
        },
    }
}

fn doubles(rows: &mut Rows, mask: u32, f: Float, d: &[u32], s: &[u32]) -> Res<()> {
    if float::double(f, 0, 0, 0).is_none() {
        return Err(format!("{f:?} of doubles is not known"));
    }
    let compute = |a, b, c| float::double(f, a, b, c).unwrap_or_default();
    match s.len() {
        1 => rows.map(mask, d, s, |[a]| compute(a, 0, 0)),
        2 => rows.map(mask, d, s, |[a, b]| compute(a, b, 0)),
        _ => rows.map(mask, d, s, |[a, b, c]| compute(a, b, c)),
    }
    Ok(())
}

/// An integer of a type, with its sign in the bits above.
fn extended(ty: Ty, bits: u64) -> u64 {
    match (ty.size(), ty.is_signed()) {
        (1, true) => bits as i8 as u64,
        (1, false) => u64::from(bits as u8),
        (2, true) => bits as i16 as u64,
        (2, false) => u64::from(bits as u16),
        (4, true) => bits as i32 as u64,
        (4, false) => u64::from(bits as u32),
        _ => bits,
    }
}

fn compare(rows: &mut Rows, mask: u32, cmp: Cmp, ty: Ty, d: &[u32], s: &[u32]) {
    let single = |bits: u64| f32::from_bits(bits as u32);
    match ty {
        Ty::F32 => rows.map(mask, d, s, |[a, b]| {
            holds(cmp, single(a).partial_cmp(&single(b))).into()
        }),
        Ty::F64 => rows.map(mask, d, s, |[a, b]| {
            holds(cmp, f64::from_bits(a).partial_cmp(&f64::from_bits(b))).into()
        }),
        _ if ty.is_signed() => rows.map(mask, d, s, |[a, b]| {
            let (a, b) = (extended(ty, a) as i64, extended(ty, b) as i64);
            holds(cmp, Some(a.cmp(&b))).into()
        }),
        _ => rows.map(mask, d, s, |[a, b]| {
            holds(cmp, Some(extended(ty, a).cmp(&extended(ty, b)))).into()
        }),
    }
}

/// A float as a double.
fn widened(ty: Ty, bits: u64) -> f64 {
    match ty {
        Ty::F16 => half::f16::from_bits(bits as u16).to_f64(),
        Ty::Bf16 => half::bf16::from_bits(bits as u16).to_f64(),
        Ty::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

/// The nearest integer of a type; 0 for a NaN.
fn to_integer(ty: Ty, value: f64) -> u64 {
    match ty {
        Ty::S8 => value as i8 as u64,
        Ty::U8 => u64::from(value as u8),
        Ty::S16 => value as i16 as u64,
        Ty::U16 => u64::from(value as u16),
        Ty::S32 => value as i32 as u64,
        Ty::U32 => u64::from(value as u32),
        Ty::S64 => value as i64 as u64,
        _ => value as u64,
    }
}

/// A double, or an integer, as a float of a type.
fn to_float(ty: Ty, value: f64) -> u64 {
    match ty {
        Ty::F64 => value.to_bits(),
        Ty::F32 => single_bits(value as f32),
        Ty::F16 => half(value as f32),
        _ => bfloat(value as f32),
    }
}

fn convert(rows: &mut Rows, mask: u32, op: Op, d: &[u32], s: &[u32]) -> Res<()> {
    let Op::Convert {
        to,
        from,
        round,
        is_whole,
        saturates,
    } = op
    else {
        return Ok(());
    };
    let single = |bits: u64| f32::from_bits(bits as u32);
    match (to, from) {
        // The first one is in the upper half.
        (Ty::F16x2, Ty::F32) => {
            rows.map(mask, d, s, |[a, b]| half(single(a)) << 16 | half(single(b)))
        }
        (Ty::Bf16x2, Ty::F32) => rows.map(mask, d, s, |[a, b]| {
            bfloat(single(a)) << 16 | bfloat(single(b))
        }),
        (Ty::Tf32, Ty::F32) if round == Round::Away => rows.map(mask, d, s, |[a]| tf32(single(a))),
        _ if !to.is_float() && !from.is_float() => rows.map(mask, d, s, |[a]| extended(from, a)),
        _ if !to.is_float() => rows.map(mask, d, s, |[a]| {
            to_integer(to, whole(widened(from, a), round))
        }),
        // Once rounded: integers may have more bits than a double.
        (Ty::F32, Ty::S64) => rows.map(mask, d, s, |[a]| single_bits(a as i64 as f32)),
        (Ty::F32, Ty::U64) => rows.map(mask, d, s, |[a]| single_bits(a as f32)),
        _ if !from.is_float() && from.is_signed() => {
            rows.map(mask, d, s, |[a]| {
                to_float(to, extended(from, a) as i64 as f64)
            });
        }
        _ if !from.is_float() => rows.map(mask, d, s, |[a]| to_float(to, extended(from, a) as f64)),
        _ if is_whole => rows.map(mask, d, s, |[a]| {
            to_float(to, whole(widened(from, a), round))
        }),
        _ if saturates => rows.map(mask, d, s, |[a]| {
            let value = widened(from, a);
            to_float(
                to,
                if value.is_nan() {
                    0.0
                } else {
                    value.clamp(0.0, 1.0) + 0.0
                },
            )
        }),
        _ if round == Round::Nearest => rows.map(mask, d, s, |[a]| to_float(to, widened(from, a))),
        _ => return Err("the conversion is not known".to_string()),
    }
    Ok(())
}

fn unpack(rows: &mut Rows, mask: u32, bits: u32, d: &[u32], s: &[u32]) {
    let whole = *rows.get(s[0]);
    for (i, d) in d.iter().enumerate() {
        for (lane, value) in whole
            .iter()
            .enumerate()
            .filter(|(lane, _)| mask >> lane & 1 == 1)
        {
            let part = value >> (i as u32 * bits) & ((1 << bits) - 1);
            rows.set(*d, lane, part);
        }
    }
}

fn pack(rows: &mut Rows, mask: u32, bits: u32, d: &[u32], s: &[u32]) {
    for lane in (0..LANES).filter(|lane| mask >> lane & 1 == 1) {
        let part =
            |(i, s): (usize, &u32)| (rows.get(*s)[lane] & ((1 << bits) - 1)) << (i as u32 * bits);
        let whole = s.iter().enumerate().map(part).fold(0, |a, b| a | b);
        rows.set(d[0], lane, whole);
    }
}

/// Runs an instruction that only reads and writes registers of its lane.
pub(crate) fn compute(rows: &mut Rows, mask: u32, op: Op, d: &[u32], s: &[u32]) -> Res<()> {
    match op {
        Op::Mov => rows.map(mask, d, s, |[a]| a),
        Op::Int(int, ty) => integers(rows, mask, int, ty, d, s),
        Op::F32(f) => singles(rows, mask, f, d, s),
        Op::F64(f) => doubles(rows, mask, f, d, s)?,
        Op::Compare(cmp, ty) => compare(rows, mask, cmp, ty, d, s),
        Op::Select => rows.map(mask, d, s, |[a, b, p]| if p & 1 == 1 { a } else { b }),
        Op::Convert { .. } => convert(rows, mask, op, d, s)?,
        Op::Pack(bits) => pack(rows, mask, bits, d, s),
        Op::Unpack(bits) => unpack(rows, mask, bits, d, s),
        _ => return Err("the instruction is not known".to_string()),
    }
    Ok(())
}
