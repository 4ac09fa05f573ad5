//! `TF_OpKernelConstruction`: what a kernel reads when it is created.

use super::{Node, TF_StringView};
use crate::guard::{guard, handle, list_mut, shared, text, unique};
use crate::operation_attrs::{elements, wrong_kind};
use crate::{TF_Buffer, TF_Status, TF_Tensor};
use ferroflow_base::{Result, Status, invalid_argument, not_found};
use ferroflow_graph::export_attr;
use ferroflow_model::proto;
use ferroflow_opdef::{AttrType, AttrValue};
use prost::Message;
use std::ffi::{c_char, c_int, c_uchar, c_void};

/// A node whose kernel is created.
pub struct TF_OpKernelConstruction {
    node: Node,
    pub(super) failure: Option<Status>,
}

impl TF_OpKernelConstruction {
    pub(super) fn new(node: Node) -> TF_OpKernelConstruction {
        TF_OpKernelConstruction {
            node,
            failure: None,
        }
    }

    fn attr(&self, name: &str) -> Result<&AttrValue> {
        self.node.attrs.get(name).ok_or_else(|| {
            not_found!(
                "No attr named '{name}' in NodeDef:\n\t [[{{{{node {}}}}}]]",
                self.node.name.to_string_lossy()
            )
        })
    }

    fn items(&self, name: &str, kind: AttrType) -> Result<&[AttrValue]> {
        // Strings and tensors are read as single ones are in TensorFlow, the others element by element.
        if matches!(kind, AttrType::Str | AttrType::Tensor) {
            return elements(self.attr(name)?, kind);
        }
        match self.node.attrs.get(name) {
            None => Err(self.no_attr(name)),
            Some(list @ AttrValue::List(_)) => elements(list, kind),
            Some(_) => Err(invalid_argument!("Attribute '{name}' is not a list.")),
        }
    }

    #[cold]
    fn no_attr(&self, name: &str) -> Status {
        let node = self.node.name.to_string_lossy();
        invalid_argument!("Operation '{node}' has no attr named '{name}'.")
    }
}

/// Makes the creation fail.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpKernelConstruction_Failure(
    ctx: *mut TF_OpKernelConstruction,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    if let (Some(ctx), Some(status)) = unsafe { (ctx.as_mut(), status.as_ref()) } {
        ctx.failure = status.error();
    }
}

/// Returns the node's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpKernelConstruction_GetName(
    ctx: *mut TF_OpKernelConstruction,
) -> TF_StringView {
    // SAFETY: the contract of the header.
    let name = unsafe { ctx.as_ref() }.map(|ctx| ctx.node.name.to_bytes());
    TF_StringView::of(name.unwrap_or(b""))
}

/// Returns whether the node has an attr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpKernelConstruction_HasAttr(
    ctx: *mut TF_OpKernelConstruction,
    attr_name: *const c_char,
    status: *mut TF_Status,
) -> bool {
    guard(status, false, || {
        // SAFETY: the contract of the header.
        let (ctx, name) = unsafe { (shared(ctx)?, text(attr_name)?) };
        Ok(ctx.node.attrs.get(name).is_some())
    })
}

/// Returns the node, a `NodeDef`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpKernelConstruction_GetNodeDef(
    ctx: *mut TF_OpKernelConstruction,
    status: *mut TF_Status,
) -> *mut TF_Buffer {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let node = unsafe { &shared(ctx)?.node };
        let attr = node
            .attrs
            .iter()
            .map(|(n, v)| Ok((n.to_string(), export_attr(v)?)));
        let def = proto::NodeDef {
            name: node.name.to_string_lossy().into_owned(),
            op: node.op.clone(),
            attr: attr.collect::<Result<_>>()?,
            ..Default::default()
        };
        Ok(crate::buffer::new_buffer(def.encode_to_vec()))
    })
}

/// Returns a function attr, a `NameAttrList`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpKernelConstruction_GetAttrFunction(
    ctx: *mut TF_OpKernelConstruction,
    attr_name: *const c_char,
    status: *mut TF_Status,
) -> *mut TF_Buffer {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (ctx, name) = unsafe { (shared(ctx)?, text(attr_name)?) };
        let value = export_attr(ctx.attr(name)?)?.value;
        match value {
            Some(proto::attr_value::Value::Func(func)) => {
                Ok(crate::buffer::new_buffer(func.encode_to_vec()))
            }
            _ => Err(wrong_kind(ctx.attr(name)?, "func")),
        }
    })
}

/// Returns the length of a list (-1 if it is none) and the bytes of strings or dimensions of shapes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpKernelConstruction_GetAttrSize(
    ctx: *mut TF_OpKernelConstruction,
    attr_name: *const c_char,
    list_size: *mut i32,
    total_size: *mut i32,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (ctx, name, n, total) = unsafe {
            (
                shared(ctx)?,
                text(attr_name)?,
                unique(list_size)?,
                unique(total_size)?,
            )
        };
        let size = |value: &AttrValue| match value {
            AttrValue::Str(s) => s.len() as i32,
            AttrValue::Shape(s) => s.rank().map_or(-1, |rank| rank as i32),
            _ => -1,
        };
        let found = ctx.node.attrs.get(name);
        (*n, *total) = match found.ok_or_else(|| ctx.no_attr(name))? {
            AttrValue::List(list) => {
                let sizes = list.iter().map(size).filter(|s| *s > 0);
                let is_sized =
                    |item: &AttrValue| matches!(item, AttrValue::Str(_) | AttrValue::Shape(_));
                let total = match list.first().is_some_and(is_sized) {
                    true => sizes.sum(),
                    false => -1,
                };
                (list.len() as i32, total)
            }
            value => (-1, size(value)),
        };
        Ok(())
    });
}

/// Declares functions that read an attr, and lists of it.
macro_rules! getters {
    ($($(#[$doc:meta])* fn $one:ident $(, $many:ident)? -> $ty:ty = $pat:pat => $value:expr, $kind:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $one(
                ctx: *mut TF_OpKernelConstruction,
                attr_name: *const c_char,
                val: *mut $ty,
                status: *mut TF_Status,
            ) {
                guard(status, (), || {
                    // SAFETY: the contract of the header.
                    let given = unsafe { (shared(ctx)?, text(attr_name)?, unique(val)?) };
                    let (ctx, name, val) = given;
                    match ctx.attr(name)? {
                        $pat => *val = $value,
                        found => return Err(wrong_kind(found, $kind.name())),
                    }
                    Ok(())
                });
            }

            $(
                #[doc = concat!("As [`", stringify!($one), "`], for the elements of a list.")]
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $many(
                    ctx: *mut TF_OpKernelConstruction,
                    attr_name: *const c_char,
                    vals: *mut $ty,
                    max_vals: c_int,
                    status: *mut TF_Status,
                ) {
                    guard(status, (), || {
                        // SAFETY: the contract of the header.
                        let (ctx, name, vals) = unsafe {
                            (shared(ctx)?, text(attr_name)?, list_mut(vals, max_vals))
                        };
                        for (val, item) in vals.iter_mut().zip(ctx.items(name, $kind)?) {
                            match item {
                                $pat => *val = $value,
                                found => return Err(wrong_kind(found, $kind.name())),
                            }
                        }
                        Ok(())
                    });
                }
            )?
        )*
    };
}

getters! {
    /// Reads a dtype.
    fn TF_OpKernelConstruction_GetAttrType, TF_OpKernelConstruction_GetAttrTypeList -> c_int =
        AttrValue::Type(t) => *t as c_int, AttrType::Type;
    /// Reads the lower 32 bits of an int.
    fn TF_OpKernelConstruction_GetAttrInt32, TF_OpKernelConstruction_GetAttrInt32List -> i32 =
        AttrValue::Int(i) => *i as i32, AttrType::Int;
    /// Reads an int.
    fn TF_OpKernelConstruction_GetAttrInt64, TF_OpKernelConstruction_GetAttrInt64List -> i64 =
        AttrValue::Int(i) => *i, AttrType::Int;
    /// Reads a float.
    fn TF_OpKernelConstruction_GetAttrFloat, TF_OpKernelConstruction_GetAttrFloatList -> f32 =
        AttrValue::Float(f) => *f, AttrType::Float;
    /// Reads a bool.
    fn TF_OpKernelConstruction_GetAttrBool, TF_OpKernelConstruction_GetAttrBoolList -> c_uchar =
        AttrValue::Bool(b) => c_uchar::from(*b), AttrType::Bool;
    /// Reads a tensor, which the client deletes.
    fn TF_OpKernelConstruction_GetAttrTensor, TF_OpKernelConstruction_GetAttrTensorList
        -> *mut TF_Tensor =
        AttrValue::Tensor(t) => handle(TF_Tensor::of_engine(t.get()?)?), AttrType::Tensor;
}

/// Reads a string, without a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpKernelConstruction_GetAttrString(
    ctx: *mut TF_OpKernelConstruction,
    attr_name: *const c_char,
    val: *mut c_char,
    max_length: usize,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (ctx, name, val) = unsafe {
            (
                shared(ctx)?,
                text(attr_name)?,
                list_mut(val.cast::<u8>(), max_length),
            )
        };
        let AttrValue::Str(bytes) = ctx.attr(name)? else {
            return Err(wrong_kind(ctx.attr(name)?, "string"));
        };
        let n = bytes.len().min(val.len());
        val[..n].copy_from_slice(&bytes[..n]);
        Ok(())
    });
}

/// Reads a list of strings into the client's storage.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OpKernelConstruction_GetAttrStringList(
    ctx: *mut TF_OpKernelConstruction,
    attr_name: *const c_char,
    values: *mut *mut c_char,
    lengths: *mut usize,
    max_values: c_int,
    storage: *mut c_void,
    storage_size: usize,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (ctx, name, values, lengths, storage) = unsafe {
            (
                shared(ctx)?,
                text(attr_name)?,
                list_mut(values, max_values),
                list_mut(lengths, max_values),
                list_mut(storage.cast::<u8>(), storage_size),
            )
        };
        let mut rest = storage;
        let slots = values.iter_mut().zip(lengths);
        for ((value, length), item) in slots.zip(ctx.items(name, AttrType::Str)?) {
            let AttrValue::Str(bytes) = item else {
                return Err(invalid_argument!("attr '{name}' is not a list of strings"));
            };
            let Some((own, others)) = rest.split_at_mut_checked(bytes.len()) else {
                return Err(invalid_argument!(
                    "Not enough storage to hold the requested list of strings"
                ));
            };
            own.copy_from_slice(bytes);
            (*value, *length) = (own.as_mut_ptr().cast(), bytes.len());
            rest = others;
        }
        Ok(())
    });
}
