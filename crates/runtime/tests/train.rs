//! Training from the outside: every rule learns, checkpoints bring everything back, models are served.

use ferroflow_runtime::train::{
    Clip, Dataset, EarlyStop, FitOptions, Network, Optimizer, Rate, Rule, Trainer,
};
use ferroflow_runtime::{DType, Result, SavedModel, SessionOptions, Tensor};
use std::path::PathBuf;

const N: usize = 64;

/// Points of a plane: `y = 2a - b + 0.5`.
fn plane() -> Dataset {
    let points: Vec<f32> = (0..2 * N)
        .map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0)
        .collect();
    let answers: Vec<f32> = points.chunks(2).map(|p| 2.0 * p[0] - p[1] + 0.5).collect();
    Dataset::new(vec![
        ("x", Tensor::from_slice([N, 2], &points).unwrap()),
        ("y", Tensor::from_slice([N, 1], &answers).unwrap()),
    ])
    .unwrap()
}

fn line(optimizer: &Optimizer) -> Result<Trainer> {
    let mut net = Network::new(11);
    let x = net.input("x", DType::Float, &[None, Some(2)])?;
    let y = net.input("y", DType::Float, &[None, Some(1)])?;
    let guess = net.dense("line", x, 1, None)?;
    net.name("guess", guess)?;
    let loss = net.mean_squared_error(guess, y)?;
    net.metric("error", loss)?;
    net.minimize(loss, optimizer)?;
    Trainer::new(net, SessionOptions::default())
}

fn fit(trainer: &mut Trainer, epochs: usize) -> f32 {
    let options = FitOptions {
        epochs,
        batch: 16,
        ..Default::default()
    };
    let history = trainer.fit(&plane(), &options, &mut []).unwrap();
    history.last().unwrap().metrics[0].1
}

fn rules() -> Vec<(Rule, f32)> {
    let (momentum, epsilon) = (0.9, 1e-7);
    vec![
        (Rule::GradientDescent, 0.1),
        (
            Rule::Momentum {
                momentum,
                nesterov: false,
            },
            0.02,
        ),
        (
            Rule::Momentum {
                momentum,
                nesterov: true,
            },
            0.02,
        ),
        (Rule::Adagrad { initial: 0.1 }, 0.5),
        (
            Rule::Adadelta {
                rho: 0.9,
                epsilon: 1e-3,
            },
            1.0,
        ),
        (
            Rule::RmsProp {
                rho: 0.9,
                momentum: 0.0,
                epsilon,
                centered: false,
            },
            0.02,
        ),
        (
            Rule::RmsProp {
                rho: 0.9,
                momentum: 0.5,
                epsilon,
                centered: true,
            },
            0.01,
        ),
        (
            Rule::Adam {
                beta1: 0.9,
                beta2: 0.999,
                epsilon,
            },
            0.1,
        ),
        (
            Rule::AdaMax {
                beta1: 0.9,
                beta2: 0.999,
                epsilon,
            },
            0.1,
        ),
        (
            Rule::Ftrl {
                initial: 0.1,
                l1: 0.0,
                l2: 0.0,
                power: -0.5,
            },
            1.0,
        ),
    ]
}

#[test]
fn every_rule_learns() {
    for (rule, rate) in rules() {
        let mut trainer = line(&Optimizer::new(rule, rate)).unwrap();
        let error = fit(&mut trainer, 60);
        assert!(error < 0.02, "{rule:?}: {error}");
        assert_eq!(trainer.global_step().unwrap(), 240);
    }
}

#[test]
fn clipped_gradients_and_falling_rates_learn_too() {
    let rates = [
        Rate::Exponential {
            initial: 0.2,
            steps: 100.0,
            decay: 0.5,
            staircase: true,
        },
        Rate::Polynomial {
            initial: 0.2,
            end: 0.01,
            steps: 200.0,
            power: 2.0,
        },
        Rate::Cosine {
            initial: 0.2,
            steps: 200.0,
            alpha: 0.1,
        },
        Rate::InverseTime {
            initial: 0.2,
            steps: 100.0,
            decay: 0.5,
        },
    ];
    for (clip, rate) in [Clip::Value(0.5), Clip::Norm(0.5), Clip::GlobalNorm(0.5)]
        .into_iter()
        .cycle()
        .zip(rates)
    {
        let optimizer = Optimizer::new(Rule::GradientDescent, rate.clone()).with_clip(clip);
        let error = fit(&mut line(&optimizer).unwrap(), 60);
        assert!(error < 0.05, "{clip:?}, {rate:?}: {error}");
    }
}

/// Rows of a table that are not named stay as they are (Adam's averages aside), those that are learn.
#[test]
fn sparse_gradients_learn() {
    for (rule, rate) in rules() {
        let mut net = Network::new(5);
        let ids = net.input("ids", DType::Int32, &[None]).unwrap();
        let y = net.input("y", DType::Float, &[None, Some(2)]).unwrap();
        let rows = net.embedding("table", ids, 10, 2).unwrap();
        let loss = net.mean_squared_error(rows, y).unwrap();
        net.metric("error", loss).unwrap();
        let built = net.minimize(loss, &Optimizer::new(rule, rate));
        if let Rule::AdaMax { .. } = rule {
            assert!(
                built
                    .unwrap_err()
                    .to_string()
                    .contains("'table' has a sparse gradient")
            );
            continue;
        }
        built.unwrap();
        let mut trainer = Trainer::new(net, SessionOptions::default()).unwrap();
        let table = "table/Read/ReadVariableOp:0";
        let before = trainer.session().run(&[], &[table], &[]).unwrap().remove(0);
        let ids: Vec<i32> = (0..32).map(|i| i % 4 * 2).collect();
        let targets: Vec<f32> = ids.iter().flat_map(|i| [*i as f32 / 4.0, 1.0]).collect();
        let data = Dataset::new(vec![
            ("ids", Tensor::vector(&ids).unwrap()),
            ("y", Tensor::from_slice([32, 2], &targets).unwrap()),
        ])
        .unwrap();
        let options = FitOptions {
            epochs: 150,
            batch: 8,
            ..Default::default()
        };
        let history = trainer.fit(&data, &options, &mut []).unwrap();
        let error = history.last().unwrap().metrics[0].1;
        assert!(error < 0.05, "{rule:?}: {error}");
        let after = trainer.session().run(&[], &[table], &[]).unwrap().remove(0);
        let row = |t: &Tensor, i: usize| t.slice::<f32>().unwrap()[2 * i..2 * i + 2].to_vec();
        assert_eq!(row(&before, 3), row(&after, 3), "{rule:?}");
    }
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("ferroflow-train-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_restored_run_goes_on_as_if_never_interrupted() {
    let folder = Folder::new("resume");
    let adam = Optimizer::adam(0.05);
    let mut whole = line(&adam).unwrap();
    fit(&mut whole, 5);
    let expected = fit(&mut whole, 5);

    let mut first = line(&adam).unwrap();
    assert_eq!(first.restore(&folder.0).unwrap(), None);
    fit(&mut first, 5);
    for _ in 0..3 {
        first.save(&folder.0, 2).unwrap();
    }
    let mut second = line(&adam).unwrap();
    assert_eq!(second.restore(&folder.0).unwrap(), Some(20));
    second.set_epoch(5);
    assert_eq!(fit(&mut second, 5), expected);
}

#[test]
fn a_model_that_was_written_is_served() {
    let folder = Folder::new("export");
    let mut trainer = line(&Optimizer::gradient_descent(0.1)).unwrap();
    fit(&mut trainer, 60);
    let model = folder.0.join("model");
    let (inputs, outputs) = ([("points", "x:0")], [("heights", "guess:0")]);
    trainer.export(&model, &inputs, &outputs).unwrap();
    let again = trainer.export(&model, &inputs, &outputs).unwrap_err();
    assert!(again.to_string().contains("is not empty"), "{again}");

    let served = SavedModel::open(&model, &["serve"], SessionOptions::default()).unwrap();
    let x = Tensor::from_slice([1, 2], &[1f32, -1.0]).unwrap();
    let out = served.run("serving_default", &[("points", x)]).unwrap();
    assert_eq!(out[0].0, "heights");
    let y = out[0].1.slice::<f32>().unwrap()[0];
    assert!((y - 3.5).abs() < 0.1, "{y}");
}

#[test]
fn what_cannot_be_trained_is_said() {
    let says = |result: Result<()>, part: &str| {
        let error = result.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    };
    // A loss that no variable is in.
    let mut net = Network::new(1);
    let x = net.input("x", DType::Float, &[]).unwrap();
    let rule = Optimizer::gradient_descent(0.1);
    says(net.minimize(x, &rule).map(|_| ()), "no trainable variable");
    // A network without loss.
    let trainer = Trainer::new(net, SessionOptions::default()).unwrap();
    says(trainer.step(&[]).map(|_| ()), "minimize");
    // Steps that are far too large.
    let mut wild = line(&Optimizer::gradient_descent(1e30)).unwrap();
    let options = FitOptions {
        epochs: 9,
        ..Default::default()
    };
    says(
        wild.fit(&plane(), &options, &mut []).map(|_| ()),
        "smaller learning rate",
    );
    // Columns that do not fit.
    let columns = vec![
        ("x", Tensor::vector(&[1f32]).unwrap()),
        ("y", Tensor::vector(&[1f32, 2.0]).unwrap()),
    ];
    says(Dataset::new(columns).map(|_| ()), "has 2 rows");
}

#[test]
fn training_ends_when_nothing_gets_better() {
    let mut trainer = line(&Optimizer::gradient_descent(0.0)).unwrap();
    let options = FitOptions {
        epochs: 50,
        ..Default::default()
    };
    let mut stop = EarlyStop::new("error", false, 3);
    let history = trainer.fit(&plane(), &options, &mut [&mut stop]).unwrap();
    assert_eq!(
        history.len(),
        5,
        "one to be measured against, three that are waited for, one too many"
    );
}
