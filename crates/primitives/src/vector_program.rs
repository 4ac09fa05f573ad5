//! The elementwise functions of [`math`](crate::math) as straight-line programs of vector instructions, recorded from the code
//! that computes them, so that a compiler's results are to the bit the same.

use crate::elementwise::{binary_of_row, unary_of_row};
use crate::isa::Isa;
use crate::math::{BinaryOp, UnaryOp};
use crate::vector::recorder::{Recorder, Tape};

/// An instruction of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryInst {
    /// The square root.
    Sqrt,
    /// An estimate of `1 / √x`, that of AVX-512's VRSQRT14PS.
    RsqrtEstimate,
    /// A signed integer as a float.
    ToFloat,
    /// Rounds down.
    Floor,
    /// Rounds up.
    Ceil,
    /// Rounds to nearest, ties to even.
    Round,
    /// Rounds toward zero.
    Trunc,
    /// `x << n`, of integers.
    ShiftLeft(u8),
    /// The arithmetic `x >> n`, of integers.
    ShiftRight(u8),
}

/// An instruction of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryInst {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
    /// `a < b ? a : b`, so `b` when either is NaN.
    Min,
    /// `a > b ? a : b`, so `b` when either is NaN.
    Max,
    /// Wrapping `a + b`, of integers.
    IntAdd,
    /// Wrapping `a - b`, of integers.
    IntSub,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

/// A comparison, false for NaN but for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `a < b`.
    Less,
    /// `a == b`.
    Equal,
    /// Whether either is NaN.
    Unordered,
}

/// An instruction of a [`VectorProgram`], whose operands are numbers of values. A value has 32 bits a lane, or is a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// The same bits in all lanes.
    Constant(u32),
    /// Of one operand.
    Unary(UnaryInst, usize),
    /// Of two operands.
    Binary(BinaryInst, usize, usize),
    /// `a * b + c` with one rounding.
    MulAdd([usize; 3]),
    /// `c - a * b` with one rounding.
    NegMulAdd([usize; 3]),
    /// A mask.
    Compare(Comparison, usize, usize),
    /// `m ? a : b` by a mask.
    Select([usize; 3]),
}

impl Instruction {
    /// Returns its operands.
    pub fn operands(&self) -> impl Iterator<Item = usize> + use<> {
        let (operands, n) = match *self {
            Instruction::Constant(_) => ([0; 3], 0),
            Instruction::Unary(_, a) => ([a, 0, 0], 1),
            Instruction::Binary(_, a, b) | Instruction::Compare(_, a, b) => ([a, b, 0], 2),
            Instruction::MulAdd(operands)
            | Instruction::NegMulAdd(operands)
            | Instruction::Select(operands) => (operands, 3),
        };
        operands.into_iter().take(n)
    }

    fn renumber(&mut self, f: impl Fn(usize) -> usize) {
        match self {
            Instruction::Constant(_) => {}
            Instruction::Unary(_, a) => *a = f(*a),
            Instruction::Binary(_, a, b) | Instruction::Compare(_, a, b) => {
                (*a, *b) = (f(*a), f(*b));
            }
            Instruction::MulAdd(operands)
            | Instruction::NegMulAdd(operands)
            | Instruction::Select(operands) => *operands = operands.map(f),
        }
    }
}

/// A straight-line program of vector instructions: each lane of its result depends on that lane of its inputs. Values are
/// numbered, inputs first, then the results of instructions.
#[derive(Clone, Debug)]
pub struct VectorProgram {
    isa: Isa,
    n_inputs: usize,
    instructions: Vec<Instruction>,
    result: usize,
}

impl VectorProgram {
    /// Returns the instruction set whose functions it was recorded from.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Returns the number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.n_inputs
    }

    /// Returns the instructions. Operands come before what uses them, and all results are used but the last.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns the number of instructions that compute something, that is of all but constants.
    pub fn length(&self) -> usize {
        let computes = |inst: &&Instruction| !matches!(inst, Instruction::Constant(_));
        self.instructions.iter().filter(computes).count()
    }

    /// Returns the number of the value that is the result.
    pub fn result(&self) -> usize {
        self.result
    }

    /// Computes one lane: what each instruction means, but that [`UnaryInst::RsqrtEstimate`] is exact. For tests.
    ///
    /// # Panics
    /// If there are too few inputs.
    pub fn lane(&self, inputs: &[f32]) -> f32 {
        let mut values: Vec<u32> = inputs[..self.n_inputs]
            .iter()
            .map(|x| x.to_bits())
            .collect();
        for instruction in &self.instructions {
            values.push(instruction.lane(|value| values[value]));
        }
        f32::from_bits(values[self.result])
    }
}

impl Instruction {
    /// The bits of a lane; all are set in a mask.
    fn lane(&self, bits: impl Fn(usize) -> u32) -> u32 {
        let int = |value| bits(value) as i32;
        let float = |value| f32::from_bits(bits(value));
        let result = match *self {
            Instruction::Constant(bits) => return bits,
            Instruction::Unary(UnaryInst::ShiftLeft(n), a) => return bits(a) << n,
            Instruction::Unary(UnaryInst::ShiftRight(n), a) => return (int(a) >> n) as u32,
            Instruction::Unary(inst, a) => match inst {
                UnaryInst::Sqrt => float(a).sqrt(),
                UnaryInst::RsqrtEstimate => 1.0 / float(a).sqrt(),
                UnaryInst::Floor => float(a).floor(),
                UnaryInst::Ceil => float(a).ceil(),
                UnaryInst::Round => float(a).round_ties_even(),
                UnaryInst::Trunc => float(a).trunc(),
                _ => int(a) as f32,
            },
            Instruction::Binary(inst, a, b) => match inst {
                BinaryInst::Add => float(a) + float(b),
                BinaryInst::Sub => float(a) - float(b),
                BinaryInst::Mul => float(a) * float(b),
                BinaryInst::Div => float(a) / float(b),
                BinaryInst::Min if float(a) < float(b) => float(a),
                BinaryInst::Max if float(a) > float(b) => float(a),
                BinaryInst::Min | BinaryInst::Max => float(b),
                BinaryInst::IntAdd => return bits(a).wrapping_add(bits(b)),
                BinaryInst::IntSub => return bits(a).wrapping_sub(bits(b)),
                BinaryInst::And => return bits(a) & bits(b),
                BinaryInst::Or => return bits(a) | bits(b),
                BinaryInst::Xor => return bits(a) ^ bits(b),
            },
            Instruction::MulAdd([a, b, c]) => float(a).mul_add(float(b), float(c)),
            Instruction::NegMulAdd([a, b, c]) => (-float(a)).mul_add(float(b), float(c)),
            Instruction::Compare(comparison, a, b) => {
                let (a, b) = (float(a), float(b));
                let is_true = match comparison {
                    Comparison::Less => a < b,
                    Comparison::Equal => a == b,
                    Comparison::Unordered => a.is_nan() || b.is_nan(),
                };
                return if is_true { u32::MAX } else { 0 };
            }
            Instruction::Select([mask, a, b]) => {
                return if bits(mask) == 0 { bits(b) } else { bits(a) };
            }
        };
        result.to_bits()
    }
}

/// Records a [`VectorProgram`].
///
/// ```
/// use ferroflow_primitives::Isa;
/// use ferroflow_primitives::math::{BinaryOp, UnaryOp};
/// use ferroflow_primitives::vector_program::{Instruction, Recording, UnaryInst};
///
/// let mut recording = Recording::new(Isa::Avx2, 2);
/// let sum = recording.binary(BinaryOp::Add, 0, 1).unwrap();
/// let root = recording.unary(UnaryOp::Sqrt, sum).unwrap();
/// let program = recording.finish(root);
/// assert_eq!(program.instructions()[1], Instruction::Unary(UnaryInst::Sqrt, 2));
/// assert_eq!(program.result(), 3);
/// ```
pub struct Recording {
    isa: Isa,
    tape: Tape,
}

impl Recording {
    /// Creates an empty recording of a program with `n_inputs` inputs, of the functions for an instruction set with products
    /// and sums of one rounding, that is not the portable one.
    pub fn new(isa: Isa, n_inputs: usize) -> Recording {
        Recording {
            isa,
            tape: Tape::new(n_inputs),
        }
    }

    /// Appends a function of the value `x`; returns the number of its result, or `None` if it is computed in another way for
    /// some lanes (sine and cosine) or one by one (powers). Then the recording cannot be finished.
    pub fn unary(&mut self, op: UnaryOp, x: usize) -> Option<usize> {
        let (row, p) = op.code();
        Recorder(self.isa).record(&mut self.tape, |s| unary_of_row(s, row, x, p))
    }

    /// Appends a function of the values `a` and `b`, likewise.
    pub fn binary(&mut self, op: BinaryOp, a: usize, b: usize) -> Option<usize> {
        Recorder(self.isa).record(&mut self.tape, |s| binary_of_row(s, op as usize, a, b))
    }

    /// Returns the program that computes the value `result`, without what that does not need.
    pub fn finish(self, result: usize) -> VectorProgram {
        let n_inputs = self.tape.n_inputs;
        let all = self.tape.instructions;
        let mut is_used = vec![false; n_inputs + all.len()];
        if let Some(used) = is_used.get_mut(result) {
            *used = true;
        }
        for (i, instruction) in all.iter().enumerate().rev() {
            if is_used[n_inputs + i] {
                instruction.operands().for_each(|x| is_used[x] = true);
            }
        }
        let mut numbers: Vec<usize> = (0..n_inputs).collect();
        let mut instructions = Vec::new();
        for (i, mut instruction) in all.into_iter().enumerate() {
            numbers.push(n_inputs + instructions.len());
            if is_used[n_inputs + i] {
                instruction.renumber(|x| numbers[x]);
                instructions.push(instruction);
            }
        }
        VectorProgram {
            isa: self.isa,
            n_inputs,
            instructions,
            result: numbers.get(result).copied().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::testing::each_isa;
    use crate::math::{binary, unary};

    const ARGUMENTS: [f32; 20] = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        0.3,
        -0.2,
        2.5,
        6.5,
        -87.0,
        88.9,
        -104.5,
        7.9,
        5e-5,
        1e-42,
        f32::MIN_POSITIVE,
        3e38,
        -1e20,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];

    /// What is recorded computes what the functions do, with each instruction set.
    fn check(record: impl Fn(&mut Recording) -> Option<usize>, compute: impl Fn(f32, f32) -> f32) {
        each_isa(|isa| {
            if isa == Isa::Portable {
                return;
            }
            let mut recording = Recording::new(isa, 2);
            let result = record(&mut recording).expect("recorded");
            let program = recording.finish(result);
            let estimates = Instruction::Unary(UnaryInst::RsqrtEstimate, 0);
            if program.instructions().contains(&estimates) {
                return;
            }
            for (a, b) in ARGUMENTS.iter().flat_map(|a| ARGUMENTS.map(|b| (*a, b))) {
                let (want, got) = (compute(a, b), program.lane(&[a, b]));
                let is_same = want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan();
                assert!(is_same, "{isa:?} {program:?} of {a} and {b}: {want} {got}");
            }
        });
    }

    #[test]
    fn recorded_functions_compute_the_same() {
        use UnaryOp::*;
        for op in [
            Identity,
            Neg,
            Abs,
            Square,
            Sqrt,
            Rsqrt,
            Reciprocal,
            Exp,
            Expm1,
            Log,
            Log1p,
            Asin,
            Acos,
            Atan,
            Tanh,
            Sinh,
            Cosh,
            Asinh,
            Acosh,
            Atanh,
            Sigmoid,
            Erf,
            Erfc,
            Floor,
            Ceil,
            Round,
            Trunc,
            Sign,
            Relu,
            Relu6,
            Softplus,
            Softsign,
            Swish,
            HardSwish,
            HardSigmoid,
            GeluErf,
            GeluTanh,
            Selu,
            Clamp(-0.5, 2.0),
            LeakyRelu(0.2),
            Elu(1.5),
            Affine(0.3, -2.0),
        ] {
            let of_one = |x| {
                let mut y = [x];
                unary(op, &[x], &mut y);
                y[0]
            };
            check(|r| r.unary(op, 0), |x, _| of_one(x));
        }
        use BinaryOp::{ReluGrad, SigmoidGrad, SquaredDifference, TanhGrad};
        for op in [
            BinaryOp::Add,
            BinaryOp::Sub,
            BinaryOp::Mul,
            BinaryOp::Div,
            BinaryOp::Max,
            BinaryOp::Min,
            BinaryOp::Xlogy,
            BinaryOp::Xlog1py,
            BinaryOp::Atan2,
            SquaredDifference,
            ReluGrad,
            TanhGrad,
            SigmoidGrad,
        ] {
            let of_two = |a, b| {
                let mut y = [0.0];
                binary(op, &[a][..], &[b][..], &mut y);
                y[0]
            };
            check(|r| r.binary(op, 0, 1), of_two);
        }
    }

    #[test]
    fn what_is_not_of_vectors_is_refused() {
        let mut recording = Recording::new(Isa::Avx2, 2);
        assert!(recording.unary(UnaryOp::Pow(2.5), 0).is_none());
        assert!(recording.binary(BinaryOp::Pow, 0, 1).is_none());
        assert!(recording.unary(UnaryOp::Sin, 0).is_none());
        assert!(
            recording.unary(UnaryOp::Neg, 0).is_none(),
            "incomplete before"
        );
    }

    #[test]
    fn what_is_repeated_or_unused_is_not_in_programs() {
        let mut recording = Recording::new(Isa::Avx512, 1);
        let unused = recording.unary(UnaryOp::Tanh, 0).unwrap();
        let first = recording.unary(UnaryOp::Sqrt, 0).unwrap();
        let again = recording.unary(UnaryOp::Sqrt, 0).unwrap();
        assert_eq!(first, again);
        assert!(unused < first);
        let sum = recording.binary(BinaryOp::Add, first, again).unwrap();
        let program = recording.finish(sum);
        let instructions = [
            Instruction::Unary(UnaryInst::Sqrt, 0),
            Instruction::Binary(BinaryInst::Add, 1, 1),
        ];
        assert_eq!(program.instructions(), instructions);
    }
}
