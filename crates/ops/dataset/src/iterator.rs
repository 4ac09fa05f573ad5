//! Iterators over datasets: Iterator, IteratorV2, OneShotIterator, MakeIterator, IteratorGetNext
//! (TensorFlow: `core/kernels/data/iterator_ops.cc`).

use ferroflow_base::{Result, Status, failed_precondition, invalid_argument, out_of_range};
use ferroflow_functors::optional::Optional;
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::dataset::{Components, Dataset, IteratorBase};
use ferroflow_resources::resource::{ContainerInfo, HandleKernel, Resource, resource};
use ferroflow_tensor::{DType, PartialShape};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Iterator",
        "-> handle: resource | shared_name: string; container: string; output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(iterator),
    Op::new(
        "IteratorV2",
        "-> handle: resource | shared_name: string; container: string; output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(iterator),
    Op::new(
        "_OneShotIterator",
        "dataset: variant -> handle: resource | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; container: string = ''; shared_name: string \
         = '' | stateful",
    )
    .shape(shapes::scalar)
    .kernel(one_shot),
    // Import splits this into a call of the factory and a _OneShotIterator of its result.
    Op::new(
        "OneShotIterator",
        "-> handle: resource | dataset_factory: func; output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; container: string = ''; shared_name: string \
         = '' | stateful",
    )
    .shape(shapes::scalar),
    Op::new(
        "MakeIterator",
        "dataset: variant, iterator: resource -> | | stateful",
    )
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let dataset = Dataset::of(ctx.input(0)?)?;
            let iterator = resource::<IteratorResource>(ctx, 1)?;
            iterator.check(&dataset.dtypes, &dataset.shapes)?;
            *iterator.lock() = Some(dataset.iterator());
            Ok(())
        }))
    }),
    Op::new(
        "IteratorGetNext",
        "iterator: resource -> components: list(output_types) | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(element_shapes)
    .kernel(get_next),
    Op::new(
        "IteratorGetNextSync",
        "iterator: resource -> components: list(output_types) | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1 | stateful",
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
            let element = next(&*resource::<IteratorResource>(ctx, 0)?, ctx)?;
            ctx.set_output(0, Optional(element).into_tensor()?)
        }))
    }),
];

/// The resource behind an iterator's handle (TensorFlow: `core/data/iterator_ops.h`).
struct IteratorResource {
    dtypes: Vec<DType>,
    shapes: Vec<PartialShape>,
    state: Mutex<Option<Box<dyn IteratorBase>>>,
}

impl IteratorResource {
    fn spec(build: &KernelBuild) -> Result<(Vec<DType>, Vec<PartialShape>)> {
        let attrs = build.attrs;
        Ok((
            attrs.dtypes("output_types")?,
            attrs.shapes("output_shapes")?,
        ))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn IteratorBase>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Resource for IteratorResource {
    const TYPE: &'static str = "tensorflow::data::IteratorResource";

    fn is_gone(&self) -> bool {
        false
    }

    fn check_same(&self, wanted: &Self, _name: &str) -> Result<()> {
        self.check(&wanted.dtypes, &wanted.shapes)
    }
}

fn iterator(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtypes, shapes) = IteratorResource::spec(build)?;
    let make = move |_: &KernelCtx| {
        Ok(IteratorResource {
            dtypes: dtypes.clone(),
            shapes: shapes.clone(),
            state: Mutex::new(None),
        })
    };
    Ok(Box::new(HandleKernel::new(
        ContainerInfo::of_node(build)?,
        make,
    )))
}

/// Iterates over the dataset of the first step; later steps continue it.
fn one_shot(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtypes, shapes) = IteratorResource::spec(build)?;
    let make = move |ctx: &KernelCtx| {
        let dataset = Dataset::of(ctx.input(0)?)?;
        let made = IteratorResource {
            dtypes: dtypes.clone(),
            shapes: shapes.clone(),
            state: Mutex::new(Some(dataset.iterator())),
        };
        made.check(&dataset.dtypes, &dataset.shapes)?;
        Ok(made)
    };
    Ok(Box::new(HandleKernel::new(
        ContainerInfo::of_node(build)?,
        make,
    )))
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

fn next(iterator: &IteratorResource, ctx: &KernelCtx) -> Result<Option<Components>> {
    let mut walk = iterator.lock();
    let walk = walk.as_mut().ok_or_else(uninitialized)?;
    walk.next(ctx.services())
}

fn get_next(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtypes = build.outputs.to_vec();
    let shapes = build.attrs.shapes("output_shapes")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let element = next(&*resource::<IteratorResource>(ctx, 0)?, ctx)?;
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
                    "component {i} of the element is {} {}, which is not the declared type",
                    value.dtype(),
                    value.shape()
                ));
            }
            ctx.set_output(i, value)?;
        }
        Ok(())
    }))
}
