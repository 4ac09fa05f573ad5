//! Finds the versions of a model in the file system.

use crate::config::{ModelSource, VersionPolicy};
use ferroflow_base::{Result, invalid_argument, ordered_map};
use ferroflow_runtime::SavedModel;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The version of a model without versions.
const ONLY_VERSION: i64 = 1;

/// Files that are versions of their own: `3.pb` is version 3.
const MODEL_FILES: [&str; 3] = ["bef", "pb", "pbtxt"];

/// Returns the versions that a model should have, with their paths.
///
/// # Errors
/// INVALID_ARGUMENT if the base path does not exist, so that versions stay loaded while it is unavailable.
pub(crate) fn aspired(source: &ModelSource) -> Result<BTreeMap<i64, PathBuf>> {
    let base = &source.path;
    if base.is_file() || SavedModel::is_at(base) {
        return Ok(ordered_map([(ONLY_VERSION, base.clone())]));
    }
    let entries = std::fs::read_dir(base).map_err(|e| {
        invalid_argument!(
            "Could not find base path {} for servable {} with error {e}",
            base.display(),
            source.name
        )
    })?;
    let mut versions = BTreeMap::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if let Some(version) = version_of(&path) {
            versions.insert(version, path);
        }
    }
    Ok(match &source.policy {
        VersionPolicy::All => versions,
        VersionPolicy::Latest(n) => {
            let newest = versions.into_iter().rev();
            ordered_map(newest.take(*n))
        }
        VersionPolicy::Specific(wanted) => {
            versions.retain(|v, _| wanted.contains(v));
            versions
        }
    })
}

/// The number of a version: the name of a directory, or of a model's file without its extension.
fn version_of(path: &Path) -> Option<i64> {
    let name = path.file_name()?.to_str()?;
    let number = match path.extension().and_then(|e| e.to_str()) {
        Some(extension) if MODEL_FILES.contains(&extension) => path.file_stem()?.to_str()?,
        _ => name,
    };
    let is_number = number.bytes().all(|b| b.is_ascii_digit());
    number.parse().ok().filter(|_| is_number)
}
