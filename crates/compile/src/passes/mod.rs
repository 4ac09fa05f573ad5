//! The passes.

pub(crate) mod awaited;
pub(crate) mod cse;
pub(crate) mod dead;
pub(crate) mod elementwise;
pub(crate) mod fold;
pub(crate) mod fuse;
pub(crate) mod fuse_read;
pub(crate) mod fuse_update;
pub(crate) mod identity;
pub(crate) mod loop_vars;
pub(crate) mod lower;
pub(crate) mod patterns;
pub(crate) mod simplify;
pub(crate) mod tensordot;
pub(crate) mod unpin;
