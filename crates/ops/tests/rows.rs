//! Runs every row that TensorFlow computed (`rows/*.jsonl`) through the op's kernel, and holds the
//! ops' signatures against TensorFlow's (`rows/opdefs.txt`).
//!
//! `ROWS=family[:Op]` runs a part of them.

use ferroflow_testkit::{rows, tensors};

use ferroflow_opdef::{
    KernelBuild, KernelCtx, NodeInfo, OpDef, Resources, ShapeCtx, StepServices, Value,
};
use ferroflow_ops::registry;
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::path::{Path, PathBuf};

fn rows_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("rows")
}

/// Runs one row; `Ok(())` when outputs (or the error) are TensorFlow's.
fn check(row: &rows::Row) -> Result<(), String> {
    let op = registry().op(&row.op).ok_or("no such op")?;
    match (&row.expect, run(row, op)) {
        (rows::Expect::Error { code, contains }, Err(e)) if e.code() as i64 != *code => {
            Err(format!("expected error code {code} ({contains}), got {e}"))
        }
        (rows::Expect::Error { .. }, Err(_)) => Ok(()),
        (rows::Expect::Error { contains, .. }, Ok(out)) => {
            Err(format!("expected an error ({contains}), got {out:?}"))
        }
        (rows::Expect::Outputs(_), Err(e)) => Err(format!("unexpected error {e}")),
        (rows::Expect::Outputs(expected), Ok(got)) => {
            if expected.len() != got.len() {
                return Err(format!(
                    "{} outputs, expected {}",
                    got.len(),
                    expected.len()
                ));
            }
            for (i, (e, g)) in expected.iter().zip(&got).enumerate() {
                tensors::compare(e, g, row.tol).map_err(|m| format!("output {i}: {m}"))?;
            }
            Ok(())
        }
    }
}

fn run(row: &rows::Row, op: &ferroflow_opdef::Op) -> ferroflow_base::Result<Vec<Tensor>> {
    let def = registry().def(op.name)?.expect("the op was just looked up");
    let mut attrs = row.attrs.clone();
    def.complete_attrs(&mut attrs)?;
    let dtypes: Vec<DType> = row.inputs.iter().map(Tensor::dtype).collect();
    let out_dtypes = def.output_dtypes(&attrs)?;

    // Shapes must fit the result whether inputs are known as values, as shapes, or not at all.
    let shapes: Vec<PartialShape> = row.inputs.iter().map(|t| t.shape().into()).collect();
    let unknown = vec![PartialShape::unknown(); shapes.len()];
    let constants: Vec<Option<Tensor>> = row.inputs.iter().cloned().map(Some).collect();
    let infer = |shapes: &[PartialShape], constants: &[Option<Tensor>]| {
        let mut ctx = ShapeCtx::new(&attrs, shapes, &dtypes, constants, out_dtypes.len());
        (op.shape)(&mut ctx).map(|()| ctx.into_outputs())
    };
    let inferred = [
        infer(&unknown, &[])?,
        infer(&shapes, &[])?,
        infer(&shapes, &constants)?,
    ];

    let factory = op.kernel.expect("ops with rows have kernels");
    let lazy: Vec<_> = row.inputs.iter().cloned().map(|t| Some(t.into())).collect();
    let cancel = CancelToken::new();
    let info = NodeInfo {
        name: "row".into(),
        op: row.op.clone(),
    };
    let resources = Resources::default();
    let services = StepServices {
        par: &Inline,
        cancel: &cancel,
        resources: &resources,
        functions: &(),
        step_id: 0,
    };
    // With inputs that others hold too, with inputs that may be overwritten, and with inputs that
    // the kernel knew as constants when it was built.
    let mut results: Vec<Vec<Tensor>> = Vec::new();
    for form in ["shared", "owned", "constant"] {
        let kernel = factory(&KernelBuild {
            node: "row",
            device: "",
            def: &def,
            attrs: &attrs,
            inputs: &dtypes,
            outputs: &out_dtypes,
            constants: if form == "constant" { &lazy } else { &[] },
        })?;
        let mut inputs: Vec<Value> = row
            .inputs
            .iter()
            .enumerate()
            .map(|(i, t)| {
                Ok(match form {
                    "constant" if kernel.absorbs(i) => Value::Empty,
                    "owned" if t.dtype().is_plain() => Value::Tensor(Tensor::from_bytes(
                        t.dtype(),
                        t.shape().clone(),
                        t.bytes()?,
                    )?),
                    _ => Value::Tensor(t.clone()),
                })
            })
            .collect::<ferroflow_base::Result<_>>()?;
        let mut outputs = vec![Value::Empty; out_dtypes.len()];
        kernel.compute(&mut KernelCtx::new(
            &info,
            &mut inputs,
            &[],
            &mut outputs,
            &services,
        ))?;
        results.push(
            outputs
                .into_iter()
                .map(|o| o.into_tensor().expect("every output is set"))
                .collect(),
        );
    }
    for (i, t) in results[0].iter().enumerate() {
        assert_eq!(t.dtype(), out_dtypes[i], "dtype of output {i}");
        for other in results
            .iter()
            .map(|r| &r[i])
            .filter(|t| t.dtype().is_plain())
        {
            let same = tensors::compare(t, other, row.tol);
            assert!(
                same.is_ok(),
                "output {i} depends on who holds the inputs: {same:?}"
            );
        }
        for shape in &inferred {
            let inferred = &shape[i];
            assert!(
                inferred.matches(t.shape()),
                "inferred {inferred}, output {i} is {t:?}"
            );
        }
    }
    Ok(results.swap_remove(0))
}

#[test]
fn rows() {
    let filter = std::env::var("ROWS").unwrap_or_default();
    let (family, only_op) = filter.split_once(':').unwrap_or((&filter, ""));
    let (mut n_passed, mut n_skipped, mut failures) = (0, 0, Vec::new());
    let mut files: Vec<_> = std::fs::read_dir(rows_dir())
        .expect("rows/ exists")
        .map(|e| e.expect("readable").path())
        .filter(|p| p.extension().is_some_and(|e| e == "jsonl"))
        .collect();
    files.sort();
    for file in files {
        let stem = file
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .to_string();
        if !family.is_empty() && stem != family {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("readable rows");
        for (i, line) in text.lines().enumerate().filter(|(_, l)| l.starts_with('{')) {
            let row = rows::parse_row(line).unwrap_or_else(|e| panic!("{stem}:{}: {e}", i + 1));
            if !only_op.is_empty() && row.op != only_op {
                continue;
            }
            if registry().op(&row.op).is_none() {
                n_skipped += 1;
                continue;
            }
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&row)))
                .unwrap_or_else(|p| Err(format!("panic: {:?}", p.downcast_ref::<String>())));
            match result {
                Ok(()) => n_passed += 1,
                Err(e) => failures.push(format!("{stem}:{} {}: {e}", i + 1, row.op)),
            }
        }
    }
    println!(
        "{n_passed} rows passed, {} failed, {n_skipped} of absent ops",
        failures.len()
    );
    let shown = failures[..failures.len().min(40)].join("\n");
    assert!(
        failures.is_empty(),
        "{} rows fail:\n{shown}",
        failures.len()
    );
}

#[test]
fn signatures_are_tensorflows() {
    // Internal ops that take more than TensorFlow's: theirs find the rendezvous by themselves.
    let extended = ["_FusedDepthwiseConv2dNative", "_Send", "_Recv"];
    let text = std::fs::read_to_string(rows_dir().join("opdefs.txt")).expect("rows/opdefs.txt");
    let text: &'static str = text.leak();
    let mut wrong = Vec::new();
    for line in text
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty())
    {
        let (name, signature) = line.split_once('|').expect("a name and a signature");
        let name = name.trim();
        if extended.contains(&name) {
            continue;
        }
        let Some(ours) = registry().def(name).expect("our signatures parse") else {
            continue;
        };
        let theirs = OpDef::parse(name, signature.trim()).expect("their signatures parse");
        let (ours, theirs) = (format!("{ours:?}"), format!("{theirs:?}"));
        if ours != theirs {
            wrong.push(format!("{name}:\n  ours   {ours}\n  theirs {theirs}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
