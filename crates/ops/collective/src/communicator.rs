//! Collectives of a communicator: CollectiveInitializeCommunicator, CollectiveReduceV3,
//! CollectiveAllToAllV3; and CollectiveAssignGroupV2 (TensorFlow: `core/kernels/collective_ops.cc`).

use crate::collective::{Collective, CollectiveKind, same_as_first, timeout_of};
use crate::merge::Merge;
use ferroflow_base::{Result, internal, invalid_argument, unimplemented_error};
use ferroflow_functors::shapes;
use ferroflow_functors::summarize::summary;
use ferroflow_opdef::{
    AsyncCall, CollectiveOp, CollectiveRequest, Cost, KernelBuild, KernelCtx, Op, OpKernel,
    ShapeCtx, StepServices,
};
use ferroflow_resources::collective::{CollectiveKey, Rank, meet};
use ferroflow_tensor::{DType, PartialShape, ResourceHandle, Shape, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "CollectiveAssignGroupV2",
        "group_assignment: int32, device_index: int32, base_key: int32 -> group_size: \
         int32, group_key: int32 |  | stateful distributed",
    )
    .shape(|ctx: &mut ShapeCtx| {
        ctx.set(0, PartialShape::of([]));
        ctx.set(1, PartialShape::of([]));
        Ok(())
    })
    .kernel(|_| Ok(Box::new(assign_group))),
    Op::new(
        "CollectiveInitializeCommunicator",
        "group_key: int32, rank: int32, group_size: int32 -> communicator: resource | \
         communication_hint: string = 'auto'; timeout_seconds: float = 0.0 | stateful \
         distributed",
    )
    .shape(shapes::scalar)
    .cost(Cost::Async)
    .kernel(initialize),
    Op::new(
        "CollectiveReduceV3",
        "input: T, communicator: resource, group_assignment: int32 -> data: T | T: type \
         {bfloat16,float,half,double,int32,int64}; reduction: string \
         {'Min','Max','Mul','Add'}; timeout_seconds: float = 0.0 | stateful distributed",
    )
    .shape(same_as_first)
    .cost(Cost::Async)
    .kernel(|b| {
        let merge = Merge::of(b.attrs.str("reduction")?);
        let divide = false;
        member(b, CollectiveKind::Reduce { merge, divide })
    }),
    Op::new(
        "CollectiveAllToAllV3",
        "input: T, communicator: resource, group_assignment: int32 -> data: T | T: type \
         {bfloat16,float,half,double,int32,int64}; timeout_seconds: float = 0.0 | \
         stateful distributed",
    )
    .shape(same_as_first)
    .cost(Cost::Async)
    .kernel(|b| member(b, CollectiveKind::AllToAll)),
];

/// Keeps the keys of a communicator's collectives apart from those of others in this process.
const INSTANCES: i64 = 1 << 40;

fn assign_group(ctx: &mut KernelCtx) -> Result<()> {
    let (groups, index, base) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let scalar = |t: &Tensor, name: &str| match t.shape().is_scalar() {
        true => t.to_scalar::<i32>(),
        false => Err(invalid_argument!(
            "{name} must be a scalar, but received tensor of shape: {}",
            t.shape()
        )),
    };
    let index = scalar(index, "device_index")?;
    let [n_groups, size] = groups.shape()[..] else {
        return Err(invalid_argument!(
            "group_assignment must be a 2-d Tensor, but received tensor of shape: {}",
            groups.shape()
        ));
    };
    let base = scalar(base, "base_key")?;
    let devices = groups.slice::<i32>()?;
    for group in 0..n_groups {
        let key = base.wrapping_add(group as i32);
        if key == 0 {
            return Err(invalid_argument!(
                "Using the reserved group_key = 0 is not allowed: group_id = {group}, base_key = \
                 {base}"
            ));
        }
        for &device in devices.iter().skip(group * size).take(size) {
            if usize::try_from(device).map_or(true, |d| d >= devices.len()) {
                return Err(invalid_argument!(
                    "Not all items in group_assignment {} is within [0, number of devices)",
                    shown(groups)
                ));
            }
            if device == index {
                ctx.set_output(0, Tensor::scalar(size as i32))?;
                return ctx.set_output(1, Tensor::scalar(key));
            }
        }
    }
    Err(invalid_argument!(
        "device_index {index} is not found in group_assignment {}",
        shown(groups)
    ))
}

fn shown(t: &Tensor) -> String {
    let (shape, values) = (t.shape(), summary(t, 3));
    format!("Tensor<type: int32 shape: {shape} values: {values}>")
}

/// What the handle of a communicator refers to: a member of a group.
struct Communicator {
    group: i32,
    rank: usize,
    size: usize,
    next: AtomicI32,
    timeout: Option<Duration>,
}

impl Communicator {
    /// The key of one of its collectives in this process.
    fn key(&self, call: &AsyncCall, instance: i64) -> CollectiveKey {
        CollectiveKey {
            step: call.step_id,
            group: self.group.into(),
            instance: INSTANCES + instance,
            frame: call.frame,
        }
    }

    /// The order of its members in this process.
    fn order(&self) -> Rank {
        (String::new(), self.rank as u64)
    }
}

struct Initialize {
    node: String,
    device: String,
    timeout: Option<Duration>,
}

fn initialize(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(Initialize {
        node: build.node.to_string(),
        device: build.device.to_string(),
        timeout: timeout_of(build.attrs)?,
    }))
}

impl Initialize {
    fn communicator(&self, inputs: &[Tensor]) -> Result<Communicator> {
        let [group, rank, size] = inputs else {
            return Err(internal!("a communicator needs three inputs"));
        };
        let scalar = |t: &Tensor, name: &str| match t.shape().is_scalar() {
            true => t.to_scalar::<i32>(),
            false => Err(invalid_argument!(
                "Unexpected dimensions on input {name}. It shoulbe a scalar, got tensor with shape \
                 {}",
                t.shape()
            )),
        };
        let size = scalar(size, "group_size")?;
        let group = scalar(group, "group_key")?;
        let rank = scalar(rank, "rank")?;
        let n = usize::try_from(size).ok().filter(|&n| n > 0);
        let n = n.ok_or_else(|| {
            invalid_argument!("group_size must be positive integer but got {size}")
        })?;
        let place = usize::try_from(rank);
        let place = place
            .map_err(|_| invalid_argument!("rank must be non-negative integer but got {rank}"))?;
        if rank >= size {
            return Err(invalid_argument!(
                "rank must be less than group size but got {rank} >= {size}"
            ));
        }
        Ok(Communicator {
            group,
            rank: place,
            size: n,
            next: AtomicI32::new(0),
            timeout: self.timeout,
        })
    }

    /// Creates the communicator, and its handle.
    fn create(
        &self,
        inputs: &[Tensor],
        services: &StepServices,
    ) -> Result<(Arc<Communicator>, Tensor)> {
        let value = Arc::new(self.communicator(inputs)?);
        let container = "collective_op_group";
        let name = format!("{}:r{:04}", value.group, value.rank);
        services.resources.create(container, &name, value.clone())?;
        let handle = ResourceHandle {
            container: container.into(),
            name: name.as_str().into(),
            value: Some(value.clone()),
            origin: None,
        };
        let handle = Tensor::from_resources(Shape::scalar(), vec![handle])?;
        Ok((value, handle))
    }

    /// The part of this node in forming a group of several tasks.
    fn request(&self, communicator: &Communicator) -> CollectiveRequest {
        CollectiveRequest {
            op: CollectiveOp::Join,
            node: self.node.clone(),
            device: self.device.clone(),
            group: communicator.group,
            size: communicator.size,
            rank: Some(communicator.rank),
            instance: 0,
            dtype: DType::Resource,
            shape: Shape::scalar(),
            timeout: self.timeout,
        }
    }
}

impl OpKernel for Initialize {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        Err(internal!(
            "node '{}' may wait and has to be started",
            ctx.node()
        ))
    }

    fn start_with(&self, mut call: AsyncCall, services: &StepServices) {
        let (communicator, handle) = match self.create(&call.inputs, services) {
            Ok(created) => created,
            Err(error) => return call.finish(Err(error)),
        };
        if let Some(collectives) = services.resources.collectives() {
            call.inputs = vec![handle];
            return collectives.run(self.request(&communicator), call);
        }
        let key = communicator.key(&call, -1);
        let answer =
            Box::new(|parts: &[Option<Tensor>]| Ok(parts.iter().flatten().cloned().collect()));
        let (size, timeout) = (communicator.size, communicator.timeout);
        meet(
            key,
            size,
            communicator.order(),
            Some(handle),
            call,
            timeout,
            answer,
        );
    }
}

/// A collective of a communicator.
struct Member(Collective);

fn member(build: &KernelBuild, kind: CollectiveKind) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(Member(Collective::new(build, kind, None)?)))
}

impl Member {
    /// The part of this node in a collective of several tasks.
    fn request(
        &self,
        communicator: &Communicator,
        instance: i32,
        call: &AsyncCall,
    ) -> Result<CollectiveRequest> {
        let key = CollectiveKey {
            instance: instance.into(),
            ..communicator.key(call, 0)
        };
        let request = self.0.request(communicator.size, key, &call.inputs)?;
        Ok(CollectiveRequest {
            rank: Some(communicator.rank),
            timeout: self.0.timeout.or(communicator.timeout),
            ..request
        })
    }
}

impl OpKernel for Member {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        Err(internal!(
            "node '{}' may wait and has to be started",
            ctx.node()
        ))
    }

    fn start_with(&self, call: AsyncCall, services: &StepServices) {
        let communicator = match communicator_of(&call.inputs) {
            Ok(communicator) => communicator,
            Err(error) => return call.finish(Err(error)),
        };
        let instance = communicator.next.fetch_add(1, Ordering::Relaxed);
        if let Some(collectives) = services.resources.collectives() {
            return match self.request(&communicator, instance, &call) {
                Ok(request) => collectives.run(request, call),
                Err(error) => call.finish(Err(error)),
            };
        }
        let key = communicator.key(&call, instance.into());
        let (kind, dtype) = (self.0.kind, self.0.dtype);
        let answer =
            Box::new(move |parts: &[Option<Tensor>]| kind.answer(instance.into(), dtype, parts));
        let part = call.inputs.first().cloned();
        let (size, order) = (communicator.size, communicator.order());
        let timeout = self.0.timeout.or(communicator.timeout);
        meet(key, size, order, part, call, timeout, answer);
    }
}

fn communicator_of(inputs: &[Tensor]) -> Result<Arc<Communicator>> {
    let [_, handle, groups] = inputs else {
        return Err(internal!("a collective needs three inputs"));
    };
    if groups.num_elements() > 0 {
        return Err(unimplemented_error!(
            "Group assignments are not supported yet."
        ));
    }
    let value = handle.resources()?.first().and_then(|h| h.value.clone());
    let found = value.and_then(|value| value.downcast().ok());
    found.ok_or_else(|| invalid_argument!("the resource handle does not refer to a communicator"))
}
