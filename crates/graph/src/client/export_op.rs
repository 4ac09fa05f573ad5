//! Schemas in their file form (`core/framework/op_def.proto`).

use super::deprecation;
use crate::export::export_attr;
use crate::import_attrs::{AttrScope, import_dtype};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto::{self, op_def};
use ferroflow_opdef::{ArgDef, ArgType, AttrDef, AttrType, AttrValue, Name, OpDef, OpFlags};
use ferroflow_tensor::DType;

/// The file form of a schema.
///
/// # Errors
/// A default has no file form.
pub fn op_def_to_proto(def: &OpDef) -> Result<proto::OpDef> {
    Ok(proto::OpDef {
        name: def.name.to_string(),
        input_arg: def.inputs.iter().map(arg_to_proto).collect(),
        output_arg: def.outputs.iter().map(arg_to_proto).collect(),
        attr: def.attrs.iter().map(attr_to_proto).collect::<Result<_>>()?,
        is_commutative: def.flags.commutative,
        is_aggregate: def.flags.aggregate,
        is_stateful: def.flags.stateful,
        allows_uninitialized_input: def.flags.allows_uninitialized_input,
        is_distributed_communication: def.flags.distributed,
        deprecation: deprecation::of(&def.name).map(|(version, explanation)| {
            proto::OpDeprecation {
                version,
                explanation: explanation.to_string(),
            }
        }),
        ..Default::default()
    })
}

fn arg_to_proto(arg: &ArgDef) -> op_def::ArgDef {
    let mut to = op_def::ArgDef {
        name: arg.name().to_string(),
        is_ref: arg.is_ref(),
        ..Default::default()
    };
    match arg {
        ArgDef::Single { ty, .. } => set_type(&mut to, ty),
        ArgDef::Repeated { ty, number, .. } => {
            set_type(&mut to, ty);
            to.number_attr = number.to_string();
        }
        ArgDef::List { types, .. } => to.type_list_attr = types.to_string(),
    }
    to
}

fn set_type(arg: &mut op_def::ArgDef, ty: &ArgType) {
    match ty {
        ArgType::Fixed(dtype) => arg.r#type = *dtype as i32,
        ArgType::Attr(name) => arg.type_attr = name.to_string(),
    }
}

fn attr_to_proto(attr: &AttrDef) -> Result<op_def::AttrDef> {
    let kind = attr.ty.name();
    let allowed = (!attr.allowed.is_empty()).then(|| AttrValue::List(attr.allowed.clone()));
    Ok(op_def::AttrDef {
        name: attr.name.to_string(),
        r#type: match attr.is_list {
            true => format!("list({kind})"),
            false => kind.to_string(),
        },
        default_value: attr.default.as_ref().map(export_attr).transpose()?,
        has_minimum: attr.minimum.is_some(),
        minimum: attr.minimum.unwrap_or(0),
        allowed_values: allowed.as_ref().map(export_attr).transpose()?,
        ..Default::default()
    })
}

/// The schema that a file form, such as a function's signature, declares.
///
/// # Errors
/// INVALID_ARGUMENT if an argument has no type or an attr an unknown kind.
pub fn op_def_of_proto(def: &proto::OpDef) -> Result<OpDef> {
    let args = |list: &[op_def::ArgDef]| list.iter().map(arg_of_proto).collect::<Result<_>>();
    let mut to = OpDef::unknown(&def.name);
    to.inputs = args(&def.input_arg)?;
    to.outputs = args(&def.output_arg)?;
    to.attrs = def.attr.iter().map(attr_of_proto).collect::<Result<_>>()?;
    to.flags = OpFlags {
        stateful: def.is_stateful,
        commutative: def.is_commutative,
        aggregate: def.is_aggregate,
        allows_uninitialized_input: def.allows_uninitialized_input,
        distributed: def.is_distributed_communication,
    };
    Ok(to)
}

fn arg_of_proto(arg: &op_def::ArgDef) -> Result<ArgDef> {
    let owned = |text: &String| Name::Owned(text.clone());
    let name = owned(&arg.name);
    if !arg.type_list_attr.is_empty() {
        let types = owned(&arg.type_list_attr);
        return Ok(ArgDef::List { name, types });
    }
    let ty = match arg.type_attr.is_empty() {
        false => ArgType::Attr(owned(&arg.type_attr)),
        true => ArgType::Fixed(fixed_type(arg)?),
    };
    let is_ref = arg.is_ref;
    Ok(match arg.number_attr.is_empty() {
        true => ArgDef::Single { name, ty, is_ref },
        false => ArgDef::Repeated {
            name,
            number: owned(&arg.number_attr),
            ty,
            is_ref,
        },
    })
}

fn fixed_type(arg: &op_def::ArgDef) -> Result<DType> {
    match arg.r#type {
        0 => Err(invalid_argument!("argument '{}' has no type", arg.name)),
        number => import_dtype(number),
    }
}

fn attr_of_proto(attr: &op_def::AttrDef) -> Result<AttrDef> {
    let kind = attr.r#type.strip_prefix("list(");
    let (kind, is_list) = match kind.and_then(|k| k.strip_suffix(')')) {
        Some(kind) => (kind, true),
        None => (attr.r#type.as_str(), false),
    };
    let known = AttrType::ALL.into_iter().find(|ty| ty.name() == kind);
    let ty = known.ok_or_else(|| {
        invalid_argument!(
            "attr '{}' has the unknown type '{}'",
            attr.name,
            attr.r#type
        )
    })?;
    let value = |value: &proto::AttrValue| AttrScope::default().attr(value);
    let allowed = attr.allowed_values.as_ref().map(value).transpose()?;
    Ok(AttrDef {
        name: Name::Owned(attr.name.clone()),
        ty,
        is_list,
        minimum: attr.has_minimum.then_some(attr.minimum),
        allowed: match allowed {
            Some(AttrValue::List(list)) => list,
            _ => Vec::new(),
        },
        default: attr.default_value.as_ref().map(value).transpose()?,
    })
}
