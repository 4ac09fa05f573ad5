//! [`Parts`]: an opcode and its operands, which it turns into an operation of rows.

use crate::Res;
use crate::decode::{Decoder, Operand};
use crate::ops::{Cmp, Float, Int, Matrix, Op, Round, Shuffle, Space, Ty};

/// An instruction as it is written.
pub(crate) struct Parts {
    opcode: String,
    root: String,
    modifiers: Vec<String>,
    operands: Vec<Operand>,
}

/// The operation, its destinations and its sources.
type Decoded = (Op, Vec<u32>, Vec<u32>);

/// The row of an operand of a type; `is_wide` allows larger registers.
fn row(decoder: &mut Decoder, operand: &Operand, ty: Ty, is_wide: bool) -> Res<u32> {
    match operand {
        Operand::Register(row, declared) if ty.takes(*declared, is_wide) => Ok(*row),
        Operand::Register(_, declared) => Err(format!("a register of {declared:?} for {ty:?}")),
        Operand::Number(value, kind) => {
            let fits = match kind {
                Some(kind) => {
                    ty.takes(*kind, false) && !matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64)
                }
                None => !ty.is_float(),
            };
            match fits {
                true => Ok(decoder.number(*value)),
                false => Err(format!("a number of {kind:?} for {ty:?}")),
            }
        }
        other => Err(format!("the operand {other:?} for {ty:?}")),
    }
}

impl Parts {
    pub(crate) fn new(opcode: &str, operands: Vec<Operand>) -> Parts {
        let mut parts = opcode.split('.').map(str::to_string);
        Parts {
            opcode: opcode.to_string(),
            root: parts.next().unwrap_or_default(),
            modifiers: parts.collect(),
            operands,
        }
    }

    fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|m| m == modifier)
    }

    fn unknown<T>(&self) -> Res<T> {
        Err(format!("the instruction {} is not known", self.opcode))
    }

    /// The last modifier, as a type.
    fn ty(&self) -> Res<Ty> {
        let last = self.modifiers.last().and_then(|m| Ty::parse(m));
        last.ok_or_else(|| format!("{} has no type", self.opcode))
    }

    fn operand(&self, i: usize) -> Res<&Operand> {
        let operand = self.operands.get(i);
        operand.ok_or_else(|| format!("{} has too few operands", self.opcode))
    }

    fn expect_count(&self, n: usize) -> Res<()> {
        match self.operands.len() == n {
            true => Ok(()),
            false => Err(format!("{} takes {n} operands", self.opcode)),
        }
    }

    fn row(&self, decoder: &mut Decoder, i: usize, ty: Ty) -> Res<u32> {
        row(decoder, self.operand(i)?, ty, false)
    }

    /// The rows of a list, or of one operand.
    fn rows(&self, decoder: &mut Decoder, i: usize, ty: Ty, is_wide: bool) -> Res<Vec<u32>> {
        match self.operand(i)? {
            Operand::List(list) => list.iter().map(|o| row(decoder, o, ty, is_wide)).collect(),
            operand => Ok(vec![row(decoder, operand, ty, is_wide)?]),
        }
    }

    /// The row and the offset of an address.
    fn address(&self, decoder: &mut Decoder, i: usize, space: Space) -> Res<(u32, i64)> {
        let Operand::At(base, offset) = self.operand(i)? else {
            return Err("an operand is not an address".to_string());
        };
        match &**base {
            // Addresses of shared memory may have 32 bits.
            Operand::Register(row, ty)
                if ty.size() == 8 || space == Space::Shared && ty.size() == 4 =>
            {
                Ok((*row, *offset))
            }
            Operand::Number(address, None) => Ok((decoder.number(*address), *offset)),
            other => Err(format!("the address {other:?}")),
        }
    }

    /// A function of `n` operands of one type.
    fn same(&self, decoder: &mut Decoder, op: Op, ty: Ty, n: usize) -> Res<Decoded> {
        self.expect_count(n + 1)?;
        let d = self.row(decoder, 0, ty)?;
        let s = (1..=n)
            .map(|i| self.row(decoder, i, ty))
            .collect::<Res<_>>()?;
        Ok((op, vec![d], s))
    }

    pub(crate) fn instruction(&self, decoder: &mut Decoder) -> Res<Decoded> {
        let text = self.opcode.as_str();
        let is_newer = [
            "cp.async",
            "cvt.rna.tf32",
            "mma.sync.aligned.m16n8k8",
            "mma.sync.aligned.m16n8k16",
        ];
        let needs_80 = is_newer.iter().any(|o| text.starts_with(o)) || text.contains("bf16");
        if needs_80 && decoder.module.target < 80 {
            return Err(format!("{text} needs sm_80"));
        }
        match &*self.root {
            "mov" => self.mov(decoder),
            "cvta" if self.has("global") => self.same(decoder, Op::Mov, self.ty()?, 1),
            "ld" | "st" => self.memory(decoder),
            "cp" => self.copy(decoder),
            "red" if text == "red.global.add.f32" => {
                let (at, offset) = self.address(decoder, 0, Space::Global)?;
                let value = self.row(decoder, 1, Ty::F32)?;
                Ok((Op::Reduce(offset), vec![], vec![at, value]))
            }
            "setp" => self.compare(decoder),
            "selp" => {
                let ty = self.ty()?;
                let (d, a, b) = (
                    self.row(decoder, 0, ty)?,
                    self.row(decoder, 1, ty)?,
                    self.row(decoder, 2, ty)?,
                );
                let p = self.row(decoder, 3, Ty::Pred)?;
                Ok((Op::Select, vec![d], vec![a, b, p]))
            }
            "cvt" => self.convert(decoder),
            "shfl" if self.has("sync") => self.shuffle(decoder),
            "bar" | "barrier" if self.has("sync") => match &self.operands[..] {
                [Operand::Number(0, None)] => Ok((Op::Barrier, vec![], vec![])),
                _ => Err("a barrier that is not 0, of all threads".to_string()),
            },
            "mma" => self.mma(decoder),
            "ldmatrix" => self.load_matrix(decoder),
            "mad" | "bfi" | "shl" | "shr" => self.integer(decoder),
            _ => match self.ty()? {
                Ty::F32 | Ty::F64 => self.float(decoder),
                _ => self.integer(decoder),
            },
        }
    }

    fn mov(&self, decoder: &mut Decoder) -> Res<Decoded> {
        self.expect_count(2)?;
        let ty = self.ty()?;
        let part = |n: usize| match ty.size() * 8 / n.max(1) {
            16 => Ok((Ty::B16, 16)),
            32 => Ok((Ty::B32, 32)),
            _ => Err(format!("{} of {n} parts", self.opcode)),
        };
        match (self.operand(0)?, self.operand(1)?) {
            (Operand::List(to), _) => {
                let (part, bits) = part(to.len())?;
                let d = self.rows(decoder, 0, part, false)?;
                Ok((Op::Unpack(bits), d, vec![self.row(decoder, 1, ty)?]))
            }
            (_, Operand::List(from)) => {
                let (part, bits) = part(from.len())?;
                let s = self.rows(decoder, 1, part, false)?;
                Ok((Op::Pack(bits), vec![self.row(decoder, 0, ty)?], s))
            }
            _ => self.same(decoder, Op::Mov, ty, 1),
        }
    }

    fn memory(&self, decoder: &mut Decoder) -> Res<Decoded> {
        self.expect_count(2)?;
        let (ty, is_load) = (self.ty()?, self.root == "ld");
        let (at, values) = if is_load { (1, 0) } else { (0, 1) };
        if self.has("param") {
            let Operand::At(base, 0) = self.operand(at)? else {
                return Err("a part of a parameter".to_string());
            };
            let Operand::Parameter(param, own) = **base else {
                return Err("there is no such parameter".to_string());
            };
            if own.size() != ty.size() {
                return Err("the parameter has another size".to_string());
            }
            let value = row(decoder, self.operand(values)?, ty, true)?;
            return Ok(match is_load {
                true => (Op::Mov, vec![value], vec![param]),
                false => (Op::Mov, vec![param], vec![value]),
            });
        }
        let space = match self.modifiers.first().map(String::as_str) {
            Some("global") => Space::Global,
            Some("shared") => Space::Shared,
            Some("local") => Space::Local,
            _ => return self.unknown(),
        };
        let (address, offset) = self.address(decoder, at, space)?;
        let rows = self.rows(decoder, values, ty, true)?;
        let expected = [("v2", 2), ("v4", 4)]
            .iter()
            .find(|(m, _)| self.has(m))
            .map_or(1, |(_, n)| *n);
        if rows.len() != expected {
            return Err(format!("{} of {} registers", self.opcode, rows.len()));
        }
        Ok(match is_load {
            true => (Op::Load(space, ty, offset), rows, vec![address]),
            false => (
                Op::Store(space, ty, offset),
                vec![],
                [vec![address], rows].concat(),
            ),
        })
    }

    fn copy(&self, decoder: &mut Decoder) -> Res<Decoded> {
        let count = |i: usize| match self.operand(i)? {
            Operand::Number(n, None) => Ok(*n),
            _ => Err(format!("{} without a number", self.opcode)),
        };
        match &*self.opcode {
            "cp.async.wait_all" => Ok((Op::CopyWait(None), vec![], vec![])),
            "cp.async.wait_group" => Ok((Op::CopyWait(Some(count(0)? as u32)), vec![], vec![])),
            "cp.async.commit_group" => Ok((Op::CopyCommit, vec![], vec![])),
            "cp.async.cg.shared.global" | "cp.async.ca.shared.global" => {
                let (to, to_offset) = self.address(decoder, 0, Space::Shared)?;
                let (from, from_offset) = self.address(decoder, 1, Space::Global)?;
                let bytes = count(2)? as usize;
                if !(bytes == 16 || self.has("ca") && matches!(bytes, 4 | 8)) {
                    return Err(format!("{} of {bytes} bytes", self.opcode));
                }
                let mut s = vec![to, from];
                if self.operands.len() > 3 {
                    s.push(self.row(decoder, 3, Ty::B32)?);
                }
                let (to, from) = (to_offset, from_offset);
                Ok((Op::CopyAsync { bytes, to, from }, vec![], s))
            }
            _ => self.unknown(),
        }
    }

    fn compare(&self, decoder: &mut Decoder) -> Res<Decoded> {
        self.expect_count(3)?;
        let ty = self.ty()?;
        let cmp = Cmp::parse(&self.modifiers[0], ty.is_float());
        let Some(cmp) = cmp.filter(|_| self.modifiers.len() == 2) else {
            return self.unknown();
        };
        let d = self.row(decoder, 0, Ty::Pred)?;
        let s = vec![self.row(decoder, 1, ty)?, self.row(decoder, 2, ty)?];
        Ok((Op::Compare(cmp, ty), vec![d], s))
    }

    fn convert(&self, decoder: &mut Decoder) -> Res<Decoded> {
        let types: Vec<Ty> = self.modifiers.iter().filter_map(|m| Ty::parse(m)).collect();
        let [to, from] = types[..] else {
            return self.unknown();
        };
        let (mut round, mut is_whole, mut has_mode, mut saturates) =
            (Round::Nearest, false, false, false);
        for modifier in &self.modifiers[..self.modifiers.len() - 2] {
            let (mode, whole) = match &**modifier {
                "rn" => (Round::Nearest, false),
                "rz" => (Round::Zero, false),
                "rna" => (Round::Away, false),
                "rni" => (Round::Nearest, true),
                "rzi" => (Round::Zero, true),
                "rmi" => (Round::Down, true),
                "rpi" => (Round::Up, true),
                "sat" => {
                    saturates = true;
                    continue;
                }
                _ => return self.unknown(),
            };
            (round, is_whole, has_mode) = (mode, whole, true);
        }
        let narrows = to.is_float() && (!from.is_float() || from.size() > to.size());
        let to_int = from.is_float() && !to.is_float();
        let is_packed = matches!(to, Ty::F16x2 | Ty::Bf16x2);
        let needs_mode = narrows || to_int || is_packed;
        if needs_mode != has_mode && !(is_whole && from == to) {
            return Err(format!("the rounding of {}", self.opcode));
        }
        let n = if is_packed { 2 } else { 1 };
        self.expect_count(n + 1)?;
        let d = row(decoder, self.operand(0)?, to, true)?;
        let s = (1..=n)
            .map(|i| row(decoder, self.operand(i)?, from, true))
            .collect::<Res<_>>()?;
        let op = Op::Convert {
            to,
            from,
            round,
            is_whole,
            saturates,
        };
        Ok((op, vec![d], s))
    }

    fn shuffle(&self, decoder: &mut Decoder) -> Res<Decoded> {
        self.expect_count(5)?;
        let kind = match &*self.modifiers[1] {
            "bfly" => Shuffle::Xor,
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            "idx" => Shuffle::Index,
            _ => return self.unknown(),
        };
        let d = match self.operand(0)? {
            Operand::List(list) if list.len() == 2 => {
                vec![
                    row(decoder, &list[0], Ty::B32, false)?,
                    row(decoder, &list[1], Ty::Pred, false)?,
                ]
            }
            _ => vec![self.row(decoder, 0, Ty::B32)?],
        };
        let s = (1..5)
            .map(|i| self.row(decoder, i, Ty::B32))
            .collect::<Res<_>>()?;
        Ok((Op::Shuffle(kind), d, s))
    }

    fn mma(&self, decoder: &mut Decoder) -> Res<Decoded> {
        let kind = match &*self.opcode {
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" => Matrix::F16,
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" => Matrix::Bf16,
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" => Matrix::Tf32,
            _ => return self.unknown(),
        };
        let d = self.rows(decoder, 0, Ty::F32, false)?;
        let mut s = self.rows(decoder, 1, Ty::B32, false)?;
        s.extend(self.rows(decoder, 2, Ty::B32, false)?);
        s.extend(self.rows(decoder, 3, Ty::F32, false)?);
        match (d.len(), s.len()) {
            (4, 10) => Ok((Op::Matrix(kind), d, s)),
            _ => self.unknown(),
        }
    }

    fn load_matrix(&self, decoder: &mut Decoder) -> Res<Decoded> {
        let n = match self.modifiers.get(3).map(String::as_str) {
            Some("x1") => 1,
            Some("x2") => 2,
            Some("x4") => 4,
            _ => return self.unknown(),
        };
        let d = self.rows(decoder, 0, Ty::B32, false)?;
        let (address, offset) = self.address(decoder, 1, Space::Shared)?;
        if d.len() != n {
            return self.unknown();
        }
        let is_turned = self.has("trans");
        Ok((Op::LoadMatrix { is_turned, offset }, d, vec![address]))
    }

    fn integer(&self, decoder: &mut Decoder) -> Res<Decoded> {
        let ty = self.ty()?;
        let (is_wide, is_high) = (self.has("wide"), self.has("hi"));
        let (int, n) = match &*self.root {
            "add" => (Int::Add, 2),
            "sub" => (Int::Sub, 2),
            "mul" if is_wide => (Int::MulWide, 2),
            "mul" if is_high => (Int::MulHigh, 2),
            "mul" if self.has("lo") => (Int::Mul, 2),
            "mad" if is_wide => (Int::MadWide, 3),
            "mad" if self.has("lo") => (Int::Mad, 3),
            "div" => (Int::Div, 2),
            "rem" => (Int::Rem, 2),
            "min" => (Int::Min, 2),
            "max" => (Int::Max, 2),
            "neg" => (Int::Neg, 1),
            "abs" => (Int::Abs, 1),
            "and" => (Int::And, 2),
            "or" => (Int::Or, 2),
            "xor" => (Int::Xor, 2),
            "not" => (Int::Not, 1),
            "shl" => (Int::Shl, 2),
            "shr" => (Int::Shr, 2),
            "bfi" => (Int::Insert, 4),
            _ => return self.unknown(),
        };
        self.expect_count(n + 1)?;
        let wide = match ty {
            Ty::U16 => Ty::U32,
            Ty::S16 => Ty::S32,
            Ty::U32 => Ty::U64,
            _ => Ty::S64,
        };
        let type_of = |i: usize| match (int, i) {
            (Int::MulWide | Int::MadWide, 0 | 3) => wide,
            (Int::Shl | Int::Shr, 2) | (Int::Insert, 3 | 4) => Ty::U32,
            _ => ty,
        };
        let d = self.row(decoder, 0, type_of(0))?;
        let s = (1..=n)
            .map(|i| self.row(decoder, i, type_of(i)))
            .collect::<Res<_>>()?;
        Ok((Op::Int(int, ty), vec![d], s))
    }

    fn float(&self, decoder: &mut Decoder) -> Res<Decoded> {
        let ty = self.ty()?;
        let round = match &self.modifiers[0][..] {
            "rz" => Round::Zero,
            "rm" => Round::Down,
            "rp" => Round::Up,
            _ => Round::Nearest,
        };
        let (ftz, is_approx) = (self.has("ftz"), self.has("approx"));
        let known = ["rn", "rz", "rm", "rp", "approx", "ftz"];
        let has_others = self.modifiers[..self.modifiers.len() - 1]
            .iter()
            .any(|m| !known.contains(&&**m));
        if has_others || (ftz && !is_approx) || (is_approx && ty == Ty::F64) {
            return self.unknown();
        }
        let (float, n) = match &*self.root {
            "add" => (Float::Add(round), 2),
            "sub" => (Float::Sub(round), 2),
            "mul" => (Float::Mul(round), 2),
            "fma" if self.modifiers.len() == 2 => (Float::Fma(round), 3),
            "div" if is_approx => (Float::DivApprox, 2),
            "div" if self.has("rn") => (Float::Div, 2),
            "min" => (Float::Min, 2),
            "max" => (Float::Max, 2),
            "neg" => (Float::Neg, 1),
            "abs" => (Float::Abs, 1),
            "sqrt" if is_approx => (Float::SqrtApprox(ftz), 1),
            "sqrt" if self.has("rn") => (Float::Sqrt, 1),
            "rcp" if is_approx => (Float::RcpApprox(ftz), 1),
            "rcp" if self.has("rn") => (Float::Rcp, 1),
            "rsqrt" if is_approx => (Float::RsqrtApprox(ftz), 1),
            "ex2" if is_approx => (Float::Exp2Approx(ftz), 1),
            "lg2" if is_approx => (Float::Log2Approx(ftz), 1),
            "sin" if is_approx => (Float::SinApprox, 1),
            "cos" if is_approx => (Float::CosApprox, 1),
            "tanh" if is_approx => (Float::TanhApprox, 1),
            _ => return self.unknown(),
        };
        match ty {
            Ty::F64 => self.same(decoder, Op::F64(float), ty, n),
            _ => self.same(decoder, Op::F32(float), ty, n),
        }
    }
}
