//! Attributes to bytes; `host_context::Attribute`, which reads them, describes the layout.

use super::format::{PADDING, Writer};
use crate::mlir::{
    Attr, Dense, Module, PrintOptions, Type, element_size, print_operation, scalar_bytes,
};
use ferroflow_host_context::{AttrKind, HostDType};

/// Larger tensors than a gibibyte leave no room for the other attributes.
const MAX_DENSE: usize = 1 << 30;

/// The kind of an attribute; `None` if a file cannot hold it.
pub(super) fn kind(attr: &Attr) -> Option<AttrKind> {
    let dtype = |ty: &Type| HostDType::from_name(ty.text()?);
    Some(match attr {
        Attr::Bool(_) => AttrKind::scalar(HostDType::I1),
        Attr::Int(_, ty) | Attr::Float(_, ty) => AttrKind::scalar(dtype(ty)?),
        Attr::String(_) | Attr::TypedString(..) => AttrKind::scalar(HostDType::STRING),
        Attr::Type(ty) => {
            dtype(ty)?;
            AttrKind::TYPE
        }
        Attr::Shape(_) => AttrKind::SHAPE,
        Attr::Dense(dense) => {
            let (_, element) = dense.ty.as_ranked_tensor()?;
            if dense.n_bytes() > MAX_DENSE {
                return None;
            }
            AttrKind(u16::from(dtype(&element)?.0) | AttrKind::DENSE)
        }
        Attr::Array(items) => {
            let Some(first) = items.first() else {
                return Some(AttrKind(u16::from(HostDType::I32.0) | AttrKind::ARRAY));
            };
            let first = item_kind(first)?;
            let is_fixed = first == AttrKind::TYPE || first.dtype().size().is_some();
            let is_fixed = is_fixed && first.0 <= u16::from(u8::MAX);
            let mut same = is_fixed;
            for item in items {
                same &= item_kind(item)? == first;
            }
            match same {
                true => AttrKind(first.0 | AttrKind::ARRAY),
                false => AttrKind::AGGREGATE,
            }
        }
        Attr::Symbol(_) => AttrKind::SYMBOL_REF,
        Attr::Unit | Attr::Dict(_) | Attr::Opaque(_) => return None,
    })
}

/// The kind of an element of a list, which holds functions by their names.
fn item_kind(attr: &Attr) -> Option<AttrKind> {
    match attr {
        Attr::Symbol(_) => attr.as_symbol().map(|_| AttrKind::FUNC),
        attr => kind(attr),
    }
}

/// Whether an attribute gets a header wherever it stands.
pub(super) fn is_always_typed(kind: AttrKind) -> bool {
    kind == AttrKind::AGGREGATE || kind == AttrKind::SHAPE || kind.is_dense()
}

/// The plain bytes of an attribute without a header.
fn untyped(attr: &Attr, module: &Module) -> Writer {
    let mut out = Writer::default();
    match attr {
        Attr::Bool(_) | Attr::Int(..) | Attr::Float(..) => {
            let mut bytes = Vec::new();
            scalar_bytes(attr, &mut bytes);
            out.align(bytes.len());
            out.bytes.extend(bytes);
        }
        Attr::String(bytes) | Attr::TypedString(bytes, _) => out.bytes.extend(bytes),
        Attr::Type(ty) => {
            let dtype = ty.text().and_then(HostDType::from_name);
            out.byte(dtype.map_or(0, |d| d.0));
        }
        Attr::Array(items) => {
            for item in items {
                out.append(&untyped(item, module));
            }
        }
        Attr::Symbol(path) => {
            for name in path {
                out.bytes.extend(name.as_bytes());
            }
            out.bytes.extend(compiled_text(path, module).as_bytes());
            out.byte(0);
        }
        _ => {}
    }
    out
}

/// The text of the compiled module that a reference leads into.
fn compiled_text(path: &[String], module: &Module) -> String {
    let root = path.first().and_then(|root| {
        let ops = module.ops.iter();
        ops.into_iter().find(|op| op.symbol() == Some(root))
    });
    root.map(|op| print_operation(module, op, PrintOptions::GENERIC))
        .unwrap_or_default()
}

/// Writes an attribute to the section; its offset.
pub(super) fn emit(out: &mut Writer, attr: &Attr, typed: bool, module: &Module) -> usize {
    let kind = kind(attr).unwrap_or(AttrKind(0));
    if typed || is_always_typed(kind) {
        let body = with_header(attr, kind, module);
        out.align(body.alignment());
        let offset = out.bytes.len();
        out.append(&body);
        return offset;
    }
    let body = untyped(attr, module);
    let mut lengths = Writer::default();
    match attr {
        Attr::Array(items) => lengths.int_backwards(items.len()),
        Attr::String(bytes) | Attr::TypedString(bytes, _) => lengths.int_backwards(bytes.len()),
        Attr::Symbol(path) => {
            lengths.int_backwards(compiled_text(path, module).len());
            let names = path.get(1..).unwrap_or(&[]);
            for name in names.iter().rev() {
                lengths.int_backwards(name.len());
            }
            lengths.int_backwards(names.len());
            lengths.int_backwards(path.first().map_or(0, String::len));
        }
        _ => {}
    }
    // The lengths end where the value begins; the gap for its alignment comes before them.
    let end = out.bytes.len() + lengths.bytes.len();
    let gap = end.next_multiple_of(body.alignment()) - end;
    out.bytes.resize(out.bytes.len() + gap, PADDING);
    out.bytes.extend(&lengths.bytes);
    out.align(body.alignment());
    let offset = out.bytes.len();
    out.append(&body);
    offset
}

fn header(out: &mut Writer, at: usize, kind: AttrKind) {
    let size = (out.bytes.len() - at) as u64;
    out.overwrite(at, &kind.0.to_le_bytes());
    out.overwrite(at + 2, &((size >> 32) as u16).to_le_bytes());
    out.overwrite(at + 4, &(size as u32).to_le_bytes());
}

fn with_header(attr: &Attr, kind: AttrKind, module: &Module) -> Writer {
    let mut out = Writer::default();
    out.align(4);
    let pad = |out: &mut Writer, n: usize| out.bytes.resize(out.bytes.len() + n, PADDING);
    match attr {
        Attr::Array(items) if kind == AttrKind::AGGREGATE => {
            pad(&mut out, 12 + 4 * items.len().max(1));
            out.overwrite(8, &(items.len() as u32).to_le_bytes());
            for (i, item) in items.iter().enumerate() {
                let kind = item_kind(item).unwrap_or(AttrKind(0));
                let element = with_header(item, kind, module);
                out.align(element.alignment());
                let offset = out.bytes.len() as u32;
                out.overwrite(12 + 4 * i, &offset.to_le_bytes());
                out.append(&element);
            }
        }
        Attr::Symbol(path) => {
            pad(&mut out, 8);
            let name = path.first().map_or(&[][..], |name| name.as_bytes());
            out.bytes.extend(name);
        }
        Attr::Array(items) => {
            pad(&mut out, 16);
            let body = untyped(attr, module);
            out.align(body.alignment());
            let offset = out.bytes.len() as u32;
            out.append(&body);
            out.overwrite(8, &(items.len() as u32).to_le_bytes());
            out.overwrite(12, &offset.to_le_bytes());
        }
        Attr::Shape(dims) => {
            pad(&mut out, 12);
            let rank = dims.as_ref().map_or(u16::MAX, |d| d.len() as u16);
            out.overwrite(8, &[u8::from(dims.is_some())]);
            out.overwrite(10, &rank.to_le_bytes());
            if let Some(dims) = dims.as_ref().filter(|d| !d.is_empty()) {
                out.align(8);
                for dim in dims {
                    out.bytes.extend(dim.to_le_bytes());
                }
            }
        }
        Attr::Dense(dense) => dense_elements(&mut out, dense),
        _ => {
            pad(&mut out, 8);
            let body = untyped(attr, module);
            out.append(&body);
        }
    }
    header(&mut out, 0, kind);
    out
}

/// The body of a dense attribute, behind room for its header.
fn dense_elements(out: &mut Writer, dense: &Dense) {
    let (shape, element) = dense
        .ty
        .as_ranked_tensor()
        .unwrap_or_else(|| (Vec::new(), Type::new("i8")));
    out.bytes.resize(20, PADDING);
    out.align(8);
    let shape_at = out.bytes.len() as u16;
    for dim in &shape {
        out.bytes.extend(dim.to_le_bytes());
    }
    let size = element_size(&element).max(1);
    // The parts of complex numbers are aligned, not the pairs.
    out.align(match element.text() {
        Some("complex<f32>") => 4,
        _ => size.min(8),
    });
    let elements_at = out.bytes.len() as u32;
    out.bytes.extend(dense.bytes());
    out.overwrite(8, &(shape.len() as u16).to_le_bytes());
    out.overwrite(10, &shape_at.to_le_bytes());
    let n = dense.n_elements() as u32;
    out.overwrite(12, &n.to_le_bytes());
    out.overwrite(16, &elements_at.to_le_bytes());
}
