//! Calls, loops and conditionals.

use super::attrs::text;
use super::scope::{Scope, tensor_type};
use super::{function_ref, type_list};
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

    /// All regions, and what any of them reads of the values around it but constants.
    fn regions(&self, op: &Op) -> Result<(Vec<Block>, Vec<ValueId>)> {
        let blocks = (0..op.regions.len()).map(|i| self.with_constants(op, i));
        let blocks: Vec<Block> = blocks.collect::<Result<_>>()?;
        let mut captured: Vec<ValueId> = Vec::new();
        for id in blocks.iter().flat_map(captures) {
            if !captured.contains(&id) {
                captured.push(id);
            }
        }
        Ok((blocks, captured))
    }

    /// A region's function; `captured` are its last arguments.
    fn region(&mut self, op: &Op, block: &Block, captured: &[ValueId]) -> Result<String> {
        self.translator
            .block(block, captured, &self.values, &op.name)
    }

    /// Values in their whole shapes, and their dtypes.
    pub(super) fn inputs(&mut self, ids: &[ValueId]) -> Result<(Vec<Output>, Vec<DType>)> {
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
        if self.random_words(op, callee)? {
            return Ok(());
        }
        let function = self.translator.function(callee)?;
        let (inputs, tin) = self.inputs(&op.operands)?;
        let attrs = Attrs::default()
            .with("Tin", type_list(&tin))
            .with("Tout", type_list(&self.result_dtypes(op)?))
            .with("f", function_ref(&function));
        let call = self.node("PartitionedCall", attrs, &inputs)?;
        self.set_all(op, call)
    }

    /// A loop, whose body returns what it captured as it is.
    fn while_loop(&mut self, op: &Op) -> Result<()> {
        let (mut blocks, captured) = self.regions(op)?;
        let [cond, body] = &mut blocks[..] else {
            return Err(invalid_argument!("a loop has two regions"));
        };
        if let Some(last) = body.ops.last_mut() {
            last.operands.extend_from_slice(&captured);
        }
        let cond = self.region(op, cond, &captured)?;
        let body = self.region(op, body, &captured)?;
        let variables: Vec<ValueId> = op.operands.iter().chain(&captured).copied().collect();
        let (inputs, dtypes) = self.inputs(&variables)?;
        let attrs = Attrs::default()
            .with("T", type_list(&dtypes))
            .with("cond", function_ref(&cond))
            .with("body", function_ref(&body));
        let made = self.node("StatelessWhile", attrs, &inputs)?;
        self.set_all(op, made)
    }

    fn case(&mut self, op: &Op) -> Result<()> {
        let (blocks, captured) = self.regions(op)?;
        let mut branches = Vec::new();
        for block in &blocks {
            branches.push(function_ref(&self.region(op, block, &captured)?));
        }
        let attrs = Attrs::default().with("branches", AttrValue::List(branches));
        self.branch(op, "StatelessCase", attrs, &captured)
    }

    fn conditional(&mut self, op: &Op) -> Result<()> {
        let (blocks, captured) = self.regions(op)?;
        let [then, otherwise] = &blocks[..] else {
            return Err(invalid_argument!("a conditional has two regions"));
        };
        let attrs = Attrs::default()
            .with("Tcond", AttrValue::Type(DType::Bool))
            .with(
                "then_branch",
                function_ref(&self.region(op, then, &captured)?),
            )
            .with(
                "else_branch",
                function_ref(&self.region(op, otherwise, &captured)?),
            );
        self.branch(op, "StatelessIf", attrs, &captured)
    }

    /// A node that chooses among functions of the captured values by the first operand.
    fn branch(&mut self, op: &Op, name: &str, attrs: Attrs, captured: &[ValueId]) -> Result<()> {
        let (mut inputs, tin) = self.inputs(captured)?;
        inputs.insert(0, self.full(self.operand(op, 0)?)?);
        let attrs = attrs
            .with("Tin", type_list(&tin))
            .with("Tout", type_list(&self.result_dtypes(op)?));
        let made = self.node(name, attrs, &inputs)?;
        self.set_all(op, made)
    }

    /// A call of a function of the graph around the program.
    pub(super) fn host_call(&mut self, op: &Op, index: usize) -> Result<()> {
        let function = self.translator.host_functions.get(index).cloned();
        let function =
            function.ok_or_else(|| invalid_argument!("function_list has no function {index}"))?;
        let (inputs, tin) = self.inputs(&op.operands)?;
        let attrs = Attrs::default()
            .with("Tin", type_list(&tin))
            .with("Tout", type_list(&self.result_dtypes(op)?))
            .with("f", AttrValue::Func(function));
        let call = self.node("StatefulPartitionedCall", attrs, &inputs)?;
        self.set_all(op, call)
    }
}
