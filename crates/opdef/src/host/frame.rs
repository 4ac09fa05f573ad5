//! What a kernel sees of its call.

use super::{Attribute, ExecutionContext, Function, FunctionRef, HostProgram, Value, Values};
use ferroflow_base::{Result, Status, internal, invalid_argument};
use ferroflow_sync::{AsyncValue, AsyncValueRef, Diagnostic, IndirectPromise, Location, Promise};
use smallvec::SmallVec;
use std::sync::Arc;

/// An attribute of a kernel: where it lies and what it is.
#[derive(Clone, Copy, Debug)]
pub struct AttrSlot {
    /// Offset in the section of attributes.
    pub offset: usize,
    /// Its kind, if the file says so.
    pub kind: Option<super::AttrKind>,
    /// Whether it begins with a header.
    pub typed: bool,
}

/// What does not change from call to call.
#[derive(Clone, Copy)]
pub struct CallSite<'a> {
    /// The program that the kernel stands in.
    pub program: &'a Arc<dyn HostProgram>,
    /// Its attributes.
    pub attrs: &'a [AttrSlot],
    /// Functions it may call, as indices of the program.
    pub functions: &'a [u32],
    /// Its position.
    pub location: usize,
}

impl<'a> CallSite<'a> {
    fn attribute(&self, i: usize) -> Result<Attribute<'_>> {
        match self.attrs.get(i) {
            Some(slot) => Ok(Attribute::new(
                self.program.attributes(),
                slot.offset,
                slot.kind.filter(|_| !slot.typed),
            )),
            None => Err(invalid_argument!("kernel has no attribute {i}")),
        }
    }

    #[inline]
    fn function(&self, i: usize) -> Result<FunctionRef<'a>> {
        match self.functions.get(i) {
            Some(index) => Ok(FunctionRef::new(self.program, *index as usize)),
            None => Err(invalid_argument!("kernel has no function {i}")),
        }
    }
}

/// What typed kernels ask of a call, synchronous or not.
pub trait Frame {
    /// Argument `i` as a `T`.
    fn arg<T: 'static>(&self, i: usize) -> Result<&T>;
    /// How many arguments there are.
    fn n_args(&self) -> usize;
    /// Attribute `i`.
    fn attribute(&self, i: usize) -> Result<Attribute<'_>>;
    /// How many attributes there are.
    fn n_attributes(&self) -> usize;
    /// Function `i`.
    fn function(&self, i: usize) -> Result<Function>;
    /// What else the kernel may use.
    fn ctx(&self) -> &ExecutionContext;
    /// Where the kernel stands.
    fn location(&self) -> Option<Location>;
    /// What the place is called where the kernel stands, if it has a name.
    fn location_name(&self) -> Option<&str>;
    /// A number that no other kernel of the program has.
    fn location_id(&self) -> LocationId;
}

/// Tells the kernels of a program apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LocationId(pub usize);

/// A call of a kernel of the engine `async`.
pub struct KernelFrame<'a> {
    args: Values,
    results: SmallVec<[Option<AsyncValue>; 4]>,
    site: CallSite<'a>,
    ctx: &'a ExecutionContext,
}

impl<'a> KernelFrame<'a> {
    /// A call with these arguments and `n_results` results to set.
    #[inline]
    pub fn new(
        site: CallSite<'a>,
        ctx: &'a ExecutionContext,
        args: Values,
        n_results: usize,
    ) -> Self {
        let mut results = SmallVec::new();
        results.resize_with(n_results, || None);
        KernelFrame {
            args,
            results,
            site,
            ctx,
        }
    }

    /// The next call in the same frame, which [`KernelFrame::end`] left empty: without arguments
    /// yet, with `n_results` results to set.
    #[inline]
    pub fn begin(&mut self, site: CallSite<'a>, n_results: usize) {
        debug_assert!(self.args.is_empty() && self.results.is_empty());
        self.site = site;
        (0..n_results).for_each(|_| self.results.push(None));
    }

    /// One more argument.
    #[inline]
    pub fn push_arg(&mut self, value: AsyncValue) {
        self.args.push(value);
    }

    /// Function `i`, for a call right now.
    #[inline]
    pub fn function_ref(&self, i: usize) -> Result<FunctionRef<'a>> {
        self.site.function(i)
    }

    /// The arguments.
    #[inline]
    pub fn args(&self) -> &[AsyncValue] {
        &self.args
    }

    /// The arguments, given away.
    #[inline]
    pub fn take_args(&mut self) -> Values {
        std::mem::take(&mut self.args)
    }

    /// Argument `i` as a handle of its own.
    pub fn arg_value(&self, i: usize) -> Result<AsyncValue> {
        match self.args.get(i) {
            Some(value) => Ok(value.clone()),
            None => Err(no_arg(i)),
        }
    }

    /// An argument to change, if nobody else has it.
    pub fn arg_mut(&mut self, i: usize) -> Option<&mut AsyncValue> {
        self.args.get_mut(i)
    }

    /// How many results there are.
    #[inline]
    pub fn n_results(&self) -> usize {
        self.results.len()
    }

    /// Sets result `i`; a result that the program does not have is dropped.
    #[inline]
    pub fn set_result(&mut self, i: usize, value: AsyncValue) {
        if let Some(slot) = self.results.get_mut(i) {
            *slot = Some(value);
        }
    }

    /// Sets result `i` to an available value.
    #[inline]
    pub fn emplace<T: Send + Sync + 'static>(&mut self, i: usize, value: T) {
        self.set_result(i, AsyncValue::new(value));
    }

    /// Makes result `i` a value that is set later.
    pub fn allocate<T: Send + Sync + 'static>(&mut self, i: usize) -> Promise<T> {
        let (promise, value) = Promise::new();
        self.set_result(i, value.into());
        promise
    }

    /// Makes result `i` a value that will stand for another one.
    pub fn allocate_indirect(&mut self, i: usize) -> IndirectPromise {
        let (promise, value) = IndirectPromise::new();
        self.set_result(i, value);
        promise
    }

    /// Makes all results values that will stand for others.
    pub fn allocate_all(&mut self) -> Vec<IndirectPromise> {
        (0..self.n_results())
            .map(|i| self.allocate_indirect(i))
            .collect()
    }

    /// Sets all results from those of a call.
    #[inline]
    pub fn set_results(&mut self, values: Values) {
        for (slot, value) in self.results.iter_mut().zip(values) {
            *slot = Some(value);
        }
    }

    /// Tells of an error, and gives it to all results that are not set.
    #[cold]
    pub fn report_error(&mut self, status: Status) {
        let diagnostic = self.ctx.report(status, self.location());
        self.set_unset(&AsyncValue::new_error(diagnostic));
    }

    fn set_unset(&mut self, value: &AsyncValue) {
        for slot in self.results.iter_mut().filter(|s| s.is_none()) {
            *slot = Some(value.clone());
        }
    }

    /// A way to report errors after the call.
    pub fn reporter(&self) -> Reporter {
        Reporter {
            ctx: self.ctx.clone(),
            location: self.location(),
        }
    }

    /// Ends the call: drops the arguments and gives each result to `store`, with its number.
    #[inline]
    pub fn end(&mut self, mut store: impl FnMut(usize, AsyncValue)) {
        // In order, which people can see; `clear` begins with the last.
        drop(self.args.drain(..));
        for i in 0..self.results.len() {
            let result = self.results.get_mut(i).and_then(Option::take);
            store(i, result.unwrap_or_else(|| self.missing_result()));
        }
        self.results.clear();
    }

    #[cold]
    fn missing_result(&self) -> AsyncValue {
        let status = internal!("kernel did not set a result");
        AsyncValue::new_error(self.ctx.report(status, self.location()))
    }

    /// Gives an error to all results, without a kernel.
    #[cold]
    pub fn fail(&mut self, error: &AsyncValue) {
        self.set_unset(error);
    }
}

#[cold]
fn no_arg(i: usize) -> Status {
    invalid_argument!("kernel has no argument {i}")
}

impl Frame for KernelFrame<'_> {
    #[inline]
    fn arg<T: 'static>(&self, i: usize) -> Result<&T> {
        match self.args.get(i) {
            Some(value) => value.expect::<T>(),
            None => Err(no_arg(i)),
        }
    }

    #[inline]
    fn n_args(&self) -> usize {
        self.args.len()
    }

    fn attribute(&self, i: usize) -> Result<Attribute<'_>> {
        self.site.attribute(i)
    }

    fn n_attributes(&self) -> usize {
        self.site.attrs.len()
    }

    fn function(&self, i: usize) -> Result<Function> {
        self.site.function(i).map(FunctionRef::to_owned)
    }

    fn ctx(&self) -> &ExecutionContext {
        self.ctx
    }

    fn location(&self) -> Option<Location> {
        self.site.program.location(self.site.location)
    }

    fn location_name(&self) -> Option<&str> {
        self.site.program.location_name(self.site.location)
    }

    fn location_id(&self) -> LocationId {
        LocationId(self.site.location)
    }
}

/// Reports errors of a kernel that has returned.
#[derive(Clone)]
pub struct Reporter {
    ctx: ExecutionContext,
    location: Option<Location>,
}

impl Reporter {
    /// Tells of an error; what an erroneous value should hold.
    pub fn report(&self, status: Status) -> Diagnostic {
        self.ctx.report(status, self.location.clone())
    }

    /// Sets a promise to what a computation gave.
    pub fn settle<T: Send + Sync + 'static>(&self, promise: Promise<T>, result: Result<T>) {
        match result {
            Ok(value) => promise.emplace(value),
            Err(status) => promise.set_error(self.report(status)),
        }
    }
}

/// A call of a kernel of the engine `sync`: it reads and writes the function's registers.
pub struct SyncKernelFrame<'a> {
    registers: &'a mut [Value],
    args: &'a [u32],
    results: &'a [u32],
    site: CallSite<'a>,
    ctx: &'a ExecutionContext,
}

impl<'a> SyncKernelFrame<'a> {
    /// A call whose arguments and results are these of `registers`.
    #[inline]
    pub fn new(
        site: CallSite<'a>,
        ctx: &'a ExecutionContext,
        registers: &'a mut [Value],
        args: &'a [u32],
        results: &'a [u32],
    ) -> Self {
        SyncKernelFrame {
            registers,
            args,
            results,
            site,
            ctx,
        }
    }

    /// Argument `i`.
    #[inline]
    pub fn arg_value(&self, i: usize) -> Option<&Value> {
        self.registers.get(*self.args.get(i)? as usize)
    }

    /// How many results there are.
    #[inline]
    pub fn n_results(&self) -> usize {
        self.results.len()
    }

    /// Sets result `i`; a result that the program does not have is dropped.
    #[inline]
    pub fn set_result(&mut self, i: usize, value: Value) {
        let register = self.results.get(i);
        if let Some(slot) = register.and_then(|r| self.registers.get_mut(*r as usize)) {
            *slot = value;
        }
    }
}

impl SyncKernelFrame<'_> {
    #[cold]
    fn no_such_arg<T>(&self, i: usize) -> Status {
        match self.arg_value(i) {
            Some(value) => invalid_argument!(
                "argument {i} is {value:?}, kernel expects {}",
                std::any::type_name::<T>()
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
        self.args.len()
    }

    fn attribute(&self, i: usize) -> Result<Attribute<'_>> {
        self.site.attribute(i)
    }

    fn n_attributes(&self) -> usize {
        self.site.attrs.len()
    }

    fn function(&self, i: usize) -> Result<Function> {
        self.site.function(i).map(FunctionRef::to_owned)
    }

    fn ctx(&self) -> &ExecutionContext {
        self.ctx
    }

    fn location(&self) -> Option<Location> {
        self.site.program.location(self.site.location)
    }

    fn location_name(&self) -> Option<&str> {
        self.site.program.location_name(self.site.location)
    }

    fn location_id(&self) -> LocationId {
        LocationId(self.site.location)
    }
}

/// What a kernel gives back for one result.
pub trait ResultItem {
    /// As a value of the engine `async`.
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
