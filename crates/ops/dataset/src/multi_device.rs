//! Iterators whose elements go to several devices in turn: MultiDeviceIterator and its ops
//! (TensorFlow: `core/kernels/data/multi_device_iterator_ops.cc`).

use crate::handles::StringHandles;
use crate::iterator::{check_types, delete_iterator, element_shapes};
use crate::seeds::{scalars, set_anonymous};
use ferroflow_base::{Result, failed_precondition, invalid_argument, out_of_range};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::dataset::{Components, Dataset, DatasetIterator};
use ferroflow_resources::resource::{ContainerInfo, HandleKernel, Resource, resource};
use ferroflow_tensor::Tensor;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MultiDeviceIterator",
        "-> handle: resource | devices: list(string) >= 1; shared_name: string; container: \
         string; output_types: list(type) >= 1; output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(shared),
    Op::new(
        "AnonymousMultiDeviceIterator",
        "-> handle: resource, deleter: variant | devices: list(string) >= 1; output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(scalars)
    .kernel(anonymous),
    Op::new(
        "AnonymousMultiDeviceIteratorV3",
        "-> handle: resource | devices: list(string) >= 1; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(anonymous),
    Op::new(
        "MultiDeviceIteratorInit",
        "dataset: variant, multi_device_iterator: resource, max_buffer_size: int64 -> \
         incarnation_id: int64 | | stateful",
    )
    .shape(shapes::scalar)
    .kernel(init),
    Op::new(
        "MultiDeviceIteratorGetNextFromShard",
        "multi_device_iterator: resource, shard_num: int32, incarnation_id: int64 -> \
         components: list(output_types) | output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1 | stateful",
    )
    .shape(element_shapes)
    .kernel(get_next),
    Op::new(
        "MultiDeviceIteratorToStringHandle",
        "multi_device_iterator: resource -> string_handle: string | | stateful",
    )
    .shape(shapes::scalar)
    .kernel(to_string_handle),
    Op::new(
        "MultiDeviceIteratorFromStringHandle",
        "string_handle: string -> multi_device_iterator: resource | output_types: list(type) \
         >= 0 = []; output_shapes: list(shape) >= 0 = [] | stateful",
    )
    .shape(shapes::scalar)
    .kernel(from_string_handle),
    Op::new(
        "DeleteMultiDeviceIterator",
        "multi_device_iterator: resource, iterators: N*resource, deleter: variant -> | N: int \
         >= 0 | stateful",
    )
    .kernel(delete_iterator),
];

struct MultiDevice {
    n_devices: usize,
    state: Mutex<Walk>,
}

#[derive(Default)]
struct Walk {
    inner: Option<Box<dyn DatasetIterator>>,
    incarnation: i64,
    /// Elements that wait for their devices.
    waiting: Vec<VecDeque<Components>>,
    /// The device of the next element.
    next: usize,
}

impl Resource for MultiDevice {
    const TYPE: &'static str = "tensorflow::data::MultiDeviceIterator";

    fn is_gone(&self) -> bool {
        false
    }
}

impl MultiDevice {
    fn new(n_devices: usize) -> MultiDevice {
        MultiDevice {
            n_devices,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Walk> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn n_devices(build: &KernelBuild) -> Result<usize> {
    Ok(build.attrs.list("devices")?.len())
}

fn shared(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let n = n_devices(build)?;
    let info = ContainerInfo::of_node(build)?;
    let make = move |_: &KernelCtx| Ok(MultiDevice::new(n));
    Ok(Box::new(HandleKernel::new(info, make)))
}

fn anonymous(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let n = n_devices(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        set_anonymous(ctx, MultiDevice::new(n))
    }))
}

fn init(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let dataset = Dataset::of(ctx.input(0)?)?;
        let iterator = resource::<MultiDevice>(ctx, 1)?;
        let inner = dataset.iterator()?;
        let incarnation = {
            let mut walk = iterator.lock();
            *walk = Walk {
                inner: Some(inner),
                incarnation: walk.incarnation + 1,
                waiting: (0..iterator.n_devices).map(|_| VecDeque::new()).collect(),
                next: 0,
            };
            walk.incarnation
        };
        ctx.set_output(0, Tensor::scalar(incarnation))
    }))
}

impl Walk {
    fn next_of(&mut self, shard: usize, ctx: &KernelCtx) -> Result<Option<Components>> {
        loop {
            let n = self.waiting.len();
            let Some(own) = self.waiting.get_mut(shard) else {
                return Err(invalid_argument!(
                    "shard_num is {shard}, but the iterator has {n} devices"
                ));
            };
            if let Some(element) = own.pop_front() {
                return Ok(Some(element));
            }
            let Some(inner) = &mut self.inner else {
                return Ok(None);
            };
            let Some(element) = inner.next(ctx.services())? else {
                self.inner = None;
                return Ok(None);
            };
            if let Some(queue) = self.waiting.get_mut(self.next) {
                queue.push_back(element);
            }
            self.next = (self.next + 1) % n.max(1);
        }
    }
}

fn get_next(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtypes = build.outputs.to_vec();
    let shapes = build.attrs.shapes("output_shapes")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let shard = ctx.input(1)?.to_scalar::<i32>()?;
        let incarnation = ctx.input(2)?.to_scalar::<i64>()?;
        let iterator = resource::<MultiDevice>(ctx, 0)?;
        let element = {
            let mut walk = iterator.lock();
            if walk.incarnation == 0 {
                return Err(failed_precondition!(
                    "GetNextFromShard() failed because the iterator has not been initialized. \
                     Ensure that you have run the initializer operation for this iterator before \
                     getting the next element."
                ));
            }
            if walk.incarnation != incarnation {
                return Err(invalid_argument!(
                    "Invalid incarnation id. Provided: {incarnation}; Expected: {}",
                    walk.incarnation
                ));
            }
            walk.next_of(usize::try_from(shard).unwrap_or(usize::MAX), ctx)?
        };
        let element = element.ok_or_else(|| out_of_range!("End of sequence"))?;
        check_types(&dtypes, &shapes, &element)?;
        for (i, t) in element.into_iter().enumerate() {
            ctx.set_output(i, t)?;
        }
        Ok(())
    }))
}

fn to_string_handle(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let name = StringHandles::<MultiDevice>::add(ctx, 0, "")?;
        ctx.set_output(0, Tensor::string(name))
    }))
}

fn from_string_handle(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let (handle, _) = StringHandles::<MultiDevice>::find(ctx, 0, "")?;
        ctx.set_output(0, handle)
    }))
}
