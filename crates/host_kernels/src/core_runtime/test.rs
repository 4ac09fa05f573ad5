//! Test kernels that set, freeze and print attributes, and create invalid handles.

use super::super::dense::HostTensor;
use super::attrs::{OpAttr, OpAttrs};
use super::handle::{KnownMetadata, TensorHandle};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_host_context::{
    Arg, Attribute, Ctx, Frame, HostDType, HostValue, KernelFrame, KernelRegistry,
};
use ferroflow_sync::{AsyncValue, Chain};
use std::sync::{Mutex, PoisonError};

/// Attributes that kernels fill one by one.
#[derive(Default)]
pub(super) struct SharedAttrs(Mutex<OpAttrs>);

impl HostValue for SharedAttrs {}

impl SharedAttrs {
    fn snapshot(&self) -> OpAttrs {
        let attrs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        attrs.clone()
    }
}

/// Returns a kernel that sets the attribute named by its first attribute to the value that `read`
/// returns for the second.
fn setter(
    registry: &mut KernelRegistry,
    name: &str,
    read: impl Fn(Attribute) -> Result<OpAttr> + Send + Sync + 'static,
) {
    let name = format!("corert.{name}");
    registry.add_raw(&name, move |frame: &mut KernelFrame| {
        let key = frame.attribute(0)?.string()?.to_string();
        let value = read(frame.attribute(1)?)?;
        let attrs = frame.arg::<SharedAttrs>(0)?;
        let mut attrs = attrs.0.lock().unwrap_or_else(PoisonError::into_inner);
        attrs.0.insert(key, value);
        drop(attrs);
        frame.emplace(0, Chain);
        Ok(())
    });
}

fn number(attr: Attribute, dtype: HostDType) -> Result<OpAttr> {
    let bytes = match dtype {
        HostDType::I1 => vec![u8::from(attr.number::<bool>()?)],
        HostDType::I32 => attr.number::<i32>()?.to_le_bytes().to_vec(),
        _ => attr.number::<f32>()?.to_le_bytes().to_vec(),
    };
    Ok(OpAttr::Number { dtype, bytes })
}

fn print(attrs: &OpAttrs, ctx: &Ctx) -> Chain {
    ctx.host().print(&attrs.to_string());
    Chain
}

fn handle_with_error(frame: &mut KernelFrame) -> Result<()> {
    frame.arg::<HostTensor>(0)?;
    give_error(frame, invalid_argument!("invalid tensor metadata"))
}

fn error_handle(frame: &mut KernelFrame) -> Result<()> {
    give_error(frame, invalid_argument!("invalid tensorhandle"))
}

/// Sets the result to a handle whose tensor is an error.
fn give_error(frame: &mut KernelFrame, status: Status) -> Result<()> {
    let error = AsyncValue::new_error(frame.reporter().report(status));
    let handle = TensorHandle {
        tensor: error,
        known: KnownMetadata::Nothing,
    };
    frame.emplace(0, handle);
    Ok(())
}

pub(super) fn register(registry: &mut KernelRegistry) {
    setter(registry, "op_attrs_set.bool", |a| number(a, HostDType::I1));
    setter(registry, "op_attrs_set.i32", |a| number(a, HostDType::I32));
    setter(registry, "op_attrs_set.f32", |a| number(a, HostDType::F32));
    setter(registry, "op_attrs_set.dtype", |a| {
        Ok(OpAttr::Type(a.number()?))
    });
    setter(registry, "op_attrs_set.str", |a| {
        Ok(OpAttr::String(a.string()?.to_string()))
    });
    for typed in ["dense", "aggregate", "shape"] {
        let name = format!("op_attrs_set.{typed}");
        setter(registry, &name, |a| OpAttr::new(&a.typed()?));
    }
    let arrays = [
        ("i32", HostDType::I32),
        ("i64", HostDType::I64),
        ("f32", HostDType::F32),
    ];
    for (name, dtype) in arrays {
        setter(registry, &format!("op_attrs_set_array.{name}"), move |a| {
            let bytes = a.array_bytes(dtype)?.1.to_vec();
            Ok(OpAttr::Array { dtype, bytes })
        });
    }
    registry
        .add("corert.create_op_attrs", SharedAttrs::default)
        .add(
            "tfrt_test.corert.op_attrs_print",
            |attrs: Arg<SharedAttrs>, ctx: Ctx| print(&attrs.snapshot(), &ctx),
        )
        .add(
            "tfrt_test.corert.op_attrs_freeze",
            |attrs: Arg<SharedAttrs>| (attrs.snapshot(), Chain),
        )
        .add(
            "tfrt_test.corert.op_attrs_ref_print",
            |attrs: Arg<OpAttrs>, ctx: Ctx| print(&attrs, &ctx),
        )
        .add_raw("tfrt_test.error_tensorhandle", error_handle)
        .add_raw(
            "tfrt_test.tensorhandle_with_error_metadata",
            handle_with_error,
        );
}
