//! Elements and datasets inside variants: CompressElement, UncompressElement, WrapDatasetVariant,
//! UnwrapDatasetVariant; InitializeTableFromDataset (TensorFlow:
//! `core/kernels/data/{compression_ops,lookup_ops}.cc`).

use crate::common::{components, dataset};
use crate::iterator::element_shapes;
use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::dataset::{Components, Dataset};
use ferroflow_resources::resource::resource;
use ferroflow_resources::table::Table;
use ferroflow_tensor::rows::joined;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, Variant};
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "CompressElement",
        "components: list(input_types) -> compressed: variant | input_types: list(type) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(compress),
    Op::new(
        "UncompressElement",
        "compressed: variant -> components: list(output_types) | output_types: list(type) >= \
         1; output_shapes: list(shape) >= 1",
    )
    .shape(element_shapes)
    .kernel(uncompress),
    Op::new(
        "WrapDatasetVariant",
        "input_handle: variant -> output_handle: variant",
    )
    .shape(shapes::scalar)
    .kernel(wrap),
    Op::new(
        "UnwrapDatasetVariant",
        "input_handle: variant -> output_handle: variant",
    )
    .shape(shapes::scalar)
    .kernel(unwrap),
    Op::new(
        "InitializeTableFromDataset",
        "table_handle: resource, dataset: variant -> | | stateful",
    )
    .kernel(initialize_table),
    Op::new("CheckPinned", "tensor: T -> output: T | T: type")
        .shape(shapes::unchanged)
        .kernel(check_pinned),
];

/// The tensors of one element. They share storage with others, which a compressed copy would not.
struct Compressed(Components);

fn compress(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let element = Compressed(components(ctx, 0)?);
        let variant = Variant(Some(Arc::new(element)));
        ctx.set_output(0, Tensor::from_variants(Shape::scalar(), vec![variant])?)
    }))
}

/// Returns the value of type `T` that a variant scalar holds.
fn held<T: Send + Sync + 'static>(t: &Tensor) -> Result<Option<Arc<T>>> {
    Ok(match t.variants()? {
        [Variant(Some(value))] => value.clone().downcast().ok(),
        _ => None,
    })
}

fn uncompress(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtypes = build.attrs.dtypes("output_types")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let t = ctx.input(0)?;
        if !t.shape().is_scalar() {
            return Err(invalid_argument!(
                "UncompressElement requires its input to be a scalar, but encountered an input \
                 with {} dimensions.",
                t.shape().rank()
            ));
        }
        let Some(element) = held::<Compressed>(t)? else {
            return Err(invalid_argument!(
                "Input does not contain a compressed element."
            ));
        };
        if element.0.len() != dtypes.len() {
            return Err(failed_precondition!(
                "Expected {} outputs from uncompress, but got {}",
                dtypes.len(),
                element.0.len()
            ));
        }
        for (i, (t, dtype)) in element.0.iter().zip(&dtypes).enumerate() {
            if t.dtype() != *dtype {
                return Err(failed_precondition!(
                    "Expected a tensor of type {dtype} but got a tensor of type {}",
                    t.dtype()
                ));
            }
            ctx.set_output(i, t.clone())?;
        }
        Ok(())
    }))
}

/// A dataset that reads as an opaque value.
struct Wrapped(Arc<Dataset>);

fn wrap(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let variant = Variant(Some(Arc::new(Wrapped(dataset(ctx, 0)?))));
        ctx.set_output(0, Tensor::from_variants(Shape::scalar(), vec![variant])?)
    }))
}

fn unwrap(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        match held::<Wrapped>(ctx.input(0)?)? {
            Some(wrapped) => ctx.set_output(0, wrapped.0.tensor()?),
            None => Err(invalid_argument!(
                "Tensor must be a WrappedDataset variant object."
            )),
        }
    }))
}

/// Returns one tensor of the scalars.
fn gathered(dtype: DType, items: &[Tensor]) -> Result<Tensor> {
    let parts: Vec<_> = items.iter().map(|t| (Some(t), t.num_elements())).collect();
    joined(dtype, Shape::from([items.len()]), &parts)
}

fn initialize_table(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let table = resource::<Table>(ctx, 0)?;
        let dataset = dataset(ctx, 1)?;
        let &[key, value] = &dataset.dtypes[..] else {
            return Err(invalid_argument!(
                "Dataset should have two output types only"
            ));
        };
        let (table_key, table_value) = table.dtypes();
        let pairs = [("Key", table_key, key), ("Value", table_value, value)];
        for (which, expected, got) in pairs {
            if expected != got {
                return Err(invalid_argument!(
                    "{which} dtype expected: {expected} but obtained: {got} from the dataset"
                ));
            }
        }
        for shape in &dataset.shapes {
            if !shape.is_compatible_with(&PartialShape::scalar()) {
                return Err(invalid_argument!(
                    "Expected scalar for key. Obtained: {shape}"
                ));
            }
        }
        let mut iterator = dataset.iterator()?;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        while let Some(element) = iterator.next(ctx.services())? {
            ctx.services().cancel.check()?;
            let mut parts = element.into_iter();
            keys.extend(parts.next());
            values.extend(parts.next());
        }
        table.initialize(&gathered(key, &keys)?, &gathered(value, &values)?)
    }))
}

/// Memory is pinned for other devices, which there are none of.
fn check_pinned(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|_: &mut KernelCtx| {
        Err(failed_precondition!(
            "to check pinnedness, must be built with `--config=cuda`"
        ))
    }))
}
