//! Conversion of tensors to other devices and formats. The only device is the CPU; a tensor that
//! already has the requested format is not copied.

use super::super::dense::{DenseHostTensor, HostTensor};
use super::super::dht::{coo_to_dense, dense_to_coo};
use super::handle::{KnownMetadata, TensorHandle};
use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_host_context::{
    Arg, Ctx, ExecutionContext, Frame, HostValue, KernelFrame, KernelRegistry, StrAttr,
};
use ferroflow_sync::{AsyncValue, Chain};

/// A device.
struct Device;

impl HostValue for Device {}

/// The format of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TensorFormat {
    Dense,
    Scalar,
    Coo,
    String,
}

impl HostValue for TensorFormat {}

const FORMS: &[(&str, TensorFormat)] = &[
    ("DenseHost", TensorFormat::Dense),
    ("ScalarHost", TensorFormat::Scalar),
    ("CooHost", TensorFormat::Coo),
    ("StringHost", TensorFormat::String),
];

impl TensorFormat {
    fn of(tensor: &HostTensor) -> TensorFormat {
        match tensor {
            HostTensor::Dense(_) => TensorFormat::Dense,
            HostTensor::Scalar(_) => TensorFormat::Scalar,
            HostTensor::Coo(_) => TensorFormat::Coo,
            HostTensor::String(_) => TensorFormat::String,
        }
    }

    fn name(self) -> &'static str {
        let row = FORMS.iter().find(|(_, form)| *form == self);
        row.map_or("unknown", |(name, _)| name)
    }
}

type Conversion = fn(&HostTensor, &ExecutionContext) -> Result<HostTensor>;

/// Conversions between formats.
const CONVERSIONS: &[(TensorFormat, TensorFormat, Conversion)] = &[
    (TensorFormat::Scalar, TensorFormat::Dense, |tensor, ctx| {
        let t = tensor.scalar()?;
        let (allocator, shape) = (ctx.host().allocator(), t.shape.clone());
        DenseHostTensor::filled(allocator, t.dtype, shape, &t.value).map(HostTensor::Dense)
    }),
    (TensorFormat::Coo, TensorFormat::Dense, |tensor, ctx| {
        coo_to_dense(tensor.coo()?, ctx.host().allocator()).map(HostTensor::Dense)
    }),
    (TensorFormat::Dense, TensorFormat::Coo, |tensor, _| {
        Ok(HostTensor::Coo(dense_to_coo(tensor.dense()?)))
    }),
];

/// Returns the tensor in another format; the tensor itself if it already has it.
pub(super) fn convert(
    tensor: &HostTensor,
    form: TensorFormat,
    ctx: &ExecutionContext,
) -> Result<HostTensor> {
    let own = TensorFormat::of(tensor);
    if own == form {
        return Ok(tensor.clone());
    }
    match CONVERSIONS.iter().find(|c| (c.0, c.1) == (own, form)) {
        Some((_, _, convert)) => convert(tensor, ctx),
        None => Err(invalid_argument!(
            "Cannot implictly convert {} to {}",
            own.name(),
            form.name()
        )),
    }
}

fn get_device(_: Chain, name: StrAttr) -> Result<Device> {
    match name.0 {
        "CPU:0" => Ok(Device),
        name => Err(not_found!("cannot find device {name}")),
    }
}

/// Returns a tensor's format on the device: dense, unless only another can hold it.
fn preferred(tensor: &HostTensor) -> TensorFormat {
    match tensor {
        HostTensor::String(_) => TensorFormat::String,
        _ => TensorFormat::Dense,
    }
}

fn destination_form(frame: &mut KernelFrame) -> Result<()> {
    let tensor = frame.arg::<TensorHandle>(0)?.tensor.clone();
    frame.arg::<Device>(1)?;
    let promise = frame.allocate_indirect(0);
    let waiting = tensor.clone();
    waiting.and_then(move || match tensor.get::<HostTensor>() {
        Some(value) => promise.forward_to(AsyncValue::new(preferred(value))),
        None => promise.forward_to(tensor),
    });
    Ok(())
}

fn transfer(frame: &mut KernelFrame) -> Result<()> {
    let form = *frame.arg::<TensorFormat>(2)?;
    transfer_to(frame, move |_| form)
}

/// Converts to the device's preferred format; see [`preferred`].
fn transfer_inferred(frame: &mut KernelFrame) -> Result<()> {
    transfer_to(frame, preferred)
}

fn transfer_to(
    frame: &mut KernelFrame,
    form: impl FnOnce(&HostTensor) -> TensorFormat + Send + 'static,
) -> Result<()> {
    let handle = frame.arg::<TensorHandle>(0)?.clone();
    frame.arg::<Device>(1)?;
    let (ctx, reporter) = (frame.ctx().clone(), frame.reporter());
    let (promise, tensor) = ferroflow_sync::IndirectPromise::new();
    let known = handle
        .metadata(handle.get())
        .map(|(dtype, shape)| (dtype, shape.clone()));
    let (source, known) = (handle.tensor, KnownMetadata::new(known));
    let waiting = source.clone();
    waiting.and_then(move || {
        let Some(value) = source.get::<HostTensor>() else {
            return promise.forward_to(source);
        };
        let form = form(value);
        if TensorFormat::of(value) == form {
            return promise.forward_to(source);
        }
        match convert(value, form, &ctx) {
            Ok(value) => promise.forward_to(AsyncValue::new(value)),
            Err(status) => promise.set_error(reporter.report(status)),
        }
    });
    frame.emplace(0, TensorHandle { tensor, known });
    Ok(())
}

fn form(name: StrAttr) -> Result<TensorFormat> {
    let row = FORMS.iter().find(|(n, _)| *n == name.0);
    row.map(|(_, form)| *form)
        .ok_or_else(|| not_found!("unknown tensor type {}", name.0))
}

fn print_form(form: Arg<TensorFormat>, ctx: Ctx) -> Chain {
    let text = format!("tensor_type = {}\n", form.name());
    ctx.host().print(&text);
    Chain
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry
        .add("tfrt.get_device", get_device)
        .add("corert.get_tensor_type", form)
        .add("tfrt_test.get_static_tensor_type", form)
        .add("tfrt_test.print_tensor_type", print_form)
        .add_raw("corert.get_dst_tensor_type", destination_form)
        .add_raw("corert.transfer", transfer)
        .add_raw("corert.transfer_inferred_tensortype", transfer_inferred);
}
