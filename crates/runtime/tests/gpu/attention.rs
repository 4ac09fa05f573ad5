//! Attention, which GPUs compute in one launch.

use super::{gpu, is_interpreted, is_near, node, numbers, session};
use ferroflow_runtime::{DType, Session, SessionOptions, Tensor};

const F: &str = "type: DT_FLOAT";

/// Batches, heads, queries, keys and depth.
type Sizes = [usize; 5];

fn placeholder(name: &str, dtype: &str, dims: &[usize]) -> String {
    let dims: String = dims
        .iter()
        .map(|d| format!("dim {{ size: {d} }} "))
        .collect();
    let shape = format!("shape {{ {dims} }}");
    node(
        name,
        "Placeholder",
        &[],
        &[("dtype", dtype), ("shape", &shape)],
    )
}

fn constant(name: &str, dtype: &str, shape: &str, values: &str) -> String {
    let value = format!("tensor {{ dtype: {dtype} tensor_shape {{ {shape} }} {values} }}");
    let dtype = format!("type: {dtype}");
    node(name, "Const", &[], &[("dtype", &dtype), ("value", &value)])
}

/// As Keras writes it: Einsum, a factor, and a condition with one row for all queries or one for each.
fn by_einsum([b, n, t, s, h]: Sizes, mask_rows: usize) -> String {
    let einsum = |name: &str, equation: &str, inputs: &[&str]| {
        let equation = format!("s: '{equation}'");
        let attrs = [("T", F), ("N", "i: 2"), ("equation", &*equation)];
        node(name, "Einsum", inputs, &attrs)
    };
    let float = |name: &str, op: &str, inputs: &[&str]| node(name, op, inputs, &[("T", F)]);
    [
        placeholder("q", F, &[b, t, n, h]),
        placeholder("k", F, &[b, s, n, h]),
        placeholder("v", F, &[b, s, n, h]),
        placeholder("m", F, &[b, 1, mask_rows, s]),
        constant("zero", "DT_FLOAT", "", "float_val: 0"),
        constant("factor", "DT_FLOAT", "", "float_val: 0.3"),
        constant("fill", "DT_FLOAT", "", "float_val: -1e9"),
        float("condition", "Greater", &["m", "zero"]),
        einsum("scores", "BTNH,BSNH->BNTS", &["q", "k"]),
        float("scaled", "Mul", &["scores", "factor"]),
        float("masked", "SelectV2", &["condition", "scaled", "fill"]),
        float("weights", "Softmax", &["masked"]),
        einsum("y", "BNTS,BSNH->BTNH", &["weights", "v"]),
    ]
    .join("\n")
}

/// As Transformers writes it: products of matrices between transposes, a divisor, and a bias.
fn by_products([b, n, t, s, h]: Sizes, mask_rows: usize) -> String {
    let float = |name: &str, op: &str, inputs: &[&str]| node(name, op, inputs, &[("T", F)]);
    let turned = |name: &str, of: &str| {
        let attrs = [("T", F), ("Tperm", "type: DT_INT32")];
        node(name, "Transpose", &[of, "perm"], &attrs)
    };
    let adjoint = [("T", F), ("adj_y", "b: true")];
    [
        placeholder("q", F, &[b, t, n, h]),
        placeholder("k", F, &[b, s, n, h]),
        placeholder("v", F, &[b, s, n, h]),
        placeholder("m", F, &[b, 1, mask_rows, s]),
        constant("divisor", "DT_FLOAT", "", "float_val: 4"),
        constant(
            "perm",
            "DT_INT32",
            "dim { size: 4 }",
            "int_val: [0, 2, 1, 3]",
        ),
        turned("qt", "q"),
        turned("kt", "k"),
        turned("vt", "v"),
        node("scores", "BatchMatMulV2", &["qt", "kt"], &adjoint),
        float("scaled", "RealDiv", &["scores", "divisor"]),
        float("masked", "AddV2", &["scaled", "m"]),
        float("weights", "Softmax", &["masked"]),
        float("mixed", "BatchMatMulV2", &["weights", "vt"]),
        turned("y", "mixed"),
    ]
    .join("\n")
}

/// Of one tensor, whose products with three matrices become one.
fn projected([b, n, t, s, h]: Sizes) -> String {
    assert_eq!(t, s);
    let dense = |name: &str| {
        let (weights, bias, result) = (format!("w{name}"), format!("b{name}"), format!("d{name}"));
        let values = |count: usize, by: usize| -> String {
            let value = |i: usize| format!("float_val: {} ", ((i * by) % 17) as f32 / 40.0 - 0.2);
            (0..count).map(value).collect()
        };
        let by = 3 + name.len() + usize::from(name.as_bytes()[0]) % 5;
        let matrix = format!("dim {{ size: 8 }} dim {{ size: {} }}", n * h);
        let attrs = [
            ("T", F),
            ("num_args", "i: 1"),
            ("fused_ops", "list { s: 'BiasAdd' }"),
        ];
        [
            constant(&weights, "DT_FLOAT", &matrix, &values(8 * n * h, by)),
            constant(
                &bias,
                "DT_FLOAT",
                &format!("dim {{ size: {} }}", n * h),
                &values(n * h, by + 2),
            ),
            node(&result, "_Dense", &["x", &weights, &bias], &attrs),
            node(
                name,
                "Reshape",
                &[&result, "shape"],
                &[("T", F), ("Tshape", "type: DT_INT32")],
            ),
        ]
        .join("\n")
    };
    let rest = by_einsum([b, n, t, s, h], 1);
    let rest = rest.lines().filter(|l| {
        !["'q'", "'k'", "'v'"]
            .iter()
            .any(|n| l.starts_with(&format!("node {{ name: {n}")))
    });
    let shape = format!("int_val: [-1, {t}, {n}, {h}]");
    let own = [
        placeholder("x", F, &[b, t, 8]),
        constant("shape", "DT_INT32", "dim { size: 4 }", &shape),
        dense("q"),
        dense("k"),
        dense("v"),
    ];
    own.into_iter()
        .chain(rest.map(str::to_string))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The dtypes that products are computed in, each with how much of the largest element results may differ by.
const PRECISIONS: [(Option<DType>, f32); 3] = [
    (None, 1e-5),
    (Some(DType::Half), 5e-3),
    (Some(DType::Bfloat16), 3e-2),
];

#[test]
fn projections_are_one_product() {
    if is_interpreted() {
        return println!("skipped: no cuBLASLt");
    }
    for (precision, tol) in PRECISIONS {
        let gpu = match gpu(precision) {
            Ok(gpu) => gpu,
            Err(e) => return println!("skipped: {e}"),
        };
        for sizes @ [b, _, t, s, _] in [[2, 3, 70, 70, 64], [1, 2, 9, 9, 40]] {
            let graph = projected(sizes);
            let own = session(&graph, &gpu).unwrap();
            let cpu = Session::from_text(&graph, SessionOptions::default()).unwrap();
            let feeds = [
                ("x:0", numbers(&[b, t, 8], 1)),
                ("m:0", numbers(&[b, 1, 1, s], 4)),
            ];
            for _ in 0..3 {
                let got = own.run(&feeds, &["y:0"], &[]).unwrap();
                let expected = cpu.run(&feeds, &["y:0"], &[]).unwrap();
                assert!(
                    is_near(&got[0], &expected[0], tol),
                    "{sizes:?}, {precision:?}"
                );
            }
        }
    }
}

#[test]
fn attention_is_what_its_ops_are() {
    let sizes: [Sizes; 8] = [
        [2, 3, 70, 130, 64],
        [1, 2, 64, 64, 64],
        [2, 2, 5, 200, 40],
        [1, 2, 65, 33, 128],
        [2, 1, 1, 1, 8],
        [1, 3, 20, 300, 32],
        // By products: longer than the kernels have, and no elements.
        [1, 2, 9, 11, 136],
        [0, 2, 9, 11, 64],
    ];
    for (precision, tol) in PRECISIONS {
        let gpu = match gpu(precision) {
            Ok(gpu) => gpu,
            Err(e) => return println!("skipped: {e}"),
        };
        // What the interpreter has no products for.
        let has_products = |[b, .., h]: Sizes| precision.is_none() || b == 0 || h > 128;
        for sizes @ [b, n, t, s, h] in sizes {
            if is_interpreted() && has_products(sizes) {
                continue;
            }
            for (mask_rows, graph) in [
                (1, by_einsum(sizes, 1)),
                (t, by_einsum(sizes, t)),
                (1, by_products(sizes, 1)),
                (t, by_products(sizes, t)),
            ] {
                let own = session(&graph, &gpu).unwrap();
                let cpu = Session::from_text(&graph, SessionOptions::default()).unwrap();
                let feeds: [(&str, Tensor); 4] = [
                    ("q:0", numbers(&[b, t, n, h], 1)),
                    ("k:0", numbers(&[b, s, n, h], 2)),
                    ("v:0", numbers(&[b, s, n, h], 3)),
                    ("m:0", numbers(&[b, 1, mask_rows, s], 4)),
                ];
                // A step, one that is recorded, and one that is replayed.
                for _ in 0..3 {
                    let got = own.run(&feeds, &["y:0"], &[]).unwrap();
                    let expected = cpu.run(&feeds, &["y:0"], &[]).unwrap();
                    assert!(
                        is_near(&got[0], &expected[0], tol),
                        "{sizes:?}, {precision:?}: {} instead of {}",
                        got[0],
                        expected[0]
                    );
                }
            }
        }
    }
}
