//! `ferroflow devices`.

use crate::out::say;
use ferroflow_runtime::{Result, measure_gpus};

/// Lists the devices of this machine, and measures its GPUs.
///
/// Examples:
/// ferroflow devices
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {}

/// Runs the command.
pub fn run(_: &Args) -> Result<()> {
    let n = std::thread::available_parallelism().map_or(1, usize::from);
    say!("CPU:0  {n} processors");
    let gpus = match measure_gpus() {
        Ok(gpus) => gpus,
        Err(e) => {
            say!("no GPU: {}", e.message());
            return Ok(());
        }
    };
    for (i, gpu) in gpus.iter().enumerate() {
        let gigabytes = |speed: f64| speed / 1e9;
        say!(
            "GPU:{i}  {}, {:.1} GiB; {:.1} GB/s from the host, {:.1} GB/s to it, {:.0} GB/s within; {:.2} us a launch",
            gpu.model,
            gpu.memory as f64 / (1u64 << 30) as f64,
            gigabytes(gpu.to_device),
            gigabytes(gpu.to_host),
            gigabytes(gpu.within),
            gpu.launch * 1e6
        );
    }
    Ok(())
}
