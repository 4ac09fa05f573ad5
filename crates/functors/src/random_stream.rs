//! The random stream of a stateful node, which continues from step to step of a session.

use ferroflow_base::Result;
use ferroflow_opdef::{KernelBuild, KernelCtx};
use ferroflow_primitives::philox::Philox;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// Numbers that TensorFlow reserves for each output.
const RESERVED: u128 = 256;

/// The position of a node's stream, local to the session, so that every plan with the node
/// continues after the last step.
struct NodeStream(Mutex<Philox>);

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
        let seeds = (attr("seed")?, attr("seed2")?);
        let name = format!("{}/{}/{}", build.node, seeds.0, seeds.1);
        Ok(NodeRandom { name, seeds })
    }

    /// Reserves `n_blocks` of the stream and returns them.
    ///
    /// # Errors
    /// INTERNAL if the session has another resource of the name.
    pub fn reserve(&self, ctx: &KernelCtx, n_blocks: u128) -> Result<Philox> {
        let resources = ctx.resources();
        let stream = resources.session_local(&self.name, || {
            let (seed, seed2) = match self.seeds {
                (0, 0) => {
                    let fresh = || RandomState::new().hash_one(&self.name);
                    (fresh(), fresh())
                }
                seeds => seeds,
            };
            Ok(NodeStream(Mutex::new(Philox::new(seed, seed2))))
        })?;
        let mut next = stream.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = *next;
        *next = now.skipped(n_blocks);
        Ok(now)
    }

    /// Returns the stream of `n` numbers.
    ///
    /// # Errors
    /// As for [`NodeRandom::reserve`].
    pub fn outputs(&self, ctx: &KernelCtx, n: usize) -> Result<Philox> {
        self.reserve(ctx, n as u128 * RESERVED)
    }
}
