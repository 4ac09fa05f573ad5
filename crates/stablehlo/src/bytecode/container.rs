//! [`File`]: the sections of a file.

use super::Cursor;
use ferroflow_base::{Result, invalid_argument};
use std::borrow::Cow;

/// The newest version of the format.
const NEWEST: u64 = 6;
/// The version with versions of dialects.
const DIALECT_VERSIONS: u64 = 1;
/// The version whose isolated regions are sections.
const LAZY_REGIONS: u64 = 2;
/// The version with orders of uses.
const USE_ORDERS: u64 = 3;
/// The version without unknown locations of parameters, and with the number of op names.
const SHORT_LOCATIONS: u64 = 4;
/// The version with properties.
const PROPERTIES: u64 = 5;

/// The names of the sections by number.
const SECTIONS: [&str; 9] = [
    "strings",
    "dialects",
    "attributes and types",
    "offsets of attributes and types",
    "ops",
    "resources",
    "offsets of resources",
    "versions of dialects",
    "properties",
];
const STRINGS: usize = 0;
const DIALECTS: usize = 1;
const ENTRIES: usize = 2;
const OFFSETS: usize = 3;
/// The number of the section of ops.
const OPS: usize = 4;
const VERSION: usize = 7;
const PROPERTY: usize = 8;

/// A file, of which ops, attributes and types are still encoded.
pub(crate) struct File<'a> {
    version: u64,
    len: usize,
    strings: Vec<&'a [u8]>,
    ops: Vec<OpName<'a>>,
    pub(crate) attrs: Vec<Entry<'a>>,
    pub(crate) types: Vec<Entry<'a>>,
    properties: Vec<Cursor<'a>>,
    pub(crate) ir: Cursor<'a>,
}

/// The name of an op.
pub(crate) struct OpName<'a> {
    dialect: &'a [u8],
    name: &'a [u8],
    /// Whether the writer knew the op.
    known: bool,
}

impl OpName<'_> {
    pub(crate) fn dialect(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.dialect)
    }

    pub(crate) fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.name)
    }

    /// Returns whether the writer knew the op; if not, its properties are a dictionary.
    pub(crate) fn is_known(&self) -> bool {
        self.known
    }
}

/// An encoded attribute or type.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) dialect: &'a [u8],
    /// Whether the encoding is the dialect's, not text.
    pub(crate) is_binary: bool,
    pub(crate) data: Cursor<'a>,
}

impl<'a> File<'a> {
    /// Reads the sections behind the head.
    pub(crate) fn read(version: u64, mut rest: Cursor<'a>) -> Result<Self> {
        if version > NEWEST {
            return Err(invalid_argument!(
                "the StableHLO program has the MLIR bytecode version {version}; the newest that \
                 can be read is {NEWEST}"
            ));
        }
        let len = rest.remaining();
        let mut sections = [None; SECTIONS.len()];
        while !rest.is_empty() {
            let (number, content) = rest.section()?;
            let i = rest.check_index(number.into(), SECTIONS.len(), "section")?;
            if sections[i].replace(content.named(SECTIONS[i])).is_some() {
                return Err(rest.error(format_args!("a second section of {}", SECTIONS[i])));
            }
        }
        let section = |i: usize| {
            sections[i].ok_or_else(|| rest.error(format_args!("no section of {}", SECTIONS[i])))
        };
        let mut file = File {
            version,
            len,
            strings: strings(section(STRINGS)?)?,
            ops: Vec::new(),
            attrs: Vec::new(),
            types: Vec::new(),
            properties: Vec::new(),
            ir: section(OPS)?,
        };
        let dialects = file.read_dialects(section(DIALECTS)?)?;
        file.read_entries(&dialects, section(OFFSETS)?, section(ENTRIES)?)?;
        if let Some(mut section) = sections[PROPERTY] {
            for _ in 0..section.count()? {
                let len = section.varint()?;
                file.properties.push(section.take(len)?);
            }
            section.finish()?;
        }
        Ok(file)
    }

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether isolated regions are sections.
    pub(crate) fn has_lazy_regions(&self) -> bool {
        self.version >= LAZY_REGIONS
    }

    /// Returns whether blocks and ops have orders of uses.
    pub(crate) fn has_use_orders(&self) -> bool {
        self.version >= USE_ORDERS
    }

    /// Returns whether parameters may lack a location.
    pub(crate) fn has_short_locations(&self) -> bool {
        self.version >= SHORT_LOCATIONS
    }

    /// Reads a reference to a string.
    pub(crate) fn string(&self, at: &mut Cursor<'a>) -> Result<&'a [u8]> {
        Ok(self.strings[at.index(self.strings.len(), "string")?])
    }

    /// Reads a reference to the name of an op.
    pub(crate) fn op_name(&self, at: &mut Cursor<'a>) -> Result<&OpName<'a>> {
        Ok(&self.ops[at.index(self.ops.len(), "op name")?])
    }

    /// Reads a reference to properties.
    pub(crate) fn properties(&self, at: &mut Cursor<'a>) -> Result<Cursor<'a>> {
        Ok(self.properties[at.index(self.properties.len(), "properties entry")?])
    }

    /// Reads the section of ops that holds isolated regions.
    pub(crate) fn region_section(at: &mut Cursor<'a>) -> Result<Cursor<'a>> {
        let (number, content) = at.section()?;
        match usize::from(number) {
            OPS => Ok(content.named(SECTIONS[OPS])),
            _ => Err(at.error("a section of ops is missing")),
        }
    }

    /// Reads the names of dialects, which are returned, and those of ops.
    fn read_dialects(&mut self, mut at: Cursor<'a>) -> Result<Vec<&'a [u8]>> {
        let mut dialects = Vec::new();
        for _ in 0..at.count()? {
            let (name, has_version) = match self.version >= DIALECT_VERSIONS {
                true => at.flagged()?,
                false => (at.varint()?, false),
            };
            dialects.push(self.strings[at.check_index(name, self.strings.len(), "string")?]);
            if has_version && usize::from(at.section()?.0) != VERSION {
                return Err(at.error("the version of a dialect is missing"));
            }
        }
        if self.version >= SHORT_LOCATIONS {
            at.varint()?;
        }
        while !at.is_empty() {
            let dialect = dialects[at.index(dialects.len(), "dialect")?];
            for _ in 0..at.count()? {
                let (name, known) = match self.version >= PROPERTIES {
                    true => at.flagged()?,
                    false => (at.varint()?, true),
                };
                let name = at.check_index(name, self.strings.len(), "string")?;
                self.ops.push(OpName {
                    dialect,
                    name: self.strings[name],
                    known,
                });
            }
        }
        Ok(dialects)
    }

    fn read_entries(
        &mut self,
        dialects: &[&'a [u8]],
        mut offsets: Cursor<'a>,
        mut data: Cursor<'a>,
    ) -> Result<()> {
        let (attrs, types) = (offsets.count()?, offsets.count()?);
        let mut group = |n: usize| -> Result<Vec<Entry<'a>>> {
            let mut entries = Vec::new();
            while entries.len() < n {
                let dialect = dialects[offsets.index(dialects.len(), "dialect")?];
                let in_group = offsets.count()?;
                if in_group > n - entries.len() {
                    return Err(offsets.error("a group has more entries than are left"));
                }
                for _ in 0..in_group {
                    let (len, is_binary) = offsets.flagged()?;
                    entries.push(Entry {
                        dialect,
                        is_binary,
                        data: data.take(len)?,
                    });
                }
            }
            Ok(entries)
        };
        self.attrs = group(attrs)?;
        self.types = group(types)?;
        offsets.finish()
    }
}

/// Reads strings, whose lengths are in reverse order.
fn strings(mut at: Cursor<'_>) -> Result<Vec<&[u8]>> {
    let n = at.count()?;
    let lengths = (0..n).map(|_| at.varint()).collect::<Result<Vec<_>>>()?;
    let mut strings = Vec::with_capacity(n);
    for len in lengths {
        let Some((_zero, string)) = at.take_last(len)?.split_last() else {
            return Err(at.error("a string does not end"));
        };
        strings.push(string);
    }
    at.finish()?;
    strings.reverse();
    Ok(strings)
}
