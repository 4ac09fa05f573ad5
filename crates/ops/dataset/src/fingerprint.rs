//! Numbers that identify what a dataset computes, whatever its nodes and functions are called (TensorFlow:
//! `core/data/hash_utils.h`).

use ferroflow_base::{Result, ordered_map};
use ferroflow_model::proto::{FunctionDef, FunctionDefLibrary, NodeDef, attr_value::Value};
use ferroflow_model::tensor_to_proto;
use ferroflow_opdef::{AttrValue, FUNCTION_LIBRARY};
use ferroflow_resources::dataset::Dataset;
use ferroflow_tensor::DType;
use prost::Message;
use std::collections::HashMap;

/// Attrs that say nothing about what is computed.
const NAMES: [&str; 2] = ["metadata", FUNCTION_LIBRARY];

/// Returns a number that identifies the nodes that made a dataset, with the functions that they call.
pub(crate) fn fingerprint(dataset: &Dataset) -> Result<u64> {
    let mut text = Vec::new();
    describe(dataset, &mut text)?;
    // FNV-1a, which does not depend on the process.
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    Ok(text.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

fn describe(dataset: &Dataset, out: &mut Vec<u8>) -> Result<()> {
    let attrs = &dataset.node.attrs;
    let library = match attrs.get(FUNCTION_LIBRARY) {
        Some(AttrValue::Str(library)) => FunctionDefLibrary::decode(&library[..]).ok(),
        _ => None,
    };
    let functions = library.unwrap_or_default().function;
    let by_name = |f: FunctionDef| Some((f.signature.as_ref()?.name.clone(), f));
    let mut bodies = Bodies {
        functions: functions.into_iter().filter_map(by_name).collect(),
        begun: Vec::new(),
    };
    out.extend_from_slice(dataset.node.op.as_bytes());
    let attrs = ordered_map(attrs.iter().map(|(n, v)| (&n[..], v)));
    for (name, value) in attrs {
        if !NAMES.contains(&name) {
            out.extend_from_slice(name.as_bytes());
            bodies.describe_attr(value, out);
        }
    }
    for t in &dataset.node.inputs {
        match t.dtype() {
            DType::Variant => match Dataset::of(t) {
                Ok(input) => describe(&input, out)?,
                Err(_) => out.push(0),
            },
            DType::Resource => out.push(1),
            _ => out.extend(tensor_to_proto(t)?.encode_to_vec()),
        }
    }
    Ok(())
}

/// The functions of a dataset.
struct Bodies {
    functions: HashMap<String, FunctionDef>,
    /// Those that are being described, which may call themselves.
    begun: Vec<String>,
}

impl Bodies {
    fn describe_attr(&mut self, value: &AttrValue, out: &mut Vec<u8>) {
        match value {
            AttrValue::Func(f) => self.describe_function(&f.name, out),
            AttrValue::List(list) => list.iter().for_each(|value| self.describe_attr(value, out)),
            other => out.extend_from_slice(format!("{other:?}").as_bytes()),
        }
    }

    fn describe_function(&mut self, name: &str, out: &mut Vec<u8>) {
        if let Some(at) = self.begun.iter().position(|begun| begun == name) {
            return out.push(at as u8);
        }
        let Some(def) = self.functions.get(name).cloned() else {
            return out.extend_from_slice(name.as_bytes());
        };
        self.begun.push(name.to_string());
        let signature = def.signature.clone().unwrap_or_default();
        let mut body = Body {
            nodes: def.node_def.iter().map(|n| (&n.name[..], n)).collect(),
            places: HashMap::new(),
        };
        for (i, arg) in signature.input_arg.iter().enumerate() {
            body.places.insert(&arg.name, i);
            out.extend(arg.r#type.to_le_bytes());
        }
        let results = signature.output_arg.iter();
        let results = results.filter_map(|arg| def.ret.get(&arg.name));
        let effects = ordered_map(&def.control_ret);
        for input in results.chain(effects.into_values()) {
            body.describe(input, self, out);
        }
        self.begun.pop();
    }
}

/// The nodes of a function that are reached from its results, numbered in that order behind its arguments.
struct Body<'d> {
    nodes: HashMap<&'d str, &'d NodeDef>,
    places: HashMap<&'d str, usize>,
}

impl Body<'_> {
    /// Describes an argument `name` or an output `node:name:index`, or what `^node` does.
    fn describe(&mut self, input: &str, bodies: &mut Bodies, out: &mut Vec<u8>) {
        let mut waiting = vec![input];
        while let Some(input) = waiting.pop() {
            let input = input.trim_start_matches('^');
            let (name, output) = input.split_once(':').unwrap_or((input, ""));
            out.extend_from_slice(output.as_bytes());
            if let Some(place) = self.places.get(name) {
                out.extend(place.to_le_bytes());
                continue;
            }
            let Some((&name, &node)) = self.nodes.get_key_value(name) else {
                continue;
            };
            self.places.insert(name, self.places.len());
            out.extend_from_slice(node.op.as_bytes());
            let attrs = ordered_map(&node.attr);
            for (name, attr) in attrs {
                if NAMES.contains(&&name[..]) || name.starts_with('_') {
                    continue;
                }
                out.extend_from_slice(name.as_bytes());
                match &attr.value {
                    Some(Value::Func(f)) => bodies.describe_function(&f.name, out),
                    _ => out.extend(attr.encode_to_vec()),
                }
            }
            waiting.extend(node.input.iter().map(String::as_str));
        }
    }
}
