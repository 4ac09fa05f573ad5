//! [`GpuKernel`]: a kernel that enqueues launches, and its registration.

use crate::host;
use crate::library::Library;
use ferroflow_base::{Result, internal, invalid_argument, resource_exhausted};
use ferroflow_device::{
    Function, Grid, InputCheck, StreamMemory, TensorArg, begin_call, check_input, note_output,
    note_read, upload_computed, upload_input,
};
use ferroflow_functors::indices::{self, Ints};
use ferroflow_opdef::{
    AttrValue, Attrs, KernelBuild, KernelCtx, KernelDef, KernelFactory, OpKernel, Registry,
};
use ferroflow_tensor::{DType, LazyTensor, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};

/// Enqueues what computes a node.
pub(crate) trait GpuKernel: Send + Sync {
    /// Enqueues the node's launches, and sets its outputs.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for inputs that the op rejects; those of the device.
    fn launch(&self, ctx: &mut GpuCtx) -> Result<()>;
}

impl<F: Fn(&mut GpuCtx) -> Result<()> + Send + Sync> GpuKernel for F {
    fn launch(&self, ctx: &mut GpuCtx) -> Result<()> {
        self(ctx)
    }
}

type Build = fn(&KernelBuild) -> Result<Box<dyn GpuKernel>>;

/// A kernel of an op.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    op: &'static str,
    /// Attrs that are dtypes, with those that the kernel has.
    types: &'static [(&'static str, &'static [DType])],
    /// Attrs that are strings, with the values that the kernel has.
    strings: &'static [(&'static str, &'static [&'static str])],
    /// Inputs and outputs that stay with the host.
    host: &'static [&'static str],
    /// What else the kernel demands of the attrs.
    condition: fn(&Attrs) -> bool,
    form: Form,
}

/// What computes the nodes of a row.
#[derive(Clone, Copy)]
enum Form {
    /// A kernel of the device; nodes without floats that have no input there have the kernel of CPUs.
    Device(Build),
    /// The same, but nodes without floats always have the kernel of CPUs.
    Floats(Build),
    /// The kernel of CPUs, which only passes tensors on.
    Passes,
}

/// The dtypes that are computed.
pub(crate) const FLOATS: &[DType] = &[DType::Float, DType::Half, DType::Bfloat16];

impl Row {
    pub(crate) const fn new(op: &'static str, build: Build) -> Row {
        Row {
            op,
            types: &[("T", FLOATS)],
            strings: &[],
            host: &[],
            condition: |_| true,
            form: Form::Device(build),
        }
    }

    /// A row whose nodes without floats are computed with the host.
    pub(crate) const fn floats(op: &'static str, build: Build) -> Row {
        Row {
            form: Form::Floats(build),
            ..Row::new(op, build)
        }
    }

    /// A row of nodes that pass tensors on without reading their elements, as the kernels of CPUs do.
    pub(crate) const fn passes(op: &'static str) -> Row {
        Row {
            op,
            types: &[],
            strings: &[],
            host: &[],
            condition: |_| true,
            form: Form::Passes,
        }
    }

    pub(crate) const fn types(self, types: &'static [(&'static str, &'static [DType])]) -> Row {
        Row { types, ..self }
    }

    pub(crate) const fn strings(
        self,
        strings: &'static [(&'static str, &'static [&'static str])],
    ) -> Row {
        Row { strings, ..self }
    }

    pub(crate) const fn host(self, host: &'static [&'static str]) -> Row {
        Row { host, ..self }
    }

    pub(crate) const fn only_if(self, condition: fn(&Attrs) -> bool) -> Row {
        Row { condition, ..self }
    }

    pub(crate) fn op(&self) -> &'static str {
        self.op
    }

    /// The kernel's definition; `registry` has that of CPUs.
    pub(crate) fn def(self, registry: &Registry) -> KernelDef {
        let (form, host) = (self.form, registry.op(self.op).and_then(|op| op.kernel));
        let mut def = KernelDef::new(self.op, move |b| build_kernel(b, form, host));
        def = def.device_type(crate::DEVICE_TYPE).only_if(self.condition);
        for (attr, types) in self.types {
            def = def.types(attr, types);
        }
        for (attr, values) in self.strings {
            def = def.constraint(attr, values.iter().map(|v| AttrValue::str(v)).collect());
        }
        self.host
            .iter()
            .fold(def, |def, name| def.host_memory(name))
    }
}

/// Whether all tensors of a node may be with the host: none are floats, or lists of them.
fn has_no_floats(build: &KernelBuild) -> bool {
    let mut all = build.inputs.iter().chain(build.outputs);
    !build.inputs.is_empty() && all.all(|t| !t.is_floating() && *t != DType::Variant)
}

fn build_kernel(
    build: &KernelBuild,
    form: Form,
    host: Option<KernelFactory>,
) -> Result<Box<dyn OpKernel>> {
    let of_host = || match host {
        Some(factory) => build.kernel(factory),
        None => Err(internal!("{} has no kernel of CPUs", build.def.name)),
    };
    let make = match form {
        Form::Passes => return Ok(host::passing(of_host()?)),
        Form::Floats(_) if has_no_floats(build) => return Ok(host::on_host(of_host()?)),
        Form::Floats(make) | Form::Device(make) => make,
    };
    let kernel = make(build)?;
    let constant = |(i, dtype): (usize, &DType)| {
        let value = build.constant(i).filter(|_| dtype.is_floating());
        value.map(|value| Constant {
            value: value.clone(),
            copy: OnceLock::new(),
        })
    };
    Ok(Box::new(Launcher {
        kernel,
        of_host: match has_no_floats(build) && host.is_some() {
            true => Some(of_host()?),
            false => None,
        },
        constants: build.inputs.iter().enumerate().map(constant).collect(),
    }))
}

/// A constant input, which is copied to the device at the first step.
struct Constant {
    value: LazyTensor,
    copy: OnceLock<Arc<Tensor>>,
}

impl Constant {
    fn on(&self, memory: &StreamMemory, library: &Library) -> Result<&Tensor> {
        if self.copy.get().is_none() {
            let copied = library.copy_of(memory, &self.value)?;
            self.value.release();
            // Another step may have been faster.
            let _ = self.copy.set(copied);
        }
        let copy = self.copy.get();
        copy.map(|copy| &**copy)
            .ok_or_else(|| internal!("a constant was not copied"))
    }
}

/// A kernel with its constants, as the engine sees it.
struct Launcher {
    kernel: Box<dyn GpuKernel>,
    /// What computes the node where no input is on the device.
    of_host: Option<Box<dyn OpKernel>>,
    constants: Vec<Option<Constant>>,
}

impl OpKernel for Launcher {
    fn prepacks_input(&self, i: usize) -> bool {
        self.constants.get(i).is_some_and(Option::is_some)
    }

    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        if let Some(kernel) = &self.of_host {
            let on_device = |i| ctx.input(i).is_ok_and(Tensor::is_on_device);
            if !(0..ctx.num_inputs()).any(on_device) {
                return kernel.compute(ctx);
            }
        }
        let memory = StreamMemory::current()?;
        let library = memory.shared(|| Library::load(&memory))?;
        let mut outputs = SmallVec::<[(usize, Tensor); 4]>::new();
        let input = |i| ctx.input(i).cloned();
        let output = |i, tensor| {
            outputs.push((i, tensor));
            Ok(())
        };
        if begin_call(&memory, input, output)? {
            let mut outputs = outputs.into_iter();
            return outputs.try_for_each(|(i, tensor)| ctx.set_output(i, tensor));
        }
        self.kernel.launch(&mut GpuCtx {
            ctx,
            memory: &memory,
            library,
            constants: &self.constants,
        })
    }
}

/// What a kernel has of the step and of the device.
pub(crate) struct GpuCtx<'a, 'b> {
    ctx: &'a mut KernelCtx<'b>,
    pub(crate) memory: &'a Arc<StreamMemory>,
    pub(crate) library: &'a Library,
    constants: &'a [Option<Constant>],
}

impl<'b> GpuCtx<'_, 'b> {
    /// The context of the engine, for what is not of devices.
    pub(crate) fn engine(&self) -> &KernelCtx<'b> {
        self.ctx
    }

    pub(crate) fn node(&self) -> &str {
        self.ctx.node()
    }

    pub(crate) fn num_inputs(&self) -> usize {
        self.ctx.num_inputs()
    }

    pub(crate) fn num_outputs(&self) -> usize {
        self.ctx.num_outputs()
    }

    fn constant(&self, i: usize) -> Option<&Constant> {
        self.constants.get(i)?.as_ref()
    }

    /// Returns input `i` on the device.
    ///
    /// # Errors
    /// As for [`KernelCtx::input`]; RESOURCE_EXHAUSTED if a copy does not fit.
    pub(crate) fn input(&self, i: usize) -> Result<Tensor> {
        match self.constant(i) {
            Some(constant) => constant.on(self.memory, self.library).cloned(),
            None => upload_input(self.memory, i, self.ctx.input(i)?),
        }
    }

    /// Returns a copy of a tensor of a dtype and a shape that `compute` makes of inputs that are with the host.
    ///
    /// # Errors
    /// Those of `compute` and of the device.
    pub(crate) fn upload_computed(
        &self,
        of: (DType, Shape),
        compute: impl Fn(&dyn Fn(usize) -> Result<Tensor>) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Tensor> {
        let input = |i| self.pass(i)?.on_host();
        upload_computed(self.memory, of, &input, Box::new(compute))
    }

    /// Returns input `i` where it is, for its shape or to pass it on.
    ///
    /// # Errors
    /// As for [`KernelCtx::input`].
    pub(crate) fn pass(&self, i: usize) -> Result<Tensor> {
        match self.constant(i) {
            Some(constant) => constant.value.get(),
            None => self.ctx.input(i).cloned(),
        }
    }

    /// Returns input `i` as the host reads it; its value decides what is launched.
    ///
    /// # Errors
    /// As for [`KernelCtx::input`]; those of the device, if it has the input.
    pub(crate) fn host(&self, i: usize) -> Result<Tensor> {
        let tensor = self.pass(i)?.on_host()?;
        if self.constant(i).is_none() {
            note_read(i, &tensor);
        }
        Ok(tensor)
    }

    /// Whether input `i` is a constant.
    pub(crate) fn is_constant(&self, i: usize) -> bool {
        self.constant(i).is_some()
    }

    /// Returns the numbers of input `i`, which is with the host.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if they are no integers.
    pub(crate) fn ints(&self, i: usize) -> Result<Ints> {
        indices::ints(&self.host(i)?)
    }

    /// Returns the shape that input `i`, a vector of integers with the host, describes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it describes none.
    pub(crate) fn shape_of(&self, i: usize) -> Result<Shape> {
        let dims = self.host(i)?;
        if dims.shape().rank() != 1 {
            return Err(invalid_argument!(
                "shape must be a vector of {{int32,int64}}, got shape {}",
                dims.shape()
            ));
        }
        Shape::checked(&indices::ints(&dims)?)
    }

    /// Returns a new tensor on the device.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there is too little memory.
    pub(crate) fn alloc(&self, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        self.memory.allocate_tensor(dtype, shape.into())
    }

    /// Checks the value of input `i`, if it is with the host.
    ///
    /// # Errors
    /// Those of the check.
    pub(crate) fn check(&self, i: usize, check: InputCheck) -> Result<()> {
        let tensor = self.pass(i)?;
        if tensor.is_on_device() {
            return Ok(());
        }
        match self.constant(i) {
            Some(_) => check(&tensor),
            None => check_input(i, &tensor, check),
        }
    }

    pub(crate) fn set_output(&mut self, i: usize, tensor: Tensor) -> Result<()> {
        note_output(self.memory, i, &tensor)?;
        self.ctx.set_output(i, tensor)
    }

    /// Launches a compiled kernel.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn run(&self, name: &str, grid: &Grid, args: &[TensorArg]) -> Result<()> {
        let function = self.library.function(name)?;
        self.launch(&function, grid, args)
    }

    pub(crate) fn launch(
        &self,
        function: &Function,
        grid: &Grid,
        args: &[TensorArg],
    ) -> Result<()> {
        self.memory.launch(function, grid, args)
    }
}

/// A size as kernels take it.
///
/// # Errors
/// RESOURCE_EXHAUSTED if it has more than 31 bits.
pub(crate) fn int(n: usize) -> Result<i32> {
    let too_large = || resource_exhausted!("a GPU kernel takes at most 2^31 - 1 elements, not {n}");
    i32::try_from(n).map_err(|_| too_large())
}

/// What the names of compiled kernels call a dtype.
///
/// # Errors
/// INVALID_ARGUMENT if there are none for it.
pub(crate) fn suffix(dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::Float => Ok("f32"),
        DType::Half => Ok("f16"),
        DType::Bfloat16 => Ok("bf16"),
        DType::Bool => Ok("bool"),
        _ => Err(invalid_argument!("there are no GPU kernels for {dtype}")),
    }
}

/// The position of a dimension that may be counted from the end.
///
/// # Errors
/// INVALID_ARGUMENT if it is outside.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize> {
    let from_start = if axis < 0 { axis + rank as i64 } else { axis };
    let found = usize::try_from(from_start).ok().filter(|a| *a < rank);
    found.ok_or_else(|| {
        invalid_argument!("Expected dimension in the range [-{rank}, {rank}), but got {axis}")
    })
}
