//! Denormal numbers are zeros in kernels, on every thread, as in TensorFlow.

use ferroflow_runtime::building::GraphBuilder;
use ferroflow_runtime::{DType, PartialShape, Session, SessionOptions, Tensor, registry};

/// `y = 0.5 x`, and `z = 0.5 c` of a constant.
fn session(threads: usize) -> Session {
    let mut b = GraphBuilder::new(registry());
    let shape = PartialShape::of([None]);
    let x = b.placeholder("x", DType::Float, shape).unwrap();
    let half = b.constant("half", Tensor::scalar(0.5f32)).unwrap();
    let c = Tensor::vector(&[1e-40f32, 3.0]).unwrap();
    let c = b.constant("c", c).unwrap();
    for (name, factor) in [("y", x), ("z", c)] {
        let op = b.op("Mul").name(name).input(factor).input(half);
        op.build().unwrap();
    }
    let options = SessionOptions {
        threads,
        ..Default::default()
    };
    Session::new(b.finish().unwrap(), options)
}

#[test]
fn kernels_flush_them() {
    for threads in [1, 3] {
        let session = session(threads);
        // Long enough for several threads.
        let x: Vec<f32> = (0..300_000)
            .map(|i| if i % 3 == 0 { 1e-40 } else { 2.0 })
            .collect();
        let feeds = [("x:0", Tensor::vector(&x).unwrap())];
        let got = session.run(&feeds, &["y:0", "z:0"], &[]).unwrap();
        let y = got[0].slice::<f32>().unwrap();
        for (i, y) in y.iter().enumerate() {
            assert_eq!(*y, if i % 3 == 0 { 0.0 } else { 1.0 }, "{i}");
        }
        assert_eq!(got[1].slice::<f32>().unwrap(), [0.0, 1.5]);
    }
    // The caller's thread computes as before.
    let denormal = std::hint::black_box(1e-40f32);
    assert!(std::hint::black_box(denormal * 0.5) > 0.0);
}
