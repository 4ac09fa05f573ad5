//! Optimizers, clipping and learning rates, step by step as TensorFlow's
//! (`oracle/training_rules.py` writes `training/rules.json`).

use ferroflow_runtime::{DType, Result, SessionOptions, Shape, Tensor};
use ferroflow_train::{Clip, LearningRateSchedule, Network, Optimizer, Rule, Trainer};
use serde_json::Value as Json;
use std::path::Path;

fn stored() -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/training/rules.json");
    let text = std::fs::read_to_string(path).expect("stored answers");
    serde_json::from_str(&text).expect("valid JSON")
}

fn list(items: &Json) -> &Vec<Json> {
    items.as_array().expect("a list")
}

fn float(value: &Json) -> f32 {
    match value.as_str() {
        Some(text) => text.parse().expect("a number"),
        None => value.as_f64().expect("a number") as f32,
    }
}

fn floats(items: &Json) -> Vec<f32> {
    list(items).iter().map(float).collect()
}

/// Returns a parameter of a rule or rate; 0 if missing.
fn of<'j>(numbers: &'j Json) -> impl Fn(&str) -> f32 + 'j {
    |name| numbers.get(name).map_or(0.0, float)
}

fn rule(case: &Json) -> Rule {
    let number = of(&case["numbers"]);
    let [initial, epsilon, rho, momentum] = ["initial", "epsilon", "rho", "momentum"].map(&number);
    let [beta1, beta2] = ["beta1", "beta2"].map(&number);
    match case["rule"].as_str().expect("a rule") {
        "GradientDescent" => Rule::GradientDescent,
        "Momentum" => Rule::Momentum {
            momentum,
            nesterov: number("nesterov") == 1.0,
        },
        "Adagrad" => Rule::Adagrad { initial },
        "AdagradV2" => Rule::AdagradV2 { initial, epsilon },
        "Adadelta" => Rule::Adadelta { rho, epsilon },
        "RmsProp" => Rule::RmsProp {
            rho,
            momentum,
            epsilon,
            centered: number("centered") == 1.0,
        },
        "Adam" => Rule::Adam {
            beta1,
            beta2,
            epsilon,
        },
        "AdaMax" => Rule::AdaMax {
            beta1,
            beta2,
            epsilon,
        },
        "Ftrl" => Rule::Ftrl {
            initial,
            l1: number("l1"),
            l2: number("l2"),
            l2_shrinkage: number("l2_shrinkage"),
            power: number("power"),
        },
        other => panic!("no rule {other}"),
    }
}

fn clip(case: &Json) -> Option<Clip> {
    let [how, limit] = &case["clip"].as_array()?[..] else {
        return None;
    };
    let limit = float(limit);
    Some(match how.as_str()? {
        "Value" => Clip::Value(limit),
        "Norm" => Clip::Norm(limit),
        _ => Clip::GlobalNorm(limit),
    })
}

/// Returns a network with a dense and a sparse variable, whose gradients are fed.
fn network(case: &Json) -> Result<Trainer> {
    let mut net = Network::new(1);
    let mut variables = Vec::new();
    for (name, shape, start) in [("dense", [2, 3], 0), ("table", [4, 2], 1)] {
        let start = Tensor::from_slice(shape, &floats(&case["start"][start]))?;
        let start = net.builder().constant("start", start)?;
        variables.push(net.variable(name, start, Shape::from(shape))?);
    }
    let dense_gradient = net.input("dense_gradient", DType::Float, &[Some(2), Some(3)])?;
    let table_gradient = net.input("table_gradient", DType::Float, &[Some(3), Some(2)])?;
    let rows = net.input("rows", DType::Int32, &[Some(3)])?;
    let axis = net.builder().constant("axis", Tensor::scalar(0i32))?;
    let picked = net.op("GatherV2").input(variables[1].value).input(rows);
    let picked = picked.input(axis).output()?;
    let both = net
        .builder()
        .constant("both", Tensor::vector(&[0i32, 1])?)?;
    let mut sums = Vec::new();
    for (value, gradient) in [
        (variables[0].value, dense_gradient),
        (picked, table_gradient),
    ] {
        let product = net.op("Mul").input(value).input(gradient).output()?;
        sums.push(net.op("Sum").input(product).input(both).output()?);
    }
    let loss = net.op("AddV2").input(sums[0]).input(sums[1]).output()?;
    let mut optimizer = Optimizer::new(rule(case), float(&case["rate"]));
    optimizer.clip = clip(case);
    net.minimize(loss, &optimizer)?;
    Trainer::new(net, SessionOptions::default())
}

fn check(case: &Json) {
    let what = format!("{:?} {:?}", rule(case), clip(case));
    let trainer = network(case).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (i, step) in list(&case["steps"]).iter().enumerate() {
        let rows = list(&step["rows"]).iter().filter_map(Json::as_i64);
        let rows: Vec<i32> = rows.map(|r| r as i32).collect();
        let matrix = |shape: [usize; 2], key: &str| {
            Tensor::from_slice(shape, &floats(&step[key])).expect("a matrix")
        };
        let feeds = [
            ("dense_gradient:0", matrix([2, 3], "dense_gradient")),
            ("table_gradient:0", matrix([3, 2], "table_gradient")),
            ("rows:0", Tensor::vector(&rows).expect("rows")),
        ];
        let session = trainer.session();
        session.run(&feeds, &[], &["train"]).expect("trains");
        for name in ["dense", "table"] {
            let read = format!("{name}/Read/ReadVariableOp:0");
            let got = session.run(&[], &[&read], &[]).expect("a variable");
            let got = got[0].slice::<f32>().expect("floats");
            for (j, (got, want)) in got.iter().zip(floats(&step[name])).enumerate() {
                let is_close = (got - want).abs() <= 2e-6 * want.abs().max(1.0);
                let same = is_close || *got == want || got.is_nan() && want.is_nan();
                assert!(
                    same,
                    "{what}: {name}[{j}] after step {i} is {got}, not {want}"
                );
            }
        }
    }
}

#[test]
fn every_step_is_tensorflows() {
    let stored = stored();
    let cases = list(&stored["rules"]);
    cases.iter().for_each(check);
    // Every rule occurs.
    let mut names: Vec<&str> = cases.iter().filter_map(|c| c["rule"].as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 9, "{names:?}");
}

fn rate(case: &Json) -> LearningRateSchedule {
    let numbers = &case["numbers"];
    let number = of(numbers);
    let [initial, steps, decay, alpha] = ["initial", "steps", "decay", "alpha"].map(&number);
    let staircase = number("staircase") == 1.0;
    match case["rate"].as_str().expect("a rate") {
        "Exponential" => LearningRateSchedule::Exponential {
            initial,
            steps,
            decay,
            staircase,
        },
        "NaturalExp" => LearningRateSchedule::NaturalExp {
            initial,
            steps,
            decay,
            staircase,
        },
        "InverseTime" => LearningRateSchedule::InverseTime {
            initial,
            steps,
            decay,
            staircase,
        },
        "Polynomial" => LearningRateSchedule::Polynomial {
            initial,
            end: number("end"),
            steps,
            power: number("power"),
            cycle: number("cycle") == 1.0,
        },
        "Cosine" => LearningRateSchedule::Cosine {
            initial,
            steps,
            alpha,
        },
        "CosineRestarts" => LearningRateSchedule::CosineRestarts {
            initial,
            steps,
            t_mul: number("t_mul"),
            m_mul: number("m_mul"),
            alpha,
        },
        "Piecewise" => LearningRateSchedule::Piecewise {
            boundaries: list(&numbers["boundaries"])
                .iter()
                .filter_map(Json::as_i64)
                .collect(),
            values: floats(&numbers["values"]),
        },
        other => panic!("no rate {other}"),
    }
}

#[test]
fn every_rate_is_tensorflows() {
    for case in list(&stored()["rates"]) {
        let mut net = Network::new(1);
        let start = net.builder().constant("start", Tensor::scalar(1f32));
        let w = net.variable("w", start.expect("a constant"), Shape::scalar());
        let w = w.expect("a variable").value;
        let optimizer = Optimizer::new(Rule::GradientDescent, rate(case));
        net.minimize(w, &optimizer).expect("a rate");
        let trainer = Trainer::new(net, SessionOptions::default()).expect("a trainer");
        let want = floats(&case["values"]);
        for (step, want) in list(&case["steps"]).iter().zip(want) {
            let step = step.as_i64().expect("a step");
            let feeds = [("global_step/Read/ReadVariableOp:0", Tensor::scalar(step))];
            let got = trainer.session().run(&feeds, &["learning_rate:0"], &[]);
            let got: f32 = got.expect("a rate")[0].to_scalar().expect("a number");
            let same = (got - want).abs() <= 1e-6 * want.abs().max(0.5);
            assert!(same, "{:?} in step {step}: {got}, not {want}", rate(case));
        }
    }
}
