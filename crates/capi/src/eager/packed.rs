//! Packed handles: one for tensors of several devices (`core/common_runtime/eager/tensor_handle.cc`).

use super::context::TFE_Context;
use super::custom_device::ask;
use super::device::{Place, intern, task_name};
use super::handle::{HandleValue, TFE_TensorHandle, reference, valid};
use super::op::TFE_Op;
use crate::TF_Status;
use crate::guard::{guard, list, shared, unique};
use ferroflow_base::{Result, internal, invalid_argument, unimplemented_error};
use ferroflow_opdef::{AttrValue, Attrs, Value};
use ferroflow_runtime::eager::{CallInputs, Given};
use ferroflow_tensor::DType;
use smallvec::SmallVec;
use std::ffi::{CStr, c_int};
use std::sync::{Arc, PoisonError};

/// Tensors of several devices, at least one. Functions read the one of their device; ops read all, stacked.
pub(super) struct Packed {
    parts: Vec<Arc<TFE_TensorHandle>>,
    /// The name of the task, and the number of the composite device.
    device: (String, usize),
}

impl Packed {
    fn new(parts: Vec<Arc<TFE_TensorHandle>>, context: &TFE_Context) -> Result<Packed> {
        if parts.is_empty() {
            return Err(invalid_argument!("Handles should not be empty."));
        }
        for part in &parts {
            part.local()?;
        }
        let places: Vec<Place> = parts.iter().map(|part| part.place).collect();
        let composites = context.composites.lock();
        let mut composites = composites.unwrap_or_else(PoisonError::into_inner);
        let known = composites.iter().position(|known| *known == places);
        let index = known.unwrap_or(composites.len());
        if known.is_none() {
            composites.push(places);
        }
        let device = (task_name(context.base()), index);
        Ok(Packed { parts, device })
    }

    /// The first tensor, whose dtype and shape are those of the handle.
    pub(super) fn first(&self) -> &TFE_TensorHandle {
        // `new` refuses empty lists.
        &self.parts[0]
    }

    /// The number of the composite device.
    pub(super) fn index(&self) -> usize {
        self.device.1
    }

    /// The full name of the composite device.
    pub(super) fn device_name(&self) -> &'static CStr {
        let (task, index) = &self.device;
        intern(&format!("{task}/device:COMPOSITE:{index}"))
    }

    /// The tensor of a device, if there is one or there are no others.
    fn at(&self, place: Place) -> Option<&Arc<TFE_TensorHandle>> {
        match &self.parts[..] {
            [one] => Some(one),
            parts => parts.iter().find(|part| part.place == place),
        }
    }

    /// All tensors in one.
    fn stacked(&self, context: &TFE_Context) -> Result<TFE_TensorHandle> {
        let pack = context.engine.def("Pack")?;
        let n = self.parts.len();
        let dtype = DType::from_number(self.first().dtype());
        let dtype = dtype.ok_or_else(|| invalid_argument!("a packed tensor has no dtype"))?;
        let attrs = Attrs::default().with("axis", AttrValue::Int(0));
        let given = [Given::List(n as u32)];
        let call = context
            .engine
            .call(&pack, &attrs, &given, &vec![dtype; n])?;
        let tensors = self
            .parts
            .iter()
            .map(|part| part.tensor().map(Value::Tensor));
        let mut inputs: CallInputs = tensors.collect::<Result<_>>()?;
        let stacked = call.run(&mut inputs, None)?.into_iter().next();
        let stacked = stacked.ok_or_else(|| internal!("Pack has no output"))?;
        Ok(TFE_TensorHandle::of(stacked.into(), context.base()))
    }
}

impl TFE_Op {
    /// Replaces packed inputs by what the call reads.
    #[cold]
    pub(super) fn unpack(&mut self) -> Result<()> {
        let context = self.context.clone();
        let place = match &self.device {
            None => Some(context.base()),
            Some(_) => context.find_cpu(self.device_text()),
        };
        let is_function = self.def.function().is_some();
        let mut inputs = SmallVec::new();
        for input in &self.inputs {
            let HandleValue::Packed(packed) = &input.value else {
                inputs.push(input.clone());
                continue;
            };
            let part = place.and_then(|place| packed.at(place));
            inputs.push(match part.filter(|_| is_function) {
                Some(part) => part.clone(),
                None => Arc::new(packed.stacked(&context)?),
            });
        }
        self.inputs = inputs;
        Ok(())
    }
}

/// Makes one handle of several, as the first custom device decides if there is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TFE_CreatePackedTensorHandle(
    ctx: *mut TFE_Context,
    handles: *mut *mut TFE_TensorHandle,
    num_handles: *mut c_int,
    status: *mut TF_Status,
) -> *mut TFE_TensorHandle {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (n, all) = unsafe {
            let n = unique(num_handles)?;
            (*n, list(handles, *n))
        };
        for h in all {
            // SAFETY: as above.
            let found = unsafe { valid(*h) }?;
            if let HandleValue::Custom(custom) = &found.value {
                let device = &custom.device;
                let pack = device.device.pack;
                let pack = pack.ok_or_else(|| {
                    unimplemented_error!("{} cannot pack tensors", device.name_text())
                })?;
                // SAFETY: the client's function, with its own argument.
                return ask(|status| unsafe { pack(ctx, handles, n, status, device.info) });
            }
        }
        // SAFETY: as above.
        let (context, parts) = unsafe {
            let parts = all.iter().map(|h| reference(*h)).collect();
            (shared(ctx)?, parts)
        };
        let packed = Packed::new(parts, context)?;
        Ok(TFE_TensorHandle::with(HandleValue::Packed(packed), context.base()).give())
    })
}
