//! Functions as text (`core/framework/function.cc`).

use ferroflow_base::Result;
use ferroflow_graph::{DeviceSpec, attr_of_proto};
use ferroflow_model::proto::{
    AttrValue, DataType, FunctionDef, NodeDef, attr_value::Value, op_def::ArgDef,
};
use ferroflow_opdef::AttrValue as EngineValue;
use ferroflow_tensor::DType;
use std::collections::BTreeMap;

/// The text of a function: its signature, a line for each node and for each result.
///
/// # Errors
/// An attr is malformed.
pub(crate) fn function_text(function: &FunctionDef) -> Result<String> {
    let empty = Default::default();
    let signature = function.signature.as_ref().unwrap_or(&empty);
    let mut text = format!("\n{}", signature.name);
    if !signature.attr.is_empty() {
        let attrs = signature.attr.iter().map(|attr| {
            let allowed = attr.allowed_values.as_ref();
            Ok(match attr.r#type.as_str() {
                "type" => format!(
                    "{}:{}",
                    attr.name,
                    allowed.map_or(Ok(String::new()), value_text)?
                ),
                other => format!("{}:{other}", attr.name),
            })
        });
        text += &format!("[{}]", attrs.collect::<Result<Vec<String>>>()?.join(", "));
    }
    let args = |args: &[ArgDef]| {
        args.iter()
            .map(arg_text)
            .collect::<Vec<String>>()
            .join(", ")
    };
    let (inputs, outputs) = (args(&signature.input_arg), args(&signature.output_arg));
    text += &format!("({inputs}) -> ({outputs}) {{\n");
    for node in &function.node_def {
        text += &format!("  {}\n", node_text(node)?);
    }
    let sorted = |map: &std::collections::HashMap<String, String>| -> BTreeMap<String, String> {
        map.iter()
            .map(|(name, from)| (name.clone(), from.clone()))
            .collect()
    };
    for (name, from) in sorted(&function.control_ret) {
        text += &format!("  @return {name} = {from}\n");
    }
    for (name, from) in sorted(&function.ret) {
        text += &format!("  return {name} = {from}\n");
    }
    text.push_str("}\n");
    Ok(text)
}

fn dtype_text(number: i32) -> String {
    match DType::from_number(number) {
        Some(dtype) => dtype.name().to_string(),
        None => DataType::try_from(number)
            .map_or("unknown", |d| d.as_str_name())
            .to_string(),
    }
}

fn arg_text(arg: &ArgDef) -> String {
    let number = match arg.number_attr.as_str() {
        "" => String::new(),
        number => format!("{number}*"),
    };
    let dtype = match arg.r#type {
        0 => arg.type_attr.clone(),
        dtype => dtype_text(dtype),
    };
    match arg.is_ref {
        true => format!("{}:Ref({number}{dtype})", arg.name),
        false => format!("{}:{number}{dtype}", arg.name),
    }
}

fn node_text(node: &NodeDef) -> Result<String> {
    let attrs = node
        .attr
        .iter()
        .map(|(name, value)| Ok(format!("{name}={}", value_text(value)?)));
    let mut attrs: Vec<String> = attrs.collect::<Result<_>>()?;
    attrs.sort_unstable();
    if !attrs.is_empty() && !node.device.is_empty() {
        let spec = DeviceSpec::parse(&node.device).map(|spec| spec.to_string());
        let device = spec
            .as_deref()
            .ok()
            .and_then(|spec| spec.rsplit_once("/device:"));
        attrs.push(match device {
            Some((_, device)) => format!("device={device}"),
            None => "device=<FAILED_TO_PARSE>".to_string(),
        });
    }
    let attrs = match attrs.is_empty() {
        true => String::new(),
        false => format!("[{}]", attrs.join(", ")),
    };
    let (controls, inputs): (Vec<&str>, Vec<&str>) = node
        .input
        .iter()
        .map(String::as_str)
        .partition(|input| input.starts_with('^'));
    let mut text = format!("{} = {}{attrs}({})", node.name, node.op, inputs.join(", "));
    if !controls.is_empty() {
        let controls: Vec<&str> = controls.iter().map(|c| c.trim_start_matches('^')).collect();
        text += &format!(" @ {}", controls.join(", "));
    }
    Ok(text)
}

fn value_text(value: &AttrValue) -> Result<String> {
    Ok(match &value.value {
        Some(Value::Type(dtype)) => dtype_text(*dtype),
        Some(Value::List(list)) if !list.r#type.is_empty() => {
            let dtypes: Vec<String> = list.r#type.iter().map(|dtype| dtype_text(*dtype)).collect();
            format!("{{{}}}", dtypes.join(", "))
        }
        Some(Value::Func(function)) => {
            let attrs = function.attr.iter();
            let attrs = attrs.map(|(name, value)| Ok(format!("{name}={}", value_text(value)?)));
            let mut attrs: Vec<String> = attrs.collect::<Result<_>>()?;
            attrs.sort_unstable();
            match attrs.is_empty() {
                true => function.name.clone(),
                false => format!("{}[{}]", function.name, attrs.join(", ")),
            }
        }
        _ => match attr_of_proto(value)? {
            EngineValue::Tensor(tensor) => {
                let tensor = tensor.get()?;
                let (dtype, shape) = (tensor.dtype(), tensor.shape());
                format!(
                    "Tensor<type: {dtype} shape: {shape} values: {}>",
                    ferroflow_runtime::summary(&tensor, 3)
                )
            }
            other => other.to_string(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::function_text;
    use ferroflow_model::proto::FunctionDef;
    use prost::Message;

    #[test]
    fn a_function_has_a_line_for_each_node() {
        let text = "
            signature { name: 'f'
                attr { name: 'T' type: 'type' allowed_values { list { type: [DT_FLOAT, DT_INT32] } } }
                input_arg { name: 'v' type: DT_RESOURCE } input_arg { name: 'x' type_attr: 'T' number_attr: 'N' }
                output_arg { name: 'y' type: DT_FLOAT } control_output: 'done' }
            node_def { name: 'two' op: 'Const' device: '/cpu:0'
                attr { key: 'dtype' value { type: DT_FLOAT } }
                attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape { } float_val: 2 } } } }
            node_def { name: 'call' op: 'g' input: 'two:output:0' input: '^two'
                attr { key: 'f' value { func { name: 'h' attr { key: 'n' value { i: 3 } } } } } }
            ret { key: 'y' value: 'call:z:0' }
            control_ret { key: 'done' value: 'two' }";
        let bytes =
            ferroflow_model::message_from_text("tensorflow.FunctionDef", text).expect("text");
        let function = FunctionDef::decode(&bytes[..]).expect("a function");
        let expect = "\nf[T:{float, int32}](v:resource, x:N*T) -> (y:float) {\n  \
            two = Const[dtype=float, value=Tensor<type: float shape: [] values: 2>, device=CPU:0]()\n  \
            call = g[f=h[n=3]](two:output:0) @ two\n  @return done = two\n  return y = call:z:0\n}\n";
        assert_eq!(function_text(&function).expect("valid"), expect);
    }
}
