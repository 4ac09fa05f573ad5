//! Errors of training, and state after them; examples from record files.

use crate::plane;

use ferroflow_model::proto::{
    BytesList, Example, Feature, Features, FloatList, Int64List, feature::Kind,
};
use ferroflow_model::{RecordCompression, RecordWriter, encode};
use ferroflow_runtime::{Code, DType, SessionOptions, Shape, Tensor};
use ferroflow_train::{
    Callback, Clip, EarlyStop, EpochReport, Examples, FitOptions, Goal, LearningRateSchedule,
    Network, Optimizer, Records, Rule, Trainer,
};
use plane::{Folder, fit, line, plane};
use std::path::PathBuf;

/// Parameters that TensorFlow's optimizers reject, with its messages if it has any.
#[test]
fn rules_and_rates_are_checked() {
    let check = |optimizer: Optimizer, part: &str| {
        let error = line(&optimizer).err().expect(part).to_string();
        assert!(error.contains(part), "{error}");
        assert!(error.starts_with("INVALID_ARGUMENT"), "{error}");
    };
    let rule = |rule: Rule, part: &str| check(Optimizer::new(rule, 0.1), part);
    let ftrl = |initial: f32, power: f32, l1: f32, l2: f32, l2_shrinkage: f32| Rule::Ftrl {
        initial,
        l1,
        l2,
        l2_shrinkage,
        power,
    };
    for (bad, part) in [
        (
            ftrl(-0.5, -0.5, 0.0, 0.0, 0.0),
            "initial_accumulator_value -0.500000 needs to be positive or zero",
        ),
        (
            ftrl(0.1, 0.5, 0.0, 0.0, 0.0),
            "learning_rate_power 0.500000 needs to be negative or zero",
        ),
        (
            ftrl(0.1, -0.5, -1.0, 0.0, 0.0),
            "l1_regularization_strength -1.000000 needs to be positive or zero",
        ),
        (
            ftrl(0.1, -0.5, 0.0, f32::NAN, 0.0),
            "l2_regularization_strength NaN needs to be positive or zero",
        ),
        (
            ftrl(0.1, -0.5, 0.0, 0.0, -2.0),
            "l2_shrinkage_regularization_strength -2.000000 needs to be positive or zero",
        ),
        (
            Rule::Adagrad { initial: 0.0 },
            "initial_accumulator_value must be positive: 0.0",
        ),
        (
            Rule::Momentum {
                momentum: 1.5,
                nesterov: false,
            },
            "`momentum` must be between [0, 1]",
        ),
        (
            Rule::Adam {
                beta1: -0.1,
                beta2: 0.9,
                epsilon: 1e-8,
            },
            "`beta_1` must be between [0, 1]",
        ),
        (
            Rule::Adadelta {
                rho: 0.9,
                epsilon: f32::INFINITY,
            },
            "epsilon inf needs to be positive or zero",
        ),
    ] {
        rule(bad, part);
    }
    let rate = |rate: LearningRateSchedule, part: &str| {
        check(Optimizer::new(Rule::GradientDescent, rate), part)
    };
    let (boundaries, values) = (vec![3, 2], vec![1.0, 0.5, 0.1]);
    rate(
        LearningRateSchedule::Piecewise { boundaries, values },
        "must increase",
    );
    let (boundaries, values) = (vec![3], vec![1.0]);
    rate(
        LearningRateSchedule::Piecewise { boundaries, values },
        "The length of boundaries should be 1 less than the length of values",
    );
    let (initial, steps, alpha) = (0.1, 0.0, 0.0);
    rate(
        LearningRateSchedule::Cosine {
            initial,
            steps,
            alpha,
        },
        "cannot change over 0.0 steps",
    );
    let plain = Optimizer::gradient_descent(0.1);
    let part = "clip_norm should be positive: -1.0";
    check(plain.clone().with_clip(Clip::Norm(-1.0)), part);
    check(
        plain.with_clip(Clip::GlobalNorm(f32::NAN)),
        "clip_norm should be positive: NaN",
    );
}

#[test]
fn names_that_training_needs_and_losses_that_are_none() {
    let check = |name: &str, as_loss: bool, part: &str| {
        let mut net = Network::new(1);
        let made = || -> ferroflow_runtime::Result<Trainer> {
            let x = net.input("x", DType::Float, &[None, Some(1)])?;
            net.input(name, DType::Float, &[None, Some(1)])?;
            let guess = net.dense("fit", x, 1, None)?;
            let loss = match as_loss {
                true => guess,
                false => net.mean_squared_error(guess, x)?,
            };
            net.training()?;
            net.minimize(loss, &Optimizer::gradient_descent(0.1))?;
            Trainer::new(net, SessionOptions::default())
        };
        let error = { made }().err().expect(part).to_string();
        assert!(error.contains(part), "{error}");
    };
    check("y", true, "the loss must be a scalar, but");
    for name in ["loss", "learning_rate", "train", "init", "training", "x"] {
        let part = format!("ALREADY_EXISTS: a node '{name}' already exists");
        check(name, false, &part);
    }
}

#[test]
fn a_metric_that_is_not_there_or_no_number() {
    let options = FitOptions {
        epochs: 9,
        ..Default::default()
    };
    let mut trainer = line(&Optimizer::gradient_descent(0.1)).unwrap();
    let mut stop = EarlyStop::new("eror", false, 3);
    let error = trainer.fit(&plane(), &options, &mut [&mut stop]);
    let error = error.unwrap_err().to_string();
    for part in ["`eror`", "Available metrics are: loss,error"] {
        assert!(error.contains(part), "{error}");
    }
    let mut stop = EarlyStop::new("loss", false, 100);
    trainer.fit(&plane(), &options, &mut [&mut stop]).unwrap();
    // NaN is never the best.
    let mut stop = EarlyStop::new("error", false, 1);
    let mut goals = Vec::new();
    let values = [f32::NAN, 3.0, 2.0, f32::NAN, f32::NAN, 1.0];
    for (epoch, value) in values.into_iter().enumerate() {
        let epoch = EpochReport {
            epoch,
            step: 0,
            loss: 0.0,
            metrics: vec![("error".to_string(), value)],
        };
        goals.push(stop.epoch(&epoch).unwrap() == Goal::Stop);
    }
    assert_eq!(goals, [false, false, false, true, true, false]);
    // Another call of `fit` starts anew.
    stop.begin();
    let worse = EpochReport {
        epoch: 9,
        step: 0,
        loss: 0.0,
        metrics: vec![("error".to_string(), 5.0)],
    };
    assert_eq!(stop.epoch(&worse).unwrap(), Goal::Continue);
}

/// A loss whose gradient needs no variable: a step still fetches values from before the update.
#[test]
fn a_step_reads_before_it_writes() {
    let mut net = Network::new(1);
    let x = net.input("x", DType::Float, &[None]).unwrap();
    let start = net
        .builder()
        .constant("start", Tensor::scalar(1f32))
        .unwrap();
    let w = net.variable("w", start, Shape::scalar()).unwrap();
    let mut y = net.op("Mul").input(x).input(w.value).output().unwrap();
    for _ in 0..20 {
        y = net.op("Identity").input(y).output().unwrap();
    }
    let axis = net
        .builder()
        .constant("axis", Tensor::vector(&[0i32]).unwrap());
    let loss = net
        .op("Sum")
        .input(y)
        .input(axis.unwrap())
        .output()
        .unwrap();
    net.minimize(loss, &Optimizer::gradient_descent(0.5))
        .unwrap();
    let trainer = Trainer::new(net, SessionOptions::default()).unwrap();
    let batch = [("x".to_string(), Tensor::vector(&[1f32]).unwrap())];
    for step in 0..200 {
        assert_eq!(trainer.step(&batch).unwrap(), 1.0 - 0.5 * step as f32);
    }
}

#[test]
fn the_last_checkpoints_stay() {
    let folder = Folder::new("keep");
    let mut trainer = line(&Optimizer::gradient_descent(0.1)).unwrap();
    for _ in 0..4 {
        fit(&mut trainer, 1);
        trainer.save(&folder.0, 2).unwrap();
    }
    let mut names: Vec<String> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let files = |n: i32| [".data-00000-of-00001", ".index"].map(|s| format!("model.ckpt-{n}{s}"));
    let mut expected = vec!["checkpoint".to_string()];
    expected.extend(files(12));
    expected.extend(files(16));
    assert_eq!(names, expected);
}

#[test]
fn checkpoints_that_do_not_fit() {
    let folder = Folder::new("fit");
    let trainer = line(&Optimizer::gradient_descent(0.1)).unwrap();
    trainer.save(&folder.0, 1).unwrap();
    let other = |dtype: DType, width: usize, name: &str| {
        let mut net = Network::new(1);
        let initial = Tensor::zeros(dtype, Shape::from([width, 1])).unwrap();
        net.state(name, initial).unwrap();
        let mut trainer = Trainer::new(net, SessionOptions::default()).unwrap();
        let error = trainer.restore(&folder.0).expect_err("another variable");
        // The session stays usable.
        assert_eq!(trainer.global_step().unwrap(), 0);
        error
    };
    for (error, code, parts) in [
        (
            other(DType::Float, 3, "line/kernel"),
            Code::InvalidArgument,
            ["line/kernel", "[3,1]", "[2,1]"],
        ),
        (
            other(DType::Double, 2, "line/kernel"),
            Code::InvalidArgument,
            ["line/kernel", "double", "float"],
        ),
        (
            other(DType::Float, 2, "curve/kernel"),
            Code::NotFound,
            ["curve/kernel", "not found", "checkpoint"],
        ),
    ] {
        assert_eq!(error.code(), code, "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }
}

/// A folder below a file cannot be created.
#[test]
fn what_cannot_be_written_is_said() {
    let folder = Folder::new("file");
    std::fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("below");
    let mut trainer = line(&Optimizer::gradient_descent(0.1)).unwrap();
    let (inputs, outputs) = ([("x", "x:0")], [("y", "guess:0")]);
    for error in [
        trainer.save(&below, 3).unwrap_err(),
        trainer.export(&below, &inputs, &outputs).unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert!(error.to_string().contains("file"), "{error}");
    }
    fit(&mut trainer, 1);
    trainer.save(&folder.0, 3).unwrap();
}

/// Points of a plane in three files; the last example has no weight.
fn files(folder: &Folder, compression: RecordCompression) -> Vec<PathBuf> {
    std::fs::create_dir_all(&folder.0).unwrap();
    let feature = |kind: Kind| Feature { kind: Some(kind) };
    let floats = |value: Vec<f32>| feature(Kind::FloatList(FloatList { value }));
    let mut n = 0;
    [20, 0, 15]
        .iter()
        .enumerate()
        .map(|(i, size)| {
            let path = folder.0.join(format!("part-{i}"));
            let mut writer = RecordWriter::create(&path, compression).unwrap();
            for _ in 0..*size {
                let (a, b) = ((n % 7) as f32 / 3.0 - 1.0, (n % 5) as f32 / 2.0 - 1.0);
                let id = Int64List { value: vec![n] };
                let name = BytesList {
                    value: vec![format!("example {n}").into_bytes().into()],
                };
                let mut feature = std::collections::HashMap::from([
                    ("x".to_string(), floats(vec![a, b])),
                    ("y".to_string(), floats(vec![2.0 * a - b + 0.5])),
                    ("id".to_string(), feature(Kind::Int64List(id))),
                    ("name".to_string(), feature(Kind::BytesList(name))),
                ]);
                if n < 34 {
                    feature.insert("weight".to_string(), floats(vec![2.0]));
                }
                let features = Some(Features { feature });
                writer.write(&encode(&Example { features })).unwrap();
                n += 1;
            }
            writer.finish().unwrap();
            path
        })
        .collect()
}

/// Returns the ids of the examples in the order they come in, and the sizes of the batches.
fn order(records: &Records, batch: usize, seed: Option<u64>) -> (Vec<i64>, Vec<usize>) {
    let (mut ids, mut sizes) = (Vec::new(), Vec::new());
    for batch in records.batches(batch, seed) {
        let batch = batch.unwrap();
        let column = |name: &str| &batch.iter().find(|(n, _)| n == name).unwrap().1;
        let of_batch = column("id").slice::<i64>().unwrap();
        let names = column("name").strings().unwrap();
        assert_eq!(names.len(), of_batch.len());
        for (id, name) in of_batch.iter().zip(names) {
            assert_eq!(&name[..], format!("example {id}").as_bytes());
        }
        ids.extend(of_batch);
        sizes.push(of_batch.len());
    }
    (ids, sizes)
}

#[test]
fn records_come_in_batches() {
    for compression in [
        RecordCompression::None,
        RecordCompression::Zlib,
        RecordCompression::Gzip,
    ] {
        let folder = Folder::new(&format!("records-{compression:?}"));
        let files = files(&folder, compression);
        let records = Records::compressed(&files, compression).unwrap();
        let records = records.feature("id", DType::Int64, &[]).unwrap();
        let records = records.feature("name", DType::String, &[]).unwrap();
        assert_eq!(records.len(), 35);
        let (ids, sizes) = order(&records, 8, None);
        assert_eq!(ids, (0..35).collect::<Vec<_>>());
        assert_eq!(sizes, [8, 8, 8, 8, 3]);
        // Shuffled: all examples, in the same order for the same seed, across files and beyond the
        // buffer.
        for buffer in [1, 4, 100] {
            let records = records.clone().shuffle_buffer(buffer);
            let (one, two) = (order(&records, 8, Some(1)).0, order(&records, 8, Some(2)).0);
            assert_eq!(order(&records, 8, Some(1)).0, one);
            assert_ne!(one, two);
            let mut sorted = one.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, ids);
        }
        // A reader without a receiver ends.
        drop(records.batches(1, None));
    }
}

#[test]
fn records_train() {
    let folder = Folder::new("records-train");
    let files = files(&folder, RecordCompression::None);
    let records = Records::open(&files).unwrap();
    let records = records.feature("x", DType::Float, &[2]).unwrap();
    let records = records.feature("y", DType::Float, &[1]).unwrap();
    let mut trainer = line(&Optimizer::gradient_descent(0.2)).unwrap();
    let options = FitOptions {
        epochs: 60,
        batch: 8,
        ..Default::default()
    };
    let history = trainer.fit(&records, &options, &mut []).unwrap();
    assert!(history.last().unwrap().metrics[0].1 < 0.01, "{history:?}");
    assert_eq!(trainer.global_step().unwrap(), 300);
    // `map` renames and changes inputs.
    let halved = records.map(|batch| {
        batch
            .into_iter()
            .map(|(name, t)| {
                let values: Vec<f32> = t.slice::<f32>()?.iter().map(|v| v / 2.0).collect();
                Ok((name, Tensor::from_slice(t.shape().clone(), &values)?))
            })
            .collect()
    });
    let error = trainer.evaluate(&halved, 35).unwrap()[0].1;
    assert!(error > 0.01, "{error}");
}

#[test]
fn records_that_do_not_fit() {
    let folder = Folder::new("records-bad");
    let files = files(&folder, RecordCompression::None);
    let open = || Records::open(&files).unwrap();
    let check = |records: Records, code: Code, part: &str| {
        let error = records.batches(100, None).find_map(Result::err);
        let error = error.expect(part);
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    let weight = open().feature("weight", DType::Float, &[]).unwrap();
    check(weight, Code::InvalidArgument, "weight");
    let wide = open().feature("x", DType::Float, &[3]).unwrap();
    check(wide, Code::InvalidArgument, "x");
    let whole = open().feature("x", DType::Int64, &[2]).unwrap();
    check(whole, Code::InvalidArgument, "x");
    check(open(), Code::InvalidArgument, "no features");
    let failed = open().feature("id", DType::Int64, &[]).unwrap();
    let failed = failed.map(|_| Err(ferroflow_base::data_loss!("not today")));
    check(failed, Code::DataLoss, "not today");
    let broken = open().feature("id", DType::Int64, &[]).unwrap();
    let broken = broken.map(|_| panic!("not today either"));
    check(broken, Code::Internal, "not today either");
    let default = open().feature_or("weight", Tensor::scalar(7f32)).unwrap();
    let last = default.batches(35, None).last().unwrap().unwrap();
    let last = last[0].1.slice::<f32>().unwrap();
    assert_eq!((last[33], last[34]), (2.0, 7.0));
    let error = open().feature("x", DType::Double, &[]).err().unwrap();
    assert!(error.to_string().contains("cannot be double"), "{error}");
    let twice = open().feature("x", DType::Float, &[2]).unwrap();
    let error = twice.feature("x", DType::Float, &[2]).err().unwrap();
    assert!(error.to_string().contains("selected twice"), "{error}");
    // A flipped bit, a truncated file, a missing file.
    let bytes = std::fs::read(&files[2]).unwrap();
    let mut flipped = bytes.clone();
    flipped[200] ^= 1;
    for bad in [&flipped[..], &bytes[..bytes.len() - 3]] {
        std::fs::write(&files[2], bad).unwrap();
        let error = Records::open(&files).err().unwrap();
        assert_eq!(error.code(), Code::DataLoss, "{error}");
        assert!(error.to_string().contains("part-2"), "{error}");
    }
    let error = Records::open(&[folder.0.join("none")]).err().unwrap();
    assert_eq!(error.code(), Code::NotFound, "{error}");
}
