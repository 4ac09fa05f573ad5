//! Programs of elementwise instructions, interpreted block by block, or run as machine code.

use ferroflow_jit::VectorCode;
use ferroflow_opdef::{BinaryFn, ElementwiseProgram, UnaryFn};
use ferroflow_primitives::Isa;
use ferroflow_primitives::math::{BinaryOp, Operand, UnaryOp, binary, unary};
use ferroflow_primitives::vector_program::{Recording, VectorProgram};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value of one block: one number per element, or the same for all.
#[derive(Clone, Copy)]
pub(crate) enum Block<'a> {
    /// One number per element.
    Slice(&'a [f32]),
    /// The same for all.
    Scalar(f32),
}

/// One step; operands count inputs first, then the results of earlier steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Instruction {
    Unary(UnaryOp, usize),
    Binary(BinaryOp, usize, usize),
}

/// The machine code of a program, made once it has computed as many elements as that costs.
struct Native {
    /// Whether the program may become machine code.
    is_allowed: bool,
    /// The elements that were computed.
    n_computed: AtomicUsize,
    /// For inputs of two forms; `None` if the program is to be interpreted.
    codes: [OnceLock<Option<VectorCode>>; 2],
}

/// Elements that a program computes before it is compiled, which takes about as long.
const COMPILED_AFTER: usize = 1 << 17;
/// Least elements of a block that is computed by machine code: small tensors are not worth the memory.
const MIN_BLOCK: usize = 1 << 6;
/// Most instructions of a function, in the mean, of a program that becomes machine code: kernels compute longer functions
/// as fast, and what is saved between functions no longer counts.
const MAX_LENGTH: usize = 12;

impl Native {
    /// Returns the code for inputs of which these are scalars, if there is any.
    fn find(&self, is_scalar: impl Iterator<Item = bool> + Clone) -> Option<&VectorCode> {
        let codes = self.codes.iter().filter_map(|code| code.get()?.as_ref());
        let mut codes = codes.filter(|code| is_scalar.clone().eq(code.is_scalar().iter().copied()));
        codes.next()
    }

    /// Returns the code for inputs of these forms, which is made if it is worth its compilation now.
    fn code(&self, inputs: &[Block], n: usize, program: &Program) -> Option<&VectorCode> {
        if !self.is_allowed || n < MIN_BLOCK {
            return None;
        }
        let is_scalar = |block: &Block| matches!(block, Block::Scalar(_));
        let forms = inputs.iter().map(is_scalar);
        if let Some(code) = self.find(forms.clone()) {
            return Some(code);
        }
        let free = self.codes.iter().find(|code| code.get().is_none())?;
        let before = self.n_computed.fetch_add(n, Ordering::Relaxed);
        if before < COMPILED_AFTER {
            return None;
        }
        // Another thread may have made code of another form meanwhile.
        free.get_or_init(|| {
            let scalars: Vec<bool> = forms.clone().collect();
            VectorCode::compile(&program.record()?, &scalars).ok()
        });
        self.find(forms)
    }
}

/// A sequence of instructions; the last one's result is the program's.
pub struct Program {
    n_inputs: usize,
    steps: Vec<Instruction>,
    /// For each step, the scratch row that its result goes to; rows are reused when free.
    rows: Vec<usize>,
    n_rows: usize,
    native: Native,
}

fn unary_op(function: UnaryFn) -> UnaryOp {
    match function {
        UnaryFn::Neg => UnaryOp::Neg,
        UnaryFn::Abs => UnaryOp::Abs,
        UnaryFn::Square => UnaryOp::Square,
        UnaryFn::Sqrt => UnaryOp::Sqrt,
        UnaryFn::Rsqrt => UnaryOp::Rsqrt,
        UnaryFn::Reciprocal => UnaryOp::Reciprocal,
        UnaryFn::Exp => UnaryOp::Exp,
        UnaryFn::Expm1 => UnaryOp::Expm1,
        UnaryFn::Log => UnaryOp::Log,
        UnaryFn::Log1p => UnaryOp::Log1p,
        UnaryFn::Sin => UnaryOp::Sin,
        UnaryFn::Cos => UnaryOp::Cos,
        UnaryFn::Tanh => UnaryOp::Tanh,
        UnaryFn::Sigmoid => UnaryOp::Sigmoid,
        UnaryFn::Erf => UnaryOp::Erf,
        UnaryFn::Erfc => UnaryOp::Erfc,
        UnaryFn::Floor => UnaryOp::Floor,
        UnaryFn::Ceil => UnaryOp::Ceil,
        UnaryFn::Round => UnaryOp::Round,
        UnaryFn::Sign => UnaryOp::Sign,
        UnaryFn::Relu => UnaryOp::Relu,
        UnaryFn::Relu6 => UnaryOp::Relu6,
        UnaryFn::LeakyRelu(alpha) => UnaryOp::LeakyRelu(alpha),
        UnaryFn::Elu => UnaryOp::Elu(1.0),
        UnaryFn::Selu => UnaryOp::Selu,
        UnaryFn::Softplus => UnaryOp::Softplus,
        UnaryFn::Softsign => UnaryOp::Softsign,
        UnaryFn::Swish => UnaryOp::Swish,
        UnaryFn::HardSwish => UnaryOp::HardSwish,
        UnaryFn::Gelu => UnaryOp::GeluErf,
        UnaryFn::GeluTanh => UnaryOp::GeluTanh,
    }
}

fn binary_op(function: BinaryFn) -> BinaryOp {
    match function {
        BinaryFn::Add | BinaryFn::AddN => BinaryOp::Add,
        BinaryFn::Sub => BinaryOp::Sub,
        BinaryFn::Mul => BinaryOp::Mul,
        BinaryFn::Div => BinaryOp::Div,
        BinaryFn::Maximum => BinaryOp::Max,
        BinaryFn::Minimum => BinaryOp::Min,
        BinaryFn::SquaredDifference => BinaryOp::SquaredDifference,
        BinaryFn::Pow => BinaryOp::Pow,
        BinaryFn::ReluGrad => BinaryOp::ReluGrad,
        BinaryFn::TanhGrad => BinaryOp::TanhGrad,
        BinaryFn::SigmoidGrad => BinaryOp::SigmoidGrad,
    }
}

/// Elements of a block that is interpreted: few enough that several blocks stay in the first-level cache.
pub(crate) const BLOCK: usize = 1024;
/// Most elements of a block of machine code, whose values are in registers: many enough that its call takes no time.
const MAX_NATIVE_BLOCK: usize = 64 * BLOCK;

/// Most values, inputs among them, of a program that is run on scalars.
const MAX_SCALARS: usize = 16;

impl Program {
    /// Returns the program of a node with `n_inputs` inputs, ready to run; `jit` is whether it may become machine code.
    pub(crate) fn new(program: &ElementwiseProgram, n_inputs: usize, jit: bool) -> Program {
        let steps = program.steps().iter().map(|step| match *step {
            ferroflow_opdef::Instruction::Unary(f, a) => Instruction::Unary(unary_op(f), a),
            ferroflow_opdef::Instruction::Binary(f, a, b) => {
                Instruction::Binary(binary_op(f), a, b)
            }
        });
        let steps: Vec<Instruction> = steps.collect();
        let (rows, n_rows) = assign_rows(&steps, n_inputs);
        Program {
            n_inputs,
            steps,
            rows,
            n_rows,
            native: Native {
                // One function reads and writes no more as it is.
                is_allowed: jit && program.steps().len() > 1,
                n_computed: AtomicUsize::new(0),
                codes: [const { OnceLock::new() }; 2],
            },
        }
    }

    /// Computes one number from one of each input. `None` if an input has another form, or if there are many values.
    pub(crate) fn scalar(&self, input: impl Fn(usize) -> Option<f32>) -> Option<f32> {
        let mut values = [0.0; MAX_SCALARS];
        let (inputs, results) = values.split_at_mut_checked(self.n_inputs)?;
        if self.steps.len() > results.len() {
            return None;
        }
        for (i, value) in inputs.iter_mut().enumerate() {
            *value = input(i)?;
        }
        let mut last = 0.0;
        for (i, step) in self.steps.iter().enumerate() {
            last = match *step {
                Instruction::Unary(op, a) => scalar_of_one(op, values[a]),
                Instruction::Binary(op, a, b) => scalar_of_two(op, values[a], values[b]),
            };
            values[self.n_inputs + i] = last;
        }
        Some(last)
    }

    /// The program as instructions of vectors; `None` if a function is not one of vectors, or if kernels are as fast.
    fn record(&self) -> Option<VectorProgram> {
        let mut recording = Recording::new(Isa::current(), self.n_inputs);
        let mut values: Vec<usize> = (0..self.n_inputs).collect();
        for step in &self.steps {
            values.push(match *step {
                Instruction::Unary(op, a) => recording.unary(op, values[a])?,
                Instruction::Binary(op, a, b) => recording.binary(op, values[a], values[b])?,
            });
        }
        let program = recording.finish(*values.last()?);
        (program.length() <= MAX_LENGTH * self.steps.len()).then_some(program)
    }

    /// Returns the best length of the blocks of a tensor of `n` elements that `width` threads share, if these inputs are
    /// scalars in each block.
    pub(crate) fn block(
        &self,
        n: usize,
        width: usize,
        is_scalar: impl Iterator<Item = bool> + Clone,
    ) -> usize {
        match self.native.find(is_scalar) {
            Some(_) => {
                // Several blocks for each thread, should some be slower than others.
                let share = n / (4 * width.max(1)) / BLOCK * BLOCK;
                share.clamp(BLOCK, MAX_NATIVE_BLOCK)
            }
            None => BLOCK,
        }
    }

    /// Computes one block.
    pub(crate) fn run(&self, inputs: &[Block], out: &mut [f32]) {
        if let Some(code) = self.native.code(inputs, out.len(), self) {
            let slices = inputs.iter().map(|block| match block {
                Block::Slice(slice) => slice,
                Block::Scalar(number) => std::slice::from_ref(number),
            });
            let slices: SmallVec<[&[f32]; 8]> = slices.collect();
            if code.run(&slices, out).is_ok() {
                return;
            }
        }
        self.interpret(inputs, out);
    }

    fn interpret(&self, inputs: &[Block], out: &mut [f32]) {
        thread_local! {
            static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let len = out.len();
            if scratch.len() < self.n_rows * len {
                scratch.resize(self.n_rows * len, 0.0);
            }
            let last = self.steps.len() - 1;
            for (i, step) in self.steps.iter().enumerate() {
                // The destination row is taken out of the scratch, so that the others can be read.
                if i == last {
                    self.step(step, inputs, scratch, len, out);
                } else {
                    let row = self.rows[i];
                    let (head, tail) = scratch.split_at_mut(row * len);
                    let (dst, tail) = tail.split_at_mut(len);
                    let view = Split { head, tail, row };
                    self.step_split(step, inputs, &view, len, dst);
                }
            }
        });
    }

    fn step(
        &self,
        step: &Instruction,
        inputs: &[Block],
        scratch: &[f32],
        len: usize,
        dst: &mut [f32],
    ) {
        self.execute(
            step,
            inputs,
            &|row| &scratch[row * len..(row + 1) * len],
            dst,
        );
    }

    fn step_split(
        &self,
        step: &Instruction,
        inputs: &[Block],
        view: &Split,
        len: usize,
        dst: &mut [f32],
    ) {
        self.execute(step, inputs, &|row| view.row(row, len), dst);
    }

    #[inline]
    fn execute<'s>(
        &self,
        step: &Instruction,
        inputs: &[Block<'s>],
        row: &dyn Fn(usize) -> &'s [f32],
        dst: &mut [f32],
    ) {
        let operand = |at: usize| -> Operand<'s> {
            match at.checked_sub(self.n_inputs) {
                Some(step) => Operand::Slice(row(self.rows[step])),
                None => match inputs[at] {
                    Block::Slice(s) => Operand::Slice(s),
                    Block::Scalar(v) => Operand::Scalar(v),
                },
            }
        };
        match *step {
            Instruction::Unary(op, a) => match operand(a) {
                Operand::Slice(src) => unary(op, src, dst),
                Operand::Scalar(v) => {
                    dst.fill(v);
                    ferroflow_primitives::math::unary_in_place(op, dst);
                }
            },
            Instruction::Binary(op, a, b) => binary(op, operand(a), operand(b), dst),
        }
    }
}

#[inline]
fn scalar_of_one(op: UnaryOp, x: f32) -> f32 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Square => x * x,
        _ => {
            let mut out = [0.0];
            unary(op, &[x], &mut out);
            out[0]
        }
    }
}

#[inline]
fn scalar_of_two(op: BinaryOp, x: f32, y: f32) -> f32 {
    match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        BinaryOp::Mul => x * y,
        BinaryOp::Div => x / y,
        _ => {
            let mut out = [0.0];
            binary(op, Operand::Slice(&[x]), Operand::Slice(&[y]), &mut out);
            out[0]
        }
    }
}

/// The scratch without the row that is being written.
struct Split<'a> {
    head: &'a [f32],
    tail: &'a [f32],
    row: usize,
}

impl<'a> Split<'a> {
    fn row(&self, row: usize, len: usize) -> &'a [f32] {
        debug_assert_ne!(row, self.row);
        if row < self.row {
            &self.head[row * len..(row + 1) * len]
        } else {
            &self.tail[(row - self.row - 1) * len..(row - self.row) * len]
        }
    }
}

/// Assigns each step a scratch row that holds no value still needed.
fn assign_rows(steps: &[Instruction], n_inputs: usize) -> (Vec<usize>, usize) {
    let mut last_use = vec![0usize; steps.len()];
    for (i, step) in steps.iter().enumerate() {
        let operands: &[usize] = match step {
            Instruction::Unary(_, a) => &[*a],
            Instruction::Binary(_, a, b) => &[*a, *b],
        };
        for at in operands.iter().filter_map(|o| o.checked_sub(n_inputs)) {
            last_use[at] = i;
        }
    }
    let mut rows: Vec<usize> = Vec::with_capacity(steps.len());
    let mut n_rows = 0;
    for i in 0..steps.len() {
        // A row is taken while the step that wrote it is still to be read, this step included:
        // the destination must differ from the operands.
        let taken = |row: usize| (0..i).any(|j| rows[j] == row && last_use[j] >= i);
        let row = (0..).find(|&r| !taken(r)).unwrap_or(0);
        n_rows = n_rows.max(row + 1);
        rows.push(row);
    }
    (rows, n_rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_compute_what_they_say() {
        let text = "Mul(0,1);AddV2(2,1);Relu(3);Sub(4,2);SquaredDifference(5,0)";
        let program = ElementwiseProgram::decode(text, 2).unwrap();
        let p = Program::new(&program, 2, true);
        let a: Vec<f32> = (0..37).map(|i| i as f32 - 18.0).collect();
        let mut out = vec![0.0; 37];
        p.run(&[Block::Slice(&a), Block::Scalar(0.5)], &mut out);
        for (a, out) in a.iter().zip(out) {
            let (m, s) = (a * 0.5, 0.5);
            let want = ((m + s).max(0.0) - m - a).powi(2);
            assert!((want - out).abs() < 1e-4, "{a}: {want} {out}");
            assert_eq!(p.scalar(|i| Some([*a, 0.5][i])), Some(out), "{a}");
        }
    }

    /// Machine code computes to the bit what the interpreter does, whichever inputs are scalars.
    fn check(text: &str) {
        let program = ElementwiseProgram::decode(text, 2).unwrap();
        let p = Program::new(&program, 2, true);
        let special = [
            0.0,
            -0.0,
            1.0,
            -1.5,
            6.5,
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MIN_POSITIVE,
            1e-42,
            3e38,
        ];
        let n = special.len() * special.len();
        let pairs = (0..n).map(|i| (special[i / special.len()], special[i % special.len()]));
        let (a, b): (Vec<f32>, Vec<f32>) = pairs.unzip();
        let mut forms = vec![[Block::Slice(&a), Block::Slice(&b)]];
        for number in special {
            forms.push([Block::Slice(&a), Block::Scalar(number)]);
            forms.push([Block::Scalar(number), Block::Slice(&b)]);
        }
        for form in forms {
            let scalars = form.map(|block| matches!(block, Block::Scalar(_)));
            let Some(vectors) = p.record().filter(|_| Isa::current() != Isa::Portable) else {
                continue;
            };
            let code = VectorCode::compile(&vectors, &scalars).expect("compiled");
            let slices = form.each_ref().map(|block| match block {
                Block::Slice(slice) => slice,
                Block::Scalar(number) => std::slice::from_ref(number),
            });
            let (mut want, mut out) = (vec![0.0; n], vec![7.0; n]);
            p.interpret(&form, &mut want);
            code.run(&slices, &mut out).expect("fits");
            for i in 0..n {
                let (want, out) = (want[i], out[i]);
                let is_same = want.to_bits() == out.to_bits() || want.is_nan() && out.is_nan();
                assert!(is_same, "{text} of {} and {}: {want} {out}", a[i], b[i]);
            }
        }
    }

    #[test]
    fn machine_code_computes_the_same() {
        for f in [
            "Neg",
            "Abs",
            "Square",
            "Sqrt",
            "Rsqrt",
            "Inv",
            "Exp",
            "Expm1",
            "Log",
            "Log1p",
            "Tanh",
            "Sigmoid",
            "Erf",
            "Erfc",
            "Floor",
            "Ceil",
            "Round",
            "Sign",
            "Relu",
            "Relu6",
            "LeakyRelu[0.25]",
            "Elu",
            "Selu",
            "Softplus",
            "Softsign",
            "_Swish",
            "_HardSwish",
            "_Gelu",
            "_GeluTanh",
        ] {
            check(&format!(
                "AddV2(0,1);{f}(2);Mul(3,1);Sub(4,0);Relu(5);AddV2(6,6)"
            ));
            check(&format!(
                "{f}(0);Mul(2,1);Sub(3,0);Maximum(4,1);Neg(5);Square(6)"
            ));
        }
        for f in [
            "AddV2",
            "Sub",
            "Mul",
            "RealDiv",
            "Maximum",
            "Minimum",
            "SquaredDifference",
            "ReluGrad",
            "TanhGrad",
            "SigmoidGrad",
        ] {
            check(&format!("{f}(0,1);Sub(2,0)"));
            check(&format!("Mul(0,0);{f}(1,2)"));
        }
        check("Mul(0,1);AddV2(2,1);Relu(3);Sub(4,2);SquaredDifference(5,0)");
    }

    #[test]
    fn programs_are_compiled_once_that_pays() {
        let program = ElementwiseProgram::decode("Mul(0,1);AddV2(2,0)", 2).unwrap();
        let x: Vec<f32> = (0..MIN_BLOCK * 20 + 9).map(|i| i as f32 / 7.0).collect();
        let has_vectors = Isa::current() != Isa::Portable;
        for jit in [true, false] {
            let p = Program::new(&program, 2, jit);
            let n_codes = || {
                p.native
                    .codes
                    .iter()
                    .filter(|c| c.get().is_some_and(Option::is_some))
                    .count()
            };
            let forms = [
                [Block::Slice(&x), Block::Scalar(0.3)],
                [Block::Scalar(0.3), Block::Slice(&x)],
                [Block::Slice(&x), Block::Slice(&x)],
            ];
            let mut want = vec![vec![0.0; x.len()]; 3];
            for (form, want) in forms.iter().zip(&mut want) {
                p.run(form, want);
            }
            assert_eq!(n_codes(), 0);
            let mut out = vec![0.0; x.len()];
            for _ in 0..=COMPILED_AFTER / x.len() + 1 {
                for (form, want) in forms.iter().zip(&want) {
                    p.run(form, &mut out);
                    assert_eq!(&out, want);
                }
            }
            // The third form is interpreted.
            assert_eq!(n_codes(), if jit && has_vectors { 2 } else { 0 });
        }
    }
}
