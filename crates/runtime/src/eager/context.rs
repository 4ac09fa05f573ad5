//! [`EagerContext`]: calls of ops and functions that a client describes piece by piece.

use super::functions::{FunctionCall, Functions};
use super::{AttrValue, Attrs, MAX_KEPT, Machine};
use crate::RunOptions;
use crate::cluster::Cluster;
use crate::dataset_graphs::SessionDatasetGraphs;
use ferroflow_base::{Result, Status, internal, invalid_argument, not_found};
use ferroflow_graph::DeviceSet;
use ferroflow_model::proto::FunctionDef;
use ferroflow_opdef::{
    ArgDef, ArgType, AsyncCall, AttrType, Cost, NodeClass, OpDef, PreparedOp, Resources, ShapeCtx,
    StepServices, Value,
};
use ferroflow_sync::{CancelToken, Pool};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::{Arc, PoisonError, RwLock, mpsc};

/// The tensors that a call takes.
pub type CallInputs = SmallVec<[Value; 4]>;
/// The tensors that a call returns.
pub type CallOutputs = SmallVec<[Tensor; 1]>;

/// Ops and functions by name, with what is prepared of them and the resources that they share.
///
/// ```
/// use ferroflow_runtime::eager::{Attrs, CallInputs, EagerContext, Given};
/// use ferroflow_runtime::{DType, Tensor};
/// let context = EagerContext::new(1);
/// let add = context.def("AddV2")?;
/// let call = context.call(&add, &Attrs::default(), &[Given::One; 2], &[DType::Float; 2])?;
/// let mut inputs = CallInputs::new();
/// inputs.extend([1.0f32, 2.0].map(|x| ferroflow_opdef::Value::Tensor(Tensor::scalar(x))));
/// let sum = call.run(&mut inputs, None)?;
/// assert_eq!(sum[0].to_scalar::<f32>()?, 3.0);
/// # Ok::<(), ferroflow_runtime::Status>(())
/// ```
pub struct EagerContext {
    machine: Arc<Machine>,
    defs: RwLock<FxHashMap<String, Arc<CallDef>>>,
    functions: Arc<Functions>,
}

/// An op or a function, with its calls that were prepared.
pub struct CallDef {
    def: Arc<OpDef>,
    function: Option<Arc<FunctionDef>>,
    calls: RwLock<Vec<Arc<EagerCall>>>,
}

/// How the client passed an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// One tensor.
    One,
    /// A list of that length.
    List(u32),
}

/// The devices that the nodes of a function's call may be on.
pub struct CallDevices {
    /// The devices, those of this task first.
    pub set: DeviceSet,
    /// The tasks that have them.
    pub cluster: Arc<dyn Cluster>,
}

/// A call with fixed attrs and dtypes, ready to run any number of times.
pub struct EagerCall {
    attrs: Attrs,
    given: SmallVec<[Given; 4]>,
    inputs: SmallVec<[DType; 4]>,
    outputs: SmallVec<[DType; 4]>,
    /// The devices of the inputs, for a function that may run on several.
    devices: Box<[String]>,
    body: Body,
    machine: Arc<Machine>,
}

enum Body {
    Kernel(Box<PreparedOp>),
    Graph(Box<FunctionCall>),
}

impl EagerContext {
    /// Computes with `threads` threads, the calling one included; 0 means all processors.
    pub fn new(threads: usize) -> EagerContext {
        let threads = match threads {
            0 => Pool::available_threads(),
            n => n,
        };
        EagerContext::on(Arc::new(Pool::new(threads)))
    }

    /// Computes on the threads of `pool`.
    pub fn on(pool: Arc<Pool>) -> EagerContext {
        EagerContext::with_resources(pool, Resources::default())
    }

    /// Computes on the threads of `pool`, with variables and other state that others may share.
    pub fn with_resources(pool: Arc<Pool>, resources: Resources) -> EagerContext {
        let functions = Arc::<Functions>::default();
        let graphs = SessionDatasetGraphs::with_functions(functions.clone());
        resources.set_dataset_graphs(Arc::new(graphs));
        EagerContext {
            machine: Arc::new(Machine::with_resources(pool, resources)),
            defs: RwLock::default(),
            functions,
        }
    }

    /// Returns the threads.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.machine.pool
    }

    /// Returns variables, queues and other state.
    pub fn resources(&self) -> &Resources {
        &self.machine.resources
    }

    /// Returns the op or the function of this name.
    ///
    /// # Errors
    /// NOT_FOUND if there is none.
    #[inline]
    pub fn def(&self, name: &str) -> Result<Arc<CallDef>> {
        let defs = self.defs.read().unwrap_or_else(PoisonError::into_inner);
        match defs.get(name) {
            Some(def) => Ok(def.clone()),
            None => {
                drop(defs);
                self.new_def(name)
            }
        }
    }

    #[cold]
    fn new_def(&self, name: &str) -> Result<Arc<CallDef>> {
        let function = self.functions.get(name);
        let def = match &function {
            Some(function) => Arc::new(super::functions::schema(function)?),
            None => crate::registry().def(name)?.ok_or_else(|| {
                not_found!(
                    "'{name}' is neither a type of a primitive operation nor a name of a function \
                     registered in binary running on {}. Make sure the operation or function \
                     is registered in the binary running in this process.",
                    ferroflow_graph::host_name()
                )
            })?,
        };
        let new = Arc::new(CallDef {
            def,
            function,
            calls: RwLock::default(),
        });
        let mut defs = self.defs.write().unwrap_or_else(PoisonError::into_inner);
        defs.insert(name.to_string(), new.clone());
        Ok(new)
    }

    /// Forgets what was prepared.
    pub fn clear_caches(&self) {
        let mut defs = self.defs.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::take(&mut *defs);
        drop(defs);
        drop(old);
    }

    /// Adds a function.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it has no signature, or there is another function or an op of its name.
    pub fn add_function(&self, function: Arc<FunctionDef>) -> Result<()> {
        self.functions.add(function)
    }

    /// Removes a function, which was added once, or takes one of several additions back.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if no function has this name.
    pub fn remove_function(&self, name: &str) -> Result<()> {
        self.functions.remove(name)?;
        self.clear_caches();
        Ok(())
    }

    /// Returns the function of this name.
    pub fn function(&self, name: &str) -> Option<Arc<FunctionDef>> {
        self.functions.get(name)
    }

    /// Returns all functions, by name.
    pub fn functions(&self) -> Vec<(String, Arc<FunctionDef>)> {
        self.functions.all()
    }

    /// Returns the call for these attrs and inputs, from the cache or new.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if attrs or inputs do not fit the signature, or there is no kernel for them.
    #[inline]
    pub fn call(
        &self,
        def: &CallDef,
        attrs: &Attrs,
        given: &[Given],
        inputs: &[DType],
    ) -> Result<Arc<EagerCall>> {
        match def.find(attrs, given, inputs, &[]) {
            Some(call) => Ok(call),
            None => self.new_call(def, attrs, given, inputs, None),
        }
    }

    /// As [`EagerContext::call`] for a function whose nodes may be on devices of several tasks: those
    /// that they ask for, and those of the resources they use. `inputs` are dtypes and devices, empty
    /// for a tensor that any device may read.
    ///
    /// # Errors
    /// As [`EagerContext::call`]; those of placing the nodes, and of the other tasks.
    pub fn call_on(
        &self,
        def: &CallDef,
        attrs: &Attrs,
        given: &[Given],
        inputs: (&[DType], Box<[String]>),
        devices: &CallDevices,
    ) -> Result<Arc<EagerCall>> {
        let (dtypes, places) = inputs;
        match def.find(attrs, given, dtypes, &places) {
            Some(call) => Ok(call),
            None => self.new_call(def, attrs, given, dtypes, Some((places, devices))),
        }
    }

    #[cold]
    fn new_call(
        &self,
        def: &CallDef,
        attrs: &Attrs,
        given: &[Given],
        inputs: &[DType],
        devices: Option<(Box<[String]>, &CallDevices)>,
    ) -> Result<Arc<EagerCall>> {
        let known = |(name, _): &(&ferroflow_opdef::Name, &AttrValue)| {
            def.function.is_none() && !name.starts_with('_') || def.def.attr(name).is_some()
        };
        let full = def.with_inferred(attrs, given, inputs)?;
        let full: Attrs = full
            .iter()
            .filter(known)
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect();
        let (places, devices) = devices.unzip();
        let places = places.unwrap_or_default();
        let (body, outputs) = match def.needs_graph(&full) {
            false => {
                let (name, op) = (
                    &def.def.name,
                    PreparedOp::new(crate::registry(), &def.def.name, &full, inputs),
                );
                let op = op.map_err(|error| of_eager(error, name))?;
                let outputs = SmallVec::from_slice(op.outputs());
                (Body::Kernel(Box::new(op)), outputs)
            }
            true => {
                let inputs = (inputs, &places[..]);
                let call = self
                    .functions
                    .call(def, full, inputs, &self.machine, devices)?;
                let outputs = call.outputs.clone();
                (Body::Graph(Box::new(call)), outputs)
            }
        };
        let call = Arc::new(EagerCall {
            attrs: attrs.clone(),
            given: given.into(),
            inputs: inputs.into(),
            outputs,
            devices: places,
            body,
            machine: self.machine.clone(),
        });
        let mut calls = def.calls.write().unwrap_or_else(PoisonError::into_inner);
        if calls.len() < MAX_KEPT {
            calls.push(call.clone());
        }
        Ok(call)
    }
}

/// The error of preparing an op in the words of eager contexts, which look for a device before they look for a kernel
/// (`core/common_runtime/eager/context.cc`, `execute.cc`).
#[cold]
fn of_eager(error: Status, op: &str) -> Status {
    let message = error.message();
    if let Some((node, kernels)) =
        message.split_once("]\nRegistered devices: [CPU]\nRegistered kernels:\n")
    {
        let attrs = node.split_once("attrs: [").map_or("", |(_, attrs)| attrs);
        return not_found!(
            "Could not find device for node: {{{{node {op}}}}} = {op}[{attrs}]\nAll kernels registered for op \
             {op}:\n{kernels}"
        );
    }
    let counts = message
        .strip_prefix("op ")
        .and_then(|rest| rest.strip_prefix(op));
    match counts.and_then(|rest| rest.strip_prefix(" expects ")) {
        Some(counts) => invalid_argument!("expected {counts}"),
        None => error,
    }
}

impl CallDef {
    /// Returns the schema.
    pub fn op_def(&self) -> &Arc<OpDef> {
        &self.def
    }

    /// Returns the function, if it is not an op.
    pub fn function(&self) -> Option<&Arc<FunctionDef>> {
        self.function.as_ref()
    }

    fn find(
        &self,
        attrs: &Attrs,
        given: &[Given],
        inputs: &[DType],
        devices: &[String],
    ) -> Option<Arc<EagerCall>> {
        let calls = self.calls.read().unwrap_or_else(PoisonError::into_inner);
        let fits = |c: &&Arc<EagerCall>| {
            c.inputs[..] == *inputs
                && c.given[..] == *given
                && *c.devices == *devices
                && c.attrs.same_values(attrs)
        };
        calls.iter().find(fits).cloned()
    }

    /// Returns how the arguments of a call with complete attrs are passed.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an attr is missing.
    pub fn given(&self, attrs: &Attrs) -> Result<SmallVec<[Given; 4]>> {
        let given = self.def.inputs.iter().map(|arg| match arg {
            ArgDef::Single { .. } => Ok(Given::One),
            ArgDef::Repeated { number, .. } => Ok(Given::List(attrs.int(number)? as u32)),
            ArgDef::List { types, .. } => Ok(Given::List(attrs.dtypes(types)?.len() as u32)),
        });
        given.collect()
    }

    /// Returns the attrs completed by those that the inputs determine. As in TensorFlow
    /// (`EagerOperation::MaybeInferSingleInputAttrs`), inference ends at a list whose tensors were given
    /// one by one.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a list was given for an argument that is none.
    pub fn with_inferred(&self, attrs: &Attrs, given: &[Given], inputs: &[DType]) -> Result<Attrs> {
        let mut full = attrs.clone();
        let mut rest = inputs;
        for (arg, given) in self.def.inputs.iter().zip(given) {
            let n = match given {
                Given::One => 1,
                Given::List(n) => *n as usize,
            };
            let Some((mine, others)) = rest.split_at_checked(n) else {
                return Err(invalid_argument!(
                    "op {} expects more than {} inputs",
                    self.def.name,
                    inputs.len()
                ));
            };
            rest = others;
            let set = |full: &mut Attrs, name: &ferroflow_opdef::Name, value: AttrValue| {
                if full.get(name).is_none() {
                    full.set(name.clone(), value);
                }
            };
            let set_type = |full: &mut Attrs, ty: &ArgType| {
                if let (ArgType::Attr(name), Some(first)) = (ty, mine.first()) {
                    set(full, name, AttrValue::Type(*first));
                }
            };
            match (arg, given) {
                (ArgDef::Single { ty, .. }, Given::One) => set_type(&mut full, ty),
                (ArgDef::Repeated { number, ty, .. }, Given::List(n)) => {
                    set_type(&mut full, ty);
                    set(&mut full, number, AttrValue::Int(i64::from(*n)));
                }
                (ArgDef::List { types, .. }, Given::List(_)) => {
                    let list = mine.iter().map(|t| AttrValue::Type(*t)).collect();
                    set(&mut full, types, AttrValue::List(list));
                }
                (ArgDef::Single { .. }, Given::List(_)) => {
                    return Err(invalid_argument!("Invalid input list"));
                }
                (_, Given::One) => break,
            }
        }
        Ok(full)
    }

    /// Returns the shapes of the outputs of a call, as far as those of the inputs, and known values, determine
    /// them. Attrs that are missing count as those of a call with `float` inputs.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the shapes do not fit.
    pub fn infer_shapes(
        &self,
        attrs: &Attrs,
        inputs: &[PartialShape],
        values: &[Option<Tensor>],
    ) -> Result<Vec<PartialShape>> {
        let mut attrs = attrs.clone();
        for attr in &self.def.attrs {
            let missing = attrs.get(&attr.name).is_none();
            let default = match (&attr.default, attr.ty, attr.is_list) {
                (Some(default), ..) => default.clone(),
                (None, AttrType::Type, false) => AttrValue::Type(DType::Float),
                (None, AttrType::Int, false) => AttrValue::Int(inputs.len() as i64),
                _ => continue,
            };
            if missing {
                attrs.set(attr.name.clone(), default);
            }
        }
        let n = self.def.output_dtypes(&attrs)?.len();
        let Some(op) = crate::registry().op(&self.def.name) else {
            return Ok(vec![PartialShape::unknown(); n]);
        };
        let dtypes = self.def.input_dtypes(&attrs)?;
        let mut ctx = ShapeCtx::new(&attrs, inputs, &dtypes, values, n);
        match self.def.class() {
            NodeClass::Identity => {
                (0..n).for_each(|i| ctx.set(i, inputs.get(i).cloned().unwrap_or_default()));
            }
            _ => op
                .infer_shapes(&mut ctx)
                .map_err(|e| e.at_node(op.name, op.name))?,
        }
        Ok(ctx.into_outputs())
    }

    /// Returns whether only a graph can run the call: it calls functions, or has no kernel.
    pub fn needs_graph(&self, attrs: &Attrs) -> bool {
        let is_function = |value: &AttrValue| matches!(value, AttrValue::Func(_));
        let calls = |value: &AttrValue| match value {
            AttrValue::List(list) => list.iter().any(is_function),
            value => is_function(value),
        };
        let has_kernel = || {
            let is_forwarded = matches!(self.def.class(), NodeClass::Identity | NodeClass::NoOp);
            is_forwarded || crate::registry().has_kernel(&self.def.name)
        };
        let needs_library = self.def.class() == NodeClass::DatasetToGraph;
        self.function.is_some()
            || needs_library
            || attrs.iter().any(|(_, value)| calls(value))
            || !has_kernel()
    }
}

impl EagerCall {
    /// Returns the positions of the outputs that other tasks compute, with the names of their devices.
    pub fn remote_outputs(&self) -> Vec<(usize, String)> {
        match &self.body {
            Body::Kernel(_) => Vec::new(),
            Body::Graph(call) => call.remote_outputs(),
        }
    }

    /// Returns the dtypes of the outputs.
    #[inline]
    pub fn outputs(&self) -> &[DType] {
        &self.outputs
    }

    /// Runs the call, which may overwrite tensors that only `inputs` own; what it does not use stays there.
    ///
    /// # Errors
    /// Those of the kernel; of the first node that fails, for a function; CANCELLED.
    #[inline]
    pub fn run(
        &self,
        inputs: &mut CallInputs,
        cancel: Option<&CancelToken>,
    ) -> Result<CallOutputs> {
        match &self.body {
            Body::Kernel(op) if op.cost() == Cost::Async => self.wait_for(op, inputs, cancel),
            Body::Kernel(op) => {
                let mut outputs: SmallVec<[Value; 2]> = SmallVec::new();
                outputs.resize(self.outputs.len(), Value::Empty);
                let machine = &*self.machine;
                let services = StepServices {
                    par: &*machine.pool,
                    cancel: cancel.unwrap_or(&machine.cancel),
                    resources: &machine.resources,
                    functions: &(),
                    step_id: 0,
                };
                op.run(inputs, &mut outputs, &services)?;
                Ok(outputs.into_iter().filter_map(Value::into_tensor).collect())
            }
            Body::Graph(call) => {
                let tensors = inputs.drain(..).filter_map(Value::into_tensor).collect();
                call.run(tensors, cancel)
            }
        }
    }

    /// As [`EagerCall::run`]; the options of a function's step are those of a graph's.
    ///
    /// # Errors
    /// As [`EagerCall::run`].
    pub fn run_with(&self, inputs: &mut CallInputs, options: &RunOptions) -> Result<CallOutputs> {
        match &self.body {
            Body::Graph(call) => {
                let tensors = inputs.drain(..).filter_map(Value::into_tensor).collect();
                call.run_with(tensors, options)
            }
            Body::Kernel(_) => self.run(inputs, options.cancel.as_ref()),
        }
    }

    /// Runs an asynchronous kernel and waits for its end.
    #[cold]
    fn wait_for(
        &self,
        op: &PreparedOp,
        inputs: &mut CallInputs,
        cancel: Option<&CancelToken>,
    ) -> Result<CallOutputs> {
        let tensors = inputs.drain(..).filter_map(Value::into_tensor).collect();
        let machine = &self.machine;
        let cancel = cancel.unwrap_or(&machine.cancel).clone();
        let services = StepServices {
            par: &*machine.pool,
            cancel: &cancel,
            resources: &machine.resources,
            functions: &(),
            step_id: 0,
        };
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = move |result| {
            // The receiver waits until it has the result.
            let _ = sender.send(result);
        };
        let call = AsyncCall::new(tensors, cancel.clone(), done);
        op.kernel().start_with(call, &services);
        let result = receiver.recv();
        let outputs: Vec<Tensor> = result.map_err(|_| internal!("the kernel has no result"))??;
        Ok(outputs.into_iter().collect())
    }

    /// Returns the shapes of the outputs, as far as those of the inputs determine them.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the shapes of the inputs do not fit.
    pub fn shapes(
        &self,
        inputs: &[PartialShape],
        values: &[Option<Tensor>],
    ) -> Result<Vec<PartialShape>> {
        match &self.body {
            Body::Kernel(op) => op.shapes(inputs, values),
            Body::Graph(_) => Ok(vec![PartialShape::unknown(); self.outputs.len()]),
        }
    }
}
