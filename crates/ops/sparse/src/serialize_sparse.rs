//! SerializeSparse, SerializeManySparse, DeserializeSparse, DeserializeManySparse (TensorFlow:
//! `core/kernels/serialize_sparse_op.cc`, `deserialize_sparse_string_op.cc` and
//! `deserialize_sparse_variant_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto::TensorProto;
use ferroflow_model::{tensor_from_proto, tensor_to_proto};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::rows::prepended;
use ferroflow_tensor::{Bytes, DType, Item, PartialShape, Shape, Tensor, Variant};
use prost::Message;
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SerializeSparse",
        "sparse_indices: int64, sparse_values: T, sparse_shape: int64 -> \
         serialized_sparse: out_type | T: type; out_type: type {string,variant} = \
         string",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 2)?;
        ctx.with_rank(1, 1)?;
        ctx.with_rank(2, 1)?;
        ctx.set(0, PartialShape::of([Some(3)]));
        Ok(())
    })
    .kernel(|b| serialize(b, false))
    .not_differentiable(),
    Op::new(
        "SerializeManySparse",
        "sparse_indices: int64, sparse_values: T, sparse_shape: int64 -> \
         serialized_sparse: out_type | T: type; out_type: type {string,variant} = \
         string",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 2)?;
        ctx.with_rank(1, 1)?;
        ctx.with_rank(2, 1)?;
        ctx.set(0, PartialShape::of([None, Some(3)]));
        Ok(())
    })
    .kernel(|b| serialize(b, true))
    .not_differentiable(),
    Op::new(
        "DeserializeSparse",
        "serialized_sparse: Tserialized -> sparse_indices: int64, sparse_values: \
         dtype, sparse_shape: int64 | dtype: type; Tserialized: type {string,variant} \
         = string",
    )
    .shape(|ctx| {
        sparse_shapes(ctx);
        Ok(())
    })
    .kernel(deserialize)
    .not_differentiable(),
    Op::new(
        "DeserializeManySparse",
        "serialized_sparse: string -> sparse_indices: int64, sparse_values: dtype, \
         sparse_shape: int64 | dtype: type",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 2)?;
        sparse_shapes(ctx);
        Ok(())
    })
    .kernel(deserialize)
    .not_differentiable(),
];

fn sparse_shapes(ctx: &mut ferroflow_opdef::ShapeCtx) {
    ctx.set(0, PartialShape::of([None, None]));
    ctx.set(1, PartialShape::of([None]));
    ctx.set(2, PartialShape::of([None]));
}

/// One tensor of a serialized sparse tensor, as an element of the result.
trait Written: Item {
    fn write(t: Tensor) -> Result<Self>;
    fn read(&self) -> Result<Tensor>;
}

impl Written for Bytes {
    fn write(t: Tensor) -> Result<Bytes> {
        Ok(tensor_to_proto(&t)?.encode_to_vec().into())
    }

    fn read(&self) -> Result<Tensor> {
        let bad = || invalid_argument!("Could not parse serialized proto");
        let proto = TensorProto::decode(&self[..]).map_err(|_| bad())?;
        tensor_from_proto(&proto, None).map_err(|_| bad())?.get()
    }
}

impl Written for Variant {
    fn write(t: Tensor) -> Result<Variant> {
        Ok(Variant(Some(Arc::new(t))))
    }

    fn read(&self) -> Result<Tensor> {
        let tensor = self.0.as_deref().and_then(|v| v.downcast_ref::<Tensor>());
        tensor.cloned().ok_or_else(|| {
            invalid_argument!("Could not get a tensor from the variant serialized_sparse")
        })
    }
}

/// Checks a sparse tensor; returns the number of its values and its rank.
fn check_sparse(at: &Tensor, values: &Tensor, shape: &Tensor) -> Result<(usize, usize)> {
    let [n, rank] = *at.shape().dims() else {
        return Err(invalid_argument!(
            "Input indices should be a matrix but received shape {}",
            at.shape()
        ));
    };
    if values.shape().rank() != 1 {
        return Err(invalid_argument!(
            "Input values should be a vector but received shape {}",
            values.shape()
        ));
    }
    if shape.shape().rank() != 1 {
        return Err(invalid_argument!(
            "Input shape should be a vector but received shape {}",
            shape.shape()
        ));
    }
    if values.num_elements() != n {
        return Err(invalid_argument!(
            "Expected {n} non-empty indices, got {}",
            values.num_elements()
        ));
    }
    if shape.num_elements() != rank {
        return Err(invalid_argument!(
            "Dimension mismatch: indices has rank {rank} but the shape has {} dimensions",
            shape.num_elements()
        ));
    }
    Ok((n, rank))
}

fn serialize(build: &KernelBuild, many: bool) -> Result<Box<dyn OpKernel>> {
    Ok(match (build.output(0)?, many) {
        (DType::String, false) => Box::new(serialize_one::<Bytes>),
        (DType::String, true) => Box::new(serialize_many::<Bytes>),
        (_, false) => Box::new(serialize_one::<Variant>),
        (_, true) => Box::new(serialize_many::<Variant>),
    })
}

fn serialize_one<W: Written>(ctx: &mut KernelCtx) -> Result<()> {
    check_sparse(ctx.input(0)?, ctx.input(1)?, ctx.input(2)?)?;
    let parts: Vec<W> = (0..3)
        .map(|i| W::write(ctx.input(i)?.clone()))
        .collect::<Result<_>>()?;
    set_written(ctx, Shape::from([3]), parts)
}

fn set_written<W: Written>(ctx: &mut KernelCtx, shape: Shape, parts: Vec<W>) -> Result<()> {
    let dtype = match std::any::TypeId::of::<W>() == std::any::TypeId::of::<Bytes>() {
        true => DType::String,
        false => DType::Variant,
    };
    let mut out = Tensor::zeros(dtype, shape)?;
    for (slot, part) in out.items_mut::<W>()?.iter_mut().zip(parts) {
        *slot = part;
    }
    ctx.set_output(0, out)
}

/// Returns the rows `range` of a tensor.
fn range_of(t: &Tensor, start: usize, n: usize) -> Result<Tensor> {
    let row: usize = t.shape().iter().skip(1).product();
    let inner = Shape::from(t.shape().get(1..).unwrap_or_default());
    t.view(start * row, prepended(n, &inner)?)
}

fn serialize_many<W: Written>(ctx: &mut KernelCtx) -> Result<()> {
    let (at, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let (n, rank) = check_sparse(at, values, shape)?;
    if rank < 2 {
        return Err(invalid_argument!(
            "Rank of input SparseTensor should be > 1, but saw rank: {rank}"
        ));
    }
    let sizes = shape.slice::<i64>()?;
    let n_parts = match sizes.first().map(|&d| usize::try_from(d)) {
        Some(Ok(n)) if n <= 1 << 28 => n,
        _ => return Err(invalid_argument!("the batch size {sizes:?} is not usable")),
    };
    let inner = Tensor::vector(sizes.get(1..).unwrap_or_default())?;
    let rows = at.slice::<i64>()?;
    let mut parts = Vec::with_capacity(3 * n_parts);
    let mut from = 0;
    for part in 0..n_parts {
        let mut own = Vec::new();
        let mut to = from;
        while to < n && rows.get(to * rank) == Some(&(part as i64)) {
            own.extend_from_slice(rows.get(to * rank + 1..(to + 1) * rank).unwrap_or_default());
            to += 1;
        }
        parts.push(W::write(Tensor::from_slice([to - from, rank - 1], &own)?)?);
        parts.push(W::write(range_of(values, from, to - from)?)?);
        parts.push(W::write(inner.clone())?);
        from = to;
    }
    if from != n {
        return Err(invalid_argument!(
            "the indices of the SparseTensor are not in order or outside of its shape"
        ));
    }
    set_written(ctx, Shape::from([n_parts, 3]), parts)
}

fn deserialize(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(1)?;
    Ok(match build.input(0)? {
        DType::String => Box::new(move |ctx: &mut KernelCtx| deserialize_all::<Bytes>(ctx, dtype)),
        _ => Box::new(move |ctx: &mut KernelCtx| deserialize_all::<Variant>(ctx, dtype)),
    })
}

/// A sparse tensor that was read.
struct Part {
    at: Tensor,
    values: Tensor,
    shape: Tensor,
    /// The number of values.
    n: usize,
    rank: usize,
}

/// Reads the sparse tensors of a tensor; returns its leading dimensions, too.
fn read_all<W: Written>(serialized: &Tensor, dtype: DType) -> Result<(Shape, Vec<Part>)> {
    let Some((&columns, leading)) = serialized.shape().split_last() else {
        return Err(invalid_argument!(
            "Serialized sparse should have non-zero rank {}",
            serialized.shape()
        ));
    };
    if columns != 3 {
        return Err(invalid_argument!(
            "Serialized sparse should have 3 as the last dimension {}",
            serialized.shape()
        ));
    }
    if serialized.num_elements() == 0 {
        return Err(invalid_argument!(
            "Serialized sparse should have at least 1 serialized tensor, but has a zero dimension {}",
            serialized.shape()
        ));
    }
    let read = serialized.items::<W>()?.chunks(3).map(|part| {
        let [at, values, shape] = part else {
            return Err(invalid_argument!("a serialized sparse tensor has 3 parts"));
        };
        let (at, values, shape) = (at.read()?, values.read()?, shape.read()?);
        if values.dtype() != dtype {
            return Err(invalid_argument!(
                "Requested SparseTensor of type {dtype} but SparseTensor[0].values.dtype() == {}",
                values.dtype()
            ));
        }
        let (n, rank) = check_sparse(&at, &values, &shape)?;
        Ok(Part {
            at,
            values,
            shape,
            n,
            rank,
        })
    });
    Ok((Shape::from(leading), read.collect::<Result<_>>()?))
}

fn deserialize_all<W: Written>(ctx: &mut KernelCtx, dtype: DType) -> Result<()> {
    let (leading, parts) = read_all::<W>(ctx.input(0)?, dtype)?;
    if leading.is_scalar()
        && let Some(part) = parts.first()
    {
        ctx.set_output(0, part.at.clone())?;
        ctx.set_output(1, part.values.clone())?;
        return ctx.set_output(2, part.shape.clone());
    }
    let rank = parts.first().map_or(0, |part| part.rank);
    let total: usize = parts.iter().map(|p| p.n).sum();
    let mut sizes: Vec<i64> = leading.to_i64().to_vec();
    sizes.resize(leading.rank() + rank, 0);
    let mut rows = Vec::with_capacity(total.saturating_mul(sizes.len()));
    let mut before = vec![0; leading.rank()];
    for (i, part) in parts.iter().enumerate() {
        if part.rank != rank {
            return Err(invalid_argument!(
                "Inconsistent shape across SparseTensors: rank prior to SparseTensor[{i}] was: \
                 {rank} but rank of SparseTensor[{i}] is: {}",
                part.rank
            ));
        }
        ferroflow_functors::strided::unravel(i, leading.dims(), &mut before);
        // Scalars have a row without numbers.
        let at = part.at.slice::<i64>()?;
        for row in 0..part.n {
            rows.extend(before.iter().map(|&b| b as i64));
            rows.extend_from_slice(&at[row * rank..(row + 1) * rank]);
        }
        for (size, own) in sizes
            .iter_mut()
            .skip(leading.rank())
            .zip(part.shape.slice::<i64>()?)
        {
            *size = (*size).max(*own);
        }
    }
    let values: Vec<_> = parts.iter().map(|p| (Some(&p.values), p.n)).collect();
    let values = ferroflow_tensor::rows::joined(dtype, Shape::from([total]), &values)?;
    ctx.set_output(0, Tensor::from_slice([total, sizes.len()], &rows)?)?;
    ctx.set_output(1, values)?;
    ctx.set_output(2, Tensor::vector(&sizes)?)
}
