//! Opening a SavedModel directory.

use crate::atomic_file::{io_error, make_folder, write_file};
use crate::graph_file::Owner;
use crate::proto::{AssetFileDef, SavedModel};
use crate::text::saved_model_from_text;
use bytes::Bytes;
use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_tensor::MappedFile;
use prost::Message;
use std::path::Path;
use std::sync::Arc;

/// What the file of a SavedModel directory may be called, best first.
pub const SAVED_MODEL_FILES: [&str; 2] = ["saved_model.pb", "saved_model.pbtxt"];

/// A `SavedModel` message with the mapped file that its large constants still lie in.
pub struct SavedModelFile {
    /// The message. `tensor_content` fields are slices of `file`.
    pub model: SavedModel,
    /// The mapping, for a binary file.
    pub file: Option<Arc<MappedFile>>,
}

/// Writes `saved_model.pb` into `directory`, which is made if need be; the file is there when it is
/// complete.
pub fn write_saved_model(directory: &Path, model: &SavedModel) -> Result<()> {
    make_folder(directory)?;
    write_file(&directory.join(SAVED_MODEL_FILES[0]), &encode(model))
}

/// Copies a file into the folder of a model's assets; the copy is there when it is complete.
pub fn copy_asset(directory: &Path, file: &Path, name: &str) -> Result<()> {
    let folder = directory.join("assets");
    make_folder(&folder)?;
    let bytes = std::fs::read(file).map_err(|e| io_error(file, &e))?;
    write_file(&folder.join(name), &bytes)
}

/// Returns a message as bytes.
pub fn encode(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

/// Returns a message from its bytes.
pub fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M> {
    M::decode(bytes).map_err(|e| invalid_argument!("not the message that was expected: {e}"))
}

impl SavedModelFile {
    /// Returns whether `directory` has the file of a SavedModel.
    pub fn is_in(directory: &Path) -> bool {
        SAVED_MODEL_FILES
            .iter()
            .any(|name| directory.join(name).is_file())
    }

    /// Opens `saved_model.pb` or `saved_model.pbtxt` in `directory`.
    pub fn open(directory: &Path) -> Result<SavedModelFile> {
        let [binary, text] = SAVED_MODEL_FILES.map(|name| directory.join(name));
        if binary.is_file() {
            let file = Arc::new(MappedFile::open(&binary)?);
            let bytes = Bytes::from_owner(Owner(file.clone()));
            let model = SavedModel::decode(bytes).map_err(|e| {
                invalid_argument!(
                    "{} is no SavedModel (is it cut short?): {e}",
                    binary.display()
                )
            })?;
            let file = Some(file);
            return Ok(SavedModelFile { model, file });
        }
        if text.is_file() {
            let content = std::fs::read_to_string(&text)
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

/// Reads an asset from the collection where older models list them.
pub fn decode_asset(bytes: &[u8]) -> Result<AssetFileDef> {
    AssetFileDef::decode(bytes).map_err(|e| invalid_argument!("no AssetFileDef: {e}"))
}
