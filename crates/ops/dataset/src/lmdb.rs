//! LMDBDataset, which TensorFlow has no support for any more (`core/kernels/data/experimental/lmdb_dataset_op.cc`): it answers
//! as TensorFlow does.

use crate::common::make;
use ferroflow_base::{Result, unimplemented_error};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, Op, OpKernel};

macro_rules! removed {
    ($name:literal) => {
        Op::new(
            $name,
            "filenames: string -> handle: variant | output_types: list(type) >= 1; \
             output_shapes: list(shape) >= 1 | stateful",
        )
        .shape(shapes::scalar)
        .kernel(refuse)
    };
}

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[removed!("LMDBDataset"), removed!("ExperimentalLMDBDataset")];

fn refuse(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |_, _| {
        Err(unimplemented_error!(
            "LMDB support is removed from TensorFlow. This API will be deleted in the next \
             TensorFlow release. If you need LMDB support, please file a GitHub issue."
        ))
    })
}
