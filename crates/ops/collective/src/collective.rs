//! Collectives among the nodes of one step: each waits for all members of its group (TensorFlow:
//! `core/kernels/collective_ops.cc`).

use crate::merge::{Merge, divided, merge_fn, reduced};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::{indices, shapes};
use ferroflow_opdef::{
    AsyncCall, Attrs, CollectiveOp, CollectiveRequest, Cost, FinishFn, KernelBuild, KernelCtx, Op,
    OpKernel, ShapeCtx, StepServices,
};
use ferroflow_resources::collective::{CollectiveKey, Rank, meet};
use ferroflow_tensor::rows::{joined, prepended, rows};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "CollectiveReduce",
        "input: T -> data: T | T: type {bfloat16,float,half,double,int32,int64}; \
         group_size: int; group_key: int; instance_key: int; merge_op: string \
         {'Min','Max','Mul','Add'}; final_op: string {'Id','Div'}; subdiv_offsets: \
         list(int); wait_for: list(int) = []; communication_hint: string = 'auto'; \
         timeout_seconds: float = 0.0 | stateful distributed",
    )
    .shape(same_as_first)
    .cost(Cost::Async)
    .kernel(reduce),
    Op::new(
        "CollectiveReduceV2",
        "input: T, group_size: int32, group_key: int32, instance_key: int32, \
         ordering_token: Nordering_token*resource -> data: T | T: type \
         {bfloat16,float,half,double,int32,int64}; merge_op: string \
         {'Min','Max','Mul','Add'}; final_op: string {'Id','Div'}; communication_hint: \
         string = 'auto'; timeout_seconds: float = 0.0; is_stateless: bool = false; \
         Nordering_token: int >= 0 = 0; max_subdivs_per_device: int = -1 | stateful \
         distributed",
    )
    .shape(same_as_first)
    .cost(Cost::Async)
    .kernel(reduce),
    Op::new(
        "CollectiveGather",
        "input: T -> data: T | T: type {float,half,double,int32,int64}; group_size: \
         int; group_key: int; instance_key: int; shape: shape; communication_hint: \
         string = 'auto'; timeout_seconds: float = 0.0 | stateful distributed",
    )
    .shape(|ctx| {
        // The attr does not count, see the kernel.
        if let Some(rank) = ctx.input(0).rank() {
            let rest = ctx.input(0);
            ctx.set(
                0,
                indices::partial(rank, |i| rest.dim(i as isize).filter(|_| i > 0)),
            );
        }
        Ok(())
    })
    .cost(Cost::Async)
    .kernel(gather),
    Op::new(
        "CollectiveGatherV2",
        "input: T, group_size: int32, group_key: int32, instance_key: int32, \
         ordering_token: Nordering_token*resource -> data: T | T: type \
         {float,half,double,int32,int64}; communication_hint: string = 'auto'; \
         timeout_seconds: float = 0.0; is_stateless: bool = false; Nordering_token: \
         int >= 0 = 0 | stateful distributed",
    )
    .cost(Cost::Async)
    .kernel(gather),
    Op::new(
        "CollectiveBcastSend",
        "input: T -> data: T | T: type {bool,float,half,double,int32,int64}; \
         group_size: int; group_key: int; instance_key: int; shape: shape; \
         communication_hint: string = 'auto'; timeout_seconds: float = 0.0 | stateful \
         distributed",
    )
    .shape(shapes::from_shape_attr)
    .cost(Cost::Async)
    .kernel(|build| Collective::boxed(build, CollectiveKind::Send, Some(1))),
    Op::new(
        "CollectiveBcastSendV2",
        "input: T, group_size: int32, group_key: int32, instance_key: int32 -> data: T \
         | T: type {bool,float,half,double,int32,int64}; communication_hint: string = \
         'auto'; timeout_seconds: float = 0.0 | stateful distributed",
    )
    .shape(same_as_first)
    .cost(Cost::Async)
    .kernel(|build| Collective::boxed(build, CollectiveKind::Send, Some(1))),
    Op::new(
        "CollectiveBcastRecv",
        "-> data: T | T: type {bool,float,half,double,int32,int64}; group_size: int; \
         group_key: int; instance_key: int; shape: shape; communication_hint: string = \
         'auto'; timeout_seconds: float = 0.0 | stateful distributed",
    )
    .shape(shapes::from_shape_attr)
    .cost(Cost::Async)
    .kernel(|build| Collective::boxed(build, CollectiveKind::Receive, None)),
    Op::new(
        "CollectiveBcastRecvV2",
        "group_size: int32, group_key: int32, instance_key: int32, shape: Tshape -> \
         data: T | T: type {bool,float,half,double,int32,int64}; Tshape: type \
         {int32,int64} = int32; communication_hint: string = 'auto'; timeout_seconds: \
         float = 0.0 | stateful distributed",
    )
    .shape(|ctx| {
        let shape = indices::shape_input(ctx, 3)?;
        ctx.set(0, shape);
        Ok(())
    })
    .cost(Cost::Async)
    .kernel(|build| Collective::boxed(build, CollectiveKind::Receive, Some(0))),
    Op::new(
        "CollectiveAllToAllV2",
        "input: T, group_size: int32, group_key: int32, instance_key: int32, \
         ordering_token: Nordering_token*resource -> data: T | T: type \
         {bfloat16,float,half,double,int32,int64}; communication_hint: string = 'auto'; \
         timeout_seconds: float = 0.0; is_stateless: bool = false; Nordering_token: int \
         >= 0 = 0 | stateful distributed",
    )
    .shape(same_as_first)
    .cost(Cost::Async)
    .kernel(|build| Collective::boxed(build, CollectiveKind::AllToAll, Some(1))),
    Op::new(
        "CollectiveReduceScatterV2",
        "input: T, group_size: int32, group_key: int32, instance_key: int32, \
         ordering_token: Nordering_token*resource -> data: T | T: type \
         {bfloat16,float,half,double,int32,int64}; merge_op: string \
         {'Min','Max','Mul','Add'}; final_op: string {'Id','Div'}; communication_hint: \
         string = 'auto'; timeout_seconds: float = 0.0; is_stateless: bool = false; \
         Nordering_token: int >= 0 = 0; max_subdivs_per_device: int = -1 | stateful \
         distributed",
    )
    .shape(|ctx| {
        let input = ctx.with_rank_at_least(0, 1)?;
        let rest = input.dims().map(|dims| dims.iter().copied().skip(1));
        let out = rest.map(|rest| PartialShape::of([None].into_iter().chain(rest)));
        ctx.set(0, out.unwrap_or_else(PartialShape::unknown));
        Ok(())
    })
    .cost(Cost::Async)
    .kernel(|build| {
        let (merge, divide) = merge_of(build)?;
        Collective::boxed(
            build,
            CollectiveKind::ReduceScatter { merge, divide },
            Some(1),
        )
    }),
];

pub(crate) fn same_as_first(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, ctx.input(0));
    Ok(())
}

/// The operation of a collective.
#[derive(Clone, Copy)]
pub(crate) enum CollectiveKind {
    Reduce {
        merge: Merge,
        divide: bool,
    },
    /// Each member gets its part of what all have reduced.
    ReduceScatter {
        merge: Merge,
        divide: bool,
    },
    Gather,
    Send,
    Receive,
    AllToAll,
}

/// Returns how long a collective waits, if limited.
pub(crate) fn timeout_of(attrs: &Attrs) -> Result<Option<Duration>> {
    let seconds = attrs.float("timeout_seconds")?;
    let timeout = Duration::try_from_secs_f32(seconds).ok();
    Ok(timeout.filter(|t| !t.is_zero()))
}

pub(crate) struct Collective {
    pub(crate) kind: CollectiveKind,
    pub(crate) dtype: DType,
    /// Size, group key and instance key, if they are attrs.
    fixed: Option<[i64; 3]>,
    /// Index of the first input for them.
    first: usize,
    rank: Rank,
    pub(crate) timeout: Option<Duration>,
    node: String,
    /// The shape of the result, if it is an attr.
    shape: Option<PartialShape>,
    /// The rings of a reduction: `subdiv_offsets` and `max_subdivs_per_device`.
    rings: (Vec<i64>, i64),
}

impl Collective {
    fn boxed(
        build: &KernelBuild,
        kind: CollectiveKind,
        first: Option<usize>,
    ) -> Result<Box<dyn OpKernel>> {
        Ok(Box::new(Self::new(build, kind, first)?))
    }

    pub(crate) fn new(
        build: &KernelBuild,
        kind: CollectiveKind,
        first: Option<usize>,
    ) -> Result<Collective> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let attrs = build.attrs;
        let fixed = match attrs.get("group_size") {
            Some(_) => Some(keys_of(attrs)?),
            None => None,
        };
        Ok(Collective {
            kind,
            dtype: build.output(0)?,
            fixed,
            first: first.unwrap_or(0),
            rank: (
                build.device.to_string(),
                COUNT.fetch_add(1, Ordering::Relaxed),
            ),
            timeout: timeout_of(attrs)?,
            node: build.node.to_string(),
            shape: attrs.shape("shape").ok().cloned(),
            rings: (
                attrs.ints("subdiv_offsets").unwrap_or_default(),
                attrs.int("max_subdivs_per_device").unwrap_or(0),
            ),
        })
    }

    fn keys(&self, call: &AsyncCall) -> Result<(usize, CollectiveKey)> {
        let [size, group, instance] = match self.fixed {
            Some(fixed) => fixed,
            None => {
                let int = |i: usize, name: &str| -> Result<i64> {
                    let t = call.inputs.get(self.first + i);
                    let t = t.ok_or_else(|| internal!("a collective needs {name}"))?;
                    if !t.shape().is_scalar() {
                        return Err(invalid_argument!(
                            "Unexpected dimensions on input {name}, should be a scalar, got \
                             tensor with shape {}",
                            t.shape()
                        ));
                    }
                    Ok(t.to_scalar::<i32>()?.into())
                };
                [
                    int(0, "group_size")?,
                    int(1, "group_key")?,
                    int(2, "instance_key")?,
                ]
            }
        };
        let size = usize::try_from(size).ok().filter(|&n| n > 0);
        let size = size.ok_or_else(|| {
            invalid_argument!("group_size must be positive integer but got {size:?}")
        })?;
        let key = CollectiveKey {
            step: call.step_id,
            group,
            instance,
            frame: call.frame,
        };
        Ok((size, key))
    }
}

impl Collective {
    /// The part of this node in a collective of several tasks.
    pub(crate) fn request(
        &self,
        size: usize,
        key: CollectiveKey,
        inputs: &[Tensor],
    ) -> Result<CollectiveRequest> {
        let int =
            |x: i64| i32::try_from(x).map_err(|_| invalid_argument!("key {x} is out of range"));
        let shape = match (&self.shape, self.kind, inputs) {
            // The attr of version 1 does not count: TensorFlow's Python sets it to [0].
            (_, CollectiveKind::Gather, [part, ..]) => gathered_shape(part, size)?,
            (Some(shape), ..) => shape
                .to_full()
                .ok_or_else(|| invalid_argument!("attr shape {shape} is not fully known"))?,
            (None, CollectiveKind::Receive, [_, _, _, shape]) => {
                Shape::checked(&indices::ints(shape)?)?
            }
            (None, CollectiveKind::ReduceScatter { .. }, [part, ..]) => part_shape(part, size)?,
            (None, _, [part, ..]) => part.shape().clone(),
            _ => return Err(internal!("a collective needs an input")),
        };
        let dtype = self.dtype;
        let op = match self.kind {
            CollectiveKind::Reduce { merge, divide }
            | CollectiveKind::ReduceScatter { merge, divide } => CollectiveOp::Reduce {
                scatter: matches!(self.kind, CollectiveKind::ReduceScatter { .. }),
                merge: merge_fn(dtype, merge),
                finish: divide.then(|| -> FinishFn {
                    Arc::new(move |sum: &mut Tensor, n| divided(dtype, sum, n))
                }),
                offsets: self.rings.0.clone(),
                max_rings: self.rings.1,
            },
            CollectiveKind::Gather => CollectiveOp::Gather,
            CollectiveKind::Send => CollectiveOp::Broadcast { is_source: true },
            CollectiveKind::Receive => CollectiveOp::Broadcast { is_source: false },
            CollectiveKind::AllToAll => CollectiveOp::AllToAll,
        };
        Ok(CollectiveRequest {
            op,
            node: self.node.clone(),
            device: self.rank.0.clone(),
            group: int(key.group)?,
            size,
            rank: None,
            instance: int(key.instance)?,
            dtype,
            shape,
            timeout: self.timeout,
        })
    }
}

fn keys_of(attrs: &Attrs) -> Result<[i64; 3]> {
    let size = attrs.int("group_size")?;
    if size <= 0 {
        return Err(invalid_argument!(
            "group_size must be positive integer but got {size}"
        ));
    }
    Ok([size, attrs.int("group_key")?, attrs.int("instance_key")?])
}

impl OpKernel for Collective {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        Err(internal!(
            "node '{}' may wait and has to be started",
            ctx.node()
        ))
    }

    fn start_with(&self, call: AsyncCall, services: &StepServices) {
        let (size, key) = match self.keys(&call) {
            Ok(keys) => keys,
            Err(error) => return call.finish(Err(error)),
        };
        if let Some(collectives) = services.resources.collectives() {
            return match self.request(size, key, &call.inputs) {
                Ok(request) => collectives.run(request, call),
                Err(error) => call.finish(Err(error)),
            };
        }
        let part = match self.kind {
            CollectiveKind::Receive => None,
            _ => call.inputs.first().cloned(),
        };
        let (kind, dtype) = (self.kind, self.dtype);
        let answer =
            Box::new(move |parts: &[Option<Tensor>]| kind.answer(key.instance, dtype, parts));
        meet(
            key,
            size,
            self.rank.clone(),
            part,
            call,
            self.timeout,
            answer,
        );
    }
}

impl CollectiveKind {
    pub(crate) fn answer(
        self,
        instance: i64,
        dtype: DType,
        parts: &[Option<Tensor>],
    ) -> Result<Vec<Tensor>> {
        let one = match self {
            CollectiveKind::AllToAll => {
                let parts = all(parts)?;
                check_shapes(&parts, instance)?;
                return exchanged(dtype, &parts);
            }
            CollectiveKind::Send | CollectiveKind::Receive => sent(parts)?,
            CollectiveKind::Reduce { merge, divide } => {
                let parts = all(parts)?;
                check_shapes(&parts, instance)?;
                reduced(dtype, &parts, merge, divide)?
            }
            CollectiveKind::ReduceScatter { merge, divide } => {
                let parts = all(parts)?;
                check_shapes(&parts, instance)?;
                return scattered(dtype, &reduced(dtype, &parts, merge, divide)?, parts.len());
            }
            CollectiveKind::Gather => {
                let parts = all(parts)?;
                check_shapes(&parts, instance)?;
                gathered(dtype, &parts)?
            }
        };
        Ok(vec![one; parts.len()])
    }
}

/// Returns the contributions, which all members must have.
fn all(parts: &[Option<Tensor>]) -> Result<Vec<&Tensor>> {
    let all: Option<Vec<&Tensor>> = parts.iter().map(Option::as_ref).collect();
    all.ok_or_else(|| internal!("members of one instance run different collectives"))
}

fn sent(parts: &[Option<Tensor>]) -> Result<Tensor> {
    let mut sources = parts.iter().flatten();
    match (sources.next(), sources.next()) {
        (Some(source), None) => Ok(source.clone()),
        (None, _) => Err(internal!(
            "Instance found no source for broadcast.  This could mean that there were group_size={} \
             BcastRecvs but no BcastSend.",
            parts.len()
        )),
        _ => Err(internal!(
            "Instance found more than one source for broadcast."
        )),
    }
}

fn check_shapes(parts: &[&Tensor], instance: i64) -> Result<()> {
    let mut pairs = parts.iter().zip(parts.iter().skip(1));
    match pairs.find(|(a, b)| a.shape() != b.shape() || a.dtype() != b.dtype()) {
        None => Ok(()),
        Some((a, b)) => Err(invalid_argument!(
            "Shape mismatch in the collective instance {instance}. A member expected shape {} but \
             another member in the group expected shape {}. This is likely due to different input \
             shapes at different members of the collective op.",
            a.shape(),
            b.shape()
        )),
    }
}

/// Row `i` of each member goes to member `i`.
fn exchanged(dtype: DType, parts: &[&Tensor]) -> Result<Vec<Tensor>> {
    let n = parts.len();
    let mut all = Vec::with_capacity(n);
    for part in parts {
        let first = part.shape().first().copied();
        if first != Some(n) {
            return Err(invalid_argument!(
                "input to all-to-all first dimension size ({}) must be the same as the group size ({n})",
                first.unwrap_or(0)
            ));
        }
        all.push(rows(part)?);
    }
    let shape = |part: &Tensor| part.shape().clone();
    let Some(shape) = parts.first().map(|part| shape(part)) else {
        return Ok(Vec::new());
    };
    let member = |i: usize| {
        let taken = all.iter().filter_map(|rows| rows.get(i));
        let taken: Vec<_> = taken.map(|t| (Some(t), t.num_elements())).collect();
        joined(dtype, shape.clone(), &taken)
    };
    (0..n).map(member).collect()
}

/// The shape of `size` tensors like `part`, concatenated.
fn gathered_shape(part: &Tensor, size: usize) -> Result<Shape> {
    let Some((&n, row)) = part.shape().split_first() else {
        return Err(invalid_argument!("input should have rank > 0, received 0"));
    };
    prepended(n.saturating_mul(size), &Shape::from(row))
}

/// The shape of one of `n` equal parts of the first dimension.
fn part_shape(whole: &Tensor, n: usize) -> Result<Shape> {
    let first = whole.shape().first().copied();
    let Some(part) = first.filter(|d| d.is_multiple_of(n)).map(|d| d / n) else {
        return Err(invalid_argument!(
            "input to reduce-scatter first dimension size ({}) must be a multiple of the group size ({n})",
            first.unwrap_or(0)
        ));
    };
    indices::shape_of([part].into_iter().chain(whole.shape()[1..].iter().copied()))
}

/// Part `i` of the first dimension goes to member `i`.
fn scattered(dtype: DType, whole: &Tensor, n: usize) -> Result<Vec<Tensor>> {
    let (rows, shape) = (rows(whole)?, part_shape(whole, n)?);
    let part = shape.first().copied().unwrap_or(0);
    let member = |i: usize| {
        let taken = rows[i * part..(i + 1) * part].iter();
        let taken: Vec<_> = taken.map(|t| (Some(t), t.num_elements())).collect();
        joined(dtype, shape.clone(), &taken)
    };
    (0..n).map(member).collect()
}

fn gathered(dtype: DType, parts: &[&Tensor]) -> Result<Tensor> {
    let Some(first) = parts.first() else {
        return Err(internal!("a collective needs members"));
    };
    let shape = gathered_shape(first, parts.len())?;
    let parts: Vec<_> = parts.iter().map(|&t| (Some(t), t.num_elements())).collect();
    joined(dtype, shape, &parts)
}

/// Returns what the attrs say about a reduction, and whether it ends with a division.
fn merge_of(build: &KernelBuild) -> Result<(Merge, bool)> {
    let merge = Merge::of(build.attrs.str("merge_op")?);
    Ok((merge, build.attrs.str("final_op")? == "Div"))
}

fn reduce(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (merge, divide) = merge_of(build)?;
    Collective::boxed(build, CollectiveKind::Reduce { merge, divide }, Some(1))
}

fn gather(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Collective::boxed(build, CollectiveKind::Gather, Some(1))
}
