//! Random numbers: TensorFlow's, in the order of its Philox generator.

use crate::elementwise::grid;
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row, int, suffix};
use ferroflow_base::Result;
use ferroflow_device::TensorArg;
use ferroflow_functors::random_stream::{NodeRandom, stateless, stateless_of_key};
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{DType, Shape};

const T: &[(&str, &[DType])] = &[("dtype", FLOATS)];

pub(crate) const ROWS: &[Row] = &[
    Row::passes("StatelessRandomGetAlg"),
    Row::new("RandomUniform", stateful)
        .types(T)
        .host(&["shape"]),
    Row::new("RandomStandardNormal", stateful)
        .types(T)
        .host(&["shape"]),
    Row::new("TruncatedNormal", stateful)
        .types(T)
        .host(&["shape"]),
    Row::new("StatelessRandomUniform", seeded)
        .types(T)
        .host(&["shape", "seed"]),
    Row::new("StatelessRandomNormal", seeded)
        .types(T)
        .host(&["shape", "seed"]),
    Row::new("StatelessTruncatedNormal", seeded)
        .types(T)
        .host(&["shape", "seed"]),
    Row::new("StatelessRandomUniformV2", keyed)
        .types(T)
        .host(&["shape", "key", "counter", "alg"]),
    Row::new("StatelessRandomNormalV2", keyed)
        .types(T)
        .host(&["shape", "key", "counter", "alg"]),
    Row::new("StatelessTruncatedNormalV2", keyed)
        .types(T)
        .host(&["shape", "key", "counter", "alg"]),
];

/// The number of an op's distribution in the compiled kernel.
fn kind(op: &str) -> i32 {
    match () {
        () if op.contains("Truncated") => 2,
        () if op.contains("Normal") => 1,
        () => 0,
    }
}

/// Sets the output to the numbers of a stream from a counter on.
fn fill(
    ctx: &mut GpuCtx,
    dtype: DType,
    kind: i32,
    shape: Shape,
    ([k0, k1], counter): ([u32; 2], u128),
) -> Result<()> {
    let y = ctx.alloc(dtype, shape)?;
    let count = y.num_elements();
    if count > 0 {
        let word = |n: u32| TensorArg::I32(n as i32);
        let of_counter = |i: u32| word((counter >> (32 * i)) as u32);
        let args = [
            TensorArg::Tensor(&y),
            TensorArg::I32(int(count)?),
            TensorArg::I32(kind),
            word(k0),
            word(k1),
            of_counter(0),
            of_counter(1),
            of_counter(2),
            of_counter(3),
        ];
        let name = format!("random_{}", suffix(dtype)?);
        ctx.run(&name, &grid(count.div_ceil(4)), &args)?;
    }
    ctx.set_output(0, y)
}

fn stateful(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let (dtype, kind) = (build.output(0)?, kind(&build.def.name));
    let stream = NodeRandom::new(build)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let shape = ctx.shape_of(0)?;
        let from = stream.outputs(ctx.engine(), shape.num_elements())?;
        fill(ctx, dtype, kind, shape, from.position())
    }))
}

fn seeded(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let (dtype, kind) = (build.output(0)?, kind(&build.def.name));
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (shape, seed) = (ctx.shape_of(0)?, ctx.host(1)?);
        let from = stateless(&seed)?;
        fill(ctx, dtype, kind, shape, from.position())
    }))
}

fn keyed(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let (dtype, kind) = (build.output(0)?, kind(&build.def.name));
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let shape = ctx.shape_of(0)?;
        let from = stateless_of_key(&ctx.host(1)?, &ctx.host(2)?, &ctx.host(3)?)?;
        fill(ctx, dtype, kind, shape, from.position())
    }))
}
