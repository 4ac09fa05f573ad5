//! Attrs in their file form → [`Attrs`].

use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_model::proto::{self, attr_value::Value as Proto};
use ferroflow_model::{shape_from_proto, tensor_from_proto};
use ferroflow_opdef::{AttrValue, Attrs, FuncRef, Name, OpDef, PACKED};
use ferroflow_tensor::{DType, MappedFile};
use std::borrow::Cow;
use std::sync::Arc;

/// The scope of attrs.
#[derive(Clone, Copy, Default)]
pub(crate) struct AttrScope<'a> {
    /// The mapping that constants may stay in.
    pub(crate) file: Option<&'a Arc<MappedFile>>,
    /// The attrs that a function is instantiated with, which take the place of placeholders.
    pub(crate) instance: Option<&'a Attrs>,
}

impl AttrScope<'_> {
    /// The attrs of a node of op `def`, if that is known.
    pub(crate) fn attrs<'p>(
        &self,
        proto: impl IntoIterator<Item = (&'p String, &'p proto::AttrValue)>,
        def: Option<&OpDef>,
    ) -> Result<Attrs> {
        proto
            .into_iter()
            // Packed weights belong to the machine that packed them.
            .filter(|(name, _)| *name != PACKED)
            .map(|(name, value)| {
                let static_name = def.and_then(|d| d.attr(name)).map(|a| a.name.clone());
                let value = match name.starts_with('_') {
                    true => self.attr(&without_symbols(value)),
                    false => self.attr(value),
                };
                let value = value.map_err(|e| e.note(format!("in attr '{name}'")))?;
                Ok((
                    static_name.unwrap_or_else(|| Name::Owned(name.clone())),
                    value,
                ))
            })
            .collect()
    }

    pub(crate) fn attr(&self, value: &proto::AttrValue) -> Result<AttrValue> {
        let Some(value) = &value.value else {
            // An AttrValue without any field set is an empty list in files of some producers.
            return Ok(AttrValue::List(Vec::new()));
        };
        Ok(match value {
            Proto::S(s) => AttrValue::Str(s.clone()),
            Proto::I(i) => AttrValue::Int(*i),
            Proto::F(f) => AttrValue::Float(*f),
            Proto::B(b) => AttrValue::Bool(*b),
            Proto::Type(t) => AttrValue::Type(import_dtype(*t)?),
            Proto::Shape(s) => AttrValue::Shape(shape_from_proto(s)?),
            Proto::Tensor(t) => AttrValue::Tensor(tensor_from_proto(t, self.file)?),
            Proto::Func(f) => AttrValue::Func(self.func(f)?),
            Proto::Placeholder(p) => match self.instance {
                None => AttrValue::Placeholder(p.clone()),
                Some(attrs) => attrs.get(p).cloned().ok_or_else(|| {
                    invalid_argument!("the function is instantiated without attr '{p}'")
                })?,
            },
            Proto::List(l) => AttrValue::List(self.list(l)?),
        })
    }

    fn func(&self, func: &proto::NameAttrList) -> Result<FuncRef> {
        Ok(FuncRef {
            name: func.name.clone(),
            attrs: self.attrs(&func.attr, None)?,
        })
    }

    fn list(&self, list: &proto::attr_value::ListValue) -> Result<Vec<AttrValue>> {
        let mut out = Vec::new();
        out.extend(list.s.iter().cloned().map(AttrValue::Str));
        out.extend(list.i.iter().copied().map(AttrValue::Int));
        out.extend(list.f.iter().copied().map(AttrValue::Float));
        out.extend(list.b.iter().copied().map(AttrValue::Bool));
        for t in &list.r#type {
            out.push(AttrValue::Type(import_dtype(*t)?));
        }
        for s in &list.shape {
            out.push(AttrValue::Shape(shape_from_proto(s)?));
        }
        for t in &list.tensor {
            out.push(AttrValue::Tensor(tensor_from_proto(t, self.file)?));
        }
        for f in &list.func {
            out.push(AttrValue::Func(self.func(f)?));
        }
        Ok(out)
    }
}

/// Makes symbolic dimensions unknown: TensorFlow's optimizer numbers them from −2 down, in attrs that it adds.
fn without_symbols(value: &proto::AttrValue) -> Cow<'_, proto::AttrValue> {
    let is_symbolic = |s: &proto::TensorShapeProto| s.dim.iter().any(|d| d.size < -1);
    let any = match &value.value {
        Some(Proto::Shape(s)) => is_symbolic(s),
        Some(Proto::List(l)) => l.shape.iter().any(is_symbolic),
        _ => false,
    };
    if !any {
        return Cow::Borrowed(value);
    }
    let mut value = value.clone();
    let shapes = match &mut value.value {
        Some(Proto::Shape(s)) => std::slice::from_mut(s),
        Some(Proto::List(l)) => &mut l.shape[..],
        _ => &mut [],
    };
    for dim in shapes.iter_mut().flat_map(|s| &mut s.dim) {
        dim.size = dim.size.max(-1);
    }
    Cow::Owned(value)
}

pub(crate) fn import_dtype(number: i32) -> Result<DType> {
    match DType::from_number(number) {
        Some(dtype) => Ok(dtype),
        None if DType::from_number(number - 100).is_some() => Err(unimplemented_error!(
            "reference dtypes as attr values are not supported"
        )),
        None => Err(invalid_argument!("unknown dtype number {number}")),
    }
}

/// The dtype that the value of an attr is, if it is a known one.
pub(crate) fn dtype_of(value: &proto::AttrValue) -> Option<DType> {
    match value.value {
        Some(Proto::Type(number)) => DType::from_number(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_model::graph_from_text;

    /// The attrs of a node that has these in text form.
    #[track_caller]
    fn check(attrs: &str, expect: &str) {
        let text = format!("node {{ name: 'n' op: 'n' {attrs} }}");
        let node = graph_from_text(&text).expect("valid").node.remove(0);
        let scope = AttrScope {
            file: None,
            instance: None,
        };
        let shown = match scope.attrs(&node.attr, None) {
            Ok(attrs) => format!("{:?}", attrs.get("_input_shapes").or(attrs.get("shape"))),
            Err(e) => e.to_string(),
        };
        assert!(shown.contains(expect), "{shown}");
    }

    #[test]
    fn only_annotations_have_symbolic_dimensions() {
        let shape = "shape { dim { size: -7 } dim { size: 3 } }";
        let list = format!("list {{ {shape} }}");
        check(
            &format!("attr {{ key: '_input_shapes' value {{ {list} }} }}"),
            "[?,3]",
        );
        check(
            &format!("attr {{ key: 'shape' value {{ {shape} }} }}"),
            "INVALID_ARGUMENT: dimension -7 is neither",
        );
    }
}
