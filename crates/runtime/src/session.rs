//! [`Session`]: a graph that can be run.

use crate::callable::{Callable, Compiled, Feed};
use crate::engine::Engine;
use crate::freeze::{Frozen, freeze};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_compile::{ExpandedGraph, Options, compile, expand, optimize};
use ferroflow_executor::{Executor, RunArgs, TraceSink};
use ferroflow_graph::{Graph, ShapeMap, Signature, import_graph, infer_shapes, prune};
use ferroflow_model::GraphFile;
use ferroflow_opdef::{Registry, Resources};
use ferroflow_sync::{CancelToken, Pool};
use ferroflow_tensor::Tensor;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The registry of all ops.
pub fn registry() -> &'static Registry {
    ferroflow_ops::registry()
}

/// How a session works.
#[derive(Clone)]
pub struct SessionOptions {
    /// Threads that compute, the caller of `run` included; 0 means all processors.
    pub threads: usize,
    /// Which compile passes run.
    pub compile: Options,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            threads: 0,
            compile: Options::all(),
        }
    }
}

/// Options of one run.
#[derive(Clone, Default)]
pub struct RunOptions {
    /// Ends the step with DEADLINE_EXCEEDED after this time.
    pub timeout: Option<Duration>,
    /// Ends the step with CANCELLED when cancelled.
    pub cancel: CancelToken,
    /// Receives a span for every kernel call.
    pub trace: Option<Arc<dyn TraceSink>>,
}

impl RunOptions {
    /// The token that ends the step: the caller's, and the deadline.
    pub(crate) fn token(&self) -> CancelToken {
        match self.timeout {
            Some(timeout) => self.cancel.with_timeout(timeout),
            None => self.cancel.clone(),
        }
    }
}

/// A graph with a thread pool, and the compiled form of every signature it was run with.
///
/// `run` may be called from many threads at once.
///
/// ```
/// use ferroflow_runtime::{Session, SessionOptions, Tensor};
/// let graph = "
///     node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
///     node { name: 'y' op: 'Identity' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }";
/// let session = Session::from_text(graph, SessionOptions::default()).unwrap();
/// let y = session.run(&[("x:0", Tensor::scalar(2.0f32))], &["y:0"], &[]).unwrap();
/// assert_eq!(y[0].to_scalar::<f32>().unwrap(), 2.0);
/// ```
pub struct Session {
    graph: Graph,
    pool: Arc<Pool>,
    resources: Arc<Resources>,
    options: Options,
    compiled: Compiled,
}

impl Session {
    /// Opens a frozen graph, binary or text.
    pub fn open(path: &Path, options: SessionOptions) -> Result<Session> {
        let file = GraphFile::open(path)?;
        let graph = import_graph(&file.graph, file.file.as_ref(), registry())?;
        Ok(Self::new(graph, options))
    }

    /// A session over a `GraphDef` in text form.
    pub fn from_text(text: &str, options: SessionOptions) -> Result<Session> {
        let graph = import_graph(&ferroflow_model::graph_from_text(text)?, None, registry())?;
        Ok(Self::new(graph, options))
    }

    /// A session over a binary `GraphDef` in memory.
    pub fn from_bytes(bytes: Vec<u8>, options: SessionOptions) -> Result<Session> {
        let file = GraphFile::from_bytes(bytes)?;
        Ok(Self::new(
            import_graph(&file.graph, None, registry())?,
            options,
        ))
    }

    /// A session over a graph.
    pub fn new(graph: Graph, options: SessionOptions) -> Session {
        let threads = if options.threads == 0 {
            Pool::available_threads()
        } else {
            options.threads
        };
        Session {
            graph,
            pool: Arc::new(Pool::new(threads)),
            resources: Arc::default(),
            options: options.compile,
            compiled: Compiled::default(),
        }
    }

    /// A session that has one signature, compiled, and no graph.
    pub(crate) fn of_callable(callable: Callable, options: SessionOptions) -> Result<Session> {
        let session = Session::new(Graph::new(), options);
        let signature = callable.signature.clone();
        session.compiled.get_or_make(&signature, || Ok(callable))?;
        Ok(session)
    }

    pub(crate) fn compile_options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn resources(&self) -> &Resources {
        &self.resources
    }

    /// The graph as it was imported.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Feeds tensors by name, runs what the fetches and targets need, returns the fetches.
    pub fn run(
        &self,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<Vec<Tensor>> {
        self.run_with(feeds, fetches, targets, &RunOptions::default())
    }

    /// [`Session::run`] with a timeout, a cancellation token or a trace.
    pub fn run_with(
        &self,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        targets: &[&str],
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        let args = feeds.iter().map(|(_, t)| t.clone()).collect();
        if let Some(callable) = self.compiled.by_names(feeds, fetches, targets) {
            return self.call(&callable, args, options);
        }
        let names = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
        let signature = Signature {
            feeds: feeds.iter().map(|(name, _)| name.to_string()).collect(),
            fetches: names(fetches),
            targets: names(targets),
        };
        let callable = self.callable(&signature)?;
        self.compiled.remember(&callable);
        self.call(&callable, args, options)
    }

    /// The part of the graph that a signature needs.
    pub(crate) fn expanded(&self, signature: &Signature) -> Result<ExpandedGraph> {
        expand(prune(&self.graph, signature, registry())?, registry())
    }

    /// The compiled form of a signature, from the cache or new.
    pub fn callable(&self, signature: &Signature) -> Result<Arc<Callable>> {
        self.compiled.get_or_make(signature, || {
            let mut expanded = self.expanded(signature)?;
            let feeds = Feed::all(expanded.graph(), signature);
            let frozen = match self.options.optimize {
                true => freeze(&mut expanded, registry(), &self.resources)?,
                false => Frozen::default(),
            };
            let plan = compile(expanded.on_one_device(), registry(), &self.options)?;
            let engine = Engine::One(Executor::new(Arc::new(plan)));
            Ok(Callable::new(engine, frozen, signature.clone(), feeds))
        })
    }

    /// Runs a compiled signature; `args` are the feeds in the signature's order.
    pub fn call(
        &self,
        callable: &Callable,
        args: Vec<Tensor>,
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        callable.check_feeds(&args, false)?;
        let engine = match callable.thawed.get() {
            Some(thawed) => thawed,
            None if callable.frozen.holds() => &callable.engine,
            None => self.thaw(callable)?,
        };
        engine.run(RunArgs {
            args,
            pool: &self.pool,
            resources: &self.resources,
            cancel: &options.token(),
            trace: options.trace.as_ref(),
        })
    }

    /// The executor of a plan that reads its variables in every step.
    #[cold]
    fn thaw<'a>(&self, callable: &'a Callable) -> Result<&'a Engine> {
        let _one = self.compiled.alone();
        if let Some(thawed) = callable.thawed.get() {
            return Ok(thawed);
        }
        let placed = self.expanded(&callable.signature)?.on_one_device();
        let plan = compile(placed, registry(), &self.options)?;
        Ok(callable
            .thawed
            .get_or_init(|| Engine::One(Executor::new(Arc::new(plan)))))
    }

    /// The graph of a signature after pass `after` (or after the last one), with its shapes.
    pub fn graph_after(
        &self,
        signature: &Signature,
        after: Option<&str>,
    ) -> Result<(Graph, ShapeMap)> {
        let mut expanded = self.expanded(signature)?;
        if self.options.optimize {
            freeze(&mut expanded, registry(), &self.resources)?;
        }
        let mut seen = None;
        let placed = expanded.on_one_device();
        let optimized = optimize(placed, registry(), &self.options, &mut |name, g| {
            if after == Some(name) {
                seen = Some(g.clone());
            }
        })?;
        let graph = match (after, seen) {
            (None, _) => optimized.graph().clone(),
            (Some(_), Some(seen)) => seen,
            (Some(name), None) => {
                let names: Vec<&str> = crate::PIPELINE.iter().map(|p| p.name).collect();
                return Err(invalid_argument!(
                    "no pass '{name}' ran; there are: {}",
                    names.join(", ")
                ));
            }
        };
        let shapes = infer_shapes(&graph, registry())?;
        Ok((graph, shapes))
    }
}
