//! Assert, Print, PrintV2 (TensorFlow: `core/kernels/logging_ops.cc`).

use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_functors::shapes;
use ferroflow_functors::summarize::summary;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::log::tell_listeners;
use ferroflow_tensor::Tensor;
use std::io::Write;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::SystemTime;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Assert",
        "condition: bool, data: list(T) -> | T: list(type) >= 1; summarize: int = 3 | \
         stateful",
    )
    .shape(|ctx| ctx.with_rank(0, 0).map(|_| ()))
    .kernel(assert)
    .not_differentiable(),
    Op::new("Timestamp", "-> ts: double | | stateful")
        .shape(shapes::scalar)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                // Before 1970 the clock counts backwards.
                let seconds = match SystemTime::UNIX_EPOCH.elapsed() {
                    Ok(since) => since.as_secs_f64(),
                    Err(before) => -before.duration().as_secs_f64(),
                };
                ctx.set_output(0, Tensor::scalar(seconds))
            }))
        })
        .not_differentiable(),
    Op::new(
        "Print",
        "input: T, data: list(U) -> output: T | T: type; U: list(type) >= 0; message: \
         string = ''; first_n: int = -1; summarize: int = 3 | stateful",
    )
    .shape(shapes::unchanged)
    .kernel(print)
    .gradient(|g| match g.arrived(0) {
        Some(gradient) => g.set_gradient(0, gradient),
        None => Ok(()),
    }),
    Op::new(
        "PrintV2",
        "input: string -> | output_stream: string = 'stderr'; end: string = '\\n' | \
         stateful",
    )
    .shape(|ctx| ctx.with_rank(0, 0).map(|_| ()))
    .kernel(print_v2),
];

fn assert(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let summarize = build.attrs.int("summarize")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let condition = ctx.input(0)?;
        let holds = condition
            .to_scalar::<bool>()
            .map_err(|_| invalid_argument!("In[0] should be a scalar: {}", condition.shape()))?;
        if holds {
            return Ok(());
        }
        let mut message = String::from("assertion failed: ");
        for i in 1..ctx.num_inputs() {
            let gap = if i > 1 { " " } else { "" };
            message += &format!("{gap}[{}]", summary(ctx.input(i)?, summarize));
        }
        Err(invalid_argument!("{message}"))
    }))
}

fn print(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let summarize = build.attrs.int("summarize")?;
    let first_n = build.attrs.int("first_n")?;
    let message = build.attrs.str("message")?.to_string();
    let printed = AtomicI64::new(0);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if first_n < 0 || printed.fetch_add(1, Ordering::Relaxed) < first_n {
            let mut line = message.clone();
            for i in 1..ctx.num_inputs() {
                line += &format!("[{}]", summary(ctx.input(i)?, summarize));
            }
            line.push('\n');
            say(line.as_bytes(), std::io::stderr());
        }
        let value = ctx.take_input(0)?;
        ctx.set_output(0, value)
    }))
}

/// The output stream of PrintV2.
enum OutputStream {
    Out,
    Err,
    File(String),
}

fn print_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let stream = match build.attrs.str("output_stream")? {
        "stdout" => OutputStream::Out,
        "stderr" | "log(info)" | "log(warning)" | "log(error)" => OutputStream::Err,
        other => match other.strip_prefix("file://") {
            Some(path) => OutputStream::File(path.to_string()),
            None => {
                return Err(invalid_argument!(
                    "Unknown output stream: {other}, Valid streams are: stdout, stderr, \
                     log(info), log(warning), log(error), file://<path>"
                ));
            }
        },
    };
    let end = build.attrs.bytes("end")?.to_vec();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let [text] = input.strings()? else {
            return Err(invalid_argument!(
                "Input is expected to be scalar, but got {}",
                input.shape()
            ));
        };
        let line = [&text[..], &end].concat();
        if !matches!(stream, OutputStream::File(_)) && tell_listeners(&line) {
            return Ok(());
        }
        match &stream {
            OutputStream::Out => say(&line, std::io::stdout()),
            OutputStream::Err => say(&line, std::io::stderr()),
            OutputStream::File(path) => {
                let file = std::fs::File::options()
                    .append(true)
                    .create(true)
                    .open(path);
                let file = file.map_err(|e| not_found!("cannot write to {path}: {e}"))?;
                say(&line, file);
            }
        }
        Ok(())
    }))
}

/// Writes a line in one piece, so that lines of several threads do not mix. Output errors do not
/// fail the step.
fn say(line: &[u8], mut to: impl Write) {
    let _ = to.write_all(line).and_then(|()| to.flush());
}
