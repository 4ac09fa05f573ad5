//! How long gradients take to build, by the size of the graph: `cargo bench --bench gradients`.

use ferroflow_runtime::building::{GradientOptions, GraphBuilder};
use ferroflow_runtime::{DType, PartialShape, registry};
use std::time::Instant;

/// The allocator of the program `ferroflow`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Seconds to differentiate a chain of so many nodes, each second one of which reads `x`, too.
fn chain(n_nodes: usize) -> f64 {
    let mut b = GraphBuilder::new(registry());
    let x = b.placeholder("x", DType::Float, PartialShape::scalar());
    let x = x.expect("a placeholder");
    let mut y = x;
    for _ in 0..n_nodes / 2 {
        let sine = b.op("Sin").input(y).output().expect("a node");
        let sum = b.op("AddV2").input(sine).input(x).output();
        y = sum.expect("a node");
    }
    let start = Instant::now();
    let gradients = b.gradients(&[y], &[x], &GradientOptions::default());
    assert!(gradients.expect("a gradient")[0].is_some());
    start.elapsed().as_secs_f64()
}

fn main() {
    // As one of the tests it only has to work.
    let is_bench = std::env::args().any(|a| a == "--bench");
    let sizes = [12_500, 25_000, 50_000, 100_000];
    for n_nodes in sizes.into_iter().take(if is_bench { 4 } else { 1 }) {
        let best = (0..3).map(|_| chain(n_nodes)).fold(f64::INFINITY, f64::min);
        println!("{n_nodes:8} nodes {best:8.3} s");
    }
}
