//! Long training takes constant memory.

use ferroflow_runtime::{DType, SessionOptions, Tensor};
use ferroflow_testkit::memory::peak_kib;
use ferroflow_train::{Activation, Network, Optimizer, Trainer};

#[test]
fn ten_thousand_steps_of_training_take_constant_memory() {
    let mut net = Network::new(1);
    let x = net.input("x", DType::Float, &[None, Some(8)]).expect("x");
    let hidden = net.dense("hidden", x, 16, Some(Activation::Tanh));
    let guess = hidden.and_then(|h| net.dense("guess", h, 8, None));
    let loss = net.mean_squared_error(guess.expect("a layer"), x);
    net.minimize(loss.expect("a loss"), &Optimizer::adam(1e-3))
        .expect("gradients");
    let trainer = Trainer::new(net, SessionOptions::default()).expect("a trainer");
    let x = Tensor::from_slice([32, 8], &[0.5f32; 256]).expect("a batch");
    let batch = [("x".to_string(), x)];
    let train = |steps: usize| {
        for _ in 0..steps {
            trainer.step(&batch).expect("a step");
        }
    };
    train(1_000);
    let before = peak_kib();
    train(10_000);
    let grown = peak_kib() - before;
    // A tenth of a kilobyte per step would show.
    assert!(grown < 1024, "grown by {grown} KiB");
}
