//! The text form of programs.

use super::{Cluster, ClusterInput, ClusterInst, ClusterOutput, RandomSource, ValueId};
use std::fmt::{self, Display, Formatter};

/// Values, separated by commas.
struct List<'a>(&'a [ValueId]);

impl Display for List<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        for (i, v) in self.0.iter().enumerate() {
            write!(f, "{}v{v}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

fn dims(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    format!("[{}]", dims.join(","))
}

impl Display for Cluster {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        for input in &self.inputs {
            match input {
                ClusterInput::Tensor(ty, shape) => writeln!(f, "in {}{};", ty.name(), dims(shape))?,
                ClusterInput::Array(ty) => writeln!(f, "in {}[?];", ty.name())?,
            }
        }
        for ty in &self.arrays {
            writeln!(f, "array {};", ty.name())?;
        }
        if self.n_streams > 0 {
            writeln!(f, "streams {};", self.n_streams)?;
        }
        insts(f, &self.insts, 0)?;
        for output in &self.outputs {
            match output {
                ClusterOutput::Tensor(ty, shape, elements) => {
                    writeln!(f, "out {}{}({});", ty.name(), dims(shape), List(elements))?;
                }
                ClusterOutput::Array(slot) => writeln!(f, "out a{slot};")?,
            }
        }
        Ok(())
    }
}

fn insts(f: &mut Formatter, insts: &[ClusterInst], depth: usize) -> fmt::Result {
    insts.iter().try_for_each(|i| inst(f, i, depth))
}

fn inst(f: &mut Formatter, inst: &ClusterInst, depth: usize) -> fmt::Result {
    let pad = "  ".repeat(depth);
    f.write_str(&pad)?;
    match inst {
        ClusterInst::Const { out, ty, bits } => {
            writeln!(f, "v{out} = const {} {bits:#x};", ty.name())
        }
        ClusterInst::Unary { out, f: op, a } => writeln!(f, "v{out} = {}(v{a});", op.name()),
        ClusterInst::Binary { out, f: op, a, b } => {
            writeln!(f, "v{out} = {}(v{a}, v{b});", op.name())
        }
        ClusterInst::Cast { out, to, a } => writeln!(f, "v{out} = cast {}(v{a});", to.name()),
        ClusterInst::Select { out, cond, a, b } => {
            writeln!(f, "v{out} = select(v{cond}, v{a}, v{b});")
        }
        ClusterInst::LeaveIf { cond } => writeln!(f, "leave(v{cond});"),
        ClusterInst::Len { out, array } => writeln!(f, "v{out} = len a{array};"),
        ClusterInst::Alloc { array, len } => writeln!(f, "alloc a{array}(v{len});"),
        ClusterInst::Load { out, array, index } => {
            writeln!(f, "v{out} = load a{array}(v{index});")
        }
        ClusterInst::Store {
            array,
            index,
            value,
        } => writeln!(f, "store a{array}(v{index}, v{value});"),
        ClusterInst::Random { outs, draw } => {
            let (name, ty) = (draw.distribution.name(), draw.ty.name());
            write!(f, "({}) = random {name} {ty} ", List(outs))?;
            match draw.source {
                RandomSource::Seeds(seeds) => write!(f, "seeds({})", List(&seeds))?,
                RandomSource::Stream(slot) => write!(f, "stream {slot}")?,
            }
            match draw.range {
                Some(range) => writeln!(f, " range({});", List(&range)),
                None => writeln!(f, ";"),
            }
        }
        ClusterInst::If {
            outs,
            cond,
            then,
            otherwise,
        } => {
            writeln!(f, "if v{cond} as ({}) {{", List(outs))?;
            insts(f, &then.insts, depth + 1)?;
            writeln!(f, "{pad}}} yield ({}) else {{", List(&then.results))?;
            insts(f, &otherwise.insts, depth + 1)?;
            writeln!(f, "{pad}}} yield ({});", List(&otherwise.results))
        }
        ClusterInst::Loop(l) => {
            let vars = l.params.iter().zip(&l.init);
            let vars: Vec<String> = vars.map(|(p, i)| format!("v{p} = v{i}")).collect();
            writeln!(f, "loop ({}) {{", vars.join(", "))?;
            insts(f, &l.head, depth + 1)?;
            let (exits, outs) = (List(&l.exits), List(&l.outs));
            writeln!(f, "{pad}}} while v{} exit ({exits}) as ({outs}) {{", l.cond)?;
            insts(f, &l.body, depth + 1)?;
            writeln!(f, "{pad}}} next ({});", List(&l.next))
        }
    }
}
