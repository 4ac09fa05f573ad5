//! EmptyTensorMap, TensorMapSize, TensorMapInsert, TensorMapLookup, TensorMapErase, TensorMapHasKey and
//! TensorMapStackKeys (TensorFlow: `core/kernels/map_kernels.h`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_functors::summarize::summary;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::rows::prepended;
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor, Variant, dispatch_items};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("EmptyTensorMap", "-> handle: variant")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                ctx.set_output(0, handle(TensorMap::default())?)
            }))
        }),
    Op::new("TensorMapSize", "input_handle: variant -> size: int32")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                let n = map(ctx)?.0.len();
                ctx.set_output(0, Tensor::scalar(n as i32))
            }))
        }),
    Op::new(
        "TensorMapInsert",
        "input_handle: variant, key: key_dtype, value: value_dtype -> output_handle: variant | \
         key_dtype: type; value_dtype: type",
    )
    .shape(shapes::scalar)
    .kernel(|_| Ok(Box::new(insert))),
    Op::new(
        "TensorMapErase",
        "input_handle: variant, key: key_dtype -> output_handle: variant | key_dtype: type; \
         value_dtype: type",
    )
    .shape(shapes::scalar)
    .kernel(|_| Ok(Box::new(erase))),
    Op::new(
        "TensorMapLookup",
        "input_handle: variant, key: key_dtype -> value: value_dtype | key_dtype: type; \
         value_dtype: type",
    )
    .kernel(look_up),
    Op::new(
        "TensorMapHasKey",
        "input_handle: variant, key: key_dtype -> has_key: bool | key_dtype: type",
    )
    .shape(shapes::scalar)
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let found = map(ctx)?.0.contains_key(&Key::of(ctx.input(1)?)?);
            ctx.set_output(0, Tensor::scalar(found))
        }))
    }),
    Op::new(
        "TensorMapStackKeys",
        "input_handle: variant -> keys: key_dtype | key_dtype: type",
    )
    .shape(|ctx: &mut ShapeCtx| {
        ctx.set(0, PartialShape::unknown());
        Ok(())
    })
    .kernel(stack_keys),
];

/// What keys are compared by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
    strings: Vec<Bytes>,
}

impl Key {
    fn of(t: &Tensor) -> Result<Key> {
        let (bytes, strings) = match t.dtype() {
            DType::String => (Vec::new(), t.strings()?.to_vec()),
            DType::Variant | DType::Resource => {
                return Err(invalid_argument!(
                    "a {} tensor cannot be the key of a map",
                    t.dtype()
                ));
            }
            _ => (t.bytes()?.to_vec(), Vec::new()),
        };
        Ok(Key {
            dtype: t.dtype(),
            shape: t.shape().to_vec(),
            bytes,
            strings,
        })
    }
}

/// A map; handles share it until one of them changes it.
#[derive(Clone, Default)]
struct TensorMap(BTreeMap<Key, (Tensor, Tensor)>);

fn handle(map: TensorMap) -> Result<Tensor> {
    Tensor::from_variants(Shape::scalar(), vec![Variant(Some(Arc::new(map)))])
}

/// Returns the map that input 0 holds.
fn map<'a>(ctx: &'a KernelCtx) -> Result<&'a TensorMap> {
    let t = ctx.input(0)?;
    let [Variant(value)] = t.variants()? else {
        return Err(not_scalar(t));
    };
    if !t.shape().is_scalar() {
        return Err(not_scalar(t));
    }
    let found = value.as_deref().and_then(|v| v.downcast_ref());
    found.ok_or_else(not_a_map)
}

fn not_scalar(t: &Tensor) -> ferroflow_base::Status {
    invalid_argument!("Input map must be a scalar. Saw: {}", t.shape())
}

fn not_a_map() -> ferroflow_base::Status {
    invalid_argument!("Input handle is not a map. Saw: 'no TensorMap'")
}

/// Takes the map of input 0 to change it; it is copied if others hold it.
fn own(ctx: &mut KernelCtx) -> Result<TensorMap> {
    map(ctx)?;
    let mut t = ctx.take_input(0)?;
    let value = t.items_mut::<Variant>()?.first_mut().map(std::mem::take);
    drop(t);
    let shared = value.and_then(|v| v.0).ok_or_else(not_a_map)?;
    let shared: Arc<TensorMap> = shared.downcast().map_err(|_| not_a_map())?;
    Ok(Arc::unwrap_or_clone(shared))
}

fn insert(ctx: &mut KernelCtx) -> Result<()> {
    let key = ctx.input(1)?.clone();
    let (place, value) = (Key::of(&key)?, ctx.input(2)?.clone());
    let mut map = own(ctx)?;
    map.0.insert(place, (key, value));
    ctx.set_output(0, handle(map)?)
}

fn missing(what: &str, key: &Tensor) -> ferroflow_base::Status {
    invalid_argument!(
        "Trying to {what}. Could not find key \"{}\".",
        summary(key, 100)
    )
}

fn erase(ctx: &mut KernelCtx) -> Result<()> {
    let key = ctx.input(1)?.clone();
    let place = Key::of(&key)?;
    if !map(ctx)?.0.contains_key(&place) {
        return Err(missing("erase non-existent item", &key));
    }
    let mut map = own(ctx)?;
    map.0.remove(&place);
    ctx.set_output(0, handle(map)?)
}

fn look_up(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let key = ctx.input(1)?;
        let found = map(ctx)?.0.get(&Key::of(key)?);
        let Some((_, value)) = found else {
            return Err(missing("lookup non-existent key", key));
        };
        if value.dtype() != dtype {
            return Err(invalid_argument!(
                "the value has type {}, but {dtype} was requested",
                value.dtype()
            ));
        }
        let value = value.clone();
        ctx.set_output(0, value)
    }))
}

fn stack_keys(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let keys = || Ok::<_, ferroflow_base::Status>(map(ctx)?.0.values().map(|(key, _)| key));
        let Some(first) = keys()?.next() else {
            return Err(invalid_argument!(
                "TensorMapStackKeys cannot be called on empty map."
            ));
        };
        if keys()?.any(|key| key.dtype() != dtype) {
            return Err(invalid_argument!("Key does not match requested dtype."));
        }
        if keys()?.any(|key| key.shape() != first.shape()) {
            return Err(invalid_argument!("Keys must all have the same shape."));
        }
        let mut out = Tensor::zeros(dtype, prepended(map(ctx)?.0.len(), first.shape())?)?;
        let width = first.num_elements();
        dispatch_items!(dtype, T => {
            let rows = out.items_mut::<T>()?.chunks_exact_mut(width.max(1));
            for (to, key) in rows.zip(keys()?) {
                to.clone_from_slice(key.items::<T>()?);
            }
        });
        ctx.set_output(0, out)
    }))
}
