//! Elementwise programs as machine code that keeps all values of a few vectors in registers, where an interpreter stores
//! the result of each instruction.

use crate::code::CodeMemory;
use crate::translate::{isa, machine_code};
use cranelift_codegen::ir::{
    AbiParam, BlockArg, Endianness, Function, InstBuilder, MemFlags, Signature, UserFuncName,
    Value,
    condcodes::{FloatCC, IntCC},
    types,
};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use ferroflow_base::{Result, internal, unimplemented_error};
use ferroflow_opdef::{BinaryFn, ElementwiseProgram, Instruction, UnaryFn};

/// Lanes of a vector.
const LANES: usize = 4;
/// Vectors that an iteration of the loop computes.
const UNROLL: usize = 4;
const FLOAT: i32 = size_of::<f32>() as i32;

/// Machine code of an elementwise program, for operands of which some are one number.
///
/// ```
/// use ferroflow_jit::ElementwiseCode;
/// use ferroflow_opdef::ElementwiseProgram;
///
/// let program = ElementwiseProgram::decode("Mul(0,1);Relu(2)", 2).unwrap();
/// # if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
/// let code = ElementwiseCode::compile(&program, &[false, true]).unwrap();
/// let mut out = [0.0; 20];
/// // The caller computes the other four.
/// assert_eq!(code.run(&[&[-3.0; 20], &[-2.0]], &mut out).unwrap(), 16);
/// assert_eq!(out[15..17], [6.0, 0.0]);
/// # }
/// ```
pub struct ElementwiseCode {
    memory: CodeMemory,
    is_scalar: Vec<bool>,
}

impl ElementwiseCode {
    /// The number of elements that code computes at a time.
    pub const STEP: usize = LANES * UNROLL;

    /// Returns whether there are instructions for all functions of a program.
    pub fn supports(program: &ElementwiseProgram) -> bool {
        program.steps().iter().all(|step| match step {
            Instruction::Unary(f, _) => matches!(
                f,
                UnaryFn::Neg
                    | UnaryFn::Abs
                    | UnaryFn::Square
                    | UnaryFn::Sqrt
                    | UnaryFn::Reciprocal
                    | UnaryFn::Relu
                    | UnaryFn::Relu6
                    | UnaryFn::LeakyRelu(_)
                    | UnaryFn::Softsign
            ),
            Instruction::Binary(f, ..) => *f != BinaryFn::Pow,
        })
    }

    /// Compiles a program. `is_scalar` has an entry for each input.
    ///
    /// # Errors
    /// UNIMPLEMENTED if the machine or a function is not supported, RESOURCE_EXHAUSTED if there is too much code already.
    pub fn compile(program: &ElementwiseProgram, is_scalar: &[bool]) -> Result<ElementwiseCode> {
        let isa = isa()?;
        if isa.pointer_type() != types::I64 || !Self::supports(program) {
            return Err(unimplemented_error!(
                "the program has functions without instructions"
            ));
        }
        let mut signature = Signature::new(isa.default_call_conv());
        signature.params.extend([AbiParam::new(types::I64); 3]);
        let mut function = Function::with_name_signature(UserFuncName::default(), signature);
        let mut state = FunctionBuilderContext::new();
        let mut builder = FunctionBuilder::new(&mut function, &mut state);
        translate(&mut builder, program, is_scalar)?;
        builder.finalize();
        Ok(ElementwiseCode {
            memory: CodeMemory::new(&machine_code(function, isa)?)?,
            is_scalar: is_scalar.to_vec(),
        })
    }

    /// Returns which inputs are one number.
    pub fn is_scalar(&self) -> &[bool] {
        &self.is_scalar
    }

    /// Computes the elements of `out` up to a multiple of [`STEP`](Self::STEP), and returns how many they are. An input has
    /// as many elements as `out`, or one if it is a scalar.
    ///
    /// # Errors
    /// INTERNAL if an input has another length.
    pub fn run(&self, inputs: &[&[f32]], out: &mut [f32]) -> Result<usize> {
        let lengths = inputs.iter().zip(&self.is_scalar);
        let mut fits = lengths.map(|(input, is_scalar)| match is_scalar {
            true => input.len() == 1,
            false => input.len() == out.len(),
        });
        if inputs.len() != self.is_scalar.len() || !fits.all(|fits| fits) {
            return Err(internal!("an elementwise program got wrong inputs"));
        }
        let n_steps = out.len() / Self::STEP;
        let mut addresses = [std::ptr::null::<f32>(); MAX_INPUTS];
        for (address, input) in addresses.iter_mut().zip(inputs) {
            *address = input.as_ptr();
        }
        // SAFETY: `memory` holds a whole function of this signature, made by `translate` and never changed. It reads one
        // float of each scalar and `n_steps * STEP` of each other input, and writes as many to `out`, which is apart from
        // them; `addresses` has an entry for each.
        unsafe {
            let run: extern "C" fn(*const *const f32, *mut f32, usize) =
                std::mem::transmute(self.memory.start().cast::<()>());
            run(addresses.as_ptr(), out.as_mut_ptr(), n_steps);
        }
        Ok(n_steps * Self::STEP)
    }
}

/// Most inputs of a program that is compiled.
const MAX_INPUTS: usize = 16;

/// Writes `fn(inputs, out, n_steps)`.
fn translate(
    b: &mut FunctionBuilder,
    program: &ElementwiseProgram,
    is_scalar: &[bool],
) -> Result<()> {
    if is_scalar.len() > MAX_INPUTS {
        return Err(unimplemented_error!("the program has too many inputs"));
    }
    let [entry, head, end] = [(); 3].map(|()| b.create_block());
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    b.seal_block(entry);
    let &[inputs, out, n_steps] = b.block_params(entry) else {
        return Err(internal!("a function without its parameters"));
    };
    let (pointer, vector) = (types::I64, types::F32X4);
    let mut sources = Vec::with_capacity(is_scalar.len());
    for (i, is_scalar) in is_scalar.iter().enumerate() {
        let offset = i32::try_from(i * size_of::<usize>()).unwrap_or(i32::MAX);
        let address = b.ins().load(pointer, MemFlags::trusted(), inputs, offset);
        sources.push(match is_scalar {
            true => {
                let number = b.ins().load(types::F32, MemFlags::trusted(), address, 0);
                b.ins().splat(vector, number)
            }
            false => address,
        });
    }
    let zero = b.ins().iconst(pointer, 0);
    let bytes = (ElementwiseCode::STEP * size_of::<f32>()) as i64;
    let size = b.ins().imul_imm(n_steps, bytes);
    b.append_block_param(head, pointer);
    let is_empty = b.ins().icmp_imm(IntCC::Equal, n_steps, 0);
    b.ins()
        .brif(is_empty, end, &[], head, &[BlockArg::Value(zero)]);

    b.switch_to_block(head);
    let at = b.block_params(head)[0];
    let mut addresses = Vec::with_capacity(sources.len());
    for (source, is_scalar) in sources.iter().zip(is_scalar) {
        addresses.push(match is_scalar {
            true => *source,
            false => b.ins().iadd(*source, at),
        });
    }
    let to = b.ins().iadd(out, at);
    for part in 0..UNROLL {
        let offset = (part * LANES) as i32 * FLOAT;
        let mut values = Vec::with_capacity(sources.len() + program.steps().len());
        for (address, is_scalar) in addresses.iter().zip(is_scalar) {
            values.push(match is_scalar {
                true => *address,
                false => b.ins().load(vector, unaligned(), *address, offset),
            });
        }
        for step in program.steps() {
            let operand = |i: usize| {
                let value = values.get(i).copied();
                value.ok_or_else(|| internal!("a program with too few inputs"))
            };
            let value = match *step {
                Instruction::Unary(f, x) => unary(b, f, operand(x)?)?,
                Instruction::Binary(f, x, y) => binary(b, f, operand(x)?, operand(y)?)?,
            };
            values.push(value);
        }
        let last = values.last().copied();
        let last = last.ok_or_else(|| internal!("a program without instructions"))?;
        b.ins().store(unaligned(), last, to, offset);
    }
    let next = b.ins().iadd_imm(at, bytes);
    let goes_on = b.ins().icmp(IntCC::UnsignedLessThan, next, size);
    b.ins()
        .brif(goes_on, head, &[BlockArg::Value(next)], end, &[]);
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

fn splat(b: &mut FunctionBuilder, number: f32) -> Value {
    let number = b.ins().f32const(number);
    b.ins().splat(types::F32X4, number)
}

/// `x` where `condition(p, q)` holds, else `y`. With `p < q` of the same two values this is one instruction.
fn select(
    b: &mut FunctionBuilder,
    condition: FloatCC,
    [p, q]: [Value; 2],
    [x, y]: [Value; 2],
) -> Value {
    let mask = b.ins().fcmp(condition, p, q);
    let mask = b.ins().bitcast(
        types::F32X4,
        MemFlags::new().with_endianness(Endianness::Little),
        mask,
    );
    b.ins().bitselect(mask, x, y)
}

/// `f(x)`, to the bit what `ferroflow_primitives` computes.
fn unary(b: &mut FunctionBuilder, f: UnaryFn, x: Value) -> Result<Value> {
    Ok(match f {
        UnaryFn::Neg => b.ins().fneg(x),
        UnaryFn::Abs => b.ins().fabs(x),
        UnaryFn::Square => b.ins().fmul(x, x),
        UnaryFn::Sqrt => b.ins().sqrt(x),
        UnaryFn::Reciprocal => {
            let one = splat(b, 1.0);
            b.ins().fdiv(one, x)
        }
        UnaryFn::Relu => {
            let zero = splat(b, 0.0);
            select(b, FloatCC::LessThan, [x, zero], [zero, x])
        }
        UnaryFn::Relu6 => {
            let (zero, six) = (splat(b, 0.0), splat(b, 6.0));
            let low = select(b, FloatCC::LessThan, [x, zero], [zero, x]);
            select(b, FloatCC::LessThan, [six, low], [six, low])
        }
        UnaryFn::LeakyRelu(slope) => {
            let (zero, slope) = (splat(b, 0.0), splat(b, slope));
            let scaled = b.ins().fmul(x, slope);
            select(b, FloatCC::LessThan, [x, zero], [scaled, x])
        }
        UnaryFn::Softsign => {
            let (one, size) = (splat(b, 1.0), b.ins().fabs(x));
            let size = b.ins().fadd(one, size);
            b.ins().fdiv(x, size)
        }
        other => return Err(internal!("no instructions for {other:?}")),
    })
}

/// `f(x, y)`, to the bit what `ferroflow_primitives` computes.
fn binary(b: &mut FunctionBuilder, f: BinaryFn, x: Value, y: Value) -> Result<Value> {
    let bound = |b: &mut FunctionBuilder, compared| {
        let bound = select(b, FloatCC::LessThan, compared, [x, y]);
        select(b, FloatCC::Unordered, [x, x], [x, bound])
    };
    Ok(match f {
        BinaryFn::Add | BinaryFn::AddN => b.ins().fadd(x, y),
        BinaryFn::Sub => b.ins().fsub(x, y),
        BinaryFn::Mul => b.ins().fmul(x, y),
        BinaryFn::Div => b.ins().fdiv(x, y),
        BinaryFn::Maximum => bound(b, [y, x]),
        BinaryFn::Minimum => bound(b, [x, y]),
        BinaryFn::SquaredDifference => {
            let d = b.ins().fsub(x, y);
            b.ins().fmul(d, d)
        }
        BinaryFn::ReluGrad => {
            let zero = splat(b, 0.0);
            select(b, FloatCC::LessThan, [zero, y], [x, zero])
        }
        BinaryFn::TanhGrad => {
            let (one, square) = (splat(b, 1.0), b.ins().fmul(x, x));
            let slope = b.ins().fsub(one, square);
            b.ins().fmul(y, slope)
        }
        BinaryFn::SigmoidGrad => {
            let (one, product) = (splat(b, 1.0), b.ins().fmul(y, x));
            let slope = b.ins().fsub(one, x);
            b.ins().fmul(product, slope)
        }
        BinaryFn::Pow => return Err(internal!("no instructions for {f:?}")),
    })
}
