//! Makes programs of loops: each becomes one `_Cluster` node.
//!
//! A loop is a candidate if all that it computes are scalars, or tensors of a few elements whose
//! shapes are static, with pure ops and random numbers: a whole frame of Enter, Merge, Switch,
//! NextIteration and Exit
//! with the loops and conditionals in it, or a While node with its functions. The program is made
//! by `translate.rs`; if that finds something that it has no instruction for, the graph stays as it
//! is. Lists and TensorArrays of scalars that are made for the loop and stacked after it become
//! arrays of the program. The nodes themselves become a function that the `_Cluster` calls when the program cannot go
//! on: for inputs of other shapes, and to report an error as the node that it belongs to.
//!
//! (TensorFlow: `compiler/jit/mark_for_compilation_pass.cc`, `encapsulate_subgraphs_pass.cc`.)

pub(crate) mod acyclic;
mod barriers;
mod build;
mod detours;
mod functional;
mod lists;
mod moves;
mod ops;
mod products;
mod randoms;
mod reductions;
mod regions;
mod tensor_arrays;
mod translate;

use super::body::NewBody;
use crate::{Lower, Pass, PassCtx};
use build::{List, Meaning, StreamOf};
use ferroflow_base::{Result, internal};
use ferroflow_graph::{
    Consumers, Frames, Function, Graph, Node, NodeClass, NodeId, Output, Patch, ShapeMap,
    loop_frames, referred_functions, topological_order,
};
use ferroflow_opdef::{
    AttrValue, Attrs, Cluster, ClusterInput, ClusterOutput, FuncRef, ScalarType,
};
use ferroflow_tensor::{DType, PartialShape};
use regions::Regions;
use rustc_hash::{FxHashMap, FxHashSet};
use std::rc::Rc;
use tensor_arrays::TensorArrayOp;
use translate::Translator;

pub(crate) const NAME: &str = "cluster";

pub(crate) const PASS: Pass = Pass {
    name: NAME,
    about: "makes loops of scalars single nodes, which run as machine code",
    run,
};

/// The attr of nodes that a `_Cluster` falls back to.
const KEPT: &str = "_not_clustered";
/// The most nodes of a cluster.
const MAX_NODES: usize = 2000;

/// Nodes that may become one.
struct Candidate {
    /// The name of the node in their place.
    name: String,
    members: Vec<NodeId>,
    /// The outputs that others may read.
    outputs: Vec<Output>,
    /// The nodes whose inputs and control inputs may come from outside.
    entries: Vec<NodeId>,
    /// Nodes that others wait for, whose errors count though nothing may read them.
    awaited: Vec<NodeId>,
}

impl Candidate {
    /// Leaves out outputs without readers, and adds the nodes around the loop that make its lists and
    /// stack them; false if a list comes from elsewhere or goes elsewhere.
    fn add_lists(&mut self, graph: &Graph, frames: &Frames, consumers: &Consumers) -> bool {
        let readers = |output: Output| {
            let all = consumers.of(output.node).iter();
            let reads = move |edge: &&(NodeId, Option<u32>)| edge.1 == Some(output.slot);
            all.filter(reads).map(|(reader, _)| *reader)
        };
        self.outputs.retain(|o| readers(*o).next().is_some());
        let variants = |id: NodeId| {
            let inputs = graph.node(id).inputs.iter().copied();
            inputs.filter(|i| graph.dtype(*i) == Some(DType::Variant))
        };
        let mut todo: Vec<Output> = self.entries.iter().flat_map(|e| variants(*e)).collect();
        while let Some(list) = todo.pop() {
            let maker = graph.node(list.node);
            // A list of a vector may have other readers: it is made again.
            let is_own = || readers(list).all(|r| self.entries.contains(&r));
            let fits = match maker.op() {
                "TensorListFromTensor" => true,
                "TensorListReserve" | "TensorListSetItem" => is_own(),
                _ => false,
            };
            if !fits || frames.of(list.node).is_some() {
                return false;
            }
            if !self.entries.contains(&list.node) {
                self.entries.push(list.node);
                self.members.push(list.node);
                todo.extend(variants(list.node));
            }
        }
        self.add_reads(graph, frames);
        let mut outputs = Vec::new();
        for output in std::mem::take(&mut self.outputs) {
            if graph.dtype(output) != Some(DType::Variant) {
                outputs.push(output);
                continue;
            }
            for reader in readers(output) {
                if graph.node(reader).op() != "TensorListStack" {
                    return false;
                }
                self.members.push(reader);
                self.entries.push(reader);
                outputs.push(Output::new(reader, 0));
            }
        }
        self.outputs = outputs;
        !self.outputs.is_empty()
    }

    /// Adds the nodes before the loop that read an item of its lists, such as the first one, which scans begin with.
    /// Otherwise the list would be made for them alone.
    fn add_reads(&mut self, graph: &Graph, frames: &Frames) {
        let is_list = |o: &Output| {
            self.members.contains(&o.node) && graph.node(o.node).op() == "TensorListFromTensor"
        };
        let inputs = self.entries.iter().flat_map(|e| &graph.node(*e).inputs);
        let reads = inputs.map(|input| input.node).filter(|id| {
            let node = graph.node(*id);
            let [list, rest @ ..] = &node.inputs[..] else {
                return false;
            };
            node.op() == "TensorListGetItem"
                && frames.of(*id).is_none()
                && is_member(graph, *id)
                && is_list(list)
                && rest.iter().all(|i| graph.node(i.node).is_free_constant())
        });
        for read in reads.collect::<Vec<_>>() {
            if !self.members.contains(&read) {
                self.entries.push(read);
                self.members.push(read);
            }
        }
    }

    /// The lists that members make of a vector; `None` if they read it in other ways, too.
    fn lists_of(&self, graph: &Graph, vector: Output) -> Option<Vec<Output>> {
        let mut lists = Vec::new();
        let mut is_read = false;
        for entry in &self.entries {
            let node = graph.node(*entry);
            match node.op() {
                "TensorListFromTensor" if node.inputs.first() == Some(&vector) => {
                    lists.push(Output::new(*entry, 0));
                }
                _ => is_read |= node.inputs.contains(&vector),
            }
        }
        (lists.is_empty() || !is_read).then_some(lists)
    }
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let has_loops = |n: &Node| {
        matches!(
            n.class(),
            NodeClass::Enter | NodeClass::While | NodeClass::For
        )
    };
    if !graph.iter().any(|(_, n)| has_loops(n)) {
        return Ok(());
    }
    let frames = loop_frames(graph)?;
    let mut candidates = candidates(graph, &frames);
    if candidates.is_empty() {
        return Ok(());
    }
    detours::remove(graph, &mut candidates);
    let shapes = ctx.shapes(graph)?;
    let Some(regions) = Regions::new(graph, frames) else {
        return Ok(());
    };
    let regions = Rc::new(regions);
    let mut patch = Patch::new();
    let consumers = Consumers::new(graph);
    for mut candidate in candidates {
        if candidate.add_tensor_arrays(graph, &regions.frames, &consumers)
            && candidate.add_lists(graph, &regions.frames, &consumers)
            && is_uniform(graph, &regions, &candidate)
            && let Some(made) = Made::of(graph, &candidate, &shapes, &regions, ctx.lower)
        {
            replace(graph, ctx, &mut patch, &candidate, made)?;
        }
    }
    patch.apply(graph);
    Ok(())
}

fn candidates(graph: &Graph, frames: &Frames) -> Vec<Candidate> {
    let mut all = Vec::new();
    for (id, node) in graph.iter() {
        let is_free = frames.of(id).is_none() && node.attrs.get(KEPT).is_none();
        let is_loop = matches!(node.class(), NodeClass::While | NodeClass::For);
        if is_loop && is_free && !node.outputs.is_empty() {
            all.push(Candidate {
                name: node.name.clone(),
                members: vec![id],
                outputs: (0..node.outputs.len())
                    .map(|i| Output::new(id, i))
                    .collect(),
                entries: vec![id],
                awaited: Vec::new(),
            });
        }
    }
    // A loop within a loop belongs to the outermost one.
    let outermost: Vec<usize> = (0..frames.loops.len())
        .map(|mut f| {
            while let Some(parent) = frames.loops[f].parent {
                f = parent;
            }
            f
        })
        .collect();
    for (f, frame) in frames.loops.iter().enumerate() {
        if frame.parent.is_some() {
            continue;
        }
        let mut loops = Candidate {
            name: frame.name.clone(),
            members: Vec::new(),
            outputs: Vec::new(),
            entries: Vec::new(),
            awaited: Vec::new(),
        };
        let mut is_pure = true;
        for (id, node) in graph.iter() {
            let is_inside = frames.of(id).is_some_and(|own| outermost[own] == f);
            let enters = node.class() == NodeClass::Enter && frames.after(graph, id) == Some(f);
            if !is_inside && !enters {
                continue;
            }
            is_pure &= is_member(graph, id);
            loops.members.push(id);
            match node.class() {
                NodeClass::Enter if enters => loops.entries.push(id),
                NodeClass::Exit if frames.of(id) == Some(f) => {
                    loops.outputs.push(Output::new(id, 0));
                }
                _ => {}
            }
        }
        if is_pure && loops.members.len() <= MAX_NODES && !loops.outputs.is_empty() {
            all.push(loops);
        }
    }
    all
}

/// Whether a node of a loop can be part of a cluster.
fn is_member(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    // The functions of calls are looked at when they are translated.
    let is_call = referred_functions(node).next().is_some();
    // A TensorArray of the loop's own is not a state of the graph, nor do others draw from the stream of a node.
    let is_own = TensorArrayOp::of(node).is_some() || randoms::draws(node);
    let is_pure = is_call || is_own || !node.def.flags.stateful;
    is_pure
        && (randoms::is_idle(node.op()) || !graph.is_target(id))
        && node.attrs.get(KEPT).is_none()
        && !matches!(node.class(), NodeClass::Send | NodeClass::Recv)
}

/// Whether all inputs of the candidate are dead or none is.
fn is_uniform(graph: &Graph, regions: &Regions, candidate: &Candidate) -> bool {
    let Regions { frames, paths } = regions;
    let mut found = None;
    for entry in &candidate.entries {
        let node = graph.node(*entry);
        let bound = node
            .inputs
            .iter()
            .filter(|i| !graph.node(i.node).is_free_constant());
        for input in bound {
            let path = paths.after(graph, frames, *input);
            match (&found, path) {
                (_, None) => return false,
                (None, Some(path)) => found = Some(path),
                (Some(first), Some(path)) if *first != path => return false,
                _ => {}
            }
        }
        // What waits for something that may be dead is dead, too.
        let first = candidate.entries.first().and_then(|e| paths.of(*e));
        if !node.controls.is_empty() && paths.of(*entry) != found.as_ref().or(first) {
            return false;
        }
    }
    true
}

/// A cluster that can be compiled.
struct Made {
    program: Cluster,
    inputs: Vec<Output>,
    input_types: Vec<DType>,
    /// The outputs of the candidate that the cluster has.
    outputs: Vec<Output>,
    streams: Vec<StreamOf>,
}

impl Made {
    fn of(
        graph: &Graph,
        candidate: &Candidate,
        shapes: &ShapeMap,
        regions: &Rc<Regions>,
        lower: Lower,
    ) -> Option<Made> {
        let inputs = inputs_of(graph, candidate);
        let mut translator = Translator::new(graph.library());
        translator.lowers = lower != Lower::Never;
        translator.b.enter(None);
        let mut program = Cluster::default();
        let mut given = FxHashMap::default();
        let mut input_types = Vec::new();
        for input in &inputs {
            input_types.push(graph.dtype(*input)?);
            let shape = shapes.get(*input);
            let arg = argument(
                graph,
                candidate,
                &mut translator,
                *input,
                &shape,
                &mut given,
            )?;
            program.inputs.push(arg);
        }
        let scope = translator.scope(graph, regions, given)?;
        for output in &candidate.outputs {
            program
                .outputs
                .push(match translator.meaning(&scope, *output)? {
                    Meaning::Tensor(result) => {
                        let (dims, values) = (result.dims.clone(), result.values.clone());
                        ClusterOutput::Tensor(result.ty, dims, values)
                    }
                    Meaning::List(list) if is_vector(graph.node(output.node)) => {
                        ClusterOutput::Array(list.slot)
                    }
                    _ => return None,
                });
        }
        for node in &candidate.awaited {
            translator.node(&scope, *node)?;
        }
        program.insts = translator.b.leave()?;
        program.arrays = translator.b.arrays;
        let streams = translator.b.streams;
        program.n_streams = streams.len() as u32;
        program.verify().ok()?;
        Some(Made {
            program,
            inputs,
            input_types,
            outputs: candidate.outputs.clone(),
            streams,
        })
    }
}

/// What a candidate reads from outside, but for constants.
fn inputs_of(graph: &Graph, candidate: &Candidate) -> Vec<Output> {
    let inside: FxHashSet<NodeId> = candidate.members.iter().copied().collect();
    let (mut inputs, mut seen) = (Vec::new(), FxHashSet::default());
    for entry in &candidate.entries {
        for input in &graph.node(*entry).inputs {
            let is_outside =
                !graph.node(input.node).is_free_constant() && !inside.contains(&input.node);
            if is_outside && seen.insert(*input) {
                inputs.push(*input);
            }
        }
    }
    inputs
}

/// The input of a program that `input`, of shape `shape`, is. Adds what it means, and what the lists mean that it fills.
fn argument(
    graph: &Graph,
    candidate: &Candidate,
    translator: &mut Translator,
    input: Output,
    shape: &PartialShape,
    given: &mut FxHashMap<Output, Meaning>,
) -> Option<ClusterInput> {
    let ty = ScalarType::of(graph.dtype(input)?)?;
    let lists = candidate.lists_of(graph, input)?;
    let fills = candidate.fills_tensor_arrays(graph, input);
    if !fills && lists.is_empty() {
        let dims: Vec<usize> = match shape.dims() {
            // Another shape takes the nodes of the graph.
            None => Vec::new(),
            Some(dims) => dims.iter().copied().collect::<Option<_>>()?,
        };
        let elements = translator.b.fresh(ty, dims.clone())?;
        given.insert(input, Meaning::Tensor(Rc::new(elements)));
        return Some(ClusterInput::Tensor(ty, dims));
    }
    if shape.rank() != Some(1) {
        return None;
    }
    let slot = translator.b.input_arrays.len() as u32;
    translator.b.input_arrays.push(ty);
    translator.b.versions.push(0);
    let list = List {
        slot,
        ty,
        version: 0,
        marks: None,
    };
    if fills {
        given.insert(input, Meaning::List(list));
    }
    given.extend(lists.into_iter().map(|l| (l, Meaning::List(list))));
    Some(ClusterInput::Array(ty))
}

/// Whether a node results in the elements of a list, not in the list.
fn is_vector(node: &Node) -> bool {
    node.op() == "TensorListStack" || TensorArrayOp::of(node) == Some(TensorArrayOp::Gather)
}

/// Puts a `_Cluster` in the place of a candidate.
fn replace(
    graph: &mut Graph,
    ctx: &PassCtx,
    patch: &mut Patch,
    candidate: &Candidate,
    made: Made,
) -> Result<()> {
    let body = function(graph, ctx, candidate, &made)?;
    let name = patch
        .library(graph)
        .unique_name(&format!("{}_nodes", candidate.name));
    patch.add_function(graph, &name, body);
    let output_types = made.outputs.iter().filter_map(|o| graph.dtype(*o));
    let output_types: Vec<AttrValue> = output_types.map(AttrValue::Type).collect();
    let input_types = made.input_types.iter().map(|t| AttrValue::Type(*t));
    let function = FuncRef {
        name: name.as_str().into(),
        attrs: Attrs::default(),
    };
    let mut attrs = Attrs::default()
        .with("Tin", AttrValue::List(input_types.collect()))
        .with("Tout", AttrValue::List(output_types))
        .with("f", AttrValue::Func(function))
        .with("program", AttrValue::str(&made.program.to_string()));
    if !made.streams.is_empty() {
        let streams = made.streams.iter();
        let seeds: Vec<i64> = streams.clone().flat_map(|s| s.seeds).collect();
        let streams: Vec<&str> = streams.map(|s| s.node.as_str()).collect();
        attrs.set("streams", AttrValue::strs(&streams));
        attrs.set("seeds", AttrValue::ints(&seeds));
    }
    let mut seen: FxHashSet<NodeId> = candidate.members.iter().copied().collect();
    let entries = candidate.entries.iter();
    let controls = entries.flat_map(|entry| graph.node(*entry).controls.iter().copied());
    let controls: Vec<NodeId> = controls.filter(|c| seen.insert(*c)).collect();
    let unique = graph.unique_name(&format!("{}/cluster", candidate.name));
    let mut node = ctx.node(unique, "_Cluster", attrs, &made.inputs, &controls)?;
    if let Some(entry) = candidate.entries.first() {
        node.device = graph.node(*entry).device.clone();
    }
    let node = patch.add(graph, node)?;
    for (i, output) in made.outputs.iter().enumerate() {
        patch.redirect(*output, Output::new(node, i));
    }
    for member in &candidate.members {
        patch.redirect_control(*member, Some(node));
        patch.redirect_target(*member, node);
    }
    Ok(())
}

/// The function of the nodes of a candidate, from the inputs to the outputs of its cluster.
fn function(graph: &Graph, ctx: &PassCtx, candidate: &Candidate, made: &Made) -> Result<Function> {
    let mut kept: Vec<NodeId> = candidate.members.clone();
    let mut seen: FxHashSet<NodeId> = kept.iter().copied().collect();
    for member in &candidate.members {
        for before in graph.node(*member).predecessors() {
            if graph.node(before).is_free_constant() && seen.insert(before) {
                kept.push(before);
            }
        }
    }
    let inputs = made.inputs.iter().copied();
    let passed = inputs.enumerate().map(|(i, input)| (input, i)).collect();
    let mut body = NewBody::new(ctx, graph, &made.input_types, &passed)?;
    body.copy(&kept, |node| node.attrs.set(KEPT, AttrValue::Bool(true)))?;
    for (i, output) in made.outputs.iter().enumerate() {
        let output = body.output(*output);
        let output = output.ok_or_else(|| internal!("an output of a cluster is missing"))?;
        // The call ends when what others wait for has ended.
        let awaited = if i == 0 { &candidate.awaited[..] } else { &[] };
        body.result(output, awaited)?;
    }
    let function = body.finish(&[])?;
    topological_order(&function.graph)?;
    Ok(function)
}
