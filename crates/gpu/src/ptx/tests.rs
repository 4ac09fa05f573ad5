//! Generated modules: what they define, call and take.

use super::*;
use crate::library::text;

fn functions_of(is_newer: bool) -> Functions {
    let compressed = include_bytes!("../../kernels/functions.ptx.gz");
    Functions::parse(&text(compressed).expect("compressed text"), is_newer)
}

fn functions() -> Functions {
    functions_of(false)
}

fn program(text: &str, n_inputs: usize) -> Vec<Step> {
    let program = ferroflow_opdef::ElementwiseProgram::decode(text, n_inputs);
    program
        .expect(text)
        .steps()
        .iter()
        .map(|s| (*s).into())
        .collect()
}

/// All loops of which modules are made here: each function, walk, width and dtype.
fn loops() -> Vec<Loop> {
    let f32 = DType::Float;
    let unary = "Neg Abs Square Sqrt Rsqrt Reciprocal Exp Expm1 Log Log1p Sin Cos Tanh Sigmoid Erf Erfc Floor \
                 Ceil Rint Sign Relu Relu6 LeakyRelu[0.3] Elu Selu Softplus Softsign _Swish _HardSwish _Gelu \
                 _GeluTanh";
    let mut all: Vec<Loop> = unary
        .split_whitespace()
        .map(|op| Loop {
            operands: vec![(f32, Walk::Full)],
            steps: program(&format!("{op}(0)"), 1),
            results: vec![(f32, 1)],
            width: 4,
        })
        .collect();
    for op in "AddV2 Sub Mul RealDiv Maximum Minimum SquaredDifference Pow".split(' ') {
        for (walk, width) in [(Walk::Scalar, 1), (Walk::Last, 4), (Walk::Middle, 4)] {
            all.push(Loop {
                operands: vec![(f32, Walk::Full), (f32, walk)],
                steps: program(&format!("{op}(0,1);Tanh(2);Tanh(3)"), 2),
                results: vec![(f32, 4)],
                width,
            });
        }
    }
    let from = [
        DType::Half,
        DType::Bfloat16,
        DType::Double,
        DType::Int32,
        DType::Int64,
        DType::Uint8,
        DType::Bool,
        f32,
    ];
    for dtype in from {
        for result in [
            f32,
            DType::Half,
            DType::Bfloat16,
            DType::Bool,
            DType::Int32,
            DType::Int64,
        ] {
            for width in [1, 4]
                .into_iter()
                .filter(|w| w * dtype.size().max(result.size()) <= 16)
            {
                all.push(Loop {
                    operands: vec![(dtype, Walk::Full)],
                    steps: Vec::new(),
                    results: vec![(result, 0)],
                    width,
                });
            }
        }
    }
    all.push(Loop {
        operands: vec![
            (DType::Bool, Walk::Middle),
            (f32, Walk::Full),
            (f32, Walk::Scalar),
        ],
        steps: vec![Step::Select(0, 1, 2)],
        results: vec![(f32, 3)],
        width: 4,
    });
    // Every function, with each of its parameters from an operand.
    for (name, text) in &functions().all {
        let head = text.split('{').next().unwrap_or_default();
        let n = head.matches("_param_").count();
        let mut operands = vec![(f32, Walk::Full)];
        operands.resize(n, (f32, Walk::Scalar));
        all.push(Loop {
            operands,
            steps: vec![
                Step::Number(0.5),
                Step::Call(name.clone().leak(), (0..n).collect()),
            ],
            results: vec![(f32, n + 1), (f32, n)],
            width: 1,
        });
    }
    all
}

/// Functions that ops name exist.
#[test]
fn functions_of_ops_exist() {
    let functions = functions();
    for (op, name) in crate::elementwise::CALLS {
        assert!(!functions.get(name).is_empty(), "{op}: {name}");
    }
}

/// Writes the modules to a folder, for an assembler: `PTX_DIR=DIR cargo test -p ferroflow-gpu`, then
/// `ptxas -arch=sm_90 FILE` for each file.
#[test]
fn modules_define_what_they_call() {
    let both = [false, true].map(functions_of);
    let modules = loops().into_iter().flat_map(|of| {
        let text = both.each_ref().map(|functions| of.module(functions));
        text.map(|text| (of.clone(), text))
    });
    for (i, (of, module)) in modules.enumerate() {
        let calls = module
            .lines()
            .filter_map(|l| l.trim().strip_prefix("call.uni (r), "));
        for call in calls {
            let name = call.split(',').next().unwrap_or_default();
            assert!(
                module.contains(&format!("(.param .b32 func_retval0) {name}(")),
                "{module}"
            );
        }
        assert_eq!(module.matches(".entry").count(), 1, "{of:?}");
        let reads = module.contains("__cudart_");
        assert_eq!(reads, module.contains(".global .align"), "{of:?}");
        if let Some(dir) = std::env::var_os("PTX_DIR") {
            let path = std::path::Path::new(&dir).join(format!("{i}.ptx"));
            std::fs::write(path, module).expect("a folder");
        }
    }
}

#[test]
fn walks_read_their_parameters() {
    let of = Loop {
        operands: vec![
            (DType::Float, Walk::Full),
            (DType::Float, Walk::Last),
            (DType::Float, Walk::Middle),
            (DType::Float, Walk::Scalar),
        ],
        steps: program("AddV2(0,1);Mul(4,2);Sub(5,3)", 4),
        results: vec![(DType::Float, 6)],
        width: 1,
    };
    let module = of.module(&functions());
    let (_, params) = module.split_once("elementwise(").expect("an entry");
    let (params, _) = params.split_once(')').expect("parameters");
    let names = params
        .split(',')
        .map(|p| p.trim().rsplit(' ').next().unwrap_or_default());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["count", "y0", "x0", "x1", "n1", "x2", "n2", "inner2", "x3"]
    );
}
