//! Random numbers in programs.

use super::{ScalarType, ValueId};

/// The distribution of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Floats in [0, 1).
    Uniform,
    /// The standard normal distribution.
    Normal,
    /// The same, redrawn beyond two standard deviations.
    TruncatedNormal,
    /// Integers from a first one up to, but without, a second one.
    UniformInt,
}

impl Distribution {
    const ALL: [(&'static str, Distribution); 4] = [
        ("uniform", Distribution::Uniform),
        ("normal", Distribution::Normal),
        ("truncated_normal", Distribution::TruncatedNormal),
        ("uniform_int", Distribution::UniformInt),
    ];

    /// Returns the name in the text form of programs.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, d)| *d == self);
        found.map_or("", |(name, _)| name)
    }

    /// Returns the distribution of this name.
    pub fn from_name(name: &str) -> Option<Distribution> {
        let found = Self::ALL.iter().find(|(n, _)| *n == name);
        found.map(|(_, d)| *d)
    }

    /// Returns whether there are such numbers of type `ty`.
    pub fn has(self, ty: ScalarType) -> bool {
        match self {
            Distribution::UniformInt => ty.is_int(),
            _ => ty.is_float(),
        }
    }
}

/// Where random numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomSource {
    /// The stream of two seeds, i64s, as of TensorFlow's stateless ops.
    Seeds([ValueId; 2]),
    /// The stream of the session in this slot, which continues.
    Stream(u32),
}

/// What an instruction draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The distribution.
    pub distribution: Distribution,
    /// The type of the numbers.
    pub ty: ScalarType,
    /// The stream.
    pub source: RandomSource,
    /// The bounds of [`Distribution::UniformInt`].
    pub range: Option<[ValueId; 2]>,
}
