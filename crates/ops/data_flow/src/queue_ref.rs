//! Queues by reference: the ops of `queue.rs` in old graphs (TensorFlow:
//! `core/kernels/queue_ops.cc`).

use crate::queue::{Batch, batch_shape, close, create, dequeue, enqueue, is_closed, size};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, Op};
use ferroflow_resources::string_handle::handle_shape;

/// FIFOQueue, PaddingFIFOQueue, RandomShuffleQueue, PriorityQueue, QueueEnqueue, QueueEnqueueMany, QueueDequeue,
/// QueueDequeueMany, QueueDequeueUpTo, QueueClose, QueueSize, QueueIsClosed.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "FIFOQueue",
        "-> handle: Ref(string) | component_types: list(type) >= 1; shapes: \
         list(shape) >= 0 = []; capacity: int = -1; container: string = ''; \
         shared_name: string = '' | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| create(b, "FIFOQueue")),
    Op::new(
        "PaddingFIFOQueue",
        "-> handle: Ref(string) | component_types: list(type) >= 1; shapes: \
         list(shape) >= 0 = []; capacity: int = -1; container: string = ''; \
         shared_name: string = '' | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| create(b, "PaddingFIFOQueue")),
    Op::new(
        "RandomShuffleQueue",
        "-> handle: Ref(string) | component_types: list(type) >= 1; shapes: \
         list(shape) >= 0 = []; capacity: int = -1; min_after_dequeue: int = 0; seed: \
         int = 0; seed2: int = 0; container: string = ''; shared_name: string = '' | \
         stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| create(b, "RandomShuffleQueue")),
    Op::new(
        "PriorityQueue",
        "-> handle: Ref(string) | component_types: list(type) >= 0 = []; shapes: \
         list(shape) >= 0; capacity: int = -1; container: string = ''; shared_name: \
         string = '' | stateful",
    )
    .shape(handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| create(b, "PriorityQueue")),
    Op::new(
        "QueueEnqueue",
        "handle: Ref(string), components: list(Tcomponents) -> | Tcomponents: \
         list(type) >= 1; timeout_ms: int = -1",
    )
    .cost(Cost::Async)
    .kernel(|b| enqueue(b, false))
    .not_differentiable(),
    Op::new(
        "QueueEnqueueMany",
        "handle: Ref(string), components: list(Tcomponents) -> | Tcomponents: \
         list(type) >= 1; timeout_ms: int = -1",
    )
    .cost(Cost::Async)
    .kernel(|b| enqueue(b, true))
    .not_differentiable(),
    Op::new(
        "QueueDequeue",
        "handle: Ref(string) -> components: list(component_types) | component_types: \
         list(type) >= 1; timeout_ms: int = -1",
    )
    .cost(Cost::Async)
    .kernel(|b| dequeue(b, Batch::One))
    .not_differentiable(),
    Op::new(
        "QueueDequeueMany",
        "handle: Ref(string), n: int32 -> components: list(component_types) | \
         component_types: list(type) >= 1; timeout_ms: int = -1",
    )
    .shape(|ctx| batch_shape(ctx, true))
    .cost(Cost::Async)
    .kernel(|b| dequeue(b, Batch::Many))
    .not_differentiable(),
    Op::new(
        "QueueDequeueUpTo",
        "handle: Ref(string), n: int32 -> components: list(component_types) | \
         component_types: list(type) >= 1; timeout_ms: int = -1",
    )
    .shape(|ctx| batch_shape(ctx, false))
    .cost(Cost::Async)
    .kernel(|b| dequeue(b, Batch::UpTo))
    .not_differentiable(),
    Op::new(
        "QueueClose",
        "handle: Ref(string) -> | cancel_pending_enqueues: bool = false",
    )
    .cost(Cost::Async)
    .kernel(close)
    .not_differentiable(),
    Op::new("QueueSize", "handle: Ref(string) -> size: int32")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(size)
        .not_differentiable(),
    Op::new("QueueIsClosed", "handle: Ref(string) -> is_closed: bool")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(is_closed),
];
