//! While loops of a condition graph and a body graph (`tensorflow/cc/ops/while_loop.cc`).

use super::{ClientGraph, ImportOptions, NodeDescription};
use crate::{NodeId, Output};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::DType;

/// A while loop to be added: `inputs` of the outer graph enter it; the graphs' inputs are nodes that stand
/// for the loop variables.
pub struct WhileLoop<'a> {
    /// The loop's name: scope of its nodes and name of its frame.
    pub name: &'a str,
    /// The first values of the loop variables.
    pub inputs: &'a [Output],
    /// The graph that computes whether there is another iteration.
    pub cond: &'a ClientGraph,
    /// The loop variables in it.
    pub cond_inputs: &'a [Output],
    /// The condition, a bool.
    pub cond_output: Output,
    /// The graph that computes the next values.
    pub body: &'a ClientGraph,
    /// The loop variables in it.
    pub body_inputs: &'a [Output],
    /// Their next values.
    pub body_outputs: &'a [Output],
}

impl ClientGraph {
    /// Adds a while loop of Enter, Merge, Switch, NextIteration and Exit nodes; returns the last values of
    /// the loop variables. All or nothing: an error leaves the graph as it was.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a tensor is not in its graph or a dtype or shape does not fit.
    pub fn add_while(&mut self, spec: &WhileLoop) -> Result<Vec<Output>> {
        let before = self.mark();
        let outputs = self.build_while(spec);
        if outputs.is_err() {
            self.reset(before);
        }
        outputs
    }

    fn build_while(&mut self, spec: &WhileLoop) -> Result<Vec<Output>> {
        let is_taken = |name: &str| self.find(name).is_some() || self.scopes.contains(name);
        let scope = crate::unique_name(spec.name, is_taken);
        let mut enters = Vec::new();
        for (i, input) in spec.inputs.iter().enumerate() {
            let mut enter = NodeDescription::new("Enter", &numbered(&scope, "Enter", i));
            enter.set_attr("frame_name", AttrValue::str(spec.name));
            enter.add_input(*input);
            enters.push(Output::new(self.add(enter)?, 0));
        }
        let mut merges = Vec::new();
        for (i, enter) in enters.iter().enumerate() {
            // The back edge is added when its node exists.
            let mut merge = NodeDescription::new("Merge", &numbered(&scope, "Merge", i));
            merge.add_inputs(vec![*enter, *enter]);
            let merge = Output::new(self.add(merge)?, 0);
            self.refiner.set(merge, Default::default());
            merges.push(merge);
        }
        let pivot = self.part(&scope, spec, &merges)?;
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for (i, merge) in merges.iter().enumerate() {
            let mut switch = NodeDescription::new("Switch", &numbered(&scope, "Switch", i));
            switch.add_input(*merge);
            switch.add_input(pivot);
            let switch = self.add(switch)?;
            outside.push(Output::new(switch, 0));
            inside.push(Output::new(switch, 1));
        }
        let options = copy_options(
            spec.body,
            format!("{scope}/body"),
            (spec.body_inputs, &inside),
            inside[0].node,
            spec.body_outputs,
        )?;
        let nexts = self
            .import(&spec.body.to_graph_def()?, &options)?
            .return_outputs;
        for (i, (next, merge)) in nexts.iter().zip(&merges).enumerate() {
            let name = numbered(&scope, "NextIteration", i);
            let mut node = NodeDescription::new("NextIteration", &name);
            node.add_input(*next);
            let node = self.add(node)?;
            self.update_edge(Output::new(node, 0), merge.node, 1)?;
            self.mutations.pop();
            self.updated.remove(&(merge.node, 1));
        }
        let mut exits = Vec::new();
        for (i, output) in outside.iter().enumerate() {
            let mut exit = NodeDescription::new("Exit", &numbered(&scope, "Exit", i));
            exit.add_input(*output);
            exits.push(Output::new(self.add(exit)?, 0));
        }
        Ok(exits)
    }

    /// Copies the condition; returns the LoopCond node's output.
    fn part(&mut self, scope: &str, spec: &WhileLoop, merges: &[Output]) -> Result<Output> {
        let options = copy_options(
            spec.cond,
            format!("{scope}/cond"),
            (spec.cond_inputs, merges),
            merges[0].node,
            &[spec.cond_output],
        )?;
        let copied = self.import(&spec.cond.to_graph_def()?, &options)?;
        let cond = copied.return_outputs.first().copied();
        let cond = cond.ok_or_else(|| invalid_argument!("the loop has no condition"))?;
        let dtype = self.dtype(cond)?;
        if dtype != DType::Bool {
            return Err(invalid_argument!(
                "BuildWhileLoop: 'cond' argument must return a boolean output, got {dtype}"
            ));
        }
        let mut pivot = NodeDescription::new("LoopCond", &format!("{scope}/LoopCond"));
        pivot.add_input(cond);
        Ok(Output::new(self.add(pivot)?, 0))
    }
}

fn numbered(scope: &str, op: &str, i: usize) -> String {
    match i {
        0 => format!("{scope}/{op}"),
        i => format!("{scope}/{op}_{i}"),
    }
}

/// Copies `graph` with its loop variables replaced; its other sources wait for `control`, which puts them
/// into the loop.
fn copy_options(
    graph: &ClientGraph,
    prefix: String,
    (from, to): (&[Output], &[Output]),
    control: NodeId,
    returned: &[Output],
) -> Result<ImportOptions> {
    let name = |output: &Output| {
        let node = graph.node(output.node);
        let node = node.ok_or_else(|| invalid_argument!("a loop has no such node"))?;
        let (n, slot) = (node.outputs.len(), output.slot as usize);
        match slot < n {
            true => Ok((node.name.clone(), slot)),
            false => Err(invalid_argument!(
                "Invalid return output {slot} of node '{}', which has {n} output(s)",
                node.name
            )),
        }
    };
    let names = from.iter().map(name).collect::<Result<Vec<_>>>()?;
    Ok(ImportOptions {
        prefix,
        input_map: names.into_iter().zip(to.iter().copied()).collect(),
        control_dependencies: vec![control],
        return_outputs: returned.iter().map(name).collect::<Result<_>>()?,
        skip_mapped_nodes: true,
        ..Default::default()
    })
}
