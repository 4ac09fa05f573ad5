//! Loops that run long or often: what they keep in memory, and many at the same time.
//!
//! The tests run one after the other, for they look at the memory of the whole process.

use ferroflow_runtime::building::{GraphBuilder, WhileOptions};
use ferroflow_runtime::{DType, PartialShape, Session, SessionOptions, Tensor, registry};
use ferroflow_testkit::memory::peak_kib;
use std::sync::{Barrier, Mutex, PoisonError};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The sum of 0..n by a loop of either kind.
fn sum_session(functional: bool, threads: usize) -> Session {
    let mut b = GraphBuilder::new(registry());
    let n = b
        .placeholder("n", DType::Int64, PartialShape::scalar())
        .unwrap();
    let zero = b.constant("zero", Tensor::scalar(0i64)).unwrap();
    let sum = if functional {
        b.function("cond", &[DType::Int64; 3], |b, a| {
            Ok(vec![b.op("Less").input(a[0]).input(a[2]).output()?])
        })
        .unwrap();
        b.function("body", &[DType::Int64; 3], |b, a| {
            let one = b.constant("one", Tensor::scalar(1i64))?;
            let next = b.op("AddV2").input(a[0]).input(one).output()?;
            Ok(vec![
                next,
                b.op("AddV2").input(a[1]).input(a[0]).output()?,
                a[2],
            ])
        })
        .unwrap();
        b.while_op(&[zero, zero, n], "cond", "body").unwrap()[1]
    } else {
        b.while_loop(
            "sum",
            &[zero, zero],
            |b, v| b.op("Less").input(v[0]).input(n).output(),
            |b, v| {
                let one = b.constant("one", Tensor::scalar(1i64))?;
                let next = b.op("AddV2").input(v[0]).input(one).output()?;
                Ok(vec![next, b.op("AddV2").input(v[1]).input(v[0]).output()?])
            },
            WhileOptions::default(),
        )
        .unwrap()[1]
    };
    b.op("Identity").name("y").input(sum).build().unwrap();
    let options = SessionOptions {
        threads,
        ..Default::default()
    };
    Session::new(b.finish().unwrap(), options)
}

fn run(session: &Session, n: i64) {
    let y = session.run(&[("n:0", Tensor::scalar(n))], &["y:0"], &[]);
    let y = y.expect("the loop ends");
    assert_eq!(y[0].to_scalar::<i64>().unwrap(), n * (n - 1) / 2);
}

/// A leak of one pointer an iteration would be `8 * iterations` bytes.
fn check_memory(iterations: i64) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for functional in [false, true] {
        for threads in [1, 2] {
            let session = sum_session(functional, threads);
            run(&session, 10_000);
            let before = peak_kib();
            run(&session, iterations);
            let grown = peak_kib() - before;
            assert!(
                grown < 1024,
                "grown by {grown} KiB (functional: {functional})"
            );
        }
    }
}

#[test]
fn long_loops_take_constant_memory() {
    check_memory(300_000);
}

#[test]
#[ignore = "soak: see `cargo xtask soak`"]
fn loops_of_ten_million_iterations_take_constant_memory() {
    check_memory(10_000_000);
}

#[test]
fn a_thousand_concurrent_steps() {
    const N: usize = 1000;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for functional in [false, true] {
        let session = sum_session(functional, 2);
        let all_there = Barrier::new(N);
        std::thread::scope(|scope| {
            for i in 0..N {
                let (session, all_there) = (&session, &all_there);
                let thread = std::thread::Builder::new().stack_size(512 << 10);
                let step = move || {
                    all_there.wait();
                    run(session, (i % 50) as i64 * 7);
                };
                thread.spawn_scoped(scope, step).expect("a thread");
            }
        });
    }
}
