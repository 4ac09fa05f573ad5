//! The costs of streams: `cargo bench -p ferroflow-device`.
//!
//! Each figure is for [`N`] operations and one synchronization at the end.

use ferroflow_device::{
    Allocator, AllocatorOptions, Buffer, Device, Function, Grid, HostStreamOptions, HostStreams,
    KernelArg, Module, Stream,
};

/// Operations of an iteration.
const N: usize = 1000;

fn main() {
    divan::main();
}

fn device() -> Device {
    Device::new(HostStreams::new(HostStreamOptions::default()), 0).unwrap()
}

fn empty(device: &Device) -> Function {
    let image = ".version 6.0\n.target sm_35\n.visible .entry empty() { ret; }";
    Module::load(device, image)
        .unwrap()
        .function("empty")
        .unwrap()
}

#[divan::bench]
fn launch(bencher: divan::Bencher) {
    let device = device();
    let (stream, function) = (Stream::new(&device).unwrap(), empty(&device));
    bencher.counter(N).bench_local(|| {
        for _ in 0..N {
            function.launch(&stream, &Grid::linear(1), &[]).unwrap();
        }
        stream.synchronize().unwrap();
    });
}

#[divan::bench]
fn launch_with_a_new_buffer(bencher: divan::Bencher) {
    let device = device();
    let (stream, function) = (Stream::new(&device).unwrap(), empty(&device));
    let allocator = Allocator::new(&device, &AllocatorOptions::default());
    bencher.counter(N).bench_local(|| {
        for _ in 0..N {
            let buffer = Buffer::new(&allocator, &stream, 4096, "bench").unwrap();
            let args = [KernelArg::Buffer(&buffer)];
            function.launch(&stream, &Grid::linear(1), &args).unwrap();
        }
        stream.synchronize().unwrap();
    });
}

#[divan::bench]
fn record_and_wait(bencher: divan::Bencher) {
    let device = device();
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let function = empty(&device);
    bencher.counter(N).bench_local(|| {
        for _ in 0..N {
            function.launch(&a, &Grid::linear(1), &[]).unwrap();
            b.wait(&a.mark().unwrap()).unwrap();
        }
        b.synchronize().unwrap();
    });
}
