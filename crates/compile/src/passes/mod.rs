//! The passes: those that every graph goes through (`expand.rs`) and those of the pipeline.

pub(crate) mod arithmetic;
pub(crate) mod body;
pub(crate) mod cluster;
pub(crate) mod composite;
pub(crate) mod constant_folding;
pub(crate) mod control_only;
pub(crate) mod conv_groups;
pub(crate) mod cse;
pub(crate) mod dce;
pub(crate) mod elementwise;
pub(crate) mod fuse;
pub(crate) mod fuse_read;
pub(crate) mod fuse_update;
pub(crate) mod identity;
pub(crate) mod inline;
pub(crate) mod int8;
pub(crate) mod kernel_label;
pub(crate) mod loop_vars;
pub(crate) mod lower;
pub(crate) mod mixed_precision;
pub(crate) mod references;
pub(crate) mod relax_control;
pub(crate) mod remapper;
pub(crate) mod remote_call;
pub(crate) mod symbolic_gradient;
pub(crate) mod tensordot;
