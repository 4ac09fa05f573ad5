//! The hash of a function that is part of its name (`FunctionDefHash` in `core/framework/function.cc`). It
//! has TensorFlow's value, so that a name means the same function in both.

use ferroflow_base::Result;
use ferroflow_model::proto::{
    AttrValue, FunctionDef, NameAttrList, NodeDef, TensorProto, attr_value::Value, op_def,
};
use ferroflow_model::{tensor_from_proto, tensor_to_proto};
use ferroflow_tensor::DType;
use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint};
use std::collections::HashMap;

/// What a hash starts from.
const SEED: u64 = 0xDE_CAFC_AFFE;

/// Returns the part of a function's name that depends on its content. The function has no name yet.
pub(super) fn of_function(def: &FunctionDef) -> String {
    let hash = function(def);
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789aA";
    // Base64 of the bytes, lowest first; a name cannot have its last two digits.
    let bits = hash.swap_bytes();
    let digit = |i: u32| match i {
        10 => bits << 2,
        i => bits >> (58 - 6 * i),
    };
    let digits = (0..11).map(|i| char::from(DIGITS[(digit(i) & 63) as usize]));
    digits.collect()
}

fn function(def: &FunctionDef) -> u64 {
    let mut h = def.signature.as_ref().map_or(SEED, signature);
    h = attrs(&def.attr, h, |v| v.value.is_some());
    h = combine(nodes(&def.node_def), h);
    for map in [&def.ret, &def.control_ret] {
        for (name, from) in sorted(map) {
            h = hash(from.as_bytes(), hash(name.as_bytes(), h));
        }
    }
    h
}

/// MurmurHash64A (`tsl/platform/hash.cc`).
fn hash(data: &[u8], seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |x: u64| x ^ (x >> 47);
    let mut h = seed ^ (data.len() as u64).wrapping_mul(M);
    let (words, rest) = data.as_chunks::<8>();
    for word in words {
        let k = u64::from_le_bytes(*word).wrapping_mul(M);
        h = (h ^ mix(k).wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |x, b| (x << 8) | u64::from(*b));
        h = (h ^ last).wrapping_mul(M);
    }
    mix(mix(h).wrapping_mul(M))
}

fn combine(a: u64, b: u64) -> u64 {
    let b = b.wrapping_add(0x9e37_79b9_7f4a_7800);
    a ^ b.wrapping_add(a << 10).wrapping_add(a >> 4)
}

fn sorted<T>(map: &HashMap<String, T>) -> Vec<(&String, &T)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_unstable_by_key(|(name, _)| *name);
    entries
}

fn signature(def: &ferroflow_model::proto::OpDef) -> u64 {
    let mut declared: Vec<&op_def::AttrDef> = def.attr.iter().collect();
    declared.sort_unstable_by_key(|a| &a.name);
    let mut h = SEED;
    for attr in declared {
        h = combine(declaration(attr), hash(attr.name.as_bytes(), h));
    }
    let mut outputs = def.control_output.clone();
    outputs.sort_unstable();
    for output in outputs {
        h = combine(h, hash(output.as_bytes(), SEED));
    }
    let mut rest = def.clone();
    rest.attr.clear();
    rest.control_output.clear();
    hash(&rest.encode_to_vec(), h)
}

fn declaration(attr: &op_def::AttrDef) -> u64 {
    let unset = AttrValue::default();
    let mut h = hash(attr.name.as_bytes(), SEED);
    h = hash(attr.r#type.as_bytes(), h);
    h = combine(value(attr.default_value.as_ref().unwrap_or(&unset)), h);
    h = hash(attr.description.as_bytes(), h);
    h = combine(u64::from(attr.has_minimum), h);
    h = combine(attr.minimum.cast_unsigned(), h);
    combine(value(attr.allowed_values.as_ref().unwrap_or(&unset)), h)
}

fn nodes(nodes: &[NodeDef]) -> u64 {
    let mut by_name: Vec<&NodeDef> = nodes.iter().collect();
    by_name.sort_unstable_by_key(|n| &n.name);
    by_name
        .iter()
        .fold(SEED, |h, n| combine(node(n), hash(n.name.as_bytes(), h)))
}

fn node(node: &NodeDef) -> u64 {
    let mut h = hash(node.name.as_bytes(), SEED);
    for text in [&node.op, &node.device] {
        h = hash(text.as_bytes(), h);
    }
    let n_data = node
        .input
        .iter()
        .take_while(|i| !i.starts_with('^'))
        .count();
    let (data, controls) = node.input.split_at(n_data);
    let mut controls: Vec<&String> = controls.iter().collect();
    controls.sort_unstable();
    controls.dedup();
    for input in data.iter().chain(controls) {
        h = hash(input.as_bytes(), h);
    }
    // Internal attrs do not count.
    let internal = |name: &str| name.starts_with('_');
    let entries = sorted(&node.attr).into_iter();
    hash_attrs(entries.filter(|(name, _)| !internal(name)), h)
}

fn attrs(map: &HashMap<String, AttrValue>, h: u64, counts: impl Fn(&AttrValue) -> bool) -> u64 {
    hash_attrs(sorted(map).into_iter().filter(|(_, v)| counts(v)), h)
}

fn hash_attrs<'a>(entries: impl Iterator<Item = (&'a String, &'a AttrValue)>, h: u64) -> u64 {
    entries.fold(h, |h, (name, v)| {
        combine(value(v), hash(name.as_bytes(), h))
    })
}

fn value(attr: &AttrValue) -> u64 {
    match &attr.value {
        Some(Value::Tensor(proto)) => {
            let content = content(proto).unwrap_or_else(|_| proto.encode_to_vec());
            hash(&content, SEED)
        }
        Some(Value::Func(func)) => attrs(&func.attr, hash(func.name.as_bytes(), SEED), |_| true),
        _ => hash(&encoded(attr), SEED),
    }
}

/// A tensor's message with all elements as bytes.
fn content(proto: &TensorProto) -> Result<Vec<u8>> {
    let tensor = tensor_from_proto(proto, None)?.get()?;
    let mut proto = tensor_to_proto(&tensor)?;
    if tensor.dtype() == DType::String {
        let mut bytes = Vec::new();
        for text in &proto.string_val {
            encode_varint(text.len() as u64, &mut bytes);
        }
        proto
            .string_val
            .iter()
            .for_each(|t| bytes.extend_from_slice(t));
        proto.string_val.clear();
        proto.tensor_content = Bytes::from(bytes);
    }
    Ok(proto.encode_to_vec())
}

/// Encodes an attr with the entries of maps in order.
fn encoded(attr: &AttrValue) -> Vec<u8> {
    match &attr.value {
        Some(Value::Func(func)) => in_field(10, &encoded_function(func)),
        Some(Value::List(list)) if !list.func.is_empty() => {
            let mut list = list.clone();
            let functions = std::mem::take(&mut list.func);
            let mut bytes = list.encode_to_vec();
            for func in functions {
                bytes.extend(in_field(9, &encoded_function(&func)));
            }
            in_field(1, &bytes)
        }
        _ => attr.encode_to_vec(),
    }
}

fn encoded_function(func: &NameAttrList) -> Vec<u8> {
    let mut bytes = match func.name.as_str() {
        "" => Vec::new(),
        name => in_field(1, name.as_bytes()),
    };
    for (name, attr) in sorted(&func.attr) {
        let mut entry = in_field(1, name.as_bytes());
        entry.extend(in_field(2, &encoded(attr)));
        bytes.extend(in_field(2, &entry));
    }
    bytes
}

fn in_field(tag: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(content.len() + 8);
    encode_key(tag, WireType::LengthDelimited, &mut bytes);
    encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}
