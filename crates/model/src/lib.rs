//! Files and wire messages: TensorFlow's `GraphDef`, SavedModels, checkpoints, records and events.
//!
//! Entry points: [`GraphFile`] opens a model file, binary or text; [`SavedModelFile`] opens a
//! SavedModel directory; [`TensorBundle`] reads and [`BundleWriter`] writes a checkpoint,
//! [`SliceReader`] reads one of the older format; [`tensor_from_proto`] and [`tensor_to_proto`]
//! convert constants; [`arrays`] reads and writes numpy files; [`RecordReader`] and
//! [`RecordWriter`] handle TFRecord files, [`EventWriter`] TensorBoard's; [`proto`] has the
//! messages.
//!
//! Does not know: ops, graphs as structures, execution.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

pub mod arrays;
mod atomic_file;
mod bundle_writer;
mod checkpoint_state;
mod events;
pub mod files;
mod graph_file;
mod record;
mod saved_model_file;
mod slice_file;
mod sstable;
mod tensor_bundle;
mod tensor_proto;
mod tensor_slice;
mod text;

#[allow(
    missing_docs,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
#[path = "proto_gen.rs"]
#[rustfmt::skip]
pub mod proto;

pub use atomic_file::{AtomicFile, make_folder, write_output};
pub use bundle_writer::{BundleWriter, merge_bundles};
pub use checkpoint_state::{CheckpointState, remove_checkpoint};
pub use events::EventWriter;
pub use graph_file::GraphFile;
pub use record::{
    RecordCompression, RecordReader, RecordWriter, open_decompressed, read_compressed,
};
pub use saved_model_file::{
    SAVED_MODEL_FILES, SavedModelFile, copy_asset, decode, decode_asset, encode, write_saved_model,
};
pub use slice_file::{SavedPart, SliceReader, write_slices};
pub use tensor_bundle::{TensorBundle, has_checkpoint};
pub use tensor_proto::{
    set_handle_device, shape_from_proto, shape_to_proto, tensor_from_proto, tensor_to_attr_proto,
    tensor_to_proto,
};
pub use tensor_slice::TensorSlice;
pub use text::{
    api_defs_from_text, descriptors, dynamic_from_text, file_descriptor, graph_from_text,
    graph_to_text, message_from_text, message_to_json, message_to_text, saved_model_from_text,
};
