//! Barriers: values arrive by key and component, and leave once all components of a key arrived
//! (TensorFlow: `core/kernels/barrier_ops.cc`).

use ferroflow_base::{Result, cancelled, invalid_argument, out_of_range};
use ferroflow_functors::indices;
use ferroflow_functors::shapes;
use ferroflow_opdef::{AsyncCall, Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::queue::{DequeueMode, Queue, QueueKind, Tuple, only_async};
use ferroflow_resources::resource::ContainerInfo;
use ferroflow_resources::string_handle::{self, handle_shape};
use ferroflow_tensor::rows::rows;
use ferroflow_tensor::{Bytes, DType, PartialShape, Tensor};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Barrier, BarrierInsertMany, BarrierTakeMany, BarrierClose, BarrierReadySize,
/// BarrierIncompleteSize.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Barrier",
        "-> handle: Ref(string) | component_types: list(type) >= 1; shapes: list(shape) \
         >= 0 = []; capacity: int = -1; container: string = ''; shared_name: string = '' \
         | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(create)
    .not_differentiable(),
    Op::new(
        "BarrierInsertMany",
        "handle: Ref(string), keys: string, values: T -> | T: type; component_index: int",
    )
    .shape(insert_shape)
    .cost(Cost::Async)
    .kernel(|b| {
        kernel(
            b,
            Access::Insert(usize::try_from(b.attrs.int("component_index")?).unwrap_or(usize::MAX)),
        )
    })
    .not_differentiable(),
    Op::new(
        "BarrierTakeMany",
        "handle: Ref(string), num_elements: int32 -> indices: int64, keys: string, \
         values: list(component_types) | component_types: list(type) >= 1; \
         allow_small_batch: bool = false; wait_for_incomplete: bool = false; timeout_ms: \
         int = -1",
    )
    .cost(Cost::Async)
    .kernel(take_many)
    .not_differentiable(),
    Op::new(
        "BarrierClose",
        "handle: Ref(string) -> | cancel_pending_enqueues: bool = false",
    )
    .cost(Cost::Async)
    .kernel(|b| kernel(b, Access::Close(b.attrs.bool("cancel_pending_enqueues")?)))
    .not_differentiable(),
    Op::new("BarrierReadySize", "handle: Ref(string) -> size: int32")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                let n = barrier_of(ctx.input(0)?)?.ready.len();
                ctx.set_output(0, Tensor::scalar(n as i32))
            }))
        })
        .not_differentiable(),
    Op::new(
        "BarrierIncompleteSize",
        "handle: Ref(string) -> size: int32",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let n = barrier_of(ctx.input(0)?)?.lock().incomplete.len();
            ctx.set_output(0, Tensor::scalar(n as i32))
        }))
    })
    .not_differentiable(),
];

struct Barrier {
    name: String,
    dtypes: Vec<DType>,
    shapes: Vec<PartialShape>,
    /// Complete elements: the number of their insertion, key, and values.
    ready: Arc<Queue>,
    state: Mutex<State>,
}

struct State {
    is_closed: bool,
    cancels_pending: bool,
    is_queue_closed: bool,
    is_queue_cancelled: bool,
    next: i64,
    incomplete: FxHashMap<Bytes, (i64, Vec<Option<Tensor>>)>,
}

fn create(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtypes = build.attrs.dtypes("component_types")?;
    let shapes = build.attrs.shapes("shapes")?;
    if shapes.len() != dtypes.len() {
        return Err(invalid_argument!(
            "All of the component shapes must be specified"
        ));
    }
    if build.attrs.int("capacity")? != -1 {
        return Err(invalid_argument!(
            "Barrier only accepts capacity=-1.  Feed the inputs to your Barrier through a queue to \
             enforce a limited capacity."
        ));
    }
    let place = ContainerInfo::of_node(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let make = |name: &str| Ok(Barrier::new(name, &dtypes, &shapes));
        let (name, barrier) = place.find(ctx.resources(), make)?;
        if barrier.dtypes != dtypes {
            return Err(invalid_argument!(
                "Shared barrier '{name}' has component types {} but requested component types were \
                 {}",
                types(&barrier.dtypes),
                types(&dtypes)
            ));
        }
        if barrier.shapes != shapes {
            return Err(invalid_argument!(
                "Shared barrier '{name}' has component shapes {} but requested component shapes \
                 were {}",
                indices::list(&barrier.shapes),
                indices::list(&shapes)
            ));
        }
        let container = place.container(ctx.resources());
        let handle = string_handle::string_handle(container, &name, barrier)?;
        ctx.set_output(0, handle)
    }))
}

fn types(dtypes: &[DType]) -> String {
    let names: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
    names.join(", ")
}

fn barrier_of(handle: &Tensor) -> Result<Arc<Barrier>> {
    string_handle::named(handle, "barrier")
}

fn insert_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let keys = ctx.with_rank(1, 1)?;
    let values = ctx.with_rank_at_least(2, 1)?;
    let first = values.dims().and_then(|d| d.first().copied().flatten());
    ctx.merge(&keys, &PartialShape::of([first]))?;
    Ok(())
}

impl Barrier {
    fn new(name: &str, dtypes: &[DType], shapes: &[PartialShape]) -> Barrier {
        let mut all = vec![DType::Int64, DType::String];
        all.extend(dtypes);
        let mut all_shapes = vec![PartialShape::of([]); 2];
        all_shapes.extend(shapes.iter().cloned());
        let name = name.to_string();
        let unbounded = i32::MAX as usize;
        let queue_name = format!("{name}_queue");
        let ready = Queue::new(QueueKind::Priority, queue_name, all, all_shapes, unbounded);
        Barrier {
            name,
            dtypes: dtypes.to_vec(),
            shapes: shapes.to_vec(),
            ready: Arc::new(ready),
            state: Mutex::new(State {
                is_closed: false,
                cancels_pending: false,
                is_queue_closed: false,
                is_queue_cancelled: false,
                next: i64::MIN,
                incomplete: FxHashMap::default(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds values of one component; returns the elements that are complete now.
    fn insert(&self, keys: &Tensor, component: usize, values: &Tensor) -> Result<Vec<Tuple>> {
        let keys = keys.strings()?;
        if !keys.is_empty() && values.num_elements() == 0 {
            return Err(invalid_argument!(
                "Tensors with no elements are not supported {}: received shape {}",
                self.name,
                values.shape()
            ));
        }
        let values = match keys.is_empty() {
            true => Vec::new(),
            false => rows(values)?,
        };
        if values.len() < keys.len() {
            return Err(invalid_argument!(
                "{} keys for {} values",
                keys.len(),
                values.len()
            ));
        }
        let mut state = self.lock();
        if state.is_closed
            && (state.cancels_pending || !keys.is_empty() && state.incomplete.is_empty())
        {
            return Err(cancelled!(
                "Barrier {} is closed.  Pending enqueues cancelled: {}.  Number of new insertions: \
                 {}.  Number of incomplete keys: {}.",
                self.name,
                u8::from(state.cancels_pending),
                keys.len(),
                state.incomplete.len()
            ));
        }
        let mut complete = Vec::new();
        let mut is_new = false;
        for (i, (key, value)) in keys.iter().zip(values).enumerate() {
            is_new |= self.insert_one(&mut state, (i, key), component, value, &mut complete)?;
        }
        if is_new {
            state.next = state.next.wrapping_add(1);
        }
        Ok(complete)
    }

    /// Returns whether the key is new.
    fn insert_one(
        &self,
        state: &mut State,
        (i, key): (usize, &Bytes),
        component: usize,
        value: Tensor,
        complete: &mut Vec<Tuple>,
    ) -> Result<bool> {
        let is_new = !state.incomplete.contains_key(key);
        if is_new && state.is_closed {
            return Err(cancelled!(
                "Barrier {} is closed, but attempted to insert a brand new key: {}.  Pending \
                 enqueues cancelled: {}.  Insertion index: {i}.  Number of incomplete keys: {}.",
                self.name,
                String::from_utf8_lossy(key),
                u8::from(state.cancels_pending),
                state.incomplete.len()
            ));
        }
        let next = state.next;
        let empty = || (next, vec![None; self.dtypes.len()]);
        let element = state.incomplete.entry(key.clone()).or_insert_with(empty);
        match element.1.get_mut(component) {
            Some(slot @ None) => *slot = Some(value),
            _ => {
                return Err(invalid_argument!(
                    "Key {} already has a value for component {component} in barrier {}",
                    String::from_utf8_lossy(key),
                    self.name
                ));
            }
        }
        if element.1.iter().all(Option::is_some)
            && let Some((number, values)) = state.incomplete.remove(key)
        {
            let mut tuple = vec![
                Tensor::scalar(number),
                Tensor::from_strings([], vec![key.clone()])?,
            ];
            tuple.extend(values.into_iter().flatten());
            for (i, (shape, t)) in self.shapes.iter().zip(tuple.iter().skip(2)).enumerate() {
                if !shape.matches(t.shape()) {
                    return Err(invalid_argument!(
                        "Shape mismatch in tuple component {}. Expected {shape}, got {}",
                        i + 2,
                        t.shape()
                    ));
                }
            }
            complete.push(tuple);
        }
        Ok(is_new)
    }

    /// Returns how many elements a call takes.
    fn wanted(&self, n: usize, small_batch: bool) -> Result<usize> {
        let state = self.lock();
        if !state.is_closed {
            return Ok(n);
        }
        let mut available = self.ready.len();
        let mut n = n;
        match small_batch {
            true => n = n.min(available),
            false => available += state.incomplete.len(),
        }
        if available < n.max(1) {
            return Err(out_of_range!(
                "Barrier '{}' is closed and has insufficient elements (requested {n}, total size \
                 {available})",
                self.name
            ));
        }
        Ok(n)
    }

    fn close(&self, cancel_pending: bool, call: AsyncCall) {
        let mut state = self.lock();
        if state.is_closed && (state.cancels_pending || !cancel_pending) {
            drop(state);
            let error = cancelled!("Barrier '{}' is already closed.", self.name);
            return call.finish(Err(error));
        }
        state.cancels_pending = cancel_pending;
        state.is_closed = true;
        let mut closes = false;
        if cancel_pending || state.incomplete.is_empty() {
            state.incomplete.clear();
            closes = match cancel_pending {
                true => !state.is_queue_cancelled,
                false => !state.is_queue_closed,
            } && !self.ready.is_closed();
            state.is_queue_closed = true;
            state.is_queue_cancelled |= cancel_pending;
        }
        drop(state);
        match closes {
            true => self.ready.close(cancel_pending, call),
            false => call.finish(Ok(Vec::new())),
        }
    }
}

#[derive(Clone, Copy)]
enum Access {
    Insert(usize),
    Take { small_batch: bool },
    Close(bool),
}

struct BarrierKernel {
    access: Access,
    /// Dtypes of the values: that of the component, or of all outputs.
    dtypes: Vec<DType>,
}

fn kernel(build: &KernelBuild, access: Access) -> Result<Box<dyn OpKernel>> {
    let dtypes = match access {
        Access::Insert(_) => vec![build.input(2)?],
        _ => build.outputs.get(2..).unwrap_or(&[]).to_vec(),
    };
    Ok(Box::new(BarrierKernel { access, dtypes }))
}

fn take_many(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    if build.attrs.int("timeout_ms")? != -1 {
        return Err(invalid_argument!("Timeout not supported yet."));
    }
    let small_batch = build.attrs.bool("allow_small_batch")?;
    kernel(build, Access::Take { small_batch })
}

impl OpKernel for BarrierKernel {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start(&self, call: AsyncCall) {
        let handle = call.inputs.first().map(barrier_of);
        let barrier = match handle {
            Some(Ok(barrier)) => barrier,
            Some(Err(error)) => return call.finish(Err(error)),
            None => return call.finish(Err(invalid_argument!("a barrier op needs a handle"))),
        };
        match self.access {
            Access::Close(cancel_pending) => barrier.close(cancel_pending, call),
            Access::Insert(component) => match self.inserted(&barrier, component, &call.inputs) {
                Ok(complete) if complete.is_empty() => call.finish(Ok(Vec::new())),
                Ok(complete) => barrier.ready.put(complete, call),
                Err(error) => call.finish(Err(error)),
            },
            Access::Take { small_batch } => {
                match self.wanted(&barrier, small_batch, &call.inputs) {
                    Ok(mode) => barrier.ready.take(mode, call),
                    Err(error) => call.finish(Err(error)),
                }
            }
        }
    }
}

impl BarrierKernel {
    fn inserted(
        &self,
        barrier: &Barrier,
        component: usize,
        inputs: &[Tensor],
    ) -> Result<Vec<Tuple>> {
        let Some(&dtype) = barrier.dtypes.get(component) else {
            return Err(invalid_argument!(
                "The component ID is out of range {component} > num_components (= {})",
                barrier.dtypes.len()
            ));
        };
        let [_, keys, values] = inputs else {
            return Err(invalid_argument!("BarrierInsertMany needs three inputs"));
        };
        if self.dtypes != [dtype] {
            return Err(invalid_argument!(
                "Signature mismatch, have: string_ref, string, {}-> expected: string_ref, string, \
                 {dtype}->",
                types(&self.dtypes)
            ));
        }
        barrier.insert(keys, component, values)
    }

    fn wanted(&self, barrier: &Barrier, small: bool, inputs: &[Tensor]) -> Result<DequeueMode> {
        let n = inputs.get(1).filter(|t| t.shape().is_scalar());
        let Some(n) = n.and_then(indices::int) else {
            return Err(invalid_argument!("num_elements must be a scalar."));
        };
        if self.dtypes != barrier.dtypes {
            return Err(invalid_argument!(
                "Signature mismatch, have: string_ref, int32->int64, string, {} expected: \
                 string_ref, int32->int64, string, {}",
                types(&self.dtypes),
                types(&barrier.dtypes)
            ));
        }
        let Ok(n) = usize::try_from(n) else {
            return Err(invalid_argument!(
                "num_elements must not be negative, got {n}"
            ));
        };
        let n = barrier.wanted(n, small)?;
        Ok(match small {
            true => DequeueMode::UpTo(n),
            false => DequeueMode::Many(n),
        })
    }
}
