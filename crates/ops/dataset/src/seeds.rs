//! Seeds of random datasets: AnonymousSeedGenerator and its ops (TensorFlow:
//! `core/kernels/data/random_seed_ops.cc`).

use crate::common::{flag, number};
use ferroflow_base::{Code, Result, internal, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::philox::Philox;
use ferroflow_resources::dataset::State;
use ferroflow_resources::resource::{ANONYMOUS, Resource, handle, handle_tensor, resolve};
use ferroflow_tensor::{PartialShape, ResourceHandle, Shape, Tensor, Variant};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "AnonymousSeedGenerator",
        "seed: int64, seed2: int64, reshuffle: bool -> handle: resource, deleter: variant | | \
         stateful",
    )
    .shape(scalars)
    .kernel(anonymous),
    Op::new(
        "AnonymousRandomSeedGenerator",
        "seed: int64, seed2: int64 -> handle: resource, deleter: variant | | stateful",
    )
    .shape(scalars)
    .kernel(without_reshuffle),
    Op::new("DummySeedGenerator", "-> handle: resource | | stateful")
        .shape(shapes::scalar)
        .kernel(dummy),
    Op::new(
        "DeleteSeedGenerator",
        "handle: resource, deleter: variant -> | | stateful",
    )
    .kernel(delete),
    Op::new(
        "DeleteRandomSeedGenerator",
        "handle: resource, deleter: variant -> | | stateful",
    )
    .kernel(delete),
];

/// A stream of random numbers that can be saved.
pub(crate) struct Random {
    seeds: (i64, i64),
    stream: Philox,
    n: u64,
}

impl Random {
    pub(crate) fn new(seeds: (i64, i64)) -> Random {
        Random::at(seeds, 0)
    }

    /// The stream after `n` numbers.
    fn at(seeds: (i64, i64), n: u64) -> Random {
        let first = Philox::new(seeds.0 as u64, seeds.1 as u64);
        let mut stream = first.skipped(u128::from(n / 4));
        for _ in 0..n % 4 {
            stream.next_u32();
        }
        Random { seeds, stream, n }
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.n += 1;
        self.stream.next_u32()
    }

    pub(crate) fn state(&mut self, state: &mut State) -> Result<()> {
        state.int(&mut self.seeds.0)?;
        state.int(&mut self.seeds.1)?;
        state.uint(&mut self.n)?;
        if state.is_restoring() {
            *self = Random::at(self.seeds, self.n);
        }
        Ok(())
    }
}

/// Replaces two zeros, which ask for random seeds.
pub(crate) fn seeds_or_fresh(seed: i64, seed2: i64) -> (i64, i64) {
    let fresh = |n: u8| RandomState::new().hash_one(n) as i64;
    match (seed, seed2) {
        (0, 0) => (fresh(0), fresh(1)),
        seeds => seeds,
    }
}

/// The source of each iteration's seeds.
pub(crate) struct SeedGenerator {
    seeds: (i64, i64),
    /// The stream that seeds are drawn from, unless all iterations have the same.
    drawn: Option<Mutex<Random>>,
}

impl SeedGenerator {
    pub(crate) fn new(seed: i64, seed2: i64, reshuffles: bool) -> SeedGenerator {
        let seeds = seeds_or_fresh(seed, seed2);
        SeedGenerator {
            seeds,
            drawn: reshuffles.then(|| Mutex::new(Random::new(seeds))),
        }
    }

    fn lock(random: &Mutex<Random>) -> MutexGuard<'_, Random> {
        random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the seeds that it was created with.
    pub(crate) fn seeds(&self) -> (i64, i64) {
        self.seeds
    }

    /// Returns the seeds of the next iteration.
    pub(crate) fn generate(&self) -> (i64, i64) {
        let Some(random) = &self.drawn else {
            return self.seeds;
        };
        let mut random = Self::lock(random);
        let first = random.next();
        (i64::from(first), i64::from(random.next()))
    }

    /// Visits the position in the stream of seeds.
    pub(crate) fn state(&self, state: &mut State) -> Result<()> {
        match &self.drawn {
            Some(random) => Self::lock(random).state(state),
            None => Ok(()),
        }
    }

    /// Returns the generator that a handle names, or `None` for the handle of DummySeedGenerator.
    pub(crate) fn input(ctx: &KernelCtx, i: usize) -> Result<Option<Arc<SeedGenerator>>> {
        match resolve::<SeedGenerator>(ctx, handle(ctx, i)?) {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.code() == Code::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Resource for SeedGenerator {
    const TYPE: &'static str = "tensorflow::data::SeedGeneratorManager";

    fn is_gone(&self) -> bool {
        false
    }
}

/// Infers the scalar outputs of ops that return a handle and its deleter.
pub(crate) fn scalars(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, PartialShape::scalar());
    ctx.set(1, PartialShape::scalar());
    Ok(())
}

/// Sets a handle and, if the op has one, its deleter: handles own what they name.
pub(crate) fn set_anonymous<T: Resource>(ctx: &mut KernelCtx, value: T) -> Result<()> {
    let handle = handle_tensor("localhost", ANONYMOUS, Arc::new(value))?;
    ctx.set_output(0, handle)?;
    match ctx.num_outputs() {
        1 => Ok(()),
        _ => {
            let deleter =
                Tensor::from_variants(Shape::scalar(), vec![Variant(Some(Arc::new(())))])?;
            ctx.set_output(1, deleter)
        }
    }
}

/// Returns the kernel of an op whose handle names nothing.
pub(crate) fn dummy(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let handle = ResourceHandle {
            container: "".into(),
            name: "dummy_resource".into(),
            value: None,
            origin: None,
        };
        let t = Tensor::from_resources(Shape::scalar(), vec![handle])?;
        ctx.set_output(0, t)
    }))
}

/// Returns the kernel of an op that deletes what a handle names. The handles of anonymous resources
/// own them, so that TensorFlow refuses.
pub(crate) fn delete(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let handle = handle(ctx, 0)?;
        Err(internal!(
            "Cannot delete an unowned Resource {}/{} from ResourceMgr. This indicates ref-counting \
             ResourceHandle is exposed to weak ResourceHandle code paths.",
            handle.container,
            handle.name
        ))
    }))
}

/// The op of this name reads an input that it does not have, in TensorFlow too.
fn without_reshuffle(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|_: &mut KernelCtx| {
        Err(invalid_argument!("Unknown input name: reshuffle"))
    }))
}

fn anonymous(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (seed, seed2) = (number(ctx, 0, "seed")?, number(ctx, 1, "seed2")?);
        let reshuffles = flag(ctx, 2, "reshuffle")?;
        set_anonymous(ctx, SeedGenerator::new(seed, seed2, reshuffles))
    }))
}
