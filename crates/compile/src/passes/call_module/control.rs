//! Calls, loops and conditionals.

use super::attrs::text;
use super::function_ref;
use super::scope::{Scope, tensor_type};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_graph::Output;
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_stablehlo::{Block, Op, ValueId};
use ferroflow_tensor::DType;
use rustc_hash::FxHashSet;

/// The values of blocks around a block that it reads, in the order in which it reads them.
fn captures(block: &Block) -> Vec<ValueId> {
    let mut own = FxHashSet::default();
    let mut captured = Vec::new();
    visit(block, &mut own, &mut captured);
    captured
}

fn visit(block: &Block, own: &mut FxHashSet<ValueId>, captured: &mut Vec<ValueId>) {
    own.extend(block.args.iter().map(|(id, _)| *id));
    for op in &block.ops {
        for id in &op.operands {
            if !own.contains(id) && !captured.contains(id) {
                captured.push(*id);
            }
        }
        for region in &op.regions {
            visit(region, own, captured);
        }
        own.extend(op.results.iter().map(|(id, _)| *id));
    }
}

fn list(dtypes: &[DType]) -> AttrValue {
    AttrValue::List(dtypes.iter().map(|t| (*t).into()).collect())
}

impl Scope<'_, '_> {
    /// Adds a call, a loop or a conditional; `false` if the op is none.
    pub(super) fn control(&mut self, op: &Op) -> Result<bool> {
        match op.name.as_str() {
            "call" => self.call(op, text(op, "callee")?)?,
            "while" => self.while_loop(op)?,
            "case" => self.case(op)?,
            "if" => self.conditional(op)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A region with the constants around it that it reads.
    fn with_constants(&self, op: &Op, i: usize) -> Result<Block> {
        let block = op.regions.get(i);
        let mut block = block
            .ok_or_else(|| invalid_argument!("the op lacks a region"))?
            .clone();
        loop {
            let known = captures(&block).into_iter();
            let known: Vec<&Op> = known.filter_map(|id| self.constants.get(&id)).collect();
            if known.is_empty() {
                return Ok(block);
            }
            // What they read comes before them in the next round.
            block.ops.splice(0..0, known.into_iter().cloned());
        }
    }

    /// A region's function; `captured` are its last arguments.
    fn region(&mut self, op: &Op, i: usize, captured: &[ValueId]) -> Result<String> {
        let block = self.with_constants(op, i)?;
        self.translator
            .block(&block, captured, &self.values, &op.name)
    }

    /// The function of a region that reads only constants around it.
    pub(super) fn pure_region(&mut self, op: &Op, i: usize) -> Result<String> {
        let block = self.with_constants(op, i)?;
        if let Some(id) = captures(&block).first() {
            return Err(unimplemented_error!(
                "the region reads %{} around it, which is not a constant",
                id.0
            ));
        }
        self.translator.block(&block, &[], &self.values, &op.name)
    }

    /// What any of the regions reads of the values around it, but constants.
    fn captured(&self, op: &Op) -> Result<Vec<ValueId>> {
        let mut all: Vec<ValueId> = Vec::new();
        for i in 0..op.regions.len() {
            for id in captures(&self.with_constants(op, i)?) {
                if !all.contains(&id) {
                    all.push(id);
                }
            }
        }
        Ok(all)
    }

    fn inputs(&mut self, ids: &[ValueId]) -> Result<(Vec<Output>, Vec<DType>)> {
        let mut inputs = Vec::new();
        let mut dtypes = Vec::new();
        for id in ids {
            dtypes.push(self.ty(*id)?.dtype);
            inputs.push(self.full(*id)?);
        }
        Ok((inputs, dtypes))
    }

    fn result_dtypes(&self, op: &Op) -> Result<Vec<DType>> {
        let dtypes = op.results.iter().map(|(_, t)| Ok(tensor_type(t)?.dtype));
        dtypes.collect()
    }

    /// A call of a function of the module.
    pub(super) fn call(&mut self, op: &Op, callee: &str) -> Result<()> {
        let function = self.translator.function(callee)?;
        let (inputs, tin) = self.inputs(&op.operands)?;
        let attrs = Attrs::default()
            .with("Tin", list(&tin))
            .with("Tout", list(&self.result_dtypes(op)?))
            .with("f", function_ref(&function));
        let call = self.node("PartitionedCall", attrs, &inputs)?;
        self.set_all(op, call)
    }

    fn while_loop(&mut self, op: &Op) -> Result<()> {
        let captured = self.captured(op)?;
        let names = [
            self.region(op, 0, &captured)?,
            self.loop_body(op, &captured)?,
        ];
        let variables: Vec<ValueId> = op.operands.iter().chain(&captured).copied().collect();
        let (inputs, dtypes) = self.inputs(&variables)?;
        let attrs = Attrs::default()
            .with("T", list(&dtypes))
            .with("cond", function_ref(&names[0]))
            .with("body", function_ref(&names[1]));
        let made = self.node("StatelessWhile", attrs, &inputs)?;
        self.set_all(op, made)
    }

    /// The body of a loop, which returns what it captured as it is.
    fn loop_body(&mut self, op: &Op, captured: &[ValueId]) -> Result<String> {
        let mut body = self.with_constants(op, 1)?;
        if let Some(last) = body.ops.last_mut() {
            last.operands.extend_from_slice(captured);
        }
        self.translator.block(&body, captured, &self.values, "body")
    }

    fn case(&mut self, op: &Op) -> Result<()> {
        let captured = self.captured(op)?;
        let mut branches = Vec::new();
        for i in 0..op.regions.len() {
            branches.push(function_ref(&self.region(op, i, &captured)?));
        }
        let (mut inputs, tin) = self.inputs(&captured)?;
        inputs.insert(0, self.full(self.operand(op, 0)?)?);
        let attrs = Attrs::default()
            .with("Tin", list(&tin))
            .with("Tout", list(&self.result_dtypes(op)?))
            .with("branches", AttrValue::List(branches));
        let made = self.node("StatelessCase", attrs, &inputs)?;
        self.set_all(op, made)
    }

    fn conditional(&mut self, op: &Op) -> Result<()> {
        let captured = self.captured(op)?;
        let names = [
            self.region(op, 0, &captured)?,
            self.region(op, 1, &captured)?,
        ];
        let (mut inputs, tin) = self.inputs(&captured)?;
        inputs.insert(0, self.full(self.operand(op, 0)?)?);
        let attrs = Attrs::default()
            .with("Tcond", AttrValue::Type(DType::Bool))
            .with("Tin", list(&tin))
            .with("Tout", list(&self.result_dtypes(op)?))
            .with("then_branch", function_ref(&names[0]))
            .with("else_branch", function_ref(&names[1]));
        let made = self.node("StatelessIf", attrs, &inputs)?;
        self.set_all(op, made)
    }

    /// A call of a function of the graph around the program.
    pub(super) fn host_call(&mut self, op: &Op, index: usize) -> Result<()> {
        let function = self.translator.host_functions.get(index).cloned();
        let function =
            function.ok_or_else(|| invalid_argument!("function_list has no function {index}"))?;
        let (inputs, tin) = self.inputs(&op.operands)?;
        let attrs = Attrs::default()
            .with("Tin", list(&tin))
            .with("Tout", list(&self.result_dtypes(op)?))
            .with("f", AttrValue::Func(function));
        let call = self.node("StatefulPartitionedCall", attrs, &inputs)?;
        self.set_all(op, call)
    }
}
