//! Removes variables that a While carries unnecessarily.
//!
//! TensorFlow adds a counter and a maximum to every loop, and carries whatever the body captures. A
//! variable is dropped unless the condition, an effect or a variable that is needed depends on it; one
//! that is a constant and that the body returns unchanged becomes that constant inside.

mod bounds;

use crate::view::may_be_dead;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{
    Function, Graph, Node, NodeClass, NodeId, Output, PROVEN_SHAPES, Patch, needed_by,
};
use ferroflow_opdef::{AttrValue, FuncRef};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub(crate) const PASS: Pass = Pass {
    name: "loop_vars",
    about: "drops variables that a While does not need or has twice; moves constants into its functions",
    run,
};

fn run(graph: &mut Graph, _: &PassCtx) -> Result<()> {
    let loops: Vec<NodeId> = graph
        .iter()
        .filter(|(_, n)| n.class() == NodeClass::While)
        .map(|(id, _)| id)
        .collect();
    if loops.is_empty() {
        return Ok(());
    }
    // Where a branch may be dead a constant cannot stand for what comes out of a loop.
    let may_be_dead = may_be_dead(graph);
    let mut patch = Patch::new();
    for id in loops {
        let plan = Shrink::of(graph, id, !may_be_dead)?;
        if plan.is_needed() {
            apply(graph, &mut patch, id, &plan)?;
        }
    }
    patch.apply(graph);
    Ok(())
}

/// A body or a condition with its boundary nodes by position.
struct Sides {
    graph: Graph,
    args: Vec<Option<NodeId>>,
    results: Vec<Option<NodeId>>,
}

impl Sides {
    fn of(function: &Function) -> Result<Sides> {
        let graph = function.graph.clone();
        let mut args = vec![None; function.args.len()];
        let mut results = vec![None; function.results.len()];
        for (id, node) in graph.iter() {
            let list = match node.class() {
                NodeClass::Arg => &mut args,
                NodeClass::Retval => &mut results,
                _ => continue,
            };
            if let Some(slot) = list.get_mut(node.attrs.int("index")? as usize) {
                *slot = Some(id);
            }
        }
        Ok(Sides {
            graph,
            args,
            results,
        })
    }

    /// Marks the arguments that `from` depend on.
    fn mark_args(&self, from: impl IntoIterator<Item = NodeId>, needed: &mut [bool]) {
        let seen = needed_by(&self.graph, from, |_| false);
        for (arg, needed) in self.args.iter().zip(needed) {
            *needed |= arg.is_some_and(|a| seen[a.index()]);
        }
    }

    /// The argument that result `i` passes on unchanged.
    fn passes_on(&self, i: usize) -> Option<usize> {
        let mut node = self.graph.node(self.results[i]?);
        loop {
            if node.class() == NodeClass::Arg {
                return usize::try_from(node.attrs.int("index").ok()?).ok();
            }
            if !matches!(node.op(), "_Retval" | "Identity") || !node.controls.is_empty() {
                return None;
            }
            node = self.graph.node(node.inputs[0].node);
        }
    }

    /// Makes readers of every argument read its twin.
    fn redirect_twins(&self, twins: &[usize], patch: &mut Patch) {
        for (arg, twin) in self.args.iter().zip(twins) {
            if let (Some(arg), Some(twin)) = (*arg, self.args[*twin])
                && arg != twin
            {
                patch.redirect(Output::new(arg, 0), Output::new(twin, 0));
                patch.redirect_control(arg, Some(twin));
            }
        }
    }

    /// What result `i` is, behind Identities.
    fn value(&self, i: usize, patch: &Patch) -> Option<Output> {
        let mut value = patch.resolve(*self.graph.node(self.results[i]?).inputs.first()?);
        loop {
            let node = self.graph.node(value.node);
            if node.op() != "Identity" || !node.controls.is_empty() {
                return Some(value);
            }
            value = patch.resolve(node.inputs[0]);
        }
    }

    /// The function with these variables only; twins and `constants` take the place of others.
    fn shrunk(
        mut self,
        keep: &[bool],
        twins: &[usize],
        constants: &[Option<Node>],
        results: bool,
    ) -> Result<Function> {
        let mut patch = Patch::new();
        self.redirect_twins(twins, &mut patch);
        for (i, arg) in self.args.iter().enumerate() {
            let (Some(arg), Some(constant)) = (arg, &constants[i]) else {
                continue;
            };
            let mut constant = constant.clone();
            constant.name = self.graph.unique_name(&constant.name);
            constant.controls.clear();
            let to = patch.add(&mut self.graph, constant)?;
            patch.redirect(Output::new(*arg, 0), Output::new(to, 0));
            patch.redirect_control(*arg, None);
        }
        patch.apply(&mut self.graph);
        if results {
            renumber(&mut self.graph, &self.results, keep);
        }
        // What only dropped results needed goes, and with it all readers of dropped arguments.
        super::dce::remove_dead(&mut self.graph);
        renumber(&mut self.graph, &self.args, keep);
        Function::new(self.graph)
    }
}

/// The changes to the variables of one loop.
struct Shrink {
    cond: Sides,
    body: Sides,
    keep: Vec<bool>,
    /// The first variable that always has the same value.
    twins: Vec<usize>,
    /// The constant that a variable always is.
    constants: Vec<Option<Node>>,
}

impl Shrink {
    fn of(graph: &Graph, id: NodeId, may_move: bool) -> Result<Shrink> {
        let node = graph.node(id);
        let function = |name: &str| match node.attrs.get(name) {
            Some(AttrValue::Func(f)) => graph.library().get(&f.name).and_then(|f| Sides::of(f)),
            _ => Err(ferroflow_base::internal!("attr '{name}' is not a function")),
        };
        let (mut cond, body) = (function("cond")?, function("body")?);
        let sides = bounds::Loop {
            graph,
            node,
            cond: &cond,
            body: &body,
        };
        if let Some(patch) = sides.without_implied_bound() {
            patch.apply(&mut cond.graph);
        }
        let n = node.inputs.len();
        let constants: Vec<Option<Node>> = (0..n)
            .map(|i| {
                let source = graph.node(node.inputs[i].node);
                let is_fixed =
                    source.is_free_constant() && may_move && body.passes_on(i) == Some(i);
                is_fixed.then(|| source.clone())
            })
            .collect();
        let twins = twins(graph, node, &cond, &body, &constants)?;
        let mut keep = vec![false; n];
        for (_, reader) in graph.iter() {
            for input in reader.inputs.iter().filter(|i| i.node == id) {
                keep[input.slot as usize] = true;
            }
        }
        cond.mark_args(cond.results.iter().flatten().copied(), &mut keep);
        cond.mark_args(cond.graph.targets().iter().copied(), &mut keep);
        body.mark_args(body.graph.targets().iter().copied(), &mut keep);
        loop {
            let before = keep.clone();
            let needed: SmallVec<[NodeId; 8]> = (0..n)
                .filter(|i| keep[*i])
                .filter_map(|i| body.results[i])
                .collect();
            body.mark_args(needed, &mut keep);
            for (i, twin) in twins.iter().enumerate() {
                keep[*twin] |= keep[i];
            }
            if keep == before {
                break;
            }
        }
        for (i, keep) in keep.iter_mut().enumerate() {
            *keep &= constants[i].is_none() && twins[i] == i;
        }
        Ok(Shrink {
            cond,
            body,
            keep,
            twins,
            constants,
        })
    }

    fn is_needed(&self) -> bool {
        self.keep.iter().any(|k| !k)
    }
}

/// Returns, for every variable of the While `node`, the first that always has the same value.
fn twins(
    graph: &Graph,
    node: &Node,
    cond: &Sides,
    body: &Sides,
    constants: &[Option<Node>],
) -> Result<Vec<usize>> {
    let n = node.inputs.len();
    let begin_equal = |i: usize, j: usize| {
        let (a, b) = (node.inputs[i], node.inputs[j]);
        let (of_a, of_b) = (graph.node(a.node), graph.node(b.node));
        let is_same_constant = || {
            let is_constant = of_a.is_free_constant() && of_b.is_free_constant();
            is_constant && of_a.op() == of_b.op() && of_a.attrs.same_values(&of_b.attrs)
        };
        a == b || is_same_constant()
    };
    let can_stand_for = |i: usize, j: usize| {
        let has = |sides: &Sides| sides.args[j].is_none() || sides.args[i].is_some();
        constants[i].is_none() && constants[j].is_none() && has(cond) && has(body)
    };
    let mut twins: Vec<usize> = (0..n)
        .map(|i| {
            (0..i)
                .find(|j| can_stand_for(*j, i) && begin_equal(*j, i))
                .unwrap_or(i)
        })
        .collect();
    for _ in 0..ROUNDS {
        if twins.iter().enumerate().all(|(i, twin)| i == *twin) {
            return Ok(twins);
        }
        let mut patch = Patch::new();
        body.redirect_twins(&twins, &mut patch);
        super::cse::merge_twins(&body.graph, &mut patch, &FxHashMap::default())?;
        let mut first: FxHashMap<(usize, Output), usize> = FxHashMap::default();
        let next: Vec<usize> = (0..n)
            .map(|i| {
                let value = body.value(i, &patch)?;
                let twin = *first.entry((twins[i], value)).or_insert(i);
                can_stand_for(twin, i).then_some(twin)
            })
            .enumerate()
            .map(|(i, twin)| twin.unwrap_or(i))
            .collect();
        if next == twins {
            return Ok(twins);
        }
        twins = next;
    }
    Ok((0..n).collect())
}

/// Rounds in which variables that begin equal are told apart.
const ROUNDS: usize = 8;

/// Removes boundary nodes that are not kept, and renumbers the others.
fn renumber(graph: &mut Graph, nodes: &[Option<NodeId>], keep: &[bool]) {
    let mut patch = Patch::new();
    let mut next = 0;
    for (id, keep) in nodes.iter().zip(keep) {
        let Some(id) = *id else { continue };
        if !keep {
            patch.remove(id);
            continue;
        }
        let node = patch.edit(graph, id);
        node.attrs.set("index", AttrValue::Int(next));
        next += 1;
    }
    patch.apply(graph);
}

fn apply(graph: &mut Graph, patch: &mut Patch, id: NodeId, plan: &Shrink) -> Result<()> {
    let keep = &plan.keep;
    let node = graph.node(id).clone();
    let mut new = node.clone();
    new.name = graph.unique_name(&format!("{}/shrunk", node.name));
    for (attr, sides, results) in [("cond", &plan.cond, false), ("body", &plan.body, true)] {
        let sides = Sides {
            graph: sides.graph.clone(),
            args: sides.args.clone(),
            results: sides.results.clone(),
        };
        let function = sides.shrunk(keep, &plan.twins, &plan.constants, results)?;
        let library = patch.library(graph);
        let name = library.unique_name(&format!("{}/{attr}", new.name));
        library.insert(&name, function);
        let func = FuncRef {
            name,
            ..Default::default()
        };
        new.attrs.set(attr, AttrValue::Func(func));
    }
    let kept = |i: &usize| keep[*i];
    let types = (0..node.outputs.len()).filter(kept);
    let types: Vec<AttrValue> = types.map(|i| AttrValue::Type(node.outputs[i])).collect();
    new.attrs.set("T", AttrValue::List(types));
    if let Some(AttrValue::List(shapes)) = node.attrs.get("output_shapes")
        && shapes.len() == node.outputs.len()
    {
        let shapes = (0..shapes.len()).filter(kept).map(|i| shapes[i].clone());
        new.attrs
            .set("output_shapes", AttrValue::List(shapes.collect()));
    }
    // Of all variables; inferred again where it is used.
    new.attrs.remove(PROVEN_SHAPES);
    let all = 0..node.inputs.len();
    new.inputs = all.clone().filter(kept).map(|i| node.inputs[i]).collect();
    new.outputs = all.clone().filter(kept).map(|i| node.outputs[i]).collect();
    let to = patch.add(graph, new)?;
    let mut next = 0;
    for i in all {
        if keep[i] {
            patch.redirect(Output::new(id, i), Output::new(to, next));
            next += 1;
        } else if plan.twins[i] != i {
            patch.redirect(Output::new(id, i), Output::new(id, plan.twins[i]));
        } else if plan.constants[i].is_some() {
            patch.redirect(Output::new(id, i), node.inputs[i]);
        }
    }
    patch.redirect_control(id, Some(to));
    patch.redirect_target(id, to);
    Ok(())
}
