//! StringToHashBucket, StringToHashBucketFast, StringToHashBucketStrong.

use ferroflow_base::{Result, hash64, invalid_argument};
use ferroflow_functors::hash::{fingerprint64, strong_keyed_hash};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::DType;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "StringToHashBucket",
        "string_tensor: string -> output: int64 | num_buckets: int >= 1",
    )
    .shape(shapes::unchanged)
    .kernel(|build| buckets(build, hash64))
    .not_differentiable(),
    Op::new(
        "StringToHashBucketFast",
        "input: string -> output: int64 | num_buckets: int >= 1",
    )
    .shape(shapes::unchanged)
    .kernel(|build| buckets(build, fingerprint64))
    .not_differentiable(),
    // The pass `composite` splits it into AsString and StringToHashBucketFast.
    Op::new(
        "_TensorToHashBucketFast",
        "input: T -> output: int64 | T: type \
         {int8,uint8,int16,uint16,int32,uint32,int64,uint64}; num_buckets: int >= 1",
    )
    .shape(shapes::unchanged),
    Op::new(
        "StringToHashBucketStrong",
        "input: string -> output: int64 | num_buckets: int >= 1; key: list(int)",
    )
    .shape(shapes::unchanged)
    .kernel(|build| {
        let [first, second] = build.attrs.ints("key")?[..] else {
            return Err(invalid_argument!("Key must have 2 elements"));
        };
        let key = [first as u64, second as u64];
        buckets(build, move |bytes| strong_keyed_hash(key, bytes))
    })
    .not_differentiable(),
];

/// Strings per task.
const BLOCK: usize = 1024;

fn buckets(
    build: &KernelBuild,
    hash: impl Fn(&[u8]) -> u64 + Send + Sync + 'static,
) -> Result<Box<dyn OpKernel>> {
    let n_buckets = build.attrs.int("num_buckets")?;
    let Some(n_buckets) = u64::try_from(n_buckets).ok().filter(|&n| n > 0) else {
        return Err(invalid_argument!(
            "num_buckets must be positive, got {n_buckets}"
        ));
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let texts = input.texts()?;
        let mut out = ctx.alloc(DType::Int64, input.shape().clone())?;
        let to = out.slice_mut::<i64>()?;
        par_chunks_mut(ctx.par(), to, BLOCK, 1, &|block, to| {
            for (i, to) in to.iter_mut().enumerate() {
                *to = (hash(texts.get(block * BLOCK + i)) % n_buckets) as i64;
            }
        });
        ctx.set_output(0, out)
    }))
}
