//! [`SavedModelFile`]: opening and writing a SavedModel directory.

use crate::atomic_file::{io_error, make_folder, write_file};
use crate::files;
use crate::graph_file::Owner;
use crate::proto::{AssetFileDef, SavedModel};
use crate::text::saved_model_from_text;
use bytes::Bytes;
use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_tensor::MappedFile;
use prost::Message;
use std::path::Path;
use std::sync::Arc;

/// Names of the model file in a SavedModel directory, in order of preference.
pub const SAVED_MODEL_FILES: [&str; 2] = ["saved_model.pb", "saved_model.pbtxt"];

/// A `SavedModel` message with the mapped file that holds its large constants.
pub struct SavedModelFile {
    /// The message. `tensor_content` fields are slices of `file`.
    pub model: SavedModel,
    /// The mapping, for a binary file.
    pub file: Option<Arc<MappedFile>>,
}

/// Writes `saved_model.pb` into `directory`, atomically; creates the directory if needed.
///
/// # Errors
/// A file system error, such as PERMISSION_DENIED.
pub fn write_saved_model(directory: &Path, model: &SavedModel) -> Result<()> {
    make_folder(directory)?;
    write_file(&directory.join(SAVED_MODEL_FILES[0]), &encode(model))
}

/// Copies a file into the folder of a model's assets, atomically.
///
/// # Errors
/// A file system error, such as NOT_FOUND.
pub fn copy_asset(directory: &Path, file: &Path, name: &str) -> Result<()> {
    let folder = directory.join("assets");
    make_folder(&folder)?;
    let bytes = files::read(file).map_err(|e| io_error(file, &e))?;
    write_file(&folder.join(name), &bytes)
}

/// Encodes a message.
pub fn encode(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

/// Decodes a message.
///
/// # Errors
/// INVALID_ARGUMENT if the bytes are not such a message.
pub fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M> {
    M::decode(bytes).map_err(|e| invalid_argument!("malformed message: {e}"))
}

impl SavedModelFile {
    /// Returns whether `directory` has a SavedModel's file.
    pub fn is_in(directory: &Path) -> bool {
        SAVED_MODEL_FILES
            .iter()
            .any(|name| files::is_file(directory.join(name)))
    }

    /// Opens `saved_model.pb` or `saved_model.pbtxt` in `directory`.
    ///
    /// # Errors
    /// NOT_FOUND if neither file exists; INVALID_ARGUMENT if it is not a `SavedModel`.
    pub fn open(directory: &Path) -> Result<SavedModelFile> {
        let [binary, text] = SAVED_MODEL_FILES.map(|name| directory.join(name));
        if files::is_file(&binary) {
            let file = Arc::new(files::map(&binary)?);
            let bytes = Bytes::from_owner(Owner(file.clone()));
            let model = SavedModel::decode(bytes).map_err(|e| {
                invalid_argument!("{} is not a SavedModel (truncated?): {e}", binary.display())
            })?;
            let file = Some(file);
            return Ok(SavedModelFile { model, file });
        }
        if files::is_file(&text) {
            let content = files::read(&text).map_err(|e| io_error(&text, &e))?;
            let content = String::from_utf8(content)
                .map_err(|e| invalid_argument!("{}: {e}", text.display()))?;
            let model = saved_model_from_text(&content)
                .map_err(|e| e.note(format!("in {}", text.display())))?;
            return Ok(SavedModelFile { model, file: None });
        }
        Err(not_found!(
            "Could not find SavedModel .pb or .pbtxt at supplied export directory path: {}",
            directory.display()
        ))
    }
}

/// Decodes an asset of the collection in which older models list them.
///
/// # Errors
/// INVALID_ARGUMENT if the bytes are not an `AssetFileDef`.
pub fn decode_asset(bytes: &[u8]) -> Result<AssetFileDef> {
    AssetFileDef::decode(bytes).map_err(|e| invalid_argument!("not an AssetFileDef: {e}"))
}
