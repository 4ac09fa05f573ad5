//! Training through the public API: every rule learns, checkpoints restore everything, models are
//! served.

use crate::plane;
use crate::written;

use ferroflow_model::proto::{Event, GraphDef, event::What, summary::value::Value};
use ferroflow_model::{RecordCompression, RecordReader, decode};
use ferroflow_runtime::{DType, Result, SavedModel, SessionOptions, Tensor};
use ferroflow_train::{
    Clip, Dataset, EarlyStop, FitOptions, LearningRateSchedule, Network, Optimizer, Rule, Trainer,
};
use plane::{Folder, fit, line, plane};
use written::{board, dropping, reader_of, write_vocabulary};

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
            Rule::AdagradV2 {
                initial: 0.1,
                epsilon,
            },
            0.5,
        ),
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
                l2_shrinkage: 0.0,
                power: -0.5,
            },
            1.0,
        ),
        (
            Rule::Ftrl {
                initial: 0.1,
                l1: 0.0,
                l2: 0.0,
                l2_shrinkage: 1e-4,
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
        LearningRateSchedule::Exponential {
            initial: 0.2,
            steps: 100.0,
            decay: 0.5,
            staircase: true,
        },
        LearningRateSchedule::Polynomial {
            initial: 0.2,
            end: 0.01,
            steps: 200.0,
            power: 2.0,
            cycle: false,
        },
        LearningRateSchedule::Cosine {
            initial: 0.2,
            steps: 200.0,
            alpha: 0.1,
        },
        LearningRateSchedule::InverseTime {
            initial: 0.2,
            steps: 100.0,
            decay: 0.5,
            staircase: false,
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

/// Rows of a table that are not selected do not change (except for Adam's averages), selected ones
/// learn.
#[test]
fn sparse_gradients_learn() {
    for (rule, rate) in rules() {
        let mut net = Network::new(5);
        let ids = net.input("ids", DType::Int32, &[None]).unwrap();
        let y = net.input("y", DType::Float, &[None, Some(2)]).unwrap();
        let rows = net.embedding("table", ids, 10, 2).unwrap();
        let loss = net.mean_squared_error(rows, y).unwrap();
        net.metric("error", loss).unwrap();
        net.minimize(loss, &Optimizer::new(rule, rate)).unwrap();
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
    // A loss without variables.
    let mut net = Network::new(1);
    let x = net.input("x", DType::Float, &[]).unwrap();
    let rule = Optimizer::gradient_descent(0.1);
    says(net.minimize(x, &rule).map(|_| ()), "no trainable variable");
    // A network without a loss.
    let trainer = Trainer::new(net, SessionOptions::default()).unwrap();
    says(trainer.step(&[]).map(|_| ()), "minimize");
    // Far too large steps.
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
        4,
        "one to be measured against, three that are waited for"
    );
}

/// A network whose layer drops half of its values, on rows of ones.
#[test]
fn dropout_drops_in_training_only() {
    let mut trainer = dropping();
    let x = Tensor::from_slice([8, 4], &[1f32; 32]).unwrap();
    let data = Dataset::new(vec![("x", x.clone())]).unwrap();
    assert_eq!(trainer.evaluate(&data, 8).unwrap()[0].1, 0.0);
    let history = trainer.fit(&data, &FitOptions::default(), &mut []).unwrap();
    assert!(history[0].loss > 0.0, "{history:?}");
    assert_eq!(history[0].metrics[0].1, 0.0);

    let feeds = [("x:0", x), ("training:0", Tensor::scalar(true))];
    let names = ["dropped:0", "layer/bias/Read/ReadVariableOp:0"];
    let dropped = trainer.session().run(&feeds, &names, &[]).unwrap();
    let values = dropped[0].slice::<f32>().unwrap();
    let zeros = values.iter().filter(|v| **v == 0.0).count();
    assert!((150..250).contains(&zeros), "{zeros} of 400");
    let again = trainer.session().run(&feeds, &names, &[]).unwrap();
    assert_ne!(again[0].slice::<f32>().unwrap(), values);

    let mut net = Network::new(1);
    let x = net.input("x", DType::Float, &[None, Some(4)]).unwrap();
    for rate in [-0.1, 1.0, f32::NAN] {
        let error = net.dropout(x, rate).unwrap_err().to_string();
        assert!(error.contains("in the range [0, 1)"), "{error}");
    }
}

/// Trains into `folder`; the file.
#[test]
fn a_run_is_a_file_of_events() {
    let folder = Folder::new("board");
    let file = board(&folder.0);
    let records = RecordReader::open(&file, RecordCompression::None).unwrap();
    let events: Vec<Event> = records.map(|r| decode(&r.unwrap()).unwrap()).collect();
    let Some(What::GraphDef(graph)) = &events[1].what else {
        panic!("no graph: {:?}", events[1])
    };
    let graph: GraphDef = decode(graph).unwrap();
    assert!(graph.node.iter().any(|n| n.name == "line/kernel"));
    let mut scalars = Vec::new();
    for event in &events {
        if let Some(What::Summary(summary)) = &event.what {
            for value in &summary.value {
                if let Some(Value::SimpleValue(x)) = value.value {
                    scalars.push((event.step, value.tag.as_str(), x));
                }
            }
        }
    }
    let steps = |tag: &str| -> Vec<i64> {
        let of_tag = scalars.iter().filter(|(_, t, _)| *t == tag);
        of_tag.map(|(step, ..)| *step).collect()
    };
    let rates = scalars.iter().filter(|(_, tag, _)| *tag == "learning_rate");
    let rates: Vec<f32> = rates.map(|(.., rate)| *rate).collect();
    assert_eq!(rates, [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]);
    for tag in ["loss", "learning_rate", "steps_per_second"] {
        assert_eq!(steps(tag), [2, 4, 6, 8, 10, 12], "{tag}");
    }
    for tag in ["epoch_loss", "epoch_error"] {
        assert_eq!(steps(tag), [4, 8, 12], "{tag}");
    }
}

#[test]
fn a_model_brings_its_files_along() {
    let folder = Folder::new("assets");
    let model = write_vocabulary(&folder.0);
    let elsewhere = folder.0.join("elsewhere");
    std::fs::rename(&model, &elsewhere).unwrap();
    let served = SavedModel::open(&elsewhere, &["serve"], SessionOptions::default()).unwrap();
    let words = ["moon", "sun", "earth"].map(|w| w.as_bytes().to_vec().into());
    let words = Tensor::from_strings([3], words.to_vec()).unwrap();
    let out = served.run("serving_default", &[("words", words)]).unwrap();
    assert_eq!(out[0].0, "ids");
    assert_eq!(out[0].1.slice::<i64>().unwrap(), [1, 0, -1]);
    assert_eq!(out[1].1.to_scalar::<f32>().unwrap(), 0.5);
}

#[test]
fn a_model_that_cannot_be_written_is_not_in_the_way() {
    let folder = Folder::new("no-export");
    std::fs::create_dir_all(&folder.0).unwrap();
    let words = folder.0.join("words.txt");
    std::fs::write(&words, "sun\nmoon\n").unwrap();
    let trainer = reader_of(&words);
    let outputs = [("ids", "ids:0")];
    for existed in [false, true] {
        let model = folder.0.join(format!("model-{existed}"));
        if existed {
            std::fs::create_dir(&model).unwrap();
        }
        let export = || trainer.export(&model, &[("words", "words:0")], &outputs);
        std::fs::remove_file(&words).unwrap();
        export().expect_err("no asset");
        assert_eq!(model.exists(), existed);
        std::fs::write(&words, "sun\nmoon\n").unwrap();
        export().unwrap();
    }
}
