//! Makes programs: open blocks, values and their types, constants.

use ferroflow_graph::{Node, NodeId};
use ferroflow_opdef::{ClusterInst, RandomSource, ScalarBinary, ScalarType, ScalarUnary, ValueId};
use ferroflow_tensor::Tensor;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// The most elements of a tensor that becomes values.
pub(super) const MAX_ELEMENTS: usize = 64;
/// The most values of a program.
const MAX_VALUES: usize = 4096;

/// What an output of a node is in the program.
#[derive(Clone, Debug)]
pub(super) enum Meaning {
    /// A tensor, element by element.
    Tensor(Rc<Elements>),
    /// A list of scalars, in an array.
    List(List),
    /// The vector of the integers from zero to this i64, without it.
    Range(ValueId),
    /// The key of a stream of random numbers.
    Key(RandomSource),
    /// The counter of such a stream.
    Counter(RandomSource),
}

/// A tensor of static shape.
#[derive(Clone, Debug)]
pub(super) struct Elements {
    pub(super) ty: ScalarType,
    pub(super) dims: Vec<usize>,
    pub(super) values: Vec<ValueId>,
}

impl Elements {
    pub(super) fn scalar(ty: ScalarType, value: ValueId) -> Elements {
        Elements {
            ty,
            dims: Vec::new(),
            values: vec![value],
        }
    }
}

/// A list whose elements are scalars: the array in this slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    pub(super) slot: u32,
    pub(super) ty: ScalarType,
    /// The number of writes before.
    pub(super) version: u32,
    /// What is more about a TensorArray.
    pub(super) marks: Option<Marks>,
}

/// What a TensorArray has on top of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    /// The slot of an array that says of each element whether it was written and read.
    pub(super) slot: u32,
    /// Whether the elements are those of a vector, written before the program.
    pub(super) is_given: bool,
    /// Whether reading an element clears it.
    pub(super) clears: bool,
    /// Whether the shape of elements is known before the first write.
    pub(super) has_shape: bool,
}

impl Meaning {
    pub(super) fn tensor(&self) -> Option<&Rc<Elements>> {
        match self {
            Meaning::Tensor(elements) => Some(elements),
            _ => None,
        }
    }

    pub(super) fn list(&self) -> Option<List> {
        match self {
            Meaning::List(list) => Some(*list),
            _ => None,
        }
    }

    /// The value of a scalar of this type.
    pub(super) fn scalar(&self, ty: ScalarType) -> Option<ValueId> {
        let elements = self.tensor()?;
        match elements.values[..] {
            [value] if elements.ty == ty && elements.dims.is_empty() => Some(value),
            _ => None,
        }
    }
}

/// The outputs of a node.
pub(super) type Outputs = Rc<Vec<Meaning>>;

/// The condition under which a block runs, as a part of a graph's structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Region {
    /// The part of the loop that every iteration runs.
    Head(usize),
    /// The part of the loop that the last iteration does not run.
    Body(usize),
    /// What the loop passes on when it ends.
    End(usize),
    /// A branch of the conditional on a predicate.
    Branch(ferroflow_graph::Output, bool),
}

/// A block that is being made.
#[derive(Default)]
pub(super) struct Open {
    /// The scope and region that it is of; none for the beginning of a function.
    pub(super) region: Option<(usize, Region)>,
    /// Whether it is a branch of a functional conditional.
    pub(super) is_branch: bool,
    pub(super) insts: Vec<ClusterInst>,
    /// What nodes of a scope mean here and in the blocks within.
    pub(super) known: FxHashMap<(usize, NodeId), Outputs>,
}

/// The program that is being built.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) open: Vec<Open>,
    pub(super) types: Vec<ScalarType>,
    constants: FxHashMap<ValueId, u64>,
    by_bits: FxHashMap<(ScalarType, u64), ValueId>,
    pub(super) input_arrays: Vec<ScalarType>,
    pub(super) arrays: Vec<ScalarType>,
    /// The latest version of the list of each array.
    pub(super) versions: Vec<u32>,
    /// The nodes and seeds of streams of random numbers, by slot.
    pub(super) streams: Vec<StreamOf>,
}

/// The stream of a node: its name and its seeds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StreamOf {
    pub(super) node: String,
    pub(super) seeds: [i64; 2],
}

impl Builder {
    /// A new value; `None` if there are too many.
    pub(super) fn value(&mut self, ty: ScalarType) -> Option<ValueId> {
        self.types.push(ty);
        (self.types.len() <= MAX_VALUES).then(|| (self.types.len() - 1) as ValueId)
    }

    /// Makes an array of `len` zeros; returns its slot.
    pub(super) fn alloc(&mut self, ty: ScalarType, len: ValueId) -> Option<u32> {
        let slot = (self.input_arrays.len() + self.arrays.len()) as u32;
        self.arrays.push(ty);
        self.versions.push(0);
        self.push(ClusterInst::Alloc { array: slot, len })?;
        Some(slot)
    }

    pub(super) fn len(&mut self, array: u32) -> Option<ValueId> {
        let out = self.value(ScalarType::I64)?;
        self.push(ClusterInst::Len { out, array })?;
        Some(out)
    }

    pub(super) fn load(&mut self, ty: ScalarType, array: u32, index: ValueId) -> Option<ValueId> {
        let out = self.value(ty)?;
        self.push(ClusterInst::Load { out, array, index })?;
        Some(out)
    }

    /// Leaves the program if two integers differ.
    pub(super) fn leave_unless_equal(&mut self, a: ValueId, b: ValueId) -> Option<()> {
        let cond = self.binary(ScalarBinary::NotEqual, a, b)?;
        self.push(ClusterInst::LeaveIf { cond })
    }

    pub(super) fn push(&mut self, inst: ClusterInst) -> Option<()> {
        self.open.last_mut()?.insts.push(inst);
        Some(())
    }

    pub(super) fn enter(&mut self, region: Option<(usize, Region)>) {
        self.open.push(Open {
            region,
            ..Open::default()
        });
    }

    pub(super) fn leave(&mut self) -> Option<Vec<ClusterInst>> {
        Some(self.open.pop()?.insts)
    }

    /// The number of open blocks that may not run, loops excepted.
    pub(super) fn n_branches(&self) -> usize {
        let is_branch =
            |o: &&Open| o.is_branch || matches!(o.region, Some((_, Region::Branch(..))));
        self.open.iter().filter(is_branch).count()
    }

    /// A constant, in the outermost block, so that all see it.
    pub(super) fn constant(&mut self, ty: ScalarType, bits: u64) -> Option<ValueId> {
        if let Some(value) = self.by_bits.get(&(ty, bits)) {
            return Some(*value);
        }
        let out = self.value(ty)?;
        let inst = ClusterInst::Const { out, ty, bits };
        self.open.first_mut()?.insts.push(inst);
        self.constants.insert(out, bits);
        self.by_bits.insert((ty, bits), out);
        Some(out)
    }

    pub(super) fn int(&mut self, ty: ScalarType, value: i64) -> Option<ValueId> {
        self.constant(ty, bits_of(ty, value))
    }

    /// The constant integers of a tensor.
    pub(super) fn ints(&self, elements: &Elements) -> Option<Vec<i64>> {
        let value = |v: &ValueId| {
            let bits = self.constants.get(v)?;
            Some(match elements.ty {
                ScalarType::I32 => i64::from(*bits as u32 as i32),
                ScalarType::I64 => *bits as i64,
                _ => return None,
            })
        };
        elements.values.iter().map(value).collect()
    }

    /// The elements of a constant tensor.
    pub(super) fn tensor(&mut self, tensor: &Tensor) -> Option<Elements> {
        let ty = ScalarType::of(tensor.dtype())?;
        let n = tensor.num_elements();
        if n > MAX_ELEMENTS {
            return None;
        }
        let bits: Vec<u64> = match ty {
            ScalarType::Bool => tensor
                .slice::<bool>()
                .ok()?
                .iter()
                .map(|x| u64::from(*x))
                .collect(),
            ScalarType::I32 => {
                let all = tensor.slice::<i32>().ok()?.iter();
                all.map(|x| u64::from(*x as u32)).collect()
            }
            ScalarType::I64 => tensor
                .slice::<i64>()
                .ok()?
                .iter()
                .map(|x| *x as u64)
                .collect(),
            ScalarType::F32 => {
                let all = tensor.slice::<f32>().ok()?.iter();
                all.map(|x| u64::from(x.to_bits())).collect()
            }
            ScalarType::F64 => tensor
                .slice::<f64>()
                .ok()?
                .iter()
                .map(|x| x.to_bits())
                .collect(),
        };
        let values = bits.into_iter().map(|b| self.constant(ty, b));
        Some(Elements {
            ty,
            dims: tensor.shape().dims().to_vec(),
            values: values.collect::<Option<_>>()?,
        })
    }

    pub(super) fn unary(&mut self, f: ScalarUnary, a: ValueId) -> Option<ValueId> {
        let out = self.value(f.result(self.types[a as usize])?)?;
        self.push(ClusterInst::Unary { out, f, a })?;
        Some(out)
    }

    pub(super) fn binary(&mut self, f: ScalarBinary, a: ValueId, b: ValueId) -> Option<ValueId> {
        let (ty, other) = (self.types[a as usize], self.types[b as usize]);
        let out = self.value(f.result(ty).filter(|_| ty == other)?)?;
        self.push(ClusterInst::Binary { out, f, a, b })?;
        Some(out)
    }

    pub(super) fn cast(&mut self, to: ScalarType, a: ValueId) -> Option<ValueId> {
        if self.types[a as usize] == to {
            return Some(a);
        }
        if let (Some(bits), true) = (self.constants.get(&a), to.is_int()) {
            // An index that is a constant stays one.
            let (bits, from) = (*bits, self.types[a as usize]);
            if from.is_int() {
                let value = match from {
                    ScalarType::I32 => i64::from(bits as u32 as i32),
                    _ => bits as i64,
                };
                return self.int(to, value);
            }
        }
        let out = self.value(to)?;
        self.push(ClusterInst::Cast { out, to, a })?;
        Some(out)
    }

    pub(super) fn select(&mut self, cond: ValueId, a: ValueId, b: ValueId) -> Option<ValueId> {
        let ty = self.types[a as usize];
        if ty != self.types[b as usize] || self.types[cond as usize] != ScalarType::Bool {
            return None;
        }
        let out = self.value(ty)?;
        self.push(ClusterInst::Select { out, cond, a, b })?;
        Some(out)
    }

    /// Whether a scalar counts as true.
    pub(super) fn truth(&mut self, meaning: &Meaning) -> Option<ValueId> {
        let elements = meaning.tensor()?;
        match elements.values[..] {
            [value] if elements.dims.is_empty() => self.cast(ScalarType::Bool, value),
            _ => None,
        }
    }

    /// New values of the types and shape of another tensor.
    pub(super) fn like(&mut self, model: &Elements) -> Option<Elements> {
        self.fresh(model.ty, model.dims.clone())
    }

    /// New values for the elements of a tensor, unless they are too many.
    pub(super) fn fresh(&mut self, ty: ScalarType, dims: Vec<usize>) -> Option<Elements> {
        let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        let values = (0..n.min(MAX_ELEMENTS + 1)).map(|_| self.value(ty));
        let values: Vec<ValueId> = values.collect::<Option<_>>()?;
        (values.len() <= MAX_ELEMENTS).then_some(Elements { ty, dims, values })
    }

    /// The slot of the stream of a node.
    pub(super) fn stream(&mut self, node: &Node) -> Option<u32> {
        let seed = |name| node.attrs.int(name).ok();
        let own = StreamOf {
            node: node.name.clone(),
            seeds: [seed("seed")?, seed("seed2")?],
        };
        let slot = self.streams.iter().position(|s| *s == own);
        let slot = slot.unwrap_or_else(|| {
            self.streams.push(own);
            self.streams.len() - 1
        });
        u32::try_from(slot).ok()
    }
}

/// The bits of an integer or truth value, zero-extended.
fn bits_of(ty: ScalarType, value: i64) -> u64 {
    match ty {
        ScalarType::I32 => u64::from(value as i32 as u32),
        ScalarType::Bool => u64::from(value != 0),
        _ => value as u64,
    }
}
