//! ParseExample and related ops: tensors from serialized `tf.Example` messages (TensorFlow:
//! `core/kernels/example_parsing_ops.cc`).

use crate::example_records::{Feature, Key, Mismatch, Records};
use crate::feature_values::Values;
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_opdef::{Attrs, Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor};

/// ParseExample, ParseExampleV2, ParseSingleExample.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ParseExample",
        "serialized: string, names: string, sparse_keys: Nsparse*string, dense_keys: \
         Ndense*string, dense_defaults: list(Tdense) -> sparse_indices: Nsparse*int64, \
         sparse_values: list(sparse_types), sparse_shapes: Nsparse*int64, \
         dense_values: list(Tdense) | Nsparse: int >= 0; Ndense: int >= 0; \
         sparse_types: list(type) >= 0 {float,int64,string}; Tdense: list(type) >= 0 \
         {float,int64,string}; dense_shapes: list(shape) >= 0",
    )
    .shape(|ctx| {
        let records = ctx.with_rank(0, 1)?;
        shape(ctx, 2, &records)
    })
    .cost(Cost::Expensive)
    .kernel(|b| build(b, OpVersion::V1)),
    Op::new(
        "ParseExampleV2",
        "serialized: string, names: string, sparse_keys: string, dense_keys: string, \
         ragged_keys: string, dense_defaults: list(Tdense) -> sparse_indices: \
         num_sparse*int64, sparse_values: list(sparse_types), sparse_shapes: \
         num_sparse*int64, dense_values: list(Tdense), ragged_values: \
         list(ragged_value_types), ragged_row_splits: list(ragged_split_types) | \
         Tdense: list(type) >= 0 {float,int64,string}; num_sparse: int >= 0; \
         sparse_types: list(type) >= 0 {float,int64,string}; ragged_value_types: \
         list(type) >= 0 {float,int64,string}; ragged_split_types: list(type) >= 0 \
         {int32,int64}; dense_shapes: list(shape) >= 0",
    )
    .shape(|ctx| {
        let records = ctx.input(0);
        match records.rank() {
            Some(0) => shape(ctx, 1, &records),
            Some(1) => shape(ctx, 2, &records),
            Some(_) => Err(invalid_argument!(
                "Shape must be at most rank 1 but is {records}"
            )),
            None => Ok(()),
        }
    })
    .cost(Cost::Expensive)
    .kernel(|b| build(b, OpVersion::V2)),
    Op::new(
        "ParseSingleExample",
        "serialized: string, dense_defaults: list(Tdense) -> sparse_indices: \
         num_sparse*int64, sparse_values: list(sparse_types), sparse_shapes: \
         num_sparse*int64, dense_values: list(Tdense) | num_sparse: int >= 0; \
         sparse_keys: list(string) >= 0; dense_keys: list(string) >= 0; sparse_types: \
         list(type) >= 0 {float,int64,string}; Tdense: list(type) >= 0 \
         {float,int64,string}; dense_shapes: list(shape) >= 0",
    )
    .shape(|ctx| {
        let records = ctx.with_rank(0, 0)?;
        shape(ctx, 1, &records)
    })
    .cost(Cost::Expensive)
    .kernel(|b| build(b, OpVersion::Single)),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum OpVersion {
    V1,
    V2,
    Single,
}

fn shape(ctx: &mut ShapeCtx, coordinates: usize, records: &PartialShape) -> Result<()> {
    let attrs = ctx.attrs();
    let (n_sparse, dense) = (
        attrs.dtypes("sparse_types")?.len(),
        attrs.shapes("dense_shapes")?,
    );
    for i in 0..n_sparse {
        ctx.set(i, PartialShape::of([None, Some(coordinates)]));
        ctx.set(n_sparse + i, PartialShape::of([None]));
        ctx.set(2 * n_sparse + i, PartialShape::of([Some(coordinates)]));
    }
    for (i, shape) in dense.iter().enumerate() {
        if let (Some(a), Some(b)) = (records.dims(), shape.dims()) {
            let dims = a.iter().chain(b).copied();
            ctx.set(3 * n_sparse + i, PartialShape::of(dims));
        }
    }
    let n_ragged = match attrs.get("ragged_value_types") {
        Some(_) => attrs.dtypes("ragged_value_types")?.len(),
        None => 0,
    };
    let first = 3 * n_sparse + dense.len();
    for i in 0..n_ragged {
        ctx.set(first + i, PartialShape::of([None]));
        let splits = records.dim(0).map(|n| n + 1).filter(|_| coordinates == 2);
        ctx.set(first + n_ragged + i, PartialShape::of([splits]));
    }
    Ok(())
}

/// A feature with values in every record.
pub(crate) struct DenseFeature {
    /// The dtype of the values.
    pub(crate) dtype: DType,
    /// The shape of one record's values; the first dimension may depend on the record.
    pub(crate) shape: PartialShape,
}

struct Parser {
    form: OpVersion,
    sparse: Vec<DType>,
    dense: Vec<DenseFeature>,
    /// Dtypes of values and of row splits.
    ragged: Vec<(DType, DType)>,
    /// The keys, if they are attrs.
    keys: Option<[Vec<Key>; 2]>,
}

fn build(build: &KernelBuild, form: OpVersion) -> Result<Box<dyn OpKernel>> {
    let attrs: &Attrs = build.attrs;
    let (dtypes, shapes) = (attrs.dtypes("Tdense")?, attrs.shapes("dense_shapes")?);
    if dtypes.len() != shapes.len() {
        return Err(invalid_argument!(
            "len(dense_keys) != len(dense_shapes): {} vs. {}",
            dtypes.len(),
            shapes.len()
        ));
    }
    for shape in &shapes {
        let known = |dims: &[Option<usize>]| dims.iter().skip(1).all(Option::is_some);
        if !shape.dims().is_some_and(known) {
            return Err(invalid_argument!(
                "dense_shapes may only be unknown in their first dimension, got {shape}"
            ));
        }
    }
    let dense = dtypes.into_iter().zip(shapes);
    let ragged = match form {
        OpVersion::V2 => {
            let splits = attrs.dtypes("ragged_split_types")?;
            let values = attrs.dtypes("ragged_value_types")?;
            if splits.len() != values.len() {
                return Err(invalid_argument!(
                    "len(ragged_value_types) != len(ragged_split_types)"
                ));
            }
            values.into_iter().zip(splits).collect()
        }
        _ => Vec::new(),
    };
    let parser = Parser {
        form,
        sparse: attrs.dtypes("sparse_types")?,
        dense: dense
            .map(|(dtype, shape)| DenseFeature { dtype, shape })
            .collect(),
        ragged,
        keys: match form {
            OpVersion::Single => Some([
                Key::all_of(attrs, "sparse_keys")?,
                Key::all_of(attrs, "dense_keys")?,
            ]),
            _ => None,
        },
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        for (i, out) in parser.parse(ctx)?.into_iter().enumerate() {
            ctx.set_output(i, out)?;
        }
        Ok(())
    }))
}

/// The messages of a batch.
pub(crate) struct Batch<'a> {
    /// The messages.
    pub(crate) records: &'a Records<'a>,
    /// Their names for errors; none or one for each.
    pub(crate) names: &'a [Bytes],
    /// Whether there is one message without a batch dimension.
    pub(crate) single: bool,
}

impl Batch<'_> {
    /// The features of this key that have values, one for each record.
    fn features(&self, key: &Key) -> impl Iterator<Item = (usize, Option<Feature<'_>>)> {
        let has_list = |f: &Feature| !matches!(f.list, Ok(None));
        let features = self.records.features(key);
        features.map(move |f| f.filter(has_list)).enumerate()
    }

    fn name(&self, i: usize) -> String {
        match self.names.get(i) {
            Some(name) => String::from_utf8_lossy(name).into_owned(),
            None => "<unknown>".to_string(),
        }
    }

    #[cold]
    fn mismatch(&self, i: usize, key: &Key, expected: DType, mismatch: &Mismatch) -> Status {
        let why = match mismatch {
            Mismatch::Type(actual) => {
                format!("Data types don't match. Expected type: {expected}, Actual type: {actual}")
            }
            Mismatch::Malformed => "Can't parse serialized Example.".to_string(),
        };
        invalid_argument!("Name: {}, Key: {}, Index: {i}.  {why}", self.name(i), key)
    }
}

impl Parser {
    fn parse(&self, ctx: &KernelCtx) -> Result<Vec<Tensor>> {
        let serialized = ctx.input(0)?;
        let shape = serialized.shape();
        let (fits, wanted) = match self.form {
            OpVersion::V1 => (shape.rank() == 1, "vector"),
            OpVersion::V2 => (shape.rank() <= 1, "vector"),
            OpVersion::Single => (shape.is_scalar(), "scalar"),
        };
        if !fits {
            return Err(invalid_argument!(
                "Expected serialized to be a {wanted}, got shape: {shape}"
            ));
        }
        let single = shape.is_scalar();
        let serialized = serialized.strings()?;
        let call = self.call(ctx)?;
        self.check(&call, serialized.len())?;
        let keys = [&call.sparse[..], &call.dense, &call.ragged].concat();
        let records = found(ctx.par(), serialized, &keys)?;
        let batch = Batch {
            records: &records,
            names: call.names,
            single,
        };
        self.outputs(ctx, &call, &batch)
    }

    /// Returns what the inputs or the attrs ask for.
    fn call<'a>(&self, ctx: &'a KernelCtx) -> Result<Call<'a>> {
        let words = |i: usize| Key::all_in(ctx, i);
        let list = |first: usize, n: usize| -> Result<Vec<Key>> {
            let parts = (first..first + n).map(words);
            Ok(parts.collect::<Result<Vec<_>>>()?.concat())
        };
        if let Some([sparse, dense]) = &self.keys {
            return Ok(Call {
                names: &[],
                sparse: sparse.clone(),
                dense: dense.clone(),
                ragged: Vec::new(),
                defaults: 1,
            });
        }
        let names = ctx.input(1)?.strings()?;
        if self.form == OpVersion::V2 {
            return Ok(Call {
                names,
                sparse: words(2)?,
                dense: words(3)?,
                ragged: words(4)?,
                defaults: 5,
            });
        }
        let (first_dense, n_dense) = (2 + self.sparse.len(), self.dense.len());
        Ok(Call {
            names,
            sparse: list(2, self.sparse.len())?,
            dense: list(first_dense, n_dense)?,
            ragged: Vec::new(),
            defaults: first_dense + n_dense,
        })
    }

    fn check(&self, call: &Call, n_records: usize) -> Result<()> {
        if !call.names.is_empty() && call.names.len() != n_records {
            return Err(invalid_argument!(
                "Expected len(names) == len(serialized), but got {} vs. {n_records}",
                call.names.len()
            ));
        }
        let wanted = [
            ("sparse_keys", call.sparse.len(), self.sparse.len()),
            ("dense_keys", call.dense.len(), self.dense.len()),
            ("ragged_keys", call.ragged.len(), self.ragged.len()),
        ];
        match wanted.iter().find(|(_, got, wanted)| got != wanted) {
            Some((what, got, wanted)) => {
                Err(invalid_argument!("Expected {wanted} {what}, got {got}"))
            }
            None => Ok(()),
        }
    }

    fn outputs(&self, ctx: &KernelCtx, call: &Call, batch: &Batch) -> Result<Vec<Tensor>> {
        let mut parts = [Vec::new(), Vec::new(), Vec::new()];
        for (key, dtype) in call.sparse.iter().zip(&self.sparse) {
            for (part, tensor) in parts.iter_mut().zip(batch.sparse(key, *dtype)?) {
                part.push(tensor);
            }
        }
        let mut out = parts.concat();
        for (i, (key, dense)) in call.dense.iter().zip(&self.dense).enumerate() {
            out.push(batch.dense(key, dense, ctx.input(call.defaults + i)?)?);
        }
        let mut splits = Vec::new();
        for (key, (dtype, split)) in call.ragged.iter().zip(&self.ragged) {
            let (values, rows) = batch.ragged(key, *dtype, *split)?;
            out.push(values);
            splits.push(rows);
        }
        out.extend(splits);
        Ok(out)
    }
}

/// What one run of the op parses.
struct Call<'a> {
    names: &'a [Bytes],
    sparse: Vec<Key>,
    dense: Vec<Key>,
    ragged: Vec<Key>,
    /// The input with the first default of a dense feature.
    defaults: usize,
}

/// Finds the features of these keys in messages.
///
/// # Errors
/// INVALID_ARGUMENT if a message is malformed.
pub(crate) fn found<'a>(
    par: &dyn Parallelism,
    serialized: &'a [Bytes],
    keys: &'a [Key],
) -> Result<Records<'a>> {
    Records::find(par, serialized, [keys, &[]]).map_err(|i| {
        invalid_argument!(
            "Could not parse example input, value: '{}'",
            String::from_utf8_lossy(&serialized[i])
        )
    })
}

impl Batch<'_> {
    /// Returns indices, values and shape of a feature whose number of values varies.
    pub(crate) fn sparse(&self, key: &Key, dtype: DType) -> Result<[Tensor; 3]> {
        let (mut values, mut indices, mut longest) = (Values::new(dtype), Vec::new(), 0);
        for (i, feature) in self.features(key) {
            let Some(feature) = feature else {
                continue;
            };
            let n = values.append(feature);
            let n = n.map_err(|e| self.mismatch(i, key, dtype, &e))?;
            longest = longest.max(n);
            for j in 0..n {
                if !self.single {
                    indices.push(i as i64);
                }
                indices.push(j as i64);
            }
        }
        let n = values.len();
        let (coordinates, shape) = match self.single {
            true => (1, vec![longest as i64]),
            false => (2, vec![self.records.len() as i64, longest as i64]),
        };
        Ok([
            Tensor::from_slice([n, coordinates], &indices)?,
            values.into_tensor(Shape::from([n]))?,
            Tensor::vector(&shape)?,
        ])
    }

    /// Returns the values of a feature that each message has, or its default.
    pub(crate) fn dense(
        &self,
        key: &Key,
        dense: &DenseFeature,
        default: &Tensor,
    ) -> Result<Tensor> {
        let DenseFeature { dtype, shape } = dense;
        if default.dtype() != *dtype {
            return Err(invalid_argument!(
                "dense_defaults[{}].dtype() == {} != dense_types == {dtype}",
                key,
                default.dtype()
            ));
        }
        let dims = shape.dims().unwrap_or_default();
        let batch: &[usize] = if self.single {
            &[]
        } else {
            &[self.records.len()]
        };
        let known: Vec<usize> = dims.iter().flatten().copied().collect();
        if let Some(None) = dims.first() {
            return self.padded(key, dense, default, batch, &known);
        }
        let wanted = ferroflow_functors::indices::shape_of(known.iter().copied())?.num_elements();
        let out = ferroflow_functors::indices::shape_of(batch.iter().chain(&known).copied())?;
        let mut values = Values::new(*dtype);
        for (i, feature) in self.features(key) {
            let Some(feature) = feature else {
                if default.num_elements() != wanted || default.num_elements() == 0 {
                    return Err(invalid_argument!(
                        "Name: {}, Feature: {} (data type: {dtype}) is required but could not be \
                         found.",
                        self.name(i),
                        key
                    ));
                }
                values.fill(default, (i + 1) * wanted)?;
                continue;
            };
            let n = values.append(feature);
            let n = n.map_err(|e| self.mismatch(i, key, *dtype, &e))?;
            if n != wanted {
                return Err(invalid_argument!(
                    "Name: {}, Key: {}, Index: {i}.  Number of {dtype} values != expected.  \
                     Values size: {n} but output shape: {shape}",
                    self.name(i),
                    key
                ));
            }
        }
        values.into_tensor(out)
    }

    /// Returns values whose number depends on the record, padded with the default.
    fn padded(
        &self,
        key: &Key,
        dense: &DenseFeature,
        default: &Tensor,
        batch: &[usize],
        rest: &[usize],
    ) -> Result<Tensor> {
        if default.num_elements() > 1 {
            return Err(invalid_argument!(
                "dense_shapes of {} has a variable length, so its default must have one element, \
                 got {}",
                key,
                default.shape()
            ));
        }
        let row = ferroflow_functors::indices::shape_of(rest.iter().copied())?
            .num_elements()
            .max(1);
        let mut parts = Vec::with_capacity(self.records.len());
        for (i, feature) in self.features(key) {
            let mut values = Values::new(dense.dtype);
            if let Some(feature) = feature {
                let n = values.append(feature);
                let n = n.map_err(|e| self.mismatch(i, key, dense.dtype, &e))?;
                if !n.is_multiple_of(row) {
                    return Err(invalid_argument!(
                        "Name: {}, Key: {}, Index: {i}.  Number of {} values is not a multiple of \
                         stride length. Saw {n} values but output shape is: {}",
                        self.name(i),
                        key,
                        dense.dtype,
                        dense.shape
                    ));
                }
            }
            parts.push(values);
        }
        let longest = parts.iter().map(Values::len).max().unwrap_or(0);
        let mut all = Values::new(dense.dtype);
        for (i, part) in parts.into_iter().enumerate() {
            all.extend(part);
            all.fill(default, (i + 1) * longest)?;
        }
        let dims = batch
            .iter()
            .copied()
            .chain([longest / row])
            .chain(rest.iter().copied());
        all.into_tensor(ferroflow_functors::indices::shape_of(dims)?)
    }

    /// Returns values and row splits of a feature.
    pub(crate) fn ragged(&self, key: &Key, dtype: DType, split: DType) -> Result<(Tensor, Tensor)> {
        let (mut values, mut splits) = (Values::new(dtype), vec![0]);
        for (i, feature) in self.features(key) {
            if let Some(feature) = feature {
                let n = values.append(feature);
                n.map_err(|e| self.mismatch(i, key, values.dtype(), &e))?;
            }
            splits.push(values.len() as i64);
        }
        if self.single {
            splits.clear();
        }
        let n = values.len();
        Ok((
            values.into_tensor(Shape::from([n]))?,
            ferroflow_functors::indices::int_vector(split, splits.into_iter())?,
        ))
    }
}
