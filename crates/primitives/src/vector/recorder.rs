//! A backend of the vector traits that computes nothing: it records the instructions of a function.

use super::{Lanes, Simd, refined_rsqrt};
use crate::isa::Isa;
use crate::vector_program::{BinaryInst, Comparison, Instruction, UnaryInst};
use std::cell::RefCell;
use std::collections::HashMap;

/// The instructions that a thread has recorded. Values are numbered: inputs first, then results. The same instruction of the
/// same values is recorded once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tape {
    pub(crate) n_inputs: usize,
    pub(crate) instructions: Vec<Instruction>,
    numbers: HashMap<Instruction, usize>,
    /// Whether a function read memory, or branched.
    is_incomplete: bool,
}

impl Tape {
    pub(crate) fn new(n_inputs: usize) -> Tape {
        Tape {
            n_inputs,
            ..Tape::default()
        }
    }

    fn push(&mut self, instruction: Instruction) -> usize {
        let next = self.n_inputs + self.instructions.len();
        *self.numbers.entry(instruction).or_insert_with(|| {
            self.instructions.push(instruction);
            next
        })
    }

    /// Returns the bits of a constant.
    fn constant(&self, value: usize) -> Option<i32> {
        let at = value.checked_sub(self.n_inputs)?;
        match self.instructions.get(at) {
            Some(Instruction::Constant(bits)) => Some(*bits as i32),
            _ => None,
        }
    }
}

thread_local! {
    static TAPE: RefCell<Tape> = RefCell::default();
}

/// Records what functions compute as a CPU with this instruction set does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorder(pub(crate) Isa);

impl Recorder {
    /// Calls `f`, whose instructions are appended to `tape`; `None` if they do not depend on lanes alone.
    pub(crate) fn record(
        self,
        tape: &mut Tape,
        f: impl FnOnce(Recorder) -> Option<usize>,
    ) -> Option<usize> {
        TAPE.with_borrow_mut(|own| std::mem::swap(own, tape));
        let result = f(self);
        TAPE.with_borrow_mut(|own| std::mem::swap(own, tape));
        result.filter(|_| !tape.is_incomplete)
    }

    fn push(self, instruction: Instruction) -> usize {
        TAPE.with_borrow_mut(|tape| tape.push(instruction))
    }

    fn unary(self, inst: UnaryInst, a: usize) -> usize {
        self.push(Instruction::Unary(inst, a))
    }

    fn binary(self, inst: BinaryInst, a: usize, b: usize) -> usize {
        self.push(Instruction::Binary(inst, a, b))
    }

    /// An instruction of integers, computed now if both are constants.
    fn integer(self, inst: BinaryInst, a: usize, b: usize, f: fn(i32, i32) -> i32) -> usize {
        let constants = TAPE.with_borrow(|tape| Some((tape.constant(a)?, tape.constant(b)?)));
        match constants {
            Some((a, b)) => self.isplat(f(a, b)),
            None => self.binary(inst, a, b),
        }
    }

    fn give_up(self) -> usize {
        TAPE.with_borrow_mut(|tape| tape.is_incomplete = true);
        self.zero()
    }
}

impl Lanes for Recorder {
    type T = f32;
    type V = usize;
    const N: usize = 1;

    fn splat(self, x: f32) -> usize {
        self.push(Instruction::Constant(x.to_bits()))
    }
    fn zero(self) -> usize {
        self.splat(0.0)
    }
    unsafe fn load(self, _: *const f32) -> usize {
        self.give_up()
    }
    unsafe fn load_part(self, _: *const f32, _: usize) -> usize {
        self.give_up()
    }
    unsafe fn store(self, _: *mut f32, _: usize) {
        self.give_up();
    }
    unsafe fn store_part(self, _: *mut f32, _: usize, _: usize) {
        self.give_up();
    }
    fn prefetch(self, _: *const f32) {}
    fn add(self, a: usize, b: usize) -> usize {
        self.binary(BinaryInst::Add, a, b)
    }
    fn sub(self, a: usize, b: usize) -> usize {
        self.binary(BinaryInst::Sub, a, b)
    }
    fn mul(self, a: usize, b: usize) -> usize {
        self.binary(BinaryInst::Mul, a, b)
    }
    fn div(self, a: usize, b: usize) -> usize {
        self.binary(BinaryInst::Div, a, b)
    }
    fn fma(self, a: usize, b: usize, c: usize) -> usize {
        self.push(Instruction::MulAdd([a, b, c]))
    }
    fn min(self, a: usize, b: usize) -> usize {
        // Relu has this limit.
        let limit = TAPE.with_borrow(|tape| tape.constant(a));
        if limit == Some(f32::INFINITY.to_bits() as i32) {
            return b;
        }
        self.binary(BinaryInst::Min, a, b)
    }
    fn max(self, a: usize, b: usize) -> usize {
        self.binary(BinaryInst::Max, a, b)
    }
    fn sqrt(self, a: usize) -> usize {
        self.unary(UnaryInst::Sqrt, a)
    }
    fn sum(self, _: usize) -> f32 {
        self.give_up();
        0.0
    }
    fn hmax(self, _: usize) -> f32 {
        self.give_up();
        0.0
    }
    fn hmin(self, _: usize) -> f32 {
        self.give_up();
        0.0
    }
}

impl Simd for Recorder {
    type I = usize;
    type M = usize;

    fn lt(self, a: usize, b: usize) -> usize {
        self.push(Instruction::Compare(Comparison::Less, a, b))
    }
    fn eq(self, a: usize, b: usize) -> usize {
        self.push(Instruction::Compare(Comparison::Equal, a, b))
    }
    fn unordered(self, a: usize, b: usize) -> usize {
        self.push(Instruction::Compare(Comparison::Unordered, a, b))
    }
    fn select(self, m: usize, a: usize, b: usize) -> usize {
        self.push(Instruction::Select([m, a, b]))
    }
    fn any(self, _: usize) -> bool {
        self.give_up();
        false
    }
    fn bits(self, a: usize) -> usize {
        a
    }
    fn float(self, a: usize) -> usize {
        a
    }
    fn isplat(self, x: i32) -> usize {
        self.push(Instruction::Constant(x as u32))
    }
    fn iadd(self, a: usize, b: usize) -> usize {
        self.integer(BinaryInst::IntAdd, a, b, i32::wrapping_add)
    }
    fn isub(self, a: usize, b: usize) -> usize {
        self.integer(BinaryInst::IntSub, a, b, i32::wrapping_sub)
    }
    fn iand(self, a: usize, b: usize) -> usize {
        self.integer(BinaryInst::And, a, b, |a, b| a & b)
    }
    fn ior(self, a: usize, b: usize) -> usize {
        self.integer(BinaryInst::Or, a, b, |a, b| a | b)
    }
    fn ixor(self, a: usize, b: usize) -> usize {
        self.integer(BinaryInst::Xor, a, b, |a, b| a ^ b)
    }
    fn ishl<const B: u32>(self, a: usize) -> usize {
        self.unary(UnaryInst::ShiftLeft(B as u8), a)
    }
    fn isar<const B: u32>(self, a: usize) -> usize {
        self.unary(UnaryInst::ShiftRight(B as u8), a)
    }
    fn to_float(self, a: usize) -> usize {
        self.unary(UnaryInst::ToFloat, a)
    }
    fn floor(self, a: usize) -> usize {
        self.unary(UnaryInst::Floor, a)
    }
    fn ceil(self, a: usize) -> usize {
        self.unary(UnaryInst::Ceil, a)
    }
    fn round(self, a: usize) -> usize {
        self.unary(UnaryInst::Round, a)
    }
    fn trunc(self, a: usize) -> usize {
        self.unary(UnaryInst::Trunc, a)
    }
    fn rsqrt(self, a: usize) -> usize {
        if self.0 == Isa::Avx512 {
            return refined_rsqrt(self, a, self.unary(UnaryInst::RsqrtEstimate, a));
        }
        self.div(self.splat(1.0), self.sqrt(a))
    }
    fn fnma(self, a: usize, b: usize, c: usize) -> usize {
        self.push(Instruction::NegMulAdd([a, b, c]))
    }
}
