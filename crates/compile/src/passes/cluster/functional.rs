//! Nodes that call functions: calls, If, Case, While, For.

use super::build::{Elements, Meaning};
use super::randoms::draws;
use super::regions::Regions;
use super::translate::{Translator, values};
use crate::control::Callee;
use ferroflow_graph::{Node, NodeClass, loop_frames};
use ferroflow_opdef::{ClusterBlock, ClusterInst, ScalarBinary, ScalarType, ValueId};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Deepest nesting of calls.
const MAX_CALLS: usize = 16;

impl Translator<'_> {
    /// A node that calls functions, within `calls` other calls.
    pub(super) fn functional(
        &mut self,
        calls: usize,
        node: &Node,
        inputs: Vec<Meaning>,
    ) -> Option<Vec<Meaning>> {
        if calls >= MAX_CALLS {
            return None;
        }
        match Callee::of(node).ok()?? {
            Callee::Call(f) => self.call(calls, f, inputs),
            Callee::Branch(names, is_if) => {
                let (chosen, args) = inputs.split_first()?;
                match is_if {
                    true => {
                        let cond = self.b.truth(chosen)?;
                        let [then, otherwise] = names[..] else {
                            return None;
                        };
                        self.choose(cond, &mut |t, on| {
                            let name = if on { then } else { otherwise };
                            t.call(calls, name, args.to_vec())
                        })
                    }
                    false => {
                        let index = chosen.scalar(ScalarType::I32)?;
                        self.case(calls, index, 0, &names, args)
                    }
                }
            }
            Callee::While(cond, body) => self.while_loop(calls, cond, body, inputs),
            Callee::For(body) => self.for_loop(calls, body, inputs),
        }
    }

    /// The conditional of two blocks; `branch` makes the one for true or false.
    fn choose(
        &mut self,
        cond: ValueId,
        branch: &mut dyn FnMut(&mut Self, bool) -> Option<Vec<Meaning>>,
    ) -> Option<Vec<Meaning>> {
        let mut blocks = Vec::new();
        let mut results = Vec::new();
        for on in [true, false] {
            self.open(None)?;
            self.b.open.last_mut()?.is_branch = true;
            let of_branch = branch(self, on)?;
            let insts = self.b.leave()?;
            blocks.push(ClusterBlock {
                insts,
                results: values(&of_branch),
            });
            results.push(of_branch);
        }
        self.join(cond, blocks, results)
    }

    /// Branches from number `i` on; the last one is for every other index.
    fn case(
        &mut self,
        calls: usize,
        index: ValueId,
        i: usize,
        names: &[&str],
        args: &[Meaning],
    ) -> Option<Vec<Meaning>> {
        let name = names.get(i)?;
        if i + 1 == names.len() {
            return self.call(calls, name, args.to_vec());
        }
        let number = self.b.int(ScalarType::I32, i as i64)?;
        let cond = self.b.binary(ScalarBinary::Equal, index, number)?;
        self.choose(cond, &mut |t, on| match on {
            true => t.call(calls, name, args.to_vec()),
            false => t.case(calls, index, i + 1, names, args),
        })
    }

    fn while_loop(
        &mut self,
        calls: usize,
        cond: &str,
        body: &str,
        first: Vec<Meaning>,
    ) -> Option<Vec<Meaning>> {
        let vars = first.iter().map(|m| self.fresh(m));
        let vars: Vec<Meaning> = vars.collect::<Option<_>>()?;
        self.open(None)?;
        let tested = self.call(calls, cond, vars.clone())?;
        let goes_on = self.b.truth(tested.first()?)?;
        self.open(None)?;
        let next = self.call(calls, body, vars.clone())?;
        self.end_loop(&first, &vars, goes_on, &vars, &next)
    }

    /// A For over `inputs`: start, limit and delta, then the variables.
    fn for_loop(&mut self, calls: usize, body: &str, inputs: Vec<Meaning>) -> Option<Vec<Meaning>> {
        let ([start, limit, delta], own) = inputs.split_first_chunk()?;
        let [start, limit, delta] = [start, limit, delta].map(|m| m.scalar(ScalarType::I32));
        let (start, limit, delta) = (start?, limit?, delta?);
        let zero = self.b.int(ScalarType::I32, 0)?;
        let is_up = self.b.binary(ScalarBinary::Greater, delta, zero)?;
        let is_down = self.b.binary(ScalarBinary::Less, delta, zero)?;
        // The op reports a start that leads nowhere.
        let above = self.b.binary(ScalarBinary::Greater, start, limit)?;
        let below = self.b.binary(ScalarBinary::Less, start, limit)?;
        let misses_up = self.b.select(is_down, is_up, above)?;
        let misses_down = self.b.select(is_up, is_down, below)?;
        let cond = self
            .b
            .binary(ScalarBinary::LogicalOr, misses_up, misses_down)?;
        self.b.push(ClusterInst::LeaveIf { cond })?;
        let counter = |value| Meaning::Tensor(Rc::new(Elements::scalar(ScalarType::I32, value)));
        let mut first = vec![counter(start)];
        first.extend_from_slice(own);
        let vars = first.iter().map(|m| self.fresh(m));
        let vars: Vec<Meaning> = vars.collect::<Option<_>>()?;
        let at = vars[0].scalar(ScalarType::I32)?;
        self.open(None)?;
        let below = self.b.binary(ScalarBinary::Less, at, limit)?;
        let above = self.b.binary(ScalarBinary::Greater, at, limit)?;
        let goes_on = self.b.select(is_down, above, below)?;
        self.open(None)?;
        let results = self.call(calls, body, vars.clone())?;
        // As does a counter that overflows.
        let [wide, by] = [at, delta].map(|v| self.b.cast(ScalarType::I64, v));
        let sum = self.b.binary(ScalarBinary::Add, wide?, by?)?;
        let next = self.b.cast(ScalarType::I32, sum)?;
        let back = self.b.cast(ScalarType::I64, next)?;
        self.b.leave_unless_equal(sum, back)?;
        let mut next = vec![counter(next)];
        next.extend(results);
        let outs = self.end_loop(&first, &vars, goes_on, &vars, &next)?;
        Some(outs[1..].to_vec())
    }

    /// The results of a function, in the last open block.
    fn call(&mut self, calls: usize, name: &str, args: Vec<Meaning>) -> Option<Vec<Meaning>> {
        let function = self.library.get(name).ok()?.clone();
        if args.len() != function.args.len() {
            return None;
        }
        let graph = &function.graph;
        let regions = Rc::new(Regions::new(graph, loop_frames(graph).ok()?)?);
        let mut inner = self.scope(graph, &regions, FxHashMap::default())?;
        (inner.args, inner.calls) = (args, calls + 1);
        let mut results = vec![None; function.results.len()];
        // What runs for its effects must turn out to have none.
        for target in graph.targets() {
            let node = graph.node(*target);
            let class = node.class();
            let calls = [
                NodeClass::Call,
                NodeClass::If,
                NodeClass::Case,
                NodeClass::While,
                NodeClass::For,
            ];
            if !calls.contains(&class) && !draws(node) {
                return None;
            }
            self.node(&inner, *target)?;
        }
        for (id, node) in graph.iter().filter(|(_, n)| n.class() == NodeClass::Retval) {
            let index = usize::try_from(node.attrs.int("index").ok()?).ok()?;
            *results.get_mut(index)? = Some(self.node(&inner, id)?.first()?.clone());
        }
        self.wait(&inner, &[])?;
        results.into_iter().collect()
    }
}
