//! Properties of decompositions whose vectors are only defined up to a phase.

use ferroflow_opdef::{
    AttrValue, Attrs, KernelBuild, KernelCtx, NodeInfo, Resources, StepServices, Value,
};
use ferroflow_ops::registry;
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{Complex64, DType, Tensor};
use ferroflow_testkit::random::Rng;

/// Runs an op on one double matrix; returns real outputs.
fn run(name: &str, attrs: Attrs, input: Tensor) -> Vec<Vec<f64>> {
    let values = outputs(name, attrs, input).into_iter();
    values.map(|t| t.slice::<f64>().unwrap().to_vec()).collect()
}

/// Runs an op on one double matrix.
fn outputs(name: &str, attrs: Attrs, input: Tensor) -> Vec<Tensor> {
    let op = registry().op(name).expect("a registered op");
    let def = registry().def(name).unwrap().expect("a registered op");
    let mut attrs = attrs.with("T", AttrValue::Type(DType::Double));
    def.complete_attrs(&mut attrs).unwrap();
    let outputs = def.output_dtypes(&attrs).unwrap();
    let kernel = op.kernel.expect("a kernel")(&KernelBuild {
        node: "node",
        device: "",
        def: &def,
        attrs: &attrs,
        inputs: &[DType::Double],
        outputs: &outputs,
        constants: &[],
    })
    .unwrap();
    let mut out = vec![Value::Empty; outputs.len()];
    let (cancel, resources) = (CancelToken::new(), Resources::default());
    let services = StepServices {
        par: &Inline,
        cancel: &cancel,
        resources: &resources,
        functions: &(),
        step_id: 0,
    };
    let (info, mut inputs) = (NodeInfo::default(), [Value::Tensor(input)]);
    let mut ctx = KernelCtx::new(&info, &mut inputs, &[], &mut out, &services);
    kernel.compute(&mut ctx).unwrap();
    let values = out.into_iter().map(|v| v.into_tensor().expect("an output"));
    values.collect()
}

/// Checks that `u diag(s) vᵀ` restores `x`, and that `u` and `v` have orthonormal columns.
fn check(x: &[f64], m: usize, n: usize, u: &[f64], s: &[f64], v: &[f64]) {
    let (p, q) = (u.len() / m, v.len() / n);
    for i in 0..m {
        for j in 0..n {
            let terms = (0..s.len()).map(|k| u[i * p + k] * s[k] * v[j * q + k]);
            let sum: f64 = terms.sum();
            assert!((sum - x[i * n + j]).abs() < 1e-9, "{m} × {n}: at {i}, {j}");
        }
    }
    for (columns, rows, width) in [(u, m, p), (v, n, q)] {
        for a in 0..width {
            for b in 0..width {
                let terms = (0..rows).map(|i| columns[i * width + a] * columns[i * width + b]);
                let sum: f64 = terms.sum();
                let expected = f64::from(u8::from(a == b));
                assert!((sum - expected).abs() < 1e-9, "columns {a} and {b}");
            }
        }
    }
}

/// Returns matrices of full and of lower rank.
fn samples(rng: &mut Rng, m: usize, n: usize) -> [Vec<f64>; 6] {
    let number = |rng: &mut Rng| rng.below(2001) as f64 / 1000.0 - 1.0;
    let full: Vec<f64> = (0..m * n).map(|_| number(rng)).collect();
    let rank_one = (0..m * n).map(|i| (1 + i / n) as f64 * (2 + i % n) as f64);
    // Rank two, a column of zeros, and equal singular values.
    let [u, v, w] = [0; 3].map(|_| (0..m.max(n)).map(|_| number(rng)).collect::<Vec<f64>>());
    let rank_two = (0..m * n).map(|i| u[i / n] * v[i % n] + w[i / n] * u[i % n]);
    let gap = |i: usize| if i % n == n / 2 { 0.0 } else { full[i] };
    let with_gap = (0..m * n).map(gap).collect();
    let identity = (0..m * n).map(|i| f64::from(u8::from(i / n == i % n)));
    let lower = [rank_one.collect(), rank_two.collect(), identity.collect()];
    let [one, two, identity] = lower;
    [full.clone(), one, two, with_gap, identity, vec![0.0; m * n]]
}

#[test]
fn singular_vectors_restore_the_matrix() {
    let mut rng = Rng(7);
    let sizes = [
        (1, 1),
        (2, 2),
        (3, 3),
        (5, 2),
        (2, 5),
        (8, 8),
        (1, 4),
        (9, 30),
        (20, 13),
        (40, 40),
    ];
    for (m, n) in sizes {
        for x in samples(&mut rng, m, n) {
            for full in [false, true] {
                let attrs = Attrs::default().with("full_matrices", AttrValue::Bool(full));
                let input = Tensor::from_slice([m, n], &x).unwrap();
                let out = run("Svd", attrs, input);
                check(&x, m, n, &out[1], &out[0], &out[2]);
            }
        }
    }
}

#[test]
fn eigenvectors_restore_the_matrix() {
    let mut rng = Rng(9);
    for n in [1, 2, 3, 6, 17] {
        for x in samples(&mut rng, n, n) {
            let sym = |i: usize| x[i] + x[i % n * n + i / n];
            let x: Vec<f64> = (0..n * n).map(sym).collect();
            let input = Tensor::from_slice([n, n], &x).unwrap();
            let out = run("SelfAdjointEigV2", Attrs::default(), input);
            check(&x, n, n, &out[1], &out[0], &out[1]);
            assert!(out[0].is_sorted());
        }
    }
}

#[test]
fn eigenvectors_of_general_matrices_are_only_scaled() {
    let mut rng = Rng(11);
    for n in [1, 2, 3, 5, 12] {
        let x = &samples(&mut rng, n, n)[0];
        let input = Tensor::from_slice([n, n], x).unwrap();
        let attrs = Attrs::default().with("Tout", AttrValue::Type(DType::Complex128));
        let out = outputs("Eig", attrs, input);
        let e = out[0].slice::<Complex64>().unwrap();
        let v = out[1].slice::<Complex64>().unwrap();
        for i in 0..n {
            for k in 0..n {
                let terms = (0..n).map(|j| v[j * n + k] * x[i * n + j]);
                let difference = terms.sum::<Complex64>() - e[k] * v[i * n + k];
                assert!(difference.norm() < 1e-9, "{n}: at {i}, {k}");
            }
        }
        for k in 0..n {
            let norm: f64 = (0..n).map(|i| v[i * n + k].norm_sqr()).sum();
            assert!((norm - 1.0).abs() < 1e-12, "{n}: vector {k}");
        }
    }
}
