//! Attrs of calls.

use super::context::TFE_Context;
use super::op::{TFE_DeleteOp, TFE_NewOp, TFE_Op};
use crate::guard::{guard, list, shared, text, unique};
use crate::operation_attrs::kind_number;
use crate::{TF_Buffer, TF_Status, TF_Tensor};
use bytes::Bytes;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{attr_of_proto, export_attr};
use ferroflow_model::proto;
use ferroflow_opdef::{ArgDef, ArgType, AttrValue, FuncRef};
use ferroflow_runtime::eager::Given;
use ferroflow_tensor::{DType, PartialShape};
use prost::Message;
use std::ffi::{c_char, c_float, c_int, c_uchar, c_void};

/// The attrs of a call: the address of the call itself.
pub struct TFE_OpAttrs {
    _private: (),
}

impl TFE_Op {
    /// Sets an attr. As in TensorFlow the first value counts, that of inputs too
    /// (`AttrBuilder::AddAttrIfNotPresent`).
    fn set(&mut self, name: &str, value: AttrValue) {
        let Some(attr) = self.def.op_def().attr(name) else {
            if self.undeclared.get(name).is_none() {
                self.undeclared.set(name.to_string(), value);
            }
            return;
        };
        let name = attr.name.clone();
        if self.attrs.get(&name).is_none() && !self.is_inferred(&name) {
            self.attrs.set(name, value);
        }
    }

    /// Whether the inputs that were added so far determine an attr.
    fn is_inferred(&self, name: &str) -> bool {
        let is_type = |ty: &ArgType| matches!(ty, ArgType::Attr(attr) if attr == name);
        for (arg, given) in self.def.op_def().inputs.iter().zip(&self.given) {
            let found = match (arg, given) {
                (ArgDef::Single { ty, .. }, Given::One) => is_type(ty),
                (ArgDef::Repeated { number, ty, .. }, Given::List(n)) => {
                    number == name || (*n > 0 && is_type(ty))
                }
                (ArgDef::List { types, .. }, Given::List(_)) => types == name,
                (ArgDef::Single { .. }, _) => false,
                (_, Given::One) => return false,
            };
            if found {
                return true;
            }
        }
        false
    }

    /// The call as a function with attrs.
    fn func(&self) -> Result<FuncRef> {
        Ok(FuncRef {
            name: self.name_text().to_string(),
            attrs: self.all_attrs()?,
        })
    }
}

/// Sets an attr; an error is that of the call if there is no status.
///
/// # Safety
/// The pointers are NULL or valid, and nothing else uses `op`.
unsafe fn set_attr(
    op: *mut TFE_Op,
    name: *const c_char,
    status: *mut TF_Status,
    value: impl FnOnce() -> Result<AttrValue>,
) {
    guard(status, (), || {
        // SAFETY: as this function's.
        let (op, name) = unsafe { (unique(op)?, text(name)?) };
        match value() {
            Ok(value) => op.set(name, value),
            Err(error) if status.is_null() => op.error = Some(error),
            Err(error) => return Err(error),
        }
        Ok(())
    });
}

fn dtype(number: c_int) -> Result<DType> {
    DType::from_number(number).ok_or_else(|| invalid_argument!("unknown dtype {number}"))
}

fn items<T>(values: &[T], item: impl Fn(&T) -> Result<AttrValue>) -> Result<AttrValue> {
    let items: Result<Vec<AttrValue>> = values.iter().map(item).collect();
    items.map(AttrValue::List)
}

/// A shape from a number of dimensions, which is negative if the rank is unknown.
///
/// # Safety
/// `dims` has that many elements.
unsafe fn shape(dims: *const i64, num_dims: c_int) -> Result<AttrValue> {
    // SAFETY: as this function's.
    let dims = (num_dims >= 0).then(|| unsafe { list(dims, num_dims) });
    PartialShape::from_tf(dims).map(AttrValue::Shape)
}

/// Declares setters of attrs without a status.
macro_rules! setters {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) = $value:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                op: *mut TFE_Op,
                attr_name: *const c_char,
                $($arg: $ty),*
            ) {
                // SAFETY: the contract of the header.
                unsafe { set_attr(op, attr_name, std::ptr::null_mut(), || $value) }
            }
        )*
    };
}

setters! {
    /// Sets a string.
    fn TFE_OpSetAttrString(value: *const c_void, length: usize) =
        Ok(AttrValue::Str(Bytes::copy_from_slice(list(value.cast::<u8>(), length))));
    /// Sets an int.
    fn TFE_OpSetAttrInt(value: i64) = Ok(AttrValue::Int(value));
    /// Sets a float.
    fn TFE_OpSetAttrFloat(value: c_float) = Ok(AttrValue::Float(value));
    /// Sets a bool.
    fn TFE_OpSetAttrBool(value: c_uchar) = Ok(AttrValue::Bool(value != 0));
    /// Sets a dtype.
    fn TFE_OpSetAttrType(value: c_int) = dtype(value).map(AttrValue::Type);
    /// Sets a function: that of another call, with its attrs.
    fn TFE_OpSetAttrFunction(value: *const TFE_Op) = shared(value)?.func().map(AttrValue::Func);
    /// Sets a function by its name.
    fn TFE_OpSetAttrFunctionName(data: *const c_char, length: usize) = {
        let name = list(data.cast::<u8>(), length);
        let name = String::from_utf8_lossy(name).into_owned();
        Ok(AttrValue::Func(FuncRef { name, ..Default::default() }))
    };
    /// Sets a list of strings.
    fn TFE_OpSetAttrStringList(
        values: *const *const c_void, lengths: *const usize, num_values: c_int
    ) = {
        let lengths = list(lengths, num_values).iter();
        let values = list(values, num_values).iter().zip(lengths);
        let bytes = |(value, length): (&*const c_void, &usize)| {
            AttrValue::Str(Bytes::copy_from_slice(list(value.cast::<u8>(), *length)))
        };
        Ok(AttrValue::List(values.map(bytes).collect()))
    };
    /// Sets a list of ints.
    fn TFE_OpSetAttrIntList(values: *const i64, num_values: c_int) =
        items(list(values, num_values), |i| Ok(AttrValue::Int(*i)));
    /// Sets a list of floats.
    fn TFE_OpSetAttrFloatList(values: *const c_float, num_values: c_int) =
        items(list(values, num_values), |f| Ok(AttrValue::Float(*f)));
    /// Sets a list of bools.
    fn TFE_OpSetAttrBoolList(values: *const c_uchar, num_values: c_int) =
        items(list(values, num_values), |b| Ok(AttrValue::Bool(*b != 0)));
    /// Sets a list of dtypes.
    fn TFE_OpSetAttrTypeList(values: *const c_int, num_values: c_int) =
        items(list(values, num_values), |t| dtype(*t).map(AttrValue::Type));
    /// Sets a list of functions.
    fn TFE_OpSetAttrFunctionList(value: *mut *const TFE_Op, num_values: c_int) =
        items(list(value, num_values), |op| shared(*op)?.func().map(AttrValue::Func));
}

/// Sets a shape; a negative rank stands for an unknown one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpSetAttrShape(
    op: *mut TFE_Op,
    attr_name: *const c_char,
    dims: *const i64,
    num_dims: c_int,
    out_status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe { set_attr(op, attr_name, out_status, || shape(dims, num_dims)) }
}

/// Sets a list of shapes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpSetAttrShapeList(
    op: *mut TFE_Op,
    attr_name: *const c_char,
    dims: *mut *const i64,
    num_dims: *const c_int,
    num_values: c_int,
    out_status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        set_attr(op, attr_name, out_status, || {
            let ranks = list(num_dims, num_values).iter();
            let shapes = list(dims, num_values).iter().zip(ranks);
            let shapes: Result<Vec<_>> = shapes.map(|(dims, n)| shape(*dims, *n)).collect();
            shapes.map(AttrValue::List)
        })
    }
}

/// Sets a tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpSetAttrTensor(
    op: *mut TFE_Op,
    attr_name: *const c_char,
    tensor: *mut TF_Tensor,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        set_attr(op, attr_name, status, || {
            Ok(AttrValue::Tensor(shared(tensor)?.to_engine()?.into()))
        })
    }
}

/// Sets an attr from a serialized `AttrValue`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpSetAttrValueProto(
    op: *const TFE_Op,
    attr_name: *const c_char,
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header, which changes the op all the same.
    unsafe {
        set_attr(op.cast_mut(), attr_name, status, || {
            let bytes = list(proto.cast::<u8>(), proto_len);
            let value = proto::AttrValue::decode(bytes);
            attr_of_proto(&value.map_err(|_| invalid_argument!("Unparseable AttrValue proto"))?)
        })
    }
}

/// The number of an attr of type `int`, which a failed query returns.
const INT: c_int = 1;

/// Returns the kind of an attr, or of the elements of a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpGetAttrType(
    op: *mut TFE_Op,
    attr_name: *const c_char,
    is_list: *mut c_uchar,
    status: *mut TF_Status,
) -> c_int {
    guard(status, INT, || {
        // SAFETY: the contract of the header.
        let (op, name) = unsafe { (shared(op)?, text(attr_name)?) };
        let (kind, is_a_list) = match op.def.op_def().attr(name) {
            Some(attr) => (kind_number(attr.ty), attr.is_list),
            // Of calls of functions.
            None if op.def.function().is_some() => (0, false),
            None => {
                return Err(invalid_argument!(
                    "Attribute '{name}' does not exist for this operation"
                ));
            }
        };
        // SAFETY: as above.
        if let Some(is_list) = unsafe { is_list.as_mut() } {
            *is_list = c_uchar::from(is_a_list);
        }
        Ok(kind)
    })
}

/// As [`TFE_OpGetAttrType`], of an op or a function by its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpNameGetAttrType(
    ctx: *mut TFE_Context,
    op_or_function_name: *const c_char,
    attr_name: *const c_char,
    is_list: *mut c_uchar,
    status: *mut TF_Status,
) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        let op = TFE_NewOp(ctx, op_or_function_name, status);
        if op.is_null() {
            return INT;
        }
        let kind = TFE_OpGetAttrType(op, attr_name, is_list, status);
        TFE_DeleteOp(op);
        kind
    }
}

/// Returns the attrs of a call, which are valid as long as the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpGetAttrs(op: *const TFE_Op) -> *const TFE_OpAttrs {
    op.cast()
}

/// Adds the attrs of another call that are not set yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpAddAttrs(op: *mut TFE_Op, attrs: *const TFE_OpAttrs) {
    guard(std::ptr::null_mut(), (), || {
        // SAFETY: the contract of the header; `TFE_OpGetAttrs` returned the call.
        let (op, from) = unsafe { (unique(op)?, shared(attrs.cast::<TFE_Op>())?) };
        for (name, value) in from.all_attrs()?.iter().chain(from.undeclared.iter()) {
            op.set(name, value.clone());
        }
        Ok(())
    });
}

/// Returns name and attrs of a call, a `NameAttrList`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_OpAttrsSerialize(
    attrs: *const TFE_OpAttrs,
    buf: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header; `TFE_OpGetAttrs` returned the call.
        let op = unsafe { shared(attrs.cast::<TFE_Op>()) }?;
        let mut attrs = op.all_attrs()?;
        if op.def.function().is_none() {
            op.def.op_def().add_defaults(&mut attrs);
        }
        let attr = attrs
            .iter()
            .chain(op.undeclared.iter())
            .map(|(n, v)| Ok((n.to_string(), export_attr(v)?)));
        let list = proto::NameAttrList {
            name: op.name_text().to_string(),
            attr: attr.collect::<Result<_>>()?,
        };
        // SAFETY: as above.
        unsafe { crate::buffer::fill_message(buf, &list) }
    });
}
