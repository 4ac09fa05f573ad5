//! Datasets, and iterators over them (TensorFlow: `core/kernels/data/*_dataset_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::{indices, shapes};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::dataset::{Components, Dataset, DatasetSource, slices};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RangeDataset",
        "start: int64, stop: int64, step: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''; \
         replicate_on_split: bool = false | stateful",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            let [start, stop, step] = [number(ctx, 0)?, number(ctx, 1)?, number(ctx, 2)?];
            match step {
                0 => Err(invalid_argument!("step must be a non-zero integer.")),
                _ => Ok(DatasetSource::Range([start, stop, step])),
            }
        })
    }),
    Op::new(
        "TensorDataset",
        "components: list(Toutput_types) -> handle: variant | Toutput_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = '' | \
         stateful",
    )
    .shape(shapes::scalar)
    .kernel(|b| make(b, |ctx| Ok(DatasetSource::Tensors(components(ctx, 0)?)))),
    Op::new(
        "TensorSliceDataset",
        "components: list(Toutput_types) -> handle: variant | Toutput_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; is_files: bool = false; \
         metadata: string = ''; replicate_on_split: bool = false | stateful",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            Ok(DatasetSource::Slices(slices(&components(ctx, 0)?)?))
        })
    }),
    Op::new(
        "BatchDataset",
        "input_dataset: variant, batch_size: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| make(b, |ctx| batch(ctx, false))),
    Op::new(
        "BatchDatasetV2",
        "input_dataset: variant, batch_size: int64, drop_remainder: bool -> handle: \
         variant | parallel_copy: bool = false; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            let drop_remainder = ctx.input(2)?.to_scalar::<bool>()?;
            batch(ctx, drop_remainder)
        })
    }),
    Op::new(
        "RepeatDataset",
        "input_dataset: variant, count: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            Ok(DatasetSource::Repeat(
                Dataset::of(ctx.input(0)?)?,
                count(ctx)?,
            ))
        })
    }),
    Op::new(
        "TakeDataset",
        "input_dataset: variant, count: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            Ok(DatasetSource::Take(
                Dataset::of(ctx.input(0)?)?,
                count(ctx)?,
            ))
        })
    }),
    Op::new(
        "SkipDataset",
        "input_dataset: variant, count: int64 -> handle: variant | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            Ok(DatasetSource::Skip(
                Dataset::of(ctx.input(0)?)?,
                count(ctx)?,
            ))
        })
    }),
    Op::new(
        "ZipDataset",
        "input_datasets: N*variant -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; N: int >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            let inputs = (0..ctx.num_inputs()).map(|i| Dataset::of(ctx.input(i)?));
            Ok(DatasetSource::Zip(inputs.collect::<Result<_>>()?))
        })
    }),
    Op::new(
        "ConcatenateDataset",
        "input_dataset: variant, another_dataset: variant -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: \
         string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            let (first, second) = (Dataset::of(ctx.input(0)?)?, Dataset::of(ctx.input(1)?)?);
            Ok(DatasetSource::Concatenate(first, second))
        })
    }),
    Op::new(
        "MapDataset",
        "input_dataset: variant, other_arguments: list(Targuments) -> handle: variant \
         | f: func; Targuments: list(type) >= 0; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; use_inter_op_parallelism: bool = true; \
         preserve_cardinality: bool = false; force_synchronous: bool = false; \
         metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        let name = b.attrs.func("f")?.name.clone();
        make(b, move |ctx| {
            Ok(DatasetSource::Map {
                input: Dataset::of(ctx.input(0)?)?,
                function: ctx.function(&name)?,
                captured: components(ctx, 1)?,
            })
        })
    }),
];

fn number(ctx: &KernelCtx, i: usize) -> Result<i64> {
    let t = ctx.input(i)?;
    match indices::int(t).filter(|_| t.shape().is_scalar()) {
        Some(n) => Ok(n),
        None => Err(invalid_argument!("input {i} must be a scalar")),
    }
}

/// Returns a count of elements or repetitions; negative means unlimited.
fn count(ctx: &KernelCtx) -> Result<Option<u64>> {
    Ok(u64::try_from(number(ctx, 1)?).ok())
}

/// Returns the inputs from `first` on.
fn components(ctx: &KernelCtx, first: usize) -> Result<Components> {
    (first..ctx.num_inputs())
        .map(|i| ctx.input(i).cloned())
        .collect()
}

fn batch(ctx: &KernelCtx, drop_remainder: bool) -> Result<DatasetSource> {
    let size = usize::try_from(number(ctx, 1)?).ok().filter(|&n| n > 0);
    let size = size.ok_or_else(|| invalid_argument!("Batch size must be greater than zero."))?;
    Ok(DatasetSource::Batch {
        input: Dataset::of(ctx.input(0)?)?,
        size,
        drop_remainder,
    })
}

pub(crate) fn make(
    build: &KernelBuild,
    source: impl Fn(&KernelCtx) -> Result<DatasetSource> + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let dtypes = attrs
        .dtypes("output_types")
        .or_else(|_| attrs.dtypes("Toutput_types"))?;
    let shapes = attrs.shapes("output_shapes")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let dataset = Dataset {
            source: source(ctx)?,
            dtypes: dtypes.clone(),
            shapes: shapes.clone(),
        };
        ctx.set_output(0, dataset.into_tensor()?)
    }))
}
