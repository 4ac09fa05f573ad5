//! Loading: a [`Body`] with its kernels built is a [`Plan`].

use super::body::{Action, Body, BodyFrame, BodyNode, KernelEntry, NodeIdx, Source};
use super::merge::MergeState;
use super::op_segment::OpSegment;
use super::plan::{Edge, EdgeKind, ForwardSlot, Frame, Node, Plan};
use ferroflow_base::{Result, Status, data_loss, internal};
use ferroflow_opdef::{AttrValue, KernelBuild, OpKernel, PACKED, Registry, Value, no_kernel};
use ferroflow_tensor::{LazyTensor, Tensor, return_freed_memory};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Builds the kernel of an entry, given the inputs that are constants.
pub type MakeKernel<'a> =
    dyn Fn(&KernelEntry, &[Option<LazyTensor>]) -> Result<Box<dyn OpKernel>> + 'a;

impl KernelEntry {
    /// Builds the kernel; `constants` are the inputs that are.
    ///
    /// # Errors
    /// The op has no kernel for these attrs and dtypes.
    pub fn build(
        &self,
        registry: &Registry,
        constants: &[Option<LazyTensor>],
    ) -> Result<Box<dyn OpKernel>> {
        let Some(def) = registry.def(&self.op)? else {
            let none = "<no registered kernels>";
            return Err(no_kernel(&self.op, &self.node, &self.attrs, none));
        };
        let build = KernelBuild {
            node: &self.node,
            device: &self.device,
            def: &def,
            attrs: &self.attrs,
            inputs: &self.inputs,
            outputs: &self.outputs,
            constants,
        };
        registry.build_kernel(&build)
    }

    /// Checks an entry that comes from a file against the schema of its op.
    fn check(&mut self, registry: &Registry) -> Result<()> {
        let def = registry.def(&self.op)?;
        let def = def.ok_or_else(|| data_loss!("op '{}' is not registered", self.op))?;
        def.complete_attrs(&mut self.attrs)?;
        let inputs = def.input_dtypes(&self.attrs)?;
        let outputs = def.output_dtypes(&self.attrs)?;
        match *inputs == *self.inputs && *outputs == *self.outputs {
            true => Ok(()),
            false => Err(data_loss!("the dtypes are not those of op '{}'", self.op)),
        }
    }
}

/// Bytes of packed constants after which free memory is returned to the system. Packing leaves the
/// constants' own memory behind.
const MUCH: usize = 16 << 20;

impl Body {
    /// Verifies the body, builds its kernels and reads its constants.
    ///
    /// A constant that every reader prepacked when its kernel was built is not part of the plan, and
    /// its pages of the model file are given back at once.
    ///
    /// # Errors
    /// The body is not valid, or an op has no kernel for a node.
    pub fn load(&self, registry: &Registry) -> Result<Plan> {
        self.load_with(&|entry, constants| entry.build(registry, constants))
    }

    /// [`Body::load`] for a session, whose stateful nodes keep their kernels.
    ///
    /// # Errors
    /// As [`Body::load`].
    pub fn load_in(&self, registry: &Registry, kept: &OpSegment) -> Result<Plan> {
        Loader {
            make: &|entry, constants| entry.build(registry, constants),
            kept: Some((registry, kept)),
            loaded: HashMap::new(),
        }
        .load(self)
    }

    /// [`Body::load`] with kernels from elsewhere.
    ///
    /// # Errors
    /// As [`Body::load`].
    pub fn load_with(&self, make: &MakeKernel) -> Result<Plan> {
        Loader {
            make,
            kept: None,
            loaded: HashMap::new(),
        }
        .load(self)
    }

    /// Checks kernel entries that come from a file against the table of ops, which also has their
    /// costs. Prepacked tensors are dropped unless `keep_packed`.
    ///
    /// # Errors
    /// An op is not registered, or attrs or dtypes do not match its schema.
    pub fn check_ops(&mut self, registry: &Registry, keep_packed: bool) -> Result<()> {
        for node in &mut self.nodes {
            if let Action::Kernel(entry) = &mut node.action {
                if !keep_packed {
                    entry.attrs.remove(PACKED);
                }
                let at = |e: Status| e.at_node(&node.info.name, &node.info.op);
                entry.check(registry).map_err(at)?;
                node.cost = registry.op(&entry.op).map_or(node.cost, |op| op.cost);
            }
        }
        Ok(())
    }

    /// Prepacks constants: stores in every kernel entry what its kernel made of its constants, so that
    /// a later load need not make it again. Does not prepack those of functions that kernels call.
    ///
    /// # Errors
    /// As [`Body::load`].
    pub fn prepack(&mut self, registry: &Registry) -> Result<()> {
        self.verify()?;
        let functions = self.functions_of_frames();
        for (f, function) in functions.into_iter().enumerate() {
            for i in self.frames[f].nodes.clone() {
                let node = &self.nodes[i.index()];
                let Action::Kernel(entry) = &node.action else {
                    continue;
                };
                let packed = entry
                    .build(registry, &self.constant_inputs(node))
                    .and_then(|kernel| kernel.packed())
                    .map_err(|e| self.at_kernel(e, node, entry, function))?;
                if let Action::Kernel(entry) = &mut self.nodes[i.index()].action
                    && !packed.is_empty()
                {
                    let packed = packed.into_iter().map(|t| AttrValue::Tensor(t.into()));
                    entry.attrs.set(PACKED, AttrValue::List(packed.collect()));
                }
            }
        }
        Ok(())
    }

    /// The inputs of a node that are constants.
    fn constant_inputs(&self, node: &BodyNode) -> Vec<Option<LazyTensor>> {
        let constant = |source: &Source| match source {
            Source::Const(c) => self.consts.get(*c as usize).cloned(),
            Source::Node(..) => None,
        };
        node.inputs.iter().map(constant).collect()
    }

    /// The error of a kernel in function `function`.
    #[cold]
    fn at_kernel(
        &self,
        e: Status,
        node: &BodyNode,
        entry: &KernelEntry,
        function: usize,
    ) -> Status {
        let e = e.at_node(&entry.node, &node.info.op);
        match &self.frames[function].name {
            name if name.is_empty() => e,
            name => e.note(format!("in function '{name}'")),
        }
    }
}

/// Loads a body and the functions that its kernels call.
struct Loader<'a> {
    make: &'a MakeKernel<'a>,
    /// Has the kernels of stateful nodes outside of functions.
    kept: Option<(&'a Registry, &'a OpSegment)>,
    /// Functions, each of which is loaded once.
    loaded: HashMap<*const Body, Arc<Plan>>,
}

impl Loader<'_> {
    fn load(&mut self, body: &Body) -> Result<Plan> {
        body.verify()?;
        let mut layout = Layout::new(body, self.make, self.kept.take());
        let functions = body.functions_of_frames();
        for (f, frame) in body.frames.iter().enumerate() {
            layout.frame(frame, functions[f])?;
        }
        if layout.n_packed >= MUCH {
            return_freed_memory();
        }
        let mut plan = layout.plan;
        plan.set_edges(layout.edges);
        plan.count_enters();
        plan.schedule_frames();
        for (name, function) in &body.functions {
            let loaded = match self.loaded.get(&Arc::as_ptr(function)) {
                Some(loaded) => loaded.clone(),
                None => {
                    let note = |e: Status| e.note(format!("in function '{name}'"));
                    let loaded = Arc::new(self.load(function).map_err(note)?);
                    self.loaded.insert(Arc::as_ptr(function), loaded.clone());
                    loaded
                }
            };
            plan.functions.insert(name.clone(), loaded);
        }
        Ok(plan)
    }
}

/// Lays a verified body out, frame by frame.
struct Layout<'a> {
    body: &'a Body,
    make: &'a MakeKernel<'a>,
    kept: Option<(&'a Registry, &'a OpSegment)>,
    plan: Plan,
    /// The index in the plan of each node.
    position: Vec<NodeIdx>,
    /// Edges behind their producers, in the order of their consumers.
    edges: Vec<(NodeIdx, Edge)>,
    /// The number in the plan of each constant that is still referred to.
    constants: Vec<Option<u32>>,
    /// Bytes of constants that kernels packed, and of those since free memory was returned.
    n_packed: usize,
    n_unreturned: usize,
}

impl<'a> Layout<'a> {
    fn new(
        body: &'a Body,
        make: &'a MakeKernel,
        kept: Option<(&'a Registry, &'a OpSegment)>,
    ) -> Layout<'a> {
        let n = body.nodes.len();
        let mut position = vec![NodeIdx::new(0); n];
        for (at, i) in body.frames.iter().flat_map(|f| &f.nodes).enumerate() {
            position[i.index()] = NodeIdx::new(at);
        }
        Layout {
            body,
            make,
            kept,
            plan: Plan {
                nodes: Vec::with_capacity(n),
                info: Vec::with_capacity(n),
                edges: Vec::new(),
                frames: Vec::with_capacity(body.frames.len()),
                consts: Vec::new(),
                functions: BTreeMap::new(),
                max_outputs: 1,
            },
            position,
            edges: Vec::new(),
            constants: vec![None; body.consts.len()],
            n_packed: 0,
            n_unreturned: 0,
        }
    }

    /// The number in the plan of a constant, which is read.
    fn constant(&mut self, constant: u32) -> Result<u32> {
        let number = &mut self.constants[constant as usize];
        if let Some(number) = *number {
            return Ok(number);
        }
        let value: Tensor = self.body.consts[constant as usize].get()?;
        self.plan.consts.push(value);
        Ok(*number.insert((self.plan.consts.len() - 1) as u32))
    }

    /// Notes that a node's kernel has packed a constant, and returns memory if much was packed since that was
    /// done.
    fn count_packed(&mut self, node: &BodyNode, bytes: usize) {
        // An earlier build may have packed it.
        if matches!(&node.action, Action::Kernel(entry) if entry.attrs.get(PACKED).is_some()) {
            return;
        }
        self.n_packed += bytes;
        self.n_unreturned += bytes;
        // Seldom for a large model: this visits all free memory of the program.
        if self.n_unreturned >= MUCH.max(self.n_packed / 8) {
            self.n_unreturned = 0;
            return_freed_memory();
        }
    }

    fn edge(&mut self, from: NodeIdx, node: NodeIdx, slot: u32, output: u16, kind: EdgeKind) {
        let edge = Edge {
            node,
            slot,
            output,
            kind,
            last: false,
        };
        self.edges.push((self.position[from.index()], edge));
    }

    fn frame(&mut self, source: &BodyFrame, function: usize) -> Result<()> {
        let mut frame = Frame {
            name: source.name.clone(),
            kind: source.kind,
            n_enters: 0,
            first_node: self.plan.nodes.len() as u32,
            slots: Vec::new(),
            pending: Vec::with_capacity(source.nodes.len()),
            roots: Vec::new(),
            args: vec![None; source.n_args],
            first_result: 0,
            n_results: source.results.len(),
            const_results: Vec::new(),
            schedule: None,
        };
        for &i in &source.nodes {
            self.node(i, &mut frame, function)?;
        }
        frame.first_result = frame.slots.len() as u32;
        let n_slots = frame.slots.len() + frame.n_results;
        frame.slots.resize(n_slots, Value::Empty);
        for (r, source) in (0..).zip(&source.results) {
            match *source {
                Some(Source::Const(c)) => frame.const_results.push((r, self.constant(c)?)),
                Some(Source::Node(from, output)) => {
                    let slot = frame.first_result + r;
                    self.edge(from, NodeIdx::new(0), slot, output, EdgeKind::Result);
                }
                None => return Err(internal!("result {r} of '{}' is not set", frame.name)),
            }
        }
        self.plan.frames.push(frame);
        Ok(())
    }

    /// Adds node `i` to its frame, with its kernel built.
    fn node(&mut self, i: NodeIdx, frame: &mut Frame, function: usize) -> Result<()> {
        let body = self.body;
        let (node, me) = (&body.nodes[i.index()], self.position[i.index()]);
        let first_slot = frame.slots.len();
        frame
            .slots
            .resize(first_slot + node.inputs.len(), Value::Empty);
        let (data, control) = match node.action {
            Action::Merge => (EdgeKind::MergeData, EdgeKind::MergeControl),
            Action::Trigger => (EdgeKind::Data, EdgeKind::Trigger),
            _ => (EdgeKind::Data, EdgeKind::Control),
        };
        let mut action = node.action.try_map(|entry| {
            let kept = self.kept.filter(|_| function == 0);
            let kernel = match kept.map(|(registry, kept)| kept.kernel(entry, registry)) {
                Some(Ok(Some(kernel))) => Ok(kernel),
                Some(Err(e)) => Err(e),
                Some(Ok(None)) | None => (self.make)(entry, &body.constant_inputs(node)),
            };
            kernel.map_err(|e| body.at_kernel(e, node, entry, function))
        })?;
        let mut n_edges = node.controls.len();
        for (input, source) in node.inputs.iter().enumerate() {
            let slot = first_slot + input;
            match (*source, &action) {
                (Source::Node(from, output), _) => {
                    n_edges += 1;
                    self.edge(from, me, slot as u32, output, data);
                }
                (Source::Const(c), Action::Kernel(kernel)) if kernel.prepacks_input(input) => {
                    let constant = &body.consts[c as usize];
                    constant.release();
                    self.count_packed(node, constant.byte_len());
                }
                (Source::Const(c), _) => frame.slots[slot] = Value::Const(self.constant(c)?),
            }
        }
        for &from in &node.controls {
            self.edge(from, me, 0, 0, control);
        }
        match &mut action {
            Action::Arg(a) => frame.args[*a as usize] = Some(me),
            Action::Merge => {}
            _ if n_edges == 0 => frame.roots.push(me),
            _ => {}
        }
        if let Action::Const(constant) = &mut action {
            *constant = self.constant(*constant)?;
        }
        frame.pending.push(match action {
            Action::Merge => MergeState::new(node.controls.len()).bits(),
            _ => n_edges as u32,
        });
        self.plan.max_outputs = self.plan.max_outputs.max(node.n_outputs);
        self.plan.info.push(node.info.clone());
        self.plan.nodes.push(Node {
            action,
            first_slot: first_slot as u32,
            n_inputs: node.inputs.len() as u32,
            first_edge: 0,
            n_edges: 0,
            forward_slot: ForwardSlot::NONE,
            n_outputs: node.n_outputs as u16,
            cost: node.cost,
        });
        Ok(())
    }
}
