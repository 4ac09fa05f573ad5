//! LMDBReader, which TensorFlow has no support for any more (`core/kernels/lmdb_reader_op.cc`): it answers as TensorFlow does.

use ferroflow_base::unimplemented_error;
use ferroflow_opdef::Op;
use ferroflow_resources::string_handle;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "LMDBReader",
    "-> reader_handle: Ref(string) | container: string = ''; shared_name: string = '' | stateful",
)
.shape(string_handle::handle_shape)
.kernel(|_| {
    Err(unimplemented_error!(
        "LMDB support is removed from TensorFlow. This API will be deleted in the next TensorFlow \
         release. If you need LMDB support, please file a GitHub issue."
    ))
})
.not_differentiable()];
