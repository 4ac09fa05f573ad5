//! Checks the rules that engines rely on.

use super::{
    Cluster, ClusterBlock, ClusterInput, ClusterInst, ClusterLoop, ClusterOutput, Draw,
    RandomSource, ScalarType, ValueId,
};
use ferroflow_base::{Result, invalid_argument};

/// The most values of a program.
const MAX_VALUES: usize = 1 << 16;

/// Why a program is refused.
type Checked<T> = std::result::Result<T, String>;

impl Cluster {
    /// Checks that
    /// - a value is defined by an input, an instruction or as the variable of a loop, and never
    ///   while it is visible;
    /// - an instruction uses values that were defined before it, in its own block or one around it
    ///   (`body` of a loop is within `head`), with the types that it takes; a constant has no bits
    ///   that its type does not have;
    /// - a condition is a bool, an index and a length an i64;
    /// - both blocks of a conditional result in the same types, as does a loop's `next` in those of
    ///   its variables;
    /// - an array has a slot, loads and stores name one, and only those of the program itself are
    ///   allocated or changed, allocated once, outside blocks, before everything else that uses them;
    /// - an instruction draws at least one random number; they are of a type that their distribution has, from streams that there are; only integers have a
    ///   range, of their type;
    /// - an output has as many elements as its shape says, all of its type;
    /// - there are at most 65536 values.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, naming the value that breaks a rule.
    pub fn verify(&self) -> Result<()> {
        let n_inputs = self.inputs.iter().try_fold(0usize, |n, input| {
            let ClusterInput::Tensor(_, dims) = input else {
                return Some(n);
            };
            let size = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
            n.checked_add(size).filter(|n| *n <= MAX_VALUES)
        });
        let mut checker = Checker {
            types: Vec::new(),
            scope: Vec::new(),
            arrays: self.array_types(),
            n_input_arrays: 0,
            n_streams: self.n_streams,
            allocated: Vec::new(),
            depth: 0,
        };
        checker.n_input_arrays = checker.arrays.len() - self.arrays.len();
        checker.allocated = vec![false; checker.arrays.len()];
        checker.allocated[..checker.n_input_arrays].fill(true);
        let checked = match n_inputs {
            Some(_) => checker.program(self),
            None => Err(format!("inputs of more than {MAX_VALUES} elements")),
        };
        checked.map_err(|e| invalid_argument!("invalid cluster program: {e}"))
    }
}

struct Checker {
    /// The type of each value that is visible.
    types: Vec<Option<ScalarType>>,
    /// The values that are visible.
    scope: Vec<ValueId>,
    arrays: Vec<ScalarType>,
    n_input_arrays: usize,
    n_streams: u32,
    allocated: Vec<bool>,
    /// The number of blocks around.
    depth: usize,
}

impl Checker {
    fn program(&mut self, program: &Cluster) -> Checked<()> {
        for (v, ty) in program.input_values().enumerate() {
            self.define(v as ValueId, ty)?;
        }
        self.insts(&program.insts)?;
        for output in &program.outputs {
            match output {
                ClusterOutput::Tensor(ty, dims, elements) => {
                    let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
                    if n != Some(elements.len()) {
                        return Err(format!(
                            "an output of shape {dims:?} has {} elements",
                            elements.len()
                        ));
                    }
                    elements.iter().try_for_each(|v| self.use_as(*v, *ty))?;
                }
                ClusterOutput::Array(slot) => {
                    self.array(*slot)?;
                }
            }
        }
        Ok(())
    }

    fn define(&mut self, v: ValueId, ty: ScalarType) -> Checked<()> {
        let i = v as usize;
        if i >= MAX_VALUES {
            return Err(format!("v{v} is beyond {MAX_VALUES} values"));
        }
        if self.types.len() <= i {
            self.types.resize(i + 1, None);
        }
        if self.types[i].is_some() {
            return Err(format!("v{v} is defined twice"));
        }
        self.types[i] = Some(ty);
        self.scope.push(v);
        Ok(())
    }

    fn ty(&self, v: ValueId) -> Checked<ScalarType> {
        let ty = self.types.get(v as usize).copied().flatten();
        ty.ok_or_else(|| format!("v{v} is not defined"))
    }

    fn use_as(&self, v: ValueId, expected: ScalarType) -> Checked<()> {
        match self.ty(v)? {
            ty if ty == expected => Ok(()),
            ty => Err(format!("v{v} is {}, not {}", ty.name(), expected.name())),
        }
    }

    fn array(&self, slot: u32) -> Checked<ScalarType> {
        let ty = self.arrays.get(slot as usize).copied();
        match self.allocated.get(slot as usize) {
            Some(true) => ty.ok_or_else(|| format!("there is no a{slot}")),
            Some(false) => Err(format!("a{slot} is used before it is allocated")),
            None => Err(format!("there is no a{slot}")),
        }
    }

    /// Checks a block and makes what it defines invisible again; `then` sees it.
    fn within<T>(
        &mut self,
        insts: &[ClusterInst],
        then: impl FnOnce(&mut Self) -> Checked<T>,
    ) -> Checked<T> {
        let visible = self.scope.len();
        self.depth += 1;
        self.insts(insts)?;
        let result = then(self)?;
        self.depth -= 1;
        self.leave(visible);
        Ok(result)
    }

    /// Makes values invisible.
    fn leave(&mut self, visible: usize) {
        for v in self.scope.drain(visible..) {
            self.types[v as usize] = None;
        }
    }

    fn insts(&mut self, insts: &[ClusterInst]) -> Checked<()> {
        insts.iter().try_for_each(|i| self.inst(i))
    }

    fn inst(&mut self, inst: &ClusterInst) -> Checked<()> {
        let none = |name: &str, ty: ScalarType| format!("{name} does not take {}", ty.name());
        match inst {
            ClusterInst::Const { out, ty, bits } => {
                let max = match ty {
                    ScalarType::Bool => 1,
                    ScalarType::I32 | ScalarType::F32 => u32::MAX.into(),
                    ScalarType::I64 | ScalarType::F64 => u64::MAX,
                };
                match *bits <= max {
                    true => self.define(*out, *ty),
                    false => Err(format!("{bits:#x} is not a constant of {}", ty.name())),
                }
            }
            ClusterInst::Unary { out, f, a } => {
                let ty = self.ty(*a)?;
                let result = f.result(ty).ok_or_else(|| none(f.name(), ty))?;
                self.define(*out, result)
            }
            ClusterInst::Binary { out, f, a, b } => {
                let ty = self.ty(*a)?;
                self.use_as(*b, ty)?;
                let result = f.result(ty).ok_or_else(|| none(f.name(), ty))?;
                self.define(*out, result)
            }
            ClusterInst::Cast { out, to, a } => {
                self.ty(*a)?;
                self.define(*out, *to)
            }
            ClusterInst::Select { out, cond, a, b } => {
                self.use_as(*cond, ScalarType::Bool)?;
                let ty = self.ty(*a)?;
                self.use_as(*b, ty)?;
                self.define(*out, ty)
            }
            ClusterInst::Random { outs, draw } => self.random(outs, draw),
            ClusterInst::LeaveIf { cond } => self.use_as(*cond, ScalarType::Bool),
            ClusterInst::If {
                outs,
                cond,
                then,
                otherwise,
            } => self.branch(outs, *cond, then, otherwise),
            ClusterInst::Loop(l) => self.repeat(l),
            _ => self.memory(inst),
        }
    }

    fn random(&mut self, outs: &[ValueId], draw: &Draw) -> Checked<()> {
        let (distribution, ty) = (draw.distribution, draw.ty);
        let has_range = draw.range.is_some();
        if !distribution.has(ty) || has_range != ty.is_int() || outs.is_empty() {
            let (name, ty) = (distribution.name(), ty.name());
            return Err(format!("there is no {name} {ty} with such a range"));
        }
        match draw.source {
            RandomSource::Seeds(seeds) => {
                let mut seeds = seeds.iter();
                seeds.try_for_each(|v| self.use_as(*v, ScalarType::I64))?;
            }
            RandomSource::Stream(slot) if slot < self.n_streams => {}
            RandomSource::Stream(slot) => return Err(format!("there is no stream {slot}")),
        }
        let mut range = draw.range.iter().flatten();
        range.try_for_each(|v| self.use_as(*v, ty))?;
        outs.iter().try_for_each(|out| self.define(*out, ty))
    }

    fn memory(&mut self, inst: &ClusterInst) -> Checked<()> {
        match *inst {
            ClusterInst::Len { out, array } => {
                self.array(array)?;
                self.define(out, ScalarType::I64)
            }
            ClusterInst::Alloc { array, len } => {
                self.use_as(len, ScalarType::I64)?;
                match self.allocated.get_mut(array as usize) {
                    Some(allocated @ false) if self.depth == 0 => *allocated = true,
                    _ => return Err(format!("a{array} cannot be allocated here")),
                }
                Ok(())
            }
            ClusterInst::Load { out, array, index } => {
                self.use_as(index, ScalarType::I64)?;
                let ty = self.array(array)?;
                self.define(out, ty)
            }
            ClusterInst::Store {
                array,
                index,
                value,
            } => {
                self.use_as(index, ScalarType::I64)?;
                let ty = self.array(array)?;
                self.use_as(value, ty)?;
                match array as usize >= self.n_input_arrays {
                    true => Ok(()),
                    false => Err(format!("a{array} is an input and cannot be changed")),
                }
            }
            _ => Err("an instruction without rules".to_string()),
        }
    }

    fn branch(
        &mut self,
        outs: &[ValueId],
        cond: ValueId,
        then: &ClusterBlock,
        otherwise: &ClusterBlock,
    ) -> Checked<()> {
        self.use_as(cond, ScalarType::Bool)?;
        let mut block = |block: &ClusterBlock| {
            self.within(&block.insts, |s| {
                let types = block.results.iter().map(|v| s.ty(*v));
                types.collect::<Checked<Vec<ScalarType>>>()
            })
        };
        let types = block(then)?;
        if block(otherwise)? != types || types.len() != outs.len() {
            return Err(format!(
                "the blocks of the conditional of v{cond} differ in results"
            ));
        }
        let mut results = outs.iter().zip(types);
        results.try_for_each(|(out, ty)| self.define(*out, ty))
    }

    fn repeat(&mut self, l: &ClusterLoop) -> Checked<()> {
        let n = l.params.len();
        if l.init.len() != n || l.next.len() != n || l.exits.len() != l.outs.len() {
            return Err("a loop has as many first and next values as variables".to_string());
        }
        let types: Vec<ScalarType> = l.init.iter().map(|v| self.ty(*v)).collect::<Checked<_>>()?;
        let visible = self.scope.len();
        let mut params = l.params.iter().zip(&types);
        params.try_for_each(|(p, ty)| self.define(*p, *ty))?;
        let results = self.within(&l.head, |s| {
            s.use_as(l.cond, ScalarType::Bool)?;
            let exits = l.exits.iter().map(|v| s.ty(*v));
            let exits: Vec<ScalarType> = exits.collect::<Checked<_>>()?;
            s.within(&l.body, |s| {
                let mut next = l.next.iter().zip(&types);
                next.try_for_each(|(v, ty)| s.use_as(*v, *ty))
            })?;
            Ok(exits)
        })?;
        self.leave(visible);
        let mut outs = l.outs.iter().zip(results);
        outs.try_for_each(|(out, ty)| self.define(*out, ty))
    }
}
