//! Datasets, and iterators over them.

use ferroflow_base::{Result, Status, failed_precondition, invalid_argument, out_of_range};
use ferroflow_functors::indices;
use ferroflow_functors::optional::Optional;
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::dataset::{Dataset, Element, Source, Walk, slices};
use ferroflow_resources::resource::{HandleKernel, Place, Resource, resource};
use ferroflow_tensor::{DType, PartialShape};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// RangeDataset, TensorDataset, TensorSliceDataset, BatchDataset, BatchDatasetV2, RepeatDataset,
/// TakeDataset, SkipDataset, ZipDataset, ConcatenateDataset, MapDataset, Iterator, IteratorV2, MakeIterator,
/// _OneShotIterator, IteratorGetNext, IteratorGetNextSync, IteratorGetNextAsOptional.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RangeDataset",
        "start: int64, stop: int64, step: int64 -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''; \
         replicate_on_split: bool = false | stateful",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            let [start, stop, step] = [number(ctx, 0)?, number(ctx, 1)?, number(ctx, 2)?];
            match step {
                0 => Err(invalid_argument!("step must be a non-zero integer.")),
                _ => Ok(Source::Range([start, stop, step])),
            }
        })
    }),
    Op::new(
        "TensorDataset",
        "components: list(Toutput_types) -> handle: variant | Toutput_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(|b| make(b, |ctx| Ok(Source::Tensors(components(ctx, 0)?)))),
    Op::new(
        "TensorSliceDataset",
        "components: list(Toutput_types) -> handle: variant | Toutput_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; is_files: bool = false; metadata: string = ''; \
         replicate_on_split: bool = false | stateful",
    )
    .shape(shapes::scalar)
    .kernel(|b| make(b, |ctx| Ok(Source::Slices(slices(&components(ctx, 0)?)?)))),
    Op::new(
        "BatchDataset",
        "input_dataset: variant, batch_size: int64 -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| make(b, |ctx| batch(ctx, false))),
    Op::new(
        "BatchDatasetV2",
        "input_dataset: variant, batch_size: int64, drop_remainder: bool -> handle: variant | \
         parallel_copy: bool = false; output_types: list(type) >= 1; \
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
        "input_dataset: variant, count: int64 -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            Ok(Source::Repeat(Dataset::of(ctx.input(0)?)?, count(ctx)?))
        })
    }),
    Op::new(
        "TakeDataset",
        "input_dataset: variant, count: int64 -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            Ok(Source::Take(Dataset::of(ctx.input(0)?)?, count(ctx)?))
        })
    }),
    Op::new(
        "SkipDataset",
        "input_dataset: variant, count: int64 -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            Ok(Source::Skip(Dataset::of(ctx.input(0)?)?, count(ctx)?))
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
            Ok(Source::Zip(inputs.collect::<Result<_>>()?))
        })
    }),
    Op::new(
        "ConcatenateDataset",
        "input_dataset: variant, another_dataset: variant -> handle: variant | \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        make(b, |ctx| {
            let (first, second) = (Dataset::of(ctx.input(0)?)?, Dataset::of(ctx.input(1)?)?);
            Ok(Source::Concatenate(first, second))
        })
    }),
    Op::new(
        "MapDataset",
        "input_dataset: variant, other_arguments: list(Targuments) -> handle: variant | f: func; \
         Targuments: list(type) >= 0; output_types: list(type) >= 1; output_shapes: list(shape) >= 1; \
         use_inter_op_parallelism: bool = true; preserve_cardinality: bool = false; \
         force_synchronous: bool = false; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(|b| {
        let name = b.attrs.func("f")?.name.clone();
        make(b, move |ctx| {
            Ok(Source::Map {
                input: Dataset::of(ctx.input(0)?)?,
                function: ctx.function(&name)?,
                captured: components(ctx, 1)?,
            })
        })
    }),
    Op::new(
        "Iterator",
        "-> handle: resource | shared_name: string; container: string; \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(iterator),
    Op::new(
        "IteratorV2",
        "-> handle: resource | shared_name: string; container: string; \
         output_types: list(type) >= 1; output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(iterator),
    Op::new(
        "_OneShotIterator",
        "dataset: variant -> handle: resource | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; container: string = ''; shared_name: string = '' \
         | stateful",
    )
    .shape(shapes::scalar)
    .kernel(one_shot),
    // Import makes a call of the factory and a _OneShotIterator of it.
    Op::new(
        "OneShotIterator",
        "-> handle: resource | dataset_factory: func; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; container: string = ''; shared_name: string = '' \
         | stateful",
    )
    .shape(shapes::scalar),
    Op::new(
        "MakeIterator",
        "dataset: variant, iterator: resource -> | | stateful",
    )
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let dataset = Dataset::of(ctx.input(0)?)?;
            let iterator = resource::<DatasetIterator>(ctx, 1)?;
            iterator.check(&dataset.dtypes, &dataset.shapes)?;
            *iterator.lock() = Some(dataset.walk());
            Ok(())
        }))
    }),
    Op::new(
        "IteratorGetNext",
        "iterator: resource -> components: list(output_types) | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(element_shapes)
    .kernel(get_next),
    Op::new(
        "IteratorGetNextSync",
        "iterator: resource -> components: list(output_types) | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(element_shapes)
    .kernel(get_next),
    Op::new(
        "IteratorGetNextAsOptional",
        "iterator: resource -> optional: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let element = next(&*resource::<DatasetIterator>(ctx, 0)?, ctx)?;
            ctx.set_output(0, Optional(element).into_tensor()?)
        }))
    }),
];

/// What an iterator's handle names.
struct DatasetIterator {
    dtypes: Vec<DType>,
    shapes: Vec<PartialShape>,
    walk: Mutex<Option<Box<dyn Walk>>>,
}

impl DatasetIterator {
    fn spec(build: &KernelBuild) -> Result<(Vec<DType>, Vec<PartialShape>)> {
        let attrs = build.attrs;
        Ok((
            attrs.dtypes("output_types")?,
            attrs.shapes("output_shapes")?,
        ))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn Walk>>> {
        self.walk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that elements of these types fit.
    fn check(&self, dtypes: &[DType], shapes: &[PartialShape]) -> Result<()> {
        if dtypes.len() != self.dtypes.len() {
            return Err(invalid_argument!(
                "Number of components does not match: expected {} types but got {}.",
                self.dtypes.len(),
                dtypes.len()
            ));
        }
        for (i, (expected, got)) in self.dtypes.iter().zip(dtypes).enumerate() {
            if expected != got {
                return Err(invalid_argument!(
                    "Data type mismatch at component {i}: expected {expected} but got {got}."
                ));
            }
        }
        for (i, (expected, got)) in self.shapes.iter().zip(shapes).enumerate() {
            if !expected.is_compatible_with(got) {
                return Err(invalid_argument!(
                    "Incompatible shapes at component {i}: expected {expected} but got {got}."
                ));
            }
        }
        Ok(())
    }
}

impl Resource for DatasetIterator {
    const TYPE: &'static str = "tensorflow::data::IteratorResource";

    fn is_gone(&self) -> bool {
        false
    }

    fn check_same(&self, wanted: &Self, _name: &str) -> Result<()> {
        self.check(&wanted.dtypes, &wanted.shapes)
    }
}

fn number(ctx: &KernelCtx, i: usize) -> Result<i64> {
    let t = ctx.input(i)?;
    match indices::int(t).filter(|_| t.shape().is_scalar()) {
        Some(n) => Ok(n),
        None => Err(invalid_argument!("input {i} must be a scalar")),
    }
}

/// A number of elements or rounds; negative ones have no limit.
fn count(ctx: &KernelCtx) -> Result<Option<u64>> {
    Ok(u64::try_from(number(ctx, 1)?).ok())
}

/// The inputs from `first` on.
fn components(ctx: &KernelCtx, first: usize) -> Result<Element> {
    (first..ctx.num_inputs())
        .map(|i| ctx.input(i).cloned())
        .collect()
}

fn batch(ctx: &KernelCtx, drop_remainder: bool) -> Result<Source> {
    let size = usize::try_from(number(ctx, 1)?).ok().filter(|&n| n > 0);
    let size = size.ok_or_else(|| invalid_argument!("Batch size must be greater than zero."))?;
    Ok(Source::Batch {
        input: Dataset::of(ctx.input(0)?)?,
        size,
        drop_remainder,
    })
}

fn make(
    build: &KernelBuild,
    source: impl Fn(&KernelCtx) -> Result<Source> + Send + Sync + 'static,
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

fn iterator(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtypes, shapes) = DatasetIterator::spec(build)?;
    let make = move |_: &KernelCtx| {
        Ok(DatasetIterator {
            dtypes: dtypes.clone(),
            shapes: shapes.clone(),
            walk: Mutex::new(None),
        })
    };
    Ok(Box::new(HandleKernel::new(Place::of_node(build)?, make)))
}

/// Walks through the dataset of the first step; later ones go on with that.
fn one_shot(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtypes, shapes) = DatasetIterator::spec(build)?;
    let make = move |ctx: &KernelCtx| {
        let dataset = Dataset::of(ctx.input(0)?)?;
        let made = DatasetIterator {
            dtypes: dtypes.clone(),
            shapes: shapes.clone(),
            walk: Mutex::new(Some(dataset.walk())),
        };
        made.check(&dataset.dtypes, &dataset.shapes)?;
        Ok(made)
    };
    Ok(Box::new(HandleKernel::new(Place::of_node(build)?, make)))
}

fn element_shapes(ctx: &mut ShapeCtx) -> Result<()> {
    for (i, shape) in ctx.attrs().shapes("output_shapes")?.into_iter().enumerate() {
        ctx.set(i, shape);
    }
    Ok(())
}

fn uninitialized() -> Status {
    failed_precondition!(
        "GetNext() failed because the iterator has not been initialized. Ensure that you have run the \
         initializer operation for this iterator before getting the next element."
    )
}

fn next(iterator: &DatasetIterator, ctx: &KernelCtx) -> Result<Option<Element>> {
    let mut walk = iterator.lock();
    let walk = walk.as_mut().ok_or_else(uninitialized)?;
    walk.next(ctx.services())
}

fn get_next(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtypes = build.outputs.to_vec();
    let shapes = build.attrs.shapes("output_shapes")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let element = next(&*resource::<DatasetIterator>(ctx, 0)?, ctx)?;
        let element = element.ok_or_else(|| out_of_range!("End of sequence"))?;
        if element.len() != dtypes.len() {
            return Err(invalid_argument!(
                "Number of components does not match: expected {} types but got {}.",
                dtypes.len(),
                element.len()
            ));
        }
        for (i, value) in element.into_iter().enumerate() {
            let fits = dtypes.get(i) == Some(&value.dtype())
                && shapes.get(i).is_none_or(|s| s.matches(value.shape()));
            if !fits {
                return Err(invalid_argument!(
                    "component {i} of the element is {} {}, which is not what was said",
                    value.dtype(),
                    value.shape()
                ));
            }
            ctx.set_output(i, value)?;
        }
        Ok(())
    }))
}
