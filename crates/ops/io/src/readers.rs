//! Reader ops, which dequeue file names and return records, by handle and by reference (TensorFlow:
//! `core/kernels/reader_ops.cc`).

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_model::RecordCompression;
use ferroflow_opdef::{AsyncCall, Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::queue::{only_async, queue_of};
use ferroflow_resources::reader::{Job, Reader, ReaderFormat};
use ferroflow_resources::resource::{ContainerInfo, HandleKernel};
use ferroflow_resources::string_handle;
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::sync::Arc;

/// WholeFileReader, WholeFileReaderV2, IdentityReader, IdentityReaderV2, TextLineReader,
/// TextLineReaderV2, FixedLengthRecordReader, FixedLengthRecordReaderV2, TFRecordReader,
/// TFRecordReaderV2, ReaderRead, ReaderReadV2, ReaderReadUpTo, ReaderReadUpToV2,
/// ReaderNumRecordsProduced, ReaderNumRecordsProducedV2, ReaderNumWorkUnitsCompleted,
/// ReaderNumWorkUnitsCompletedV2, ReaderSerializeState, ReaderSerializeStateV2, ReaderRestoreState,
/// ReaderRestoreStateV2, ReaderReset, ReaderResetV2.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "WholeFileReader",
        "-> reader_handle: Ref(string) | container: string = ''; shared_name: string = \
         '' | stateful",
    )
    .shape(string_handle::handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| reader(b, true))
    .not_differentiable(),
    Op::new(
        "WholeFileReaderV2",
        "-> reader_handle: resource | container: string = ''; shared_name: string = '' \
         | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| reader(b, false)),
    Op::new(
        "IdentityReader",
        "-> reader_handle: Ref(string) | container: string = ''; shared_name: string = \
         '' | stateful",
    )
    .shape(string_handle::handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| reader(b, true))
    .not_differentiable(),
    Op::new(
        "IdentityReaderV2",
        "-> reader_handle: resource | container: string = ''; shared_name: string = '' \
         | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| reader(b, false)),
    Op::new(
        "TextLineReader",
        "-> reader_handle: Ref(string) | skip_header_lines: int = 0; container: string \
         = ''; shared_name: string = '' | stateful",
    )
    .shape(string_handle::handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| reader(b, true))
    .not_differentiable(),
    Op::new(
        "TextLineReaderV2",
        "-> reader_handle: resource | skip_header_lines: int = 0; container: string = \
         ''; shared_name: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| reader(b, false)),
    Op::new(
        "FixedLengthRecordReader",
        "-> reader_handle: Ref(string) | header_bytes: int = 0; record_bytes: int; \
         footer_bytes: int = 0; hop_bytes: int = 0; container: string = ''; \
         shared_name: string = '' | stateful",
    )
    .shape(string_handle::handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| reader(b, true))
    .not_differentiable(),
    Op::new(
        "FixedLengthRecordReaderV2",
        "-> reader_handle: resource | header_bytes: int = 0; record_bytes: int; \
         footer_bytes: int = 0; hop_bytes: int = 0; container: string = ''; \
         shared_name: string = ''; encoding: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| reader(b, false)),
    Op::new(
        "TFRecordReader",
        "-> reader_handle: Ref(string) | container: string = ''; shared_name: string = \
         ''; compression_type: string = '' | stateful",
    )
    .shape(string_handle::handle_shape)
    .cost(Cost::Cheap)
    .kernel(|b| reader(b, true))
    .not_differentiable(),
    Op::new(
        "TFRecordReaderV2",
        "-> reader_handle: resource | container: string = ''; shared_name: string = ''; \
         compression_type: string = '' | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|b| reader(b, false)),
    Op::new(
        "ReaderRead",
        "reader_handle: Ref(string), queue_handle: Ref(string) -> key: string, value: \
         string",
    )
    .shape(two_scalars)
    .cost(Cost::Async)
    .kernel(|_| Ok(Box::new(Read { many: false })))
    .not_differentiable(),
    Op::new(
        "ReaderReadV2",
        "reader_handle: resource, queue_handle: resource -> key: string, value: string \
         |  | stateful",
    )
    .shape(two_scalars)
    .cost(Cost::Async)
    .kernel(|_| Ok(Box::new(Read { many: false }))),
    Op::new(
        "ReaderReadUpTo",
        "reader_handle: Ref(string), queue_handle: Ref(string), num_records: int64 -> \
         keys: string, values: string",
    )
    .shape(two_vectors)
    .cost(Cost::Async)
    .kernel(|_| Ok(Box::new(Read { many: true })))
    .not_differentiable(),
    Op::new(
        "ReaderReadUpToV2",
        "reader_handle: resource, queue_handle: resource, num_records: int64 -> keys: \
         string, values: string |  | stateful",
    )
    .shape(two_vectors)
    .cost(Cost::Async)
    .kernel(|_| Ok(Box::new(Read { many: true }))),
    Op::new(
        "ReaderNumRecordsProduced",
        "reader_handle: Ref(string) -> records_produced: int64",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| count(Reader::num_produced))
    .not_differentiable(),
    Op::new(
        "ReaderNumRecordsProducedV2",
        "reader_handle: resource -> records_produced: int64 |  | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| count(Reader::num_produced)),
    Op::new(
        "ReaderNumWorkUnitsCompleted",
        "reader_handle: Ref(string) -> units_completed: int64",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| count(Reader::num_finished))
    .not_differentiable(),
    Op::new(
        "ReaderNumWorkUnitsCompletedV2",
        "reader_handle: resource -> units_completed: int64 |  | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| count(Reader::num_finished)),
    Op::new(
        "ReaderSerializeState",
        "reader_handle: Ref(string) -> state: string",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(serialize)))
    .not_differentiable(),
    Op::new(
        "ReaderSerializeStateV2",
        "reader_handle: resource -> state: string |  | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(serialize))),
    Op::new(
        "ReaderRestoreState",
        "reader_handle: Ref(string), state: string ->",
    )
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(restore)))
    .not_differentiable(),
    Op::new(
        "ReaderRestoreStateV2",
        "reader_handle: resource, state: string -> |  | stateful",
    )
    .cost(Cost::Cheap)
    .kernel(|_| Ok(Box::new(restore))),
    Op::new("ReaderReset", "reader_handle: Ref(string) ->")
        .cost(Cost::Cheap)
        .kernel(|_| Ok(Box::new(reset)))
        .not_differentiable(),
    Op::new("ReaderResetV2", "reader_handle: resource -> |  | stateful")
        .cost(Cost::Cheap)
        .kernel(|_| Ok(Box::new(reset))),
];

fn two_scalars(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, PartialShape::scalar());
    ctx.set(1, PartialShape::scalar());
    Ok(())
}

fn two_vectors(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.with_rank(2, 0)?;
    ctx.set(0, PartialShape::of([None]));
    ctx.set(1, PartialShape::of([None]));
    Ok(())
}

/// Returns the record format of a reader's node.
fn format(build: &KernelBuild) -> Result<ReaderFormat> {
    let attrs = build.attrs;
    let size = |name: &str| {
        let value = attrs.int(name)?;
        usize::try_from(value).map_err(|_| invalid_argument!("{name} must be >= 0 not {value}"))
    };
    // As in TensorFlow, an unknown name means no compression.
    let compression =
        |name: &str| Ok(RecordCompression::from_name(attrs.str(name)?).unwrap_or_default());
    Ok(match build.def.name.trim_end_matches("V2") {
        "WholeFileReader" => ReaderFormat::Whole,
        "IdentityReader" => ReaderFormat::Identity,
        "TextLineReader" => ReaderFormat::Lines {
            skip: size("skip_header_lines")?,
        },
        "TFRecordReader" => ReaderFormat::Records(compression("compression_type")?),
        _ => {
            let record = size("record_bytes")?;
            if record == 0 {
                return Err(invalid_argument!("record_bytes must be > 0 not 0"));
            }
            let hop = size("hop_bytes")?;
            let zipped = attrs.get("encoding").is_some() && attrs.str("encoding")? == "ZLIB";
            ReaderFormat::Fixed {
                header: size("header_bytes")?,
                record,
                footer: size("footer_bytes")?,
                hop: if hop == 0 { record } else { hop },
                compression: match zipped {
                    true => RecordCompression::Zlib,
                    false => RecordCompression::None,
                },
            }
        }
    })
}

fn reader(build: &KernelBuild, is_old: bool) -> Result<Box<dyn OpKernel>> {
    let at = |e: ferroflow_base::Status| e.at_node(build.node, &build.def.name);
    let format = format(build).map_err(at)?;
    let node = build.node.to_string();
    let place = ContainerInfo::of_node(build)?;
    let make = move |_: &KernelCtx| Ok(Reader::new(format.clone(), &node));
    if !is_old {
        return Ok(Box::new(HandleKernel::new(place, make)));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (name, found) = place.find(ctx.resources(), |_| make(ctx))?;
        let handle = string_handle::string_handle("readers", &name, found)?;
        ctx.set_output(0, handle)
    }))
}

/// Returns the reader that a handle refers to.
fn reader_of(handle: &Tensor) -> Result<Arc<Reader>> {
    if handle.dtype() == DType::String {
        return string_handle::named(handle, "reader");
    }
    let value = handle.resources()?.first().and_then(|h| h.value.clone());
    value
        .and_then(|value| value.downcast().ok())
        .ok_or_else(|| invalid_argument!("the resource handle does not refer to a reader"))
}

struct Read {
    many: bool,
}

impl Read {
    fn most(&self, call: &AsyncCall) -> Result<Option<usize>> {
        if !self.many {
            return Ok(None);
        }
        let n = call
            .inputs
            .get(2)
            .map(Tensor::to_scalar::<i64>)
            .transpose()?;
        let n = n.unwrap_or_default();
        match usize::try_from(n) {
            Ok(n) if n > 0 => Ok(Some(n)),
            _ => Err(invalid_argument!("num_records must be positive, got {n}")),
        }
    }
}

impl OpKernel for Read {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        only_async(ctx)
    }

    fn start(&self, mut call: AsyncCall) {
        let prepared = || {
            let [reader, queue, ..] = &call.inputs[..] else {
                return Err(internal!("a read needs a reader and a queue"));
            };
            let (reader, queue) = (reader_of(reader)?, queue_of(queue)?);
            if queue.dtypes != [DType::String] {
                return Err(invalid_argument!(
                    "Expected the queue of a reader to have one component of type string"
                ));
            }
            Ok((reader, queue, self.most(&call)?))
        };
        match prepared() {
            Ok((reader, queue, most)) => {
                call.inputs.clear();
                reader.submit(Job { call, queue, most });
            }
            Err(error) => call.finish(Err(error)),
        }
    }
}

fn count(of: fn(&Reader) -> i64) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let n = of(&*reader_of(ctx.input(0)?)?);
        ctx.set_output(0, Tensor::scalar(n))
    }))
}

fn reset(ctx: &mut KernelCtx) -> Result<()> {
    reader_of(ctx.input(0)?)?.reset();
    Ok(())
}

fn serialize(ctx: &mut KernelCtx) -> Result<()> {
    let state = reader_of(ctx.input(0)?)?.serialize()?;
    ctx.set_output(0, Tensor::string(state))
}

fn restore(ctx: &mut KernelCtx) -> Result<()> {
    match ctx.input(1)?.strings()? {
        [state] => reader_of(ctx.input(0)?)?.restore(state),
        all => Err(invalid_argument!(
            "Reader state must be scalar, but had {} elements",
            all.len()
        )),
    }
}
