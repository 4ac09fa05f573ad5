//! Code computes what the instructions mean, with each instruction set of the machine.

use super::VectorCode;
use ferroflow_primitives::Isa;
use ferroflow_primitives::math::{BinaryOp, UnaryOp};
use ferroflow_primitives::vector_program::{Instruction, Recording, UnaryInst, VectorProgram};
use ferroflow_testkit::random::Random;

const SPECIAL: [f32; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.3,
    6.5,
    -87.0,
    88.9,
    5e-5,
    1e-42,
    f32::MIN_POSITIVE,
    3e38,
    -1e20,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

fn isas() -> impl Iterator<Item = Isa> {
    let all = [Isa::Avx2, Isa::Avx512];
    all.into_iter().filter(|isa| *isa <= Isa::detect())
}

/// Compares code with the program's lanes, for some forms of inputs and lengths.
fn check(program: &VectorProgram, random: &mut Random) {
    let n_inputs = program.n_inputs();
    for n in [1, 7, 16, 53, 64, 100, 257] {
        let is_scalar: Vec<bool> = (0..n_inputs).map(|_| random.below(3) == 0).collect();
        let code = match VectorCode::compile(program, &is_scalar) {
            Ok(code) => code,
            Err(e) => {
                assert!(program.length() > 40, "{program:?}: {e}");
                return;
            }
        };
        let mut number = || match random.below(4) {
            0 => SPECIAL[random.below(SPECIAL.len())],
            _ => random.below(20_001) as f32 / 1000.0 - 10.0,
        };
        let mut input = |is_scalar: &bool| -> Vec<f32> {
            let n = if *is_scalar { 1 } else { n };
            (0..n).map(|_| number()).collect()
        };
        let inputs: Vec<Vec<f32>> = is_scalar.iter().map(&mut input).collect();
        let slices: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let mut out = vec![0.0; n];
        code.run(&slices, &mut out).expect("runs");
        let estimates =
            |inst: &Instruction| matches!(inst, Instruction::Unary(UnaryInst::RsqrtEstimate, _));
        let tolerance = match program.instructions().iter().any(estimates) {
            true => 4,
            false => 0,
        };
        for (i, got) in out.iter().enumerate() {
            let lane = |input: &Vec<f32>| *input.get(i).unwrap_or(&input[0]);
            let lanes: Vec<f32> = inputs.iter().map(lane).collect();
            let want = program.lane(&lanes);
            let distance = want.to_bits().abs_diff(got.to_bits());
            let is_same = distance <= tolerance || want.is_nan() && got.is_nan();
            assert!(is_same, "{program:?} of {lanes:?}: {want} instead of {got}");
        }
    }
}

#[test]
fn functions() {
    use UnaryOp::*;
    let mut random = Random(1);
    for isa in isas() {
        for op in [
            Identity,
            Neg,
            Abs,
            Square,
            Sqrt,
            Rsqrt,
            Reciprocal,
            Exp,
            Expm1,
            Log,
            Log1p,
            Asin,
            Acos,
            Atan,
            Tanh,
            Sinh,
            Cosh,
            Asinh,
            Acosh,
            Atanh,
            Sigmoid,
            Erf,
            Erfc,
            Floor,
            Ceil,
            Round,
            Trunc,
            Sign,
            Relu,
            Relu6,
            Softplus,
            Softsign,
            Swish,
            HardSwish,
            HardSigmoid,
            GeluErf,
            GeluTanh,
            Selu,
            Clamp(-0.5, 2.0),
            LeakyRelu(0.2),
            Elu(1.5),
            Affine(0.3, -2.0),
        ] {
            let mut recording = Recording::new(isa, 1);
            let result = recording.unary(op, 0).expect("recorded");
            check(&recording.finish(result), &mut random);
        }
    }
}

/// A program of functions of values that are all as likely to be read again: registers run out at some.
fn random_program(random: &mut Random, isa: Isa) -> VectorProgram {
    let n_inputs = 1 + random.below(5);
    let mut recording = Recording::new(isa, n_inputs);
    let mut values: Vec<usize> = (0..n_inputs).collect();
    let unary = [
        UnaryOp::Neg,
        UnaryOp::Abs,
        UnaryOp::Tanh,
        UnaryOp::Exp,
        UnaryOp::Erf,
        UnaryOp::Relu6,
        UnaryOp::Floor,
        UnaryOp::Affine(1.5, 0.25),
        UnaryOp::Log1p,
        UnaryOp::Sign,
        UnaryOp::GeluErf,
    ];
    let binary = [
        BinaryOp::Add,
        BinaryOp::Sub,
        BinaryOp::Mul,
        BinaryOp::Div,
        BinaryOp::Max,
        BinaryOp::Min,
        BinaryOp::SquaredDifference,
        BinaryOp::ReluGrad,
        BinaryOp::TanhGrad,
        BinaryOp::SigmoidGrad,
        BinaryOp::Atan2,
    ];
    for _ in 0..1 + random.below(12) {
        let mut operand = || values[random.below(values.len())];
        let (a, b) = (operand(), operand());
        let value = match random.below(2) {
            0 => recording.unary(unary[random.below(unary.len())], a),
            _ => recording.binary(binary[random.below(binary.len())], a, b),
        };
        values.push(value.expect("recorded"));
    }
    recording.finish(values[values.len() - 1])
}

#[test]
fn random_programs() {
    let mut random = Random(7);
    for isa in isas() {
        for _ in 0..60 {
            let program = random_program(&mut random, isa);
            check(&program, &mut random);
        }
    }
}

#[test]
fn programs_of_many_values_are_refused() {
    // Sums of products of all pairs: each value is read to the end.
    for isa in isas() {
        let mut recording = Recording::new(isa, 2);
        let mut values = vec![0, 1];
        for i in 0..40 {
            let next = recording.binary(BinaryOp::Div, values[i], values[i + 1]);
            values.push(next.expect("recorded"));
        }
        let mut sum = 0;
        for value in values {
            sum = recording
                .binary(BinaryOp::Add, sum, value)
                .expect("recorded");
        }
        let program = recording.finish(sum);
        let error = VectorCode::compile(&program, &[false, false])
            .err()
            .expect("refused");
        assert!(error.to_string().contains("too"), "{error}");
    }
}

#[test]
fn wrong_inputs_are_errors() {
    let Some(isa) = isas().last() else {
        return;
    };
    let mut recording = Recording::new(isa, 2);
    let sum = recording.binary(BinaryOp::Add, 0, 1).expect("recorded");
    let code = VectorCode::compile(&recording.finish(sum), &[false, true]).expect("compiles");
    let mut out = [0.0; 20];
    for inputs in [
        &[&[1.0; 19][..], &[1.0]][..],
        &[&[1.0; 20], &[1.0; 20]],
        &[&[1.0; 20]],
    ] {
        assert!(code.run(inputs, &mut out).is_err());
    }
    assert_eq!(out, [0.0; 20]);
}
