//! Iterators over datasets: Iterator, IteratorV2, AnonymousIterator, OneShotIterator, MakeIterator,
//! IteratorGetNext, SerializeIterator, string handles (TensorFlow:
//! `core/kernels/data/iterator_ops.cc`).

use crate::assertions::check_next;
use crate::handles::StringHandles;
use crate::seeds::{scalars, set_anonymous};
use ferroflow_base::{
    Result, Status, failed_precondition, invalid_argument, not_found, out_of_range,
};
use ferroflow_functors::optional::Optional;
use ferroflow_functors::shapes;
use ferroflow_opdef::{
    AttrValue, Cost, DEFAULT_CONTAINER, FUNCTION_LIBRARY, KernelBuild, KernelCtx, Op, OpKernel,
    ShapeCtx,
};
use ferroflow_resources::dataset::{Components, Dataset, DatasetIterator, IteratorState};
use ferroflow_resources::resource::{ContainerInfo, HandleKernel, Resource, kept_handle, resource};
use ferroflow_tensor::{Bytes, DType, PartialShape, Tensor};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
            check_next(&dataset)?;
            let made = dataset.iterator()?;
            *iterator.lock() = Some((dataset, made));
            Ok(())
        }))
    }),
    Op::new(
        "AnonymousIterator",
        "-> handle: resource | output_types: list(type) >= 1; output_shapes: list(shape) >= 1 \
         | stateful",
    )
    .shape(shapes::scalar)
    .kernel(kept),
    Op::new(
        "AnonymousIteratorV2",
        "-> handle: resource, deleter: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(scalars)
    .kernel(anonymous),
    Op::new(
        "AnonymousIteratorV3",
        "-> handle: resource | output_types: list(type) >= 1; output_shapes: list(shape) >= 1 \
         | stateful",
    )
    .shape(shapes::scalar)
    .kernel(anonymous),
    Op::new(
        "DeleteIterator",
        "handle: resource, deleter: variant -> | | stateful",
    )
    .kernel(delete_iterator),
    Op::new(
        "IteratorToStringHandle",
        "resource_handle: resource -> string_handle: string | | stateful",
    )
    .shape(shapes::scalar)
    .kernel(to_string_handle),
    Op::new(
        "IteratorFromStringHandle",
        "string_handle: string -> resource_handle: resource | output_types: list(type) >= 0 = \
         []; output_shapes: list(shape) >= 0 = [] | stateful",
    )
    .shape(shapes::scalar)
    .kernel(from_string_handle),
    Op::new(
        "IteratorFromStringHandleV2",
        "string_handle: string -> resource_handle: resource | output_types: list(type) >= 0 = \
         []; output_shapes: list(shape) >= 0 = [] | stateful",
    )
    .shape(shapes::scalar)
    .kernel(from_string_handle),
    Op::new(
        "SerializeIterator",
        "resource_handle: resource -> serialized: variant | external_state_policy: int = 0 | \
         stateful",
    )
    .shape(serialized_shape)
    .kernel(serialize),
    Op::new(
        "DeserializeIterator",
        "resource_handle: resource, serialized: variant -> | | stateful",
    )
    .kernel(deserialize),
    Op::new(
        "IteratorGetDevice",
        "resource: resource -> device: string | | stateful",
    )
    .shape(shapes::scalar)
    .kernel(device),
    Op::new(
        "ExperimentalIteratorGetDevice",
        "resource: resource -> device: string | | stateful",
    )
    .shape(shapes::scalar)
    .kernel(device),
    Op::new(
        "IteratorGetModelProto",
        "iterator: resource -> model_proto: string | | stateful",
    )
    .shape(shapes::scalar)
    .kernel(model),
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

/// A dataset, and the position in it.
type Walk = (Arc<Dataset>, Box<dyn DatasetIterator>);

/// The resource behind an iterator's handle (TensorFlow: `core/data/iterator_ops.h`).
struct IteratorResource {
    dtypes: Vec<DType>,
    shapes: Vec<PartialShape>,
    state: Mutex<Option<Walk>>,
}

impl IteratorResource {
    /// Returns an iterator without a dataset.
    fn empty(dtypes: &[DType], shapes: &[PartialShape]) -> IteratorResource {
        IteratorResource {
            dtypes: dtypes.to_vec(),
            shapes: shapes.to_vec(),
            state: Mutex::new(None),
        }
    }

    fn spec(build: &KernelBuild) -> Result<(Vec<DType>, Vec<PartialShape>)> {
        let attrs = build.attrs;
        Ok((
            attrs.dtypes("output_types")?,
            attrs.shapes("output_shapes")?,
        ))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Walk>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that elements of these types fit; an iterator without types takes any.
    fn check(&self, dtypes: &[DType], shapes: &[PartialShape]) -> Result<()> {
        if self.dtypes.is_empty() {
            return Ok(());
        }
        check_dtypes(&self.dtypes, dtypes.iter().copied())?;
        for (i, (expected, got)) in self.shapes.iter().zip(shapes).enumerate() {
            if !expected.is_compatible_with(got) {
                return Err(wrong_shape(i, expected, got));
            }
        }
        Ok(())
    }
}

fn wrong_shape(i: usize, expected: &PartialShape, got: &dyn std::fmt::Display) -> Status {
    invalid_argument!("Incompatible shapes at component {i}: expected {expected} but got {got}.")
}

fn check_dtypes(expected: &[DType], got: impl ExactSizeIterator<Item = DType>) -> Result<()> {
    if expected.len() != got.len() {
        return Err(invalid_argument!(
            "Number of components does not match: expected {} types but got {}.",
            expected.len(),
            got.len()
        ));
    }
    for (i, (expected, got)) in expected.iter().zip(got).enumerate() {
        if *expected != got {
            return Err(invalid_argument!(
                "Data type mismatch at component {i}: expected {expected} but got {got}."
            ));
        }
    }
    Ok(())
}

/// Checks that an element has the declared types.
pub(crate) fn check_types(
    dtypes: &[DType],
    shapes: &[PartialShape],
    element: &[Tensor],
) -> Result<()> {
    check_dtypes(dtypes, element.iter().map(Tensor::dtype))?;
    for (i, (expected, t)) in shapes.iter().zip(element).enumerate() {
        if !expected.matches(t.shape()) {
            return Err(wrong_shape(i, expected, t.shape()));
        }
    }
    Ok(())
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
            state: Mutex::new(None),
        };
        made.check(&dataset.dtypes, &dataset.shapes)?;
        check_next(&dataset)?;
        let iterator = dataset.iterator()?;
        *made.lock() = Some((dataset, iterator));
        Ok(made)
    };
    Ok(Box::new(HandleKernel::new(
        ContainerInfo::of_node(build)?,
        make,
    )))
}

pub(crate) fn element_shapes(ctx: &mut ShapeCtx) -> Result<()> {
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
    let (_, walk) = walk.as_mut().ok_or_else(uninitialized)?;
    walk.next(ctx.services())
}

fn get_next(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtypes = build.outputs.to_vec();
    let shapes = build.attrs.shapes("output_shapes")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let element = next(&*resource::<IteratorResource>(ctx, 0)?, ctx)?;
        let element = element.ok_or_else(|| out_of_range!("End of sequence"))?;
        check_types(&dtypes, &shapes, &element)?;
        for (i, value) in element.into_iter().enumerate() {
            ctx.set_output(i, value)?;
        }
        Ok(())
    }))
}

fn anonymous(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtypes, shapes) = IteratorResource::spec(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        set_anonymous(ctx, IteratorResource::empty(&dtypes, &shapes))
    }))
}

/// Returns the kernel of the first version, whose iterator lives until DestroyResourceOp: handles made of its text
/// name it in later steps.
fn kept(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (dtypes, shapes) = IteratorResource::spec(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let name = format!("AnonymousIterator{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let made = Arc::new(IteratorResource::empty(&dtypes, &shapes));
        let handle = kept_handle(ctx, DEFAULT_CONTAINER, &name, made)?;
        ctx.set_output(0, handle)
    }))
}

fn to_string_handle(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let device = build.device.to_string();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let name = StringHandles::<IteratorResource>::add(ctx, 0, &device)?;
        ctx.set_output(0, Tensor::string(name))
    }))
}

fn from_string_handle(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (dtypes, shapes) = IteratorResource::spec(build)?;
    if !dtypes.is_empty() && !shapes.is_empty() && dtypes.len() != shapes.len() {
        return Err(invalid_argument!(
            "If both 'output_types' and 'output_shapes' are set, they must have the same length."
        ));
    }
    let own = build.device.to_string();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (handle, found) = StringHandles::<IteratorResource>::find(ctx, 0, &own)?;
        if !dtypes.is_empty() {
            check_dtypes(&dtypes, found.dtypes.iter().copied())?;
        }
        for (i, (expected, got)) in shapes.iter().zip(&found.shapes).enumerate() {
            if !expected.is_compatible_with(got) {
                return Err(wrong_shape(i, expected, got));
            }
        }
        ctx.set_output(0, handle)
    }))
}

fn serialized_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, PartialShape::of_rank(1));
    Ok(())
}

fn serialize(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    // The session sets the functions that it knows: datasets inside of the state call them.
    let library = match build.attrs.get(FUNCTION_LIBRARY) {
        Some(AttrValue::Str(library)) => library.clone(),
        _ => Bytes::new(),
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let iterator = resource::<IteratorResource>(ctx, 0)?;
        let graphs = ctx.resources().dataset_graphs();
        let state = match &mut *iterator.lock() {
            Some((dataset, position)) => {
                crate::symbolic::check(dataset, || {
                    graphs.clone()?.graph_of(&dataset.tensor()?, &library)
                })?;
                IteratorState::save(position.as_mut())?
            }
            None => return Err(not_initialized("Save()", "saving")),
        };
        let state = state.into_tensor(|dataset| graphs.clone()?.graph_of(dataset, &library))?;
        ctx.set_output(0, state)
    }))
}

fn deserialize(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let iterator = resource::<IteratorResource>(ctx, 0)?;
        let Some(dataset) = iterator.lock().as_ref().map(|(dataset, _)| dataset.clone()) else {
            return Err(not_initialized("Restore()", "restoring"));
        };
        let (graphs, services) = (ctx.resources().dataset_graphs(), ctx.services());
        let restored = IteratorState::of(ctx.input(1)?, |graph| {
            graphs.clone()?.dataset_of(graph, &[], services)
        });
        let restored = restored.and_then(|state| {
            let mut position = dataset.iterator()?;
            state.restore(position.as_mut())?;
            Ok(position)
        });
        let position = restored
            .map_err(|e| e.prefixed("Failed to restore dataset iterator from checkpoint: "))?;
        *iterator.lock() = Some((dataset, position));
        Ok(())
    }))
}

fn not_initialized(call: &str, doing: &str) -> Status {
    failed_precondition!(
        "{call} failed because the iterator has not been initialized. Ensure that you have run the \
         initializer operation for this iterator before {doing} it."
    )
}

fn device(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let own = match build.device {
        "" => "/job:localhost/replica:0/task:0/device:CPU:0".to_string(),
        device => device.to_string(),
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        resource::<IteratorResource>(ctx, 0)?;
        ctx.set_output(0, Tensor::string(own.clone()))
    }))
}

/// The engine chooses buffers and threads without a model of the pipeline.
fn model(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let iterator = resource::<IteratorResource>(ctx, 0)?;
        if iterator.lock().is_none() {
            return Err(failed_precondition!(
                "GetModelProto() failed because the iterator has not been initialized. Ensure that \
                 you have run the initializer operation for this iterator before getting the next \
                 element."
            ));
        }
        Err(not_found!(
            "Cannot find this iterator's analytical model. Did you disable autotune for the dataset \
             used to create this iterator?"
        ))
    }))
}

/// Returns the kernel of an op that deletes an anonymous iterator: its last handle does.
pub(crate) fn delete_iterator(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        ferroflow_resources::resource::handle(ctx, 0)?;
        Ok(())
    }))
}
