//! ParseExampleDataset and its forms: datasets of what ParseExample makes of each element (TensorFlow:
//! `core/kernels/data/experimental/parse_example_dataset_op.cc`).

use crate::example_records::Key;
use crate::parse_example::{Batch, DenseFeature, found};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::ragged::Ragged;
use ferroflow_functors::{indices, shapes};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    Components, Dataset, DatasetIterator, DatasetNode, InOrder, Source,
};
use ferroflow_tensor::{DType, Shape, Tensor, Variant};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ExperimentalParseExampleDataset",
        "input_dataset: variant, num_parallel_calls: int64, dense_defaults: list(Tdense) -> \
         handle: variant | sparse_keys: list(string) >= 0; dense_keys: list(string) >= 0; \
         sparse_types: list(type) >= 0 {float,int64,string}; Tdense: list(type) >= 0 \
         {float,int64,string}; dense_shapes: list(shape) >= 0; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; sloppy: bool = false",
    )
    .shape(shapes::scalar)
    .kernel(make),
    Op::new(
        "ParseExampleDataset",
        "input_dataset: variant, num_parallel_calls: int64, dense_defaults: list(Tdense) -> \
         handle: variant | sparse_keys: list(string) >= 0; dense_keys: list(string) >= 0; \
         sparse_types: list(type) >= 0 {float,int64,string}; Tdense: list(type) >= 0 \
         {float,int64,string}; dense_shapes: list(shape) >= 0; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; sloppy: bool = false; ragged_keys: list(string) >= 0 = \
         []; ragged_value_types: list(type) >= 0 {float,int64,string} = []; ragged_split_types: \
         list(type) >= 0 {int32,int64} = []",
    )
    .shape(shapes::scalar)
    .kernel(make),
    Op::new(
        "ParseExampleDatasetV2",
        "input_dataset: variant, num_parallel_calls: int64, dense_defaults: list(Tdense) -> \
         handle: variant | sparse_keys: list(string) >= 0; dense_keys: list(string) >= 0; \
         sparse_types: list(type) >= 0 {float,int64,string}; Tdense: list(type) >= 0 \
         {float,int64,string}; dense_shapes: list(shape) >= 0; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; deterministic: string = 'default'; ragged_keys: \
         list(string) >= 0 = []; ragged_value_types: list(type) >= 0 {float,int64,string} = []; \
         ragged_split_types: list(type) >= 0 {int32,int64} = []",
    )
    .shape(shapes::scalar)
    .kernel(make),
];

/// What becomes of a feature.
enum Form {
    Sparse(DType),
    /// With the number of the default.
    Dense(DenseFeature, usize),
    /// Dtypes of values and of row splits.
    Ragged(DType, DType),
}

/// The features by key: components of an element are in the order of their keys.
type Features = BTreeMap<Key, Form>;

struct ParseExample {
    input: Arc<Dataset>,
    features: Arc<Features>,
    defaults: Arc<Components>,
    calls: Option<usize>,
}

fn features(build: &KernelBuild) -> Result<Features> {
    let attrs = build.attrs;
    let mut features = Features::new();
    let mut add = |key: &str, form: Form| match features.insert(Key::from(key), form) {
        Some(_) => Err(invalid_argument!("Duplicate key not allowed: {key}")),
        None => Ok(()),
    };
    let dense = attrs
        .dtypes("Tdense")?
        .into_iter()
        .zip(attrs.shapes("dense_shapes")?);
    for (i, (key, (dtype, shape))) in attrs.strs("dense_keys")?.into_iter().zip(dense).enumerate() {
        let known = |dims: &[Option<usize>]| dims.iter().skip(1).all(Option::is_some);
        if !shape.dims().is_some_and(known) {
            return Err(invalid_argument!(
                "dense_shapes[{i}] has unknown rank or unknown inner dimensions: {shape}"
            ));
        }
        add(key, Form::Dense(DenseFeature { dtype, shape }, i))?;
    }
    for (key, dtype) in attrs
        .strs("sparse_keys")?
        .into_iter()
        .zip(attrs.dtypes("sparse_types")?)
    {
        add(key, Form::Sparse(dtype))?;
    }
    if attrs.get("ragged_keys").is_some() {
        let dtypes = attrs.dtypes("ragged_value_types")?;
        let dtypes = dtypes.into_iter().zip(attrs.dtypes("ragged_split_types")?);
        for (key, (values, splits)) in attrs.strs("ragged_keys")?.into_iter().zip(dtypes) {
            add(key, Form::Ragged(values, splits))?;
        }
    }
    Ok(features)
}

fn make(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let features = Arc::new(features(build)?);
    let (op, attrs) = (build.def.name.to_string(), build.attrs.clone());
    let (dtypes, shapes) = (
        attrs.dtypes("output_types")?,
        attrs.shapes("output_shapes")?,
    );
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let inputs: Components = (0..ctx.num_inputs())
            .map(|i| ctx.input(i).cloned())
            .collect::<Result<_>>()?;
        let calls = match indices::int(ctx.input(1)?) {
            Some(-1) => None,
            Some(n) if n > 0 => Some(n as usize),
            _ => {
                return Err(invalid_argument!(
                    "num_parallel_calls must be greater than zero."
                ));
            }
        };
        let defaults: Components = inputs.iter().skip(2).cloned().collect();
        check_defaults(&features, &defaults)?;
        let source = ParseExample {
            input: Dataset::of(ctx.input(0)?)?,
            features: features.clone(),
            defaults: Arc::new(defaults),
            calls,
        };
        let dataset = Dataset {
            source: Arc::new(source),
            dtypes: dtypes.clone(),
            shapes: shapes.clone(),
            node: DatasetNode {
                op: op.clone(),
                attrs: attrs.clone(),
                inputs,
            },
        };
        ctx.set_output(0, Arc::new(dataset).tensor()?)
    }))
}

fn check_defaults(features: &Features, defaults: &[Tensor]) -> Result<()> {
    let dense = features.values().filter_map(|form| match form {
        Form::Dense(feature, i) => Some((feature, *i)),
        _ => None,
    });
    for (feature, i) in dense {
        let Some(default) = defaults.get(i) else {
            return Err(invalid_argument!(
                "Expected len(dense_defaults) == len(dense_keys) but got: {} vs. {}",
                defaults.len(),
                i + 1
            ));
        };
        let (n, shape) = (default.num_elements(), default.shape());
        let varies = feature
            .shape
            .dims()
            .is_some_and(|d| d.first() == Some(&None));
        if varies && n != 1 {
            return Err(invalid_argument!(
                "dense_shape[{i}] is a variable length shape: {}, therefore def_value[{i}] must \
                 contain a single element (the padding element).  But its shape is: {shape}",
                feature.shape
            ));
        }
        if !varies && n > 0 && !feature.shape.is_compatible_with(&shape.into()) {
            return Err(invalid_argument!(
                "def_value[{i}].shape() == {shape} is not compatible with dense_shapes_[{i}] == {}",
                feature.shape
            ));
        }
    }
    Ok(())
}

impl Source for ParseExample {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        let (features, defaults) = (self.features.clone(), self.defaults.clone());
        let parse = move |element: Components, services: &StepServices| {
            parsed(&features, &defaults, &element, services).map(Some)
        };
        let input = self.input.iterator()?;
        Ok(Box::new(InOrder::new(input, Arc::new(parse), self.calls)))
    }

    fn cardinality(&self) -> i64 {
        self.input.cardinality()
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

/// Returns the components that the messages of an element make.
fn parsed(
    features: &Features,
    defaults: &[Tensor],
    element: &[Tensor],
    services: &StepServices,
) -> Result<Components> {
    let serialized = match element {
        [t] if t.dtype() == DType::String && t.shape().rank() == 1 => t.strings()?,
        _ => {
            return Err(invalid_argument!(
                "the elements of ParseExampleDataset's input must be vectors of strings: batch it"
            ));
        }
    };
    let keys: Vec<Key> = features.keys().cloned().collect();
    let records = found(services.par, serialized, &keys)?;
    let batch = Batch {
        records: &records,
        names: &[],
        single: false,
    };
    features
        .iter()
        .map(|(key, form)| match form {
            Form::Sparse(dtype) => {
                let parts = batch
                    .sparse(key, *dtype)?
                    .map(|t| Variant(Some(Arc::new(t))));
                Tensor::from_variants(Shape::from([3]), parts.into())
            }
            Form::Dense(feature, i) => match defaults.get(*i) {
                Some(default) => batch.dense(key, feature, default),
                None => Err(invalid_argument!("feature {key} has no default")),
            },
            Form::Ragged(dtype, splits_dtype) => {
                let (values, splits) = batch.ragged(key, *dtype, *splits_dtype)?;
                let ragged = Ragged {
                    splits: vec![splits],
                    values,
                };
                Tensor::from_variants(Shape::scalar(), vec![ragged.variant()])
            }
        })
        .collect()
}
