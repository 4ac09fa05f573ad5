//! TensorFlow's dataset ops: datasets, iterators, optionals.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod assertions;
mod auto_shard;
mod batch;
mod cache;
mod combine;
mod common;
mod consume;
mod csv;
mod elements;
mod fastest_branch;
mod files;
mod fingerprint;
mod flat_map;
mod generator;
mod global_shuffle;
mod graphs;
mod group;
mod handles;
mod index_flat_map;
mod iterator;
mod lmdb;
mod map;
mod multi_device;
mod optional;
mod options;
mod random;
mod rebatch;
mod rounds;
mod seeds;
mod shuffle;
mod snapshot;
mod snapshot_chunks;
mod snapshot_files;
mod snapshot_v1;
mod sources;
mod sql;
mod symbolic;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("assertions", assertions::OPS),
    ("auto_shard", auto_shard::OPS),
    ("batch", batch::OPS),
    ("cache", cache::OPS),
    ("combine", combine::OPS),
    ("consume", consume::OPS),
    ("csv", csv::OPS),
    ("elements", elements::OPS),
    ("fastest_branch", fastest_branch::OPS),
    ("files", files::OPS),
    ("flat_map", flat_map::OPS),
    ("generator", generator::OPS),
    ("global_shuffle", global_shuffle::OPS),
    ("graphs", graphs::OPS),
    ("group", group::OPS),
    ("index_flat_map", index_flat_map::OPS),
    ("iterator", iterator::OPS),
    ("lmdb", lmdb::OPS),
    ("map", map::OPS),
    ("multi_device", multi_device::OPS),
    ("optional", optional::OPS),
    ("options", options::OPS),
    ("random", random::OPS),
    ("rebatch", rebatch::OPS),
    ("rounds", rounds::OPS),
    ("seeds", seeds::OPS),
    ("shuffle", shuffle::OPS),
    ("snapshot", snapshot::OPS),
    ("snapshot_chunks", snapshot_chunks::OPS),
    ("snapshot_v1", snapshot_v1::OPS),
    ("sources", sources::OPS),
    ("sql", sql::OPS),
];
// codegen:end
