//! [`Place`]: a device that runs kernels of ops.

use ferroflow_base::{Result, internal};
use ferroflow_device::cuda::Cuda;
use ferroflow_device::{AllocatorOptions, Device, StreamMemory};
use ferroflow_opdef::{
    AttrValue, Attrs, KernelBuild, KernelCtx, NodeInfo, Resources, StepServices, Value,
};
use ferroflow_ops::registry;
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{DType, Tensor};
use ferroflow_testkit::driver::stand_in_driver;
use ferroflow_testkit::random::Random;
use ferroflow_testkit::tensors;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, mpsc};

/// Where the inputs of a kernel are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Inputs {
    /// Floats on the device, others with the host.
    Values,
    /// All are constants.
    Constants,
    /// All on the device, as where a node before computed them.
    OnDevice,
    /// Where they are.
    Given,
}

/// A GPU, or its interpreter; without memory, the host.
pub(crate) struct Place {
    memory: Option<Arc<StreamMemory>>,
    is_interpreted: bool,
    resources: Resources,
}

/// Tests run one after the other: whether products are in TF32 holds for the process.
pub(crate) fn alone(tf32: bool) -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    static REGISTERED: Once = Once::new();
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    REGISTERED.call_once(|| ferroflow_gpu::register(registry()).expect("all ops exist"));
    ferroflow_gpu::set_tf32(tf32);
    guard
}

/// Attrs of a call.
pub(crate) fn attrs(pairs: &[(&'static str, AttrValue)]) -> Attrs {
    let with =
        |attrs: Attrs, (name, value): &(&'static str, AttrValue)| attrs.with(*name, value.clone());
    pairs.iter().fold(Attrs::default(), with)
}

impl Place {
    pub(crate) fn host() -> Place {
        Place {
            memory: None,
            is_interpreted: false,
            resources: Resources::default(),
        }
    }

    /// The GPU of the machine, or a device of a compute capability whose kernels an interpreter runs; `None` without a C
    /// compiler.
    pub(crate) fn gpu(capability: u32) -> Option<Place> {
        let mut is_interpreted = false;
        let cuda = Cuda::new().ok().or_else(|| {
            is_interpreted = true;
            let library = stand_in_driver()?;
            ferroflow_ptx::attach(&library, capability).expect("the stand-in");
            let cuda = Cuda::open(&library.display().to_string()).expect("all functions");
            std::fs::remove_file(library).expect("just written");
            Some(cuda)
        })?;
        let device = Device::new(cuda, 0).expect("a GPU");
        let options = AllocatorOptions {
            memory_limit: Some(2 << 30),
            ..Default::default()
        };
        let memory = StreamMemory::new(&device, &options).expect("memory");
        Some(Place {
            memory: Some(Arc::new(memory)),
            is_interpreted,
            resources: Resources::default(),
        })
    }

    /// Whether an error is that of a library that the interpreter does not have.
    pub(crate) fn lacks_library(&self, error: &str) -> bool {
        self.is_interpreted && error.contains("where the dynamic loader finds it")
    }

    /// Runs the kernel of an op; returns the outputs where they are.
    pub(crate) fn run(
        &self,
        op: &str,
        attrs: &Attrs,
        inputs: &[Tensor],
        place: Inputs,
    ) -> Result<Vec<Tensor>> {
        let is_constant = place == Inputs::Constants;
        let def = registry()
            .def(op)?
            .ok_or_else(|| internal!("there is no {op}"))?;
        let mut attrs = attrs.clone();
        def.complete_attrs(&mut attrs)?;
        let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
        let out_dtypes = def.output_dtypes(&attrs)?;
        let constants: Vec<_> = match is_constant {
            true => inputs.iter().cloned().map(|t| Some(t.into())).collect(),
            false => Vec::new(),
        };
        let kind = if self.memory.is_some() { "GPU" } else { "CPU" };
        let build = KernelBuild {
            node: "op",
            device: &format!("/job:test/replica:0/task:0/device:{kind}:0"),
            def: &def,
            attrs: &attrs,
            inputs: &dtypes,
            outputs: &out_dtypes,
            constants: &constants,
        };
        let run = || {
            let kernel = registry().build_kernel(&build)?;
            let value = |(i, t): (usize, &Tensor)| match is_constant && kernel.prepacks_input(i) {
                true => Ok(Value::Empty),
                false => self.placed(t, place).map(Value::Tensor),
            };
            let inputs = inputs.iter().enumerate().map(value);
            let mut inputs: Vec<Value> = inputs.collect::<Result<_>>()?;
            let mut outputs = vec![Value::Empty; out_dtypes.len()];
            let info = NodeInfo {
                name: "op".into(),
                op: op.into(),
            };
            let cancel = CancelToken::new();
            let services = StepServices {
                par: &Inline,
                cancel: &cancel,
                resources: &self.resources,
                functions: &(),
                step_id: 0,
            };
            let mut ctx = KernelCtx::new(&info, &mut inputs, &[], &mut outputs, &services);
            kernel.compute(&mut ctx)?;
            let tensor = |o: Value| o.into_tensor().expect("every output is set");
            Ok(outputs.into_iter().map(tensor).collect())
        };
        match &self.memory {
            Some(memory) => memory.enqueuing("node", "op", run),
            None => run(),
        }
    }

    /// Whether there is a kernel of GPUs.
    pub(crate) fn has(&self, op: &str, attrs: &Attrs) -> bool {
        let mut attrs = attrs.clone();
        let def = registry().def(op).ok().flatten();
        def.is_some_and(|def| def.complete_attrs(&mut attrs).is_ok())
            && registry().has_kernel_on(ferroflow_gpu::DEVICE_TYPE, op, &attrs)
    }

    fn placed(&self, t: &Tensor, place: Inputs) -> Result<Tensor> {
        let is_placed = match place {
            Inputs::OnDevice => t.dtype().is_plain(),
            Inputs::Given => false,
            _ => t.dtype().is_floating(),
        };
        match &self.memory {
            Some(memory) if is_placed => memory.upload(t),
            _ => Ok(t.clone()),
        }
    }

    /// Copies an output to the host.
    pub(crate) fn to_host(&self, tensor: Tensor) -> Result<Tensor> {
        let Some(memory) = &self.memory else {
            return Ok(tensor);
        };
        let (send, receive) = mpsc::channel();
        memory.to_host(tensor, move |t| drop(send.send(t)));
        receive.recv().unwrap_or_else(|e| Err(internal!("{e}")))
    }

    /// As `run`, with the outputs at the host.
    pub(crate) fn compute(
        &self,
        op: &str,
        attrs: &Attrs,
        inputs: &[Tensor],
        place: Inputs,
    ) -> Result<Vec<Tensor>> {
        let outputs = self.run(op, attrs, inputs, place)?;
        outputs.into_iter().map(|t| self.to_host(t)).collect()
    }
}

/// A tensor as another dtype.
pub(crate) fn cast(t: &Tensor, dtype: DType) -> Tensor {
    let types = [
        ("SrcT", AttrValue::Type(t.dtype())),
        ("DstT", AttrValue::Type(dtype)),
    ];
    let inputs = std::slice::from_ref(t);
    let cast = Place::host().run("Cast", &attrs(&types), inputs, Inputs::Given);
    cast.expect("a cast").swap_remove(0)
}

/// The elements of a tensor of floats.
pub(crate) fn doubles(t: &Tensor) -> Vec<f64> {
    cast(t, DType::Double).slice().expect("doubles").to_vec()
}

/// What the host computes; in floats, if its kernel has no other dtype.
pub(crate) fn expected(op: &str, attrs: &Attrs, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let (host, dtype) = (Place::host(), inputs[0].dtype());
    if let Ok(outputs) = host.run(op, attrs, inputs, Inputs::Given) {
        return Ok(outputs);
    }
    let is_wide = |t: &Tensor| t.dtype() == dtype;
    let wide = |t: &Tensor| {
        if is_wide(t) {
            cast(t, DType::Float)
        } else {
            t.clone()
        }
    };
    let inputs: Vec<Tensor> = inputs.iter().map(wide).collect();
    let attrs = attrs.clone().with("T", AttrValue::Type(DType::Float));
    let outputs = host.run(op, &attrs, &inputs, Inputs::Given)?;
    let narrow = |t: &Tensor| {
        if t.dtype() == DType::Float {
            cast(t, dtype)
        } else {
            t.clone()
        }
    };
    Ok(outputs.iter().map(narrow).collect())
}

/// Numbers of a shape, from minus one to one, other ones for each `seed`.
pub(crate) fn random(shape: &[usize], seed: u64, dtype: DType) -> Tensor {
    let mut random = Random(seed * 7919 + 17);
    let n = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..n)
        .map(|_| random.below(2001) as f32 / 1000.0 - 1.0)
        .collect();
    cast(&Tensor::from_slice(shape, &values).expect("as many"), dtype)
}

/// Checks results against numbers, up to the tolerance of a dtype; says what is wrong.
pub(crate) fn compare(got: &Tensor, expected: &[f64]) -> std::result::Result<(), String> {
    let tol = match got.dtype() {
        DType::Half => 2e-3,
        DType::Bfloat16 => 1.6e-2,
        _ => 4e-6,
    };
    let dtype = match got.dtype() {
        DType::Bool => DType::Float,
        dtype => dtype,
    };
    let expected = Tensor::from_slice(got.shape().clone(), expected).map_err(|e| e.to_string())?;
    tensors::compare(&cast(&expected, dtype), &cast(got, dtype), tol)
}
