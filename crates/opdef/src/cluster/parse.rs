//! Reads the text form of programs.

use super::{
    Cluster, ClusterBlock, ClusterInput, ClusterInst, ClusterLoop, ClusterOutput, Distribution,
    Draw, RandomSource, ScalarBinary, ScalarType, ScalarUnary, ValueId,
};
use ferroflow_base::{Result, invalid_argument};

/// Deepest nesting of blocks that is read.
const MAX_DEPTH: usize = 64;

impl Cluster {
    /// Decodes and verifies the text that a program is displayed as.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the text is malformed or breaks a rule of [`Cluster::verify`].
    pub fn decode(text: &str) -> Result<Cluster> {
        let mut reader = Reader { rest: text };
        let program = reader.cluster().ok_or_else(|| {
            let at: String = reader.rest.chars().take(20).collect();
            invalid_argument!("malformed cluster program near '{at}'")
        })?;
        program.verify()?;
        Ok(program)
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// The next word: letters and digits, or one other character.
    fn word(&mut self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = match rest.find(|c| !is_part(c)) {
            Some(0) => rest.chars().next()?.len_utf8(),
            Some(end) => end,
            None => rest.len(),
        };
        let (word, rest) = rest.split_at_checked(end)?;
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    fn peek(&self) -> Option<&'a str> {
        Reader { rest: self.rest }.word()
    }

    fn expect(&mut self, word: &str) -> Option<()> {
        (self.word()? == word).then_some(())
    }

    /// Consumes `word` if it is next.
    fn skip(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        if is_next {
            self.word();
        }
        is_next
    }

    fn numbered(&mut self, prefix: char) -> Option<u32> {
        self.word()?.strip_prefix(prefix)?.parse().ok()
    }

    fn value(&mut self) -> Option<ValueId> {
        self.numbered('v')
    }

    fn ty(&mut self) -> Option<ScalarType> {
        ScalarType::from_name(self.word()?)
    }

    /// `item, item, …` up to `end`, which is consumed.
    fn list<T>(
        &mut self,
        end: &str,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut all = Vec::new();
        while !self.skip(end) {
            if !all.is_empty() {
                self.expect(",")?;
            }
            all.push(item(self)?);
        }
        Some(all)
    }

    fn values(&mut self) -> Option<Vec<ValueId>> {
        self.expect("(")?;
        self.list(")", Self::value)
    }

    fn cluster(&mut self) -> Option<Cluster> {
        let mut program = Cluster::default();
        while self.skip("in") {
            let ty = self.ty()?;
            self.expect("[")?;
            program.inputs.push(match self.skip("?") {
                true => {
                    self.expect("]")?;
                    ClusterInput::Array(ty)
                }
                false => ClusterInput::Tensor(ty, self.dims()?),
            });
            self.expect(";")?;
        }
        while self.skip("array") {
            program.arrays.push(self.ty()?);
            self.expect(";")?;
        }
        if self.skip("streams") {
            program.n_streams = self.word()?.parse().ok()?;
            self.expect(";")?;
        }
        while !matches!(self.peek(), Some("out") | None) {
            program.insts.push(self.inst(0)?);
        }
        while self.skip("out") {
            let word = self.word()?;
            program.outputs.push(match ScalarType::from_name(word) {
                Some(ty) => {
                    self.expect("[")?;
                    let dims = self.dims()?;
                    ClusterOutput::Tensor(ty, dims, self.values()?)
                }
                None => ClusterOutput::Array(word.strip_prefix('a')?.parse().ok()?),
            });
            self.expect(";")?;
        }
        self.rest.trim().is_empty().then_some(program)
    }

    fn dims(&mut self) -> Option<Vec<usize>> {
        self.list("]", |r| r.word()?.parse().ok())
    }

    fn block(&mut self, depth: usize) -> Option<Vec<ClusterInst>> {
        let mut insts = Vec::new();
        self.expect("{")?;
        while !self.skip("}") {
            insts.push(self.inst(depth + 1)?);
        }
        Some(insts)
    }

    fn inst(&mut self, depth: usize) -> Option<ClusterInst> {
        if depth > MAX_DEPTH {
            return None;
        }
        let inst = match self.word()? {
            "if" => self.branch(depth)?,
            "loop" => self.repeat(depth)?,
            "leave" => {
                self.expect("(")?;
                let cond = self.value()?;
                self.expect(")")?;
                ClusterInst::LeaveIf { cond }
            }
            word @ ("alloc" | "store") => {
                let array = self.numbered('a')?;
                match (word, &self.values()?[..]) {
                    ("alloc", &[len]) => ClusterInst::Alloc { array, len },
                    ("store", &[index, value]) => ClusterInst::Store {
                        array,
                        index,
                        value,
                    },
                    _ => return None,
                }
            }
            "(" => {
                let outs = self.list(")", Self::value)?;
                self.expect("=")?;
                self.random(outs)?
            }
            word => {
                let out = word.strip_prefix('v')?.parse().ok()?;
                self.expect("=")?;
                self.definition(out)?
            }
        };
        self.expect(";")?;
        Some(inst)
    }

    fn definition(&mut self, out: ValueId) -> Option<ClusterInst> {
        Some(match self.word()? {
            "const" => {
                let ty = self.ty()?;
                let bits = u64::from_str_radix(self.word()?.strip_prefix("0x")?, 16).ok()?;
                ClusterInst::Const { out, ty, bits }
            }
            "cast" => {
                let to = self.ty()?;
                let &[a] = &self.values()?[..] else {
                    return None;
                };
                ClusterInst::Cast { out, to, a }
            }
            "len" => ClusterInst::Len {
                out,
                array: self.numbered('a')?,
            },
            "load" => {
                let array = self.numbered('a')?;
                let &[index] = &self.values()?[..] else {
                    return None;
                };
                ClusterInst::Load { out, array, index }
            }
            name => match (name, &self.values()?[..]) {
                ("select", &[cond, a, b]) => ClusterInst::Select { out, cond, a, b },
                (_, &[a]) => ClusterInst::Unary {
                    out,
                    f: ScalarUnary::of_op(name)?,
                    a,
                },
                (_, &[a, b]) => ClusterInst::Binary {
                    out,
                    f: ScalarBinary::of_op(name)?,
                    a,
                    b,
                },
                _ => return None,
            },
        })
    }

    fn random(&mut self, outs: Vec<ValueId>) -> Option<ClusterInst> {
        self.expect("random")?;
        let distribution = Distribution::from_name(self.word()?)?;
        let ty = self.ty()?;
        let source = match self.word()? {
            "seeds" => RandomSource::Seeds(self.values()?.try_into().ok()?),
            "stream" => RandomSource::Stream(self.word()?.parse().ok()?),
            _ => return None,
        };
        let range = match self.skip("range") {
            true => Some(self.values()?.try_into().ok()?),
            false => None,
        };
        let draw = Draw {
            distribution,
            ty,
            source,
            range,
        };
        Some(ClusterInst::Random { outs, draw })
    }

    fn branch(&mut self, depth: usize) -> Option<ClusterInst> {
        let cond = self.value()?;
        self.expect("as")?;
        let outs = self.values()?;
        let block = |r: &mut Self| {
            let insts = r.block(depth)?;
            r.expect("yield")?;
            let results = r.values()?;
            Some(ClusterBlock { insts, results })
        };
        let then = block(self)?;
        self.expect("else")?;
        let otherwise = block(self)?;
        Some(ClusterInst::If {
            outs,
            cond,
            then,
            otherwise,
        })
    }

    fn repeat(&mut self, depth: usize) -> Option<ClusterInst> {
        self.expect("(")?;
        let vars = self.list(")", |r| {
            let param = r.value()?;
            r.expect("=")?;
            Some((param, r.value()?))
        })?;
        let (params, init) = vars.into_iter().unzip();
        let head = self.block(depth)?;
        self.expect("while")?;
        let cond = self.value()?;
        self.expect("exit")?;
        let exits = self.values()?;
        self.expect("as")?;
        let outs = self.values()?;
        let body = self.block(depth)?;
        self.expect("next")?;
        let next = self.values()?;
        Some(ClusterInst::Loop(Box::new(ClusterLoop {
            params,
            init,
            head,
            cond,
            exits,
            body,
            next,
            outs,
        })))
    }
}
