//! Loading: a [`Body`] with its kernels built is a [`Plan`].

use super::body::{Action, Body, Dataflow, Frame, KernelEntry, Node};
use ferroflow_base::{Result, Status, data_loss, internal};
use ferroflow_opdef::{AttrValue, KernelBuild, OpKernel, PACKED, Registry, Value, no_kernel};
use ferroflow_tensor::{LazyTensor, Tensor};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A loaded function: verified, its kernels built, its constants at hand. Only [`Body::load`] makes
/// one.
pub type Plan = Dataflow<Box<dyn OpKernel>, Tensor>;

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
        let op = registry.op(&self.op).and_then(|op| op.kernel);
        let (Some(factory), Some(def)) = (op, registry.def(&self.op)?) else {
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
        build.kernel(factory)
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

impl Body {
    /// Verifies the body, builds its kernels and reads its constants.
    ///
    /// A constant that every reader absorbed when its kernel was built is not part of the plan, and
    /// its pages of the model file are given back at once.
    ///
    /// # Errors
    /// The body is not valid, or an op has no kernel for a node.
    pub fn load(&self, registry: &Registry) -> Result<Plan> {
        self.load_with(&|entry, constants| entry.build(registry, constants))
    }

    /// [`Body::load`] with kernels from elsewhere.
    ///
    /// # Errors
    /// As [`Body::load`].
    pub fn load_with(&self, make: &MakeKernel) -> Result<Plan> {
        let mut loader = Loader {
            make,
            loaded: HashMap::new(),
        };
        loader.load(self)
    }

    /// Checks kernel entries that come from a file against the table of ops, which also has their
    /// costs. Prepacked tensors are dropped unless `keep_packed`.
    ///
    /// # Errors
    /// An op is not registered, or attrs or dtypes are not as its schema says.
    pub fn check_ops(&mut self, registry: &Registry, keep_packed: bool) -> Result<()> {
        for (node, info) in self.nodes.iter_mut().zip(&self.info) {
            if let Action::Kernel(entry) = &mut node.action {
                if !keep_packed {
                    entry.attrs.remove(PACKED);
                }
                let at = |e: Status| e.at_node(&info.name, &info.op);
                entry.check(registry).map_err(at)?;
                node.cost = registry.op(&entry.op).map_or(node.cost, |op| op.cost);
            }
        }
        Ok(())
    }

    /// Prepacks constants: stores in every kernel entry what its kernel made of its constants, so that
    /// a later load need not make it again. Functions that kernels call are left as they are.
    ///
    /// # Errors
    /// As [`Body::load`].
    pub fn prepack(&mut self, registry: &Registry) -> Result<()> {
        self.verify()?;
        let mut packed = Vec::new();
        self.each_kernel(&mut |i, entry, constants| {
            let tensors = entry.build(registry, constants)?.packed()?;
            if !tensors.is_empty() {
                packed.push((i, tensors));
            }
            Ok(())
        })?;
        for (i, tensors) in packed {
            if let Action::Kernel(entry) = &mut self.nodes[i].action {
                let tensors = tensors.into_iter().map(|t| AttrValue::Tensor(t.into()));
                entry.attrs.set(PACKED, AttrValue::List(tensors.collect()));
            }
        }
        Ok(())
    }

    /// Visits the kernel entries of a verified body: node, entry and constant inputs.
    fn each_kernel(&self, visit: &mut VisitKernel) -> Result<()> {
        let functions = self.functions_of_frames();
        let mut constants = Vec::new();
        for (f, frame) in self.frames.iter().enumerate() {
            for i in frame.nodes() {
                let node = &self.nodes[i];
                let Action::Kernel(entry) = &node.action else {
                    continue;
                };
                constants.clear();
                constants.extend(frame.slots[node.slots()].iter().map(|slot| match slot {
                    Value::Const(c) => self.consts.get(*c as usize).cloned(),
                    _ => None,
                }));
                visit(i, entry, &constants).map_err(|e| {
                    let e = e.at_node(&entry.node, &self.info[i].op);
                    match &self.frames[functions[f]].name {
                        name if name.is_empty() => e,
                        name => e.note(format!("in function '{name}'")),
                    }
                })?;
            }
        }
        Ok(())
    }
}

type VisitKernel<'a> = dyn FnMut(usize, &KernelEntry, &[Option<LazyTensor>]) -> Result<()> + 'a;

/// Loads a body and the functions that its kernels call.
struct Loader<'a> {
    make: &'a MakeKernel<'a>,
    /// Functions, each of which is loaded once.
    loaded: HashMap<*const Body, Arc<Plan>>,
}

impl Loader<'_> {
    fn load(&mut self, body: &Body) -> Result<Plan> {
        body.verify()?;
        let mut kernels = Vec::new();
        body.each_kernel(&mut |_, entry, constants| {
            let kernel = (self.make)(entry, constants)?;
            let absorbed = (0..)
                .zip(constants)
                .filter(|(i, _)| kernel.prepacks_input(*i));
            let absorbed = absorbed.filter_map(|(i, constant)| {
                constant.as_ref()?.release();
                Some(i)
            });
            let absorbed: SmallVec<[usize; 4]> = absorbed.collect();
            kernels.push((kernel, absorbed));
            Ok(())
        })?;
        let mut frames = body.frames.clone();
        let mut nodes = Vec::with_capacity(body.nodes.len());
        let mut kernels = kernels.into_iter();
        for frame in &mut frames {
            for node in &body.nodes[frame.nodes()] {
                let slots = &mut frame.slots[node.slots()];
                let action = node.action.try_map(|_| {
                    let (kernel, absorbed) = kernels
                        .next()
                        .ok_or_else(|| internal!("a kernel is missing"))?;
                    for i in absorbed {
                        slots[i] = Value::Empty;
                    }
                    Result::Ok(kernel)
                })?;
                nodes.push(node.with_action(action));
            }
        }
        let consts = read_constants(&body.consts, &mut frames, &mut nodes)?;
        let mut functions = BTreeMap::new();
        for (name, function) in &body.functions {
            let plan = match self.loaded.get(&Arc::as_ptr(function)) {
                Some(plan) => plan.clone(),
                None => {
                    let note = |e: Status| e.note(format!("in function '{name}'"));
                    let plan = Arc::new(self.load(function).map_err(note)?);
                    self.loaded.insert(Arc::as_ptr(function), plan.clone());
                    plan
                }
            };
            functions.insert(name.clone(), plan);
        }
        Ok(Plan {
            nodes,
            info: body.info.clone(),
            edges: body.edges.clone(),
            frames,
            consts,
            functions,
            max_outputs: body.max_outputs,
        })
    }
}

/// Reads the constants that are still referred to, and renumbers them.
fn read_constants(
    all: &[LazyTensor],
    frames: &mut [Frame],
    nodes: &mut [Node<Box<dyn OpKernel>>],
) -> Result<Vec<Tensor>> {
    let mut numbers: Vec<Option<u32>> = vec![None; all.len()];
    let mut values = Vec::new();
    let mut renumber = |constant: &mut u32| {
        let at = *constant as usize;
        let (Some(number), Some(tensor)) = (numbers.get_mut(at), all.get(at)) else {
            return Err(internal!("constant {at} does not exist"));
        };
        *constant = match *number {
            Some(number) => number,
            None => {
                values.push(tensor.get()?);
                *number.insert((values.len() - 1) as u32)
            }
        };
        Ok(())
    };
    for frame in frames {
        for slot in &mut frame.slots {
            if let Value::Const(constant) = slot {
                renumber(constant)?;
            }
        }
        for (_, constant) in &mut frame.const_results {
            renumber(constant)?;
        }
    }
    for node in nodes {
        if let Action::Const(constant) = &mut node.action {
            renumber(constant)?;
        }
    }
    Ok(values)
}
