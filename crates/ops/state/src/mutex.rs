//! MutexV2, MutexLock, ConsumeMutexLock (TensorFlow: `core/kernels/mutex_ops.cc`).
//!
//! A lock is a variant: the mutex is free again when its last copy is dropped.

use ferroflow_base::{Result, cancelled, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{AsyncCall, Cost, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::queue::only_async;
use ferroflow_resources::resource::{ContainerInfo, HandleKernel, Resource};
use ferroflow_resources::waiting::{Order, Waiting};
use ferroflow_tensor::{Shape, Tensor, Variant};
use std::sync::Arc;

/// MutexV2, MutexLock, ConsumeMutexLock.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MutexV2",
        "-> resource: resource | container: string = ''; shared_name: string = '' | \
         stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| {
        let place = ContainerInfo::of_node(b)?;
        let make = |_: &KernelCtx| Ok(Mutex(Arc::new(Waiting::new(false, Order::First))));
        Ok(Box::new(HandleKernel::new(place, make)))
    }),
    Op::new(
        "MutexLock",
        "mutex: resource -> mutex_lock: variant |  | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Async)
    .kernel(|_| Ok(Box::new(Acquire))),
    Op::new("ConsumeMutexLock", "mutex_lock: variant -> |  | stateful")
        .cost(Cost::Cheap)
        .kernel(|_| Ok(Box::new(consume))),
];

/// Whether it is locked, and the calls that wait for it.
struct Mutex(Arc<Waiting<bool>>);

impl Resource for Mutex {
    const TYPE: &'static str = "tensorflow::(anonymous namespace)::Mutex";

    fn is_gone(&self) -> bool {
        false
    }
}

/// What a lock variant holds.
struct Lock(Arc<Waiting<bool>>);

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.update(|is_locked| *is_locked = false);
    }
}

struct Acquire;

impl OpKernel for Acquire {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start_with(&self, call: AsyncCall, services: &StepServices) {
        let found = call.inputs.first().map(|handle| {
            let [handle] = handle.resources()? else {
                return Err(invalid_argument!("the handle must be a scalar"));
            };
            match &handle.value {
                Some(value) => value.clone().downcast::<Mutex>().map_err(|_| {
                    invalid_argument!("the resource handle '{}' is not a mutex", handle.name)
                }),
                None => services.resources.lookup(&handle.container, &handle.name),
            }
        });
        let mutex = match found {
            Some(Ok(mutex)) => mutex,
            Some(Err(error)) => return call.finish(Err(error)),
            None => return call.finish(Err(invalid_argument!("MutexLock needs a mutex"))),
        };
        let error = cancelled!("Lock acquisition cancelled.");
        let shared = mutex.0.clone();
        mutex.0.attempt(call, error, move |is_locked| {
            if *is_locked {
                return None;
            }
            *is_locked = true;
            let lock: Arc<Lock> = Arc::new(Lock(shared.clone()));
            let lock = Tensor::from_variants(Shape::scalar(), vec![Variant(Some(lock))]);
            Some(lock.map(|lock| vec![lock]))
        });
    }
}

fn consume(ctx: &mut KernelCtx) -> Result<()> {
    let t = ctx.input(0)?;
    let ([Variant(value)], true) = (t.variants()?, t.shape().is_scalar()) else {
        return Err(invalid_argument!(
            "Expected input to be a scalar, saw shape: {}",
            t.shape()
        ));
    };
    let Some(lock) = value.as_ref().filter(|value| value.is::<Lock>()) else {
        return Err(invalid_argument!(
            "Expected input to contain a SharedLockReleaser object, but saw variant: '<unknown>'"
        ));
    };
    match Arc::strong_count(lock) {
        1 => Ok(()),
        n => Err(invalid_argument!(
            "Expected use count of lock to be 1, but saw: {n}"
        )),
    }
}
