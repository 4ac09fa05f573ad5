//! Rows: graphs as text, what is done to them, the graph as text or the error afterwards.

use super::*;
use crate::testing::{def, registry};
use crate::to_text;

/// A graph with these nodes.
fn graph(text: &str) -> ClientGraph {
    let mut graph = ClientGraph::new(registry());
    graph
        .import(&def(text), &ImportOptions::default())
        .expect(text);
    graph
}

fn output(graph: &ClientGraph, name: &str) -> Output {
    let (name, slot) = crate::parse_tensor_name(name).expect(name);
    Output::new(graph.find(name).expect(name), slot)
}

fn shown(graph: &ClientGraph, result: Result<()>) -> String {
    match result {
        Ok(()) => to_text(graph.graph()).trim().replace('\n', "; "),
        Err(e) => format!("{}: {}", e.code().name(), e.message()),
    }
}

/// Adds a node `Op{attr=value}(inputs)` named `new`; shows the graph's last node or the error.
fn check_add(before: &str, op: &str, inputs: &[&[&str]], attrs: &[(&str, DType)], expect: &str) {
    let mut graph = graph(before);
    let mut node = NodeDescription::new(op, "new");
    for list in inputs {
        match list {
            [one] => node.add_input(output(&graph, one)),
            many => node.add_inputs(many.iter().map(|i| output(&graph, i)).collect()),
        }
    }
    for (name, dtype) in attrs {
        node.set_attr(name, AttrValue::Type(*dtype));
    }
    let n = graph.len();
    let added = graph.add(node).map(drop);
    assert_eq!(graph.len(), n + usize::from(added.is_ok()), "{expect}");
    let last = |text: String| text.rsplit("; ").next().unwrap_or("").to_string();
    let got = match added {
        Ok(()) => last(shown(&graph, Ok(()))),
        error => shown(&graph, error),
    };
    assert_eq!(got, expect);
}

#[test]
fn nodes_are_added() {
    let xy = "x = Placeholder\ny = Placeholder{dtype=int32}";
    check_add(xy, "Neg", &[&["x"]], &[], "new = Neg(x)");
    check_add(xy, "AddN", &[&["x", "x"]], &[], "new = AddN{N=2}(x, x)");
    check_add(
        xy,
        "Neg",
        &[],
        &[],
        "INVALID_ARGUMENT: 0 inputs specified of 1 inputs in Op while building NodeDef 'new' using \
         Op<name=Neg; signature=x:T -> y:T; attr=T:type,default=DT_FLOAT>",
    );
    check_add(
        xy,
        "Mul",
        &[&["x"], &["y"]],
        &[],
        "INVALID_ARGUMENT: Inconsistent values for attr 'T' DT_FLOAT vs. DT_INT32 while building NodeDef \
         'new' using Op<name=Mul; signature=x:T, y:T -> z:T; attr=T:type,default=DT_FLOAT>",
    );
    check_add(
        xy,
        "Neg",
        &[&["x:1"]],
        &[],
        "INVALID_ARGUMENT: Attempt to add output 1 of x not in range [0, 1) to node with type Neg. Node: \
         {{node x}}",
    );
    check_add(
        "new = NoOp",
        "NoOp",
        &[],
        &[],
        "INVALID_ARGUMENT: Duplicate node name in graph: 'new'",
    );
    check_add(
        "x = NoOp",
        "Nope",
        &[],
        &[],
        &format!(
            "INVALID_ARGUMENT: {} while building NodeDef 'new'",
            crate::op_not_registered("Nope").message()
        ),
    );
    check_add(
        xy,
        "Neg",
        &[&["x"], &["x"]],
        &[],
        "INVALID_ARGUMENT: More Input() calls than the 1 input_args while building NodeDef 'new' using \
         Op<name=Neg; signature=x:T -> y:T; attr=T:type,default=DT_FLOAT>",
    );
    check_add(
        xy,
        "Neg",
        &[&["x", "x"]],
        &[],
        "INVALID_ARGUMENT: List provided to input 'x' when single Tensor expected while building NodeDef \
         'new' using Op<name=Neg; signature=x:T -> y:T; attr=T:type,default=DT_FLOAT>",
    );
    check_add(
        xy,
        "Mul",
        &[&["x", "x"]],
        &[],
        "INVALID_ARGUMENT: 2 errors while building NodeDef 'new' using Op<name=Mul; signature=x:T, y:T -> z:T; \
         attr=T:type,default=DT_FLOAT>:\nList provided to input 'x' when single Tensor expected\n1 inputs \
         specified of 2 inputs in Op",
    );
    check_add(
        xy,
        "AddN",
        &[&["x"]],
        &[],
        "INVALID_ARGUMENT: Single tensor passed to 'inputs', expected list while building NodeDef 'new' using \
         Op<name=AddN; signature=inputs:N*T -> sum:T; attr=N:int,min=1; attr=T:type>",
    );
    check_add(
        xy,
        "Neg",
        &[&["x"]],
        &[("T", DType::Int32)],
        "INVALID_ARGUMENT: Inconsistent values for attr 'T' DT_FLOAT vs. DT_INT32 while building NodeDef 'new' \
         using Op<name=Neg; signature=x:T -> y:T; attr=T:type,default=DT_FLOAT>",
    );
}

/// Imports `def` into a graph; shows the graph or the error, after which it must be as before.
fn check_import(
    before: &str,
    text: &str,
    options: impl FnOnce(&ClientGraph) -> ImportOptions,
    expect: &str,
) {
    let mut graph = graph(before);
    let options = options(&graph);
    let was = to_text(graph.graph());
    let result = graph.import(&def(text), &options).map(drop);
    if result.is_err() {
        assert_eq!(to_text(graph.graph()), was, "{text}");
    }
    assert_eq!(shown(&graph, result), expect, "{text}");
}

#[test]
fn graph_defs_are_imported() {
    let x = "x = Placeholder";
    let prefixed = |_: &ClientGraph| ImportOptions {
        prefix: "p".to_string(),
        ..Default::default()
    };
    check_import(
        x,
        "x = Placeholder\ny = Neg(x)",
        prefixed,
        "x = Placeholder(); p/x = Placeholder(); p/y = Neg(p/x)",
    );
    let plain = |_: &ClientGraph| ImportOptions::default();
    check_import(
        x,
        x,
        plain,
        "INVALID_ARGUMENT: Node name 'x' already exists in the Graph",
    );
    check_import(
        x,
        "a = Neg(b)\nb = Neg(a)",
        plain,
        "INVALID_ARGUMENT: 2 nodes in a cycle",
    );
    check_import(
        x,
        "a = Neg(q)",
        plain,
        "INVALID_ARGUMENT: Node 'a': Unknown input node 'q'",
    );
    let mapped = |g: &ClientGraph| ImportOptions {
        input_map: vec![(("in".to_string(), 0), output(g, "x"))],
        uniquify_names: true,
        ..Default::default()
    };
    check_import(
        x,
        "in = Placeholder\nx = Neg(in)",
        mapped,
        "x = Placeholder(); in = Placeholder(); x_1 = Neg(x)",
    );
    let after = |g: &ClientGraph| ImportOptions {
        control_dependencies: vec![g.find("x").expect("x")],
        ..Default::default()
    };
    check_import(
        x,
        "a = Placeholder\nb = Neg(a)",
        after,
        "x = Placeholder(); a = Placeholder(^x); b = Neg(a)",
    );
    check_import(
        x,
        "a = Neg(b)",
        |_| ImportOptions {
            return_outputs: vec![("z".to_string(), 0)],
            input_map: vec![(("b".to_string(), 0), Output::new(NodeId::new(0), 0))],
            ..Default::default()
        },
        "INVALID_ARGUMENT: Requested return tensor 'z:0' not found in graph def",
    );
}

#[test]
fn nodes_are_numbered_as_by_tensorflow() {
    let graph = graph("a = Placeholder\nd = Neg(a)\nb = Placeholder\ne = Neg(f)\nf = Placeholder");
    let names = (0..graph.len()).filter_map(|i| graph.node(NodeId::new(i)));
    let names: Vec<&str> = names.map(|n| n.name.as_str()).collect();
    assert_eq!(names, ["a", "d", "b", "f", "e"]);
}

#[test]
fn bodies_of_called_functions_are_checked() {
    let body = graph("X = Placeholder\ny = Neg(X)");
    let request = FunctionRequest {
        name: "f",
        inputs: &[output(&body, "X")],
        outputs: &[output(&body, "y")],
        ..Default::default()
    };
    let function = body.to_function(&request).expect("valid");
    let check = |change: fn(&mut FunctionDef), expect: &str| {
        let mut function = function.clone();
        change(&mut function);
        let called = NodeDef {
            name: "call".to_string(),
            op: "f".to_string(),
            input: vec!["x".to_string()],
            ..Default::default()
        };
        let mut def = def("x = Placeholder");
        def.node.push(called);
        def.library.get_or_insert_default().function.push(function);
        let mut graph = ClientGraph::new(registry());
        let result = graph.import(&def, &ImportOptions::default()).map(drop);
        assert_eq!(shown(&graph, result), expect);
    };
    check(|_| {}, "x = Placeholder(); call = f(x)");
    check(
        |f| f.node_def[0].op = "Nope".to_string(),
        &format!("NOT_FOUND: {}", crate::op_not_registered("Nope").message()),
    );
    check(
        |f| f.ret.clear(),
        "INVALID_ARGUMENT: Return y missing.\n\tIn function output y:float",
    );
}

#[test]
fn loops_are_imported_with_their_back_edges() {
    let text = "x = Placeholder\nc = Placeholder{dtype=bool}\ne = Enter(x)\nm = Merge(e, n)\n\
                s = Switch(m, c)\nn = NextIteration(s:1)\nout = Exit(s)";
    let graph = graph(text);
    let merge = graph.node(graph.find("m").expect("m")).expect("m");
    assert_eq!(merge.inputs[1].node, graph.find("n").expect("n"));
    let again = graph.to_graph_def().expect("exported");
    let merge = again.node.iter().find(|n| n.name == "m").expect("m");
    assert_eq!(merge.input, ["e", "n"]);
}

/// Makes a function of the whole graph; shows its nodes and results, or the error.
fn check_function(text: &str, inputs: &[&str], outputs: &[&str], expect: &str) {
    let graph = graph(text);
    let find = |names: &[&str]| names.iter().map(|n| output(&graph, n)).collect::<Vec<_>>();
    let request = FunctionRequest {
        name: "f",
        inputs: &find(inputs),
        outputs: &find(outputs),
        ..Default::default()
    };
    let got = match graph.to_function(&request) {
        Ok(function) => {
            let signature = function.signature.as_ref().expect("signature");
            let args = signature.input_arg.iter().map(|a| a.name.as_str());
            let nodes = function.node_def.iter();
            let nodes = nodes.map(|n| format!("{} = {}({})", n.name, n.op, n.input.join(", ")));
            let results = signature.output_arg.iter();
            let results = results.map(|r| format!("{} = {}", r.name, function.ret[&r.name]));
            let parts = nodes.chain(results).collect::<Vec<_>>();
            format!(
                "({}) {}",
                args.collect::<Vec<_>>().join(", "),
                parts.join("; ")
            )
        }
        Err(e) => e.message().to_string(),
    };
    assert_eq!(got, expect, "{text}");
}

#[test]
fn functions_are_made_of_graphs() {
    let text = "X = Placeholder\ny = Neg(X)\nz = Mul(y, X)";
    check_function(
        text,
        &["X"],
        &["z"],
        "(x) y = Neg(x); z_0 = Mul(y:y:0, x); z = z_0:z:0",
    );
    check_function(
        text,
        &["X", "y"],
        &["z"],
        "(x, y) z_0 = Mul(y, x); z = z_0:z:0",
    );
    check_function(
        text,
        &["X", "X"],
        &["z"],
        "TF_Output X:0 appears more than once in the input list",
    );
    check_function(
        "v = VariableV2\ny = Identity(v)",
        &[],
        &["v"],
        "Output 0 of node 'v' has a reference type float_ref\n\tEncountered while creating function 'f'",
    );
}

#[test]
fn gradients_are_added_in_a_scope() {
    let mut graph = graph("x = Placeholder\ny = AddN{N=2,T=float}(x, x)");
    let (x, y) = (output(&graph, "x"), output(&graph, "y"));
    let added = graph.add_gradients(None, &[y], &[x], &[]);
    assert_eq!(added.expect("has a gradient").len(), 1);
    assert_eq!(
        shown(&graph, Ok(())),
        "x = Placeholder(); y = AddN{N=2}(x, x); gradients/OnesLike = OnesLike(y); \
         gradients/Identity = Identity(gradients/OnesLike); \
         gradients/AddN = AddN{N=2}(gradients/Identity, gradients/Identity)"
    );
    let n = graph.len();
    let again = graph.add_gradients(Some("gradients"), &[y], &[x], &[]);
    assert_eq!(
        again.expect_err("taken").message(),
        "prefix [gradients] conflicts with existing node in the graph named [gradients]"
    );
    assert_eq!(graph.len(), n);
}

#[test]
fn later_changes_are_remembered() {
    let mut graph = graph("a = Placeholder\nb = Placeholder\nc = Neg(a)");
    let (a, b, c) = (
        output(&graph, "a"),
        output(&graph, "b"),
        graph.find("c").expect("c"),
    );
    graph.update_edge(b, c, 0).expect("same dtype");
    assert_eq!(graph.consumers(a.node), []);
    assert_eq!(graph.consumers(b.node)[0].node, c);
    assert_eq!(graph.node_def(c).expect("exists").input, ["b:0"]);
    graph.add_control(c, a.node);
    assert_eq!(graph.control_outputs(a.node), [c]);
    graph.clear_controls(c);
    assert_eq!(graph.control_outputs(a.node), []);
    assert_eq!(graph.mutations().len(), 3);
}

#[test]
fn schemas_round_trip() {
    for op in registry().iter() {
        let def = registry().def(op.name).expect("parses").expect("exists");
        let proto = op_def_to_proto(&def).expect("exported");
        let again = op_def_of_proto(&proto).expect("imported");
        assert_eq!(again.to_string(), def.to_string());
        assert_eq!(again.flags, def.flags);
    }
}
