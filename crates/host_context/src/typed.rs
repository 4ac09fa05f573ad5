//! Plain functions as kernels: the type of each parameter determines its source.
//!
//! Numbers, `bool` and [`Chain`] by value and [`Arg`] are arguments, in order; [`Attr`],
//! [`StrAttr`], [`ArrayAttr`] and [`TypedAttribute`] are attributes, in order; [`Function`] a
//! function; [`RemainingArgs`], [`RemainingAttrs`] and [`RemainingFunctions`] all of them that are
//! left; [`Ctx`] the execution context. The function's return value holds the results: nothing, a
//! value, a tuple, or [`Values`] (`Vec<Value>` in a synchronous function) if the program determines
//! their number, each in a `Result` if it can fail.
#![allow(
    clippy::needless_lifetimes,
    reason = "the lifetime of an item is that of the call; implementations say so as the trait does"
)]

use super::frame::{Frame, KernelFrame, LocationId, ResultItem};
use super::sync_frame::SyncKernelFrame;
use super::{
    AttrNumber, Attribute, ExecutionContext, Function, HostValue, TypedAttr, Value, Values,
};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_sync::{AsyncValue, AsyncValueRef, Chain, Location};
use std::ops::Deref;
use std::sync::Arc;

/// The number of arguments, attributes and functions that were already taken.
#[derive(Default)]
pub struct Cursor {
    args: usize,
    attrs: usize,
    functions: usize,
}

impl Cursor {
    fn arg(&mut self) -> usize {
        self.args += 1;
        self.args - 1
    }

    fn attr(&mut self) -> usize {
        self.attrs += 1;
        self.attrs - 1
    }
}

/// A parameter of a kernel.
pub trait Param {
    /// The function's parameter.
    type Item<'f>;
    /// Takes the parameter from the call.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the call lacks it or has one of another type.
    fn get<'f, F: Frame>(frame: &'f F, cursor: &mut Cursor) -> Result<Self::Item<'f>>;
    /// Takes the parameter from a synchronous call if it is a number in a register, without
    /// anything that could fail, so that such kernels take few instructions.
    #[inline]
    fn number<'f>(_frame: &'f SyncKernelFrame, _cursor: &mut Cursor) -> Option<Self::Item<'f>> {
        None
    }
}

/// An argument by reference.
pub struct Arg<'f, T>(pub &'f T);

impl<T> Deref for Arg<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0
    }
}

impl<T: 'static> Param for Arg<'_, T> {
    type Item<'f> = Arg<'f, T>;
    #[inline]
    fn get<'f, F: Frame>(frame: &'f F, cursor: &mut Cursor) -> Result<Arg<'f, T>> {
        frame.arg(cursor.arg()).map(Arg)
    }
}

macro_rules! by_value {
    ($($ty:ty),*) => {
        $(impl Param for $ty {
            type Item<'f> = $ty;
            #[inline]
            fn get<'f, F: Frame>(frame: &'f F, cursor: &mut Cursor) -> Result<$ty> {
                frame.arg::<$ty>(cursor.arg()).cloned()
            }
            #[inline]
            fn number<'f>(frame: &'f SyncKernelFrame, cursor: &mut Cursor) -> Option<$ty> {
                frame.arg_value(cursor.arg())?.number().cloned()
            }
        })*
    };
}
by_value!(bool, i32, i64, u32, u64, f32, f64, Chain);

/// A number among the attributes.
pub struct Attr<T>(pub T);

impl<T: AttrNumber> Param for Attr<T> {
    type Item<'f> = Attr<T>;
    fn get<'f, F: Frame>(frame: &'f F, cursor: &mut Cursor) -> Result<Attr<T>> {
        frame.attribute(cursor.attr())?.number().map(Attr)
    }
}

/// A string among the attributes.
pub struct StrAttr<'f>(pub &'f str);

impl Param for StrAttr<'_> {
    type Item<'f> = StrAttr<'f>;
    fn get<'f, F: Frame>(frame: &'f F, cursor: &mut Cursor) -> Result<StrAttr<'f>> {
        frame.attribute(cursor.attr())?.string().map(StrAttr)
    }
}

/// An array of numbers among the attributes.
pub struct ArrayAttr<T>(pub Vec<T>);

impl<T: AttrNumber> Param for ArrayAttr<T> {
    type Item<'f> = ArrayAttr<T>;
    fn get<'f, F: Frame>(frame: &'f F, cursor: &mut Cursor) -> Result<ArrayAttr<T>> {
        frame.attribute(cursor.attr())?.array().map(ArrayAttr)
    }
}

/// An attribute with a header.
pub struct TypedAttribute<'f>(pub TypedAttr<'f>);

impl Param for TypedAttribute<'_> {
    type Item<'f> = TypedAttribute<'f>;
    fn get<'f, F: Frame>(frame: &'f F, cursor: &mut Cursor) -> Result<TypedAttribute<'f>> {
        frame.attribute(cursor.attr())?.typed().map(TypedAttribute)
    }
}

impl Param for Function {
    type Item<'f> = Function;
    fn get<'f, F: Frame>(frame: &'f F, cursor: &mut Cursor) -> Result<Function> {
        cursor.functions += 1;
        frame.function(cursor.functions - 1)
    }
}

/// All remaining arguments, which are of one type.
pub struct RemainingArgs<'f, T>(pub Vec<&'f T>);

impl<T: 'static> Param for RemainingArgs<'_, T> {
    type Item<'f> = RemainingArgs<'f, T>;
    fn get<'f, F: Frame>(frame: &'f F, cursor: &mut Cursor) -> Result<RemainingArgs<'f, T>> {
        let left = std::mem::replace(&mut cursor.args, frame.n_args())..frame.n_args();
        left.map(|i| frame.arg(i))
            .collect::<Result<_>>()
            .map(RemainingArgs)
    }
}

/// All remaining attributes.
pub struct RemainingAttrs<'f>(pub Vec<Attribute<'f>>);

impl Param for RemainingAttrs<'_> {
    type Item<'f> = RemainingAttrs<'f>;
    fn get<'f, F: Frame>(frame: &'f F, cursor: &mut Cursor) -> Result<RemainingAttrs<'f>> {
        let left = std::mem::replace(&mut cursor.attrs, frame.n_attributes())..frame.n_attributes();
        let attributes = left.map(|i| frame.attribute(i));
        attributes.collect::<Result<_>>().map(RemainingAttrs)
    }
}

/// All remaining functions.
pub struct RemainingFunctions(pub Vec<Function>);

impl Param for RemainingFunctions {
    type Item<'f> = RemainingFunctions;
    fn get<'f, F: Frame>(frame: &'f F, cursor: &mut Cursor) -> Result<RemainingFunctions> {
        let left =
            std::mem::replace(&mut cursor.functions, frame.n_functions())..frame.n_functions();
        let functions = left.map(|i| frame.function(i));
        functions.collect::<Result<_>>().map(RemainingFunctions)
    }
}

/// The execution context.
pub struct Ctx<'f>(pub &'f ExecutionContext);

impl Deref for Ctx<'_> {
    type Target = ExecutionContext;
    fn deref(&self) -> &ExecutionContext {
        self.0
    }
}

impl Param for Ctx<'_> {
    type Item<'f> = Ctx<'f>;
    #[inline]
    fn get<'f, F: Frame>(frame: &'f F, _: &mut Cursor) -> Result<Ctx<'f>> {
        Ok(Ctx(frame.ctx()))
    }
}

/// The kernel's source position.
impl Param for Option<Location> {
    type Item<'f> = Option<Location>;
    fn get<'f, F: Frame>(frame: &'f F, _: &mut Cursor) -> Result<Option<Location>> {
        Ok(frame.location())
    }
}

impl Param for LocationId {
    type Item<'f> = LocationId;
    fn get<'f, F: Frame>(frame: &'f F, _: &mut Cursor) -> Result<LocationId> {
        Ok(frame.location_id())
    }
}

/// All results of a kernel.
pub trait IntoResults {
    /// Stores the results.
    fn store(self, frame: &mut KernelFrame);
}

/// All results of a synchronous kernel.
pub trait IntoSyncResults {
    /// Stores the results.
    ///
    /// # Errors
    /// The kernel's own error; INVALID_ARGUMENT if their number is not that of the call.
    fn store_sync(self, frame: &mut SyncKernelFrame) -> Result<()>;
}

impl IntoResults for () {
    fn store(self, _: &mut KernelFrame) {}
}

impl IntoSyncResults for () {
    fn store_sync(self, _: &mut SyncKernelFrame) -> Result<()> {
        Ok(())
    }
}

impl<T: HostValue> IntoResults for T {
    #[inline]
    fn store(self, frame: &mut KernelFrame) {
        frame.emplace(0, self);
    }
}

impl<T: HostValue> IntoSyncResults for T {
    #[inline]
    fn store_sync(self, frame: &mut SyncKernelFrame) -> Result<()> {
        frame.set_result(0, Value::new(self));
        Ok(())
    }
}

impl IntoResults for AsyncValue {
    fn store(self, frame: &mut KernelFrame) {
        frame.set_result(0, self);
    }
}

/// As many results as the call has.
impl IntoResults for Values {
    fn store(self, frame: &mut KernelFrame) {
        match wrong_count(self.len(), frame.n_results()) {
            Some(error) => frame.report_error(error),
            None => frame.set_results(self),
        }
    }
}

/// As many results as the call has.
impl IntoSyncResults for Vec<Value> {
    fn store_sync(self, frame: &mut SyncKernelFrame) -> Result<()> {
        if let Some(error) = wrong_count(self.len(), frame.n_results()) {
            return Err(error);
        }
        for (i, value) in self.into_iter().enumerate() {
            frame.set_result(i, value);
        }
        Ok(())
    }
}

fn wrong_count(given: usize, wanted: usize) -> Option<Status> {
    (given != wanted).then(|| invalid_argument!("kernel returns {given} results, not {wanted}"))
}

impl<T> IntoResults for AsyncValueRef<T> {
    fn store(self, frame: &mut KernelFrame) {
        frame.set_result(0, self.into());
    }
}

impl<R: IntoResults> IntoResults for Result<R> {
    #[inline]
    fn store(self, frame: &mut KernelFrame) {
        match self {
            Ok(results) => results.store(frame),
            Err(status) => frame.report_error(status),
        }
    }
}

impl<R: IntoSyncResults> IntoSyncResults for Result<R> {
    fn store_sync(self, frame: &mut SyncKernelFrame) -> Result<()> {
        self?.store_sync(frame)
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),*)),* $(,)?) => {
        $(
            impl<$($name: ResultItem),*> IntoResults for ($($name,)*) {
                fn store(self, frame: &mut KernelFrame) {
                    $({
                        let value = self.$index.into_async(&|| frame.reporter());
                        frame.set_result($index, value);
                    })*
                }
            }

            impl<$($name: HostValue),*> IntoSyncResults for ($($name,)*) {
                fn store_sync(self, frame: &mut SyncKernelFrame) -> Result<()> {
                    $(frame.set_result($index, Value::new(self.$index));)*
                    Ok(())
                }
            }
        )*
    };
}
tuples!((A 0, B 1), (A 0, B 1, C 2), (A 0, B 1, C 2, D 3));

/// A kernel of the engine `async`.
pub type AsyncKernel = Arc<dyn Fn(&mut KernelFrame) + Send + Sync>;
/// A kernel of the engine `sync`.
pub type SyncKernel = Arc<dyn Fn(&mut SyncKernelFrame) -> Result<()> + Send + Sync>;

/// A plain function that can be a kernel; `M` distinguishes functions of different signatures.
pub trait TypedKernel<M>: Send + Sync + 'static {
    /// Converts to a kernel of the engine `async`.
    fn into_async(self) -> AsyncKernel;
}

/// A plain function that can be a synchronous kernel.
pub trait TypedSyncKernel<M>: Send + Sync + 'static {
    /// Converts to a kernel of the engine `sync`.
    fn into_sync(self) -> SyncKernel;
}

macro_rules! kernels {
    ($(($($param:ident),*)),* $(,)?) => {
        $(
            impl<Fun, R, $($param),*> TypedKernel<fn($($param),*) -> R> for Fun
            where
                Fun: Send + Sync + 'static,
                R: IntoResults,
                $($param: Param,)*
                for<'f> &'f Fun: Fn($($param),*) -> R + Fn($($param::Item<'f>),*) -> R,
            {
                fn into_async(self) -> AsyncKernel {
                    #[inline]
                    fn call<R, $($param),*>(f: impl Fn($($param),*) -> R, $($param: $param),*) -> R {
                        f($($param),*)
                    }
                    #[allow(non_snake_case, unused_mut, unused_variables,
                        reason = "one macro for any number of parameters")]
                    Arc::new(move |frame: &mut KernelFrame| {
                        let mut cursor = Cursor::default();
                        let mut run = || -> Result<R> {
                            $(let $param = $param::get(&*frame, &mut cursor)?;)*
                            Ok(call(&self, $($param),*))
                        };
                        let results = run();
                        results.store(frame);
                    })
                }
            }

            impl<Fun, R, $($param),*> TypedSyncKernel<fn($($param),*) -> R> for Fun
            where
                Fun: Send + Sync + 'static,
                R: IntoSyncResults,
                $($param: Param,)*
                for<'f> &'f Fun: Fn($($param),*) -> R + Fn($($param::Item<'f>),*) -> R,
            {
                fn into_sync(self) -> SyncKernel {
                    #[inline]
                    fn call<R, $($param),*>(f: impl Fn($($param),*) -> R, $($param: $param),*) -> R {
                        f($($param),*)
                    }
                    #[allow(non_snake_case, unused_mut, unused_variables,
                        reason = "one macro for any number of parameters")]
                    #[inline(never)]
                    fn any<Fun, R, $($param),*>(fun: &Fun, frame: &mut SyncKernelFrame) -> Result<()>
                    where
                        R: IntoSyncResults,
                        $($param: Param,)*
                        for<'f> &'f Fun: Fn($($param),*) -> R + Fn($($param::Item<'f>),*) -> R,
                    {
                        let mut cursor = Cursor::default();
                        let results = {
                            $(let $param = $param::get(&*frame, &mut cursor)?;)*
                            call(fun, $($param),*)
                        };
                        results.store_sync(frame)
                    }
                    #[allow(non_snake_case, unused_mut, unused_variables,
                        reason = "one macro for any number of parameters")]
                    Arc::new(move |frame: &mut SyncKernelFrame| {
                        let mut cursor = Cursor::default();
                        let numbers = || -> Option<R> {
                            $(let $param = $param::number(&*frame, &mut cursor)?;)*
                            Some(call(&self, $($param),*))
                        };
                        match { numbers }() {
                            Some(results) => results.store_sync(frame),
                            None => any(&self, frame),
                        }
                    })
                }
            }
        )*
    };
}
#[allow(
    non_snake_case,
    reason = "the names of types stand for their values too"
)]
mod kernels {
    use super::*;
    kernels!(
        (),
        (A),
        (A, B),
        (A, B, C),
        (A, B, C, D),
        (A, B, C, D, E),
        (A, B, C, D, E, G)
    );
}
