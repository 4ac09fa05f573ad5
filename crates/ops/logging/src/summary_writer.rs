//! Summaries written by a graph: SummaryWriter, the event files that it stands for, and the ops that write through it
//! (TensorFlow: `core/kernels/summary_kernels.cc`).

use crate::media::{images, sounds};
use crate::summaries::{counted, doubles, limits};
use ferroflow_base::{Result, Status, invalid_argument, not_found};
use ferroflow_functors::shapes;
use ferroflow_model::proto::{Event, GraphDef, Summary, SummaryMetadata, summary};
use ferroflow_model::{EventWriter, tensor_to_proto};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::file_system::local_path;
use ferroflow_resources::resource::{ContainerInfo, HandleKernel, Resource, resource};
use ferroflow_sync::Inline;
use ferroflow_tensor::Tensor;
use prost::Message;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// SummaryWriter, CreateSummaryFileWriter, FlushSummaryWriter, CloseSummaryWriter, WriteSummary,
/// WriteScalarSummary, WriteHistogramSummary, WriteImageSummary, WriteAudioSummary,
/// WriteRawProtoSummary, WriteGraphSummary, ImportEvent.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SummaryWriter",
        "-> writer: resource | shared_name: string = ''; container: string = '' | \
         stateful",
    )
    .shape(shapes::scalar)
    .kernel(handle),
    Op::new(
        "CreateSummaryFileWriter",
        "writer: resource, logdir: string, max_queue: int32, flush_millis: int32, \
         filename_suffix: string -> | | stateful",
    )
    .kernel(|_| Ok(Box::new(create))),
    Op::new("FlushSummaryWriter", "writer: resource -> | | stateful").kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            with_writer(ctx, |w| w.flush())
        }))
    }),
    Op::new("CloseSummaryWriter", "writer: resource -> | | stateful")
        .kernel(|_| Ok(Box::new(close))),
    Op::new(
        "WriteSummary",
        "writer: resource, step: int64, tensor: T, tag: string, summary_metadata: \
         string -> | T: type | stateful",
    )
    .kernel(|_| Ok(Box::new(write_tensor))),
    Op::new(
        "WriteScalarSummary",
        "writer: resource, step: int64, tag: string, value: T -> | T: realnumbertype | \
         stateful",
    )
    .kernel(|_| Ok(Box::new(write_scalar))),
    Op::new(
        "WriteHistogramSummary",
        "writer: resource, step: int64, tag: string, values: T -> | T: type \
         {realnumbertype,bool} = float | stateful",
    )
    .kernel(|_| Ok(Box::new(write_histogram))),
    Op::new(
        "WriteImageSummary",
        "writer: resource, step: int64, tag: string, tensor: T, bad_color: uint8 -> | max_images: \
         int >= 1 = 3; T: type {uint8,double,float,half} = float | stateful",
    )
    .kernel(write_images),
    Op::new(
        "WriteAudioSummary",
        "writer: resource, step: int64, tag: string, tensor: float, sample_rate: float -> | \
         max_outputs: int >= 1 = 3 | stateful",
    )
    .kernel(write_audio),
    Op::new(
        "WriteRawProtoSummary",
        "writer: resource, step: int64, tensor: string -> | | stateful",
    )
    .kernel(|_| Ok(Box::new(write_raw))),
    Op::new(
        "WriteGraphSummary",
        "writer: resource, step: int64, tensor: string -> | | stateful",
    )
    .kernel(|_| Ok(Box::new(write_graph))),
    Op::new(
        "ImportEvent",
        "writer: resource, event: string -> | | stateful",
    )
    .kernel(|_| Ok(Box::new(import_event))),
];

/// Where summaries go.
pub(crate) trait Sink: Send {
    /// Writes a tensor at a step of a tag.
    fn tensor(&mut self, step: i64, tag: String, t: &Tensor, of: SummaryMetadata) -> Result<()>;
    /// Writes a scalar at a step of a tag.
    fn scalar(&mut self, step: i64, tag: String, t: &Tensor) -> Result<()>;
    /// Writes values of any kind at a step.
    fn values(&mut self, step: i64, values: Vec<summary::Value>) -> Result<()>;
    /// Writes the graph of the run.
    fn graph(&mut self, step: i64, graph: GraphDef) -> Result<()>;
    /// Writes an event, including its time.
    fn event(&mut self, event: Event) -> Result<()>;
    /// Makes what was written visible to readers.
    fn flush(&mut self) -> Result<()>;
    /// Ends the run.
    fn finish(&mut self) -> Result<()>;
}

/// A writer: `None` before it is created and after it is closed.
#[derive(Default)]
struct SummaryWriter(Mutex<Option<Box<dyn Sink>>>);

impl Resource for SummaryWriter {
    const TYPE: &'static str = "tensorflow::SummaryWriterInterface";

    fn is_gone(&self) -> bool {
        false
    }
}

/// An event file that is flushed after a number of events or some time.
struct EventFile {
    events: EventWriter,
    pending: i64,
    max_queue: i64,
    flush_after: Duration,
    flushed: Instant,
}

impl EventFile {
    fn written(&mut self) -> Result<()> {
        self.pending += 1;
        match self.pending > self.max_queue || self.flushed.elapsed() >= self.flush_after {
            true => self.flush(),
            false => Ok(()),
        }
    }
}

impl Sink for EventFile {
    fn tensor(&mut self, step: i64, tag: String, t: &Tensor, of: SummaryMetadata) -> Result<()> {
        let value = summary::Value {
            tag,
            metadata: Some(of),
            value: Some(summary::value::Value::Tensor(tensor_to_proto(t)?)),
            ..Default::default()
        };
        self.values(step, vec![value])
    }

    fn scalar(&mut self, step: i64, tag: String, t: &Tensor) -> Result<()> {
        let values = doubles(&Inline, t)?;
        let [value] = values[..] else {
            return Err(invalid_argument!("value must be scalar"));
        };
        let value = summary::Value {
            tag,
            value: Some(summary::value::Value::SimpleValue(value as f32)),
            ..Default::default()
        };
        self.values(step, vec![value])
    }

    fn values(&mut self, step: i64, values: Vec<summary::Value>) -> Result<()> {
        self.events.values(step, values)?;
        self.written()
    }

    fn graph(&mut self, step: i64, graph: GraphDef) -> Result<()> {
        self.events.graph(step, &graph)?;
        self.written()
    }

    fn event(&mut self, event: Event) -> Result<()> {
        self.events.write(&event)?;
        self.written()
    }

    fn flush(&mut self) -> Result<()> {
        self.pending = 0;
        self.flushed = Instant::now();
        self.events.flush()
    }

    fn finish(&mut self) -> Result<()> {
        self.flush()
    }
}

fn handle(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let place = ContainerInfo::of_node(build)?;
    Ok(Box::new(HandleKernel::new(place, |_: &KernelCtx| {
        Ok(SummaryWriter::default())
    })))
}

pub(crate) fn text(ctx: &KernelCtx, i: usize, what: &str) -> Result<String> {
    match ctx.input(i)?.strings()? {
        [text] => Ok(String::from_utf8_lossy(text).into_owned()),
        _ => Err(invalid_argument!("{what} must be scalar")),
    }
}

fn create(ctx: &mut KernelCtx) -> Result<()> {
    create_sink(ctx, || {
        let (folder, suffix) = (text(ctx, 1, "logdir")?, text(ctx, 4, "filename_suffix")?);
        let number = |i: usize| Ok::<i64, Status>(ctx.input(i)?.to_scalar::<i32>()?.into());
        Ok(Box::new(EventFile {
            events: EventWriter::with_suffix(Path::new(local_path(&folder)), &suffix)?,
            pending: 0,
            max_queue: number(2)?,
            flush_after: Duration::from_millis(number(3)?.max(0) as u64),
            flushed: Instant::now(),
        }))
    })
}

/// Sets where the writer in input 0 writes, unless that is known.
pub(crate) fn create_sink(
    ctx: &KernelCtx,
    make: impl FnOnce() -> Result<Box<dyn Sink>>,
) -> Result<()> {
    let writer = resource::<SummaryWriter>(ctx, 0)?;
    let mut slot = writer.0.lock().unwrap_or_else(PoisonError::into_inner);
    if slot.is_none() {
        *slot = Some(make()?);
    }
    Ok(())
}

fn close(ctx: &mut KernelCtx) -> Result<()> {
    let writer = resource::<SummaryWriter>(ctx, 0)?;
    let sink = writer
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    sink.map_or(Ok(()), |mut sink| sink.finish())
}

fn with_writer(ctx: &KernelCtx, f: impl FnOnce(&mut dyn Sink) -> Result<()>) -> Result<()> {
    let writer = resource::<SummaryWriter>(ctx, 0)?;
    let mut slot = writer.0.lock().unwrap_or_else(PoisonError::into_inner);
    let sink = slot.as_mut().ok_or_else(|| {
        not_found!("the summary writer is not created or already closed: run its init op first")
    })?;
    f(sink.as_mut())
}

fn step(ctx: &KernelCtx) -> Result<i64> {
    ctx.input(1)?.to_scalar::<i64>()
}

fn write_scalar(ctx: &mut KernelCtx) -> Result<()> {
    let (step, tag) = (step(ctx)?, text(ctx, 2, "tag")?);
    with_writer(ctx, |w| w.scalar(step, tag, ctx.input(3)?))
}

fn write_histogram(ctx: &mut KernelCtx) -> Result<()> {
    let (step, tag) = (step(ctx)?, text(ctx, 2, "tag")?);
    let values = doubles(ctx.par(), ctx.input(3)?)?;
    if let Some(bad) = values.iter().find(|v| !v.is_finite()) {
        let what = if bad.is_nan() { "Nan" } else { "Infinity" };
        return Err(invalid_argument!("{what} in summary histogram for: {tag}"));
    }
    let value = summary::Value {
        tag,
        value: Some(summary::value::Value::Histo(counted(&limits(), &values))),
        ..Default::default()
    };
    with_writer(ctx, |w| w.values(step, vec![value]))
}

fn write_images(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let most = build.attrs.int("max_images")?.max(0) as usize;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (step, tag) = (step(ctx)?, text(ctx, 2, "tag")?);
        let values = images(ctx.input(3)?, &tag, most, ctx.input(4)?)?;
        with_writer(ctx, |w| w.values(step, values))
    }))
}

fn write_audio(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let most = build.attrs.int("max_outputs")?.max(0) as usize;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (step, tag) = (step(ctx)?, text(ctx, 2, "tag")?);
        let values = sounds(ctx.input(3)?, &tag, most, ctx.input(4)?.to_scalar()?)?;
        with_writer(ctx, |w| w.values(step, values))
    }))
}

/// Returns the single message in input `i`.
fn message<M: Message + Default>(ctx: &KernelCtx, i: usize, what: &str) -> Result<M> {
    match ctx.input(i)?.strings()? {
        [bytes] => M::decode(&bytes[..]).map_err(|_| invalid_argument!("Bad {what} binary proto")),
        _ => Err(invalid_argument!("{what} must be scalar")),
    }
}

fn write_tensor(ctx: &mut KernelCtx) -> Result<()> {
    let (step, tag) = (step(ctx)?, text(ctx, 3, "tag")?);
    let metadata: SummaryMetadata = message(ctx, 4, "tf.SummaryMetadata")?;
    with_writer(ctx, |w| w.tensor(step, tag, ctx.input(2)?, metadata))
}

fn summaries(t: &Tensor) -> Result<Vec<summary::Value>> {
    let mut all = Vec::new();
    for bytes in t.strings()? {
        let part = Summary::decode(&bytes[..]).map_err(|_| {
            invalid_argument!("Bad tf.compat.v1.Summary binary proto tensor string")
        })?;
        all.extend(part.value);
    }
    Ok(all)
}

fn write_raw(ctx: &mut KernelCtx) -> Result<()> {
    let (step, values) = (step(ctx)?, summaries(ctx.input(2)?)?);
    with_writer(ctx, |w| w.values(step, values))
}

fn write_graph(ctx: &mut KernelCtx) -> Result<()> {
    let (step, graph): (i64, GraphDef) = (step(ctx)?, message(ctx, 2, "tf.GraphDef")?);
    with_writer(ctx, |w| w.graph(step, graph))
}

fn import_event(ctx: &mut KernelCtx) -> Result<()> {
    let event: Event = message(ctx, 1, "tf.Event")?;
    with_writer(ctx, |w| w.event(event))
}
