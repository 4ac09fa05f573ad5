//! [`Library`]: the code that the kernels of a device share, loaded at its first kernel.

use crate::ptx;
use ferroflow_base::{Code, Result, internal};
use ferroflow_device::cuda::{Blas, Conv, Dnn, measure};
use ferroflow_device::{Device, Function, Module, StreamMemory};
use ferroflow_tensor::{LazyTensor, Tensor};
use std::collections::HashMap;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

const KERNELS: &[u8] = include_bytes!("../kernels/kernels.ptx.gz");
const TRAINING: &[u8] = include_bytes!("../kernels/training.ptx.gz");
const ATTENTION: &[u8] = include_bytes!("../kernels/attention.ptx.gz");
const FUNCTIONS: &[u8] = include_bytes!("../kernels/functions.ptx.gz");

/// Bytes from which on kernels share a constant.
const SHARED: usize = 4096;

static TF32: AtomicBool = AtomicBool::new(true);

/// Sets whether products of floats are computed in TF32, with 10 bits of mantissa, as they are by default
/// (TensorFlow: `tf.config.experimental.enable_tensor_float_32_execution`).
pub fn set_tf32(enabled: bool) {
    TF32.store(enabled, Ordering::Relaxed);
}

/// Whether products of floats are computed in TF32.
pub fn tf32() -> bool {
    TF32.load(Ordering::Relaxed)
}

pub(crate) fn text(compressed: &[u8]) -> Result<String> {
    let mut text = String::new();
    let read = flate2::read::GzDecoder::new(compressed).read_to_string(&mut text);
    read.map_err(|e| internal!("the kernels cannot be read: {e}"))?;
    Ok(text)
}

/// The part of a compiled text that one of its kernels needs, as each takes the driver long to compile.
///
/// # Errors
/// INTERNAL if there is no such kernel.
fn entry(text: &str, name: &str) -> Result<String> {
    const ENTRY: &str = ".visible .entry ";
    let head = text.split(ENTRY).next().unwrap_or_default();
    let mut entries = text.split(ENTRY).skip(1);
    let own = entries.find(|e| e.strip_prefix(name).is_some_and(|e| e.starts_with('(')));
    let own = own.ok_or_else(|| internal!("there is no kernel {name}"))?;
    Ok(format!("{head}{ENTRY}{own}"))
}

/// See the module text.
pub(crate) struct Library {
    device: Device,
    /// Whether the device has compute capability 8.0.
    is_newer: bool,
    kernels: Module,
    /// Loaded at the first kernel that is not among the others.
    training: OnceLock<Module>,
    found: Mutex<HashMap<String, Function>>,
    functions: ptx::Functions,
    /// Generated functions by their description.
    generated: Mutex<HashMap<ptx::Loop, Function>>,
    /// The constants that kernels have on the device.
    copies: Mutex<Vec<(LazyTensor, Weak<Tensor>)>>,
    blas: OnceLock<Blas>,
    dnn: OnceLock<Dnn>,
    /// Whether a convolution with a window of one element is faster as a matrix product.
    as_product: Mutex<HashMap<Conv, bool>>,
}

impl Library {
    pub(crate) fn load(memory: &StreamMemory) -> Result<Library> {
        let device = memory.compute().device().clone();
        let is_newer = Module::load(&device, &ptx::newer_probe()).is_ok();
        Ok(Library {
            is_newer,
            kernels: Module::load(&device, &text(KERNELS)?)?,
            device,
            training: OnceLock::new(),
            found: Mutex::default(),
            functions: ptx::Functions::parse(&text(FUNCTIONS)?, is_newer),
            generated: Mutex::default(),
            copies: Mutex::default(),
            blas: OnceLock::new(),
            dnn: OnceLock::new(),
            as_product: Mutex::default(),
        })
    }

    /// Returns a compiled kernel.
    pub(crate) fn function(&self, name: &str) -> Result<Function> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = found.get(name) {
            return Ok(function.clone());
        }
        let function = match self.kernels.function(name) {
            Err(e) if e.code() == Code::NotFound => self.training()?.function(name)?,
            found => found?,
        };
        found.insert(name.to_string(), function.clone());
        Ok(function)
    }

    /// Returns a constant on the device: kernels with the same one share it.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there is too little memory.
    pub(crate) fn copy_of(&self, memory: &StreamMemory, value: &LazyTensor) -> Result<Arc<Tensor>> {
        if value.byte_len() < SHARED {
            return Ok(Arc::new(memory.upload(&value.get()?)?));
        }
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        copies.retain(|(_, copy)| copy.strong_count() > 0);
        let known = copies.iter().find(|(known, _)| known.same_value(value));
        if let Some(copy) = known.and_then(|(_, copy)| copy.upgrade()) {
            return Ok(copy);
        }
        let copy = Arc::new(memory.upload(&value.get()?)?);
        copies.push((value.clone(), Arc::downgrade(&copy)));
        Ok(copy)
    }

    /// Returns a kernel of attention, loaded at its first call; `None` if the device lacks the instructions.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn attention(&self, name: &str) -> Result<Option<Function>> {
        if !self.is_newer {
            return Ok(None);
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = found.get(name) {
            return Ok(Some(function.clone()));
        }
        let module = Module::load(&self.device, &entry(&text(ATTENTION)?, name)?)?;
        let function = module.function(name)?;
        found.insert(name.to_string(), function.clone());
        Ok(Some(function))
    }

    fn training(&self) -> Result<&Module> {
        match self.training.get() {
            Some(module) => Ok(module),
            None => {
                let module = Module::load(&self.device, &text(TRAINING)?)?;
                Ok(self.training.get_or_init(|| module))
            }
        }
    }

    /// Returns the kernel of a loop over elements, generated at the first call.
    pub(crate) fn elementwise(&self, memory: &StreamMemory, of: &ptx::Loop) -> Result<Function> {
        let mut known = self
            .generated
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = known.get(of) {
            return Ok(function.clone());
        }
        let text = of.module(&self.functions);
        let module = Module::load(memory.compute().device(), &text)?;
        let function = module.function(ptx::ENTRY)?;
        known.insert(of.clone(), function.clone());
        Ok(function)
    }

    pub(crate) fn blas(&self, memory: &StreamMemory) -> Result<&Blas> {
        match self.blas.get() {
            Some(blas) => Ok(blas),
            None => {
                let blas = Blas::open(memory)?;
                Ok(self.blas.get_or_init(|| blas))
            }
        }
    }

    /// Enqueues a convolution in the faster of two ways, which the first call of its kind measures.
    ///
    /// # Errors
    /// Those of both ways, if both fail; else of the one that works.
    pub(crate) fn faster(
        &self,
        memory: &StreamMemory,
        conv: &Conv,
        product: impl Fn() -> Result<()>,
        convolution: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let lock = || {
            self.as_product
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let known = lock().get(conv).copied();
        let as_product = match known {
            Some(known) => known,
            None => {
                let times = [measure(memory, &product), measure(memory, &convolution)];
                let chosen = match &times {
                    [Ok(a), Ok(b)] => a <= b,
                    [Err(a), Err(_)] => return Err(a.clone()),
                    [product, _] => product.is_ok(),
                };
                lock().insert(conv.clone(), chosen);
                chosen
            }
        };
        match as_product {
            true => product(),
            false => convolution(),
        }
    }

    pub(crate) fn dnn(&self) -> Result<&Dnn> {
        match self.dnn.get() {
            Some(dnn) => Ok(dnn),
            None => {
                let dnn = Dnn::open()?;
                Ok(self.dnn.get_or_init(|| dnn))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first line of the compiled text has the checksum of the source: see `kernels/build.py`.
    #[test]
    fn kernels_are_compiled_from_their_sources() {
        let common = include_bytes!("../kernels/common.cuh");
        let sources: [(&str, &[u8], &[u8]); 4] = [
            (
                "kernels.cu",
                include_bytes!("../kernels/kernels.cu"),
                KERNELS,
            ),
            (
                "training.cu",
                include_bytes!("../kernels/training.cu"),
                TRAINING,
            ),
            (
                "attention.cu",
                include_bytes!("../kernels/attention.cu"),
                ATTENTION,
            ),
            (
                "functions.cu",
                include_bytes!("../kernels/functions.cu"),
                FUNCTIONS,
            ),
        ];
        for (name, source, compressed) in sources {
            let text = text(compressed).expect(name);
            let digest = text.lines().next().and_then(|l| l.split(' ').nth(2));
            let mut checksum = flate2::Crc::new();
            checksum.update(common);
            checksum.update(source);
            let expected = format!("{:08x}", checksum.sum());
            assert_eq!(
                digest,
                Some(&*expected),
                "{name} changed: run kernels/build.py"
            );
        }
    }
}
