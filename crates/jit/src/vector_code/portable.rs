//! Vectors of four floats, by Cranelift, on any machine.

use super::Compiled;
use crate::translate::{isa, machine_code};
use cranelift_codegen::ir::{
    AbiParam, BlockArg, Endianness, Function, InstBuilder, MemFlags, Signature, UserFuncName,
    Value,
    condcodes::{FloatCC, IntCC},
    types,
};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use ferroflow_base::{Result, internal, unimplemented_error};
use ferroflow_primitives::vector_program::{
    BinaryInst, Comparison, Instruction, UnaryInst, VectorProgram,
};

/// Elements of a vector.
const LANES: usize = 4;
/// Bytes of a vector.
const VECTOR: i64 = (LANES * size_of::<f32>()) as i64;

pub(super) fn compile(program: &VectorProgram, is_scalar: &[bool]) -> Result<Compiled> {
    let isa = isa()?;
    if isa.pointer_type() != types::I64 {
        return Err(unimplemented_error!("addresses do not have 64 bits"));
    }
    let mut signature = Signature::new(isa.default_call_conv());
    signature.params.extend([AbiParam::new(types::I64); 4]);
    let mut function = Function::with_name_signature(UserFuncName::default(), signature);
    let mut state = FunctionBuilderContext::new();
    let mut builder = FunctionBuilder::new(&mut function, &mut state);
    translate(&mut builder, program, is_scalar)?;
    builder.finalize();
    Ok(Compiled {
        code: machine_code(function, isa)?,
        constants: Vec::new(),
        lanes: LANES,
    })
}

fn translate(b: &mut FunctionBuilder, program: &VectorProgram, is_scalar: &[bool]) -> Result<()> {
    let [entry, head, end] = [(); 3].map(|()| b.create_block());
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    b.seal_block(entry);
    let &[inputs, out, n_vectors, _] = b.block_params(entry) else {
        return Err(internal!("a function without its parameters"));
    };
    let mut sources = Vec::with_capacity(is_scalar.len());
    for (i, is_scalar) in is_scalar.iter().enumerate() {
        let at = i32::try_from(i * size_of::<usize>()).unwrap_or(i32::MAX);
        let address = b.ins().load(types::I64, MemFlags::trusted(), inputs, at);
        sources.push(match is_scalar {
            true => {
                let number = b.ins().load(types::F32, MemFlags::trusted(), address, 0);
                b.ins().splat(types::F32X4, number)
            }
            false => address,
        });
    }
    let zero = b.ins().iconst(types::I64, 0);
    let size = b.ins().imul_imm(n_vectors, VECTOR);
    b.append_block_param(head, types::I64);
    b.ins().jump(head, &[BlockArg::Value(zero)]);

    b.switch_to_block(head);
    let offset = b.block_params(head)[0];
    let mut values = Vec::with_capacity(sources.len() + program.instructions().len());
    for (source, is_scalar) in sources.iter().zip(is_scalar) {
        values.push(match is_scalar {
            true => *source,
            false => {
                let address = b.ins().iadd(*source, offset);
                b.ins().load(types::F32X4, unaligned(), address, 0)
            }
        });
    }
    for instruction in program.instructions() {
        let value = compute(b, instruction, &|value| values[value]);
        values.push(value);
    }
    let address = b.ins().iadd(out, offset);
    b.ins()
        .store(unaligned(), values[program.result()], address, 0);
    let next = b.ins().iadd_imm(offset, VECTOR);
    let is_not_last = b.ins().icmp(IntCC::UnsignedLessThan, next, size);
    let next = [BlockArg::Value(next)];
    b.ins().brif(is_not_last, head, &next, end, &[]);
    b.seal_block(head);
    b.switch_to_block(end);
    b.seal_block(end);
    b.ins().return_(&[]);
    Ok(())
}

/// Of vectors at any address.
fn unaligned() -> MemFlags {
    let mut flags = MemFlags::new();
    flags.set_notrap();
    flags
}

/// All values are vectors of floats, those of integers and masks, too.
fn compute(
    b: &mut FunctionBuilder,
    instruction: &Instruction,
    value: &dyn Fn(usize) -> Value,
) -> Value {
    match *instruction {
        Instruction::Constant(bits) => {
            let number = b.ins().f32const(f32::from_bits(bits));
            b.ins().splat(types::F32X4, number)
        }
        Instruction::Unary(inst, x) => unary(b, inst, value(x)),
        Instruction::Binary(inst, x, y) => binary(b, inst, value(x), value(y)),
        Instruction::MulAdd([x, y, z]) => b.ins().fma(value(x), value(y), value(z)),
        Instruction::NegMulAdd([x, y, z]) => {
            let negative = b.ins().fneg(value(x));
            b.ins().fma(negative, value(y), value(z))
        }
        Instruction::Compare(comparison, x, y) => {
            let condition = match comparison {
                Comparison::Less => FloatCC::LessThan,
                Comparison::Equal => FloatCC::Equal,
                Comparison::Unordered => FloatCC::Unordered,
            };
            let mask = b.ins().fcmp(condition, value(x), value(y));
            floats(b, mask)
        }
        Instruction::Select([mask, x, y]) => b.ins().bitselect(value(mask), value(x), value(y)),
    }
}

fn floats(b: &mut FunctionBuilder, x: Value) -> Value {
    let flags = MemFlags::new().with_endianness(Endianness::Little);
    b.ins().bitcast(types::F32X4, flags, x)
}

fn integers(b: &mut FunctionBuilder, x: Value) -> Value {
    let flags = MemFlags::new().with_endianness(Endianness::Little);
    b.ins().bitcast(types::I32X4, flags, x)
}

fn unary(b: &mut FunctionBuilder, inst: UnaryInst, x: Value) -> Value {
    match inst {
        UnaryInst::Sqrt => b.ins().sqrt(x),
        UnaryInst::RsqrtEstimate => {
            let one = b.ins().f32const(1.0);
            let one = b.ins().splat(types::F32X4, one);
            let root = b.ins().sqrt(x);
            b.ins().fdiv(one, root)
        }
        UnaryInst::Floor => b.ins().floor(x),
        UnaryInst::Ceil => b.ins().ceil(x),
        UnaryInst::Round => b.ins().nearest(x),
        UnaryInst::Trunc => b.ins().trunc(x),
        UnaryInst::ToFloat => {
            let x = integers(b, x);
            b.ins().fcvt_from_sint(types::F32X4, x)
        }
        UnaryInst::ShiftLeft(n) => {
            let x = integers(b, x);
            let x = b.ins().ishl_imm(x, i64::from(n));
            floats(b, x)
        }
        UnaryInst::ShiftRight(n) => {
            let x = integers(b, x);
            let x = b.ins().sshr_imm(x, i64::from(n));
            floats(b, x)
        }
    }
}

fn binary(b: &mut FunctionBuilder, inst: BinaryInst, x: Value, y: Value) -> Value {
    match inst {
        BinaryInst::Add => b.ins().fadd(x, y),
        BinaryInst::Sub => b.ins().fsub(x, y),
        BinaryInst::Mul => b.ins().fmul(x, y),
        BinaryInst::Div => b.ins().fdiv(x, y),
        BinaryInst::Min => smaller(b, [x, y], [x, y]),
        BinaryInst::Max => smaller(b, [y, x], [x, y]),
        BinaryInst::And => b.ins().band(x, y),
        BinaryInst::Or => b.ins().bor(x, y),
        BinaryInst::Xor => b.ins().bxor(x, y),
        BinaryInst::IntAdd | BinaryInst::IntSub => {
            let (x, y) = (integers(b, x), integers(b, y));
            let result = match inst {
                BinaryInst::IntAdd => b.ins().iadd(x, y),
                _ => b.ins().isub(x, y),
            };
            floats(b, result)
        }
    }
}

/// `p < q ? x : y`: one instruction, if these are the same two values.
fn smaller(b: &mut FunctionBuilder, [p, q]: [Value; 2], [x, y]: [Value; 2]) -> Value {
    let mask = b.ins().fcmp(FloatCC::LessThan, p, q);
    let mask = floats(b, mask);
    b.ins().bitselect(mask, x, y)
}
