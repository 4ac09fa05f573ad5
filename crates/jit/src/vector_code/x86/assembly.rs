//! The function around the instructions of a program.

use crate::vector_code::Splat;
use ferroflow_base::{Result, internal};
use iced_x86::{Code, Encoder, IcedError, Instruction as Machine, MemoryOperand, Register};

/// The registers that the function is called with, and those of its loop.
pub(super) const INPUTS: Register = Register::RDI;
pub(super) const OUT: Register = Register::RSI;
pub(super) const N_STEPS: Register = Register::RDX;
pub(super) const CONSTANTS: Register = Register::RCX;
pub(super) const OFFSET: Register = Register::R9;
pub(super) const ADDRESS: Register = Register::RAX;

pub(super) fn encodable(instruction: std::result::Result<Machine, IcedError>) -> Result<Machine> {
    instruction.map_err(|e| internal!("an instruction has wrong operands: {e}"))
}

/// Where the address of an input is.
pub(super) fn pointer_to(input: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ(INPUTS, (input * size_of::<usize>()) as i64)
}

/// Where a constant is.
pub(super) fn constant(i: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ(CONSTANTS, (i * size_of::<Splat>()) as i64)
}

/// The loop around the instructions of an iteration.
pub(super) fn function(
    head: &[Machine],
    body: &[Machine],
    step: usize,
) -> std::result::Result<Vec<u8>, IcedError> {
    let bytes = (step * size_of::<f32>()) as u32;
    let mut encoder = Encoder::new(64);
    let mut at = 0;
    let mut write = |instruction: &Machine, at: &mut u64| -> std::result::Result<(), IcedError> {
        *at += encoder.encode(instruction, *at)? as u64;
        Ok(())
    };
    for instruction in head {
        write(instruction, &mut at)?;
    }
    // Steps become bytes.
    let size = Machine::with3(Code::Imul_r64_rm64_imm32, N_STEPS, N_STEPS, bytes)?;
    write(&size, &mut at)?;
    write(
        &Machine::with2(Code::Xor_r32_rm32, Register::R9D, Register::R9D)?,
        &mut at,
    )?;
    let start = at;
    for instruction in body {
        write(instruction, &mut at)?;
    }
    write(
        &Machine::with2(Code::Add_rm64_imm32, OFFSET, bytes)?,
        &mut at,
    )?;
    write(
        &Machine::with2(Code::Cmp_r64_rm64, OFFSET, N_STEPS)?,
        &mut at,
    )?;
    write(&Machine::with_branch(Code::Jb_rel32_64, start)?, &mut at)?;
    write(&Machine::with(Code::VEX_Vzeroupper), &mut at)?;
    write(&Machine::with(Code::Retnq), &mut at)?;
    Ok(encoder.take_buffer())
}
