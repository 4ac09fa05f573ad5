//! `ferroflow bench`.

use crate::model::{ModelArgs, RunArgs};
use crate::out::say;
use crate::progress::Progress;
use ferroflow_runtime::{Result, RunOptions};
use std::time::{Duration, Instant};

/// Times a model: loading, the first run, and runs until the time is up.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Duration of the measurement.
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = crate::model::parse_seconds)]
    seconds: f64,
    /// Prints one JSON line.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let _progress = Progress::start("benchmarking");
    let start = Instant::now();
    let model = args.model.open()?;
    let session = model.session();
    let opened = start.elapsed();
    // Inputs are not part of the model's loading time.
    let request = args.run.request(&model)?;
    let start = Instant::now();
    let callable = session.callable(&request.signature)?;
    let load_s = (opened + start.elapsed()).as_secs_f64();

    let options = RunOptions::default();
    let once = || -> Result<f64> {
        let start = Instant::now();
        let results = session.run_callable(&callable, request.args.clone(), &options)?;
        let elapsed = start.elapsed().as_secs_f64();
        drop(results);
        Ok(elapsed)
    };
    let first_s = once()?;
    let budget = Duration::try_from_secs_f64(args.seconds).unwrap_or(Duration::from_secs(3));
    let start = Instant::now();
    let mut times = Vec::new();
    while times.is_empty() || start.elapsed() < budget {
        times.push(once()?);
    }
    drop(_progress);
    times.sort_unstable_by(f64::total_cmp);
    let at = |q: f64| times[((times.len() - 1) as f64 * q).round() as usize];
    let (median_s, min_s, p99_s) = (at(0.5), times[0], at(0.99));
    let (runs, nodes, peak_rss_mb) = (times.len(), callable.num_nodes(), peak_rss_mb());
    let memory = callable.memory();
    let planned: usize = memory.iter().map(|m| m.arena_bytes).sum();
    let misses: u64 = memory.iter().map(|m| m.misses).sum();
    let devices = || session.stream_devices().replays();
    if args.json {
        let replays: u64 = devices().map(|(n, _)| n).sum();
        say!(
            "{{\"load_s\":{load_s:.6},\"first_s\":{first_s:.6},\"median_s\":{median_s:.9},\"min_s\":{min_s:.9},\
             \"p99_s\":{p99_s:.9},\"runs\":{runs},\"nodes\":{nodes},\"peak_rss_mb\":{peak_rss_mb:.1},\
             \"replays\":{replays},\"planned_mb\":{:.3},\"misses\":{misses}}}",
            planned as f64 / 1e6
        );
    } else {
        say!("load    {:>10.3} ms  (file to ready)", load_s * 1e3);
        say!("first   {:>10.3} ms", first_s * 1e3);
        say!(
            "median  {:>10.3} ms  over {runs} runs, {nodes} nodes",
            median_s * 1e3
        );
        say!("min     {:>10.3} ms", min_s * 1e3);
        say!("p99     {:>10.3} ms", p99_s * 1e3);
        say!("memory  {peak_rss_mb:>10.1} MB peak");
        say!(
            "planned {:>10.1} MB of each step, {misses} blocks were elsewhere",
            planned as f64 / 1e6
        );
        for ((n, refused), name) in devices().zip(session.stream_devices().names()) {
            match refused {
                Some(why) => say!("replays {n:>10} on {name}; the last step that was not: {why}"),
                None => say!("replays {n:>10} on {name}"),
            }
        }
    }
    Ok(())
}

/// Returns the largest resident size of this process so far; 0 if the system does not report it.
fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
