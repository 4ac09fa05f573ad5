//! The engine `sync`: kernels in the order of the program, values in plain registers.

use super::program::Loaded;
use ferroflow_base::{Result, internal, invalid_argument, resource_exhausted};
use ferroflow_host_context::{
    ExecutionContext, HostKernel, HostProgram, References, SyncKernelFrame, Value,
};
use ferroflow_program::bef::FunctionKind;
use ferroflow_sync::DepthGuard;
use std::cell::Cell;
use std::sync::Arc;

/// The maximum nesting of synchronous calls, which cannot move to another stack.
const MAX_DEPTH: u32 = 256;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
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
    let Some(_guard) = DepthGuard::enter(&DEPTH, MAX_DEPTH) else {
        return Err(resource_exhausted!(
            "synchronous calls are nested too deeply"
        ));
    };
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
