//! CompositeTensorVariantFromComponents and CompositeTensorVariantToComponents: the parts of a
//! ragged, sparse or other composite tensor in one variant (TensorFlow:
//! `core/kernels/composite_tensor_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{PartialShape, Shape, Tensor, Variant};
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "CompositeTensorVariantFromComponents",
        "components: list(Tcomponents) -> encoded: variant | metadata: string; Tcomponents: \
         list(type) >= 0",
    )
    .shape(shapes::scalar)
    .kernel(encode)
    .gradient(|g| {
        if g.num_inputs() == 0 {
            return Ok(());
        }
        let attrs = [g.attr("metadata"), g.attr("Tcomponents")];
        let parts = g
            .dy(0)
            .node("CompositeTensorVariantToComponents", &[g.dy(0)], &attrs);
        for (i, part) in parts.into_iter().enumerate() {
            g.set(i, part)?;
        }
        Ok(())
    }),
    Op::new(
        "CompositeTensorVariantToComponents",
        "encoded: variant -> components: list(Tcomponents) | metadata: string; Tcomponents: \
         list(type) >= 0",
    )
    .shape(|ctx: &mut ShapeCtx| {
        for i in 0..ctx.attrs().dtypes("Tcomponents")?.len() {
            ctx.set(i, PartialShape::unknown());
        }
        Ok(())
    })
    .kernel(decode)
    .gradient(|g| {
        let attrs = [g.attr("metadata"), g.attr("Tcomponents")];
        let parts: Vec<_> = (0..g.num_outputs()).map(|i| g.dy(i)).collect();
        let first = match parts.first() {
            Some(first) => *first,
            None => return Ok(()),
        };
        let encoded = first.make("CompositeTensorVariantFromComponents", &parts, &attrs);
        g.set(0, encoded)
    }),
];

/// The value of the variant.
struct Composite {
    kind: u64,
    components: Vec<Tensor>,
}

/// The classes of `TypeSpecProto`, by number.
const KINDS: [&str; 14] = [
    "UNKNOWN",
    "SPARSE_TENSOR_SPEC",
    "INDEXED_SLICES_SPEC",
    "RAGGED_TENSOR_SPEC",
    "TENSOR_ARRAY_SPEC",
    "DATA_DATASET_SPEC",
    "DATA_ITERATOR_SPEC",
    "OPTIONAL_SPEC",
    "PER_REPLICA_SPEC",
    "VARIABLE_SPEC",
    "ROW_PARTITION_SPEC",
    "",
    "REGISTERED_TYPE_SPEC",
    "EXTENSION_TYPE_SPEC",
];

fn kind_name(kind: u64) -> &'static str {
    KINDS.get(kind as usize).copied().unwrap_or("UNKNOWN")
}

/// Reads a varint.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Returns the bytes or the number of a message's field 1.
fn field_1(mut bytes: &[u8]) -> Option<(&[u8], u64)> {
    let mut found: (&[u8], u64) = (&[], 0);
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let (value, number): (&[u8], u64) = match key & 7 {
            0 => (&[], varint(&mut bytes)?),
            1 => (bytes.split_off(..8)?, 0),
            2 => {
                let n = usize::try_from(varint(&mut bytes)?).ok()?;
                (bytes.split_off(..n)?, 0)
            }
            5 => (bytes.split_off(..4)?, 0),
            _ => return None,
        };
        if key >> 3 == 1 {
            found = (value, number);
        }
    }
    Some(found)
}

/// Returns the class of the type that serialized `CompositeTensorVariantMetadata` describes.
fn kind_of(build: &KernelBuild) -> Result<u64> {
    let metadata = build.attrs.bytes("metadata")?;
    let kind = field_1(&metadata[..]).and_then(|(spec, _)| field_1(spec));
    let kind = kind.map(|(_, kind)| kind);
    kind.ok_or_else(|| invalid_argument!("Error parsing `metadata`"))
}

fn encode(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let kind = kind_of(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let components = (0..ctx.num_inputs()).map(|i| ctx.input(i).cloned());
        let components = components.collect::<Result<_>>()?;
        let value = Variant(Some(Arc::new(Composite { kind, components })));
        ctx.set_output(0, Tensor::from_variants(Shape::scalar(), vec![value])?)
    }))
}

fn decode(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let kind = kind_of(build)?;
    let dtypes = build.attrs.dtypes("Tcomponents")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let t = ctx.input(0)?;
        let Some(Variant(first)) = t.variants()?.first() else {
            return Err(invalid_argument!(
                "Input `encoded` must not be an empty variant tensor, but got shape {}",
                t.shape()
            ));
        };
        let first = first.as_deref().and_then(|v| v.downcast_ref::<Composite>());
        let composite = first.ok_or_else(|| {
            invalid_argument!("The input `encoded` is not a valid CompositeTensorVariant tensor")
        })?;
        if composite.kind != kind {
            return Err(invalid_argument!(
                "Expected a {} (based on `type_spec`), but `encoded` contains a {}",
                kind_name(kind),
                kind_name(composite.kind)
            ));
        }
        let components = composite.components.clone();
        if components.len() != dtypes.len() {
            return Err(invalid_argument!(
                "Encoded value has {} tensor components; expected {} components based on type_spec",
                components.len(),
                dtypes.len()
            ));
        }
        for (i, (component, dtype)) in components.into_iter().zip(&dtypes).enumerate() {
            if component.dtype() != *dtype {
                return Err(invalid_argument!(
                    "Tensor component {i} had dtype {}; expected dtype {dtype}",
                    component.dtype()
                ));
            }
            ctx.set_output(i, component)?;
        }
        Ok(())
    }))
}
