//! [`SyncKernelFrame`]: one call of a kernel of the engine `sync`.

use super::frame::{CallSite, Frame, Operand, References, no_arg};
use super::{ExecutionContext, Value};
use ferroflow_base::{Result, Status, invalid_argument};

/// A call of a kernel of the engine `sync`, which reads and writes the function's registers.
pub struct SyncKernelFrame<'a> {
    registers: &'a mut [Value],
    /// Operands of all kernels of the function.
    operands: &'a [Operand],
    site: CallSite<'a>,
    ctx: &'a ExecutionContext,
}

impl<'a> SyncKernelFrame<'a> {
    /// Creates a frame for calls in a function with these registers; `operands` are those of all
    /// its kernels.
    #[inline]
    pub fn new(
        site: CallSite<'a>,
        ctx: &'a ExecutionContext,
        registers: &'a mut [Value],
        operands: &'a [Operand],
    ) -> Self {
        SyncKernelFrame {
            registers,
            operands,
            site,
            ctx,
        }
    }

    /// Moves on to the call of another kernel.
    #[inline]
    pub fn go_to(&mut self, kernel: &'a References) {
        self.site.kernel = kernel;
    }

    /// Returns data of this kernel in its program, which `make` computes from the attributes on the
    /// first run.
    ///
    /// # Errors
    /// Those of `make`; INTERNAL if the kernel has no attributes, or the type differs from the
    /// first use.
    #[inline]
    pub fn site_data<T: Send + Sync + 'static>(
        &self,
        make: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<&'a T> {
        self.site.data(|| make(self))
    }

    /// Returns the function's results.
    #[inline]
    pub fn values(&self, returns: &[Operand]) -> Vec<Value> {
        let value = |r: &Operand| {
            self.registers
                .get(r.register())
                .cloned()
                .unwrap_or_default()
        };
        returns.iter().map(value).collect()
    }

    /// Returns argument `i`, if there is one.
    #[inline]
    pub fn arg_value(&self, i: usize) -> Option<&Value> {
        let args = self.site.kernel.args;
        if i >= args.len as usize {
            return None;
        }
        let operand = self.operands.get(args.start as usize + i)?;
        self.registers.get(operand.register())
    }

    /// Returns the number of results.
    #[inline]
    pub fn n_results(&self) -> usize {
        self.site.kernel.n_results as usize
    }

    /// Sets result `i`; results that the program does not use are dropped.
    #[inline]
    pub fn set_result(&mut self, i: usize, value: Value) {
        let first = self.site.kernel.args.start as usize + self.site.kernel.args.len as usize;
        let operand = match i < self.n_results() {
            true => self.operands.get(first + i),
            false => None,
        };
        if let Some(slot) = operand.and_then(|r| self.registers.get_mut(r.register())) {
            slot.set(value);
        }
    }
}

impl SyncKernelFrame<'_> {
    #[cold]
    fn no_such_arg<T>(&self, i: usize) -> Status {
        match self.arg_value(i) {
            Some(value) => invalid_argument!(
                "argument {i} is {value:?}, kernel expects a {}",
                super::frame::short_name(std::any::type_name::<T>())
            ),
            None => no_arg(i),
        }
    }
}

impl Frame for SyncKernelFrame<'_> {
    #[inline]
    fn arg<T: 'static>(&self, i: usize) -> Result<&T> {
        match self.arg_value(i).and_then(Value::get) {
            Some(value) => Ok(value),
            None => Err(self.no_such_arg::<T>(i)),
        }
    }

    #[inline]
    fn n_args(&self) -> usize {
        self.site.kernel.args.len as usize
    }

    fn site(&self) -> &CallSite<'_> {
        &self.site
    }

    fn ctx(&self) -> &ExecutionContext {
        self.ctx
    }
}
