//! Runs every row that TensorFlow computed (`rows/*.jsonl`) through the op's kernel, and compares
//! the ops' signatures with TensorFlow's (`rows/opdefs.txt`).
//!
//! `ROWS=family[:Op]` runs a part of them.

use ferroflow_testkit::{rows, tensors};

use ferroflow_opdef::{
    KernelBuild, KernelCtx, NodeInfo, Op, OpDef, Resources, ShapeCtx, StepServices, Value,
};
use ferroflow_ops::registry;
use ferroflow_sync::{CancelToken, Inline, Pool};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use std::path::{Path, PathBuf};

/// Errors whose text differs from TensorFlow's: op and text, one per line. The list may only
/// shrink.
const DIFFERENT_TEXTS: &str = include_str!("../rows/different_texts.txt");

fn rows_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("rows")
}

/// Runs one row and compares the outputs (or the error's code and text) with TensorFlow's.
fn check(row: &rows::Row, pool: &Pool) -> Result<(), String> {
    let op = registry().op(&row.op).ok_or("no such op")?;
    match (&row.expect, run(row, op, pool)) {
        (rows::Expect::Error { code, contains }, Err(e)) => {
            let same_text = e.to_string().contains(contains.as_str());
            let entry = format!("{} | {contains}", row.op);
            let listed = DIFFERENT_TEXTS.lines().any(|line| line == entry);
            match (e.code() as i64 == *code, same_text, listed) {
                (true, true, false) | (true, false, true) => Ok(()),
                (true, true, true) => Err(format!("'{contains}' is our text, too, by now")),
                _ => Err(format!("expected error {code} ({contains}), got {e}")),
            }
        }
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
                if row.unchecked.contains(&i) {
                    continue;
                }
                tensors::compare(e, g, row.tol).map_err(|m| format!("output {i}: {m}"))?;
            }
            Ok(())
        }
    }
}

/// The ownership of a row's inputs, and the threads of its loops.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Variant {
    /// The kernel may not overwrite its inputs: they have other owners.
    Shared,
    /// The kernel may overwrite its inputs.
    Owned,
    /// The inputs are known as constants when the kernel is built.
    Constant,
    /// The inputs are slices of larger buffers.
    Sliced,
    /// Loops run on four threads.
    Pooled,
}

const VARIANTS: [Variant; 5] = [
    Variant::Shared,
    Variant::Owned,
    Variant::Constant,
    Variant::Sliced,
    Variant::Pooled,
];

/// Returns the same values as a slice of a buffer that begins earlier and ends later.
fn sliced(t: &Tensor) -> ferroflow_base::Result<Tensor> {
    let row = t.bytes()?;
    let padded = [&vec![0xa5; row.len()], row, &vec![0x5a; row.len()]].concat();
    let mut dims = vec![3];
    dims.extend_from_slice(t.shape().dims());
    let whole = Tensor::from_bytes(t.dtype(), Shape::from(&dims[..]), &padded)?;
    whole.view(t.num_elements(), t.shape().clone())
}

fn input(t: &Tensor, variant: Variant) -> ferroflow_base::Result<Value> {
    Ok(Value::Tensor(match variant {
        Variant::Owned if t.dtype().is_plain() => {
            Tensor::from_bytes(t.dtype(), t.shape().clone(), t.bytes()?)?
        }
        Variant::Sliced if t.dtype().is_plain() => sliced(t)?,
        _ => t.clone(),
    }))
}

/// Builds and runs the kernel of a row.
fn compute(
    row: &rows::Row,
    op: &Op,
    variant: Variant,
    pool: &Pool,
) -> ferroflow_base::Result<Vec<Tensor>> {
    let def = registry().def(op.name)?.expect("the op was just looked up");
    let mut attrs = row.attrs.clone();
    def.complete_attrs(&mut attrs)?;
    let dtypes: Vec<DType> = row.inputs.iter().map(Tensor::dtype).collect();
    let out_dtypes = def.output_dtypes(&attrs)?;
    let constants: Vec<_> = match variant {
        Variant::Constant => row.inputs.iter().cloned().map(|t| Some(t.into())).collect(),
        _ => Vec::new(),
    };
    let kernel = op.kernel.expect("ops with rows have kernels")(&KernelBuild {
        node: "op",
        device: "",
        def: &def,
        attrs: &attrs,
        inputs: &dtypes,
        outputs: &out_dtypes,
        constants: &constants,
    })?;
    let mut inputs = Vec::new();
    for (i, t) in row.inputs.iter().enumerate() {
        inputs.push(
            match variant == Variant::Constant && kernel.prepacks_input(i) {
                true => Value::Empty,
                false => input(t, variant)?,
            },
        );
    }
    let info = NodeInfo {
        name: "op".into(),
        op: row.op.clone(),
    };
    let (cancel, resources) = (CancelToken::new(), Resources::default());
    let services = StepServices {
        par: match variant {
            Variant::Pooled => pool,
            _ => &Inline,
        },
        cancel: &cancel,
        resources: &resources,
        functions: &(),
        step_id: 0,
    };
    let mut outputs = vec![Value::Empty; out_dtypes.len()];
    let mut ctx = KernelCtx::new(&info, &mut inputs, &[], &mut outputs, &services);
    kernel.compute(&mut ctx)?;
    let outputs: Vec<Tensor> = outputs
        .into_iter()
        .map(|o| o.into_tensor().expect("every output is set"))
        .collect();
    for (i, t) in outputs.iter().enumerate() {
        assert_eq!(t.dtype(), out_dtypes[i], "dtype of output {i}");
    }
    Ok(outputs)
}

/// Checks that inferred shapes match the outputs, whether inputs are known as values, as shapes,
/// or not at all.
fn check_shapes(row: &rows::Row, op: &Op, outputs: &[Tensor]) -> ferroflow_base::Result<()> {
    let def = registry().def(op.name)?.expect("the op was just looked up");
    let mut attrs = row.attrs.clone();
    def.complete_attrs(&mut attrs)?;
    let dtypes: Vec<DType> = row.inputs.iter().map(Tensor::dtype).collect();
    let shapes: Vec<PartialShape> = row.inputs.iter().map(|t| t.shape().into()).collect();
    let unknown = vec![PartialShape::unknown(); shapes.len()];
    let constants: Vec<Option<Tensor>> = row.inputs.iter().cloned().map(Some).collect();
    for (shapes, constants) in [
        (&unknown, &[][..]),
        (&shapes, &[][..]),
        (&shapes, &constants[..]),
    ] {
        let mut ctx = ShapeCtx::new(&attrs, shapes, &dtypes, constants, outputs.len());
        (op.shape)(&mut ctx)?;
        for (i, (inferred, t)) in ctx.into_outputs().iter().zip(outputs).enumerate() {
            let fits = inferred.matches(t.shape());
            assert!(fits, "inferred {inferred}, output {i} is {t:?}");
        }
    }
    Ok(())
}

/// Runs a row in every variant and checks that they agree.
fn run(row: &rows::Row, op: &Op, pool: &Pool) -> ferroflow_base::Result<Vec<Tensor>> {
    let first = compute(row, op, VARIANTS[0], pool)?;
    for variant in &VARIANTS[1..] {
        let other = compute(row, op, *variant, pool)?;
        for (i, (a, b)) in first.iter().zip(&other).enumerate() {
            if !a.dtype().is_plain() || row.unchecked.contains(&i) {
                continue;
            }
            let same = tensors::compare(a, b, row.tol);
            assert!(
                same.is_ok(),
                "output {i} differs when {variant:?}: {same:?}"
            );
        }
    }
    check_shapes(row, op, &first)?;
    Ok(first)
}

#[test]
fn rows() {
    let filter = std::env::var("ROWS").unwrap_or_default();
    let pool = Pool::new(4);
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
            let result =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&row, &pool)))
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
    assert!(
        n_passed + failures.len() > 0,
        "ROWS={filter} matches no row"
    );
    let shown = failures[..failures.len().min(400)].join("\n");
    assert!(
        failures.is_empty(),
        "{} rows fail:\n{shown}",
        failures.len()
    );
}

#[test]
fn signatures_are_tensorflows() {
    // Internal ops with more inputs or attrs than TensorFlow's.
    let extended = ["_FusedDepthwiseConv2dNative"];
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
