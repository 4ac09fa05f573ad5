//! Ops.

use super::{Cursor, File};
use crate::vhlo::{self, Values};
use crate::{Block, Function, Module, Op, Type, ValueId};
use ferroflow_base::{Result, invalid_argument};

// The parts that an op has.
const ATTRS: u8 = 0x01;
const RESULTS: u8 = 0x02;
const OPERANDS: u8 = 0x04;
const SUCCESSORS: u8 = 0x08;
const REGIONS: u8 = 0x10;
const USE_ORDERS: u8 = 0x20;
const PROPERTIES: u8 = 0x40;

/// How deep regions are nested at most, since they are read recursively.
const MAX_DEPTH: usize = 100;

/// Reads the ops of a file.
pub(crate) fn read(file: &File<'_>) -> Result<Module> {
    let mut reader = Reader {
        file,
        values: Values::new(file),
        next: 0,
        scopes: vec![Vec::new()],
    };
    let mut at = file.ir;
    let block = reader.block_head(&mut at)?;
    if block != (1, Vec::new()) {
        return Err(at.error("the outermost block does not hold one module"));
    }
    let module = reader.op_head(&mut at)?;
    if module.full_name() != "builtin.module" {
        let name = module.full_name();
        return Err(at.error(format_args!("the outermost op is '{name}', not a module")));
    }
    let functions = reader.regions(&mut at, &module, Reader::functions)?;
    at.finish()?;
    Ok(Module {
        functions: functions.into_iter().flatten().collect(),
    })
}

struct Reader<'f, 'a> {
    file: &'f File<'a>,
    values: Values<'f, 'a>,
    /// The next number of a value of the function.
    next: u32,
    /// The open regions, grouped by isolated op: the values of other groups are invisible.
    scopes: Vec<Vec<Open>>,
}

/// A region being read.
struct Open {
    /// The encoded number of the first value.
    first: u64,
    /// How many values the region claims to define.
    claimed: u64,
    defined: Vec<ValueId>,
}

/// The beginning of a block: the number of ops, and the parameters.
type BlockHead = (usize, Vec<(ValueId, Type)>);

/// An op but for its regions.
struct Head {
    dialect: String,
    name: String,
    attrs: Vec<(String, usize)>,
    results: Vec<(ValueId, Type)>,
    operands: Vec<ValueId>,
    regions: usize,
    is_isolated: bool,
}

impl Head {
    fn full_name(&self) -> String {
        format!("{}.{}", self.dialect, self.name)
    }

    fn attr(&self, name: &str) -> Option<usize> {
        let found = self.attrs.iter().find(|(n, _)| n == name);
        found.map(|(_, attr)| *attr)
    }
}

impl<'a> Reader<'_, 'a> {
    /// Reads the region of the module.
    fn functions(&mut self, at: &mut Cursor<'a>) -> Result<Vec<Function>> {
        let Some((ops, _)) = self.open(at)? else {
            return Ok(Vec::new());
        };
        let functions = (0..ops).map(|_| self.function(at)).collect();
        self.close();
        functions
    }

    fn function(&mut self, at: &mut Cursor<'a>) -> Result<Function> {
        self.next = 0;
        let start = *at;
        let head = self.op_head(at)?;
        if head.name != "func" || !matches!(&*head.dialect, "vhlo" | "func") {
            return Err(invalid_argument!(
                "the StableHLO program has the op '{}' where only functions can be read",
                head.full_name()
            ));
        }
        let (Some(name), Some(ty)) = (head.attr("sym_name"), head.attr("function_type")) else {
            return Err(start.error("a function has no name or no type"));
        };
        let name = self.values.string(name)?;
        let (args, results) = self.values.function_type(ty)?;
        let read = |reader: &mut Self, at: &mut Cursor<'a>| reader.block(at, 0);
        let bodies = self.regions(at, &head, read);
        let mut bodies = bodies.map_err(|e| e.note(format!("in the function '{name}'")))?;
        let mut body = match bodies.len() {
            1 => bodies.remove(0),
            n => return Err(start.error(format_args!("the function '{name}' has {n} bodies"))),
        };
        if body.ops.is_empty() {
            // A declaration.
            body.args = args
                .into_iter()
                .map(|ty| Ok((self.number()?, ty)))
                .collect::<Result<_>>()?;
        } else if !body.args.iter().map(|(_, ty)| ty).eq(&args) {
            return Err(start.error(format_args!(
                "the parameters of the function '{name}' differ from its type"
            )));
        }
        Ok(Function {
            name,
            results,
            body,
        })
    }

    /// Reads the regions of an op.
    fn regions<T>(
        &mut self,
        at: &mut Cursor<'a>,
        op: &Head,
        mut read: impl FnMut(&mut Self, &mut Cursor<'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        if !op.is_isolated {
            return (0..op.regions).map(|_| read(self, at)).collect();
        }
        self.scopes.push(Vec::new());
        let regions = match self.file.has_lazy_regions() && op.regions > 0 {
            false => (0..op.regions).map(|_| read(self, at)).collect(),
            true => {
                let mut section = File::region_section(at)?;
                let regions = (0..op.regions).map(|_| read(self, &mut section));
                let regions = regions.collect::<Result<_>>();
                regions.and_then(|r| section.finish().map(|()| r))
            }
        };
        self.scopes.pop();
        regions
    }

    /// Reads a region of a function.
    fn block(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Block> {
        if depth > MAX_DEPTH {
            return Err(at.error(format_args!("regions are nested {depth} deep")));
        }
        let Some((n, args)) = self.open(at)? else {
            let (args, ops) = Default::default();
            return Ok(Block { args, ops });
        };
        let mut ops = Vec::new();
        for i in 0..n {
            let op = self.op(at, depth)?;
            if (op.name == "return") != (i + 1 == n) {
                return Err(at.error(format_args!(
                    "'{}' is op {} of a block of {n}",
                    op.name,
                    i + 1
                )));
            }
            ops.push(op);
        }
        self.close();
        Ok(Block { args, ops })
    }

    fn op(&mut self, at: &mut Cursor<'a>, depth: usize) -> Result<Op> {
        let head = self.op_head(at)?;
        if !matches!(&*head.dialect, "vhlo" | "func") {
            return Err(invalid_argument!(
                "the StableHLO program has the op '{}'; only ops of VHLO can be read",
                head.full_name()
            ));
        }
        let read = |reader: &mut Self, at: &mut Cursor<'a>| reader.block(at, depth + 1);
        let regions = self.regions(at, &head, read)?;
        for (id, _) in &head.results {
            self.define(at, *id)?;
        }
        let attrs = head.attrs.into_iter();
        let attrs = attrs.map(|(name, attr)| Ok((name, self.values.attr(attr)?)));
        Ok(Op {
            attrs: attrs.collect::<Result<_>>()?,
            name: head.name,
            operands: head.operands,
            results: head.results,
            regions,
        })
    }

    /// Reads an op up to its regions.
    fn op_head(&mut self, at: &mut Cursor<'a>) -> Result<Head> {
        let start = *at;
        let name = self.file.op_name(at)?;
        let parts = at.byte()?;
        // The location.
        at.index(self.file.attrs.len(), "attribute")?;
        let mut attrs = Vec::new();
        if parts & ATTRS != 0 {
            let dictionary = at.index(self.file.attrs.len(), "attribute")?;
            attrs = self.values.dictionary(dictionary)?;
        }
        if parts & PROPERTIES != 0 {
            let properties = self.file.properties(at)?;
            attrs.extend(self.values.properties(name, properties)?);
        }
        let (dialect, name) = (name.dialect().into_owned(), name.name());
        let name = vhlo::without_version(&name).to_string();
        self.values.charge(dialect.len() + name.len())?;
        let mut results = Vec::new();
        if parts & RESULTS != 0 {
            for _ in 0..at.count()? {
                let ty = self.values.type_at(at)?;
                results.push((self.number()?, ty));
            }
        }
        let mut operands = Vec::new();
        if parts & OPERANDS != 0 {
            for _ in 0..at.count()? {
                operands.push(self.operand(at)?);
            }
        }
        if parts & SUCCESSORS != 0 && at.varint()? != 0 {
            return Err(start.error(format_args!("'{name}' branches to another block")));
        }
        if parts & USE_ORDERS != 0 && self.file.has_use_orders() {
            skip_use_orders(at, results.len())?;
        }
        let (regions, is_isolated) = match parts & REGIONS != 0 {
            true => at.flagged()?,
            false => (0, false),
        };
        Ok(Head {
            dialect,
            name,
            attrs,
            results,
            operands,
            regions: at.check_count(regions)?,
            is_isolated,
        })
    }

    /// Reads the beginning of a region and of its block, if it has one.
    fn open(&mut self, at: &mut Cursor<'a>) -> Result<Option<BlockHead>> {
        match at.varint()? {
            0 => return Ok(None),
            1 => {}
            n => return Err(at.error(format_args!("a region has {n} blocks, not one"))),
        }
        let claimed = at.varint()?;
        let last = self.scopes.last().and_then(|scope| scope.last());
        let first = last.map_or(Some(0), |o| o.first.checked_add(o.claimed));
        let Some(first) = first else {
            return Err(at.error("regions claim to define too many values"));
        };
        if let Some(scope) = self.scopes.last_mut() {
            scope.push(Open {
                first,
                claimed,
                defined: Vec::new(),
            });
        }
        Ok(Some(self.block_head(at)?))
    }

    /// Ends the region that was opened last.
    fn close(&mut self) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.pop();
        }
    }

    fn block_head(&mut self, at: &mut Cursor<'a>) -> Result<BlockHead> {
        let (ops, has_args) = at.flagged()?;
        let mut args = Vec::new();
        if has_args {
            for _ in 0..at.count()? {
                let ty = match self.file.has_short_locations() {
                    true => {
                        let (ty, has_location) = at.flagged()?;
                        let ty = at.check_index(ty, self.file.types.len(), "type")?;
                        if has_location {
                            at.index(self.file.attrs.len(), "attribute")?;
                        }
                        self.values.ty(ty)?
                    }
                    false => {
                        let ty = self.values.type_at(at)?;
                        at.index(self.file.attrs.len(), "attribute")?;
                        ty
                    }
                };
                let id = self.number()?;
                self.define(at, id)?;
                args.push((id, ty));
            }
            if self.file.has_use_orders() && at.byte()? != 0 {
                skip_use_orders(at, args.len())?;
            }
        }
        Ok((at.check_count(ops)?, args))
    }

    /// Returns a new number of a value.
    fn number(&mut self) -> Result<ValueId> {
        let id = ValueId(self.next);
        let next = self.next.checked_add(1);
        self.next =
            next.ok_or_else(|| invalid_argument!("the StableHLO program has too many values"))?;
        Ok(id)
    }

    /// Makes a value visible to what follows.
    fn define(&mut self, at: &Cursor<'a>, id: ValueId) -> Result<()> {
        match self.scopes.last_mut().and_then(|scope| scope.last_mut()) {
            Some(open) if (open.defined.len() as u64) < open.claimed => {
                open.defined.push(id);
                Ok(())
            }
            _ => Err(at.error("a region defines more values than it claims")),
        }
    }

    fn operand(&self, at: &mut Cursor<'a>) -> Result<ValueId> {
        let i = at.varint()?;
        let mut open = self.scopes.last().into_iter().flatten().rev();
        let value = open.find(|o| o.first <= i).and_then(|o| {
            let i = usize::try_from(i - o.first).ok()?;
            o.defined.get(i).copied()
        });
        value.ok_or_else(|| at.error(format_args!("value {i} is used but not defined before")))
    }
}

/// Skips the order in which uses of `n` values are listed, which has no meaning.
fn skip_use_orders(at: &mut Cursor<'_>, n: usize) -> Result<()> {
    let several = n > 1;
    let values = if several { at.varint()? } else { 1 };
    for _ in 0..values {
        if several {
            at.varint()?;
        }
        let (indices, _pairs) = at.flagged()?;
        for _ in 0..indices {
            at.varint()?;
        }
    }
    Ok(())
}
