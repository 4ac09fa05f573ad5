//! Ops that clients define (`tensorflow/c/ops.h`).

use crate::guard::{delete, guard, guard_plain, handle, shared, text, unique};
use crate::{TF_Status, op_spec};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{DefinedShapeFn, OpDef, ShapeCtx};
use ferroflow_runtime::registry;
use ferroflow_tensor::PartialShape;
use std::ffi::{c_char, c_int};

/// A client's shape function.
type ShapeFunction = unsafe extern "C" fn(*mut TF_ShapeInferenceContext, *mut TF_Status);

/// A definition that is being written.
pub struct TF_OpDefinitionBuilder {
    name: String,
    attrs: Vec<String>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    def: OpDef,
    shape: Option<ShapeFunction>,
}

impl TF_OpDefinitionBuilder {
    fn register(self) -> Result<()> {
        let mut def = self.def;
        let is_valid = self
            .name
            .starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !is_valid {
            return Err(invalid_argument!("'{}' is not a name of an op", self.name));
        }
        let attrs: Result<_> = self.attrs.iter().map(|spec| op_spec::attr(spec)).collect();
        def.attrs = attrs?;
        let args = |specs: &[String]| -> Result<Vec<_>> {
            specs
                .iter()
                .map(|spec| op_spec::arg(spec, &def.attrs))
                .collect()
        };
        let (inputs, outputs) = (args(&self.inputs)?, args(&self.outputs)?);
        (def.inputs, def.outputs) = (inputs, outputs);
        let shape = self.shape.map(|function| -> DefinedShapeFn {
            Box::leak(Box::new(move |ctx: &mut ShapeCtx| infer(function, ctx)))
        });
        let name = def.name.to_string();
        registry().define_op(def, shape, None)?;
        crate::kernels::register_for(&name);
        Ok(())
    }
}

/// Runs a client's shape function.
fn infer(function: ShapeFunction, ctx: &mut ShapeCtx) -> Result<()> {
    let inputs = (0..ctx.num_inputs()).map(|i| ctx.input(i)).collect();
    let mut context = TF_ShapeInferenceContext {
        inputs,
        outputs: vec![PartialShape::unknown(); ctx.num_outputs()],
        attrs: std::ptr::from_ref(ctx.attrs()),
    };
    let mut status = TF_Status::default();
    // SAFETY: the client registered the function; both arguments live until it returns.
    unsafe { function(&raw mut context, &raw mut status) };
    if let Some(error) = status.error() {
        return Err(error);
    }
    for (i, shape) in context.outputs.into_iter().enumerate() {
        ctx.set(i, shape);
    }
    Ok(())
}

/// Begins a definition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewOpDefinitionBuilder(
    op_name: *const c_char,
) -> *mut TF_OpDefinitionBuilder {
    guard(std::ptr::null_mut(), std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let name = unsafe { text(op_name) }?;
        Ok(handle(TF_OpDefinitionBuilder {
            name: name.to_string(),
            attrs: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            def: OpDef::unknown(name),
            shape: None,
        }))
    })
}

/// Adds the op and deletes the builder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_RegisterOpDefinition(
    builder: *mut TF_OpDefinitionBuilder,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        if builder.is_null() {
            return Err(invalid_argument!("TF_OpDefinitionBuilder argument is NULL"));
        }
        // SAFETY: the contract of the header: the builder is not used any more.
        unsafe { Box::from_raw(builder) }.register()
    });
}

/// Deletes a builder that was not registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteOpDefinitionBuilder(builder: *mut TF_OpDefinitionBuilder) {
    // SAFETY: the contract of the header.
    unsafe { delete(builder) }
}

/// Declares functions that add a text to a definition.
macro_rules! specs {
    ($($(#[$doc:meta])* fn $name:ident = $list:ident;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                builder: *mut TF_OpDefinitionBuilder,
                spec: *const c_char,
            ) {
                guard(std::ptr::null_mut(), (), || {
                    // SAFETY: the contract of the header.
                    let (builder, spec) = unsafe { (unique(builder)?, text(spec)?) };
                    builder.$list.push(spec.to_string());
                    Ok(())
                });
            }
        )*
    };
}

specs! {
    /// Adds an attr, such as `T: {float, int32} = DT_FLOAT`.
    fn TF_OpDefinitionBuilderAddAttr = attrs;
    /// Adds an input, such as `values: N * T`.
    fn TF_OpDefinitionBuilderAddInput = inputs;
    /// Adds an output.
    fn TF_OpDefinitionBuilderAddOutput = outputs;
}

/// Declares functions that set a flag of a definition, whatever their argument, as in TensorFlow.
macro_rules! flags {
    ($($(#[$doc:meta])* fn $name:ident = $flag:ident;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(builder: *mut TF_OpDefinitionBuilder, _is_set: bool) {
                // SAFETY: the contract of the header.
                if let Some(builder) = unsafe { builder.as_mut() } {
                    builder.def.flags.$flag = true;
                }
            }
        )*
    };
}

flags! {
    /// Declares that inputs may be swapped.
    fn TF_OpDefinitionBuilderSetIsCommutative = commutative;
    /// Declares that inputs may be regrouped.
    fn TF_OpDefinitionBuilderSetIsAggregate = aggregate;
    /// Declares that the op has state.
    fn TF_OpDefinitionBuilderSetIsStateful = stateful;
    /// Declares that inputs may be uninitialised variables.
    fn TF_OpDefinitionBuilderSetAllowsUninitializedInput = allows_uninitialized_input;
}

/// Accepts the note that an op is deprecated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpDefinitionBuilderDeprecated(
    _builder: *mut TF_OpDefinitionBuilder,
    _version: c_int,
    _explanation: *const c_char,
) {
}

/// Sets the shape function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpDefinitionBuilderSetShapeInferenceFunction(
    builder: *mut TF_OpDefinitionBuilder,
    shape_inference_func: Option<ShapeFunction>,
) {
    // SAFETY: the contract of the header.
    if let Some(builder) = unsafe { builder.as_mut() } {
        builder.shape = shape_inference_func;
    }
}

/// What a shape function reads and writes.
pub struct TF_ShapeInferenceContext {
    inputs: Vec<PartialShape>,
    outputs: Vec<PartialShape>,
    attrs: *const ferroflow_opdef::Attrs,
}

/// A shape.
#[derive(Default)]
pub struct TF_ShapeHandle(PartialShape);

/// A dimension, of known or unknown size.
#[derive(Default)]
pub struct TF_DimensionHandle(Option<usize>);

/// Returns the number of inputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContextNumInputs(
    ctx: *mut TF_ShapeInferenceContext,
) -> i64 {
    // SAFETY: the contract of the header.
    unsafe { ctx.as_ref() }.map_or(0, |ctx| ctx.inputs.len() as i64)
}

/// Creates an unknown shape.
#[unsafe(no_mangle)]
pub extern "C" fn TF_NewShapeHandle() -> *mut TF_ShapeHandle {
    handle(TF_ShapeHandle::default())
}

/// Creates an unknown dimension.
#[unsafe(no_mangle)]
pub extern "C" fn TF_NewDimensionHandle() -> *mut TF_DimensionHandle {
    handle(TF_DimensionHandle::default())
}

/// Deletes a shape.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteShapeHandle(shape: *mut TF_ShapeHandle) {
    // SAFETY: the contract of the header.
    unsafe { delete(shape) }
}

/// Deletes a dimension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteDimensionHandle(dim: *mut TF_DimensionHandle) {
    // SAFETY: the contract of the header.
    unsafe { delete(dim) }
}

/// Reads the shape of an input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContextGetInput(
    ctx: *mut TF_ShapeInferenceContext,
    i: c_int,
    shape: *mut TF_ShapeHandle,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (ctx, shape) = unsafe { (shared(ctx)?, unique(shape)?) };
        let input = usize::try_from(i).ok().and_then(|i| ctx.inputs.get(i));
        let input = input.ok_or_else(|| invalid_argument!("input index out of range"))?;
        shape.0 = input.clone();
        Ok(())
    });
}

/// Sets the shape of an output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContextSetOutput(
    ctx: *mut TF_ShapeInferenceContext,
    i: c_int,
    shape: *mut TF_ShapeHandle,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (ctx, shape) = unsafe { (unique(ctx)?, shared(shape)?) };
        let output = usize::try_from(i).ok().and_then(|i| ctx.outputs.get_mut(i));
        let output = output.ok_or_else(|| invalid_argument!("output index out of range"))?;
        *output = shape.0.clone();
        Ok(())
    });
}

/// Creates the shape of a scalar.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContextScalar(
    _ctx: *mut TF_ShapeInferenceContext,
) -> *mut TF_ShapeHandle {
    handle(TF_ShapeHandle(PartialShape::scalar()))
}

/// Creates the shape of a vector.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContextVectorFromSize(
    _ctx: *mut TF_ShapeInferenceContext,
    size: usize,
) -> *mut TF_ShapeHandle {
    handle(TF_ShapeHandle(PartialShape::of([Some(size)])))
}

/// Reads a dtype attr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContext_GetAttrType(
    ctx: *mut TF_ShapeInferenceContext,
    attr_name: *const c_char,
    val: *mut c_int,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header; the attrs live as long as the context.
        let (attrs, name, val) =
            unsafe { (shared(shared(ctx)?.attrs)?, text(attr_name)?, unique(val)?) };
        *val = attrs.dtype(name)? as c_int;
        Ok(())
    });
}

/// Returns the rank; -1 if it is unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContextRank(
    _ctx: *mut TF_ShapeInferenceContext,
    shape: *mut TF_ShapeHandle,
) -> i64 {
    // SAFETY: the contract of the header.
    let rank = unsafe { shape.as_ref() }.and_then(|shape| shape.0.rank());
    rank.map_or(-1, |rank| rank as i64)
}

/// Returns whether the rank is known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContextRankKnown(
    ctx: *mut TF_ShapeInferenceContext,
    shape: *mut TF_ShapeHandle,
) -> c_int {
    // SAFETY: the contract of the header.
    c_int::from(unsafe { TF_ShapeInferenceContextRank(ctx, shape) } >= 0)
}

/// Declares functions that demand a rank.
macro_rules! ranks {
    ($($(#[$doc:meta])* fn $name:ident = |$rank:ident, $wanted:ident| $fits:expr, $words:literal, $unknown:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                _ctx: *mut TF_ShapeInferenceContext,
                shape: *mut TF_ShapeHandle,
                rank: i64,
                result: *mut TF_ShapeHandle,
                status: *mut TF_Status,
            ) {
                guard(status, (), || {
                    // SAFETY: the contract of the header.
                    let shape = unsafe { shared(shape)?.0.clone() };
                    let $wanted = rank;
                    let found = match shape.rank() {
                        None => $unknown,
                        Some(n) => {
                            let $rank = n as i64;
                            if !$fits {
                                return Err(invalid_argument!(
                                    concat!("Shape must be ", $words, " {} but is rank {}"), rank, n
                                ));
                            }
                            shape
                        }
                    };
                    // SAFETY: as above.
                    unsafe { unique(result)?.0 = found };
                    Ok(())
                });
            }
        )*
    };
}

ranks! {
    /// Demands a rank.
    fn TF_ShapeInferenceContextWithRank = |rank, wanted| rank == wanted, "rank",
        usize::try_from(wanted).map_or_else(|_| PartialShape::unknown(), PartialShape::of_rank);
    /// Demands a least rank.
    fn TF_ShapeInferenceContextWithRankAtLeast = |rank, wanted| rank >= wanted, "at least rank", {
        let _ = wanted;
        PartialShape::unknown()
    };
    /// Demands a greatest rank.
    fn TF_ShapeInferenceContextWithRankAtMost = |rank, wanted| rank <= wanted, "at most rank", {
        let _ = wanted;
        PartialShape::unknown()
    };
}

/// Reads a dimension; negative indices count from the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContextDim(
    _ctx: *mut TF_ShapeInferenceContext,
    shape_handle: *mut TF_ShapeHandle,
    i: i64,
    result: *mut TF_DimensionHandle,
) {
    // SAFETY: the contract of the header.
    let (Some(shape), Some(result)) =
        (unsafe { shape_handle.as_ref() }, unsafe { result.as_mut() })
    else {
        return;
    };
    guard_plain((), || {
        let dims = shape.0.dims().unwrap_or(&[]);
        let i = if i < 0 { i + dims.len() as i64 } else { i };
        let dim = usize::try_from(i).ok().and_then(|i| dims.get(i));
        result.0 = dim.copied().flatten();
    });
}

/// Takes the dimensions from `start` to `end`; negative ones count from the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContextSubshape(
    _ctx: *mut TF_ShapeInferenceContext,
    shape_handle: *mut TF_ShapeHandle,
    start: i64,
    end: i64,
    result: *mut TF_ShapeHandle,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let shape = unsafe { shared(shape_handle)?.0.clone() };
        let part = match shape.dims() {
            None => PartialShape::unknown(),
            Some(dims) => {
                let n = dims.len() as i64;
                let index = |i: i64| if i < 0 { i + n } else { i.min(n) };
                let (first, last) = (index(start), index(end));
                let range = usize::try_from(first).ok().zip(usize::try_from(last).ok());
                let part = range.and_then(|(first, last)| dims.get(first..last));
                let part = part.ok_or_else(|| {
                    invalid_argument!(
                        "Subshape must have computed start <= end, but is {first} and {last} (computed \
                         from start {start} and end {end} over shape with rank {n})"
                    )
                })?;
                PartialShape::of(part.iter().copied())
            }
        };
        // SAFETY: as above.
        unsafe { unique(result)?.0 = part };
        Ok(())
    });
}

/// Makes the shapes of all outputs unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContextSetUnknownShape(
    ctx: *mut TF_ShapeInferenceContext,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe { unique(ctx)? }
            .outputs
            .fill(PartialShape::unknown());
        Ok(())
    });
}

/// Appends the dimensions of one shape to those of another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ShapeInferenceContextConcatenateShapes(
    _ctx: *mut TF_ShapeInferenceContext,
    first: *mut TF_ShapeHandle,
    second: *mut TF_ShapeHandle,
    result: *mut TF_ShapeHandle,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (first, second) = unsafe { (shared(first)?.0.clone(), shared(second)?.0.clone()) };
        let both = first.dims().zip(second.dims());
        let joined = both.map(|(a, b)| PartialShape::of(a.iter().chain(b).copied()));
        // SAFETY: as above.
        unsafe { unique(result)?.0 = joined.unwrap_or_default() };
        Ok(())
    });
}

/// Returns whether the size is known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DimensionHandleValueKnown(
    dim_handle: *mut TF_DimensionHandle,
) -> c_int {
    // SAFETY: the contract of the header.
    c_int::from(unsafe { dim_handle.as_ref() }.is_some_and(|dim| dim.0.is_some()))
}

/// Returns the size; -1 if it is unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DimensionHandleValue(dim_handle: *mut TF_DimensionHandle) -> i64 {
    // SAFETY: the contract of the header.
    let size = unsafe { dim_handle.as_ref() }.and_then(|dim| dim.0);
    size.map_or(-1, |size| size as i64)
}
