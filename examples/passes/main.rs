//! Passes of one's own in a session: one places nodes by their names, one rewrites the graph of each device.
//!
//! `cargo run -p ferroflow-runtime --example passes`

use ferroflow_runtime::{
    AttrValue, Attrs, DeviceSet, Graph, NodeId, Pass, PassCtx, PassGroup, Patch, Result, Session,
    SessionOptions, Tensor,
};

/// Puts the nodes of the scope `second/` on the second device.
const BY_SCOPE: Pass = Pass {
    name: "by_scope",
    about: "places nodes by the scope of their names",
    run: |graph, _| {
        let mut patch = Patch::new();
        let nodes = graph.iter().filter(|(_, n)| n.name.starts_with("second/"));
        let ids: Vec<NodeId> = nodes.map(|(id, _)| id).collect();
        for id in ids {
            patch.edit(graph, id).device = "/device:CPU:1".to_string();
        }
        patch.apply(graph);
        Ok(())
    },
};

/// Replaces the square of a value by a product.
const SQUARE_TO_MUL: Pass = Pass {
    name: "square_to_mul",
    about: "replaces Square by Mul",
    run: square_to_mul,
};

fn square_to_mul(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let mut patch = Patch::new();
    let squares = graph.iter().filter(|(_, n)| n.op() == "Square");
    let ids: Vec<NodeId> = squares.map(|(id, _)| id).collect();
    for id in ids {
        let old = graph.node(id);
        let x = old.inputs[0];
        let attrs = Attrs::default().with("T", AttrValue::Type(old.outputs[0]));
        let name = graph.unique_name(&format!("{}/product", old.name));
        let product = ctx.node(name, "Mul", attrs, &[x, x], &old.controls)?;
        patch.substitute(graph, id, product)?;
    }
    patch.apply(graph);
    Ok(())
}

/// Two branches of a sum of squares.
const GRAPH: &str = "
    node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
    node { name: 'first/y' op: 'Square' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }
    node { name: 'second/y' op: 'Square' input: 'first/y' attr { key: 'T' value { type: DT_FLOAT } } }
    node { name: 'sum' op: 'AddV2' input: 'first/y' input: 'second/y' attr { key: 'T' value { type: DT_FLOAT } } }";

/// Runs the graph with both passes; returns the sum and the nodes of each device.
pub fn run() -> Result<(f32, Vec<String>)> {
    let device = |i: usize| format!("/job:localhost/replica:0/task:0/device:CPU:{i}");
    let mut options = SessionOptions {
        devices: DeviceSet {
            names: vec![device(0), device(1)],
            ..Default::default()
        },
        ..Default::default()
    };
    options.passes.add(PassGroup::PrePlacement, BY_SCOPE);
    options
        .passes
        .add(PassGroup::PostPartitioning, SQUARE_TO_MUL);
    let session = Session::from_text(GRAPH, options)?;
    let sum = session.run(&[("x:0", Tensor::scalar(3.0f32))], &["sum:0"], &[])?;
    let signature = ferroflow_runtime::Signature {
        feeds: vec!["x:0".to_string()],
        fetches: vec!["sum:0".to_string()],
        targets: Vec::new(),
    };
    let parts = session.partition_graphs(&signature)?;
    let parts = parts.iter().map(|part| {
        let nodes = part.node.iter().map(|n| format!("{} {}", n.op, n.name));
        nodes.collect::<Vec<_>>().join(", ")
    });
    Ok((sum[0].to_scalar()?, parts.collect()))
}

/// Prints what [`run`] returns.
pub fn main() -> Result<()> {
    let (sum, parts) = run()?;
    println!("9 + 81 = {sum}");
    for part in parts {
        println!("{part}");
    }
    Ok(())
}
