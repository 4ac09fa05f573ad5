//! Models and events that both the tests and `examples/write_training_for_tensorflow.rs` write.

use crate::plane::{line, plane};
use ferroflow_runtime::building::AttrValue;
use ferroflow_runtime::{DType, SessionOptions, Tensor};
use ferroflow_train::{
    FitOptions, LearningRateSchedule, Network, Optimizer, Rule, TensorBoard, Trainer,
};
use std::path::{Path, PathBuf};

pub fn dropping() -> Trainer {
    let mut net = Network::new(3);
    let x = net.input("x", DType::Float, &[None, Some(4)]).unwrap();
    let layer = net.dense("layer", x, 50, None).unwrap();
    let dropped = net.dropout(layer, 0.5).unwrap();
    net.name("dropped", dropped).unwrap();
    let loss = net.mean_squared_error(dropped, layer).unwrap();
    net.metric("difference", loss).unwrap();
    net.minimize(loss, &Optimizer::gradient_descent(1e-3))
        .unwrap();
    Trainer::new(net, SessionOptions::default()).unwrap()
}

pub fn board(folder: &Path) -> PathBuf {
    let rate = LearningRateSchedule::Exponential {
        initial: 0.1,
        steps: 4.0,
        decay: 0.5,
        staircase: true,
    };
    let rule = Optimizer::new(Rule::GradientDescent, rate);
    let mut trainer = line(&rule).unwrap();
    let mut board = TensorBoard::create(folder, &trainer).unwrap().every(2);
    let options = FitOptions {
        epochs: 3,
        batch: 16,
        ..Default::default()
    };
    trainer.fit(&plane(), &options, &mut [&mut board]).unwrap();
    board.path().to_path_buf()
}

/// Returns a network that looks up words of a file.
pub fn reader_of(file: &Path) -> Trainer {
    let mut net = Network::new(1);
    let path = net.asset(file).unwrap();
    let table = net
        .op("HashTableV2")
        .attr("key_dtype", AttrValue::Type(DType::String))
        .attr("value_dtype", AttrValue::Type(DType::Int64))
        .attr("shared_name", AttrValue::str("words"))
        .output()
        .unwrap();
    // Keys are whole lines, values are line numbers.
    let fill = net
        .op("InitializeTableFromTextFileV2")
        .input(table)
        .input(path)
        .attr("key_index", AttrValue::Int(-2))
        .attr("value_index", AttrValue::Int(-1))
        .build()
        .unwrap();
    net.table_initializer(fill);
    let words = net.input("words", DType::String, &[None]).unwrap();
    let none = net
        .builder()
        .constant("none", Tensor::scalar(-1i64))
        .unwrap();
    let ids = net.op("LookupTableFindV2").input(table).input(words);
    let ids = ids.input(none).output().unwrap();
    net.name("ids", ids).unwrap();
    let shift = net.state("shift", Tensor::scalar(0.5f32)).unwrap();
    net.name("shifted", shift.value).unwrap();
    Trainer::new(net, SessionOptions::default()).unwrap()
}

/// Writes a model with a vocabulary into `folder`/model.
pub fn write_vocabulary(folder: &Path) -> PathBuf {
    std::fs::create_dir_all(folder).unwrap();
    let words = folder.join("words.txt");
    std::fs::write(&words, "sun\nmoon\nstar\n").unwrap();
    let model = folder.join("model");
    let outputs = [("ids", "ids:0"), ("shift", "shifted:0")];
    let trainer = reader_of(&words);
    trainer
        .export(&model, &[("words", "words:0")], &outputs)
        .unwrap();
    std::fs::remove_file(&words).unwrap();
    model
}
