//! Graph → function body: nodes become actions and kernel entries, loops and functions frames.

use crate::control::{self, Callee, ForLoop};
use crate::pass::FUSED_SUFFIX;
use crate::pipeline;
use crate::{OptimizedGraph, Options};
use ferroflow_base::{Result, internal, invalid_argument, unimplemented_error};
use ferroflow_graph::{
    Frames, Function, Graph, Library, Node, NodeClass, NodeId, ORIGIN, Output, loop_frames,
    referred_functions, topological_order,
};
use ferroflow_opdef::{Cost, NodeInfo, Registry};
use ferroflow_program::{
    Action, Body, BodyAction, BodyNode, FrameIdx, KernelEntry, NodeIdx, Source,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Levels of functions that are called by kernels of functions that are.
const MAX_CALLEE_DEPTH: usize = 32;

/// Emits the body of a pruned, optimized graph and of the functions that it calls, which are
/// optimized on the way. No kernel is built.
///
/// # Errors
///
/// A function does not compile, a loop is not well formed, or a value inside a loop is fetched.
pub fn emit(graph: &OptimizedGraph, registry: &Registry, options: &Options) -> Result<Body> {
    emit_with(&graph.0, registry, options, &mut KernelCallees::default())
}

/// A function and its body.
type MadeBody = (Arc<Function>, Arc<Body>);

/// Functions that kernels call, which are bodies of their own.
#[derive(Default)]
struct KernelCallees {
    /// By name, with the function: libraries of different functions may have different ones of a name.
    made: FxHashMap<String, Vec<MadeBody>>,
    under_way: Vec<String>,
}

impl KernelCallees {
    /// The body of function `name`, whose kernels may call functions in turn.
    fn body(
        &mut self,
        name: &str,
        library: &Arc<Library>,
        registry: &Registry,
        options: &Options,
    ) -> Result<Arc<Body>> {
        let function = library.get(name)?.clone();
        let mut made = self.made.get(name).into_iter().flatten();
        if let Some((_, body)) = made.find(|(f, _)| Arc::ptr_eq(f, &function)) {
            return Ok(body.clone());
        }
        let is_within = self.under_way.iter().any(|n| n == name);
        if is_within || self.under_way.len() >= MAX_CALLEE_DEPTH {
            return Err(unimplemented_error!(
                "functions that datasets call are nested too deeply or in themselves"
            ));
        }
        self.under_way.push(name.to_string());
        let mut graph = library.graph(name)?;
        pipeline::run(&mut graph, registry, options, &mut |_, _| {})?;
        let body = Arc::new(emit_with(&graph, registry, options, self)?);
        self.under_way.pop();
        let made = self.made.entry(name.to_string()).or_default();
        made.push((function, body.clone()));
        Ok(body)
    }
}

fn emit_with(
    graph: &Graph,
    registry: &Registry,
    options: &Options,
    callees: &mut KernelCallees,
) -> Result<Body> {
    let mut emitter = Emitter {
        registry,
        out: Body::default(),
        library: graph.library().clone(),
        functions: FxHashMap::default(),
        queue: Vec::new(),
        called_by_kernels: Vec::new(),
        fors: Vec::new(),
        device: &options.device,
    };
    let root = emitter.declare("", graph)?;
    emitter.body(graph, root)?;
    // A calibration has the names of this graph only, and its results.
    let options = &Options {
        int8: options.int8.in_functions(),
        ..options.clone()
    };
    while let Some((name, frame)) = emitter.queue.pop() {
        let mut body = emitter.library.graph(&name)?;
        let note = |e: ferroflow_base::Status| e.note(format!("in function '{name}'"));
        pipeline::run(&mut body, registry, options, &mut |_, _| {}).map_err(note)?;
        emitter.library = body.library().clone();
        emitter.body(&body, frame).map_err(note)?;
    }
    while let Some(name) = emitter.called_by_kernels.pop() {
        let body = callees.body(&name, &emitter.library, registry, options);
        let body = body.map_err(|e| e.note(format!("in function '{name}'")))?;
        emitter.out.functions.insert(name, body);
    }
    for this in std::mem::take(&mut emitter.fors) {
        control::emit_for(&mut emitter, &this)?;
    }
    Ok(emitter.out)
}

/// The emission of a body with all its functions.
pub(crate) struct Emitter<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) out: Body,
    library: Arc<Library>,
    functions: FxHashMap<String, FrameIdx>,
    queue: Vec<(String, FrameIdx)>,
    called_by_kernels: Vec<String>,
    pub(crate) fors: Vec<ForLoop>,
    /// The device of all kernels, unless it is empty.
    device: &'a str,
}

impl Emitter<'_> {
    fn declare(&mut self, name: &str, graph: &Graph) -> Result<FrameIdx> {
        let count = |class: NodeClass| -> Result<usize> {
            let mut n = 0;
            for (_, node) in graph.iter().filter(|(_, n)| n.class() == class) {
                n = n.max(index(node)? + 1);
            }
            Ok(n)
        };
        Ok(self
            .out
            .function(name, count(NodeClass::Arg)?, count(NodeClass::Retval)?))
    }

    /// The frame of function `name`, which is emitted once.
    pub(crate) fn function(&mut self, name: &str) -> Result<FrameIdx> {
        if let Some(frame) = self.functions.get(name) {
            return Ok(*frame);
        }
        let function = self.library.get(name)?.clone();
        let (args, results) = (function.args.len(), function.results.len());
        let frame = self.out.function(name, args, results);
        self.functions.insert(name.to_string(), frame);
        self.queue.push((name.to_string(), frame));
        Ok(frame)
    }

    fn body(&mut self, graph: &Graph, function: FrameIdx) -> Result<()> {
        let frames = loop_frames(graph)?;
        let mut loops = Vec::with_capacity(frames.loops.len());
        for l in &frames.loops {
            let parent = l.parent.map_or(function, |p| loops[p]);
            let parallel = u32::try_from(l.parallel_iterations)
                .ok()
                .filter(|p| *p > 0)
                .ok_or_else(|| {
                    invalid_argument!(
                        "parallel_iterations of loop '{}' is {}; expected at least 1",
                        l.name,
                        l.parallel_iterations
                    )
                })?;
            loops.push(self.out.loop_frame(&l.name, parent, parallel));
        }
        let mut body = GraphEmitter {
            emitter: self,
            graph,
            function,
            frames,
            loops,
            idx: vec![None; graph.id_bound()],
            consts: FxHashMap::default(),
            read_positions: graph
                .iter()
                .flat_map(|(_, n)| &n.inputs)
                .filter(|i| i.slot == 1)
                .map(|i| i.node)
                .collect(),
        };
        let order = topological_order(graph)?;
        // Indices first, since loops make nodes read later ones.
        let needed = body.const_nodes();
        let mut next = body.emitter.out.next_node().index();
        for &id in &order {
            let node = graph.node(id);
            let is_node = match node.class() {
                NodeClass::Const => needed[id.index()],
                NodeClass::Retval => !node.controls.is_empty(),
                _ => true,
            };
            if is_node {
                body.idx[id.index()] = Some(NodeIdx::new(next));
                next += 1;
            }
        }
        for &id in &order {
            let node = graph.node(id);
            body.node(id)
                .map_err(|e| e.at_node(&node.name, node.op()))?;
        }
        Ok(())
    }
}

fn index(node: &Node) -> Result<usize> {
    let index = node.attrs.int("index")?;
    usize::try_from(index).map_err(|_| internal!("index {index} of {} is negative", node.name))
}

/// The emission of one graph.
struct GraphEmitter<'a, 'b> {
    emitter: &'a mut Emitter<'b>,
    graph: &'a Graph,
    function: FrameIdx,
    frames: Frames,
    loops: Vec<FrameIdx>,
    idx: Vec<Option<NodeIdx>>,
    consts: FxHashMap<NodeId, u32>,
    /// Merges whose output 1 is read.
    read_positions: FxHashSet<NodeId>,
}

impl GraphEmitter<'_, '_> {
    /// Constants that need a node: those that wait for something, for they may be dead, and those
    /// that a Merge reads or a node waits for.
    fn const_nodes(&self) -> Vec<bool> {
        let mut needed = vec![false; self.graph.id_bound()];
        for (id, node) in self.graph.iter() {
            if node.class() == NodeClass::Const && !node.controls.is_empty() {
                needed[id.index()] = true;
            }
            if node.class() == NodeClass::Merge {
                for input in &node.inputs {
                    needed[input.node.index()] = true;
                }
            }
        }
        needed
    }

    fn frame(&self, id: NodeId) -> FrameIdx {
        self.frames.of(id).map_or(self.function, |l| self.loops[l])
    }

    fn node(&mut self, id: NodeId) -> Result<()> {
        let graph = self.graph;
        let node = graph.node(id);
        match node.class() {
            NodeClass::Const if self.idx[id.index()].is_none() => return Ok(()),
            NodeClass::Const => {
                let constant = self.constant(id)?;
                return self.add(id, Action::Const(constant), Vec::new(), Cost::Cheap);
            }
            NodeClass::Retval => return self.result(id),
            _ => {}
        }
        let action = self.action(id)?;
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            inputs.push(self.source(*input)?);
        }
        let op = self.emitter.registry.op(node.op());
        self.add(
            id,
            action,
            inputs,
            op.map_or(Cost::Cheap, |op| op.node_cost(&node.attrs)),
        )
    }

    /// The producer of an input; constants that wait for nothing have no node.
    fn source(&mut self, input: Output) -> Result<Source> {
        let is_const = self.graph.node(input.node).class() == NodeClass::Const;
        if is_const && self.idx[input.node.index()].is_none() {
            return Ok(Source::Const(self.constant(input.node)?));
        }
        Ok(Source::Node(self.emitted(input.node)?, input.slot as u16))
    }

    fn add(
        &mut self,
        id: NodeId,
        action: BodyAction,
        inputs: Vec<Source>,
        cost: Cost,
    ) -> Result<()> {
        let node = self.graph.node(id);
        let mut controls = Vec::with_capacity(node.controls.len());
        for control in &node.controls {
            // Constants that wait for nothing exist before the step begins.
            let source = self.graph.node(*control);
            if source.class() != NodeClass::Const || self.idx[control.index()].is_some() {
                controls.push(self.emitted(*control)?);
            }
        }
        let n_outputs = match &action {
            // Output 1 of a Merge is made only if it is read.
            Action::Merge if !self.read_positions.contains(&id) => 1,
            // A _Retval has no outputs, but what stands for it has.
            Action::Forward => inputs.len(),
            _ => node.outputs.len(),
        };
        let added = self.emitter.out.add(
            self.frame(id),
            BodyNode {
                info: NodeInfo {
                    // Messages name the node of the source graph.
                    name: match node.attrs.str(ORIGIN) {
                        Ok(origin) => origin.to_string(),
                        Err(_) => node.name.trim_end_matches(FUSED_SUFFIX).to_string(),
                    },
                    op: node.op().to_string(),
                },
                action,
                inputs,
                controls,
                n_outputs,
                cost,
            },
        );
        match self.idx[id.index()] {
            Some(expected) if expected == added => Ok(()),
            _ => Err(internal!("'{}' got another index than expected", node.name)),
        }
    }

    fn result(&mut self, id: NodeId) -> Result<()> {
        let (node, function) = (self.graph.node(id), self.function);
        let input = node.inputs[0];
        if self.frame(id) != function {
            return Err(invalid_argument!(
                "'{}' is inside a loop and cannot be fetched; fetch the output of its Exit",
                self.graph.node(input.node).name
            ));
        }
        let mut source = self.source(input)?;
        if !node.controls.is_empty() {
            self.add(id, Action::Forward, vec![source], Cost::Cheap)?;
            source = Source::Node(self.emitted(id)?, 0);
        }
        self.emitter.out.result(function, index(node)?, source)
    }

    fn action(&mut self, id: NodeId) -> Result<BodyAction> {
        let graph = self.graph;
        let node = graph.node(id);
        if node.class() == NodeClass::Arg {
            return Ok(Action::Arg(index(node)? as u32));
        }
        if node.class() == NodeClass::Enter {
            let inside = self.frames.after(graph, id).map(|l| self.loops[l]);
            return Ok(Action::Enter {
                frame: inside.ok_or_else(|| internal!("the loop of an Enter was not found"))?,
                is_constant: node.attrs.bool("is_constant")?,
            });
        }
        if let Some(action) = control::dataflow_action(node) {
            return Ok(action);
        }
        if let Some(callee) = Callee::of(node)? {
            return callee.action(self.emitter, node);
        }
        let callees = referred_functions(node).map(str::to_string);
        self.emitter.called_by_kernels.extend(callees);
        Ok(Action::Kernel(Box::new(KernelEntry {
            op: node.op().to_string(),
            node: node.name.clone(),
            device: match self.emitter.device {
                "" => node.device.clone(),
                device => device.to_string(),
            },
            attrs: node.attrs.clone(),
            inputs: node.inputs.iter().filter_map(|i| graph.dtype(*i)).collect(),
            outputs: node.outputs.to_vec(),
        })))
    }

    fn emitted(&self, id: NodeId) -> Result<NodeIdx> {
        self.idx[id.index()]
            .ok_or_else(|| internal!("'{}' has no place in the body", self.graph.node(id).name))
    }

    fn constant(&mut self, id: NodeId) -> Result<u32> {
        if let Some(&c) = self.consts.get(&id) {
            return Ok(c);
        }
        let value = self.graph.node(id).attrs.tensor("value")?.clone();
        let c = self.emitter.out.constant(value);
        self.consts.insert(id, c);
        Ok(c)
    }
}
