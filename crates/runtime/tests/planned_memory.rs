//! Steps of sessions whose tensors have places in an arena.

use ferroflow_runtime::{Callable, RunOptions, Session, SessionOptions, Signature, Tensor};
use std::path::Path;
use std::sync::Arc;

fn digits(threads: usize) -> (Session, Arc<Callable>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.pb");
    let options = SessionOptions {
        threads,
        ..Default::default()
    };
    let session = Session::open(&path, options).expect("the model loads");
    let callable = session.callable(&Signature {
        feeds: vec!["images:0".to_string()],
        fetches: vec!["probabilities:0".to_string()],
        targets: Vec::new(),
    });
    (session, callable.expect("it compiles"))
}

/// A batch of images, each with other pixels.
fn images(batch: usize, seed: usize) -> Tensor {
    let pixels: Vec<f32> = (0..batch * 64)
        .map(|i| ((i * 31 + seed * 17) % 97) as f32 / 97.0)
        .collect();
    Tensor::from_slice([batch, 8, 8, 1], &pixels).expect("small")
}

fn run((session, callable): &(Session, Arc<Callable>), batch: usize, seed: usize) -> Vec<f32> {
    let args = vec![images(batch, seed)];
    let results = session.run_callable(callable, args, &RunOptions::default());
    let results = results.expect("runs");
    results[0].slice::<f32>().expect("floats").to_vec()
}

#[test]
fn planned_steps_compute_the_same() {
    for threads in [1, 3] {
        let planned = digits(threads);
        for step in 0..12 {
            let batch = [1, 32, 7][step % 3];
            // The first step of a session allocates as it runs.
            let expected = run(&digits(1), batch, step);
            assert_eq!(
                run(&planned, batch, step),
                expected,
                "step {step}, batch {batch}"
            );
        }
        let memory = &planned.1.memory()[0];
        assert_eq!((memory.steps, memory.misses), (3, 0));
        assert!(memory.arena_bytes > 0);
    }
}

#[test]
fn the_peak_of_a_network_is_that_of_its_largest_blocks() {
    let model = digits(1);
    (0..2).for_each(|seed| drop(run(&model, 32, seed)));
    let memory = &model.1.memory()[0];
    assert_eq!((memory.arena_bytes, memory.misses), (memory.least_bytes, 0));
    let planned = memory.blocks.iter().filter(|b| b.offset.is_some());
    let all: usize = planned.map(|b| b.bytes).sum();
    assert!(
        memory.arena_bytes * 5 < all * 4,
        "{} of {all}",
        memory.arena_bytes
    );
    // The outputs of two convolutions, with 24 and 32 channels, are in use at once.
    assert_eq!(memory.arena_bytes, 32 * 64 * (24 + 32) * 4);
}
