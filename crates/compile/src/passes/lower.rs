//! Functional control flow as dataflow control flow.
//!
//! If and Case become Switch, the bodies of their functions, and Merge; While becomes Enter, Merge,
//! LoopCond, Switch, NextIteration and Exit around them. What surrounds a node then runs beside its
//! branches, and iterations overlap. A node of a body is named `NODE/BODYNODE`.
//!
//! What a body does for its effects must have run before what the body gives is seen outside: its
//! results wait for a gate inside the branch, where it dies with them. A control edge into a Merge
//! could not say that. Recursive functions stay calls.

use crate::control::Callee;
use crate::view::may_be_dead;
use crate::{Lower, Pass, PassCtx};
use ferroflow_base::{Result, internal};
use ferroflow_graph::{ARG, Function, Graph, Library, Node, NodeId, Output, Patch, RETVAL};
use ferroflow_graph::{Frames, loop_frames};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::DType;
use rustc_hash::FxHashSet;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const NAME: &str = "lower";

pub(crate) const PASS: Pass = Pass {
    name: NAME,
    about: "turns If, Case and While into Switch, Merge and loops (only where that is asked for)",
    run,
};

/// The attr with which TensorFlow asks for it.
const MARK: &str = "_lower_using_switch_merge";
/// Most nodes that are added; what would need more stays a call.
const MAX_ADDED: usize = 1 << 18;
/// Deepest nesting that is lowered.
const MAX_DEPTH: usize = 64;

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let frame_names = graph.iter().filter_map(|(_, n)| frame_name(n));
    let mut lowering = Lowering {
        ctx,
        library: graph.library().clone(),
        frame_names: frame_names.map(str::to_string).collect(),
        patch: Patch::new(),
        limit: graph.id_bound().saturating_add(MAX_ADDED),
        queue: Vec::new(),
        graph,
    };
    let can_die = may_be_dead(lowering.graph);
    let nodes: Vec<NodeId> = lowering.graph.iter().map(|(id, _)| id).collect();
    lowering.enqueue(&nodes, &Rc::default(), can_die);
    while let Some(todo) = lowering.queue.pop() {
        lowering.node(&todo)?;
    }
    let Lowering { graph, patch, .. } = lowering;
    patch.apply(graph);
    pass_on_scalars(graph, ctx)
}

/// A ToBool of what is known to be a bool scalar need not look at it.
fn pass_on_scalars(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let shapes = ctx.shapes(graph)?;
    let is_known = |n: &Node| {
        let is_scalar = |i: &Output| shapes.get(*i).dims().is_some_and(<[_]>::is_empty);
        n.op() == "ToBool" && n.inputs.iter().all(is_scalar)
    };
    let known = graph.iter().filter(|(_, n)| is_known(n));
    let known: Vec<NodeId> = known.map(|(id, _)| id).collect();
    for id in known {
        let attrs = graph.node(id).attrs.clone();
        if attrs.dtype("T")? == DType::Bool {
            graph.set_op(id, ctx.def("Identity")?, attrs);
        }
    }
    Ok(())
}

/// The loop that an Enter leads into.
fn frame_name(node: &Node) -> Option<&str> {
    let is_enter = matches!(node.op(), "Enter" | "RefEnter");
    is_enter
        .then(|| node.attrs.str("frame_name").ok())
        .flatten()
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

/// How a body is copied.
struct Place<'a> {
    todo: &'a Todo,
    /// The node whose function it is.
    node: &'a Node,
    name: &'a str,
    /// What nodes without inputs wait for.
    pivot: NodeId,
    /// No result is there before all others and all effects are.
    in_sequence: bool,
}

struct Lowering<'a, 'b> {
    ctx: &'a PassCtx<'b>,
    graph: &'a mut Graph,
    library: Arc<Library>,
    frame_names: FxHashSet<String>,
    patch: Patch,
    limit: usize,
    queue: Vec<Todo>,
}

impl Lowering<'_, '_> {
    fn enqueue(&mut self, nodes: &[NodeId], stack: &Rc<Vec<String>>, may_be_dead: bool) {
        for &id in nodes {
            let node = self.graph.node(id);
            let is_wanted = match self.ctx.lower {
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
        let node = self.graph.node(todo.id).clone();
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
        // A function that is not there is reported where the node's action is made.
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
        let is_too_big = self.graph.id_bound() + size + fixed > self.limit;
        if !fits || is_recursive || is_too_big || todo.stack.len() >= MAX_DEPTH {
            return Ok(());
        }
        let outputs = match callee {
            Callee::Branch(_, by_truth) => {
                self.branches(todo, &node, &names, &functions, by_truth)?
            }
            _ => self.while_loop(todo, &node, &names, &functions)?,
        };
        for (i, output) in outputs.iter().enumerate() {
            self.patch.redirect(Output::new(todo.id, i), *output);
        }
        if !outputs.is_empty() {
            // What waits for the node, and targets, wait for all its outputs.
            let attrs = Attrs::default().with("T", types(&node.outputs));
            let last = self.make(node.name, "IdentityN", attrs, &outputs, &[])?;
            self.graph.replace(todo.id, last);
        }
        Ok(())
    }

    /// The inputs of a node and what else must have run before.
    fn inputs(&mut self, todo: &Todo, node: &Node) -> Result<(Vec<Output>, Vec<NodeId>)> {
        if !todo.may_be_dead || node.inputs.is_empty() {
            return Ok((node.inputs.to_vec(), node.controls.to_vec()));
        }
        // The node is dead as soon as one input is, and all of it is in one frame.
        let dtypes: Option<Vec<DType>> = node.inputs.iter().map(|i| self.graph.dtype(*i)).collect();
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
            return Err(internal!("node '{}' has nothing that chooses", node.name));
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
        // A Switch gives what is false first.
        let slot = |branch: usize| match by_truth {
            true => functions.len() - 1 - branch,
            false => branch,
        };
        let mut switches = Vec::with_capacity(inputs.len());
        for &data in std::iter::once(&choice).chain(args) {
            let dtype = self.dtype(data)?;
            let mut attrs = Attrs::default().with("T", AttrValue::Type(dtype));
            let op = if by_truth { "Switch" } else { "_SwitchN" };
            if !by_truth {
                attrs.set("num_outs", AttrValue::Int(functions.len() as i64));
            }
            switches.push(self.add(&name("Switch"), op, attrs, &[data, choice], &[])?);
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
            let mut done = Vec::with_capacity(copies.len());
            let dtype = self.dtype(choice)?;
            for (pivot, copied) in &copies {
                let (pivot, gate) = (Output::new(*pivot, 0), copied.gate.as_slice());
                let end = self.typed(&name("branch_end"), "Identity", dtype, &[pivot], gate)?;
                done.push(Output::new(end, 0));
            }
            let merge = self.merge(&name("branch_executed"), dtype, &done)?;
            let last = self.make(
                node.name.clone(),
                "NoOp",
                Attrs::default(),
                &[],
                &[merge.node],
            )?;
            self.graph.replace(todo.id, last);
        }
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for (i, dtype) in node.outputs.iter().enumerate() {
            let from = copies.iter().filter_map(|(_, c)| c.results.get(i).copied());
            let from: Vec<Output> = from.collect();
            outputs.push(self.merge(&name("Merge"), *dtype, &from)?);
        }
        Ok(outputs)
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
        let (inputs, controls) = self.inputs(todo, node)?;
        let frame = self.unique_frame(&node.name);
        let parallel = node.attrs.int("parallel_iterations")?;
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
            self.graph.set_input(merge.node, 1, Output::new(next, 0));
        }
        Ok(exits)
    }

    /// Copies the body of a function. Arguments and results become Identity nodes, so every node
    /// has one copy.
    fn copy(&mut self, function: &Function, args: &[Output], place: &Place) -> Result<Copied> {
        let body = &function.graph;
        let prefix = &place.node.name;
        let may_be_dead = may_be_dead(body);
        let floating = constants_in_loops(body)?;
        let mut new_id = vec![NodeId::new(0); body.id_bound()];
        let mut next = self.graph.id_bound();
        for (id, _) in body.iter() {
            new_id[id.index()] = NodeId::new(next);
            next += 1;
        }
        let map = |o: &Output| Output {
            node: new_id[o.node.index()],
            slot: o.slot,
        };
        let has_effects = !body.targets().is_empty();
        let gate = has_effects.then(|| NodeId::new(next));
        let mut frames = std::collections::BTreeMap::new();
        let mut results = vec![None; function.results.len()];
        let (mut added, mut awaited) = (Vec::with_capacity(body.len()), Vec::new());
        for (id, node) in body.iter() {
            let mut copy = node.clone();
            copy.name = self.graph.unique_name(&format!("{prefix}/{}", node.name));
            copy.inputs = node.inputs.iter().map(map).collect();
            copy.controls = node.controls.iter().map(|c| new_id[c.index()]).collect();
            let index = node.attrs.int("index").ok();
            let index = index.and_then(|i| usize::try_from(i).ok()).unwrap_or(0);
            if let ARG | RETVAL = node.op() {
                let dtype = node.attrs.dtype("T")?;
                copy.def = self.ctx.def("Identity")?;
                copy.attrs = Attrs::default().with("T", AttrValue::Type(dtype));
                copy.outputs = smallvec::smallvec![dtype];
            }
            if node.op() == ARG {
                let arg = args.get(index).copied();
                copy.inputs.extend(arg);
            } else if node.op() == RETVAL {
                copy.controls.extend(gate);
                awaited.extend(copy.inputs.iter().map(|i| i.node));
                if let Some(result) = results.get_mut(index) {
                    *result = Some(Output::new(new_id[id.index()], 0));
                }
            } else {
                let is_root = node.inputs.is_empty() && node.controls.is_empty();
                let reads = |f: &Floating| node.inputs.iter().any(|i| f.constants[i.node.index()]);
                // Constants that a loop inside reads stay at home everywhere; who reads them
                // outside of it waits instead.
                let waits = match &floating {
                    Some(f) => {
                        let is_inside = f.frames.of(id).is_some();
                        let in_part = is_root && !f.constants[id.index()];
                        !is_inside && (in_part || reads(f))
                    }
                    None => is_root,
                };
                if waits && !copy.controls.contains(&place.pivot) {
                    copy.controls.push(place.pivot);
                }
            }
            if let Some(old) = frame_name(node) {
                let new = frames
                    .entry(old)
                    .or_insert_with(|| self.unique_frame(&format!("{prefix}/{old}")));
                copy.attrs.set("frame_name", AttrValue::str(new));
            }
            added.push(self.graph.add(copy)?);
        }
        if has_effects {
            let mut controls: Vec<NodeId> = Vec::new();
            let effects = body.targets().iter().map(|t| new_id[t.index()]);
            let all = place.in_sequence.then_some(awaited).into_iter().flatten();
            let mut seen = FxHashSet::default();
            controls.extend(effects.chain(all).filter(|c| seen.insert(*c)));
            // An effect inside a branch of the body may be dead; that must not end the body.
            let op = if may_be_dead {
                "ControlTrigger"
            } else {
                "NoOp"
            };
            let name = format!("{prefix}/{}/effects", place.name);
            self.add(&name, op, Attrs::default(), &[], &controls)?;
        }
        let mut stack = Vec::clone(&place.todo.stack);
        stack.push(place.name.to_string());
        self.enqueue(&added, &Rc::new(stack), may_be_dead);
        let results: Option<Vec<Output>> = results.into_iter().collect();
        let results =
            results.ok_or_else(|| internal!("function '{}' lacks a result", place.name))?;
        Ok(Copied { results, gate })
    }

    fn dtype(&self, output: Output) -> Result<DType> {
        let dtype = self.graph.dtype(output);
        dtype.ok_or_else(|| internal!("'{}' is missing", self.graph.output_name(output)))
    }

    fn unique_frame(&mut self, base: &str) -> String {
        let names = &mut self.frame_names;
        let mut numbered = (1..).map(|i| format!("{base}_{i}"));
        let name = match names.contains(base) {
            true => numbered.find(|n| !names.contains(n)).unwrap_or_default(),
            false => base.to_string(),
        };
        names.insert(name.clone());
        name
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
        let name = self.graph.unique_name(name);
        let node = self.make(name, op, attrs, inputs, controls)?;
        self.patch.add(self.graph, node)
    }

    fn make(
        &self,
        name: String,
        op: &str,
        mut attrs: Attrs,
        inputs: &[Output],
        controls: &[NodeId],
    ) -> Result<Node> {
        let def = self.ctx.def(op)?;
        def.complete_attrs(&mut attrs)?;
        Ok(Node {
            name,
            outputs: def.output_dtypes(&attrs)?,
            def,
            attrs,
            inputs: inputs.into(),
            controls: controls.into(),
            device: String::new(),
        })
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

fn constants_in_loops(body: &Graph) -> Result<Option<Floating>> {
    let frames = loop_frames(body)?;
    if frames.loops.is_empty() {
        return Ok(None);
    }
    let mut constants = vec![false; body.id_bound()];
    for (_, node) in body.iter().filter(|(id, _)| frames.of(*id).is_some()) {
        for input in &node.inputs {
            let from = body.node(input.node);
            constants[input.node.index()] |= from.op() == "Const" && from.controls.is_empty();
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
