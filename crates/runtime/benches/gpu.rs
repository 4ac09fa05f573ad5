//! What a GPU costs from here: copies, launches, and a chain of small kernels in a graph.
//!
//! `cargo bench -p ferroflow-runtime --bench gpu` on a machine with an NVIDIA GPU; `bench/launches.cu` times bare
//! launches beside it.

use ferroflow_device::cuda::{Cuda, KERNELS};
use ferroflow_device::{
    Allocator, AllocatorOptions, Buffer, Device, Grid, KernelArg, Module, Pinned, Stream,
};
use ferroflow_runtime::{
    CompileOptions, DeviceSet, Result, RunOptions, Session, SessionOptions, Signature,
    StreamDeviceOptions, StreamDevices, Tensor,
};
use std::fmt::Write as _;
use std::time::Instant;

const ROUNDS: usize = 20;
const CHAIN: usize = 1000;

/// The median time of a few calls, in seconds.
fn median(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    call()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

fn copies(device: &Device) -> Result<()> {
    const BYTES: usize = 256 << 20;
    let (stream, options) = (Stream::new(device)?, AllocatorOptions::default());
    let buffer = Buffer::new(&Allocator::new(device, &options), &stream, BYTES, "bench")?;
    let host = Pinned::new(&Allocator::pinned(device), BYTES)?.into_buffer();
    for (name, to, from) in [
        ("host to device", &buffer, &host),
        ("device to host", &host, &buffer),
    ] {
        let time = median(|| {
            stream.copy(to, from)?;
            stream.synchronize()
        })?;
        println!("{name}: {:.1} GB/s", BYTES as f64 / time / 1e9);
    }
    Ok(())
}

fn launches(device: &Device) -> Result<()> {
    let (stream, options) = (Stream::new(device)?, AllocatorOptions::default());
    let function = Module::load(device, KERNELS)?.function("add_f32")?;
    let buffer = Buffer::new(&Allocator::new(device, &options), &stream, 1024, "bench")?;
    let at = KernelArg::Buffer(&buffer);
    let time = median(|| {
        for _ in 0..CHAIN {
            function.launch(
                &stream,
                &Grid::linear(256),
                &[at, at, at, KernelArg::I32(256)],
            )?;
        }
        stream.synchronize()
    })?;
    println!("launch: {:.2} us", time / CHAIN as f64 * 1e6);
    Ok(())
}

/// A chain of small kernels, each of which is a node.
fn chain() -> Result<()> {
    let prefix = "/job:localhost/replica:0/task:0";
    let gpus = StreamDevices::gpus(
        prefix,
        1,
        &StreamDeviceOptions {
            memory_limit: 1 << 30,
            ..Default::default()
        },
    )?;
    let attr = "attr { key: 'T' value { type: DT_FLOAT } }";
    let mut graph =
        "node { name: 'n0' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }"
            .to_string();
    for i in 1..=CHAIN {
        let before = i - 1;
        let _ = write!(
            graph,
            "node {{ name: 'n{i}' op: 'Relu' input: 'n{before}' {attr} }}"
        );
    }
    let mut names: Vec<String> = gpus.names().map(str::to_string).collect();
    names.push(format!("{prefix}/device:CPU:0"));
    let session = Session::from_text(
        &graph,
        SessionOptions {
            compile: CompileOptions {
                disabled: vec!["elementwise".to_string()],
                ..CompileOptions::all()
            },
            devices: DeviceSet {
                names,
                kernels: gpus.kernels(),
                ..Default::default()
            },
            stream_devices: gpus,
            ..Default::default()
        },
    )?;
    let signature = Signature {
        feeds: vec!["n0:0".to_string()],
        fetches: vec![format!("n{CHAIN}:0")],
        targets: Vec::new(),
    };
    let callable = session.callable(&signature)?;
    let x = Tensor::vector(&[1.5f32; 256])?;
    let time = median(|| {
        let options = RunOptions::default();
        session
            .run_callable(&callable, vec![x.clone()], &options)
            .map(drop)
    })?;
    println!("node of a graph: {:.2} us", time / CHAIN as f64 * 1e6);
    Ok(())
}

fn main() -> Result<()> {
    let cuda = match Cuda::new() {
        Ok(cuda) => cuda,
        Err(e) => {
            println!("{e}");
            return Ok(());
        }
    };
    let device = Device::new(cuda, 0)?;
    println!("{}", device.info().model);
    copies(&device)?;
    launches(&device)?;
    chain()
}
