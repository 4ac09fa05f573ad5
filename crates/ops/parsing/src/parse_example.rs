//! ParseExample and related ops: tensors from serialized `tf.Example` messages (TensorFlow:
//! `core/kernels/example_parsing_ops.cc`).

use crate::example_records::{Feature, Mismatch, Records, floats, ints};
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
    keys: Option<[Vec<String>; 2]>,
}

fn build(build: &KernelBuild, form: OpVersion) -> Result<Box<dyn OpKernel>> {
    let attrs: &Attrs = build.attrs;
    let owned = |name: &str| -> Result<Vec<String>> {
        Ok(attrs.strs(name)?.into_iter().map(str::to_string).collect())
    };
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
            OpVersion::Single => Some([owned("sparse_keys")?, owned("dense_keys")?]),
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

/// Values of one of the three types that features have.
pub(crate) enum Values {
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Words(Vec<Bytes>),
}

impl Values {
    pub(crate) fn new(dtype: DType) -> Values {
        match dtype {
            DType::Float => Values::Floats(Vec::new()),
            DType::Int64 => Values::Ints(Vec::new()),
            _ => Values::Words(Vec::new()),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Values::Floats(_) => DType::Float,
            Values::Ints(_) => DType::Int64,
            Values::Words(_) => DType::String,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Values::Floats(v) => v.len(),
            Values::Ints(v) => v.len(),
            Values::Words(v) => v.len(),
        }
    }

    /// Appends a feature's values. Returns their number.
    pub(crate) fn append(&mut self, feature: Feature) -> std::result::Result<usize, Mismatch> {
        let before = self.len();
        let appended = match (&mut *self, feature.list?) {
            (_, None) => Some(()),
            (Values::Floats(v), Some((DType::Float, list))) => floats(list, v),
            (Values::Ints(v), Some((DType::Int64, list))) => ints(list, v),
            (Values::Words(v), Some((DType::String, list))) => feature.strings(list, v),
            (_, Some((dtype, _))) => return Err(Mismatch::Type(dtype)),
        };
        appended.ok_or(Mismatch::Malformed)?;
        Ok(self.len() - before)
    }

    /// Repeats the elements of a default, up to `n` in all.
    pub(crate) fn fill(&mut self, default: &Tensor, n: usize) -> Result<()> {
        fn more<T: Clone + Default>(values: &mut Vec<T>, from: &[T], n: usize) {
            let missing = n.saturating_sub(values.len());
            match from {
                [] => values.resize(n, T::default()),
                from => values.extend(from.iter().cycle().take(missing).cloned()),
            }
        }
        match self {
            Values::Floats(v) => more(v, default.slice()?, n),
            Values::Ints(v) => more(v, default.slice()?, n),
            Values::Words(v) => more(v, default.strings()?, n),
        }
        Ok(())
    }

    /// Appends values of the same type.
    pub(crate) fn extend(&mut self, part: Values) {
        match (self, part) {
            (Values::Floats(all), Values::Floats(part)) => all.extend(part),
            (Values::Ints(all), Values::Ints(part)) => all.extend(part),
            (Values::Words(all), Values::Words(part)) => all.extend(part),
            _ => {}
        }
    }

    /// Splits into parts of these lengths.
    pub(crate) fn split(self, lengths: impl Iterator<Item = usize>) -> Vec<Values> {
        fn parts<T>(values: Vec<T>, n: impl Iterator<Item = usize>) -> Vec<Vec<T>> {
            let mut rest = values.into_iter();
            n.map(|n| rest.by_ref().take(n).collect()).collect()
        }
        match self {
            Values::Floats(v) => parts(v, lengths).into_iter().map(Values::Floats).collect(),
            Values::Ints(v) => parts(v, lengths).into_iter().map(Values::Ints).collect(),
            Values::Words(v) => parts(v, lengths).into_iter().map(Values::Words).collect(),
        }
    }

    pub(crate) fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        match self {
            Values::Floats(v) => Tensor::from_slice(shape, &v),
            Values::Ints(v) => Tensor::from_slice(shape, &v),
            Values::Words(v) => Tensor::from_strings(shape, v),
        }
    }
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
    fn features(&self, key: &str) -> impl Iterator<Item = (usize, Option<Feature<'_>>)> {
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
    fn mismatch(&self, i: usize, key: &str, expected: DType, mismatch: &Mismatch) -> Status {
        let why = match mismatch {
            Mismatch::Type(actual) => {
                format!("Data types don't match. Expected type: {expected}, Actual type: {actual}")
            }
            Mismatch::Malformed => "Can't parse serialized Example.".to_string(),
        };
        invalid_argument!("Name: {}, Key: {key}, Index: {i}.  {why}", self.name(i))
    }
}

impl Parser {
    fn parse(&self, ctx: &KernelCtx) -> Result<Vec<Tensor>> {
        let serialized = ctx.input(0)?;
        let single = serialized.shape().is_scalar();
        let fits = match self.form {
            OpVersion::V1 => serialized.shape().rank() == 1,
            OpVersion::V2 => serialized.shape().rank() <= 1,
            OpVersion::Single => single,
        };
        if !fits {
            return Err(invalid_argument!(
                "Expected serialized to be a {}, got shape: {}",
                if self.form == OpVersion::Single {
                    "scalar"
                } else {
                    "vector"
                },
                serialized.shape()
            ));
        }
        let serialized = serialized.strings()?;
        let (n_sparse, n_dense) = (self.sparse.len(), self.dense.len());
        let words = |i: usize| -> Result<Vec<String>> {
            let words = ctx.input(i)?.strings()?;
            Ok(words
                .iter()
                .map(|w| String::from_utf8_lossy(w).into_owned())
                .collect())
        };
        let list = |first: usize, n: usize| -> Result<Vec<String>> {
            Ok((first..first + n)
                .map(words)
                .collect::<Result<Vec<_>>>()?
                .concat())
        };
        let none: &[Bytes] = &[];
        let (names, sparse, dense, ragged, defaults) = match (&self.keys, self.form) {
            (Some([sparse, dense]), _) => (none, sparse.clone(), dense.clone(), Vec::new(), 1),
            (None, OpVersion::V2) => (ctx.input(1)?.strings()?, words(2)?, words(3)?, words(4)?, 5),
            (None, _) => {
                let dense = list(2 + n_sparse, n_dense)?;
                let defaults = 2 + n_sparse + n_dense;
                (
                    ctx.input(1)?.strings()?,
                    list(2, n_sparse)?,
                    dense,
                    Vec::new(),
                    defaults,
                )
            }
        };
        if !names.is_empty() && names.len() != serialized.len() {
            return Err(invalid_argument!(
                "Expected len(names) == len(serialized), but got {} vs. {}",
                names.len(),
                serialized.len()
            ));
        }
        let wanted = [
            ("sparse_keys", sparse.len(), n_sparse),
            ("dense_keys", dense.len(), n_dense),
            ("ragged_keys", ragged.len(), self.ragged.len()),
        ];
        for (what, got, wanted) in wanted {
            if got != wanted {
                return Err(invalid_argument!("Expected {wanted} {what}, got {got}"));
            }
        }
        let keys = [&sparse[..], &dense, &ragged].concat();
        let records = found(ctx.par(), serialized, &keys)?;
        let batch = Batch {
            records: &records,
            names,
            single,
        };
        let mut parts = [Vec::new(), Vec::new(), Vec::new()];
        for (key, dtype) in sparse.iter().zip(&self.sparse) {
            for (part, tensor) in parts.iter_mut().zip(batch.sparse(key, *dtype)?) {
                part.push(tensor);
            }
        }
        let mut out = parts.concat();
        for (i, (key, dense)) in dense.iter().zip(&self.dense).enumerate() {
            out.push(batch.dense(key, dense, ctx.input(defaults + i)?)?);
        }
        let mut splits = Vec::new();
        for (key, (dtype, split)) in ragged.iter().zip(&self.ragged) {
            let (values, rows) = batch.ragged(key, *dtype, *split)?;
            out.push(values);
            splits.push(rows);
        }
        out.extend(splits);
        Ok(out)
    }
}

/// Finds the features of these keys in messages.
///
/// # Errors
/// INVALID_ARGUMENT if a message is malformed.
pub(crate) fn found<'a>(
    par: &dyn Parallelism,
    serialized: &'a [Bytes],
    keys: &[String],
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
    pub(crate) fn sparse(&self, key: &str, dtype: DType) -> Result<[Tensor; 3]> {
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
        key: &str,
        dense: &DenseFeature,
        default: &Tensor,
    ) -> Result<Tensor> {
        let DenseFeature { dtype, shape } = dense;
        if default.dtype() != *dtype {
            return Err(invalid_argument!(
                "dense_defaults[{key}].dtype() == {} != dense_types == {dtype}",
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
                        "Name: {}, Feature: {key} (data type: {dtype}) is required but could not be \
                         found.",
                        self.name(i)
                    ));
                }
                values.fill(default, (i + 1) * wanted)?;
                continue;
            };
            let n = values.append(feature);
            let n = n.map_err(|e| self.mismatch(i, key, *dtype, &e))?;
            if n != wanted {
                return Err(invalid_argument!(
                    "Name: {}, Key: {key}, Index: {i}.  Number of {dtype} values != expected.  \
                     Values size: {n} but output shape: {}",
                    self.name(i),
                    shape
                ));
            }
        }
        values.into_tensor(out)
    }

    /// Returns values whose number depends on the record, padded with the default.
    fn padded(
        &self,
        key: &str,
        dense: &DenseFeature,
        default: &Tensor,
        batch: &[usize],
        rest: &[usize],
    ) -> Result<Tensor> {
        if default.num_elements() > 1 {
            return Err(invalid_argument!(
                "dense_shapes of {key} has a variable length, so its default must have one element, \
                 got {}",
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
                        "Name: {}, Key: {key}, Index: {i}.  Number of {} values is not a multiple of \
                         stride length. Saw {n} values but output shape is: {}",
                        self.name(i),
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
    pub(crate) fn ragged(&self, key: &str, dtype: DType, split: DType) -> Result<(Tensor, Tensor)> {
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
