//! Queues: FIFOQueueV2, PaddingFIFOQueueV2, RandomShuffleQueueV2, PriorityQueueV2 and their ops. Ops that may wait
//! are asynchronous. TensorFlow: `core/kernels/queue_ops.cc`.

use ferroflow_base::{Result, Status, internal, invalid_argument};
use ferroflow_functors::indices;
use ferroflow_functors::sequence::with_leading;
use ferroflow_functors::shapes;
use ferroflow_opdef::{AsyncCall, Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::philox::Philox;
use ferroflow_resources::queue::{
    DequeueMode, Queue, QueueKind, RandomStream, Tuple, only_async, queue_of,
};
use ferroflow_resources::resource::ContainerInfo;
use ferroflow_resources::string_handle;
use ferroflow_tensor::rows::rows;
use ferroflow_tensor::{DType, PartialShape, ResourceHandle, Shape, Tensor};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// FIFOQueueV2, PaddingFIFOQueueV2, RandomShuffleQueueV2, PriorityQueueV2, FakeQueue, QueueEnqueueV2, QueueEnqueueManyV2,
/// QueueDequeueV2, QueueDequeueManyV2, QueueDequeueUpToV2, QueueCloseV2, QueueSizeV2,
/// QueueIsClosedV2.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "FIFOQueueV2",
        "-> handle: resource | component_types: list(type) >= 1; shapes: list(shape) \
         >= 0 = []; capacity: int = -1; container: string = ''; shared_name: string = \
         '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| create(b, "FIFOQueue")),
    Op::new(
        "PaddingFIFOQueueV2",
        "-> handle: resource | component_types: list(type) >= 1; shapes: list(shape) \
         >= 0 = []; capacity: int = -1; container: string = ''; shared_name: string = \
         '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| create(b, "PaddingFIFOQueue")),
    Op::new(
        "RandomShuffleQueueV2",
        "-> handle: resource | component_types: list(type) >= 1; shapes: list(shape) \
         >= 0 = []; capacity: int = -1; min_after_dequeue: int = 0; seed: int = 0; \
         seed2: int = 0; container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| create(b, "RandomShuffleQueue")),
    Op::new(
        "PriorityQueueV2",
        "-> handle: resource | component_types: list(type) >= 0 = []; shapes: list(shape) \
         >= 0; capacity: int = -1; container: string = ''; shared_name: string = '' | \
         stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| create(b, "PriorityQueue")),
    Op::new(
        "FakeQueue",
        "resource: resource -> handle: Ref(string) |  | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(by_name))),
    Op::new(
        "QueueEnqueueV2",
        "handle: resource, components: list(Tcomponents) -> | Tcomponents: list(type) \
         >= 1; timeout_ms: int = -1 | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| enqueue(b, false)),
    Op::new(
        "QueueEnqueueManyV2",
        "handle: resource, components: list(Tcomponents) -> | Tcomponents: list(type) \
         >= 1; timeout_ms: int = -1 | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| enqueue(b, true)),
    Op::new(
        "QueueDequeueV2",
        "handle: resource -> components: list(component_types) | component_types: \
         list(type) >= 1; timeout_ms: int = -1 | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| dequeue(b, Batch::One)),
    Op::new(
        "QueueDequeueManyV2",
        "handle: resource, n: int32 -> components: list(component_types) | \
         component_types: list(type) >= 1; timeout_ms: int = -1 | stateful",
    )
    .shape(|ctx| batch_shape(ctx, true))
    .cost(Cost::Async)
    .kernel(|b| dequeue(b, Batch::Many)),
    Op::new(
        "QueueDequeueUpToV2",
        "handle: resource, n: int32 -> components: list(component_types) | \
         component_types: list(type) >= 1; timeout_ms: int = -1 | stateful",
    )
    .shape(|ctx| batch_shape(ctx, false))
    .cost(Cost::Async)
    .kernel(|b| dequeue(b, Batch::UpTo)),
    Op::new(
        "QueueCloseV2",
        "handle: resource -> | cancel_pending_enqueues: bool = false | stateful",
    )
    .cost(Cost::Async)
    .kernel(close),
    Op::new(
        "QueueSizeV2",
        "handle: resource -> size: int32 | | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(size),
    Op::new(
        "QueueIsClosedV2",
        "handle: resource -> is_closed: bool | | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(is_closed),
];

pub(crate) fn close(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(Close {
        cancel_pending: build.attrs.bool("cancel_pending_enqueues")?,
    }))
}

pub(crate) fn size(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let n = queue_of(ctx.input(0)?)?.len();
        ctx.set_output(0, indices::int_scalar(DType::Int32, n as i64)?)
    }))
}

pub(crate) fn is_closed(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let closed = queue_of(ctx.input(0)?)?.is_closed();
        ctx.set_output(0, Tensor::scalar(closed))
    }))
}

/// Returns the reference to a queue that a resource handle refers to.
fn by_name(ctx: &mut KernelCtx) -> Result<()> {
    let queue = queue_of(ctx.input(0)?)?;
    let handle = ctx.input(0)?.resources()?.first();
    let (container, name) = handle.map_or(("", ""), |h| (&*h.container, &*h.name));
    let reference = string_handle::string_handle(container, name, queue)?;
    ctx.set_output(0, reference)
}

/// The attrs of a queue's node.
#[derive(Clone)]
struct QueueSpec {
    op: &'static str,
    name: String,
    dtypes: Vec<DType>,
    shapes: Vec<PartialShape>,
    capacity: usize,
    min_after_dequeue: usize,
    seeds: (u64, u64),
}

pub(crate) fn create(build: &KernelBuild, op: &'static str) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let is_shuffle = op == "RandomShuffleQueue";
    let capacity = attrs.int("capacity")?;
    let min = match is_shuffle {
        true => attrs.int("min_after_dequeue")?,
        false => 0,
    };
    let mut seeds = (0, 0);
    if is_shuffle {
        seeds = (attrs.int("seed")? as u64, attrs.int("seed2")? as u64);
        if seeds == (0, 0) {
            let fresh = || RandomState::new().hash_one(build.node);
            seeds = (fresh(), fresh());
        }
    }
    let mut dtypes = attrs.dtypes("component_types")?;
    let mut shapes = attrs.shapes("shapes")?;
    if op == "PriorityQueue" {
        dtypes.insert(0, DType::Int64);
        if !shapes.is_empty() {
            shapes.insert(0, PartialShape::of([]));
        }
    }
    let spec = QueueSpec {
        op,
        name: attrs.str("shared_name")?.to_string(),
        dtypes,
        shapes,
        capacity: usize::try_from(capacity).unwrap_or(i32::MAX as usize),
        min_after_dequeue: usize::try_from(min).unwrap_or(0),
        seeds,
    };
    check_spec(&spec, min).map_err(|e| e.at_node(build.node, &build.def.name))?;
    let by_reference = !build.def.name.ends_with("V2");
    let place = ContainerInfo::of_node(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (name, queue) = place.find(ctx.resources(), |name| {
            let name = name.to_string();
            Ok(new_queue(&QueueSpec {
                name,
                ..spec.clone()
            }))
        })?;
        check_shared(&spec, &queue)?;
        if by_reference {
            let handle = string_handle::string_handle("queues", &name, queue)?;
            return ctx.set_output(0, handle);
        }
        let handle = ResourceHandle {
            container: place.container(ctx.resources()).into(),
            name: (*name).into(),
            value: Some(queue),
            origin: None,
        };
        ctx.set_output(0, Tensor::from_resources(Shape::scalar(), vec![handle])?)
    }))
}

fn check_spec(spec: &QueueSpec, min: i64) -> Result<()> {
    let (op, n) = (spec.op, spec.dtypes.len());
    if min < 0 {
        return Err(invalid_argument!("min_after_dequeue {min} must be >= 0"));
    }
    if op == "RandomShuffleQueue" && spec.min_after_dequeue >= spec.capacity {
        return Err(invalid_argument!(
            "min_after_dequeue {min} must be < capacity {}",
            spec.capacity
        ));
    }
    if !spec.shapes.is_empty() && spec.shapes.len() != n {
        return Err(invalid_argument!(
            "Different number of component types.  Types: {}, Shapes: {}",
            types(&spec.dtypes),
            indices::list(&spec.shapes)
        ));
    }
    let is_padding = op == "PaddingFIFOQueue";
    if is_padding && spec.shapes.len() != n {
        return Err(invalid_argument!(
            "Shapes must be provided for all components, but received {} types and 0 shapes",
            n
        ));
    }
    for (i, shape) in spec.shapes.iter().enumerate() {
        if is_padding && shape.rank().is_none() || !is_padding && shape.to_full().is_none() {
            return Err(invalid_argument!(
                "shape {i} of the components is {shape}, but must {}",
                if is_padding {
                    "have a known rank"
                } else {
                    "be fully defined"
                }
            ));
        }
    }
    Ok(())
}

fn new_queue(spec: &QueueSpec) -> Queue {
    let kind = match spec.op {
        "PaddingFIFOQueue" => QueueKind::Padding,
        "PriorityQueue" => QueueKind::Priority,
        "RandomShuffleQueue" => QueueKind::Shuffle {
            min_after_dequeue: spec.min_after_dequeue,
            random: |seed, seed2| -> RandomStream {
                let mut philox = Philox::new(seed, seed2);
                Box::new(move || philox.next_u32())
            },
            seeds: spec.seeds,
        },
        _ => QueueKind::Fifo,
    };
    Queue::new(
        kind,
        spec.name.clone(),
        spec.dtypes.clone(),
        spec.shapes.clone(),
        spec.capacity,
    )
}

/// Checks that an existing queue matches the node.
fn check_shared(spec: &QueueSpec, queue: &Queue) -> Result<()> {
    let name = &spec.name;
    if queue.kind.name() != spec.op {
        return Err(invalid_argument!(
            "Expected {}, found {}V2",
            queue.kind.name(),
            spec.op
        ));
    }
    if let QueueKind::Shuffle {
        min_after_dequeue, ..
    } = queue.kind
        && min_after_dequeue != spec.min_after_dequeue
    {
        return Err(invalid_argument!(
            "Shared queue '{name}' has min_after_dequeue {min_after_dequeue} but requested \
             min_after_dequeue was {}.",
            spec.min_after_dequeue
        ));
    }
    if queue.capacity != spec.capacity {
        return Err(invalid_argument!(
            "Shared queue '{name}' has capacity {} but requested capacity was {}",
            queue.capacity,
            spec.capacity
        ));
    }
    if queue.dtypes != spec.dtypes {
        return Err(invalid_argument!(
            "Shared queue '{name}' has component types {} but requested component types were {}",
            types(&queue.dtypes),
            types(&spec.dtypes)
        ));
    }
    if queue.shapes != spec.shapes {
        return Err(invalid_argument!(
            "Shared queue '{name}' has component shapes {} but requested component shapes were {}",
            indices::list(&queue.shapes),
            indices::list(&spec.shapes)
        ));
    }
    Ok(())
}

fn types(dtypes: &[DType]) -> String {
    let names: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
    names.join(", ")
}

/// Finishes the call with the error, if any.
fn answered<T>(call: AsyncCall, result: Result<T>) -> Option<(AsyncCall, T)> {
    match result {
        Ok(value) => Some((call, value)),
        Err(error) => {
            call.finish(Err(error));
            None
        }
    }
}

fn handle_input(call: &AsyncCall) -> Result<Arc<Queue>> {
    let handle = call.inputs.first();
    queue_of(handle.ok_or_else(|| internal!("a queue op needs a handle"))?)
}

struct Enqueue {
    dtypes: Vec<DType>,
    many: bool,
}

pub(crate) fn enqueue(build: &KernelBuild, many: bool) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(Enqueue {
        dtypes: build.attrs.dtypes("Tcomponents")?,
        many,
    }))
}

impl Enqueue {
    fn elements(&self, queue: &Queue, components: &[Tensor]) -> Result<Vec<Tuple>> {
        if self.dtypes != queue.dtypes {
            return Err(invalid_argument!(
                "Signature mismatch, have: resource, {}-> expected: resource, {}->",
                types(&self.dtypes),
                types(&queue.dtypes)
            ));
        }
        if !self.many {
            for (i, (shape, t)) in queue.shapes.iter().zip(components).enumerate() {
                if !shape.matches(t.shape()) {
                    return Err(mismatch(i, shape, t));
                }
            }
            return Ok(vec![components.to_vec()]);
        }
        let n = components.first().and_then(|t| t.shape().first()).copied();
        for (i, t) in components.iter().enumerate() {
            let shape = match queue.shapes.get(i) {
                Some(shape) => with_leading(n, shape),
                None => PartialShape::unknown(),
            };
            if t.shape().is_scalar() || !shape.matches(t.shape()) {
                return Err(match queue.shapes.is_empty() {
                    false => mismatch(i, &shape, t),
                    true => invalid_argument!(
                        "Input tensors must be at least vectors; component {i} is a scalar"
                    ),
                });
            }
            if t.shape().first().copied() != n {
                return Err(invalid_argument!(
                    "All input tensors must have the same size in the 0th dimension. Component {i} \
                     has {}, and should have {}",
                    t.shape().first().copied().unwrap_or(0),
                    n.unwrap_or(0)
                ));
            }
        }
        let mut tuples = vec![Vec::with_capacity(components.len()); n.unwrap_or(0)];
        for component in components {
            for (tuple, row) in tuples.iter_mut().zip(rows(component)?) {
                tuple.push(row);
            }
        }
        Ok(tuples)
    }
}

#[cold]
fn mismatch(i: usize, expected: &PartialShape, got: &Tensor) -> Status {
    invalid_argument!(
        "Shape mismatch in tuple component {i}. Expected {expected}, got {}",
        got.shape()
    )
}

impl OpKernel for Enqueue {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start(&self, call: AsyncCall) {
        let queue = handle_input(&call);
        let prepared = queue.and_then(|queue| {
            let components = call.inputs.get(1..).unwrap_or(&[]);
            let elements = self.elements(&queue, components)?;
            Ok((queue, elements))
        });
        if let Some((mut call, (queue, elements))) = answered(call, prepared) {
            call.inputs.clear();
            queue.put(elements, call);
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Batch {
    One,
    Many,
    UpTo,
}

struct Dequeue {
    dtypes: Vec<DType>,
    batch: Batch,
}

pub(crate) fn dequeue(build: &KernelBuild, batch: Batch) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(Dequeue {
        dtypes: build.attrs.dtypes("component_types")?,
        batch,
    }))
}

impl Dequeue {
    fn want(&self, queue: &Queue, call: &AsyncCall) -> Result<DequeueMode> {
        let is_batch = !matches!(self.batch, Batch::One);
        if self.dtypes != queue.dtypes {
            let n = if is_batch { ", int32" } else { "" };
            return Err(invalid_argument!(
                "Signature mismatch, have: resource{n}->{} expected: resource{n}->{}",
                types(&self.dtypes),
                types(&queue.dtypes)
            ));
        }
        if !is_batch {
            return Ok(DequeueMode::One);
        }
        let n = call.inputs.get(1).and_then(indices::int).ok_or_else(|| {
            invalid_argument!("the number of elements to dequeue must be a scalar")
        })?;
        let op = match self.batch {
            Batch::UpTo => "DequeueUpToOp",
            _ => "DequeueManyOp",
        };
        let Ok(n) = usize::try_from(n) else {
            return Err(invalid_argument!("{op} requested {n} < 0 elements"));
        };
        if queue.shapes.is_empty() {
            let ops = match queue.kind {
                QueueKind::Priority => "DequeueMany requires",
                _ => "DequeueMany and DequeueUpTo require",
            };
            return Err(invalid_argument!(
                "{}'s {ops} the components to have specified shapes.",
                queue.kind.name()
            ));
        }
        Ok(match self.batch {
            Batch::UpTo => DequeueMode::UpTo(n),
            _ => DequeueMode::Many(n),
        })
    }
}

impl OpKernel for Dequeue {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start(&self, call: AsyncCall) {
        let prepared = handle_input(&call).and_then(|queue| {
            let want = self.want(&queue, &call)?;
            Ok((queue, want))
        });
        if let Some((mut call, (queue, want))) = answered(call, prepared) {
            call.inputs.clear();
            queue.take(want, call);
        }
    }
}

struct Close {
    cancel_pending: bool,
}

impl OpKernel for Close {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start(&self, call: AsyncCall) {
        let queue = handle_input(&call);
        if let Some((call, queue)) = answered(call, queue) {
            queue.close(self.cancel_pending, call);
        }
    }
}

pub(crate) fn batch_shape(ctx: &mut ShapeCtx, exact: bool) -> Result<()> {
    ctx.with_rank(1, 0)?;
    if let Some(n) = indices::constant_int(ctx, 1)
        && n < 0
        && exact
    {
        return Err(invalid_argument!(
            "DequeueManyOp requested {n} < 0 elements"
        ));
    }
    Ok(())
}
