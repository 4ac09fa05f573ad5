//! Staging maps: MapStage, MapUnstage, MapUnstageNoKey, MapPeek, MapSize, MapIncompleteSize, MapClear,
//! and the same of OrderedMap (TensorFlow: `core/kernels/map_stage_op.cc`).

use crate::staging::{Limits, bytes_of};
use ferroflow_base::{Result, cancelled, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{AsyncCall, Cost, KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::queue::{Tuple, only_async};
use ferroflow_resources::resource::ContainerInfo;
use ferroflow_resources::waiting::{Order, Waiting};
use ferroflow_tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MapStage",
        "key: int64, indices: int32, values: list(fake_dtypes) -> | capacity: int >= 0 = 0; \
         memory_limit: int >= 0 = 0; dtypes: list(type); fake_dtypes: list(type) >= 1; \
         container: string = ''; shared_name: string = '' | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| access(b, false, Access::Put)),
    Op::new(
        "MapUnstage",
        "key: int64, indices: int32 -> values: list(dtypes) | capacity: int >= 0 = 0; \
         memory_limit: int >= 0 = 0; dtypes: list(type) >= 1; container: string = ''; \
         shared_name: string = '' | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| access(b, false, Access::Take)),
    Op::new(
        "MapUnstageNoKey",
        "indices: int32 -> key: int64, values: list(dtypes) | capacity: int >= 0 = 0; \
         memory_limit: int >= 0 = 0; dtypes: list(type) >= 1; container: string = ''; \
         shared_name: string = '' | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| access(b, false, Access::TakeAny)),
    Op::new(
        "MapPeek",
        "key: int64, indices: int32 -> values: list(dtypes) | capacity: int >= 0 = 0; \
         memory_limit: int >= 0 = 0; dtypes: list(type) >= 1; container: string = ''; \
         shared_name: string = '' | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| access(b, false, Access::Peek)),
    Op::new(
        "MapSize",
        "-> size: int32 | capacity: int >= 0 = 0; memory_limit: int >= 0 = 0; dtypes: \
         list(type); container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| size(b, false, |map| map.complete.len())),
    Op::new(
        "MapIncompleteSize",
        "-> size: int32 | capacity: int >= 0 = 0; memory_limit: int >= 0 = 0; dtypes: \
         list(type); container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| size(b, false, |map| map.incomplete.len())),
    Op::new(
        "MapClear",
        "-> | capacity: int >= 0 = 0; memory_limit: int >= 0 = 0; dtypes: list(type); \
         container: string = ''; shared_name: string = '' | stateful",
    )
    .cost(Cost::Cheap)
    .kernel(|b| clear(b, false)),
    Op::new(
        "OrderedMapStage",
        "key: int64, indices: int32, values: list(fake_dtypes) -> | capacity: int >= 0 = 0; \
         memory_limit: int >= 0 = 0; dtypes: list(type); fake_dtypes: list(type) >= 1; \
         container: string = ''; shared_name: string = '' | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| access(b, true, Access::Put)),
    Op::new(
        "OrderedMapUnstage",
        "key: int64, indices: int32 -> values: list(dtypes) | capacity: int >= 0 = 0; \
         memory_limit: int >= 0 = 0; dtypes: list(type) >= 1; container: string = ''; \
         shared_name: string = '' | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| access(b, true, Access::Take)),
    Op::new(
        "OrderedMapUnstageNoKey",
        "indices: int32 -> key: int64, values: list(dtypes) | capacity: int >= 0 = 0; \
         memory_limit: int >= 0 = 0; dtypes: list(type) >= 1; container: string = ''; \
         shared_name: string = '' | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| access(b, true, Access::TakeAny)),
    Op::new(
        "OrderedMapPeek",
        "key: int64, indices: int32 -> values: list(dtypes) | capacity: int >= 0 = 0; \
         memory_limit: int >= 0 = 0; dtypes: list(type) >= 1; container: string = ''; \
         shared_name: string = '' | stateful",
    )
    .cost(Cost::Async)
    .kernel(|b| access(b, true, Access::Peek)),
    Op::new(
        "OrderedMapSize",
        "-> size: int32 | capacity: int >= 0 = 0; memory_limit: int >= 0 = 0; dtypes: \
         list(type); container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| size(b, true, |map| map.complete.len())),
    Op::new(
        "OrderedMapIncompleteSize",
        "-> size: int32 | capacity: int >= 0 = 0; memory_limit: int >= 0 = 0; dtypes: \
         list(type); container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| size(b, true, |map| map.incomplete.len())),
    Op::new(
        "OrderedMapClear",
        "-> | capacity: int >= 0 = 0; memory_limit: int >= 0 = 0; dtypes: list(type); \
         container: string = ''; shared_name: string = '' | stateful",
    )
    .cost(Cost::Cheap)
    .kernel(|b| clear(b, true)),
];

/// A map, the key and the indices of a call.
type Prepared = (Arc<Waiting<StagingMap>>, i64, Vec<i32>);

type Parts = Vec<Option<Tensor>>;

struct StagingMap {
    n: usize,
    limits: Limits,
    bytes: usize,
    complete: BTreeMap<i64, Parts>,
    incomplete: BTreeMap<i64, Parts>,
}

/// What an ordered map is in the resources: another type than the other one.
struct Ordered(Arc<Waiting<StagingMap>>);
struct Unordered(Arc<Waiting<StagingMap>>);

/// Where the node's map is.
struct Place {
    info: ContainerInfo,
    is_ordered: bool,
    limits: Limits,
    n: usize,
}

impl Place {
    fn of(build: &KernelBuild, is_ordered: bool) -> Result<Place> {
        Ok(Place {
            info: ContainerInfo::of_node(build)?,
            is_ordered,
            limits: Limits::of(build)?,
            n: build.attrs.dtypes("dtypes")?.len(),
        })
    }

    fn find(&self, services: &StepServices) -> Result<Arc<Waiting<StagingMap>>> {
        let make = || {
            let map = StagingMap {
                n: self.n,
                limits: self.limits,
                bytes: 0,
                complete: BTreeMap::new(),
                incomplete: BTreeMap::new(),
            };
            Arc::new(Waiting::new(map, Order::Any))
        };
        let resources = services.resources;
        Ok(match self.is_ordered {
            true => self
                .info
                .find(resources, |_| Ok(Ordered(make())))?
                .1
                .0
                .clone(),
            false => self
                .info
                .find(resources, |_| Ok(Unordered(make())))?
                .1
                .0
                .clone(),
        })
    }
}

fn size(
    build: &KernelBuild,
    is_ordered: bool,
    count: fn(&StagingMap) -> usize,
) -> Result<Box<dyn OpKernel>> {
    let place = Place::of(build, is_ordered)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let n = place.find(ctx.services())?.update(|map| count(map));
        ctx.set_output(0, Tensor::scalar(n as i32))
    }))
}

fn clear(build: &KernelBuild, is_ordered: bool) -> Result<Box<dyn OpKernel>> {
    let place = Place::of(build, is_ordered)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let gone = place.find(ctx.services())?.update(|map| {
            map.bytes = 0;
            let StagingMap {
                complete,
                incomplete,
                ..
            } = map;
            (std::mem::take(complete), std::mem::take(incomplete))
        });
        drop(gone);
        Ok(())
    }))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Put,
    Take,
    TakeAny,
    Peek,
}

struct MapKernel {
    place: Place,
    access: Access,
    n_values: usize,
}

fn access(build: &KernelBuild, is_ordered: bool, access: Access) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(MapKernel {
        place: Place::of(build, is_ordered)?,
        access,
        n_values: match access {
            Access::Put => build.inputs.len().saturating_sub(2),
            Access::TakeAny => build.outputs.len().saturating_sub(1),
            Access::Take | Access::Peek => build.outputs.len(),
        },
    }))
}

impl OpKernel for MapKernel {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start_with(&self, mut call: AsyncCall, services: &StepServices) {
        let inputs = std::mem::take(&mut call.inputs);
        let prepared = self.prepared(&inputs, services);
        let (map, key, indices) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return call.finish(Err(error)),
        };
        let n = self.n_values;
        match self.access {
            Access::Put => {
                let mut values = Some(inputs.into_iter().skip(2).collect::<Tuple>());
                // As in TensorFlow, which counts the last value only.
                let last = values.as_ref().and_then(|values| values.last());
                let size = last.map_or(0, Tensor::byte_len);
                let error = cancelled!("MapStage operation was cancelled");
                map.attempt(call, error, move |map| {
                    let fits = map.has_room(size, indices.len());
                    match fits {
                        Ok(false) => None,
                        Ok(true) => Some(map.put(key, &indices, values.take()?, size)),
                        Err(error) => Some(Err(error)),
                    }
                });
            }
            access => {
                let error = cancelled!("MapUnstage operation was cancelled");
                map.attempt(call, error, move |map| {
                    let found = match access {
                        Access::TakeAny => map.complete.keys().next().copied()?,
                        _ => key,
                    };
                    let parts = map.complete.get_mut(&found)?;
                    let taken = taken(parts, found, &indices, access == Access::Peek);
                    let mut tuple = match taken.and_then(|tuple| sized(tuple, n)) {
                        Ok(tuple) => tuple,
                        Err(error) => return Some(Err(error)),
                    };
                    if access != Access::Peek {
                        map.bytes = map.bytes.saturating_sub(bytes_of(&tuple));
                        if parts.iter().all(Option::is_none) {
                            map.complete.remove(&found);
                        }
                    }
                    if access == Access::TakeAny {
                        tuple.insert(0, Tensor::scalar(found));
                    }
                    Some(Ok(tuple))
                });
            }
        }
    }
}

impl MapKernel {
    /// Returns the map, the key and the indices.
    fn prepared(&self, inputs: &[Tensor], services: &StepServices) -> Result<Prepared> {
        let map = self.place.find(services)?;
        let missing = || invalid_argument!("an input is missing");
        let has_key = self.access != Access::TakeAny;
        let mut key = 0;
        if has_key {
            let t = inputs.first().ok_or_else(missing)?;
            let keys = t.slice::<i64>()?;
            if self.access == Access::Put {
                if keys.is_empty() {
                    return Err(invalid_argument!("key must not be empty"));
                }
                if keys.len() > 1 {
                    return Err(invalid_argument!(
                        "key must be an int64 scalar, got tensor with shape: {}",
                        t.shape()
                    ));
                }
            } else if !t.shape().is_scalar() {
                return Err(invalid_argument!(
                    "key must be an int64 scalar: {}",
                    t.shape()
                ));
            }
            key = keys.first().copied().unwrap_or_default();
        }
        let indices = inputs.get(usize::from(has_key)).ok_or_else(missing)?;
        let indices = indices.slice::<i32>()?.to_vec();
        if indices.is_empty() {
            return Err(invalid_argument!("Indices are empty"));
        }
        if !indices.is_sorted_by(|a, b| a < b) {
            return Err(invalid_argument!("Indices are not strictly ordered"));
        }
        if self.access == Access::Put && self.n_values < indices.len() {
            return Err(invalid_argument!(
                "{} indices for {} values",
                indices.len(),
                self.n_values
            ));
        }
        Ok((map, key, indices))
    }
}

impl StagingMap {
    /// Returns whether values of this size can be added now.
    fn has_room(&self, size: usize, n_indices: usize) -> Result<bool> {
        self.limits.check(size)?;
        let is_full = n_indices == self.n && self.limits.is_full(self.complete.len());
        Ok(!is_full && !self.limits.would_exceed_bytes(self.bytes, size))
    }

    fn put(&mut self, key: i64, indices: &[i32], values: Tuple, size: usize) -> Result<Tuple> {
        if indices.len() == self.n {
            // All values at once: they are not placed by their indices.
            let parts = values.into_iter().map(Some).collect();
            self.complete.entry(key).or_insert(parts);
            self.bytes += size;
            return Ok(Vec::new());
        }
        let n = self.n;
        let mut parts = match self.incomplete.get(&key) {
            Some(parts) => parts.clone(),
            None => vec![None; n],
        };
        let is_new = !self.incomplete.contains_key(&key);
        for (&index, value) in indices.iter().zip(values) {
            let slot = part(&mut parts, key, index)?;
            if slot.is_some() && !is_new {
                return Err(invalid_argument!(
                    "The tensor for index '{index}' for key '{key}' was already initialized \
                     '{n}'."
                ));
            }
            *slot = Some(value);
        }
        self.bytes += size;
        if !is_new && parts.iter().all(Option::is_some) {
            self.incomplete.remove(&key);
            self.complete.entry(key).or_insert(parts);
        } else {
            self.incomplete.insert(key, parts);
        }
        Ok(Vec::new())
    }
}

fn part(parts: &mut Parts, key: i64, index: i32) -> Result<&mut Option<Tensor>> {
    let n = parts.len();
    let at = usize::try_from(index).ok();
    at.and_then(|at| parts.get_mut(at)).ok_or_else(|| {
        // TensorFlow prints the index as an unsigned number.
        let index = i64::from(index) as u64;
        invalid_argument!("Index '{index}' for key '{key}' was out of bounds '{n}'.")
    })
}

/// Returns the values at these indices, removed unless `keeps`.
fn taken(parts: &mut Parts, key: i64, indices: &[i32], keeps: bool) -> Result<Tuple> {
    let mut tuple = Vec::with_capacity(indices.len());
    for &index in indices {
        let slot = part(parts, key, index)?;
        let value = match keeps {
            true => slot.clone(),
            false => slot.take(),
        };
        tuple.push(value.ok_or_else(|| {
            invalid_argument!("Tensor at index '{index}' for key '{key}' has already been removed.")
        })?);
    }
    Ok(tuple)
}

fn sized(tuple: Tuple, n: usize) -> Result<Tuple> {
    match tuple.len() == n {
        true => Ok(tuple),
        false => Err(invalid_argument!(
            "output/indices size mismatch: {n} vs. {}",
            tuple.len()
        )),
    }
}
