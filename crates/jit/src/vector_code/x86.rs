//! Vectors of eight floats in AVX2's registers, or of sixteen in those of AVX-512.

mod assembly;
mod forms;

use super::{Compiled, MAX_LANES, Splat};
use assembly::{ADDRESS, OFFSET, OUT, constant, encodable, pointer_to};
use ferroflow_base::{Result, internal, unimplemented_error};
use ferroflow_primitives::Isa;
use ferroflow_primitives::vector_program::{
    BinaryInst, Comparison, Instruction, UnaryInst, VectorProgram,
};
use forms::{
    ADD, BROADCAST, COMPARE, Forms, LOAD, MOVE, NEG_ADD, ROUND, RSQRT, SHIFT_LEFT, SHIFT_RIGHT,
    SQRT, STORE, TO_FLOAT, binary_forms,
};
use iced_x86::{Code, IcedError, Instruction as Machine, MemoryOperand, Register};

/// Vector registers that hold operands from memory for one instruction.
const TEMPORARIES: [usize; 2] = [0, 1];

pub(super) fn compile(program: &VectorProgram, is_scalar: &[bool]) -> Result<Compiled> {
    let emitter = interleaved(program, is_scalar)?;
    let step = emitter.lanes() * emitter.n_parts;
    let constants = program.instructions().iter().filter_map(|inst| match inst {
        Instruction::Constant(bits) => Some(Splat([*bits; MAX_LANES])),
        _ => None,
    });
    Ok(Compiled {
        constants: constants.collect(),
        code: assembly::function(&emitter.head, &emitter.body, step)
            .map_err(|e| internal!("an instruction is not encoded: {e}"))?,
        step,
    })
}

/// Instructions that the processor looks ahead for some that are ready; those of several vectors are independent.
const WINDOW: usize = 320;

/// Emits the code of as many vectors at a time as keep the processor busy, if there are registers for them.
fn interleaved<'a>(program: &'a VectorProgram, is_scalar: &[bool]) -> Result<Emitter<'a>> {
    let length = program.length();
    // An instruction takes about four cycles, in which as many start, or twice as many where vectors are narrow.
    let n_needed = match program.isa() {
        Isa::Avx512 => 5,
        _ => 8,
    };
    let emit = |n_parts| -> Result<Emitter<'a>> {
        // The first pass counts the registers that values need; the second keeps scalars and constants in the others.
        let mut first = Emitter::new(program, is_scalar, n_parts);
        first.body()?;
        let mut emitter = Emitter::new(program, is_scalar, n_parts);
        emitter.keep(first.n_used)?;
        emitter.body()?;
        Ok(emitter)
    };
    let mut error = None;
    for n_parts in [2, 4, 1] {
        // Those of the iterations that follow are independent, too.
        if n_parts + WINDOW / length.max(1) < n_needed {
            continue;
        }
        match emit(n_parts) {
            Ok(emitter) => return Ok(emitter),
            Err(e) => error = Some(e),
        }
    }
    Err(error.unwrap_or_else(|| unimplemented_error!("the program is too long")))
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not computed, or no longer needed.
    Nowhere,
    /// An input whose vectors are in memory, by its number.
    Input(usize),
    /// An input that is one number, before it is in a register.
    Scalar(usize),
    /// A constant in memory, by its number.
    Constant(usize),
    /// A constant or a scalar in a register, for the whole loop.
    Kept(usize),
    Vector(usize),
    /// A mask of AVX-512.
    Mask(usize),
}

/// An operand of an instruction.
#[derive(Clone, Copy)]
enum Operand {
    Register(Register),
    Memory(MemoryOperand),
}

struct Emitter<'a> {
    program: &'a VectorProgram,
    /// Vectors that an iteration computes. Each has places of its own for its values.
    n_parts: usize,
    is_wide: bool,
    /// Before the loop.
    head: Vec<Machine>,
    body: Vec<Machine>,
    /// Of each vector, those of its values; constants and scalars are the same for all.
    places: Vec<Vec<Place>>,
    /// The vector that an instruction is emitted for.
    part: usize,
    /// The last instruction that reads each value, and how many do.
    last_use: Vec<usize>,
    n_uses: Vec<usize>,
    is_taken: [bool; 32],
    is_mask_taken: [bool; 8],
    /// Vector registers in use at most.
    n_used: usize,
}

impl<'a> Emitter<'a> {
    fn new(program: &'a VectorProgram, is_scalar: &[bool], n_parts: usize) -> Self {
        let (n_inputs, instructions) = (program.n_inputs(), program.instructions());
        let mut places: Vec<Place> = Vec::with_capacity(n_inputs + instructions.len());
        for (i, is_scalar) in is_scalar.iter().enumerate() {
            places.push(match is_scalar {
                true => Place::Scalar(i),
                false => Place::Input(i),
            });
        }
        let mut n_constants = 0;
        for instruction in instructions {
            places.push(match instruction {
                Instruction::Constant(_) => Place::Constant(n_constants),
                _ => Place::Nowhere,
            });
            n_constants += usize::from(matches!(instruction, Instruction::Constant(_)));
        }
        let mut n_uses = vec![0; places.len()];
        let mut last_use = vec![0; places.len()];
        for (i, instruction) in instructions.iter().enumerate() {
            for operand in instruction.operands() {
                n_uses[operand] += 1;
                last_use[operand] = i;
            }
        }
        last_use[program.result()] = instructions.len();
        let mut emitter = Emitter {
            program,
            n_parts,
            is_wide: program.isa() == Isa::Avx512,
            head: Vec::new(),
            body: Vec::new(),
            places: vec![places; n_parts],
            part: 0,
            last_use,
            n_uses,
            is_taken: [false; 32],
            is_mask_taken: [false; 8],
            n_used: TEMPORARIES.len(),
        };
        TEMPORARIES.iter().for_each(|r| emitter.is_taken[*r] = true);
        // Without a mask, instructions have the number of this one.
        emitter.is_mask_taken[0] = true;
        emitter
    }

    /// Moves scalars, and as many constants as fit, to registers from `first` on, those that are read most often first.
    fn keep(&mut self, first: usize) -> Result<()> {
        let is_kept = |value: &usize| match self.place(*value) {
            Place::Scalar(_) => self.n_uses[*value] > 0 || *value == self.program.result(),
            Place::Constant(_) => true,
            _ => false,
        };
        let mut kept: Vec<usize> = (0..self.n_uses.len()).filter(is_kept).collect();
        let is_constant = |value: usize| matches!(self.place(value), Place::Constant(_));
        kept.sort_by_key(|value| (is_constant(*value), std::cmp::Reverse(self.n_uses[*value])));
        let mut registers = first..self.n_registers();
        for value in kept {
            let Some(register) = registers.next() else {
                match self.place(value) {
                    Place::Constant(_) => break,
                    _ => return Err(unimplemented_error!("the program needs too many registers")),
                }
            };
            let to = self.vector(register);
            match self.place(value) {
                Place::Scalar(i) => {
                    self.head.push(encodable(Machine::with2(
                        Code::Mov_r64_rm64,
                        ADDRESS,
                        pointer_to(i),
                    ))?);
                    let number = MemoryOperand::with_base(ADDRESS);
                    self.head
                        .push(encodable(Machine::with2(self.form(BROADCAST), to, number))?);
                }
                Place::Constant(i) => {
                    let load = Machine::with2(self.form(LOAD), to, constant(i));
                    self.head.push(encodable(load)?);
                }
                _ => continue,
            }
            for places in &mut self.places {
                places[value] = Place::Kept(register);
            }
            self.is_taken[register] = true;
        }
        Ok(())
    }

    fn place(&self, value: usize) -> Place {
        self.places[self.part][value]
    }

    fn set_place(&mut self, value: usize, place: Place) {
        self.places[self.part][value] = place;
    }

    fn n_registers(&self) -> usize {
        if self.is_wide { 32 } else { 16 }
    }

    fn lanes(&self) -> usize {
        if self.is_wide { 16 } else { 8 }
    }

    fn vector(&self, number: usize) -> Register {
        match self.is_wide {
            true => Register::ZMM0 + number as u32,
            false => Register::YMM0 + number as u32,
        }
    }

    fn form(&self, [wide, narrow]: Forms) -> Code {
        if self.is_wide { wide } else { narrow }
    }

    /// Allocates a vector register.
    fn allocate(&mut self) -> Result<usize> {
        let free = (0..self.n_registers()).find(|r| !self.is_taken[*r]);
        let free =
            free.ok_or_else(|| unimplemented_error!("the program needs too many registers"))?;
        self.is_taken[free] = true;
        self.n_used = self.n_used.max(free + 1);
        Ok(free)
    }

    /// Allocates the register of a new value.
    fn define(&mut self, value: usize) -> Result<Register> {
        let register = self.allocate()?;
        self.set_place(value, Place::Vector(register));
        Ok(self.vector(register))
    }

    /// Frees the registers of operands that the instruction `at` is the last to read.
    fn release(&mut self, at: usize, operands: impl Iterator<Item = usize>) {
        for value in operands
            .filter(|value| self.last_use[*value] == at)
            .collect::<Vec<_>>()
        {
            match self.place(value) {
                Place::Vector(register) => self.is_taken[register] = false,
                Place::Mask(mask) => self.is_mask_taken[mask] = false,
                _ => continue,
            }
            self.set_place(value, Place::Nowhere);
        }
    }

    fn operand(&self, value: usize) -> Result<Operand> {
        Ok(match self.place(value) {
            Place::Vector(register) | Place::Kept(register) => {
                Operand::Register(self.vector(register))
            }
            Place::Mask(mask) => Operand::Register(Register::K0 + mask as u32),
            Place::Constant(i) => Operand::Memory(constant(i)),
            // Only the first pass, whose code is not used, reads scalars that have no register.
            Place::Scalar(_) => Operand::Register(self.vector(TEMPORARIES[0])),
            Place::Input(_) | Place::Nowhere => {
                return Err(internal!("value {value} of a program is not there"));
            }
        })
    }

    /// An operand that must be in a register: a temporary one, if it is in memory.
    fn register(&mut self, value: usize, temporary: usize) -> Result<Register> {
        match self.operand(value)? {
            Operand::Register(register) => Ok(register),
            Operand::Memory(memory) => {
                let load = self.load(temporary, memory)?;
                self.body.push(load);
                Ok(self.vector(temporary))
            }
        }
    }

    fn load(&self, register: usize, memory: MemoryOperand) -> Result<Machine> {
        let code = self.form(LOAD);
        encodable(Machine::with2(code, self.vector(register), memory))
    }

    fn push(&mut self, instruction: std::result::Result<Machine, IcedError>) -> Result<()> {
        self.body.push(encodable(instruction)?);
        Ok(())
    }

    fn two(&mut self, forms: Forms, to: Register, x: Operand) -> Result<()> {
        let code = self.form(forms);
        self.push(match x {
            Operand::Register(x) => Machine::with2(code, to, x),
            Operand::Memory(x) => Machine::with2(code, to, x),
        })
    }

    fn three(&mut self, forms: Forms, to: Register, x: Register, y: Operand) -> Result<()> {
        let code = self.form(forms);
        self.push(match y {
            Operand::Register(y) => Machine::with3(code, to, x, y),
            Operand::Memory(y) => Machine::with3(code, to, x, y),
        })
    }

    /// The instructions of an iteration: loads, what is computed, and stores.
    fn body(&mut self) -> Result<()> {
        let instructions = self.program.instructions();
        for (i, instruction) in instructions.iter().enumerate() {
            for part in 0..self.n_parts {
                self.part = part;
                self.instruction(i, instruction)?;
            }
        }
        for part in 0..self.n_parts {
            self.part = part;
            let result = self.program.result();
            self.load_input(result)?;
            let result = self.register(result, TEMPORARIES[0])?;
            let to = self.element(OUT);
            let code = self.form(STORE);
            self.push(Machine::with2(code, to, result))?;
        }
        Ok(())
    }

    fn instruction(&mut self, i: usize, instruction: &Instruction) -> Result<()> {
        for value in instruction.operands() {
            self.load_input(value)?;
        }
        let value = self.program.n_inputs() + i;
        match *instruction {
            Instruction::Constant(_) => Ok(()),
            Instruction::Unary(inst, a) => self.unary(i, value, inst, a),
            Instruction::Binary(inst, a, b) => self.binary(i, value, inst, a, b),
            Instruction::MulAdd(operands) => self.mul_add(i, value, ADD, operands),
            Instruction::NegMulAdd(operands) => self.mul_add(i, value, NEG_ADD, operands),
            Instruction::Compare(comparison, a, b) => self.compare(i, value, comparison, a, b),
            Instruction::Select(operands) => self.select(i, value, operands),
        }
    }

    /// Where the vector is in an array.
    fn element(&self, array: Register) -> MemoryOperand {
        let at = self.part * self.lanes() * size_of::<f32>();
        MemoryOperand::with_base_index_scale_displ_size(array, OFFSET, 1, at as i64, 1)
    }

    /// Loads the vector of an input where it is first read.
    fn load_input(&mut self, value: usize) -> Result<()> {
        let Place::Input(i) = self.place(value) else {
            return Ok(());
        };
        self.push(Machine::with2(Code::Mov_r64_rm64, ADDRESS, pointer_to(i)))?;
        self.define(value)?;
        if let Place::Vector(register) = self.place(value) {
            let memory = self.element(ADDRESS);
            let load = self.load(register, memory)?;
            self.body.push(load);
        }
        Ok(())
    }

    fn unary(&mut self, at: usize, value: usize, inst: UnaryInst, a: usize) -> Result<()> {
        let shifted = match inst {
            UnaryInst::ShiftLeft(n) => Some((SHIFT_LEFT, n)),
            UnaryInst::ShiftRight(n) => Some((SHIFT_RIGHT, n)),
            _ => None,
        };
        if let Some((forms, n)) = shifted {
            let x = self.register(a, TEMPORARIES[0])?;
            self.release(at, [a].into_iter());
            let (code, to) = (self.form(forms), self.define(value)?);
            return self.push(Machine::with3(code, to, x, u32::from(n)));
        }
        let x = self.operand(a)?;
        self.release(at, [a].into_iter());
        let to = self.define(value)?;
        match inst {
            UnaryInst::Sqrt => self.two(SQRT, to, x),
            UnaryInst::RsqrtEstimate => self.two(RSQRT, to, x),
            UnaryInst::Floor => self.round(to, x, 1),
            UnaryInst::Ceil => self.round(to, x, 2),
            UnaryInst::Round => self.round(to, x, 0),
            UnaryInst::Trunc => self.round(to, x, 3),
            _ => self.two(TO_FLOAT, to, x),
        }
    }

    /// `mode` is that of the instruction: to nearest, down, up, toward zero.
    fn round(&mut self, to: Register, x: Operand, mode: u32) -> Result<()> {
        /// Without an exception where the result is not exact.
        const QUIET: u32 = 8;
        let code = self.form(ROUND);
        self.push(match x {
            Operand::Register(x) => Machine::with3(code, to, x, mode | QUIET),
            Operand::Memory(x) => Machine::with3(code, to, x, mode | QUIET),
        })
    }

    fn is_in_memory(&self, value: usize) -> bool {
        matches!(self.place(value), Place::Constant(_))
    }

    fn binary(
        &mut self,
        at: usize,
        value: usize,
        inst: BinaryInst,
        a: usize,
        b: usize,
    ) -> Result<()> {
        let (forms, commutes) = binary_forms(inst);
        let (a, b) = match commutes && self.is_in_memory(a) {
            true => (b, a),
            false => (a, b),
        };
        let (x, y) = (self.register(a, TEMPORARIES[0])?, self.operand(b)?);
        self.release(at, [a, b].into_iter());
        let to = self.define(value)?;
        self.three(forms, to, x, y)
    }

    /// `a * b + c`, or `c - a * b`: the result takes the register of an operand.
    fn mul_add(
        &mut self,
        at: usize,
        value: usize,
        forms: [Forms; 3],
        [a, b, c]: [usize; 3],
    ) -> Result<()> {
        let [factor, other, addend] = forms;
        let ends = |emitter: &Self, value: usize| {
            emitter.last_use[value] == at && matches!(emitter.place(value), Place::Vector(_))
        };
        // The addend is replaced, or a factor; an operand may be named twice, as an instruction reads all before it writes.
        if ends(self, c) {
            let (x, y) = self.factors(a, b)?;
            let to = self.register(c, TEMPORARIES[0])?;
            self.three(addend, to, x, y)?;
            return self.take_over(at, value, c, [a, b, c]);
        }
        let replaced = if ends(self, a) {
            Some((a, b))
        } else if ends(self, b) {
            Some((b, a))
        } else {
            None
        };
        if let Some((x, y)) = replaced {
            let to = self.register(x, TEMPORARIES[0])?;
            if self.is_in_memory(y) && !self.is_in_memory(c) {
                let c = self.register(c, TEMPORARIES[0])?;
                let y = self.operand(y)?;
                self.three(other, to, c, y)?;
            } else {
                let y = self.register(y, TEMPORARIES[0])?;
                let c = self.operand(c)?;
                self.three(factor, to, y, c)?;
            }
            return self.take_over(at, value, x, [a, b, c]);
        }
        let to = self.define(value)?;
        let c = self.operand(c)?;
        self.two(MOVE, to, c)?;
        let (x, y) = self.factors(a, b)?;
        self.three(addend, to, x, y)?;
        self.release(at, [a, b].into_iter());
        Ok(())
    }

    /// Two factors, the first of them in a register.
    fn factors(&mut self, a: usize, b: usize) -> Result<(Register, Operand)> {
        let (a, b) = match self.is_in_memory(a) {
            true => (b, a),
            false => (a, b),
        };
        Ok((self.register(a, TEMPORARIES[1])?, self.operand(b)?))
    }

    /// Names the register of the operand `from`, which the instruction is the last to read, `value`.
    fn take_over(
        &mut self,
        at: usize,
        value: usize,
        from: usize,
        operands: [usize; 3],
    ) -> Result<()> {
        let place = self.place(from);
        self.set_place(from, Place::Nowhere);
        self.set_place(value, place);
        self.release(at, operands.into_iter());
        Ok(())
    }

    fn compare(
        &mut self,
        at: usize,
        value: usize,
        comparison: Comparison,
        a: usize,
        b: usize,
    ) -> Result<()> {
        // The numbers of the ordered, quiet predicates.
        let predicate: u32 = match comparison {
            Comparison::Less => 17,
            Comparison::Equal => 0,
            Comparison::Unordered => 3,
        };
        let (x, y) = (self.register(a, TEMPORARIES[0])?, self.operand(b)?);
        self.release(at, [a, b].into_iter());
        let to = match self.is_wide {
            true => self.define_mask(value)?,
            false => self.define(value)?,
        };
        let code = self.form(COMPARE);
        self.push(match y {
            Operand::Register(y) => Machine::with4(code, to, x, y, predicate),
            Operand::Memory(y) => Machine::with4(code, to, x, y, predicate),
        })
    }

    fn define_mask(&mut self, value: usize) -> Result<Register> {
        let free = self.is_mask_taken.iter().position(|is_taken| !is_taken);
        let free = free.ok_or_else(|| unimplemented_error!("the program needs too many masks"))?;
        self.is_mask_taken[free] = true;
        self.set_place(value, Place::Mask(free));
        Ok(Register::K0 + free as u32)
    }

    /// The instructions blend: the second operand where the mask is set, else the first.
    fn select(&mut self, at: usize, value: usize, [mask, a, b]: [usize; 3]) -> Result<()> {
        let Operand::Register(register) = self.operand(mask)? else {
            return Err(internal!("a mask of a program is not in a register"));
        };
        let (x, y) = (self.register(b, TEMPORARIES[0])?, self.operand(a)?);
        self.release(at, [mask, a, b].into_iter());
        let to = self.define(value)?;
        if self.is_wide {
            self.three([Code::EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32; 2], to, x, y)?;
            if let Some(last) = self.body.last_mut() {
                last.set_op_mask(register);
            }
            return Ok(());
        }
        let code = Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm;
        self.push(match y {
            Operand::Register(y) => Machine::with4(code, to, x, y, register),
            Operand::Memory(y) => Machine::with4(code, to, x, y, register),
        })
    }
}
