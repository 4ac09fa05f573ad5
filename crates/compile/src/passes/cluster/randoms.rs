//! Ops that draw random numbers, of seeds or of the stream of their node.

use super::build::{Elements, Meaning};
use super::ops::one;
use super::translate::{Scope, Translator};
use ferroflow_graph::{Node, NodeId};
use ferroflow_opdef::{ClusterInst, Distribution, Draw, RandomSource, ScalarType, ValueId};

/// TensorFlow's numbers of the Philox algorithm: its own, and the one that leaves the choice to the device.
const PHILOX: [i64; 2] = [1, 3];

/// The distribution of an op with a stream that continues from step to step.
fn stateful(op: &str) -> Option<Distribution> {
    Some(match op {
        "RandomUniform" => Distribution::Uniform,
        "RandomStandardNormal" => Distribution::Normal,
        "TruncatedNormal" => Distribution::TruncatedNormal,
        "RandomUniformInt" => Distribution::UniformInt,
        _ => return None,
    })
}

fn stateless(op: &str) -> Option<Distribution> {
    Some(match op.strip_suffix("V2").unwrap_or(op) {
        "StatelessRandomUniform" => Distribution::Uniform,
        "StatelessRandomNormal" => Distribution::Normal,
        "StatelessTruncatedNormal" => Distribution::TruncatedNormal,
        "StatelessRandomUniformInt" => Distribution::UniformInt,
        _ => return None,
    })
}

/// Whether an op draws numbers of its own stream and cannot fail, so that it may be left out if nothing reads them.
pub(super) fn is_idle(op: &str) -> bool {
    stateful(op).is_some_and(|d| d != Distribution::UniformInt)
}

/// Whether a node draws numbers, or makes what others need to draw them.
pub(super) fn draws(node: &Node) -> bool {
    let op = node.op();
    stateful(op).is_some()
        || stateless(op).is_some()
        || matches!(op, "StatelessRandomGetKeyCounter" | "StatelessRandomGetAlg")
}

impl Translator<'_> {
    /// The outputs of a node that draws numbers or makes a key for it; `None` if its op does something else, or the
    /// stream is not known.
    pub(super) fn random(
        &mut self,
        scope: &Scope,
        id: NodeId,
        inputs: &[Meaning],
    ) -> Option<Vec<Meaning>> {
        let node = scope.graph.node(id);
        let op = node.op();
        if let Some(distribution) = stateful(op) {
            // The stream is that of the node's name, and one run of the node draws once.
            if self.lowers && scope.calls > 0 || !self.drawn.insert((scope.id, id)) {
                return None;
            }
            let (shape, range) = inputs.split_first()?;
            let source = RandomSource::Stream(self.b.stream(node)?);
            return self.draw(node, distribution, source, shape, range);
        }
        if let Some(distribution) = stateless(op) {
            let (shape, rest) = inputs.split_first()?;
            let (source, range) = match (op.ends_with("V2"), rest) {
                (false, [seed, range @ ..]) => (self.seeds(seed)?, range),
                (
                    true,
                    [
                        Meaning::Key(key),
                        Meaning::Counter(counter),
                        alg,
                        range @ ..,
                    ],
                ) => {
                    let &[alg] = &self.b.ints(alg.tensor()?)?[..] else {
                        return None;
                    };
                    let fits = key == counter && PHILOX.contains(&alg);
                    (fits.then_some(*key)?, range)
                }
                _ => return None,
            };
            return self.draw(node, distribution, source, shape, range);
        }
        match (op, inputs) {
            ("StatelessRandomGetKeyCounter", [seed]) => {
                let source = self.seeds(seed)?;
                Some(vec![Meaning::Key(source), Meaning::Counter(source)])
            }
            ("StatelessRandomGetAlg", []) => {
                let philox = self.b.int(ScalarType::I32, PHILOX[0])?;
                one(Elements::scalar(ScalarType::I32, philox))
            }
            _ => None,
        }
    }

    fn seeds(&mut self, seed: &Meaning) -> Option<RandomSource> {
        let seed = seed.tensor()?;
        let &[a, b] = &seed.values[..] else {
            return None;
        };
        (seed.ty.is_int() && seed.dims.len() == 1).then_some(())?;
        let seeds = [
            self.b.cast(ScalarType::I64, a)?,
            self.b.cast(ScalarType::I64, b)?,
        ];
        Some(RandomSource::Seeds(seeds))
    }

    fn draw(
        &mut self,
        node: &Node,
        distribution: Distribution,
        source: RandomSource,
        shape: &Meaning,
        range: &[Meaning],
    ) -> Option<Vec<Meaning>> {
        let ty = ScalarType::of(*node.outputs.first()?)?;
        let dims = self.b.ints(shape.tensor()?)?.into_iter();
        let dims: Vec<usize> = dims
            .map(|d| usize::try_from(d).ok())
            .collect::<Option<_>>()?;
        let range = match range {
            [] => None,
            [low, high] => Some([low.scalar(ty)?, high.scalar(ty)?]),
            _ => return None,
        };
        if !distribution.has(ty) || range.is_some() != ty.is_int() {
            return None;
        }
        let elements = self.b.fresh(ty, dims)?;
        (!elements.values.is_empty()).then_some(())?;
        let outs: Vec<ValueId> = elements.values.clone();
        let draw = Draw {
            distribution,
            ty,
            source,
            range,
        };
        self.b.push(ClusterInst::Random { outs, draw })?;
        one(elements)
    }
}
