//! [`GpuKernel`]: a kernel that enqueues launches, and its registration.

use crate::library::Library;
use ferroflow_base::{Result, internal, invalid_argument, resource_exhausted};
use ferroflow_device::{
    Function, Grid, InputCheck, StreamMemory, TensorArg, begin_call, check_input, note_output,
    note_read, upload_input,
};
use ferroflow_functors::indices::{self, Ints};
use ferroflow_opdef::{AttrValue, Attrs, KernelBuild, KernelCtx, KernelDef, OpKernel};
use ferroflow_tensor::{DType, LazyTensor, Shape, Tensor};
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
    build: Build,
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
            build,
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

    pub(crate) fn def(self) -> KernelDef {
        let build = self.build;
        let mut def = KernelDef::new(self.op, move |b| build_kernel(b, build));
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

fn build_kernel(build: &KernelBuild, make: Build) -> Result<Box<dyn OpKernel>> {
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
        constants: build.inputs.iter().enumerate().map(constant).collect(),
    }))
}

/// A constant input, which is copied to the device at the first step.
struct Constant {
    value: LazyTensor,
    copy: OnceLock<Tensor>,
}

impl Constant {
    fn on(&self, memory: &StreamMemory) -> Result<&Tensor> {
        if self.copy.get().is_none() {
            let copied = memory.upload(&self.value.get()?)?;
            self.value.release();
            // Another step may have been faster.
            let _ = self.copy.set(copied);
        }
        let copy = self.copy.get();
        copy.ok_or_else(|| internal!("a constant was not copied"))
    }
}

/// A kernel with its constants, as the engine sees it.
struct Launcher {
    kernel: Box<dyn GpuKernel>,
    constants: Vec<Option<Constant>>,
}

impl OpKernel for Launcher {
    fn prepacks_input(&self, i: usize) -> bool {
        self.constants.get(i).is_some_and(Option::is_some)
    }

    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let memory = StreamMemory::current()?;
        let library = memory.shared(|| Library::load(&memory))?;
        let captured = begin_call(&memory, |i| ctx.input(i).cloned())?;
        if let Some(outputs) = captured {
            let mut outputs = outputs.into_iter();
            return outputs.try_for_each(|(i, output)| ctx.set_output(i, output));
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

impl GpuCtx<'_, '_> {
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
            Some(constant) => constant.on(self.memory).cloned(),
            None => upload_input(self.memory, i, self.ctx.input(i)?),
        }
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

    /// Returns input `i`, whose value decides what is launched if it is with the host.
    ///
    /// # Errors
    /// As for [`KernelCtx::input`].
    pub(crate) fn host(&self, i: usize) -> Result<Tensor> {
        let tensor = self.pass(i)?;
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

    /// Returns a new tensor on the device.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there is too little memory.
    pub(crate) fn alloc(&self, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        self.memory.allocate_tensor(dtype, shape.into())
    }

    /// Checks the value of input `i`, which is with the host.
    ///
    /// # Errors
    /// Those of the check.
    pub(crate) fn check(&self, i: usize, check: InputCheck) -> Result<()> {
        let tensor = self.pass(i)?;
        match self.constant(i) {
            Some(_) => check(&tensor),
            None => check_input(i, &tensor, check),
        }
    }

    pub(crate) fn set_output(&mut self, i: usize, tensor: Tensor) -> Result<()> {
        note_output(i, &tensor);
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
