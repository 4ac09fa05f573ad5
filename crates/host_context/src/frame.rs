//! [`KernelFrame`]: one call of a kernel.

use super::{Attribute, ExecutionContext, Function, FunctionRef, HostProgram, Values};
use ferroflow_base::{Result, Status, internal, invalid_argument};
use ferroflow_sync::{AsyncValue, AsyncValueRef, Diagnostic, IndirectPromise, Location, Promise};
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// An attribute of a kernel: its position and kind.
#[derive(Clone, Copy, Debug)]
pub struct AttrSlot {
    /// Offset in the section of attributes.
    pub offset: usize,
    /// Its kind, if the file records it.
    pub kind: Option<super::AttrKind>,
    /// Whether it has a header.
    pub typed: bool,
}

/// A range of a list, in half the space.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// First index.
    pub start: u32,
    /// Length.
    pub len: u32,
}

impl Span {
    /// Returns the span of a range; `None` if it does not fit.
    pub fn new(range: Range<usize>) -> Option<Span> {
        Some(Span {
            start: u32::try_from(range.start).ok()?,
            len: u32::try_from(range.len()).ok()?,
        })
    }

    /// Returns the part of `list`; empty if the list is shorter.
    #[inline]
    pub fn of<T>(self, list: &[T]) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        let rest = list.get(self.start as usize..).unwrap_or(&[]);
        rest.get(..self.len as usize).unwrap_or(&[])
    }
}

/// The operands of a kernel, as parts of its function's lists.
#[derive(Clone, Copy, Debug, Default)]
pub struct References {
    /// Registers that the kernel reads.
    pub args: Span,
    /// Number of registers that the kernel writes; they follow `args`.
    pub n_results: u32,
    /// Attributes.
    pub attrs: Span,
    /// Functions that the kernel may call.
    pub functions: Span,
    /// Its position.
    pub location: usize,
    /// Index of its data in [`SiteTables::data`].
    pub data: u32,
}

impl References {
    /// No operands.
    pub const NONE: References = References {
        args: Span { start: 0, len: 0 },
        n_results: 0,
        attrs: Span { start: 0, len: 0 },
        functions: Span { start: 0, len: 0 },
        location: 0,
        data: u32::MAX,
    };
}

/// Data that a kernel derived from its attributes on its first run.
pub type SiteData = OnceLock<Arc<dyn Any + Send + Sync>>;

/// The lists of a function that its kernels refer to.
#[derive(Debug, Default)]
pub struct SiteTables {
    /// Attributes.
    pub attrs: Vec<AttrSlot>,
    /// Functions that kernels may call, as indices of the program, among other numbers.
    pub words: Vec<u32>,
    /// One for each kernel that has attributes.
    pub data: Vec<SiteData>,
}

/// The parts of a call that are the same each time.
#[derive(Clone, Copy)]
pub struct CallSite<'a> {
    /// The kernel's program.
    pub program: &'a Arc<dyn HostProgram>,
    /// The lists of its function.
    pub tables: &'a SiteTables,
    /// The kernel's parts of them.
    pub kernel: &'a References,
}

impl<'a> CallSite<'a> {
    #[inline]
    fn attrs(&self) -> &'a [AttrSlot] {
        self.kernel.attrs.of(&self.tables.attrs)
    }

    #[inline]
    fn functions(&self) -> &'a [u32] {
        self.kernel.functions.of(&self.tables.words)
    }

    fn location(&self) -> Option<Location> {
        self.program.location(self.kernel.location)
    }

    fn location_name(&self) -> Option<&'a str> {
        self.program.location_name(self.kernel.location)
    }

    fn attribute(&self, i: usize) -> Result<Attribute<'_>> {
        match self.attrs().get(i) {
            Some(slot) => Ok(Attribute::new(
                self.program.attributes(),
                slot.offset,
                slot.kind.filter(|_| !slot.typed),
            )),
            None => Err(invalid_argument!("kernel has no attribute {i}")),
        }
    }

    /// Returns the data that `make` computes from the kernel's attributes, computed on first use.
    ///
    /// # Errors
    /// Those of `make`; INTERNAL if the kernel has no attributes, or the type differs from the
    /// first use.
    #[inline]
    pub(super) fn data<T: Send + Sync + 'static>(
        &self,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<&'a T> {
        let slot = self.tables.data.get(self.kernel.data as usize);
        match slot.and_then(|slot| slot.get()?.downcast_ref()) {
            Some(data) => Ok(data),
            None => Self::make_data(slot, make()?),
        }
    }

    #[cold]
    fn make_data<T: Send + Sync + 'static>(slot: Option<&'a SiteData>, data: T) -> Result<&'a T> {
        let data = slot.map(|slot| slot.get_or_init(|| Arc::new(data)));
        data.and_then(|data| data.downcast_ref())
            .ok_or_else(|| internal!("a kernel without attributes has no data of its own"))
    }

    #[inline]
    fn function(&self, i: usize) -> Result<FunctionRef<'a>> {
        match self.functions().get(i) {
            Some(index) => Ok(FunctionRef::new(self.program, *index as usize)),
            None => Err(invalid_argument!("kernel has no function {i}")),
        }
    }
}

/// The interface of a call for typed kernels, synchronous or not.
pub trait Frame {
    /// Returns argument `i` as a `T`.
    ///
    /// # Errors
    /// The argument's own error; INVALID_ARGUMENT if it does not exist or is of another type.
    fn arg<T: 'static>(&self, i: usize) -> Result<&T>;
    /// Returns the number of arguments.
    fn n_args(&self) -> usize;
    /// Returns the call's fixed parts.
    fn site(&self) -> &CallSite<'_>;
    /// Returns the execution context.
    fn ctx(&self) -> &ExecutionContext;

    /// Returns attribute `i`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the kernel has no such attribute.
    fn attribute(&self, i: usize) -> Result<Attribute<'_>> {
        self.site().attribute(i)
    }

    /// Returns the number of attributes.
    fn n_attributes(&self) -> usize {
        self.site().attrs().len()
    }

    /// Returns the number of functions that the kernel may call.
    fn n_functions(&self) -> usize {
        self.site().functions().len()
    }

    /// Returns function `i`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the kernel has no such function.
    fn function(&self, i: usize) -> Result<Function> {
        self.site().function(i).map(FunctionRef::to_owned)
    }

    /// Returns the position in the source.
    fn location(&self) -> Option<Location> {
        self.site().location()
    }

    /// Returns the name of the source position, if it has one.
    fn location_name(&self) -> Option<&str> {
        self.site().location_name()
    }

    /// Returns the number of the kernel, unique in its program.
    fn location_id(&self) -> LocationId {
        LocationId(self.site().kernel.location)
    }
}

/// Identifies a kernel of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LocationId(pub usize);

/// A register that a kernel reads or writes, and whether this is its last use.
///
/// ```
/// use ferroflow_host_context::Operand;
/// let operand = Operand::new(7).last();
/// assert_eq!((operand.register(), operand.is_last()), (7, true));
/// assert!(operand.early().is_early() && !operand.is_early());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand(u32);

impl Operand {
    const LAST: u32 = 1 << 31;
    const EARLY: u32 = 1 << 30;

    /// Creates a use of this register that is not its last one.
    #[inline]
    pub const fn new(register: u32) -> Operand {
        Operand(register & !(Self::LAST | Self::EARLY))
    }

    /// Returns the last use of the same register.
    #[inline]
    pub const fn last(self) -> Operand {
        Operand(self.0 | Self::LAST)
    }

    /// Returns the same result, marked as possibly read before it is available.
    #[inline]
    pub const fn early(self) -> Operand {
        Operand(self.0 | Self::EARLY)
    }

    /// Returns the number of the register, less than 2³⁰.
    #[inline]
    pub fn register(self) -> usize {
        (self.0 & !(Self::LAST | Self::EARLY)) as usize
    }

    /// Returns whether the function returns the result, or a non-strict kernel reads it.
    #[inline]
    pub fn is_early(self) -> bool {
        self.0 & Self::EARLY != 0
    }

    /// Returns whether the register is not read after this argument, or, for a result, never.
    #[inline]
    pub fn is_last(self) -> bool {
        self.0 & Self::LAST != 0
    }
}

/// A register of the engine `async`.
pub type Register = Option<AsyncValue>;

/// A call of a kernel of the engine `async`, which reads and writes registers.
pub struct KernelFrame<'a> {
    registers: &'a mut [Register],
    args: &'a [Operand],
    results: &'a [Operand],
    site: CallSite<'a>,
    ctx: &'a ExecutionContext,
}

impl<'a> KernelFrame<'a> {
    /// Creates a call with these registers as arguments and results. Results are empty at first.
    #[inline]
    pub fn new(
        site: CallSite<'a>,
        ctx: &'a ExecutionContext,
        registers: &'a mut [Register],
        args: &'a [Operand],
        results: &'a [Operand],
    ) -> Self {
        KernelFrame {
            registers,
            args,
            results,
            site,
            ctx,
        }
    }

    /// Returns the execution context, for the duration of the call.
    #[inline]
    pub fn request(&self) -> &'a ExecutionContext {
        self.ctx
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

    /// Returns function `i`, for a call during this one.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the kernel has no such function.
    #[inline]
    pub fn function_ref(&self, i: usize) -> Result<FunctionRef<'a>> {
        self.site.function(i)
    }

    /// Returns the handle of argument `i`, borrowed.
    #[inline]
    pub fn arg_ref(&self, i: usize) -> Option<&AsyncValue> {
        let register = self.args.get(i)?.register();
        self.registers.get(register)?.as_ref()
    }

    /// Returns the handle of an argument: that of the register if this is its last use.
    #[inline]
    fn take(&mut self, operand: Operand) -> Option<AsyncValue> {
        let register = self.registers.get_mut(operand.register())?;
        match operand.is_last() {
            true => register.take(),
            false => register.clone(),
        }
    }

    /// Takes argument `i`, which cannot be read afterwards.
    #[inline]
    pub fn take_arg(&mut self, i: usize) -> Option<AsyncValue> {
        let operand = *self.args.get(i)?;
        self.take(operand)
    }

    /// Takes the arguments, which cannot be read afterwards.
    #[inline]
    pub fn take_args(&mut self) -> Values {
        self.take_args_from(0)
    }

    /// Takes the arguments from number `first` on.
    #[inline]
    pub fn take_args_from(&mut self, first: usize) -> Values {
        let mut values = Values::new();
        for operand in self.args.get(first..).unwrap_or(&[]) {
            if let Some(value) = self.take(*operand) {
                values.push(value);
            }
        }
        values
    }

    /// Returns a handle of argument `i`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is no such argument.
    pub fn arg_value(&self, i: usize) -> Result<AsyncValue> {
        match self.arg_ref(i) {
            Some(value) => Ok(value.clone()),
            None => Err(no_arg(i)),
        }
    }

    /// Returns the last argument that is an error.
    #[cold]
    pub fn error_arg(&self) -> Option<AsyncValue> {
        let args = (0..self.args.len()).rev().filter_map(|i| self.arg_ref(i));
        args.into_iter().find(|a| a.is_error()).cloned()
    }

    /// Returns whether argument `i` is available and only the kernel refers to it, so that its
    /// buffer may be reused.
    pub fn is_unique_arg(&self, i: usize) -> bool {
        let is_last = self.args.get(i).is_some_and(|a| a.is_last());
        is_last && self.arg_ref(i).is_some_and(AsyncValue::is_unique)
    }

    /// Returns the number of results.
    #[inline]
    pub fn n_results(&self) -> usize {
        self.results.len()
    }

    /// Sets result `i`; results that the program does not use are dropped.
    #[inline]
    pub fn set_result(&mut self, i: usize, value: AsyncValue) {
        let operand = self.results.get(i);
        if let Some(slot) = operand.and_then(|r| self.registers.get_mut(r.register())) {
            *slot = Some(value);
        }
    }

    /// Sets result `i` to an available value.
    #[inline]
    pub fn emplace<T: Send + Sync + 'static>(&mut self, i: usize, value: T) {
        self.set_result(i, AsyncValue::new(value));
    }

    /// Makes result `i` a value that is set later, and returns its promise.
    pub fn allocate<T: Send + Sync + 'static>(&mut self, i: usize) -> Promise<T> {
        let (promise, value) = Promise::new();
        self.set_result(i, value.into());
        promise
    }

    /// Makes result `i` a value that is forwarded to another one later.
    pub fn allocate_indirect(&mut self, i: usize) -> IndirectPromise {
        let (promise, value) = IndirectPromise::new();
        self.set_result(i, value);
        promise
    }

    /// Makes all results values that are forwarded later.
    pub fn allocate_all(&mut self) -> Vec<IndirectPromise> {
        (0..self.n_results())
            .map(|i| self.allocate_indirect(i))
            .collect()
    }

    /// Sets all results to those of a call.
    #[inline]
    pub fn set_results(&mut self, mut values: Values) {
        while let Some(value) = values.pop() {
            self.set_result(values.len(), value);
        }
    }

    /// Reports an error and sets all unset results to it.
    #[cold]
    pub fn report_error(&mut self, status: Status) {
        let diagnostic = self.ctx.report(status, self.location());
        self.fail(&AsyncValue::new_error(diagnostic));
    }

    /// Sets all unset results to an error.
    #[cold]
    pub fn fail(&mut self, error: &AsyncValue) {
        for operand in self.results {
            if let Some(slot) = self.registers.get_mut(operand.register()) {
                slot.get_or_insert_with(|| error.clone());
            }
        }
    }

    /// Reports a result that the kernel did not set, and sets it to an error.
    #[cold]
    pub fn report_missing_result(&mut self) {
        self.report_error(internal!("kernel did not set a result"));
    }

    /// Returns a handle that reports errors after the call.
    pub fn reporter(&self) -> Reporter {
        Reporter {
            ctx: self.ctx.clone(),
            program: self.site.program.clone(),
            location: self.site.kernel.location,
        }
    }
}

#[cold]
fn unexpected_arg<T: 'static>(value: &AsyncValue, i: usize) -> Status {
    match value.is_concrete() {
        true => invalid_argument!(
            "argument {i} is a {}, kernel expects a {}",
            short_name(value.type_name()),
            short_name(std::any::type_name::<T>())
        ),
        // The value's own error.
        false => value.expect::<T>().err().unwrap_or_else(|| no_arg(i)),
    }
}

/// Returns a type's name without its modules.
pub(super) fn short_name(path: &str) -> &str {
    let end = path.find('<').unwrap_or(path.len());
    let start = path[..end].rfind("::").map_or(0, |at| at + 2);
    &path[start..]
}

#[cold]
pub(super) fn no_arg(i: usize) -> Status {
    invalid_argument!("kernel has no argument {i}")
}

impl Frame for KernelFrame<'_> {
    #[inline]
    fn arg<T: 'static>(&self, i: usize) -> Result<&T> {
        match self.arg_ref(i) {
            Some(value) => match value.get::<T>() {
                Some(found) => Ok(found),
                None => Err(unexpected_arg::<T>(value, i)),
            },
            None => Err(no_arg(i)),
        }
    }

    #[inline]
    fn n_args(&self) -> usize {
        self.args.len()
    }

    fn site(&self) -> &CallSite<'_> {
        &self.site
    }

    fn ctx(&self) -> &ExecutionContext {
        self.ctx
    }
}

/// Reports errors of a kernel that has already returned.
#[derive(Clone)]
pub struct Reporter {
    ctx: ExecutionContext,
    program: Arc<dyn HostProgram>,
    /// Offset of the kernel's source position.
    location: usize,
}

impl Reporter {
    /// Reports an error and returns it as the content of an erroneous value.
    pub fn report(&self, status: Status) -> Diagnostic {
        self.ctx
            .report(status, self.program.location(self.location))
    }

    /// Sets a promise to the result of a computation.
    pub fn fulfill<T: Send + Sync + 'static>(&self, promise: Promise<T>, result: Result<T>) {
        match result {
            Ok(value) => promise.emplace(value),
            Err(status) => promise.set_error(self.report(status)),
        }
    }
}

/// A type that kernels return as one result.
pub trait ResultItem {
    /// Converts to a value of the engine `async`.
    fn into_async(self, reporter: &dyn Fn() -> Reporter) -> AsyncValue;
}

impl ResultItem for AsyncValue {
    fn into_async(self, _: &dyn Fn() -> Reporter) -> AsyncValue {
        self
    }
}

impl<T> ResultItem for AsyncValueRef<T> {
    fn into_async(self, _: &dyn Fn() -> Reporter) -> AsyncValue {
        self.into()
    }
}

impl<T: super::HostValue> ResultItem for Result<T> {
    fn into_async(self, reporter: &dyn Fn() -> Reporter) -> AsyncValue {
        match self {
            Ok(value) => AsyncValue::new(value),
            Err(status) => AsyncValue::new_error(reporter().report(status)),
        }
    }
}

impl<T: super::HostValue> ResultItem for T {
    #[inline]
    fn into_async(self, _: &dyn Fn() -> Reporter) -> AsyncValue {
        AsyncValue::new(self)
    }
}
