//! `TF_Session`: running a graph (`tensorflow/c/c_api.h`).

use crate::graph::{GraphState, TF_Graph, TF_Operation, TF_Output};
use crate::guard::{delete, guard, handle, list, list_mut, shared, text};
use crate::run_metadata::Observed;
use crate::session_options::{TF_DeviceList, TF_SessionOptions};
use crate::status::with_node;
use crate::{TF_Buffer, TF_Status, TF_Tensor, placement_log};
use ferroflow_base::{Code, Result, Status, failed_precondition, invalid_argument, not_found};
use ferroflow_graph::Output;
use ferroflow_model::{SavedModelFile, proto};
use ferroflow_remote::{GrpcSession, GrpcStep};
use ferroflow_runtime::{Callable, SavedModel, Session, Signature, Tensor};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// A session over a graph, which may grow between runs.
pub struct TF_Session {
    pub(crate) graph: Arc<GraphState>,
    engine: Engine,
    /// What of the graph the session has.
    seen: Mutex<Seen>,
    /// The signatures that were run; the most recent ones are at the front.
    callables: RwLock<Callables>,
    is_closed: AtomicBool,
    /// The time that a step may take, unless its own options limit it.
    pub(crate) step_limit: Option<Duration>,
    /// The names of the devices of a session of this process.
    devices: Vec<String>,
    logs_placement: bool,
}

/// The session that runs the graph.
enum Engine {
    Graph(Session),
    SavedModel(SavedModel),
    /// One that the master of another process runs.
    Grpc(GrpcSession),
}

/// How far the graph has been taken over.
#[derive(Default)]
struct Seen {
    /// [`GraphState::version`] at the time.
    version: usize,
    n_nodes: usize,
    n_mutations: usize,
    n_functions: usize,
    session_version: i64,
    /// The reason why no step may run any more.
    changed: Option<String>,
}

/// Numbers of feeds and of fetches; then feeds, fetches and targets, a word each.
type Key = SmallVec<[u64; 12]>;

#[derive(Default)]
struct Callables {
    recent: Vec<(Key, Arc<Callable>)>,
    all: HashMap<Key, Arc<Callable>>,
}

/// Signatures that are found by comparing keys.
const MAX_RECENT: usize = 8;

/// What a run feeds, fetches and targets.
pub(crate) struct Request<'a> {
    pub(crate) inputs: &'a [TF_Output],
    pub(crate) outputs: &'a [TF_Output],
    pub(crate) targets: &'a [*const TF_Operation],
}

impl Request<'_> {
    /// Arrays and the numbers of their elements.
    ///
    /// # Safety
    /// The arrays are NULL or have that many elements, which live as long as the request.
    pub(crate) unsafe fn new(
        inputs: (*const TF_Output, c_int),
        outputs: (*const TF_Output, c_int),
        targets: (*const *const TF_Operation, c_int),
    ) -> Self {
        // SAFETY: as this function's.
        unsafe {
            Request {
                inputs: list(inputs.0, inputs.1),
                outputs: list(outputs.0, outputs.1),
                targets: list(targets.0, targets.1),
            }
        }
    }

    /// # Safety
    /// The nodes are NULL or live.
    unsafe fn key(&self, graph: &GraphState) -> Result<Key> {
        let mut key = Key::new();
        key.push((self.inputs.len() as u64) << 32 | self.outputs.len() as u64);
        for output in self.inputs.iter().chain(self.outputs) {
            // SAFETY: as this function's.
            let (oper, output) = unsafe { (shared(output.oper)?, output.output()?) };
            if !oper.is_in(graph) {
                return Err(foreign(oper, output));
            }
            key.push((output.node.index() as u64) << 32 | u64::from(output.slot));
        }
        for target in self.targets {
            // SAFETY: as this function's.
            let target = unsafe { shared(*target) }?;
            if !target.is_in(graph) {
                return Err(invalid_argument!(
                    "Tensor {}, specified in target_nodes was not found in the Graph",
                    target.name()
                ));
            }
            key.push(target.id.index() as u64);
        }
        Ok(key)
    }

    /// Fails if an output does not exist.
    ///
    /// # Safety
    /// The nodes live.
    unsafe fn check(&self, graph: &GraphState) -> Result<()> {
        let inner = graph.lock();
        for output in self.inputs.iter().chain(self.outputs) {
            // SAFETY: as this function's.
            inner.graph.dtype(unsafe { output.output() }?)?;
        }
        Ok(())
    }

    /// # Safety
    /// The nodes live.
    pub(crate) unsafe fn signature(&self) -> Result<Signature> {
        let names = |outputs: &[TF_Output]| -> Result<Vec<String>> {
            // SAFETY: as this function's.
            let name = |o: &TF_Output| unsafe {
                Ok(format!("{}:{}", shared(o.oper)?.name(), o.output()?.slot))
            };
            outputs.iter().map(name).collect()
        };
        // SAFETY: as this function's.
        let target = |t: &*const TF_Operation| unsafe { Ok(shared(*t)?.name().to_string()) };
        Ok(Signature {
            feeds: names(self.inputs)?,
            fetches: names(self.outputs)?,
            targets: self.targets.iter().map(target).collect::<Result<_>>()?,
        })
    }
}

impl TF_Session {
    pub(crate) fn new(graph: &Arc<GraphState>, options: &TF_SessionOptions) -> Result<TF_Session> {
        let engine = match options.master()? {
            Some(target) => Engine::Grpc(GrpcSession::new(target, options.config().clone())?),
            None => {
                let empty = proto::GraphDef::default();
                Engine::Graph(Session::create(empty, options.to_engine()?)?)
            }
        };
        Ok(Self::with(graph, engine, Seen::default(), options))
    }

    /// A session of a SavedModel whose nodes `graph` has.
    fn of_saved_model(
        graph: &Arc<GraphState>,
        model: SavedModel,
        options: &TF_SessionOptions,
    ) -> TF_Session {
        let inner = graph.lock();
        let seen = Seen {
            version: graph.version(),
            n_nodes: inner.graph.len(),
            n_functions: inner.graph.functions().len(),
            ..Default::default()
        };
        drop(inner);
        Self::with(graph, Engine::SavedModel(model), seen, options)
    }

    fn with(
        graph: &Arc<GraphState>,
        engine: Engine,
        seen: Seen,
        options: &TF_SessionOptions,
    ) -> TF_Session {
        TF_Session {
            graph: graph.clone(),
            engine,
            seen: Mutex::new(seen),
            callables: RwLock::default(),
            is_closed: AtomicBool::new(false),
            step_limit: options.step_limit(),
            devices: options.devices(),
            logs_placement: options.config().log_device_placement,
        }
    }

    /// The session, or the one of another process.
    pub(crate) fn session(&self) -> std::result::Result<&Session, &GrpcSession> {
        match &self.engine {
            Engine::Graph(session) => Ok(session),
            Engine::SavedModel(model) => Ok(model.session()),
            Engine::Grpc(session) => Err(session),
        }
    }

    pub(crate) fn devices(&self) -> Result<TF_DeviceList> {
        TF_DeviceList::of_session(self.session().err(), &self.devices)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Extends the session by the nodes that were added to the graph since the last run.
    pub(crate) fn extend(&self) -> Result<()> {
        let mut seen = self.seen();
        if seen.version != self.graph.version() || seen.version == 0 {
            let inner = self.graph.lock();
            let graph = &inner.graph;
            for (id, what) in graph.mutations().iter().skip(seen.n_mutations) {
                if id.index() < seen.n_nodes {
                    let name = graph.node(*id).map_or("", |n| &n.name);
                    seen.changed.get_or_insert(format!(
                        "Operation '{name}' was changed by {what} after it was run by a session. This \
                         mutation will have no effect, and will trigger an error in the future. Either \
                         don't modify nodes after running them or create a new session."
                    ));
                }
            }
            seen.n_mutations = graph.mutations().len();
            let n_functions = graph.functions().len();
            if graph.len() > seen.n_nodes || n_functions > seen.n_functions {
                let mut def = graph.graph_def_from(seen.n_nodes)?;
                if n_functions > seen.n_functions {
                    def.library = Some(graph.library());
                }
                match self.session() {
                    Ok(own) => {
                        let new = self.logs_placement.then(|| def.node.clone());
                        seen.session_version = own.extend(def, seen.session_version)?;
                        placement_log::log(own, &new.unwrap_or_default());
                    }
                    Err(grpc) => grpc.extend(def)?,
                }
                (seen.n_nodes, seen.n_functions) = (graph.len(), n_functions);
            }
            seen.version = self.graph.version();
        }
        match &seen.changed {
            Some(text) => Err(failed_precondition!("{text}")),
            None => Ok(()),
        }
    }

    /// The compiled form of a signature.
    ///
    /// # Safety
    /// The nodes of the request live.
    unsafe fn callable(&self, session: &Session, request: &Request) -> Result<Arc<Callable>> {
        // SAFETY: as this function's.
        let key = unsafe { request.key(&self.graph) }?;
        let callables = self
            .callables
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let recent = callables.recent.iter().find(|(k, _)| *k == key);
        if let Some((_, callable)) = recent {
            return Ok(callable.clone());
        }
        if let Some(callable) = callables.all.get(&key) {
            return Ok(callable.clone());
        }
        drop(callables);
        // SAFETY: as this function's.
        let signature = unsafe {
            request.check(&self.graph)?;
            request.signature()?
        };
        signature.check_ends()?;
        let callable = session.callable(&signature)?;
        let mut callables = self
            .callables
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if callables.recent.len() < MAX_RECENT {
            callables.recent.push((key.clone(), callable.clone()));
        }
        callables.all.insert(key, callable.clone());
        Ok(callable)
    }

    /// Runs a step; returns what was fetched, and the report if one is wanted.
    ///
    /// # Safety
    /// The nodes and tensors live.
    unsafe fn run(
        &self,
        request: &Request,
        values: &[*const TF_Tensor],
        mut observed: Observed,
    ) -> Result<(Vec<Tensor>, Option<proto::RunMetadata>)> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        self.extend()?;
        // SAFETY: as this function's.
        let args = values.iter().map(|v| unsafe { shared(*v) }?.to_engine());
        let session = match self.session() {
            Ok(session) => session,
            Err(grpc) => {
                // SAFETY: as this function's.
                let signature = unsafe { request.signature() }?;
                let mut step = GrpcStep::new(signature, args.collect::<Result<_>>()?);
                step.options = observed.message;
                let (results, metadata) = grpc.run(step)?;
                return Ok((results, Some(metadata)));
            }
        };
        observed.limit(self.step_limit);
        // SAFETY: as this function's.
        let callable = unsafe { self.callable(session, request) }.map_err(with_node)?;
        let args = args.collect::<Result<Vec<_>>>()?;
        let result = session.run_callable(&callable, args, &observed.options);
        // SAFETY: as this function's.
        let result = result.map_err(|e| unsafe { self.explained(e, request, values) })?;
        // SAFETY: as this function's.
        let metadata = observed.metadata(session, || unsafe { request.signature() })?;
        Ok((result, metadata))
    }

    /// The error of a step in TensorFlow's words.
    ///
    /// # Safety
    /// The nodes and tensors live.
    unsafe fn explained(
        &self,
        error: Status,
        request: &Request,
        values: &[*const TF_Tensor],
    ) -> Status {
        let inner = self.graph.lock();
        for (i, (input, value)) in request.inputs.iter().zip(values).enumerate() {
            // SAFETY: as this function's.
            let found = unsafe { (input.output(), shared(*value).and_then(|v| v.to_engine())) };
            let (Ok(output), Ok(value)) = found else {
                continue;
            };
            if let Ok(declared) = inner.graph.dtype(output)
                && declared != value.dtype()
            {
                return invalid_argument!(
                    "Expects arg[{i}] to be {declared} but {} is provided",
                    value.dtype()
                );
            }
        }
        with_node(error)
    }
}

#[cold]
fn foreign(oper: &TF_Operation, output: Output) -> Status {
    invalid_argument!(
        "Tensor {}:{}, specified in either feed_devices or fetch_devices was not found in the Graph",
        oper.name(),
        output.slot
    )
}

#[cold]
fn closed() -> Status {
    Status::new(Code::Cancelled, "Session has been closed.")
}

/// Creates a session over a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewSession(
    graph: *mut TF_Graph,
    opts: *const TF_SessionOptions,
    status: *mut TF_Status,
) -> *mut TF_Session {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (graph, options) = unsafe { (shared(graph)?, shared(opts)?) };
        Ok(handle(TF_Session::new(&graph.state, options)?))
    })
}

/// Ends the session's steps; later runs are errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_CloseSession(session: *mut TF_Session, status: *mut TF_Status) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let session = unsafe { shared(session) }?;
        session.is_closed.store(true, Ordering::Release);
        match session.session() {
            Ok(own) => own.close_in_process(),
            Err(grpc) => grpc.close()?,
        }
        Ok(())
    });
}

/// Deletes a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteSession(session: *mut TF_Session, status: *mut TF_Status) {
    // SAFETY: the contract of the header.
    unsafe { delete(session) };
    guard(status, (), || Ok(()));
}

/// Extends the session by the nodes that were added to its graph, as a run would.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ExtendSession(session: *mut TF_Session, status: *mut TF_Status) {
    // SAFETY: the contract of the header.
    guard(status, (), || unsafe { shared(session) }?.extend());
}

/// Runs what the outputs and targets need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SessionRun(
    session: *mut TF_Session,
    run_options_buffer: *const TF_Buffer,
    inputs: *const TF_Output,
    input_values: *const *const TF_Tensor,
    ninputs: c_int,
    outputs: *const TF_Output,
    output_values: *mut *mut TF_Tensor,
    noutputs: c_int,
    target_opers: *const *const TF_Operation,
    ntargets: c_int,
    run_metadata: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let to = unsafe { list_mut(output_values, noutputs) };
        to.fill(std::ptr::null_mut());
        // SAFETY: the contract of the header.
        let (session, request, values, observed) = unsafe {
            (
                shared(session)?,
                Request::new(
                    (inputs, ninputs),
                    (outputs, noutputs),
                    (target_opers, ntargets),
                ),
                list(input_values, ninputs),
                Observed::new(run_options_buffer, run_metadata)?,
            )
        };
        // SAFETY: the contract of the header.
        unsafe {
            let (results, metadata) = session.run(&request, values, observed)?;
            give(results, to)?;
            report(metadata, run_metadata)
        }
    });
}

/// Hands results to the client: all or none.
///
/// # Safety
/// `to` holds no tensors.
pub(crate) unsafe fn give(results: Vec<Tensor>, to: &mut [*mut TF_Tensor]) -> Result<()> {
    let mut tensors: SmallVec<[TF_Tensor; 4]> = SmallVec::new();
    for result in results {
        tensors.push(TF_Tensor::of_engine(result)?);
    }
    for (to, tensor) in to.iter_mut().zip(tensors) {
        *to = handle(tensor);
    }
    Ok(())
}

/// Writes the report of a step, if the client wants it and there is one.
///
/// # Safety
/// The buffer is NULL or valid.
pub(crate) unsafe fn report(
    metadata: Option<proto::RunMetadata>,
    to: *mut TF_Buffer,
) -> Result<()> {
    match metadata {
        // SAFETY: as this function's.
        Some(metadata) if !to.is_null() => unsafe { crate::buffer::fill_message(to, &metadata) },
        _ => Ok(()),
    }
}

/// Loads a SavedModel into an empty graph and creates a session over it, with variables restored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_LoadSessionFromSavedModel(
    session_options: *const TF_SessionOptions,
    run_options: *const TF_Buffer,
    export_dir: *const c_char,
    tags: *const *const c_char,
    tags_len: c_int,
    graph: *mut TF_Graph,
    meta_graph_def: *mut TF_Buffer,
    status: *mut TF_Status,
) -> *mut TF_Session {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (options, directory, graph) =
            unsafe { (shared(session_options)?, text(export_dir)?, shared(graph)?) };
        // SAFETY: the contract of the header.
        unsafe { Observed::new(run_options, std::ptr::null()) }?;
        if !graph.state.lock().graph.is_empty() {
            return Err(invalid_argument!("Graph is non-empty."));
        }
        // SAFETY: the contract of the header.
        let tags = unsafe { list(tags, tags_len) }
            .iter()
            .map(|t| unsafe { text(*t) });
        let tags = tags.collect::<Result<Vec<_>>>()?;
        let directory = std::path::Path::new(directory);
        if !SavedModelFile::is_in(directory) {
            return Err(not_found!(
                "Could not find SavedModel .pb or .pbtxt at supplied export directory path: {}. Check \
                 that the directory exists and that you have the right permissions for accessing it.",
                directory.display()
            ));
        }
        let (model, meta) =
            SavedModel::open_with_meta_graph(directory, &tags, options.to_engine()?)?;
        let registry = ferroflow_runtime::registry();
        let all = meta.graph_def.as_ref();
        let (def, _) =
            ferroflow_graph::supported_part(all.unwrap_or(&Default::default()), registry);
        graph
            .state
            .change(|g| g.import(&def, &Default::default()).map(drop))?;
        if !meta_graph_def.is_null() {
            // SAFETY: the contract of the header.
            unsafe { crate::buffer::fill_message(meta_graph_def, &meta)? };
        }
        if options.config().log_device_placement {
            placement_log::log(model.session(), &def.node);
        }
        Ok(handle(TF_Session::of_saved_model(
            &graph.state,
            model,
            options,
        )))
    })
}
