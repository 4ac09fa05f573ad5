//! Functions of a module as instructions whose operands are rows of registers.
//!
//! Constants and special registers are rows, too. A function that is called becomes a part of its caller.

use crate::Res;
use crate::instruction::Parts;
use crate::kernel::{Kernel, Special};
use crate::module::{Module, variable};
use crate::ops::{Instr, Op, Ty};
use crate::shared::Layout;
use std::collections::HashMap;

/// Calls within calls.
const MAX_DEPTH: usize = 8;

/// What a name stands for.
#[derive(Clone, Debug)]
enum Name {
    /// A number of registers of a type, from a row on.
    Registers(u32, usize, Ty),
    Register(u32, Ty),
    /// A parameter of a function.
    Parameter(u32, Ty),
    /// Memory of a thread: the address.
    Local(u64),
}

struct Scope {
    number: usize,
    names: HashMap<String, Name>,
}

/// A register, a number, or a list of them.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    Register(u32, Ty),
    /// A constant; the type is that of a number in hexadecimal.
    Number(u64, Option<Ty>),
    /// The address in a row, and an offset.
    At(Box<Operand>, i64),
    List(Vec<Operand>),
    /// A parameter.
    Parameter(u32, Ty),
    /// A label.
    Label(String),
}

pub(crate) struct Decoder<'a> {
    pub(crate) module: &'a Module,
    at: usize,
    scopes: Vec<Scope>,
    /// The scope that each scope is in.
    parents: Vec<Option<usize>>,
    labels: HashMap<(usize, String), u32>,
    /// Branches whose targets are not known yet: the instruction, its scope and the label.
    open: Vec<(usize, usize, String)>,
    /// The branches to the end of each function that is called.
    returns: Vec<Vec<usize>>,
    code: Vec<Instr>,
    statements: Vec<String>,
    n_rows: u32,
    numbers: HashMap<u64, u32>,
    specials: HashMap<String, (Special, u32)>,
    layout: Layout,
    local_size: u64,
}

/// Decodes the kernel whose list of parameters is at a position.
pub(crate) fn decode(module: &Module, name: &str, at: usize) -> Res<Kernel> {
    let mut decoder = Decoder {
        module,
        at,
        scopes: Vec::new(),
        parents: Vec::new(),
        labels: HashMap::new(),
        open: Vec::new(),
        returns: Vec::new(),
        code: Vec::new(),
        statements: Vec::new(),
        n_rows: 0,
        numbers: HashMap::new(),
        specials: HashMap::new(),
        layout: Layout::default(),
        local_size: 0,
    };
    let decoded = decoder.entry(name);
    decoded.map_err(|e| {
        let statement = module.source.statement(decoder.at);
        format!("{name}: {e}, near '{statement}'")
    })
}

impl Decoder<'_> {
    fn token(&self) -> &str {
        self.module.source.get(self.at)
    }

    fn take(&mut self) -> String {
        let token = self.token().to_string();
        self.at += 1;
        token
    }

    fn expect(&mut self, token: &str) -> Res<()> {
        match self.take() {
            t if t == token => Ok(()),
            t => Err(format!("'{t}' in place of '{token}'")),
        }
    }

    fn row(&mut self) -> u32 {
        self.n_rows += 1;
        self.n_rows - 1
    }

    /// The row of a constant.
    pub(crate) fn number(&mut self, value: u64) -> u32 {
        if let Some(row) = self.numbers.get(&value) {
            return *row;
        }
        let row = self.row();
        self.numbers.insert(value, row);
        row
    }

    fn entry(&mut self, name: &str) -> Res<Kernel> {
        self.push_scope(None);
        let params = self.parameters()?;
        let mut max_threads = None;
        while self.token() != "{" {
            let (directive, n) = (self.take(), self.take());
            if directive == ".maxntid" {
                let mut all: u32 = n.parse().map_err(|_| "no number of threads")?;
                while self.token() == "," {
                    self.at += 1;
                    all *= self
                        .take()
                        .parse::<u32>()
                        .map_err(|_| "no number of threads")?;
                }
                max_threads = Some(all);
            }
        }
        self.body()?;
        self.emit(Op::Exit, None, &[], &[], self.at);
        self.close_branches()?;
        Ok(Kernel {
            name: name.to_string(),
            code: std::mem::take(&mut self.code),
            statements: std::mem::take(&mut self.statements),
            n_rows: self.n_rows as usize,
            numbers: self.numbers.iter().map(|(v, row)| (*row, *v)).collect(),
            specials: self.specials.values().copied().collect(),
            params,
            layout: std::mem::take(&mut self.layout),
            local_size: self.local_size as usize,
            max_threads,
            globals: self.module.globals.values().copied().collect(),
        })
    }

    fn close_branches(&mut self) -> Res<()> {
        for (branch, scope, label) in std::mem::take(&mut self.open) {
            let mut within = Some(scope);
            let target = loop {
                let Some(scope) = within else {
                    return Err(format!("there is no label {label}"));
                };
                if let Some(target) = self.labels.get(&(scope, label.clone())) {
                    break *target;
                }
                within = self.parents[scope];
            };
            self.code[branch].op = Op::Branch(target);
        }
        Ok(())
    }

    fn push_scope(&mut self, parent: Option<usize>) {
        let number = self.parents.len();
        self.parents.push(parent);
        let names = HashMap::new();
        self.scopes.push(Scope { number, names });
    }

    fn scope(&mut self) -> &mut Scope {
        self.scopes.last_mut().expect("in a function")
    }

    fn declare(&mut self, name: String, what: Name) {
        self.scope().names.insert(name, what);
    }

    /// Reads a list of parameters in parentheses, or one that is missing; returns their rows.
    fn parameters(&mut self) -> Res<Vec<(u32, Ty)>> {
        let mut params = Vec::new();
        if self.token() != "(" {
            return Ok(params);
        }
        self.at += 1;
        while self.token() != ")" {
            self.expect(".param")?;
            let ty = self.take();
            let ty = Ty::parse(&ty[1..]).ok_or_else(|| format!("a parameter of type {ty}"))?;
            let (row, name) = (self.row(), self.take());
            self.declare(name, Name::Parameter(row, ty));
            params.push((row, ty));
            if self.token() == "," {
                self.at += 1;
            }
        }
        self.at += 1;
        Ok(params)
    }

    /// Reads statements in braces, in a scope that exists.
    fn body(&mut self) -> Res<()> {
        self.expect("{")?;
        loop {
            let token = self.token().to_string();
            match &*token {
                "}" => {
                    self.at += 1;
                    return Ok(());
                }
                "" => return Err("a body does not end".to_string()),
                "{" => {
                    let parent = self.scope().number;
                    self.push_scope(Some(parent));
                    self.body()?;
                    self.scopes.pop();
                }
                ".reg" => self.registers()?,
                ".param" => {
                    let ty = self.module.source.get(self.at + 1).to_string();
                    let name = self.module.source.get(self.at + 2).to_string();
                    let ty = Ty::parse(&ty[1..]).ok_or("a parameter without a type")?;
                    self.at += 3;
                    self.expect(";")?;
                    let row = self.row();
                    self.declare(name, Name::Parameter(row, ty));
                }
                ".local" => {
                    let (name, of, next) = variable(&self.module.source, self.at)?;
                    self.at = next;
                    let address = self.local_size.next_multiple_of(of.align as u64);
                    self.local_size = address + of.size as u64;
                    self.declare(name, Name::Local(address));
                }
                ".shared" => {
                    let (name, of, next) = variable(&self.module.source, self.at)?;
                    self.at = next;
                    self.layout.add(&name, &of);
                }
                ".pragma" => self.at += 3,
                _ if self.module.source.get(self.at + 1) == ":" => {
                    let (scope, target) = (self.scope().number, self.code.len() as u32);
                    self.labels.insert((scope, token), target);
                    self.at += 2;
                }
                _ => self.statement()?,
            }
        }
    }

    fn registers(&mut self) -> Res<()> {
        self.at += 1;
        let ty = self.take();
        let ty = Ty::parse(&ty[1..]).ok_or_else(|| format!("registers of type {ty}"))?;
        loop {
            let name = self.take();
            if self.token() == "<" {
                self.at += 1;
                let n: usize = self.take().parse().map_err(|_| "no number of registers")?;
                self.expect(">")?;
                let first = self.n_rows;
                self.n_rows += n as u32;
                self.declare(name, Name::Registers(first, n, ty));
            } else {
                let row = self.row();
                self.declare(name, Name::Register(row, ty));
            }
            match &*self.take() {
                ";" => return Ok(()),
                "," => {}
                other => return Err(format!("registers end in '{other}'")),
            }
        }
    }

    fn statement(&mut self) -> Res<()> {
        let from = self.at;
        let guard = match self.token() {
            "@" => {
                self.at += 1;
                let expected = self.token() != "!";
                self.at += usize::from(!expected);
                let name = self.take();
                match self.name(&name)? {
                    Operand::Register(row, Ty::Pred) => Some((row, expected)),
                    _ => return Err(format!("{name} is not a predicate")),
                }
            }
            _ => None,
        };
        let opcode = self.take();
        if opcode.starts_with("call") {
            return self.call(guard.is_some());
        }
        if opcode == "ret" {
            self.expect(";")?;
            let number = self.code.len();
            match self.returns.last_mut() {
                Some(returns) => {
                    returns.push(number);
                    self.emit(Op::Branch(u32::MAX), guard, &[], &[], from);
                }
                None => self.emit(Op::Exit, guard, &[], &[], from),
            }
            return Ok(());
        }
        let mut operands = Vec::new();
        while self.token() != ";" {
            operands.push(self.operand()?);
            if self.token() == "," {
                self.at += 1;
            }
        }
        self.at += 1;
        if opcode == "bra" || opcode == "bra.uni" {
            let [Operand::Label(label)] = &operands[..] else {
                return Err("a branch without a label".to_string());
            };
            let scope = self.scope().number;
            self.open.push((self.code.len(), scope, label.clone()));
            self.emit(Op::Branch(u32::MAX), guard, &[], &[], from);
            return Ok(());
        }
        let parts = Parts::new(&opcode, operands);
        let (op, d, s) = parts.instruction(self)?;
        self.emit(op, guard, &d, &s, from);
        Ok(())
    }

    fn emit(&mut self, op: Op, guard: Option<(u32, bool)>, d: &[u32], s: &[u32], from: usize) {
        self.code.push(Instr {
            op,
            guard,
            d: d.into(),
            s: s.into(),
        });
        let statement = self.module.source.statement(from);
        self.statements.push(statement.replace(['\t', '\n'], " "));
    }

    /// `call (result), name, (arguments);`
    fn call(&mut self, is_guarded: bool) -> Res<()> {
        let from = self.at;
        let results = self.call_list()?;
        self.at += usize::from(self.token() == ",");
        let name = self.take();
        self.at += usize::from(self.token() == ",");
        let args = self.call_list()?;
        self.expect(";")?;
        let callee = self.module.functions.get(&name);
        let callee = *callee.ok_or_else(|| format!("there is no function {name}"))?;
        if is_guarded || self.returns.len() == MAX_DEPTH {
            return Err(format!("the call of {name} is not supported"));
        }
        let (behind, scopes) = (self.at, std::mem::take(&mut self.scopes));
        self.push_scope(None);
        self.at = callee;
        let own_results = self.parameters()?;
        self.at += 1;
        let own_args = self.parameters()?;
        let types = |list: &[(u32, Ty)]| list.iter().map(|(_, ty)| ty.size()).collect::<Vec<_>>();
        if types(&own_args) != types(&args) || types(&own_results) != types(&results) {
            return Err(format!("{name} has other parameters"));
        }
        for ((to, _), (row, _)) in own_args.iter().zip(&args) {
            self.emit(Op::Mov, None, &[*to], &[*row], from);
        }
        self.returns.push(Vec::new());
        self.body()?;
        let end = self.code.len() as u32;
        for branch in self.returns.pop().unwrap_or_default() {
            self.code[branch].op = Op::Branch(end);
        }
        for ((own, _), (to, _)) in own_results.iter().zip(&results) {
            self.emit(Op::Mov, None, &[*to], &[*own], from);
        }
        (self.at, self.scopes) = (behind, scopes);
        Ok(())
    }

    fn call_list(&mut self) -> Res<Vec<(u32, Ty)>> {
        let mut list = Vec::new();
        if self.token() != "(" {
            return Ok(list);
        }
        self.at += 1;
        while self.token() != ")" {
            let name = self.take();
            match self.name(&name)? {
                Operand::Parameter(row, ty) => list.push((row, ty)),
                _ => return Err(format!("{name} is not a parameter")),
            }
            self.at += usize::from(self.token() == ",");
        }
        self.at += 1;
        Ok(list)
    }

    fn operand(&mut self) -> Res<Operand> {
        match self.token() {
            "{" => {
                self.at += 1;
                let mut list = Vec::new();
                while self.token() != "}" {
                    list.push(self.operand()?);
                    self.at += usize::from(self.token() == ",");
                }
                self.at += 1;
                Ok(Operand::List(list))
            }
            "[" => {
                self.at += 1;
                let base = self.operand()?;
                let mut offset = 0;
                if self.token() == "+" {
                    self.at += 1;
                    offset = self.integer()?;
                }
                self.expect("]")?;
                Ok(Operand::At(Box::new(base), offset))
            }
            "-" => Ok(Operand::Number(self.integer()? as u64, None)),
            _ => {
                let token = self.take();
                let first = self.name(&token)?;
                if self.token() == "|" {
                    self.at += 1;
                    let second = self.take();
                    return Ok(Operand::List(vec![first, self.name(&second)?]));
                }
                Ok(first)
            }
        }
    }

    fn integer(&mut self) -> Res<i64> {
        let is_negative = self.token() == "-";
        self.at += usize::from(is_negative);
        let token = self.take();
        let value: u64 = token
            .parse()
            .map_err(|_| format!("{token} is not an integer"))?;
        let value = value as i64;
        Ok(if is_negative {
            value.wrapping_neg()
        } else {
            value
        })
    }

    /// What a word stands for.
    fn name(&mut self, word: &str) -> Res<Operand> {
        let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
        if let Some(bits) = word.strip_prefix("0f").and_then(hex) {
            return Ok(Operand::Number(bits, Some(Ty::F32)));
        }
        if let Some(bits) = word.strip_prefix("0d").and_then(hex) {
            return Ok(Operand::Number(bits, Some(Ty::F64)));
        }
        if let Some(value) = word.strip_prefix("0x").and_then(hex) {
            return Ok(Operand::Number(value, None));
        }
        if let Ok(value) = word.parse::<u64>() {
            return Ok(Operand::Number(value, None));
        }
        let digits = word.len() - word.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (base, index) = word.split_at(word.len() - digits);
        for scope in self.scopes.iter().rev() {
            match scope.names.get(word) {
                Some(Name::Register(row, ty)) => return Ok(Operand::Register(*row, *ty)),
                Some(Name::Parameter(row, ty)) => return Ok(Operand::Parameter(*row, *ty)),
                Some(Name::Local(address)) => return Ok(Operand::Number(*address, None)),
                _ => {}
            }
            if let (Some(Name::Registers(first, n, ty)), Ok(index)) =
                (scope.names.get(base), index.parse::<usize>())
                && index < *n
            {
                return Ok(Operand::Register(first + index as u32, *ty));
            }
        }
        if let Some(special) = Special::parse(word) {
            let known = self.specials.get(word).map(|(_, row)| *row);
            let row = known.unwrap_or_else(|| self.row());
            self.specials.insert(word.to_string(), (special, row));
            return Ok(Operand::Register(row, Ty::U32));
        }
        if let Some((address, _)) = self.module.globals.get(word) {
            return Ok(Operand::Number(*address, None));
        }
        if let Some(of) = self.module.shared.get(word) {
            self.layout.add(word, of);
        }
        if let Some(address) = self.layout.address(word) {
            return Ok(Operand::Number(address, None));
        }
        match word.starts_with('%') {
            true => Err(format!("there is no register {word}")),
            false => Ok(Operand::Label(word.to_string())),
        }
    }
}
