//! Whether two functions are the same (TensorFlow: `FunctionDefsEqual` of `core/framework/function.cc`,
//! `core/util/equal_graph_def.cc`).

use ferroflow_model::proto::attr_value::Value;
use ferroflow_model::proto::{AttrValue, FunctionDef, NodeDef, OpDef};
use prost::Message;
use std::collections::{HashMap, HashSet};

/// Returns whether two functions have the same signature, attrs, nodes and results: in any order, and
/// whatever tools noted in attrs of nodes that begin with an underscore, in attrs of arguments or in
/// debug information.
pub fn same_function(a: &FunctionDef, b: &FunctionDef) -> bool {
    let signatures = a.signature.as_ref().zip(b.signature.as_ref());
    signatures.map_or(a.signature == b.signature, |(a, b)| same_signature(a, b))
        && same_attrs(&a.attr, &b.attr, |_, value| value.value.is_some())
        && a.ret == b.ret
        && a.control_ret == b.control_ret
        && same_nodes(&a.node_def, &b.node_def)
}

fn same_signature(a: &OpDef, b: &OpDef) -> bool {
    let sorted = |op: &OpDef| {
        let mut op = op.clone();
        op.attr.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        op.control_output.sort_unstable();
        op.encode_to_vec()
    };
    sorted(a) == sorted(b)
}

fn same_nodes(a: &[NodeDef], b: &[NodeDef]) -> bool {
    let by_name: HashMap<&str, &NodeDef> = b.iter().map(|n| (n.name.as_str(), n)).collect();
    let is_there = |n: &NodeDef| {
        by_name
            .get(n.name.as_str())
            .is_some_and(|m| same_node(n, m))
    };
    a.len() == b.len() && by_name.len() == b.len() && a.iter().all(is_there)
}

fn same_node(a: &NodeDef, b: &NodeDef) -> bool {
    a.op == b.op
        && a.device == b.device
        && inputs(a) == inputs(b)
        && same_attrs(&a.attr, &b.attr, |name, _| !name.starts_with('_'))
}

/// Returns the tensors that a node reads, in order, and the nodes that it waits for.
fn inputs(node: &NodeDef) -> (Vec<&str>, HashSet<&str>) {
    let (control, data): (Vec<&str>, Vec<&str>) = node
        .input
        .iter()
        .map(String::as_str)
        .partition(|input| input.starts_with('^'));
    let first = |input: &'_ str| input.strip_suffix(":0").map_or(input.len(), str::len);
    let data = data.into_iter().map(|input| &input[..first(input)]);
    (data.collect(), control.into_iter().collect())
}

type Attrs = HashMap<String, AttrValue>;

/// Compares the attrs that count.
fn same_attrs(a: &Attrs, b: &Attrs, counts: fn(&str, &AttrValue) -> bool) -> bool {
    let counted = |attrs: &Attrs| attrs.iter().filter(|(n, v)| counts(n, v)).count();
    let is_there = |(name, value): (&String, &AttrValue)| {
        !counts(name, value) || b.get(name).is_some_and(|other| same_value(value, other))
    };
    counted(a) == counted(b) && a.iter().all(is_there)
}

/// Compares values by their bytes, so that NaN is the same as NaN.
fn same_value(a: &AttrValue, b: &AttrValue) -> bool {
    let same_call = |a: &ferroflow_model::proto::NameAttrList, b: &_| {
        let b: &ferroflow_model::proto::NameAttrList = b;
        a.name == b.name && same_attrs(&a.attr, &b.attr, |_, _| true)
    };
    match (&a.value, &b.value) {
        // Maps have no order.
        (Some(Value::Func(a)), Some(Value::Func(b))) => same_call(a, b),
        (Some(Value::List(a)), Some(Value::List(b))) if !a.func.is_empty() => {
            let mut pairs = a.func.iter().zip(&b.func);
            a.func.len() == b.func.len() && pairs.all(|(a, b)| same_call(a, b))
        }
        _ => a.encode_to_vec() == b.encode_to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_model::graph_from_text;

    const FUNCTION: &str = r#"
        signature {
          name: "f"
          input_arg { name: "x" type_attr: "T" }
          output_arg { name: "y" type_attr: "T" }
          attr { name: "T" type: "type" }
          attr { name: "N" type: "int" }
          control_output: "one"
          control_output: "two"
        }
        node_def { name: "a" op: "Const" attr { key: "value" value { tensor { dtype: DT_FLOAT tensor_shape { }
          float_val: nan } } } attr { key: "_shape" value { i: 1 } } }
        node_def { name: "b" op: "While" input: "x" input: "a:output" input: "^a" input: "^c"
          attr { key: "body" value { func { name: "g" attr { key: "T" value { type: DT_FLOAT } } attr { key: "N"
          value { i: 2 } } } } } }
        node_def { name: "c" op: "NoOp" }
        ret { key: "y" value: "b:output:0" }
        attr { key: "_noinline" value { b: true } }
        attr { key: "unset" value { } }
        arg_attr { key: 0 value { attr { key: "_name" value { s: "x" } } } }"#;

    fn function(text: &str) -> FunctionDef {
        let graph = graph_from_text(&format!("library {{ function {{ {text} }} }}"));
        graph.unwrap().library.unwrap().function.remove(0)
    }

    #[test]
    fn order_notes_and_debug_information_do_not_count() {
        // What to replace, by what, and whether the function stays the same.
        let cases = [
            ("", "", true),
            ("control_output: \"one\"", "control_output: \"two\"", false),
            (
                "input: \"^a\" input: \"^c\"",
                "input: \"^c\" input: \"^a\"",
                true,
            ),
            ("input: \"^a\" input: \"^c\"", "input: \"^a\"", false),
            ("input: \"x\"", "input: \"x:0\"", true),
            ("input: \"x\"", "input: \"x:1\"", false),
            (
                "input: \"x\" input: \"a:output\"",
                "input: \"a:output\" input: \"x\"",
                false,
            ),
            ("float_val: nan", "float_val: 1", false),
            (
                "\"_shape\" value { i: 1 }",
                "\"_shape\" value { i: 2 }",
                true,
            ),
            (
                "\"_noinline\" value { b: true }",
                "\"_noinline\" value { b: false }",
                false,
            ),
            ("attr { key: \"unset\" value { } }", "", true),
            ("s: \"x\"", "s: \"z\"", true),
            ("value { i: 2 }", "value { i: 3 }", false),
            ("node_def { name: \"c\" op: \"NoOp\" }", "", false),
            ("b:output:0", "b:output:1", false),
        ];
        let before = function(FUNCTION);
        for (from, to, is_same) in cases {
            let after = function(&FUNCTION.replacen(from, to, 1));
            assert_eq!(same_function(&before, &after), is_same, "{from} → {to}");
            assert_eq!(same_function(&after, &before), is_same, "{to} → {from}");
        }
        let mut turned = before.clone();
        turned.node_def.reverse();
        let signature = turned.signature.as_mut().unwrap();
        signature.attr.reverse();
        signature.control_output.reverse();
        assert!(same_function(&before, &turned));
    }
}
