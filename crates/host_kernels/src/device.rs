//! `tfrt_gpu.*`: devices, streams, events, memory, modules and launches.
//!
//! Platform `HOST_STREAM` is the threads of this machine. A program names the streams that it uses, and
//! synchronizes those that share memory; only the reuse of freed memory is synchronized for it.

use super::blocking;
use super::dense::{SharedBuffer, copy_bytes};
use super::shape::TensorShape;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::{
    Allocator, AllocatorOptions, Backend, Buffer, Device, Event, Function, Grid, HostStreamOptions,
    HostStreams, KernelArg, Module, Pinned, Stream,
};
use ferroflow_host_context::{
    Arg, Ctx, Frame, HostDType, HostValue, KernelFrame, KernelRegistry, StrAttr,
};
use ferroflow_sync::{AsyncValueRef, Chain, Promise};
use std::sync::{Arc, OnceLock};

/// A device that a program works with; allocations of pinned memory share a cache.
#[derive(Clone)]
struct Context {
    device: Device,
    pinned: Allocator,
}

#[derive(Clone)]
struct GpuStream {
    stream: Stream,
    context: Context,
}

/// Memory, until a tensor takes it over.
#[derive(Clone)]
struct GpuBuffer(Arc<Buffer>);

/// A tensor in device memory.
struct GpuTensor {
    dtype: HostDType,
    shape: TensorShape,
    buffer: Arc<Buffer>,
}

/// A value of a type of the device room.
struct Gpu<T>(T);

impl<T: Send + Sync + 'static> HostValue for Gpu<T> {}
impl HostValue for Context {}
impl HostValue for GpuStream {}
impl HostValue for GpuBuffer {}
impl HostValue for GpuTensor {}

/// The devices of a platform.
fn backend(platform: &str) -> Result<Arc<dyn Backend>> {
    static HOST: OnceLock<Arc<HostStreams>> = OnceLock::new();
    match platform {
        "HOST_STREAM" => {
            let host = HOST.get_or_init(|| {
                HostStreams::new(HostStreamOptions {
                    devices: 4,
                    ..Default::default()
                })
            });
            Ok(host.clone())
        }
        other => Err(invalid_argument!(
            "platform {other} is not available; this program has HOST_STREAM"
        )),
    }
}

fn device_get(ordinal: i32, platform: StrAttr) -> Result<Gpu<Device>> {
    let backend = backend(platform.0)?;
    let ordinal = usize::try_from(ordinal);
    let ordinal = ordinal.map_err(|_| invalid_argument!("a device has no negative number"))?;
    Device::new(backend, ordinal).map(Gpu)
}

fn context(device: Arg<Gpu<Device>>) -> Context {
    Context {
        device: device.0.0.clone(),
        pinned: Allocator::pinned(&device.0.0),
    }
}

fn stream_create(context: Arg<Context>) -> Result<GpuStream> {
    Ok(GpuStream {
        stream: Stream::new(&context.device)?,
        context: context.0.clone(),
    })
}

/// Waits on a thread that may block.
fn wait(
    ctx: &Ctx,
    wait: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<AsyncValueRef<Chain>> {
    let (promise, value) = Promise::new();
    blocking(ctx, move || promise.set(wait().map(|()| Chain), None))?;
    Ok(value)
}

fn allocate(
    allocator: Arg<Gpu<Allocator>>,
    stream: Arg<GpuStream>,
    size: i64,
) -> Result<GpuBuffer> {
    let buffer = Buffer::new(&allocator.0.0, &stream.stream, bytes(size)?, "mem.allocate");
    Ok(GpuBuffer(Arc::new(buffer?)))
}

fn allocate_host(context: Arg<Context>, size: i64) -> Result<GpuBuffer> {
    let pinned = Pinned::new(&context.pinned, bytes(size)?)?;
    Ok(GpuBuffer(Arc::new(pinned.into_buffer())))
}

fn bytes(size: i64) -> Result<usize> {
    usize::try_from(size).map_err(|_| invalid_argument!("{size} bytes cannot be allocated"))
}

/// Copies between device memory and host buffers, in any combination but host to host.
fn copy(frame: &KernelFrame) -> Result<Chain> {
    let stream: &GpuStream = frame.arg(2)?;
    let to = frame.arg::<GpuBuffer>(0);
    let from = frame.arg::<GpuBuffer>(1);
    match (to, from) {
        (Ok(to), Ok(from)) => stream.stream.copy(&to.0, &from.0)?,
        (Ok(to), Err(_)) => {
            let from: &SharedBuffer = frame.arg(1)?;
            check_sizes(to.0.len(), from.size())?;
            let pinned = &stream.context.pinned;
            from.read(|bytes| stream.stream.copy_from_host(&to.0, bytes, pinned))?;
        }
        (Err(_), from) => {
            let (to, from): (&SharedBuffer, _) = (frame.arg(0)?, from?);
            check_sizes(to.size(), from.0.len())?;
            let to = to.clone();
            let done = move |pinned: Result<Pinned>| {
                // An error is reported where the stream is synchronized.
                if let Ok(pinned) = pinned {
                    to.write(|bytes| copy_bytes(pinned.bytes(), bytes));
                }
            };
            stream
                .stream
                .copy_to_host(&from.0, &stream.context.pinned, done);
        }
    }
    Ok(Chain)
}

fn check_sizes(to: usize, from: usize) -> Result<()> {
    match to == from {
        true => Ok(()),
        false => Err(invalid_argument!(
            "Buffer sizes don't match: {to} (dst size) vs {from} (src size)"
        )),
    }
}

fn set(frame: &KernelFrame) -> Result<Chain> {
    let (to, stream): (&GpuBuffer, &GpuStream) = (frame.arg(0)?, frame.arg(2)?);
    let word = match (
        frame.arg::<i32>(1),
        frame.arg::<u32>(1),
        frame.arg::<f32>(1),
    ) {
        (Ok(v), ..) => v.to_le_bytes(),
        (_, Ok(v), _) => v.to_le_bytes(),
        (_, _, Ok(v)) => v.to_le_bytes(),
        _ => return Err(invalid_argument!("Expected 32 bit value.")),
    };
    stream.stream.fill(&to.0, &word)?;
    Ok(Chain)
}

fn make_tensor(buffer: &GpuBuffer, shape: &TensorShape, dtype: HostDType) -> Result<GpuTensor> {
    let (n, size) = (shape.n_elements()?, dtype.size().unwrap_or(0));
    if n.checked_mul(size) != Some(buffer.0.len()) {
        return Err(invalid_argument!(
            "tfrt_gpu.tensor.make failed: buffer_size ({}) is not equal to the number of elements in shape \
             ({shape}) times element size ({size})",
            buffer.0.len()
        ));
    }
    Ok(GpuTensor {
        dtype,
        shape: shape.clone(),
        buffer: buffer.0.clone(),
    })
}

fn module_load(context: Arg<Context>, data: StrAttr) -> Result<Gpu<Module>> {
    let image = data.0.strip_suffix('\0');
    let image = image.ok_or_else(|| invalid_argument!("data attribute must be null-terminated"))?;
    Module::load(&context.device, image).map(Gpu)
}

fn launch(frame: &KernelFrame) -> Result<Chain> {
    let (stream, function): (&GpuStream, &Gpu<Function>) = (frame.arg(0)?, frame.arg(1)?);
    let dim = |i: usize| -> Result<u32> {
        let dim = *frame.arg::<u64>(i)?;
        u32::try_from(dim).map_err(|_| invalid_argument!("a grid of {dim} is too large"))
    };
    let grid = Grid {
        blocks: [dim(2)?, dim(3)?, dim(4)?],
        threads: [dim(5)?, dim(6)?, dim(7)?],
        shared_bytes: *frame.arg::<u32>(8)?,
    };
    let arg = |i: usize| -> Result<KernelArg<'_>> {
        if let Ok(buffer) = frame.arg::<GpuBuffer>(i) {
            return Ok(KernelArg::Buffer(&buffer.0));
        }
        let number = frame.arg::<i32>(i).map(|v| KernelArg::I32(*v));
        let number = number.or_else(|_| frame.arg::<i64>(i).map(|v| KernelArg::I64(*v)));
        let number = number.or_else(|_| frame.arg::<f32>(i).map(|v| KernelArg::F32(*v)));
        let number = number.or_else(|_| frame.arg::<f64>(i).map(|v| KernelArg::F64(*v)));
        number.map_err(|_| invalid_argument!("Unsupported argument type"))
    };
    let args = (10..frame.n_args()).map(arg).collect::<Result<Vec<_>>>()?;
    function.0.launch(&stream.stream, &grid, &args)?;
    Ok(Chain)
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry
        .add("tfrt_gpu.device.get", device_get)
        .add("tfrt_gpu.context.primary", context)
        .add("tfrt_gpu.context.create", context)
        .add("tfrt_gpu.stream.create", stream_create)
        .add("tfrt_gpu.stream.get_context", |s: Arg<GpuStream>| {
            s.context.clone()
        })
        .add(
            "tfrt_gpu.stream.wait",
            |s: Arg<GpuStream>, event: Arg<Gpu<Event>>| s.stream.wait(&event.0.0).map(|()| Chain),
        )
        .add(
            "tfrt_gpu.stream.synchronize",
            |s: Arg<GpuStream>, ctx: Ctx| {
                let stream = s.stream.clone();
                wait(&ctx, move || stream.synchronize())
            },
        )
        .add("tfrt_gpu.event.create", |c: Arg<Context>| {
            Event::new(&c.device).map(Gpu)
        })
        .add(
            "tfrt_gpu.event.record",
            |event: Arg<Gpu<Event>>, s: Arg<GpuStream>| event.0.0.record(&s.stream).map(|()| Chain),
        )
        .add(
            "tfrt_gpu.event.synchronize",
            |event: Arg<Gpu<Event>>, ctx: Ctx| {
                let event = event.0.0.clone();
                wait(&ctx, move || event.synchronize())
            },
        )
        .add("tfrt_gpu.allocator.create", |c: Arg<Context>| {
            Gpu(Allocator::new(&c.device, &AllocatorOptions::default()))
        })
        .add("tfrt_gpu.mem.allocate", allocate)
        .add("tfrt_gpu.mem.allocate_host", allocate_host)
        .add(
            "tfrt_gpu.mem.deallocate",
            |b: Arg<GpuBuffer>, s: Arg<GpuStream>| b.0.0.free(&s.stream).map(|()| Chain),
        )
        .add(
            "tfrt_gpu.mem.view",
            |b: Arg<GpuBuffer>, offset: u64, size: u64| {
                let part = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
                let view = b.0.0.view(part(offset), part(size));
                view.map(|view| GpuBuffer(Arc::new(view)))
            },
        )
        .add(
            "tfrt_gpu.mem.print_metadata",
            |b: Arg<GpuBuffer>, ctx: Ctx| {
                ctx.host().print(&format!("GpuBuffer<{:?}>\n", b.0.0));
                Chain
            },
        )
        .add(
            "tfrt_gpu.tensor.print_metadata",
            |t: Arg<GpuTensor>, ctx: Ctx| {
                let platform = t.buffer.device().backend().platform();
                ctx.host().print(&format!(
                    "DenseGpuTensor<dtype={:?}, shape={}, pointer={} ({platform})>\n",
                    t.dtype,
                    t.shape,
                    t.buffer.address()
                ));
                Chain
            },
        )
        .add("tfrt_gpu.module.load", module_load)
        .add(
            "tfrt_gpu.module.get_global",
            |m: Arg<Gpu<Module>>, name: StrAttr| {
                m.0.0.global(symbol(&name)).map(|b| GpuBuffer(Arc::new(b)))
            },
        )
        .add(
            "tfrt_gpu.module.get_function",
            |m: Arg<Gpu<Module>>, name: StrAttr| m.0.0.function(symbol(&name)).map(Gpu),
        );
    register_frames(registry);
}

/// A name as device code has it: programs may end it with a zero byte.
fn symbol<'a>(name: &StrAttr<'a>) -> &'a str {
    name.0.strip_suffix('\0').unwrap_or(name.0)
}

/// Kernels whose arguments have one of several types.
fn register_frames(registry: &mut KernelRegistry) {
    type Kernel = fn(&KernelFrame) -> Result<Chain>;
    let kernels: [(&str, Kernel); 3] = [
        ("tfrt_gpu.mem.copy", copy),
        ("tfrt_gpu.mem.set", set),
        ("tfrt_gpu.function.launch", launch),
    ];
    for (name, kernel) in kernels {
        registry.add_raw(name, move |frame| {
            let chain = kernel(frame)?;
            frame.emplace(0, chain);
            Ok(())
        });
    }
    let dtypes = [
        ("i8", HostDType::I8),
        ("i32", HostDType::I32),
        ("i64", HostDType::I64),
        ("f32", HostDType::F32),
        ("f64", HostDType::F64),
    ];
    for (name, dtype) in dtypes {
        let kernel = move |buffer: Arg<GpuBuffer>, shape: Arg<TensorShape>| {
            make_tensor(&buffer, &shape, dtype)
        };
        registry.add(&format!("tfrt_gpu.tensor.make.{name}"), kernel);
    }
}
