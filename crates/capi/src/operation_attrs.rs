//! Attrs of nodes (`tensorflow/c/c_api.h`).

use crate::graph::TF_Operation;
use crate::guard::{handle, list_mut, text};
use crate::operation::with_node;
use crate::{TF_Buffer, TF_Status, TF_Tensor};
use ferroflow_base::{Result, invalid_argument, not_found, out_of_range};
use ferroflow_graph::Node;
use ferroflow_model::shape_to_proto;
use ferroflow_opdef::{AttrType, AttrValue};
use ferroflow_tensor::PartialShape;
use prost::Message;
use std::ffi::{c_char, c_float, c_int, c_uchar, c_void};

/// What a client must know before it reads an attr.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TF_AttrMetadata {
    /// Whether it is a list.
    pub is_list: c_uchar,
    /// Length of the list; -1 if it is none.
    pub list_size: i64,
    /// Kind of the value or of the list's elements.
    pub r#type: c_int,
    /// Bytes of strings or dimensions of shapes; -1 for other kinds.
    pub total_size: i64,
}

const NO_METADATA: TF_AttrMetadata = TF_AttrMetadata {
    is_list: 0,
    list_size: -1,
    r#type: 0,
    total_size: -1,
};

/// The header's number of a placeholder.
const PLACEHOLDER: c_int = 7;

/// The header's number of a kind of attr.
pub(crate) fn kind_number(kind: AttrType) -> c_int {
    match kind {
        AttrType::Str => 0,
        AttrType::Int => 1,
        AttrType::Float => 2,
        AttrType::Bool => 3,
        AttrType::Type => 4,
        AttrType::Shape => 5,
        AttrType::Tensor => 6,
        AttrType::Func => 8,
    }
}

fn kind_of(value: &AttrValue) -> Option<c_int> {
    Some(kind_number(match value {
        AttrValue::Str(_) => AttrType::Str,
        AttrValue::Int(_) => AttrType::Int,
        AttrValue::Float(_) => AttrType::Float,
        AttrValue::Bool(_) => AttrType::Bool,
        AttrValue::Type(_) => AttrType::Type,
        AttrValue::Shape(_) => AttrType::Shape,
        AttrValue::Tensor(_) => AttrType::Tensor,
        AttrValue::Func(_) => AttrType::Func,
        AttrValue::Placeholder(_) => return Some(PLACEHOLDER),
        AttrValue::List(_) => return None,
    }))
}

/// Bytes of a string, dimensions of a shape of known rank.
fn size_of_value(value: &AttrValue) -> Option<i64> {
    match value {
        AttrValue::Str(s) => Some(s.len() as i64),
        AttrValue::Shape(s) => Some(s.rank().map_or(-1, |rank| rank as i64)),
        _ => None,
    }
}

/// An attr of a node.
///
/// # Safety
/// `name` is NULL or a C string.
unsafe fn attr(node: &Node, name: *const c_char) -> Result<(&AttrValue, String)> {
    // SAFETY: as this function's.
    let name = unsafe { text(name) }?;
    let value = node.attrs.get(name).ok_or_else(|| {
        invalid_argument!("Operation '{}' has no attr named '{name}'.", node.name)
    })?;
    Ok((value, name.to_string()))
}

/// An attr other than a list: TensorFlow looks these up in another way, with another error.
///
/// # Safety
/// As [`attr`].
unsafe fn single(node: &Node, name: *const c_char) -> Result<&AttrValue> {
    // SAFETY: as this function's.
    let (name, found) = unsafe { (text(name)?, attr(node, name)) };
    match found {
        Ok((value, _)) => Ok(value),
        Err(_) => Err(not_found!(
            "No attr named '{name}' in NodeDef:\n\t [[{{{{node {}}}}}]]",
            node.name
        )),
    }
}

/// The elements of a list attr; none of a list of another kind, which TensorFlow does not refuse.
fn items((value, name): (&AttrValue, String), kind: AttrType) -> Result<&[AttrValue]> {
    match value {
        AttrValue::List(list) if list.first().and_then(kind_of) == Some(kind_number(kind)) => {
            Ok(list)
        }
        AttrValue::List(_) => Ok(&[]),
        // The others end without a full stop there.
        _ if matches!(kind, AttrType::Str | AttrType::Shape) => {
            Err(invalid_argument!("Value for '{name}' is not a list"))
        }
        _ => Err(invalid_argument!("Value for '{name}' is not a list.")),
    }
}

/// The elements of a list attr, which TensorFlow reads as single ones: another kind is an error.
///
/// # Safety
/// As [`attr`].
unsafe fn items_of_kind(node: &Node, name: *const c_char, kind: AttrType) -> Result<&[AttrValue]> {
    // SAFETY: as this function's.
    elements(unsafe { single(node, name) }?, kind)
}

/// The elements of a list of one kind.
///
/// # Errors
/// INVALID_ARGUMENT if the value is another one.
pub(crate) fn elements(value: &AttrValue, kind: AttrType) -> Result<&[AttrValue]> {
    let is_of_kind = |item: &AttrValue| kind_of(item) == Some(kind_number(kind));
    match value {
        AttrValue::List(list) if list.first().is_none_or(is_of_kind) => Ok(list),
        _ => Err(wrong_kind(value, &format!("list({})", kind.name()))),
    }
}

/// Returns what a client must know before it reads an attr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetAttrMetadata(
    oper: *mut TF_Operation,
    attr_name: *const c_char,
    status: *mut TF_Status,
) -> TF_AttrMetadata {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, NO_METADATA, |_, node| {
            let (value, name) = attr(node, attr_name)?;
            let AttrValue::List(list) = value else {
                return Ok(TF_AttrMetadata {
                    r#type: kind_of(value).unwrap_or(0),
                    total_size: size_of_value(value).unwrap_or(-1),
                    ..NO_METADATA
                });
            };
            let declared = node.def.attr(&name).map(|a| kind_number(a.ty));
            let kind = list.first().and_then(kind_of).or(declared);
            let sizes = list.iter().filter_map(size_of_value);
            let is_sized = list.first().and_then(size_of_value).is_some();
            Ok(TF_AttrMetadata {
                is_list: 1,
                list_size: list.len() as i64,
                r#type: kind.unwrap_or(0),
                total_size: match is_sized {
                    true => sizes.filter(|n| *n > 0).sum(),
                    false => -1,
                },
            })
        })
    }
}

pub(crate) fn wrong_kind(found: &AttrValue, kind: &str) -> ferroflow_base::Status {
    match found {
        AttrValue::Placeholder(_) => {
            invalid_argument!("AttrValue had value with unexpected type 'placeholder'")
        }
        AttrValue::List(list) => match list.first() {
            None => invalid_argument!("AttrValue missing value with expected type '{kind}'"),
            Some(first) => invalid_argument!(
                "AttrValue had value with type 'list({})' when '{kind}' expected",
                first.kind()
            ),
        },
        _ => invalid_argument!(
            "AttrValue had value with type '{}' when '{kind}' expected",
            found.kind()
        ),
    }
}

fn not_strings(name: &str) -> ferroflow_base::Status {
    invalid_argument!("Attribute '{name}' is not a string")
}

/// Copies a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetAttrString(
    oper: *mut TF_Operation,
    attr_name: *const c_char,
    value: *mut c_void,
    max_length: usize,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, (), |_, node| {
            let (AttrValue::Str(text), _) = attr(node, attr_name)? else {
                return Err(not_strings(&attr(node, attr_name)?.1));
            };
            copy(text, list_mut(value.cast(), max_length));
            Ok(())
        })
    }
}

fn copy(from: &[u8], to: &mut [u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

/// Copies strings into `storage`; writes where each is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetAttrStringList(
    oper: *mut TF_Operation,
    attr_name: *const c_char,
    values: *mut *mut c_void,
    lengths: *mut usize,
    max_values: c_int,
    storage: *mut c_void,
    storage_size: usize,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, (), |_, node| {
            let (value, name) = attr(node, attr_name)?;
            let items = items((value, name.clone()), AttrType::Str)?;
            let mut rest: &mut [u8] = list_mut(storage.cast(), storage_size);
            let places = list_mut(values, max_values).iter_mut();
            for ((place, length), item) in places.zip(list_mut(lengths, max_values)).zip(items) {
                let AttrValue::Str(text) = item else {
                    return Err(not_strings(&name));
                };
                let Some((here, others)) = rest.split_at_mut_checked(text.len()) else {
                    return Err(invalid_argument!(
                        "Not enough storage to hold the requested list of strings"
                    ));
                };
                copy(text, here);
                (*place, *length) = (here.as_mut_ptr().cast(), text.len());
                rest = others;
            }
            Ok(())
        })
    }
}

/// Declares functions that read a value, or a list of values, of one kind.
macro_rules! getters {
    ($($(#[$doc:meta])* $one:ident, $many:ident: $ty:ty = $pattern:pat => $value:expr, $kind:literal, $read:ident($list:expr);)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $one(
                oper: *mut TF_Operation,
                attr_name: *const c_char,
                value: *mut $ty,
                status: *mut TF_Status,
            ) {
                // SAFETY: the contract of the header.
                unsafe {
                    with_node(oper, status, (), |_, node| {
                        let found = single(node, attr_name)?;
                        let $pattern = found else {
                            return Err(wrong_kind(found, $kind));
                        };
                        *crate::guard::unique(value)? = $value;
                        Ok(())
                    })
                }
            }

            $(#[$doc])*
            ///
            /// For a list.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $many(
                oper: *mut TF_Operation,
                attr_name: *const c_char,
                values: *mut $ty,
                max_values: c_int,
                status: *mut TF_Status,
            ) {
                // SAFETY: the contract of the header.
                unsafe {
                    with_node(oper, status, (), |_, node| {
                        let items = $read(node, attr_name, $list)?;
                        for (to, item) in list_mut(values, max_values).iter_mut().zip(items) {
                            let $pattern = item else {
                                return Err(wrong_kind(item, $kind));
                            };
                            *to = $value;
                        }
                        Ok(())
                    })
                }
            }
        )*
    };
}

/// The elements of a list attr, as [`items`].
///
/// # Safety
/// As [`attr`].
unsafe fn listed(node: &Node, name: *const c_char, kind: AttrType) -> Result<&[AttrValue]> {
    // SAFETY: as this function's.
    items(unsafe { attr(node, name) }?, kind)
}

getters! {
    /// Reads an integer.
    TF_OperationGetAttrInt, TF_OperationGetAttrIntList: i64 = AttrValue::Int(v) => *v, "int", listed(AttrType::Int);
    /// Reads a float.
    TF_OperationGetAttrFloat, TF_OperationGetAttrFloatList: c_float = AttrValue::Float(v) => *v, "float", listed(AttrType::Float);
    /// Reads a bool.
    TF_OperationGetAttrBool, TF_OperationGetAttrBoolList: c_uchar = AttrValue::Bool(v) => c_uchar::from(*v), "bool", listed(AttrType::Bool);
    /// Reads a dtype.
    TF_OperationGetAttrType, TF_OperationGetAttrTypeList: c_int = AttrValue::Type(v) => *v as c_int, "type", listed(AttrType::Type);
    /// Reads a tensor, which the client deletes.
    TF_OperationGetAttrTensor, TF_OperationGetAttrTensorList: *mut TF_Tensor =
        AttrValue::Tensor(v) => handle(TF_Tensor::of_engine(v.get()?)?), "tensor", items_of_kind(AttrType::Tensor);
}

/// Writes the dimensions of a shape.
fn write_dims(shape: &PartialShape, to: &mut [i64]) {
    for (to, dim) in to.iter_mut().zip(shape.dims().unwrap_or(&[])) {
        *to = dim.map_or(-1, |d| d as i64);
    }
}

/// Reads a shape.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetAttrShape(
    oper: *mut TF_Operation,
    attr_name: *const c_char,
    value: *mut i64,
    num_dims: c_int,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, (), |_, node| {
            let AttrValue::Shape(shape) = single(node, attr_name)? else {
                return Err(wrong_kind(attr(node, attr_name)?.0, "shape"));
            };
            write_dims(shape, list_mut(value, num_dims));
            Ok(())
        })
    }
}

/// Reads shapes into `storage`; writes where each is, and its rank, -1 if unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetAttrShapeList(
    oper: *mut TF_Operation,
    attr_name: *const c_char,
    dims: *mut *mut i64,
    num_dims: *mut c_int,
    num_shapes: c_int,
    storage: *mut i64,
    storage_size: c_int,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, (), |_, node| {
            let items = items_of_kind(node, attr_name, AttrType::Shape)?;
            let mut rest: &mut [i64] = list_mut(storage, storage_size);
            let places = list_mut(dims, num_shapes).iter_mut();
            for ((place, rank), item) in places.zip(list_mut(num_dims, num_shapes)).zip(items) {
                let AttrValue::Shape(shape) = item else {
                    return Err(wrong_kind(item, "shape"));
                };
                let Some(n) = shape.rank() else {
                    (*place, *rank) = (rest.as_mut_ptr(), -1);
                    continue;
                };
                let Some((here, others)) = rest.split_at_mut_checked(n) else {
                    return Err(invalid_argument!(
                        "Not enough storage to hold the requested list of shapes"
                    ));
                };
                write_dims(shape, here);
                (*place, *rank) = (here.as_mut_ptr(), n as c_int);
                rest = others;
            }
            Ok(())
        })
    }
}

/// Reads a shape in its file form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetAttrTensorShapeProto(
    oper: *mut TF_Operation,
    attr_name: *const c_char,
    value: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, (), |_, node| {
            let (AttrValue::Shape(shape), _) = attr(node, attr_name)? else {
                return Err(invalid_argument!(
                    "Value for '{}' is not a shape.",
                    text(attr_name)?
                ));
            };
            crate::buffer::fill_message(value, &shape_to_proto(shape))
        })
    }
}

/// Reads shapes in their file form, as buffers that the client deletes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetAttrTensorShapeProtoList(
    oper: *mut TF_Operation,
    attr_name: *const c_char,
    values: *mut *mut TF_Buffer,
    max_values: c_int,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, (), |_, node| {
            let items = items(attr(node, attr_name)?, AttrType::Shape)?;
            for (to, item) in list_mut(values, max_values).iter_mut().zip(items) {
                if let AttrValue::Shape(shape) = item {
                    *to = crate::buffer::new_buffer(shape_to_proto(shape).encode_to_vec());
                }
            }
            Ok(())
        })
    }
}

/// Reads any value in its file form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetAttrValueProto(
    oper: *mut TF_Operation,
    attr_name: *const c_char,
    output_attr_value: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, (), |_, node| {
            let (value, _) = attr(node, attr_name)?;
            let value = ferroflow_graph::export_attr(value)?;
            crate::buffer::fill_message(output_attr_value, &value)
        })
    }
}

/// Returns the number of attrs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetNumAttrs(oper: *mut TF_Operation) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, std::ptr::null_mut(), 0, |_, node| {
            Ok(node.attrs.len() as c_int)
        })
    }
}

/// The name of attr `i`.
fn attr_name_at(node: &Node, i: c_int) -> Result<&str> {
    let at = usize::try_from(i).unwrap_or(usize::MAX);
    let found = node.attrs.iter().nth(at).map(|(name, _)| &**name);
    found.ok_or_else(|| {
        out_of_range!(
            "Operation only has {} attributes, can't get the {i}th",
            node.attrs.len()
        )
    })
}

/// Returns the length of an attr's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetAttrNameLength(oper: *mut TF_Operation, i: c_int) -> c_int {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, std::ptr::null_mut(), -1, |_, node| {
            Ok(attr_name_at(node, i)?.len() as c_int)
        })
    }
}

/// Copies an attr's name, without a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_OperationGetAttrName(
    oper: *mut TF_Operation,
    i: c_int,
    output: *mut c_char,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        with_node(oper, status, (), |_, node| {
            let name = attr_name_at(node, i)?;
            copy(name.as_bytes(), list_mut(output.cast(), name.len()));
            Ok(())
        })
    }
}
