//! Staging areas: Stage, Unstage, StagePeek, StageSize, StageClear (TensorFlow:
//! `core/kernels/stage_op.cc`).

use ferroflow_base::{Result, cancelled, invalid_argument, resource_exhausted};
use ferroflow_functors::shapes;
use ferroflow_opdef::{AsyncCall, Cost, KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::queue::{Tuple, only_async};
use ferroflow_resources::resource::ContainerInfo;
use ferroflow_resources::waiting::{Order, Waiting};
use ferroflow_tensor::{DType, Tensor};
use std::collections::VecDeque;
use std::sync::Arc;

/// Stage, Unstage, StagePeek, StageSize, StageClear.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Stage",
        "values: list(dtypes) -> | capacity: int >= 0 = 0; memory_limit: int >= 0 = 0; dtypes: \
         list(type) >= 1; container: string = ''; shared_name: string = '' | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| staging(b, Access::Put)),
    Op::new(
        "Unstage",
        "-> values: list(dtypes) | capacity: int >= 0 = 0; memory_limit: int >= 0 = 0; dtypes: \
         list(type) >= 1; container: string = ''; shared_name: string = '' | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| staging(b, Access::Take)),
    Op::new(
        "StagePeek",
        "index: int32 -> values: list(dtypes) | capacity: int >= 0 = 0; memory_limit: int >= 0 = \
         0; dtypes: list(type) >= 1; container: string = ''; shared_name: string = '' | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| staging(b, Access::Peek)),
    Op::new(
        "StageSize",
        "-> size: int32 | capacity: int >= 0 = 0; memory_limit: int >= 0 = 0; dtypes: list(type); \
         container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| {
        let area = Area::of(b)?;
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let found = area.find(ctx.services())?;
            let n = found.update(|buffer| buffer.tuples.len());
            ctx.set_output(0, Tensor::scalar(n as i32))
        }))
    }),
    Op::new(
        "StageClear",
        "-> | capacity: int >= 0 = 0; memory_limit: int >= 0 = 0; dtypes: list(type); container: \
         string = ''; shared_name: string = '' | stateful",
    )
    .cost(Cost::Cheap)
    .kernel(|b| {
        let area = Area::of(b)?;
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let gone = area.find(ctx.services())?.update(|buffer| {
                buffer.bytes = 0;
                std::mem::take(&mut buffer.tuples)
            });
            drop(gone);
            Ok(())
        }))
    }),
];

/// The limits of a staging area; 0 means none.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) capacity: usize,
    pub(crate) bytes: usize,
}

impl Limits {
    pub(crate) fn of(build: &KernelBuild) -> Result<Limits> {
        let limit = |name| Ok(usize::try_from(build.attrs.int(name)?).unwrap_or(0));
        Ok(Limits {
            capacity: limit("capacity")?,
            bytes: limit("memory_limit")?,
        })
    }

    /// Checks that tensors of this size fit into an empty area.
    pub(crate) fn check(&self, bytes: usize) -> Result<()> {
        if self.bytes > 0 && bytes > self.bytes {
            return Err(resource_exhausted!(
                "Attempted to insert tensors with combined size of '{bytes}' bytes into Staging \
                 Area with a memory limit of '{}'.",
                self.bytes
            ));
        }
        Ok(())
    }

    pub(crate) fn would_exceed_bytes(&self, present: usize, more: usize) -> bool {
        self.bytes > 0 && present.saturating_add(more) > self.bytes
    }

    pub(crate) fn is_full(&self, elements: usize) -> bool {
        self.capacity > 0 && elements >= self.capacity
    }
}

struct Buffer {
    limits: Limits,
    tuples: VecDeque<Tuple>,
    bytes: usize,
}

pub(crate) fn bytes_of(tuple: &[Tensor]) -> usize {
    tuple.iter().map(Tensor::byte_len).sum()
}

/// Where the node's staging area is.
struct Area {
    place: ContainerInfo,
    limits: Limits,
}

impl Area {
    fn of(build: &KernelBuild) -> Result<Area> {
        Ok(Area {
            place: ContainerInfo::of_node(build)?,
            limits: Limits::of(build)?,
        })
    }

    fn find(&self, services: &StepServices) -> Result<Arc<Waiting<Buffer>>> {
        let limits = self.limits;
        let make = |_: &str| {
            let (tuples, bytes) = (VecDeque::new(), 0);
            let buffer = Buffer {
                limits,
                tuples,
                bytes,
            };
            Ok(Waiting::new(buffer, Order::Any))
        };
        Ok(self.place.find(services.resources, make)?.1)
    }
}

#[derive(Clone, Copy)]
enum Access {
    Put,
    Take,
    Peek,
}

struct Staging {
    area: Area,
    access: Access,
    n_outputs: usize,
}

fn staging(build: &KernelBuild, access: Access) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(Staging {
        area: Area::of(build)?,
        access,
        n_outputs: build.outputs.len(),
    }))
}

impl OpKernel for Staging {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start_with(&self, mut call: AsyncCall, services: &StepServices) {
        let area = match self.area.find(services) {
            Ok(area) => area,
            Err(error) => return call.finish(Err(error)),
        };
        let inputs = std::mem::take(&mut call.inputs);
        let n = self.n_outputs;
        match self.access {
            Access::Put => put(&area, inputs, call),
            Access::Take => area.attempt(
                call,
                cancelled!("Unstage operation was cancelled"),
                move |buffer| {
                    let tuple = buffer.tuples.pop_front()?;
                    buffer.bytes -= bytes_of(&tuple);
                    Some(checked(tuple, n))
                },
            ),
            Access::Peek => {
                let index = match scalar_index(&inputs) {
                    Ok(index) => index,
                    Err(error) => return call.finish(Err(error)),
                };
                let error = cancelled!("StagePeek operation was cancelled");
                area.attempt(call, error, move |buffer| {
                    let tuple = buffer.tuples.get(usize::try_from(index).ok()?)?;
                    Some(checked(tuple.clone(), n))
                });
            }
        }
    }
}

fn put(area: &Arc<Waiting<Buffer>>, tuple: Tuple, call: AsyncCall) {
    let size = bytes_of(&tuple);
    let mut tuple = Some(tuple);
    let error = cancelled!("Stage operation was cancelled");
    area.attempt(call, error, move |buffer| {
        let limits = buffer.limits;
        if let Err(error) = limits.check(size) {
            return Some(Err(error));
        }
        let is_full = limits.is_full(buffer.tuples.len());
        if is_full || limits.would_exceed_bytes(buffer.bytes, size) {
            return None;
        }
        buffer.bytes += size;
        buffer.tuples.push_back(tuple.take()?);
        Some(Ok(Vec::new()))
    });
}

fn scalar_index(inputs: &[Tensor]) -> Result<i32> {
    match inputs.first() {
        Some(t) if t.shape().is_scalar() && t.dtype() == DType::Int32 => t.to_scalar::<i32>(),
        _ => Err(invalid_argument!("index must be scalar")),
    }
}

fn checked(tuple: Tuple, n: usize) -> Result<Tuple> {
    if tuple.len() != n {
        return Err(invalid_argument!(
            "Mismatch stage/unstage: {} vs. {n}",
            tuple.len()
        ));
    }
    Ok(tuple)
}
