//! What a task of a session costs, by the number of tasks: all of them in this process, without sockets.
//!
//! ```text
//! cargo run --release -p ferroflow-remote --example tasks -- [10 100 1000]
//! ```
//!
//! Prints microseconds a task for creating the session, planning and registering the parts, the first step, and
//! later steps (the median of ten); then the calls and bytes a task.

#[path = "../tests/ring/mod.rs"]
mod ring;

use ferroflow_base::{Result, internal};
use ferroflow_remote::LocalCluster;
use ring::Client;
use std::time::Instant;

/// Later steps.
const STEPS: usize = 10;

fn main() -> Result<()> {
    let sizes = std::env::args().skip(1);
    let sizes = sizes.map(|n| n.parse().map_err(|e| internal!("'{n}' tasks: {e}")));
    let mut sizes: Vec<u32> = sizes.collect::<Result<_>>()?;
    if sizes.is_empty() {
        sizes = vec![10, 100, 1000];
    }
    // What happens once in a process.
    row(2)?;
    let build = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    println!("{build} build; microseconds a task\n");
    println!(
        "| tasks | create the session | plan and register | first step | later steps | calls a step | bytes |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|");
    for n in sizes {
        println!("{}", row(n)?);
    }
    Ok(())
}

/// The row of `n` tasks.
fn row(n: u32) -> Result<String> {
    let cluster = LocalCluster::new(n, 2)?;
    let graph = ring::graph(n)?;
    let mut began = Instant::now();
    let mut lap = || {
        let took = began.elapsed().as_secs_f64() * 1e6 / f64::from(n);
        began = Instant::now();
        took
    };
    let client = Client::new(&cluster, graph)?;
    let created = lap();
    let handle = client.callable(vec!["sum:0".to_string()])?;
    let planned = lap();
    let mut steps = Vec::new();
    for i in 0..=STEPS {
        let x = i as f32;
        lap();
        let got = client.step(handle, x)?;
        steps.push(lap());
        if got != [ring::sum(n, x)] {
            return Err(internal!(
                "the step returned {got:?}, not {}",
                ring::sum(n, x)
            ));
        }
        // Not part of the next step.
        while cluster.num_steps() > 0 {
            std::thread::yield_now();
        }
        if i < STEPS {
            cluster.take_traffic();
        }
    }
    let first = steps.remove(0);
    steps.sort_by(f64::total_cmp);
    let traffic = cluster.take_traffic();
    let calls: usize = traffic.values().map(|t| t.calls).sum();
    let bytes: usize = traffic.values().map(|t| t.sent + t.received).sum();
    let per_task = |sum: usize| sum as f64 / f64::from(n);
    client.close()?;
    Ok(format!(
        "| {n} | {created:.0} | {planned:.0} | {first:.0} | {:.0} | {:.2} | {:.0} |",
        steps[STEPS / 2],
        per_task(calls),
        per_task(bytes)
    ))
}
