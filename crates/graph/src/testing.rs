//! Graphs as short text, for unit tests.

use crate::{Graph, import_graph};
use ferroflow_base::Result;
use ferroflow_model::proto::{
    AttrValue, FunctionDef, GraphDef, NodeDef, OpDef, attr_value::Value, op_def::ArgDef,
};
use ferroflow_opdef::{Op, Registry};
use ferroflow_tensor::DType;

const OPS: &[Op] = &[
    Op::new(
        "Placeholder",
        "-> output: dtype | dtype: type = float; shape: shape = unknown",
    ),
    Op::new("Const", "-> output: dtype | value: tensor; dtype: type"),
    Op::new("NoOp", "->"),
    Op::new("ControlTrigger", "->"),
    Op::new("_Arg", "-> output: T | T: type; index: int"),
    Op::new("_Retval", "input: T -> | T: type; index: int"),
    Op::new("Identity", "input: T -> output: T | T: type = float").gradient(|g| g.set(0, g.dy(0))),
    Op::new("OnesLike", "x: T -> y: T | T: type"),
    Op::new("ZerosLike", "x: T -> y: T | T: type"),
    Op::new("AddN", "inputs: N*T -> sum: T | N: int >= 1; T: type"),
    Op::new("Neg", "x: T -> y: T | T: type = float").gradient(|g| g.set(0, -g.dy(0))),
    Op::new("Mul", "x: T, y: T -> z: T | T: type = float").gradient(|g| {
        let (x, y, d) = (g.x(0), g.x(1), g.dy(0));
        g.set(0, d * y)?;
        g.set(1, d * x)
    }),
    Op::new("Unique", "x: T -> y: T, idx: int32 | T: type"),
    Op::new("Round", "x: T -> y: T | T: type = float").not_differentiable(),
    Op::new("Hard", "x: T -> y: T | T: type = float"),
    Op::new("Pair", "x: T -> a: T, b: T | T: type = float"),
    Op::new(
        "Print",
        "input: T -> output: T | T: type = float | stateful",
    ),
    Op::new(
        "VariableV2",
        "-> ref: Ref(dtype) | shape: shape = unknown; dtype: type = float | stateful",
    ),
    Op::new(
        "Assign",
        "ref: Ref(T), value: T -> output_ref: Ref(T) | T: type = float | uninit",
    ),
    Op::new(
        "Switch",
        "data: T, pred: bool -> f: T, t: T | T: type = float",
    ),
    Op::new(
        "Merge",
        "inputs: N*T -> output: T, index: int32 | N: int = 2; T: type = float",
    ),
    Op::new(
        "Enter",
        "data: T -> output: T | T: type = float; frame_name: string = 'loop'; is_constant: bool = false; parallel_iterations: int = 10",
    ),
    Op::new("LoopCond", "input: bool -> output: bool"),
    Op::new(
        "Cast",
        "x: SrcT -> y: DstT | SrcT: type; DstT: type; Truncate: bool = false",
    ),
    Op::new("VarHandleOp", "-> resource: resource | | stateful"),
    Op::new(
        "ReadVariableOp",
        "resource: resource -> value: float | | stateful",
    ),
    Op::new("RangeDataset", "-> handle: variant | | stateful"),
    Op::new(
        "FilterDataset",
        "input_dataset: variant, other_arguments: resource -> handle: variant",
    ),
    Op::new(
        "ParallelMapDatasetV2",
        "input_dataset: variant, other_arguments: resource -> handle: variant",
    ),
    Op::new("Less", "x: T, y: T -> z: bool | T: type = float"),
    Op::new(
        "_Send",
        "tensor: T -> | T: type; tensor_name: string; send_device: string; \
         send_device_incarnation: int; recv_device: string; client_terminated: bool = false | stateful",
    ),
    Op::new(
        "_Recv",
        "-> tensor: tensor_type | tensor_type: type; tensor_name: string; send_device: string; \
         send_device_incarnation: int; recv_device: string; client_terminated: bool = false | stateful",
    ),
    Op::new("Exit", "data: T -> output: T | T: type = float"),
    Op::new("NextIteration", "data: T -> output: T | T: type = float"),
    Op::new(
        "PartitionedCall",
        "args: list(Tin) -> output: list(Tout) | Tin: list(type) >= 0; Tout: list(type) >= 0; f: func",
    ),
    Op::new(
        "StatefulPartitionedCall",
        "args: list(Tin) -> output: list(Tout) | Tin: list(type) >= 0; Tout: list(type) >= 0; f: func | stateful",
    ),
];

/// A few ops; their dtype attrs are float where they are not given.
pub(crate) fn registry() -> &'static Registry {
    static REGISTRY: std::sync::OnceLock<Registry> = std::sync::OnceLock::new();
    REGISTRY.get_or_init(|| Registry::new(&[("test", &[("test", OPS)])]))
}

/// Reads a graph of lines `name = Op{attr=value}(input, input:1, ^control)`, where a value is a dtype, a
/// number or a text, and `fn name(arg, …) -> result, …:` with an indented body before.
pub(crate) fn def(text: &str) -> GraphDef {
    let mut def = GraphDef::default();
    let mut functions: Vec<FunctionDef> = Vec::new();
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        if let Some(head) = line.trim().strip_prefix("fn ") {
            functions.push(function(head));
        } else {
            let body = functions.last_mut().filter(|_| line.starts_with("  "));
            match body {
                Some(function) => function.node_def.push(node(line)),
                None => def.node.push(node(line)),
            }
        }
    }
    def.library.get_or_insert_default().function = functions;
    def
}

fn list(text: &str) -> Vec<String> {
    let parts = text.split(',').map(str::trim);
    parts
        .filter(|p| !p.is_empty())
        .map(str::to_string)
        .collect()
}

fn function(head: &str) -> FunctionDef {
    let (name, rest) = head.split_once('(').expect("arguments");
    let (args, results) = rest.split_once(") -> ").expect("results");
    let arg = |name: String| ArgDef {
        name,
        r#type: DType::Float as i32,
        ..Default::default()
    };
    let results = list(results.trim_end_matches(':'));
    let numbered = results.iter().enumerate();
    FunctionDef {
        ret: numbered
            .map(|(i, r)| (format!("r{i}"), r.clone()))
            .collect(),
        signature: Some(OpDef {
            name: name.to_string(),
            input_arg: list(args).into_iter().map(arg).collect(),
            output_arg: (0..results.len()).map(|i| arg(format!("r{i}"))).collect(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn node(line: &str) -> NodeDef {
    let (name, rest) = line.split_once(" = ").expect("name = Op");
    let (head, inputs) = rest.split_once('(').unwrap_or((rest, ""));
    let (op, attrs) = head.split_once('{').unwrap_or((head, ""));
    let attrs = list(attrs.trim_end_matches('}'));
    let attrs = attrs.iter().map(|attr| {
        let (name, value) = attr.split_once('=').expect("attr=value");
        let dtypes = [DType::Float, DType::Int32, DType::Bool];
        let dtype = dtypes.into_iter().find(|t| t.name() == value);
        let value = match (dtype, value.parse()) {
            (Some(dtype), _) => Value::Type(dtype as i32),
            (None, Ok(number)) => Value::I(number),
            (None, Err(_)) => Value::S(value.as_bytes().to_vec().into()),
        };
        (name.to_string(), AttrValue { value: Some(value) })
    });
    NodeDef {
        name: name.trim().to_string(),
        op: op.trim().to_string(),
        input: list(inputs.trim_end_matches(')')),
        attr: attrs.collect(),
        ..Default::default()
    }
}

/// Imports a graph in text form.
pub(crate) fn graph(text: &str) -> Result<Graph> {
    import_graph(&def(text), None, registry())
}
