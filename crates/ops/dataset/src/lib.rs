//! TensorFlow's dataset ops: datasets, iterators, optionals.
//!
//! Does not know: other groups, graphs, engines.
#![forbid(unsafe_code)]

// codegen:begin
mod batch;
mod cache;
mod combine;
mod common;
mod consume;
mod csv;
mod elements;
mod files;
mod flat_map;
mod generator;
mod graphs;
mod group;
mod handles;
mod index_flat_map;
mod iterator;
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
mod snapshot_files;
mod sources;

/// The ops of the group, file by file. A static, so that their kernels are compiled in this crate.
#[rustfmt::skip]
pub static ALL: &[ferroflow_opdef::OpFile] = &[
    ("batch", batch::OPS),
    ("cache", cache::OPS),
    ("combine", combine::OPS),
    ("consume", consume::OPS),
    ("csv", csv::OPS),
    ("elements", elements::OPS),
    ("files", files::OPS),
    ("flat_map", flat_map::OPS),
    ("generator", generator::OPS),
    ("graphs", graphs::OPS),
    ("group", group::OPS),
    ("index_flat_map", index_flat_map::OPS),
    ("iterator", iterator::OPS),
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
    ("sources", sources::OPS),
];
// codegen:end
