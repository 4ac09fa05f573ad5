//! Unbatch and UnbatchGrad: the way back from the batches of Batch (TensorFlow:
//! `core/kernels/batch_kernels.cc`).

use crate::batching::{concatenated, rows_of};
use ferroflow_base::{
    Code, Result, already_exists, cancelled, deadline_exceeded, internal, invalid_argument,
};
use ferroflow_opdef::{AsyncCall, Cost, KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::queue::only_async;
use ferroflow_resources::resource::ContainerInfo;
use ferroflow_resources::waiting::{Order, Waiting};
use ferroflow_tensor::Tensor;
use ferroflow_tensor::rows::{prepended, split_first};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Unbatch, UnbatchGrad.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Unbatch",
        "batched_tensor: T, batch_index: int64, id: int64 -> unbatched_tensor: T | \
         timeout_micros: int; container: string = ''; shared_name: string = ''; T: type",
    )
    .cost(Cost::Async)
    .kernel(|b| {
        let micros = b.attrs.int("timeout_micros")?;
        Ok(Box::new(Unbatch {
            place: ContainerInfo::of_node(b)?,
            timeout: Duration::from_micros(u64::try_from(micros).unwrap_or(0)),
        }))
    }),
    Op::new(
        "UnbatchGrad",
        "original_input: T, batch_index: int64, grad: T, id: int64 -> batched_grad: T | \
         container: string = ''; shared_name: string = ''; T: type",
    )
    .cost(Cost::Async)
    .kernel(|b: &KernelBuild| {
        Ok(Box::new(UnbatchGrad {
            place: ContainerInfo::of_node(b)?,
        }))
    }),
];

/// The rows of `batch_index`: id, start, end.
fn index_rows(t: &Tensor) -> Result<Vec<[i64; 3]>> {
    let all = t.slice::<i64>()?.chunks_exact(3);
    Ok(all.map(|row| [row[0], row[1], row[2]]).collect())
}

/// What arrived for calls that have not come yet, and the calls that wait.
#[derive(Default)]
struct Arrived {
    tensors: FxHashMap<i64, (Instant, Tensor)>,
    waiting: FxHashSet<i64>,
}

struct Unbatch {
    place: ContainerInfo,
    timeout: Duration,
}

impl Unbatch {
    /// Returns the id of the call and the tensors of the batch, by id.
    fn parts(inputs: &[Tensor]) -> Result<(i64, Vec<(i64, Tensor)>)> {
        let [data, index, id] = inputs else {
            return Err(internal!("Unbatch needs three inputs"));
        };
        let (rows, width) = match index.shape()[..] {
            [rows, width] => (rows, width),
            _ => {
                return Err(invalid_argument!(
                    "batch_index must be a matrix, got shape {}",
                    index.shape()
                ));
            }
        };
        let (n, _) = split_first(data.shape())?;
        if rows > n {
            return Err(invalid_argument!(
                "Wrong shape for index tensor. Expected 0th dimension size to be no greater than \
                 {n}; Got: {rows}."
            ));
        }
        if width != 3 {
            return Err(invalid_argument!(
                "Wrong shape for index tensor. Expected 1st dimension size to be 3 ; Got: {width}."
            ));
        }
        if !id.shape().is_scalar() {
            return Err(invalid_argument!(
                "Input id should be scalar; Got: {}.",
                id.shape()
            ));
        }
        let mut parts = Vec::with_capacity(rows);
        let mut start = 0usize;
        for [key, first, last] in index_rows(index)? {
            let size = last
                .checked_sub(first)
                .and_then(|n| usize::try_from(n).ok());
            let end = size.and_then(|n| start.checked_add(n));
            let end = end.ok_or_else(|| {
                invalid_argument!("batch_index has a range from {first} to {last}")
            })?;
            parts.push((key, rows_of(data, start, end)?));
            start = end;
        }
        Ok((id.to_scalar::<i64>()?, parts))
    }
}

impl OpKernel for Unbatch {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start_with(&self, call: AsyncCall, services: &StepServices) {
        let found = self
            .place
            .find(services.resources, |_| {
                Ok(Arc::new(Waiting::new(Arrived::default(), Order::Any)))
            })
            .and_then(|(_, found)| Ok((found, Unbatch::parts(&call.inputs)?)));
        let (shared, (id, parts)) = match found {
            Ok(found) => found,
            Err(error) => return call.finish(Err(error)),
        };
        let timeout = self.timeout;
        let state = Arc::clone(&shared);
        let delivered = shared.update(|arrived| deliver(arrived, id, parts, timeout));
        if let Err(error) = delivered {
            return call.finish(Err(error));
        }
        // The call ends when its rows arrive, its step is cancelled, or the time is over.
        let (inner, cancel) = (call.cancel.clone(), call.cancel.with_timeout(timeout));
        let error = cancelled!("Unbatch operation was cancelled");
        let timed = AsyncCall::new(Vec::new(), cancel, move |result| {
            state.update(|arrived| arrived.waiting.remove(&id));
            call.finish(match result {
                Err(e) if e.code() == Code::DeadlineExceeded && inner.check().is_ok() => Err(
                    deadline_exceeded!("Batched data did not arrive within timeout window."),
                ),
                result => result,
            });
        });
        shared.attempt(timed, error, move |arrived| {
            let (_, tensor) = arrived.tensors.remove(&id)?;
            Some(Ok(vec![tensor]))
        });
    }
}

fn deliver(
    arrived: &mut Arrived,
    id: i64,
    parts: Vec<(i64, Tensor)>,
    timeout: Duration,
) -> Result<()> {
    let now = Instant::now();
    arrived.tensors.retain(|_, (until, _)| *until >= now);
    if !arrived.tensors.contains_key(&id) && !arrived.waiting.insert(id) {
        return Err(already_exists!(
            "Multiple session runs with the same batch key."
        ));
    }
    let until = now.checked_add(timeout).unwrap_or(now);
    for (key, tensor) in parts {
        if arrived.tensors.insert(key, (until, tensor)).is_some() {
            return Err(already_exists!(
                "Multiple tensors returned for same batch key."
            ));
        }
    }
    Ok(())
}

/// The gradients of unbatched tensors, by id.
#[derive(Default)]
struct Gradients(FxHashMap<i64, Tensor>);

struct UnbatchGrad {
    place: ContainerInfo,
}

impl OpKernel for UnbatchGrad {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start_with(&self, mut call: AsyncCall, services: &StepServices) {
        let inputs = std::mem::take(&mut call.inputs);
        let made = |_: &str| Ok(Arc::new(Waiting::new(Gradients::default(), Order::Any)));
        let found = self.place.find(services.resources, made);
        let prepared = found.and_then(|(_, shared)| {
            let wanted = gradient_of(&inputs)?;
            Ok((shared, wanted))
        });
        let (shared, (id, gradient, wanted)) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return call.finish(Err(error)),
        };
        let added = shared.update(|all| match all.0.insert(id, gradient.clone()) {
            None => Ok(()),
            Some(_) => Err(invalid_argument!("Two runs with the same batch key.")),
        });
        if let Err(error) = added {
            return call.finish(Err(error));
        }
        let Some(wanted) = wanted else {
            let empty = split_first(gradient.shape())
                .and_then(|(_, row)| Tensor::zeros(gradient.dtype(), prepended(0, &row)?));
            return call.finish(empty.map(|t| vec![t]));
        };
        let error = cancelled!("UnbatchGrad operation was cancelled");
        shared.attempt(call, error, move |all| {
            if !wanted.iter().all(|id| all.0.contains_key(id)) {
                return None;
            }
            let parts: Vec<Tensor> = wanted.iter().filter_map(|id| all.0.remove(id)).collect();
            let parts: Vec<&Tensor> = parts.iter().collect();
            Some(concatenated(&parts).map(|t| vec![t]))
        });
    }
}

/// Returns the id and gradient of a call, and the ids whose gradients it collects, if any.
fn gradient_of(inputs: &[Tensor]) -> Result<(i64, Tensor, Option<Vec<i64>>)> {
    let [data, index, gradient, id] = inputs else {
        return Err(internal!("UnbatchGrad needs four inputs"));
    };
    if !id.shape().is_scalar() {
        return Err(invalid_argument!(
            "Expected `id` to be scalar. Received {}",
            id.shape()
        ));
    }
    let id = id.to_scalar::<i64>()?;
    if data.num_elements() == 0 {
        return Ok((id, gradient.clone(), None));
    }
    let n = index.num_elements();
    if n == 0 {
        return Err(invalid_argument!(
            "batch_index is empty while the tensor isn't."
        ));
    }
    let rows = index.shape().first().copied().unwrap_or(0);
    if n != rows * 3 {
        return Err(invalid_argument!(
            "batch_index should contain {} elements. Received {n}",
            rows * 3
        ));
    }
    let ids = index_rows(index)?.iter().map(|row| row[0]).collect();
    Ok((id, gradient.clone(), Some(ids)))
}
