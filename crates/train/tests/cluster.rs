//! Training over the tasks of a cluster, whose servers are in this process.

use crate::tasks;

use ferroflow_base::Code;
use ferroflow_graph::Output;
use ferroflow_runtime::building::AttrValue;
use ferroflow_runtime::{
    DType, PartialShape, Result, SavedModel, SessionOptions, Signature, Tensor,
};
use ferroflow_testkit::folder::Folder;
use ferroflow_train::{
    Activation, Callback, Clip, Dataset, EpochReport, FitOptions, Goal, Network, Optimizer,
    StepReport, Tasks, Trainer,
};
use std::collections::BTreeSet;
use tasks::{Cluster, start};

const BATCH: usize = 6;

/// Keeps the loss of each step.
#[derive(Default)]
struct Losses(Vec<f32>);

impl Callback for Losses {
    fn step(&mut self, step: &StepReport) -> Result<Goal> {
        self.0.push(step.loss);
        Ok(Goal::Continue)
    }
}

/// Examples whose target is a smooth function of four numbers, and a number of a word.
fn examples(n: usize) -> Dataset {
    let x: Vec<f32> = (0..4 * n).map(|i| (i as f32 * 0.7).sin()).collect();
    let y = x.chunks(4).map(|x| x[0] * x[1] - 0.5 * x[2] + 0.2 * x[3]);
    let y: Vec<f32> = y.collect();
    let word: Vec<i64> = (0..n as i64).map(|i| i * i % 7).collect();
    Dataset::new(vec![
        ("x", Tensor::from_slice([n, 4], &x).unwrap()),
        ("y", Tensor::from_slice([n, 1], &y).unwrap()),
        ("word", Tensor::from_slice([n], &word).unwrap()),
    ])
    .unwrap()
}

/// Adds the guess of a network.
type Guess = fn(&mut Network, Output) -> Result<Output>;

fn dense(net: &mut Network, x: Output) -> Result<Output> {
    let hidden = net.dense("hidden", x, 16, Some(Activation::Tanh))?;
    net.dense("guess", hidden, 1, None)
}

/// Its gradient is sparse.
fn embedded(net: &mut Network, x: Output) -> Result<Output> {
    let word = net.input("word", DType::Int64, &[None])?;
    let meaning = net.embedding("meaning", word, 7, 4)?;
    let x = net.op("AddV2").input(x).input(meaning).output()?;
    dense(net, x)
}

/// Has a loop.
fn recurrent(net: &mut Network, x: Output) -> Result<Output> {
    let axis = net.builder().constant("axis", Tensor::scalar(2i32))?;
    let x = net.op("ExpandDims").input(x).input(axis).output()?;
    let last = net.lstm("lstm", x, 5)?.last;
    net.dense("guess", last, 1, None)
}

/// Trains for three epochs; returns the trainer, the loss of each step and the last epoch.
fn train(
    guess: Guess,
    optimizer: &Optimizer,
    tasks: Option<&Tasks>,
    (options, batch): (SessionOptions, usize),
) -> Result<(Trainer, Vec<f32>, EpochReport)> {
    let mut net = Network::new(5);
    let x = net.input("x", DType::Float, &[None, Some(4)])?;
    let y = net.input("y", DType::Float, &[None, Some(1)])?;
    let guess = guess(&mut net, x)?;
    net.name("answer", guess)?;
    let loss = net.mean_squared_error(guess, y)?;
    net.metric("error", loss)?;
    match tasks {
        None => drop(net.minimize(loss, optimizer)?),
        Some(tasks) => net.minimize_over(loss, optimizer, tasks)?,
    }
    let mut trainer = Trainer::new(net, options)?;
    let options = FitOptions {
        epochs: 3,
        batch,
        ..Default::default()
    };
    let mut losses = Losses::default();
    // The last batch of an epoch has a single example.
    let history = trainer.fit(&examples(49), &options, &mut [&mut losses])?;
    Ok((trainer, losses.0, history[2].clone()))
}

/// Compares `n` workers on batches of [`BATCH`] with one process on batches `n` times as large.
fn check(guess: Guess, optimizer: &Optimizer, n: usize, servers: usize) {
    let mut tasks = Tasks::of_job("worker", n);
    if servers > 0 {
        tasks = tasks.with_parameters("ps", servers);
    }
    let local = (SessionOptions::default(), n * BATCH);
    let (_, expected, last) = train(guess, optimizer, None, local).unwrap();
    let spread = (start(n, servers), BATCH);
    let (trainer, losses, of_last) = train(guess, optimizer, Some(&tasks), spread).unwrap();
    assert_eq!(losses.len(), expected.len());
    for (step, (loss, expected)) in losses.iter().zip(&expected).enumerate() {
        assert!((loss - expected).abs() < 1e-5, "{step}: {loss} {expected}");
    }
    let error = |report: &EpochReport| report.metrics[0].1;
    assert!((error(&last) - error(&of_last)).abs() < 1e-5);
    assert!(error(&last) < 0.9 * expected[0], "nothing was learned");
    assert_eq!(trainer.global_step().unwrap() as usize, losses.len());
}

#[test]
fn workers_train_as_one_on_their_batches_together() {
    let clipped = Optimizer::momentum(0.1, 0.9).with_clip(Clip::GlobalNorm(0.5));
    for optimizer in [Optimizer::adam(0.01), clipped] {
        for (n, servers) in [(2, 0), (4, 0), (2, 1), (4, 2)] {
            check(dense, &optimizer, n, servers);
        }
    }
}

#[test]
fn loops_and_sparse_gradients_are_divided_too() {
    let by_value = Optimizer::gradient_descent(0.2).with_clip(Clip::Value(0.3));
    check(embedded, &by_value, 2, 1);
    check(embedded, &Optimizer::adam(0.01), 2, 0);
    let by_norm = Optimizer::adam(0.01).with_clip(Clip::Norm(0.3));
    check(recurrent, &by_norm, 2, 0);
}

/// The tasks, such as `worker0`, that run nodes of an op in a training step.
fn tasks_of(trainer: &Trainer, op: &str) -> BTreeSet<String> {
    let signature = Signature {
        feeds: vec!["x".to_string(), "y".to_string()],
        fetches: vec!["loss".to_string()],
        targets: vec!["train".to_string()],
    };
    let parts = trainer.session().partition_graphs(&signature).unwrap();
    let nodes = parts.iter().flat_map(|p| &p.node).filter(|n| n.op == op);
    let task = |device: &str| {
        let mut parts = device.split(['/', ':']).skip(2);
        let job = parts.next().unwrap_or_default().to_string();
        job + parts.nth(3).unwrap_or_default()
    };
    nodes.map(|n| task(&n.device)).collect()
}

#[test]
fn each_task_has_its_part_of_a_step() {
    let adam = Optimizer::adam(0.01);
    let names = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<BTreeSet<_>>();
    let workers = names(&["worker0", "worker1"]);
    for (servers, parameters) in [(0, workers.clone()), (2, names(&["ps0", "ps1"]))] {
        let mut tasks = Tasks::of_job("worker", 2);
        if servers > 0 {
            tasks = tasks.with_parameters("ps", servers);
        }
        let spread = (start(2, servers), BATCH);
        let (trainer, ..) = train(dense, &adam, Some(&tasks), spread).unwrap();
        assert_eq!(tasks_of(&trainer, "TanhGrad"), workers);
        assert_eq!(tasks_of(&trainer, "ResourceApplyAdam"), parameters);
        assert_eq!(tasks_of(&trainer, "SplitV"), names(&["chief0"]));
    }
}

#[test]
fn workers_that_train_alone_learn() {
    let tasks = Tasks::of_job("worker", 3).with_parameters("ps", 1);
    let spread = (start(3, 1), BATCH);
    let adam = Optimizer::adam(0.01);
    let trained = train(dense, &adam, Some(&tasks.asynchronous()), spread);
    let (trainer, losses, last) = trained.unwrap();
    // Three epochs of nine batches.
    assert_eq!(losses.len(), 27);
    assert_eq!(trainer.global_step().unwrap(), 27);
    assert!(last.metrics[0].1 < 0.9 * losses[0], "{last:?}");
}

#[test]
fn what_a_cluster_has_learned_is_that_of_any_session() {
    let folder = Folder::new("cluster-checkpoint");
    let tasks = Tasks::of_job("worker", 2).with_parameters("ps", 2);
    let (spread, adam) = ((start(2, 2), BATCH), Optimizer::adam(0.01));
    let (trainer, _, last) = train(dense, &adam, Some(&tasks), spread).unwrap();
    trainer.save(&folder.0, 1).unwrap();
    let model = folder.0.join("model");
    trainer
        .export(&model, &[("x", "x:0")], &[("y", "answer:0")])
        .unwrap();

    let local = (SessionOptions::default(), BATCH);
    let (mut restored, ..) = train(dense, &adam, None, local).unwrap();
    restored.restore(&folder.0).unwrap();
    assert_eq!(restored.evaluate(&examples(49), 256).unwrap(), last.metrics);
    let batch = examples(3).gather(&[0, 1, 2]).unwrap();
    let x = batch[0].1.clone();
    let expected = restored
        .session()
        .run(&[("x:0", x.clone())], &["answer:0"], &[])
        .unwrap();
    let model = SavedModel::open(&model, &["serve"], SessionOptions::default()).unwrap();
    let answer = model.run("serving_default", &[("x", x)]).unwrap();
    let (answer, expected) = (answer[0].1.slice::<f32>(), expected[0].slice::<f32>());
    assert_eq!(answer.unwrap(), expected.unwrap());
}

#[test]
fn a_stopped_callback_and_errors_end_all_workers() {
    struct Stop;
    impl Callback for Stop {
        fn step(&mut self, step: &StepReport) -> Result<Goal> {
            Ok(if step.step < 5 {
                Goal::Continue
            } else {
                Goal::Stop
            })
        }
    }
    let tasks = Tasks::of_job("worker", 2).asynchronous();
    let spread = (start(2, 0), 1);
    let adam = Optimizer::adam(0.01);
    let (mut trainer, ..) = train(dense, &adam, Some(&tasks), spread).unwrap();
    let options = FitOptions {
        batch: 1,
        ..Default::default()
    };
    let before = trainer.global_step().unwrap();
    trainer
        .fit(&examples(40), &options, &mut [&mut Stop])
        .unwrap();
    // The other worker may have taken a step or two meanwhile.
    assert!(trainer.global_step().unwrap() < before + 10);
    let wrong = Dataset::new(vec![("x", Tensor::from_slice([2, 3], &[0f32; 6]).unwrap())]);
    let failed = trainer.fit(&wrong.unwrap(), &options, &mut []);
    assert_eq!(failed.unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn training_continues_after_a_task_was_lost() {
    let folder = Folder::new("cluster-restart");
    let adam = Optimizer::adam(0.01);
    let tasks = Tasks::of_job("worker", 2);
    let mut cluster = Cluster::new(2, 0);
    let spread = (cluster.options(), BATCH);
    let (mut trainer, _, last) = train(dense, &adam, Some(&tasks), spread).unwrap();
    trainer.save(&folder.0, 1).unwrap();
    let step = trainer.global_step().unwrap();
    cluster.stop("worker", 1);
    let failed = trainer.fit(&examples(49), &FitOptions::default(), &mut []);
    let code = failed.unwrap_err().code();
    assert!(
        matches!(code, Code::Unavailable | Code::Aborted),
        "{code:?}"
    );
    drop(trainer);
    cluster.restart("worker", 1);
    let spread = (cluster.options(), BATCH);
    let (mut trainer, ..) = train(dense, &adam, Some(&tasks), spread).unwrap();
    assert_eq!(trainer.restore(&folder.0).unwrap(), Some(step));
    assert_eq!(trainer.evaluate(&examples(49), 256).unwrap(), last.metrics);
}

/// Each worker fills its table, which lists the words of a file.
#[test]
fn workers_have_tables_of_their_own() {
    let folder = Folder::new("cluster-tables");
    let file = folder.0.join("words.txt");
    std::fs::write(&file, "sun\nmoon\nstar\n").unwrap();
    let run = |tasks: Option<&Tasks>, options| {
        let mut net = Network::new(1);
        let path = net.asset(&file)?;
        let table = net
            .op("HashTableV2")
            .attr("key_dtype", AttrValue::Type(DType::String))
            .attr("value_dtype", AttrValue::Type(DType::Int64))
            .output()?;
        let fill = net.op("InitializeTableFromTextFileV2");
        let fill = fill.input(table).input(path);
        let fill = fill.attr("key_index", AttrValue::Int(-2));
        let fill = fill.attr("value_index", AttrValue::Int(-1)).build()?;
        net.table_initializer(fill);
        let none = net.builder().constant("none", Tensor::scalar(-1i64))?;
        let words = net.input("words", DType::String, &[None])?;
        let ids = net.op("LookupTableFindV2").input(table);
        let ids = ids.input(words).input(none).output()?;
        let shape = AttrValue::Shape(PartialShape::of([None]));
        let ids = net.op("EnsureShape").input(ids).attr("shape", shape);
        let ids = ids.output()?;
        let meaning = net.embedding("meaning", ids, 3, 2)?;
        let zero = net.op("ZerosLike").input(meaning).output()?;
        let loss = net.mean_squared_error(meaning, zero)?;
        let descent = Optimizer::gradient_descent(0.5);
        match tasks {
            None => drop(net.minimize(loss, &descent)?),
            Some(tasks) => net.minimize_over(loss, &descent, tasks)?,
        }
        let trainer = Trainer::new(net, options)?;
        let words = ["moon", "sun", "star", "moon"].map(|w| w.as_bytes().to_vec().into());
        let words = Tensor::from_strings([4], words.to_vec());
        let batch = [("words".to_string(), words?)];
        (0..3)
            .map(|_| trainer.step(&batch))
            .collect::<Result<Vec<f32>>>()
    };
    let expected = run(None, SessionOptions::default()).unwrap();
    let tasks = Tasks::of_job("worker", 2);
    let losses = run(Some(&tasks), start(2, 0)).unwrap();
    for (loss, expected) in losses.iter().zip(&expected) {
        assert!((loss - expected).abs() < 1e-5, "{loss} {expected}");
    }
    assert!(losses[2] < losses[0]);
}

#[test]
fn workers_draw_numbers_of_their_own() {
    let mut net = Network::new(3);
    let x = net.input("x", DType::Float, &[None, Some(4)]).unwrap();
    let layer = net.dense("layer", x, 50, None).unwrap();
    let dropped = net.dropout(layer, 0.5).unwrap();
    let loss = net.mean_squared_error(dropped, layer).unwrap();
    let descent = Optimizer::gradient_descent(1e-3);
    let tasks = Tasks::of_job("worker", 2);
    net.minimize_over(loss, &descent, &tasks).unwrap();
    let trainer = Trainer::new(net, start(2, 0)).unwrap();
    let kept: Vec<String> = {
        let graph = trainer.session().graph();
        let nodes = graph.iter().map(|(_, node)| &node.name);
        let of_workers = nodes.filter(|n| n.contains("worker_") && n.ends_with("/GreaterEqual"));
        of_workers.map(|name| format!("{name}:0")).collect()
    };
    assert_eq!(kept.len(), 2);
    let feeds = [
        ("x:0", Tensor::from_slice([8, 4], &[1f32; 32]).unwrap()),
        ("training:0", Tensor::scalar(true)),
    ];
    let fetches: Vec<&str> = kept.iter().map(String::as_str).collect();
    let kept = trainer.session().run(&feeds, &fetches, &["train"]).unwrap();
    let kept: Vec<&[bool]> = kept.iter().map(|k| k.slice().unwrap()).collect();
    assert_ne!(kept[0], kept[1]);
}

/// The error of training over these tasks, in a session on its own.
fn refused(tasks: &Tasks, fed: bool) -> String {
    let mut net = Network::new(1);
    let (x, y) = match fed {
        true => (
            net.input("x", DType::Float, &[None, Some(4)]).unwrap(),
            net.input("y", DType::Float, &[None, Some(1)]).unwrap(),
        ),
        false => {
            let ones = |n| Tensor::from_slice([2, n], &vec![1f32; 2 * n]).unwrap();
            let (x, y) = (ones(4), ones(1));
            let mut constant = |t: Tensor| net.builder().constant("ones", t).unwrap();
            (constant(x), constant(y))
        }
    };
    let guess = dense(&mut net, x).unwrap();
    let loss = net.mean_squared_error(guess, y).unwrap();
    let minimized = net.minimize_over(loss, &Optimizer::adam(0.01), tasks);
    let made = minimized.and_then(|()| Trainer::new(net, start(1, 0)));
    made.map(|_| ()).unwrap_err().message().to_string()
}

#[test]
fn tasks_that_cannot_train_are_refused() {
    let none = refused(&Tasks::of_job("worker", 0), true);
    assert!(none.contains("at least one worker"), "{none}");
    let homeless = Tasks::of_job("worker", 1).with_parameters("ps", 0);
    let homeless = refused(&homeless, true);
    assert!(homeless.contains("that has the variables"), "{homeless}");
    let unfed = refused(&Tasks::of_job("worker", 2), false);
    assert!(unfed.contains("no batch to divide"), "{unfed}");
    let missing = refused(&Tasks::of_job("worker", 2), true);
    assert!(missing.contains("/job:worker/task:1"), "{missing}");
}

#[test]
fn one_process_runs_the_graph_of_many() {
    // Without devices the requests of nodes do not count.
    let tasks = Tasks::of_job("worker", 4);
    let adam = Optimizer::adam(0.01);
    let (_, expected, _) = train(dense, &adam, None, (SessionOptions::default(), 12)).unwrap();
    let trained = train(dense, &adam, Some(&tasks), (SessionOptions::default(), 3));
    for (loss, expected) in trained.unwrap().1.iter().zip(&expected) {
        assert!((loss - expected).abs() < 1e-5, "{loss} {expected}");
    }
}
