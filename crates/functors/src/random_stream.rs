//! The random streams of nodes: of stateful ones, which continue from step to step of a session, and of seeds and keys.

use crate::distributions::RESERVED;
use crate::indices::{int, ints, scalar};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_opdef::{KernelBuild, KernelCtx, Resources};
use ferroflow_primitives::philox::Philox;
use ferroflow_tensor::{DType, Tensor};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The position of a node's stream, local to the session, so that every plan with the node
/// continues after the last step.
pub struct NodeStream(Mutex<Philox>);

impl NodeStream {
    /// Returns the position, which stays the same until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, Philox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the same, unless another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Philox>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The stream of a node, identified by its name and seeds.
pub struct NodeRandom {
    name: String,
    seeds: (u64, u64),
}

impl NodeRandom {
    /// Returns the stream of a node from the attrs `seed` and `seed2`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an attr is missing.
    pub fn new(build: &KernelBuild) -> Result<Self> {
        let attr = |name| build.attrs.int(name).map(|seed| seed as u64);
        Ok(NodeRandom::of(build.node, (attr("seed")?, attr("seed2")?)))
    }

    /// Returns the stream of the node of this name with these seeds.
    pub fn of(node: &str, seeds: (u64, u64)) -> Self {
        let name = format!("{node}/{}/{}", seeds.0, seeds.1);
        NodeRandom { name, seeds }
    }

    /// Returns the name, which identifies the stream.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reserves `n_blocks` of the stream and returns them.
    ///
    /// # Errors
    /// INTERNAL if the session has another resource of the name.
    pub fn reserve(&self, ctx: &KernelCtx, n_blocks: u128) -> Result<Philox> {
        self.reserve_of(ctx.resources(), n_blocks)
    }

    /// Returns the position of the stream in a session.
    ///
    /// # Errors
    /// As for [`NodeRandom::reserve`].
    pub fn stream(&self, resources: &Resources) -> Result<Arc<NodeStream>> {
        resources.session_local(&self.name, || {
            let (seed, seed2) = match self.seeds {
                (0, 0) => {
                    let fresh = || RandomState::new().hash_one(&self.name);
                    (fresh(), fresh())
                }
                seeds => seeds,
            };
            Ok(NodeStream(Mutex::new(Philox::new(seed, seed2))))
        })
    }

    fn reserve_of(&self, resources: &Resources, n_blocks: u128) -> Result<Philox> {
        let stream = self.stream(resources)?;
        let mut next = stream.lock();
        let now = *next;
        *next = now.skipped(n_blocks);
        Ok(now)
    }

    /// Returns the stream of `n` numbers.
    ///
    /// # Errors
    /// As for [`NodeRandom::reserve`].
    pub fn outputs(&self, ctx: &KernelCtx, n: usize) -> Result<Philox> {
        self.outputs_of(ctx.resources(), n)
    }

    /// Returns the stream of `n` numbers in a session.
    ///
    /// # Errors
    /// As for [`NodeRandom::reserve`].
    pub fn outputs_of(&self, resources: &Resources, n: usize) -> Result<Philox> {
        self.reserve_of(resources, n as u128 * RESERVED)
    }
}

/// TensorFlow's number of the algorithm; 2 is ThreeFry, and 3 selects automatically.
pub const PHILOX: i32 = 1;

/// Returns the two seeds of a stateless op.
///
/// # Errors
/// INVALID_ARGUMENT if they are not two.
pub fn seeds(seed: &Tensor) -> Result<[u64; 2]> {
    if seed.shape().dims() != [2] {
        return Err(invalid_argument!(
            "seed must have shape [2], not {}",
            seed.shape()
        ));
    }
    let values: Vec<u64> = match seed.dtype() {
        DType::Uint32 => seed.slice::<u32>()?.iter().map(|&x| x.into()).collect(),
        DType::Uint64 => seed.slice::<u64>()?.to_vec(),
        _ => ints(seed)?.iter().map(|&x| x as u64).collect(),
    };
    values
        .try_into()
        .map_err(|_| invalid_argument!("seed must have shape [2]"))
}

/// Returns the stream of two seeds.
///
/// # Errors
/// As for [`seeds`].
pub fn stateless(seed: &Tensor) -> Result<Philox> {
    let [seed, seed2] = seeds(seed)?;
    Ok(Philox::stateless(seed, seed2))
}

/// Returns the stream of a key and a counter, by the number of an algorithm.
///
/// # Errors
/// INVALID_ARGUMENT for other shapes and unknown algorithms.
pub fn stateless_of_key(key: &Tensor, counter: &Tensor, algorithm: &Tensor) -> Result<Philox> {
    let Some(least) = scalar(algorithm) else {
        return Err(invalid_argument!(
            "input 3 (0-based) must have shape [], not {}",
            algorithm.shape()
        ));
    };
    // 3 stands for the default.
    let least = if least == 3 { i64::from(PHILOX) } else { least };
    let (1, &[key]) = (key.shape().rank(), key.slice::<u64>()?) else {
        return Err(invalid_argument!(
            "key must have shape [1], not {}. (Note that batched keys are not supported yet.)",
            key.shape()
        ));
    };
    let counters = counter.slice::<u64>()?;
    // TensorFlow takes the number of the algorithm for the length of its counter.
    let fits = counter.shape().rank() == 1 && counters.len() as i64 >= least;
    let (true, &[low, high, ..]) = (fits, counters) else {
        return Err(invalid_argument!(
            "counter must be a vector with length at least {}; got shape: {}. (Note that batched \
             counters are not supported yet.)",
            if fits { 2 } else { least },
            counter.shape()
        ));
    };
    if least != i64::from(PHILOX) {
        return Err(invalid_argument!("Unsupported algorithm id: {least}"));
    }
    Ok(Philox::at(key, (low as u128) | ((high as u128) << 64)))
}

/// Checks the number of an algorithm, a scalar.
///
/// # Errors
/// INVALID_ARGUMENT or UNIMPLEMENTED if there is no such algorithm.
pub fn check_algorithm(number: &Tensor) -> Result<()> {
    if !number.shape().is_scalar() {
        return Err(invalid_argument!(
            "algorithm must be of shape [], not {}",
            number.shape()
        ));
    }
    match int(number).unwrap_or_default() {
        number if number == i64::from(PHILOX) || number == 3 => Ok(()),
        2 => Err(unimplemented_error!(
            "Non-XLA devices don't support the ThreeFry algorithm."
        )),
        other => Err(invalid_argument!("Unsupported algorithm id: {other}")),
    }
}
