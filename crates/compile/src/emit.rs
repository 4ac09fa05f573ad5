//! Graph → plan: builds every kernel once, hands it its constants; lays out loops and functions as
//! frames.

use crate::control::{self, Callee, ForLoop};
use crate::pass::FUSED_SUFFIX;
use crate::{Options, optimize};
use ferroflow_base::{Result, internal, invalid_argument, unimplemented_error};
use ferroflow_graph::{
    ARG, Frames, Graph, Library, Node, NodeId, ORIGIN, RETVAL, loop_frames, topological_order,
};
use ferroflow_opdef::{Cost, KernelBuild, NodeInfo, OpKernel, Registry, no_kernel};
use ferroflow_program::{Action, BuildNode, FrameIdx, NodeIdx, Plan, PlanBuilder, Source};
use ferroflow_tensor::{DType, LazyTensor};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Levels of functions that are called by kernels of functions that are.
const MAX_PASSED_DEPTH: usize = 32;

/// Emits the plan of a pruned, optimized graph and of the functions that it calls, which are
/// optimized on the way.
///
/// A constant that every reader absorbed when its kernel was built leaves no trace in the plan, and
/// its pages of the model file are given back at once.
pub fn emit(graph: &Graph, registry: &Registry, options: &Options) -> Result<Plan> {
    emit_seen(graph, registry, options, &mut |_, _, _| Ok(()))
}

/// Sees the kernel of each node of each function; the graph itself is the function "".
pub(crate) type SeeKernel<'a> = dyn FnMut(&str, NodeId, &dyn OpKernel) -> Result<()> + 'a;

pub(crate) fn emit_seen(
    graph: &Graph,
    registry: &Registry,
    options: &Options,
    see: &mut SeeKernel,
) -> Result<Plan> {
    emit_within(graph, registry, options, see, &mut Passed::default())
}

/// Functions that kernels call, which are plans of their own.
#[derive(Default)]
struct Passed {
    made: FxHashMap<String, Arc<Plan>>,
    under_way: Vec<String>,
}

impl Passed {
    /// The plan of function `name`, whose kernels may call functions in turn.
    fn plan(
        &mut self,
        name: &str,
        library: &Arc<Library>,
        registry: &Registry,
        options: &Options,
    ) -> Result<Arc<Plan>> {
        if let Some(plan) = self.made.get(name) {
            return Ok(plan.clone());
        }
        let is_within = self.under_way.iter().any(|n| n == name);
        if is_within || self.under_way.len() >= MAX_PASSED_DEPTH {
            return Err(unimplemented_error!(
                "functions that datasets call are nested too deeply or in themselves"
            ));
        }
        self.under_way.push(name.to_string());
        let mut body = library.get(name)?.graph.clone();
        body.set_library(library.clone());
        optimize(&mut body, registry, options, &mut |_, _| {})?;
        let plan = emit_within(&body, registry, options, &mut |_, _, _| Ok(()), self)?;
        self.under_way.pop();
        let plan = Arc::new(plan);
        self.made.insert(name.to_string(), plan.clone());
        Ok(plan)
    }
}

fn emit_within(
    graph: &Graph,
    registry: &Registry,
    options: &Options,
    see: &mut SeeKernel,
    passed: &mut Passed,
) -> Result<Plan> {
    let mut emitter = Emitter {
        registry,
        builder: PlanBuilder::new(),
        library: graph.library().clone(),
        functions: FxHashMap::default(),
        queue: Vec::new(),
        called_by_kernels: Vec::new(),
        fors: Vec::new(),
    };
    let root = emitter.declare("", graph)?;
    emitter.body(graph, root, &mut |id, kernel| see("", id, kernel))?;
    while let Some((name, frame)) = emitter.queue.pop() {
        let mut body = emitter.library.get(&name)?.graph.clone();
        body.set_library(emitter.library.clone());
        let note = |e: ferroflow_base::Status| e.note(format!("in function '{name}'"));
        optimize(&mut body, registry, options, &mut |_, _| {}).map_err(note)?;
        emitter.library = body.library().clone();
        let see = &mut |id, kernel: &dyn OpKernel| see(&name, id, kernel);
        emitter.body(&body, frame, see).map_err(note)?;
    }
    while let Some(name) = emitter.called_by_kernels.pop() {
        let plan = passed.plan(&name, &emitter.library, registry, options);
        let plan = plan.map_err(|e| e.note(format!("in function '{name}'")))?;
        emitter.builder.called_by_kernels(&name, plan);
    }
    for this in std::mem::take(&mut emitter.fors) {
        control::emit_for(&mut emitter, &this)?;
    }
    emitter.builder.finish()
}

/// What all functions of a plan share.
pub(crate) struct Emitter<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) builder: PlanBuilder,
    library: Arc<Library>,
    functions: FxHashMap<String, FrameIdx>,
    queue: Vec<(String, FrameIdx)>,
    called_by_kernels: Vec<String>,
    pub(crate) fors: Vec<ForLoop>,
}

impl Emitter<'_> {
    fn declare(&mut self, name: &str, graph: &Graph) -> Result<FrameIdx> {
        let count = |op: &str| -> Result<usize> {
            let mut n = 0;
            for (_, node) in graph.iter().filter(|(_, n)| n.op() == op) {
                n = n.max(index(node)? + 1);
            }
            Ok(n)
        };
        Ok(self.builder.function(name, count(ARG)?, count(RETVAL)?))
    }

    /// The frame of function `name`, which is emitted once.
    pub(crate) fn function(&mut self, name: &str) -> Result<FrameIdx> {
        if let Some(frame) = self.functions.get(name) {
            return Ok(*frame);
        }
        let function = self.library.get(name)?.clone();
        let (args, results) = (function.args.len(), function.results.len());
        let frame = self.builder.function(name, args, results);
        self.functions.insert(name.to_string(), frame);
        self.queue.push((name.to_string(), frame));
        Ok(frame)
    }

    fn body(
        &mut self,
        graph: &Graph,
        function: FrameIdx,
        see: &mut dyn FnMut(NodeId, &dyn OpKernel) -> Result<()>,
    ) -> Result<()> {
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
            loops.push(self.builder.loop_frame(&l.name, parent, parallel));
        }
        let mut body = Body {
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
        let mut next = body.emitter.builder.next_node().index();
        for &id in &order {
            let node = graph.node(id);
            let is_node = match node.op() {
                "Const" => needed[id.index()],
                RETVAL => !node.controls.is_empty(),
                _ => true,
            };
            if is_node {
                body.idx[id.index()] = Some(NodeIdx::new(next));
                next += 1;
            }
        }
        for &id in &order {
            let node = graph.node(id);
            body.node(id, see)
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
struct Body<'a, 'b> {
    emitter: &'a mut Emitter<'b>,
    graph: &'a Graph,
    function: FrameIdx,
    frames: Frames,
    loops: Vec<FrameIdx>,
    idx: Vec<Option<NodeIdx>>,
    consts: FxHashMap<NodeId, u32>,
    /// Merges whose output 1 somebody reads.
    read_positions: FxHashSet<NodeId>,
}

impl Body<'_, '_> {
    /// Constants that need a node: those that wait for something, for they may be dead, and those
    /// that a Merge reads or a node waits for.
    fn const_nodes(&self) -> Vec<bool> {
        let mut needed = vec![false; self.graph.id_bound()];
        for (id, node) in self.graph.iter() {
            if node.op() == "Const" && !node.controls.is_empty() {
                needed[id.index()] = true;
            }
            if let "Merge" | "RefMerge" = node.op() {
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

    fn node(
        &mut self,
        id: NodeId,
        see: &mut dyn FnMut(NodeId, &dyn OpKernel) -> Result<()>,
    ) -> Result<()> {
        let graph = self.graph;
        let node = graph.node(id);
        if node.op() == "Const" {
            if self.idx[id.index()].is_some() {
                let constant = self.constant(id)?;
                self.add(id, Action::Const(constant), Vec::new(), Cost::Cheap)?;
            }
            return Ok(());
        }
        // Constants whose readers need not wait for them.
        let constants: Vec<Option<LazyTensor>> = node
            .inputs
            .iter()
            .map(|i| {
                let source = graph.node(i.node);
                (source.op() == "Const" && self.idx[i.node.index()].is_none())
                    .then(|| source.attrs.tensor("value").cloned())
                    .transpose()
            })
            .collect::<Result<_>>()?;
        if node.op() == RETVAL {
            return self.result(id, &constants);
        }
        let action = self.action(id, &constants)?;
        if let Action::Kernel(kernel) = &action {
            see(id, &**kernel)?;
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (i, input) in node.inputs.iter().enumerate() {
            inputs.push(match &constants[i] {
                Some(value) => match &action {
                    Action::Kernel(kernel) if kernel.absorbs(i) => {
                        value.release();
                        Source::Nothing
                    }
                    _ => Source::Const(self.constant(input.node)?),
                },
                None => Source::Node(self.emitted(input.node)?, input.slot as u16),
            });
        }
        let cost = self
            .emitter
            .registry
            .op(node.op())
            .map_or(Cost::Cheap, |op| op.cost);
        self.add(id, action, inputs, cost)
    }

    fn add(&mut self, id: NodeId, action: Action, inputs: Vec<Source>, cost: Cost) -> Result<()> {
        let node = self.graph.node(id);
        let mut controls = Vec::with_capacity(node.controls.len());
        for control in &node.controls {
            // Constants that wait for nothing are there before the step begins.
            let source = self.graph.node(*control);
            if source.op() != "Const" || self.idx[control.index()].is_some() {
                controls.push(self.emitted(*control)?);
            }
        }
        // Output 1 of a Merge is made only for who reads it.
        let n_outputs = match &action {
            Action::Merge if !self.read_positions.contains(&id) => 1,
            _ => node.outputs.len(),
        };
        let added = self.emitter.builder.add(
            self.frame(id),
            BuildNode {
                info: NodeInfo {
                    // Whoever reads a message knows the node that was there before.
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

    fn result(&mut self, id: NodeId, constants: &[Option<LazyTensor>]) -> Result<()> {
        let (node, function) = (self.graph.node(id), self.function);
        let input = node.inputs[0];
        if self.frame(id) != function {
            return Err(invalid_argument!(
                "'{}' is inside a loop and cannot be fetched; fetch what its Exit gives",
                self.graph.node(input.node).name
            ));
        }
        let mut source = match constants.first() {
            Some(Some(_)) => Source::Const(self.constant(input.node)?),
            _ => Source::Node(self.emitted(input.node)?, input.slot as u16),
        };
        if !node.controls.is_empty() {
            self.add(id, Action::Forward, vec![source], Cost::Cheap)?;
            source = Source::Node(self.emitted(id)?, 0);
        }
        self.emitter.builder.result(function, index(node)?, source)
    }

    fn action(&mut self, id: NodeId, constants: &[Option<LazyTensor>]) -> Result<Action> {
        let graph = self.graph;
        let node = graph.node(id);
        if node.op() == ARG {
            return Ok(Action::Arg(index(node)? as u32));
        }
        if matches!(node.op(), "Enter" | "RefEnter") {
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
        let op = self.emitter.registry.op(node.op());
        let factory = op.and_then(|op| op.kernel).ok_or_else(|| {
            no_kernel(
                node.op(),
                &node.name,
                &node.attrs,
                "<no registered kernels>",
            )
        })?;
        self.emitter.called_by_kernels.extend(control::passed(node));
        let inputs: Vec<DType> = node.inputs.iter().filter_map(|i| graph.dtype(*i)).collect();
        let build = KernelBuild {
            node: &node.name,
            device: &node.device,
            def: &node.def,
            attrs: &node.attrs,
            inputs: &inputs,
            outputs: &node.outputs,
            constants,
        };
        Ok(Action::Kernel(build.kernel(factory)?))
    }

    fn emitted(&self, id: NodeId) -> Result<NodeIdx> {
        self.idx[id.index()]
            .ok_or_else(|| internal!("'{}' has no place in the plan", self.graph.node(id).name))
    }

    fn constant(&mut self, id: NodeId) -> Result<u32> {
        if let Some(&c) = self.consts.get(&id) {
            return Ok(c);
        }
        let value = self.graph.node(id).attrs.tensor("value")?.get()?;
        let c = self.emitter.builder.constant(value);
        self.consts.insert(id, c);
        Ok(c)
    }
}
