//! [`Kernel`]: a decoded kernel.

use crate::ops::{Instr, Ty};
use crate::shared::Layout;

/// A register that tells where a thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
}

impl Special {
    pub(crate) fn parse(name: &str) -> Option<Special> {
        if name == "%laneid" {
            return Some(Special::Lane);
        }
        let (base, dim) = name.split_once('.')?;
        let dim = ["x", "y", "z"].iter().position(|d| *d == dim)?;
        Some(match base {
            "%tid" => Special::Thread(dim),
            "%ntid" => Special::Threads(dim),
            "%ctaid" => Special::Block(dim),
            "%nctaid" => Special::Blocks(dim),
            _ => return None,
        })
    }
}

/// See the module text.
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) code: Vec<Instr>,
    /// The text of each instruction.
    pub(crate) statements: Vec<String>,
    /// Rows of registers of a warp.
    pub(crate) n_rows: usize,
    /// The rows of constants.
    pub(crate) numbers: Vec<(u32, u64)>,
    pub(crate) specials: Vec<(Special, u32)>,
    pub(crate) params: Vec<(u32, Ty)>,
    pub(crate) layout: Layout,
    /// Bytes of local memory of a thread.
    pub(crate) local_size: usize,
    pub(crate) max_threads: Option<u32>,
    /// Global variables of the module, with their sizes.
    pub(crate) globals: Vec<(u64, usize)>,
}
