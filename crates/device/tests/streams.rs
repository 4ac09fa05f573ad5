//! Streams, events, memory and launches on host streams.

use ferroflow_base::Code;
use ferroflow_device::cuda::KERNELS;
use ferroflow_device::{
    Allocator, AllocatorOptions, Buffer, Device, Event, Grid, HostKernel, HostStreamOptions,
    HostStreams, KernelArg, Module, Pinned, Stream,
};
use std::sync::{Arc, mpsc};

fn host(memory: usize) -> (Arc<HostStreams>, Device) {
    let host = HostStreams::new(HostStreamOptions {
        memory,
        ..Default::default()
    });
    let device = Device::new(host.clone(), 0).unwrap();
    (host, device)
}

fn read(stream: &Stream, buffer: &Buffer) -> Vec<f32> {
    let (send, receive) = mpsc::channel();
    let pinned = Allocator::pinned(buffer.device());
    stream.copy_to_host(buffer, &pinned, move |got| send.send(got.unwrap()).unwrap());
    let pinned = receive.recv().unwrap();
    let words = pinned.bytes().as_chunks::<4>().0.iter();
    words.map(|w| f32::from_le_bytes(*w)).collect()
}

#[test]
fn shipped_kernels_compute() {
    let (_, device) = host(1 << 20);
    let stream = Stream::new(&device).unwrap();
    let allocator = Allocator::new(&device, &AllocatorOptions::default());
    let new = |value: f32| {
        let buffer = Buffer::new(&allocator, &stream, 40, "test").unwrap();
        stream.fill(&buffer, &value.to_le_bytes()).unwrap();
        buffer
    };
    let (x, y) = (new(3.0), new(2.0));
    let module = Module::load(&device, KERNELS).unwrap();
    let check = |name: &str, args: &[KernelArg], expected: f32| {
        let function = module.function(name).unwrap();
        function.launch(&stream, &Grid::linear(10), args).unwrap();
        assert_eq!(read(&stream, &y), [expected; 10], "{name}");
    };
    let (n, x, to) = (
        KernelArg::I32(10),
        KernelArg::Buffer(&x),
        KernelArg::Buffer(&y),
    );
    check("add_f32", &[n, x, to], 5.0);
    check("mul_f32", &[n, x, to], 15.0);
    check("axpy_f32", &[n, KernelArg::F32(2.0), x, to], 21.0);
    check("empty", &[], 21.0);
}

#[test]
fn errors_of_operations_reach_whoever_waits() {
    let (host, device) = host(1 << 20);
    host.kernels()
        .add("fails", HostKernel::new(&[], |_, _| panic!("on purpose")));
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let module = Module::load(&device, ".version 6.0\n.entry fails() { ret; }").unwrap();
    let fails = module.function("fails").unwrap();
    fails.launch(&a, &Grid::linear(1), &[]).unwrap();
    let event = Event::new(&device).unwrap();
    event.record(&a).unwrap();
    b.wait(&event).unwrap();
    for error in [event.synchronize(), b.synchronize(), a.synchronize()] {
        assert_eq!(error.unwrap_err().code(), Code::Internal);
    }
    // Each stream reports it once, and continues.
    assert!(a.synchronize().is_ok() && b.synchronize().is_ok());
    let other = Device::new(host, 0).unwrap();
    assert!(Stream::new(&other).unwrap().synchronize().is_ok());
}

#[test]
fn out_of_memory_names_the_largest_holders() {
    let (_, device) = host(1 << 20);
    let stream = Stream::new(&device).unwrap();
    let options = AllocatorOptions {
        memory_limit: Some(10_240),
        allow_growth: false,
        ..Default::default()
    };
    let allocator = Allocator::new(&device, &options);
    let new = |len, holder| Buffer::new(&allocator, &stream, len, holder);
    let kept = [new(5000, "large"), new(1000, "small"), new(1000, "small")].map(Result::unwrap);
    let error = new(4000, "failed").unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    let text = "OOM when allocating 4000 bytes on /device:HOST_STREAM:0: 7168 of 10240 bytes are in use, the \
                largest free block has 3072. Largest holders: [5120 bytes: 'large', 2048 bytes: 'small']";
    assert_eq!(error.message(), text);
    assert!(new(usize::MAX, "failed").is_err());
    drop(kept);
    let whole = new(10_240, "whole").unwrap();
    // Freed, it cannot be used, and its memory is another's on the same stream at once.
    whole.free(&stream).unwrap();
    assert_eq!(
        whole.free(&stream).unwrap_err().code(),
        Code::FailedPrecondition
    );
    assert_eq!(
        stream.fill(&whole, &[0]).unwrap_err().code(),
        Code::FailedPrecondition
    );
    assert_eq!(new(10_240, "again").unwrap().address(), whole.address());
}

#[test]
fn memory_grows_and_is_given_back() {
    let (host, device) = host(8 << 20);
    let stream = Stream::new(&device).unwrap();
    let allocator = Allocator::new(&device, &AllocatorOptions::default());
    let small = Buffer::new(&allocator, &stream, 100, "small").unwrap();
    assert_eq!(allocator.stats().reserved, 2 << 20);
    let large = Buffer::new(&allocator, &stream, 5 << 20, "large").unwrap();
    assert_eq!(allocator.stats().reserved, 7 << 20);
    drop(large);
    allocator.clear_cache();
    assert_eq!(allocator.stats().reserved, 2 << 20);
    drop(small);
    drop(allocator);
    let backend: Arc<dyn ferroflow_device::Backend> = host;
    assert!(
        backend.allocate(0, 8 << 20).is_ok(),
        "not all memory came back"
    );
}

#[test]
fn small_copies_in_flight_pin_no_more_memory() {
    let (_, device) = host(8 << 20);
    let streams = [(); 2].map(|()| Stream::new(&device).unwrap());
    let stream = &streams[0];
    let allocator = Allocator::new(&device, &AllocatorOptions::default());
    let x = Buffer::new(&allocator, stream, 64, "x").unwrap();
    let (go, stopped) = mpsc::channel();
    stream.call_host(move |_| stopped.recv().unwrap()).unwrap();
    let pinned = Allocator::pinned(&device);
    for _ in 0..1000 {
        stream.copy_from_host(&x, &[1; 64], &pinned).unwrap();
    }
    assert_eq!(pinned.stats().reserved, 2 << 20);
    go.send(()).unwrap();
    stream.synchronize().unwrap();
    // Nothing uses the parts any more: they are one again.
    let all = Pinned::new(&pinned, 2 << 20).unwrap();
    assert_eq!(all.bytes().len(), pinned.stats().reserved);
}

#[test]
fn wrong_uses_are_errors() {
    let (_, device) = host(1 << 20);
    let (_, other) = host(1 << 20);
    let stream = Stream::new(&device).unwrap();
    let allocator = Allocator::new(&device, &AllocatorOptions::default());
    let a = Arc::new(Buffer::new(&allocator, &stream, 16, "a").unwrap());
    let b = Buffer::new(&allocator, &stream, 8, "b").unwrap();
    let foreign = Stream::new(&other).unwrap();
    let module = Module::load(&device, KERNELS).unwrap();
    let add = module.function("add_f32").unwrap();
    let both = [
        KernelArg::I32(4),
        KernelArg::Buffer(&a),
        KernelArg::Buffer(&a),
    ];
    let errors = [
        stream.copy(&a, &b).unwrap_err(),
        a.view(8, 9).unwrap_err(),
        foreign.fill(&a, &[0]).unwrap_err(),
        foreign.wait(&stream.mark().unwrap()).unwrap_err(),
        Buffer::new(&allocator, &foreign, 1, "c").unwrap_err(),
        stream.fill(&a, &[0, 0, 0]).unwrap_err(),
        add.launch(&stream, &Grid::linear(4), &both).unwrap_err(),
        Module::load(&device, "no module").err().unwrap(),
    ];
    for error in errors {
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    }
    assert_eq!(
        module.function("absent").err().unwrap().code(),
        Code::NotFound
    );
    // Too few numbers for the kernel: the stream reports it.
    let args = [
        KernelArg::I32(4),
        KernelArg::Buffer(&b),
        KernelArg::Buffer(&a),
    ];
    add.launch(&stream, &Grid::linear(4), &args).unwrap();
    assert_eq!(
        stream.synchronize().unwrap_err().code(),
        Code::InvalidArgument
    );
}

#[test]
fn memory_that_threads_free_at_once_is_waited_for() {
    const HALF: usize = 4096;
    let host = HostStreams::new(HostStreamOptions {
        memory: 2 * HALF,
        detect_races: true,
        ..Default::default()
    });
    let device = Device::new(host.clone(), 0).unwrap();
    let allocator = Allocator::new(&device, &AllocatorOptions::default());
    let (a, b) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    for _ in 0..500 {
        let filled = |stream: &Stream, len| {
            let buffer = Buffer::new(&allocator, stream, len, "test").unwrap();
            stream.fill(&buffer, &[1]).unwrap();
            buffer
        };
        let halves = [(); 2].map(|()| Buffer::new(&allocator, &a, HALF, "test").unwrap());
        std::thread::scope(|scope| {
            for half in halves {
                scope.spawn(|| {
                    a.fill(&half, &[0]).unwrap();
                    drop(half);
                });
            }
        });
        // The other stream gets both halves, behind what was enqueued on either.
        drop(filled(&b, 2 * HALF));
    }
    b.synchronize().unwrap();
    assert_eq!(host.races(), (0, Vec::new()));
}
