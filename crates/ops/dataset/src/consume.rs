//! Datasets as a whole: ReduceDataset, DatasetCardinality, DatasetToSingleElement,
//! GetElementAtIndex, DatasetToTFRecord, ComputeBatchSize (TensorFlow: `core/kernels/data/*_op.cc`).

use crate::common::{components, dataset, function, function_name, n_of, number, some, text};
use crate::iterator::{check_types, element_shapes};
use ferroflow_base::{Code, Result, failed_precondition, invalid_argument, out_of_range};
use ferroflow_functors::shapes;
use ferroflow_model::{RecordCompression, RecordWriter};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::dataset::{Components, Dataset, INFINITE, UNKNOWN};
use ferroflow_resources::file_system::local_path;
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::path::Path;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ReduceDataset",
        "input_dataset: variant, initial_state: list(Tstate), other_arguments: \
         list(Targuments) -> components: list(output_types) | f: func; Tstate: list(type) >= \
         1; Targuments: list(type) >= 0; output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; use_inter_op_parallelism: bool = true; metadata: string = '' | \
         stateful",
    )
    .shape(element_shapes)
    .not_differentiable()
    .kernel(reduce),
    Op::new(
        "DatasetCardinality",
        "input_dataset: variant -> cardinality: int64 | cardinality_options: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(cardinality),
    Op::new(
        "ExperimentalDatasetCardinality",
        "input_dataset: variant -> cardinality: int64",
    )
    .shape(shapes::scalar)
    .kernel(cardinality),
    Op::new(
        "DatasetToSingleElement",
        "dataset: variant -> components: list(output_types) | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = '' | stateful",
    )
    .shape(element_shapes)
    .kernel(single_element),
    Op::new(
        "GetElementAtIndex",
        "dataset: variant, index: int64 -> components: list(output_types) | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(element_shapes)
    .kernel(element_at),
    Op::new(
        "DatasetToTFRecord",
        "input_dataset: variant, filename: string, compression_type: string -> | | stateful",
    )
    .kernel(to_tf_record),
    Op::new(
        "ExperimentalDatasetToTFRecord",
        "input_dataset: variant, filename: string, compression_type: string -> | | stateful",
    )
    .kernel(to_tf_record),
    Op::new(
        "ComputeBatchSize",
        "input_dataset: variant -> batch_size: int64",
    )
    .shape(shapes::scalar)
    .kernel(compute_batch_size),
];

/// Sets the outputs of a node to an element of its declared types.
fn set_element(
    ctx: &mut KernelCtx,
    types: &(Vec<DType>, Vec<PartialShape>),
    element: Components,
) -> Result<()> {
    check_types(&types.0, &types.1, &element)?;
    for (i, t) in element.into_iter().enumerate() {
        ctx.set_output(i, t)?;
    }
    Ok(())
}

fn types(build: &KernelBuild) -> Result<(Vec<DType>, Vec<PartialShape>)> {
    Ok((
        build.attrs.dtypes("output_types")?,
        build.attrs.shapes("output_shapes")?,
    ))
}

fn reduce(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (name, n) = (function_name(build, "f")?, n_of(build, "Tstate")?);
    let types = types(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let mut state = some(ctx, 1, 1 + n)?;
        let function = function(ctx, &name, components(ctx, 1 + n)?)?;
        let mut iterator = dataset(ctx, 0)?.iterator()?;
        let services = *ctx.services();
        while let Some(element) = iterator.next(&services)? {
            services.cancel.check()?;
            let mut args = state;
            args.extend(element);
            state = function.call(args, &services).map_err(|e| match e.code() {
                // The end of a sequence would end the caller's loop over elements.
                Code::OutOfRange => invalid_argument!(
                    "Function invocation produced OutOfRangeError: {}",
                    e.message()
                ),
                _ => e,
            })?;
            if state.len() != n {
                return Err(invalid_argument!(
                    "The number of components of the initial state and the reduce function output \
                     does not match. (initial_state={n}, output={}).",
                    state.len()
                ));
            }
        }
        set_element(ctx, &types, state)
    }))
}

fn cardinality(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let n = dataset(ctx, 0)?.cardinality();
        ctx.set_output(0, Tensor::scalar(n))
    }))
}

fn single_element(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let types = types(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let mut iterator = dataset(ctx, 0)?.iterator()?;
        let Some(element) = iterator.next(ctx.services())? else {
            return Err(invalid_argument!("Dataset was empty."));
        };
        set_element(ctx, &types, element)?;
        match iterator.next(ctx.services())? {
            None => Ok(()),
            Some(_) => Err(invalid_argument!("Dataset had more than one element.")),
        }
    }))
}

fn element_at(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let types = types(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let dataset = dataset(ctx, 0)?;
        let index = number(ctx, 1, "index")?;
        let n = dataset.cardinality();
        if n == INFINITE || n == UNKNOWN {
            let which = if n == INFINITE { "infinite" } else { "unknown" };
            return Err(failed_precondition!(
                "Dataset of type {} has {which} cardinality which is not compatible with random \
                 access. {}",
                dataset.node.op.trim_end_matches("Dataset"),
                match n {
                    INFINITE => "",
                    _ => {
                        "This is usually because the dataset drops elements, or its function may; \
                         use `tf.data.experimental.assert_cardinality`."
                    }
                }
            ));
        }
        let outside = || out_of_range!("Index out of range [0, {n}):{index}");
        let at = u64::try_from(index).ok().filter(|_| index < n);
        let at = at.ok_or_else(outside)?;
        let element = dataset.source.get(at, ctx.services())?;
        set_element(ctx, &types, element.ok_or_else(outside)?)
    }))
}

fn to_tf_record(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let path = text(ctx, 1, "filename")?;
        let compression = text(ctx, 2, "compression_type")?;
        let compression = RecordCompression::from_name(&compression)?;
        let dataset = dataset(ctx, 0)?;
        if dataset.dtypes != [DType::String] {
            return Err(invalid_argument!(
                "DatasetToTFRecord only supports datasets of one string component."
            ));
        }
        let mut writer = RecordWriter::create(Path::new(local_path(&path)), compression)?;
        let mut iterator = dataset.iterator()?;
        while let Some(element) = iterator.next(ctx.services())? {
            ctx.services().cancel.check()?;
            for record in element
                .first()
                .map(Tensor::strings)
                .transpose()?
                .unwrap_or_default()
            {
                writer.write(record)?;
            }
        }
        writer.finish()
    }))
}

/// Returns the batch size of a dataset where its ops say it; -1 where they do not.
fn batch_size_of(dataset: &Dataset) -> i64 {
    let op = dataset.node.op.as_str();
    let is = |names: &[&str]| names.iter().any(|name| op.starts_with(name));
    let sizes = || {
        dataset
            .source
            .inputs()
            .into_iter()
            .map(|d| batch_size_of(&d))
    };
    if is(&["BatchDataset", "PaddedBatchDataset", "ParallelBatchDataset"]) {
        let size = dataset.node.inputs.get(1).map(Tensor::to_scalar::<i64>);
        return size.and_then(Result::ok).unwrap_or(-1);
    }
    if is(&["MapAndBatchDataset", "ExperimentalMapAndBatchDataset"]) {
        let inputs = &dataset.node.inputs;
        let size = inputs.len().checked_sub(3).and_then(|i| inputs.get(i));
        return size.and_then(|t| t.to_scalar().ok()).unwrap_or(-1);
    }
    if is(&["ConcatenateDataset", "ZipDataset"]) {
        let mut all = sizes();
        let first = all.next().unwrap_or(-1);
        return if all.all(|n| n == first) { first } else { -1 };
    }
    let passes = [
        "AssertCardinalityDataset",
        "CacheDataset",
        "FilterDataset",
        "FinalizeDataset",
        "ModelDataset",
        "OptimizeDataset",
        "OptionsDataset",
        "ParseExampleDataset",
        "PrefetchDataset",
        "RepeatDataset",
        "ShardDataset",
        "ShuffleAndRepeatDataset",
        "ShuffleDataset",
        "SkipDataset",
        "TakeDataset",
    ];
    match is(&passes) {
        true => sizes().next().unwrap_or(-1),
        false => -1,
    }
}

fn compute_batch_size(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let size = batch_size_of(&*dataset(ctx, 0)?);
        ctx.set_output(0, Tensor::scalar(size))
    }))
}
