//! MLIR's bytecode (<https://mlir.llvm.org/docs/BytecodeFormat/>): the container, and the ops in it.

mod container;
mod cursor;
mod ir;

pub(crate) use container::{File, OpName};
pub(crate) use cursor::Cursor;

use crate::Module;
use ferroflow_base::{Result, Status, invalid_argument};

/// The first bytes of a file.
const MAGIC: &[u8] = b"ML\xefR";

impl Module {
    /// Reads a portable artifact: MLIR bytecode of the dialect VHLO, of any version.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the bytes are something else, are damaged, or contain ops of other
    /// dialects; RESOURCE_EXHAUSTED if the program is out of proportion to its bytes.
    pub fn read(bytes: &[u8]) -> Result<Module> {
        if !bytes.starts_with(MAGIC) {
            return Err(not_bytecode(bytes));
        }
        let mut head = Cursor::new(bytes);
        head.take(MAGIC.len() as u64)?;
        let version = head.varint()?;
        let producer = head.zero_ended()?;
        let file = File::read(version, head);
        let module = file.and_then(|file| ir::read(&file));
        module.map_err(|e| e.note(format!("in MLIR bytecode version {version} by {producer}")))
    }
}

fn not_bytecode(bytes: &[u8]) -> Status {
    let start = &bytes[..bytes.len().min(4096)];
    let start = match std::str::from_utf8(start) {
        Err(e) if e.error_len().is_some() => "",
        Err(e) => std::str::from_utf8(&start[..e.valid_up_to()]).unwrap_or_default(),
        Ok(text) => text,
    };
    let text = ["module", "\"builtin.module", "func", "#", "//", "HloModule"];
    let start = start.trim_start();
    if text.iter().any(|t| start.starts_with(t)) {
        return invalid_argument!(
            "the StableHLO program is text; export it as MLIR bytecode (a portable artifact)"
        );
    }
    let first = &bytes[..bytes.len().min(4)];
    invalid_argument!("the StableHLO program is not MLIR bytecode: it starts with {first:02x?}")
}
