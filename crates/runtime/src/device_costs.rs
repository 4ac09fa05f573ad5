//! What a GPU costs: its copies and launches, measured.

use ferroflow_base::Result;
use ferroflow_device::cuda::{Cuda, KERNELS};
use ferroflow_device::{
    Allocator, AllocatorOptions, Buffer, Device, Grid, KernelArg, Module, Pinned, Stream,
};
use std::time::Instant;

/// A GPU of this machine, with what it costs.
#[derive(Clone, Debug)]
pub struct GpuCosts {
    /// The name of the model.
    pub model: String,
    /// All memory, in bytes.
    pub memory: usize,
    /// Bytes a second from pinned memory of the host to the device.
    pub to_device: f64,
    /// Bytes a second from the device to pinned memory of the host.
    pub to_host: f64,
    /// Bytes a second within the device, read or written.
    pub within: f64,
    /// Seconds for each of many launches of a small kernel.
    pub launch: f64,
}

const ROUNDS: usize = 20;
const BYTES: usize = 256 << 20;
const LAUNCHES: usize = 1000;

/// The median time of a few calls, in seconds.
fn median(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    call()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

/// Measures the GPUs of this machine, one after the other.
///
/// # Errors
/// FAILED_PRECONDITION if there is no driver, an old one, or no GPU; RESOURCE_EXHAUSTED if one has less than a
/// gigabyte free.
pub fn measure_gpus() -> Result<Vec<GpuCosts>> {
    let cuda = Cuda::new()?;
    let n = ferroflow_device::Backend::device_count(&*cuda);
    (0..n)
        .map(|i| measure(&Device::new(cuda.clone(), i)?))
        .collect()
}

fn measure(device: &Device) -> Result<GpuCosts> {
    let (stream, options) = (Stream::new(device)?, AllocatorOptions::default());
    let allocator = Allocator::new(device, &options);
    let new = |len| Buffer::new(&allocator, &stream, len, "measurement");
    let (a, b) = (new(BYTES)?, new(BYTES)?);
    let host = Pinned::new(&Allocator::pinned(device), BYTES)?.into_buffer();
    let speed = |to: &Buffer, from: &Buffer| -> Result<f64> {
        let time = median(|| {
            stream.copy(to, from)?;
            stream.synchronize()
        })?;
        Ok(BYTES as f64 / time)
    };
    let function = Module::load(device, KERNELS)?.function("add_f32")?;
    let small = new(1024)?;
    let at = KernelArg::Buffer(&small);
    let launches = median(|| {
        for _ in 0..LAUNCHES {
            let args = [KernelArg::I32(256), at, at];
            function.launch(&stream, &Grid::linear(256), &args)?;
        }
        stream.synchronize()
    })?;
    Ok(GpuCosts {
        model: device.info().model.clone(),
        memory: device.info().memory,
        to_device: speed(&a, &host)?,
        to_host: speed(&host, &a)?,
        within: 2.0 * speed(&b, &a)?,
        launch: launches / LAUNCHES as f64,
    })
}
