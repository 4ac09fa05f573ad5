//! Rows with extreme numbers substituted: ops may fail, but must not panic.

use ferroflow_testkit::random::Rng;
use ferroflow_testkit::rows;

use ferroflow_opdef::{
    AttrValue, KernelBuild, KernelCtx, NodeInfo, Resources, ShapeCtx, StepServices, Value,
};
use ferroflow_ops::registry;
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// Large numbers are so large that an allocation of that size fails.
const NASTY: [i64; 14] = [
    -1,
    0,
    1,
    2,
    3,
    5,
    7,
    -2,
    -3,
    -7,
    i64::MIN,
    i64::MAX,
    1 << 62,
    -(1 << 62),
];

/// Returns `t` with some of its numbers replaced by the first `n` nasty ones.
fn nasty(rng: &mut Rng, t: &Tensor, n: usize) -> Tensor {
    let pick = |rng: &mut Rng| NASTY[rng.below(n)];
    let mut out = t.clone();
    match t.dtype() {
        DType::Int32 => {
            for v in out.slice_mut::<i32>().unwrap() {
                if rng.below(3) == 0 {
                    let n = pick(rng);
                    *v = if n.abs_diff(0) > 9 {
                        i32::MIN
                    } else {
                        n as i32
                    };
                }
            }
        }
        DType::Int64 => {
            for v in out.slice_mut::<i64>().unwrap() {
                if rng.below(3) == 0 {
                    *v = pick(rng);
                }
            }
        }
        _ => {}
    }
    if rng.below(8) == 0 {
        let n = out.num_elements();
        let shapes = [
            Shape::from([n]),
            Shape::from([1, n]),
            Shape::from([n, 1, 1]),
        ];
        out = out.with_shape(shapes[rng.below(3)].clone()).unwrap();
    }
    if rng.below(16) == 0 {
        out = Tensor::zeros(out.dtype(), Shape::from([0, 2])).unwrap();
    }
    out
}

fn run(row: &rows::Row, rng: &mut Rng) -> ferroflow_base::Result<()> {
    let op = registry().op(&row.op).expect("looked up before");
    let def = registry().def(&row.op)?.expect("looked up before");
    let mut attrs = row.attrs.clone();
    def.complete_attrs(&mut attrs)?;
    let names: Vec<_> = attrs.iter().map(|(n, _)| n.clone()).collect();
    for name in names {
        if let Some(AttrValue::Int(_)) = attrs.get(&name)
            && !["N", "num_split", "num"].contains(&&*name)
            && rng.below(4) == 0
        {
            attrs.set(name, AttrValue::Int(NASTY[rng.below(NASTY.len())]));
        }
    }
    // A range between large numbers is a large tensor, which is right but takes long.
    let n_nasty = match row.op.ends_with("Range") {
        true => 10,
        false => NASTY.len(),
    };
    let inputs: Vec<Tensor> = row.inputs.iter().map(|t| nasty(rng, t, n_nasty)).collect();
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let out_dtypes = def.output_dtypes(&attrs)?;
    let shapes: Vec<PartialShape> = inputs.iter().map(|t| t.shape().into()).collect();
    let constants: Vec<Option<Tensor>> = inputs.iter().cloned().map(Some).collect();
    let n = out_dtypes.len();
    let inferred = [&constants[..], &[]].map(|c| {
        let mut ctx = ShapeCtx::new(&attrs, &shapes, &dtypes, c, n);
        (op.shape)(&mut ctx).map(|()| ctx.into_outputs())
    });
    let lazy: Vec<_> = inputs.iter().cloned().map(|t| Some(t.into())).collect();
    for constants in [&[][..], &lazy[..]] {
        let build = KernelBuild {
            node: "row",
            device: "",
            def: &def,
            attrs: &attrs,
            inputs: &dtypes,
            outputs: &out_dtypes,
            constants,
        };
        let kernel = op.kernel.expect("ops with rows have kernels")(&build)?;
        let mut values: Vec<Value> = inputs
            .iter()
            .enumerate()
            .map(
                |(i, t)| match constants.len() > i && kernel.prepacks_input(i) {
                    true => Value::Empty,
                    false => Value::Tensor(t.clone()),
                },
            )
            .collect();
        let mut outputs = vec![Value::Empty; n];
        let (cancel, info) = (CancelToken::new(), NodeInfo::default());
        let resources = Resources::default();
        let services = StepServices {
            par: &Inline,
            cancel: &cancel,
            resources: &resources,
            functions: &(),
            step_id: 0,
        };
        let mut ctx = KernelCtx::new(&info, &mut values, &[], &mut outputs, &services);
        kernel.compute(&mut ctx)?;
        for shapes in inferred.iter().flatten() {
            for (shape, out) in shapes.iter().zip(&outputs) {
                let out = out.clone().into_tensor().expect("every output is set");
                assert!(shape.matches(out.shape()), "inferred {shape}, got {out:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn nasty_numbers_are_refused_or_served() {
    let mut rng = Rng(7);
    let mut failures = Vec::new();
    for family in [
        "array",
        "index",
        "linalg",
        "microfrontend",
        "protos",
        "ragged",
        "sdca",
        "sets",
        "sparse",
        "stochastic_cast",
        "string",
        "uniform_conv",
    ] {
        let path = format!("{}/rows/{family}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("readable rows");
        for (i, line) in text.lines().enumerate().filter(|(_, l)| l.starts_with('{')) {
            let row = rows::parse_row(line).unwrap_or_else(|e| panic!("{family}:{}: {e}", i + 1));
            if registry().op(&row.op).is_none_or(|op| op.kernel.is_none()) {
                continue;
            }
            for _ in 0..8 {
                let seed = rng.0;
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let _ = run(&row, &mut Rng(seed));
                }));
                rng.below(2);
                if let Err(panic) = result {
                    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                    failures.push(format!("{family}:{} {} seed {seed}: {text}", i + 1, row.op));
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{}",
        failures[..failures.len().min(30)].join("\n")
    );
}
