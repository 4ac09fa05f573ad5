//! VHLO: the encodings of its types, attributes and properties, and those of MLIR's own that occur
//! with them.

mod attrs;
mod enums;
mod properties;
mod tensors;
mod types;

use crate::bytecode::{Cursor, File};
use crate::{Attr, Type};
use ferroflow_base::{Result, Status, resource_exhausted};
use ferroflow_tensor::Tensor;
use std::rc::Rc;
use types::Decoded;

/// How deep types and attributes are nested at most, since they are read recursively.
const MAX_DEPTH: usize = 32;
/// How many bytes of memory a program takes at most, and as many again for each of its bytes. Its
/// types and attributes are shared in the file, but not in memory.
const MEMORY: usize = 1 << 24;
const MEMORY_PER_BYTE: usize = 256;
/// How many bytes of memory the elements of splats take at most.
const SPLATS: usize = 1 << 29;

/// Reads types and attributes of a file.
pub(crate) struct Values<'f, 'a> {
    file: &'f File<'a>,
    types: Vec<Option<Rc<Decoded>>>,
    tensors: Vec<Option<Tensor>>,
    memory: usize,
    splats: usize,
}

impl<'f, 'a> Values<'f, 'a> {
    pub(crate) fn new(file: &'f File<'a>) -> Self {
        Values {
            file,
            types: vec![None; file.types.len()],
            tensors: vec![None; file.attrs.len()],
            memory: MEMORY.saturating_add(file.len().saturating_mul(MEMORY_PER_BYTE)),
            splats: SPLATS,
        }
    }

    /// Takes memory into account.
    pub(crate) fn charge(&mut self, bytes: usize) -> Result<()> {
        self.memory = self.memory.checked_sub(bytes).ok_or_else(too_large)?;
        Ok(())
    }

    /// Reads a reference to a type.
    pub(crate) fn type_at(&mut self, at: &mut Cursor<'a>) -> Result<Type> {
        let i = at.index(self.file.types.len(), "type")?;
        self.ty(i)
    }

    /// Returns an attribute that is a string.
    pub(crate) fn string(&mut self, i: usize) -> Result<String> {
        match self.attr(i)? {
            Attr::Str(text) => Ok(text),
            other => Err(self.file.attrs[i]
                .data
                .error(format_args!("a string is expected, not {other}"))),
        }
    }
}

fn too_large() -> Status {
    resource_exhausted!("the StableHLO program takes far more memory than its size suggests")
}

/// Returns the name of an op without its version.
pub(crate) fn without_version(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((name, v)) if !v.is_empty() && v.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    }
}
