//! [`SessionFunctions`]: functions that kernels of a session call, where their nodes are on several tasks.

use super::{RunOptions, Session, SessionOptions, VersionedGraph};
use crate::Callable;
use crate::cluster::Cluster;
use ferroflow_base::{Result, cancelled};
use ferroflow_compile::Lower;
use ferroflow_graph::{Graph, Library, NodeClass, Signature, export_graph, referred_functions};
use ferroflow_model::proto::{GraphDef, NodeDef, attr_value};
use ferroflow_opdef::{FunctionTasks, StepServices, has_resource_of};
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

/// The functions of a session whose devices several tasks have.
pub(super) struct SessionFunctions {
    graph: Arc<RwLock<VersionedGraph>>,
    /// Those of the session, with resources of their own in place of the session's, which keep this.
    options: SessionOptions,
    cluster: Arc<dyn Cluster>,
    /// Whether a function has a RemoteCall, itself or in functions that it names.
    has_remote_call: Mutex<FxHashMap<String, bool>>,
    /// The calls that were compiled.
    calls: Mutex<FxHashMap<CallKey, Arc<Call>>>,
}

/// A function, and for each argument the device of the resource that it is the handle of, if another task has it.
type CallKey = (String, Vec<String>);

/// A function as a session's graph.
struct Call {
    session: Session,
    callable: Arc<Callable>,
}

/// What kernels have of a session's functions, as long as the session exists.
struct Handle(Weak<SessionFunctions>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SessionFunctions {
    /// Lets the kernels of a session that spans tasks call functions over these; `None` if it does not, or is part of
    /// another one.
    pub(super) fn open(
        graph: &Arc<RwLock<VersionedGraph>>,
        options: &SessionOptions,
    ) -> Option<Arc<Self>> {
        let cluster = options.cluster.clone()?;
        if options.resources.function_tasks().is_some() {
            return None;
        }
        let functions = Arc::new(SessionFunctions {
            graph: graph.clone(),
            options: SessionOptions {
                resources: Default::default(),
                ..options.clone()
            },
            cluster,
            has_remote_call: Mutex::default(),
            calls: Mutex::default(),
        });
        let handle = Handle(Arc::downgrade(&functions));
        options.resources.set_function_tasks(Arc::new(handle));
        Some(functions)
    }

    fn library(&self) -> Arc<Library> {
        let graph = self.graph.read().unwrap_or_else(PoisonError::into_inner);
        graph.state.graph().library().clone()
    }

    fn has_remote_call(&self, function: &str) -> bool {
        if let Some(known) = locked(&self.has_remote_call).get(function) {
            return *known;
        }
        let found = find_remote_call(&self.library(), function, &mut FxHashSet::default());
        locked(&self.has_remote_call).insert(function.to_string(), found);
        found
    }

    fn is_elsewhere(&self, device: &str) -> bool {
        let devices = &self.options.devices.names;
        let found = devices.iter().position(|name| name == device);
        found.is_some_and(|found| self.cluster.task_of(found) != self.cluster.own_task())
    }

    /// The compiled call of a function with such arguments.
    fn prepared(
        &self,
        function: &str,
        args: &[Tensor],
        services: &StepServices,
    ) -> Result<Arc<Call>> {
        let key = (function.to_string(), args.iter().map(device_of).collect());
        if let Some(known) = locked(&self.calls).get(&key) {
            return Ok(known.clone());
        }
        let (graph, signature) = as_graph(&self.library().graph(function)?, &key.1)?;
        let mut options = self.options.clone();
        options.resources = services.resources.fork_session();
        options.compile.lower = Lower::Always;
        options.freeze_variables = false;
        options.check_feed_shapes = false;
        let session = Session::create(graph, options)?;
        let callable = session.callable(&signature)?;
        let call = Arc::new(Call { session, callable });
        locked(&self.calls).insert(key, call.clone());
        Ok(call)
    }
}

impl FunctionTasks for Handle {
    fn spans(&self, function: &str, args: &[Tensor]) -> bool {
        self.0.upgrade().is_some_and(|functions| {
            functions.has_remote_call(function)
                || has_resource_of(args, |device| functions.is_elsewhere(device))
        })
    }

    fn call(
        &self,
        function: &str,
        args: Vec<Tensor>,
        services: &StepServices,
    ) -> Result<Vec<Tensor>> {
        let functions = self.0.upgrade();
        let functions = functions.ok_or_else(|| cancelled!("the session was closed"))?;
        let call = functions.prepared(function, &args, services)?;
        let options = RunOptions {
            cancel: Some(services.cancel.clone()),
            ..Default::default()
        };
        call.session.run_callable(&call.callable, args, &options)
    }
}

/// The device of the resource that a tensor is the handle of, if another task named it.
fn device_of(arg: &Tensor) -> String {
    let handles = match arg.dtype() {
        DType::Resource => arg.resources().ok(),
        _ => None,
    };
    let first = handles.and_then(|handles| handles.first());
    let origin = first.and_then(|handle| handle.origin.as_ref());
    origin.map(|o| o.device.clone()).unwrap_or_default()
}

fn find_remote_call(library: &Arc<Library>, function: &str, seen: &mut FxHashSet<String>) -> bool {
    if !seen.insert(function.to_string()) {
        return false;
    }
    let Ok(graph) = library.graph(function) else {
        return false;
    };
    graph.iter().any(|(_, node)| {
        node.class() == NodeClass::RemoteCall
            || referred_functions(node).any(|inner| find_remote_call(library, inner, seen))
    })
}

/// The body of a function as the graph of a client, whose arguments are on these devices.
fn as_graph(body: &Graph, places: &[String]) -> Result<(GraphDef, Signature)> {
    let mut def = export_graph(body)?;
    let index = |node: &NodeDef| {
        let attr = node.attr.get("index").and_then(|a| a.value.as_ref());
        match attr {
            Some(attr_value::Value::I(i)) => usize::try_from(*i).unwrap_or(0),
            _ => 0,
        }
    };
    let (mut feeds, mut fetches) = (Vec::new(), Vec::new());
    for node in &mut def.node {
        match node.op.as_str() {
            "_Arg" => {
                let at = index(node);
                feeds.push((at, format!("{}:0", node.name)));
                node.op = "Placeholder".to_string();
                node.device = places.get(at).cloned().unwrap_or_default();
                let dtype = node.attr.remove("T");
                node.attr.clear();
                node.attr
                    .extend(dtype.map(|dtype| ("dtype".to_string(), dtype)));
            }
            "_Retval" => {
                let value = node.input.first().cloned().unwrap_or_default();
                let value = match value.contains(':') {
                    true => value,
                    false => format!("{value}:0"),
                };
                fetches.push((index(node), value));
            }
            _ => {}
        }
    }
    def.node.retain(|node| node.op != "_Retval");
    let in_order = |mut names: Vec<(usize, String)>| -> Vec<String> {
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect()
    };
    let targets = body.targets().iter();
    Ok((
        def,
        Signature {
            feeds: in_order(feeds),
            fetches: in_order(fetches),
            targets: targets.map(|id| body.node(*id).name.clone()).collect(),
        },
    ))
}
