//! AddSparseToTensorsMap, AddManySparseToTensorsMap and TakeManySparseFromTensorsMap (TensorFlow:
//! `core/kernels/sparse_tensors_map_ops.cc`).

use crate::sparse_parts::{Rows, checked_shape, fitting};
use ferroflow_base::{Result, invalid_argument, resource_exhausted};
use ferroflow_functors::sparse::check_ordered;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::resource::ContainerInfo;
use ferroflow_resources::sparse_tensors::{SparseParts, SparseTensorsMap};
use ferroflow_tensor::{DType, Item, PartialShape, Shape, Tensor, dispatch_items};
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "AddSparseToTensorsMap",
        "sparse_indices: int64, sparse_values: T, sparse_shape: int64 -> sparse_handle: int64 | \
         T: type; container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(|ctx| {
        check_ranks(ctx)?;
        ctx.set(0, PartialShape::scalar());
        Ok(())
    })
    .kernel(add_one),
    Op::new(
        "AddManySparseToTensorsMap",
        "sparse_indices: int64, sparse_values: T, sparse_shape: int64 -> sparse_handles: int64 | \
         T: type; container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(|ctx| {
        check_ranks(ctx)?;
        ctx.set(0, PartialShape::of([None]));
        Ok(())
    })
    .kernel(add_many),
    Op::new(
        "TakeManySparseFromTensorsMap",
        "sparse_handles: int64 -> sparse_indices: int64, sparse_values: dtype, sparse_shape: \
         int64 | dtype: type; container: string = ''; shared_name: string = '' | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 1)?;
        ctx.set(0, PartialShape::of([None, None]));
        ctx.set(1, PartialShape::of([None]));
        ctx.set(2, PartialShape::of([None]));
        Ok(())
    })
    .kernel(take_many),
];

/// More sparse tensors than this in one batch are refused: a shape alone can ask for that many.
const MOST: i64 = 1 << 22;

fn check_ranks(ctx: &ShapeCtx) -> Result<()> {
    ctx.with_rank(0, 2)?;
    ctx.with_rank(1, 1)?;
    ctx.with_rank(2, 1)?;
    Ok(())
}

/// The map of an op that adds to it: named by the op if it has no shared name.
struct Target {
    container: String,
    name: String,
}

impl Target {
    fn new(build: &KernelBuild) -> Result<Target> {
        let name = match build.attrs.str("shared_name")? {
            "" => build.node,
            name => name,
        };
        Ok(Target {
            container: build.attrs.str("container")?.to_string(),
            name: name.to_string(),
        })
    }

    fn find(&self, ctx: &KernelCtx) -> Result<Arc<SparseTensorsMap>> {
        let make = || Ok(SparseTensorsMap::new(&self.name));
        ctx.resources()
            .lookup_or_create(&self.container, &self.name, make)
    }
}

/// Checks the ranks of the parts; returns the sizes of the dimensions.
fn sizes<'a>(ctx: &'a KernelCtx) -> Result<&'a [i64]> {
    let parts = [
        ("indices", "matrix", 2),
        ("values", "vector", 1),
        ("shape", "vector", 1),
    ];
    for (i, (name, kind, rank)) in parts.into_iter().enumerate() {
        let shape = ctx.shape(i)?;
        if shape.rank() != rank {
            return Err(invalid_argument!(
                "Input {name} should be a {kind} but received shape {shape}"
            ));
        }
    }
    ctx.slice(2)
}

fn add_one(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let target = Target::new(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let map = target.find(ctx)?;
        let shape = sizes(ctx)?.to_vec();
        checked_shape(&shape)?;
        let (indices, values) = (ctx.input(0)?, ctx.input(1)?);
        fitting(indices, values, shape.len())?;
        let number = map.add(SparseParts {
            indices: indices.clone(),
            values: values.clone(),
            shape,
        });
        ctx.set_output(0, Tensor::scalar(number))
    }))
}

fn add_many(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let target = Target::new(build)?;
    dispatch_items!(build.input(1)?, T => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let map = target.find(ctx)?;
        let numbers = add_rows::<T>(ctx, &map)?;
        ctx.set_output(0, Tensor::vector(&numbers)?)
    })))
}

/// Adds the slices of the first dimension; returns their numbers.
fn add_rows<T: Item>(ctx: &KernelCtx, map: &SparseTensorsMap) -> Result<Vec<i64>> {
    let shape = sizes(ctx)?;
    let (indices, values) = (ctx.input(0)?, ctx.input(1)?);
    if values.num_elements() != indices.shape()[0] {
        return Err(invalid_argument!(
            "Number of values must match first dimension of indices. Got {} values, indices \
             shape: {}",
            values.num_elements(),
            indices.shape()
        ));
    }
    let rank = shape.len();
    if rank != indices.shape()[1] {
        return Err(invalid_argument!(
            "Number of dimensions must match second dimension of indices. Got {rank} dimensions, \
             indices shape: {}",
            indices.shape()
        ));
    }
    let (true, Some((&n, inner))) = (rank > 1, shape.split_first()) else {
        return Err(invalid_argument!(
            "Rank of input SparseTensor should be > 1, but saw rank: {rank}"
        ));
    };
    checked_shape(shape)?;
    if n > MOST {
        return Err(resource_exhausted!(
            "a batch of {n} sparse tensors does not fit into memory"
        ));
    }
    let rows = Rows::of(indices)?;
    check_ordered(rows.at, rank, shape)?;
    let part = |range: std::ops::Range<usize>| -> Result<SparseParts> {
        let places: Vec<i64> = range
            .clone()
            .flat_map(|i| rows.row(i).iter().skip(1).copied())
            .collect();
        let mut own = Tensor::zeros(values.dtype(), Shape::from([range.len()]))?;
        let from = values.items::<T>()?.get(range.clone()).unwrap_or_default();
        own.items_mut::<T>()?.clone_from_slice(from);
        Ok(SparseParts {
            indices: Tensor::from_slice([range.len(), rank - 1], &places)?,
            values: own,
            shape: inner.to_vec(),
        })
    };
    let all: Vec<usize> = (0..values.num_elements()).collect();
    let mut numbers = vec![-1; n as usize];
    let mut start = 0;
    while start < all.len() {
        let end = rows.run_end(&all, start, &[0]).max(start + 1);
        let number = map.add(part(start..end)?);
        if let Some(slot) = numbers.get_mut(rows.get(start, 0) as usize) {
            *slot = number;
        }
        start = end;
    }
    let empty = part(0..0)?;
    for slot in numbers.iter_mut().filter(|n| **n < 0) {
        *slot = map.add(empty.clone());
    }
    Ok(numbers)
}

fn take_many(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let info = ContainerInfo::of_node(build)?;
    let dtype = build.output(1)?;
    dispatch_items!(dtype, T => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let make = |name: &str| Ok(SparseTensorsMap::new(name));
        let (_, map) = info.find(ctx.resources(), make)?;
        join::<T>(ctx, &map, dtype)
    })))
}

/// Stacks sparse tensors along a new first dimension; the others grow to the largest.
fn join<T: Item>(ctx: &mut KernelCtx, map: &SparseTensorsMap, dtype: DType) -> Result<()> {
    let numbers = ctx.input(0)?;
    if numbers.shape().rank() != 1 {
        return Err(invalid_argument!(
            "sparse_handles should be a vector but received shape {}",
            numbers.shape()
        ));
    }
    if numbers.num_elements() == 0 {
        return Err(invalid_argument!(
            "Must have at least 1 serialized SparseTensor, but input matrix has 0 rows"
        ));
    }
    let parts = map.take(numbers.slice()?)?;
    let rank = parts.first().map_or(0, |part| part.shape.len());
    for (i, part) in parts.iter().enumerate() {
        if part.values.dtype() != dtype {
            return Err(invalid_argument!(
                "Requested SparseTensor of type {} but SparseTensor[{i}].values.dtype() == {}",
                dtype,
                part.values.dtype()
            ));
        }
        if part.shape.len() != rank {
            return Err(invalid_argument!(
                "Inconsistent rank across SparseTensors: rank prior to SparseTensor[{i}] was: {} \
                 but rank of SparseTensor[{i}] is: {}",
                rank + 1,
                part.shape.len() + 1
            ));
        }
    }
    let mut shape = vec![0; rank + 1];
    shape[0] = parts.len() as i64;
    let (mut places, mut values) = (Vec::new(), Vec::new());
    for (i, part) in parts.iter().enumerate() {
        for (most, &size) in shape.iter_mut().skip(1).zip(&part.shape) {
            *most = size.max(*most);
        }
        for row in part.indices.slice::<i64>()?.chunks(rank.max(1)) {
            places.push(i as i64);
            places.extend_from_slice(row);
        }
        values.extend_from_slice(part.values.items::<T>()?);
    }
    let mut all = Tensor::zeros(dtype, Shape::from([values.len()]))?;
    all.items_mut::<T>()?.clone_from_slice(&values);
    let at = Tensor::from_slice([values.len(), rank + 1], &places)?;
    ctx.set_output(0, at)?;
    ctx.set_output(1, all)?;
    ctx.set_output(2, Tensor::vector(&shape)?)
}
