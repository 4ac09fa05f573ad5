//! Programs as Cranelift's intermediate code, and that as machine code.

use crate::arithmetic::machine_type;
use crate::code::{Code, Exit, offsets};
use crate::draws::{MAX_DRAW, SEEDS};
use crate::helpers::Helper;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{
    AbiParam, Block, BlockArg, Function, InstBuilder, MemFlags, Signature, StackSlot,
    StackSlotData, StackSlotKind, Type, UserFuncName, Value, condcodes::IntCC, types,
};
use cranelift_codegen::isa::{CallConv, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use ferroflow_base::{Result, internal, unimplemented_error};
use ferroflow_opdef::{
    Cluster, ClusterBlock, ClusterInput, ClusterInst, ClusterLoop, ClusterOutput, Draw,
    RandomSource, ScalarType, ValueId,
};
use std::sync::OnceLock;

/// Iterations between two looks at the cancellation token.
const POLL_EVERY: i64 = 1 << 16;

/// Makes machine code of a program.
///
/// # Errors
/// UNIMPLEMENTED if the machine or a function is not supported, RESOURCE_EXHAUSTED if there is too
/// much code already, INVALID_ARGUMENT if the program is not valid.
pub fn compile(program: &Cluster) -> Result<Code> {
    program.verify()?;
    let isa = isa()?;
    let pointer = isa.pointer_type();
    if pointer != types::I64 {
        return Err(unimplemented_error!(
            "clusters are compiled for 64-bit machines"
        ));
    }
    let mut signature = Signature::new(isa.default_call_conv());
    signature.params.push(AbiParam::new(pointer));
    signature.returns.push(AbiParam::new(types::I64));
    let mut function = Function::with_name_signature(UserFuncName::default(), signature);
    let mut state = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut function, &mut state);
    let helpers = Translator::new(builder, isa.default_call_conv()).program(program)?;
    let code = machine_code(function, isa)?;
    Code::new(program, &code, helpers)
}

/// The machine code of a function.
pub(crate) fn machine_code(function: Function, isa: &OwnedTargetIsa) -> Result<Vec<u8>> {
    let mut context = cranelift_codegen::Context::for_function(function);
    let compiled = context
        .compile(&**isa, &mut ControlPlane::default())
        .map_err(|e| internal!("a program does not compile: {:?}", e.inner))?;
    if !compiled.buffer.relocs().is_empty() {
        return Err(unimplemented_error!(
            "a program needs functions that this machine has no instructions for"
        ));
    }
    Ok(compiled.code_buffer().to_vec())
}

/// Cranelift for the machine at hand.
pub(crate) fn isa() -> Result<&'static OwnedTargetIsa> {
    static ISA: OnceLock<std::result::Result<OwnedTargetIsa, String>> = OnceLock::new();
    let isa = ISA.get_or_init(|| {
        let mut flags = settings::builder();
        let verify = if cfg!(debug_assertions) {
            "true"
        } else {
            "false"
        };
        for (name, value) in [
            ("opt_level", "speed"),
            ("enable_verifier", verify),
            // A frame larger than a page must not step over the end of the stack.
            ("enable_probestack", "true"),
            ("probestack_strategy", "inline"),
        ] {
            flags.set(name, value).map_err(|e| e.to_string())?;
        }
        let builder = cranelift_native::builder()?;
        let isa = builder.finish(settings::Flags::new(flags));
        isa.map_err(|e| e.to_string())
    });
    let isa = isa.as_ref();
    isa.map_err(|e| unimplemented_error!("clusters are not compiled on this machine: {e}"))
}

/// The value of an id, with what is known of it.
#[derive(Clone, Copy)]
struct Known {
    value: Value,
    ty: ScalarType,
    constant: Option<i64>,
}

/// The translation of one program.
pub(crate) struct Translator<'a> {
    pub(crate) b: FunctionBuilder<'a>,
    call_conv: CallConv,
    values: Vec<Option<Known>>,
    /// Address and length of each array, once known.
    arrays: Vec<Option<(Value, Value)>>,
    array_types: Vec<ScalarType>,
    env: Value,
    /// The functions that the code calls.
    helpers: Vec<Helper>,
    draws: Option<StackSlot>,
    /// Iterations until the next look at the token.
    fuel: Variable,
    leave: Block,
    cancelled: Block,
}

impl<'a> Translator<'a> {
    fn new(mut b: FunctionBuilder<'a>, call_conv: CallConv) -> Self {
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        b.seal_block(entry);
        let env = b.block_params(entry)[0];
        let fuel = b.declare_var(types::I64);
        let full = b.ins().iconst(types::I64, POLL_EVERY);
        b.def_var(fuel, full);
        let (leave, cancelled) = (b.create_block(), b.create_block());
        b.set_cold_block(leave);
        b.set_cold_block(cancelled);
        Translator {
            b,
            call_conv,
            values: Vec::new(),
            arrays: Vec::new(),
            array_types: Vec::new(),
            env,
            helpers: Vec::new(),
            draws: None,
            fuel,
            leave,
            cancelled,
        }
    }

    /// Translates the whole program; returns the functions that it calls.
    fn program(mut self, program: &Cluster) -> Result<Vec<Helper>> {
        self.array_types = program.array_types();
        self.arrays = vec![None; self.array_types.len()];
        let trusted = MemFlags::trusted();
        let words = self
            .b
            .ins()
            .load(types::I64, trusted, self.env, offsets::WORDS);
        let mut slot = 0;
        for input in &program.inputs {
            if let ClusterInput::Array(_) = input {
                self.arrays[slot] = Some(self.array(slot));
                slot += 1;
            }
        }
        for (i, ty) in program.input_values().enumerate() {
            let value = self
                .b
                .ins()
                .load(machine_type(ty), trusted, words, 8 * i as i32);
            self.define(i as ValueId, value, ty);
        }
        self.insts(&program.insts)?;
        let mut n = 0;
        for output in &program.outputs {
            let ClusterOutput::Tensor(_, _, elements) = output else {
                continue;
            };
            for element in elements {
                let value = self.known(*element)?.value;
                self.b.ins().store(trusted, value, words, 8 * n);
                n += 1;
            }
        }
        self.exit(Exit::DONE);
        for (block, exit) in [(self.leave, Exit::LEFT), (self.cancelled, Exit::CANCELLED)] {
            self.b.switch_to_block(block);
            self.exit(exit);
        }
        self.b.seal_all_blocks();
        self.b.finalize();
        Ok(self.helpers)
    }

    fn exit(&mut self, exit: i64) {
        let exit = self.b.ins().iconst(types::I64, exit);
        self.b.ins().return_(&[exit]);
    }

    /// Address and length of the array in a slot.
    fn array(&mut self, slot: usize) -> (Value, Value) {
        let trusted = MemFlags::trusted();
        let table = self
            .b
            .ins()
            .load(types::I64, trusted, self.env, offsets::ARRAYS);
        let at = offsets::ARRAY * slot as i32;
        let data = self
            .b
            .ins()
            .load(types::I64, trusted, table, at + offsets::DATA);
        let len = self
            .b
            .ins()
            .load(types::I64, trusted, table, at + offsets::LEN);
        (data, len)
    }

    fn define(&mut self, id: ValueId, value: Value, ty: ScalarType) {
        self.define_known(
            id,
            Known {
                value,
                ty,
                constant: None,
            },
        );
    }

    fn define_known(&mut self, id: ValueId, known: Known) {
        let i = id as usize;
        if self.values.len() <= i {
            self.values.resize(i + 1, None);
        }
        self.values[i] = Some(known);
    }

    fn known(&self, id: ValueId) -> Result<Known> {
        let known = self.values.get(id as usize).copied().flatten();
        known.ok_or_else(|| internal!("v{id} of a verified program is not defined"))
    }

    fn all(&self, ids: &[ValueId]) -> Result<Vec<BlockArg>> {
        ids.iter()
            .map(|v| Ok(self.known(*v)?.value.into()))
            .collect()
    }

    /// Calls a helper, whose address is in the table of the run: code stays the same wherever it is.
    pub(crate) fn call(
        &mut self,
        helper: Helper,
        args: &[Value],
        params: &[Type],
        result: Type,
    ) -> Option<Value> {
        let mut signature = Signature::new(self.call_conv);
        signature
            .params
            .extend(params.iter().map(|t| AbiParam::new(*t)));
        signature.returns.push(AbiParam::new(result));
        let signature = self.b.import_signature(signature);
        let at = self.helpers.iter().position(|h| *h == helper);
        let at = at.unwrap_or_else(|| {
            self.helpers.push(helper);
            self.helpers.len() - 1
        });
        let (trusted, at) = (MemFlags::trusted(), 8 * at as i32);
        let table = self
            .b
            .ins()
            .load(types::I64, trusted, self.env, offsets::HELPERS);
        let callee = self.b.ins().load(types::I64, trusted, table, at);
        let call = self.b.ins().call_indirect(signature, callee, args);
        self.b.inst_results(call).first().copied()
    }

    /// Leaves the program if `cond` is not zero.
    pub(crate) fn leave_if(&mut self, cond: Value) {
        let next = self.b.create_block();
        self.b.ins().brif(cond, self.leave, &[], next, &[]);
        self.b.switch_to_block(next);
    }

    fn insts(&mut self, insts: &[ClusterInst]) -> Result<()> {
        insts.iter().try_for_each(|i| self.inst(i))
    }

    fn inst(&mut self, inst: &ClusterInst) -> Result<()> {
        match inst {
            ClusterInst::Const { out, ty, bits } => self.constant(*out, *ty, *bits),
            ClusterInst::Unary { out, f, a } => {
                let a = self.known(*a)?;
                let value = self.unary(*f, a.ty, a.value);
                let value = value.ok_or_else(|| no_code(f.name()))?;
                let ty = f.result(a.ty).ok_or_else(|| no_code(f.name()))?;
                self.define(*out, value, ty);
            }
            ClusterInst::Binary { out, f, a, b } => {
                let (a, b) = (self.known(*a)?, self.known(*b)?);
                let value = self.binary(*f, a.ty, a.value, b.value, b.constant);
                let value = value.ok_or_else(|| no_code(f.name()))?;
                let ty = f.result(a.ty).ok_or_else(|| no_code(f.name()))?;
                self.define(*out, value, ty);
            }
            ClusterInst::Cast { out, to, a } => {
                let a = self.known(*a)?;
                let value = self.cast(a.ty, *to, a.value);
                self.define(*out, value, *to);
            }
            ClusterInst::Select { out, cond, a, b } => {
                let cond = self.known(*cond)?.value;
                let (a, b) = (self.known(*a)?, self.known(*b)?);
                let value = self.b.ins().select(cond, a.value, b.value);
                self.define(*out, value, a.ty);
            }
            ClusterInst::LeaveIf { cond } => {
                let cond = self.known(*cond)?.value;
                self.leave_if(cond);
            }
            ClusterInst::Random { outs, draw } => self.random(outs, draw)?,
            ClusterInst::If {
                outs,
                cond,
                then,
                otherwise,
            } => self.branch(outs, *cond, then, otherwise)?,
            ClusterInst::Loop(l) => self.repeat(l)?,
            _ => self.memory(inst)?,
        }
        Ok(())
    }

    fn constant(&mut self, out: ValueId, ty: ScalarType, bits: u64) {
        let (value, constant) = match ty {
            ScalarType::F32 => (self.b.ins().f32const(f32::from_bits(bits as u32)), None),
            ScalarType::F64 => (self.b.ins().f64const(f64::from_bits(bits)), None),
            _ => {
                let signed = match ty {
                    ScalarType::I32 => i64::from(bits as u32 as i32),
                    _ => bits as i64,
                };
                // Cranelift's constants are zero-extended.
                let value = self.b.ins().iconst(machine_type(ty), bits as i64);
                (value, Some(signed))
            }
        };
        self.define_known(
            out,
            Known {
                value,
                ty,
                constant,
            },
        );
    }

    fn memory(&mut self, inst: &ClusterInst) -> Result<()> {
        let no_array = |slot: u32| internal!("a{slot} of a verified program is not allocated");
        let slot_of = |s: &Self, slot: u32| {
            let array = s.arrays.get(slot as usize).copied().flatten();
            array.ok_or_else(|| no_array(slot))
        };
        match *inst {
            ClusterInst::Len { out, array } => {
                let (_, len) = slot_of(self, array)?;
                self.define(out, len, ScalarType::I64);
            }
            ClusterInst::Alloc { array, len } => {
                let slot = self.b.ins().iconst(types::I64, i64::from(array));
                let (env, len) = (self.env, self.known(len)?.value);
                let failed = self.call(
                    Helper::Allocate,
                    &[env, slot, len],
                    &[types::I64; 3],
                    types::I64,
                );
                self.leave_if(failed.ok_or_else(|| no_array(array))?);
                self.arrays[array as usize] = Some(self.array(array as usize));
            }
            ClusterInst::Load { out, array, index } => {
                let ty = self.array_types[array as usize];
                let address = self.element(slot_of(self, array)?, index, ty)?;
                let machine = machine_type(ty);
                let value = self.b.ins().load(machine, MemFlags::trusted(), address, 0);
                self.define(out, value, ty);
            }
            ClusterInst::Store {
                array,
                index,
                value,
            } => {
                let ty = self.array_types[array as usize];
                let address = self.element(slot_of(self, array)?, index, ty)?;
                let value = self.known(value)?.value;
                self.b.ins().store(MemFlags::trusted(), value, address, 0);
            }
            _ => return Err(internal!("an instruction has no translation")),
        }
        Ok(())
    }

    /// The words on the stack of all draws, whose numbers are loaded at once.
    fn words_of_draws(&mut self) -> StackSlot {
        *self.draws.get_or_insert_with(|| {
            let size = 8 * MAX_DRAW as u32;
            let data = StackSlotData::new(StackSlotKind::ExplicitSlot, size, 3);
            self.b.create_sized_stack_slot(data)
        })
    }

    /// Random numbers, by way of words on the stack.
    fn random(&mut self, outs: &[ValueId], draw: &Draw) -> Result<()> {
        let name = draw.distribution.name();
        let helper = Helper::Draw(draw.distribution, draw.ty);
        if helper.address().is_none() || outs.len() > MAX_DRAW {
            return Err(no_code(name));
        }
        let slot = self.words_of_draws();
        let (seeds, stream) = match draw.source {
            RandomSource::Seeds(seeds) => (Some(seeds), SEEDS),
            RandomSource::Stream(slot) => (None, slot.into()),
        };
        for (at, value) in [(0, seeds), (2, draw.range)] {
            for (i, value) in value.into_iter().flatten().enumerate() {
                let value = self.known(value)?.value;
                self.b.ins().stack_store(value, slot, 8 * (at + i as i32));
            }
        }
        let words = self.b.ins().stack_addr(types::I64, slot, 0);
        let n = self.b.ins().iconst(types::I64, outs.len() as i64);
        let stream = self.b.ins().iconst(types::I64, stream);
        let args = [self.env, words, n, stream];
        let failed = self.call(helper, &args, &[types::I64; 4], types::I64);
        self.leave_if(failed.ok_or_else(|| no_code(name))?);
        for (i, out) in outs.iter().enumerate() {
            let machine = machine_type(draw.ty);
            let value = self.b.ins().stack_load(machine, slot, 8 * i as i32);
            self.define(*out, value, draw.ty);
        }
        Ok(())
    }

    /// The address of an element; leaves if there is none.
    fn element(
        &mut self,
        (data, len): (Value, Value),
        index: ValueId,
        ty: ScalarType,
    ) -> Result<Value> {
        let index = self.known(index)?.value;
        let beyond = self
            .b
            .ins()
            .icmp(IntCC::UnsignedGreaterThanOrEqual, index, len);
        self.leave_if(beyond);
        let offset = self.b.ins().imul_imm(index, ty.dtype().size() as i64);
        Ok(self.b.ins().iadd(data, offset))
    }

    fn branch(
        &mut self,
        outs: &[ValueId],
        cond: ValueId,
        then: &ClusterBlock,
        otherwise: &ClusterBlock,
    ) -> Result<()> {
        let cond = self.known(cond)?.value;
        let (on_true, on_false) = (self.b.create_block(), self.b.create_block());
        let join = self.b.create_block();
        self.b.ins().brif(cond, on_true, &[], on_false, &[]);
        let mut result_types = Vec::new();
        for (start, block) in [(on_true, then), (on_false, otherwise)] {
            self.b.switch_to_block(start);
            self.insts(&block.insts)?;
            let results = self.all(&block.results)?;
            if start == on_true {
                for v in &block.results {
                    let ty = self.known(*v)?.ty;
                    self.b.append_block_param(join, machine_type(ty));
                    result_types.push(ty);
                }
            }
            self.b.ins().jump(join, &results);
        }
        self.b.switch_to_block(join);
        for (i, (out, ty)) in outs.iter().zip(result_types).enumerate() {
            let value = self.b.block_params(join)[i];
            self.define(*out, value, ty);
        }
        Ok(())
    }

    fn repeat(&mut self, l: &ClusterLoop) -> Result<()> {
        let (start, body, end) = (
            self.b.create_block(),
            self.b.create_block(),
            self.b.create_block(),
        );
        let init = self.all(&l.init)?;
        for (param, init) in l.params.iter().zip(&l.init) {
            let ty = self.known(*init)?.ty;
            let value = self.b.append_block_param(start, machine_type(ty));
            self.define(*param, value, ty);
        }
        self.b.ins().jump(start, &init);
        self.b.switch_to_block(start);
        self.insts(&l.head)?;
        let cond = self.known(l.cond)?.value;
        let exits = l.exits.iter().map(|v| self.known(*v));
        let exits: Vec<Known> = exits.collect::<Result<_>>()?;
        self.b.ins().brif(cond, body, &[], end, &[]);
        self.b.switch_to_block(body);
        self.insts(&l.body)?;
        let next = self.all(&l.next)?;
        self.go_on(start, &next)?;
        self.b.switch_to_block(end);
        for (out, exit) in l.outs.iter().zip(exits) {
            self.define_known(*out, exit);
        }
        Ok(())
    }

    /// Ends an iteration, with a look at the token now and then.
    fn go_on(&mut self, start: Block, next: &[BlockArg]) -> Result<()> {
        let (look, on) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(look);
        let fuel = self.b.use_var(self.fuel);
        let less = self.b.ins().iadd_imm(fuel, -1);
        self.b.def_var(self.fuel, less);
        self.b.ins().brif(less, start, next, look, &[]);
        self.b.switch_to_block(look);
        let stop = self.call(Helper::Poll, &[self.env], &[types::I64], types::I64);
        let stop = stop.ok_or_else(|| internal!("a helper without result"))?;
        let full = self.b.ins().iconst(types::I64, POLL_EVERY);
        self.b.def_var(self.fuel, full);
        self.b.ins().brif(stop, self.cancelled, &[], on, &[]);
        self.b.switch_to_block(on);
        self.b.ins().jump(start, next);
        Ok(())
    }
}

fn no_code(f: &str) -> ferroflow_base::Status {
    unimplemented_error!("there is no code for {f}")
}
