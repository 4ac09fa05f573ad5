//! The engine `sync`: kernels in the order of the program, values in plain registers.

use super::program::Loaded;
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_host_context::{
    ExecutionContext, HostKernel, HostProgram, References, SyncKernelFrame, Value,
};
use ferroflow_program::bef::FunctionKind;
use std::cell::Cell;
use std::sync::Arc;

/// How deep synchronous calls may nest; they have no other stack to go to.
const MAX_DEPTH: usize = 256;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Counts nested calls, whatever way they end.
struct Level;

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

pub(super) fn execute(
    program: &Arc<dyn HostProgram>,
    loaded: &Loaded,
    function: usize,
    ctx: &ExecutionContext,
    args: Vec<Value>,
) -> Result<Vec<Value>> {
    let Some(entry) = loaded.file.functions().get(function) else {
        return Err(internal!("no such function"));
    };
    if entry.kind != FunctionKind::Sync {
        return Err(invalid_argument!(
            "function '{}' is not synchronous",
            entry.name
        ));
    }
    if entry.arguments.len() != args.len() {
        return Err(invalid_argument!(
            "function '{}' takes {} arguments, not {}",
            entry.name,
            entry.arguments.len(),
            args.len()
        ));
    }
    if DEPTH.get() >= MAX_DEPTH {
        return Err(ferroflow_base::resource_exhausted!(
            "synchronous calls are nested too deeply"
        ));
    }
    DEPTH.set(DEPTH.get() + 1);
    let _level = Level;
    let body = loaded.file.body(function)?;
    let mut registers = args;
    registers.resize_with(body.register_uses().len(), Value::default);
    let mut frame = SyncKernelFrame::new(
        body.site(program, &References::NONE),
        ctx,
        &mut registers,
        body.all_operands(),
    );
    for kernel in body.kernels() {
        frame.go_to(&kernel.refers);
        let result = match loaded.kernels.get(kernel.code) {
            Some(HostKernel::Sync(implementation)) => implementation(&mut frame),
            _ => Err(invalid_argument!(
                "kernel '{}' is not synchronous",
                loaded.file.kernel_name(kernel.code)
            )),
        };
        if let Err(status) = result {
            let location = program.location(kernel.refers.location);
            return Err(ctx.report(status, location).status);
        }
    }
    Ok(frame.values(body.returns()))
}
