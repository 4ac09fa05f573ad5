//! Functional control flow as dataflow control flow.
//!
//! If and Case become Switch, the bodies of their functions, and Merge; While becomes Enter, Merge,
//! LoopCond, Switch, NextIteration and Exit around them. The nodes around it then run concurrently with its
//! branches, and iterations overlap. A node of a body is named `NODE/BODYNODE`.
//!
//! The effects of a body must have run before its results are visible outside: its
//! results wait for a gate inside the branch, where it dies with them. A control edge into a Merge
//! could not express that. Recursive functions stay calls.

use super::body::{BodyCopier, Boundary};
use crate::control::Callee;
use crate::view::may_be_dead;
use crate::{Lower, Pass, PassCtx};
use ferroflow_base::{Result, internal};
use ferroflow_graph::{
    Frames, Function, Graph, Library, Node, NodeClass, NodeId, Output, Patch, loop_frames,
};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::DType;
use rustc_hash::FxHashSet;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const NAME: &str = "lower";

pub(crate) const PASS: Pass = Pass {
    name: NAME,
    about: "turns If, Case and While into Switch, Merge and loops (only where that is asked for)",
    run: lower,
};

/// The attr with which TensorFlow requests it.
const MARK: &str = "_lower_using_switch_merge";
/// Most nodes that are added; what would need more stays a call.
const MAX_ADDED: usize = 1 << 18;
/// Deepest nesting that is lowered.
const MAX_DEPTH: usize = 64;

/// Runs the pass.
pub(crate) fn lower(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let mut lowering = Lowering {
        library: graph.library().clone(),
        limit: graph.id_bound().saturating_add(MAX_ADDED),
        queue: Vec::new(),
        copier: BodyCopier::new(ctx, graph),
    };
    let can_die = may_be_dead(lowering.copier.graph);
    let nodes: Vec<NodeId> = lowering.copier.graph.iter().map(|(id, _)| id).collect();
    lowering.enqueue(&nodes, &Rc::default(), can_die);
    while let Some(todo) = lowering.queue.pop() {
        lowering.node(&todo)?;
    }
    let BodyCopier { graph, patch, .. } = lowering.copier;
    patch.apply(graph);
    pass_on_scalars(graph, ctx)
}

/// Replaces the ToBool of a bool scalar by an Identity.
fn pass_on_scalars(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let shapes = ctx.shapes(graph)?;
    let is_known = |n: &Node| {
        let is_scalar = |i: &Output| shapes.get(*i).dims().is_some_and(<[_]>::is_empty);
        n.op() == "ToBool" && n.inputs.iter().all(is_scalar)
    };
    let known = graph.iter().filter(|(_, n)| is_known(n));
    let mut patch = Patch::new();
    for (id, node) in known {
        if node.attrs.dtype("T")? == DType::Bool {
            patch.edit(graph, id).def = ctx.def("Identity")?;
        }
    }
    patch.apply(graph);
    Ok(())
}

/// A node that may be lowered.
struct Todo {
    id: NodeId,
    /// The functions it was copied out of, outermost first.
    stack: Rc<Vec<String>>,
    /// Whether some of its inputs may be dead and others not.
    may_be_dead: bool,
}

/// A body that was copied.
struct Copied {
    results: Vec<Output>,
    /// Runs after the effects of the body, where it has some.
    gate: Option<NodeId>,
}

/// Options of copying a body.
struct Place<'a> {
    todo: &'a Todo,
    /// The node whose function it is.
    node: &'a Node,
    name: &'a str,
    /// The node that nodes without inputs wait for.
    pivot: NodeId,
    /// No result is available before all others and all effects.
    in_sequence: bool,
}

impl Place<'_> {
    /// The nodes of a body that run even if no result needs them. What TensorFlow lowers, too, runs
    /// the control outputs of the body; a call runs everything that has state.
    fn effects<'f>(&self, function: &'f Function) -> &'f [NodeId] {
        match self.node.attrs.bool(MARK).unwrap_or(false) {
            true => &function.control_results,
            false => function.graph.targets(),
        }
    }
}

struct Lowering<'a, 'b> {
    copier: BodyCopier<'a, 'b>,
    library: Arc<Library>,
    limit: usize,
    queue: Vec<Todo>,
}

impl Lowering<'_, '_> {
    fn enqueue(&mut self, nodes: &[NodeId], stack: &Rc<Vec<String>>, may_be_dead: bool) {
        for &id in nodes {
            let node = self.copier.graph.node(id);
            let is_wanted = match self.copier.ctx.lower {
                Lower::Never => false,
                Lower::Marked => node.attrs.bool(MARK).unwrap_or(false),
                Lower::Always => true,
            };
            if is_wanted && let Ok(Some(Callee::Branch(..) | Callee::While(..))) = Callee::of(node)
            {
                let stack = stack.clone();
                self.queue.push(Todo {
                    id,
                    stack,
                    may_be_dead,
                });
            }
        }
    }

    fn node(&mut self, todo: &Todo) -> Result<()> {
        let node = self.copier.graph.node(todo.id).clone();
        let Some(callee) = Callee::of(&node)? else {
            return Ok(());
        };
        let (names, n_results) = match &callee {
            Callee::Branch(names, _) => (names.clone(), vec![node.outputs.len(); names.len()]),
            // A loop without variables has nothing that could go round.
            Callee::While(cond, body) if !node.outputs.is_empty() => {
                (vec![*cond, *body], vec![1, node.outputs.len()])
            }
            _ => return Ok(()),
        };
        let n_args = match callee {
            Callee::Branch(..) => node.inputs.len().saturating_sub(1),
            _ => node.inputs.len(),
        };
        // A missing function is reported where the node's action is made.
        let found: Option<Vec<Arc<Function>>> = names
            .iter()
            .map(|n| self.library.get(n).ok().cloned())
            .collect();
        let Some(functions) = found else {
            return Ok(());
        };
        let size: usize = functions.iter().map(|f| f.graph.len()).sum();
        let fixed = (n_args + 2) * (names.len() + 6);
        let fits = functions.iter().zip(n_results).all(|(f, n)| {
            f.args.len() == n_args && f.results.len() == n && !has_effect_in_loop(&f.graph)
        });
        let is_recursive = names.iter().any(|n| todo.stack.iter().any(|s| s == n));
        let is_too_big = self.copier.graph.id_bound() + size + fixed > self.limit;
        if !fits || is_recursive || is_too_big || todo.stack.len() >= MAX_DEPTH {
            return Ok(());
        }
        let first = self.copier.graph.id_bound();
        let outputs = match callee {
            Callee::Branch(_, by_truth) => {
                self.branches(todo, &node, &names, &functions, by_truth)?
            }
            _ => self.while_loop(todo, &node, &names, &functions)?,
        };
        self.copier.place_added(first, &node.device)?;
        for (i, output) in outputs.iter().enumerate() {
            self.copier.patch.redirect(Output::new(todo.id, i), *output);
        }
        if !outputs.is_empty() {
            // What waits for the node, and targets, wait for all its outputs.
            let attrs = Attrs::default().with("T", types(&node.outputs));
            let copier = &mut self.copier;
            let last = copier
                .ctx
                .node(node.name, "IdentityN", attrs, &outputs, &[])?;
            *copier.patch.edit(copier.graph, todo.id) = last;
        }
        Ok(())
    }

    /// The inputs of a node and what else must have run before.
    fn inputs(&mut self, todo: &Todo, node: &Node) -> Result<(Vec<Output>, Vec<NodeId>)> {
        if !todo.may_be_dead || node.inputs.is_empty() {
            return Ok((node.inputs.to_vec(), node.controls.to_vec()));
        }
        // The node is dead as soon as one input is, and all of it is in one frame.
        let dtypes: Option<Vec<DType>> = node
            .inputs
            .iter()
            .map(|i| self.copier.graph.dtype(*i))
            .collect();
        let dtypes = dtypes.ok_or_else(|| internal!("an input of '{}' is missing", node.name))?;
        let attrs = Attrs::default().with("T", types(&dtypes));
        let name = format!("{}/inputs", node.name);
        let all = self.add(&name, "IdentityN", attrs, &node.inputs, &node.controls)?;
        let inputs = (0..dtypes.len()).map(|i| Output::new(all, i)).collect();
        Ok((inputs, Vec::new()))
    }

    fn branches(
        &mut self,
        todo: &Todo,
        node: &Node,
        names: &[&str],
        functions: &[Arc<Function>],
        by_truth: bool,
    ) -> Result<Vec<Output>> {
        let name = |part: &str| format!("{}/{part}", node.name);
        let (inputs, controls) = self.inputs(todo, node)?;
        let Some((&chosen, args)) = inputs.split_first() else {
            return Err(internal!("node '{}' has no selector", node.name));
        };
        let op = if by_truth { "ToBool" } else { "Identity" };
        let choice = self.typed(
            &name("pred_id"),
            op,
            self.dtype(chosen)?,
            &[chosen],
            &controls,
        )?;
        let choice = Output::new(choice, 0);
        // The first output of a Switch is the false side.
        let slot = |branch: usize| match by_truth {
            true => functions.len() - 1 - branch,
            false => branch,
        };
        let mut switches = Vec::with_capacity(inputs.len());
        for (i, &data) in std::iter::once(&choice).chain(args).enumerate() {
            let dtype = self.dtype(data)?;
            let mut attrs = Attrs::default().with("T", AttrValue::Type(dtype));
            let op = if by_truth { "Switch" } else { "_SwitchN" };
            if !by_truth {
                attrs.set("num_outs", AttrValue::Int(functions.len() as i64));
            }
            let part = if i == 0 { "switch_pred" } else { "Switch" };
            switches.push(self.add(&name(part), op, attrs, &[data, choice], &[])?);
        }
        let mut copies = Vec::with_capacity(functions.len());
        for (branch, function) in functions.iter().enumerate() {
            let of = |s: &NodeId| Output::new(*s, slot(branch));
            let (pivot, dtype) = (of(&switches[0]), self.dtype(choice)?);
            let part = name(&format!("pivot_{branch}"));
            let pivot = self.typed(&part, "Identity", dtype, &[pivot], &[])?;
            let args: Vec<Output> = switches[1..].iter().map(of).collect();
            let place = Place {
                todo,
                node,
                name: names.get(branch).copied().unwrap_or_default(),
                pivot,
                in_sequence: false,
            };
            copies.push((pivot, self.copy(function, &args, &place)?));
        }
        if by_truth {
            copies.reverse();
        }
        if node.outputs.is_empty() {
            let dtype = self.dtype(choice)?;
            self.merge_effects(todo, node, dtype, &copies)?;
        }
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for (i, dtype) in node.outputs.iter().enumerate() {
            let from = copies.iter().filter_map(|(_, c)| c.results.get(i).copied());
            let from: Vec<Output> = from.collect();
            outputs.push(self.merge(&name("Merge"), *dtype, &from)?);
        }
        Ok(outputs)
    }

    /// Makes a node without outputs wait for the effects of the branch that ran. `copies` are the branches
    /// with their pivots, which have this dtype.
    fn merge_effects(
        &mut self,
        todo: &Todo,
        node: &Node,
        dtype: DType,
        copies: &[(NodeId, Copied)],
    ) -> Result<()> {
        let name = |part: &str| format!("{}/{part}", node.name);
        let mut done = Vec::with_capacity(copies.len());
        for (pivot, copied) in copies {
            let (pivot, gate) = (Output::new(*pivot, 0), copied.gate.as_slice());
            let end = self.typed(&name("branch_end"), "Identity", dtype, &[pivot], gate)?;
            done.push(Output::new(end, 0));
        }
        let merge = self.merge(&name("branch_executed"), dtype, &done)?;
        let (copier, attrs) = (&mut self.copier, Attrs::default());
        let after = [merge.node];
        let last = copier
            .ctx
            .node(node.name.clone(), "NoOp", attrs, &[], &after)?;
        *copier.patch.edit(copier.graph, todo.id) = last;
        Ok(())
    }

    /// Adds an Enter and a Merge for each variable; returns the Merges.
    fn enter_loop(&mut self, todo: &Todo, node: &Node) -> Result<Vec<Output>> {
        let name = |part: &str| format!("{}/{part}", node.name);
        let (inputs, controls) = self.inputs(todo, node)?;
        let frame = self.copier.unique_frame(&node.name);
        // XlaWhile has no such attr.
        let parallel = match node.attrs.get("parallel_iterations") {
            Some(_) => node.attrs.int("parallel_iterations")?,
            None => 10,
        };
        let mut merges = Vec::with_capacity(inputs.len());
        for (input, dtype) in inputs.iter().zip(&node.outputs) {
            let attrs = Attrs::default()
                .with("T", AttrValue::Type(*dtype))
                .with("frame_name", AttrValue::str(&frame))
                .with("parallel_iterations", AttrValue::Int(parallel));
            let enter = self.add(&name("Enter"), "Enter", attrs, &[*input], &controls)?;
            let enter = Output::new(enter, 0);
            // The second input is the NextIteration, which comes last.
            merges.push(self.merge(&name("Merge"), *dtype, &[enter, enter])?);
        }
        Ok(merges)
    }

    fn while_loop(
        &mut self,
        todo: &Todo,
        node: &Node,
        names: &[&str],
        functions: &[Arc<Function>],
    ) -> Result<Vec<Output>> {
        let name = |part: &str| format!("{}/{part}", node.name);
        let ([cond, body], &[cond_name, body_name]) = (functions, names) else {
            return Err(internal!("a While has a condition and a body"));
        };
        let merges = self.enter_loop(todo, node)?;
        let first = *merges
            .first()
            .ok_or_else(|| internal!("a loop without variables"))?;
        let mut place = Place {
            todo,
            node,
            name: cond_name,
            pivot: first.node,
            in_sequence: false,
        };
        let tested = self.copy(cond, &merges, &place)?;
        let mut goes_on = *tested
            .results
            .first()
            .ok_or_else(|| internal!("a condition without result"))?;
        let dtype = self.dtype(goes_on)?;
        let to_bool = self.typed(&name("ToBool"), "ToBool", dtype, &[goes_on], &[])?;
        goes_on = Output::new(to_bool, 0);
        let attrs = Attrs::default();
        let goes_on = self.add(&name("LoopCond"), "LoopCond", attrs, &[goes_on], &[])?;
        let goes_on = Output::new(goes_on, 0);
        let (mut args, mut exits) = (Vec::new(), Vec::new());
        for (merge, dtype) in merges.iter().zip(&node.outputs) {
            let switch = self.typed(&name("Switch"), "Switch", *dtype, &[*merge, goes_on], &[])?;
            args.push(Output::new(switch, 1));
            let left = [Output::new(switch, 0)];
            let exit = self.typed(&name("Exit"), "Exit", *dtype, &left, &[])?;
            exits.push(Output::new(exit, 0));
        }
        let pivot = args.first().copied().unwrap_or(first);
        let dtype = self.dtype(pivot)?;
        place.pivot = self.typed(&name("loop_body"), "Identity", dtype, &[pivot], &[])?;
        (place.name, place.in_sequence) = (body_name, true);
        let copied = self.copy(body, &args, &place)?;
        for ((merge, dtype), result) in merges.iter().zip(&node.outputs).zip(copied.results) {
            let part = name("NextIteration");
            let next = self.typed(&part, "NextIteration", *dtype, &[result], &[])?;
            let copier = &mut self.copier;
            copier.patch.edit(copier.graph, merge.node).inputs[1] = Output::new(next, 0);
        }
        Ok(exits)
    }

    /// Copies the body of a function.
    fn copy(&mut self, function: &Function, args: &[Output], place: &Place) -> Result<Copied> {
        let body = &function.graph;
        let may_be_dead = may_be_dead(body);
        let floating = constants_in_loops(body)?;
        let copier = &mut self.copier;
        let gate = copier.id_after(function, Boundary::Identities);
        let effects = place.effects(function);
        let gate = (!effects.is_empty()).then_some(gate);
        let mut awaited = Vec::new();
        let mut finish = |id: NodeId, node: &Node, copy: &mut Node| match node.class() {
            NodeClass::Arg => {}
            NodeClass::Retval => {
                copy.controls.extend(gate);
                awaited.extend(copy.inputs.iter().map(|i| i.node));
            }
            _ => {
                let waits = match &floating {
                    Some(floating) => floating.waits(id, node),
                    None => is_root(node),
                };
                if waits && !copy.controls.contains(&place.pivot) {
                    copy.controls.push(place.pivot);
                }
            }
        };
        let (name, kind) = (&place.node.name, Boundary::Identities);
        let copied = copier.copy(function, name, args, kind, &mut finish)?;
        if gate.is_some() {
            let mut controls: Vec<NodeId> = Vec::new();
            let effects = effects.iter().map(|t| copied.node(*t));
            let all = place.in_sequence.then_some(awaited).into_iter().flatten();
            let mut seen = FxHashSet::default();
            controls.extend(effects.chain(all).filter(|c| seen.insert(*c)));
            // An effect inside a branch of the body may be dead; that must not end the body.
            let op = if may_be_dead {
                "ControlTrigger"
            } else {
                "NoOp"
            };
            let name = format!("{name}/{}/effects", place.name);
            self.add(&name, op, Attrs::default(), &[], &controls)?;
        }
        let mut stack = Vec::clone(&place.todo.stack);
        stack.push(place.name.to_string());
        self.enqueue(&copied.nodes, &Rc::new(stack), may_be_dead);
        let results = copied.results;
        Ok(Copied { results, gate })
    }

    fn dtype(&self, output: Output) -> Result<DType> {
        let dtype = self.copier.graph.dtype(output);
        dtype.ok_or_else(|| internal!("'{}' is missing", self.copier.graph.output_name(output)))
    }

    fn merge(&mut self, name: &str, dtype: DType, inputs: &[Output]) -> Result<Output> {
        let attrs = Attrs::default()
            .with("T", AttrValue::Type(dtype))
            .with("N", AttrValue::Int(inputs.len() as i64));
        Ok(Output::new(self.add(name, "Merge", attrs, inputs, &[])?, 0))
    }

    /// Adds a node whose one attr is its dtype.
    fn typed(
        &mut self,
        name: &str,
        op: &str,
        dtype: DType,
        inputs: &[Output],
        controls: &[NodeId],
    ) -> Result<NodeId> {
        let attrs = Attrs::default().with("T", AttrValue::Type(dtype));
        self.add(name, op, attrs, inputs, controls)
    }

    fn add(
        &mut self,
        name: &str,
        op: &str,
        attrs: Attrs,
        inputs: &[Output],
        controls: &[NodeId],
    ) -> Result<NodeId> {
        let copier = &mut self.copier;
        let name = copier.graph.unique_name(name);
        let node = copier.ctx.node(name, op, attrs, inputs, controls)?;
        copier.patch.add(copier.graph, node)
    }
}

fn types(dtypes: &[DType]) -> AttrValue {
    AttrValue::List(dtypes.iter().map(|t| AttrValue::Type(*t)).collect())
}

/// Constants of a body that loops in it read.
struct Floating {
    frames: Frames,
    constants: Vec<bool>,
}

impl Floating {
    /// Whether the copy of a node waits for the pivot: constants that a loop inside reads may be read in
    /// every frame, so nodes outside of it that read them wait instead.
    fn waits(&self, id: NodeId, node: &Node) -> bool {
        let reads = node.inputs.iter().any(|i| self.constants[i.node.index()]);
        let in_part = is_root(node) && !self.constants[id.index()];
        self.frames.of(id).is_none() && (in_part || reads)
    }
}

/// Whether a node waits for nothing.
fn is_root(node: &Node) -> bool {
    node.inputs.is_empty() && node.controls.is_empty()
}

fn constants_in_loops(body: &Graph) -> Result<Option<Floating>> {
    let frames = loop_frames(body)?;
    if frames.loops.is_empty() {
        return Ok(None);
    }
    let mut constants = vec![false; body.id_bound()];
    for (_, node) in body.iter().filter(|(id, _)| frames.of(*id).is_some()) {
        for input in &node.inputs {
            constants[input.node.index()] |= body.node(input.node).is_free_constant();
        }
    }
    Ok(Some(Floating { frames, constants }))
}

/// Nothing outside a loop can wait for one of its iterations.
fn has_effect_in_loop(body: &Graph) -> bool {
    match loop_frames(body) {
        Ok(frames) => body.targets().iter().any(|t| frames.of(*t).is_some()),
        Err(_) => true,
    }
}
