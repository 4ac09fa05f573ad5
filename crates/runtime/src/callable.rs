//! [`Callable`]: a compiled signature.

use crate::freeze::Frozen;
use crate::session::{Engine, registry};
use crate::shape_classes::ShapeClasses;
use ferroflow_base::{Result, Status, internal, invalid_argument};
use ferroflow_executor::{Executor, MemoryUse};
use ferroflow_graph::{
    ARG, Graph, Output, Signature, TensorConnection, infer_shapes, parse_tensor_name,
};
use ferroflow_opdef::{ArgDef, ArgType, Cost};
use ferroflow_program::Plan;
use ferroflow_program::bef::Port;
use ferroflow_tensor::{DType, PartialShape, Tensor};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// A compiled signature.
pub struct Callable {
    pub(crate) engine: Engine,
    /// Variables whose values are part of `engine`'s plan.
    pub(crate) frozen: Frozen,
    /// The plan that reads the variables, compiled when one of them has changed.
    pub(crate) thawed: OnceLock<Engine>,
    /// Plans for the shapes of its feeds, if the graph leaves some open.
    pub(crate) classes: Option<Box<ShapeClasses>>,
    pub(crate) signature: Signature,
    pub(crate) connections: Vec<TensorConnection>,
    feeds: Vec<Feed>,
    n_nodes: usize,
    /// Whether a step neither loops, nor calls, nor waits.
    is_straight: bool,
    /// Whether a feed may outlive a step.
    keeps_feeds: bool,
    /// Duration of the last step, nanoseconds.
    took: AtomicU64,
}

/// The callables of a session, by signature.
#[derive(Default)]
pub(crate) struct Compiled {
    by_signature: RwLock<FxHashMap<Signature, Arc<Callable>>>,
    /// The first callables that were run by name; comparing names costs less than building and hashing a
    /// signature.
    by_names: RwLock<Vec<Arc<Callable>>>,
    /// Serializes compilations: two at a time would need twice the memory.
    compiling: Mutex<()>,
}

impl Compiled {
    pub(crate) fn get(&self, signature: &Signature) -> Option<Arc<Callable>> {
        let compiled = self.by_signature.read();
        let compiled = compiled.unwrap_or_else(PoisonError::into_inner);
        compiled.get(signature).cloned()
    }

    /// Returns the remembered callable whose signature has these names in this order.
    pub(crate) fn by_names(
        &self,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        targets: &[&str],
    ) -> Option<Arc<Callable>> {
        let same = |names: &[String], other: &[&str]| {
            names.len() == other.len() && names.iter().zip(other).all(|(a, b)| a == b)
        };
        let fits = |c: &&Arc<Callable>| {
            let s = &c.signature;
            s.feeds.len() == feeds.len()
                && s.feeds.iter().zip(feeds).all(|(a, (b, _))| a == b)
                && same(&s.fetches, fetches)
                && same(&s.targets, targets)
        };
        let kept = self.by_names.read().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(fits).cloned()
    }

    /// Lets [`Compiled::by_names`] find a callable. Keeps the first [`MAX_BY_NAMES`], so that a session of
    /// many signatures does not take a write lock in every step.
    pub(crate) fn remember(&self, callable: &Arc<Callable>) {
        let is_full = |recent: &Vec<_>| recent.len() >= MAX_BY_NAMES;
        if is_full(&self.by_names.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut recent = self
            .by_names
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if !is_full(&recent) && !recent.iter().any(|c| Arc::ptr_eq(c, callable)) {
            recent.push(callable.clone());
        }
    }

    /// Returns the callable of `signature`; `make` compiles it if needed.
    pub(crate) fn get_or_make(
        &self,
        signature: &Signature,
        make: impl FnOnce() -> Result<Callable>,
    ) -> Result<Arc<Callable>> {
        if let Some(callable) = self.get(signature) {
            return Ok(callable);
        }
        let _one = self.alone();
        if let Some(callable) = self.get(signature) {
            return Ok(callable);
        }
        let callable = Arc::new(make()?);
        self.insert(&callable);
        Ok(callable)
    }

    pub(crate) fn insert(&self, callable: &Arc<Callable>) {
        let compiled = self.by_signature.write();
        let mut compiled = compiled.unwrap_or_else(PoisonError::into_inner);
        compiled.insert(callable.signature.clone(), callable.clone());
    }

    /// Waits for the compilation in progress; the next one waits for the guard.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.compiling
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Callables that are found by comparing names.
const MAX_BY_NAMES: usize = 8;

/// A feed: its name, and the dtype and shape that it must have.
pub(crate) struct Feed {
    name: String,
    dtype: DType,
    shape: PartialShape,
}

impl Feed {
    pub(crate) fn of_port(port: &Port) -> Feed {
        Feed {
            name: port.name.clone(),
            dtype: port.dtype,
            shape: port.shape.clone(),
        }
    }

    /// The feeds of a signature's pruned graph, in order.
    pub(crate) fn all(pruned: &Graph, signature: &Signature) -> Vec<Feed> {
        let shapes = infer_shapes(pruned, registry()).unwrap_or_default();
        let args = pruned.iter().filter(|(_, n)| n.op() == ARG);
        args.zip(&signature.feeds)
            .map(|((id, node), name)| Feed {
                name: name.clone(),
                dtype: node.outputs[0],
                shape: shapes.get(Output::new(id, 0)),
            })
            .collect()
    }
}

impl Callable {
    pub(crate) fn new(
        engine: Engine,
        frozen: Frozen,
        signature: Signature,
        feeds: Vec<Feed>,
    ) -> Self {
        let n_nodes = engine.plans().map(|p| p.nodes.len()).sum();
        let is_distributed = engine.is_distributed();
        let is_straight = engine.plans().all(is_straight);
        let keeps_feeds = is_distributed || engine.plans().any(keeps_values);
        Callable {
            n_nodes,
            is_straight,
            keeps_feeds,
            took: AtomicU64::new(u64::MAX),
            engine,
            frozen,
            thawed: OnceLock::new(),
            classes: None,
            signature,
            connections: Vec::new(),
            feeds,
        }
    }

    /// The callable of a graph where some tensors stand for others.
    pub(crate) fn connected(mut self, connections: Vec<TensorConnection>) -> Self {
        self.connections = connections;
        self
    }

    /// The callable with plans for the shapes of its feeds, if the graph leaves some open.
    pub(crate) fn with_classes(mut self) -> Self {
        let is_open = |feed: &Feed| feed.shape.to_full().is_none();
        self.classes = self.feeds.iter().any(is_open).then(Box::default);
        self
    }

    /// The number of plans that were made for shapes of the feeds, besides that for all shapes.
    pub fn num_shape_classes(&self) -> usize {
        let classes = self.classes.iter();
        classes.flat_map(|classes| classes.engines()).count()
    }

    /// The signature that it was compiled for.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The devices, by position, of the nodes that do not run on the first device; empty if one plan runs
    /// all nodes.
    pub fn placement(&self) -> FxHashMap<&str, usize> {
        let others = self.engine.local_parts().filter(|(device, _)| *device > 0);
        let named = others.flat_map(|(device, executor)| {
            let info = executor.plan().info.iter();
            info.map(move |i| (&*i.name, device))
        });
        named.collect()
    }

    /// The memory of the steps whose arguments had the shapes that came last: one item for each part that runs in this
    /// process and has nodes on its CPU. Empty before the first step.
    pub fn memory(&self) -> Vec<MemoryUse> {
        let classes = self.classes.iter();
        let classes = classes.flat_map(|classes| classes.engines());
        let thawed = self.thawed.get().into_iter().chain(classes);
        let engines = std::iter::once(&self.engine).chain(thawed);
        let last = |e: &Executor| e.memory().into_iter().next();
        let all = engines.flat_map(|engine| engine.executors().filter_map(last));
        all.collect()
    }

    /// Nodes of the plan, after optimization.
    pub fn num_nodes(&self) -> usize {
        self.n_nodes
    }

    /// Returns whether a step is expected to take microseconds: the last one did, and the plan has no loop,
    /// no call and no asynchronous kernel.
    pub fn is_short(&self) -> bool {
        !self.engine.is_distributed() && self.takes_at_most(SHORT)
    }

    /// Returns whether a step is expected to occupy threads so little that one which serves others may run
    /// it, though it may wait: the last one was fast, and the plan has no loop, no call and no asynchronous
    /// kernel.
    pub fn is_brief(&self) -> bool {
        self.takes_at_most(BRIEF)
    }

    fn takes_at_most(&self, limit: Duration) -> bool {
        self.is_straight && self.took.load(Ordering::Relaxed) <= limit.as_nanos() as u64
    }

    /// Returns whether a tensor that is fed may outlive the step, in a variable, queue, table or dataset. A
    /// client that shares its memory with tensors must not change it as long as they live.
    pub fn keeps_feeds(&self) -> bool {
        self.keeps_feeds
    }

    /// The dtypes of the feeds, in the signature's order.
    pub fn feed_dtypes(&self) -> impl Iterator<Item = DType> {
        self.feeds.iter().map(|feed| feed.dtype)
    }

    /// Records the duration of a step, for [`Callable::is_short`]. One that took much longer than those before it says
    /// little: other programs had its processor.
    pub fn note_time(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let believed = self.took.load(Ordering::Relaxed).saturating_mul(2);
        self.took
            .store(nanos.min(believed.max(SHORTEST)), Ordering::Relaxed);
    }

    /// Whether tensors have the shapes that the graph says, where it does.
    pub(crate) fn has_shapes_of(&self, args: &[Tensor]) -> bool {
        let mut pairs = self.feeds.iter().zip(args);
        pairs.all(|(feed, arg)| feed.shape.matches(arg.shape()))
    }

    /// Checks the tensors that are fed, in the signature's order.
    ///
    /// Without `strict`, shapes are not checked, and a wrong dtype is the error of TensorFlow's service,
    /// which finds it in the step.
    pub(crate) fn check_feeds(&self, args: &[Tensor], strict: bool) -> Result<()> {
        if args.len() != self.feeds.len() {
            return Err(invalid_argument!(
                "{} tensors are fed, the signature has {} feeds",
                args.len(),
                self.feeds.len()
            ));
        }
        for (feed, arg) in self.feeds.iter().zip(args) {
            if arg.dtype() != feed.dtype && !strict {
                return Err(other_dtype(&feed.name, arg.dtype(), feed.dtype));
            }
            if arg.dtype() != feed.dtype {
                return Err(invalid_argument!(
                    "feed {}: expected dtype {}, got {}",
                    feed.name,
                    feed.dtype,
                    arg.dtype()
                ));
            }
            if strict && !feed.shape.matches(arg.shape()) {
                return Err(invalid_argument!(
                    "Cannot feed value of shape {} for tensor '{}', which has shape {}",
                    arg.shape(),
                    feed.name,
                    feed.shape
                ));
            }
        }
        Ok(())
    }
}

/// The error of TensorFlow's service for a feed whose dtype is not its node's.
#[cold]
pub(crate) fn other_dtype(feed: &str, fed: DType, declared: DType) -> Status {
    let (node, slot) = parse_tensor_name(feed).unwrap_or((feed, 0));
    internal!(
        "Output 0 of type {fed} does not match declared output type {declared} for node {{{{node \
         _recv_{node}_{slot}}}}}"
    )
}

/// Steps are taken for at least this long, nanoseconds.
const SHORTEST: u64 = 1000;
/// A shorter step is not worth a switch of threads.
const SHORT: Duration = Duration::from_micros(50);
/// A shorter step may hold up what else its thread serves.
const BRIEF: Duration = Duration::from_millis(2);

fn is_straight(plan: &Plan) -> bool {
    plan.frames.len() == 1 && plan.nodes.iter().all(|n| n.cost != Cost::Async)
}

/// Whether a node of the plan, or of a function, may keep a tensor.
fn keeps_values(plan: &Plan) -> bool {
    let mut ops = plan.info.iter().map(|info| &*info.op);
    ops.any(keeps_inputs) || plan.functions.values().any(|f| keeps_values(f))
}

/// Returns whether a kernel of the op may keep an input after the step: it takes a handle of state, and
/// other tensors that the state may share.
///
/// ```
/// use ferroflow_runtime::keeps_inputs;
/// assert!(keeps_inputs("AssignVariableOp") && keeps_inputs("QueueEnqueueV2") && keeps_inputs("Assign"));
/// assert!(!keeps_inputs("MatMul") && !keeps_inputs("ReadVariableOp"));
/// ```
pub fn keeps_inputs(op: &str) -> bool {
    let Ok(Some(def)) = registry().def(op) else {
        return false;
    };
    let is_state = |arg: &ArgDef| match arg {
        ArgDef::Single { ty, .. } => arg.is_ref() || *ty == ArgType::Fixed(DType::Resource),
        _ => arg.is_ref(),
    };
    def.inputs.iter().any(is_state) && !def.inputs.iter().all(is_state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RunOptions, Session, SessionOptions, Signature};
    use ferroflow_sync::Pool;

    fn square() -> (Session, Arc<Callable>) {
        let graph =
            "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
            node { name: 'y' op: 'Square' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }";
        let session = Session::from_text(graph, SessionOptions::default()).unwrap();
        let callable = session.callable(&Signature {
            feeds: vec!["x:0".into()],
            fetches: vec!["y:0".into()],
            targets: Vec::new(),
        });
        (session, callable.unwrap())
    }

    #[test]
    fn one_slow_step_says_little() {
        let (_, callable) = square();
        assert!(!callable.is_short());
        callable.note_time(Duration::from_micros(5));
        assert!(callable.is_short());
        callable.note_time(Duration::from_millis(20));
        assert!(callable.is_short());
        (0..4).for_each(|_| callable.note_time(Duration::from_millis(20)));
        assert!(!callable.is_short());
    }

    #[test]
    fn a_step_may_have_its_own_threads() {
        let (session, callable) = square();
        let options = RunOptions {
            pool: Some(Arc::new(Pool::new(1))),
            ..Default::default()
        };
        let y = session.run_callable(&callable, vec![Tensor::scalar(3.0f32)], &options);
        assert_eq!(y.unwrap()[0].to_scalar::<f32>().unwrap(), 9.0);
    }
}
