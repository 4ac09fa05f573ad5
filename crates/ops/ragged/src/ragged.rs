//! Ragged tensors as variants: a variant holds the splits of every ragged dimension and the values
//! (TensorFlow: `core/kernels/ragged_tensor_to_variant_op.cc` and
//! `ragged_tensor_from_variant_op.cc`).

use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::indices;
use ferroflow_functors::ragged::Ragged;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::rows::{joined, prepended};
use ferroflow_tensor::{DType, Shape, Tensor, Variant};

/// RaggedTensorToVariant, RaggedTensorFromVariant, RaggedTensorToVariantGradient.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RaggedTensorToVariant",
        "rt_nested_splits: RAGGED_RANK*Tsplits, rt_dense_values: Tvalues \
         -> encoded_ragged: variant | RAGGED_RANK: int >= 0; Tvalues: type; \
         Tsplits: type {int32,int64} = int64; batched_input: bool",
    )
    .kernel(to_variant)
    .gradient(to_variant_gradient),
    Op::new(
        "RaggedTensorFromVariant",
        "encoded_ragged: variant -> output_nested_splits: output_ragged_rank*Tsplits, \
         output_dense_values: Tvalues | input_ragged_rank: int >= -1; \
         output_ragged_rank: int >= 0; Tvalues: type; Tsplits: type {int32,int64} = \
         int64",
    )
    .kernel(from_variant)
    .gradient(from_variant_gradient),
    Op::new(
        "RaggedTensorToVariantGradient",
        "encoded_ragged_grad: variant, row_splits: Tsplits, dense_values_shape: int32 \
         -> dense_values_grad: Tvalues | Tvalues: type; Tsplits: type {int32,int64} = \
         int64",
    )
    .shape(|ctx| {
        if let Some(shape) = indices::constant(ctx, 2) {
            ctx.set(0, indices::sizes(&shape)?);
        }
        Ok(())
    })
    .kernel(values_of_all),
];

/// Returns rows `from..to` of a tensor.
fn rows_of(t: &Tensor, from: usize, to: usize) -> Result<Tensor> {
    let Some((&n, row)) = t.shape().split_first() else {
        return Err(invalid_argument!(
            "expected a tensor with rows, got a scalar"
        ));
    };
    let row = Shape::from(row);
    if from > to || to > n {
        return Err(invalid_argument!(
            "rows {from}..{to} are out of range 0..{n}"
        ));
    }
    t.view(from * row.num_elements(), prepended(to - from, &row)?)
}

/// Returns the splits as positions, checked to increase from 0 to at most `n`.
fn checked_splits(t: &Tensor, n: usize) -> Result<Vec<usize>> {
    let bad = |why: &str| invalid_argument!("Invalid ragged splits: {why}");
    if t.shape().rank() != 1 || t.num_elements() == 0 {
        return Err(bad("they must be a vector of at least one element"));
    }
    let ints = indices::ints(t)?;
    let mut out = Vec::with_capacity(ints.len());
    for &i in &ints {
        let i = usize::try_from(i).map_err(|_| bad("they must not be negative"))?;
        if i > n || out.last().is_some_and(|&last| last > i) {
            return Err(bad("they must rise and stay in the values"));
        }
        out.push(i);
    }
    match out.first() {
        Some(0) => Ok(out),
        _ => Err(bad("they must begin with 0")),
    }
}

fn len(t: &Tensor) -> usize {
    t.shape().first().copied().unwrap_or(0)
}

fn to_variant(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let batched = build.attrs.bool("batched_input")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let n = ctx.num_inputs() - 1;
        let splits = (0..n)
            .map(|i| ctx.input(i).cloned())
            .collect::<Result<Vec<_>>>()?;
        let values = ctx.input(n)?.clone();
        if !batched {
            let whole = Ragged { splits, values }.variant();
            return ctx.set_output(0, Tensor::from_variants(Shape::scalar(), vec![whole])?);
        }
        let mut parts = Vec::new();
        let Some((outer, inner)) = splits.split_first() else {
            for i in 0..len(&values) {
                let row = rows_of(&values, i, i + 1)?;
                let shape = Shape::from(values.shape().get(1..).unwrap_or_default());
                let values = row.with_shape(shape)?;
                parts.push(
                    Ragged {
                        splits: Vec::new(),
                        values,
                    }
                    .variant(),
                );
            }
            return set_all(ctx, parts);
        };
        let below = inner
            .first()
            .map_or(len(&values), |s| len(s).saturating_sub(1));
        let outer = checked_splits(outer, below)?;
        for pair in outer.windows(2) {
            let (mut from, mut to) = match *pair {
                [from, to] => (from, to),
                _ => continue,
            };
            let mut own = Vec::with_capacity(inner.len());
            for (d, splits) in inner.iter().enumerate() {
                let below = inner
                    .get(d + 1)
                    .map_or(len(&values), |s| len(s).saturating_sub(1));
                let places = checked_splits(splits, below)?;
                let Some(range) = places.get(from..=to) else {
                    return Err(invalid_argument!("Invalid ragged splits: too few"));
                };
                let first = range.first().copied().unwrap_or(0);
                let moved = range.iter().map(|&p| (p - first) as i64);
                own.push(indices::int_vector(splits.dtype(), moved)?);
                (from, to) = (first, range.last().copied().unwrap_or(first));
            }
            let values = rows_of(&values, from, to)?;
            parts.push(
                Ragged {
                    splits: own,
                    values,
                }
                .variant(),
            );
        }
        set_all(ctx, parts)
    }))
}

fn set_all(ctx: &mut KernelCtx, parts: Vec<Variant>) -> Result<()> {
    let shape = Shape::from([parts.len()]);
    ctx.set_output(0, Tensor::from_variants(shape, parts)?)
}

fn from_variant(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let given = build.attrs.int("input_ragged_rank")?;
    let rank = build.attrs.int("output_ragged_rank")?;
    let dtype = build.attrs.dtype("Tvalues")?;
    let splits_dtype = build.attrs.dtype("Tsplits")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let encoded = ctx.input(0)?.clone();
        let dims = encoded.shape().rank() as i64;
        let input_rank = if given == -1 { rank - dims } else { given };
        if given == -1 && input_rank < -1 {
            return Err(invalid_argument!(
                "Inferred input_ragged_rank (output_ragged_rank - encoded_variant.dims()) must be >= \
                 -1, found output_ragged_rank: {rank}, encoded_variant.dims(): {dims}, inferred \
                 input_ragged_rank: {input_rank}"
            ));
        }
        let input_rank = input_rank.max(0);
        if given != -1 && rank != given + dims {
            return Err(invalid_argument!(
                "output_ragged_rank must be equal to input_ragged_rank + encoded_ragged.dims(); \
                 output_ragged_rank: {rank}, input_ragged_rank: {given}, encoded_variant.dims(): \
                 {dims}."
            ));
        }
        let shape = encoded.shape().clone();
        let parts = encoded
            .variants()?
            .iter()
            .map(|v| component(v, input_rank as usize, dtype, splits_dtype))
            .collect::<Result<Vec<_>>>()?;
        if shape.is_scalar()
            && let Some(one) = parts.first()
        {
            for (i, splits) in one.splits.iter().enumerate() {
                ctx.set_output(i, splits.clone())?;
            }
            return ctx.set_output(one.splits.len(), one.values.clone());
        }
        let stacked = stacked(&parts, &shape, input_rank as usize, rank as usize, dtype)?;
        for (i, splits) in stacked.0.into_iter().enumerate() {
            let splits = indices::int_vector(splits_dtype, splits.into_iter())?;
            ctx.set_output(i, splits)?;
        }
        ctx.set_output(rank as usize, stacked.1)
    }))
}

fn component(variant: &Variant, rank: usize, dtype: DType, splits_dtype: DType) -> Result<&Ragged> {
    let ragged = Ragged::of(variant);
    let ragged = ragged.ok_or_else(|| {
        invalid_argument!("Input Variant element at index 0 doesn't hold a RaggedTensorVariant")
    })?;
    if ragged.splits.len() != rank {
        return Err(invalid_argument!(
            "Encoded input RaggedTensorVariant has ragged_rank={}.  Expected ragged_rank={rank}.",
            ragged.splits.len()
        ));
    }
    if ragged.values.dtype() != dtype {
        return Err(invalid_argument!(
            "Expected values Tensor dtype: {dtype}, found: {}",
            ragged.values.dtype()
        ));
    }
    if let Some(splits) = ragged.splits.iter().find(|s| s.dtype() != splits_dtype) {
        return Err(invalid_argument!(
            "Expected row_splits Tensor dtype: {splits_dtype}, found: {}",
            splits.dtype()
        ));
    }
    if ragged.values.shape().is_scalar() && rank > 0 {
        return Err(invalid_argument!(
            "Ragged values must have rank >= 1; encoded scalar element at index 0 has values Tensor: []"
        ));
    }
    Ok(ragged)
}

/// Returns the components concatenated: the splits of every dimension and the values.
fn stacked(
    parts: &[&Ragged],
    shape: &Shape,
    input_rank: usize,
    rank: usize,
    dtype: DType,
) -> Result<(Vec<Vec<i64>>, Tensor)> {
    let mut all: Vec<Vec<i64>> = Vec::with_capacity(rank);
    // The dimensions that the variants are arranged in.
    let n_outer = rank.saturating_sub(input_rank).saturating_sub(1);
    let mut n: usize = 1;
    for d in 0..n_outer {
        n *= shape.get(d).copied().unwrap_or(1);
        let below = shape.get(d + 1).copied().unwrap_or(1);
        all.push((0..=n).map(|i| (i * below) as i64).collect());
    }
    // Then one that counts the rows of each component.
    let mut ends = vec![0i64];
    for part in parts {
        let rows = match part.splits.first() {
            Some(splits) => len(splits).saturating_sub(1),
            None => match part.values.shape().is_scalar() {
                true => 1,
                false => len(&part.values),
            },
        };
        ends.push(
            ends.last()
                .copied()
                .unwrap_or(0)
                .saturating_add(rows as i64),
        );
    }
    if all.len() < rank {
        all.push(ends);
    }
    for d in 0..input_rank {
        let mut joined = vec![0i64];
        for part in parts {
            let base = joined.last().copied().unwrap_or(0);
            let splits = part.splits.get(d).map(indices::ints).transpose()?;
            let rest = splits.unwrap_or_default();
            joined.extend(rest.iter().skip(1).map(|i| base.saturating_add(*i)));
        }
        all.push(joined);
    }
    let Some(first) = parts.first() else {
        return Ok((all, Tensor::zeros(dtype, Shape::from([0]))?));
    };
    let scalars = first.values.shape().is_scalar();
    let row = Shape::from(first.values.shape().get(1..).unwrap_or_default());
    let mut total: usize = 0;
    for (i, part) in parts.iter().enumerate() {
        let same = part.values.shape().get(1..).unwrap_or_default() == row.dims();
        if !same || part.values.shape().is_scalar() != scalars {
            return Err(invalid_argument!(
                "All flat_values must have compatible shapes.  Shape at index 0: {}.  Shape at index \
                 {i}: {}.  If you are using tf.map_fn, then you may need to specify an explicit \
                 fn_output_signature with appropriate ragged_rank, and/or convert output tensors to \
                 RaggedTensors.",
                first.values.shape(),
                part.values.shape()
            ));
        }
        total = total.saturating_add(if scalars { 1 } else { len(&part.values) });
    }
    let pieces: Vec<_> = parts
        .iter()
        .map(|p| (Some(&p.values), p.values.num_elements()))
        .collect();
    let values = joined(dtype, prepended(total, &row)?, &pieces)?;
    Ok((all, values))
}

/// Concatenates the values of all components, in the shape of the encoded values.
fn values_of_all(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let encoded = ctx.input(0)?;
        let shape = Shape::checked(&indices::ints(ctx.input(2)?)?)?;
        let mut parts = Vec::with_capacity(encoded.num_elements());
        for variant in encoded.variants()? {
            let ragged = Ragged::of(variant).filter(|r| r.values.dtype() == dtype);
            let ragged = ragged.ok_or_else(|| {
                invalid_argument!(
                    "Input Variant element at index {} doesn't hold a RaggedTensorVariant of {dtype}",
                    parts.len()
                )
            })?;
            parts.push((Some(&ragged.values), ragged.values.num_elements()));
        }
        let n: usize = parts.iter().map(|(_, n)| n).sum();
        if n != shape.num_elements() {
            return Err(invalid_argument!(
                "Gradient has {n} values, the encoded values have shape {shape}"
            ));
        }
        ctx.set_output(0, joined(dtype, shape, &parts)?)
    }))
}

fn to_variant_gradient(g: &mut GradientCtx) -> Result<()> {
    let (d, last) = (g.dy(0), g.num_inputs().saturating_sub(1));
    let values = g.x(last);
    let splits = match last {
        0 => d.int(0),
        _ => g.x(0),
    };
    let attrs = [("Tvalues", values.dtype().into())];
    let inputs = [splits, values.op("Shape", &[])];
    g.set(
        last,
        d.op_with("RaggedTensorToVariantGradient", &inputs, &attrs),
    )
}

fn from_variant_gradient(g: &mut GradientCtx) -> Result<()> {
    let n = g.num_outputs().saturating_sub(1);
    let batched = match g.x(0).rank() {
        Some(rank) => rank > 0,
        None => n > 0,
    };
    if g.x(0).rank().is_some_and(|rank| rank > 1) {
        return Err(unimplemented_error!(
            "Unable to compute gradient: RaggedTensorToVariant can currently only generate 0D or 1D \
             output."
        ));
    }
    let mut inputs: Vec<_> = (0..n).map(|i| g.y(i)).collect();
    inputs.push(g.dy(n));
    let attrs = [
        ("RAGGED_RANK", (n as i64).into()),
        g.attr("Tsplits"),
        ("batched_input", batched.into()),
    ];
    g.set(0, g.x(0).make("RaggedTensorToVariant", &inputs, &attrs))
}
