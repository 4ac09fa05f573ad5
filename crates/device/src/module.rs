//! [`Module`], [`Function`] and launches.

use crate::backend::{Grid, LaunchArg, RawFunction, RawModule};
use crate::{Buffer, Device, Stream};
use ferroflow_base::{Result, invalid_argument};
use smallvec::SmallVec;
use std::sync::Arc;

/// Device code, loaded. Clones are the same module.
#[derive(Clone)]
pub struct Module(Arc<Inner>);

struct Inner {
    raw: RawModule,
    device: Device,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.device.backend().unload_module(self.raw);
    }
}

/// A function of a module.
#[derive(Clone)]
pub struct Function {
    raw: RawFunction,
    module: Module,
    name: Arc<str>,
}

/// An argument of a launch.
#[derive(Clone, Copy)]
pub enum KernelArg<'a> {
    /// A buffer: the kernel receives its address.
    Buffer(&'a Buffer),
    /// A number.
    I32(i32),
    /// A number.
    I64(i64),
    /// A number.
    F32(f32),
    /// A number.
    F64(f64),
}

impl LaunchArg {
    /// A number of at most 8 bytes.
    pub(crate) fn number<const N: usize>(value: [u8; N]) -> LaunchArg {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(value) {
            *to = from;
        }
        LaunchArg::Number {
            bytes,
            len: N as u8,
        }
    }
}

impl Module {
    /// Loads a module from its text, such as PTX.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the text is not a module for the device.
    pub fn load(device: &Device, image: &str) -> Result<Module> {
        let raw = device.backend().load_module(device.ordinal(), image)?;
        let device = device.clone();
        Ok(Module(Arc::new(Inner { raw, device })))
    }

    /// Returns a function.
    ///
    /// # Errors
    /// NOT_FOUND if the module has none of that name.
    pub fn function(&self, name: &str) -> Result<Function> {
        Ok(Function {
            raw: self.0.device.backend().function(self.0.raw, name)?,
            module: self.clone(),
            name: name.into(),
        })
    }

    /// Returns a global variable, as a buffer that does not own its memory but keeps the module.
    ///
    /// # Errors
    /// NOT_FOUND if the module has none of that name.
    pub fn global(&self, name: &str) -> Result<Buffer> {
        let span = self.0.device.backend().global(self.0.raw, name)?;
        Ok(Buffer::of_owner(&self.0.device, span, self.clone()))
    }
}

impl Function {
    /// Launches the function on a stream.
    ///
    /// The function is device code that the caller vouches for: one that is given the right arguments for
    /// its parameters accesses nothing but the buffers. A backend that can check does.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the arguments do not fit, as far as the backend can tell, or the stream is of
    /// another device; FAILED_PRECONDITION if a buffer was freed.
    pub fn launch(&self, stream: &Stream, grid: &Grid, args: &[KernelArg]) -> Result<()> {
        self.check_device(stream.device())?;
        let mut raw = SmallVec::<[LaunchArg; 8]>::new();
        for arg in args {
            raw.push(match arg {
                KernelArg::Buffer(buffer) => LaunchArg::Memory(buffer.use_on(stream)?),
                KernelArg::I32(v) => LaunchArg::number(v.to_le_bytes()),
                KernelArg::I64(v) => LaunchArg::number(v.to_le_bytes()),
                KernelArg::F32(v) => LaunchArg::number(v.to_le_bytes()),
                KernelArg::F64(v) => LaunchArg::number(v.to_le_bytes()),
            });
        }
        self.launch_raw(stream, grid, &raw)
    }

    /// # Errors
    /// INVALID_ARGUMENT if the function is for another device.
    pub(crate) fn check_device(&self, device: &Device) -> Result<()> {
        match self.module.0.device == *device {
            true => Ok(()),
            false => Err(invalid_argument!(
                "function '{}' of {} cannot be launched on a stream of {device}",
                self.name,
                self.module.0.device
            )),
        }
    }

    /// As [`Function::launch`], with memory of this device that notes the stream.
    pub(crate) fn launch_raw(&self, stream: &Stream, grid: &Grid, raw: &[LaunchArg]) -> Result<()> {
        let backend = stream.device().backend();
        // SAFETY: the memory is on this backend and notes the stream, so that it is reused and
        // freed only behind the launch. That the code stays inside is what loading it means.
        let launched = unsafe { backend.launch(stream.raw(), self.raw, grid, raw) };
        stream.note_op();
        launched.map_err(|e| e.note(format!("in the launch of '{}'", self.name)))
    }
}
