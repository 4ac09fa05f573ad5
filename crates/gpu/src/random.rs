//! Random numbers: TensorFlow's, in the order of its Philox generator.

use crate::elementwise::grid;
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row, int, suffix};
use ferroflow_base::Result;
use ferroflow_device::{TensorArg, upload_drawn};
use ferroflow_functors::random_stream::{NodeRandom, stateless, stateless_of_key};
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{DType, Shape, Tensor};
use std::sync::Arc;

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

/// Where a stream of random numbers is: the words of its key and of its counter.
fn words(([k0, k1], counter): ([u32; 2], u128)) -> Result<Tensor> {
    let of_counter = |i: u32| (counter >> (32 * i)) as i32;
    let words = [k0 as i32, k1 as i32]
        .into_iter()
        .chain((0..4).map(of_counter));
    Tensor::vector(&words.collect::<Vec<i32>>())
}

/// The dtype and the shape of what `words` returns.
fn of_words() -> (DType, Shape) {
    (DType::Int32, [6].into())
}

/// Sets the output to the numbers of a stream that is at `position`.
fn fill(
    ctx: &mut GpuCtx,
    (dtype, kind): (DType, i32),
    shape: Shape,
    position: &Tensor,
) -> Result<()> {
    let y = ctx.alloc(dtype, shape)?;
    let count = y.num_elements();
    if count > 0 {
        let args = [
            TensorArg::Tensor(&y),
            TensorArg::I32(int(count)?),
            TensorArg::I32(kind),
            TensorArg::Tensor(position),
        ];
        let name = format!("random_{}", suffix(dtype)?);
        ctx.run(&name, &grid(count.div_ceil(4)), &args)?;
    }
    ctx.set_output(0, y)
}

fn stateful(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let (dtype, kind) = (build.output(0)?, kind(&build.def.name));
    let stream = Arc::new(NodeRandom::new(build)?);
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let shape = ctx.shape_of(0)?;
        let (stream, resources) = (stream.clone(), ctx.engine().resources().clone());
        let n = shape.num_elements();
        let draw = Arc::new(move || words(stream.outputs_of(&resources, n)?.position()));
        let position = upload_drawn(ctx.memory, of_words(), draw)?;
        fill(ctx, (dtype, kind), shape, &position)
    }))
}

fn seeded(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let form = (build.output(0)?, kind(&build.def.name));
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let shape = ctx.shape_of(0)?;
        let position =
            ctx.upload_computed(of_words(), |input| words(stateless(&input(1)?)?.position()))?;
        fill(ctx, form, shape, &position)
    }))
}

fn keyed(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let form = (build.output(0)?, kind(&build.def.name));
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let shape = ctx.shape_of(0)?;
        let position = ctx.upload_computed(of_words(), |input| {
            words(stateless_of_key(&input(1)?, &input(2)?, &input(3)?)?.position())
        })?;
        fill(ctx, form, shape, &position)
    }))
}
