//! The backend over a stand-in for the driver, which runs everything at once: what a GPU does with it is
//! not tested here.

use super::*;
use crate::{
    Allocator, AllocatorOptions, Buffer, Captured, Device, KernelArg, Module, Pinned, Reclaim,
    Stream, StreamKind, StreamMemory, begin_call, note_output, note_read, upload_input,
};
use ferroflow_base::{Code, failed_precondition};
use ferroflow_tensor::{DType, Tensor};
use ferroflow_testkit::driver::stand_in_driver;
use std::sync::mpsc;

/// Opens the stand-in; `None` without a C compiler.
fn stand_in() -> Option<Arc<Cuda>> {
    let library = stand_in_driver()?;
    let cuda = Cuda::open(&library.display().to_string()).expect("all functions");
    std::fs::remove_file(library).expect("just written");
    Some(cuda)
}

#[test]
fn a_missing_driver_is_an_error() {
    for library in ["no-such-driver.so", env!("CARGO_MANIFEST_PATH")] {
        let error = Cuda::open(library).err().expect("no driver");
        assert_eq!(error.code(), Code::FailedPrecondition);
        assert!(error.message().starts_with("no CUDA driver: "), "{error}");
    }
}

#[test]
fn handles_and_arguments_reach_the_driver() {
    let Some(cuda) = stand_in() else {
        return;
    };
    let device = Device::new(cuda.clone(), 0).unwrap();
    assert_eq!(
        (device.to_string(), &*device.info().model),
        ("/device:GPU:0".into(), "stand-in")
    );
    let (first, second) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let allocator = Allocator::new(&device, &AllocatorOptions::default());
    let pinned = Allocator::pinned(&device);
    let new = || Buffer::new(&allocator, &first, 40, "test").unwrap();
    let (x, y) = (new(), new());
    let ones: Vec<u8> = [1f32; 10].iter().flat_map(|v| v.to_le_bytes()).collect();
    first.copy_from_host(&x, &ones, &pinned).unwrap();
    first.fill(&y, &2f32.to_le_bytes()).unwrap();
    let axpy = Module::load(&device, KERNELS)
        .unwrap()
        .function("axpy_f32")
        .unwrap();
    let args = [
        KernelArg::I32(10),
        KernelArg::F32(0.5),
        KernelArg::Buffer(&x),
        KernelArg::Buffer(&y),
    ];
    axpy.launch(&first, &Grid::linear(10), &args).unwrap();
    second.wait(&first.mark().unwrap()).unwrap();
    let (send, receive) = mpsc::channel();
    second.copy_to_host(&y, &pinned, move |got: Result<Pinned>| {
        send.send(got).unwrap()
    });
    let got = receive.recv().unwrap().unwrap();
    assert_eq!(got.bytes().as_chunks::<4>().0, [2.5f32.to_le_bytes(); 10]);
    second.synchronize().unwrap();
}

#[test]
fn errors_have_the_drivers_names() {
    let Some(cuda) = stand_in() else {
        return;
    };
    let check = |error: Result<()>, code: Code, text: &str| {
        let error = error.unwrap_err();
        assert_eq!((error.code(), error.message()), (code, text));
    };
    let out_of_memory = cuda.allocate(0, 2 << 20).map(drop);
    let text = "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory";
    check(out_of_memory, Code::ResourceExhausted, text);
    let text = "cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE: error 200";
    check(
        cuda.load_module(0, "no image").map(drop),
        Code::InvalidArgument,
        text,
    );
    check(
        cuda.synchronize(RawStream(16)),
        Code::InvalidArgument,
        "stream 0x10 does not exist",
    );
    let text = "there is no GPU device 1: the machine has 1";
    check(cuda.create_stream(1).map(drop), Code::InvalidArgument, text);
}

#[test]
fn captured_steps_have_memory_of_their_own() {
    let Some(cuda) = stand_in() else {
        return;
    };
    let device = Device::new(cuda, 0).unwrap();
    let memory = Arc::new(StreamMemory::new(&device, &AllocatorOptions::default()).unwrap());
    let host = Tensor::vector(&[1f32, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let x = memory.upload(&host).unwrap();
    let numbers = |n: f32| Tensor::vector(&[n; 9]).unwrap();
    // A kernel that copies its input 1, reads its input 2, and returns what was copied and its input 0.
    let run = |args: Vec<Tensor>| {
        if let Some(outputs) = replayed(&memory, &args)? {
            return Ok(outputs);
        }
        let y = upload_input(&memory, 1, &args[1])?;
        note_read(2, &args[2]);
        note_output(&memory, 0, &y)?;
        note_output(&memory, 1, &args[0])?;
        Ok(vec![y, args[0].clone()])
    };
    let args = |copied: f32, read: f32| [x.clone(), numbers(copied), numbers(read)];
    let captured = memory.capture(&args(1.0, 2.0), run).unwrap();
    for n in [1.0, 7.0, 8.0] {
        let results = captured
            .replay(&args(n, 2.0), run, || Ok(()))
            .unwrap()
            .unwrap();
        assert!(results.iter().all(Tensor::is_on_device));
        assert_eq!(on_host(&memory, &results[0]), [n; 9]);
        assert_eq!(on_host(&memory, &results[1]), [1.0, 2.0, 3.0, 4.0, 5.0]);
    }
    let other = captured
        .replay(&args(1.0, 3.0), run, || Ok(()))
        .unwrap_err();
    assert_eq!(other.code(), Code::FailedPrecondition);
    // Values that nodes of the host made may have another shape, of as many bytes or not.
    for shape in [[3, 3], [1, 1]] {
        let copied = vec![1f32; shape[0] * shape[1]];
        let copied = Tensor::vector(&copied).unwrap().with_shape(shape.into());
        let args = [x.clone(), copied.unwrap(), numbers(2.0)];
        let other = captured.replay(&args, run, || Ok(())).unwrap_err();
        assert_eq!(other.code(), Code::FailedPrecondition);
    }
    let from_host = |args: Vec<Tensor>| memory.upload(&host).map(|h| vec![h, args[0].clone()]);
    let error = memory.capture(&[x], from_host).err().unwrap();
    assert_eq!(error.code(), Code::FailedPrecondition);
}

#[test]
fn copies_of_inputs_share_no_memory_with_what_is_captured() {
    let Some(cuda) = stand_in() else {
        return;
    };
    let device = Device::new(cuda, 0).unwrap();
    let memory = Arc::new(StreamMemory::new(&device, &AllocatorOptions::default()).unwrap());
    let new = || memory.allocate_tensor(DType::Float, [9].into());
    // Calls that fill memory which the next one has again; one copies its input, a later one its output.
    let run = |args: Vec<Tensor>| {
        let mut copied = None;
        for call in 0..40 {
            if let Some(mut outputs) = replayed(&memory, &args)? {
                copied = outputs.pop().or(copied);
                continue;
            }
            memory.fill(&new()?, &(call as f32).to_le_bytes())?;
            if call == 20 {
                copied = Some(upload_input(&memory, 0, &args[0])?);
            }
            if call == 30 {
                let to = new()?;
                memory.copy_tensor(&to, copied.as_ref().expect("call 20"))?;
                copied = Some(to);
            }
            if let (20 | 30, Some(copied)) = (call, &copied) {
                note_output(&memory, 0, copied)?;
            }
        }
        Ok(Vec::from_iter(copied))
    };
    let arg = |n: f32| [Tensor::vector(&[n; 9]).unwrap()];
    let captured = memory.capture(&arg(0.0), run).unwrap();
    for n in [3.5, 4.5] {
        let results = captured.replay(&arg(n), run, || Ok(())).unwrap().unwrap();
        assert_eq!(on_host(&memory, &results[0]), [n; 9]);
    }
    // An error before the last operations are enqueued.
    let failed = || Err::<(), _>(failed_precondition!("not now"));
    assert!(captured.replay(&arg(5.5), run, failed).is_err());
    let results = captured.replay(&arg(6.5), run, || Ok(())).unwrap().unwrap();
    assert_eq!(on_host(&memory, &results[0]), [6.5; 9]);
}

#[test]
fn captured_steps_give_way_to_allocations() {
    struct Held(Mutex<Option<Captured>>);
    impl Reclaim for Held {
        fn reclaim(&self) {
            drop(self.0.lock().unwrap().take());
        }
    }
    let Some(cuda) = stand_in() else {
        return;
    };
    let device = Device::new(cuda, 0).unwrap();
    let memory = Arc::new(StreamMemory::new(&device, &AllocatorOptions::default()).unwrap());
    // The device has 1 MiB.
    let new = || memory.allocate_tensor(DType::Float, [150_000].into());
    let run = |_: Vec<Tensor>| {
        begin_call(&memory, |_| unreachable!(), |_, _| Ok(()))?;
        memory.fill(&new()?, &[0])?;
        Ok(Vec::new())
    };
    let captured = memory.capture(&[], run).unwrap();
    let held = Arc::new(Held(Mutex::new(Some(captured))));
    assert_eq!(new().err().unwrap().code(), Code::ResourceExhausted);
    let reclaimable: Arc<dyn Reclaim> = held.clone();
    memory.add_reclaimable(Arc::downgrade(&reclaimable));
    drop(new().unwrap());
    assert!(held.0.lock().unwrap().is_none());
}

/// Begins a call of a kernel with inputs `args`; returns its outputs if it is replayed.
fn replayed(memory: &StreamMemory, args: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
    let mut outputs = Vec::new();
    let output = |_, tensor| {
        outputs.push(tensor);
        Ok(())
    };
    let done = begin_call(memory, |i| Ok(args[i].clone()), output)?;
    Ok(done.then_some(outputs))
}

/// The elements of a tensor on a device; the host itself cannot read them.
fn on_host(memory: &Arc<StreamMemory>, tensor: &Tensor) -> Vec<f32> {
    assert_eq!(tensor.slice::<f32>().unwrap_err().code(), Code::Internal);
    assert_eq!(tensor.bytes().unwrap_err().code(), Code::Internal);
    let (send, receive) = mpsc::channel();
    memory.to_host(tensor.clone(), move |t| send.send(t).unwrap());
    receive
        .recv()
        .unwrap()
        .unwrap()
        .slice::<f32>()
        .unwrap()
        .to_vec()
}

#[test]
fn a_lost_device_fails_the_last_call() {
    let Some(cuda) = stand_in() else {
        return;
    };
    let device = Device::new(cuda, 0).unwrap();
    let stream = Stream::new(&device).unwrap();
    let allocator = Allocator::new(&device, &AllocatorOptions::default());
    let buffer = Buffer::new(&allocator, &stream, 4, "test").unwrap();
    // The stand-in is lost then.
    stream.fill(&buffer, &[0xee]).unwrap();
    let (send, receive) = mpsc::channel();
    stream
        .call_host(move |ran| send.send(ran).unwrap())
        .unwrap();
    let error = receive.recv().unwrap().unwrap_err();
    assert!(error.message().contains("cuStreamQuery"), "{error}");
}

#[test]
fn a_timeline_has_what_streams_ran() {
    let Some(cuda) = stand_in() else {
        return;
    };
    let device = Device::new(cuda, 0).unwrap();
    let memory = Arc::new(StreamMemory::new(&device, &AllocatorOptions::default()).unwrap());
    let fill = |node: &str, n: usize| {
        memory.enqueuing(node, "Fill", || {
            for _ in 0..n {
                let zeros = memory.allocate_tensor(DType::Float, [8].into()).unwrap();
                memory.fill(&zeros, &[0]).unwrap();
            }
        });
    };
    fill("before", 1);
    let timeline = memory.start_timeline().unwrap();
    fill("twice", 2);
    fill("nothing", 0);
    memory.to_device(Tensor::vector(&[1f32; 9]).unwrap(), "x", |copy| {
        assert!(copy.is_ok())
    });
    memory.end_timeline(&timeline);
    fill("after", 1);
    let ops = timeline.ops().unwrap();
    let seen: Vec<_> = ops.iter().map(|o| (o.stream, &*o.name, &*o.op)).collect();
    let expected = [
        (StreamKind::Compute, "twice", "Fill"),
        (StreamKind::Into, "x", "MEMCPYHtoD"),
    ];
    assert_eq!(seen, expected);
    assert!(ops.iter().all(|o| o.start <= o.end));
}
