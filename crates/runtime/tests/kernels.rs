//! Kernels that a program registers, and those that a session keeps.

use ferroflow_opdef::{AttrType, KernelBuild, KernelCtx, KernelDef, OpKernel};
use ferroflow_runtime::{DType, Result, Session, SessionOptions, Tensor, registry};
use std::sync::atomic::{AtomicI64, Ordering};

fn session(graph: &str) -> Result<Session> {
    Session::from_text(graph, SessionOptions::default())
}

fn fetch<T: ferroflow_tensor::Element>(session: &Session, names: &[&str]) -> Result<Vec<T>> {
    let fetched = session.run(&[], names, &[])?;
    fetched.iter().map(Tensor::to_scalar).collect()
}

/// Counts its own executions.
fn counter(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let count = AtomicI64::new(0);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let n = count.fetch_add(1, Ordering::Relaxed) + 1;
        ctx.set_output(0, Tensor::scalar(n))
    }))
}

#[test]
fn a_stateful_node_keeps_its_kernel_in_a_session() -> Result<()> {
    registry().define("TestCounter", "-> n: int64 | | stateful")?;
    registry().register_kernel(KernelDef::new("TestCounter", counter))?;
    let graph = "node { name: 'n' op: 'TestCounter' }
                 node { name: 'm' op: 'TestCounter' }
                 node { name: 'z' op: 'Neg' input: 'n' attr { key: 'T' value { type: DT_INT64 } } }";
    let first = session(graph)?;
    assert_eq!(fetch::<i64>(&first, &["n:0"])?, [1]);
    // Other signatures have the same node.
    assert_eq!(fetch::<i64>(&first, &["z:0"])?, [-2]);
    assert_eq!(fetch::<i64>(&first, &["n:0", "m:0"])?, [3, 1]);
    // Another session has its own.
    assert_eq!(fetch::<i64>(&session(graph)?, &["n:0"])?, [1]);
    Ok(())
}

#[test]
fn a_label_selects_a_kernel() -> Result<()> {
    let hundred = |build: &KernelBuild| -> Result<Box<dyn OpKernel>> {
        assert_eq!(build.def.attr("T").map(|a| a.ty), Some(AttrType::Type));
        Ok(Box::new(|ctx: &mut KernelCtx| {
            ctx.set_output(0, Tensor::scalar(100.0f32))
        }))
    };
    let kernel = KernelDef::new("Neg", hundred).types("T", &[DType::Float]);
    registry().register_kernel(kernel.label("test_hundred"))?;
    let graph = |label: &str| {
        format!(
            "node {{ name: 'x' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }}
                     attr {{ key: 'value' value {{ tensor {{ dtype: DT_FLOAT float_val: 2 tensor_shape {{}} }} }} }} }}
             node {{ name: 'y' op: 'Neg' input: 'x' attr {{ key: 'T' value {{ type: DT_FLOAT }} }}
                     attr {{ key: '_kernel' value {{ s: '{label}' }} }} }}
             node {{ name: 'z' op: 'Neg' input: 'y' attr {{ key: 'T' value {{ type: DT_FLOAT }} }} }}"
        )
    };
    assert_eq!(
        fetch::<f32>(&session(&graph("test_hundred"))?, &["z:0"])?,
        [-100.0]
    );
    assert_eq!(fetch::<f32>(&session(&graph(""))?, &["z:0"])?, [2.0]);
    let missing = session(&graph("none")).and_then(|s| fetch::<f32>(&s, &["z:0"]));
    let missing = missing.err().map(|e| e.message().to_string());
    let expect = "No OpKernel was registered to support Op 'Neg' used by {{node y}}";
    assert!(
        missing.as_ref().is_some_and(|e| e.contains(expect)),
        "{missing:?}"
    );
    Ok(())
}
