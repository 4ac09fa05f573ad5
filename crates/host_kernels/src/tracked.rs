//! `vt.*`: integers that print their construction and destruction.

use ferroflow_host_context::{
    Arg, Attr, Ctx, ExecutionContext, Frame, HostContext, HostValue, KernelFrame, KernelRegistry,
};
use ferroflow_sync::Chain;
use std::sync::Arc;

/// A number whose destruction is printed.
struct Tracked {
    value: i32,
    host: Arc<HostContext>,
}

impl HostValue for Tracked {}

impl Tracked {
    fn new(value: i32, ctx: &ExecutionContext) -> Self {
        let host = ctx.host().clone();
        host.print(&format!("constructed vt.value({value})\n"));
        // A value moves from the kernel to its final place.
        host.print(&format!("move constructed vt.value({value})\n"));
        Tracked { value, host }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.host
            .print(&format!("destroyed vt.value({})\n", self.value));
    }
}

fn constant(value: Attr<i32>, ctx: Ctx) -> Tracked {
    Tracked::new(value.0, &ctx)
}

fn add(a: Arg<Tracked>, b: Arg<Tracked>, ctx: Ctx) -> Tracked {
    Tracked::new(a.value.wrapping_add(b.value), &ctx)
}

fn print(value: Arg<Tracked>, ctx: Ctx) -> Chain {
    ctx.host()
        .print(&format!("print vt_value({})\n", value.value));
    Chain
}

fn share_to_two(frame: &mut KernelFrame) -> ferroflow_base::Result<()> {
    let value = frame.arg_value(0)?;
    (0..2).for_each(|i| frame.set_result(i, value.clone()));
    // The type is checked when it is read.
    frame.arg::<Tracked>(0).map(|_| ())
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry
        .add("vt.constant", constant)
        .add("vt.add", add)
        .add("vt.print", print)
        .add_raw("tfrt_test.share_to_two", share_to_two);
}
