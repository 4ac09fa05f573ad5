//! Time to build gradients by the size of the graph: `cargo bench --bench gradients`.

use divan::Bencher;
use ferroflow_runtime::building::{GradientOptions, GraphBuilder};
use ferroflow_runtime::{DType, PartialShape, registry};

/// The allocator of the `ferroflow` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    divan::main();
}

/// Differentiates a chain of `n_nodes` nodes, every second of which also reads `x`.
#[divan::bench(args = [12_500, 25_000, 50_000, 100_000], sample_count = 3, sample_size = 1)]
fn chain(bencher: Bencher, n_nodes: usize) {
    let build = || {
        let mut b = GraphBuilder::new(registry());
        let x = b.placeholder("x", DType::Float, PartialShape::scalar());
        let x = x.expect("a placeholder");
        let mut y = x;
        for _ in 0..n_nodes / 2 {
            let sine = b.op("Sin").input(y).output().expect("a node");
            let sum = b.op("AddV2").input(sine).input(x).output();
            y = sum.expect("a node");
        }
        (b, x, y)
    };
    bencher
        .with_inputs(build)
        .bench_local_values(|(mut b, x, y)| {
            let gradients = b.gradients(&[y], &[x], &GradientOptions::default());
            assert!(gradients.expect("a gradient")[0].is_some());
            b
        });
}
