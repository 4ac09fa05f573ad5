//! The passes.

pub(crate) mod cse;
pub(crate) mod dead;
pub(crate) mod fold;
pub(crate) mod identity;
