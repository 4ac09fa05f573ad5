//! A BEF file whose kernels are resolved: what the engines run.

use super::costs::Costs;
use super::engine::{self, Call};
use super::sync_engine;
use ferroflow_base::{Result, internal, invalid_argument, not_found};
use ferroflow_host_context::{
    ExecutionContext, Function, HostKernel, HostProgram, KernelRegistry, NativeFunction, Value,
    Values,
};
use ferroflow_program::bef::{File, FunctionKind};
use ferroflow_sync::{AsyncValue, Diagnostic, IndirectPromise, Location};
use std::sync::Arc;

/// A host program that can run.
///
/// ```
/// use ferroflow_executor::host::Program;
/// use ferroflow_host_context::KernelRegistry;
/// use ferroflow_program::{bef, mlir};
/// use std::sync::Arc;
/// let module = mlir::parse("func @f() {\n  tfrt.return\n}", "f.mlir", 0).expect("well formed");
/// let bytes = bef::write(&module, true).expect("can be written");
/// let file = bef::File::open(Arc::new(bytes)).expect("valid");
/// let program = Program::new(file, &KernelRegistry::default()).expect("has no kernels");
/// assert!(program.function("f").is_some());
/// ```
pub struct Program {
    loaded: Arc<Loaded>,
    natives: Vec<Option<NativeFunction>>,
}

/// The part of a program that executions use.
pub(super) struct Loaded {
    pub(super) file: File,
    pub(super) kernels: Vec<HostKernel>,
    pub(super) costs: Costs,
}

impl Program {
    /// Resolves the kernels of `file`.
    ///
    /// # Errors
    /// A kernel or a native function that `registry` does not have; the location is the kernel's first
    /// use.
    pub fn new(file: File, registry: &KernelRegistry) -> Result<Arc<Program>, Diagnostic> {
        let mut kernels = Vec::with_capacity(file.n_kernels());
        let mut costs = Vec::with_capacity(file.n_kernels());
        for code in 0..file.n_kernels() {
            let name = file.kernel_name(code);
            costs.push(registry.cost(name));
            match registry.get(name) {
                Some(kernel) => kernels.push(kernel.clone()),
                None => {
                    return Err(Diagnostic {
                        status: not_found!("unknown kernel name '{name}'"),
                        location: first_use(&file, code),
                    });
                }
            }
        }
        let mut natives = Vec::with_capacity(file.functions().len());
        for function in file.functions() {
            natives.push(match function.kind {
                FunctionKind::Native => Some(registry.native(&function.name).ok_or_else(|| {
                    not_found!(
                        "invalid FunctionIndex section in BEF file: unable to find native \
                         function in global registry"
                    )
                })?),
                _ => None,
            });
        }
        Ok(Arc::new(Program {
            loaded: Arc::new(Loaded {
                costs: Costs::new(costs, file.functions().len()),
                file,
                kernels,
            }),
            natives,
        }))
    }

    /// The file.
    #[inline]
    pub fn file(&self) -> &File {
        &self.loaded.file
    }

    /// The function called `name`.
    pub fn function(self: &Arc<Self>, name: &str) -> Option<Function> {
        Some(self.function_at(self.file().function(name)?))
    }

    /// Function `index` of the file.
    pub fn function_at(self: &Arc<Self>, index: usize) -> Function {
        Function::new(self.clone(), index)
    }
}

impl Program {
    /// A native or a synchronous function, or why the function cannot be called.
    fn execute_otherwise(
        &self,
        this: &Arc<dyn HostProgram>,
        function: usize,
        ctx: &ExecutionContext,
        args: Values,
    ) -> Values {
        let Some(entry) = self.file().functions().get(function) else {
            return Values::new();
        };
        let n_results = entry.results.len();
        let status = if args.len() != entry.arguments.len() {
            invalid_argument!(
                "function '{}' takes {} arguments, not {}",
                entry.name,
                entry.arguments.len(),
                args.len()
            )
        } else if let Some(native) = self.natives.get(function).copied().flatten() {
            return run_at_once(ctx, args, n_results, move |ctx, args| {
                native(ctx, args, n_results)
            });
        } else {
            match entry.kind {
                FunctionKind::Async => match self.file().body(function) {
                    Err(status) => status,
                    Ok(_) => internal!("the function was not called"),
                },
                FunctionKind::Native => internal!("native function was not found"),
                FunctionKind::Dataflow => invalid_argument!(
                    "'{}' is a dataflow function, which host programs cannot call",
                    entry.name
                ),
                FunctionKind::Sync => {
                    let program = this.clone();
                    return run_at_once(ctx, args, n_results, move |ctx, args| {
                        let args = args.iter().cloned().map(Value::Any).collect();
                        match program.execute_sync(&program, function, ctx, args) {
                            Ok(results) => results.into_iter().map(AsyncValue::from).collect(),
                            Err(status) => {
                                std::iter::repeat_n(AsyncValue::new_error(status), n_results)
                                    .collect()
                            }
                        }
                    });
                }
            }
        };
        let error = AsyncValue::new_error(ctx.report(status, None));
        std::iter::repeat_n(error, n_results).collect()
    }
}

/// Calls a strict function when all its arguments are available; an error among them becomes the results.
fn run_at_once(
    ctx: &ExecutionContext,
    args: Values,
    n_results: usize,
    run: impl FnOnce(&ExecutionContext, &Values) -> Values + Send + 'static,
) -> Values {
    if let Some(pending) = args.iter().find(|a| !a.is_available()) {
        let (promises, values): (Vec<_>, Values) =
            (0..n_results).map(|_| IndirectPromise::new()).unzip();
        let (pending, ctx) = (pending.clone(), ctx.clone());
        pending.and_then(move || {
            let results = run_at_once(&ctx, args, n_results, run);
            for (promise, result) in promises.into_iter().zip(results) {
                promise.forward_to(result);
            }
        });
        return values;
    }
    if let Some(error) = args.iter().find(|a| a.is_error()) {
        return std::iter::repeat_n(error.clone(), n_results).collect();
    }
    let mut results = run(ctx, &args);
    let missing = AsyncValue::new_error(internal!("a function returned too few results"));
    results.resize(n_results, missing);
    results
}

fn first_use(file: &File, code: usize) -> Option<Location> {
    for i in 0..file.functions().len() {
        let Ok(body) = file.body(i) else {
            continue;
        };
        if let Some(kernel) = body.kernels().iter().find(|k| k.code == code) {
            return location(file, kernel.refers.location);
        }
    }
    None
}

fn location(file: &File, offset: usize) -> Option<Location> {
    let (file, line, column) = file.location(offset)?;
    Some(Location {
        file: file.to_string(),
        line,
        column,
    })
}

impl HostProgram for Program {
    fn attributes(&self) -> &[u8] {
        self.file().attributes()
    }

    fn location(&self, offset: usize) -> Option<Location> {
        location(self.file(), offset)
    }

    fn location_name(&self, offset: usize) -> Option<&str> {
        self.file().location_name(offset)
    }

    fn function_name(&self, function: usize) -> &str {
        let function = self.file().functions().get(function);
        function.map_or("", |f| f.name.as_str())
    }

    fn arity(&self, function: usize) -> Option<(usize, usize)> {
        let function = self.file().functions().get(function)?;
        Some((function.arguments.len(), function.results.len()))
    }

    fn result_types(&self, function: usize) -> Vec<String> {
        let function = self.file().functions().get(function);
        let types = function.map_or(&[][..], |f| &f.results);
        let name = |t: &usize| self.file().type_name(*t).to_string();
        types.iter().map(name).collect()
    }

    fn execute(
        &self,
        this: &Arc<dyn HostProgram>,
        function: usize,
        ctx: &ExecutionContext,
        args: Values,
    ) -> Values {
        let entry = self.file().functions().get(function);
        if let Some(entry) = entry
            && entry.kind == FunctionKind::Async
            && let Ok(body) = self.file().body(function)
            && body.n_arguments() == args.len()
        {
            let call = Call {
                program: this,
                loaded: &self.loaded,
                function,
                body,
                ctx,
            };
            return engine::execute(call, args);
        }
        self.execute_otherwise(this, function, ctx, args)
    }

    fn execute_sync(
        &self,
        this: &Arc<dyn HostProgram>,
        function: usize,
        ctx: &ExecutionContext,
        args: Vec<Value>,
    ) -> Result<Vec<Value>> {
        sync_engine::execute(this, &self.loaded, function, ctx, args)
    }
}
